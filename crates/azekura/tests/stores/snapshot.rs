//! Tests of snapshots: the rows that they include, the resources that they hold, and equality with a model
//! under every kind of change.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod check;
mod costs;
mod durable;
mod held;
mod odd_keys;
mod threads;

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

/// Asserts that the snapshot's rows equal the model: by iteration from both ends, by reads of single keys,
/// and by ranges.
fn assert_equals(snapshot: &Snapshot, model: &Model, random: &mut SmallRng, what: &str) {
    let table = snapshot.table(&ROWS).unwrap();
    let rows: Vec<_> = table.iter().map(Result::unwrap).collect();
    let wanted: Vec<_> = model.iter().map(|(k, v)| (*k, v.clone())).collect();
    assert!(rows == wanted, "{what}: forwards {:?}, not {:?}", keys(&rows), keys(&wanted));
    let mut rows: Vec<_> = table.iter().rev().map(Result::unwrap).collect();
    rows.reverse();
    assert!(rows == wanted, "{what}: backwards {:?}, not {:?}", keys(&rows), keys(&wanted));
    let (mut starts, mut pieces) = (Vec::new(), Vec::new());
    table
        .for_each(.., |row| {
            let mut start = [0; 9];
            let len = row.value_ref().read_at(0, &mut start)?;
            starts.push(start[..len].to_vec());
            row.value_ref().for_each_piece(|piece| {
                pieces.extend_from_slice(piece);
                Ok(std::ops::ControlFlow::Continue(()))
            })?;
            Ok(std::ops::ControlFlow::Continue(()))
        })
        .unwrap();
    assert!(starts.iter().map(Vec::as_slice).eq(wanted.iter().map(|(_, value)| &value[..9])), "{what}");
    assert!(
        pieces == wanted.iter().flat_map(|(_, value)| value.clone()).collect::<Vec<_>>(),
        "{what}: pieces"
    );
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
        0 => random.random_range(4000..30_000), // in overflow pages
        1..5 => random.random_range(200..500),
        _ => 24, // of equal length: the change is logged as a difference
    };
    let byte: u8 = random.random();
    let mut value = vec![byte; len];
    random.fill_bytes(&mut value[..8]);
    value
}

/// An open transaction, with its changes in the model.
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
fn snapshots_equal_a_model_after_later_changes() {
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
            // A sparse period begins if no snapshot is opened meanwhile.
            15 if !snapshots.is_empty() => {
                thread::sleep(azekura_btree::SPARSE_AFTER);
                db.checkpoint_step(16).unwrap();
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

/// A transaction that changed a row and undid the change has a version with the same value as the next one.
#[test]
fn a_large_value_stays_when_its_change_was_undone_by_a_savepoint() {
    let db = in_memory();
    let large = vec![7; 20_000];
    db.transact(|tx| tx.table(&ROWS)?.insert(&1, &large)).unwrap();
    let snapshot = db.snapshot().unwrap();
    let undone = |tx: &Transaction| {
        let savepoint = tx.savepoint()?;
        tx.table(&ROWS)?.insert(&1, &[1; 24])?;
        tx.rollback_to(savepoint)?;
        tx.table(&ROWS)?.insert(&2, &[2; 24])
    };
    db.transact(undone).unwrap();
    let later = db.snapshot().unwrap();
    db.transact(|tx| tx.table(&ROWS)?.insert(&1, &[3; 24])).unwrap();
    drop(later);
    db.checkpoint_step(16).unwrap();
    for i in 10..20 {
        db.transact(|tx| tx.table(&ROWS)?.insert(&i, &[9; 20_000])).unwrap();
    }
    assert_eq!(snapshot.table(&ROWS).unwrap().get(&1).unwrap(), Some(large));
}

/// V1: commit LSNs do not order transactions that depend on each other by a read and a later write. Here T2
/// follows T1 and has the smaller LSN, so "all commits up to an LSN" could include T2 without T1.
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
    let on = |log_buffer: usize| {
        let tx = db.begin_on_log_buffer(log_buffer).unwrap();
        tx.set_durability(Durability::Relaxed);
        tx
    };
    // Several records in one flush make the log buffer draw a range of LSNs, some of which remain unused.
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

/// A reader reads both sides of a transfer or none, in any order of transactions and snapshots.
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
                        // An account without money is removed, and inserted again when it gets some.
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

/// Every later snapshot includes a commit that has returned, even in another thread.
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
fn a_bulk_load_is_seen_whole_or_not_at_all() {
    let db = in_memory();
    insert_and_remove(&db);
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

/// Versions are turned off and on again while a load is uncommitted.
#[test]
fn a_bulk_load_stays_hidden_from_each_first_snapshot() {
    let db = in_memory();
    insert_and_remove(&db);
    let tx = db.begin().unwrap();
    tx.table(&COUNTS).unwrap().bulk_load((0..500_u64).map(|key| (key, key))).unwrap();
    let len = |db: &Database| db.snapshot().unwrap().table(&COUNTS).unwrap().len().unwrap();
    for _ in 0..3 {
        assert_eq!(len(&db), 0);
        thread::sleep(azekura_btree::GRACE);
        db.checkpoint_step(1).unwrap();
    }
    tx.commit().unwrap();
    assert_eq!(len(&db), 500);
}

/// A load that was undone leaves no mark: the next changes of its transaction store versions again.
#[test]
fn rows_that_follow_an_undone_bulk_load_are_hidden_until_the_commit() {
    let db = in_memory();
    insert_and_remove(&db);
    let first = db.snapshot().unwrap();
    let tx = db.begin().unwrap();
    let savepoint = tx.savepoint().unwrap();
    tx.table(&COUNTS).unwrap().bulk_load((0..500_u64).map(|key| (key, key))).unwrap();
    tx.rollback_to(savepoint).unwrap();
    drop(first);
    thread::sleep(azekura_btree::GRACE);
    db.checkpoint_step(1).unwrap(); // turns versions off
    let snapshot = db.snapshot().unwrap();
    let len = |snapshot: &Snapshot| snapshot.table(&COUNTS).unwrap().len().unwrap();
    tx.table(&COUNTS).unwrap().insert(&7, &7).unwrap();
    assert_eq!(len(&snapshot), 0, "the row is not committed");
    tx.commit().unwrap();
    assert_eq!((len(&snapshot), len(&db.snapshot().unwrap())), (0, 1));
}

/// A load after the removal of a table's rows hides only the loaded rows. The removal is in another
/// transaction, or in that of the load; the snapshot is older than both, or the first one and between them.
#[test]
fn a_bulk_load_does_not_hide_the_rows_that_the_table_had_before() {
    for (is_one_transaction, is_first_during) in [(false, false), (true, false), (true, true)] {
        let db = in_memory();
        db.transact(|tx| (0..100).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &1))).unwrap();
        let mut snapshot = (!is_first_during).then(|| db.snapshot().unwrap());
        let mut tx = db.begin().unwrap();
        for key in 0..100 {
            tx.table(&COUNTS).unwrap().remove(&key).unwrap();
        }
        if !is_one_transaction {
            tx.commit().unwrap();
            tx = db.begin().unwrap();
        }
        tx.table(&COUNTS).unwrap().bulk_load((50..500_u64).map(|key| (key, 2))).unwrap();
        let snapshot = snapshot.take().unwrap_or_else(|| db.snapshot().unwrap());
        for is_committed in [false, true] {
            let table = snapshot.table(&COUNTS).unwrap();
            let rows: Vec<_> = table.iter().map(Result::unwrap).collect();
            assert_eq!(rows, (0..100).map(|key| (key, 1)).collect::<Vec<(u64, u64)>>(), "{is_committed}");
            assert_eq!((table.get(&7).unwrap(), table.get(&300).unwrap()), (Some(1), None));
            if !is_committed {
                tx.table(&COUNTS).unwrap().insert(&300, &3).unwrap();
                tx.commit().unwrap();
                tx = db.begin().unwrap();
            }
        }
        assert_eq!(db.snapshot().unwrap().table(&COUNTS).unwrap().len().unwrap(), 450);
    }
}

/// Creates a table without rows.
fn insert_and_remove(db: &Database) {
    db.transact(|tx| tx.table(&COUNTS)?.insert(&1, &1)).unwrap();
    db.transact(|tx| tx.table(&COUNTS)?.remove(&1).map(drop)).unwrap();
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

#[test]
fn snapshots_refuse_the_table_names_that_transactions_refuse() {
    let db = in_memory();
    let (tx, snapshot) = (db.begin().unwrap(), db.snapshot().unwrap());
    for name in [String::new(), "n".repeat(azekura::MAX_TABLE_NAME + 1)] {
        let table = TableDefinition::<u64, u64>::named(name.clone());
        let refused = tx.table(&table).unwrap_err().to_string();
        assert_eq!(snapshot.table(&table).unwrap_err().to_string(), refused);
        assert_eq!(snapshot.table_exists(&name).unwrap_err().to_string(), refused);
        assert_eq!(tx.table_exists(&name).unwrap_err().to_string(), refused);
    }
    let longest = TableDefinition::<u64, u64>::named("n".repeat(azekura::MAX_TABLE_NAME));
    assert_eq!(snapshot.table(&longest).unwrap().get(&1).unwrap(), None);
}

#[test]
fn an_owned_table_keeps_its_snapshot_open() {
    const WRONG: TableDefinition<u64, str> = TableDefinition::new("counts");
    let db = in_memory();
    db.transact(|tx| tx.table(&COUNTS)?.insert(&1, &1)).unwrap();
    let snapshot = db.snapshot().unwrap();
    let (kept, missing) = (snapshot.owned_table(&COUNTS).unwrap(), snapshot.owned_table(&OTHER).unwrap());
    assert!(matches!(snapshot.owned_table(&WRONG), Err(Error::TableTypeMismatch { .. })));
    drop(snapshot);
    db.transact(|tx| {
        tx.table(&COUNTS)?.insert(&1, &2)?;
        tx.table(&OTHER)?.insert(&1, &2)
    })
    .unwrap();
    let of_thread = thread::spawn(move || {
        let table = kept.table();
        assert_eq!(
            (table.name(), table.get(&1).unwrap(), table.first().unwrap()),
            ("counts", Some(1), Some((1, 1)))
        );
        kept
    });
    let kept = of_thread.join().unwrap();
    assert_eq!(missing.table().get(&1).unwrap(), None);
    drop(missing);
    assert!(matches!(db.close(), Err(Error::StillInUse { .. })));
    drop(kept);
    db.close().unwrap();
}
