//! The buffer of the serial log, after Aether (Johnson et al., VLDB 2010, section 5), which is the P-WAL
//! paper's baseline. All threads use one buffer, with insertion by a consolidation array (`slot`) and copies
//! outside the latch.
//!
//! 1. A thread that finds the latch free reserves an LSN and bytes for its record, releases the latch, and
//!    copies.
//! 2. A thread that finds the latch taken joins a group in the array. The group's leader reserves space for
//!    all members, by one draw on the LSN counter, and all members copy at the same time.
//! 3. After its copy, a single thread adds its length to the filled bytes of the half. In a group, the last
//!    member does so for all.
//! 4. A flush takes the half under the latch, and inserters use the other half from then on. The flush waits,
//!    without the latch, until all reserved bytes are filled (a few copies at most).
//!
//! Aether's circular buffer releases insertions in order, so an inserter may wait for its predecessors'
//! copies. Two halves need no order, because a half is written as a whole.
//!
//! | half | users of its bytes |
//! |---|---|
//! | in front | inserters, each in its own range |
//! | taken, being filled | inserters with earlier reservations |
//! | taken, filled | the flush that took it |
//!
//! - **SERIAL-1** LSNs and bytes are reserved together under the latch. So, in the order of the bytes, LSNs
//!   are dense and increase, and frames have no gaps. All reserved bytes are copied (as BUFFER-1).
//! - **SERIAL-2** A record drawn below the counter value that [`SerialBuffer::take`] returns is in the taken
//!   batch or an earlier one (as BUFFER-2).
//! - **SERIAL-3** One flush at a time takes and reads a half (GATE-1), so a half was read before it becomes
//!   the front again.

mod fill;
mod slot;

use azekura_base::Lsn;
use azekura_base::sync::{Mutex, MutexGuard};
use azekura_trace::{Site, WaitKind};

use crate::buffer_space::{AppendRefused, BufferSpace};
use crate::durable_lsn::DurableHorizon;
use crate::log_buffer::{Batch, Refused};
use crate::options::Admission;
use crate::record::{self, DenseFrame};

use fill::Half;
use slot::{ConsolidationArray, Member};

static INSERTION_LATCH: Site = Site::new("wal insertion latch");
static INSERTION_ROOM: Site = Site::new("wal insertion room");

/// The number of the only buffer of a serial log.
pub(crate) const LOG_BUFFER: usize = 0;
/// Number of groups that can form at the same time. More than one, because one group forms while another one
/// copies. Few, so that threads join the same group.
const SLOTS: usize = 4;
/// Largest size of a group in bytes; longer records are inserted alone.
const MAX_GROUP_BYTES: usize = 64 << 10;

/// Space and LSNs that are reserved for one record or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    half: usize,
    offset: usize,
    first_lsn: u64,
}

#[derive(Debug)]
struct Front {
    /// Index of the half in front.
    half: usize,
    /// Bytes reserved in that half.
    used: usize,
    /// Number of records reserved in that half; `first_lsn` is the first one's LSN.
    records: u64,
    first_lsn: u64,
    admission: Admission,
    wanted: AppendRefused,
    all_records: u64,
    all_bytes: u64,
    /// Number of reservations; each makes one draw on the LSN counter.
    draws: u64,
}

/// The buffer of a serial log.
#[derive(Debug)]
pub struct SerialBuffer {
    capacity_bytes: usize,
    front: Mutex<Front>,
    halves: [Half; 2],
    array: ConsolidationArray,
    /// `true` if threads join a group even when the latch is free; for tests of groups.
    always_groups: bool,
    space: BufferSpace,
}

impl SerialBuffer {
    /// Returns an empty buffer that admits records; each half has `capacity_bytes`.
    #[must_use]
    pub fn new(capacity_bytes: usize) -> Self {
        let front = Front {
            half: 0,
            used: 0,
            records: 0,
            first_lsn: 0,
            admission: Admission::All,
            wanted: AppendRefused::default(),
            all_records: 0,
            all_bytes: 0,
            draws: 0,
        };
        Self {
            capacity_bytes,
            front: Mutex::new(front),
            halves: [Half::new(capacity_bytes), Half::new(capacity_bytes)],
            array: ConsolidationArray::new(SLOTS, MAX_GROUP_BYTES.min(capacity_bytes / 4)),
            always_groups: false,
            space: BufferSpace::new(&INSERTION_ROOM),
        }
    }

    /// Returns a buffer that inserts all records through the array, for models and tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_groups_always(capacity_bytes: usize) -> Self {
        Self { always_groups: true, ..Self::new(capacity_bytes) }
    }

    fn latch(&self) -> MutexGuard<'_, Front> {
        if let Some(front) = self.front.try_lock() {
            return front;
        }
        let _wait = azekura_trace::wait(&INSERTION_LATCH, std::ptr::from_ref(self).addr(), WaitKind::Latch);
        self.front.lock()
    }

    /// Draws an LSN for a record, which needs at least this `admission`, and copies it into the buffer. The
    /// flag is `true` if the log may have been idle.
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
        let frame = DenseFrame::of(body);
        let parts = [frame.bytes(), body];
        let len = parts[0].len() + body.len();
        // A group shares one verdict, so its records must need the same admission.
        let may_group = admission == Admission::All && len <= self.array.max_bytes();
        if may_group
            && !self.always_groups
            && let Some(front) = self.front.try_lock()
        {
            return self.insert_alone(front, horizon, parts, admission);
        }
        match may_group.then(|| self.array.join(len)).flatten() {
            Some(member) => self.insert_in_group(member, horizon, parts),
            None => self.insert_alone(self.latch(), horizon, parts, admission),
        }
    }

    fn insert_alone(
        &self,
        mut front: MutexGuard<'_, Front>,
        horizon: &DurableHorizon,
        parts: [&[u8]; 2],
        admission: Admission,
    ) -> Result<(Lsn, bool), Refused> {
        let len = parts[0].len() + parts[1].len();
        let (space, was_idle) = self.reserve(&mut front, horizon, 1, len, admission)?;
        drop(front);
        let half = &self.halves[space.half];
        // SAFETY: FILL-1: these bytes were reserved for this record, and `add_filled` is called below.
        unsafe { half.copy_in(space.offset, parts) };
        half.add_filled(len);
        Ok((Lsn(space.first_lsn), was_idle))
    }

    fn insert_in_group(
        &self,
        member: Member<'_>,
        horizon: &DurableHorizon,
        parts: [&[u8]; 2],
    ) -> Result<(Lsn, bool), Refused> {
        let mut was_idle = false;
        if member.leads() {
            let mut front = self.latch();
            let group = member.close();
            let reserved =
                self.reserve(&mut front, horizon, group.records.into(), group.bytes as usize, Admission::All);
            drop(front);
            was_idle = reserved.is_ok_and(|(_, was_idle)| was_idle);
            member.announce(reserved.map(|(space, _)| space));
        }
        let verdict = member.verdict();
        let result = verdict.map(|space| {
            let half = &self.halves[space.half];
            // SAFETY: FILL-1: the group's bytes were reserved for it, SLOT-2 gives this part of them to this
            // member, and the last member calls `add_filled` after all have copied.
            unsafe { half.copy_in(space.offset + member.offset as usize, parts) };
            (Lsn(space.first_lsn + u64::from(member.index)), was_idle)
        });
        member.leave(|bytes| {
            if let Ok(space) = verdict {
                self.halves[space.half].add_filled(bytes);
            }
        });
        result
    }

    /// Reserves bytes and LSNs (SERIAL-1).
    fn reserve(
        &self,
        front: &mut Front,
        horizon: &DurableHorizon,
        records: u64,
        len: usize,
        admission: Admission,
    ) -> Result<(Space, bool), Refused> {
        if front.admission < admission {
            return Err(Refused::NotAdmitting);
        }
        if front.used + len > self.capacity_bytes {
            let taken = self.space.refuse(&mut front.wanted);
            return Err(Refused::NoSpace { first_lsn: front.first_lsn, taken });
        }
        let (first_lsn, was_idle) = horizon.draw_range(LOG_BUFFER, records);
        // Nothing from here to the end of the copies can fail.
        if front.records == 0 {
            front.first_lsn = first_lsn;
        }
        debug_assert_eq!(first_lsn, front.first_lsn + front.records, "SERIAL-1");
        let space = Space { half: front.half, offset: front.used, first_lsn };
        front.used += len;
        front.records += records;
        front.all_records += records;
        front.all_bytes += len as u64;
        front.draws += 1;
        Ok((space, was_idle))
    }

    /// Takes the half in front, gives the inserters the other one, and returns the LSN counter at that moment
    /// (SERIAL-2). Later records need `admission`. The copies into the half may not have ended:
    /// [`SerialBuffer::with_bytes`] waits for them.
    pub fn take(&self, horizon: &DurableHorizon, taken: &mut Batch, admission: Admission) -> u64 {
        debug_assert_eq!(taken.records, 0);
        let mut front = self.latch();
        front.admission = admission;
        let next = horizon.next_lsn().0;
        if front.records > 0 {
            taken.records = front.records;
            taken.first_lsn = front.first_lsn;
            taken.last_lsn = front.first_lsn + front.records - 1;
            taken.elsewhere = front.used;
            front.half ^= 1;
            (front.used, front.records) = (0, 0);
            self.halves[front.half].reset(); // SERIAL-3
        }
        let sleepers = self.space.release(&mut front.wanted);
        drop(front);
        sleepers.wake();
        next
    }

    /// Passes the bytes of `taken`, the last taken batch, to `read`. Waits until all bytes are copied. Only
    /// for the leader of the flush that took the batch, before the next take.
    pub fn with_bytes<T>(&self, taken: &Batch, read: impl FnOnce(&[u8]) -> T) -> T {
        // The latch orders this thread after the take. The half in front does not change before the next take
        // (SERIAL-3).
        let half = &self.halves[self.latch().half ^ 1];
        half.wait_filled(taken.elsewhere);
        // SAFETY: FILL-2: this is the leader's thread, and all reserved bytes in the half that it took are
        // filled.
        unsafe { half.with_bytes(taken.elsewhere, read) }
    }

    /// Sleeps until a flush takes the half; `taken` came with [`Refused::NoSpace`]. May return early.
    pub fn wait_for_space(&self, taken: u32) {
        self.space.wait(taken);
    }

    /// Wakes the threads that wait for space: the log failed.
    pub fn wake_everyone(&self) {
        let front = self.latch();
        let sleepers = self.space.release_all();
        drop(front);
        sleepers.wake();
    }

    /// Records that all batches taken so far are durable: moves the mark to the first LSN that is still
    /// buffered.
    pub fn mark_durable(&self, horizon: &DurableHorizon) {
        let front = self.latch();
        horizon.mark_durable(LOG_BUFFER, (front.records > 0).then_some(front.first_lsn));
    }

    /// Opens or closes the buffer for new records.
    pub fn admit(&self, admission: Admission) {
        self.latch().admission = admission;
    }

    /// Returns the number of appended records, their bytes with frames, and the number of draws on the LSN
    /// counter.
    #[must_use]
    pub fn totals(&self) -> (u64, u64, u64) {
        let front = self.latch();
        (front.all_records, front.all_bytes, front.draws)
    }
}

/// The smallest buffer holds the largest body that it accepts, half of its size, with the frame.
const _: () = assert!(512 + record::MAX_OVERHEAD_BYTES <= 1024);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn flush(buffer: &SerialBuffer, horizon: &DurableHorizon) -> (u64, Vec<u8>) {
        let mut taken = Batch::default();
        buffer.take(horizon, &mut taken, Admission::All);
        let bytes = buffer.with_bytes(&taken, <[u8]>::to_vec);
        buffer.mark_durable(horizon);
        (taken.first_lsn, bytes)
    }

    #[test]
    fn halves_take_turns() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = SerialBuffer::new(1024);
        for n in 1..=7u8 {
            assert_eq!(
                buffer.append(&horizon, &[n; 3], Admission::All),
                Ok((Lsn(u64::from(n) * 2 - 1), true))
            );
            buffer.append(&horizon, &[n], Admission::All).expect("room");
            assert_eq!(horizon.compute(), Lsn(u64::from(n) * 2 - 2));
            assert_eq!(flush(&buffer, &horizon), (u64::from(n) * 2 - 1, vec![0, 3, n, n, n, 0, 1, n]));
            assert_eq!(horizon.compute(), Lsn(u64::from(n) * 2));
        }
        assert_eq!(buffer.totals(), (14, 7 * 8, 14));
    }

    #[test]
    fn a_refused_record_draws_no_lsn() {
        for buffer in [SerialBuffer::new(1024), SerialBuffer::with_groups_always(1024)] {
            let horizon = DurableHorizon::new(1, Lsn(5));
            assert!(buffer.append(&horizon, &[0; 512], Admission::All).is_ok());
            assert!(buffer.append(&horizon, &[0; 500], Admission::All).is_ok());
            let no_room = Refused::NoSpace { first_lsn: 5, taken: 0 };
            assert_eq!(buffer.append(&horizon, &[0; 100], Admission::All), Err(no_room));
            buffer.admit(Admission::Undo);
            assert_eq!(buffer.append(&horizon, b"", Admission::All), Err(Refused::NotAdmitting));
            assert_eq!(buffer.append(&horizon, b"", Admission::Undo), Ok((Lsn(7), false)));
            assert_eq!(horizon.next_lsn(), Lsn(8));
        }
    }

    #[test]
    fn threads_in_groups_draw_once_for_all_and_keep_their_order() {
        let horizon = DurableHorizon::new(1, Lsn(1));
        let buffer = SerialBuffer::with_groups_always(1 << 20);
        const THREADS: u8 = 8;
        let lsns: Vec<Vec<u64>> = std::thread::scope(|s| {
            let append = |t: u8| {
                let (buffer, horizon) = (&buffer, &horizon);
                move || {
                    let record = |_| buffer.append(horizon, &[t], Admission::All).expect("room").0.0;
                    (0..1000).map(record).collect::<Vec<_>>()
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|t| s.spawn(append(t))).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert!(lsns.iter().all(|lsns| lsns.is_sorted()));
        let (first, bytes) = flush(&buffer, &horizon);
        let owners: Vec<u8> = bytes.chunks(3).map(|record| record[2]).collect();
        assert_eq!((first, owners.len()), (1, 8000));
        for (t, lsns) in (0u8..).zip(&lsns) {
            assert!(lsns.iter().all(|&lsn| owners[lsn as usize - 1] == t), "thread {t}");
        }
        let (records, _, draws) = buffer.totals();
        assert!(records == 8000 && draws <= records, "{draws} draws");
    }
}
