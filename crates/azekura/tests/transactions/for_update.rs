//! Tests of rows that are read for update: the row is locked for the change, so a second such reader waits,
//! and no transaction has to run again.

use std::sync::Barrier;

use azekura::{Database, Error, Table, TableDefinition, Transaction};

const COUNTERS: TableDefinition<u32, u64> = TableDefinition::new("counters");

const THREADS: u64 = 4;
const ROUNDS: u64 = 200;

/// Increments a counter from several threads at once. Returns the number of runs of the closure, and the
/// number of deadlocks.
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
                            std::thread::yield_now(); // usually, the other threads read it in the meantime
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
fn read_for_update_then_write_never_retries() -> Result<(), Error> {
    let db = Database::in_memory()?;
    assert_eq!(count_up(&db, true)?, (THREADS * ROUNDS, 0));
    Ok(())
}

#[test]
fn plain_reads_before_a_write_lose_no_update() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let (runs, deadlocks) = count_up(&db, false)?;
    assert_eq!(runs, THREADS * ROUNDS + deadlocks);
    Ok(())
}

#[test]
fn read_for_update_returns_the_same_row_as_a_plain_read() -> Result<(), Error> {
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
fn a_writer_waits_for_the_lock_of_a_read_for_update() -> Result<(), Error> {
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

const JOBS: TableDefinition<u64, [u8]> = TableDefinition::new("jobs");

fn with_jobs(count: u64) -> Result<Database, Error> {
    let db = Database::builder().page_size(4096).open_in_memory()?;
    db.transact(|tx| {
        let jobs = tx.table(&JOBS)?;
        (1..=count).try_for_each(|n| jobs.insert(&n, &[7; 300]))
    })?;
    Ok(db)
}

fn keys_left(db: &Database) -> Result<Vec<u64>, Error> {
    db.transact(|tx| tx.table(&JOBS)?.iter().map(|row| Ok(row?.0)).collect())
}

/// Begins a transaction with `set_nowait`: a call that would wait fails.
fn without_waits(db: &Database) -> Result<Transaction, Error> {
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    Ok(tx)
}

type Take = fn(&Table<'_, u64, [u8]>) -> Result<Option<(u64, Vec<u8>)>, Error>;

fn key_of(tx: &Transaction, take: Take) -> Result<Option<u64>, Error> {
    Ok(take(&tx.table(&JOBS)?)?.map(|row| row.0))
}

/// Removes all jobs by several threads. Returns the number of deadlocks, and the largest number of runs of a
/// transaction.
fn take_all(db: &Database, jobs: u64, take: Take) -> Result<(u64, u64), Error> {
    let start = Barrier::new(8);
    let (mut taken, mut most) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let take_some = || {
            start.wait();
            let (mut taken, mut most) = (Vec::new(), 0);
            loop {
                let mut runs = 0;
                let job = db.transact(|tx| {
                    runs += 1;
                    key_of(tx, take)
                })?;
                most = most.max(runs);
                match job {
                    Some(job) => taken.push(job),
                    None => return Ok::<_, Error>((taken, most)),
                }
            }
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(take_some)).collect();
        for thread in threads {
            let (some, runs) = thread.join().expect("no panic")?;
            taken.extend(some);
            most = most.max(runs);
        }
        Ok::<(), Error>(())
    })?;
    taken.sort_unstable();
    assert_eq!(taken, (1..=jobs).collect::<Vec<_>>(), "each job once");
    assert_eq!(keys_left(db)?, [] as [u64; 0]);
    Ok((db.stats().locks.deadlocks, most))
}

#[test]
fn consumers_of_a_queue_take_each_job_once_and_none_runs_again() -> Result<(), Error> {
    let takes: [Take; 3] = [
        |jobs| jobs.pop_first(),
        |jobs| jobs.pop_last(),
        |jobs| {
            let first = jobs.first_for_update()?;
            std::thread::yield_now();
            first.iter().try_for_each(|(key, _)| jobs.remove(key).map(drop))?;
            Ok(first)
        },
    ];
    for take in takes {
        assert_eq!(take_all(&with_jobs(300)?, 300, take)?, (0, 1));
    }
    Ok(())
}

/// A consumer that finds no unlocked job looks again without skipping, because another consumer may hold the
/// last job and release it.
#[test]
fn consumers_that_skip_locked_jobs_take_each_job_once_too() -> Result<(), Error> {
    let db = with_jobs(300)?;
    let take: Take = |jobs| match jobs.skip_locked().pop_first()? {
        Some(job) => Ok(Some(job)),
        None => jobs.pop_first(),
    };
    take_all(&db, 300, take).map(drop)
}

#[test]
fn consumers_that_read_before_they_remove_take_each_job_once_too() -> Result<(), Error> {
    let take: Take = |jobs| {
        let first = jobs.first()?;
        std::thread::yield_now();
        first.iter().try_for_each(|(key, _)| jobs.remove(key).map(drop))?;
        Ok(first)
    };
    take_all(&with_jobs(300)?, 300, take).map(drop)
}

#[test]
fn open_transactions_that_skip_locked_jobs_never_wait_and_hold_what_they_took() -> Result<(), Error> {
    for (take, backward) in [
        ((|jobs| jobs.skip_locked().pop_first()) as Take, false),
        (|jobs| jobs.skip_locked().pop_last(), true),
    ] {
        let db = with_jobs(40)?;
        let transactions: Vec<_> = (0..8).map(|_| without_waits(&db)).collect::<Result<_, _>>()?;
        let mut taken = Vec::new();
        for tx in transactions.iter().chain(&transactions) {
            taken.push(key_of(tx, take)?.expect("there are enough"));
        }
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 16, "each once: {taken:?}");
        // A removal also locks the gap above the row, so a scan skips the next row, too.
        let nearest = if backward { 8..=40 } else { 1..=32 };
        assert!(taken.iter().all(|key| nearest.contains(key)), "{taken:?}");
        for (n, tx) in transactions.into_iter().enumerate() {
            if n % 2 == 0 { tx.commit()? } else { tx.abort()? }
        }
        assert_eq!(keys_left(&db)?.len(), 40 - 8, "what was aborted is back");
    }
    Ok(())
}

#[test]
fn a_job_that_is_passed_over_is_not_held() -> Result<(), Error> {
    let db = with_jobs(10)?;
    let take: Take = |jobs| jobs.skip_locked().pop_first();
    let [first, second, third] = [without_waits(&db)?, without_waits(&db)?, without_waits(&db)?];
    assert_eq!(key_of(&first, take)?, Some(1));
    assert_eq!(key_of(&second, take)?, Some(3), "the gap above 1 belongs to 2");
    first.commit()?;
    assert_eq!(key_of(&third, take)?, Some(5), "the row above 2 is 4, below which the second removed 3");
    let other = without_waits(&db)?;
    assert_eq!(other.table(&JOBS)?.get_for_update(&2)?.map(|value| value.len()), Some(300));
    second.commit()?;
    other.commit()?;
    third.commit()?;
    assert_eq!(keys_left(&db)?, [2, 4, 6, 7, 8, 9, 10]);
    Ok(())
}

#[test]
fn a_range_for_update_locks_its_rows_and_with_skip_locked_passes_over_others() -> Result<(), Error> {
    let db = with_jobs(300)?;
    let (low, high) = (without_waits(&db)?, without_waits(&db)?);
    let rows = |tx: &Transaction, range: std::ops::Range<u64>| {
        let rows = tx.table(&JOBS)?.range_for_update(range);
        rows.map(|row| Ok(row?.0)).collect::<Result<Vec<u64>, Error>>()
    };
    assert_eq!(rows(&low, 1..100)?, (1..100).collect::<Vec<_>>());
    assert_eq!(rows(&high, 100..200)?, (100..200).collect::<Vec<_>>(), "ranges side by side");
    let other = without_waits(&db)?;
    let read = other.table(&JOBS)?.get(&50);
    assert!(matches!(read, Err(Error::WouldBlock { .. })), "{read:?}");
    let inserted = other.table(&JOBS)?.insert(&0, b"new");
    assert!(
        matches!(inserted, Err(Error::WouldBlock { .. })),
        "into the gap below the first row: {inserted:?}"
    );
    other.table(&JOBS)?.insert(&301, b"outside of both ranges")?;
    let jobs = other.table(&JOBS)?;
    let free: Vec<u64> =
        jobs.skip_locked().range_for_update(90..210).map(|row| Ok(row?.0)).collect::<Result<_, Error>>()?;
    assert_eq!(free, (200..210).collect::<Vec<_>>());
    let backward = jobs.skip_locked().range_for_update(..300).rev().map(|row| Ok(row?.0));
    assert_eq!(backward.take(2).collect::<Result<Vec<u64>, Error>>()?, [299, 298]);
    jobs.insert(&205, b"changed without a wait")
}

#[test]
fn a_queue_that_is_empty_or_not_there_has_no_first_job() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let takes: [Take; 4] = [
        |jobs| jobs.pop_first(),
        |jobs| jobs.pop_last(),
        |jobs| jobs.first_for_update(),
        |jobs| jobs.last_for_update(),
    ];
    for take in takes {
        assert_eq!(db.transact(|tx| key_of(tx, take))?, None);
    }
    db.transact(|tx| tx.table(&JOBS)?.insert(&1, b"only"))?;
    assert_eq!(db.transact(|tx| tx.table(&JOBS)?.pop_last())?, Some((1, b"only".to_vec())));
    for take in takes {
        assert_eq!(db.transact(|tx| key_of(tx, take))?, None);
        assert!(db.transact(|tx| Ok(take(&tx.table(&JOBS)?.skip_locked())?.is_none()))?);
    }
    Ok(())
}

/// Two transactions have read a row that both then write. The younger one runs again, and then takes the
/// write lock when it reads.
#[test]
fn a_victim_of_an_upgrade_reads_for_update_in_its_next_run() -> Result<(), Error> {
    type Access = (fn(&Transaction) -> Result<(), Error>, fn(&Transaction) -> Result<(), Error>);
    let by_key: Access =
        (|tx| tx.table(&JOBS)?.get(&1).map(drop), |tx| tx.table(&JOBS)?.insert(&1, b"written"));
    let by_scan: Access =
        (|tx| tx.table(&JOBS)?.first().map(drop), |tx| tx.table(&JOBS)?.remove(&1).map(drop));
    for (read, write) in [by_key, by_scan] {
        let db = with_jobs(5)?;
        let older = db.begin()?;
        read(&older)?;
        older.detach_from_thread()?; // another thread ends this transaction
        let mut runs = 0;
        std::thread::scope(|scope| {
            let mut older = Some(older);
            db.transact(|tx| {
                runs += 1;
                if runs == 1 {
                    read(tx)?;
                    let older = older.take().expect("the first run");
                    scope.spawn(move || {
                        write(&older)?;
                        older.commit()
                    });
                } else {
                    read(tx)?;
                    let other = without_waits(&db)?;
                    let refused = read(&other);
                    assert!(matches!(refused, Err(Error::WouldBlock { .. })), "{refused:?}");
                }
                write(tx)
            })
        })?;
        assert_eq!((runs, db.stats().locks.deadlocks), (2, 1));
    }
    Ok(())
}

/// The thread of a victim remembers it for the body: later transactions read the row for update at once.
#[test]
fn later_transactions_with_the_body_of_a_victim_read_for_update_at_once() -> Result<(), Error> {
    let db = with_jobs(5)?;
    let older = db.begin()?;
    older.table(&JOBS)?.get(&1)?;
    older.detach_from_thread()?; // another thread ends this transaction
    let (mut older, mut runs) = (Some(older), 0);
    std::thread::scope(|scope| {
        let mut change = || {
            db.transact(|tx| {
                runs += 1;
                tx.table(&JOBS)?.get(&1)?;
                if let Some(older) = older.take() {
                    scope.spawn(move || {
                        older.table(&JOBS)?.insert(&1, b"older")?;
                        older.commit()
                    });
                } else {
                    let refused = without_waits(&db)?.table(&JOBS)?.get(&1);
                    assert!(matches!(refused, Err(Error::WouldBlock { .. })), "{refused:?}");
                }
                tx.table(&JOBS)?.insert(&1, b"younger")
            })
        };
        change()?;
        change()
    })?;
    assert_eq!((runs, db.stats().locks.deadlocks), (3, 1));
    Ok(())
}

/// A waiting consumer holds no lock that the first consumer needs.
#[test]
fn a_second_consumer_does_not_block_the_first() -> Result<(), Error> {
    let takes: [Take; 2] = [|jobs| jobs.first_for_update(), |jobs| jobs.last_for_update()];
    for take in takes {
        let db = with_jobs(10)?;
        let (first, second) = (without_waits(&db)?, without_waits(&db)?);
        let job = key_of(&first, take)?.expect("ten jobs");
        let refused = key_of(&second, take);
        assert!(matches!(refused, Err(Error::WouldBlock { .. })), "{refused:?}");
        assert!(first.table(&JOBS)?.delete(&job)?, "without a wait");
        first.commit()?;
        assert_ne!(key_of(&second, take)?, Some(job));
    }
    Ok(())
}
