//! Snapshots: what they see, what they hold, and that they equal a model under every kind of change.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use azekura::{Builder, Database, Durability, Error, Snapshot, TableDefinition, Transaction};
use azekura_io::FaultFs;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const COUNTS: TableDefinition<u64, u64> = TableDefinition::new("counts");
const OTHER: TableDefinition<u64, u64> = TableDefinition::new("other");

fn builder() -> Builder {
    Database::builder().page_size(4096).cache_bytes(64 * 4096).version_bytes(64 << 20)
}

fn in_memory() -> Database {
    builder().background(false).open_in_memory().unwrap()
}

type Model = BTreeMap<u64, Vec<u8>>;

/// The snapshot's rows equal the model: by iteration from both ends, by reads of single keys, by ranges.
fn assert_equals(snapshot: &Snapshot, model: &Model, random: &mut SmallRng, what: &str) {
    let table = snapshot.table(&ROWS).unwrap();
    let rows: Vec<_> = table.iter().map(Result::unwrap).collect();
    let wanted: Vec<_> = model.iter().map(|(k, v)| (*k, v.clone())).collect();
    assert!(rows == wanted, "{what}: forwards {:?}, not {:?}", keys(&rows), keys(&wanted));
    let mut rows: Vec<_> = table.iter().rev().map(Result::unwrap).collect();
    rows.reverse();
    assert!(rows == wanted, "{what}: backwards {:?}, not {:?}", keys(&rows), keys(&wanted));
    for _ in 0..20 {
        let key = random.random_range(0..KEYS);
        assert!(table.get(&key).unwrap().as_ref() == model.get(&key), "{what}: key {key}");
        assert_eq!(table.contains(&key).unwrap(), model.contains_key(&key));
        let to = random.random_range(key..=KEYS);
        let (mut rows, mut iterator) = (Vec::new(), table.range(key..to));
        let mut tail = Vec::new();
        loop {
            let (from_front, row) = match random.random_bool(0.5) {
                true => (true, iterator.next()),
                false => (false, iterator.next_back()),
            };
            match row {
                None => break,
                Some(row) if from_front => rows.push(row.unwrap()),
                Some(row) => tail.push(row.unwrap()),
            }
        }
        tail.reverse();
        rows.extend(tail);
        let wanted: Vec<_> = model.range(key..to).map(|(k, v)| (*k, v.clone())).collect();
        assert!(rows == wanted, "{what}: {key}..{to} {:?}, not {:?}", keys(&rows), keys(&wanted));
    }
}

fn keys(rows: &[(u64, Vec<u8>)]) -> Vec<(u64, usize)> {
    rows.iter().map(|(key, value)| (*key, value.len())).collect()
}

const KEYS: u64 = 300;

fn value(random: &mut SmallRng) -> Vec<u8> {
    let len = match random.random_range(0..20) {
        0 => random.random_range(4000..30_000), // pages of its own
        1..5 => random.random_range(200..500),
        _ => 24, // of one length: the change is logged as a difference
    };
    let byte: u8 = random.random();
    let mut value = vec![byte; len];
    random.fill_bytes(&mut value[..8]);
    value
}

/// A transaction that is open, beside its changes in the model.
struct Open {
    tx: Transaction,
    changes: BTreeMap<u64, Option<Vec<u8>>>,
    savepoint: Option<(azekura::Savepoint, BTreeMap<u64, Option<Vec<u8>>>)>,
}

impl Open {
    fn step(&mut self, random: &mut SmallRng) {
        let table = self.tx.table(&ROWS).unwrap();
        let key = random.random_range(0..KEYS);
        match random.random_range(0..10) {
            0..6 => {
                let new = value(random);
                match table.insert(&key, &new) {
                    Ok(()) => drop(self.changes.insert(key, Some(new))),
                    Err(Error::WouldBlock { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            6..9 => match table.remove(&key) {
                Ok(_) => drop(self.changes.insert(key, None)),
                Err(Error::WouldBlock { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            _ => match self.savepoint.take() {
                None => self.savepoint = Some((self.tx.savepoint().unwrap(), self.changes.clone())),
                Some((savepoint, changes)) => match self.tx.rollback_to(savepoint) {
                    Ok(()) => self.changes = changes,
                    Err(Error::WouldBlock { .. }) => self.savepoint = Some((savepoint, changes)),
                    Err(error) => panic!("{error}"),
                },
            },
        }
    }
}

fn apply(model: &mut Model, changes: BTreeMap<u64, Option<Vec<u8>>>) {
    for (key, change) in changes {
        match change {
            Some(value) => drop(model.insert(key, value)),
            None => drop(model.remove(&key)),
        }
    }
}

#[test]
fn snapshots_equal_a_model_whatever_comes_after_them() {
    let seed =
        std::env::var("SNAPSHOT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("SNAPSHOT_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let db = in_memory();
    let mut model = Model::new();
    db.transact(|tx| tx.table(&ROWS)?.insert(&0, &[0; 24])).unwrap();
    model.insert(0, vec![0; 24]);
    let mut open: Vec<Open> = Vec::new();
    let mut snapshots: Vec<(Snapshot, Model, u64)> = Vec::new();
    for step in 0..4000_u64 {
        match random.random_range(0..100) {
            0..4 if open.len() < 6 => {
                let tx = db.begin().unwrap();
                tx.set_nowait(true).unwrap();
                open.push(Open { tx, changes: BTreeMap::new(), savepoint: None });
            }
            4..8 if !open.is_empty() => {
                let ended = open.swap_remove(random.random_range(0..open.len()));
                if random.random_bool(0.7) {
                    ended.tx.set_durability(Durability::Relaxed);
                    ended.tx.commit().unwrap();
                    apply(&mut model, ended.changes);
                } else {
                    ended.tx.abort().unwrap();
                }
            }
            8..11 if snapshots.len() < 4 => snapshots.push((db.snapshot().unwrap(), model.clone(), step)),
            11..13 if !snapshots.is_empty() => {
                let (snapshot, model, opened) =
                    snapshots.swap_remove(random.random_range(0..snapshots.len()));
                assert_equals(
                    &snapshot,
                    &model,
                    &mut random,
                    &format!("opened at {opened}, closed at {step}"),
                );
            }
            13 if !snapshots.is_empty() => {
                let (snapshot, model, opened) = &snapshots[random.random_range(0..snapshots.len())];
                let snapshot = snapshot.clone();
                assert_equals(&snapshot, model, &mut random, &format!("opened at {opened}, read at {step}"));
            }
            14 => {
                db.checkpoint_step(16).unwrap();
                if snapshots.is_empty() {
                    thread::sleep(azekura_btree::GRACE);
                    db.checkpoint_step(16).unwrap();
                    assert_eq!(db.stats().snapshots.versions, 0, "no snapshot has been open for a while");
                }
            }
            _ if !open.is_empty() => {
                let at = random.random_range(0..open.len());
                open[at].step(&mut random);
            }
            _ => {}
        }
    }
    for (snapshot, model, opened) in snapshots.drain(..) {
        assert_equals(&snapshot, &model, &mut random, &format!("opened at {opened}, read at the end"));
    }
    drop(open);
    assert_equals(&db.snapshot().unwrap(), &model, &mut random, "a new one");
    db.checkpoint().unwrap();
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn insert(db: &Database, key: u64, value: u64) {
    db.transact(|tx| tx.table(&COUNTS)?.insert(&key, &value)).unwrap();
}

/// A snapshot that does not share the all-visible LSN of one that was opened before the last commit.
fn fresh_snapshot(db: &Database) -> Snapshot {
    thread::sleep(std::time::Duration::from_millis(1));
    db.snapshot().unwrap()
}

/// Look-ups of versions by reads of all rows from both ends, and of some keys; all counts are `value`, but
/// those of `others`.
fn lookups(db: &Database, snapshot: &Snapshot, rows: u64, value: u64, others: &[(u64, u64)]) -> u64 {
    let before = db.stats().snapshots.version_lookups;
    let table = snapshot.table(&COUNTS).unwrap();
    let wanted = |key: u64| others.iter().find(|other| other.0 == key).map_or(value, |other| other.1);
    assert!(table.iter().map(Result::unwrap).all(|(key, value)| value == wanted(key)));
    assert!(table.iter().rev().map(Result::unwrap).all(|(key, value)| value == wanted(key)));
    for key in (0..rows).step_by(97) {
        assert_eq!(table.get(&key).unwrap(), Some(wanted(key)));
    }
    db.stats().snapshots.version_lookups - before
}

#[test]
fn leaves_without_changes_above_the_all_visible_lsn_are_read_without_a_look_for_versions() {
    const ROWS: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| (0..ROWS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    db.checkpoint().unwrap();
    let first = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &first, ROWS, 0, &[]), 0, "no change is newer than the snapshot");

    // One leaf changes: only its reads look, in each snapshot that was open.
    insert(&db, 1500, 1);
    let of_one_leaf = lookups(&db, &first, ROWS, 0, &[]);
    assert!((2..=2 + ROWS / 97).contains(&of_one_leaf), "{of_one_leaf}");
    let second = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &second, ROWS, 0, &[(1500, 1)]), 0, "it sees the change");

    // An open transaction holds the all-visible LSN of later snapshots, but not that of earlier ones.
    let open = db.begin().unwrap();
    open.table(&COUNTS).unwrap().insert(&7, &7).unwrap();
    insert(&db, 2900, 2);
    let third = fresh_snapshot(&db);
    assert!(lookups(&db, &third, ROWS, 0, &[(1500, 1), (2900, 2)]) >= 4);
    open.commit().unwrap();
    let fourth = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &fourth, ROWS, 0, &[(7, 7), (1500, 1), (2900, 2)]), 0);
}

/// A checkpoint that copies the undo log of an open transaction moves the first LSN that a restart needs, but
/// the changes of the transaction stay older than the copy.
#[test]
fn the_changes_of_an_open_transaction_stay_hidden_after_its_undo_log_was_carried() {
    const ROWS: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| (0..ROWS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    let open = db.begin().unwrap();
    open.table(&COUNTS).unwrap().insert(&7, &7).unwrap();
    for round in 1..4 {
        insert(&db, 2900, round);
        db.checkpoint().unwrap();
    }
    let snapshot = fresh_snapshot(&db);
    assert!(lookups(&db, &snapshot, ROWS, 0, &[(2900, 3)]) > 0);
    open.commit().unwrap();
    assert!(lookups(&db, &snapshot, ROWS, 0, &[(2900, 3)]) > 0, "still hidden");
}

/// A transaction that has committed, and waits for an older snapshot before it frees pages, hides nothing.
#[test]
fn a_transaction_that_waits_to_free_does_not_hold_the_all_visible_lsn() {
    const ROWS_LEN: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| {
        (0..ROWS_LEN).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))?;
        tx.table(&ROWS)?.insert(&1, &[1; 50_000])
    })
    .unwrap();
    let old = fresh_snapshot(&db);
    db.transact(|tx| tx.table(&ROWS)?.insert(&1, &[2; 50_000])).unwrap();
    insert(&db, 2900, 3);
    assert_eq!(db.stats().snapshots.waiting_to_free, 1);
    let new = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &new, ROWS_LEN, 0, &[(2900, 3)]), 0);
    assert_eq!(old.table(&ROWS).unwrap().get(&1).unwrap(), Some(vec![1; 50_000]));
}

/// V1: commit LSNs do not order transactions that depend on each other by a read and a later write. Here T2
/// follows T1 and has the smaller LSN, so "all commits up to an LSN" could hold T2 without T1.
#[test]
fn v1_commit_lsns_are_no_snapshot_and_timestamps_are() {
    let fs = FaultFs::new();
    let db = builder()
        .background(false)
        .log_buffers(2)
        .wal_streams(2)
        .file_system(Arc::new(fs))
        .open("db")
        .unwrap();
    db.transact(|tx| {
        tx.table(&COUNTS)?.insert(&1, &0)?; // x
        tx.table(&OTHER)?.insert(&1, &0) // y, in another leaf
    })
    .unwrap();
    let on = |worker: usize| {
        let tx = db.begin_on_log_worker(worker).unwrap();
        tx.set_durability(Durability::Relaxed);
        tx
    };
    // Several records in one flush make the worker draw a range, of which some LSNs are left.
    let t0 = on(1);
    for z in 10..14 {
        t0.table(&COUNTS).unwrap().insert(&z, &1).unwrap();
    }
    t0.commit().unwrap();
    let lsn_of = |db: &Database| db.stats().log.lsn_draws;
    let before = db.snapshot().unwrap();
    let t1 = on(0);
    assert_eq!(t1.table(&COUNTS).unwrap().get(&1).unwrap(), Some(0));
    t1.table(&OTHER).unwrap().insert(&1, &1).unwrap();
    let draws = lsn_of(&db);
    t1.commit().unwrap();
    let t2 = on(1);
    t2.table(&COUNTS).unwrap().insert(&1, &1).unwrap();
    t2.commit().unwrap();
    assert!(lsn_of(&db) >= draws);
    let after = db.snapshot().unwrap();
    let seen = |s: &Snapshot| {
        let x = s.table(&COUNTS).unwrap().get(&1).unwrap().unwrap();
        let y = s.table(&OTHER).unwrap().get(&1).unwrap().unwrap();
        (x, y)
    };
    assert_eq!(seen(&before), (0, 0));
    assert_eq!(seen(&after), (1, 1));
}

/// A reader sees both sides of a transfer or none, in whatever order transactions and snapshots come.
#[test]
fn sums_stay_while_threads_move_amounts() {
    let db = builder().open_in_memory().unwrap();
    const ACCOUNTS: u64 = 200;
    db.transact(|tx| (0..ACCOUNTS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &100))).unwrap();
    let is_over = AtomicBool::new(false);
    let (scans, moves) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (db, is_over, moves) = (&db, &is_over, &moves);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(seed);
                while !is_over.load(Relaxed) {
                    let (a, b) = (random.random_range(0..ACCOUNTS), random.random_range(0..ACCOUNTS));
                    let undoes = random.random_bool(0.1);
                    let moved = db.transact_async(|tx| {
                        let table = tx.table(&COUNTS)?;
                        let from = table.get_for_update(&a)?.unwrap_or(0);
                        let amount = from.min(7);
                        // An account without money goes, and comes back when it gets some.
                        match from - amount {
                            0 => drop(table.remove(&a)?),
                            rest => table.insert(&a, &rest)?,
                        }
                        let to = table.get_for_update(&b)?.unwrap_or(0);
                        if to + amount > 0 {
                            table.insert(&b, &(to + amount))?;
                        }
                        if undoes { Err(Error::other("undone")) } else { Ok(()) }
                    });
                    assert!(moved.is_ok() != undoes, "{moved:?}");
                    moves.fetch_add(1, Relaxed);
                }
            });
        }
        for backwards in [false, true] {
            let (db, is_over, scans) = (&db, &is_over, &scans);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let snapshot = db.snapshot().unwrap();
                    let table = snapshot.table(&COUNTS).unwrap();
                    let sum: u64 = match backwards {
                        false => table.iter().map(|row| row.unwrap().1).sum(),
                        true => table.iter().rev().map(|row| row.unwrap().1).sum(),
                    };
                    assert_eq!(sum, ACCOUNTS * 100);
                    let sum: u64 = (0..ACCOUNTS).map(|key| table.get(&key).unwrap().unwrap_or(0)).sum();
                    assert_eq!(sum, ACCOUNTS * 100, "by reads of single keys");
                    scans.fetch_add(1, Relaxed);
                }
            });
        }
        let enough = || scans.load(Relaxed) >= 300 && moves.load(Relaxed) >= 2000;
        while !enough() {
            thread::yield_now();
        }
        is_over.store(true, Relaxed);
    });
}

/// A commit that has returned is seen by every later snapshot, also of another thread.
#[test]
fn a_snapshot_sees_every_commit_that_returned_before_it() {
    let db = builder().open_in_memory().unwrap();
    db.transact(|tx| tx.table(&COUNTS)?.insert(&0, &0)).unwrap();
    let acknowledged = AtomicU64::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 1..=3000_u64 {
                drop(db.transact_async(|tx| tx.table(&COUNTS)?.insert(&0, &n)).unwrap());
                acknowledged.store(n, std::sync::atomic::Ordering::Release);
            }
        });
        while !writer.is_finished() {
            let least = acknowledged.load(std::sync::atomic::Ordering::Acquire);
            let seen = db.snapshot().unwrap().table(&COUNTS).unwrap().get(&0).unwrap().unwrap();
            assert!(seen >= least, "{seen} after {least} was committed");
        }
    });
}

#[test]
fn a_row_has_at_most_one_version_more_than_snapshots_are_open() {
    let db = in_memory();
    let write = |n: u64| db.transact(|tx| tx.table(&COUNTS)?.insert(&1, &n)).unwrap();
    write(0);
    let first = db.snapshot().unwrap();
    (1..500).for_each(write);
    let second = db.snapshot().unwrap();
    (500..1000).for_each(write);
    let versions = db.stats().snapshots.versions;
    assert!(versions <= 3, "{versions} versions of a row and two snapshots");
    assert_eq!(first.table(&COUNTS).unwrap().get(&1).unwrap(), Some(0));
    assert_eq!(second.table(&COUNTS).unwrap().get(&1).unwrap(), Some(499));
    drop((first, second));
    thread::sleep(azekura_btree::GRACE);
    db.checkpoint_step(1).unwrap();
    let stats = db.stats().snapshots;
    assert_eq!((stats.open, stats.versions, stats.version_bytes), (0, 0, 0));
}

#[test]
fn the_oldest_snapshot_becomes_too_old_and_no_writer_waits() {
    let db = builder().background(false).version_bytes(50_000).open_in_memory().unwrap();
    db.transact(|tx| (0..1000).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    let oldest = db.snapshot().unwrap();
    for key in 0..1000 {
        db.transact(|tx| tx.table(&COUNTS)?.insert(&key, &1)).unwrap();
    }
    let newest = db.snapshot().unwrap();
    let error = oldest.table(&COUNTS).unwrap_err();
    assert!(matches!(error, Error::SnapshotTooOld { limit_bytes: 50_000, .. }), "{error}");
    assert_eq!(newest.table(&COUNTS).unwrap().get(&7).unwrap(), Some(1));
    assert!(db.stats().snapshots.version_bytes <= 51_000);
    assert_eq!(db.stats().snapshots.too_old, 1);
}

/// V9: what a snapshot may still read is freed after it, and the log does not wait for that.
#[test]
fn v9_replaced_large_values_and_dropped_tables_stay_for_the_snapshot_only() {
    let fs = FaultFs::new();
    let db =
        builder().background(false).wal_segment_bytes(2 << 20).file_system(Arc::new(fs)).open("db").unwrap();
    let large = |byte: u8| vec![byte; 50_000];
    db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &large(1)))).unwrap();
    db.transact(|tx| (0..20).try_for_each(|key| tx.table(&OTHER)?.insert(&key, &key))).unwrap();
    let snapshot = db.snapshot().unwrap();
    for round in 2..40 {
        db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &large(round)))).unwrap();
        db.checkpoint().unwrap();
    }
    db.transact(|tx| tx.drop_table("other").map(drop)).unwrap();
    // The name has another table now.
    db.transact(|tx| tx.table(&OTHER)?.insert(&99, &99)).unwrap();
    db.checkpoint().unwrap();
    db.checkpoint().unwrap();
    let stats = db.stats();
    assert!(stats.snapshots.waiting_to_free > 0);
    assert!(stats.log.retained_bytes < 8 << 20, "{} bytes of log", stats.log.retained_bytes);
    let rows = snapshot.table(&ROWS).unwrap();
    assert!(rows.iter().all(|row| row.unwrap().1 == large(1)));
    let other: Vec<_> = snapshot.table(&OTHER).unwrap().iter().map(|row| row.unwrap().0).collect();
    assert_eq!(other, (0..20).collect::<Vec<_>>());
    drop(snapshot);
    db.checkpoint().unwrap();
    assert_eq!(db.stats().snapshots.waiting_to_free, 0);
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn a_bulk_load_is_seen_whole_or_not_at_all() {
    let db = in_memory();
    db.transact(|tx| tx.table(&COUNTS)?.insert(&1, &1)).unwrap();
    db.transact(|tx| tx.table(&COUNTS)?.remove(&1).map(drop)).unwrap();
    let before = db.snapshot().unwrap();
    let tx = db.begin().unwrap();
    tx.table(&COUNTS).unwrap().bulk_load((0..5000_u64).map(|key| (key, key))).unwrap();
    let during = db.snapshot().unwrap();
    tx.table(&COUNTS).unwrap().insert(&17, &0).unwrap();
    tx.commit().unwrap();
    let after = db.snapshot().unwrap();
    for (snapshot, rows) in [(&before, 0), (&during, 0), (&after, 5000)] {
        let table = snapshot.table(&COUNTS).unwrap();
        assert_eq!((table.len().unwrap(), table.iter().rev().count() as u64), (rows, rows));
        assert_eq!(table.is_empty().unwrap(), rows == 0);
        assert_eq!(table.get(&17).unwrap(), (rows > 0).then_some(0));
    }
}

#[test]
fn a_store_is_not_closed_under_a_snapshot() {
    let db = in_memory();
    let snapshot = db.snapshot().unwrap();
    assert!(matches!(db.close(), Err(Error::StillInUse { .. })));
    assert_eq!(snapshot.table_names().unwrap(), Vec::<String>::new());
    drop(snapshot);
    db.close().unwrap();
    assert!(matches!(db.snapshot(), Err(Error::Closed)));
}

#[test]
fn snapshots_and_their_tables_go_to_other_threads() {
    fn is_send_and_sync<T: Send + Sync + Clone>() {}
    is_send_and_sync::<Snapshot>();
    let db = in_memory();
    db.transact(|tx| tx.table(&COUNTS)?.insert(&1, &1)).unwrap();
    let snapshot = db.snapshot().unwrap();
    let of_thread = thread::spawn(move || snapshot.table(&COUNTS).unwrap().first().unwrap());
    assert_eq!(of_thread.join().unwrap(), Some((1, 1)));
}
