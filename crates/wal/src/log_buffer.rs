//! A log buffer: holds records until the next flush (paper section 3.1.1).
//!
//! The paper gives each buffer to one thread, which needs no latch. Here several threads may share a buffer,
//! so each holds a latch while it copies its record. A flush exchanges the full buffer for an empty one under
//! the same latch, so appends continue while the device writes (double buffering).
//!
//! *Number of buffers.* A thread can lose its processor while it holds the latch, and usually holds a page
//! latch as well. The other threads of the buffer then wait for it, each with a page latched that further
//! threads wait for. Unless the number is set, there are therefore more buffers than processors
//! ([`WalOptions::log_buffers`](crate::WalOptions)). A flush takes the latch of every buffer, idle ones
//! included; a thread that requests a flush relies on that
//! ([`Notifier::request`](crate::notifier::Notifier::request)).
//!
//! - **BUFFER-1** The space is checked before the LSN is drawn, and the record is in the buffer before the
//!   latch is released: a drawn LSN is always appended or declared as a gap
//!   ([`lsn_range`](crate::lsn_range)). LSNs of the log are dense (W5), and LSNs in one buffer increase.
//! - **BUFFER-2** A record drawn below the counter value that [`LogBuffer::take`] returns is in the taken
//!   batch or an earlier one.
//! - **BUFFER-3** A record is appended only if `admission` allows it: the content of the buffers always fits
//!   the prepared segments (W11), see `segment`.

use azekura_base::Lsn;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::machine;
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::Site;

use crate::buffer_space::{AppendRefused, BufferSpace};
use crate::durable_lsn::DurableHorizon;
use crate::lsn_gap::{self, LsnGap, LsnGaps};
use crate::lsn_range::{LsnRange, Order};
use crate::options::Admission;
use crate::record;

static BUFFER_LATCH: Site = Site::new("wal buffer latch");
static BUFFER_ROOM: Site = Site::new("wal buffer room");

/// A buffer is due to be written when it has more bytes than its capacity divided by this number
/// (`docs/decisions/095-half-full-log-buffers-are-written.md`).
const DUE_SHARE: usize = 2;

/// Framed records of one log buffer, in order of their LSNs.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records, unless a serial buffer still holds them.
    pub bytes: Vec<u8>,
    /// Bytes of records that a serial buffer holds for this batch.
    pub elsewhere: usize,
    /// Number of records.
    pub records: u64,
    /// LSN of the first record, if there is one.
    pub first_lsn: u64,
    /// LSN of the last record, if there is one.
    pub last_lsn: u64,
    /// LSNs above the first that were drawn and have no record.
    pub gaps: LsnGaps,
}

impl Batch {
    /// Removes the records and gaps, and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.gaps.clear();
        self.elsewhere = 0;
        self.records = 0;
    }

    /// Returns the largest LSN of the batch's records and gaps.
    #[must_use]
    pub fn end_lsn(&self) -> u64 {
        self.last_lsn.max(self.gaps.last())
    }

    /// Returns the bytes of the records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.elsewhere
    }

    /// Returns `true` if there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }
}

/// The reason that a buffer did not take a record; no LSN was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A flush must take the buffer first.
    NoSpace {
        /// The buffer's least LSN: a flush that takes this record makes space.
        first_lsn: u64,
        /// The argument for [`LogBuffer::wait_for_space`].
        taken: u32,
    },
    /// A segment must be prepared first, for any record, or for one of this size.
    NotAdmitting,
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The LSN of the record.
    pub lsn: Lsn,
    /// `true` if the log buffer may have been idle before.
    pub was_idle: bool,
    /// `true` if the buffer became more than half full with this record. A flush that begins now writes while
    /// the next records arrive.
    pub is_due: bool,
}

/// Counters of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of appended records.
    pub records: u64,
    /// Bytes of these records, with their frames.
    pub bytes: u64,
    /// Writes to the LSN counter.
    pub draws: u64,
    /// LSNs that were drawn and have no record.
    pub gap_lsns: u64,
}

#[derive(Debug)]
struct Front {
    batch: Batch,
    admission: Admission,
    /// Bytes that the batch may have; at most the capacity.
    limit: usize,
    wanted: AppendRefused,
    range: LsnRange,
    totals: Totals,
}

/// A buffer for the records of a group of threads.
#[derive(Debug)]
pub struct LogBuffer {
    index: usize,
    capacity_bytes: usize,
    front: TracedMutex<Front>,
    space: BufferSpace,
    /// Lower bound: every later record of this buffer gets an LSN above this one (RANGE-3). Only increases;
    /// written by threads that append to the buffer.
    floor: AtomicU64,
}

impl LogBuffer {
    /// Returns an empty buffer that admits records.
    #[must_use]
    pub fn new(index: usize, capacity_bytes: usize) -> Self {
        let front = Front {
            batch: Batch::default(),
            admission: Admission::All,
            limit: capacity_bytes,
            wanted: AppendRefused::default(),
            range: LsnRange::new(1),
            totals: Totals::default(),
        };
        Self {
            index,
            capacity_bytes,
            front: TracedMutex::new(&BUFFER_LATCH, front),
            space: BufferSpace::new(&BUFFER_ROOM),
            floor: AtomicU64::new(0),
        }
    }

    /// Makes the buffer draw [ranges](crate::lsn_range) of at most `most` LSNs.
    #[must_use]
    pub fn with_ranges(self, most: u64) -> Self {
        self.latch().range = LsnRange::new(most.max(1));
        self
    }

    /// Makes all records that the caller appends from now on come after `lsn`.
    pub fn raise_floor(&self, lsn: Lsn) {
        // Relaxed, here and in `append_in_order`: the caller itself appends later, or synchronizes when it
        // hands the transaction to another thread.
        if self.floor.load(Relaxed) < lsn.0 {
            self.floor.fetch_max(lsn.0, Relaxed);
        }
    }

    fn latch(&self) -> TracedGuard<'_, Front> {
        self.front.lock()
    }

    /// Draws an LSN for a record, which needs at least this `admission`, and copies the record into the
    /// buffer. The flag is `true` if the log buffer was idle.
    ///
    /// # Errors
    ///
    /// [`Refused`], with nothing drawn.
    pub fn append(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
    ) -> Result<(Lsn, bool), Refused> {
        let done = self.append_in_order(horizon, body, admission, Order::Newest);
        done.map(|done| (done.lsn, done.was_idle))
    }

    /// Appends a record as [`append`](Self::append) does, with the given place in the
    /// [order](crate::lsn_range) of LSNs.
    ///
    /// # Errors
    ///
    /// [`Refused`], with nothing drawn.
    pub fn append_in_order(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
        order: Order,
    ) -> Result<Appended, Refused> {
        let mut guard = self.latch();
        let front = &mut *guard;
        if front.admission < admission {
            return Err(Refused::NotAdmitting);
        }
        if front.needed_with(body) > front.limit {
            if front.batch.records > 0 {
                let taken = self.space.refuse(&mut front.wanted);
                return Err(Refused::NoSpace { first_lsn: front.batch.first_lsn, taken });
            }
            if front.limit < self.capacity_bytes {
                return Err(Refused::NotAdmitting);
            }
        }
        let in_range = match order {
            Order::Newest => None,
            Order::After(lsn) => front.range.take(lsn.0.max(self.floor.load(Relaxed))),
        };
        let (lsn, was_idle) = match in_range {
            Some(lsn) => (lsn, false), // RANGE-1: the buffer holds a record, so it is not idle
            None => front.draw(self.index, horizon, order),
        };
        // Nothing from here to the end of the copy can fail (BUFFER-1).
        let before = front.batch.bytes.len();
        front.put(lsn, body);
        let due = before..front.batch.bytes.len();
        let is_due = due.contains(&(self.capacity_bytes / DUE_SHARE));
        Ok(Appended { lsn: Lsn(lsn), was_idle, is_due })
    }

    /// Exchanges the buffered batch for `empty`, and returns the LSN counter at that moment (BUFFER-2). Later
    /// records need `admission`.
    pub fn take(&self, horizon: &DurableHorizon, empty: &mut Batch, admission: Admission) -> u64 {
        debug_assert_eq!(empty.records, 0);
        let mut front = self.latch();
        front.end_range(LsnRange::end_batch);
        std::mem::swap(&mut front.batch, empty);
        front.admission = admission;
        let next = horizon.next_lsn().0;
        let sleepers = self.space.release(&mut front.wanted);
        drop(front);
        sleepers.wake();
        next
    }

    /// Sleeps until a flush takes the buffer; `taken` came with [`Refused::NoSpace`]. May return early.
    pub fn wait_for_space(&self, taken: u32) {
        self.space.wait(taken);
    }

    /// Wakes the threads that wait for buffer space: the log failed.
    pub fn wake_everyone(&self) {
        let front = self.latch();
        let sleepers = self.space.release_all();
        drop(front);
        sleepers.wake();
    }

    /// Records that all batches taken so far are durable: moves this log buffer's mark to the first LSN that
    /// is still buffered.
    pub fn mark_durable(&self, horizon: &DurableHorizon) {
        let front = self.latch();
        horizon.mark_durable(self.index, (front.batch.records > 0).then_some(front.batch.first_lsn));
    }

    /// Opens or closes the buffer for new records.
    pub fn admit(&self, admission: Admission) {
        self.latch().admission = admission;
    }

    /// Limits the buffer to `bytes`, or to its capacity if that is less.
    pub fn set_limit(&self, bytes: usize) {
        self.latch().limit = bytes.min(self.capacity_bytes);
    }

    /// Returns the buffer's counters.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.latch().totals
    }

    /// Returns the buffer's number in the log.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }
}

impl Front {
    /// Returns the largest size of the batch with one more record and the gap before it.
    fn needed_with(&self, body: &[u8]) -> usize {
        let batch = &self.batch;
        let gap = if self.range.is_open() { lsn_gap::MAX_BYTES } else { 0 };
        batch.bytes.len() + batch.gaps.len() + gap + record::MAX_OVERHEAD_BYTES + body.len()
    }

    /// Ends the open range by `end`, and adds its unused LSNs to the batch's gaps.
    fn end_range(&mut self, end: impl FnOnce(&mut LsnRange, u64) -> Option<LsnGap>) {
        if let Some(gap) = end(&mut self.range, self.batch.records) {
            self.batch.gaps.push(self.batch.first_lsn, gap);
            self.totals.gap_lsns += gap.count();
        }
    }

    /// Draws an LSN for a record if the open range has none; the flag is `true` if the log buffer was idle.
    fn draw(&mut self, log_buffer: usize, horizon: &DurableHorizon, order: Order) -> (u64, bool) {
        let count = match order {
            Order::Newest => {
                self.end_range(|range, _| range.close());
                1
            }
            Order::After(_) => {
                self.end_range(|range, _| range.break_off());
                self.range.wanted(self.batch.records)
            }
        };
        let (first, was_idle) = horizon.draw_range(log_buffer, count);
        self.range.open(first, count);
        self.totals.draws += 1;
        (first, was_idle)
    }

    /// Appends a record to the batch.
    fn put(&mut self, lsn: u64, body: &[u8]) {
        let batch = &mut self.batch;
        let expected = if batch.records == 0 { lsn } else { batch.last_lsn + 1 };
        if batch.records == 0 {
            batch.first_lsn = lsn;
        }
        let before = batch.bytes.len();
        record::put(&mut batch.bytes, expected, lsn, body);
        machine::writes(&batch.bytes[before..]); // the thread that flushes reads them
        batch.last_lsn = lsn;
        batch.records += 1;
        self.totals.records += 1;
        self.totals.bytes += (batch.bytes.len() - before) as u64;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn appends_continue_while_the_taken_batch_is_written() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = LogBuffer::new(0, 1024);
        assert_eq!(buffer.append(&horizon, b"a", Admission::All), Ok((Lsn(1), true)));
        let mut taken = Batch::default();
        assert_eq!(buffer.take(&horizon, &mut taken, Admission::All), 2);
        assert_eq!((taken.first_lsn, taken.last_lsn, taken.records), (1, 1, 1));
        assert_eq!(buffer.append(&horizon, b"b", Admission::All), Ok((Lsn(2), false)));
        buffer.mark_durable(&horizon);
        assert_eq!(horizon.compute(), Lsn(1));
        taken.clear();
        assert_eq!(buffer.take(&horizon, &mut taken, Admission::All), 3);
        buffer.mark_durable(&horizon);
        assert_eq!(horizon.compute(), Lsn(2));
        assert!(horizon.is_idle(0));
    }

    #[test]
    fn a_refused_record_draws_no_lsn() {
        let horizon = DurableHorizon::new(1, Lsn(5));
        let buffer = LogBuffer::new(0, 100);
        assert!(buffer.append(&horizon, &[0; 50], Admission::All).is_ok());
        assert_eq!(
            buffer.append(&horizon, &[0; 50], Admission::All),
            Err(Refused::NoSpace { first_lsn: 5, taken: 0 })
        );
        buffer.admit(Admission::Undo);
        assert_eq!(buffer.append(&horizon, b"", Admission::All), Err(Refused::NotAdmitting));
        assert_eq!(buffer.append(&horizon, b"", Admission::Undo), Ok((Lsn(6), false)));
        buffer.admit(Admission::None);
        assert_eq!(buffer.append(&horizon, b"", Admission::Undo), Err(Refused::NotAdmitting));
        assert_eq!(horizon.next_lsn(), Lsn(7));
    }

    #[test]
    fn a_buffer_is_due_once_when_it_becomes_more_than_half_full() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = LogBuffer::new(0, 4096);
        let append = |len| {
            let done = buffer.append_in_order(&horizon, &vec![0; len], Admission::All, Order::Newest);
            done.expect("room").is_due
        };
        assert_eq!([1000, 1000, 1000, 500].map(append), [false, false, true, false]);
        buffer.take(&horizon, &mut Batch::default(), Admission::All);
        assert_eq!([2100, 100].map(append), [true, false]);
    }

    #[test]
    fn a_batch_includes_the_gaps_of_its_ranges() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = LogBuffer::new(0, 4096).with_ranges(8);
        let append = |after| {
            let order = Order::After(Lsn(after));
            buffer.append_in_order(&horizon, b"x", Admission::All, order).expect("room").lsn.0
        };
        let mut batch = Batch::default();
        assert_eq!([(); 4].map(|()| append(0)), [1, 2, 3, 4], "draws of 1, 1 and 2");
        assert_eq!(buffer.take(&horizon, &mut batch, Admission::All), 5);
        assert!(batch.gaps.is_empty());
        batch.clear();
        assert_eq!(
            [append(0), append(0), append(8), append(9)],
            [5, 6, 9, 10],
            "5 to 8 were drawn, then two more"
        );
        assert_eq!(buffer.take(&horizon, &mut batch, Admission::All), 11);
        let gaps = crate::lsn_gap::LsnGapCursor::new(batch.first_lsn, batch.gaps.bytes());
        assert_eq!(gaps.collect::<Vec<_>>(), [LsnGap { first: 7, last: 8 }]);
        assert_eq!((batch.last_lsn, batch.end_lsn()), (10, 10));
        buffer.mark_durable(&horizon);
        assert_eq!(horizon.compute(), Lsn(10));
        batch.clear();
        append(0);
        assert_eq!(buffer.take(&horizon, &mut batch, Admission::All), 15);
        assert_eq!((batch.last_lsn, batch.end_lsn()), (11, 14), "the rest of the range is a gap");
        let totals = buffer.totals();
        assert_eq!((totals.records, totals.draws, totals.gap_lsns), (9, 6, 5));
    }

    #[test]
    fn totals_include_the_frames() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = LogBuffer::new(0, 4096);
        for len in [0, 5, 200] {
            buffer.append(&horizon, &vec![1; len], Admission::All).expect("room");
        }
        let mut taken = Batch::default();
        buffer.take(&horizon, &mut taken, Admission::All);
        let totals = Totals { records: 3, bytes: taken.bytes.len() as u64, draws: 3, gap_lsns: 0 };
        assert_eq!(buffer.totals(), totals);
    }
}
