//! `Wal`: the log as the rest of the store sees it.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use azekura_base::sync::thread::JoinHandle;
use azekura_base::sync::{Mutex, machine};
use azekura_base::{CachePadded, DurableLog, LogFailed, Lsn, striped};
use azekura_io::Fs;

use crate::assignment::Assignment;
use crate::bell::Bell;
use crate::chunk;
use crate::commit_point::{CommitCounts, CommitPoint};
use crate::durable_lsn::DurableHorizon;
use crate::epoch::EpochClock;
use crate::error::{AppendError, WalError};
use crate::failure::Failure;
use crate::flusher;
use crate::log::Log;
use crate::log_buffer::LogBuffer;
use crate::lsn_range::Order;
use crate::options::{LogIdentity, LogProtocol, StreamCount, WalOptions, WorkerId};
use crate::parallelism::{self, Measured};
use crate::segment::{SegmentStore, Sizes, parse_stream};
use crate::stats::WalStats;
use crate::stream::Stream;
use crate::ticket::{Ticket, Wakers};

/// The reason that a closed log gives.
const CLOSED: &str = "the log was closed";

/// A parallel write-ahead log.
///
/// Records are bodies of bytes that the log does not look into. Dropping it flushes, as [`Wal::close`] does,
/// but cannot report an error.
#[derive(Debug)]
pub struct Wal {
    log: Arc<Log>,
    measured: Option<Measured>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// `close` has succeeded.
    is_closed: AtomicBool,
}

impl Wal {
    /// Creates the log of a new incarnation in `dir`, beside what earlier ones have left there, which is only
    /// read and, by [`Wal::trim`], let go of.
    ///
    /// Makes the directories, one segment per stream, and as many more as it takes before records can be
    /// admitted; left-over prepared segments are used. Blocks for the device.
    ///
    /// # Errors
    ///
    /// [`WalError::Options`], [`WalError::IncarnationNotNew`], [`WalError::Io`]; records of earlier
    /// incarnations are as they were.
    pub fn create(
        fs: Arc<dyn Fs>,
        dir: &Path,
        identity: LogIdentity,
        options: WalOptions,
    ) -> Result<Arc<Self>, WalError> {
        options.check()?;
        if identity.first_lsn == Lsn(0) {
            return Err(WalError::Options { reason: "LSNs start at 1".into() });
        }
        azekura_io::create_dir_all_durable(&*fs, dir).map_err(WalError::io("create", dir))?;
        let workers = options.worker_count();
        let (streams, in_use, measured) = count_streams(&*fs, dir, &options)?;
        let doubts_more_streams = doubts_more_than(in_use, measured.as_ref());
        let assignment = Assignment::new(workers, in_use);
        let is_direct = options.direct && options.sync_interval.is_none();
        let open = |stream, sizes| SegmentStore::open(&fs, dir, stream, identity, is_direct, sizes);
        let live = (0..streams).map(|stream| {
            // Only where the number in use may change is there room for all that it may be.
            let most = match options.stream_count() {
                StreamCount::Fixed(_) => assignment.workers_of(stream).count(),
                StreamCount::Auto | StreamCount::AutoFrom(_) | StreamCount::UpTo(_) => {
                    Assignment::most_workers(workers, stream)
                }
            };
            open_stream(stream, most, &assignment, identity, &options, &open)
        });
        let live: Vec<Stream> = live.collect::<Result<_, _>>()?;
        let names = fs.list_dir(dir).map_err(WalError::io("list", dir))?;
        let orphans = names.iter().filter_map(|name| parse_stream(name)).filter(|&s| s as usize >= streams);
        let orphans = orphans.map(|stream| open(stream, None)).collect::<Result<_, _>>()?;
        let horizon = DurableHorizon::new(workers, identity.first_lsn);
        let horizon = if options.sync_interval.is_some() { horizon.synced_at_intervals() } else { horizon };
        let log = Arc::new(Log {
            horizon,
            epochs: matches!(options.protocol, LogProtocol::Epoch { .. })
                .then(|| EpochClock::new(identity.first_lsn)),
            buffers: (0..workers).map(|w| LogBuffer::new(&options, w)).collect(),
            streams: live.into(),
            assignment,
            changing: Mutex::new(()),
            stream_changes: AtomicU64::new(0),
            doubts_more_streams,
            adapter: Bell::new(),
            orphans,
            failure: Failure::default(),
            wakers: Wakers::default(),
            commits: (0..workers).map(|_| CachePadded::new(CommitCounts::default())).collect(),
            preparer: Bell::new(),
            syncer: Bell::new(),
            stopping: AtomicBool::new(false),
            segments_trimmed: AtomicU64::new(0),
            options,
        });
        let threads = if log.options.background { flusher::start(&log)? } else { Vec::new() };
        Ok(Arc::new(Self { log, measured, threads: Mutex::new(threads), is_closed: AtomicBool::new(false) }))
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The worker of the calling thread: threads are dealt out to workers in turn.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        WorkerId::from_index(striped::thread_stripe() % self.log.buffers.len())
    }

    /// Appends a record and returns its LSN, which is above all drawn before.
    ///
    /// Copies the body into the worker's buffer: no I/O unless the buffer is full, or no segment is ready.
    /// Then the caller waits for a flush to begin (without background threads: leads one), or makes a
    /// segment.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was drawn, and the log's LSNs stay dense.
    pub fn append(&self, worker: WorkerId, body: &[u8]) -> Result<Lsn, AppendError> {
        self.append_in_order(worker, body, Order::Newest, Lsn(0))
    }

    /// The same for a record whose LSN need not be above all drawn before: where it may come after less, many
    /// records are served by one write to the counter; see [`lsn_range`](crate::lsn_range). It rests on the
    /// record with LSN `rests_on`, and so on all before that, in whatever log; see
    /// [`foreign`](Self::foreign).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was drawn, and the log's LSNs stay dense.
    pub fn append_in_order(
        &self,
        worker: WorkerId,
        body: &[u8],
        order: Order,
        rests_on: Lsn,
    ) -> Result<Lsn, AppendError> {
        self.log.append(worker, body, order, rests_on).map(|done| done.lsn)
    }

    /// Appends a commit record, as [`append`](Self::append) does; what must be durable before it is
    /// acknowledged. It comes after what this worker has appended, and after what it was told to [rest
    /// on](Self::rest_on).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was drawn, and the log's LSNs stay dense.
    pub fn append_commit(&self, worker: WorkerId, body: &[u8]) -> Result<CommitPoint, AppendError> {
        self.log.append_commit(worker, body)
    }

    /// `lsn` if a record that `worker` appends after having seen the one with that LSN [rests
    /// on](crate::commit_point) it and must say so; 0 if not: it is the worker's own, or durable, or the log
    /// does not want to know. A few loads.
    #[must_use]
    pub fn foreign(&self, worker: WorkerId, lsn: Lsn) -> Lsn {
        self.log.buffer(worker).foreign(&self.log.horizon, lsn)
    }

    /// Has all that the caller has `worker` append from now on come after the record with this LSN, and [rest
    /// on](crate::commit_point) it, if that matters.
    pub fn rest_on(&self, worker: WorkerId, lsn: Lsn) {
        self.log.buffer(worker).rest_on(&self.log.horizon, lsn);
    }

    /// Blocks until a commit may be acknowledged: the record and every one before it is durable, and, in a
    /// log with epochs, all of its epoch. Of records that were not drawn yet, those drawn so far. A point of
    /// [`append_commit`](Self::append_commit) may need less.
    ///
    /// In a P-WAL the caller writes the log itself if nobody else does; in a serial log the commit thread
    /// does; with epochs the epoch's end is waited for (without background threads: the caller ends it).
    /// [`DurableLog::make_durable`], which pages wait for, never waits for an epoch.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed before that; whether the record is on disk is unknown until the next
    /// recovery.
    pub fn wait_acknowledged(&self, commit: impl Into<CommitPoint>) -> Result<(), LogFailed> {
        self.log.wait_acknowledged(commit.into())
    }

    /// The last commit LSN that may be acknowledged by now, as [`Wal::wait_acknowledged`] has it. Never
    /// blocks; costs a load per worker, or with epochs one.
    #[must_use]
    pub fn acknowledged_lsn(&self) -> Lsn {
        self.log.epochs.as_ref().map_or_else(|| self.log.horizon.compute(), EpochClock::published)
    }

    /// A ticket for a record, and a request to flush it. A thread that would only wait for the ticket at once
    /// had better call [`Wal::wait_acknowledged`], and so perhaps do the write itself.
    pub fn ticket(self: &Arc<Self>, commit: impl Into<CommitPoint>) -> Ticket {
        machine::adds(&**self); // the count
        Self::ticket_through(Arc::clone(self), commit)
    }

    /// The same, through any reference to the log: [`Wal::ticket`]'s is counted on one line, which all
    /// threads then write.
    pub fn ticket_through<W: Deref<Target = Self>>(wal: W, commit: impl Into<CommitPoint>) -> Ticket<W> {
        let commit = commit.into();
        wal.log.request_soon(commit);
        Ticket::new(wal, commit, false)
    }

    /// The same without the request, for one of several tickets that the caller is about to wait for: then
    /// the first wait flushes all, most often in the caller's own thread, and no other is woken for it. A
    /// ticket that is polled makes the request then. A record whose ticket is dropped rests as long as one
    /// that nobody asks for (`WalOptions::max_delay`).
    pub fn quiet_ticket_through<W: Deref<Target = Self>>(
        wal: W,
        commit: impl Into<CommitPoint>,
    ) -> Ticket<W> {
        Ticket::new(wal, commit.into(), true)
    }

    /// Has everything that is buffered flushed soon, by the background threads; without them, now, by the
    /// caller.
    pub fn request_flush(&self) {
        if self.log.options.background {
            self.log.request_flush(Lsn::MAX);
        } else {
            // The error is kept for whoever waits for a record.
            let _ = self.log.wait_acknowledged(Lsn::MAX.into());
        }
    }

    /// Blocks until what this worker has appended so far is written: its own log, as the paper's workers do
    /// it, whatever the others hold. What a commit needs is [`DurableLog::make_durable`].
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed.
    pub fn flush(&self, worker: WorkerId) -> Result<(), LogFailed> {
        let stream = self.log.stream_of(self.log.buffer(worker).worker());
        self.log.flush_stream(stream, self.log.horizon.next_lsn().0 - 1);
        self.log.failure.check()
    }

    /// Uses so many of the log's streams from now on, at least one and at most those there are, until it is
    /// called again or, with [`StreamCount::Auto`], the log finds another number better. Tells whether that
    /// changed anything: not with [`StreamCount::Fixed`], nor if there is too little prepared for it. Blocks
    /// for a flush of each stream; appenders and committers wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed.
    pub fn use_streams(&self, count: usize) -> Result<bool, LogFailed> {
        let changed = self.log.use_streams(count)?;
        self.log.stream_changes.fetch_add(u64::from(changed), Relaxed);
        Ok(changed)
    }

    /// Why the log takes no more records, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailed> {
        self.log.failure.get().cloned()
    }

    /// Lets go of every segment, of any incarnation, whose records are all below `below`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`WalError::Io`]: a segment could not be read or removed; it stays, and is tried again by the next
    /// trim.
    pub fn trim(&self, below: Lsn) -> Result<u64, WalError> {
        let mut trimmed = 0;
        let mut result = Ok(());
        for store in self.log.streams.iter().map(|s| &s.store).chain(&self.log.orphans) {
            match store.trim(below.0) {
                Ok(n) => trimmed += n,
                Err(error) => result = Err(error),
            }
        }
        self.log.segments_trimmed.fetch_add(trimmed, Relaxed);
        if self.log.options.background {
            self.log.preparer.request(); // there may be room again
        }
        result.map(|()| trimmed)
    }

    /// Bytes written to the log by this incarnation, with headers and padding.
    #[must_use]
    pub fn log_bytes_since_start(&self) -> u64 {
        self.log.streams.iter().map(|s| s.counters.chunk_bytes.load(Relaxed)).sum()
    }

    /// Bytes of log that are kept, of all incarnations; files that are prepared for later do not count.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        let live: u64 = self.log.streams.iter().map(Stream::retained_bytes).sum();
        live + self.log.orphans.iter().map(SegmentStore::retained_bytes).sum::<u64>()
    }

    /// What the log has done since it was created. Takes each buffer's latch for a moment.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        let log = &self.log;
        let mut stats = WalStats {
            protocol: log.options.protocol,
            workers: log.buffers.len(),
            streams: log.streams.len(),
            streams_in_use: log.assignment.in_use(),
            stream_changes: log.stream_changes.load(Relaxed),
            measured: self.measured.clone(),
            segments_trimmed: log.segments_trimmed.load(Relaxed),
            retained_bytes: self.retained_bytes(),
            pending_futures: log.wakers.len(),
            epochs: log.epochs.as_ref().map_or(0, EpochClock::ended),
            ..WalStats::default()
        };
        for buffer in &log.buffers {
            let totals = buffer.totals();
            stats.records += totals.records;
            stats.record_bytes += totals.bytes;
            stats.lsn_draws += totals.draws;
            stats.void_lsns += totals.void_lsns;
        }
        for counts in &log.commits {
            stats.commits += counts.commits.load(Relaxed);
            stats.commits_alone += counts.alone.load(Relaxed);
            stats.acknowledged_above_a_hole += counts.above_a_hole.load(Relaxed);
        }
        for stream in &log.streams {
            stream.counters.add_to(&mut stats);
            let (prepared, recycled) = stream.store.prepared();
            stats.segments_prepared += prepared;
            stats.segments_recycled += recycled;
        }
        stats
    }

    /// Flushes everything, stops the threads, and writes into each stream that all of it was durable. Later
    /// appends fail; records that another thread appends meanwhile may or may not be flushed.
    ///
    /// # Errors
    ///
    /// [`LogFailed`] if the log failed, now or before.
    pub fn close(&self) -> Result<(), LogFailed> {
        let threads = std::mem::take(&mut *self.threads.lock());
        flusher::stop(&self.log, threads);
        // Acquire: pairs with the Release below.
        if self.is_closed.load(Acquire) {
            return Ok(());
        }
        self.log.finish()?;
        self.is_closed.store(true, Release);
        self.log.fail(CLOSED);
        Ok(())
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // Whoever wants to know calls `close` before.
        let _ = self.close();
    }
}

impl DurableLog for Wal {
    fn next_lsn(&self) -> Lsn {
        self.log.horizon.next_lsn()
    }

    fn lsn_bound(&self) -> Lsn {
        // RANGE-5: what is up to the horizon is on disk, a record or void; so whatever comes is above.
        self.log.horizon.reached().next()
    }

    /// A load per worker.
    fn durable_lsn(&self) -> Lsn {
        self.log.horizon.survives_power_loss()
    }

    /// For an LSN that was not drawn yet: until everything drawn so far is durable.
    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed> {
        self.log.make_survive_power_loss(lsn)
    }
}

/// Streams that there are to be tried even where the first measurement speaks for fewer.
const LEAST_TO_TRY: usize = 2;

/// Streams to make, how many to use first, and the measurement behind it.
fn count_streams(
    fs: &dyn Fs,
    dir: &Path,
    options: &WalOptions,
) -> Result<(usize, usize, Option<Measured>), WalError> {
    let most = options.most_streams();
    match options.stream_count() {
        StreamCount::Fixed(n) => Ok((n, n, None)),
        StreamCount::UpTo(n) => Ok((n, 1, None)),
        StreamCount::Auto if most == 1 => Ok((1, 1, None)),
        StreamCount::AutoFrom(n) => {
            let in_use = n.clamp(1, most);
            Ok((in_use.max(LEAST_TO_TRY).min(most), in_use, None))
        }
        StreamCount::Auto => {
            let measured = parallelism::measure(fs, dir, most, options.direct)
                .map_err(WalError::io("measure write parallelism in", dir))?;
            let most = measured.streams.max(LEAST_TO_TRY).min(most);
            // Few committers are best off with one; many soon get more.
            Ok((most, 1, Some(measured)))
        }
    }
}

/// Whether something speaks against more streams than are used first: an earlier run's finding, which is not
/// measured again, or the measurement.
fn doubts_more_than(in_use: usize, measured: Option<&Measured>) -> bool {
    measured.is_none_or(|measured| measured.streams <= in_use)
}

/// Opens a stream and makes as many segments ready as it takes to admit records.
fn open_stream(
    stream: usize,
    most_workers: usize,
    assignment: &Assignment,
    identity: LogIdentity,
    options: &WalOptions,
    open: &dyn Fn(u32, Option<Sizes>) -> Result<SegmentStore, WalError>,
) -> Result<Stream, WalError> {
    let chunk = chunk::max_chunk_bytes(options.buffer_bytes);
    // What one segment certainly has room for.
    let reserve = options.segment_size() - chunk;
    let sizes = Sizes { segment: options.segment_size(), chunk, flush: chunk * most_workers as u64, reserve };
    let store = open(stream as u32, Some(sizes))?;
    let make = || store.prepare_one().map_err(WalError::io("prepare a segment in", store.dir()));
    make()?;
    let Some(segment) = store.take_ready() else {
        return Err(WalError::Options { reason: "no segment can be made ready".into() });
    };
    while store.is_short() && (!options.background || store.usable_bytes(0) < sizes.flush) {
        make()?;
    }
    Ok(Stream::new(stream, most_workers, assignment.clone(), store, sizes, segment, identity))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_io::MemFs;

    use super::*;

    #[test]
    fn more_streams_are_doubted_unless_the_measurement_speaks_for_them() {
        let measured = |streams| Some(Measured { write_us: Vec::new(), streams });
        let doubts = [None, measured(1), measured(2)].map(|measured| doubts_more_than(1, measured.as_ref()));
        assert_eq!(doubts, [true, true, false]);
    }

    #[test]
    fn who_closes_the_log_leaves_no_flush_to_a_thread_that_has_ended() {
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let options = WalOptions { max_delay: std::time::Duration::from_secs(3600), ..WalOptions::default() };
        let wal = Wal::create(Arc::new(MemFs::new()), "/wal".as_ref(), identity, options).expect("creates");
        wal.append(wal.worker(), b"rests").expect("appends");
        wal.log.streams.iter().for_each(|stream| stream.gate.leave_it_to_the_thread());
        wal.close().expect("closes");
        assert_eq!(wal.durable_lsn(), Lsn(1));
    }
}
