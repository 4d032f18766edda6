//! Turns in the probation ring: its slots, and the hand that visits them.
//!
//! **Quick slots.** Most turns visit the first [`QUICK`] slots, so that new pages are copied to memory that
//! is still in the processor's caches. The other slots get one turn in a fixed number. Read-ahead pages must
//! stay until their scan uses them: after a read-ahead, all slots have the same number of turns for two
//! rounds.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::turns::Turns;
use crate::count::shared_store;

/// Number of frames of the pool per frame in probation.
const SHARE: usize = 100;
/// Number of slots that get most turns: 512 KiB of 8 KiB pages. Hit ratios are the same with a third or three
/// times as many.
pub(super) const QUICK: usize = 64;
/// Least number of batches of turns per ring: a batch is at most 1/8 of the ring, so that the turns of each
/// slot are at about equal distances.
const BATCH_SHARE: u64 = 8;
const MAX_BATCH: u64 = 8;

/// The order in which turns visit the slots of the probation ring.
#[derive(Debug)]
pub(super) struct Probation {
    slots: usize,
    hand: Turns,
    /// Turns below this number visit all slots equally, because pages were read ahead.
    all_until: AtomicU64,
}

impl Probation {
    pub(super) fn new(frames: usize) -> Self {
        let slots = (frames / SHARE).max(1);
        Self {
            slots,
            hand: Turns::new((slots as u64 / BATCH_SHARE).clamp(1, MAX_BATCH)),
            all_until: AtomicU64::new(0),
        }
    }

    /// Returns the number of slots.
    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the hand.
    pub(super) const fn hand(&self) -> &Turns {
        &self.hand
    }

    /// Records that pages are about to be read ahead.
    pub(super) fn reads_ahead(&self) {
        // Relaxed, here and at the reads: the value only affects the order of the slots.
        let until = self.hand.hand() + 2 * self.slots as u64;
        if self.all_until.load(Relaxed) < until {
            shared_store();
            self.all_until.store(until, Relaxed);
        }
    }

    /// Returns the slot of a turn.
    pub(super) fn slot(&self, turn: u64) -> usize {
        let (all, quick) = (self.slots as u64, self.slots.min(QUICK) as u64);
        let slot = if quick == all || turn < self.all_until.load(Relaxed) {
            turn % all
        } else if !turn.is_multiple_of(quick) {
            turn % quick
        } else {
            match turn / quick % (all - quick + 1) {
                0 => 0,
                slow => quick - 1 + slow,
            }
        };
        slot as usize
    }

    /// Returns all slots, in about the order of their next turns from `turn` on.
    pub(super) fn round(&self, turn: u64) -> Vec<usize> {
        let mut is_listed = vec![false; self.slots];
        let turns = (turn..).take(self.slots).map(|turn| self.slot(turn));
        turns.chain(0..self.slots).filter(|&slot| !std::mem::replace(&mut is_listed[slot], true)).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_equally_many_turns_also_after_a_read_ahead() {
        let probation = Probation::new(10_000); // 100 slots.
        let mut turns = [0; 100];
        (0..37 * 64 * 10).for_each(|turn| turns[probation.slot(turn)] += 1);
        let slow: Vec<usize> = (0..100).filter(|&slot| turns[slot] == 10).collect();
        assert_eq!(slow, [0].into_iter().chain(QUICK..100).collect::<Vec<_>>());
        assert!((1..QUICK).all(|slot| turns[slot] == 370), "{turns:?}");
        probation.reads_ahead();
        let round: Vec<usize> = (0..200).map(|turn| probation.slot(turn)).collect();
        assert_eq!(round, (0..100).chain(0..100).collect::<Vec<_>>());
        assert_eq!(probation.slot(200 + 57), 1, "quick again");
        let mut round = probation.round(1_000);
        assert_eq!(round[..3], [probation.slot(1_000), probation.slot(1_001), probation.slot(1_002)]);
        round.sort_unstable();
        assert!(round.into_iter().eq(0..100), "each slot once");
    }
}
