//! The adapters of this crate pass the conformance tests that the runner relies on.

use azekura_lab::adapter::azekura::AzekuraEngine;
use azekura_lab::adapter::memory::MemoryEngine;
use azekura_lab::tpcc::{Contest, contest};
use azekura_lab::{Engine, Plan, Progress, compare, conformance};
use azekura_workload::Workload;
use azekura_workload::tpcc::{Mix, Scale};
use std::path::Path;
use std::time::Duration;

fn each(check: fn(&dyn Engine, &Path)) {
    let engines: [Box<dyn Engine>; 2] =
        [Box::new(MemoryEngine::default()), Box::new(AzekuraEngine::default())];
    for engine in engines {
        let dir = tempfile::tempdir().expect("a directory");
        check(engine.as_ref(), dir.path());
    }
}

#[test]
fn committed_records_are_there_in_order_and_over_a_reopening() {
    each(conformance::keeps_what_was_committed);
}

#[test]
fn reads_find_what_is_there_and_only_that() {
    each(conformance::finds_what_is_there);
}

#[test]
fn concurrent_increments_are_all_counted() {
    each(conformance::loses_no_update);
}

#[test]
fn asynchronous_commits_become_durable_in_order() {
    each(conformance::tickets_come_true);
}

#[test]
fn failed_work_leaves_nothing() {
    each(conformance::failed_work_leaves_nothing);
}

#[test]
fn removed_keys_are_absent() {
    each(conformance::removes_what_it_is_told);
}

/// The five transactions run on any engine with ordered bytes. The comparison checks the consistency
/// conditions, and an engine that violates one fails.
#[test]
fn tpcc_runs_over_any_engine_and_keeps_its_conditions() {
    let dir = tempfile::tempdir().unwrap();
    let engines: Vec<Box<dyn Engine>> =
        vec![Box::new(MemoryEngine::default()), Box::new(AzekuraEngine::default())];
    let plan = Contest {
        scale: Scale::reduced(1, 100),
        mix: Mix::Full,
        threads: vec![1, 3],
        in_flight: vec![12],
        measured: Duration::from_millis(60),
        warm_up: Duration::ZERO,
        runs: 2,
        seed: 5,
        cache_bytes: 64 << 20,
        dir: dir.path().to_owned(),
        keep: false,
    };
    std::fs::create_dir(dir.path().join("tpcc-results")).unwrap();
    let mut reported = 0;
    let outcome = contest(&engines, &plan, &Progress::hidden(), &mut |_| reported += 1).unwrap();
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(
        (outcome.standings.len(), reported),
        (8, 8),
        "two engines, two numbers of threads, both modes"
    );
    assert!(outcome.standings.iter().any(|s| s.ops_per_s > 0.0), "a slow machine does few, not none");
    let text = azekura_lab::tpcc::standing::render(&outcome.standings);
    assert_eq!(text.matches("ours is").count(), 4, "{text}");
    let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["tpcc-results"], "stores are removed, and nothing else");
}

#[test]
fn every_workload_runs_over_azekura_blocking_and_pipelined() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan {
        workloads: Workload::names().map(|n| n.parse::<Workload>().unwrap().with_records(2_000)).collect(),
        threads: vec![2],
        in_flight: vec![16],
        measured: Duration::from_millis(15),
        ..Plan::in_dir(dir.path())
    };
    let engine = AzekuraEngine::default().page_bytes(4096).log_buffers(2).wal_streams(1);
    let outcome = compare(&[Box::new(engine)], &plan, &Progress::hidden(), &mut |_| {}).unwrap();
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let (all, reading) = (plan.workloads.len(), plan.workloads.iter().filter(|one| !one.writes()).count());
    assert!(all > 12 && reading >= 4, "{all} workloads, {reading} of them without writes");
    assert_eq!(outcome.reports.len(), 2 * all - reading, "those that write run pipelined too");
    for report in &outcome.reports {
        let writes = report.log_bytes.is_some_and(|bytes| bytes > 0);
        let expected = report.workload.parse::<Workload>().is_ok_and(|one| one.writes());
        assert!(!expected || writes || report.ops < 100, "{}: no log", report.workload);
    }
}
