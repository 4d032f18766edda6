//! A run from beginning to end: opens or loads the store, warms up, measures, checks, and closes.

use super::check::{Checked, check};
use super::failed;
use super::load::{count_run, load, loaded};
use super::phase::{self, Measured};
use super::plan::Plan;
use super::report::Report;
use super::schema::Loaded;
use crate::error::BenchError;
use crate::prepare::{fresh_dir, remove_dir};
use crate::progress::{Progress, ms};
use azekura::{Database, RecoveryReport};
use azekura_workload::Lane;
use azekura_workload::tpcc::Terminal;
use std::time::{Duration, Instant};

/// The database of a run: loaded now, or left by an earlier run.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) db: Database,
    pub(super) loaded: Loaded,
    /// Duration of loading; `None` if the database existed.
    pub(super) loading: Option<Duration>,
    /// Recovery report of the opening, if the database existed.
    pub(super) recovery: Option<RecoveryReport>,
}

/// Results of the measured phase and of the check after it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) measured: Measured,
    pub(super) checked: Option<Checked>,
}

/// Runs a plan.
///
/// If an earlier run left a store in the directory, because it kept the store or was killed, that store is
/// recovered, checked and used. A store that is not fully loaded is created again. `note` receives a line of
/// text for each step.
///
/// # Errors
///
/// [`BenchError::OtherScale`] for a store of another size; [`BenchError::Inconsistent`] for one that violates
/// the conditions before the run; an error of the store. Violations after the run are in the report.
pub fn run(plan: &Plan, progress: &Progress, note: &mut dyn FnMut(&str)) -> Result<Report, BenchError> {
    let opened = open(plan, progress, note)?;
    if opened.recovery.is_some() && plan.check {
        refuse_violations(&check(&opened.db, &opened.loaded, progress)?)?;
    }
    let earlier_runs = count_run(&opened.db, &opened.loaded)?;
    note(&format!("{} for {:.1} s", threads_in_words(plan.threads), plan.measured.as_secs_f64()));
    let measured = measure(plan, &opened, earlier_runs, progress)?;
    let checked = plan.check.then(|| check(&opened.db, &opened.loaded, progress)).transpose()?;
    let outcome = Outcome { measured, checked };
    let report = Report::new(plan, &opened, &outcome, earlier_runs);
    opened.db.close().map_err(failed("closing"))?;
    // A store that violates the conditions is kept for inspection.
    if !plan.keep && report.is_consistent() {
        remove_dir(&plan.store_dir())?;
    }
    Ok(report)
}

fn threads_in_words(threads: usize) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

fn refuse_violations(checked: &Checked) -> Result<(), BenchError> {
    match checked.violations.first() {
        None => Ok(()),
        Some(first) => Err(BenchError::Inconsistent { violated: checked.violated, first: first.to_string() }),
    }
}

fn open(plan: &Plan, progress: &Progress, note: &mut dyn FnMut(&str)) -> Result<Opened, BenchError> {
    let dir = plan.store_dir();
    if dir.exists() {
        let db = open_store(plan)?;
        if let Some(loaded) = loaded(&db)? {
            if loaded.scale != plan.scale {
                return Err(BenchError::OtherScale {
                    path: dir,
                    warehouses: loaded.scale.warehouses(),
                    divisor: loaded.scale.divisor(),
                });
            }
            let recovery = db.stats().recovery;
            note(&format!(
                "going on with {}: {} log records recovered in {:.2} s",
                dir.display(),
                recovery.records,
                recovery.time.as_secs_f64()
            ));
            return Ok(Opened { db, loaded, loading: None, recovery: Some(recovery) });
        }
        db.close().map_err(failed("closing"))?;
    }
    fresh_dir(&dir)?;
    let db = open_store(plan)?;
    let began = Instant::now();
    let loaded = load(&db, plan.scale, plan.seed, loading_threads(), progress)?;
    let loading = began.elapsed();
    note(&format!("{} rows loaded in {:.2} s", loaded.rows, loading.as_secs_f64()));
    Ok(Opened { db, loaded, loading: Some(loading), recovery: None })
}

fn loading_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn open_store(plan: &Plan) -> Result<Database, BenchError> {
    let mut builder = Database::builder().cache_bytes(plan.cache_bytes).log_protocol(plan.log);
    if let Some(bytes) = plan.page_bytes {
        builder = builder.page_size(bytes);
    }
    if let Some(streams) = plan.wal_streams {
        builder = builder.wal_streams(streams);
    }
    builder.open(plan.store_dir()).map_err(failed("opening"))
}

fn measure(
    plan: &Plan,
    opened: &Opened,
    earlier_runs: u64,
    progress: &Progress,
) -> Result<Measured, BenchError> {
    let threads = plan.threads.max(1) as u64;
    // Each run on a database has different inputs.
    let seed = plan.seed.wrapping_add(earlier_runs << 32);
    let mut terminals: Vec<Terminal> = (0..threads)
        .map(|i| {
            let lane = Lane::new(i, threads);
            Terminal::new(plan.scale, opened.loaded.constants, plan.mix, lane, seed)
        })
        .collect();
    let mut phase = |what: &str, time| {
        progress.begin(&format!("{what} {}", plan.workload()), ms(time));
        phase::run(&opened.db, &mut terminals, plan.window(), time, progress)
    };
    if !plan.warm_up.is_zero() {
        phase("warming up", plan.warm_up)?;
    }
    phase("measuring", plan.measured)
}
