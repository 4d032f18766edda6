//! TPC-C on several engines, for comparison. Each engine stores the tables in one ordered keyspace
//! ([`keyed`](super::keyed)) and runs the same transactions.
//!
//! As in [`crate::compare()`], a store is loaded once per engine and opened again for every run, and the runs
//! of a cell are interleaved. At the end the consistency conditions of each store are checked: an engine that
//! loses an update has no figures.

use super::check::check_rows;
use super::client::run_with;
use super::keyed::KeyedRows;
use super::load::load_store;
use super::phase::run_threads;
use super::schema::Loaded;
use super::session::OnSession;
use super::standing::{Cell, Ran, Standing};
use crate::compare::Failure;
use crate::engine::{Engine, EngineSettings};
use crate::error::{BenchError, EngineError};
use crate::plan::Commit;
use crate::prepare;
use crate::progress::{Progress, ms};
use crate::rounds::interleaved;
use crate::usage::Meter;
use azekura_workload::Lane;
use azekura_workload::tpcc::{Mix, Scale, Terminal};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a comparison.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Size of each store.
    pub scale: Scale,
    /// Mix of transactions.
    pub mix: Mix,
    /// Numbers of client threads; each is a cell.
    pub threads: Vec<usize>,
    /// Numbers of commits in flight over all threads; each is an additional cell on engines that pipeline.
    pub in_flight: Vec<usize>,
    /// Measured time of a run.
    pub measured: Duration,
    /// Warm-up time before the measured time.
    pub warm_up: Duration,
    /// Number of runs of each cell; the report shows the median.
    pub runs: usize,
    /// Seed of the rows and the inputs.
    pub seed: u64,
    /// Cache size of each engine, in bytes.
    pub cache_bytes: u64,
    /// Directory of the stores.
    pub dir: PathBuf,
    /// Keeps the stores at the end.
    pub keep: bool,
}

/// Results of a comparison.
#[derive(Debug, Default)]
pub struct Standings {
    /// One result per cell and engine.
    pub standings: Vec<Standing>,
    /// Engines that failed, with their errors.
    pub failures: Vec<Failure>,
}

/// Runs the comparison. Calls `each` with each result as soon as its cell is complete.
///
/// # Errors
///
/// The directory cannot be created. Failures of engines, including violated conditions, are in the result.
pub fn contest(
    engines: &[Box<dyn Engine>],
    contest: &Contest,
    progress: &Progress,
    each: &mut dyn FnMut(&Standing),
) -> Result<Standings, BenchError> {
    std::fs::create_dir_all(&contest.dir).map_err(BenchError::io("making", &contest.dir))?;
    let mut all = Running { contest, progress, entrants: Vec::new(), runs: 0, outcome: Standings::default() };
    for engine in engines {
        match all.load(engine.as_ref()) {
            Ok(loaded) => all.entrants.push(Entrant { engine: engine.as_ref(), loaded }),
            Err(error) => all.fail(engine.as_ref(), 0, error),
        }
    }
    for &threads in &contest.threads {
        let pipelined = contest.in_flight.iter().map(|&n| Commit::Pipelined { in_flight: n });
        for commit in std::iter::once(Commit::Blocking).chain(pipelined) {
            all.cell(threads, commit, each);
        }
    }
    all.check();
    all.clean_up(engines);
    progress.finish();
    Ok(all.outcome)
}

/// An engine that has not failed, with its loaded data.
struct Entrant<'a> {
    engine: &'a dyn Engine,
    loaded: Loaded,
}

struct Running<'a> {
    contest: &'a Contest,
    progress: &'a Progress,
    entrants: Vec<Entrant<'a>>,
    /// Number of rounds so far; each round has its own seed, the same for all engines.
    runs: u64,
    outcome: Standings,
}

impl<'a> Running<'a> {
    fn workload(&self) -> &'static str {
        match self.contest.mix {
            Mix::Full => "tpcc",
            Mix::NewOrder => "tpcc-new-order",
        }
    }

    fn fail(&mut self, engine: &dyn Engine, threads: usize, error: BenchError) {
        let (workload, engine) = (self.workload().to_owned(), engine.name().to_owned());
        let failure = Failure { workload, engine, threads, error };
        self.progress.line(&failure.to_string());
        self.outcome.failures.push(failure);
    }

    fn dir(&self, engine: &dyn Engine) -> PathBuf {
        self.contest.dir.join(format!("{}-{}", self.workload(), engine.name()))
    }

    fn settings(&self) -> EngineSettings {
        let scale = self.contest.scale;
        EngineSettings {
            cache_bytes: Some(self.contest.cache_bytes),
            // About 100 MB per warehouse at full scale, and as much again for the rows that the runs add.
            expected_bytes: u64::from(scale.warehouses()) * (200 << 20) / u64::from(scale.divisor())
                + (64 << 20),
            sessions: self.contest.threads.iter().copied().max().unwrap_or(1).max(loading_threads()),
            bypass_page_cache: false,
        }
    }

    fn load(&self, engine: &dyn Engine) -> Result<Loaded, BenchError> {
        if !engine.isolates() {
            let why = "its transactions are not isolated, so TPC-C's conditions would not hold";
            return Err(EngineError::failed("running TPC-C", why).into());
        }
        let dir = self.dir(engine);
        prepare::fresh_dir(&dir)?;
        let store = engine.open(&dir, &self.settings())?;
        let Contest { scale, seed, .. } = *self.contest;
        let loaded = load_store(store.as_ref(), scale, seed, loading_threads(), self.progress)?;
        store.close()?;
        prepare::sync_files(&dir)?;
        Ok(loaded)
    }

    /// Runs all rounds of one cell and reports the results.
    fn cell(&mut self, threads: usize, commit: Commit, each: &mut dyn FnMut(&Standing)) {
        let takes_part = |e: &Entrant<'_>| commit == Commit::Blocking || e.engine.pipelines();
        let takes_part: Vec<bool> = self.entrants.iter().map(takes_part).collect();
        let (rounds, before) = (self.contest.runs.max(1), self.runs);
        let runs = interleaved(rounds, &takes_part, |round, at| {
            self.run(&self.entrants[at], threads, commit, before + round as u64 + 1)
        });
        self.runs += rounds as u64;
        for (entrant, runs) in std::mem::take(&mut self.entrants).into_iter().zip(runs) {
            match runs {
                Err(error) => self.fail(entrant.engine, threads, error),
                Ok(runs) => {
                    if let Some(standing) = self.standing(entrant.engine, threads, commit, &runs) {
                        each(&standing);
                        self.outcome.standings.push(standing);
                    }
                    self.entrants.push(entrant);
                }
            }
        }
    }

    /// Makes one run: opens the store, warms up, measures, and closes.
    fn run(
        &self,
        entrant: &Entrant<'a>,
        threads: usize,
        commit: Commit,
        run: u64,
    ) -> Result<Ran, BenchError> {
        let (dir, contest) = (self.dir(entrant.engine), self.contest);
        let store = entrant.engine.open(&dir, &self.settings())?;
        let seed = contest.seed.wrapping_add(run << 32);
        let mut terminals: Vec<Terminal> = (0..threads as u64)
            .map(|i| {
                let lane = Lane::new(i, threads as u64);
                Terminal::new(contest.scale, entrant.loaded.constants, contest.mix, lane, seed)
            })
            .collect();
        let window = (commit != Commit::Blocking).then(|| commit.window(threads));
        let mut phase = |what: &str, time: Duration| {
            let what = format!("{what} {} {}, {threads} threads", self.workload(), entrant.engine.name());
            self.progress.begin(&what, ms(time));
            run_threads(&mut terminals, time, self.progress, |terminal, go_on| {
                run_with(OnSession(store.session()?), terminal, window, go_on)
            })
        };
        if !contest.warm_up.is_zero() {
            phase("warming up", contest.warm_up)?;
        }
        let meter = Meter::begin();
        let (tally, took) = phase("measuring", contest.measured)?;
        let usage = meter.end();
        store.close()?;
        prepare::sync_files(&dir)?;
        Ok(Ran { tally, took, usage, disk_bytes: prepare::disk_bytes(&dir)? })
    }

    fn standing(
        &self,
        engine: &dyn Engine,
        threads: usize,
        commit: Commit,
        runs: &[Ran],
    ) -> Option<Standing> {
        let cell = Cell {
            workload: self.workload().to_owned(),
            commit: commit.word().to_owned(),
            threads,
            in_flight: commit.in_flight(threads),
            warehouses: self.contest.scale.warehouses(),
            scale_divisor: self.contest.scale.divisor(),
        };
        Standing::of(engine.name().to_owned(), cell, runs, engine.describe(&self.settings()))
    }

    /// Checks the conditions of each store. An engine that violates one loses its figures.
    fn check(&mut self) {
        for Entrant { engine, loaded } in std::mem::take(&mut self.entrants) {
            if let Err(error) = self.check_one(engine, &loaded) {
                self.outcome.standings.retain(|standing| standing.engine != engine.name());
                self.fail(engine, 0, error);
            }
        }
    }

    fn check_one(&self, engine: &dyn Engine, loaded: &Loaded) -> Result<(), BenchError> {
        let store = engine.open(&self.dir(engine), &self.settings())?;
        let mut checked = None;
        let mut session = store.session()?;
        session.read(&mut |reader| {
            checked = Some(check_rows(&KeyedRows::reading(reader), loaded, self.progress)?);
            Ok(())
        })?;
        drop(session);
        store.close()?;
        match checked.as_ref().and_then(|checked| checked.violations.first().map(|first| (checked, first))) {
            None => Ok(()),
            Some((checked, first)) => {
                Err(BenchError::Inconsistent { violated: checked.violated, first: first.to_string() })
            }
        }
    }

    /// Removes the stores, unless the comparison keeps them. A store that cannot be removed is reported and
    /// remains.
    fn clean_up(&self, engines: &[Box<dyn Engine>]) {
        for engine in engines.iter().filter(|_| !self.contest.keep) {
            if let Err(error) = prepare::remove_dir(&self.dir(engine.as_ref())) {
                self.progress.line(&error.to_string());
            }
        }
    }
}

fn loading_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
