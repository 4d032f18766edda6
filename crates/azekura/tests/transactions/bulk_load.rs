//! Tests of bulk loads: the loaded rows, the refused calls, and the undo of a whole load with its
//! transaction.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Rows, assert_clean, deterministic};
use crate::held::HeldFs;
use azekura::{Builder, Database, Error, ErrorKind, TableDefinition, Transaction};
use azekura_io::MemFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const T: TableDefinition<[u8], [u8]> = TableDefinition::new("t");
const OTHER: TableDefinition<[u8], [u8]> = TableDefinition::new("other");

fn store(page_size: usize, frames: usize) -> Database {
    deterministic(Arc::new(MemFs::new()), page_size, frames).open("db").unwrap()
}

fn load(tx: &Transaction, rows: &Rows) -> Result<u64, Error> {
    tx.table(&T)?.bulk_load(slices(rows))
}

fn slices(rows: &Rows) -> impl Iterator<Item = (&[u8], &[u8])> {
    rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
}

fn rows_of(db: &Database, table: &TableDefinition<[u8], [u8]>) -> Rows {
    db.transact(|tx| tx.table(table)?.iter().collect()).unwrap()
}

/// Returns the number of pages in use. A store without leaks uses only the pages of its tables and maps.
fn pages(db: &Database) -> u64 {
    db.check(&mut |_, _| {}).unwrap().pages
}

/// Returns random rows: keys of very different lengths with long common prefixes, and values from empty to
/// several runs of pages.
fn random_rows(rng: &mut StdRng, count: u32) -> Rows {
    let largest = [20, 200, 700, 5_000, 150_000][rng.random_range(0..5)];
    (0..count)
        .map(|n| {
            let len =
                if rng.random_ratio(1, 50) { rng.random_range(0..=largest) } else { rng.random_range(0..40) };
            let mut value = vec![0; len];
            rng.fill(&mut value[..]);
            (crate::common::key(n), value)
        })
        .collect()
}

fn seeds() -> Vec<u64> {
    match std::env::var("AZEKURA_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (1..=12).collect(),
    }
}

#[test]
fn a_loaded_table_equals_a_table_of_inserted_rows() {
    for seed in seeds() {
        let rng = &mut StdRng::seed_from_u64(seed);
        let page_size = [4096, 8192, 65536][rng.random_range(0..3)];
        let count = [0, 1, 2, 30, 300, 3_000, 20_000][(seed % 7) as usize];
        let db = store(page_size, 64);
        let mut rows = random_rows(rng, count);
        let context = format!("seed {seed}, {count} rows");
        let loaded = db.transact(|tx| load(tx, &rows)).unwrap();
        assert_eq!(loaded, rows.len() as u64, "{context}");
        assert!(rows_of(&db, &T) == rows, "{context}");
        assert_clean(&db, &context);

        // The loaded table accepts changes like any other table.
        for _ in 0..300 {
            let key = crate::common::key(rng.random_range(0..count.max(1) * 2));
            if rng.random_bool(0.5) {
                let value = vec![7; rng.random_range(0..600)];
                db.transact(|tx| tx.table(&T)?.insert(&key, &value)).unwrap();
                rows.insert(key, value);
            } else {
                let removed = db.transact(|tx| tx.table(&T)?.remove(&key)).unwrap();
                assert_eq!(removed, rows.remove(&key), "{context}");
            }
        }
        assert!(rows_of(&db, &T) == rows, "{context}: after changes");
        assert_clean(&db, &context);
    }
}

#[test]
fn a_load_larger_than_the_cache_works_with_and_without_threads() {
    let rows: Rows = (0..60_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 80])).collect();
    for background in [false, true] {
        let fs = Arc::new(MemFs::new());
        let open = || deterministic(fs.clone(), 4096, 64).background(background).open("db").unwrap();
        let db = open();
        db.transact(|tx| load(tx, &rows)).unwrap();
        assert!(rows_of(&db, &T) == rows);
        assert_clean(&db, "larger than the cache");
        let leaves = db.check(&mut |_, _| {}).unwrap().tables[0].leaf_pages;
        assert!(leaves > 64 * 20, "{leaves} leaves in 64 frames");
        db.close().unwrap();
        assert!(rows_of(&open(), &T) == rows, "after reopening");
    }
}

#[test]
fn rows_that_do_not_ascend_are_refused_and_nothing_is_changed() {
    let db = store(4096, 64);
    db.transact(|tx| tx.table(&OTHER)?.insert(b"a", b"1")).unwrap();
    let before = pages(&db);
    let tx = db.begin().unwrap();
    let sorted = (0..9_999u32).map(|n| n.to_be_bytes());
    for last in [9_998u32, 17] {
        let keys = sorted.clone().chain([last.to_be_bytes()]);
        let error =
            tx.table(&T).unwrap().bulk_load(keys.map(|key| (key.to_vec(), b"value".as_slice()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let Error::NotAscending { table, row, key } = &error else { panic!("{error}") };
        assert_eq!((table.as_str(), *row, key.as_slice()), ("t", 10_000, &last.to_be_bytes()[..]));
    }
    // The transaction can continue.
    assert_eq!(tx.table(&T).unwrap().bulk_load([(b"k".as_slice(), b"v".as_slice())]).unwrap(), 1);
    tx.commit().unwrap();
    assert_eq!(rows_of(&db, &T).len(), 1);
    assert_clean(&db, "refused loads");
    assert_eq!(pages(&db), before + 1, "the new table's root");
}

#[test]
fn a_table_with_rows_is_refused_and_one_that_was_emptied_is_not() {
    let db = store(4096, 64);
    let many: Rows = (0..2_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![1; 100])).collect();
    db.transact(|tx| load(tx, &many)).unwrap();
    let refused = db.transact(|tx| load(tx, &many));
    assert!(matches!(refused, Err(Error::NotEmpty { ref table }) if table == "t"), "{refused:?}");
    assert!(matches!(db.transact(|tx| load(tx, &Rows::new())), Err(Error::NotEmpty { .. })));
    // The loading transaction has emptied the table before; a rollback restores the old rows.
    let few: Rows = many.iter().take(900).map(|(k, v)| (k.clone(), [&v[..], b"new"].concat())).collect();
    let tx = db.begin().unwrap();
    for key in many.keys() {
        tx.table(&T).unwrap().remove(key).unwrap();
    }
    let savepoint = tx.savepoint().unwrap();
    load(&tx, &few).unwrap();
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(tx.table(&T).unwrap().iter().count(), 0);
    load(&tx, &few).unwrap();
    tx.abort().unwrap();
    assert!(rows_of(&db, &T) == many);
    assert_clean(&db, "aborted");
}

#[test]
fn a_load_that_is_rolled_back_leaves_an_empty_table_and_frees_its_pages() {
    for seed in seeds() {
        let rng = &mut StdRng::seed_from_u64(seed);
        let db = store(4096, 64);
        db.transact(|tx| tx.table(&T)?.insert(b"a", b"1")).unwrap();
        db.transact(|tx| tx.table(&T)?.remove(b"a".as_slice())).unwrap();
        let before = pages(&db);
        let count = [1, 20, 400, 6_000][(seed % 4) as usize];
        let rows = random_rows(rng, count);
        let tx = db.begin().unwrap();
        let savepoint = tx.savepoint().unwrap();
        load(&tx, &rows).unwrap();
        // Changes of the loaded rows (splits, merges, large values), which are undone before the load.
        for n in 0..rng.random_range(0..400) {
            let key = crate::common::key(rng.random_range(0..count * 2));
            let table = tx.table(&T).unwrap();
            match n % 3 {
                0 => drop(table.remove(&key).unwrap()),
                1 => table.insert(&key, &[3; 500]).unwrap(),
                _ => table.insert(&key, &[4; 9_000]).unwrap(),
            }
        }
        if seed % 2 == 0 {
            tx.rollback_to(savepoint).unwrap();
            assert_eq!(tx.table(&T).unwrap().iter().count(), 0, "seed {seed}");
            tx.commit().unwrap();
        } else {
            drop(tx);
        }
        assert_eq!(rows_of(&db, &T).len(), 0, "seed {seed}");
        assert_clean(&db, &format!("seed {seed}"));
        assert_eq!(pages(&db), before, "seed {seed}: pages in use");
        // The second load reuses pages that were freed.
        db.transact(|tx| load(tx, &rows)).unwrap();
        assert!(rows_of(&db, &T) == rows, "seed {seed}");
        assert_clean(&db, &format!("seed {seed}, again"));
    }
}

#[test]
fn an_error_of_the_row_source_ends_the_load() {
    let db = store(4096, 64);
    let result = db.transact(|tx| {
        let good = (0..5_000u32).map(|n| Ok((n.to_be_bytes().to_vec(), b"v".as_slice())));
        tx.table(&T)?.try_bulk_load(good.chain([Err(Error::other("line 5001 is torn"))]))
    });
    assert!(matches!(result, Err(Error::Other(ref error)) if error.to_string() == "line 5001 is torn"));
    assert_eq!(rows_of(&db, &T).len(), 0);
    assert_clean(&db, "failed rows");
}

/// LOAD-4: the pages are freed after a failed load, and a late write would damage their next content.
#[test]
fn a_failed_load_returns_without_active_writes() {
    let (fs, hold) = HeldFs::new("pages", "azekura-load");
    let store = deterministic(Arc::new(fs), 4096, 2_000).background(true).open("db").unwrap();
    // More than a batch of pages, and fewer than the loader writes before it waits for a write.
    const ROWS: u32 = 15_000;
    let rows = (0..ROWS).map(|n| Ok((n.to_be_bytes().to_vec(), [3; 100].to_vec())));
    let torn = std::iter::from_fn(|| {
        hold.wait_for_one();
        hold.release();
        Some(Err(Error::other("the last line is torn")))
    });
    let tx = store.begin().unwrap();
    let result = tx.table(&T).unwrap().try_bulk_load(rows.chain(torn));
    hold.note_return();
    assert!(matches!(result, Err(Error::Other(_))), "{result:?}");
    drop(tx);
    assert!(hold.held() > 0, "a write was under way when the row failed");
    assert_eq!(hold.late(), 0, "writes that were still under way");
    assert_eq!(rows_of(&store, &T).len(), 0);
    assert_clean(&store, "after the writes");
}

#[test]
fn rows_may_be_read_from_the_same_transaction_and_not_written_in_it() {
    let db = store(4096, 64);
    let source: Rows = (0..4_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![2; 50])).collect();
    db.transact(|tx| tx.table(&OTHER)?.bulk_load(slices(&source))).unwrap();
    db.transact(|tx| tx.table(&T)?.try_bulk_load(tx.table(&OTHER)?.iter())).unwrap();
    assert!(rows_of(&db, &T) == source);

    db.transact(|tx| tx.drop_table("t")).unwrap();
    let tx = db.begin().unwrap();
    tx.table(&OTHER).unwrap().insert(b"kept", b"1").unwrap();
    let writing = slices(&source).inspect(|_| tx.table(&OTHER).unwrap().insert(b"not kept", b"1").unwrap());
    let refused = tx.table(&T).unwrap().bulk_load(writing);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    tx.commit().unwrap();
    let other = rows_of(&db, &OTHER);
    assert!(other.contains_key(&b"kept"[..]) && !other.contains_key(&b"not kept"[..]));
    assert_eq!(rows_of(&db, &T).len(), 0);
    assert_clean(&db, "writing rows");
}

#[test]
fn too_long_a_key_is_refused() {
    let db = store(4096, 64);
    let long = vec![9; db.max_key_bytes() + 1];
    let refused = db.transact(|tx| tx.table(&T)?.bulk_load([(vec![1], vec![2]), (long.clone(), vec![3])]));
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(rows_of(&db, &T).len(), 0);
}

/// No transaction sees a part of a load: a reader of another transaction waits for the table lock, and here
/// reaches its lock timeout.
#[test]
fn a_reader_of_another_transaction_sees_all_of_it_or_nothing() {
    let options: Builder = deterministic(Arc::new(MemFs::new()), 4096, 64);
    let db = options.lock_timeout(Duration::from_millis(1)).open("db").unwrap();
    db.transact(|tx| tx.table(&T)?.insert(b"a", b"1")).unwrap();
    db.transact(|tx| tx.table(&T)?.remove(b"a".as_slice())).unwrap();
    let rows: Rows = (0..3_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![5; 60])).collect();
    // The reader runs in another thread; in the loader's thread the wait would be a self-deadlock.
    let look = |key: &[u8]| {
        let get = || db.begin().unwrap().table(&T).unwrap().get(key);
        std::thread::scope(|scope| scope.spawn(get).join().unwrap())
    };
    assert_eq!(look(&[0, 0, 0, 7]).unwrap(), None);
    let tx = db.begin().unwrap();
    let mut looks = 0;
    let watched = slices(&rows).inspect(|(key, _)| {
        if key[3] == 0 {
            assert!(matches!(look(key), Err(Error::LockTimeout { .. })));
            looks += 1;
        }
    });
    tx.table(&T).unwrap().bulk_load(watched).unwrap();
    assert!(looks > 5 && matches!(look(&[0, 0, 0, 7]), Err(Error::LockTimeout { .. })));
    tx.commit().unwrap();
    assert_eq!(look(&[0, 0, 0, 7]).unwrap(), Some(vec![5; 60]));
}

/// Most of a load is not logged, whatever its pages contained before.
#[test]
fn a_load_logs_no_rows() {
    let rows: Rows = (0..40_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; 100])).collect();
    let db = store(8192, 256);
    for _ in 0..2 {
        let before = db.stats().log.record_bytes;
        db.transact(|tx| load(tx, &rows)).unwrap();
        let logged = db.stats().log.record_bytes - before;
        assert!(logged < 20_000, "{logged} bytes of log for 4 MB of rows");
        db.transact(|tx| tx.drop_table("t")).unwrap();
    }
}

/// Removing all loaded rows frees their pages, in any order of removal. At all times, finding the first or
/// the last row visits one leaf.
#[test]
fn loaded_rows_that_are_removed_give_their_pages_back() {
    let rows: Rows = (0..9000).map(|n| (format!("{n:05}/of a load").into_bytes(), vec![1; 60])).collect();
    for order in 0..3 {
        let db = store(4096, 2048);
        db.transact(|tx| tx.table(&T)?.insert(b"", b"")).unwrap();
        db.transact(|tx| tx.table(&T)?.remove(b"")).unwrap();
        let empty = pages(&db);
        db.transact(|tx| load(tx, &rows)).unwrap();
        let full = pages(&db);
        let mut keys: Vec<&Vec<u8>> = rows.keys().collect();
        match order {
            0 => {}
            1 => keys.reverse(),
            _ => keys.sort_by_key(|key| {
                key.iter().fold(7_u64, |hash, &b| hash.wrapping_mul(31).rotate_left(5) ^ u64::from(b))
            }),
        }
        for (i, part) in keys.chunks(500).enumerate() {
            db.transact(|tx| {
                let table = tx.table(&T)?;
                for key in part {
                    table.remove(key)?.unwrap();
                }
                let before = db.stats().scanned_leaves;
                let ends = [table.first()?, table.last()?];
                assert_eq!(db.stats().scanned_leaves - before, 2, "order {order}, {i}: {ends:?}");
                Ok(())
            })
            .unwrap();
            let left = (keys.len() - 500 * (i + 1)) as u64;
            let share = (full - empty) * 3 * left / keys.len() as u64 + 10;
            assert!(pages(&db) <= empty + share, "order {order}: {} pages for {left} rows", pages(&db));
        }
        assert_clean(&db, "after the removal");
        assert_eq!(pages(&db), empty, "order {order}: {full} pages with all rows");
    }
}

/// Returns an iterator that panics after `count` rows.
fn panicking_rows(count: u32) -> impl Iterator<Item = (Vec<u8>, &'static [u8])> {
    let good = (0..count).map(|n| (n.to_be_bytes().to_vec(), [7; 100].as_slice()));
    good.chain(std::iter::from_fn(|| panic!("the source of rows fails")))
}

fn catch<T>(call: impl FnOnce() -> T) -> std::thread::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
}

#[test]
fn a_panic_of_the_row_source_leaks_no_page() {
    let db = store(4096, 64);
    db.transact(|tx| tx.table(&OTHER)?.insert(b"a", b"1")).unwrap();
    let before = pages(&db);
    let tx = db.begin().unwrap();
    tx.table(&OTHER).unwrap().insert(b"b", b"2").unwrap();
    assert!(catch(|| tx.table(&T).unwrap().bulk_load(panicking_rows(20_000))).is_err());
    assert!(!tx.is_over());
    tx.table(&OTHER).unwrap().insert(b"c", b"3").unwrap();
    assert_eq!(load(&tx, &Rows::from([(b"k".to_vec(), b"v".to_vec())])).unwrap(), 1);
    tx.commit().unwrap();
    assert_eq!((rows_of(&db, &T).len(), rows_of(&db, &OTHER).len()), (1, 3));
    assert_clean(&db, "after a panic");
    assert_eq!(pages(&db), before + 1, "the new table's root");
}

/// A load is visible only after its end, so a savepoint within the load refers to the state before it.
#[test]
fn a_savepoint_taken_while_rows_come_in_undoes_the_load() {
    let many = || (0..20_000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 100]));
    for at in [0, 1, 3_000, 12_000, 19_999] {
        let db = store(4096, 64);
        db.transact(|tx| tx.table(&OTHER)?.insert(b"a", b"1")).unwrap();
        let before = pages(&db);
        let tx = db.begin().unwrap();
        tx.table(&OTHER).unwrap().insert(b"b", b"2").unwrap();
        let earlier = tx.savepoint().unwrap();
        let mut within = None;
        let rows = many().enumerate().inspect(|&(n, _)| {
            if n == at {
                within = Some(tx.savepoint().unwrap());
                assert!(matches!(tx.rollback_to(earlier), Err(Error::Invalid(_))), "row {n}");
            }
        });
        tx.table(&T).unwrap().bulk_load(rows.map(|(_, row)| row)).unwrap();
        for n in 0..200_u32 {
            tx.table(&OTHER).unwrap().insert(&n.to_be_bytes(), b"after").unwrap();
        }
        tx.rollback_to(within.unwrap()).unwrap();
        assert_eq!(tx.table(&T).unwrap().iter().count(), 0, "row {at}");
        assert_eq!(tx.table(&OTHER).unwrap().iter().count(), 2, "row {at}");
        tx.rollback_to(earlier).unwrap();
        tx.commit().unwrap();
        assert_clean(&db, &format!("a savepoint at row {at}"));
        assert_eq!(pages(&db), before, "row {at}");
    }
}

#[test]
fn a_savepoint_after_a_rollback_target_is_refused() {
    let db = store(4096, 64);
    let tx = db.begin().unwrap();
    let put = |n: u32| tx.table(&OTHER).unwrap().insert(&n.to_be_bytes(), b"v").unwrap();
    put(0);
    let first = tx.savepoint().unwrap();
    (1..10).for_each(put);
    let second = tx.savepoint().unwrap();
    tx.rollback_to(first).unwrap();
    (1..20).for_each(put);
    assert!(matches!(tx.rollback_to(second), Err(Error::Invalid(_))), "its place is another now");
    assert_eq!(tx.table(&OTHER).unwrap().iter().count(), 20);
    tx.rollback_to(first).unwrap();
    tx.rollback_to(first).unwrap();
    assert_eq!(tx.table(&OTHER).unwrap().iter().count(), 1);
}

#[test]
fn a_savepoint_of_another_store_is_refused() {
    let (one, other) = (store(4096, 64), store(4096, 64));
    let (tx, foreign) = (one.begin().unwrap(), other.begin().unwrap());
    assert_eq!(tx.id(), foreign.id());
    let put = |key: &[u8]| tx.table(&OTHER).unwrap().insert(key, b"v").unwrap();
    put(b"a");
    tx.savepoint().unwrap();
    put(b"b");
    assert!(matches!(tx.rollback_to(foreign.savepoint().unwrap()), Err(Error::Invalid(_))));
    assert_eq!(tx.table(&OTHER).unwrap().iter().count(), 2);
}

/// LOAD-4 for a rollback that the load itself did not request: reading the rows fails with an error that ends
/// the transaction.
#[test]
fn a_rollback_while_rows_come_in_waits_for_the_writes_of_the_load() {
    let (fs, hold) = HeldFs::new("pages", "azekura-load");
    let db = deterministic(Arc::new(fs), 4096, 2_000).background(true).open("db").unwrap();
    db.transact(|tx| tx.table(&OTHER)?.insert(b"a", b"1")).unwrap();
    let before = pages(&db);
    // The row is held by another thread, so waiting for it is not a self-deadlock.
    let hold_row = || {
        let holder = db.begin().unwrap();
        holder.table(&OTHER).unwrap().insert(b"a", b"2").unwrap();
        holder
    };
    let holder = std::thread::scope(|scope| scope.spawn(hold_row).join().unwrap());
    let tx = db.begin().unwrap();
    tx.set_lock_timeout(Some(Duration::from_millis(1))).unwrap();
    let rows = (0..15_000_u32).map(|n| Ok((n.to_be_bytes().to_vec(), [3; 100].to_vec())));
    let failing = std::iter::once_with(|| {
        hold.wait_for_one();
        let logged = db.stats().log.records;
        let error = tx.table(&OTHER).unwrap().get(b"a".as_slice()).unwrap_err();
        assert!(tx.is_over() && error.is_retryable(), "{error:?}");
        assert_eq!(db.stats().log.records, logged, "nothing is undone while a page is being written");
        hold.release();
        Ok((vec![0xff; 5], b"ignores the error".to_vec()))
    });
    let result = tx.table(&T).unwrap().try_bulk_load(rows.chain(failing));
    hold.note_return();
    assert!(matches!(result, Err(Error::Aborted { .. })), "{result:?}");
    tx.abort().unwrap();
    holder.abort().unwrap();
    assert!(hold.held() > 0, "a write was under way when the transaction was rolled back");
    assert_eq!(hold.late(), 0, "writes that were still under way");
    assert_eq!(rows_of(&db, &T).len(), 0);
    assert_clean(&db, "after the rollback");
    assert_eq!(pages(&db), before);
}

/// Returns rows of equal length with keys in scattered order.
fn scattered(count: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    (0..count).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()).map(|key| {
        let value = key.repeat(12);
        (key, value)
    })
}

/// The cache holds an eighth of the rows, and the sorter's memory a tenth.
#[test]
fn rows_in_any_order_cost_the_pages_that_they_fill_and_not_a_page_each() {
    const ROWS: u64 = 40_000;
    let db = store(4096, 140);
    let pages_written = |rows: u64| {
        let before = db.stats().cache.pages_written;
        let load = |tx: &Transaction| tx.table(&T)?.bulk_load_unsorted(scattered(rows), 500_000);
        assert_eq!(db.transact(load).unwrap(), rows);
        db.stats().cache.pages_written - before
    };
    let into_empty = pages_written(ROWS);
    let rows: Rows = scattered(ROWS).collect();
    assert_eq!(rows_of(&db, &T), rows);
    let leaves = pages(&db);
    assert!(into_empty < leaves + leaves / 4, "{into_empty} pages written for {leaves}");
    // A second load of half of the rows: a run of adjacent rows changes each page.
    let into_full = pages_written(ROWS / 2);
    assert!(into_full < 2 * leaves, "{into_full} pages written for {leaves}");
    assert_eq!(rows_of(&db, &T), rows);
    assert_clean(&db, "after both loads");
}

#[test]
fn of_rows_with_one_key_the_last_is_loaded_and_replaces_what_was_there() {
    let db = store(4096, 64);
    let rows = [("b", "1"), ("a", "2"), ("b", "3")].map(|(key, value)| (key.as_bytes(), value.as_bytes()));
    let loaded = db.transact(|tx| tx.table(&T)?.bulk_load_unsorted(rows, 1 << 20)).unwrap();
    let held = |rows: &[(&str, &str)]| {
        let rows: Rows = rows.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        assert_eq!(rows_of(&db, &T), rows);
    };
    assert_eq!(loaded, 2);
    held(&[("a", "2"), ("b", "3")]);
    let again = [(&b"c"[..], &b"4"[..]), (b"a", b"5")];
    assert_eq!(db.transact(|tx| tx.table(&T)?.bulk_load_unsorted(again, 1 << 20)).unwrap(), 2);
    held(&[("a", "5"), ("b", "3"), ("c", "4")]);
}
