//! A commit waits for another worker's log exactly if it rests on something there (`LogProtocol::Rfa`;
//! REST-1, REST-3, REST-7): by a page, by a lock, or not at all. No thread of the store writes, so what is
//! durable is what somebody waited for.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::sync::Arc;

use azekura::{
    Builder, CommitTicket, Database, Durability, Error, LogProtocol, TableDefinition, Transaction,
};
use azekura_io::FaultFs;

/// A table each, so that their rows are on pages of their own.
const FIRST: TableDefinition<u64, u64> = TableDefinition::new("first");
const SECOND: TableDefinition<u64, u64> = TableDefinition::new("second");
const THIRD: TableDefinition<u64, u64> = TableDefinition::new("third");

fn options(fs: &FaultFs, protocol: LogProtocol) -> Builder {
    Database::builder()
        .page_size(4096)
        .cache_bytes(64 * 4096)
        .log_protocol(protocol)
        .wal_workers(3)
        .wal_streams(3)
        .wal_segment_bytes(2 << 20)
        .background(false)
        .file_system(Arc::new(fs.clone()))
}

/// A store with three tables of five rows that hold 0.
fn store(fs: &FaultFs) -> Database {
    let db = options(fs, LogProtocol::Rfa).open("db").unwrap();
    db.transact(|tx| {
        (1..=5).try_for_each(|n| {
            [FIRST, SECOND, THIRD].iter().try_for_each(|table| tx.table(table)?.insert(&(n * 10), &0))
        })
    })
    .unwrap();
    // All of that is on disk, and no page is newer than the log.
    db.checkpoint().unwrap();
    db
}

type Body = fn(&Transaction) -> Result<(), Error>;

fn run(db: &Database, worker: usize, durability: Durability, body: Body) {
    let tx = db.begin_on_log_worker(worker).unwrap();
    tx.set_durability(durability);
    body(&tx).unwrap();
    tx.commit().unwrap();
}

fn ticket(db: &Database, worker: usize, body: Body) -> CommitTicket {
    let tx = db.begin_on_log_worker(worker).unwrap();
    body(&tx).unwrap();
    tx.commit_async().unwrap()
}

/// Row 30 of each table after a power loss in which everything is lost that may be.
fn rows_after_a_crash(fs: &FaultFs, protocol: LogProtocol) -> [u64; 3] {
    let disk = fs.crash_losing_all();
    rows(&options(&disk, protocol).open("db").unwrap())
}

fn rows(db: &Database) -> [u64; 3] {
    assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
    [FIRST, SECOND, THIRD].map(|table| db.transact(|tx| tx.table(&table)?.get(&30)).unwrap().unwrap())
}

const WRITE_FIRST: Body = |tx| tx.table(&FIRST)?.insert(&30, &1);
const WRITE_SECOND: Body = |tx| tx.table(&SECOND)?.insert(&30, &2);
const WRITE_THIRD: Body = |tx| tx.table(&THIRD)?.insert(&30, &3);
/// Rests on `WRITE_FIRST` by its lock only.
const COPY: Body = |tx| {
    let seen = tx.table(&FIRST)?.get(&30)?.unwrap();
    tx.table(&SECOND)?.insert(&30, &(seen * 10))
};
/// Rests on `WRITE_FIRST` by the page only.
const WRITE_BESIDE: Body = |tx| {
    tx.table(&FIRST)?.insert(&40, &7)?;
    tx.table(&SECOND)?.insert(&30, &2)
};

#[test]
fn a_commit_that_rests_on_nothing_in_other_logs_is_answered_above_a_hole_and_survives() {
    for protocol in [LogProtocol::Rfa, LogProtocol::PWal, LogProtocol::Serial] {
        let fs = FaultFs::new();
        let db = store(&fs);
        let before = db.stats().log;
        run(&db, 0, Durability::Relaxed, WRITE_FIRST);
        run(&db, 1, Durability::Immediate, WRITE_SECOND);
        let after = db.stats().log;
        assert_eq!(after.answered_above_a_hole - before.answered_above_a_hole, 1);
        assert_eq!(after.commits_alone - before.commits_alone, 2, "neither rests on the other");
        assert_eq!(after.flushes - before.flushes, 1, "its own log and no other");
        assert_eq!(rows_after_a_crash(&fs, protocol), [0, 2, 0], "recovered by {protocol}");
    }
}

#[test]
fn a_commit_waits_for_what_it_rests_on_in_another_log_and_for_nothing_behind_that() {
    for (how, body, value) in [("a lock", COPY, 10), ("a page", WRITE_BESIDE, 2)] {
        let fs = FaultFs::new();
        let db = store(&fs);
        let before = db.stats().log;
        run(&db, 0, Durability::Relaxed, WRITE_FIRST);
        run(&db, 2, Durability::Relaxed, WRITE_THIRD);
        run(&db, 1, Durability::Immediate, body);
        let after = db.stats().log;
        assert_eq!(after.flushes - before.flushes, 2, "{how}: its own log and the other's");
        assert_eq!(after.commits_alone - before.commits_alone, 2, "{how}");
        let found = rows_after_a_crash(&fs, LogProtocol::Rfa);
        assert_eq!(found, [1, value, 0], "{how}: what nobody waited for is gone");
    }
}

#[test]
fn a_commit_is_not_acknowledged_before_what_it_rests_on() {
    for (how, body) in [("a lock", COPY), ("a page", WRITE_BESIDE)] {
        let fs = FaultFs::new();
        let db = store(&fs);
        run(&db, 0, Durability::Relaxed, WRITE_FIRST);
        let dependent = ticket(&db, 1, body);
        let alone = ticket(&db, 2, WRITE_THIRD);
        assert_eq!([dependent.is_durable().unwrap(), alone.is_durable().unwrap()], [false, false]);
        db.write_one_log_stream(1);
        db.write_one_log_stream(2);
        assert!(!dependent.is_durable().unwrap(), "{how}: its own log is not enough");
        assert!(alone.is_durable().unwrap(), "{how}: it rests on nothing");
        assert_eq!(rows_after_a_crash(&fs, LogProtocol::Rfa), [0, 0, 3], "{how}");
        let both = dependent.max(alone);
        assert!(!both.is_durable().unwrap(), "{how}: a ticket for both needs both");
        db.write_one_log_stream(0);
        assert!(both.is_durable().unwrap(), "{how}");
        assert_eq!(rows_after_a_crash(&fs, LogProtocol::Rfa)[2], 3, "{how}");
    }
}

#[test]
fn what_a_rollback_took_back_is_rested_on_like_everything_else() {
    let fs = FaultFs::new();
    let db = store(&fs);
    // The page that the second changes has a change and its compensation in the first's log, the lock has no
    // commit.
    let tx = db.begin_on_log_worker(0).unwrap();
    WRITE_FIRST(&tx).unwrap();
    tx.abort().unwrap();
    run(&db, 1, Durability::Immediate, |tx| tx.table(&FIRST)?.insert(&30, &5));
    assert_eq!(rows_after_a_crash(&fs, LogProtocol::Rfa), [5, 0, 0]);
}

/// The very first record of an incarnation is missing, so nothing of it counts but a tail; and the recovery
/// is cut off at each of its I/Os.
#[test]
fn a_recovery_that_is_cut_off_anywhere_does_not_forget_what_counts_above_the_hole() {
    for protocol in [LogProtocol::Rfa, LogProtocol::PWal] {
        let fs = FaultFs::new();
        drop(store(&fs));
        let db = options(&fs, LogProtocol::Rfa).open("db").unwrap();
        // The log of a closed store begins with its first record, and a checkpoint follows.
        run(&db, 2, Durability::Immediate, |tx| tx.table(&THIRD)?.insert(&50, &0));
        db.checkpoint().unwrap();
        run(&db, 0, Durability::Relaxed, WRITE_FIRST);
        // A loser that counts in part, so that recoveries have something to undo.
        let open = db.begin_on_log_worker(1).unwrap();
        WRITE_THIRD(&open).unwrap();
        run(&db, 1, Durability::Immediate, WRITE_SECOND);
        let mut disk = fs.crash_losing_all();
        drop(open); // which undoes it on a disk that is not looked at any more
        let mut cut = 0;
        loop {
            cut += 1;
            disk.cut_power_at(cut);
            let opened = options(&disk, protocol).open("db");
            let is_done = !disk.power_is_off();
            if let Ok(db) = &opened
                && is_done
            {
                assert_eq!(rows(db), [0, 2, 0], "{protocol}, after {cut} cuts");
                break;
            }
            let next = disk.crash_losing_all();
            drop(opened);
            disk = next;
        }
        assert!(cut > 10, "{protocol}: {cut} I/Os in a recovery are too few to mean anything");
    }
}
