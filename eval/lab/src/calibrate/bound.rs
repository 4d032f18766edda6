//! Threads that are bound to processors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::thread::JoinHandle;

/// Returns two different processors, or the same one twice if there is only one.
pub(super) fn two_processors() -> io::Result<[usize; 2]> {
    let allowed = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    let first = all.next().unwrap_or(0);
    Ok([first, all.next().unwrap_or(first)])
}

/// Starts a thread that is bound to a processor.
pub(super) fn on<T: Send + 'static>(
    processor: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<io::Result<T>>> {
    std::thread::Builder::new().spawn(move || {
        let mut only = CpuSet::new();
        only.set(processor);
        sched_setaffinity(None, &only)?;
        Ok(body())
    })
}

pub(super) fn join<T>(thread: JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a measuring thread panicked"))?
}
