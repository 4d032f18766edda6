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
//! - **BUFFER-4** (of a worker that [tracks](WorkerBuffer::tracking) what its records rest on) `rests_on` changes under the latch and never falls; each
//!   record carries its value (REST-2).
//! - **BUFFER-3** A record gets in only if `admission` lets it: what is in the buffers always fits the prepared
//!   segments (W11), see `segment`.

use azekura_base::Lsn;
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::Site;

use crate::commit_point::OwnLsns;
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
    /// What the worker rested on before the first, if records tell.
    pub rests_on: Option<u64>,
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

/// A record that a buffer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its LSN.
    pub lsn: Lsn,
    /// Whether the worker may have been idle before.
    pub was_idle: bool,
    /// What it rests on, in a buffer that tracks that.
    pub rests_on: Lsn,
}

#[derive(Debug)]
struct Front {
    batch: Batch,
    admission: Admission,
    wanted: Wanted,
    records: u64,
    bytes: u64,
    /// The largest LSN of another worker that anything appended so far may rest on; 0 in a buffer that does not track it.
    rests_on: u64,
    /// What the batch's last record carries of it.
    told: u64,
}

/// One worker's buffer.
#[derive(Debug)]
pub struct WorkerBuffer {
    worker: usize,
    capacity_bytes: usize,
    front: TracedMutex<Front>,
    room: Room,
    /// Of a worker whose records tell what they rest on.
    own: Option<OwnLsns>,
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
            rests_on: 0,
            told: 0,
        };
        Self {
            worker,
            capacity_bytes,
            front: TracedMutex::new(&BUFFER_LATCH, front),
            room: Room::new(&BUFFER_ROOM),
            own: None,
        }
    }

    /// The same for a worker whose records tell [what they rest on](crate::commit_point).
    #[must_use]
    pub fn tracking(worker: usize, capacity_bytes: usize) -> Self {
        Self { own: Some(OwnLsns::new()), ..Self::new(worker, capacity_bytes) }
    }

    /// `lsn` if a record of this worker that is drawn after the one with that LSN would rest on it: another worker drew it, and it is not
    /// known to be durable everywhere (REST-1). Else 0. Two loads.
    pub fn foreign(&self, horizon: &DurableHorizon, lsn: Lsn) -> Lsn {
        match &self.own {
            Some(own) if lsn > horizon.reached() && !own.contains(lsn.0) => lsn,
            _ => Lsn(0),
        }
    }

    /// Has all records that are appended from now on rest on `lsn`, if it is foreign.
    pub fn rest_on(&self, horizon: &DurableHorizon, lsn: Lsn) {
        let foreign = self.foreign(horizon, lsn);
        if foreign > Lsn(0) {
            let mut front = self.latch();
            front.rests_on = front.rests_on.max(foreign.0);
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
        self.append_resting(horizon, body, admission, Lsn(0)).map(|done| (done.lsn, done.was_idle))
    }

    /// The same for a record that rests on the [foreign](Self::foreign) record with LSN `rests_on`, and so on all before that; 0: on none.
    ///
    /// # Errors
    ///
    /// [`Refused`], with nothing drawn.
    pub fn append_resting(
        &self,
        horizon: &DurableHorizon,
        body: &[u8],
        admission: Admission,
        rests_on: Lsn,
    ) -> Result<Appended, Refused> {
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
            batch.rests_on = self.own.is_some().then_some(front.rests_on);
        }
        let before = batch.bytes.len();
        if let Some(own) = &self.own {
            own.note(lsn);
            if batch.records == 0 {
                front.told = front.rests_on;
            }
            front.rests_on = front.rests_on.max(rests_on.0);
            record::put_resting(&mut batch.bytes, expected, lsn, front.rests_on - front.told, body);
            front.told = front.rests_on;
        } else {
            record::put(&mut batch.bytes, expected, lsn, body);
        }
        batch.last_lsn = lsn;
        batch.records += 1;
        front.records += 1;
        front.bytes += (batch.bytes.len() - before) as u64;
        Ok(Appended { lsn: Lsn(lsn), was_idle, rests_on: Lsn(front.rests_on) })
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
    use crate::record::Cursor;

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

    #[test]
    fn a_record_rests_on_what_others_drew_and_is_not_durable_and_each_batch_tells_it_anew() {
        let horizon = DurableHorizon::new(2, Lsn(1));
        let (one, other) = (WorkerBuffer::tracking(0, 4096), WorkerBuffer::tracking(1, 4096));
        let append = |buffer: &WorkerBuffer, rests_on| {
            buffer.append_resting(&horizon, b"x", Admission::All, rests_on).expect("room")
        };
        let first = append(&other, Lsn(0)).lsn;
        let own = append(&one, Lsn(0)).lsn;
        assert_eq!((one.foreign(&horizon, first), one.foreign(&horizon, own)), (first, Lsn(0)));
        assert_eq!(append(&one, one.foreign(&horizon, own)).rests_on, Lsn(0));
        let second = append(&other, Lsn(0)).lsn;
        one.rest_on(&horizon, second); // a lock
        assert_eq!(append(&one, Lsn(0)).rests_on, second);
        assert_eq!(append(&one, first).rests_on, second, "it never falls");
        let mut batch = Batch::default();
        one.take(&horizon, &mut batch, Admission::All);
        let mut cursor = Cursor { expected: batch.first_lsn, rests_on: batch.rests_on };
        let mut input = batch.bytes.as_slice();
        let mut told = || cursor.take(&mut input).and(cursor.rests_on);
        assert_eq!([(); 5].map(|()| told()), [Some(0), Some(0), Some(second.0), Some(second.0), None]);
        append(&one, Lsn(0));
        batch.clear();
        one.take(&horizon, &mut batch, Admission::All);
        assert_eq!(batch.rests_on, Some(second.0));
        other.take(&horizon, &mut Batch::default(), Admission::All);
        other.settle(&horizon);
        one.settle(&horizon);
        assert_eq!(one.foreign(&horizon, second), second, "nobody has looked at the horizon yet");
        horizon.compute();
        assert_eq!(one.foreign(&horizon, second), Lsn(0), "durable everywhere");
    }
}
