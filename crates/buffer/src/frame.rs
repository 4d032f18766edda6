//! A frame: the header of one place in the pool, and the pin word that says who may do what with it (paper §3.1.1, Fig. 2).
//!
//! The pin word packs, so that one CAS decides over all of them:
//!
//! | bits | meaning |
//! |---|---|
//! | 32..64 | generation: moves with each eviction (G5) |
//! | 31 | dirty: the page differs from its image on disk |
//! | 0..31 | pin count, or all ones: evicted |
//!
//! | state | pin count | who may leave it |
//! |---|---|---|
//! | evicted | all ones | only the thread whose CAS stored it, to *pinned* by [`Frame::publish`] |
//! | unpinned | 0 | any thread, by CAS, to *pinned*; if clean, to *evicted* |
//! | pinned | n > 0 | a pinner, to n + 1; a holder, to n − 1 |
//!
//! - **FRAME-1** `page_id` changes, and `buffer` goes away, only while the frame is evicted and its latch held exclusively by the evictor.
//! - **FRAME-2** At most one thread owns the evicted state of a generation; an [`Evicted`] is the proof.
//! - **FRAME-3** A thread trusts a frame's identity only after it has pinned the frame, or after the latch has validated.
//! - **FRAME-4** The dirty bit is set only by a pin's holder with the latch exclusive, and cleared only by a pin's holder with the
//!   latch shared. So a CAS from *clean and unpinned* to *evicted* never throws a change away (G3).
//! - **FRAME-5** `buffer` turns from none to a buffer once per generation, by CAS; the loser keeps its own (G2).

use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use azekura_base::{Lsn, PageId};
use azekura_latch::HybridLatch;

use crate::count::shared_write;

/// Number of a frame in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameId(pub(crate) u32);

const GENERATION_ONE: u64 = 1 << 32;
const DIRTY: u64 = 1 << 31;
const PINS: u64 = DIRTY - 1;
const EVICTED: u64 = PINS;
/// No buffer: the frame's page has not been read yet.
pub(crate) const NO_BUFFER: u32 = u32::MAX;

/// GCLOCK's reference count saturates here: the hottest page cools down in as many sweeps (G8).
pub(crate) const MAX_REF_COUNT: u32 = 15;

/// Header of one frame, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Frame {
    pin: AtomicU64,
    page_id: AtomicU64,
    buffer: AtomicU32,
    ref_count: AtomicU32,
    /// 1 while somebody reads the page in; only keeps others from reading it too, for a while.
    reading: AtomicU32,
    pub(crate) latch: HybridLatch,
    /// The first change since the page's newest image was taken for writing; 0 = none.
    recovery_lsn: AtomicU64,
    /// The same for the image that is being written now; 0 = none is.
    writing_recovery_lsn: AtomicU64,
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
            latch: HybridLatch::new(),
            recovery_lsn: AtomicU64::new(0),
            writing_recovery_lsn: AtomicU64::new(0),
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
        while seen & PINS != EVICTED {
            assert!(seen & PINS < EVICTED - 1, "a frame is pinned two thousand million times");
            shared_write();
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
        shared_write();
        // Release: what the holder did comes before the next owner's eviction.
        let before = self.pin.fetch_sub(1, Release);
        debug_assert!((1..EVICTED).contains(&(before & PINS)), "unpinned without a pin");
    }

    /// Evicts the frame if it is unpinned and clean (FRAME-4), and closes it to optimistic readers.
    pub(crate) fn try_evict(&self, frame: FrameId) -> Option<Evicted> {
        let seen = self.pin.load(Relaxed); // a guess; the CAS decides
        if seen & (DIRTY | PINS) != 0 {
            return None;
        }
        let evicted = (seen & !PINS).wrapping_add(GENERATION_ONE) | EVICTED;
        // Acquire: pairs with the Release of the last unpin.
        self.pin.compare_exchange(seen, evicted, Acquire, Relaxed).ok()?;
        // Nobody is pinned, so nobody holds the latch; whoever tries an upgrade fails at the version or lets go at once.
        self.latch.lock_exclusive();
        Some(Evicted { frame })
    }

    /// Takes the buffer of an evicted frame, if it has one.
    pub(crate) fn take_buffer(&self, _owner: &Evicted) -> Option<u32> {
        let buffer = self.buffer.swap(NO_BUFFER, Relaxed); // FRAME-1: only we look at it now
        (buffer != NO_BUFFER).then_some(buffer)
    }

    /// Gives an evicted frame to `page_id`, pinned once, without content.
    pub(crate) fn publish(&self, owner: Evicted, page_id: PageId) {
        drop(owner);
        self.page_id.store(page_id.0, Relaxed);
        self.ref_count.store(1, Relaxed);
        self.reading.store(0, Relaxed);
        debug_assert_eq!(self.recovery_lsn.load(Relaxed), 0, "FRAME-4: evicted dirty");
        self.latch.unlock_exclusive();
        let generation = self.pin.load(Relaxed) & !(DIRTY | PINS);
        // Release: pairs with the Acquire in `try_pin`; the identity stored above is visible to who pins.
        self.pin.store(generation | 1, Release);
    }

    /// Takes back a frame that was published but did not get its mapping: pinned by us alone, known to nobody.
    pub(crate) fn withdraw(&self, frame: FrameId) -> Option<Evicted> {
        self.unpin();
        self.try_evict(frame)
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
        shared_write();
        // Release: the words of `buffer` become visible with its number. Acquire on failure is not needed: the loser reloads.
        self.buffer.compare_exchange(NO_BUFFER, buffer, Release, Relaxed).is_ok()
    }

    /// Asks to be the one who reads the page in. Relaxed: content is handed over by `install`, not by this.
    pub(crate) fn claim_reading(&self) -> bool {
        self.reading.load(Relaxed) == 0 && self.reading.compare_exchange(0, 1, Relaxed, Relaxed).is_ok()
    }

    /// The read failed: the next one may try.
    pub(crate) fn disclaim_reading(&self) {
        self.reading.store(0, Relaxed);
    }

    // Reference count. Relaxed throughout: a guide for the sweep; a lost step costs nothing but a little fairness.

    /// Counts a use; writes only below the bound.
    #[inline]
    pub(crate) fn note_use(&self) {
        let count = self.ref_count.load(Relaxed);
        if count < MAX_REF_COUNT {
            shared_write();
            self.ref_count.store(count + 1, Relaxed);
        }
    }

    /// Counts a use by a reader that wants to write nothing: only when the next sweep would take the page (G8).
    #[inline]
    pub(crate) fn note_peek(&self) {
        if self.ref_count.load(Relaxed) <= 1 {
            shared_write();
            self.ref_count.store(2, Relaxed);
        }
    }

    /// One pass of the hand: whether the page has no uses left (paper Fig. 5, `decrRC() <= 0`).
    pub(crate) fn cool(&self) -> bool {
        let count = self.ref_count.load(Relaxed);
        if count > 0 {
            self.ref_count.store(count - 1, Relaxed);
        }
        count <= 1
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.ref_count.load(Relaxed) <= 1
    }

    pub(crate) fn set_cold(&self) {
        self.ref_count.store(0, Relaxed);
    }

    // Looks of the sweep, the cleaner and statistics; each decides by a CAS afterwards or only reports.

    pub(crate) fn is_evicted(&self) -> bool {
        self.pin.load(Relaxed) & PINS == EVICTED
    }

    pub(crate) fn is_pinned(&self) -> bool {
        !matches!(self.pin.load(Relaxed) & PINS, 0 | EVICTED)
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.pin.load(Relaxed) & DIRTY != 0
    }

    #[cfg(test)]
    pub(crate) fn generation(&self) -> u32 {
        (self.pin.load(Relaxed) >> 32) as u32
    }

    // Dirtiness; see `write_back` for the protocol.

    /// Before a change's LSN is drawn: the page is dirty from `next_lsn` on at the latest. Latched exclusively and pinned.
    /// Says whether it was clean.
    pub(crate) fn set_dirty(&self, next_lsn: Lsn) -> bool {
        if self.recovery_lsn.load(Relaxed) != 0 {
            return false;
        }
        // Release: with the counter of the log between, pairs with the Acquire in `least_recovery_lsn` (RECOVERY-1).
        self.recovery_lsn.store(next_lsn.0.max(1), Release);
        shared_write();
        // AcqRel: stays behind the store above; FRAME-4.
        self.pin.fetch_or(DIRTY, AcqRel) & DIRTY == 0
    }

    /// Begins to write the page's image, which the caller copies under the shared latch that it holds; `None` if it is clean or someone
    /// else is writing. Gives the recovery LSN to restore if the write fails.
    pub(crate) fn begin_write(&self, next_lsn: Lsn) -> Option<Lsn> {
        let recovery_lsn = self.recovery_lsn.load(Relaxed);
        if recovery_lsn == 0 {
            return None;
        }
        // AcqRel: one writer at a time; and before the next store (RECOVERY-2).
        self.writing_recovery_lsn.compare_exchange(0, recovery_lsn, AcqRel, Relaxed).ok()?;
        // Whatever changes from now on draws an LSN of at least `next_lsn`. Release: pairs with `least_recovery_lsn`.
        self.recovery_lsn.store(next_lsn.0.max(1), Release);
        Some(Lsn(recovery_lsn))
    }

    pub(crate) fn is_being_written(&self) -> bool {
        self.writing_recovery_lsn.load(Acquire) != 0
    }

    /// Ends a write that reached the disk. `is_unchanged` since the image was copied; the caller holds the latch shared. Says
    /// whether the page is clean now.
    pub(crate) fn end_write(&self, is_unchanged: bool) -> bool {
        if is_unchanged {
            self.recovery_lsn.store(0, Release);
            self.pin.fetch_and(!DIRTY, AcqRel);
        }
        self.writing_recovery_lsn.store(0, Release);
        is_unchanged
    }

    /// Ends a write that failed: the page needs its old recovery LSN again. The caller holds the latch shared.
    pub(crate) fn fail_write(&self, recovery_lsn: Lsn) {
        self.recovery_lsn.store(recovery_lsn.0, Release);
        self.writing_recovery_lsn.store(0, Release);
    }

    /// The least LSN that a restart needs to make this page what it is; `None` for a clean one.
    ///
    /// - **RECOVERY-1** The caller has read the log's counter before. A page that this call finds clean, and that turns dirty, draws
    ///   its LSN at or above that counter: `set_dirty` stores before the draw, so had the draw been below, the store would be seen.
    /// - **RECOVERY-2** `recovery_lsn` is read before `writing_recovery_lsn`, `begin_write` writes them the other way round: whoever sees the
    ///   new recovery LSN sees the old one in the other field, or the write is over.
    pub(crate) fn least_recovery_lsn(&self) -> Option<Lsn> {
        let own = self.recovery_lsn.load(Acquire);
        let writing = self.writing_recovery_lsn.load(Acquire);
        [own, writing].into_iter().filter(|&lsn| lsn != 0).min().map(Lsn)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ID: FrameId = FrameId(0);

    fn published(page: u64) -> Frame {
        let frame = Frame::new();
        frame.latch.lock_exclusive();
        frame.publish(Evicted { frame: ID }, PageId(page));
        frame
    }

    #[test]
    fn g5_a_frame_that_was_evicted_does_not_pass_for_its_old_page() {
        let frame = published(7);
        frame.unpin();
        let generation = frame.generation();
        let owner = frame.try_evict(ID).unwrap();
        assert!(!frame.try_pin(PageId(7)) && frame.try_evict(ID).is_none());
        frame.publish(owner, PageId(8));
        assert_eq!(frame.generation(), generation + 1);
        assert!(!frame.try_pin(PageId(7)) && frame.try_pin(PageId(8)));
    }

    #[test]
    fn g3_a_dirty_or_pinned_frame_is_not_evicted() {
        let frame = published(7);
        assert!(frame.try_evict(ID).is_none(), "pinned");
        assert!(frame.set_dirty(Lsn(5)) && !frame.set_dirty(Lsn(6)));
        frame.unpin();
        assert!(frame.try_evict(ID).is_none(), "dirty");
        assert_eq!(frame.begin_write(Lsn(9)), Some(Lsn(5)));
        assert!(frame.begin_write(Lsn(10)).is_none(), "one writer at a time");
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(5)), "the image being written counts");
        assert!(frame.end_write(true));
        assert_eq!(frame.least_recovery_lsn(), None);
        assert!(frame.try_evict(ID).is_some());
    }

    #[test]
    fn a_page_changed_while_it_was_written_stays_dirty_from_the_later_lsn() {
        let frame = published(7);
        frame.set_dirty(Lsn(5));
        frame.begin_write(Lsn(9));
        assert!(!frame.set_dirty(Lsn(11)));
        assert!(!frame.end_write(false));
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(9)));
        let back = frame.begin_write(Lsn(20)).unwrap();
        frame.fail_write(back);
        assert_eq!(frame.least_recovery_lsn(), Some(Lsn(9)), "a failed write changes nothing");
    }

    #[test]
    fn g8_reference_counts_saturate_and_peeks_write_only_when_it_matters() {
        let frame = published(1);
        (0..100).for_each(|_| frame.note_use());
        assert_eq!((0..100).take_while(|_| !frame.cool()).count(), MAX_REF_COUNT as usize - 1);
        frame.note_peek();
        let writes = crate::count::on_this_thread();
        (0..100).for_each(|_| frame.note_peek());
        assert_eq!(crate::count::on_this_thread(), writes);
    }
}
