//! `Wal`: the public interface of the log.

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

/// The failure reason that a closed log reports.
const CLOSED: &str = "the log was closed";

/// A parallel write-ahead log.
///
/// Records are byte strings that the log does not interpret. Dropping the log flushes it, as [`Wal::close`]
/// does, but cannot report an error.
#[derive(Debug)]
pub struct Wal {
    log: Arc<Log>,
    /// `true` after `close` has succeeded.
    is_closed: AtomicBool,
}

impl Wal {
    /// Creates the log of a new incarnation in `dir`. Files of earlier incarnations are only read, and
    /// released by [`Wal::trim`].
    ///
    /// Makes the directories, one segment per stream, and as many more as are needed before records can be
    /// admitted; unused prepared segments are reused. Blocks for the device. With [`WalOptions::begin`] the
    /// first append does this and returns its errors.
    ///
    /// # Errors
    ///
    /// [`WalError::Options`], [`WalError::IncarnationNotNew`], [`WalError::Io`]; records of earlier
    /// incarnations are unchanged.
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
        let log_buffers = options.log_buffer_count();
        let streams = options.stream_count();
        let grows = options.first_segment().is_some();
        let direct = options.direct && options.sync_interval.is_none();
        let live = (0..streams).map(|stream| {
            let sizes = Some(Sizes::of(&options, (log_buffers - stream).div_ceil(streams)));
            let store = SegmentStore::new(&fs, dir, stream as u32, identity, direct, sizes);
            let store = store.where_nothing_counts(options.nothing_counts);
            let live = Stream::new(stream, streams, log_buffers, !grows, store, identity);
            live.encrypted(options.cipher.clone())
        });
        let live: Box<[Stream]> = live.collect();
        let horizon = DurableHorizon::new(log_buffers, identity.first_lsn);
        let horizon = if options.sync_interval.is_some() { horizon.synced_at_intervals() } else { horizon };
        let jobs = options.background.then(|| Group::new(Kind::Log)).transpose();
        let jobs = jobs.map_err(WalError::io("start a thread for the log in", dir))?;
        let log = Arc::new(Log {
            horizon,
            epochs: options.protocol.epoch_interval().map(|_| Box::new(EpochClock::new(identity.first_lsn))),
            buffers: (0..log_buffers).map(|w| ProtocolBuffer::new(&options, w)).collect(),
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

    /// Returns `true` if this incarnation has written its first chunk, or is about to write it.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.log.start.has_begun()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the log buffer of the calling thread: threads are assigned to buffers in turn.
    #[must_use]
    pub fn log_buffer(&self) -> LogBufferId {
        LogBufferId::from_index(striped::thread_stripe() % self.log.buffers.len())
    }

    /// Appends a record and returns its LSN, which is above all LSNs drawn before.
    ///
    /// Copies the body into the log buffer. Does I/O only if the buffer is full or no segment is ready.
    /// Then the caller waits for a flush to begin (without background jobs: leads one), or prepares a
    /// segment.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; no LSN was drawn, so the log's LSNs stay dense.
    pub fn append(&self, log_buffer: LogBufferId, body: &[u8]) -> Result<Lsn, AppendError> {
        self.append_in_order(log_buffer, body, Order::Newest)
    }

    /// Appends a record as [`append`](Self::append) does, with the given place in the order of LSNs. A record
    /// that only has to come [after](Order::After) a given LSN may get an LSN that was drawn ahead: one write
    /// to the LSN counter serves many records, see [`lsn_range`](crate::lsn_range).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; no LSN was drawn, so the log's LSNs stay dense.
    pub fn append_in_order(
        &self,
        log_buffer: LogBufferId,
        body: &[u8],
        order: Order,
    ) -> Result<Lsn, AppendError> {
        self.log.append(log_buffer, body, order).map(|done| done.lsn)
    }

    /// Appends a commit record, as [`append`](Self::append) does. The LSN is above those of the log buffer's
    /// earlier records and above the buffer's [floor](Self::raise_floor).
    ///
    /// # Errors
    ///
    /// [`AppendError`]; no LSN was drawn, so the log's LSNs stay dense.
    pub fn append_commit(&self, log_buffer: LogBufferId, body: &[u8]) -> Result<Lsn, AppendError> {
        self.append_in_order(log_buffer, body, Order::After(Lsn(0)))
    }

    /// Makes all records that the caller appends to `log_buffer` from now on come after the record with this
    /// LSN.
    pub fn raise_floor(&self, log_buffer: LogBufferId, lsn: Lsn) {
        self.log.buffer(log_buffer).raise_floor(lsn);
    }

    /// Blocks until a commit may be acknowledged: its record and every record before it are durable, and, in
    /// a log with epochs, its whole epoch. If `commit` was not drawn yet, blocks until all records drawn so
    /// far may be acknowledged.
    ///
    /// In a P-WAL the caller writes the log if no flush is in progress. In a serial log the commit thread
    /// writes. With epochs the caller waits for the end of the epoch; without background jobs it ends the
    /// epoch itself. [`DurableLog::make_durable`], which page writes wait for, never waits for an epoch.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed before that. Only the next recovery finds out whether the record is on
    /// disk.
    pub fn wait_acknowledged(&self, commit: Lsn) -> Result<(), LogFailed> {
        self.log.wait_acknowledged(commit)
    }

    /// Returns the last commit LSN that may be acknowledged now, as in [`Wal::wait_acknowledged`]. Never
    /// blocks; costs a load per log buffer, or with epochs one load.
    #[must_use]
    pub fn acknowledged_lsn(&self) -> Lsn {
        self.log.epochs.as_deref().map_or_else(|| self.log.horizon.compute(), EpochClock::published)
    }

    /// Returns a ticket for a record, and requests a flush of it. A thread that would wait for the ticket at
    /// once should call [`Wal::wait_acknowledged`], which lets it do the write itself.
    pub fn ticket(self: &Arc<Self>, commit: Lsn) -> Ticket {
        machine::adds(&**self); // the reference count
        Self::ticket_through(Arc::clone(self), commit)
    }

    /// Returns a ticket as [`Wal::ticket`] does, through any reference to the log. Avoids the reference count
    /// of the one `Arc`, a cache line that [`Wal::ticket`] makes all threads write.
    pub fn ticket_through<W: Deref<Target = Self>>(wal: W, commit: Lsn) -> Ticket<W> {
        wal.log.request_soon(commit);
        Ticket::new(wal, commit, false)
    }

    /// Returns a ticket without a flush request, for a caller that is about to wait for several tickets. The
    /// first wait flushes all their records, mostly in the caller's own thread, and wakes no other thread.
    /// Polling the ticket requests the flush. If the ticket is dropped, the record stays in the buffer like
    /// any record without a request (`WalOptions::max_delay`).
    pub fn quiet_ticket_through<W: Deref<Target = Self>>(wal: W, commit: Lsn) -> Ticket<W> {
        Ticket::new(wal, commit, true)
    }

    /// Requests a flush of everything buffered, by the background jobs; without them the caller flushes now.
    pub fn request_flush(&self) {
        if self.log.options.background {
            self.log.request_flush(Lsn::MAX);
        } else {
            // The error is kept; a thread that waits for a record returns it.
            let _ = self.log.wait_acknowledged(Lsn::MAX);
        }
    }

    /// Blocks until all records appended to this log buffer so far are written, regardless of the other log
    /// buffers (as in the paper). A commit needs [`DurableLog::make_durable`] instead.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed.
    pub fn flush(&self, log_buffer: LogBufferId) -> Result<(), LogFailed> {
        let stream = self.log.stream_of(self.log.buffer(log_buffer).index());
        self.log.flush_stream(stream, self.log.horizon.next_lsn().0 - 1);
        self.log.failure.check()
    }

    /// Returns the reason that the log accepts no more records, if it has failed.
    #[must_use]
    pub fn failure(&self) -> Option<LogFailed> {
        self.log.failure.get().cloned()
    }

    /// Releases every segment, of any incarnation, with only records below `below`. Returns the number of
    /// segments.
    ///
    /// # Errors
    ///
    /// [`WalError::Io`]: a segment could not be read or removed; it stays, and the next trim tries again.
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

    /// Returns the bytes that this incarnation has written to the log, with headers and padding.
    #[must_use]
    pub fn log_bytes_since_start(&self) -> u64 {
        self.log.streams.iter().map(|s| s.counters.chunk_bytes.load(Relaxed)).sum()
    }

    /// Returns the bytes of log that are kept, of all incarnations, without prepared files.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        let live: u64 = self.log.streams.iter().map(Stream::retained_bytes).sum();
        let orphans = self.log.orphans.get().into_iter().flatten();
        live + orphans.map(SegmentStore::retained_bytes).sum::<u64>()
    }

    /// Returns the log's counters since its creation. Takes each buffer's latch briefly.
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
            epochs: log.epochs.as_deref().map_or(0, EpochClock::ended),
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

    /// Flushes everything, stops the background jobs, and writes the durable horizon into each stream. Later
    /// appends fail; records that another thread appends meanwhile may or may not be flushed.
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
        // A caller that needs the error calls `close` before.
        let _ = self.close();
    }
}

impl DurableLog for Wal {
    fn next_lsn(&self) -> Lsn {
        self.log.horizon.next_lsn()
    }

    fn lsn_bound(&self) -> Lsn {
        // RANGE-5: every LSN up to the horizon is on disk, as a record or in a gap, so future LSNs are above
        // it.
        self.log.horizon.reached().next()
    }

    /// Returns the LSN up to which the log survives a power loss. Costs a load per log buffer, or one load if
    /// the log is synced at intervals.
    fn durable_lsn(&self) -> Lsn {
        self.log.horizon.survives_power_loss()
    }

    /// Blocks until everything up to `lsn`, or everything drawn so far if that is less, survives a power
    /// loss.
    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed> {
        self.log.make_survive_power_loss(lsn)
    }
}

/// Prepares as many segments in each stream as are needed to admit records.
fn begin_at_once(log: &Log) -> Result<(), WalError> {
    for stream in &log.streams {
        let store = &stream.store;
        store.start()?;
        let make =
            || store.prepare_one(stream.rest()).map_err(WalError::io("prepare a segment in", store.dir()));
        make()?;
        stream.reopen(&mut stream.writer(), &log.buffers);
        while store.is_short(stream.rest())
            && (!log.options.background || stream.admissible() != Admission::All)
        {
            make()?;
        }
        stream.reopen(&mut stream.writer(), &log.buffers);
    }
    log.begin().map_err(|error| match error {
        AppendError::Begin { path, source } => WalError::Io { action: "begin the log in", path, source },
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
        wal.append(wal.log_buffer(), b"rests").expect("appends");
        wal.log.streams.iter().for_each(|stream| stream.gate.alternate_leaders_from_flusher());
        wal.close().expect("closes");
        assert_eq!(wal.durable_lsn(), Lsn(1));
    }
}
