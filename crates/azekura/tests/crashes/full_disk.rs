//! Tests of a disk without space for more log. The change fails with a typed error, the transaction can be
//! rolled back, and reads continue. Writes succeed again once there is space.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use azekura::{Database, Error, ErrorKind, TableDefinition, Transaction};
use azekura_io::{FailKind, FaultFs, IoKind, IoRecord};

const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");
const OTHER: TableDefinition<u32, u32> = TableDefinition::new("other");
const KEPT: u32 = 50;

fn open(fs: &FaultFs) -> Database {
    open_with(fs, 2)
}

/// Opens a store with one log buffer and one stream, so that its I/O does not depend on the processor of a
/// thread.
fn open_with_one_log_buffer(fs: &FaultFs) -> Database {
    open_with(fs, 1)
}

fn open_with(fs: &FaultFs, log_buffers: usize) -> Database {
    Database::builder()
        .page_size(4096)
        .cache_bytes(8 << 20)
        .log_buffers(log_buffers)
        .wal_streams(log_buffers)
        .wal_segment_bytes(2 << 20)
        .background(false)
        .file_system(Arc::new(fs.clone()))
        .open("db")
        .expect("opens")
}

/// Writes until the log has no more space; the disk is full from change number `full_from` on. Returns the
/// number of changes of the open transaction.
fn fill_up(fs: &FaultFs, tx: &Transaction, full_from: u32) -> Result<u32, Error> {
    let rows = tx.table(&ROWS)?;
    for n in 0..1_000_000 {
        if n == full_from {
            fs.full_from(1);
        }
        // Overwriting rows needs space in the log, but no more pages.
        if let Err(error) = rows.insert(&(n % KEPT), &[n as u8; 500]) {
            assert!(matches!(error, Error::LogFull { .. }) && error.kind() == ErrorKind::Busy, "{error:?}");
            return Ok(n);
        }
    }
    panic!("the disk was never full");
}

fn assert_content(db: &Database, byte: u8) {
    let rows = db.transact(|tx| tx.table(&ROWS)?.iter().collect::<Result<Vec<_>, _>>()).expect("reads");
    assert_eq!(rows.len(), KEPT as usize);
    assert!(rows.iter().all(|(_, value)| *value == [byte; 500]));
}

fn write_all(db: &Database, byte: u8) -> Result<(), Error> {
    db.transact(|tx| (0..KEPT).try_for_each(|n| tx.table(&ROWS)?.insert(&n, &[byte; 500])))
}

fn assert_goes_on(db: &Database, fs: &FaultFs, byte: u8) {
    fs.heal();
    write_all(db, byte).expect("there is room again");
    assert_content(db, byte);
    assert_eq!((db.stats().parked_rollbacks, db.stats().degraded), (0, None));
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_small_transaction_on_a_full_disk_is_undone_with_the_reserve() {
    let fs = FaultFs::new();
    let db = open(&fs);
    write_all(&db, 1).expect("writes");
    // The transaction has made a change when another program takes the remaining space.
    let small = db.begin().expect("begins");
    let before = small.savepoint().expect("is open");
    let extra = |n: u32| small.table(&ROWS)?.insert(&(1_000 + n), &[9; 500]);
    (0..20).try_for_each(extra).expect("writes");
    let greedy = db.begin().expect("begins");
    assert!(fill_up(&fs, &greedy, 0).expect("the first change finds a table") > 0);
    let full = extra(21).expect_err("the disk is full");
    assert!(matches!(full, Error::LogFull { .. }) && full.full_message().starts_with(&full.to_string()));
    assert!(std::error::Error::source(&full).is_some(), "the file that cannot grow");
    small.rollback_to(before).expect("undone out of the reserve");
    small.abort().expect("its end goes there, too");
    let late = db.begin().expect("begins");
    assert!(matches!(late.table(&ROWS).expect("opens").insert(&77_777, b"x"), Err(Error::LogFull { .. })));
    late.abort().expect("nothing to undo");
    drop(greedy);
    assert_goes_on(&db, &fs, 2);
    drop(db);
    assert_content(&open(&fs), 2);
}

#[test]
fn a_rollback_too_large_for_the_reserve_keeps_its_rows_locked_until_there_is_room() {
    let fs = FaultFs::new();
    let db = open(&fs);
    db.transact(|tx| tx.table(&OTHER)?.insert(&1, &1)).expect("writes");
    write_all(&db, 1).expect("writes");
    for round in 1..4 {
        let tx = db.begin().expect("begins");
        fill_up(&fs, &tx, 8_000).expect("the first change finds a table");
        assert!(matches!(tx.abort(), Err(Error::LogFull { .. })), "so much to undo has no room");
        assert_eq!(db.stats().parked_rollbacks, 1);
        // Other transactions continue to read, except rows of the rollback that is not finished.
        assert_eq!(db.transact(|tx| tx.table(&OTHER)?.get(&1)).expect("reads"), Some(1));
        let reader = db.begin().expect("begins");
        let read = reader.table(&ROWS).expect("opens").get(&0);
        let names_cause = |reason: &str| reason.contains("free space") && reason.contains("os error 28");
        assert!(
            matches!(&read, Err(Error::RollbackPending { transactions: 1, reason }) if names_cause(reason)),
            "{read:?}"
        );
        assert!(db.stats().degraded.is_some_and(|why| why.contains("free space")));
        drop(reader);
        if round < 3 {
            assert_goes_on(&db, &fs, round + 1);
        }
    }
    drop(db);
    fs.heal();
    let db = open(&fs);
    assert_eq!(db.stats().recovery.losers, 1, "the restart undoes it");
    assert_content(&db, 3);
}

/// Changes that the log has accepted can be applied: if the disk is full from any moment on, a checkpoint of
/// all commits succeeds, and so does a restart. Rows can still be removed meanwhile.
#[test]
fn committed_changes_are_applied_on_a_full_disk() {
    let mut refused = 0;
    for full_from in (0..400).step_by(7) {
        let fs = FaultFs::new();
        let db = open(&fs);
        let mut written = Vec::new();
        for n in 0..400_u32 {
            if n == full_from {
                fs.full_from(1);
            }
            match db.transact(|tx| tx.table(&ROWS)?.insert(&n, &[n as u8; 700])) {
                Ok(_) => written.push(n),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                    refused += 1;
                    break;
                }
            }
        }
        let read = |db: &Database| {
            let keys = |tx: &Transaction| {
                tx.table(&ROWS)?.iter().map(|row| Ok(row?.0)).collect::<Result<Vec<_>, _>>()
            };
            db.transact(keys).expect("reads")
        };
        if full_from > 0 {
            db.checkpoint().unwrap_or_else(|error| panic!("full from {full_from}: {error}"));
            assert_eq!(read(&db), written);
            let first = written.remove(0);
            assert!(db.transact(|tx| tx.table(&ROWS)?.remove(&first)).expect("removes").is_some());
        }
        // The process is killed and the store opened on the full disk: read-only, and for writing.
        let killed = fs.kill();
        killed.full_from(1);
        if written.is_empty() {
            continue; // the table does not exist
        }
        let reader = Database::builder().cache_bytes(8 << 20).read_only(true);
        let reader = reader.file_system(Arc::new(killed.clone())).open("db").expect("opens to read");
        assert_eq!(read(&reader), written);
        drop(reader);
        let db = open(&killed);
        assert_eq!(read(&db), written, "full from {full_from}");
        db.close().expect("closes");
    }
    assert!(refused > 10, "{refused}: the disk was hardly ever full");
}

/// On a full disk the checkpointer shortens the log although a restart would be short. So changes have space
/// again, without a call of the program.
#[test]
fn the_checkpointer_makes_space_for_changes_on_a_full_disk() {
    let fs = FaultFs::new();
    let builder = Database::builder().page_size(4096).cache_bytes(8 << 20).log_buffers(1).wal_streams(1);
    let builder = builder.wal_segment_bytes(2 << 20).recovery_time(Duration::from_secs(3600));
    let db = builder.file_system(Arc::new(fs.clone())).open("db").expect("opens");
    // The log has several files of full size.
    (0..600).for_each(|n| write_all(&db, n as u8).expect("writes"));
    fs.full_from(1);
    let full = (0..10_000).find_map(|n| write_all(&db, n as u8).err()).expect("the disk is full");
    assert!(matches!(full, Error::LogFull { .. }), "{full:?}");
    let limit = Instant::now() + Duration::from_secs(120);
    let wait_for = |change: &dyn Fn() -> Result<(), Error>| {
        while let Err(error) = change() {
            assert!(matches!(error, Error::LogFull { .. }) && Instant::now() < limit, "{error:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&|| db.transact(|tx| tx.table(&ROWS)?.remove(&0).map(drop)));
    // The released log files have space. The checkpointer may release them one after another.
    (0..100).for_each(|n| wait_for(&|| write_all(&db, n)));
    assert_goes_on(&db, &fs, 7);
}

/// A closed store keeps a log file for each stream that was written. So rows can be removed and replaced on a
/// full disk, whichever log buffer the transaction uses.
#[test]
fn a_closed_store_takes_removals_on_a_full_disk() {
    for buffers in [1, 2] {
        let fs = FaultFs::new();
        let db = open_with(&fs, buffers);
        let change = |db: &Database, buffer: usize, keys: Range<u32>, value: Option<u8>| {
            let tx = db.begin_on_log_buffer(buffer)?;
            keys.into_iter().try_for_each(|key| match value {
                Some(byte) => tx.table(&ROWS)?.insert(&key, &[byte; 900]).map(drop),
                None => tx.table(&ROWS)?.remove(&key).map(drop),
            })?;
            tx.commit()
        };
        for buffer in 0..buffers as u32 {
            change(&db, buffer as usize, buffer * 200..buffer * 200 + 200, Some(7)).expect("writes");
        }
        db.close().expect("closes");
        drop(db);
        for round in 0..5_u32 {
            fs.full_from(1);
            let db = open_with(&fs, buffers);
            let (from, buffer) = (round * 30, round as usize % buffers);
            change(&db, buffer, from..from + 30, None).expect("removes");
            change(&db, buffer, from + 1_000..from + 1_030, Some(8)).expect("finds the room of the others");
            db.close().expect("closes");
            fs.heal();
        }
        let db = open_with(&fs, buffers);
        let rows = db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).expect("reads");
        assert_eq!(rows, 200 * buffers);
        assert!(db.check(&mut |_, _| {}).expect("checks").is_clean());
    }
}

/// Returns the file and the kind of a call, in the terms of `docs/failures.md`.
fn call_in_words(io: &IoRecord) -> String {
    let files =
        [("wal", "log"), ("pages", "pages"), ("dw", "dw"), ("CONTROL", "CONTROL"), ("lsnmap", "LSN map")];
    let file = files.iter().find(|(part, _)| io.path.contains(part)).map_or("directory", |(_, name)| name);
    let call = match io.kind {
        IoKind::Create | IoKind::CreateDir | IoKind::SyncDir | IoKind::Rename => "make a name",
        IoKind::WriteAt | IoKind::WriteAtSync => "write",
        IoKind::WriteZeroes | IoKind::SetLen => "grow",
        IoKind::Sync => "sync",
        _ => "remove",
    };
    format!("{file}: {call}")
}

/// Returns the name of an error, or `ok`.
fn name<T>(result: &Result<T, Error>) -> String {
    let name =
        |error: &Error| format!("{error:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    result.as_ref().err().map_or_else(|| "ok".to_owned(), |error| format!("`{}`", name(error)))
}

/// Keys of rows that were in the store before the failure.
const OLD_ROWS: [u32; 4] = [0, 1_000, 2_000, 3_000];

/// The consequences of a failed call of the file system: the store's call that got an error, and the results
/// of later calls.
type Outcome = [String; 4];

/// Runs a store, and lets the `n`-th call of the file system fail once. Returns `None` if there are fewer
/// calls.
fn run_with_a_failure(closed: &FaultFs, n: u64, kind: FailKind) -> Option<(String, Outcome)> {
    let fs = closed.kill();
    let mut db = open_with_one_log_buffer(&fs);
    fs.fail_at(n, kind);
    let mut kept = OLD_ROWS.to_vec();
    let mut failed_call = None;
    let hit = |fs: &FaultFs| fs.last_ios().into_iter().find(|io| io.failure.is_some());
    // Each row needs its own page.
    let put = |db: &Database, key: u32| {
        db.transact(|tx| (0..3).try_for_each(|i| tx.table(&ROWS)?.insert(&(key + i), &[7; 1_300])))
    };
    for step in 1..=14_u32 {
        let (call, result) = match step {
            5 | 10 => ("checkpoint", db.checkpoint()),
            14 => ("close", db.close()),
            _ => ("commit", put(&db, step * 10)),
        };
        if call == "commit" && result.is_ok() {
            kept.extend((0..3).map(|i| step * 10 + i));
        }
        if hit(&fs).is_some() {
            failed_call = Some((call, name(&result)));
            break;
        }
    }
    let io = hit(&fs)?;
    let (call, result) = failed_call.expect("a call of the store met the failure");
    let mut outcome = [format!("{call}: {result}"), String::new(), String::new(), String::new()];
    if call != "close" {
        let write = put(&db, 500);
        if write.is_ok() {
            kept.extend(500..503);
        }
        // A row that shares a slot of commit LSNs with a failed commit cannot be read (see `depend` of
        // azekura-lock). The seed of the slots is random, so one of these rows may be refused.
        let reads = OLD_ROWS.map(|key| db.transact(|tx| tx.table(&ROWS)?.get(&key)));
        for read in &reads {
            assert!(read.is_err() || matches!(read, Ok(Some(_))), "{io}: a wrong answer");
        }
        let [first, ..] = &reads;
        let read = reads.iter().find(|read| read.is_ok()).unwrap_or(first);
        let degraded = if db.stats().degraded.is_some() { "degraded" } else { "" };
        outcome = [outcome[0].clone(), name(&write), name(read), degraded.to_owned()];
        let _ = db.close();
    }
    // In each case the next opening has all acknowledged rows and accepts changes.
    drop(db);
    db = open_with_one_log_buffer(&fs.kill());
    let rows = db.transact(|tx| tx.table(&ROWS)?.iter().map(|row| Ok(row?.0)).collect::<Result<Vec<_>, _>>());
    let rows = rows.expect("reads");
    assert!(kept.iter().all(|key| rows.contains(key)), "{io}, {kind:?}: {kept:?} were kept, not {rows:?}");
    put(&db, 600).expect("takes changes");
    assert!(db.check(&mut |_, _| {}).expect("checks").is_clean());
    Some((call_in_words(&io), outcome))
}

/// Groups the store's calls by their result: `checkpoint, close: RESULT; commit: RESULT`.
fn by_result(results: &BTreeSet<String>) -> String {
    let mut calls: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (call, result) in results.iter().filter_map(|line| line.split_once(": ")) {
        calls.entry(result).or_default().push(call);
    }
    let parts = calls.iter().map(|(result, calls)| format!("{}: {result}", calls.join(", ")));
    parts.collect::<Vec<_>>().join("; ")
}

/// Each call of the file system fails once in each way; the consequences are those of `docs/failures.md`.
#[test]
fn each_failed_call_leads_to_what_the_table_of_failures_says() {
    let closed = FaultFs::new();
    let db = open_with_one_log_buffer(&closed);
    db.transact(|tx| OLD_ROWS.iter().try_for_each(|key| tx.table(&ROWS)?.insert(key, &[1; 10])))
        .expect("writes");
    db.close().expect("closes");
    drop(db);
    let mut table: BTreeMap<(String, &str), [BTreeSet<String>; 4]> = BTreeMap::new();
    for (kind, error) in [(FailKind::Io, "EIO"), (FailKind::NoSpace, "ENOSPC"), (FailKind::Quota, "EDQUOT")] {
        for n in 1.. {
            let Some((call, outcome)) = run_with_a_failure(&closed, n, kind) else { break };
            let cells = table.entry((call, error)).or_default();
            cells.iter_mut().zip(outcome).filter(|(_, new)| !new.is_empty()).for_each(|(cell, new)| {
                cell.insert(new);
            });
        }
    }
    let list = |cell: &BTreeSet<String>| cell.iter().cloned().collect::<Vec<_>>().join(", ");
    let row = |((call, error), [results, rest @ ..]): (&(String, &str), &[BTreeSet<String>; 4])| {
        let rest = rest.each_ref().map(list).join(" | ");
        format!("| {call} | {error} | {} | {rest} |\n", by_result(results))
    };
    let found: Vec<String> = table.iter().map(row).collect();
    let documented = include_str!("../../../../docs/failures.md").lines().filter(|line| line.contains("| E"));
    let documented: Vec<String> = documented.map(|line| format!("{line}\n")).collect();
    let only = |of: &[String], other: &[String]| -> String {
        of.iter().filter(|line| !other.contains(line)).map(String::as_str).collect()
    };
    let (new, missing) = (only(&found, &documented), only(&documented, &found));
    assert!(found == documented, "docs/failures.md has not\n{new}and has, but was not found,\n{missing}");
}
