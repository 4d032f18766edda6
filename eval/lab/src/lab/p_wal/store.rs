//! The workloads on the whole store: U-1 and U-10 as updates of 65,536 rows of 4 bytes, and TPC-C.
//!
//! Here the store writes the records (about 60 bytes for a U-1 transaction), transactions use the tree and
//! the lock table, and the log writes greedily with every number of streams.

use super::ground::{Ground, Site};
use super::variant::Variant;
use crate::adapter::azekura::AzekuraEngine;
use crate::client::Mode;
use crate::engine::{Engine, EngineSettings};
use crate::error::{BenchError, EngineError};
use crate::latency::Latencies;
use crate::phase::{self, End};
use crate::prepare;
use crate::progress::Progress;
use crate::tpcc::{self, Loaded};
use azekura::{Builder, Database};
use azekura_workload::tpcc::{Mix, Scale, Terminal};
use azekura_workload::{Family, Lane, Population, Workload};
use std::sync::Arc;
use std::time::Duration;

const CACHE_BYTES: usize = 512 << 20;
/// Bytes of a log segment: small, so that sixteen streams are opened quickly.
const SEGMENT_BYTES: u64 = 2 << 20;
/// Warm-up before each measurement, so that segments are ready and pages are dirty: the measured time divided
/// by this.
const WARM_UP: u32 = 4;

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The compared log.
    pub variant: Variant,
    /// Number of client threads, and of log buffers.
    pub workers: usize,
    /// Number of commits that each client may have in flight; `None` means that it waits for each.
    pub window: Option<usize>,
    /// Duration.
    pub time: Duration,
    /// Seed of the choice of rows.
    pub seed: u64,
}

/// Results of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    /// Transactions per second.
    pub rate: f64,
    /// MiB of log records per second.
    pub log_mib_per_s: f64,
    /// Latencies from the beginning of a transaction until its commit was acknowledged.
    pub latencies: Latencies,
    /// Number of log streams.
    pub streams: usize,
}

impl Cell {
    fn builder(&self, site: &Site) -> Builder {
        let builder = Database::builder()
            .file_system(Arc::clone(&site.fs))
            .cache_bytes(CACHE_BYTES)
            .wal_segment_bytes(SEGMENT_BYTES)
            .log_protocol(self.variant.protocol())
            .log_buffers(self.workers);
        match self.variant.streams(self.workers) {
            None => builder,
            Some(streams) => builder.wal_streams(streams),
        }
    }
}

/// A store with the rows of U-1 and U-10.
#[derive(Debug)]
pub struct Updates {
    site: Site,
    population: Arc<Population>,
}

fn workload(updates: usize) -> Workload {
    Workload::new(if updates == 1 { Family::U1 } else { Family::U10 }).with_value_bytes(4)
}

fn settings(sessions: usize) -> EngineSettings {
    EngineSettings {
        cache_bytes: Some(CACHE_BYTES as u64),
        expected_bytes: 1 << 20,
        sessions,
        bypass_page_cache: false,
    }
}

impl Updates {
    /// Fills a store with the rows.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn fill(ground: &Ground) -> Result<Self, BenchError> {
        let site = ground.site().map_err(BenchError::io("making a directory in", "the lab's"))?;
        let engine = AzekuraEngine::default().file_system(Arc::clone(&site.fs));
        let workload = workload(1);
        ground.at_no_cost(|| {
            let store = engine.open(&site.dir.join("u"), &settings(1))?;
            prepare::fill(store.as_ref(), &workload.dataset(), &mut |_| {})?;
            store.close().map_err(BenchError::from)
        })?;
        Ok(Self { site, population: workload.population() })
    }

    /// Measures transactions with `updates` updates.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn run(&self, cell: &Cell, updates: usize) -> Result<Stretch, BenchError> {
        let mut engine = AzekuraEngine::default()
            .file_system(Arc::clone(&self.site.fs))
            .wal_segment_bytes(SEGMENT_BYTES)
            .log(cell.variant.protocol())
            .log_buffers(cell.workers);
        if let Some(streams) = cell.variant.streams(cell.workers) {
            engine = engine.wal_streams(streams);
        }
        let store = engine.open(&self.site.dir.join("u"), &settings(cell.workers))?;
        let workload = workload(updates);
        let lane = |at| Lane::new(at as u64, cell.workers as u64);
        let mut streams: Vec<_> =
            (0..cell.workers).map(|at| workload.stream(&self.population, lane(at), cell.seed)).collect();
        let mode = Mode {
            whole_transactions: true,
            appends: false,
            value_bytes: workload.value_bytes(),
            touches_values: false,
            window: cell.window,
        };
        let mut run = |time| phase::run(store.as_ref(), &mut streams, mode, End::After(time), &mut |_, _| {});
        run(cell.time / WARM_UP)?;
        let measured = run(cell.time.max(cell.variant.least_time()))?;
        store.close()?;
        let seconds = measured.took.as_secs_f64();
        Ok(Stretch {
            rate: measured.tally.ops as f64 / seconds,
            log_mib_per_s: measured.log_bytes.unwrap_or(0) as f64 / f64::from(1 << 20) / seconds,
            latencies: measured.tally.writes,
            streams: 0,
        })
    }
}

/// A store with TPC-C's rows.
#[derive(Debug)]
pub struct Tpcc {
    site: Site,
    loaded: Loaded,
}

fn failed(doing: &'static str) -> impl Fn(azekura::Error) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

impl Tpcc {
    /// Loads a TPC-C database.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn load(ground: &Ground, scale: Scale, seed: u64, progress: &Progress) -> Result<Self, BenchError> {
        let site = ground.site().map_err(BenchError::io("making a directory in", "the lab's"))?;
        let loaded = ground.at_no_cost(|| {
            let builder = Database::builder().file_system(Arc::clone(&site.fs)).cache_bytes(CACHE_BYTES);
            let db = builder.open(site.dir.join("tpcc")).map_err(failed("opening"))?;
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let loaded = tpcc::load(&db, scale, seed, threads, progress)?;
            db.close().map_err(failed("closing"))?;
            Ok::<_, BenchError>(loaded)
        })?;
        Ok(Self { site, loaded })
    }

    /// Measures a mix of transactions.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn run(&self, cell: &Cell, mix: Mix) -> Result<Stretch, BenchError> {
        let db = cell.builder(&self.site).open(self.site.dir.join("tpcc")).map_err(failed("opening"))?;
        // Each run on a database has different inputs.
        let seed = cell.seed.wrapping_add(tpcc::load::count_run(&db, &self.loaded)? << 32);
        let terminal = |at| {
            let lane = Lane::new(at as u64, cell.workers as u64);
            Terminal::new(self.loaded.scale, self.loaded.constants, mix, lane, seed)
        };
        let mut terminals: Vec<Terminal> = (0..cell.workers).map(terminal).collect();
        let hidden = Progress::hidden();
        let mut run = |time| tpcc::phase::run(&db, &mut terminals, cell.window, time, &hidden);
        run(cell.time / WARM_UP)?;
        let measured = run(cell.time.max(cell.variant.least_time()))?;
        let streams = db.stats().log.streams;
        db.close().map_err(failed("closing"))?;
        let mut latencies = Latencies::default();
        measured.tally.kinds.iter().for_each(|kind| latencies.merge(&kind.latencies));
        let seconds = measured.took.as_secs_f64();
        Ok(Stretch {
            rate: measured.tally.committed() as f64 / seconds,
            log_mib_per_s: measured.log_bytes as f64 / f64::from(1 << 20) / seconds,
            latencies,
            streams,
        })
    }

    /// Checks the specification's consistency conditions.
    ///
    /// # Errors
    ///
    /// [`BenchError::Inconsistent`] if one does not hold; errors of the store.
    pub fn check(&self, ground: &Ground, progress: &Progress) -> Result<(), BenchError> {
        ground.at_no_cost(|| {
            let builder = Database::builder().file_system(Arc::clone(&self.site.fs)).cache_bytes(CACHE_BYTES);
            let db = builder.open(self.site.dir.join("tpcc")).map_err(failed("opening"))?;
            let checked = tpcc::check(&db, &self.loaded, progress)?;
            db.close().map_err(failed("closing"))?;
            match checked.violations.first() {
                None => Ok(()),
                Some(first) => {
                    Err(BenchError::Inconsistent { violated: checked.violated, first: first.to_string() })
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ground::Choice;
    use super::*;
    use azekura_io::device::DeviceModel;

    /// Runs a measurement, and on a busy machine again with a longer time, until it has a rate.
    fn measured(window: Option<usize>, run: impl Fn(&Cell) -> Stretch) -> Stretch {
        let cell = |millis| Cell {
            variant: Variant::Ours,
            workers: 2,
            window,
            time: Duration::from_millis(millis),
            seed: 1,
        };
        let mut stretch = run(&cell(40));
        for millis in [400, 4_000, 40_000] {
            if stretch.rate > 0.0 {
                break;
            }
            stretch = run(&cell(millis));
        }
        stretch
    }

    #[test]
    fn the_store_runs_both_workloads_on_a_modeled_device() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        let updates = Updates::fill(&ground).unwrap();
        for (window, of) in [(None, 1), (Some(8), 10)] {
            let stretch = measured(window, |cell| updates.run(cell, of).unwrap());
            assert!(stretch.rate > 0.0 && stretch.log_mib_per_s > 0.0 && stretch.latencies.count() > 0);
        }
        let before = ground.device().unwrap().counts();
        let tpcc = Tpcc::load(&ground, Scale::reduced(1, 100), 1, &Progress::hidden()).unwrap();
        for mix in [Mix::Full, Mix::NewOrder] {
            let stretch = measured(Some(8), |cell| tpcc.run(cell, mix).unwrap());
            assert!(stretch.rate > 0.0 && stretch.streams > 0, "{stretch:?}");
        }
        tpcc.check(&ground, &Progress::hidden()).unwrap();
        assert!(ground.device().unwrap().counts().bytes_written > before.bytes_written);
    }
}
