//! One measured run with a given latch, admission limit and number of users, with or without a recording, on
//! this machine or on a simulated one.

use super::front::search::Latch;
use super::front::{Front, Probes};
use super::served::Served;
use super::shop::{Sequences, popular};
use super::store::Bookstore;
use super::users::{Connection, Crowd, Phase};
use crate::busy::Watch;
use crate::error::{BenchError, EngineError};
use crate::lab::steady::{Counter, Run, Span};
use azekura::Database;
use azekura_base::sync::machine::simulated;
use azekura_base::sync::thread;
use azekura_trace::{Options, Recording};
use azekura_workload::bookstore::Tally;
use rustix::thread::CpuSet;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Kind of the latch over the hash index.
    pub latch: Latch,
    /// Number of processors that the connections may use.
    pub processors: usize,
    /// Largest number of threads in the engine (`conc_lock`); `None` is no limit.
    pub limit: Option<usize>,
    /// The operations that a recording distinguishes.
    pub probes: Probes,
    /// Emulated users.
    pub crowd: Crowd,
    /// Warm-up time on this machine, not measured.
    pub warm_up: Duration,
    /// Windows of the rule in [`steady`](crate::lab::steady), which ends the warm-up on a simulated machine.
    pub(crate) windows: Option<Span>,
    /// Measured time. Runs without a recording on a simulated machine are measured for the windows of the
    /// rule instead.
    pub measured: Duration,
}

/// Results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Pages served, by kind, with their response times.
    pub tally: Tally,
    /// Length of the measured time.
    pub measured: Duration,
    /// Average number of processors that this process used.
    pub cpu: f64,
    /// Average number of processors that all other processes used; zero if unknown.
    pub others: f64,
    /// The recording, if one was made.
    pub recording: Option<Recording>,
    counter: Option<Counter>,
}

impl Outcome {
    /// Returns the result of the run with this seed.
    pub(super) fn run(&self, seed: u64) -> Run {
        let steady = Run { seed, rate: self.rate(), warm_up_us: 0.0, is_steady: true };
        let windows = self.counter.as_ref().map(|counter| counter.run(seed, 0));
        windows.map_or(steady.clone(), |run| Run { rate: steady.rate, ..run })
    }

    /// Returns the bogotransactions per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.tally.per_second(self.measured)
    }
}

/// Runs `setup` on a filled store. A closed store runs on its simulated machine, with this seed. Records the
/// run if `label` is given.
///
/// # Errors
///
/// An error of the store, of the recorder, or of the simulated machine.
pub fn run(
    store: &Bookstore,
    setup: &Setup,
    label: Option<String>,
    seed: u64,
) -> Result<Outcome, BenchError> {
    let setup = *setup;
    match store {
        Bookstore::Open(db, sequences) => {
            let _pinned = Pinned::to(setup.processors)?;
            serve(db, sequences, &setup, label, 0)
        }
        Bookstore::Closed(machine, files) => {
            let row_ns = machine.row_ns;
            let serve =
                move |db: &Database, sequences| serve(db, &Arc::new(sequences), &setup, label, row_ns);
            files.run(machine, (setup.processors, seed), serve)
        }
    }
}

fn serve(
    db: &Database,
    sequences: &Arc<Sequences>,
    setup: &Setup,
    label: Option<String>,
    row_ns: u64,
) -> Result<Outcome, BenchError> {
    serve_crowd(&Hall::open(db, sequences, setup, row_ns)?, setup, label)
}

/// Serves the users of `setup` on a filled store until `conduct` returns. `served` has the counts of each
/// connection, which `conduct` may read meanwhile.
///
/// # Errors
///
/// An error of the store or of `conduct`.
pub(super) fn run_by<T>(
    db: &Database,
    sequences: &Arc<Sequences>,
    setup: &Setup,
    served: &[Arc<Served>],
    conduct: impl FnOnce(&Phase) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let hall = Hall::open(db, sequences, setup, 0)?;
    let _pinned = Pinned::to(setup.processors)?;
    hall.serve(&setup.crowd, served, None, conduct).map(|(result, _)| result)
}

/// An engine with the popular rows in its hash index, and the sequences for new rows.
struct Hall {
    front: Arc<Front>,
    sequences: Arc<Sequences>,
}

impl Hall {
    fn open(
        db: &Database,
        sequences: &Arc<Sequences>,
        setup: &Setup,
        row_ns: u64,
    ) -> Result<Self, BenchError> {
        let front = Front::new(db.clone(), setup.latch, setup.limit, setup.probes).with_row_work(row_ns);
        front.warm(popular(setup.crowd.scale)).map_err(|e| EngineError::failed("warming", e))?;
        Ok(Self { front: Arc::new(front), sequences: Arc::clone(sequences) })
    }

    /// Serves the users until `conduct` returns.
    fn serve<T>(
        &self,
        crowd: &Crowd,
        served: &[Arc<Served>],
        counter: Option<&Counter>,
        conduct: impl FnOnce(&Phase) -> Result<T, BenchError>,
    ) -> Result<(T, Tally), BenchError> {
        let phase = Arc::new(Phase::default());
        let threads: Vec<_> = (0..crowd.connections)
            .map(|index| {
                let (front, sequences) = (Arc::clone(&self.front), Arc::clone(&self.sequences));
                let (served, counter) = (served.get(index).cloned(), counter.cloned());
                let connection = Connection { front, sequences, crowd: *crowd, index, served, counter };
                let phase = Arc::clone(&phase);
                thread::spawn(move || connection.run(&phase))
            })
            .collect();
        let _over = Over(&phase);
        let result = conduct(&phase);
        phase.end();
        let mut tally = Tally::default();
        for thread in threads {
            let served = thread.join().map_err(|_| BenchError::Panicked)?;
            tally.merge(&served.map_err(|e| EngineError::failed("serving a page", e))?);
        }
        Ok((result?, tally))
    }
}

fn serve_crowd(hall: &Hall, setup: &Setup, label: Option<String>) -> Result<Outcome, BenchError> {
    let counter = setup.windows.map(Counter::begin);
    let (timed, tally) = hall.serve(&setup.crowd, &[], counter.as_ref(), |phase| {
        let time = match &counter {
            None => {
                thread::sleep(setup.warm_up);
                setup.measured
            }
            Some(counter) => {
                while !counter.is_warm() {
                    thread::sleep(LOOK);
                }
                if label.is_some() { setup.measured } else { counter.measured_time() }
            }
        };
        timed(phase, time, label)
    })?;
    let Timed { measured, cpu, others, recording } = timed;
    Ok(Outcome { tally, measured, cpu, others, recording, counter })
}

/// Time between two looks at the windows of a simulated machine.
const LOOK: Duration = Duration::from_millis(1);

/// Events in the ring of each thread: enough for some milliseconds of a thread that runs without
/// interruption. The rings are small enough that all 32 stay in the cache; the start of a recording touches
/// all of them.
const RING_EVENTS: usize = 1 << 14;

/// Time from the start of a recording to the measured time. A thread allocates its ring at its first event,
/// which costs more than later events. Runs without a recording wait as long.
const SETTLE: Duration = Duration::from_millis(60);

/// Replacement for [`SETTLE`] on a simulated machine, which has no other users.
const SETTLE_SIMULATED: Duration = Duration::from_micros(500);

/// Returns the options of a recording. On a simulated machine no thread drains the rings during the run.
pub(super) fn options(label: String) -> Options {
    match simulated() {
        None => Options { label, ring_events: RING_EVENTS, ..Options::default() },
        Some(_) => Options { label, ring_events: 4 * RING_EVENTS, drain_every: None, ..Options::default() },
    }
}

/// Results of the measured part, without the pages.
struct Timed {
    measured: Duration,
    cpu: f64,
    others: f64,
    recording: Option<Recording>,
}

/// Runs the measured part of a run.
fn timed(phase: &Phase, time: Duration, label: Option<String>) -> Result<Timed, BenchError> {
    let records = label.is_some();
    if let Some(label) = label {
        azekura_trace::start(options(label)).map_err(|e| EngineError::failed("starting to record", e))?;
    }
    thread::sleep(simulated().map_or(SETTLE, |_| SETTLE_SIMULATED));
    let watch = Watch::begin();
    phase.measure();
    thread::sleep(time);
    phase.end();
    let (measured, busy) = watch.end();
    let recording = match records {
        true => Some(azekura_trace::stop().map_err(|e| EngineError::failed("ending the recording", e))?),
        false => None,
    };
    Ok(Timed { measured, cpu: busy.own, others: busy.others, recording })
}

/// Ends the phase when dropped, also on a panic; otherwise the connections would never end.
struct Over<'p>(&'p Phase);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Restricts the calling thread, and the threads that it starts, to some of its processors until it is
/// dropped.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    fn to(processors: usize) -> Result<Self, BenchError> {
        let failed = |e| EngineError::failed("choosing processors", std::io::Error::from(e));
        let before = rustix::thread::sched_getaffinity(None).map_err(failed)?;
        let mut chosen = CpuSet::new();
        (0..CpuSet::MAX_CPU)
            .filter(|&cpu| before.is_set(cpu))
            .take(processors)
            .for_each(|cpu| chosen.set(cpu));
        rustix::thread::sched_setaffinity(None, &chosen).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // These processors were allowed before, so this should not fail.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}
