//! A frame: the header of one place in the pool, and the pin word that says who may do what with it (paper §3.1.1, Fig. 2).
//!
//! The pin word packs, so that one CAS decides over all of them:
//!
//! | bits | meaning |
//! |---|---|
//! | 32..64 | generation: moves when the frame changes hands (G5) |
//! | 31 | dirty: the page differs from its image on disk |
//! | 30 | writing: somebody writes the page's image |
//! | 29 | leaving: the page is on its way out |
//! | 0..29 | pin count; leaving: how many see the page out; all ones: evicted |
//!
//! | state | count | who may leave it |
//! |---|---|---|
//! | evicted | all ones | its one owner, to *pinned* by [`Frame::publish`] |
//! | unpinned | 0 | any thread, by CAS, to *pinned*; if clean, to *leaving* with itself in |
//! | pinned | n > 0 | a pinner, to n + 1; a holder, to n − 1 |
//! | leaving | n > 0 | whoever wants the old page, to n + 1; who is in and has unmapped the frame, to n − 1; the last one to *evicted*, as its owner |
//!
//! The paper's Fig. 2 goes from unpinned to evicted at once. Between the two lies the removal of the mapping, and a thread
//! that stops there would hold up everybody who wants the old page (G10). So whoever finds a leaving frame joins in and removes
//! the mapping too; nobody can give the frame to another page meanwhile, because the last one out does that.
//!
//! - **FRAME-1** `page_id` changes, and `buffer` goes away, only while the frame is evicted, by its owner.
//! - **FRAME-2** At most one thread owns the evicted state of a generation; an [`Evicted`] is the proof.
//! - **FRAME-3** A thread trusts a frame's identity only after it has pinned the frame, or after the latch has validated a
//!   version that was taken before the frame was found neither leaving nor evicted.
//! - **FRAME-4** The dirty bit is set only by a pin's holder with the latch exclusive, and cleared only by the page's one writer
//!   with the latch shared. So a CAS from *clean and unpinned* to *leaving* never throws a change away (G3).
//! - **FRAME-5** `buffer` turns from none to a buffer once per generation, by CAS; the loser keeps its own (G2). Only who
//!   knows that the frame has the page's mapping fills it: its inserter, or who pinned it and then found it in the page table
//!   (a frame whose insertion lost bears the page's id too, for a moment, and a stale look at the table leads there).
//! - **FRAME-6** Only a pin's holder holds the latch, and lets go of it first. So nobody holds the latch of a leaving or evicted frame.
//! - **FRAME-7** Each who sees a page out moves the latch's version before it unmaps the frame. So an optimistic reader of the
//!   old page fails to validate as soon as the page can be loaded, and changed, elsewhere, and before the buffer is filled anew.
//!
//! Recovery LSNs: a page turning dirty and clean, against the checkpoint's look at all frames.
//!
//! | field | no change has a smaller LSN among those | written by |
//! |---|---|---|
//! | `recovery_lsn` | after the newest image was taken | a changer, if it was 0, latched exclusively; the writer, latched shared |
//! | `older_lsn` | in images taken that are not known to be on disk | the writer |
//!
//! - **RECOVERY-1** The checkpoint reads the log's counter C, then looks at the frames. A change with an LSN below C drew it before
//!   that read, and its page's `recovery_lsn` was stored before the draw. The fences of [`Frame::set_dirty`] and [`look_fence`] order
//!   the store before the look through whatever the log's counter is.
//! - **RECOVERY-2** The look reads `recovery_lsn`, then `older_lsn`. The writer moves the value from the first to the second, storing
//!   the second first; and `older_lsn` goes to 0 only when the image is on disk, never because a write failed. So take a change
//!   that is in no image on disk when the look ends: when it began, one of the two covered it; if that was `older_lsn`, it still does.

use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};
use azekura_base::{Lsn, PageId};
use azekura_latch::HybridLatch;
use azekura_trace::ThreadTag;

use crate::count::{shared_rmw, shared_store};

/// Number of a frame in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

const GENERATION_ONE: u64 = 1 << 32;
const DIRTY: u64 = 1 << 31;
const WRITING: u64 = 1 << 30;
const LEAVING: u64 = 1 << 29;
const PINS: u64 = LEAVING - 1;
const EVICTED: u64 = PINS;
/// No buffer: the frame's page has not been read yet.
pub(crate) const NO_BUFFER: u32 = u32::MAX;

/// GCLOCK's reference count saturates here: the hottest page cools down in as many sweeps (G8).
pub(crate) const MAX_REF_COUNT: u32 = 15;

/// Where peeks stop counting: three uses besides the one that brought the page.
const WARM_REF_COUNT: u32 = 4;

/// Header of one frame, on a cache line of its own. (Two lines, for processors that fetch neighbours, made hits and misses slower: twice as much to
/// keep near.)
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Frame {
    pin: AtomicU64,
    page_id: AtomicU64,
    buffer: AtomicU32,
    ref_count: AtomicU32,
    /// 1 while somebody reads the page in; only keeps others from reading it too, for a while.
    reading: AtomicU32,
    /// The thread that began last to read the page in or to write it; a hint for the tracer, of those who wait for it.
    worker: AtomicU32,
    pub(crate) latch: HybridLatch,
    /// See RECOVERY-1; 0 = no change.
    recovery_lsn: AtomicU64,
    /// See RECOVERY-2; 0 = no image.
    older_lsn: AtomicU64,
}

/// The right to fill an evicted frame anew (FRAME-2).
#[derive(Debug)]
#[must_use]
pub(crate) struct Evicted {
    pub(crate) frame: FrameId,
}

impl Frame {
    /// A frame that has never held a page; owned by the pool's free list.
    pub(crate) fn new() -> Self {
        Self {
            pin: AtomicU64::new(EVICTED),
            page_id: AtomicU64::new(u64::MAX),
            buffer: AtomicU32::new(NO_BUFFER),
            ref_count: AtomicU32::new(0),
            reading: AtomicU32::new(0),
            worker: AtomicU32::new(0),
            latch: HybridLatch::new(),
            recovery_lsn: AtomicU64::new(0),
            older_lsn: AtomicU64::new(0),
        }
    }

    /// Pins the frame if it holds `page_id` (paper, `Frame.pin`). Never waits.
    #[inline]
    pub(crate) fn try_pin(&self, page_id: PageId) -> bool {
        if !self.try_pin_any() {
            return false;
        }
        // FRAME-3: from here on the identity cannot change. Relaxed: ordered by the Acquire of the pin.
        if self.page_id.load(Relaxed) == page_id.0 {
            return true;
        }
        self.unpin();
        false
    }

    /// Pins whatever page the frame holds.
    #[inline]
    pub(crate) fn try_pin_any(&self) -> bool {
        let mut seen = self.pin.load(Relaxed); // a guess; the CAS decides
        while seen & LEAVING == 0 && seen & PINS != EVICTED {
            assert!(seen & PINS < EVICTED - 1, "a frame is pinned five hundred million times");
            shared_rmw();
            // Acquire: pairs with the Release in `publish` (identity) and in `unpin` (the last holder's work).
            match self.pin.compare_exchange_weak(seen, seen + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Lets go of one pin.
    #[inline]
    pub(crate) fn unpin(&self) {
        shared_rmw();
        // Release: what the holder did comes before the next owner's eviction.
        let before = self.pin.fetch_sub(1, Release);
        debug_assert!(
            before & LEAVING == 0 && (1..EVICTED).contains(&(before & PINS)),
            "unpinned without a pin"
        );
    }

    /// Begins to evict the frame if it is unpinned and clean (FRAME-4): it is leaving, and the caller is in.
    pub(crate) fn try_evict(&self) -> bool {
        let seen = self.pin.load(Relaxed); // a guess; the CAS decides
        if seen & (DIRTY | WRITING | LEAVING | PINS) != 0 {
            return false;
        }
        shared_rmw();
        // Acquire: pairs with the Release of the last unpin.
        self.pin.compare_exchange(seen, seen | LEAVING | 1, Acquire, Relaxed).is_ok()
    }

    /// Joins those who see `page_id` out of this frame, if it is leaving.
    pub(crate) fn join_leaving(&self, page_id: PageId) -> bool {
        // Acquire: pairs with the Release in `publish`; the id below is of this generation or a later one, and of a later
        // one the CAS does not succeed.
        let mut seen = self.pin.load(Acquire);
        while seen & LEAVING != 0 && self.page_id() == page_id {
            shared_rmw();
            match self.pin.compare_exchange_weak(seen, seen + 1, Acquire, Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Closes a leaving frame to optimistic readers (FRAME-7); before its mapping is removed. The caller is in.
    pub(crate) fn close(&self) {
        shared_rmw();
        self.latch.invalidate();
    }

    /// Goes out of a leaving frame, which the caller has closed and unmapped. The last one out owns it.
    pub(crate) fn leave(&self, frame: FrameId) -> Option<Evicted> {
        let mut seen = self.pin.load(Relaxed);
        loop {
            debug_assert!(seen & LEAVING != 0 && seen & PINS > 0, "left a frame that is not leaving");
            let is_last = seen & PINS == 1;
            let evicted = (seen & !(LEAVING | PINS)).wrapping_add(GENERATION_ONE) | EVICTED;
            shared_rmw();
            // Release: the mapping is gone, and the version moved, before the next owner does anything; pairs with the Acquire.
            match self.pin.compare_exchange_weak(
                seen,
                if is_last { evicted } else { seen - 1 },
                AcqRel,
                Relaxed,
            ) {
                Ok(_) => return is_last.then_some(Evicted { frame }),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the buffer of an evicted frame, if it has one.
    pub(crate) fn take_buffer(&self, _owner: &Evicted) -> Option<u32> {
        let buffer = self.buffer.load(Relaxed);
        shared_store();
        self.buffer.store(NO_BUFFER, Relaxed); // FRAME-1: only we change it now
        (buffer != NO_BUFFER).then_some(buffer)
    }

    /// Gives an evicted frame to `page_id`, pinned once, without content; its reading is the caller's, who may [disclaim](Self::disclaim_reading) it.
    pub(crate) fn publish(&self, owner: Evicted, page_id: PageId) {
        drop(owner);
        self.page_id.store(page_id.0, Relaxed);
        self.ref_count.store(1, Relaxed);
        self.reading.store(1, Relaxed);
        self.note_worker();
        let lsns = [self.recovery_lsn.load(Relaxed), self.older_lsn.load(Relaxed)];
        debug_assert_eq!(lsns, [0, 0], "FRAME-4: evicted dirty");
        shared_store();
        let generation = self.pin.load(Relaxed) & !(GENERATION_ONE - 1);
        // Release: pairs with the Acquire in `try_pin`; the identity stored above is visible to who pins.
        self.pin.store(generation | 1, Release);
    }

    pub(crate) fn page_id(&self) -> PageId {
        PageId(self.page_id.load(Relaxed)) // FRAME-3: the caller has pinned, or validates
    }

    /// The buffer that holds the page's words; `NO_BUFFER` until it has been read.
    #[inline]
    pub(crate) fn buffer(&self) -> u32 {
        // Acquire: pairs with the Release in `install`; the words stored before it are visible.
        self.buffer.load(Acquire)
    }

    /// Gives the frame its content (FRAME-5); says whether it was the first to do so. The caller has pinned.
    pub(crate) fn install(&self, buffer: u32) -> bool {
        shared_rmw();
        // Release: the words of `buffer` become visible with its number. Acquire on failure is not needed: the loser reloads.
        self.buffer.compare_exchange(NO_BUFFER, buffer, Release, Relaxed).is_ok()
    }

    /// Asks to be the one who reads the page in. Relaxed: content is handed over by `install`, not by this.
    pub(crate) fn claim_reading(&self) -> bool {
        if self.reading.load(Relaxed) != 0 {
            return false;
        }
        shared_rmw();
        let is_ours = self.reading.compare_exchange(0, 1, Relaxed, Relaxed).is_ok();
        if is_ours {
            self.note_worker();
        }
        is_ours
    }

    /// The read failed: the next one may try.
    pub(crate) fn disclaim_reading(&self) {
        shared_store();
        self.reading.store(0, Relaxed);
    }

    // Reference count. Relaxed throughout: a guide for the sweep; a lost step costs nothing but a little fairness.

    /// Counts a use; writes only below the bound.
    #[inline]
    pub(crate) fn note_use(&self) {
        let count = self.ref_count.load(Relaxed);
        if count < MAX_REF_COUNT {
            shared_store();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// Counts a use by a reader that wants to write nothing (G8): no further than [`WARM_REF_COUNT`], so that a page that is read all
    /// the time is written to once per turn of the hand at most.
    #[inline]
    pub(crate) fn note_peek(&self) {
        let count = self.ref_count.load(Relaxed);
        if count < WARM_REF_COUNT {
            shared_store();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// One pass of the hand: whether the page has no uses left (paper Fig. 5, `decrRC() <= 0`).
    pub(crate) fn cool(&self) -> bool {
        let count = self.ref_count.load(Relaxed);
        if count > 0 {
            shared_store();
            self.ref_count.store(count - 1, Relaxed);
        }
        count <= 1
    }

    /// As [`Self::cool`], but half of the uses go.
    pub(crate) fn cool_by_half(&self) {
        shared_store();
        self.ref_count.store(1 + self.uses() / 2, Relaxed);
    }

    /// Uses besides the one that brought the page, as far as they are counted and have not cooled.
    pub(crate) fn uses(&self) -> u32 {
        self.ref_count.load(Relaxed).saturating_sub(1)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.ref_count.load(Relaxed) <= 1
    }

    pub(crate) fn set_ref_count(&self, count: u32) {
        self.ref_count.store(count, Relaxed);
    }

    // Looks of the sweep, the cleaner and statistics; each decides by a CAS afterwards or only reports.

    /// Whether the frame holds a page that readers may look at.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Acquire: FRAME-3, the id and the buffer are looked at after this.
        let pin = self.pin.load(Acquire);
        pin & LEAVING == 0 && pin & PINS != EVICTED
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.is_open() && self.pin.load(Relaxed) & PINS != 0
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pin.load(Relaxed) & DIRTY != 0
    }

    #[cfg(test)]
    pub(crate) fn generation(&self) -> u32 {
        (self.pin.load(Relaxed) >> 32) as u32
    }

    // Dirtiness; see `write_back` for the protocol.

    /// Before a change's LSN is drawn: the page is dirty from `next_lsn` on at the earliest. Latched exclusively and pinned.
    /// `mark` is called if it was clean, to note it among the dirty ones (DIRTY-1). Says whether it was clean.
    pub(crate) fn set_dirty(&self, next_lsn: Lsn, mark: impl FnOnce()) -> bool {
        let was_clean = self.recovery_lsn.load(Relaxed) == 0;
        if was_clean {
            mark();
            shared_store();
            self.recovery_lsn.store(next_lsn.0.max(1), Relaxed);
            // Relaxed: evictors and writers find the bit by a CAS on this very word (FRAME-4).
            shared_rmw();
            self.pin.fetch_or(DIRTY, Relaxed);
        }
        // RECOVERY-1: pairs with `look_fence`.
        fence(Release);
        was_clean
    }

    /// Becomes the one writer of the page's image, and pins; `false` if the page is clean or somebody else writes it.
    pub(crate) fn claim_writing(&self) -> bool {
        let mut seen = self.pin.load(Relaxed);
        while seen & (DIRTY | WRITING) == DIRTY {
            shared_rmw();
            // Acquire: pairs with the Release in `release_writing`, the last writer's work, and in `publish`.
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

    /// The calling thread works for all who want the page.
    fn note_worker(&self) {
        if !cfg!(loom) {
            self.worker.store(azekura_trace::thread_tag().0, Relaxed); // a hint; orders nothing
        }
    }

    /// Who began last to read the page in or to write it.
    pub(crate) fn worker(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and show nothing.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.worker.load(Relaxed)) }
    }

    /// The writer is done, with whatever result. It keeps its pin.
    pub(crate) fn release_writing(&self) {
        shared_rmw();
        // Release: the image is on disk before the next writer takes one, or an evictor finds the page clean.
        let before = self.pin.fetch_and(!WRITING, Release);
        debug_assert!(before & WRITING != 0, "released without a claim");
    }

    pub(crate) fn is_being_written(&self) -> bool {
        self.pin.load(Acquire) & WRITING != 0
    }

    /// The writer takes the image, latched shared: changes from now on draw at least `next_lsn`, which was read under that latch.
    pub(crate) fn image_taken(&self, next_lsn: Lsn) {
        let recovery_lsn = self.recovery_lsn.load(Relaxed); // changers are kept out, other writers too
        debug_assert_ne!(recovery_lsn, 0, "an image of a clean page");
        // What a failed write left behind is older still.
        if self.older_lsn.load(Relaxed) == 0 {
            self.older_lsn.store(recovery_lsn, Relaxed);
        }
        // Release: who sees this sees `older_lsn` too (RECOVERY-2).
        self.recovery_lsn.store(next_lsn.0.max(1), Release);
    }

    /// The image is on disk.
    pub(crate) fn image_written(&self) {
        // Release: it was there before the look that finds this.
        self.older_lsn.store(0, Release);
    }

    /// The image on disk is the page as it is; the writer holds the latch shared.
    pub(crate) fn now_clean(&self) {
        self.recovery_lsn.store(0, Release);
        shared_rmw();
        // Release: whoever finds the page clean finds the LSNs cleared.
        self.pin.fetch_and(!DIRTY, Release);
    }

    /// The least LSN that a restart needs to make this page what it is; `None` for a clean one. To be called after [`look_fence`].
    pub(crate) fn least_recovery_lsn(&self) -> Option<Lsn> {
        let newer = self.recovery_lsn.load(Acquire); // RECOVERY-2: in this order
        let older = self.older_lsn.load(Acquire);
        [newer, older].into_iter().filter(|&lsn| lsn != 0).min().map(Lsn)
    }
}

/// To be called after the log's counter was read and before the frames are looked at (RECOVERY-1).
pub(crate) fn look_fence() {
    // Pairs with the fence in `Frame::set_dirty`.
    fence(Acquire);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ID: FrameId = FrameId(0);

    fn published(page: u64) -> Frame {
        let frame = Frame::new();
        frame.publish(Evicted { frame: ID }, PageId(page));
        frame
    }

    #[test]
    fn g5_a_frame_that_was_evicted_does_not_pass_for_its_old_page() {
        let frame = published(7);
        frame.unpin();
        let generation = frame.generation();
        let seen = frame.latch.optimistic().unwrap();
        assert!(frame.try_evict() && !frame.try_evict());
        assert!(!frame.try_pin(PageId(7)), "on its way out");
        frame.close();
        let owner = frame.leave(ID).unwrap();
        assert!(!frame.try_pin(PageId(7)) && !frame.try_evict() && !frame.join_leaving(PageId(7)));
        frame.publish(owner, PageId(8));
        assert_eq!(frame.generation(), generation + 1);
        assert!(!frame.try_pin(PageId(7)) && frame.try_pin(PageId(8)));
        assert!(!frame.latch.validate(seen), "an optimistic reader of page 7 notices");
    }

    #[test]
    fn g10_whoever_is_the_last_to_see_a_page_out_owns_the_frame() {
        let frame = published(7);
        frame.unpin();
        assert!(!frame.join_leaving(PageId(7)), "not leaving");
        assert!(frame.try_evict());
        assert!(!frame.join_leaving(PageId(8)) && frame.join_leaving(PageId(7)));
        assert!(frame.leave(ID).is_none(), "the evictor, or the helper: somebody is still in");
        assert!(frame.leave(ID).is_some());
    }

    #[test]
    fn g3_a_dirty_or_pinned_frame_is_not_evicted() {
        let frame = published(7);
        assert!(!frame.try_evict(), "pinned");
        assert!(frame.set_dirty(Lsn(5), || ()) && !frame.set_dirty(Lsn(6), || ()));
        frame.unpin();
        assert!(!frame.try_evict(), "dirty");
        assert!(frame.claim_writing() && !frame.claim_writing(), "one writer at a time");
        frame.image_taken(Lsn(9));
        frame.unpin();
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(5)), "the image being written counts");
        assert!(!frame.try_evict(), "being written");
        frame.image_written();
        frame.now_clean();
        assert_eq!(frame.least_recovery_lsn(), None);
        assert!(!frame.try_evict(), "clean, but its writer is not done with it");
        frame.release_writing();
        assert!(!frame.claim_writing(), "clean");
        assert!(frame.try_evict());
    }

    /// One write of the page's image, begun when the log's counter was `next`.
    fn write(frame: &Frame, next: u64, reaches_disk: bool) {
        assert!(frame.claim_writing());
        frame.image_taken(Lsn(next));
        if reaches_disk {
            frame.image_written();
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

    #[test]
    fn g8_reference_counts_saturate_and_peeks_write_only_when_it_matters() {
        let frame = published(1);
        (0..100).for_each(|_| frame.note_use());
        assert_eq!((0..100).take_while(|_| !frame.cool()).count(), MAX_REF_COUNT as usize - 1);
        (0..WARM_REF_COUNT).for_each(|_| frame.note_peek());
        let writes = crate::count::on_this_thread();
        (0..100).for_each(|_| frame.note_peek());
        assert_eq!(crate::count::on_this_thread(), writes);
    }
}
