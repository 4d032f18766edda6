//! A queue of jobs with many consumers. Each job is removed and processed in one durable transaction, and a
//! ledger verifies that each job was processed exactly once.
//!
//! With `pop_first`, concurrent consumers wait for each other in turn, and share the flushes of their
//! commits. With `skip_locked().pop_first()` they skip jobs that other consumers have locked. Use that for
//! jobs that take long inside their transaction.
//!
//! Run: `cargo run --release -p azekura --example queue -- 5000` for 5,000 jobs with 1, 8 and 64 consumers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use azekura::{Database, Error, TableDefinition, Transaction};

const JOBS: TableDefinition<u64, str> = TableDefinition::new("jobs");
const LEDGER: TableDefinition<u64, u64> = TableDefinition::new("ledger");

/// Removes and processes one job, and writes the result to the ledger; returns `false` if there was no job.
fn work(tx: &Transaction, skips_locked: bool) -> Result<bool, Error> {
    let jobs = tx.table(&JOBS)?;
    let job = if skips_locked { jobs.skip_locked().pop_first()? } else { jobs.pop_first()? };
    let Some((number, text)) = job else { return Ok(false) };
    // An error or a crash from here on returns the job to the queue.
    let is_first = tx.table(&LEDGER)?.insert_if_absent(&number, &(text.len() as u64))?;
    assert!(is_first, "job {number} was done before");
    Ok(true)
}

/// Processes all jobs by `consumers` threads; returns the rate and the longest transaction.
fn drain(db: &Database, jobs: u64, consumers: u64, skips_locked: bool) -> Result<(f64, Duration), Error> {
    db.transact(|tx| {
        let table = tx.table(&JOBS)?;
        (0..jobs).try_for_each(|n| table.insert(&n, "sort the letters"))
    })?;
    let done = AtomicU64::new(0);
    let began = Instant::now();
    let longest = std::thread::scope(|scope| {
        let consume = || {
            let mut longest = Duration::ZERO;
            // Relaxed: the counts are compared after the threads have ended.
            while done.load(Relaxed) < jobs {
                let began = Instant::now();
                let is_done = db.transact(|tx| work(tx, skips_locked))?;
                longest = longest.max(began.elapsed());
                if is_done {
                    done.fetch_add(1, Relaxed); // Relaxed: as above
                } else {
                    std::thread::yield_now(); // other consumers have locked the last jobs
                }
            }
            Ok::<_, Error>(longest)
        };
        let threads: Vec<_> = (0..consumers).map(|_| scope.spawn(consume)).collect();
        threads.into_iter().try_fold(Duration::ZERO, |most, thread| {
            Ok::<_, Error>(most.max(thread.join().expect("a consumer panicked")?))
        })
    })?;
    let rate = jobs as f64 / began.elapsed().as_secs_f64();
    let answers = db.transact(|tx| {
        let answers = tx.table(&LEDGER)?.len()?;
        tx.drop_table(&LEDGER)?;
        assert!(tx.table(&JOBS)?.is_empty()?);
        Ok(answers)
    })?;
    assert_eq!(answers, jobs, "each job once");
    Ok((rate, longest))
}

fn main() -> Result<(), Error> {
    let jobs = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(200);
    let dir = std::env::temp_dir().join(format!("azekura-queue-{}", std::process::id()));
    let db = Database::open(&dir)?;
    for skips_locked in [false, true] {
        println!("{}", if skips_locked { "skip_locked().pop_first()" } else { "pop_first()" });
        for consumers in [1, 8, 64] {
            let (rate, longest) = drain(&db, jobs, consumers, skips_locked)?;
            println!("{consumers:>3} consumers: {rate:>8.0} jobs/s, longest {longest:?}");
        }
    }
    println!("{} deadlocks", db.stats().locks.deadlocks);
    db.close()?;
    std::fs::remove_dir_all(&dir).map_err(Error::other)
}
