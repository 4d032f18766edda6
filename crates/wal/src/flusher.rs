//! The log's own threads: a flusher per stream, one that prepares segments, one that ends epochs if there are
//! any, and one that syncs the log if that is done at intervals.
//!
//! A flusher sleeps while nothing is buffered. It works for tickets and for [`Wal::request_flush`]: greedily,
//! one flush after the other while there are requests, like any other committer (it shares the gate with
//! blocking ones). Records that nobody asks for it lets rest, and writes those that are older than
//! `max_delay` (W3). In a serial log it is Aether's commit thread: nobody else writes for a commit. In a log
//! with epochs it writes when the epoch thread says so.
//!
//! [`Wal::request_flush`]: crate::Wal::request_flush

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::sync::thread::{self, Builder, JoinHandle};

use crate::error::WalError;
use crate::log::Log;
use crate::stream::Stream;

/// Starts the threads.
pub(crate) fn start(log: &Arc<Log>) -> Result<Vec<JoinHandle<()>>, WalError> {
    let mut threads = Vec::new();
    let mut spawn = |name: String, run: Box<dyn FnOnce(&Log) + Send>| {
        let log = Arc::clone(log);
        Builder::new().name(name).spawn(move || run(&log)).map(|thread| threads.push(thread))
    };
    let spawned = (0..log.streams.len())
        .try_for_each(|i| {
            spawn(format!("azekura-wal-{i}"), Box::new(move |log| flush_until_stopped(log, &log.streams[i])))
        })
        .and_then(|()| spawn("azekura-wal-seg".into(), Box::new(prepare_until_stopped)))
        .and_then(|()| match log.options.protocol.epoch_interval() {
            Some(interval) => {
                spawn("azekura-wal-epoch".into(), Box::new(move |log| turn_until_stopped(log, interval)))
            }
            None => Ok(()),
        })
        .and_then(|()| match log.options.sync_interval {
            Some(interval) => {
                spawn("azekura-wal-sync".into(), Box::new(move |log| sync_until_stopped(log, interval)))
            }
            None => Ok(()),
        });
    if let Err(source) = spawned {
        stop(log, threads);
        return Err(WalError::Io { action: "start a thread for", path: "the log".into(), source });
    }
    Ok(threads)
}

/// Ends the threads. One of them may be the caller (a task's last ticket may go in a flusher): it is not
/// waited for.
pub(crate) fn stop(log: &Log, threads: Vec<JoinHandle<()>>) {
    log.stopping.store(true, azekura_base::sync::atomic::Ordering::Release);
    let epochs = log.epochs.iter().map(|epochs| &epochs.notifier);
    let flushers = log.streams.iter().map(|stream| &stream.notifier);
    for notifier in flushers.chain([&log.preparer, &log.syncer]).chain(epochs) {
        notifier.request(); // not `wake`: a thread on its way to sleep looks at the request
    }
    for thread in threads {
        if thread.thread().id() != thread::current().id() {
            // A panic there has poisoned the log.
            let _ = thread.join();
        }
    }
}

fn flush_until_stopped(log: &Log, stream: &Stream) {
    // The oldest record seen at the last rest, and the counter then.
    let (mut oldest, mut counter) = (None, log.horizon.next_lsn());
    // Acquire: pairs with the Release in `stop`.
    while !log.stopping.load(Acquire) && log.failure.get().is_none() {
        if stream.notifier.take_request() {
            let next = log.horizon.next_lsn();
            log.flush_stream(stream, next.0 - 1);
            continue;
        }
        if log.epochs.is_some() {
            stream.notifier.rest(None, || false); // the epoch thread sees to W3
            continue;
        }
        let pending = stream.pending(&log.horizon);
        if pending.is_some() && pending == oldest {
            // It has rested for `max_delay` (W3).
            log.flush_stream(stream, log.horizon.next_lsn().0 - 1);
        }
        oldest = pending;
        let busy = pending.is_some() || log.horizon.next_lsn() != counter;
        counter = log.horizon.next_lsn();
        if busy {
            stream.notifier.rest(Some(log.options.max_delay), || false);
        } else {
            stream.notifier.rest(None, || stream.pending(&log.horizon).is_some());
        }
    }
}

/// Syncs the log an `interval` after something was written; sleeps while nothing is.
fn sync_until_stopped(log: &Log, interval: Duration) {
    // Acquire: pairs with the Release in `stop`.
    let is_stopping = || log.stopping.load(Acquire) || log.failure.get().is_some();
    while !is_stopping() {
        log.syncer.rest(None, || log.has_unsynced() || is_stopping());
        log.syncer.take_request();
        if log.has_unsynced() {
            log.syncer.rest(Some(interval), is_stopping);
            // A failure poisons the log: every later call tells it.
            let _ = log.sync_written();
        }
    }
}

/// Ends an epoch every `interval` while there is something to acknowledge, or as soon as somebody asks for
/// it.
fn turn_until_stopped(log: &Log, interval: Duration) {
    let Some(epochs) = &log.epochs else { return };
    // Acquire: pairs with the Release in `stop`.
    while !log.stopping.load(Acquire) && log.failure.get().is_none() {
        if !epochs.has_unpublished(&log.horizon) {
            epochs.notifier.rest(None, || epochs.has_unpublished(&log.horizon));
            // A request made while nothing was there to be acknowledged.
            if !epochs.has_unpublished(&log.horizon) {
                epochs.notifier.take_request();
                continue;
            }
        }
        if !epochs.notifier.take_request() {
            epochs.notifier.rest(Some(interval), || false);
            epochs.notifier.take_request();
        }
        log.turn_epoch(epochs);
    }
}

fn prepare_until_stopped(log: &Log) {
    // A log that has failed needs no more room.
    let is_stopping = || log.stopping.load(Acquire) || log.failure.get().is_some();
    while !is_stopping() {
        log.preparer.take_request();
        for stream in &log.streams {
            let mut prepared = Ok(());
            while !is_stopping() && stream.store.is_short() && prepared.is_ok() {
                // A failure (no space) is met again, and reported, by the appender that needs the room.
                prepared = stream.store.prepare_one();
            }
        }
        log.preparer.rest(None, is_stopping);
    }
}
