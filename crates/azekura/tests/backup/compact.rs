//! Tests of compaction into a new store: the same rows in few pages, or a directory that does not open.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azekura::{Database, Error, Fs, Restore, TableDefinition};
use azekura_io::{FailKind, FaultFs};

use super::{contents, on};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const LARGE: TableDefinition<u64, [u8]> = TableDefinition::new("large");

/// Returns a store with mostly free and half-empty pages.
fn sparse(fs: &FaultFs, rows: u64) -> Database {
    let db = on(fs).open("db").expect("opens");
    for from in (0..rows).step_by(500) {
        db.transact(|tx| {
            let table = tx.table(&ROWS)?;
            // The keys are not in ascending order.
            (from..from + 500).try_for_each(|n| table.insert(&(n * 7919 % rows), &[n as u8; 200][..]))
        })
        .expect("writes");
    }
    db.transact(|tx| {
        let table = tx.table(&ROWS)?;
        (0..rows).filter(|n| n % 4 != 0).try_for_each(|n| table.delete(&n).map(drop))?;
        tx.table(&LARGE)?.insert(&1, &[1; 100_000][..])?;
        tx.table(&LARGE)?.insert(&1, &[2; 30_000][..])
    })
    .expect("removes");
    db
}

#[test]
fn a_compacted_store_has_the_same_rows_in_few_pages() {
    let fs = FaultFs::new();
    let db = sparse(&fs, 20_000);
    let report = db.compact_into("small").expect("copies");
    let small = on(&fs).create(false).open("small").expect("opens");
    assert_eq!(contents(&small), contents(&db));
    assert!(small.check(&mut |_, _| {}).expect("checks").is_clean());
    assert_eq!((report.tables, report.rows, report.row_bytes), (2, 5_001, 5_000 * 208 + 30_008));
    assert!(report.bytes_after * 4 < report.bytes_before, "{report:?}");
    let error = db.compact_into("small").expect_err("is not empty");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
}

#[test]
fn the_time_limit_of_transactions_does_not_end_a_copy() {
    let fs = FaultFs::new();
    let limited = || on(&fs).transaction_timeout(Duration::from_millis(20));
    sparse(&fs, 8_000).close().expect("closes");
    let db = limited().open("db").expect("opens");
    let pause = || std::thread::sleep(Duration::from_millis(40));
    let copied = db.compaction().progress(|_| pause()).into_directory("small").expect("copies");
    db.backup().file_system(Arc::new(fs.clone())).to_directory("backup").expect("backs up");
    let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(limited());
    let restored = restore.progress(|_| pause()).from_directory("backup", "new").expect("restores");
    assert_eq!((copied.rows, restored.backup.rows), (2_001, 2_001));
}

/// Inserts rows of `row_bytes` with keys of 8 bytes in key order, then removes every second one.
fn rows_of(fs: &FaultFs, row_bytes: usize) -> Database {
    let db = Database::builder().file_system(Arc::new(fs.clone())).cache_bytes(32 << 20);
    let db = db.background(false).open("db").expect("opens");
    let rows = (4 << 20) / row_bytes as u64;
    for from in (0..rows).step_by(4_000) {
        db.transact(|tx| {
            let table = tx.table(&ROWS)?;
            let value = vec![7; row_bytes - 8];
            (from..rows.min(from + 4_000)).try_for_each(|n| table.insert(&n, &value[..]))
        })
        .expect("writes");
    }
    db.transact(|tx| {
        let table = tx.table(&ROWS)?;
        (0..rows).step_by(2).try_for_each(|n| table.delete(&n).map(drop))
    })
    .expect("removes");
    db
}

#[test]
fn a_compacted_store_takes_little_more_than_its_rows() {
    /// Size of CONTROL, of the smallest log segment, and of the step by which the page file grows.
    const FIXED: u64 = 384 << 10;
    /// Number of pages of the smallest double-write area, the roots and the space map.
    const FIXED_PAGES: u64 = 16;
    // Row size, page size, and the largest store size in percent of the rows' bytes. A row has 16 bytes
    // besides its value and the part of its key after the eighth byte; both are padded to 8 bytes.
    for (row_bytes, page_size, most) in [
        (20, 8 << 10, 170),
        (64, 8 << 10, 115),
        (100, 8 << 10, 115),
        (256, 8 << 10, 115),
        (1_000, 8 << 10, 115),
        (1_500, 8 << 10, 115),
        (2_000, 8 << 10, 115),
        (2_500, 8 << 10, 115),
        (4 << 10, 32 << 10, 115),
    ] {
        let fs = FaultFs::new();
        let db = rows_of(&fs, row_bytes);
        let report = db.compaction().page_size(page_size).into_directory("small").expect("copies");
        assert_eq!(report.row_bytes, report.rows * row_bytes as u64);
        let limit = report.row_bytes * most / 100 + FIXED + FIXED_PAGES * page_size as u64;
        assert!(report.bytes_after <= limit, "rows of {row_bytes} bytes: {report:?}, limit {limit}");
        let small = on(&fs).create(false).open("small").expect("opens");
        assert_eq!((small.page_size(), contents(&small)), (page_size, contents(&db)));
    }
}

#[test]
fn a_compaction_shows_progress_and_refuses_impossible_pages() {
    let fs = FaultFs::new();
    let db = sparse(&fs, 8_000);
    let mut seen = Vec::new();
    let report = db.compaction().progress(|now| seen.push(now.clone())).into_directory("small");
    let (report, last) = (report.expect("copies"), seen.last().expect("progress was reported"));
    assert_eq!((last.tables, last.rows, last.bytes), (report.tables, report.rows, report.row_bytes));
    assert!(seen.len() > 1 && seen.is_sorted_by_key(|seen| seen.bytes), "{}", seen.len());
    let error = db.compaction().page_size(5_000).into_directory("odd").expect_err("no page size");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(!fs.exists(Path::new("odd")), "a refused compaction made a directory");
}

#[test]
fn a_copy_into_too_small_pages_names_the_row() {
    let fs = FaultFs::new();
    let db = on(&fs).page_size(16 << 10).open("db").expect("opens");
    let words: TableDefinition<str, u64> = TableDefinition::new("words");
    let long = format!("long {}", "x".repeat(2_000));
    db.transact(|tx| {
        tx.table(&words)?.insert("a", &1)?;
        tx.table(&words)?.insert(&long[..], &2)
    })
    .expect("writes");
    db.backup().file_system(Arc::new(fs.clone())).to_directory("backup").expect("backs up");
    let restore = Restore::new().file_system(Arc::new(fs.clone())).builder(on(&fs)).page_size(4096);
    for error in [
        db.compaction().page_size(4096).into_directory("small").expect_err("is too long"),
        restore.from_directory("backup", "restored").expect_err("is too long"),
    ] {
        let said = error.to_string();
        let is_right = ["row 2", "\"words\"", "long xxx", "2005 bytes", "larger pages"];
        assert!(is_right.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn a_compaction_with_a_filter_copies_the_rows_that_it_keeps() {
    let fs = FaultFs::new();
    let db = sparse(&fs, 8_000);
    let is_kept = |key: &[u8]| key.last().is_some_and(|last| last % 8 == 0);
    let mut tables = BTreeSet::new();
    let compaction = db.compaction().filter(|table, key, _| {
        tables.insert(table.to_owned());
        is_kept(key)
    });
    let report = compaction.into_directory("small").expect("copies");
    let small = on(&fs).create(false).open("small").expect("opens");
    let mut expected = contents(&db);
    assert!(tables.iter().eq(expected.keys()));
    expected.values_mut().for_each(|(_, rows)| rows.retain(|(key, _)| is_kept(key)));
    assert_eq!((report.rows, contents(&small)), (1_000, expected));
    assert!(small.check(&mut |_, _| {}).expect("checks").is_clean());
    let nothing = db.compaction().filter(|_, _, _| false).into_directory("nothing").expect("copies");
    assert_eq!((nothing.tables, nothing.rows), (2, 0));
}

#[test]
fn a_compaction_that_stops_at_any_io_is_whole_or_does_not_open() {
    let source = FaultFs::new();
    let db = sparse(&source, 500);
    let right = contents(&db);
    db.close().expect("closes");
    drop(db);
    let (mut whole, mut refused) = (0, 0);
    for power in [true, false] {
        for n in (1..).step_by(2) {
            let fs = source.kill();
            let db = on(&fs).read_only(true).open("db").expect("opens");
            let at = fs.io_count() + n;
            if power {
                fs.cut_power_at(n);
            } else {
                fs.fail_at(n, FailKind::NoSpace);
            }
            let copied = db.compact_into("small");
            let is_done = fs.io_count() < at;
            assert!(!is_done || copied.is_ok(), "{copied:?}");
            let fs = if power {
                fs.crash(n)
            } else {
                fs.heal();
                fs.kill()
            };
            match on(&fs).create(false).open("small") {
                Ok(small) => {
                    assert_eq!(contents(&small), right, "I/O {n}");
                    whole += 1;
                }
                Err(Error::RestoreUnfinished { .. } | Error::NotFound { .. }) => {
                    refused += 1;
                    let db = on(&fs).open("db").expect("opens");
                    db.compact_into("small").unwrap_or_else(|error| panic!("I/O {n}: {error:?}"));
                    assert_eq!(contents(&on(&fs).open("small").expect("opens")), right, "I/O {n}");
                }
                Err(other) => panic!("I/O {n}: {other:?}"),
            }
            assert_eq!(contents(&on(&fs).open("db").expect("opens")), right, "the source, I/O {n}");
            if is_done {
                break;
            }
        }
    }
    assert!(whole >= 2 && refused > 20, "{whole} {refused}");
}
