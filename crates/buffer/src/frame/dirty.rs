//! State of a frame's page relative to its image on disk: dirty, being written, and the LSN from which a
//! restart needs the log. `write_back` has the write protocol.
//!
//! The recovery LSN coordinates changes and writes of a page with the checkpoint's scan of all frames. Every
//! change of the page that is in no image on disk has an LSN of at least `recovery_lsn`; 0 means that there
//! is no such change. It is written by the page's writer, and by a thread that changes the page under the
//! exclusive latch if it was 0.
//!
//! - **RECOVERY-1** The checkpoint reads the log's bound C below future LSNs, then scans the frames. A thread
//!   with a change below C drew the LSN before that read, and stored the page's `recovery_lsn` before it drew
//!   the LSN. The fences of [`Frame::set_dirty`] and [`look_fence`] order the store before the scan through
//!   the location that the log reads for the bound.
//! - **RECOVERY-2** The writer reads that bound with the shared latch, when it copies the image, and also the
//!   page LSN. The LSNs of a page rise (W7). So the image contains all changes below the bound, and all
//!   changes up to the page LSN. `recovery_lsn` rises to the larger limit only after the image is on disk,
//!   never after a failed write. So the result of a scan covers each change that is in no image on disk when
//!   the scan ends.

use azekura_base::Lsn;
use azekura_base::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

use super::{DIRTY, Frame, WRITING};
use crate::count::{shared_rmw, shared_store};

impl Frame {
    /// Marks the page as dirty, with `next_lsn` as a lower bound of its changes' LSNs. The caller has pinned
    /// the page and latched it exclusively, and has not drawn the LSN of its change yet. If the page was
    /// clean, calls `mark` to enter it in the map of dirty frames (DIRTY-1), and returns `true`.
    pub(crate) fn set_dirty(&self, next_lsn: Lsn, mark: impl FnOnce()) -> bool {
        let was_clean = self.recovery_lsn.load(Relaxed) == 0;
        if was_clean {
            mark();
            shared_store();
            self.recovery_lsn.store(next_lsn.0.max(1), Relaxed);
            // Relaxed: evicting threads and writers read the bit by a CAS on the same word (FRAME-4).
            shared_rmw();
            self.pin.fetch_or(DIRTY, Relaxed);
        }
        // RECOVERY-1: pairs with `look_fence`.
        fence(Release);
        was_clean
    }

    /// Makes the caller the only writer of the page's image, with a pin; returns `false` if the page is clean
    /// or has another writer.
    pub(crate) fn claim_writing(&self) -> bool {
        let mut seen = self.pin.load(Relaxed);
        while seen & (DIRTY | WRITING) == DIRTY {
            shared_rmw();
            // Acquire: pairs with the Release in `release_writing` (the last writer's work) and in `publish`.
            match self.pin.compare_exchange_weak(seen, (seen | WRITING) + 1, Acquire, Relaxed) {
                Ok(_) => {
                    self.note_worker();
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Ends the write, successful or not. The writer keeps its pin.
    pub(crate) fn release_writing(&self) {
        shared_rmw();
        // Release: the image is on disk before the next writer begins or an evicting thread finds the page
        // clean.
        let before = self.pin.fetch_and(!WRITING, Release);
        debug_assert!(before & WRITING != 0, "released without a claim");
    }

    pub(crate) fn is_being_written(&self) -> bool {
        self.pin.load(Acquire) & WRITING != 0
    }

    /// Records that the image is on disk. Changes that are not in it have an LSN of at least `next_lsn`
    /// (RECOVERY-2). The caller is the writer.
    pub(crate) fn image_written(&self, next_lsn: Lsn) {
        // A recovery LSN other than 0 is not overwritten by changes.
        debug_assert_ne!(self.recovery_lsn.load(Relaxed), 0, "an image of a clean page");
        // Release: the image was on disk before a scan that reads this value.
        self.recovery_lsn.store(next_lsn.0.max(1), Release);
    }

    /// Records that the image on disk equals the page; the writer holds the shared latch.
    pub(crate) fn now_clean(&self) {
        self.recovery_lsn.store(0, Release);
        shared_rmw();
        // Release: a thread that finds the page clean finds the LSN cleared.
        self.pin.fetch_and(!DIRTY, Release);
    }

    /// Returns the lowest LSN that a restart needs to redo this page; `None` for a clean page. Call it after
    /// [`look_fence`].
    pub(crate) fn least_recovery_lsn(&self) -> Option<Lsn> {
        // Acquire: pairs with the Release in `image_written` and `now_clean`; a sync after this read makes
        // those images durable.
        Some(Lsn(self.recovery_lsn.load(Acquire))).filter(|&lsn| lsn != Lsn(0))
    }
}

/// Executes the fence between the read of the log's bound and the scan of the frames (RECOVERY-1).
pub(crate) fn look_fence() {
    // Acquire: pairs with the Release fence in `Frame::set_dirty`.
    fence(Acquire);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Evicted, FrameId};
    use azekura_base::PageId;

    fn published(page: u64) -> Frame {
        let frame = Frame::new();
        frame.publish(Evicted { frame: FrameId(0) }, PageId(page));
        frame
    }

    #[test]
    fn g3_a_dirty_or_pinned_frame_is_not_evicted() {
        let frame = published(7);
        assert!(!frame.try_evict(), "pinned");
        assert!(frame.set_dirty(Lsn(5), || ()) && !frame.set_dirty(Lsn(6), || ()));
        frame.unpin();
        assert!(!frame.try_evict(), "dirty");
        assert!(frame.claim_writing() && !frame.claim_writing(), "one writer at a time");
        frame.unpin();
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(5)), "the image being written counts");
        assert!(!frame.try_evict(), "being written");
        frame.image_written(Lsn(9));
        frame.now_clean();
        assert_eq!(frame.least_recovery_lsn(), None);
        assert!(!frame.try_evict(), "clean, but its writer is not done with it");
        frame.release_writing();
        assert!(!frame.claim_writing(), "clean");
        assert!(frame.try_evict());
    }

    /// Writes the page's image once; the log's counter was `next` at the start.
    fn write(frame: &Frame, next: u64, reaches_disk: bool) {
        assert!(frame.claim_writing());
        if reaches_disk {
            frame.image_written(Lsn(next));
        }
        frame.release_writing();
        frame.unpin();
    }

    #[test]
    fn a_page_changed_while_it_was_written_stays_dirty_from_the_later_lsn() {
        let frame = published(7);
        frame.set_dirty(Lsn(5), || ());
        write(&frame, 9, true);
        assert!(!frame.set_dirty(Lsn(11), || ()));
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(9)));
    }

    #[test]
    fn a_failed_write_does_not_move_the_recovery_lsn() {
        let frame = published(7);
        frame.set_dirty(Lsn(5), || ());
        write(&frame, 9, false);
        write(&frame, 12, false);
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(5)));
        write(&frame, 30, true);
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(30)));
    }
}
