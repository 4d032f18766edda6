//! One timed phase of work by many threads at once.
//!
//! As in [`crate::phase`], all threads start together. When the time is over, each finishes its transaction,
//! which counts. The length of the phase is from the start to the last end.

use super::client::{self, Tally};
use crate::error::BenchError;
use crate::progress::{Progress, ms};
use azekura::Database;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_workload::tpcc::Terminal;
use std::sync::RwLock;
use std::thread;
use std::time::{Duration, Instant};

/// Results of a phase.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Counts of all threads together.
    pub tally: Tally,
    /// Time from the start to the last thread's end.
    pub took: Duration,
    /// Bytes of log records.
    pub log_bytes: u64,
    /// Bytes of log written, with headers and padding.
    pub log_written_bytes: u64,
}

/// Interval at which the main thread updates the progress and checks for the end.
const LOOK: Duration = Duration::from_millis(25);

/// Runs one thread per terminal for `time`. `window` is the largest number of commits in flight for each
/// thread; with `None`, each commit is waited for.
///
/// # Errors
///
/// The error of the first failed thread, in the order of the terminals. The other threads stop soon.
pub fn run(
    db: &Database,
    terminals: &mut [Terminal],
    window: Option<usize>,
    time: Duration,
    progress: &Progress,
) -> Result<Measured, BenchError> {
    let before = db.stats().log;
    let (tally, took) =
        run_threads(terminals, time, progress, |terminal, go_on| client::run(db, terminal, window, go_on))?;
    let after = db.stats().log;
    Ok(Measured {
        tally,
        took,
        log_bytes: after.record_bytes.saturating_sub(before.record_bytes),
        log_written_bytes: after.written_bytes.saturating_sub(before.written_bytes),
    })
}

/// Runs `work` on one thread per terminal until the time is over. `work` receives a function that returns
/// whether to continue. Returns the sum of all counts, and the time from the start to the last end.
///
/// # Errors
///
/// The same as those of [`run`].
pub fn run_threads(
    terminals: &mut [Terminal],
    time: Duration,
    progress: &Progress,
    work: impl Fn(&mut Terminal, &dyn Fn() -> bool) -> Result<Tally, BenchError> + Sync,
) -> Result<(Tally, Duration), BenchError> {
    // Locked by the main thread until all threads have started; each thread then reads it.
    let start = RwLock::new(());
    // Set by the main thread when the time is over, and by a thread that failed; all threads read it.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let closed = start.write();
        let mut threads = Vec::with_capacity(terminals.len());
        for terminal in terminals.iter_mut() {
            let (start, stop, work) = (&start, &stop, &work);
            let run = move || {
                let _stop = StopOnPanic(stop);
                drop(start.read());
                // Relaxed: a thread may run one more transaction.
                let done = work(terminal, &|| !stop.load(Relaxed));
                if done.is_err() {
                    stop.store(true, Relaxed);
                }
                done
            };
            match thread::Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    stop.store(true, Relaxed);
                    return Err(BenchError::Thread { source }); // which unlocks `start`
                }
            }
        }
        drop(closed);
        let began = Instant::now();
        while !stop.load(Relaxed) && began.elapsed() < time {
            progress.at(ms(began.elapsed()));
            thread::sleep(time.saturating_sub(began.elapsed()).min(LOOK));
        }
        stop.store(true, Relaxed);
        // All threads are joined before an error is returned: a scope panics if a thread that was not joined
        // has panicked.
        let joined: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(BenchError::Panicked))).collect();
        let mut all = Tally::default();
        for tally in joined {
            all.merge(&tally?);
        }
        Ok((all, began.elapsed()))
    })
}

/// Stops all threads when dropped during a panic.
struct StopOnPanic<'s>(&'s AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}
