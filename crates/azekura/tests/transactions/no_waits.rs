//! Tests of calls that do not wait for locks: calls of a transaction with `set_nowait`, and calls that would
//! wait for their own thread. Such a call leaves the transaction unchanged, and the transaction can continue.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use azekura::{Database, Error, ErrorKind, Restore, TableDefinition};

const ROWS: TableDefinition<u32, u64> = TableDefinition::new("rows");
const OTHER: TableDefinition<u32, u64> = TableDefinition::new("other");

fn store() -> Result<Database, Error> {
    let db = Database::in_memory()?;
    db.transact(|tx| (0..10).try_for_each(|key| tx.table(&ROWS)?.insert(&(10 * key), &0)))?;
    db.transact(|tx| tx.table(&OTHER)?.insert(&1, &0))?;
    Ok(db)
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    match result {
        Err(error @ Error::WouldBlock { .. }) => error.kind() == ErrorKind::Busy && !error.is_retryable(),
        _ => false,
    }
}

#[test]
fn a_call_that_would_wait_changes_nothing_and_the_others_last() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    // Locks row 50 and the gap below it.
    assert_eq!(holder.table(&ROWS)?.range(45..=50).count(), 1);
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    let rows = tx.table(&ROWS)?;
    rows.insert(&10, &7)?;
    assert!(is_refused(rows.insert(&20, &7)), "the row");
    assert!(is_refused(rows.get(&20)), "to read it");
    assert!(is_refused(rows.get_for_update(&20)));
    assert!(is_refused(rows.remove(&20)));
    assert!(is_refused(rows.insert(&45, &7)), "the gap");
    assert!(is_refused(rows.range(..).collect::<Result<Vec<_>, _>>()), "a range");
    assert!(is_refused(tx.drop_table("rows")), "the table");
    rows.insert(&35, &7)?;
    assert!(!holder.has_waiters());
    let before = tx.savepoint()?;
    tx.table(&OTHER)?.insert(&2, &7)?;
    tx.rollback_to(before)?;
    tx.commit()?;
    holder.commit()?;
    let found = db.transact(|tx| tx.table(&ROWS)?.range(..).collect::<Result<Vec<_>, _>>())?;
    let changed: Vec<_> = found.into_iter().filter(|(_, value)| *value > 0).collect();
    assert_eq!(changed, [(10, 7), (20, 1), (35, 7)]);
    assert_eq!(db.transact(|tx| tx.table(&OTHER)?.get(&2))?, None);
    assert_eq!(db.stats().locks.waits, 0);
    Ok(())
}

#[test]
fn a_refused_load_of_several_rows_stores_none() -> Result<(), Error> {
    let db = store()?;
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    let rows = tx.table(&ROWS)?;
    assert_eq!(rows.get(&25)?, None, "locks the gap below row 30");
    let holder = db.begin()?;
    holder.table(&ROWS)?.insert(&30, &1)?;
    assert!(is_refused(rows.bulk_load_unsorted([(30, 7), (25, 7)], 1 << 20)));
    assert_eq!(rows.get(&25)?, None);
    tx.commit()?;
    holder.commit()?;
    assert_eq!(db.transact(|tx| tx.table(&ROWS)?.range(21..39).collect::<Result<Vec<_>, _>>())?, [(30, 1)]);
    Ok(())
}

#[test]
fn a_refused_first_row_of_a_table_leaves_neither_the_table_nor_its_page() -> Result<(), Error> {
    const NEW: TableDefinition<u32, u64> = TableDefinition::new("new");
    for nowait in [true, false] {
        let db = store()?;
        let reader = db.begin()?;
        assert_eq!(reader.table(&NEW)?.get(&1)?, None, "locks the absence of the table");
        let tx = db.begin()?;
        tx.set_nowait(nowait)?;
        let refused = tx.table(&NEW)?.insert(&1, &1);
        assert!(if nowait { is_refused(refused) } else { is_self_deadlock(refused) });
        tx.table(&ROWS)?.insert(&1, &1)?;
        tx.commit()?;
        reader.commit()?;
        assert_eq!(db.table_names()?, ["other", "rows"]);
        let report = db.check(&mut |_, _| {})?;
        assert!(report.is_clean(), "{report:?}");
    }
    Ok(())
}

#[test]
fn a_refused_load_in_any_order_stores_no_row() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.table(&ROWS)?.insert(&50, &1)?;
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    tx.table(&ROWS)?.insert(&0, &7)?;
    let rows: [(u32, u64); 4] = [(70, 9), (50, 9), (5, 9), (10, 9)];
    assert!(is_refused(tx.table(&ROWS)?.bulk_load_unsorted(rows, 1 << 20)));
    tx.commit()?;
    holder.abort()?;
    let found = db.transact(|tx| tx.table(&ROWS)?.range(..).collect::<Result<Vec<_>, _>>())?;
    assert_eq!(found.iter().filter(|(_, value)| *value > 0).collect::<Vec<_>>(), [&(0, 7)]);
    assert_eq!(found.len(), 10);
    Ok(())
}

#[test]
fn a_transaction_that_is_waited_for_has_waiters() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.set_nowait(true)?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    assert!(!holder.has_waiters());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| db.transact(|tx| tx.table(&ROWS)?.get(&20)));
        while !holder.has_waiters() {
            std::thread::yield_now();
        }
        holder.commit()?;
        assert_eq!(waiter.join().expect("no panic")?, Some(1));
        Ok(())
    })
}

fn is_self_deadlock<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(error @ Error::SelfDeadlock { .. }) if error.kind() == ErrorKind::Invalid)
}

#[test]
fn a_call_inside_a_transaction_of_the_same_thread_never_waits_for_it() -> Result<(), Error> {
    let db = store()?;
    let seen = db.transact(|outer| {
        outer.table(&ROWS)?.insert(&20, &1)?;
        outer.table(&ROWS)?.range(45..=50).count();
        assert!(is_self_deadlock(db.transact(|tx| tx.table(&ROWS)?.get(&20))), "the row");
        assert!(is_self_deadlock(db.transact(|tx| tx.table(&ROWS)?.insert(&45, &7))), "the gap");
        assert!(is_self_deadlock(db.transact(|tx| tx.drop_table("rows"))), "the table");
        assert!(is_self_deadlock(db.transact_async(|tx| tx.table(&ROWS)?.remove(&20))));
        assert!(db.check(&mut |_, _| {})?.is_clean(), "a check takes no locks");
        assert_eq!(db.table_names()?, ["other", "rows"], "no table is made or dropped");
        outer.table(&TableDefinition::<u32, u64>::new("new"))?.insert(&1, &1)?;
        assert!(is_self_deadlock(db.table_names()));
        let inner = db.begin()?;
        inner.table(&OTHER)?.insert(&5, &5)?;
        assert!(is_self_deadlock(inner.table(&ROWS)?.get(&20)));
        inner.table(&ROWS)?.insert(&80, &8)?;
        assert!(!inner.is_over(), "it goes on");
        inner.commit()?;
        outer.table(&ROWS)?.get(&80)
    })?;
    assert_eq!(seen, Some(8));
    assert_eq!(
        db.transact(|tx| Ok((tx.table(&OTHER)?.get(&5)?, tx.table(&ROWS)?.get(&45)?)))?,
        (Some(5), None)
    );
    Ok(())
}

#[test]
fn a_detached_transaction_may_be_ended_by_another_thread() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    holder.detach_from_thread()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !holder.has_waiters() {
                std::thread::yield_now();
            }
            holder.commit()
        });
        assert_eq!(db.transact(|tx| tx.table(&ROWS)?.get(&20))?, Some(1));
        Ok(())
    })
}

#[test]
fn retries_end_with_the_number_of_attempts_and_the_last_cause() -> Result<(), Error> {
    let runs = AtomicU32::new(0);
    let attempt = |db: &Database| {
        runs.store(0, Relaxed);
        let hold = || {
            let holder = db.begin()?;
            holder.table(&ROWS)?.insert(&20, &1)?;
            Ok::<_, Error>(holder)
        };
        let holder = std::thread::scope(|scope| scope.spawn(hold).join().expect("no panic"))?;
        let refused = db.transact(|tx| {
            runs.fetch_add(1, Relaxed);
            // The closure ignores the error, but the transaction is over.
            Ok(tx.table(&ROWS)?.get(&20).is_ok())
        });
        holder.abort()?;
        Ok::<_, Error>(refused)
    };
    let builder = || Database::builder().lock_timeout(Duration::from_millis(1));
    for (limit, expected) in
        [((5, Duration::MAX), 5), ((u32::MAX, Duration::ZERO), 1), ((0, Duration::MAX), 1)]
    {
        let db = builder().retry_limit(limit.0, limit.1).open_in_memory()?;
        db.transact(|tx| tx.table(&ROWS)?.insert(&20, &0))?;
        match attempt(&db)? {
            Err(error @ Error::RetriesExhausted { .. }) => {
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Busy, false));
                let Error::RetriesExhausted { attempts, source, .. } = error else { unreachable!() };
                assert_eq!((attempts, runs.load(Relaxed)), (expected, expected));
                assert!(matches!(*source, Error::LockTimeout { .. }), "{source:?}");
            }
            other => panic!("{other:?}"),
        }
        // A released lock can be acquired.
        assert!(db.transact(|tx| Ok(tx.table(&ROWS)?.get(&20)?.is_some()))?);
    }
    Ok(())
}

thread_local! {
    /// Number of calls of `is_interrupted` until it returns `true`.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
}

fn is_interrupted() -> bool {
    LEFT.set(LEFT.get().saturating_sub(1));
    LEFT.get() == 0
}

#[test]
fn an_interrupted_wait_leaves_the_transaction_unchanged() -> Result<(), Error> {
    let db = Database::builder().interrupt(is_interrupted).open_in_memory()?;
    db.transact(|tx| (0..10).try_for_each(|key| tx.table(&ROWS)?.insert(&(10 * key), &0)))?;
    let holder = db.begin()?;
    holder.detach_from_thread()?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    let tx = db.begin()?;
    tx.table(&ROWS)?.insert(&10, &7)?;
    let interrupts = |error: Error| matches!(error, Error::Interrupted) && error.kind() == ErrorKind::Busy;
    for calls in [1, 2] {
        LEFT.set(calls);
        assert!(interrupts(tx.table(&ROWS)?.insert(&20, &7).unwrap_err()));
        LEFT.set(calls);
        assert!(interrupts(
            tx.table(&ROWS)?.bulk_load_unsorted([(5_u32, 5_u64), (20, 7)], 1 << 20).unwrap_err()
        ));
        LEFT.set(calls);
        assert!(interrupts(db.transact(|tx| tx.table(&ROWS)?.remove(&20)).unwrap_err()));
    }
    assert!(!tx.is_over());
    LEFT.set(u32::MAX);
    holder.commit()?;
    tx.table(&ROWS)?.insert(&30, &7)?;
    tx.commit()?;
    let found = db.transact(|tx| tx.table(&ROWS)?.range(..).collect::<Result<Vec<_>, _>>())?;
    let changed: Vec<_> = found.into_iter().filter(|(_, value)| *value > 0).collect();
    assert_eq!(changed, [(10, 7), (20, 1), (30, 7)]);
    Ok(())
}

#[test]
fn an_interruption_stops_long_calls() -> Result<(), Error> {
    let dir = tempfile::tempdir().expect("is made");
    let at = |name: &str| dir.path().join(name);
    let builder = Database::builder().interrupt(is_interrupted);
    let db = builder.clone().open(at("db"))?;
    // More than 64 pages and 256 KiB of rows.
    let rows = (0..60_000_u32).map(|key| (key, u64::from(key)));
    db.transact(|tx| tx.table(&ROWS)?.bulk_load(rows.clone()))?;
    db.backup().to_directory(at("whole"))?;
    let stops = |call: &dyn Fn() -> Result<(), Error>| {
        LEFT.set(1);
        let result = call();
        LEFT.set(u32::MAX);
        assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    };
    stops(&|| db.check(&mut |_, _| {}).map(drop));
    stops(&|| db.backup().to_directory(at("backup")).map(drop));
    stops(&|| db.compact_into(at("small")).map(drop));
    stops(&|| Restore::new().builder(builder.clone()).from_directory(at("whole"), at("new")).map(drop));
    stops(&|| db.transact(|tx| tx.table(&ROWS)?.remove_range(..)).map(drop));
    assert!(db.check(&mut |_, _| {})?.is_clean());
    assert_eq!(db.transact(|tx| tx.table(&ROWS)?.len())?, 60_000);
    Ok(())
}

/// Another transaction with a lock in the table prevents that a large transaction locks the whole table. Its
/// locks have a bound: then it waits for the table.
#[test]
fn the_locks_of_a_large_transaction_have_a_bound_beside_another_writer() -> Result<(), Error> {
    let db = Database::builder().lock_escalation(2).open_in_memory()?;
    db.transact(|tx| tx.table(&ROWS)?.insert(&0, &0))?;
    db.transact(|tx| tx.table(&OTHER)?.insert(&0, &0))?;
    let other = db.begin()?;
    other.table(&ROWS)?.insert(&0, &1)?;
    let large = db.begin()?;
    large.set_nowait(true)?;
    let rows = large.table(&ROWS)?;
    let taken = (1..10_000).map_while(|key| rows.insert(&key, &key.into()).ok().map(|_| key));
    let last = taken.last().expect("some rows");
    assert!((2_000..2_100).contains(&last), "{last} rows");
    assert!(is_refused(rows.insert(&(last + 1), &0)), "each further row");
    large.table(&OTHER)?.insert(&1, &0)?; // other tables are not affected
    other.commit()?;
    (last + 1..10_000).try_for_each(|key| rows.insert(&key, &key.into()).map(drop))?;
    large.commit()?;
    assert_eq!(db.transact(|tx| Ok(tx.table(&ROWS)?.range(..).count()))?, 10_000);
    Ok(())
}
