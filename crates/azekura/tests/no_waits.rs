//! A transaction that does not wait for locks: a call that would have to leaves it as it was, and it goes on.

use azekura::{Database, Error, ErrorKind, Table};

const ROWS: Table<u32, u64> = Table::new("rows");
const OTHER: Table<u32, u64> = Table::new("other");

fn store() -> Result<Database, Error> {
    let db = Database::in_memory()?;
    db.transact(|tx| (0..10).try_for_each(|key| tx.table(&ROWS)?.insert(&(10 * key), &0)))?;
    db.transact(|tx| tx.table(&OTHER)?.insert(&1, &0))?;
    Ok(db)
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(error @ Error::WouldWait { .. }) if error.kind() == ErrorKind::Busy && !error.is_retryable())
}

#[test]
fn a_call_that_would_wait_changes_nothing_and_the_others_last() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    // The gap below 50 and that row.
    assert_eq!(holder.table(&ROWS)?.range(45..=50).count(), 1);
    let tx = db.begin()?;
    tx.set_lock_waits(false)?;
    let rows = tx.table(&ROWS)?;
    rows.insert(&10, &7)?;
    assert!(is_refused(rows.insert(&20, &7)), "the row");
    assert!(is_refused(rows.get(&20)), "to read it");
    assert!(is_refused(rows.get_for_update(&20)));
    assert!(is_refused(rows.remove(&20)));
    assert!(is_refused(rows.insert(&45, &7)), "the gap");
    assert!(is_refused(rows.range::<u32>(..).collect::<Result<Vec<_>, _>>()), "a range");
    assert!(is_refused(tx.drop_table("rows")), "the table");
    rows.insert(&35, &7)?;
    assert!(!holder.is_awaited(), "nobody waits for it");
    let before = tx.savepoint();
    tx.table(&OTHER)?.insert(&2, &7)?;
    tx.rollback_to(before)?;
    tx.commit()?;
    holder.commit()?;
    let found = db.transact(|tx| tx.table(&ROWS)?.range::<u32>(..).collect::<Result<Vec<_>, _>>())?;
    let changed: Vec<_> = found.into_iter().filter(|(_, value)| *value > 0).collect();
    assert_eq!(changed, [(10, 7), (20, 1), (35, 7)]);
    assert_eq!(db.transact(|tx| tx.table(&OTHER)?.get(&2))?, None);
    assert_eq!(db.stats().locks.waits, 0);
    Ok(())
}

#[test]
fn who_is_awaited_knows_it() -> Result<(), Error> {
    let db = store()?;
    let holder = db.begin()?;
    holder.set_lock_waits(false)?;
    holder.table(&ROWS)?.insert(&20, &1)?;
    assert!(!holder.is_awaited());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| db.transact(|tx| tx.table(&ROWS)?.get(&20)));
        while !holder.is_awaited() {
            std::thread::yield_now();
        }
        holder.commit()?;
        assert_eq!(waiter.join().expect("no panic")?, Some(1));
        Ok(())
    })
}
