//! The log's background jobs: one flusher per stream, one job that prepares segments, one that ends epochs if
//! there are any, and one that syncs the log if it is synced at intervals.
//!
//! A flusher runs while records are buffered. It serves tickets, [`Wal::request_flush`], and buffers that are
//! more than half full: while there are requests, it flushes again and again, and shares the gate with
//! blocking committers. Records without a request stay in the buffer until they are older than `max_delay`
//! (W3). In a serial log the flusher is Aether's commit thread, the only thread that writes for commits. In a
//! log with epochs it writes when the epoch job requests a flush.
//!
//! A job ends when there is nothing to do, and its [`Notifier`] starts it again: an idle log has no thread.
//! If the process has too few background threads, a job yields its thread to waiting jobs
//! ([`background`](azekura_base::background)): it does not rest, and moves to the end of the queue.
//!
//! [`Wal::request_flush`]: crate::Wal::request_flush

use std::sync::Arc;
use std::time::Duration;

use azekura_base::background::Group;
use azekura_base::sync::atomic::Ordering::Acquire;

use crate::log::Log;
use crate::notifier::Notifier;
use crate::options::Grown;
use crate::stream::Stream;

/// Sets up the jobs. A job starts when there is work for it.
pub(crate) fn begin(log: &Arc<Log>, jobs: &Arc<Group>) {
    for (i, stream) in log.streams.iter().enumerate() {
        starts(log, jobs, &stream.notifier, move |log| flush(log, &log.streams[i]));
    }
    starts(log, jobs, &log.preparer, prepare);
    if let (Some(epochs), Some(interval)) = (&log.epochs, log.options.protocol.epoch_interval()) {
        starts(log, jobs, &epochs.notifier, move |log| turn_epochs(log, interval));
    }
    if let Some(interval) = log.options.sync_interval {
        starts(log, jobs, &log.syncer, move |log| sync(log, interval));
    }
}

fn starts(
    log: &Arc<Log>,
    jobs: &Arc<Group>,
    notifier: &Notifier,
    run: impl Fn(&Log) + Clone + Send + Sync + 'static,
) {
    let (log, jobs) = (Arc::downgrade(log), Arc::clone(jobs));
    notifier.starts(move || {
        if let Some(log) = log.upgrade() {
            let run = run.clone();
            jobs.start(move || run(&log));
        }
    });
}

/// Ends the jobs and waits for them. If the caller is itself one of the jobs, does not wait for that job (a
/// task may drop its last ticket in a flusher).
pub(crate) fn stop(log: &Log) {
    log.stopping.store(true, azekura_base::sync::atomic::Ordering::Release);
    let Some(jobs) = &log.jobs else { return };
    jobs.close(|| {
        let epochs = log.epochs.iter().map(|epochs| &epochs.notifier);
        let flushers = log.streams.iter().map(|stream| &stream.notifier);
        for notifier in flushers.chain([&log.preparer, &log.syncer]).chain(epochs) {
            notifier.request(); // not `wake`: a job that is about to rest checks for requests
        }
    });
}

fn is_stopping(log: &Log) -> bool {
    // Acquire: pairs with the Release in `stop`.
    log.stopping.load(Acquire) || log.failure.get().is_some()
}

/// Returns `true` if other jobs wait for this job's thread.
fn must_make_way(log: &Log) -> bool {
    log.jobs.as_ref().is_some_and(|jobs| jobs.is_overdue())
}

fn flush(log: &Log, stream: &Stream) {
    // The oldest record and the counter at the last rest; the counter at the last notification of the owner.
    let (mut oldest, mut counter, mut last) = (None, None, None);
    while !is_stopping(log) {
        let next = log.horizon.next_lsn();
        if last.replace(next) != Some(next) {
            log.options.grown.iter().for_each(Grown::call);
        }
        if stream.notifier.take_request() {
            log.flush_stream(stream, log.horizon.next_lsn().0 - 1);
            if must_make_way(log) {
                return stream.notifier.restart();
            }
            continue;
        }
        if log.epochs.is_some() {
            // The epoch job enforces `max_delay` (W3).
            if stream.notifier.sleep(|| false) {
                return;
            }
            continue;
        }
        let pending = stream.pending(&log.horizon);
        if pending.is_some() && (pending == oldest || must_make_way(log)) {
            // The record was buffered for `max_delay` (W3), or other jobs need the thread.
            log.flush_stream(stream, log.horizon.next_lsn().0 - 1);
        }
        oldest = pending;
        let next = log.horizon.next_lsn();
        let is_busy = pending.is_some() || counter.replace(next) != Some(next);
        if is_busy && !must_make_way(log) {
            stream.notifier.rest(log.options.max_delay, || false);
        } else if stream.notifier.sleep(|| stream.pending(&log.horizon).is_some()) {
            return;
        }
    }
}

/// Syncs the log an `interval` after the first write since the last sync.
fn sync(log: &Log, interval: Duration) {
    while !is_stopping(log) {
        log.syncer.take_request();
        if log.has_unsynced() {
            if !must_make_way(log) {
                log.syncer.rest(interval, || is_stopping(log));
            }
            // A failure poisons the log, so every later call returns it.
            let _ = log.sync_written();
        } else if log.syncer.sleep(|| log.has_unsynced() || is_stopping(log)) {
            return;
        }
    }
}

/// Ends an epoch every `interval` while commits wait for acknowledgment, or as soon as a flush is requested.
fn turn_epochs(log: &Log, interval: Duration) {
    let Some(epochs) = &log.epochs else { return };
    while !is_stopping(log) {
        if !epochs.has_unpublished(&log.horizon) {
            if epochs.notifier.sleep(|| epochs.has_unpublished(&log.horizon)) {
                return;
            }
            if !epochs.has_unpublished(&log.horizon) {
                epochs.notifier.take_request(); // made while there was nothing to acknowledge
            }
            continue;
        }
        if !epochs.notifier.take_request() && !must_make_way(log) {
            epochs.notifier.rest(interval, || false);
            epochs.notifier.take_request();
        }
        log.turn_epoch(epochs);
        if must_make_way(log) {
            return epochs.notifier.restart();
        }
    }
}

fn prepare(log: &Log) {
    // A log that has failed needs no more space.
    while !is_stopping(log) {
        log.preparer.take_request();
        for stream in &log.streams {
            let mut prepared = Ok(());
            while !is_stopping(log) && stream.store.is_short(stream.rest()) && prepared.is_ok() {
                // An appender that needs the space tries again and returns its failure (no space).
                prepared = stream.store.prepare_one(stream.rest());
            }
        }
        if log.preparer.sleep(|| is_stopping(log)) {
            return;
        }
    }
}
