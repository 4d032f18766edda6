//! A stream: a sequence of files, written by one leader at a time, for one or more log buffers.
//!
//! A flush has four steps. The first runs under the gate's mutex. The leader alone runs the others.
//!
//! 1. **Take** each log buffer, giving it an empty one ([`Stream::begin`]).
//! 2. **Gather** the batches into chunks: as many batches as fit the chunk and the segment become one chunk,
//!    each batch a block.
//! 3. **Write** each chunk synchronously, the next one only after the previous one is durable (CHUNK-2). A
//!    log that is synced at intervals writes to the operating system's cache.
//! 4. **Settle**: move the marks and wake the sleepers ([`Log::lead`](crate::log::Log)).

use std::sync::Arc;

use azekura_base::checksum::crc32c;
use azekura_base::cipher::TRAILER_BYTES;
use azekura_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};
use azekura_base::sync::{Mutex, MutexGuard, machine};
use azekura_base::{Cipher, PageBuf, page};

use crate::chunk::{self, HEADER_BYTES, Header};
use crate::commit_gate::CommitGate;
use crate::durable_lsn::DurableHorizon;
use crate::log_buffer::Batch;
use crate::new_blocks::Segment;
use crate::notifier::Notifier;
use crate::options::{Admission, LogIdentity};
use crate::protocol_buffer::ProtocolBuffer;
use crate::segment::SegmentStore;
use crate::stats::StreamCounters;
use crate::{lsn_gap, record};

/// Maximum size in bytes of a chunk that gathers the batches of several log buffers.
const GATHER_BYTES: u64 = 8 << 20;

/// State under the writer's mutex: for the leader of a flush, and for threads that open buffers.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The current segment; `None` before the first record.
    segment: Option<Segment>,
    /// Largest LSN in the current segment.
    segment_max: u64,
    /// One batch per log buffer of the stream, in order: empty, or taken by a flush.
    batches: Vec<Batch>,
    block_head: Vec<u8>,
    next_chunk: u64,
    complete_below: u64,
    max_lsn: u64,
    /// The durable horizon in the header of the last chunk.
    testified: u64,
}

/// The log buffers of one stream: log buffer `w` belongs to stream `w` modulo the number of streams, for the
/// lifetime of the log.
#[derive(Debug)]
struct Members {
    stream: usize,
    streams: usize,
    /// One flag per log buffer: `true` if it may append records, from the beginning or from its first record
    /// on. Set under the stream's writer, never cleared.
    open: Box<[AtomicBool]>,
}

impl Members {
    fn new(stream: usize, streams: usize, log_buffers: usize, are_open: bool) -> Self {
        let count = log_buffers.saturating_sub(stream).div_ceil(streams);
        Self { stream, streams, open: (0..count).map(|_| AtomicBool::new(are_open)).collect() }
    }

    /// Returns the log buffer at this position, which is also the position of its batch.
    const fn log_buffer(&self, at: usize) -> usize {
        self.stream + at * self.streams
    }

    fn flag(&self, log_buffer: usize) -> &AtomicBool {
        &self.open[log_buffer / self.streams]
    }

    // Relaxed, here and below: set under the stream's writer. Readers without it only plan, and check again.
    fn is_open(&self, log_buffer: usize) -> bool {
        self.flag(log_buffer).load(Relaxed)
    }

    fn open(&self, log_buffer: usize) {
        self.flag(log_buffer).store(true, Relaxed);
    }

    fn open_count(&self) -> u64 {
        self.open.iter().filter(|open| open.load(Relaxed)).count() as u64
    }
}

/// A stream: its log buffers, its commit gate, and its files.
#[derive(Debug)]
pub(crate) struct Stream {
    members: Members,
    pub(crate) gate: CommitGate,
    /// Wakes the stream's flusher thread.
    pub(crate) notifier: Notifier,
    pub(crate) store: SegmentStore,
    pub(crate) counters: StreamCounters,
    identity: LogIdentity,
    cipher: Option<Arc<dyn Cipher>>,
    writer: Mutex<Writer>,
    /// Bytes of the current segment; 0 if there is none. Written by the leader.
    segment_bytes: AtomicU64,
    /// End of the written part of the current segment. Written by the leader, read for statistics.
    offset: AtomicU64,
    /// An [`Admission`]: the records that the buffers accept (BUFFER-3). Changed under the writer's mutex.
    admission: AtomicU8,
}

/// The batches that a flush has taken, with exclusive use of the writer.
#[derive(Debug)]
pub(crate) struct Taken<'s> {
    pub(crate) writer: MutexGuard<'s, Writer>,
    /// Everything in the stream below this LSN is in this flush or an earlier one.
    pub(crate) covers: u64,
}

impl Stream {
    /// Returns stream `index` of a log. `are_open`: segments have room for all log buffers from the start.
    pub(crate) fn new(
        index: usize,
        streams: usize,
        log_buffers: usize,
        are_open: bool,
        store: SegmentStore,
        identity: LogIdentity,
    ) -> Self {
        let members = Members::new(index, streams, log_buffers, are_open);
        let writer = Writer {
            segment: None,
            segment_max: 0,
            batches: members.open.iter().map(|_| Batch::default()).collect(),
            block_head: Vec::new(),
            next_chunk: 0,
            complete_below: identity.first_lsn.0,
            max_lsn: 0,
            testified: identity.first_lsn.0 - 1,
        };
        Self {
            members,
            gate: CommitGate::new(),
            notifier: Notifier::new(),
            store,
            counters: StreamCounters::default(),
            identity,
            cipher: None,
            writer: Mutex::new(writer),
            segment_bytes: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            admission: AtomicU8::new(Admission::None as u8),
        }
    }

    /// Makes the stream encrypt its payloads, if there is a cipher.
    pub(crate) fn encrypted(self, cipher: Option<Arc<dyn Cipher>>) -> Self {
        Self { cipher, ..self }
    }

    /// Returns the stream's log buffers, in order.
    pub(crate) fn log_buffers(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, step, count) = (self.members.stream, self.members.streams, self.members.open.len());
        (first..).step_by(step).take(count)
    }

    /// Returns the least LSN in the stream that may not be durable.
    pub(crate) fn pending(&self, horizon: &DurableHorizon) -> Option<u64> {
        horizon.pending(self.log_buffers())
    }

    /// Takes the buffers, under the gate's mutex. Returns also the LSN below which all records are taken
    /// (GATE-3).
    pub(crate) fn begin<'s>(
        &'s self,
        horizon: &DurableHorizon,
        buffers: &[ProtocolBuffer],
    ) -> (u64, Taken<'s>) {
        let writer = self.writer.lock();
        // SEGMENT-2: this flush has no place yet, and records that arrive in the buffers meanwhile need a
        // place as well.
        let admission = self.store.admission(self.rest(), self.open_count(), 2);
        let taken = self.take(writer, horizon, buffers, admission);
        (taken.covers, taken)
    }

    /// Takes the buffers, which then accept records by this admission.
    fn take<'s>(
        &'s self,
        mut writer: MutexGuard<'s, Writer>,
        horizon: &DurableHorizon,
        buffers: &[ProtocolBuffer],
        admission: Admission,
    ) -> Taken<'s> {
        self.admission.store(admission as u8, Relaxed);
        let batches = self.log_buffers().zip(&mut writer.batches);
        let covers = batches.map(|(w, batch)| {
            let is_open = self.members.is_open(w);
            buffers[w].take(horizon, batch, if is_open { admission } else { Admission::None })
        });
        let covers = covers.min().unwrap_or_default(); // a stream has at least one log buffer
        Taken { writer, covers }
    }

    /// Writes the taken batches durably. Returns the number of records.
    ///
    /// # Errors
    ///
    /// A description of the failure: the log must be poisoned.
    pub(crate) fn write(
        &self,
        taken: &mut Taken<'_>,
        horizon: &DurableHorizon,
        buffers: &[ProtocolBuffer],
    ) -> Result<u64, String> {
        let (writer, covers) = (&mut *taken.writer, taken.covers);
        let mut todo: Vec<usize> =
            (0..writer.batches.len()).filter(|&i| writer.batches[i].records > 0).collect();
        let records = todo.iter().map(|&i| writer.batches[i].records).sum();
        while !todo.is_empty() {
            let fit = self.count_fitting(writer, &todo);
            if fit == 0 {
                self.next_segment(writer, horizon)?;
                continue;
            }
            let rest = todo.split_off(fit);
            if rest.is_empty() {
                writer.complete_below = covers;
            }
            self.write_chunk(writer, &todo, horizon, buffers)?;
            todo = rest;
        }
        writer.complete_below = covers;
        writer.batches.iter_mut().for_each(Batch::clear);
        Ok(records)
    }

    /// Returns how many of the batches fit one chunk in the rest of the segment.
    fn count_fitting(&self, writer: &Writer, todo: &[usize]) -> usize {
        let left = self.rest();
        let mut payload = 0;
        let fits = todo.iter().enumerate().take_while(|&(n, &i)| {
            payload += chunk::max_block_bytes(&writer.batches[i]);
            let bytes = chunk::chunk_bytes(payload + self.trailer_bytes());
            bytes <= left && (n == 0 || bytes <= GATHER_BYTES)
        });
        fits.count()
    }

    /// Returns the bytes that the cipher adds to a payload.
    fn trailer_bytes(&self) -> usize {
        self.cipher.as_ref().map_or(0, |_| TRAILER_BYTES)
    }

    fn next_segment(&self, writer: &mut Writer, horizon: &DurableHorizon) -> Result<(), String> {
        if horizon.is_synced_at_intervals() {
            writer.segment.as_ref().map_or(Ok(()), sync)?; // CHUNK-2; no later call syncs it
        }
        // SEGMENT-2 guarantees a ready segment.
        let next = self.store.take_ready().ok_or("no log segment was prepared")?;
        self.offset_and_bytes(|offset, bytes| {
            let full = writer.segment.replace(next);
            full.iter().for_each(|full| self.store.seal(full, offset, writer.segment_max));
            (0, writer.segment.as_ref().map_or(bytes, |segment| segment.bytes))
        });
        writer.segment_max = 0;
        Ok(())
    }

    /// Changes the end of the written part of the current segment, and the segment's size.
    fn offset_and_bytes(&self, change: impl FnOnce(u64, u64) -> (u64, u64)) {
        // Relaxed: written under the writer's mutex; readers without it tolerate outdated numbers.
        let (offset, bytes) = change(self.offset.load(Relaxed), self.segment_bytes.load(Relaxed));
        self.offset.store(offset, Relaxed);
        self.segment_bytes.store(bytes, Relaxed);
    }

    /// Returns the bytes left in the current segment. Exact under the writer's mutex; without it the two
    /// numbers may belong to different segments.
    pub(crate) fn rest(&self) -> u64 {
        // Relaxed: the numbers publish no other memory, and SEGMENT-6 allows an outdated rest.
        self.segment_bytes.load(Relaxed).saturating_sub(self.offset.load(Relaxed))
    }

    /// Returns the number of the stream's buffers that may hold records.
    fn open_count(&self) -> u64 {
        self.members.open_count()
    }

    /// Gathers these batches into one chunk and writes it; without batches the chunk only states the durable
    /// horizon.
    fn write_chunk(
        &self,
        writer: &mut Writer,
        which: &[usize],
        horizon: &DurableHorizon,
        buffers: &[ProtocolBuffer],
    ) -> Result<(), String> {
        let offset = self.offset.load(Relaxed);
        let segment = writer.segment.as_ref().ok_or("no log segment was begun")?;
        let (number, file) = (segment.number, Arc::clone(&segment.file));
        let (mut memory, end) = self.gather(writer, which, buffers);
        let end = end + self.trailer_bytes();
        let total = chunk::chunk_bytes(end - HEADER_BYTES) as usize;
        memory[end..total].fill(0);
        let first_lsn = which.iter().map(|&i| writer.batches[i].first_lsn).min();
        let last_lsn = which.iter().map(|&i| writer.batches[i].end_lsn()).max();
        let mut header = Header {
            place: self.store.place(number, offset),
            incarnation: self.identity.incarnation,
            number: writer.next_chunk,
            payload_bytes: (end - HEADER_BYTES) as u32,
            payload_crc: 0,
            blocks: which.len() as u32,
            first_lsn: first_lsn.unwrap_or(0),
            last_lsn: last_lsn.unwrap_or(0),
            complete_below: writer.complete_below,
            durable_lsn: horizon.survives_power_loss().0,
            max_before: writer.max_lsn,
        };
        if let Some(cipher) = &self.cipher {
            let sealed = cipher.seal(&chunk::associated(&header.encode()), &mut memory[HEADER_BYTES..end]);
            sealed.map_err(|error| format!("encrypt a chunk of stream {}: {error}", self.members.stream))?;
        }
        header.payload_crc = crc32c(&memory[HEADER_BYTES..end]);
        memory[..HEADER_BYTES].copy_from_slice(&header.encode());
        let bytes = &memory[..total];
        let written = match horizon.is_synced_at_intervals() {
            true => file.write_at(offset, bytes),
            false => {
                let filled = writer.segment.as_mut().map_or(Ok(()), |s| s.fill_for(offset, total as u64));
                filled.and_then(|()| file.write_at_sync(offset, bytes))
            }
        };
        page::spare::give([memory]);
        written.map_err(|error| {
            let path = writer.segment.as_ref().map(|segment| segment.path.display());
            let path = path.map_or_else(String::new, |path| path.to_string());
            format!("write {total} bytes at offset {offset} of {path}: {error}")
        })?;
        writer.next_chunk += 1;
        writer.max_lsn = writer.max_lsn.max(header.last_lsn);
        writer.segment_max = writer.segment_max.max(header.last_lsn);
        writer.testified = header.durable_lsn;
        self.offset.store(offset + total as u64, Relaxed);
        self.counters.chunks.fetch_add(1, Relaxed);
        self.counters.chunk_bytes.fetch_add(total as u64, Relaxed);
        Ok(())
    }

    /// Copies the batches into a chunk's memory, behind the space for the header. Returns also the end of the
    /// payload.
    fn gather(&self, writer: &mut Writer, which: &[usize], buffers: &[ProtocolBuffer]) -> (PageBuf, usize) {
        let most: usize = which.iter().map(|&i| chunk::max_block_bytes(&writer.batches[i])).sum();
        let mut memory = page::spare::take(chunk::chunk_bytes(most + self.trailer_bytes()) as usize);
        let mut at = HEADER_BYTES;
        for &i in which {
            let batch = &writer.batches[i];
            writer.block_head.clear();
            let log_buffer = self.members.log_buffer(i);
            chunk::put_block_head(&mut writer.block_head, log_buffer, batch);
            let mut put = |part: &[u8]| {
                memory[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            };
            put(&writer.block_head);
            buffers[log_buffer].with_bytes(batch, |records| {
                machine::reads(records);
                put(records);
            });
        }
        (memory, at)
    }

    /// Writes a chunk without records if the last chunk states a lower durable horizon than the present one.
    pub(crate) fn testify(&self, writer: &mut Writer, horizon: &DurableHorizon) -> Result<(), String> {
        if writer.next_chunk == 0 || writer.testified >= horizon.survives_power_loss().0 {
            return Ok(());
        }
        if self.rest() < chunk::chunk_bytes(0) {
            self.next_segment(writer, horizon)?;
        }
        self.write_chunk(writer, &[], horizon, &[])
    }

    /// Syncs the current segment. Full segments are synced when the stream leaves them.
    ///
    /// # Errors
    ///
    /// A description of the failure: the log must be poisoned.
    pub(crate) fn sync(&self) -> Result<(), String> {
        let writer = self.writer();
        let segment = writer.segment.clone();
        drop(writer); // flushes continue during the sync
        segment.as_ref().map_or(Ok(()), sync)
    }

    /// Opens the buffers for more records if the segments have room for full buffers.
    ///
    /// The owner of the writer excludes flushes in flight, so only one flush needs room (SEGMENT-2).
    pub(crate) fn reopen(&self, writer: &mut Writer, buffers: &[ProtocolBuffer]) {
        self.begin_segment(writer);
        let is_raised = self.store.raise(self.rest());
        let admission = self.admissible();
        if is_raised || !self.admits(admission) {
            self.admit(buffers, admission);
        }
    }

    /// Opens buffers as [`reopen`](Self::reopen) does, and opens `log_buffer`, which had no record yet, if
    /// there is room for its limit and for records that need this `admission`.
    pub(crate) fn reopen_for(
        &self,
        writer: &mut Writer,
        buffers: &[ProtocolBuffer],
        log_buffer: usize,
        needed: Admission,
    ) {
        self.reopen(writer, buffers);
        if self.members.is_open(log_buffer) {
            return;
        }
        let open = self.open_count() + 1;
        let admission = self.store.admission(self.rest(), open, 1);
        if admission >= needed {
            self.members.open(log_buffer);
            self.store.with_sizes(|sizes| sizes.open = open);
            self.admit(buffers, admission);
        }
    }

    /// Plans for a record of `log_buffer` with `body_bytes` bytes: segments that are prepared from now on are
    /// large enough.
    pub(crate) fn want(&self, log_buffer: usize, body_bytes: usize) {
        let open = self.open_count() + u64::from(!self.members.is_open(log_buffer));
        self.store.with_sizes(|sizes| {
            sizes.grow_for(body_bytes + record::MAX_OVERHEAD_BYTES + lsn_gap::MAX_BYTES);
            sizes.wanted = open;
        });
    }

    /// Cancels the plan, because no more segments could be prepared.
    pub(crate) fn give_up_wanting(&self) {
        self.store.with_sizes(|sizes| (sizes.wanted, sizes.next) = (sizes.open, sizes.now));
    }

    /// Returns `true` if `log_buffer`, when empty, accepts a record of `body_bytes` bytes with this
    /// admission.
    pub(crate) fn takes(&self, log_buffer: usize, needed: Admission, body_bytes: usize) -> bool {
        let bytes = body_bytes + record::MAX_OVERHEAD_BYTES + lsn_gap::MAX_BYTES;
        let fits = self.store.with_sizes(|sizes| sizes.takes(bytes)).unwrap_or(false);
        fits && self.admits(needed) && self.members.is_open(log_buffer)
    }

    /// Takes a ready segment if there is no current one.
    fn begin_segment(&self, writer: &mut Writer) {
        if writer.segment.is_none() {
            writer.segment = self.store.take_ready();
            let bytes = writer.segment.as_ref().map_or(0, |segment| segment.bytes);
            self.offset_and_bytes(|_, _| (0, bytes));
        }
    }

    /// Returns the records that the buffers may admit while no flush is in flight.
    pub(crate) fn admissible(&self) -> Admission {
        self.store.admission(self.rest(), self.open_count(), 1)
    }

    fn admit(&self, buffers: &[ProtocolBuffer], admission: Admission) {
        self.admission.store(admission as u8, Relaxed);
        let limit = self.store.with_sizes(|sizes| sizes.now.limit).unwrap_or(0);
        for log_buffer in self.log_buffers() {
            let is_open = self.members.is_open(log_buffer);
            buffers[log_buffer].set_limit(limit);
            buffers[log_buffer].admit(if is_open { admission } else { Admission::None });
        }
    }

    /// Locks the writer. Waits for the flush in progress.
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    /// Returns `true` if records that need this admission are accepted.
    pub(crate) fn admits(&self, admission: Admission) -> bool {
        self.admission.load(Relaxed) >= admission as u8
    }

    /// Returns the bytes of log kept in this stream.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.store.retained_bytes() + self.offset.load(Relaxed)
    }
}

fn sync(segment: &Segment) -> Result<(), String> {
    segment.file.sync().map_err(|error| format!("sync {}: {error}", segment.path.display()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_base::Lsn;
    use azekura_io::{FaultFs, Fs};

    use super::*;
    use crate::lsn_range::Order;
    use crate::options::WalOptions;
    use crate::sizes::Sizes;

    const LOG_BUFFERS: usize = 4;

    /// Returns a stream on a full disk, so that only prepared segments can be written.
    fn stream_on_a_full_disk(reserve: u64) -> (Stream, Vec<ProtocolBuffer>, DurableHorizon) {
        let fault = FaultFs::new();
        let fs: Arc<dyn Fs> = Arc::new(fault.clone());
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let buffer_bytes = 8000;
        let chunk = chunk::max_chunk_bytes(buffer_bytes);
        let fixed = Sizes::fixed(12 * chunk, buffer_bytes, LOG_BUFFERS as u64);
        fs.create_dir_all("/wal".as_ref()).expect("creates");
        let sizes = Some(Sizes { reserve: Some(reserve), ..fixed });
        let store = SegmentStore::new(&fs, "/wal".as_ref(), 0, identity, false, sizes);
        store.start().expect("starts");
        store.prepare_one(0).expect("prepares");
        let options = WalOptions { buffer_bytes, lsn_range: 4, ..WalOptions::default() };
        let buffers: Vec<_> = (0..LOG_BUFFERS).map(|w| ProtocolBuffer::new(&options, w)).collect();
        let stream = Stream::new(0, 1, LOG_BUFFERS, true, store, identity);
        stream.reopen(&mut stream.writer(), &buffers);
        stream.store.prepare_one(stream.rest()).expect("prepares");
        fault.full_from(1);
        (stream, buffers, DurableHorizon::new(LOG_BUFFERS, Lsn(1)))
    }

    fn fill(buffers: &[ProtocolBuffer], horizon: &DurableHorizon) -> u64 {
        let fill_one = |buffer: &ProtocolBuffer| {
            (0..)
                .take_while(|_| {
                    buffer.append(horizon, &[7; 380], Admission::All, Order::After(Lsn(0))).is_ok()
                })
                .count()
        };
        buffers.iter().map(|buffer| fill_one(buffer) as u64).sum()
    }

    #[test]
    fn each_log_buffer_belongs_to_one_stream() {
        for log_buffers in 1..20 {
            for streams in 1..=log_buffers {
                let mut seen = vec![0; log_buffers];
                for stream in 0..streams {
                    let members = Members::new(stream, streams, log_buffers, false);
                    for at in 0..members.open.len() {
                        let log_buffer = members.log_buffer(at);
                        assert_eq!(log_buffer % streams, stream);
                        seen[log_buffer] += 1;
                        members.open(log_buffer);
                        assert_eq!(
                            (members.is_open(log_buffer), members.open_count()),
                            (true, at as u64 + 1)
                        );
                    }
                }
                assert_eq!(seen, vec![1; log_buffers], "{streams} streams");
            }
        }
    }

    #[test]
    fn w11_records_admitted_before_and_during_a_flush_have_space() {
        // Small flushes come first, so that the full ones reach the segments' ends at different offsets.
        for small in 0..12 {
            let (stream, buffers, horizon) = stream_on_a_full_disk(0);
            let (mut appended, mut written) = (0, 0);
            for round in 0.. {
                if round < small {
                    let small = buffers[0].append(&horizon, &[1; 10], Admission::All, Order::Newest);
                    appended += u64::from(small.is_ok());
                } else {
                    appended += fill(&buffers, &horizon);
                }
                let (_, mut taken) = stream.begin(&horizon, &buffers);
                if round >= small {
                    appended += fill(&buffers, &horizon); // while the flush is in flight
                }
                let records =
                    stream.write(&mut taken, &horizon, &buffers).expect("SEGMENT-2: it has a place");
                stream.reopen(&mut taken.writer, &buffers);
                drop(taken);
                buffers.iter().for_each(|buffer| buffer.mark_durable(&horizon));
                written += records;
                if records == 0 {
                    break;
                }
            }
            assert!(!stream.admits(Admission::All), "the end of the room, not of the limit on transactions");
            assert_eq!((appended, horizon.compute()), (written, Lsn(written)));
            assert!(written > 250, "{written} records: most of the room was used");
        }
    }
}
