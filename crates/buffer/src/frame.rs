//! A frame: the header of one page slot of the pool, and the pin word that controls access to it (paper
//! §3.1.1, Fig. 2).
//!
//! The pin word packs these fields, so that one CAS decides over all of them:
//!
//! | bits | meaning |
//! |---|---|
//! | 31 | dirty: the page differs from its image on disk |
//! | 30 | writing: a thread writes the page's image |
//! | 29 | leaving: the page is being evicted |
//! | 28 | open: the frame holds a page |
//! | 20..28 | number of threads that evict the page |
//! | 0..20 | pin count; undefined unless open |
//!
//! A frame that is neither open nor leaving is *evicted*: it has no page. A frame of zero bytes is evicted
//! and has no buffer, so a pool touches no frame before its first use (`zeroed`).
//!
//! | state | count | transitions |
//! |---|---|---|
//! | evicted | – | its single owner, to *pinned* by [`Frame::publish`] |
//! | unpinned | 0 pins | any thread, by addition, to *pinned*; if clean, one thread by CAS, to *leaving* |
//! | pinned | n > 0 pins | a pinning thread, to n + 1; a holder, to n − 1 |
//! | leaving | n > 0 evicting threads | a thread that needs the old page, to n + 1 |
//! | | | an evicting thread that has unmapped the frame, to n − 1; the last one, to *evicted*, as its owner |
//!
//! A pin is one addition, whatever other threads do to the word: on a contended page most CAS attempts would
//! fail. If the word is found leaving or evicted, the addition had no effect and is not withdrawn: the count
//! is undefined then, and publishing the frame resets it (one store).
//!
//! In the paper's Fig. 2 an unpinned frame becomes evicted at once. Here the removal of the mapping lies
//! between the two states. A thread that stalled there would block all threads that need the old page (G10).
//! So a thread that finds a leaving frame joins and removes the mapping too. No thread can assign the frame
//! to another page meanwhile, because only the last evicting thread does that.
//!
//! The word needs no generation (G5): a CAS that succeeds on a frame that was reused since the word was read
//! is correct for the present page, too. A thread that depends on the identity of the page checks the
//! identity afterward (FRAME-3). The latch's version is the generation for optimistic readers.
//!
//! The page word packs the frame's page (bits 25..64) and its buffer number (0..25, inverted; 0: none), so
//! that a reader gets both in one load. For a frame in the free list the page field holds the next frame of
//! the list; the frame keeps its buffer.
//!
//! A header is half a cache line. Frames are paired so that consecutive pages, such as the upper pages of a
//! tree, do not share a line ([`nth_frame`]). Otherwise a fix of one page would invalidate the line for
//! readers of the other page.
//!
//! - **FRAME-1** The page in the page word changes, and its buffer is removed, only while the frame is
//!   evicted, by its owner.
//! - **FRAME-2** At most one thread owns a frame's evicted state; an [`Evicted`] is the proof.
//! - **FRAME-3** A thread relies on a frame's identity only in two cases. It has pinned the frame. Or it read
//!   a version of the latch, then found the frame neither leaving nor evicted, and later validated the
//!   version.
//! - **FRAME-4** The dirty bit is set only by a holder of a pin and the exclusive latch, and cleared only by
//!   the page's writer with the shared latch. So a CAS from *clean and unpinned* to *leaving* never loses a
//!   change (G3).
//! - **FRAME-5** The buffer changes from none to one once per load of a page, by CAS. A thread that loses
//!   keeps its own buffer (G2). A thread fills the frame only if the frame is known to have the page's
//!   mapping: the thread inserted the mapping, or pinned the frame and then found it in the page table. (A
//!   frame that lost the insertion also has the page's id for a moment, and a stale lookup may return it.)
//! - **FRAME-6** Only a holder of a pin holds the latch, and it releases the latch first. So the latch of a
//!   leaving or evicted frame is free.
//! - **FRAME-7** Each thread that evicts a page changes the latch's version before it unmaps the frame. The
//!   page can be loaded and changed elsewhere, and the buffer can be filled again, only later. From then on
//!   an optimistic reader of the old page fails to validate.
//!
mod dirty;
mod order;
mod ref_count;

use azekura_base::PageId;
use azekura_base::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use azekura_latch::{HybridLatch, Version};
use azekura_trace::ThreadTag;

use crate::count::{shared_rmw, shared_store};
use azekura_base::zeroed::ZeroIsValid;

pub(crate) use self::dirty::look_fence;
pub(crate) use self::order::{nth_frame, turn_of};
pub(crate) use self::ref_count::MAX_REF_COUNT;

/// Number of a frame in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

const DIRTY: u32 = 1 << 31;
const WRITING: u32 = 1 << 30;
const LEAVING: u32 = 1 << 29;
const OPEN: u32 = 1 << 28;
const IN_ONE: u32 = 1 << 20;
const IN: u32 = OPEN - IN_ONE;
const PINS: u32 = IN_ONE - 1;
const BUFFER_BITS: u32 = 25;
/// The buffer number of a frame without a buffer: its page has not been read yet.
pub const NO_BUFFER: u32 = (1 << BUFFER_BITS) - 1;
/// Exclusive bound of page ids: 2 PiB of 4 KiB pages.
pub const MAX_PAGE_ID: u64 = 1 << (u64::BITS - BUFFER_BITS);
/// Largest number of frames in a pool. Including the spare ones there are fewer buffers than [`NO_BUFFER`].
pub const MAX_FRAMES: usize = (1 << 24) - 1;

/// Header of one frame, half a cache line.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Frame {
    pin: AtomicU32,
    /// The thread that last began to read the page in or to write it: a hint for the tracer about the thread
    /// that others wait for. 0 for thread tags that are too large.
    worker: AtomicU16,
    ref_count: AtomicU8,
    /// 1 while a thread reads the page in. It only makes other threads delay their own reads.
    reading: AtomicU8,
    /// The page id and the buffer number.
    page: AtomicU64,
    pub(crate) latch: HybridLatch,
    /// Least LSN of the changes that are in no image on disk (RECOVERY-1); 0 for no change.
    recovery_lsn: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Frame>() == 32, "two to a cache line");

// SAFETY: atomic integers only, 32 bytes of 32. Zero is the value of `Frame::new`.
unsafe impl ZeroIsValid for Frame {}

/// Content of a frame: the page, and the buffer with its words or [`NO_BUFFER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) page_id: PageId,
    pub(crate) buffer: u32,
}

impl Held {
    #[inline]
    const fn of(word: u64) -> Self {
        Self { page_id: PageId(word >> BUFFER_BITS), buffer: !word as u32 & NO_BUFFER }
    }

    const fn word(self) -> u64 {
        self.page_id.0 << BUFFER_BITS | (self.buffer ^ NO_BUFFER) as u64
    }
}

/// State of a page as read by [`Frame::look`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// The page is in this buffer, if the latch validates the version afterward.
    Page { version: Version, buffer: u32 },
    /// The page is latched exclusively.
    Busy,
    /// The page was evicted, or has not been read yet.
    Empty,
}

/// The right to refill an evicted frame (FRAME-2).
#[derive(Debug)]
#[must_use]
pub struct Evicted {
    /// The frame.
    pub frame: FrameId,
}

impl Frame {
    /// Returns a frame that has never held a page; owned by the pool's free list.
    pub fn new() -> Self {
        Self {
            pin: AtomicU32::new(0),
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
    pub fn try_pin(&self, page_id: PageId) -> bool {
        if !self.try_pin_any() {
            return false;
        }
        // FRAME-3: from now on the identity cannot change. Relaxed: ordered by the Acquire of the pin.
        if self.page_id() == page_id {
            return true;
        }
        self.unpin();
        false
    }

    /// Pins the frame, whatever page it holds, by one addition, even if the frame is closed. A thread that
    /// returns to a closed frame first checks [`is_open`](Self::is_open), so that the count does not
    /// overflow.
    #[inline]
    pub(crate) fn try_pin_any(&self) -> bool {
        shared_rmw();
        // Acquire: pairs with the Release in `publish` (identity) and in `unpin` (the last holder's work).
        let before = self.pin.fetch_add(1, Acquire);
        let is_open = before & OPEN != 0;
        assert!(!is_open || before & PINS < PINS / 2, "a frame is pinned five hundred thousand times");
        is_open
    }

    /// Releases one pin.
    #[inline]
    pub fn unpin(&self) {
        shared_rmw();
        // Release: the holder's accesses come before the next owner's eviction.
        let before = self.pin.fetch_sub(1, Release);
        debug_assert!(before & OPEN != 0 && before & PINS != 0, "unpinned without a pin");
    }

    /// Begins to evict the frame if it is unpinned and clean (FRAME-4): its state is leaving, with the
    /// caller as an evicting thread.
    pub fn try_evict(&self) -> bool {
        // Relaxed: an estimate; the CAS decides.
        if self.pin.load(Relaxed) != OPEN {
            return false;
        }
        shared_rmw();
        // Acquire: pairs with the Release of the last unpin.
        self.pin.compare_exchange(OPEN, LEAVING | IN_ONE, Acquire, Relaxed).is_ok()
    }

    /// Joins the threads that evict `page_id` from this frame, if the frame is leaving and they are fewer
    /// than 255.
    pub fn join_leaving(&self, page_id: PageId) -> bool {
        // Acquire: pairs with the Release in `publish`, so the id below is the id of the leaving page or of a
        // later one. If the frame was reused in between and its new page is leaving too, the caller helps to
        // evict that page.
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

    /// Closes a leaving frame to optimistic readers (FRAME-7), before its mapping is removed. The caller is
    /// an evicting thread.
    pub(crate) fn close(&self) {
        shared_rmw();
        self.latch.invalidate();
    }

    /// Leaves a frame that the caller has closed and unmapped. The last evicting thread becomes its owner.
    pub fn leave(&self, frame: FrameId) -> Option<Evicted> {
        let mut seen = self.pin.load(Relaxed);
        loop {
            debug_assert!(seen & LEAVING != 0 && seen & IN != 0, "left a frame that is not leaving");
            let is_last = seen & IN == IN_ONE;
            shared_rmw();
            // Release: the removal of the mapping and the new version come before any action of the next
            // owner; pairs with the Acquire.
            match self.pin.compare_exchange_weak(
                seen,
                if is_last { 0 } else { seen - IN_ONE },
                AcqRel,
                Relaxed,
            ) {
                Ok(_) => return is_last.then_some(Evicted { frame }),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the buffer of an evicted frame, if it has one.
    pub fn take_buffer(&self, _owner: &Evicted) -> Option<u32> {
        let Held { page_id, buffer } = Held::of(self.page.load(Relaxed));
        shared_store();
        // Relaxed: FRAME-1, only the owner changes the word now
        self.page.store(Held { page_id, buffer: NO_BUFFER }.word(), Relaxed);
        (buffer != NO_BUFFER).then_some(buffer)
    }

    /// Assigns an evicted frame to `page_id`, pinned once, without content. The caller reads the page, or
    /// calls [`disclaim_reading`](Self::disclaim_reading).
    pub fn publish(&self, owner: Evicted, page_id: PageId) {
        drop(owner);
        self.page.store(Held { page_id, buffer: NO_BUFFER }.word(), Relaxed);
        self.ref_count.store(1, Relaxed);
        self.reading.store(1, Relaxed);
        self.note_worker();
        debug_assert_eq!(self.recovery_lsn.load(Relaxed), 0, "FRAME-4: evicted dirty");
        shared_store();
        // Release: pairs with the Acquire in `try_pin`; the identity stored above is visible to a thread that
        // pins. The word was last changed by an addition without effect, or by the last evicting thread, from
        // which this thread has acquired it. So each addition either precedes this store and is overwritten,
        // or follows it and is a pin. loom does not order stores of unrelated threads and may make either
        // visible later: hence the swap in models.
        if cfg!(loom) {
            self.pin.swap(OPEN | 1, Release);
        } else {
            self.pin.store(OPEN | 1, Release);
        }
    }

    /// Returns the page that the frame holds.
    #[inline]
    pub fn page_id(&self) -> PageId {
        Held::of(self.page.load(Relaxed)).page_id // Relaxed: FRAME-3, the caller has pinned, or validates
    }

    /// Returns the buffer that holds the page's words; `NO_BUFFER` until the page was read.
    #[inline]
    pub fn buffer(&self) -> u32 {
        self.held().buffer
    }

    /// Returns page and buffer.
    #[inline]
    pub(crate) fn held(&self) -> Held {
        // Acquire: pairs with the Release in `install`; the words stored before it are visible.
        Held::of(self.page.load(Acquire))
    }

    /// Reads `page_id` for an optimistic reader; `None` if the frame has another page. Counts the use.
    #[inline]
    pub(crate) fn look(&self, page_id: PageId) -> Option<Look> {
        // FRAME-3: read the version first, then the frame's state, then its content.
        let Some(version) = self.latch.optimistic() else {
            return (self.page_id() == page_id).then_some(Look::Busy);
        };
        let is_open = self.is_open();
        let Held { page_id: found, buffer } = self.held();
        if found != page_id {
            return None;
        }
        if !is_open || buffer == NO_BUFFER {
            return Some(Look::Empty);
        }
        self.note_peek();
        Some(Look::Page { version, buffer })
    }

    /// Installs the frame's content (FRAME-5); returns `true` if this thread was the first. The caller has
    /// pinned the frame.
    pub fn install(&self, buffer: u32) -> bool {
        debug_assert!(buffer < NO_BUFFER, "a number that fits");
        let empty = Held { page_id: self.page_id(), buffer: NO_BUFFER };
        shared_rmw();
        // Release: the words of `buffer` become visible with its number. Acquire on failure is not needed: a
        // thread that loses loads the word again.
        self.page.compare_exchange(empty.word(), Held { buffer, ..empty }.word(), Release, Relaxed).is_ok()
    }

    /// Returns the value that [`Self::set_below`] stored last, or an arbitrary value if the frame is no
    /// longer in the free list.
    pub(crate) fn below(&self) -> u32 {
        self.held().page_id.0 as u32 // 25 bits, see `set_below`.
    }

    /// Stores the next frame of the free list in the field of the page id. The caller owns the frame. No page
    /// table entry refers to this frame, and a thread with a stale entry finds the frame evicted, regardless
    /// of its page id.
    pub(crate) fn set_below(&self, below: u32) {
        let buffer = Held::of(self.page.load(Relaxed)).buffer; // Relaxed: FRAME-1, only the owner changes it
        let page_id = PageId(below.into());
        self.page.store(Held { page_id, buffer }.word(), Relaxed); // Relaxed: FRAME-1, the list publishes it
    }

    /// Returns the buffer to an evicted frame before it goes into the free list.
    pub(crate) fn keep_buffer(&self, _owner: &Evicted, buffer: u32) {
        let page_id = self.page_id();
        self.page.store(Held { page_id, buffer }.word(), Relaxed); // Relaxed: FRAME-1, the list publishes it
    }

    /// Claims the reading of the page. Relaxed: `install` publishes the content, and the claim publishes
    /// nothing.
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

    /// Withdraws the claim after a failed read, so that another thread may read.
    pub(crate) fn disclaim_reading(&self) {
        shared_store();
        self.reading.store(0, Relaxed);
    }

    // Reads by the sweep, the cleaner and statistics; each caller decides by a later CAS, or only reports.

    /// Returns `true` if the frame holds a page that readers may read.
    #[inline]
    pub fn is_open(&self) -> bool {
        // Acquire: FRAME-3, the id and the buffer are read after this.
        let pin = self.pin.load(Acquire);
        pin & OPEN != 0
    }

    pub(crate) fn is_pinned(&self) -> bool {
        let pin = self.pin.load(Relaxed);
        pin & OPEN != 0 && pin & PINS != 0
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pin.load(Relaxed) & DIRTY != 0
    }

    /// Stores the calling thread as the one that reads or writes the page.
    fn note_worker(&self) {
        if !cfg!(loom) {
            let tag = azekura_trace::thread_tag().0;
            // Relaxed: a hint, which orders nothing.
            self.worker.store(u16::try_from(tag).unwrap_or(ThreadTag::NONE.0 as u16), Relaxed);
        }
    }

    /// Returns the thread that last began to read the page in or to write it.
    pub(crate) fn worker(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and show nothing.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.worker.load(Relaxed).into()) }
    }
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
    fn g10_the_last_user_of_an_evicted_page_owns_the_frame() {
        let frame = published(7);
        frame.unpin();
        assert!(!frame.join_leaving(PageId(7)), "not leaving");
        assert!(frame.try_evict());
        assert!(!frame.join_leaving(PageId(8)) && frame.join_leaving(PageId(7)));
        assert!(frame.leave(ID).is_none(), "the evictor, or the helper: somebody is still in");
        assert!(frame.leave(ID).is_some());
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
}
