//! Power loss at every I/O in turn, and again during recovery (invariant 1; W5, W6, W12, W13).
//!
//! A run is deterministic, so the n-th I/O is the same call each time. A seed decides which unsynced writes
//! survive: all, none, some, torn, in any order. `AZEKURA_CRASH_SEEDS=100` runs 100 workloads (default 3: one
//! for each log protocol, recovered with another); `AZEKURA_CRASH_SEED=n` runs workload `n`.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    LogShape, Model, Outcome, PROTOCOLS, Shape, assert_recovered, deterministic, run, workload,
};
use azekura::Error;
use azekura_base::PageId;
use azekura_base::page::image;
use azekura_io::FaultFs;

const SHAPE: Shape = Shape { txns: 40, ops: 12, keys: 400, tables: 2, large_values: true, checkpoints: true };

fn seeds() -> Vec<u64> {
    let var = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match var("AZEKURA_CRASH_SEED") {
        Some(seed) => vec![seed],
        None => (1..=var("AZEKURA_CRASH_SEEDS").unwrap_or(3)).collect(),
    }
}

/// Returns the log settings of a seed for the workload, and those for the recovery. Over the seeds, each
/// protocol is used for both.
fn logs(seed: u64) -> [LogShape; 2] {
    let shape =
        |n: u64, workers, streams| LogShape { protocol: PROTOCOLS[(n % 3) as usize], workers, streams };
    [shape(seed, 3, 2), shape(seed / 3 + 1, 4, 1 + (seed % 4) as usize)]
}

/// Runs the workload on a fresh disk that loses power at its `cut`-th I/O. Also returns `true` if the run
/// reached that I/O.
fn run_until(cut: u64, seed: u64, page_size: usize) -> (FaultFs, Outcome, bool) {
    let fs = FaultFs::new();
    fs.cut_power_at(cut);
    let txns = workload(seed, SHAPE);
    let store = deterministic(Arc::new(fs.clone()), page_size, 32);
    // Every second run closes without writing its dirty pages, so that only the log has their changes.
    let store = if seed.is_multiple_of(2) { store.close_time(Duration::ZERO) } else { store };
    let outcome = match logs(seed)[0].apply(store).open("db") {
        Ok(db) => {
            let outcome = run(&db, Model::new(), &txns);
            if outcome.error.is_none() {
                let _ = db.close();
            }
            outcome
        }
        Err(error) => Outcome { states: vec![Model::new()], acknowledged: 0, error: Some(error) },
    };
    let cut_happened = fs.power_is_off();
    (fs, outcome, cut_happened)
}

/// Recovers with the seed's second log settings and one to three threads, chosen by `n`.
fn recover(disk: &FaultFs, page_size: usize, seed: u64, n: u64) -> Result<azekura::Database, Error> {
    let threads = 1 + (n % 3) as usize;
    let store = deterministic(Arc::new(disk.clone()), page_size, 32).redo_threads(threads);
    logs(seed)[1].apply(store).open("db")
}

#[test]
fn every_cut_recovers_to_what_was_acknowledged() {
    for seed in seeds() {
        let page_size = if seed % 2 == 0 { 8192 } else { 4096 };
        let mut cut = 1;
        loop {
            let (fs, outcome, happened) = run_until(cut, seed, page_size);
            let disk = fs.crash(seed * 1_000_003 + cut);
            let context = format!("seed {seed}, power cut at I/O {cut}");
            let db = recover(&disk, page_size, seed, cut)
                .unwrap_or_else(|e| panic!("{context}: open: {e} ({e:?})"));
            assert_recovered(&db, &outcome, &context);
            if !happened {
                assert!(outcome.error.is_none(), "{context}: {:?}", outcome.error);
                break;
            }
            cut += 1;
        }
        assert!(cut > 50, "the workload does enough I/O to be worth cutting: {cut}");
    }
}

#[test]
fn an_encrypted_store_recovers_from_cuts_to_what_was_acknowledged() {
    crate::common::with_key(|| {
        for cut in (1..).step_by(3) {
            let (fs, outcome, happened) = run_until(cut, 5, 4096);
            let context = format!("encrypted, power cut at I/O {cut}");
            let disk = fs.crash(cut);
            let db = recover(&disk, 4096, 5, cut).unwrap_or_else(|e| panic!("{context}: open: {e} ({e:?})"));
            assert_recovered(&db, &outcome, &context);
            if !happened {
                assert!(cut > 50, "{cut}");
                break;
            }
        }
    });
}

/// Every 37th crash is followed by recoveries that lose power at each of their I/Os, one after another. Once
/// a recovery of a copy has found a state, all later ones must find the same.
#[test]
fn a_crash_during_recovery_changes_nothing() {
    for seed in seeds() {
        let page_size = 4096;
        let mut first_cut = 20 + seed % 7;
        loop {
            let (fs, outcome, happened) = run_until(first_cut, seed, page_size);
            if !happened {
                break;
            }
            let mut disk = fs.crash(seed + first_cut);
            let mut cut = 1;
            let mut settled: Option<usize> = None;
            loop {
                disk.cut_power_at(cut);
                let context = format!("seed {seed}, cut at {first_cut}, then during recovery at {cut}");
                match recover(&disk, page_size, seed, cut) {
                    Ok(db) if !disk.power_is_off() => {
                        disk.heal();
                        let at = assert_recovered(&db, &outcome, &context);
                        assert!(
                            settled.is_none_or(|s| s == at),
                            "{context}: state {at}, before it was {settled:?}"
                        );
                        break;
                    }
                    Ok(_) | Err(_) => {
                        assert!(disk.power_is_off(), "{context}: recovery failed without a power cut");
                    }
                }
                disk = disk.crash(seed * 31 + cut);
                // Recovers a copy of the disk without a further crash, to see which state it finds now.
                if cut % 5 == 0 {
                    let copy = disk.crash(7);
                    let db =
                        recover(&copy, page_size, seed, cut + 1).unwrap_or_else(|e| panic!("{context}: {e}"));
                    let at = assert_recovered(&db, &outcome, &context);
                    assert!(
                        settled.is_none_or(|s| s == at),
                        "{context}: state {at}, before it was {settled:?}"
                    );
                    settled = Some(at);
                }
                cut += 1;
            }
            first_cut += 37;
        }
    }
}

/// Returns the number of pages in the page file that are neither intact nor zero and have no copy in the
/// double-write area.
fn torn_pages(disk: &FaultFs, page_size: usize) -> u64 {
    let bytes = |path: &str| disk.contents(path.as_ref()).unwrap_or_default();
    let (pages, area) = (bytes("db/pages"), bytes("db/dw"));
    let has_copy = |id| area.chunks_exact(page_size).any(|page| image::is_intact(page, id));
    let is_torn = |page: &[u8], id| !image::is_zero(page) && !image::is_intact(page, id) && !has_copy(id);
    let pages = pages.chunks_exact(page_size).skip(1).zip((0..).map(PageId));
    pages.filter(|&(page, id)| is_torn(page, id)).count() as u64
}

/// A growing table with small checkpoints. A new page is written in place without a copy only until a
/// checkpoint covers it; later writes of the page have a copy (NEW-1, NEW-2).
#[test]
fn torn_pages_without_a_copy_are_restored_from_the_log() {
    const PAGE: usize = 4096;
    let shape = Shape { txns: 60, ops: 16, keys: 3000, tables: 1, large_values: true, checkpoints: true };
    let open = |disk: &FaultFs| deterministic(Arc::new(disk.clone()), PAGE, 32).open("db");
    let mut torn = 0;
    for (seed, cut) in (1..=3).flat_map(|seed| (10..400).step_by(9).map(move |cut| (seed, cut))) {
        let fs = FaultFs::new();
        let db = open(&fs).unwrap();
        fs.cut_power_at(cut);
        let outcome = run(&db, Model::new(), &workload(seed, shape));
        for crash in 0..3 {
            let disk = fs.crash(seed << 32 | cut << 8 | crash);
            torn += torn_pages(&disk, PAGE);
            let context = format!("seed {seed}, power cut at I/O {cut}, crash {crash}");
            let db = open(&disk).unwrap_or_else(|e| panic!("{context}: open: {e} ({e:?})"));
            assert_recovered(&db, &outcome, &context);
        }
        drop(db); // closes the store on a disk that is not used again
    }
    assert!(torn > 30, "{torn} pages were torn without a copy");
}
