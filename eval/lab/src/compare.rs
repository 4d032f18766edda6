//! Runs a plan over several engines. The runs of a cell are interleaved: first one run of every engine, then
//! the next run of every engine, each round beginning with another engine. A slow minute of the machine then
//! affects all engines alike.
//!
//! Each store is filled once per workload and engine, and is opened again for every run; only one store is
//! open at a time. An engine that fails is excluded from the rest of the workload and reported; the others
//! continue.

use crate::client::Mode;
use crate::engine::Engine;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::phase::{self, End, Measured};
use crate::plan::{Commit, Plan};
use crate::prepare;
use crate::progress::{Progress, ms};
use crate::report::Report;
use crate::rounds::interleaved;
use crate::settings::Cell;
use azekura_workload::{Family, Population, Workload};
use std::sync::Arc;

/// Results of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One report per cell and engine.
    pub reports: Vec<Report>,
    /// Engines that failed, with their errors.
    pub failures: Vec<Failure>,
    /// Workloads that were skipped because the engine does not support them.
    pub lacking: Vec<Lack>,
}

/// A workload that an engine does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine.
    pub engine: String,
    /// The ability that the engine lacks.
    pub what: &'static str,
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} does not run {}: it has {}", self.engine, self.workload, self.what)
    }
}

/// The failure of an engine in a workload, or in the rest of it.
#[derive(Debug)]
pub struct Failure {
    /// Name of the workload.
    pub workload: String,
    /// Name of the engine.
    pub engine: String,
    /// Client threads of the run; 0 while the store was being filled.
    pub threads: usize,
    /// The error of the engine or of the check.
    pub error: BenchError,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} left out of {} ({} threads): {}",
            self.engine, self.workload, self.threads, self.error
        )?;
        let mut source = std::error::Error::source(&self.error);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Runs the plan. Calls `each` with every report as soon as its cell is complete.
///
/// # Errors
///
/// The plan's directory cannot be created. Failures of engines are in the outcome.
pub fn compare(
    engines: &[Box<dyn Engine>],
    plan: &Plan,
    progress: &Progress,
    each: &mut dyn FnMut(&Report),
) -> Result<Outcome, BenchError> {
    std::fs::create_dir_all(&plan.dir).map_err(BenchError::io("making", &plan.dir))?;
    let machine = Machine::here(&plan.dir);
    let mut outcome = Outcome::default();
    for workload in &plan.workloads {
        let mut contest =
            Contest { plan, workload, progress, machine: &machine, entrants: Vec::new(), runs: 0 };
        contest.enter(engines, &mut outcome);
        for threads in plan.threads_for(workload, machine.cores) {
            for commit in plan.commits(workload) {
                contest.cell(threads, commit, &mut outcome, each);
            }
        }
        contest.clean_up(engines);
    }
    progress.finish();
    Ok(outcome)
}

/// One workload over all engines that support it.
struct Contest<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    progress: &'a Progress,
    machine: &'a Machine,
    entrants: Vec<Entrant<'a>>,
    /// Number of rounds so far; each round has its own seed, the same for all engines.
    runs: u64,
}

/// An engine that has not failed in this workload, with the records in its store.
struct Entrant<'a> {
    engine: &'a dyn Engine,
    population: Arc<Population>,
}

impl<'a> Contest<'a> {
    fn enter(&mut self, engines: &'a [Box<dyn Engine>], outcome: &mut Outcome) {
        for engine in engines {
            let engine = engine.as_ref();
            if let Some(what) = engine.lacks(self.workload) {
                let lack =
                    Lack { workload: self.workload.to_string(), engine: engine.name().to_owned(), what };
                self.progress.line(&lack.to_string());
                outcome.lacking.push(lack);
                continue;
            }
            match self.fill(engine) {
                Ok(()) => self.entrants.push(Entrant { engine, population: self.workload.population() }),
                Err(error) => self.fail(engine, 0, error, outcome),
            }
        }
    }

    fn fail(&self, engine: &dyn Engine, threads: usize, error: BenchError, outcome: &mut Outcome) {
        let failure =
            Failure { workload: self.workload.to_string(), engine: engine.name().to_owned(), threads, error };
        self.progress.line(&failure.to_string());
        outcome.failures.push(failure);
    }

    fn fill(&self, engine: &dyn Engine) -> Result<(), BenchError> {
        if self.workload.is_load() {
            return Ok(());
        }
        let cell = Cell { engine, workload: self.workload, threads: 1, commit: Commit::Blocking };
        let dir = cell.store_dir(self.plan);
        prepare::fresh_dir(&dir)?;
        self.progress
            .begin(&format!("{} {}: filling", self.workload, engine.name()), self.workload.records());
        let store = engine.open(&dir, &cell.engine_settings(self.plan))?;
        prepare::fill(store.as_ref(), &self.workload.dataset(), &mut |done| self.progress.at(done))?;
        store.close()?;
        prepare::sync_files(&dir)
    }

    /// Runs all rounds of one cell and reports the results.
    fn cell(&mut self, threads: usize, commit: Commit, outcome: &mut Outcome, each: &mut dyn FnMut(&Report)) {
        let takes_part = |e: &Entrant<'_>| commit == Commit::Blocking || e.engine.pipelines();
        let takes_part: Vec<bool> = self.entrants.iter().map(takes_part).collect();
        let (rounds, before) = (self.plan.runs.max(1), self.runs);
        let runs = interleaved(rounds, &takes_part, |round, at| {
            let Entrant { engine, population } = &self.entrants[at];
            let cell = Cell { engine: *engine, workload: self.workload, threads, commit };
            self.run(&cell, population, round, before + round as u64 + 1)
        });
        self.runs += rounds as u64;
        for (entrant, runs) in std::mem::take(&mut self.entrants).into_iter().zip(runs) {
            match runs {
                Err(error) => self.fail(entrant.engine, threads, error, outcome),
                Ok(runs) => {
                    if !runs.is_empty() {
                        let cell = Cell { engine: entrant.engine, workload: self.workload, threads, commit };
                        let report = Report::new(&cell, self.plan, self.machine, &runs);
                        each(&report);
                        outcome.reports.push(report);
                    }
                    self.entrants.push(entrant);
                }
            }
        }
    }

    /// Makes one run: opens the store, prepares the cache, warms up, measures, checks the answers, and
    /// closes.
    fn run(
        &self,
        cell: &Cell<'_>,
        population: &Arc<Population>,
        run: usize,
        seed: u64,
    ) -> Result<Measured, BenchError> {
        let dir = cell.store_dir(self.plan);
        let family = self.workload.family();
        match family {
            _ if self.workload.is_load() => prepare::fresh_dir(&dir)?,
            Family::LargerThanCache => prepare::cool(&dir)?,
            _ => {}
        }
        let store = cell.engine.open(&dir, &cell.engine_settings(self.plan))?;
        if !self.workload.is_load() && family != Family::LargerThanCache {
            prepare::warm_and_check(store.as_ref(), population.horizon())?;
        }
        let seed = self.plan.seed.wrapping_add(seed << 32);
        let mut streams: Vec<_> =
            cell.lanes().map(|lane| self.workload.stream(population, lane, seed)).collect();
        let mode = Mode::of(self.workload, cell.threads, cell.commit);
        let warm_up = self.plan.warm_up;
        if !warm_up.is_zero() && !self.workload.is_load() {
            phase::run(store.as_ref(), &mut streams, mode, End::After(warm_up), &mut |_, _| {})?;
        }

        let what = format!(
            "{} {} {} threads, run {}/{}",
            self.workload,
            cell.engine.name(),
            cell.threads,
            run + 1,
            self.plan.runs
        );
        let measured = if self.workload.is_load() {
            self.progress.begin(&what, self.workload.records());
            phase::run(store.as_ref(), &mut streams, mode, End::WithTheWork, &mut |_, ops| {
                self.progress.at(ops);
            })?
        } else {
            self.progress.begin(&what, ms(self.plan.measured));
            let end = End::After(self.plan.measured);
            phase::run(store.as_ref(), &mut streams, mode, end, &mut |time, _| self.progress.at(ms(time)))?
        };
        check(self.workload, &measured, population)?;
        if self.workload.is_load() {
            prepare::warm_and_check(store.as_ref(), self.workload.records())?;
        }
        store.close()?;
        prepare::sync_files(&dir)?;
        Ok(measured)
    }

    /// Removes the stores, unless the plan keeps them. A store that cannot be removed is reported and
    /// remains.
    fn clean_up(&self, engines: &[Box<dyn Engine>]) {
        if self.plan.keep {
            return;
        }
        for engine in engines {
            let cell = Cell {
                engine: engine.as_ref(),
                workload: self.workload,
                threads: 1,
                commit: Commit::Blocking,
            };
            if let Err(error) = prepare::remove_dir(&cell.store_dir(self.plan)) {
                self.progress.line(&error.to_string());
            }
        }
    }
}

/// Checks that the reads of a phase found every record that they requested.
///
/// # Errors
///
/// [`BenchError::WrongAnswer`].
pub fn check(workload: &Workload, measured: &Measured, population: &Population) -> Result<(), BenchError> {
    let tally = &measured.tally;
    if tally.missing > 0 {
        return Err(BenchError::WrongAnswer {
            what: "reads that found nothing",
            expected: 0,
            found: tally.missing,
        });
    }
    let expected = tally.reads.count() * population.horizon();
    if workload.scans_all() && tally.ops != expected {
        return Err(BenchError::WrongAnswer { what: "records scanned", expected, found: tally.ops });
    }
    Ok(())
}
