//! The limit on the memory of undo entries: a call beyond it is undone, and its transaction continues.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura::{Database, Error, ErrorKind, TableDefinition};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const COUNT: u64 = 20_000;
const LIMIT: u64 = 1 << 20;

fn filled() -> Database {
    let db = Database::builder().cache_bytes(32 << 20).undo_bytes(LIMIT).open_in_memory().unwrap();
    db.transact(|tx| tx.table(&ROWS)?.bulk_load((0..COUNT).map(|n| (n, vec![n as u8; 200])))).unwrap();
    db
}

fn len(db: &Database) -> u64 {
    db.read(|s| s.table(&ROWS)?.len()).unwrap()
}

#[test]
fn a_removal_beyond_the_limit_is_undone_and_its_transaction_continues() {
    let db = filled();
    let tx = db.begin().unwrap();
    let rows = tx.table(&ROWS).unwrap();
    assert_eq!(rows.remove_range(..1_000).unwrap(), 1_000);
    let error = rows.remove_range(1_000..).unwrap_err();
    assert!(matches!(error, Error::UndoMemoryExhausted { limit_bytes: LIMIT, .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(!error.is_retryable(), "a retry of the same transaction would fail again");
    assert_eq!(rows.len().unwrap(), COUNT - 1_000, "the failed call was undone as a whole");
    assert_eq!(rows.remove_range(1_000..1_100).unwrap(), 100, "the memory of the failed call is free again");
    tx.commit().unwrap();
    assert_eq!((len(&db), db.stats().undo_bytes), (COUNT - 1_100, 0));
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
}

/// Inserts rows into a table of its own until the limit ends this; returns the error.
fn fill(tx: &azekura::Transaction, name: &'static str) -> Error {
    let rows = tx.table(&TableDefinition::<u64, u64>::new(name)).unwrap();
    (0..).find_map(|n| rows.insert(&n, &n).err()).unwrap()
}

#[test]
fn open_transactions_share_the_limit() {
    let db = filled();
    let first = db.begin().unwrap();
    let many = fill(&first, "first");
    assert!(matches!(many, Error::UndoMemoryExhausted { .. }), "{many}");
    assert!(db.stats().undo_bytes > LIMIT * 3 / 4, "{}", db.stats().undo_bytes);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let tx = db.begin().unwrap();
            let refused = fill(&tx, "second");
            tx.commit().unwrap();
            refused
        });
        let refused = second.join().unwrap();
        assert!(matches!(refused, Error::UndoMemoryExhausted { .. }), "{refused}");
    });
    let second = db.read(|s| s.table(&TableDefinition::<u64, u64>::new("second"))?.len()).unwrap();
    assert!((100..10_000).contains(&second), "a transaction with less than 64 KiB does not count: {second}");
    first.abort().unwrap();
    assert_eq!(db.stats().undo_bytes, 0);
    let again = db.begin().unwrap();
    assert_eq!(again.table(&ROWS).unwrap().remove_range(..3_000).unwrap(), 3_000, "all memory is free again");
    again.abort().unwrap();
}
