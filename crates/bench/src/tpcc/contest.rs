//! TPC-C over several engines, side by side: each keeps the tables in one ordered keyspace ([`keyed`](super::keyed)), and runs the same transactions.
//!
//! As [`crate::compare()`]: a store is loaded once per engine and opened anew for every run; of each cell first one run of every engine, then the
//! next, each time beginning with another one. At the end the consistency conditions are checked over each store: an engine that loses an
//! update has no figures.

use super::check::check_rows;
use super::client::{KindTally, Tally, execute};
use super::keyed::KeyedRows;
use super::load::load_store;
use super::phase::run_threads;
use super::schema::{Loaded, UnusedItem};
use crate::compare::Failure;
use crate::engine::{Engine, EngineSettings, Session, Store, Ticket};
use crate::error::{BenchError, EngineError};
use crate::latency::Latencies;
use crate::plan::Commit;
use crate::prepare;
use crate::progress::{Progress, ms};
use azekura_workload::Lane;
use azekura_workload::tpcc::{Input, Kind, Mix, Scale, Terminal};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to run.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Size of each store.
    pub scale: Scale,
    /// Which transactions.
    pub mix: Mix,
    /// Client threads of each cell.
    pub threads: Vec<usize>,
    /// Commits in flight over all threads of further cells, for engines that pipeline.
    pub in_flight: Vec<usize>,
    /// Measured stretch of a run.
    pub measured: Duration,
    /// Unmeasured stretch before it.
    pub warm_up: Duration,
    /// Runs of each cell; the median counts.
    pub runs: usize,
    /// Seed of rows and inputs.
    pub seed: u64,
    /// Each engine's cache.
    pub cache_bytes: u64,
    /// Where the stores go.
    pub dir: PathBuf,
    /// Keeps them.
    pub keep: bool,
}

/// One engine in one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// The engine's name.
    pub engine: String,
    /// `tpcc`, or `tpcc-new-order`.
    pub workload: String,
    /// `blocking` or `pipelined`.
    pub commit: String,
    /// Client threads.
    pub threads: usize,
    /// Commits that could be in flight over all threads together.
    pub in_flight: usize,
    /// Warehouses.
    pub warehouses: u32,
    /// What the specification's numbers of rows were divided by.
    pub scale_divisor: u32,
    /// Transactions committed a second: the median of the runs.
    pub ops_per_s: f64,
    /// The same of each run.
    pub ops_per_s_runs: Vec<f64>,
    /// New-Orders committed a minute, by the same run. Not an audited tpmC: no think times.
    pub new_orders_per_minute: f64,
    /// Median latency of all transactions of all runs.
    pub p50_us: f64,
    /// Latency that 99 % did not exceed.
    pub p99_us: f64,
    /// The same of New-Order by itself.
    pub new_order_p99_us: f64,
    /// How often transactions were run again.
    pub retries: u64,
    /// What the engine says of itself.
    pub settings: BTreeMap<String, String>,
}

/// What a contest brought.
#[derive(Debug, Default)]
pub struct Standings {
    /// One per cell and engine.
    pub standings: Vec<Standing>,
    /// Engines that were left out.
    pub failures: Vec<Failure>,
}

/// Runs it. `each` gets a standing as soon as its cell is done.
///
/// # Errors
///
/// The directory cannot be made. What engines do wrong, violated conditions among it, is in the answer.
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
    all.clean_up();
    progress.finish();
    Ok(all.outcome)
}

/// An engine that has not failed.
struct Entrant<'a> {
    engine: &'a dyn Engine,
    loaded: Loaded,
}

struct Running<'a> {
    contest: &'a Contest,
    progress: &'a Progress,
    entrants: Vec<Entrant<'a>>,
    /// Rounds made so far; each has a seed of its own, the same for all engines.
    runs: u64,
    outcome: Standings,
}

/// What one run brought.
struct Ran {
    tally: Tally,
    seconds: f64,
}

impl Ran {
    fn rate(&self) -> f64 {
        self.tally.committed() as f64 / self.seconds.max(1e-9)
    }
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
            cache_bytes: self.contest.cache_bytes,
            // About 100 MB a warehouse at full scale, and as much again for what runs add.
            expected_bytes: u64::from(scale.warehouses()) * (200 << 20) / u64::from(scale.divisor())
                + (64 << 20),
            sessions: self.contest.threads.iter().copied().max().unwrap_or(1).max(loading_threads()),
            bypass_page_cache: false,
        }
    }

    fn load(&self, engine: &dyn Engine) -> Result<Loaded, BenchError> {
        if !engine.isolates() {
            let why = "its transactions are not kept apart, so TPC-C's conditions would not hold";
            return Err(EngineError::failed("running TPC-C", why).into());
        }
        let dir = self.dir(engine);
        prepare::fresh_dir(&dir)?;
        let store = engine.open(&dir, &self.settings())?;
        let Contest { scale, seed, .. } = *self.contest;
        let loaded = load_store(store.as_ref(), scale, seed, loading_threads(), self.progress)?;
        store.close()?;
        prepare::settle(&dir)?;
        Ok(loaded)
    }

    /// All runs of one cell.
    fn cell(&mut self, threads: usize, commit: Commit, each: &mut dyn FnMut(&Standing)) {
        let mut runs: Vec<Result<Vec<Ran>, BenchError>> =
            self.entrants.iter().map(|_| Ok(Vec::new())).collect();
        for run in 0..self.contest.runs.max(1) {
            self.runs += 1;
            for turn in 0..self.entrants.len() {
                let at = (run + turn) % self.entrants.len();
                let entrant = &self.entrants[at];
                let takes_part = commit == Commit::Blocking || entrant.engine.pipelines();
                if let (Ok(done), true) = (&mut runs[at], takes_part) {
                    match self.run(entrant, threads, commit) {
                        Ok(ran) => done.push(ran),
                        Err(error) => runs[at] = Err(error),
                    }
                }
            }
        }
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

    /// One run: open, warm up, measure, close.
    fn run(&self, entrant: &Entrant<'a>, threads: usize, commit: Commit) -> Result<Ran, BenchError> {
        let (dir, contest) = (self.dir(entrant.engine), self.contest);
        let store = entrant.engine.open(&dir, &self.settings())?;
        let seed = contest.seed.wrapping_add(self.runs << 32);
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
                client(store.as_ref(), terminal, window, go_on)
            })
        };
        if !contest.warm_up.is_zero() {
            phase("warming up", contest.warm_up)?;
        }
        let (tally, took) = phase("measuring", contest.measured)?;
        store.close()?;
        prepare::settle(&dir)?;
        Ok(Ran { tally, seconds: took.as_secs_f64() })
    }

    fn standing(
        &self,
        engine: &dyn Engine,
        threads: usize,
        commit: Commit,
        runs: &[Ran],
    ) -> Option<Standing> {
        let mut by_rate: Vec<&Ran> = runs.iter().collect();
        by_rate.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        let median = *by_rate.get(by_rate.len() / 2)?;
        let (mut all, mut new_orders) = (Latencies::default(), Latencies::default());
        for kind in runs.iter().flat_map(|run| &run.tally.kinds) {
            all.merge(&kind.latencies);
        }
        let of_new_order = |run: &'_ Ran| run.tally.kinds[Kind::NewOrder.index()].clone();
        runs.iter().for_each(|run| new_orders.merge(&of_new_order(run).latencies));
        let scale = self.contest.scale;
        Some(Standing {
            engine: engine.name().to_owned(),
            workload: self.workload().to_owned(),
            commit: commit.word().to_owned(),
            threads,
            in_flight: commit.in_flight(threads),
            warehouses: scale.warehouses(),
            scale_divisor: scale.divisor(),
            ops_per_s: median.rate(),
            ops_per_s_runs: runs.iter().map(Ran::rate).collect(),
            new_orders_per_minute: of_new_order(median).committed as f64 * 60.0 / median.seconds.max(1e-9),
            p50_us: all.quantile_us(0.5),
            p99_us: all.quantile_us(0.99),
            new_order_p99_us: new_orders.quantile_us(0.99),
            retries: runs.iter().flat_map(|run| &run.tally.kinds).map(|kind: &KindTally| kind.retries).sum(),
            settings: engine.describe(&self.settings()),
        })
    }

    /// Checks each store's conditions; who violates one loses its figures.
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

    /// Removes the stores, unless they are to be kept. What cannot be removed is told and left.
    fn clean_up(&self) {
        let Ok(entries) = std::fs::read_dir(&self.contest.dir) else { return };
        let ours =
            |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(&format!("{}-", self.workload()));
        for entry in entries.flatten().filter(|entry| !self.contest.keep && ours(&entry.file_name())) {
            if let Err(error) = prepare::remove_dir(&entry.path()) {
                self.progress.line(&error.to_string());
            }
        }
    }
}

fn loading_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A commit that may not be durable yet.
struct InFlight {
    kind: Kind,
    began: Instant,
    ticket: Box<dyn Ticket>,
}

struct Client<'s> {
    session: Box<dyn Session + 's>,
    window: Option<usize>,
    in_flight: VecDeque<InFlight>,
    tally: Tally,
}

/// What one thread does until `go_on` says no; what is in flight then is waited for, and counts.
fn client(
    store: &dyn Store,
    terminal: &mut Terminal,
    window: Option<usize>,
    go_on: &dyn Fn() -> bool,
) -> Result<Tally, BenchError> {
    let mut client =
        Client { session: store.session()?, window, in_flight: VecDeque::new(), tally: Tally::default() };
    while go_on() {
        client.transaction(&terminal.next(super::now_ms()))?;
    }
    client.drain(0)?;
    Ok(client.tally)
}

impl Client<'_> {
    fn transaction(&mut self, input: &Input) -> Result<(), BenchError> {
        let (kind, began, mut skipped) = (input.kind(), Instant::now(), 0);
        let only_reads = matches!(input, Input::OrderStatus(_) | Input::StockLevel(_));
        let ended = if only_reads {
            let work = &mut |reader: &mut dyn crate::engine::Reader| {
                execute(&KeyedRows::reading(reader), input).map(drop)
            };
            self.session.read(work).map(|retries| (retries, None))
        } else {
            let work = &mut |writer: &mut dyn crate::engine::Writer| {
                skipped = execute(&KeyedRows::writing(writer), input)?;
                Ok(())
            };
            match self.window {
                None => self.session.write(work).map(|retries| (retries, None)),
                Some(_) => self.session.write_async(work).map(|(retries, ticket)| (retries, Some(ticket))),
            }
        };
        match ended {
            Ok((retries, ticket)) => {
                self.tally.kinds[kind.index()].retries += retries;
                self.tally.skipped_deliveries += u64::from(skipped);
                match ticket {
                    None => self.committed(kind, began),
                    Some(ticket) => self.in_flight.push_back(InFlight { kind, began, ticket }),
                }
            }
            Err(EngineError::Failed { source, .. }) if source.is::<UnusedItem>() => {
                self.tally.kinds[kind.index()].rolled_back += 1;
            }
            Err(error) => return Err(error.into()),
        }
        self.drain(self.window.unwrap_or(1).saturating_sub(1))
    }

    fn committed(&mut self, kind: Kind, began: Instant) {
        let tally = &mut self.tally.kinds[kind.index()];
        tally.committed += 1;
        tally.latencies.record(began.elapsed());
    }

    /// Lets durable commits leave the window, and waits for the oldest while more than `most` are in it.
    fn drain(&mut self, most: usize) -> Result<(), BenchError> {
        while let Some(oldest) = self.in_flight.front() {
            if !oldest.ticket.is_durable()? && self.in_flight.len() <= most {
                break;
            }
            let Some(InFlight { kind, began, ticket }) = self.in_flight.pop_front() else { break };
            ticket.wait()?;
            self.committed(kind, began);
        }
        Ok(())
    }
}

/// The standings as a table, best first in each cell, with what part of the best other engine's rate ours is.
#[must_use]
pub fn render(standings: &[Standing]) -> String {
    let mut text = String::new();
    let mut cells: Vec<(&str, usize, usize)> = Vec::new();
    for s in standings {
        let cell = (s.commit.as_str(), s.threads, s.in_flight);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    for (commit, threads, in_flight) in cells {
        let mut here: Vec<&Standing> = standings
            .iter()
            .filter(|s| (s.commit.as_str(), s.threads, s.in_flight) == (commit, threads, in_flight))
            .collect();
        here.sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s));
        let Some(first) = here.first() else { continue };
        let _ = writeln!(
            text,
            "\n{}, {} warehouses, scale 1/{}: {threads} threads, {in_flight} commits in flight ({commit})\n{:<16} {:>10} {:>16} {:>12} {:>10} {:>10} {:>12} {:>8}",
            first.workload,
            first.warehouses,
            first.scale_divisor,
            "engine",
            "tx/s",
            "runs",
            "New-Orders/min",
            "p50 us",
            "p99 us",
            "N-O p99 us",
            "retries"
        );
        for s in &here {
            let least = s.ops_per_s_runs.iter().copied().fold(f64::INFINITY, f64::min);
            let most = s.ops_per_s_runs.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                text,
                "{:<16} {:>10.0} {:>16} {:>12.0} {:>10.0} {:>10.0} {:>12.0} {:>8}",
                s.engine,
                s.ops_per_s,
                format!("{least:.0}..{most:.0}"),
                s.new_orders_per_minute,
                s.p50_us,
                s.p99_us,
                s.new_order_p99_us,
                s.retries
            );
        }
        let is_ours = |s: &&&Standing| s.engine == crate::table::OURS;
        let ours = here.iter().find(is_ours);
        let best = here.iter().find(|s| !is_ours(s));
        if let (Some(ours), Some(best)) = (ours, best) {
            let _ =
                writeln!(text, "ours is {:.2} of {}", ours.ops_per_s / best.ops_per_s.max(1e-9), best.engine);
        }
    }
    text
}
