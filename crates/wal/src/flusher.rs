//! The log's own threads: a flusher per stream, and one that prepares segments.
//!
//! A flusher sleeps while nothing is buffered. It works for tickets and for [`Wal::request_flush`]: greedily, one
//! flush after the other while there are requests, like any other committer (it shares the gate with blocking ones).
//! Records that nobody asks for it lets rest, and writes those that are older than `max_delay` (W3).
//!
//! [`Wal::request_flush`]: crate::Wal::request_flush

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use azekura_base::sync::atomic::Ordering::Acquire;

use crate::error::WalError;
use crate::log::Log;
use crate::stream::Stream;

/// Starts the threads.
pub(crate) fn start(log: &Arc<Log>) -> Result<Vec<JoinHandle<()>>, WalError> {
    let mut threads = Vec::new();
    let spawned = (0..=log.streams.len()).try_for_each(|i| {
        let log = Arc::clone(log);
        let thread = if i < log.streams.len() {
            let name = format!("azekura-wal-{i}");
            Builder::new().name(name).spawn(move || flush_until_stopped(&log, &log.streams[i]))
        } else {
            Builder::new().name("azekura-wal-seg".into()).spawn(move || prepare_until_stopped(&log))
        };
        thread.map(|thread| threads.push(thread))
    });
    if let Err(source) = spawned {
        stop(log, threads);
        return Err(WalError::Io { action: "start a thread for", path: "the log".into(), source });
    }
    Ok(threads)
}

/// Ends the threads. One of them may be the caller (a task's last ticket may go in a flusher): it is not waited for.
pub(crate) fn stop(log: &Log, threads: Vec<JoinHandle<()>>) {
    log.stopping.store(true, azekura_base::sync::atomic::Ordering::Release);
    for bell in log.streams.iter().map(|s| &s.bell).chain([&log.preparer]) {
        bell.request(); // not only rung: a thread on its way to sleep looks at the request
    }
    for thread in threads {
        if thread.thread().id() != std::thread::current().id() {
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
        if stream.bell.take_request() {
            let next = log.horizon.next_lsn();
            log.flush_stream(stream, next.0 - 1);
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
            stream.bell.rest(Some(log.options.max_delay), || false);
        } else {
            stream.bell.rest(None, || stream.pending(&log.horizon).is_some());
        }
    }
}

fn prepare_until_stopped(log: &Log) {
    let is_stopping = || log.stopping.load(Acquire);
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
