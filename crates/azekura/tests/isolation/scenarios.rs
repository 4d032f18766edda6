//! Tests with two threads and one interleaving each: the calls that the second transaction cannot make while
//! the first is open.
//!
//! The result depends on no clock: the first transaction waits until the second one has reported that its
//! lock timed out, and only then releases its locks.

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use azekura::{Database, Error, ErrorKind, TableDefinition, Transaction};

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

/// Returns a store with the rows 10, 20, … 50.
fn store() -> Database {
    let db = Database::builder()
        .cache_bytes(4 << 20)
        .lock_timeout(Duration::from_millis(40))
        .open_in_memory()
        .expect("a store in memory opens");
    db.transact(|tx| (1..=5).try_for_each(|n| tx.table(&ROWS)?.insert(&(n * 10), &(n * 10))))
        .expect("filled");
    db
}

fn rows(tx: &Transaction, from: u64, to: u64) -> Vec<u64> {
    let table = tx.table(&ROWS).expect("the table is there");
    table.range(from..to).map(|row| row.expect("a row").0).collect()
}

/// Runs `second` in a transaction while a transaction that ran `first` is open. With `blocks`, the second
/// must reach the lock timeout. The first must read the same before and after. At the end, the second must
/// succeed.
fn meet(
    name: &str,
    first: impl Fn(&Transaction) -> Vec<u64>,
    second: impl Fn(&Transaction) -> Result<(), Error> + Sync,
    blocks: bool,
) {
    let db = store();
    let (has_looked, look) = channel::<()>();
    let (has_tried, tried) = channel::<Option<ErrorKind>>();
    let tx = db.begin().expect("begins");
    thread::scope(|scope| {
        let (db, second) = (&db, &second);
        scope.spawn(move || {
            look.recv().expect("the first looks");
            let tx = db.begin().expect("begins");
            let result = second(&tx);
            drop(tx);
            has_tried.send(result.err().map(|e| e.kind())).expect("the first listens");
        });
        let before = first(&tx);
        has_looked.send(()).expect("the second listens");
        let outcome = tried.recv().expect("the second tells");
        assert_eq!(outcome, blocks.then_some(ErrorKind::Conflict), "{name}");
        assert_eq!(first(&tx), before, "{name}: what was seen stays so");
    });
    tx.commit().expect("commits");
    db.transact(|tx| second(tx)).unwrap_or_else(|e| panic!("{name}, nobody in the way: {e}"));
}

fn insert(key: u64) -> impl Fn(&Transaction) -> Result<(), Error> + Sync {
    move |tx| tx.table(&ROWS)?.insert(&key, &key)
}

fn remove(key: u64) -> impl Fn(&Transaction) -> Result<(), Error> + Sync {
    move |tx| tx.table(&ROWS)?.remove(&key).map(drop)
}

#[test]
fn phantoms_cannot_appear() {
    let scan = |from, to| move |tx: &Transaction| rows(tx, from, to);
    meet("into a range between two rows", scan(15, 45), insert(25), true);
    meet("into a range below its first row", scan(15, 45), insert(16), true);
    meet("into a range above its last row", scan(15, 45), insert(44), true);
    meet("into an empty range", scan(21, 29), insert(25), true);
    meet("at the end of the table", scan(40, 1000), insert(999), true);
    meet("before the first row of the table", scan(0, 10), insert(5), true);
    meet("out of a range", scan(15, 45), remove(30), true);
    meet("a new value for a row", scan(15, 45), insert(30), true);
    meet("a row that was found absent", |tx| exists(tx, 25), insert(25), true);
    meet("above the gap of the range", scan(15, 35), insert(45), false);
    meet("below the range", scan(20, 35), insert(5), false);
    meet("beside a row that was found absent", |tx| exists(tx, 25), insert(26), false);
    let backward = |tx: &Transaction| {
        let table = tx.table(&ROWS).expect("the table is there");
        table.range(15..45).rev().take(1).map(|row| row.expect("a row").0).collect()
    };
    meet("below the row that a walk back has met", backward, insert(35), true);
    meet("above the row that a walk back has met", backward, insert(44), true);
    meet("where a walk back did not come to", backward, insert(25), false);
}

fn exists(tx: &Transaction, key: u64) -> Vec<u64> {
    let table = tx.table(&ROWS).expect("the table is there");
    table.get(&key).expect("a look").into_iter().collect()
}

/// A transaction that has scanned a gap and then split it still holds both parts of the gap.
#[test]
fn phantoms_cannot_appear_beside_a_row_that_the_reader_inserted() {
    for key in [22, 28] {
        let scan_and_insert = |tx: &Transaction| {
            let before: Vec<u64> = rows(tx, 15, 45).into_iter().filter(|&k| k != 25).collect();
            insert(25)(tx).expect("its own gap");
            before
        };
        meet("beside the row", scan_and_insert, insert(key), true);
    }
}

/// An open transaction may restore a row that it has removed, so no other transaction may read the row as
/// absent.
#[test]
fn the_absence_of_a_row_is_not_seen_before_its_removal_is_committed() {
    let look = |from, to| {
        move |tx: &Transaction| {
            let table = tx.table(&ROWS)?;
            table.range(from..to).try_for_each(|row| row.map(drop))
        }
    };
    let removed = |tx: &Transaction| {
        remove(30)(tx).expect("alone");
        Vec::new()
    };
    meet("a scan over its place", removed, look(25, 35), true);
    meet("a scan that ends above it", removed, look(32, 34), true);
    meet("a scan elsewhere", removed, look(5, 15), false);
    meet("an insert into its gap", removed, insert(29), true);
}

/// Write skew: of two people on call, each may leave if the other one stays. Both transactions read, then
/// both write; one of them is stopped.
#[test]
fn write_skew_cannot_happen() {
    for by_scan in [false, true] {
        let db = Database::builder().cache_bytes(4 << 20).open_in_memory().expect("a store in memory opens");
        db.transact(|tx| (1..=2).try_for_each(|n| tx.table(&ROWS)?.insert(&n, &1))).expect("filled");
        let (looked, gone) = (Barrier::new(2), Barrier::new(2));
        let go = |who: u64| -> Result<(), Error> {
            let tx = db.begin()?;
            let table = tx.table(&ROWS)?;
            let on_call: u64 = if by_scan {
                table.iter().map(|row| row.map(|(_, v)| v)).sum::<Result<u64, Error>>()?
            } else {
                table.get(&1)?.unwrap_or(0) + table.get(&2)?.unwrap_or(0)
            };
            assert_eq!(on_call, 2, "nobody has gone before both have looked");
            looked.wait();
            let result = table.insert(&who, &0).and_then(|()| tx.commit());
            gone.wait();
            result
        };
        let results: Vec<_> = thread::scope(|scope| {
            [1, 2]
                .map(|who| {
                    let go = &go;
                    scope.spawn(move || go(who))
                })
                .map(|t| t.join().expect("no panic"))
                .into()
        });
        let stopped: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
        assert!(matches!(stopped[..], [Error::Deadlock { .. }]), "by scan {by_scan}: {results:?}");
        let left = db.transact(|tx| {
            let table = tx.table(&ROWS)?;
            Ok(table.get(&1)?.unwrap_or(0) + table.get(&2)?.unwrap_or(0))
        });
        assert_eq!(left.expect("a look"), 1);
    }
}
