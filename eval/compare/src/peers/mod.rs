//! Azekura and its peers. Each peer has a cargo feature.
//!
//! All engines commit durably: when a write returns, it has been synced to the device. Otherwise each engine
//! has its usual settings, no compression (the values are incompressible), and the requested cache size.

#[cfg(feature = "fjall")]
pub(crate) mod fjall;
#[cfg(feature = "lmdb")]
pub(crate) mod lmdb;
#[cfg(feature = "redb")]
pub(crate) mod redb;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_sys;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(feature = "wiredtiger")]
pub(crate) mod wiredtiger;

use azekura::LogProtocol;
use azekura_lab::adapter::azekura::AzekuraEngine;
use azekura_lab::{Engine, EngineError};

/// Returns Azekura and every peer in this build, in the order of reports.
#[must_use]
pub(crate) fn all() -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(AzekuraEngine::default()),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::plain()),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::tuned()),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::transactional()),
        #[cfg(feature = "wiredtiger")]
        Box::new(wiredtiger::WiredTiger),
        #[cfg(feature = "lmdb")]
        Box::new(lmdb::Lmdb),
        #[cfg(feature = "redb")]
        Box::new(redb::Redb),
        #[cfg(feature = "fjall")]
        Box::new(fjall::Fjall::optimistic()),
        #[cfg(feature = "fjall")]
        Box::new(fjall::Fjall::single_writer()),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::Sqlite),
    ]
}

/// Returns all engines, and Azekura with the serial log and with reads by snapshots.
#[must_use]
pub(crate) fn with_logs() -> Vec<Box<dyn Engine>> {
    let ours = AzekuraEngine::default;
    with(&[ours().log(LogProtocol::Serial), ours().snapshots()], all())
}

/// Returns the engines of [`with_logs`], and Azekura's bulk loader, which takes part in loads only.
#[must_use]
pub(crate) fn with_loaders() -> Vec<Box<dyn Engine>> {
    with(&[AzekuraEngine::default().bulk()], with_logs())
}

/// Returns all engines, Azekura with reads by snapshots, and Azekura's bulk loader.
#[must_use]
pub(crate) fn with_snapshots() -> Vec<Box<dyn Engine>> {
    with(&[AzekuraEngine::default().snapshots(), AzekuraEngine::default().bulk()], all())
}

/// Inserts variants of Azekura after the first engine.
fn with(variants: &[AzekuraEngine], mut engines: Vec<Box<dyn Engine>>) -> Vec<Box<dyn Engine>> {
    engines.splice(1..1, variants.iter().map(|engine| Box::new(engine.clone()) as Box<dyn Engine>));
    engines
}

/// Wraps an engine's error with the failed operation.
#[allow(dead_code, reason = "unused in a build without peers")]
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> EngineError {
    move |error| EngineError::failed(doing, error)
}

/// Returns the settings of an engine for the report.
#[allow(dead_code, reason = "unused in a build without peers")]
fn described<const N: usize>(pairs: [(&str, String); N]) -> std::collections::BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    //! Every engine must give the same answers; otherwise its figures are meaningless.

    use super::*;
    use azekura_lab::tpcc::{Contest, contest};
    use azekura_lab::{Plan, Progress, compare, conformance};
    use azekura_workload::Workload;
    use azekura_workload::tpcc::{Mix, Scale};
    use std::path::Path;
    use std::time::Duration;

    fn each(engines: Vec<Box<dyn Engine>>, check: fn(&dyn Engine, &Path)) {
        for engine in engines {
            let dir = tempfile::tempdir().expect("a directory");
            check(engine.as_ref(), dir.path());
        }
    }

    #[test]
    fn every_engine_keeps_what_was_committed_in_key_order_and_over_a_reopening() {
        each(with_snapshots(), conformance::keeps_what_was_committed);
    }

    #[test]
    fn every_engine_finds_what_is_there_and_only_that_and_reads_its_own_writes() {
        each(with_snapshots(), conformance::finds_what_is_there);
    }

    #[test]
    fn every_engine_removes_the_given_keys() {
        let mut engines = all();
        // Reads of a write batch do not see the batch's writes.
        engines.retain(|engine| engine.isolates());
        each(engines, conformance::removes_what_it_is_told);
    }

    #[test]
    fn tpcc_keeps_its_conditions_over_every_engine_with_isolation() {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = Contest {
            scale: Scale::reduced(1, 100),
            mix: Mix::Full,
            threads: vec![3],
            in_flight: Vec::new(),
            measured: Duration::from_millis(200),
            warm_up: Duration::ZERO,
            runs: 1,
            seed: 1,
            cache_bytes: 64 << 20,
            dir: dir.path().to_owned(),
            keep: false,
        };
        let mut engines = all();
        engines.retain(|engine| engine.isolates());
        let outcome = contest(&engines, &plan, &Progress::hidden(), &mut |_| {}).expect("runs");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.standings.len(), engines.len());
    }

    #[test]
    fn work_that_fails_leaves_nothing_behind() {
        each(all(), conformance::failed_work_leaves_nothing);
    }

    #[test]
    fn engines_that_lock_or_validate_lose_no_update() {
        let mut engines = all();
        // A write batch has no isolation, and does not claim any.
        engines.retain(|engine| engine.isolates());
        each(engines, conformance::loses_no_update);
    }

    #[test]
    fn every_workload_runs_over_every_engine() {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = Plan {
            workloads: Workload::names()
                .map(|name| name.parse::<Workload>().expect("a name").with_records(2_000))
                .collect(),
            threads: vec![2],
            runs: 2,
            measured: Duration::from_millis(10),
            ..Plan::in_dir(dir.path())
        };
        let outcome = compare(&all(), &plan, &Progress::hidden(), &mut |_| {}).expect("runs");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.reports.len(), all().len() * plan.workloads.len());
    }
}
