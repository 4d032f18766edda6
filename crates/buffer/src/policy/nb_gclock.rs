//! The clock sweep of Nb-GCLOCK (paper §3.1.3, Figs 3 and 5).
//!
//! 1. Start at the position of the hand, modulo the capacity (G1).
//! 2. A frame that is evicted (another thread is filling it) or pinned is passed; the sweep does not wait for
//!    it (G9).
//! 3. A frame with uses left loses one and is passed.
//! 4. A cold, dirty frame is passed and remembered, and the cleaner is notified. The caller writes a dirty
//!    page itself only after a whole round without a cold, clean frame (G3).
//! 5. A cold, clean frame is taken by one CAS; if the CAS fails, another thread was first: continue.
//! 6. The hand moves past the frames that were checked.
//! 7. A round without a frame to take, to write or to decrement ends the sweep: all frames are pinned or in
//!    use by other sweeps (G6).
//!
//! After `MAX_ROUNDS` rounds the sweep ends without a victim (G6). Counts are bounded by `MAX_REF_COUNT`, so
//! by then every frame that was not pinned, dirty or in use by another sweep has been cold once. A bounded
//! search ends at its bound, with the hand past the checked frames, so several bounded searches have the
//! effect of one.

use crate::frame::{Frame, nth_frame};

use super::clock_hand::ClockHand;
use super::{MAX_ROUNDS, Search, Sweep};

/// Searches for a victim.
pub(crate) fn sweep(frames: &[Frame], hand: &ClockHand, search: &mut Search) -> Sweep {
    let capacity = frames.len();
    let start = (hand.position() % capacity as u64) as usize;
    let mut dirty = None;
    for round in 0..MAX_ROUNDS {
        let (mut pinned, mut has_cooled) = (0, false);
        for step in 0..capacity {
            if !search.look() {
                hand.advance((round * capacity + step) as u64);
                return dirty.map_or(Sweep::BoundReached, Sweep::Dirty);
            }
            let id = nth_frame((start + step) % capacity, capacity);
            let frame = &frames[id.0 as usize];
            if !frame.is_open() {
                continue;
            }
            if frame.is_pinned() {
                pinned += 1;
            } else if !frame.cool() {
                has_cooled = true;
            } else if frame.is_dirty() {
                search.dirty_met += 1;
                dirty.get_or_insert(id);
            } else if frame.try_evict() {
                hand.advance((round * capacity + step) as u64 + 1);
                return Sweep::Victim { frame: id, swap: None };
            }
        }
        if let Some(frame) = dirty {
            hand.advance(((round + 1) * capacity) as u64);
            return Sweep::Dirty(frame);
        }
        if !has_cooled {
            return Sweep::Nothing { pinned };
        }
    }
    Sweep::Nothing { pinned: 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::frame::MAX_REF_COUNT;
    use crate::policy::{HandKind, Policy, Replacement};
    use crate::{BufferPool, MemStore, PoolOptions};
    use azekura_base::durable::NoLog;
    use azekura_base::{Lsn, PageId};
    use std::sync::Arc;

    /// A single-threaded GCLOCK as the reference: (page, count) per frame, and a hand.
    struct Reference {
        frames: Vec<(u64, u32)>,
        capacity: usize,
        hand: usize,
    }

    impl Reference {
        fn fix(&mut self, page: u64) -> bool {
            if let Some((_, count)) = self.frames.iter_mut().find(|(held, _)| *held == page) {
                *count = (*count + 1).min(MAX_REF_COUNT);
                return true;
            }
            if self.frames.len() < self.capacity {
                self.frames.push((page, 1));
                return false;
            }
            loop {
                let at = self.hand % self.capacity;
                self.hand += 1;
                let (_, count) = &mut self.frames[at];
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.frames[at] = (page, 1);
                    return false;
                }
            }
        }
    }

    fn pool(frames: usize, hand: HandKind) -> BufferPool {
        let policy = Policy::NbGclock(hand);
        let options = PoolOptions { page_size: 4096, capacity_bytes: frames * 4096, policy };
        BufferPool::new(options, Arc::new(MemStore::new(4096)), Arc::new(NoLog)).expect("valid options")
    }

    #[test]
    fn in_one_thread_it_keeps_the_pages_that_plain_gclock_keeps() {
        for (seed, frames, hand) in
            [(1u64, 8, HandKind::Striped), (2, 8, HandKind::Atomic), (3, 61, HandKind::Striped)]
        {
            let pool = pool(frames, hand);
            let mut reference = Reference { frames: Vec::new(), capacity: frames, hand: 0 };
            let mut state = seed;
            for step in 0..30_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Skewed access: the product of two uniform numbers.
                let (a, b) = ((state >> 33) % 1000, (state >> 43) % 1000);
                let page = a * b * 4 * frames as u64 / 1_000_000;
                let misses = pool.stats().misses;
                drop(pool.fix(PageId(page)).unwrap());
                let is_hit = pool.stats().misses == misses;
                assert_eq!(
                    is_hit,
                    reference.fix(page),
                    "seed {seed}, {frames} frames, step {step}, page {page}"
                );
            }
        }
    }

    #[test]
    fn g1_a_hand_far_beyond_the_capacity_looks_at_every_frame_once_a_round() {
        let pool = pool(5, HandKind::Atomic);
        let Replacement::NbGclock(hand) = &pool.policy else { unreachable!("asked for") };
        hand.advance(u64::MAX / 5 * 5 - 2); // The counter wraps soon.
        for page in 0..200 {
            drop(pool.fix(PageId(page)).unwrap());
        }
        assert_eq!(pool.stats().evictions, 195);
    }

    #[test]
    fn g3_clean_victims_are_preferred_and_the_dirty_one_is_written_last() {
        let pool = pool(4, HandKind::Striped);
        for id in 0..4 {
            let mut page = pool.fix(PageId(id)).unwrap().exclusive();
            if id < 2 {
                page.will_change(Lsn(1));
            }
        }
        for id in 4..6 {
            drop(pool.fix(PageId(id)).unwrap());
        }
        assert_eq!(pool.stats().foreground_writes, 0, "pages 2 and 3 went");
        let pinned: Vec<_> = [4, 5].map(|id| pool.fix(PageId(id)).unwrap()).into();
        drop(pool.fix(PageId(6)).unwrap());
        assert_eq!(pool.stats().foreground_writes, 1, "nothing clean was left");
        drop(pinned);
    }
}
