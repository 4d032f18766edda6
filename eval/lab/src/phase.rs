//! One phase of work by many threads at once.
//!
//! All sessions are open before any client starts, and all clients start together. When the time is over,
//! each client finishes its transaction and waits for its commits in flight, which all count. The length of
//! the phase is from the first start to the last end. The rate is thus exactly the completed work over its
//! time: no operation is cut off, whether it takes a microsecond or, as a table scan, a second.

use crate::client::{self, Mode, Tally};
use crate::engine::Store;
use crate::error::BenchError;
use crate::usage::{Meter, Usage};
use azekura_base::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use azekura_workload::Stream;
use std::sync::RwLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;
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
    /// Locked by the main thread until all clients have opened their sessions; each client then reads it.
    start: RwLock<()>,
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
/// [`BenchError::Thread`] if the system cannot start a client's thread.
pub fn run(
    store: &dyn Store,
    streams: &mut [Stream],
    mode: Mode,
    end: End,
    watch: &mut dyn FnMut(Duration, u64),
) -> Result<Measured, BenchError> {
    let shared = Shared {
        start: RwLock::new(()),
        stop: AtomicBool::new(false),
        working: AtomicUsize::new(streams.len()),
        done: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let closed = shared.start.write();
        let (opening, opened) = channel();
        let mut clients = Vec::with_capacity(streams.len());
        for stream in streams.iter_mut() {
            let (shared, opening) = (&shared, opening.clone());
            let work = move || client(store, stream, mode, shared, opening);
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(client) => clients.push(client),
                Err(source) => {
                    shared.stop.store(true, Relaxed);
                    return Err(BenchError::Thread { source }); // which unlocks `start`
                }
            }
        }
        drop(opening);
        // An error: each client has dropped its sender, because its session is open, or because it panicked.
        let _ = opened.recv();
        let log = store.log_bytes();
        let meter = Meter::begin();
        drop(closed);
        supervise(&shared, end, watch);
        // All clients are joined before an error is returned: a scope panics if a client that was not joined
        // has panicked.
        let joined: Vec<_> =
            clients.into_iter().map(|client| client.join().unwrap_or(Err(BenchError::Panicked))).collect();
        let ended = joined.into_iter().collect::<Result<Vec<Ended>, _>>()?;
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
    mode: Mode,
    shared: &Shared,
    opening: Sender<()>,
) -> Result<Ended, BenchError> {
    let _working = Working(shared);
    let session = store.session();
    drop(opening);
    drop(shared.start.read());
    let began = Instant::now();
    let mut counted = 0;
    let result = session.map_err(BenchError::from).and_then(|mut session| {
        client::run(session.as_mut(), stream, mode, |ops| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Session;
    use crate::error::EngineError;
    use crate::plan::Commit;
    use azekura_workload::{Lane, Workload};

    /// A store with sessions that cannot be opened: the third one panics.
    struct Broken(AtomicUsize);

    impl Store for Broken {
        fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
            assert_ne!(self.0.fetch_add(1, Relaxed), 2, "the third session");
            Err(EngineError::failed("opening a session", "it is broken"))
        }
    }

    #[test]
    fn a_client_that_panics_before_the_start_ends_the_phase() {
        let workload: Workload = "u1".parse().unwrap();
        let population = workload.population();
        let mut streams: Vec<_> =
            (0..4).map(|lane| workload.stream(&population, Lane::new(lane, 4), 1)).collect();
        let mode = Mode::of(&workload, 4, Commit::Blocking);
        let end = End::After(Duration::from_secs(3600));
        let ended = run(&Broken(AtomicUsize::new(0)), &mut streams, mode, end, &mut |_, _| {});
        assert!(matches!(ended, Err(BenchError::Engine(_) | BenchError::Panicked)), "{ended:?}");
    }
}
