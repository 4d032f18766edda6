//! A frame: the header of one place in the pool, and the pin word that says who may do what with it (paper §3.1.1, Fig. 2).
//!
//! The pin word packs, so that one CAS decides over all of them:
//!
//! | bits | meaning |
//! |---|---|
//! | 31 | dirty: the page differs from its image on disk |
//! | 30 | writing: somebody writes the page's image |
//! | 29 | leaving: the page is on its way out |
//! | 28 | evicted: no page |
//! | 20..28 | how many see the page out |
//! | 0..20 | pin count; means nothing if leaving or evicted |
//!
//! | state | count | who may leave it |
//! |---|---|---|
//! | evicted | – | its one owner, to *pinned* by [`Frame::publish`] |
//! | unpinned | 0 pins | any thread, by addition, to *pinned*; if clean, by CAS, to *leaving* with itself in |
//! | pinned | n > 0 pins | a pinner, to n + 1; a holder, to n − 1 |
//! | leaving | n > 0 are in | whoever wants the old page, to n + 1; who is in and has unmapped the frame, to n − 1; the last one to *evicted*, as its owner |
//!
//! A pin is one addition, whatever others do to the word: on a page that all want, those who try a CAS fail most of the time. If the word turns out to
//! say leaving or evicted, the addition was in vain and stays: the count means nothing then, and is gone when the frame is published (one store).
//!
//! The paper's Fig. 2 goes from unpinned to evicted at once. Between the two lies the removal of the mapping, and a thread
//! that stops there would hold up everybody who wants the old page (G10). So whoever finds a leaving frame joins in and removes
//! the mapping too; nobody can give the frame to another page meanwhile, because the last one out does that.
//!
//! There is no generation beside it (G5): a CAS that succeeds on a frame which changed hands since the word was looked at does no more than what it
//! says, to the page that is there now. Who cares which page that is looks after it (FRAME-3); the latch's version is the generation of those who write nothing.
//!
//! The page word packs which page the frame holds (bits 25..64) and which buffer has its words (0..25; all ones: none), so that both are seen at once. Of a
//! frame in the free list it has the next one of the list in the buffer's place.
//!
//! A header takes half a cache line. Which frames share one is chosen so that pages that come after each other, as a tree's upper pages do, do not
//! ([`nth_frame`]): a fix of one would take the line from who peeks at the other.
//!
//! - **FRAME-1** The page word's page changes, and its buffer goes away, only while the frame is evicted, by its owner.
//! - **FRAME-2** At most one thread owns a frame's evicted state; an [`Evicted`] is the proof.
//! - **FRAME-3** A thread trusts a frame's identity only after it has pinned the frame, or after the latch has validated a
//!   version that was taken before the frame was found neither leaving nor evicted.
//! - **FRAME-4** The dirty bit is set only by a pin's holder with the latch exclusive, and cleared only by the page's one writer
//!   with the latch shared. So a CAS from *clean and unpinned* to *leaving* never throws a change away (G3).
//! - **FRAME-5** The buffer turns from none to one once per page brought in, by CAS; the loser keeps its own (G2). Only who
//!   knows that the frame has the page's mapping fills it: its inserter, or who pinned it and then found it in the page table
//!   (a frame whose insertion lost bears the page's id too, for a moment, and a stale look at the table leads there).
//! - **FRAME-6** Only a pin's holder holds the latch, and lets go of it first. So nobody holds the latch of a leaving or evicted frame.
//! - **FRAME-7** Each who sees a page out moves the latch's version before it unmaps the frame. So an optimistic reader of the
//!   old page fails to validate as soon as the page can be loaded, and changed, elsewhere, and before the buffer is filled anew.
//!
//! Recovery LSNs: a page turning dirty and clean, against the checkpoint's look at all frames. No change of the page that is in no image on disk has
//! a smaller LSN than `recovery_lsn`; 0: there is none. It is written by a changer, if it was 0, latched exclusively; else by the page's writer.
//!
//! - **RECOVERY-1** The checkpoint reads the log's counter C, then looks at the frames. A change with an LSN below C drew it before
//!   that read, and its page's `recovery_lsn` was stored before the draw. The fences of [`Frame::set_dirty`] and [`look_fence`] order
//!   the store before the look through whatever the log's counter is.
//! - **RECOVERY-2** The writer reads the log's counter with the latch shared, as it takes the image: all changes below that are in the image. Only when
//!   the image is on disk does `recovery_lsn` move up to it, never because a write failed. So whatever a look finds covers each change that is in no image
//!   on disk when the look ends.

use azekura_base::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release, fence,
};
use azekura_base::{Lsn, PageId};
use azekura_latch::HybridLatch;
use azekura_trace::ThreadTag;

use crate::count::{shared_rmw, shared_store};

/// Number of a frame in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

const DIRTY: u32 = 1 << 31;
const WRITING: u32 = 1 << 30;
const LEAVING: u32 = 1 << 29;
const EVICTED: u32 = 1 << 28;
const CLOSED: u32 = LEAVING | EVICTED;
const IN_ONE: u32 = 1 << 20;
const IN: u32 = EVICTED - IN_ONE;
const PINS: u32 = IN_ONE - 1;
const BUFFER_BITS: u32 = 25;
/// No buffer: the frame's page has not been read yet.
pub(crate) const NO_BUFFER: u32 = (1 << BUFFER_BITS) - 1;
/// Page ids must be below this: 2 PiB of 4-KiB pages.
pub const MAX_PAGE_ID: u64 = 1 << (u64::BITS - BUFFER_BITS);
/// Most frames that a pool can have; with the spare ones there are fewer buffers than [`NO_BUFFER`].
pub(crate) const MAX_FRAMES: usize = (1 << 24) - 1;

/// The `nth` of so many frames, in the order in which they are first given out and the clock comes to them: first one of each cache line, then the
/// others. So neighbours were given out half a pool apart.
pub(crate) const fn nth_frame(nth: usize, frames: usize) -> FrameId {
    let lines = frames.div_ceil(2);
    FrameId(if nth < lines { 2 * nth } else { 2 * (nth - lines) + 1 } as u32)
}

/// Where the frame is in that order.
pub(crate) const fn turn_of(frame: FrameId, frames: usize) -> usize {
    let (line, is_second) = (frame.0 as usize / 2, frame.0 % 2 == 1);
    if is_second { frames.div_ceil(2) + line } else { line }
}

/// GCLOCK's reference count saturates here: the hottest page cools down in as many sweeps (G8).
pub(crate) const MAX_REF_COUNT: u32 = 15;

/// Where peeks stop counting: three uses besides the one that brought the page.
const WARM_REF_COUNT: u32 = 4;

/// Header of one frame, half a cache line.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Frame {
    pin: AtomicU32,
    /// The thread that began last to read the page in or to write it; a hint for the tracer, of those who wait for it. 0 for tags that are too large.
    worker: AtomicU16,
    ref_count: AtomicU8,
    /// 1 while somebody reads the page in; only keeps others from reading it too, for a while.
    reading: AtomicU8,
    /// Page and buffer.
    page: AtomicU64,
    pub(crate) latch: HybridLatch,
    /// See RECOVERY-1; 0 = no change.
    recovery_lsn: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Frame>() == 32, "two to a cache line");

/// What a frame holds: the page, and the buffer with its words or [`NO_BUFFER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) page_id: PageId,
    pub(crate) buffer: u32,
}

impl Held {
    #[inline]
    const fn of(word: u64) -> Self {
        Self { page_id: PageId(word >> BUFFER_BITS), buffer: word as u32 & NO_BUFFER }
    }

    const fn word(self) -> u64 {
        self.page_id.0 << BUFFER_BITS | self.buffer as u64
    }
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
            pin: AtomicU32::new(EVICTED),
            worker: AtomicU16::new(0),
            ref_count: AtomicU8::new(0),
            reading: AtomicU8::new(0),
            page: AtomicU64::new(Held { page_id: PageId(0), buffer: NO_BUFFER }.word()),
            latch: HybridLatch::new(),
            recovery_lsn: AtomicU64::new(0),
        }
    }

    /// Pins the frame if it holds `page_id` (paper, `Frame.pin`). Never waits.
    #[inline]
    pub(crate) fn try_pin(&self, page_id: PageId) -> bool {
        if !self.try_pin_any() {
            return false;
        }
        // FRAME-3: from here on the identity cannot change. Relaxed: ordered by the Acquire of the pin.
        if self.page_id() == page_id {
            return true;
        }
        self.unpin();
        false
    }

    /// Pins whatever page the frame holds. One addition, even in vain: who comes back for a frame that was closed looks first whether it
    /// [is open](Self::is_open), so that no count runs over.
    #[inline]
    pub(crate) fn try_pin_any(&self) -> bool {
        shared_rmw();
        // Acquire: pairs with the Release in `publish` (identity) and in `unpin` (the last holder's work).
        let before = self.pin.fetch_add(1, Acquire);
        let is_open = before & CLOSED == 0;
        assert!(!is_open || before & PINS < PINS / 2, "a frame is pinned five hundred thousand times");
        is_open
    }

    /// Lets go of one pin.
    #[inline]
    pub(crate) fn unpin(&self) {
        shared_rmw();
        // Release: what the holder did comes before the next owner's eviction.
        let before = self.pin.fetch_sub(1, Release);
        debug_assert!(before & CLOSED == 0 && before & PINS != 0, "unpinned without a pin");
    }

    /// Begins to evict the frame if it is unpinned and clean (FRAME-4): it is leaving, and the caller is in.
    pub(crate) fn try_evict(&self) -> bool {
        // A guess; the CAS decides.
        if self.pin.load(Relaxed) != 0 {
            return false;
        }
        shared_rmw();
        // Acquire: pairs with the Release of the last unpin.
        self.pin.compare_exchange(0, LEAVING | IN_ONE, Acquire, Relaxed).is_ok()
    }

    /// Joins those who see `page_id` out of this frame, if it is leaving, and if they are fewer than 255.
    pub(crate) fn join_leaving(&self, page_id: PageId) -> bool {
        // Acquire: pairs with the Release in `publish`; the id below is of the page that leaves or of a later one. Should the frame have changed hands in
        // between, and its new page be leaving as well, the caller helps that one out.
        let mut seen = self.pin.load(Acquire);
        while seen & LEAVING != 0 && seen & IN != IN && self.page_id() == page_id {
            shared_rmw();
            match self.pin.compare_exchange_weak(seen, seen + IN_ONE, Acquire, Acquire) {
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
            debug_assert!(seen & LEAVING != 0 && seen & IN != 0, "left a frame that is not leaving");
            let is_last = seen & IN == IN_ONE;
            shared_rmw();
            // Release: the mapping is gone, and the version moved, before the next owner does anything; pairs with the Acquire.
            match self.pin.compare_exchange_weak(
                seen,
                if is_last { EVICTED } else { seen - IN_ONE },
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
        let Held { page_id, buffer } = Held::of(self.page.load(Relaxed));
        shared_store();
        self.page.store(Held { page_id, buffer: NO_BUFFER }.word(), Relaxed); // FRAME-1: only we change it now
        (buffer != NO_BUFFER).then_some(buffer)
    }

    /// Gives an evicted frame to `page_id`, pinned once, without content; its reading is the caller's, who may [disclaim](Self::disclaim_reading) it.
    pub(crate) fn publish(&self, owner: Evicted, page_id: PageId) {
        drop(owner);
        self.page.store(Held { page_id, buffer: NO_BUFFER }.word(), Relaxed);
        self.ref_count.store(1, Relaxed);
        self.reading.store(1, Relaxed);
        self.note_worker();
        debug_assert_eq!(self.recovery_lsn.load(Relaxed), 0, "FRAME-4: evicted dirty");
        shared_store();
        // Release: pairs with the Acquire in `try_pin`; the identity stored above is visible to who pins. The word was made by an addition in vain, or by the
        // last one out, whom we have acquired it from; so each addition comes before this store, and is gone, or after it, and is a pin. loom keeps
        // no order between stores of threads that do not know of each other, and shows either later: hence the swap there.
        if cfg!(loom) {
            self.pin.swap(1, Release);
        } else {
            self.pin.store(1, Release);
        }
    }

    #[inline]
    pub(crate) fn page_id(&self) -> PageId {
        Held::of(self.page.load(Relaxed)).page_id // FRAME-3: the caller has pinned, or validates
    }

    /// The buffer that holds the page's words; `NO_BUFFER` until it has been read.
    #[inline]
    pub(crate) fn buffer(&self) -> u32 {
        self.held().buffer
    }

    /// Page and buffer.
    #[inline]
    pub(crate) fn held(&self) -> Held {
        // Acquire: pairs with the Release in `install`; the words stored before it are visible.
        Held::of(self.page.load(Acquire))
    }

    /// Gives the frame its content (FRAME-5); says whether it was the first to do so. The caller has pinned.
    pub(crate) fn install(&self, buffer: u32) -> bool {
        debug_assert!(buffer < NO_BUFFER, "a number that fits");
        let empty = Held { page_id: self.page_id(), buffer: NO_BUFFER };
        shared_rmw();
        // Release: the words of `buffer` become visible with its number. Acquire on failure is not needed: the loser reloads.
        self.page.compare_exchange(empty.word(), Held { buffer, ..empty }.word(), Release, Relaxed).is_ok()
    }

    /// What [`Self::set_below`] stored last, or something else if the frame is not in the free list by now.
    pub(crate) fn below(&self) -> u32 {
        self.held().buffer
    }

    /// In the free list: which one follows. The caller owns the frame.
    pub(crate) fn set_below(&self, below: u32) {
        let page_id = self.page_id();
        self.page.store(Held { page_id, buffer: below }.word(), Relaxed); // FRAME-1; the list publishes it
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
        if u32::from(count) < MAX_REF_COUNT {
            shared_store();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// Counts a use by a reader that wants to write nothing (G8): no further than [`WARM_REF_COUNT`], so that a page that is read all
    /// the time is written to once per turn of the hand at most.
    #[inline]
    pub(crate) fn note_peek(&self) {
        let count = self.ref_count.load(Relaxed);
        if u32::from(count) < WARM_REF_COUNT {
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
        self.set_ref_count(1 + self.uses() / 2);
    }

    /// Uses besides the one that brought the page, as far as they are counted and have not cooled.
    pub(crate) fn uses(&self) -> u32 {
        u32::from(self.ref_count.load(Relaxed)).saturating_sub(1)
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.ref_count.load(Relaxed) <= 1
    }

    pub(crate) fn set_ref_count(&self, count: u32) {
        self.ref_count.store(count as u8, Relaxed); // 15 at most
    }

    // Looks of the sweep, the cleaner and statistics; each decides by a CAS afterwards or only reports.

    /// Whether the frame holds a page that readers may look at.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        // Acquire: FRAME-3, the id and the buffer are looked at after this.
        let pin = self.pin.load(Acquire);
        pin & CLOSED == 0
    }

    pub(crate) fn is_pinned(&self) -> bool {
        let pin = self.pin.load(Relaxed);
        pin & CLOSED == 0 && pin & PINS != 0
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pin.load(Relaxed) & DIRTY != 0
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
            let tag = azekura_trace::thread_tag().0;
            self.worker.store(u16::try_from(tag).unwrap_or(ThreadTag::NONE.0 as u16), Relaxed); // a hint; orders nothing
        }
    }

    /// Who began last to read the page in or to write it.
    pub(crate) fn worker(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and show nothing.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.worker.load(Relaxed).into()) }
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

    /// The image is on disk. `next_lsn` is the log's counter as it was read with the latch shared, when the image was taken: changes that are not in it draw
    /// that at least (RECOVERY-2). The caller is the writer.
    pub(crate) fn image_written(&self, next_lsn: Lsn) {
        debug_assert_ne!(self.recovery_lsn.load(Relaxed), 0, "an image of a clean page"); // changers leave what is not 0
        // Release: the image was there before the look that finds this.
        self.recovery_lsn.store(next_lsn.0.max(1), Release);
    }

    /// The image on disk is the page as it is; the writer holds the latch shared.
    pub(crate) fn now_clean(&self) {
        self.recovery_lsn.store(0, Release);
        shared_rmw();
        // Release: whoever finds the page clean finds the LSN cleared.
        self.pin.fetch_and(!DIRTY, Release);
    }

    /// The least LSN that a restart needs to make this page what it is; `None` for a clean one. To be called after [`look_fence`].
    pub(crate) fn least_recovery_lsn(&self) -> Option<Lsn> {
        // Acquire: pairs with the Release in `image_written` and `now_clean`; who syncs after this look makes those images durable.
        Some(Lsn(self.recovery_lsn.load(Acquire))).filter(|&lsn| lsn != Lsn(0))
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
        let seen = frame.latch.optimistic().unwrap();
        assert!(frame.try_evict() && !frame.try_evict());
        assert!(!frame.try_pin(PageId(7)), "on its way out");
        frame.close();
        let owner = frame.leave(ID).unwrap();
        assert!(!frame.try_pin(PageId(7)) && !frame.try_evict() && !frame.join_leaving(PageId(7)));
        frame.publish(owner, PageId(8));
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

    /// One write of the page's image, begun when the log's counter was `next`.
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

    #[test]
    fn page_and_buffer_are_seen_together_up_to_the_largest() {
        for page_id in [PageId(0), PageId(1), PageId(MAX_PAGE_ID - 1)] {
            let frame = Frame::new();
            frame.publish(Evicted { frame: ID }, page_id);
            assert_eq!(frame.held(), Held { page_id, buffer: NO_BUFFER });
            let largest = NO_BUFFER - 1;
            assert!(frame.install(largest) && !frame.install(0));
            assert_eq!(frame.held(), Held { page_id, buffer: largest });
        }
        assert!(MAX_FRAMES + 16 < NO_BUFFER as usize);
    }

    #[test]
    fn frames_of_one_line_are_given_out_half_a_pool_apart() {
        for frames in [1, 2, 3, 8, 1001] {
            let order: Vec<FrameId> = (0..frames).map(|nth| nth_frame(nth, frames)).collect();
            assert!(order.iter().enumerate().all(|(nth, &frame)| turn_of(frame, frames) == nth));
            let apart = |line: usize| turn_of(FrameId(2 * line as u32 + 1), frames) - line;
            assert!((0..frames / 2).all(|line| apart(line) == frames.div_ceil(2)), "{order:?}");
        }
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
