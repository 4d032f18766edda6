//! One stretch of work by many threads at once.
//!
//! All sessions are open before any client starts; all clients start together; when the time is over each
//! ends the transaction it is in (and waits for its commits in flight), and that work counts. The length of
//! the phase is from the first start to the last end, so the rate is exactly the work that was done over the
//! time it took: no operation is cut off, whether it takes a microsecond or, as a scan of a table, a second.

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
    /// The work of all clients together.
    pub tally: Tally,
    /// From the first client's start to the last one's end.
    pub took: Duration,
    /// Its bytes of log records, if the engine counts them.
    pub log_bytes: Option<u64>,
    /// Resources that the process used.
    pub usage: Usage,
}

/// End of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// After this time.
    After(Duration),
    /// All streams have ended.
    WithTheWork,
}

/// Interval at which the main thread looks up while the clients work.
const LOOK: Duration = Duration::from_millis(25);

/// State shared by the threads of a phase.
struct Shared {
    start: Barrier,
    /// Set by the main thread when the time is over, and by a client that failed; read by all clients.
    stop: AtomicBool,
    /// Clients that have not ended. Each takes itself off; the main thread waits for zero.
    working: AtomicUsize,
    /// Operations done, for the progress bar only. Clients add, the main thread reads.
    done: AtomicU64,
}

/// Runs one client per stream, each in a thread of its own. `watch` is told now and then how long the phase
/// has lasted and how many operations are done.
///
/// # Errors
///
/// The first client's failure, in the order of the streams. The others stop soon.
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

/// Takes one off the count of working clients, also when its thread panics.
struct Working<'s>(&'s Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Relaxed);
        }
        // Release: pairs with Acquire in `supervise`; not needed for correctness (join orders everything),
        // but cheap and plain.
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
    // All threads come to the barrier, also those without a session, or the others would wait for ever.
    shared.start.wait();
    let began = Instant::now();
    let mut counted = 0;
    let result = session.map_err(BenchError::from).and_then(|mut session| {
        client::run(session.as_mut(), stream, manner, |ops| {
            // Relaxed: the bar may lag.
            if ops - counted >= 1_000 {
                shared.done.fetch_add(ops - counted, Relaxed);
                counted = ops;
            }
            // Relaxed: a client may do one more transaction.
            !shared.stop.load(Relaxed)
        })
    });
    let ended = Instant::now();
    if result.is_err() {
        shared.stop.store(true, Relaxed);
    }
    Ok(Ended { began, ended, tally: result? })
}

/// The main thread's part: watches the clients, and ends the phase.
fn supervise(shared: &Shared, end: End, watch: &mut dyn FnMut(Duration, u64)) {
    let began = Instant::now();
    // Acquire: pairs with Release in `Working::drop`.
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
        // Short phases are looked at often, so that a phase with finished work does not linger.
        std::thread::sleep(left.min(LOOK));
    }
    if matches!(end, End::After(_)) {
        shared.stop.store(true, Relaxed);
    }
}
