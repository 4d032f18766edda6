//! `Wal`: the log as the rest of the store sees it.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use azekura_base::background::{Group, Kind};
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use azekura_base::sync::{Mutex, machine};
use azekura_base::{DurableLog, LogFailed, Lsn, striped};
use azekura_io::Fs;

use crate::durable_lsn::DurableHorizon;
use crate::epoch::EpochClock;
use crate::error::{AppendError, WalError};
use crate::failure::Failure;
use crate::flusher;
use crate::log::{Log, LogStart};
use crate::lsn_range::Order;
use crate::notifier::Notifier;
use crate::options::{Admission, LogBufferId, LogIdentity, WalOptions};
use crate::protocol_buffer::ProtocolBuffer;
use crate::segment::SegmentStore;
use crate::sizes::Sizes;
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
    /// `close` has succeeded.
    is_closed: AtomicBool,
}

impl Wal {
    /// Creates the log of a new incarnation in `dir`, beside what earlier ones have left there, which is only
    /// read and, by [`Wal::trim`], let go of.
    ///
    /// Makes the directories, one segment per stream, and as many more as it takes before records can be
    /// admitted; left-over prepared segments are used. Blocks for the device. With
    /// [`WalOptions::begin`] the first record does that, and the errors are its own.
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
        let workers = options.log_buffer_count();
        let streams = options.stream_count();
        let grows = options.first_segment().is_some();
        let direct = options.direct && options.sync_interval.is_none();
        let live = (0..streams).map(|stream| {
            let sizes = Some(Sizes::of(&options, (workers - stream).div_ceil(streams)));
            let store = SegmentStore::new(&fs, dir, stream as u32, identity, direct, sizes);
            let store = store.where_nothing_counts(options.nothing_counts);
            Stream::new(stream, streams, workers, !grows, store, identity)
        });
        let live: Box<[Stream]> = live.collect();
        let horizon = DurableHorizon::new(workers, identity.first_lsn);
        let horizon = if options.sync_interval.is_some() { horizon.synced_at_intervals() } else { horizon };
        let jobs = options.background.then(|| Group::new(Kind::Log)).transpose();
        let jobs = jobs.map_err(WalError::io("start a thread for the log in", dir))?;
        let log = Arc::new(Log {
            horizon,
            epochs: options.protocol.epoch_interval().map(|_| EpochClock::new(identity.first_lsn)),
            buffers: (0..workers).map(|w| ProtocolBuffer::new(&options, w)).collect(),
            streams: live,
            orphans: OnceLock::new(),
            start: LogStart { fs, dir: dir.to_path_buf(), identity, direct, has_begun: Mutex::new(false) },
            failure: Failure::default(),
            wakers: Wakers::default(),
            jobs,
            preparer: Notifier::new(),
            syncer: Notifier::new(),
            stopping: AtomicBool::new(false),
            segments_trimmed: AtomicU64::new(0),
            options,
        });
        log.jobs.iter().for_each(|jobs| flusher::begin(&log, jobs));
        log.buffers.iter().for_each(|buffer| buffer.admit(Admission::None));
        if log.options.begin.is_none() {
            begin_at_once(&log)?;
            if log.options.background {
                log.preparer.request(); // for the rest of the segments
            }
        }
        Ok(Arc::new(Self { log, is_closed: AtomicBool::new(false) }))
    }

    /// Returns `true` if [`Wal::close`] has succeeded.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire) // pairs with the Release in `close`
    }

    /// Returns `true` if anything was written in this incarnation, or is about to be.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.log.start.has_begun()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The worker of the calling thread: threads are dealt out to workers in turn.
    #[must_use]
    pub fn worker(&self) -> LogBufferId {
        LogBufferId::from_index(striped::thread_stripe() % self.log.buffers.len())
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
    pub fn append(&self, worker: LogBufferId, body: &[u8]) -> Result<Lsn, AppendError> {
        self.append_in_order(worker, body, Order::Newest)
    }

    /// The same for a record whose LSN need not be above all drawn before: where it may come after less, many
    /// records are served by one write to the counter; see [`lsn_range`](crate::lsn_range).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was drawn, and the log's LSNs stay dense.
    pub fn append_in_order(
        &self,
        worker: LogBufferId,
        body: &[u8],
        order: Order,
    ) -> Result<Lsn, AppendError> {
        self.log.append(worker, body, order).map(|done| done.lsn)
    }

    /// Appends a commit record, as [`append`](Self::append) does. Its LSN is above those of the worker's
    /// records and above its [floor](Self::raise_floor).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; nothing was drawn, and the log's LSNs stay dense.
    pub fn append_commit(&self, worker: LogBufferId, body: &[u8]) -> Result<Lsn, AppendError> {
        self.append_in_order(worker, body, Order::After(Lsn(0)))
    }

    /// Has all records that the caller appends to `worker` from now on come after the record with this LSN.
    pub fn raise_floor(&self, worker: LogBufferId, lsn: Lsn) {
        self.log.buffer(worker).raise_floor(lsn);
    }

    /// Blocks until a commit may be acknowledged: the record and every one before it is durable, and, in a
    /// log with epochs, all of its epoch. Of records that were not drawn yet, those drawn so far.
    ///
    /// In a P-WAL the caller writes the log itself if nobody else does; in a serial log the commit thread
    /// does; with epochs the epoch's end is waited for (without background threads: the caller ends it).
    /// [`DurableLog::make_durable`], which pages wait for, never waits for an epoch.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed before that; whether the record is on disk is unknown until the next
    /// recovery.
    pub fn wait_acknowledged(&self, commit: Lsn) -> Result<(), LogFailed> {
        self.log.wait_acknowledged(commit)
    }

    /// The last commit LSN that may be acknowledged by now, as [`Wal::wait_acknowledged`] has it. Never
    /// blocks; costs a load per worker, or with epochs one.
    #[must_use]
    pub fn acknowledged_lsn(&self) -> Lsn {
        self.log.epochs.as_ref().map_or_else(|| self.log.horizon.compute(), EpochClock::published)
    }

    /// A ticket for a record, and a request to flush it. A thread that would only wait for the ticket at
    /// once should call [`Wal::wait_acknowledged`], and so perhaps do the write itself.
    pub fn ticket(self: &Arc<Self>, commit: Lsn) -> Ticket {
        machine::adds(&**self); // the count
        Self::ticket_through(Arc::clone(self), commit)
    }

    /// The same, through any reference to the log: [`Wal::ticket`]'s is counted on one line, which all
    /// threads then write.
    pub fn ticket_through<W: Deref<Target = Self>>(wal: W, commit: Lsn) -> Ticket<W> {
        wal.log.request_soon(commit);
        Ticket::new(wal, commit, false)
    }

    /// The same without the request, for one of several tickets that the caller is about to wait for: then
    /// the first wait flushes all, most often in the caller's own thread, and no other is woken for it. A
    /// ticket that is polled makes the request then. A record whose ticket is dropped rests as long as one
    /// that nobody asks for (`WalOptions::max_delay`).
    pub fn quiet_ticket_through<W: Deref<Target = Self>>(wal: W, commit: Lsn) -> Ticket<W> {
        Ticket::new(wal, commit, true)
    }

    /// Has everything that is buffered flushed soon, by the background jobs; without them, now, by the
    /// caller.
    pub fn request_flush(&self) {
        if self.log.options.background {
            self.log.request_flush(Lsn::MAX);
        } else {
            // The error is kept for whoever waits for a record.
            let _ = self.log.wait_acknowledged(Lsn::MAX);
        }
    }

    /// Blocks until what this worker has appended so far is written: its own log, as the paper's workers do
    /// it, whatever the others hold. What a commit needs is [`DurableLog::make_durable`].
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed.
    pub fn flush(&self, worker: LogBufferId) -> Result<(), LogFailed> {
        let stream = self.log.stream_of(self.log.buffer(worker).worker());
        self.log.flush_stream(stream, self.log.horizon.next_lsn().0 - 1);
        self.log.failure.check()
    }

    /// Why the log takes no more records, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailed> {
        self.log.failure.get().cloned()
    }

    /// Releases every segment, of any incarnation, whose records are all below `below`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`WalError::Io`]: a segment could not be read or removed; it stays, and is tried again by the next
    /// trim.
    pub fn trim(&self, below: Lsn) -> Result<u64, WalError> {
        let mut trimmed = 0;
        let mut result = Ok(());
        for store in
            self.log.streams.iter().map(|s| &s.store).chain(self.log.orphans.get().into_iter().flatten())
        {
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
        let orphans = self.log.orphans.get().into_iter().flatten();
        live + orphans.map(SegmentStore::retained_bytes).sum::<u64>()
    }

    /// What the log has done since it was created. Takes each buffer's latch for a moment.
    #[must_use]
    pub fn stats(&self) -> WalStats {
        let log = &self.log;
        let mut stats = WalStats {
            protocol: log.options.protocol,
            log_buffers: log.buffers.len(),
            streams: log.streams.len(),
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
            stats.gap_lsns += totals.gap_lsns;
        }
        for stream in &log.streams {
            stream.counters.add_to(&mut stats);
            let (prepared, recycled) = stream.store.prepared();
            stats.segments_prepared += prepared;
            stats.segments_recycled += recycled;
        }
        stats
    }

    /// Flushes everything, stops the background jobs, and writes into each stream that all of it was durable.
    /// Later appends fail; records that another thread appends meanwhile may or may not be flushed.
    ///
    /// # Errors
    ///
    /// [`LogFailed`] if the log failed, now or before.
    pub fn close(&self) -> Result<(), LogFailed> {
        flusher::stop(&self.log);
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

/// Makes as many segments ready in each stream as it takes to admit records.
fn begin_at_once(log: &Log) -> Result<(), WalError> {
    for stream in &log.streams {
        let store = &stream.store;
        store.start()?;
        let make = || store.prepare_one().map_err(WalError::io("prepare a segment in", store.dir()));
        make()?;
        stream.reopen(&mut stream.writer(), &log.buffers);
        while store.is_short() && (!log.options.background || stream.admissible() != Admission::All) {
            make()?;
        }
        stream.reopen(&mut stream.writer(), &log.buffers);
    }
    log.begin().map_err(|error| match error {
        AppendError::Begin { source } => WalError::io("begin the log in", &log.start.dir)(source),
        other => WalError::Options { reason: other.to_string() },
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_io::MemFs;

    use super::*;

    #[test]
    fn close_leaves_no_flush_to_a_flusher_that_has_ended() {
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let options = WalOptions { max_delay: std::time::Duration::from_secs(3600), ..WalOptions::default() };
        let wal = Wal::create(Arc::new(MemFs::new()), "/wal".as_ref(), identity, options).expect("creates");
        wal.append(wal.worker(), b"rests").expect("appends");
        wal.log.streams.iter().for_each(|stream| stream.gate.alternate_leaders_from_flusher());
        wal.close().expect("closes");
        assert_eq!(wal.durable_lsn(), Lsn(1));
    }
}
