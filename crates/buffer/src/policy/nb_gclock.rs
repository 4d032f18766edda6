//! The clock sweep of Nb-GCLOCK (paper §3.1.3, Figs 3 and 5).
//!
//! 1. Start where the hand is, modulo the capacity (G1).
//! 2. A frame that is evicted (another thread is filling it) or pinned is passed, not waited for (G9).
//! 3. A frame with uses left loses one and is passed.
//! 4. A cold, dirty frame is passed and remembered; the cleaner is asked to hurry. Only when a whole round brought nothing clean does the caller
//!    write one (G3).
//! 5. A cold, clean frame is taken by one CAS; if the CAS fails somebody came first: go on.
//! 6. The hand moves past what was looked at.
//! 7. A round that found nothing to take, to write or to cool ends the sweep: everything is pinned or in other hands (G6).
//!
//! After [`MAX_ROUNDS`] rounds the sweep gives up (G6): counts are bounded by `MAX_REF_COUNT`, so by then every frame that was not pinned, dirty or
//! in other hands has been met cold.

use crate::frame::{Frame, FrameId, MAX_REF_COUNT};

use super::clock_hand::ClockHand;

/// Rounds after which the sweep gives up.
pub(crate) const MAX_ROUNDS: usize = MAX_REF_COUNT as usize + 2;

/// What a sweep came to.
#[derive(Debug)]
pub(crate) enum Sweep {
    /// This frame is leaving, and the caller is in.
    Victim(FrameId),
    /// Nothing clean was cold; this one is cold and dirty.
    Dirty(FrameId),
    /// Every frame was pinned or in other hands.
    Nothing {
        /// How many of them were pinned when last looked at.
        pinned: usize,
    },
}

/// Looks for a victim. `dirty_met` counts cold dirty frames that were passed by.
pub(crate) fn sweep(frames: &[Frame], hand: &ClockHand, dirty_met: &mut usize) -> Sweep {
    let capacity = frames.len();
    let start = (hand.position() % capacity as u64) as usize;
    let mut dirty = None;
    for round in 0..MAX_ROUNDS {
        let (mut pinned, mut has_cooled) = (0, false);
        for step in 0..capacity {
            let at = (start + step) % capacity;
            let frame = &frames[at];
            if !frame.is_open() {
                continue;
            }
            if frame.is_pinned() {
                pinned += 1;
            } else if !frame.cool() {
                has_cooled = true;
            } else if frame.is_dirty() {
                *dirty_met += 1;
                dirty.get_or_insert(FrameId(at as u32));
            } else if frame.try_evict() {
                hand.advance((round * capacity + step) as u64 + 1);
                return Sweep::Victim(FrameId(at as u32));
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
