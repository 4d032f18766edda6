//! One timed stretch of work by many threads at once.
//!
//! As [`crate::phase`]: all start together; when the time is over each ends its transaction, and that counts;
//! the length is from the start to the last end.

use super::client::{self, Tally};
use crate::error::BenchError;
use crate::progress::{Progress, ms};
use azekura::Database;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_workload::tpcc::Terminal;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Results of a phase.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The work of all threads together.
    pub tally: Tally,
    /// From the start to the last thread's end.
    pub took: Duration,
    /// Bytes of log records.
    pub log_bytes: u64,
    /// Bytes of log written, with headers and padding.
    pub log_written_bytes: u64,
}

/// Interval at which the main thread looks up.
const LOOK: Duration = Duration::from_millis(25);

/// Runs one thread per terminal for `time`. `window` is how many commits each may have in flight; without,
/// each is waited for.
///
/// # Errors
///
/// The first thread's failure, in the order of the terminals; the others stop soon.
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

/// Runs `work` on one thread per terminal until the time is over: it is handed the question whether to go on.
/// Returns the sum of all clients, and the time from the start to the last end.
///
/// # Errors
///
/// As [`run`].
pub fn run_threads(
    terminals: &mut [Terminal],
    time: Duration,
    progress: &Progress,
    work: impl Fn(&mut Terminal, &dyn Fn() -> bool) -> Result<Tally, BenchError> + Sync,
) -> Result<(Tally, Duration), BenchError> {
    let start = Barrier::new(terminals.len() + 1);
    // Set by the main thread when the time is over, and by a thread that failed; read by all threads.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = terminals
            .iter_mut()
            .map(|terminal| {
                scope.spawn(|| {
                    let _stop = StopOnPanic(&stop);
                    start.wait();
                    // Relaxed: a thread may do one more transaction.
                    let done = work(terminal, &|| !stop.load(Relaxed));
                    if done.is_err() {
                        stop.store(true, Relaxed);
                    }
                    done
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        while !stop.load(Relaxed) && began.elapsed() < time {
            progress.at(ms(began.elapsed()));
            std::thread::sleep(time.saturating_sub(began.elapsed()).min(LOOK));
        }
        stop.store(true, Relaxed);
        let mut all = Tally::default();
        for thread in threads {
            all.merge(&thread.join().unwrap_or(Err(BenchError::Panicked))?);
        }
        Ok((all, began.elapsed()))
    })
}

/// Stops the others when its thread panics.
struct StopOnPanic<'s>(&'s AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}
