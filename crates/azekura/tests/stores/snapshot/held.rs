//! Tests of the memory, log and pages that snapshots hold, which are bounded.

use std::sync::Arc;
use std::thread;

use azekura::{Durability, Error, Snapshot};
use azekura_io::FaultFs;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{COUNTS, OTHER, ROWS, builder, in_memory};

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

/// The number of open snapshots is read seldom. The number from before others were closed must not remain.
#[test]
fn a_row_has_at_most_two_versions_after_all_of_many_snapshots_but_one_were_closed() {
    const KEYS: u64 = 500;
    let db = in_memory();
    let change = |n: u64| {
        (0..KEYS).for_each(|key| db.transact(|tx| tx.table(&COUNTS)?.insert(&key, &n)).unwrap());
    };
    change(0);
    let open = |n| {
        let snapshot = db.snapshot().unwrap();
        change(n);
        snapshot
    };
    let many: Vec<Snapshot> = (1..=8).map(open).collect();
    assert_eq!(db.stats().snapshots.versions, 8 * KEYS);
    drop(many);
    thread::sleep(azekura_btree::GRACE);
    db.checkpoint_step(1).unwrap();
    let held = open(9);
    for n in 10..20 {
        drop(db.snapshot().unwrap());
        change(n);
        let versions = db.stats().snapshots.versions;
        assert!(versions <= 2 * KEYS, "{versions} versions of {KEYS} rows and one snapshot");
    }
    assert_eq!(held.table(&COUNTS).unwrap().get(&1).unwrap(), Some(8));
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
    let Error::SnapshotTooOld { age_ms, held_bytes, limit_bytes } = error else { panic!("{error}") };
    assert!((50_001..51_000).contains(&held_bytes) && limit_bytes == 50_000 && age_ms < 60_000);
    assert_eq!(newest.table(&COUNTS).unwrap().get(&7).unwrap(), Some(1));
    assert!(db.stats().snapshots.version_bytes <= 51_000);
    assert_eq!(db.stats().snapshots.too_old, 1);
}

/// V9: pages that a snapshot may still read are freed after it is closed, and the log is trimmed meanwhile.
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
    // The name now belongs to another table.
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

/// V9: the log, the page file and the memory stay bounded while a snapshot is open, however much changes.
/// Values that are written and replaced after the snapshot was opened are freed at once.
#[test]
fn v9_a_long_snapshot_holds_one_version_of_each_row_and_no_more() {
    const KEPT: u64 = 200;
    let fs = FaultFs::new();
    let db = builder()
        .background(false)
        .wal_segment_bytes(2 << 20)
        .durability(Durability::Relaxed)
        .file_system(Arc::new(fs.clone()))
        .open("db")
        .unwrap();
    let large = |byte: u64| vec![byte as u8; 20_000];
    db.transact(|tx| {
        (0..KEPT).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))?;
        (0..10).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &large(0)))
    })
    .unwrap();
    let snapshot = db.snapshot().unwrap();
    let oldest = snapshot.number();
    let mut most = (0, 0, 0);
    let mut after_tenth = 0;
    let mut random = SmallRng::seed_from_u64(1);
    for round in 0..1000_u64 {
        db.transact(|tx| {
            let counts = tx.table(&COUNTS)?;
            (0..100).try_for_each(|_| counts.insert(&random.random_range(0..KEPT), &round))
        })
        .unwrap();
        db.transact(|tx| {
            tx.table(&ROWS)?.insert(&(round % 10), &large(round))?;
            tx.table(&ROWS)?.insert(&(round % 10), &large(round + 1))
        })
        .unwrap();
        db.transact(|tx| tx.table(&OTHER)?.bulk_load((0..2000).map(|key| (key, round))).map(drop)).unwrap();
        db.transact(|tx| tx.drop_table("other").map(drop)).unwrap();
        db.checkpoint_step(1 << 20).unwrap();
        let stats = db.stats();
        let pages = fs.contents(std::path::Path::new("db/pages")).unwrap().len();
        if round == 100 {
            after_tenth = pages;
        }
        most.0 = most.0.max(stats.log.retained_bytes);
        most.1 = most.1.max(stats.snapshots.versions);
        most.2 = pages;
        assert_eq!((stats.snapshots.oldest, &stats.background_error), (Some(oldest), &None));
        assert!(stats.snapshots.hidden_loads <= 1, "{}", stats.snapshots.hidden_loads);
    }
    let waiting = db.stats().snapshots.waiting_to_free;
    assert!(most.0 <= 24 << 20, "{} bytes of log", most.0);
    assert!(most.1 <= 2 * (KEPT + 10) + 8, "{} versions", most.1);
    assert_eq!(most.2, after_tenth, "bytes of pages");
    assert_eq!(waiting, 10, "the transactions that replaced what the snapshot sees");
    assert!(snapshot.table(&COUNTS).unwrap().iter().all(|row| row.unwrap().1 == 0));
    assert!(snapshot.table(&ROWS).unwrap().iter().all(|row| row.unwrap().1 == large(0)));
    drop(snapshot);
    db.checkpoint().unwrap();
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(db.stats().snapshots.waiting_to_free, 0);
}

/// A value that only an intermediate snapshot can read is kept for that snapshot.
#[test]
fn values_between_two_snapshots_are_freed_and_those_of_each_are_not() {
    let db = in_memory();
    let large = |byte: u8| vec![byte; 30_000];
    let write = |byte| db.transact(|tx| tx.table(&ROWS)?.insert(&1, &large(byte))).unwrap();
    write(1);
    let first = db.snapshot().unwrap();
    (2..6).for_each(write);
    let second = db.snapshot().unwrap();
    (6..10).for_each(write);
    assert_eq!(db.stats().snapshots.waiting_to_free, 2);
    let get = |snapshot: &Snapshot| snapshot.table(&ROWS).unwrap().get(&1).unwrap().unwrap();
    assert_eq!((get(&first), get(&second)), (large(1), large(5)));
    drop(first);
    db.checkpoint().unwrap();
    assert_eq!((db.stats().snapshots.waiting_to_free, get(&second)), (1, large(5)));
    drop(second);
    db.checkpoint().unwrap();
    assert_eq!(db.stats().snapshots.waiting_to_free, 0);
    let report = db.check(&mut |_, _| ()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// V12: opening the first snapshot reads the rows of active transactions only as far as their versions fit in
/// memory.
#[test]
fn v12_a_snapshot_is_refused_beside_transactions_that_are_too_large_for_it() {
    let db = builder().background(false).version_bytes(100_000).open_in_memory().unwrap();
    db.transact(|tx| (0..5000).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    let tx = db.begin().unwrap();
    for key in 0..200 {
        tx.table(&COUNTS).unwrap().insert(&key, &1).unwrap();
    }
    assert_eq!(db.snapshot().unwrap().table(&COUNTS).unwrap().get(&7).unwrap(), Some(0));
    thread::sleep(azekura_btree::GRACE);
    db.checkpoint_step(1).unwrap(); // turns versions off again
    for key in 200..5000 {
        tx.table(&COUNTS).unwrap().insert(&key, &1).unwrap();
    }
    let refused = db.snapshot().unwrap_err();
    assert!(matches!(refused, Error::TransactionsTooLarge { limit_bytes: 100_000 }), "{refused}");
    let stats = db.stats().snapshots;
    assert_eq!((stats.open, stats.versions, stats.version_bytes), (0, 0, 0));
    tx.commit().unwrap();
    assert_eq!(db.snapshot().unwrap().table(&COUNTS).unwrap().get(&4999).unwrap(), Some(1));
}

/// V12: a transaction waits while it is visited, so one that was too large is visited again only after it has
/// undone changes.
#[test]
fn v12_refused_snapshots_visit_a_large_transaction_once() {
    const KEYS: u64 = 60_000;
    // The leaves do not fit in the cache, so a visit reads pages.
    let db = builder().background(false).version_bytes(4_000_000).open_in_memory().unwrap();
    db.transact(|tx| tx.table(&COUNTS)?.bulk_load((0..KEYS).map(|key| (key, 0))).map(drop)).unwrap();
    let tx = db.begin().unwrap();
    let change = |keys: std::ops::Range<u64>| {
        let table = tx.table(&COUNTS).unwrap();
        keys.for_each(|key| table.insert(&key, &1).unwrap());
    };
    change(0..100);
    let savepoint = tx.savepoint().unwrap();
    change(100..KEYS - 100);
    let refuse = || {
        let before = db.stats().cache.misses;
        assert!(matches!(db.snapshot(), Err(Error::TransactionsTooLarge { limit_bytes: 4_000_000 })));
        db.stats().cache.misses - before
    };
    assert!(refuse() > 100);
    change(KEYS - 100..KEYS);
    assert_eq!([refuse(), refuse()], [0, 0]);
    tx.rollback_to(savepoint).unwrap();
    let snapshot = db.snapshot().unwrap();
    let get = |key| snapshot.table(&COUNTS).unwrap().get(&key).unwrap();
    assert_eq!((get(7), get(700)), (Some(0), Some(0)));
    tx.commit().unwrap();
    assert_eq!(get(7), Some(0));
}

/// V12: two transactions that do not fit together are visited again after one of them has ended.
#[test]
fn v12_a_snapshot_is_refused_beside_two_transactions_until_one_has_ended() {
    let db = builder().background(false).version_bytes(100_000).open_in_memory().unwrap();
    db.transact(|tx| (0..2000).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    let change = |keys: std::ops::Range<u64>| {
        let tx = db.begin().unwrap();
        keys.for_each(|key| tx.table(&COUNTS).unwrap().insert(&key, &1).unwrap());
        tx
    };
    let (one, two) = (change(0..800), change(1000..1800));
    for _ in 0..3 {
        assert!(matches!(db.snapshot(), Err(Error::TransactionsTooLarge { .. })));
    }
    one.commit().unwrap();
    let snapshot = db.snapshot().unwrap();
    let get = |key| snapshot.table(&COUNTS).unwrap().get(&key).unwrap();
    assert_eq!((get(7), get(1007)), (Some(1), Some(0)));
    two.commit().unwrap();
    assert_eq!((get(7), get(1007)), (Some(1), Some(0)));
}

/// V12: the limit counts the rows as they were before the transaction, and so also the rows that it removed.
#[test]
fn v12_a_snapshot_is_refused_beside_a_transaction_that_removed_too_many_rows() {
    let db = builder().background(false).version_bytes(100_000).open_in_memory().unwrap();
    db.transact(|tx| (0..400).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[7; 500]))).unwrap();
    let tx = db.begin().unwrap();
    for key in 0..400 {
        tx.table(&ROWS).unwrap().remove(&key).unwrap();
    }
    let refused = db.snapshot().unwrap_err();
    assert!(matches!(refused, Error::TransactionsTooLarge { limit_bytes: 100_000 }), "{refused}");
    tx.commit().unwrap();
    assert!(db.snapshot().unwrap().table(&ROWS).unwrap().get(&7).unwrap().is_none());
}
