//! The work of one process: an engine runs a group of cases once, over one store.

use super::rows::{Case, Group, Work};
use anyhow::{Context, Result, bail};
use azekura_lab::client::Mode;
use azekura_lab::compare::check;
use azekura_lab::phase::{self, End};
use azekura_lab::tpcc::{Contest, contest};
use azekura_lab::usage::{Meter, Usage};
use azekura_lab::{Commit, Engine, EngineSettings, Progress, Store, prepare};
use azekura_workload::tpcc::{Mix, Scale};
use azekura_workload::{Lane, Population, Workload};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The work of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    /// The engine's name.
    pub(super) engine: String,
    /// The cases.
    pub(super) group: Group,
    /// Set if the process only fills the store.
    pub(super) fill: bool,
    /// Measured seconds of each case that does not end by itself.
    pub(super) seconds: f64,
    /// Seconds of warm-up before the measured ones.
    pub(super) warm_up: f64,
    /// Bytes of the engine's cache.
    pub(super) cache_bytes: u64,
    /// The seed: different for each round, the same for all engines.
    pub(super) seed: u64,
    /// Directory of the store.
    pub(super) dir: PathBuf,
}

/// The result of one run of one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// The case's position in its group.
    pub(super) case: usize,
    /// The unit of `ops`.
    pub(super) unit: String,
    /// Number of operations.
    pub(super) ops: u64,
    /// Measured seconds.
    pub(super) seconds: f64,
    /// Median latency of a transaction, in microseconds.
    pub(super) p50: f64,
    /// Latency that 99 % did not exceed.
    pub(super) p99: f64,
    /// Latency that 99.9 % did not exceed.
    pub(super) p999: f64,
    /// Bytes of keys and values that the workload read; 0 for TPC-C.
    pub(super) user_read: u64,
    /// Bytes of keys and values that the workload wrote; 0 for TPC-C.
    pub(super) user_written: u64,
    /// Resources that the process used.
    pub(super) usage: Usage,
    /// Bytes of the store's files on the device after the run.
    pub(super) disk_bytes: u64,
}

impl Sample {
    /// Returns the operations per second.
    pub(super) fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }
}

impl Job {
    /// Runs the job with the first of `engines`. Each sample is reported at once.
    pub(super) fn run(
        &self,
        engines: &[Box<dyn Engine>],
        report: &mut dyn FnMut(Sample) -> Result<()>,
    ) -> Result<()> {
        let engine = engines.first().context("no engine")?.as_ref();
        if self.group.is_tpcc() {
            return if self.fill { Ok(()) } else { self.tpcc(&engines[..1], report) };
        }
        let (mut kept, mut loads) = (Vec::new(), Vec::new());
        for (at, case) in self.group.cases.iter().enumerate() {
            let workload = case.work.workload().with_context(|| format!("unknown work {:?}", case.work))?;
            if engine.lacks(&workload).is_none() && case.threads <= engine.most_clients() {
                let list = if workload.is_load() { &mut loads } else { &mut kept };
                list.push((at, case, workload));
            }
        }
        let store_dir = self.dir.join("store");
        match kept.first() {
            Some((_, _, workload)) if self.fill => return self.fill(engine, workload, &store_dir),
            Some((_, _, workload)) => {
                let store = engine.open(&store_dir, &self.settings(workload))?;
                let found = prepare::warm_and_count(store.as_ref())?;
                if found < workload.records() {
                    bail!("the store has {found} records of {}", workload.records());
                }
                let population = Arc::new(Population::new(found));
                for (at, case, workload) in &kept {
                    let sample = self.measure(store.as_ref(), workload, case, &population);
                    let sample = sample.with_context(|| format!("{}, {} threads", case.row, case.threads))?;
                    report(Sample { case: *at, disk_bytes: prepare::disk_bytes(&store_dir)?, ..sample })?;
                }
                store.close()?;
                prepare::sync_files(&store_dir)?;
            }
            None => {}
        }
        if self.fill {
            return Ok(());
        }
        for (at, case, workload) in &loads {
            let sample = self.load(engine, workload, case);
            report(Sample { case: *at, ..sample.with_context(|| case.row.clone())? })?;
        }
        Ok(())
    }

    fn settings(&self, workload: &Workload) -> EngineSettings {
        let record = (azekura_workload::workload::KEY_BYTES + workload.value_bytes()) as u64;
        EngineSettings {
            cache_bytes: Some(self.cache_bytes),
            expected_bytes: workload.records() * record,
            // One session more than clients, for filling and warming the store.
            sessions: self.group.cases.iter().map(|case| case.threads).max().unwrap_or(1) + 1,
            bypass_page_cache: false,
        }
    }

    fn fill(&self, engine: &dyn Engine, workload: &Workload, dir: &Path) -> Result<()> {
        prepare::fresh_dir(dir)?;
        let store = engine.open(dir, &self.settings(workload))?;
        prepare::fill(store.as_ref(), &workload.dataset(), &mut |_| {})?;
        store.close()?;
        Ok(prepare::sync_files(dir)?)
    }

    fn measure(
        &self,
        store: &dyn Store,
        workload: &Workload,
        case: &Case,
        population: &Arc<Population>,
    ) -> Result<Sample> {
        let lanes = (0..case.threads as u64).map(|at| Lane::new(at, case.threads as u64));
        let mut streams: Vec<_> =
            lanes.map(|lane| workload.stream(population, lane, self.seed << 32)).collect();
        let mode = Mode::of(workload, case.threads, Commit::Blocking);
        let mut phase = |end| phase::run(store, &mut streams, mode, end, &mut |_, _| {});
        let end = if workload.is_load() {
            End::WithTheWork
        } else {
            if self.warm_up > 0.0 {
                phase(End::After(Duration::try_from_secs_f64(self.warm_up)?))?;
            }
            End::After(Duration::try_from_secs_f64(self.seconds)?)
        };
        let measured = phase(end)?;
        check(workload, &measured, population)?;
        let tally = &measured.tally;
        let mut all = tally.reads.clone();
        all.merge(&tally.writes);
        Ok(Sample {
            case: 0,
            unit: workload.unit().to_owned(),
            ops: tally.ops,
            seconds: measured.took.as_secs_f64(),
            p50: all.quantile_us(0.5),
            p99: all.quantile_us(0.99),
            p999: all.quantile_us(0.999),
            user_read: tally.read_bytes,
            user_written: tally.written_bytes,
            usage: measured.usage,
            disk_bytes: 0,
        })
    }

    /// Measures a load into a store of its own. The bytes written are counted until the store is closed.
    fn load(&self, engine: &dyn Engine, workload: &Workload, case: &Case) -> Result<Sample> {
        let dir = self.dir.join("load");
        prepare::fresh_dir(&dir)?;
        let store = engine.open(&dir, &self.settings(workload))?;
        let meter = Meter::begin();
        let mut sample = self.measure(store.as_ref(), workload, case, &workload.population())?;
        store.close()?;
        prepare::sync_files(&dir)?;
        sample.usage.written_bytes = meter.end().written_bytes;
        sample.disk_bytes = prepare::disk_bytes(&dir)?;
        let store = engine.open(&dir, &self.settings(workload))?;
        prepare::warm_and_check(store.as_ref(), workload.records())?;
        store.close()?;
        prepare::remove_dir(&dir)?;
        Ok(sample)
    }

    fn tpcc(&self, engines: &[Box<dyn Engine>], report: &mut dyn FnMut(Sample) -> Result<()>) -> Result<()> {
        let Some(Work::Tpcc { divisor }) = self.group.cases.first().map(|case| &case.work) else {
            bail!("a group of TPC-C without a case");
        };
        let contested = Contest {
            scale: Scale::reduced(1, *divisor),
            mix: Mix::Full,
            threads: self.group.cases.iter().map(|case| case.threads).collect(),
            in_flight: Vec::new(),
            measured: Duration::try_from_secs_f64(self.seconds)?,
            warm_up: Duration::try_from_secs_f64(self.warm_up)?,
            runs: 1,
            seed: self.seed,
            cache_bytes: self.cache_bytes,
            dir: self.dir.clone(),
            keep: false,
        };
        // The conditions are checked at the end. A store that violates one has no figures.
        let outcome = contest(engines, &contested, &Progress::hidden(), &mut |_| {})?;
        for standing in outcome.standings {
            let case = self.group.cases.iter().position(|case| case.threads == standing.cell.threads);
            report(Sample {
                case: case.context("a number of threads that is no case's")?,
                unit: "transactions".to_owned(),
                ops: standing.committed,
                seconds: standing.seconds,
                p50: standing.p50_us,
                p99: standing.p99_us,
                p999: standing.p999_us,
                user_read: 0,
                user_written: 0,
                usage: standing.usage,
                disk_bytes: standing.disk_bytes,
            })?;
        }
        match outcome.failures.into_iter().next() {
            Some(failure) => bail!("{failure}"),
            None => Ok(()),
        }
    }
}
