//! One phase of work by many threads at once.
//!
//! All sessions are open before any client starts, and all clients start together. When the time is over,
//! each client finishes its transaction and waits for its commits in flight, which all count. The length of
//! the phase is from the first start to the last end. The rate is thus exactly the completed work over its
//! time: no operation is cut off, whether it takes a microsecond or, as a table scan, a second.

use crate::client::{self, Manner, Tally};
use crate::engine::Store;
use crate::error::BenchError;
use crate::usage::{Meter, Usage};
use azekura_base::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use azekura_workload::Stream;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Results of a phase.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Counts of all clients together.
    pub tally: Tally,
    /// Time from the first client's start to the last one's end.
    pub took: Duration,
    /// Bytes of log records, if the engine counts them.
    pub log_bytes: Option<u64>,
    /// Resources that the process used.
    pub usage: Usage,
}

/// End of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The phase ends after this time.
    After(Duration),
    /// The phase ends when all streams have ended.
    WithTheWork,
}

/// Interval at which the main thread updates the progress and checks for the end.
const LOOK: Duration = Duration::from_millis(25);

/// State shared by the threads of a phase.
struct Shared {
    start: Barrier,
    /// Set by the main thread when the time is over, and by a client that failed; all clients read it.
    stop: AtomicBool,
    /// Number of clients that have not ended. Each client decrements it; the main thread waits for zero.
    working: AtomicUsize,
    /// Number of completed operations, for the progress bar only. Clients add to it; the main thread reads
    /// it.
    done: AtomicU64,
}

/// Runs one client per stream, each in its own thread. Calls `watch` regularly with the elapsed time and the
/// number of completed operations.
///
/// # Errors
///
/// The error of the first failed client, in the order of the streams. The other clients stop soon.
pub fn run(
    store: &dyn Store,
    streams: &mut [Stream],
    manner: Manner,
    end: End,
    watch: &mut dyn FnMut(Duration, u64),
) -> Result<Measured, BenchError> {
    let shared = Shared {
        start: Barrier::new(streams.len() + 1),
        stop: AtomicBool::new(false),
        working: AtomicUsize::new(streams.len()),
        done: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            streams.iter_mut().map(|stream| scope.spawn(|| client(store, stream, manner, &shared))).collect();
        let log = store.log_bytes();
        let meter = Meter::begin();
        shared.start.wait();
        supervise(&shared, end, watch);
        let ended: Vec<Ended> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or(Err(BenchError::Panicked)))
            .collect::<Result<_, _>>()?;
        Ok(Measured {
            took: length(&ended),
            log_bytes: log.zip(store.log_bytes()).map(|(before, after)| after.saturating_sub(before)),
            usage: meter.end(),
            tally: ended.iter().fold(Tally::default(), |mut all, one| {
                all.merge(&one.tally);
                all
            }),
        })
    })
}

struct Ended {
    began: Instant,
    ended: Instant,
    tally: Tally,
}

fn length(ended: &[Ended]) -> Duration {
    let began = ended.iter().map(|e| e.began).min();
    let last = ended.iter().map(|e| e.ended).max();
    began.zip(last).map_or(Duration::ZERO, |(began, last)| last - began)
}

/// Decrements the number of working clients when dropped, also on a panic.
struct Working<'s>(&'s Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Relaxed);
        }
        // Release: pairs with the Acquire in `supervise`. Correctness does not depend on it, because `join`
        // orders everything.
        self.0.working.fetch_sub(1, Release);
    }
}

fn client(
    store: &dyn Store,
    stream: &mut Stream,
    manner: Manner,
    shared: &Shared,
) -> Result<Ended, BenchError> {
    let _working = Working(shared);
    let session = store.session();
    // A thread without a session waits at the barrier too; otherwise the others would wait forever.
    shared.start.wait();
    let began = Instant::now();
    let mut counted = 0;
    let result = session.map_err(BenchError::from).and_then(|mut session| {
        client::run(session.as_mut(), stream, manner, |ops| {
            // Relaxed: the progress bar may lag behind.
            if ops - counted >= 1_000 {
                shared.done.fetch_add(ops - counted, Relaxed);
                counted = ops;
            }
            // Relaxed: a client may run one more transaction.
            !shared.stop.load(Relaxed)
        })
    });
    let ended = Instant::now();
    if result.is_err() {
        shared.stop.store(true, Relaxed);
    }
    Ok(Ended { began, ended, tally: result? })
}

/// Watches the clients in the main thread, and ends the phase.
fn supervise(shared: &Shared, end: End, watch: &mut dyn FnMut(Duration, u64)) {
    let began = Instant::now();
    // Acquire: pairs with the Release in `Working::drop`.
    while shared.working.load(Acquire) > 0 {
        let elapsed = began.elapsed();
        watch(elapsed, shared.done.load(Relaxed));
        let left = match end {
            End::After(time) => time.saturating_sub(elapsed),
            End::WithTheWork => LOOK,
        };
        if left.is_zero() {
            break;
        }
        // The short interval notices early that all work is done.
        std::thread::sleep(left.min(LOOK));
    }
    if matches!(end, End::After(_)) {
        shared.stop.store(true, Relaxed);
    }
}
