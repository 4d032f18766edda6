//! Turns of a hand, assigned in small batches, so that threads rarely write the same word. Each stripe of
//! threads uses one batch and then takes the next.
//!
//! The word of a stripe packs its next turn and the remaining turns of its batch. Taking a turn is a load and
//! a store of the thread's own cache line; once per batch there is an addition to the shared hand. A turn is
//! only a position to check, and the frame at that position decides whether it may be taken. So three
//! irregularities are harmless: two threads of one stripe get the same turn, the rest of a batch is skipped,
//! or a thread that slept for long resets its stripe to an old batch.
//!
//! In a single thread the turns are 0, 1, 2, …, as without batches.

use std::ops::ControlFlow;

use azekura_base::CachePadded;
use azekura_base::striped::{line_count, thread_stripe};
#[cfg(not(loom))]
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
// No protocol depends on the turns, so models need not switch threads at them. The models cover two threads
// with the same turn.
#[cfg(loom)]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::count::shared_rmw;

/// Number of bits of a stripe's word for the remaining turns. The other 48 bits are for the turn: enough for
/// nine years at a million turns a second.
const LEFT_BITS: u32 = 16;

/// The hand and the batches of the stripes. All accesses are Relaxed: a turn publishes no other data.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The first turn of the next batch.
    hand: CachePadded<AtomicU64>,
    stripes: Box<[CachePadded<AtomicU64>]>,
    batch: u64,
}

/// The remaining turns of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The next turn, if any is left.
    pub(crate) next: u64,
    left: u64,
}

impl Batch {
    /// Returns the batch without its next turn.
    const fn passed(self) -> Self {
        Self { next: self.next + 1, left: self.left - 1 }
    }
}

impl Turns {
    /// Returns turns that are assigned in batches of `batch`, from 1 to 256.
    pub(crate) fn new(batch: u64) -> Self {
        let used_up = || CachePadded::new(AtomicU64::new(0));
        Self {
            hand: CachePadded::new(AtomicU64::new(0)),
            // One stripe in models, where the stripe of a thread differs between runs.
            stripes: (0..if cfg!(loom) { 1 } else { line_count() }).map(|_| used_up()).collect(),
            batch: batch.clamp(1, 1 << 8),
        }
    }

    fn stripe(&self) -> &AtomicU64 {
        &self.stripes[thread_stripe() % self.stripes.len()]
    }

    /// Returns the first turn of the next batch: all lower turns have been assigned.
    pub(crate) fn hand(&self) -> u64 {
        self.hand.load(Relaxed)
    }

    /// Returns the remaining turns of the calling thread's stripe, possibly none.
    fn kept(&self) -> Batch {
        let word = self.stripe().load(Relaxed);
        Batch { next: word >> LEFT_BITS, left: word & ((1 << LEFT_BITS) - 1) }
    }

    /// Sets the remaining turns of the calling thread's stripe.
    fn keep(&self, batch: Batch) {
        self.stripe().store(batch.next << LEFT_BITS | batch.left, Relaxed);
    }

    fn claim(&self) -> Batch {
        shared_rmw();
        Batch { next: self.hand.fetch_add(self.batch, Relaxed), left: self.batch }
    }

    fn claim_if_none_is_left(&self, batch: Batch) -> Batch {
        if batch.left > 0 { batch } else { self.claim() }
    }

    /// Returns the turn that the calling thread will probably take next.
    pub(crate) fn now(&self) -> u64 {
        let Batch { next, left } = self.kept();
        if left > 0 { next } else { self.hand() }
    }

    /// Takes a turn.
    pub(crate) fn next(&self) -> u64 {
        let batch = self.claim_if_none_is_left(self.kept());
        self.keep(batch.passed());
        batch.next
    }

    /// Calls `look` for at most `most` turns, until it breaks. The turn of a break stays the stripe's next
    /// turn until it is [taken](Self::take). After `most` turns without a break, the stripe continues after
    /// them. Otherwise each call would start again at the same old turn and skip the same later turns.
    pub(crate) fn find<T>(
        &self,
        most: u64,
        mut look: impl FnMut(u64) -> ControlFlow<Option<T>>,
    ) -> Option<(Batch, T)> {
        let kept = self.kept();
        let mut at = self.claim_if_none_is_left(kept);
        for _ in 0..most {
            if let ControlFlow::Break(found) = look(at.next) {
                if at != kept {
                    self.keep(at);
                }
                return found.map(|found| (at, found));
            }
            at = self.claim_if_none_is_left(at.passed());
        }
        self.keep(at);
        None
    }

    /// Advances the hand as if threads of other stripes took `turns` turns.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn others_take(&self, turns: u64) {
        self.hand.fetch_add(turns, Relaxed);
    }

    /// Takes the turn that [`Self::find`] has returned.
    pub(crate) fn take(&self, found: Batch) {
        self.keep(found.passed());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn in_one_thread_turns_come_one_after_the_other() {
        for batch in [1, 2, 8] {
            let turns = Turns::new(batch);
            for turn in 0..100 {
                assert_eq!((turns.now(), turns.next()), (turn, turn), "batches of {batch}");
            }
        }
    }

    #[test]
    fn a_found_frame_stays_next_until_it_is_taken() {
        for batch in [1, 2, 8] {
            let turns = Turns::new(batch);
            let multiple_of_five = |turn: u64| match turn % 5 {
                0 => ControlFlow::Break(Some(turn)),
                _ => ControlFlow::Continue(()),
            };
            for expected in [0, 5, 10, 15] {
                let (at, found) = turns.find(10, multiple_of_five).expect("one in five");
                assert_eq!((found, turns.find(1, multiple_of_five)), (expected, Some((at, found))));
                turns.take(at);
                assert_eq!(turns.now(), expected + 1);
            }
        }
    }

    #[test]
    fn a_search_without_result_continues_behind_the_searched_frames() {
        for batch in [1, 2, 8] {
            let turns = Turns::new(batch);
            let mut looked_at = Vec::new();
            for round in 0..20 {
                let (mut looks, gives_up) = (0, round % 2 == 0);
                let found = turns.find(if gives_up { 9 } else { 3 }, |turn| {
                    if looks == 3 {
                        return ControlFlow::Break(None::<()>);
                    }
                    (looks, _) = (looks + 1, looked_at.push(turn));
                    ControlFlow::Continue(())
                });
                assert_eq!(found, None);
            }
            assert_eq!(looked_at, (0..60).collect::<Vec<_>>(), "batches of {batch}");
        }
    }

    /// No turn is assigned to two stripes, if each thread is alone on its stripe.
    #[test]
    fn no_turn_is_dealt_out_to_two_stripes() {
        let turns = Turns::new(8);
        let take = || {
            ((thread_stripe() % turns.stripes.len()), (0..5_000).map(|_| turns.next()).collect::<Vec<_>>())
        };
        let dealt: Vec<(usize, Vec<u64>)> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..8).map(|_| s.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let stripes: HashSet<usize> = dealt.iter().map(|(stripe, _)| *stripe).collect();
        let turns: HashSet<u64> = dealt.iter().flat_map(|(_, turns)| turns).copied().collect();
        // Threads of other tests use stripes too, so two of these threads may share a stripe.
        assert!(turns.len() >= 5_000 * stripes.len(), "{} turns of {} stripes", turns.len(), stripes.len());
    }
}
