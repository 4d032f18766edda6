//! Rows read to be changed are locked for the change: whoever reads them so as second waits, and nobody has
//! to run again.

use std::sync::Barrier;

use azekura::{Database, Error, Table};

const COUNTERS: Table<u32, u64> = Table::new("counters");

const THREADS: u64 = 4;
const ROUNDS: u64 = 200;

/// Adds one to a counter from several threads at once; gives back how often a transaction ran, and the
/// deadlocks.
fn count_up(db: &Database, is_for_update: bool) -> Result<(u64, u64), Error> {
    db.transact(|tx| tx.table(&COUNTERS)?.insert(&1, &0))?;
    let start = Barrier::new(usize::try_from(THREADS).expect("few"));
    let runs = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let mut runs = 0;
                    for _ in 0..ROUNDS {
                        db.transact(|tx| {
                            runs += 1;
                            let counters = tx.table(&COUNTERS)?;
                            let read = match is_for_update {
                                true => counters.get_for_update(&1)?,
                                false => counters.get(&1)?,
                            };
                            std::thread::yield_now(); // more often than not the others read it too
                            counters.insert(&1, &(read.unwrap_or(0) + 1))
                        })?;
                    }
                    Ok::<u64, Error>(runs)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<Result<u64, Error>>()
    })?;
    assert_eq!(db.transact(|tx| tx.table(&COUNTERS)?.get(&1))?, Some(THREADS * ROUNDS));
    Ok((runs, db.stats().locks.deadlocks))
}

#[test]
fn nobody_runs_twice_who_reads_for_update_what_he_changes() -> Result<(), Error> {
    let db = Database::in_memory()?;
    assert_eq!(count_up(&db, true)?, (THREADS * ROUNDS, 0));
    Ok(())
}

#[test]
fn plain_reads_before_a_write_count_right_too() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let (runs, deadlocks) = count_up(&db, false)?;
    assert_eq!(runs, THREADS * ROUNDS + deadlocks);
    Ok(())
}

#[test]
fn a_row_read_for_update_is_there_or_not_as_for_every_read() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let get = |key: u32| db.transact(|tx| tx.table(&COUNTERS)?.get_for_update(&key));
    assert_eq!(get(1)?, None, "no table yet");
    db.transact(|tx| tx.table(&COUNTERS)?.insert(&1, &7))?;
    assert_eq!((get(1)?, get(2)?), (Some(7), None));
    db.transact(|tx| {
        let counters = tx.table(&COUNTERS)?;
        counters.insert(&1, &8)?;
        assert_eq!(counters.get_for_update(&1)?, Some(8), "its own write");
        Ok(())
    })
}

#[test]
fn a_transaction_waits_for_who_read_a_row_for_update() -> Result<(), Error> {
    let db = Database::builder().lock_timeout(std::time::Duration::from_millis(20)).open_in_memory()?;
    db.transact(|tx| tx.table(&COUNTERS)?.insert(&1, &7))?;
    let first = db.begin()?;
    first.detach_from_thread()?;
    first.table(&COUNTERS)?.get_for_update(&1)?;
    let second = db.begin()?;
    let refused = second.table(&COUNTERS)?.get(&1);
    assert!(matches!(refused, Err(Error::LockTimeout { .. })), "{refused:?}");
    first.commit()?;
    assert_eq!(db.transact(|tx| tx.table(&COUNTERS)?.get(&1))?, Some(7));
    Ok(())
}
