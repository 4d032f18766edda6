//! One measured run: a latch, a limit, a crowd, with or without a recording; on this machine or on a
//! simulated one.

use super::front::search::Latch;
use super::front::{Front, Probes};
use super::served::Served;
use super::shop::{Sequences, popular};
use super::store::Bookstore;
use super::users::{Connection, Crowd, Phase};
use crate::busy::Watch;
use crate::error::{BenchError, EngineError};
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
    /// The latch over the hash index.
    pub latch: Latch,
    /// Processors that the connections may use.
    pub processors: usize,
    /// Threads let into the engine at once (`conc_lock`); `None`: all.
    pub limit: Option<usize>,
    /// The operations that a recording distinguishes.
    pub probes: Probes,
    /// The users.
    pub crowd: Crowd,
    /// Time before the measured one.
    pub warm_up: Duration,
    /// Measured time.
    pub measured: Duration,
}

/// Results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Pages answered.
    pub tally: Tally,
    /// The measured time.
    pub measured: Duration,
    /// CPU time of the process over measured time: 2.0 is two processors.
    pub cpu: f64,
    /// CPU time of all other processes of the machine, likewise; zero where it is not known.
    pub others: f64,
    /// The recording, if one was made.
    pub recording: Option<Recording>,
}

impl Outcome {
    /// Bogotransactions per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.tally.per_second(self.measured)
    }
}

/// Runs `setup` on a filled store; a closed one on its simulated machine, with that seed. Records if `label`
/// is given.
///
/// # Errors
///
/// The store's, the recorder's, and the simulated machine's.
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

/// Serves the crowd of `setup` on a filled store while `conduct` conducts; `served` are counts to be looked
/// at meanwhile, one for each connection.
///
/// # Errors
///
/// The store's, and the conductor's.
pub(super) fn run_by<T>(
    db: &Database,
    sequences: &Arc<Sequences>,
    setup: &Setup,
    served: &[Arc<Served>],
    conduct: impl FnOnce(&Phase) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let hall = Hall::open(db, sequences, setup, 0)?;
    let _pinned = Pinned::to(setup.processors)?;
    hall.serve(&setup.crowd, served, conduct).map(|(result, _)| result)
}

/// An engine with the frequent rows in its hash index, and the numbers for new rows.
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

    /// Serves the crowd until `conduct` is done.
    fn serve<T>(
        &self,
        crowd: &Crowd,
        served: &[Arc<Served>],
        conduct: impl FnOnce(&Phase) -> Result<T, BenchError>,
    ) -> Result<(T, Tally), BenchError> {
        let phase = Arc::new(Phase::default());
        let threads: Vec<_> = (0..crowd.connections)
            .map(|index| {
                let (front, sequences) = (Arc::clone(&self.front), Arc::clone(&self.sequences));
                let served = served.get(index).cloned();
                let connection = Connection { front, sequences, crowd: *crowd, index, served };
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
    let (timed, tally) = hall.serve(&setup.crowd, &[], |phase| {
        thread::sleep(setup.warm_up);
        timed(phase, setup.measured, label)
    })?;
    let Timed { measured, cpu, others, recording } = timed;
    Ok(Outcome { tally, measured, cpu, others, recording })
}

/// Events that a thread's ring holds: some milliseconds of a thread that has a processor for itself. Small,
/// for 32 of them are touched when a recording starts, and stay in the cache.
const RING_EVENTS: usize = 1 << 14;

/// From a recording's start to the measured time: threads get their rings at their first events, which costs
/// more than events do. Runs without a recording wait as long.
const SETTLE: Duration = Duration::from_millis(60);

/// The same on a simulated machine without other users.
const SETTLE_SIMULATED: Duration = Duration::from_micros(500);

/// Options of a recording. On a simulated machine no thread drains the rings meanwhile.
pub(super) fn options(label: String) -> Options {
    match simulated() {
        None => Options { label, ring_events: RING_EVENTS, ..Options::default() },
        Some(_) => Options { label, ring_events: 4 * RING_EVENTS, drain_every: None, ..Options::default() },
    }
}

/// Results of the measured part besides pages.
struct Timed {
    measured: Duration,
    cpu: f64,
    others: f64,
    recording: Option<Recording>,
}

/// The measured part.
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

/// Ends the phase whatever happens, or the connections would never leave.
struct Over<'p>(&'p Phase);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The calling thread, and those it makes, on some of its processors only; until dropped.
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
        // It was so before: it can be so again.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}
