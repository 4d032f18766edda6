//! GCLOCK's reference count: the number of turns of the hand for which a page stays. Relaxed throughout: the
//! count guides the sweep, and a lost update only affects fairness.

use azekura_base::sync::atomic::Ordering::Relaxed;

use super::Frame;
use crate::count::shared_store;

/// Maximum of the reference count: the hottest page becomes cold in this number of sweeps (G8).
pub(crate) const MAX_REF_COUNT: u32 = 15;

/// Maximum set by reads without a pin: three uses besides the load of the page.
const WARM_REF_COUNT: u32 = 4;

impl Frame {
    /// Counts a use; writes only below the maximum.
    #[inline]
    pub fn note_use(&self) {
        let count = self.ref_count.load(Relaxed);
        if u32::from(count) < MAX_REF_COUNT {
            shared_store();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// Counts a use by a reader that avoids writes (G8), up to [`WARM_REF_COUNT`]. So the count of a page in
    /// constant use is written at most once per turn of the hand.
    #[inline]
    pub(crate) fn note_peek(&self) {
        let count = self.ref_count.load(Relaxed);
        if u32::from(count) < WARM_REF_COUNT {
            shared_store();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// Decrements the count, for a pass of the hand; returns `true` if it was 0 (paper Fig. 5, `decrRC() <=
    /// 0`).
    pub(crate) fn cool(&self) -> bool {
        let count = self.ref_count.load(Relaxed);
        if count > 0 {
            shared_store();
            self.ref_count.store(count - 1, Relaxed);
        }
        count <= 1
    }

    /// Halves the number of uses besides the load of the page.
    pub(crate) fn cool_by_half(&self) {
        shared_store();
        self.set_ref_count(1 + self.uses() / 2);
    }

    /// Returns the count without the load of the page.
    pub(crate) fn uses(&self) -> u32 {
        u32::from(self.ref_count.load(Relaxed)).saturating_sub(1)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.ref_count.load(Relaxed) <= 1
    }

    pub(crate) fn set_ref_count(&self, count: u32) {
        self.ref_count.store(count as u8, Relaxed); // Relaxed: see the module head; 15 at most
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Evicted, FrameId};
    use azekura_base::PageId;

    #[test]
    fn g8_reference_counts_saturate_and_peeks_write_only_when_it_matters() {
        let frame = Frame::new();
        frame.publish(Evicted { frame: FrameId(0) }, PageId(1));
        (0..100).for_each(|_| frame.note_use());
        assert_eq!((0..100).take_while(|_| !frame.cool()).count(), MAX_REF_COUNT as usize - 1);
        (0..WARM_REF_COUNT).for_each(|_| frame.note_peek());
        let writes = crate::count::on_this_thread();
        (0..100).for_each(|_| frame.note_peek());
        assert_eq!(crate::count::on_this_thread(), writes);
    }
}
