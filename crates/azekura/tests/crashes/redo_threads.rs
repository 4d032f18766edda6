//! Tests of redo by several threads, each with a share of the pages (REDO-1 to REDO-3 of `restart::redo`).
//! The pages have the same content as after redo by one thread, and an error of a share is the error of the
//! opening.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{Model, Outcome, Shape, assert_recovered, deterministic, run, workload};
use azekura::{Database, Error};
use azekura_io::FaultFs;

const PAGE: usize = 4096;
const SHAPE: Shape =
    Shape { txns: 150, ops: 30, keys: 9_000, tables: 3, large_values: true, checkpoints: false };

/// Returns a killed store with all its writes on disk. Half of the work came after a checkpoint, so redo
/// reads existing pages and creates new ones.
fn killed(seed: u64, shape: Shape) -> (FaultFs, Outcome) {
    let fs = FaultFs::new();
    let db = deterministic(Arc::new(fs.clone()), PAGE, 64).open("db").unwrap();
    let before = run(&db, Model::new(), &workload(seed, shape));
    db.checkpoint().unwrap();
    let outcome = run(&db, before.states.last().unwrap().clone(), &workload(seed + 100, shape));
    assert!(before.error.is_none() && outcome.error.is_none(), "{before:?}, {outcome:?}");
    let disk = fs.kill();
    drop(db);
    (disk, outcome)
}

fn open(disk: &FaultFs, threads: usize) -> Result<Database, Error> {
    deterministic(Arc::new(disk.clone()), PAGE, 64).redo_threads(threads).open("db")
}

fn file(disk: &FaultFs, name: &str) -> PathBuf {
    let is_it = |path: &PathBuf| path.file_name().is_some_and(|found| found == name);
    disk.files().into_iter().find(is_it).unwrap()
}

#[test]
fn any_number_of_threads_makes_the_same_pages() {
    let (disk, outcome) = killed(11, SHAPE);
    let mut by_one: Option<Vec<u8>> = None;
    for threads in [1, 2, 3, 7, 16] {
        let copy = disk.crash_keeping_all();
        let db = open(&copy, threads).unwrap();
        let context = format!("{threads} threads");
        assert_eq!(db.stats().recovery.redo_threads, threads);
        assert!(db.stats().recovery.records > 1_000, "{context}: {:?}", db.stats().recovery);
        assert_recovered(&db, &outcome, &context);
        db.close().unwrap();
        // The head of the file counts batches of page writes, which depend on the timing of the threads.
        let pages = copy.contents(&file(&copy, "pages")).unwrap().split_off(PAGE);
        let same = by_one.get_or_insert_with(|| pages.clone());
        assert!(*same == pages, "{context}: other bytes in the page file");
    }
}

#[test]
fn a_page_that_cannot_be_read_in_a_share_is_the_error_of_the_opening() {
    let (disk, _) = killed(12, Shape { large_values: false, ..SHAPE });
    let page_file = file(&disk, "pages");
    let bytes = disk.contents(&page_file).unwrap().split_off(PAGE); // after the head of the file
    let is_written = |page: &usize| bytes[page * PAGE..][..PAGE].iter().any(|&b| b != 0);
    let written: Vec<usize> = (0..bytes.len() / PAGE).filter(is_written).collect();
    // Without a copy in the double-write area, no page can be repaired.
    let second = file(&disk, "dw");
    let len = disk.contents(&second).unwrap().len() as u64;
    disk.corrupt(&second, PAGE as u64, len - PAGE as u64, 1).unwrap();
    let mut refused = 0;
    // Damage has no effect on a page that redo creates from the log alone.
    for &page in &written {
        let open_damaged = |threads| {
            let copy = disk.crash_keeping_all();
            copy.corrupt(&page_file, ((page + 1) * PAGE) as u64, PAGE as u64, page as u64).unwrap();
            match open(&copy, threads) {
                Ok(_) => false,
                Err(Error::CorruptPage { page: named, .. }) => {
                    assert_eq!(named.0, page as u64);
                    true
                }
                Err(other) => panic!("page {page}, {threads} threads: {other}"),
            }
        };
        let by_one = open_damaged(1);
        assert_eq!(open_damaged(2 + page % 5), by_one, "page {page}");
        refused += u32::from(by_one);
    }
    assert!(refused > 2, "only {refused} of the {} pages are read by redo", written.len());
}

#[test]
fn a_device_that_fails_under_a_share_is_the_error_of_the_opening() {
    let (disk, outcome) = killed(13, Shape { large_values: false, ..SHAPE });
    let mut failed = 0;
    for read in (1..400).step_by(9) {
        let copy = disk.crash_keeping_all();
        copy.fail_read_at(read);
        match open(&copy, 3) {
            Ok(db) => {
                assert_recovered(&db, &outcome, &format!("read {read} failed unnoticed"));
            }
            Err(error) => {
                assert!(format!("{error:?}").contains("Input/output"), "read {read}: {error:?}");
                failed += 1;
            }
        }
        copy.heal();
        let db = open(&copy, 3).unwrap();
        assert_recovered(&db, &outcome, &format!("after read {read} failed"));
    }
    assert!(failed > 0, "the opening reads");
}

#[test]
fn no_thread_and_too_many_threads_are_refused() {
    for threads in [0, 65] {
        let refused = Database::builder().redo_threads(threads).open(Path::new("nowhere")).unwrap_err();
        assert!(refused.to_string().contains("threads to redo"), "{refused}");
    }
}
