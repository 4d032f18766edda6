//! The clock sweep of Nb-GCLOCK (paper §3.1.3, Figs 3 and 5).
//!
//! 1. Start where the hand is, modulo the capacity (G1).
//! 2. A frame that is evicted (another thread is filling it) or pinned is passed, not waited for (G9).
//! 3. A frame with uses left loses one and is passed.
//! 4. A cold, dirty frame is passed and remembered; the cleaner is asked to hurry. Only when a whole round brought nothing clean does the caller
//!    write one (G3).
//! 5. A cold, clean frame is evicted by one CAS; if the CAS fails somebody came first: go on.
//! 6. The hand moves past what was looked at.
//!
//! After [`MAX_ROUNDS`] rounds the sweep gives up (G6): counts are bounded by `MAX_REF_COUNT`, so by then every frame that was not pinned, dirty or
//! in other hands has been met cold.

use crate::frame::{Evicted, Frame, FrameId, MAX_REF_COUNT};

use super::clock_hand::ClockHand;

/// Rounds after which the sweep gives up.
pub(crate) const MAX_ROUNDS: usize = MAX_REF_COUNT as usize + 2;

/// What a sweep came to.
#[derive(Debug)]
pub(crate) enum Sweep {
    /// A frame to use.
    Victim(Evicted),
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
    let mut pinned = 0;
    let mut dirty = None;
    for step in 0..capacity * MAX_ROUNDS {
        if step % capacity == 0 && step > 0 {
            if let Some(frame) = dirty {
                hand.advance(step as u64);
                return Sweep::Dirty(frame);
            }
            pinned = 0;
        }
        let at = (start + step) % capacity;
        let frame = &frames[at];
        if frame.is_evicted() {
            continue;
        }
        if frame.is_pinned() {
            pinned += 1;
            continue;
        }
        if !frame.cool() {
            continue;
        }
        if frame.is_dirty() {
            *dirty_met += 1;
            dirty.get_or_insert(FrameId(at as u32));
            continue;
        }
        if let Some(evicted) = frame.try_evict(FrameId(at as u32)) {
            hand.advance(step as u64 + 1);
            return Sweep::Victim(evicted);
        }
    }
    dirty.map_or(Sweep::Nothing { pinned }, Sweep::Dirty)
}
