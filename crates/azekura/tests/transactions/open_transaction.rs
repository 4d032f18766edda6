//! Tests of a transaction that stays open: the log is trimmed nevertheless, a restart undoes the transaction,
//! and it can continue or be rolled back.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use azekura::{Database, Error, ErrorKind, TableDefinition, Transaction};
use azekura_io::FaultFs;

const OPEN: TableDefinition<u32, [u8]> = TableDefinition::new("open");
const BUSY: TableDefinition<u32, u64> = TableDefinition::new("busy");
const SEGMENT: u64 = 2 << 20;
/// Number of rows that the other transactions change.
const ROWS: u32 = 500;

fn open(fs: &FaultFs) -> Database {
    Database::builder()
        .page_size(4096)
        .cache_bytes(8 << 20)
        .log_buffers(2)
        .wal_streams(2)
        .wal_segment_bytes(SEGMENT)
        .background(false)
        .recovery_time(Duration::from_millis(50))
        .file_system(Arc::new(fs.clone()))
        .open("db")
        .expect("opens")
}

/// Commits `count` small transactions, several hundred per write of the log. Returns the largest number of
/// bytes of log that were kept.
fn commit_many(db: &Database, from: u64, count: u64) -> u64 {
    let mut most = 0;
    for n in from..from + count {
        let (_, ticket) = db
            .transact_deferred_flush(|tx| {
                let busy = tx.table(&BUSY)?;
                (0..40).try_for_each(|i| busy.insert(&((n as u32 * 40 + i) % ROWS), &n))
            })
            .expect("commits");
        if n % 100 == 99 {
            ticket.wait().expect("durable");
            most = most.max(db.stats().log.retained_bytes);
        }
    }
    db.transact(|tx| tx.table(&BUSY)?.insert(&ROWS, &(from + count))).expect("durable");
    most
}

fn value(tx: &Transaction, key: u32) -> Option<Vec<u8>> {
    tx.table(&OPEN).expect("opens").get(&key).expect("reads").map(|value| value.to_vec())
}

fn assert_undone(db: &Database, newest: u64) {
    let tx = db.begin().expect("begins");
    assert_eq!(value(&tx, 1).as_deref(), Some(&b"before"[..]));
    assert_eq!(value(&tx, 2), None);
    assert_eq!(tx.table(&BUSY).expect("opens").get(&ROWS).expect("reads"), Some(newest));
    drop(tx);
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

fn begin_open(db: &Database) -> Transaction {
    try_begin_open(db).expect("begins")
}

fn try_begin_open(db: &Database) -> Result<Transaction, Error> {
    db.transact(|tx| tx.table(&OPEN)?.insert(&1, b"before"))?;
    let tx = db.begin()?;
    tx.table(&OPEN)?.insert(&1, b"changed")?;
    tx.table(&OPEN)?.insert(&2, b"new")?;
    Ok(tx)
}

#[test]
fn the_log_stays_short_beside_an_open_transaction_and_a_restart_undoes_it() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let open_tx = begin_open(&db);
    let rounds = 5;
    for round in 0..rounds {
        let most = commit_many(&db, round * 10_000, 10_000);
        let written = db.stats().log.written_bytes;
        assert!(most <= 8 * SEGMENT, "{most} bytes of log are kept, {written} were written");
        let log_files = fs.files().iter().filter(|path| path.starts_with("db/wal")).count() as u64;
        assert!(log_files * SEGMENT <= 32 * SEGMENT, "{log_files} files");
        // A kill, a recovery that is killed, and another recovery.
        let killed = fs.kill();
        killed.cut_power_at(2 + round);
        let builder = || Database::builder().page_size(4096).background(false).wal_segment_bytes(SEGMENT);
        let _ = builder().file_system(Arc::new(killed.clone())).open("db").map(std::mem::forget);
        let again = killed.crash(round);
        let restarted = open(&again);
        assert_eq!(restarted.stats().recovery.losers, 1);
        assert_undone(&restarted, (round + 1) * 10_000);
    }
    let stats = db.stats();
    assert!(
        stats.log.written_bytes > 16 * SEGMENT,
        "{} bytes are too few to show anything",
        stats.log.written_bytes
    );
    assert_eq!((stats.active_writers, stats.oldest_writer), (1, Some(open_tx.id().0)));
    assert!(stats.oldest_writer_ms > 0.0 && stats.log.held_bytes > 0, "{stats:?}");
    drop(open_tx);
    assert_undone(&db, rounds * 10_000);
    assert_eq!(db.stats().oldest_writer, None);
}

#[test]
fn a_carried_transaction_can_use_savepoints_and_commit() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let tx = begin_open(&db);
    let mut savepoints = Vec::new();
    for round in 0..5_u32 {
        savepoints.push(tx.savepoint().unwrap());
        for n in 0..300 {
            tx.table(&OPEN).unwrap().insert(&(100 + n), &[round as u8; 100]).expect("writes");
        }
        tx.table(&OPEN).unwrap().remove(&(100 + round)).expect("removes");
        commit_many(&db, u64::from(round) * 4_000, 4_000);
        db.checkpoint().expect("checkpoints");
        let kept = db.stats().log.retained_bytes;
        assert!(kept <= 2 * SEGMENT, "{kept} bytes of log are kept");
        assert_undone(&open(&fs.kill()), (u64::from(round) + 1) * 4_000);
    }
    tx.rollback_to(savepoints[2]).expect("goes back");
    assert_eq!(value(&tx, 150).as_deref(), Some(&[1_u8; 100][..]));
    commit_many(&db, 50_000, 4_000);
    db.checkpoint().expect("checkpoints");
    assert_undone(&open(&fs.kill()), 54_000);
    tx.table(&OPEN).unwrap().insert(&2, b"newer").expect("writes");
    tx.commit().expect("commits");
    let db = open(&fs.kill());
    assert_eq!(db.stats().recovery.losers, 0);
    let tx = db.begin().expect("begins");
    assert_eq!(value(&tx, 1).as_deref(), Some(&b"changed"[..]));
    assert_eq!(value(&tx, 2).as_deref(), Some(&b"newer"[..]));
    assert_eq!(value(&tx, 150).as_deref(), Some(&[1_u8; 100][..]));
    assert_eq!(value(&tx, 101), None, "the first rounds removed it, and the second put back what it removed");
}

#[test]
fn copies_of_a_large_undo_log_are_a_small_part_of_the_log() {
    let fs = FaultFs::new();
    let db = open(&fs);
    db.transact(|tx| tx.table(&OPEN)?.insert(&1, b"before")).expect("commits");
    let tx = db.begin().expect("begins");
    for n in 1..4_000 {
        tx.table(&OPEN).unwrap().insert(&n, &[n as u8; 700]).expect("writes");
        tx.table(&OPEN).unwrap().remove(&n).expect("removes");
    }
    // About 3 MB of undo, while few other changes are logged.
    commit_many(&db, 0, 1_000);
    for _ in 0..50 {
        db.checkpoint().expect("checkpoints");
    }
    let written = db.stats().log.written_bytes;
    assert!(written < 24 << 20, "{written} bytes: each checkpoint copied all of it");
    let most = commit_many(&db, 1_000, 30_000);
    assert!(most < 40 << 20, "{most} bytes of log are kept");
    let restarted = open(&fs.kill());
    assert!(restarted.stats().recovery.undone > 7_000, "{:?}", restarted.stats().recovery);
    assert_undone(&restarted, 31_000);
    drop(tx);
    assert_undone(&db, 31_000);
}

#[test]
fn pages_that_a_commit_could_not_free_are_freed_later_and_do_not_hold_the_log() {
    let mut failed = 0;
    for (round, fail_at) in (0..).zip([1, 2, 5, 20]) {
        let fs = FaultFs::new();
        let db = open(&fs);
        let row = [7; 700];
        // The table is larger than the cache.
        for from in (0..4_000).step_by(1_000) {
            let insert = |tx: &Transaction| {
                let rows = tx.table(&OPEN)?;
                (from..from + 1_000).try_for_each(|n| rows.insert(&(10 + n), &row))
            };
            db.transact(insert).expect("commits");
        }
        let db = {
            db.close().expect("closes");
            open(&fs)
        };
        let tx = db.begin().expect("begins");
        assert!(tx.drop_table("open").expect("drops"));
        fs.fail_read_at(fail_at);
        tx.commit().expect("the commit does not depend on the frees");
        let stats = db.stats();
        failed += usize::from(stats.active_writers > 0);
        assert_eq!(stats.active_writers > 0, stats.background_error.is_some(), "{stats:?}");
        // The device keeps failing while the log grows, and then works again.
        let most = (0..5).map(|n| {
            fs.fail_read_at(1);
            commit_many(&db, n * 500, 500)
        });
        let most = most.max();
        assert!(most <= Some(10 * SEGMENT), "{most:?} bytes of log are kept");
        for (fs, crashes) in [(fs.kill(), true), (fs.clone(), false)] {
            fs.heal();
            let restarted;
            let db = if crashes {
                restarted = open(&fs);
                &restarted
            } else {
                &db
            };
            db.checkpoint().expect("checkpoints");
            assert_eq!(db.stats().active_writers, 0, "round {round}");
            let report = db.check(&mut |_, _| {}).expect("checks");
            assert!(report.is_clean() && report.pages < 100, "{} pages, {:?}", report.pages, report.findings);
        }
    }
    assert!(failed >= 2, "only {failed} commits left something");
}

/// Repeats a step if its transaction reaches the time limit, because the system does not run this thread.
fn in_time<T>(step: impl Fn() -> Result<T, Error>) -> T {
    let attempt = |_| match step() {
        Err(Error::TransactionTimeout { .. }) => None,
        done => Some(done.expect("succeeds")),
    };
    (0..100).find_map(attempt).expect("succeeds in time")
}

#[test]
fn a_transaction_whose_time_is_over_is_rolled_back_by_its_next_call() {
    let limit = Duration::from_millis(20);
    let fs = FaultFs::new();
    let builder = Database::builder().page_size(4096).cache_bytes(8 << 20).wal_segment_bytes(SEGMENT);
    let builder = builder.background(false).transaction_timeout(limit);
    let db = builder.file_system(Arc::new(fs)).open("db").expect("opens");
    let is_over = |error: &Error| matches!(error, Error::TransactionTimeout { limit_ms: 20, .. });
    type Call = fn(Transaction, azekura::Savepoint) -> Error;
    let calls: [Call; 5] = [
        |tx, _| tx.table(&OPEN).map(drop).unwrap_err(),
        |tx, savepoint| tx.rollback_to(savepoint).unwrap_err(),
        |tx, _| tx.drop_table("open").unwrap_err(),
        |tx, _| tx.table_exists("open").unwrap_err(),
        |tx, _| tx.commit().unwrap_err(),
    ];
    for call in calls {
        let (tx, savepoint) = in_time(|| {
            let tx = try_begin_open(&db)?;
            let savepoint = tx.savepoint()?;
            Ok((tx, savepoint))
        });
        std::thread::sleep(2 * limit);
        let error = call(tx, savepoint);
        assert!(is_over(&error) && error.kind() == ErrorKind::Busy, "{error:?}");
    }
    in_time(|| {
        let tx = try_begin_open(&db)?;
        let table = tx.table(&OPEN)?;
        std::thread::sleep(2 * limit);
        assert!(is_over(&table.insert(&3, b"late").unwrap_err()));
        assert!(matches!(table.get(&1), Err(Error::Aborted { .. })), "it was rolled back");
        Ok(())
    });
    let values = in_time(|| {
        let tx = db.begin()?;
        let table = tx.table(&OPEN)?;
        Ok((table.get(&1)?, table.get(&2)?, table.get(&3)?))
    });
    assert_eq!(values, (Some(b"before".to_vec()), None, None));
    assert_eq!(db.stats().active_writers, 0);
}

#[test]
fn the_commit_returns_a_conflict_that_the_caller_has_ignored() -> Result<(), Error> {
    let db = Database::builder().lock_timeout(Duration::from_millis(1)).open_in_memory()?;
    db.transact(|tx| tx.table(&BUSY)?.insert(&0, &0))?;
    let hold = || -> Result<Transaction, Error> {
        let holder = db.begin()?;
        holder.detach_from_thread()?;
        holder.table(&BUSY)?.insert(&1, &1)?;
        Ok(holder)
    };
    let holder = hold()?;
    let tx = db.begin()?;
    tx.table(&BUSY)?.insert(&2, &2)?;
    let ignored = tx.table(&BUSY)?.insert(&1, &2);
    assert!(matches!(ignored, Err(Error::LockTimeout { .. })) && tx.is_over(), "{ignored:?}");
    let ended = tx.commit();
    assert!(matches!(ended, Err(Error::LockTimeout { .. })), "{ended:?}");
    holder.abort()?;
    for hides in [Ok(()), Err(Error::Invalid("another error".into()))] {
        let (mut holder, mut hides, mut runs) = (Some(hold()?), Some(hides), 0);
        db.transact(|tx| {
            runs += 1;
            let written = tx.table(&BUSY)?.insert(&1, &3);
            holder.take().map_or(Ok(()), Transaction::abort)?;
            if written.is_err() { hides.take().unwrap_or(written) } else { written }
        })?;
        assert_eq!(runs, 2);
    }
    let rows = db.transact(|tx| Ok((tx.table(&BUSY)?.get(&1)?, tx.table(&BUSY)?.get(&2)?)))?;
    assert_eq!(rows, (Some(3), None));
    Ok(())
}

/// Number of rows of one writer.
const RANGE: u32 = 40;

/// Sets all rows of a range to the same number, one after another, with rollbacks to savepoints in between.
fn write_range(db: &Database, writer: u32, number: u64) -> Result<(), Error> {
    let tx = db.begin()?;
    let rows = tx.table(&BUSY)?;
    let mut savepoint = tx.savepoint()?;
    for n in 0..RANGE {
        let key = 10_000 * writer + n;
        rows.insert(&key, &number)?;
        if n % 8 == 3 {
            rows.insert(&key, &u64::MAX)?;
            rows.remove(&(key - 1))?;
            tx.rollback_to(savepoint)?;
            (n - n % 8..=n).try_for_each(|n| rows.insert(&(10_000 * writer + n), &number))?;
        }
        if n % 8 == 7 {
            savepoint = tx.savepoint()?;
            std::thread::yield_now();
        }
    }
    if number % 5 == 4 { tx.abort() } else { tx.commit() }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn copies_made_while_transactions_write_hold_what_a_restart_needs() {
    let fs = FaultFs::new();
    let db = Database::builder().page_size(4096).cache_bytes(8 << 20).log_buffers(2).wal_streams(2);
    let db = db.wal_segment_bytes(SEGMENT).recovery_time(Duration::from_millis(50));
    let db = db.file_system(Arc::new(fs.clone())).open("db").expect("opens");
    let writers = 3;
    for writer in 0..writers {
        write_range(&db, writer, 0).expect("commits");
    }
    let done: Vec<AtomicU64> = (0..writers).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (db, done, stop) = (&db, &done[writer as usize], &stop);
            scope.spawn(move || {
                for number in (1..).take_while(|_| !stop.load(Relaxed)) {
                    write_range(db, writer, number).expect("writes");
                    if number % 5 != 4 {
                        done.store(number, SeqCst);
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                db.checkpoint().expect("checkpoints");
            }
        });
        // A failed assertion also ends the threads.
        let _stop = StopOnDrop(&stop);
        let (mut losers, begun) = (0, Instant::now());
        // Thirty rounds, and more if the system runs the writers too rarely.
        for round in 0.. {
            if round >= 30 && (losers > 20 || begun.elapsed() > Duration::from_secs(120)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20 + round % 30));
            let least: Vec<u64> = done.iter().map(|done| done.load(SeqCst)).collect();
            let killed = open(&fs.kill());
            losers += killed.stats().recovery.losers;
            for (writer, least) in (0..writers).zip(least) {
                let tx = killed.begin().expect("begins");
                let rows = tx.table(&BUSY).expect("opens");
                let numbers: Vec<_> =
                    (0..RANGE).map(|n| rows.get(&(10_000 * writer + n)).expect("reads")).collect();
                let first = numbers[0].expect("is there");
                assert!(numbers.iter().all(|&n| n == Some(first)) && first % 5 != 4, "{numbers:?}");
                assert!(first >= least, "{first} of writer {writer}, {least} was acknowledged");
            }
        }
        assert!(losers > 20, "only {losers} transactions were open");
    });
}

/// Transactions with pages that a snapshot can read stay listed after their commit. The undo log of their
/// thread belongs to other transactions then, and does not count once for each of them.
#[test]
fn the_log_stays_short_beside_a_transaction_that_uses_the_undo_log_of_many_committed_ones() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let large = |byte: u8| {
        (0..200)
            .for_each(|key| db.transact(|tx| tx.table(&OPEN)?.insert(&key, &[byte; 8_000])).expect("puts"));
    };
    large(1);
    let snapshot = db.snapshot().expect("opens");
    large(2);
    assert_eq!(db.stats().snapshots.waiting_to_free, 200);
    let tx = begin_open(&db);
    for n in 0..20_000 {
        tx.table(&OPEN).unwrap().insert(&(1_000 + n), &[3; 20]).expect("writes");
    }
    let most = commit_many(&db, 0, 40_000);
    let written = db.stats().log.written_bytes;
    assert!(written > 12 * SEGMENT, "{written} bytes are too few to show anything");
    assert!(most <= 8 * SEGMENT, "{most} bytes of log are kept, {written} were written");
    assert_eq!(snapshot.table(&OPEN).unwrap().get(&7).unwrap().as_deref(), Some(&[1; 8_000][..]));
}
