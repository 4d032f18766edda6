//! The costs of removing many rows: pages read.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura::{Database, TableDefinition};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

/// Returns the number of pages that `remove` reads in a store with 20 values of 256 KiB.
fn pages_read(remove: impl FnOnce(&Database)) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::builder().page_size(8192).background(false).open(dir.path()).unwrap();
    let db = open();
    db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[7; 256 << 10][..]))).unwrap();
    db.close().unwrap();
    drop(db);
    let db = open();
    let before = db.stats().cache.misses;
    remove(&db);
    let read = db.stats().cache.misses - before;
    assert_eq!(db.transact(|tx| tx.table(&ROWS)?.len()).unwrap(), 0);
    read
}

/// A free step reads the first page of each run of a value. The other pages need not be read.
#[test]
fn a_removal_of_many_rows_reads_no_large_values() {
    let by_key = pages_read(|db| {
        db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.delete(&key).map(drop))).unwrap();
    });
    let by_range = pages_read(|db| {
        assert_eq!(db.transact(|tx| tx.table(&ROWS)?.remove_range(..)).unwrap(), 20);
    });
    let by_filter = pages_read(|db| {
        let removed = |tx: &azekura::Transaction| tx.table(&ROWS)?.update(&3, |_| None::<Vec<u8>>);
        db.transact(removed).unwrap();
        assert_eq!(db.transact(|tx| tx.table(&ROWS)?.remove_range(..)).unwrap(), 19);
    });
    let value_pages = (256 << 10) / 8192;
    assert!(by_range <= by_key + 4, "{by_range} pages, {by_key} by key");
    // `update` passes the old value to the caller, so it reads this value once.
    assert!(by_filter <= by_key + 4 + value_pages, "{by_filter} pages, {by_key} by key");
}
