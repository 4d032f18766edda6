//! Tests of `Database::check` concurrent with writers.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{COUNTS, OTHER, ROWS, builder, in_memory};

/// A check takes no locks: each call of its progress function commits a transaction, while another open
/// transaction has written to every table. The set of rows does not change, so each row is counted once.
#[test]
fn transactions_commit_inside_a_check_and_it_finds_nothing() {
    const KEYS: u64 = 3_000;
    let db = in_memory();
    let load = |tx: &azekura::Transaction| {
        (0..KEYS).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[1; 300]))?;
        (0..KEYS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))
    };
    db.transact(load).unwrap();
    let open = db.begin().unwrap();
    open.table(&ROWS).unwrap().insert(&7, &vec![5; 20_000]).unwrap();
    open.table(&COUNTS).unwrap().insert(&7, &1).unwrap();
    let mut random = SmallRng::seed_from_u64(1);
    let commits = Cell::new(0);
    for _ in 0..5 {
        let report = db
            .check(&mut |_, _| {
                db.transact(|tx| {
                    let (rows, counts) = (tx.table(&ROWS)?, tx.table(&COUNTS)?);
                    for _ in 0..50 {
                        let (key, size) = (random.random_range(8..KEYS), random.random_range(0..600));
                        rows.remove(&key)?;
                        rows.insert(&key, &vec![2; if size == 0 { 9_000 } else { size }])?;
                        counts.insert(&key, &commits.get())?;
                    }
                    let of_other = (0..200).map(|key| (key, commits.get()));
                    if tx.drop_table("other")? {
                        return Ok(());
                    }
                    tx.table(&OTHER)?.bulk_load(of_other).map(drop)
                })
                .unwrap();
                commits.set(commits.get() + 1);
            })
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let rows = |name| report.tables.iter().find(|table| table.name == name).unwrap().rows;
        assert_eq!((rows("rows"), rows("counts")), (KEYS, KEYS));
    }
    assert!(commits.get() > 20, "{} commits", commits.get());
    open.abort().unwrap();
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
}

/// Checks run while threads make every kind of change.
#[test]
fn a_store_that_threads_change_is_sound_in_each_check() {
    const THREADS: u64 = 3;
    let db = builder().open_in_memory().unwrap();
    db.transact(|tx| (0..500).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[1; 500]))).unwrap();
    let (ends, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, ends, commits) = (&db, &ends, &commits);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                let name = ["first", "second", "third"][thread as usize];
                let own = azekura::TableDefinition::<u64, u64>::new(name);
                // Relaxed: a flag that orders nothing.
                while !ends.load(Relaxed) {
                    let tx = db.begin().unwrap();
                    let rows = tx.table(&ROWS).unwrap();
                    let done: Result<(), azekura::Error> = (0..5).try_for_each(|_| {
                        let key = random.random_range(0..500);
                        let size = [9, 500, 5_000, 40_000][random.random_range(0..4)];
                        match random.random_range(0..12) {
                            0 => tx.drop_table(own.name()).map(drop),
                            1 if !tx.table_exists(own.name())? => {
                                let of_own = (0..random.random_range(1..3_000)).map(|key| (key, 1));
                                tx.table(&own)?.bulk_load(of_own).map(drop)
                            }
                            2..6 => rows.remove(&key).map(drop),
                            _ => rows.insert(&key, &vec![thread as u8; size]),
                        }
                    });
                    if done.is_ok() && random.random_bool(0.7) && tx.commit().is_ok() {
                        // Relaxed: a count.
                        commits.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        let mut checks = 0;
        while checks < 30 || commits.load(Relaxed) < 200 {
            let report = db.check(&mut |_, _| ()).unwrap();
            assert!(report.is_clean(), "check {checks}: {:?}", report.findings);
            checks += 1;
        }
        ends.store(true, Relaxed);
    });
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
}
