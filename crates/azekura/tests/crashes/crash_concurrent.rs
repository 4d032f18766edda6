//! Power loss at a random I/O while many threads write. The store's own threads flush, clean and checkpoint,
//! and some transactions abort or roll back to savepoints (invariant 1; RESTART-1).
//!
//! The rows of each thread show which of its transactions survived: a prefix of the attempted transactions
//! with at least the acknowledged ones. Accounts that all threads share show whether transactions are atomic
//! across threads. Snapshots must show the same during the run, and no state that a snapshot has shown as
//! durable is lost. Threads make the runs differ. `AZEKURA_CRASH_SEEDS=100` makes 100 runs (default 12), with
//! different logs.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{LogShape, PROTOCOLS, assert_clean};
use azekura::{Database, Error, Savepoint, Snapshot, TableDefinition, Transaction};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Rows by thread and key: the number of the transaction that wrote the row, and padding.
const ROWS: TableDefinition<(u32, u32), [u8]> = TableDefinition::new("rows");
const ACCOUNTS: TableDefinition<u32, i64> = TableDefinition::new("accounts");
/// Jobs by producer and number, and (in `LEDGER`) the consumer of each completed job.
const JOBS: TableDefinition<(u32, u64), [u8]> = TableDefinition::new("jobs");
const LEDGER: TableDefinition<(u32, u64), u32> = TableDefinition::new("ledger");
const THREADS: u32 = 4;
const KEYS: u32 = 60;
const SHARED: u32 = 10;
/// Key of the row that every committing transaction of a thread writes.
const MARKER: u32 = u32::MAX;

fn open(fs: &FaultFs, log: LogShape) -> Result<Database, Error> {
    let builder = Database::builder()
        .page_size(4096)
        .cache_bytes(48 * 4096)
        .wal_segment_bytes(2 << 20)
        // A small bound, so that checkpoints follow each other closely.
        .recovery_time(Duration::from_millis(1))
        .file_system(Arc::new(fs.clone()));
    log.apply(builder).open("db")
}

/// The writes of transaction `number` of a thread; the same in each call.
struct Plan {
    writes: Vec<(u32, usize)>,
    removes: Vec<u32>,
    undone: Vec<u32>,
    aborts: bool,
}

impl Plan {
    fn of(seed: u64, thread: u32, number: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed << 32 ^ u64::from(thread) << 24 ^ number);
        let mut keys = |max: usize| -> Vec<u32> {
            (0..rng.random_range(0..=max)).map(|_| rng.random_range(0..KEYS)).collect()
        };
        let (writes, removes, undone) = (keys(6), keys(2), keys(4));
        let len = |rng: &mut StdRng| if rng.random_ratio(1, 12) { 6_000 } else { rng.random_range(0..300) };
        let writes = writes.into_iter().map(|key| (key, len(&mut rng))).collect();
        Self { writes, removes, undone, aborts: rng.random_ratio(1, 5) }
    }

    fn run(&self, tx: &Transaction, thread: u32, number: u64) -> Result<(), Error> {
        let rows = tx.table(&ROWS)?;
        let bytes = |len: usize| [&number.to_le_bytes()[..], &vec![thread as u8; len]].concat();
        for &(key, len) in &self.writes {
            rows.insert(&(thread, key), &bytes(len))?;
        }
        let before: Savepoint = tx.savepoint()?;
        for &key in &self.undone {
            rows.insert(&(thread, key), &bytes(3_000))?;
            rows.remove(&(thread, key + 1))?;
        }
        tx.rollback_to(before)?;
        for &key in &self.removes {
            rows.remove(&(thread, key))?;
        }
        rows.insert(&(thread, MARKER), &bytes(0))
    }

    fn apply(&self, rows: &mut BTreeMap<u32, (u64, usize)>, number: u64) {
        if self.aborts {
            return;
        }
        for &(key, len) in &self.writes {
            rows.insert(key, (number, len));
        }
        for key in &self.removes {
            rows.remove(key);
        }
        rows.insert(MARKER, (number, 0));
    }
}

fn transfer(tx: &Transaction, rng: &mut StdRng) -> Result<(), Error> {
    let accounts = tx.table(&ACCOUNTS)?;
    let (from, to) = (rng.random_range(0..SHARED), rng.random_range(0..SHARED));
    let amount = rng.random_range(1..50);
    let balance = accounts.get(&from)?.unwrap_or(0);
    accounts.insert(&from, &(balance - amount))?;
    let balance = accounts.get(&to)?.unwrap_or(0);
    accounts.insert(&to, &(balance + amount))
}

/// Runs transactions until the power fails; returns the last acknowledged and the last attempted transaction.
fn work(db: &Database, seed: u64, thread: u32) -> (u64, u64) {
    let mut rng = StdRng::seed_from_u64(seed ^ u64::from(thread));
    let mut acknowledged = 0;
    for number in 1.. {
        let plan = Plan::of(seed, thread, number);
        let result = if plan.aborts {
            db.begin().and_then(|tx| {
                plan.run(&tx, thread, number)?;
                tx.abort()
            })
        } else {
            db.transact(|tx| {
                plan.run(tx, thread, number)?;
                transfer(tx, &mut rng)
            })
        };
        match result {
            Ok(()) if !plan.aborts => acknowledged = number,
            Ok(()) => {}
            Err(_) => return (acknowledged, number),
        }
    }
    unreachable!("the power goes")
}

/// The rows of a thread, by key: the number of the transaction that wrote the row, and the row's length.
type Found = BTreeMap<u32, (u64, usize)>;

/// Asserts that the rows are those after the transaction that wrote the marker row; returns its number.
fn assert_rows(found: &Found, seed: u64, thread: u32, context: &str) -> u64 {
    let last = found.get(&MARKER).map_or(0, |&(number, _)| number);
    let mut expected = BTreeMap::new();
    (1..=last).for_each(|number| Plan::of(seed, thread, number).apply(&mut expected, number));
    assert_eq!(*found, expected, "seed {seed}, thread {thread}, {context}: after {last} transactions");
    last
}

fn assert_thread(db: &Database, seed: u64, thread: u32, (acknowledged, tried): (u64, u64)) {
    let found: Found = db
        .transact(|tx| {
            tx.table(&ROWS)?
                .range((thread, 0)..=(thread, MARKER))
                .map(|row| row.map(|((_, key), value)| (key, number_of(&value))))
                .collect()
        })
        .unwrap();
    let last = assert_rows(&found, seed, thread, "recovered");
    assert!(
        (acknowledged..=tried).contains(&last),
        "seed {seed}, thread {thread}: {last} is there, {acknowledged} was acknowledged, {tried} tried"
    );
}

/// Reads all rows through one snapshot; returns the last transaction of each thread.
fn assert_snapshot(snapshot: &Snapshot, seed: u64) -> Result<Vec<u64>, Error> {
    let rows = snapshot.table(&ROWS)?;
    let last = |thread: u32| {
        let of_thread = rows.range((thread, 0)..=(thread, MARKER));
        let found: Found = of_thread
            .map(|row| row.map(|((_, key), value)| (key, number_of(&value))))
            .collect::<Result<_, Error>>()?;
        Ok(assert_rows(&found, seed, thread, "seen by a snapshot"))
    };
    let last = (0..THREADS).map(last).collect::<Result<_, Error>>()?;
    let total: i64 =
        snapshot.table(&ACCOUNTS)?.iter().map(|row| row.map(|(_, balance)| balance)).sum::<Result<_, _>>()?;
    assert_eq!(total, 0, "seed {seed}: a snapshot saw half of a transfer");
    Ok(last)
}

/// Reads through snapshots until the power is off. Returns the last transaction of each thread that a
/// snapshot has shown as durable, and the number of snapshots. A snapshot that reads only durable rows still
/// works after the power is off.
fn watch(db: &Database, fs: &FaultFs, seed: u64) -> (Vec<u64>, u64) {
    let mut durable = vec![0; THREADS as usize];
    for number in 1.. {
        let snapshot = if number % 3 == 0 { db.durable_snapshot() } else { db.snapshot() };
        let seen = snapshot.and_then(|snapshot| {
            let seen = assert_snapshot(&snapshot, seed)?;
            snapshot.wait_durable().map(|()| seen)
        });
        let Ok(seen) = seen else { return (durable, number) };
        durable.iter_mut().zip(seen).for_each(|(durable, seen)| *durable = seen.max(*durable));
        if fs.power_is_off() {
            return (durable, number);
        }
    }
    unreachable!("the power goes")
}

fn number_of(value: &[u8]) -> (u64, usize) {
    let (number, rest) = value.split_first_chunk().expect("eight bytes at least");
    (u64::from_le_bytes(*number), rest.len())
}

fn assert_all(db: &Database, seed: u64, outcome: &[(u64, u64)]) {
    for (thread, &seen) in (0..).zip(outcome) {
        assert_thread(db, seed, thread, seen);
    }
    let total: i64 = db
        .transact(|tx| tx.table(&ACCOUNTS)?.iter().map(|row| row.map(|(_, balance)| balance)).sum())
        .unwrap();
    assert_eq!(total, 0, "seed {seed}: money came from nowhere");
    assert_clean(db, &format!("seed {seed}"));
}

#[test]
fn power_loss_under_many_threads_leaves_each_ones_acknowledged_transactions() {
    let runs = std::env::var("AZEKURA_CRASH_SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(12);
    let (most, mut watched) = (AtomicU64::new(0), 0);
    for seed in 1..=runs {
        let mut rng = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let log = LogShape { protocol: PROTOCOLS[(seed % 3) as usize], ..LogShape::draw(&mut rng) };
        let db = open(&fs, log).unwrap();
        fs.cut_power_at(rng.random_range(60..6_000));
        let (mut outcome, (shown, snapshots)) = std::thread::scope(|scope| {
            let (db, fs) = (&db, &fs);
            let workers: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || work(db, seed, thread))).collect();
            let watcher = scope.spawn(move || watch(db, fs, seed));
            let outcome: Vec<(u64, u64)> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            (outcome, watcher.join().unwrap())
        });
        // A row that a snapshot has shown as durable counts as acknowledged.
        outcome.iter_mut().zip(shown).for_each(|(of_thread, shown)| of_thread.0 = shown.max(of_thread.0));
        watched += snapshots;
        assert!(fs.power_is_off(), "seed {seed}: {:?}", db.stats());
        drop(db);
        most.fetch_max(outcome.iter().map(|&(acknowledged, _)| acknowledged).max().unwrap_or(0), Relaxed);
        // A recovery that loses power, and one that completes.
        let disk = fs.crash(seed);
        disk.cut_power_at(rng.random_range(1..60));
        drop(open(&disk, LogShape::draw(&mut rng)));
        let disk = disk.crash(seed + 1);
        let db =
            open(&disk, LogShape::draw(&mut rng)).unwrap_or_else(|e| panic!("seed {seed}, {log:?}: {e}"));
        assert_all(&db, seed, &outcome);
    }
    assert!(most.into_inner() > 20, "the runs are long enough to matter");
    assert!(watched > 2 * runs, "{watched} snapshots");
}

/// Inserts jobs into the queue until the power fails; returns the last acknowledged and the last attempted
/// job.
fn produce(db: &Database, producer: u32) -> (u64, u64) {
    for number in 1.. {
        let text = vec![7; (number as usize * 37) % 500];
        if db.transact(|tx| tx.table(&JOBS)?.insert(&(producer, number), &text)).is_err() {
            return (number - 1, number);
        }
    }
    unreachable!("the power goes")
}

/// Moves jobs to the ledger until the power fails; returns the acknowledged jobs.
fn consume(db: &Database, fs: &FaultFs, consumer: u32) -> Vec<(u32, u64)> {
    let mut done = Vec::new();
    let take = |tx: &Transaction| {
        let jobs = tx.table(&JOBS)?;
        let job = match consumer % 3 {
            0 => jobs.pop_first()?.map(|row| row.0),
            1 => jobs.skip_locked().pop_last()?.map(|row| row.0),
            _ => {
                // This consumer reads before it writes; the lock upgrades of such consumers cause deadlocks.
                let first = jobs.first()?.map(|row| row.0);
                first.iter().try_for_each(|job| jobs.remove(job).map(drop))?;
                first
            }
        };
        let Some(job) = job else { return Ok(None) };
        assert!(tx.table(&LEDGER)?.insert_if_absent(&job, &consumer)?, "{job:?} was done before");
        Ok(Some(job))
    };
    loop {
        match db.transact(take) {
            Ok(Some(job)) => done.push(job),
            Ok(None) if !fs.power_is_off() => std::thread::yield_now(),
            Ok(None) | Err(_) => return done,
        }
    }
}

#[test]
fn power_loss_under_a_queue_leaves_each_job_done_once_or_still_to_be_done() {
    const PRODUCERS: u32 = 2;
    const CONSUMERS: u32 = 6;
    let runs = std::env::var("AZEKURA_CRASH_SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(6);
    let (mut done_in_all, mut left_in_all) = (0, 0);
    for seed in 1..=runs {
        let mut rng = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let db = open(&fs, LogShape::draw(&mut rng)).unwrap();
        fs.cut_power_at(rng.random_range(200..2_000));
        let (made, done) = std::thread::scope(|scope| {
            let (db, fs) = (&db, &fs);
            let producers: Vec<_> =
                (0..PRODUCERS).map(|thread| scope.spawn(move || produce(db, thread))).collect();
            let consumers: Vec<_> =
                (0..CONSUMERS).map(|thread| scope.spawn(move || consume(db, fs, thread))).collect();
            let made: Vec<_> = producers.into_iter().map(|thread| thread.join().unwrap()).collect();
            let done: Vec<_> = consumers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            (made, done)
        });
        drop(db);
        let db = open(&fs.crash(seed), LogShape::draw(&mut rng)).unwrap();
        let (left, ledger) = db
            .transact(|tx| {
                let left =
                    tx.table(&JOBS)?.iter().map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>()?;
                let ledger = tx.table(&LEDGER)?.iter().collect::<Result<BTreeMap<_, _>, Error>>()?;
                Ok((left, ledger))
            })
            .unwrap();
        assert!(left.iter().all(|job| !ledger.contains_key(job)), "seed {seed}: done and not done");
        assert!(done.iter().all(|job| ledger.contains_key(job)), "seed {seed}: an answer is lost");
        for (producer, (acknowledged, tried)) in (0..).zip(made) {
            let mut jobs: Vec<u64> =
                left.iter().chain(ledger.keys()).filter(|job| job.0 == producer).map(|job| job.1).collect();
            jobs.sort_unstable();
            let last = jobs.len() as u64;
            assert_eq!(jobs, (1..=last).collect::<Vec<_>>(), "seed {seed}, producer {producer}");
            assert!((acknowledged..=tried).contains(&last), "seed {seed}: {last} jobs of {acknowledged}");
        }
        (done_in_all, left_in_all) = (done_in_all + ledger.len(), left_in_all + left.len());
        assert_clean(&db, &format!("seed {seed}"));
    }
    println!("{done_in_all} jobs done, {left_in_all} left");
    assert!(done_in_all > 20, "the runs are long enough to matter");
}
