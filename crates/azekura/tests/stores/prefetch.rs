//! A prefetch announces the absent pages of its keys, once, and only if this thread reads pages in. Counted
//! at the file system.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;

use azekura::{Database, TableDefinition};
use azekura_io::{CountingFs, MemFs};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const COUNT: u64 = 20_000;

/// Returns a store with [`COUNT`] rows in 900 leaves. The cache has 400 pages, and none of the rows.
fn store() -> (CountingFs, Database) {
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    let open = || {
        let builder = Database::builder().file_system(Arc::new(fs.clone())).background(false);
        builder.cache_bytes(400 * 8192).open("/db").unwrap()
    };
    let db = open();
    db.transact(|tx| tx.table(&ROWS)?.bulk_load((0..COUNT).map(|row| (row, vec![7; 300])))).unwrap();
    db.close().unwrap();
    (fs.clone(), open())
}

/// Returns keys of distinct leaves.
fn far_keys(first: u64) -> Vec<u64> {
    (0..200).map(|n| (first + n * 97) % COUNT).collect()
}

#[test]
fn a_prefetch_announces_each_absent_page_of_its_keys_once() {
    for reads_snapshot in [false, true] {
        let (fs, db) = store();
        let prefetch = |keys: &[u64]| {
            let before = fs.counts();
            let found = if reads_snapshot {
                db.read(|snapshot| snapshot.table(&ROWS)?.prefetch(keys))
            } else {
                db.transact(|tx| tx.table(&ROWS)?.prefetch(keys))
            };
            (found.unwrap(), fs.counts().announced - before.announced, fs.counts().reads - before.reads)
        };
        // Reads the inner pages, and the catalog.
        db.read(|snapshot| (0..4).try_for_each(|n| snapshot.table(&ROWS)?.get(&(n * 6_600)).map(drop)))
            .unwrap();
        prefetch(&[]);
        let keys = far_keys(5);
        let (found, announced, reads) = prefetch(&keys);
        assert!(found > 150 && reads == 0, "{found} pages, {reads} reads");
        assert!(announced > 100 && announced <= found as u64, "{announced} announcements of {found} pages");
        db.transact(|tx| keys.iter().try_for_each(|key| tx.table(&ROWS)?.get(key).map(drop))).unwrap();
        assert_eq!(prefetch(&keys[100..]), (0, 0, 0), "all of these are resident");
        let twice: Vec<u64> = far_keys(40).into_iter().flat_map(|key| [key, key]).collect();
        let (found, announced, _) = prefetch(&twice);
        assert!((100..=200).contains(&found), "{found} pages for 200 leaves");
        assert!(announced > 50 && announced <= found as u64, "{announced} announcements of {found} pages");
        let (found, _, _) = prefetch(&(0..COUNT).collect::<Vec<_>>());
        assert_eq!(found, 256, "no more than one call announces");
    }
}

#[test]
fn prefetches_end_after_some_that_found_all_pages_resident() {
    let (fs, db) = store();
    let keys: Vec<u64> = far_keys(0).into_iter().take(50).collect();
    db.transact(|tx| keys.iter().try_for_each(|key| tx.table(&ROWS)?.get(key).map(drop))).unwrap();
    let prefetch = |keys: &[u64]| db.transact(|tx| tx.table(&ROWS)?.prefetch(keys)).unwrap();
    for _ in 0..10 {
        assert_eq!(prefetch(&keys), 0);
    }
    let others: Vec<u64> = keys.iter().map(|key| key + 48).collect();
    assert_eq!(prefetch(&others), 0, "this thread has missed no page since");
    assert_eq!(fs.counts().announced, 0);
    db.transact(|tx| tx.table(&ROWS)?.get(&others[0])).unwrap();
    assert!(prefetch(&others) > 20, "it has missed one");
}
