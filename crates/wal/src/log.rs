//! The log itself: state that appenders, committers and background threads share.
//!
//! | lock | held while | may be taken inside |
//! |---|---|---|
//! | a gate's mutex | a flush begins or ends, a sleeper registers | that stream's writer, buffer latches |
//! | a stream's writer | a flush is written | buffer latches, the segment store |
//! | a buffer latch | a record is copied, a buffer exchanged | nothing |
//!
//! No lock is held while a task is woken.
//!
//! *Progress.* Readers of the horizon, of the acknowledged LSN and of a ticket's state never wait. An append
//! waits only for copies of other appends into its own buffer; a thread that stops in the middle of an append
//! blocks the appenders of that buffer. If that thread has drawn its LSN, no record above the LSN becomes
//! durable before the append ends. Threads that wait for the durability of such records then wait for the
//! stopped thread. A serial log has one buffer, and all appends wait for its latch. Nothing here is
//! lock-free. Tested by stopping threads at every access to shared memory: `eval/sim/tests/log.rs`.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use azekura_base::background::Group;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use azekura_base::{LogFailed, Lsn};
use azekura_io::Fs;

use crate::commit_gate::{Lead, Turn};
use crate::durable_lsn::DurableHorizon;
use crate::epoch::EpochClock;
use crate::error::{AppendError, WalError};
use crate::failure::Failure;
use crate::log_buffer::{Appended, Refused};
use crate::lsn_range::Order;
use crate::notifier::Notifier;
use crate::options::{Admission, LogBufferId, LogIdentity, WalOptions};
use crate::protocol_buffer::ProtocolBuffer;
use crate::segment::{SegmentStore, parse_stream};
use crate::stream::{Stream, Taken};
use crate::ticket::Wakers;

/// The log's directory and identity, and whether the log has begun.
#[derive(Debug)]
pub(crate) struct LogStart {
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) dir: PathBuf,
    pub(crate) identity: LogIdentity,
    pub(crate) direct: bool,
    pub(crate) has_begun: Mutex<bool>,
}

impl LogStart {
    pub(crate) fn has_begun(&self) -> bool {
        *self.has_begun.lock()
    }

    /// Returns the directories of streams that this log does not have.
    pub(crate) fn find_orphans(&self, streams: usize) -> Result<Vec<SegmentStore>, WalError> {
        let names = self.fs.list_dir(&self.dir).map_err(WalError::io("list", &self.dir))?;
        let numbers = names.iter().filter_map(|name| parse_stream(name));
        let orphans = numbers.filter(|&stream| stream as usize >= streams).map(|stream| {
            let store = SegmentStore::new(&self.fs, &self.dir, stream, self.identity, self.direct, None);
            store.start().map(|()| store)
        });
        orphans.collect()
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) options: WalOptions,
    pub(crate) horizon: DurableHorizon,
    /// The epochs; `None` in a log without epochs.
    pub(crate) epochs: Option<Box<EpochClock>>,
    pub(crate) buffers: Box<[ProtocolBuffer]>,
    pub(crate) streams: Box<[Stream]>,
    /// Directories that an earlier run with more streams has left.
    pub(crate) orphans: OnceLock<Vec<SegmentStore>>,
    pub(crate) start: LogStart,
    pub(crate) failure: Failure,
    pub(crate) wakers: Wakers,
    /// The background jobs; `None` if the log runs without background jobs.
    pub(crate) jobs: Option<Arc<Group>>,
    /// Notifier of the job that prepares segments.
    pub(crate) preparer: Notifier,
    /// Notifier of the job that syncs the log at intervals, if there is one.
    pub(crate) syncer: Notifier,
    /// `true` if the background jobs must end; set once.
    pub(crate) stopping: AtomicBool,
    pub(crate) segments_trimmed: AtomicU64,
}

impl Log {
    pub(crate) fn buffer(&self, log_buffer: LogBufferId) -> &ProtocolBuffer {
        &self.buffers[log_buffer.index() % self.buffers.len()]
    }

    pub(crate) fn stream_of(&self, log_buffer: usize) -> &Stream {
        &self.streams[log_buffer % self.streams.len()]
    }

    /// Appends a record with the given place in the [order](crate::lsn_range) of LSNs.
    pub(crate) fn append(
        &self,
        log_buffer: LogBufferId,
        body: &[u8],
        order: Order,
    ) -> Result<Appended, AppendError> {
        let max = self.options.max_body_bytes();
        if body.len() > max {
            return Err(AppendError::TooLarge { bytes: body.len(), max });
        }
        let buffer = self.buffer(log_buffer);
        loop {
            self.failure.check()?;
            let appended = buffer.append(&self.horizon, body, log_buffer.admission(), order);
            let stream = || self.stream_of(buffer.index());
            match appended {
                Ok(done) => {
                    if done.was_idle && self.options.background {
                        let stream = stream();
                        let epochs = self.epochs.as_deref();
                        epochs.map_or(&stream.notifier, |epochs| &epochs.notifier).wake_from_sleep(); // W3
                    }
                    if done.is_due && self.options.background && self.epochs.is_none() {
                        // So a transaction of many records seldom waits for space, and its commit waits for
                        // fewer bytes.
                        stream().notifier.request();
                    }
                    return Ok(done);
                }
                Err(Refused::NoSpace { first_lsn, taken }) => {
                    if self.options.background {
                        stream().notifier.request();
                        buffer.wait_for_space(taken);
                    } else {
                        self.flush_stream(stream(), first_lsn);
                    }
                }
                Err(Refused::NotAdmitting) => {
                    self.make_space(stream(), buffer.index(), log_buffer.admission(), body.len())?;
                }
            }
        }
    }

    /// Prepares a segment and opens the stream's buffers, including `log_buffer` (W11).
    fn make_space(
        &self,
        stream: &Stream,
        log_buffer: usize,
        needed: Admission,
        body_bytes: usize,
    ) -> Result<(), AppendError> {
        stream.store.start().map_err(|error| AppendError::of_start(error, &self.start.dir))?;
        stream.want(log_buffer, body_bytes);
        let made = stream.store.prepare_one(stream.rest());
        if made.is_ok() || self.start.has_begun() {
            self.begin()?;
            stream.reopen_for(&mut stream.writer(), &self.buffers, log_buffer, needed);
        }
        match made {
            Err(source) if !stream.takes(log_buffer, needed, body_bytes) => {
                let needed = stream.store.with_sizes(|sizes| sizes.next.segment);
                stream.give_up_wanting();
                let needed = needed.unwrap_or(self.options.segment_size());
                Err(AppendError::Full { path: stream.store.dir().to_path_buf(), needed, source })
            }
            _ => Ok(()),
        }
    }

    /// Finds the directories that earlier runs with more streams have left. Then calls the owner's
    /// [`Begin`](crate::options::Begin), before the first chunk of this incarnation (W5). The call is the
    /// last step, so it is not repeated after it has succeeded.
    pub(crate) fn begin(&self) -> Result<(), AppendError> {
        let mut has_begun = self.start.has_begun.lock();
        if *has_begun {
            return Ok(());
        }
        let dir = &self.start.dir;
        let orphans = self.start.find_orphans(self.streams.len());
        let orphans = orphans.map_err(|error| AppendError::of_start(error, dir))?;
        if let Some(begin) = &self.options.begin {
            begin.call().map_err(|source| AppendError::Begin { path: dir.clone(), source })?;
        }
        let _ = self.orphans.set(orphans);
        *has_begun = true;
        Ok(())
    }

    /// Blocks until everything up to `lsn`, or everything drawn so far if that is less, is durable.
    pub(crate) fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed> {
        if self.horizon.reached() >= lsn {
            return Ok(());
        }
        let lsn = lsn.min(Lsn(self.horizon.next_lsn().0 - 1));
        let home = azekura_base::striped::thread_stripe() % self.buffers.len() % self.streams.len();
        loop {
            if self.horizon.has_reached(lsn) {
                return Ok(());
            }
            self.failure.check()?;
            // The caller's stream first, then every other stream that holds the horizon down (W2).
            for i in 0..self.streams.len() {
                let stream = &self.streams[(home + i) % self.streams.len()];
                if stream.pending(&self.horizon).is_some_and(|mark| mark <= lsn.0) {
                    self.join_flush(stream, lsn.0);
                }
            }
        }
    }

    /// Returns `true` if the log is synced at intervals and has written records that are not synced yet.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.horizon.is_synced_at_intervals() && self.horizon.survives_power_loss() < self.horizon.reached()
    }

    /// Syncs what is written, in a log that is synced at intervals.
    pub(crate) fn sync_written(&self) -> Result<(), LogFailed> {
        // Computed before the syncs: all records up to this LSN are in the current segments, or in synced
        // ones.
        let written = self.horizon.compute();
        if self.horizon.survives_power_loss() >= written {
            return Ok(());
        }
        for stream in &self.streams {
            self.failure.check()?;
            if let Err(reason) = stream.sync() {
                self.fail(&reason);
            }
        }
        self.failure.check()?;
        self.horizon.note_synced(written);
        self.note_durable();
        Ok(())
    }

    /// Notifies the owner of the log of the LSN that survives a power loss now.
    fn note_durable(&self) {
        if let Some(note) = &self.options.durable {
            note.call(self.horizon.survives_power_loss());
        }
    }

    /// Blocks until everything up to `lsn`, or everything drawn so far if that is less, survives a power
    /// loss.
    pub(crate) fn make_survive_power_loss(&self, lsn: Lsn) -> Result<(), LogFailed> {
        if self.horizon.is_synced_at_intervals() {
            if self.horizon.survives_power_loss() >= lsn {
                return Ok(());
            }
            self.make_durable(lsn)?;
            return self.sync_written();
        }
        self.make_durable(lsn)
    }

    /// Returns `true` if a commit may be acknowledged: all records up to it are durable, and, with epochs,
    /// all records of its epoch.
    pub(crate) fn is_acknowledged(&self, lsn: Lsn) -> bool {
        match &self.epochs {
            None => self.horizon.has_reached(lsn),
            Some(epochs) => epochs.published() >= lsn,
        }
    }

    /// Returns a cheaper [`is_acknowledged`](Self::is_acknowledged), for a caller that polls and does not
    /// sleep afterward. With background jobs the answer is as of the end of the last flush, because the
    /// flush leader has computed the horizon. Computing the horizon here would make each call fetch the
    /// counter and all marks from the processors that write them.
    pub(crate) fn is_known_acknowledged(&self, lsn: Lsn) -> bool {
        if self.epochs.is_none() && self.options.background {
            return self.horizon.reached() >= lsn;
        }
        self.is_acknowledged(lsn)
    }

    /// Blocks until a commit may be acknowledged by the rules of the protocol. If `lsn` was not drawn yet,
    /// blocks until all records drawn so far may be acknowledged.
    pub(crate) fn wait_acknowledged(&self, lsn: Lsn) -> Result<(), LogFailed> {
        match &self.epochs {
            Some(epochs) => self.wait_for_epoch(epochs, lsn),
            None if self.options.protocol.is_serial() && self.options.background => {
                self.follow_commit_thread(lsn)
            }
            _ => self.make_durable(lsn),
        }
    }

    /// Waits as [`wait_acknowledged`](Self::wait_acknowledged) does, for a commit with an earlier flush
    /// request. The caller probably has other commits in flight, so the stream's flusher writes: a caller
    /// that leads a flush can do nothing else until the flush has ended.
    pub(crate) fn wait_requested(&self, lsn: Lsn) -> Result<(), LogFailed> {
        if !self.options.background || self.epochs.is_some() {
            return self.wait_acknowledged(lsn);
        }
        self.follow_commit_thread(lsn)
    }

    /// Sleeps until a flush of the stream that covers `lsn` has ended, if one is needed; the flusher writes.
    fn follow_flush(&self, stream: &Stream, lsn: Lsn) {
        let is_needed = || self.is_needed(stream, lsn.0);
        stream.gate.follow(lsn.0, is_needed, || stream.notifier.request());
    }

    /// Waits until the streams' flushers, which write for all waiters, have written `lsn` (flush pipelining).
    fn follow_commit_thread(&self, lsn: Lsn) -> Result<(), LogFailed> {
        let lsn = lsn.min(Lsn(self.horizon.next_lsn().0 - 1));
        while !self.horizon.has_reached(lsn) {
            self.failure.check()?;
            self.streams.iter().for_each(|stream| self.follow_flush(stream, lsn));
        }
        Ok(())
    }

    fn wait_for_epoch(&self, epochs: &EpochClock, lsn: Lsn) -> Result<(), LogFailed> {
        if epochs.published() >= lsn {
            return Ok(());
        }
        let lsn = lsn.min(Lsn(self.horizon.next_lsn().0 - 1));
        while epochs.published() < lsn {
            self.failure.check()?;
            if self.options.background {
                epochs.wait(lsn, || self.failure.get().is_some());
            } else {
                self.finish_epoch(epochs)?;
            }
        }
        Ok(())
    }

    /// Ends an epoch, writes it, and publishes it, in place of the epoch job and the flushers.
    fn finish_epoch(&self, epochs: &EpochClock) -> Result<(), LogFailed> {
        epochs.end(&self.horizon);
        self.make_durable(Lsn(epochs.boundary().0 - 1))?;
        self.wakers.wake_through(self.acknowledge());
        Ok(())
    }

    /// Ends an epoch and requests a flush of it; for the epoch job.
    pub(crate) fn turn_epoch(&self, epochs: &EpochClock) {
        if epochs.end(&self.horizon) {
            self.request_streams(Lsn(epochs.boundary().0 - 1));
            // The epoch may be on disk already.
            self.wakers.wake_through(self.acknowledge());
        }
    }

    /// Publishes the LSN up to which commits are acknowledged. The caller has moved the marks.
    pub(crate) fn acknowledge(&self) -> Lsn {
        fence(SeqCst); // TICKET-1
        let Some(epochs) = &self.epochs else { return self.horizon.compute() };
        let published = epochs.publish(&self.horizon);
        fence(SeqCst); // TICKET-1, for the epoch published above
        published
    }

    fn is_needed(&self, stream: &Stream, lsn: u64) -> bool {
        self.failure.get().is_none() && stream.pending(&self.horizon).is_some_and(|mark| mark <= lsn)
    }

    /// Leads a flush of the stream, or sleeps until one that covers `lsn` has ended.
    pub(crate) fn flush_stream(&self, stream: &Stream, lsn: u64) {
        let is_needed = || self.is_needed(stream, lsn);
        let begin = || stream.begin(&self.horizon, &self.buffers);
        if let Turn::Lead(lead, taken) = stream.gate.enter(lsn, is_needed, begin) {
            self.lead(stream, lead, taken);
        }
    }

    /// Flushes as [`flush_stream`](Self::flush_stream) does, for a committer. The committer may wait for
    /// others (commit delay), or sleep while the flusher writes.
    fn join_flush(&self, stream: &Stream, lsn: u64) {
        // With epochs the flusher writes only when the epoch job requests it.
        let has_thread = self.options.background && self.epochs.is_none();
        // Acquire: pairs with the Release in `flusher::stop`. The closing thread has stopped the flushers, so
        // it reads `true` and leads. A thread that still reads `false` follows, and is woken by the flusher's
        // last flush or by the failure that `close` sets.
        let thread = (has_thread && !self.stopping.load(Acquire)).then_some(&stream.notifier);
        let is_needed = || self.is_needed(stream, lsn);
        let begin = || stream.begin(&self.horizon, &self.buffers);
        if let Turn::Lead(lead, taken) = stream.gate.join(lsn, thread, is_needed, begin) {
            self.lead(stream, lead, taken);
        }
    }

    /// Writes the taken batches, moves the marks, and wakes the waiters that the flush covers.
    fn lead(&self, stream: &Stream, lead: Lead<'_>, mut taken: Taken<'_>) {
        let poison = PoisonOnPanic(self);
        let written = stream.write(&mut taken, &self.horizon, &self.buffers);
        stream.reopen(&mut taken.writer, &self.buffers);
        drop(taken);
        std::mem::forget(poison);
        let records = match written {
            Ok(records) => records,
            Err(reason) => {
                self.fail(&reason);
                return; // dropping `lead` ends the flush
            }
        };
        stream.log_buffers().for_each(|log_buffer| self.buffers[log_buffer].mark_durable(&self.horizon));
        let acknowledged = self.acknowledge();
        let woken = lead.finish();
        self.wakers.wake_through(acknowledged);
        if records > 0 {
            self.note_durable(); // a system call, so after the wakeups
        }
        self.count(stream, records, woken);
        if self.horizon.is_synced_at_intervals() {
            self.syncer.wake_from_sleep();
        }
        if stream.store.is_short(stream.rest()) {
            self.replenish(stream);
        }
    }

    fn count(&self, stream: &Stream, records: u64, woken: u32) {
        // Relaxed: statistics.
        let counters = &stream.counters;
        let flushes = if records > 0 { &counters.flushes } else { &counters.empty_flushes };
        flushes.fetch_add(1, Relaxed);
        counters.largest_group.fetch_max(records, Relaxed);
        counters.threads_woken.fetch_add(u64::from(woken), Relaxed);
    }

    /// Prepares the next segment, by the preparer job if there is one.
    fn replenish(&self, stream: &Stream) {
        if self.options.background {
            self.preparer.request();
        } else {
            // If it fails, the appender that needs the space tries again and returns the error.
            let _ = stream.store.prepare_one(stream.rest());
        }
    }

    /// Requests a flush of a commit from the background jobs, if there are any.
    pub(crate) fn request_soon(&self, lsn: Lsn) {
        // Epochs end without a request.
        if self.options.background && self.epochs.is_none() && self.horizon.reached() < lsn {
            self.request_flush(lsn);
        }
    }

    /// Requests a flush of everything up to `lsn`: from the epoch job, or from the flushers.
    pub(crate) fn request_flush(&self, lsn: Lsn) {
        match &self.epochs {
            None => self.request_streams(lsn),
            Some(epochs) if epochs.published() < lsn => epochs.notifier.request(),
            Some(_) => {}
        }
    }

    fn request_streams(&self, lsn: Lsn) {
        for stream in &self.streams {
            if stream.pending(&self.horizon).is_some_and(|mark| mark <= lsn.0) {
                stream.notifier.request();
            }
        }
    }

    /// Poisons the log and wakes all waiters (W10).
    pub(crate) fn fail(&self, reason: &str) {
        if !self.failure.set(reason) {
            return;
        }
        self.streams.iter().for_each(|stream| stream.gate.wake_everyone());
        self.buffers.iter().for_each(ProtocolBuffer::wake_everyone);
        fence(SeqCst); // TICKET-1, EPOCH-3: threads that register from now on see the failure
        self.epochs.iter().for_each(|epochs| epochs.wake_everyone());
        self.wakers.wake_everyone();
    }

    /// Ends and publishes epochs until everything drawn so far is acknowledged. The epoch job has ended
    /// before.
    fn wait_for_last_epoch(&self, epochs: &EpochClock) -> Result<(), LogFailed> {
        let last = Lsn(self.horizon.next_lsn().0 - 1);
        while epochs.published() < last {
            self.failure.check()?;
            self.finish_epoch(epochs)?;
        }
        Ok(())
    }

    /// Writes everything, and a last chunk in each stream that states the durable horizon.
    pub(crate) fn finish(&self) -> Result<(), LogFailed> {
        self.make_durable(Lsn::MAX)?;
        self.epochs.iter().try_for_each(|epochs| self.wait_for_last_epoch(epochs))?;
        self.sync_written()?;
        for stream in &self.streams {
            self.failure.check()?; // W10: no write after a failure
            let testified = stream.testify(&mut stream.writer(), &self.horizon);
            let is_written_only = self.horizon.is_synced_at_intervals();
            if let Err(reason) = testified.and_then(|()| if is_written_only { stream.sync() } else { Ok(()) })
            {
                self.fail(&reason);
            }
        }
        self.failure.check()
    }
}

/// Poisons the log if a flush panics: the content of the disk is unknown then.
pub(crate) struct PoisonOnPanic<'l>(pub(crate) &'l Log);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fail("a thread panicked while it wrote the log");
    }
}
