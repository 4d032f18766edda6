//! A worker's buffer: where records wait for the next flush (paper section 3.1.1).
//!
//! The paper gives each buffer to one thread, which needs no latch. Here any number of threads may share a worker, so
//! a latch is held for the copy, and no longer. A flush exchanges the full buffer for an empty one under the same
//! latch, so appends go on while the device writes (double buffering).
//!
//! - **BUFFER-1** Room is checked before the LSN is drawn, and the record is in the buffer before the latch is let go:
//!   a drawn LSN is certainly appended, LSNs of the log are dense (W5), and those in one buffer rise.
//! - **BUFFER-2** A record drawn below the counter value that [`WorkerBuffer::take`] returns is in what it took, or
//!   was taken before.
//! - **BUFFER-3** A record gets in only if `admission` lets it: what is in the buffers always fits the prepared
//!   segments (W11), see `segment`.

use azekura_base::{Lsn, varint};
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::Site;

use crate::durable_lsn::DurableHorizon;
use crate::options::Admission;
use crate::record;
use crate::room::{Room, Wanted};

static BUFFER_LATCH: Site = Site::new("wal buffer latch");
static BUFFER_ROOM: Site = Site::new("wal buffer room");

/// Framed records of one worker, in order of their LSNs.
#[derive(Debug, Default)]
pub struct Batch {
    /// The records, unless a serial buffer still holds them.
    pub bytes: Vec<u8>,
    /// How many bytes of records a serial buffer holds for this batch.
    pub elsewhere: usize,
    /// How many.
    pub records: u64,
    /// LSN of the first, if there is one.
    pub first_lsn: u64,
    /// LSN of the last, if there is one.
    pub last_lsn: u64,
}

impl Batch {
    /// Forgets the records and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.elsewhere = 0;
        self.records = 0;
    }

    /// Bytes of the records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() + self.elsewhere
    }

    /// Whether there is no record.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }
}

/// Why a buffer did not take a record; nothing was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A flush must take the buffer first.
    NoRoom {
        /// The buffer's least LSN: once it is on its way, there is room.
        first_lsn: u64,
        /// For [`WorkerBuffer::wait_for_room`].
        taken: u32,
    },
    /// A segment must be prepared first.
    NotAdmitting,
}

#[derive(Debug)]
struct Front {
    batch: Batch,
    admission: Admission,
    wanted: Wanted,
    records: u64,
    bytes: u64,
}

/// One worker's buffer.
#[derive(Debug)]
pub struct WorkerBuffer {
    worker: usize,
    capacity_bytes: usize,
    front: TracedMutex<Front>,
    room: Room,
}

impl WorkerBuffer {
    /// An empty buffer that admits records.
    #[must_use]
    pub fn new(worker: usize, capacity_bytes: usize) -> Self {
        let front = Front {
            batch: Batch::default(),
            admission: Admission::All,
            wanted: Wanted::default(),
            records: 0,
            bytes: 0,
        };
        Self {
            worker,
            capacity_bytes,
            front: TracedMutex::new(&BUFFER_LATCH, front),
            room: Room::new(&BUFFER_ROOM),
        }
    }

    fn latch(&self) -> TracedGuard<'_, Front> {
        self.front.lock()
    }

    /// Draws an LSN for a record, which needs at least this `admission`, and copies it in. The flag tells whether the
    /// worker was idle.
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
        let needed = record::MAX_OVERHEAD_BYTES + body.len();
        let mut guard = self.latch();
        let front = &mut *guard;
        if front.admission < admission {
            return Err(Refused::NotAdmitting);
        }
        let batch = &mut front.batch;
        if batch.bytes.len() + needed > self.capacity_bytes && batch.records > 0 {
            let taken = self.room.refuse(&mut front.wanted);
            return Err(Refused::NoRoom { first_lsn: batch.first_lsn, taken });
        }
        let (lsn, was_idle) = horizon.draw(self.worker);
        // Nothing from here to the end of the copy can fail (BUFFER-1).
        let expected = if batch.records == 0 { lsn } else { batch.last_lsn + 1 };
        if batch.records == 0 {
            batch.first_lsn = lsn;
        }
        record::put(&mut batch.bytes, expected, lsn, body);
        batch.last_lsn = lsn;
        batch.records += 1;
        front.records += 1;
        front.bytes +=
            (varint::len_u64(lsn - expected) + varint::len_u64(body.len() as u64) + body.len()) as u64;
        Ok((Lsn(lsn), was_idle))
    }

    /// Exchanges what is buffered for `empty`, and returns the LSN counter at that moment (BUFFER-2). Records that
    /// come later need `admission`.
    pub fn take(&self, horizon: &DurableHorizon, empty: &mut Batch, admission: Admission) -> u64 {
        debug_assert_eq!(empty.records, 0);
        let mut front = self.latch();
        std::mem::swap(&mut front.batch, empty);
        front.admission = admission;
        let next = horizon.next_lsn().0;
        let made = self.room.make(&mut front.wanted);
        drop(front);
        made.tell();
        next
    }

    /// Sleeps until a flush takes the buffer; `taken` came with [`Refused::NoRoom`]. May return early.
    pub fn wait_for_room(&self, taken: u32) {
        self.room.wait(taken);
    }

    /// Wakes who waits for room: the log failed.
    pub fn wake_everyone(&self) {
        let front = self.latch();
        let made = self.room.make_for_all();
        drop(front);
        made.tell();
    }

    /// What was taken before is durable: moves this worker's mark to what is buffered now.
    pub fn settle(&self, horizon: &DurableHorizon) {
        let front = self.latch();
        horizon.settle(self.worker, (front.batch.records > 0).then_some(front.batch.first_lsn));
    }

    /// Opens or closes the buffer for new records.
    pub fn admit(&self, admission: Admission) {
        self.latch().admission = admission;
    }

    /// Records ever appended, and their bytes with framing.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        let front = self.latch();
        (front.records, front.bytes)
    }

    /// The worker's number.
    #[must_use]
    pub const fn worker(&self) -> usize {
        self.worker
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn appends_go_on_while_what_was_taken_is_written() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = WorkerBuffer::new(0, 1024);
        assert_eq!(buffer.append(&horizon, b"a", Admission::All), Ok((Lsn(1), true)));
        let mut taken = Batch::default();
        assert_eq!(buffer.take(&horizon, &mut taken, Admission::All), 2);
        assert_eq!((taken.first_lsn, taken.last_lsn, taken.records), (1, 1, 1));
        assert_eq!(buffer.append(&horizon, b"b", Admission::All), Ok((Lsn(2), false)));
        buffer.settle(&horizon);
        assert_eq!(horizon.compute(), Lsn(1));
        taken.clear();
        assert_eq!(buffer.take(&horizon, &mut taken, Admission::All), 3);
        buffer.settle(&horizon);
        assert_eq!(horizon.compute(), Lsn(2));
        assert!(horizon.is_idle(0));
    }

    #[test]
    fn a_refused_record_draws_no_lsn() {
        let horizon = DurableHorizon::new(1, Lsn(5));
        let buffer = WorkerBuffer::new(0, 100);
        assert!(buffer.append(&horizon, &[0; 50], Admission::All).is_ok());
        assert_eq!(
            buffer.append(&horizon, &[0; 50], Admission::All),
            Err(Refused::NoRoom { first_lsn: 5, taken: 0 })
        );
        buffer.admit(Admission::Undo);
        assert_eq!(buffer.append(&horizon, b"", Admission::All), Err(Refused::NotAdmitting));
        assert_eq!(buffer.append(&horizon, b"", Admission::Undo), Ok((Lsn(6), false)));
        buffer.admit(Admission::None);
        assert_eq!(buffer.append(&horizon, b"", Admission::Undo), Err(Refused::NotAdmitting));
        assert_eq!(horizon.next_lsn(), Lsn(7));
    }

    #[test]
    fn totals_count_what_the_frames_take() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = WorkerBuffer::new(0, 4096);
        for len in [0, 5, 200] {
            buffer.append(&horizon, &vec![1; len], Admission::All).expect("room");
        }
        let mut taken = Batch::default();
        buffer.take(&horizon, &mut taken, Admission::All);
        assert_eq!(buffer.totals(), (3, taken.bytes.len() as u64));
    }
}
