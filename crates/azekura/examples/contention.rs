//! Measures contention: a queue with many producers and consumers, one hot row, and short locking scans.
//!
//! Each line gives the rate, the executions of the closure per transaction, and the latency of a transaction
//! with its commit. A ledger verifies that each job was processed exactly once.
//!
//! Run: `cargo run --release -p azekura --example contention -- queue,hot,scan 3000 1,8,64`. The arguments
//! are the parts to run, the milliseconds per line, and the numbers of threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use azekura::{Database, Error, TableDefinition, Transaction};

const JOBS: TableDefinition<u64, [u8]> = TableDefinition::new("jobs");
const LEDGER: TableDefinition<u64, u64> = TableDefinition::new("ledger");
const COUNTERS: TableDefinition<u64, u64> = TableDefinition::new("counters");
const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

/// Number of rows of one short scan.
const SCANNED: u64 = 50;
/// Number of jobs per consumer that are in the queue before the consumers begin.
const BACKLOG: u64 = 20;

/// Results of one kind of client.
#[derive(Default)]
struct Tally {
    latencies: Vec<Duration>,
    runs: u64,
}

impl Tally {
    /// Runs one transaction, and counts it if `body` returned `true`.
    fn time(
        &mut self,
        db: &Database,
        body: impl Fn(&Transaction) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let (began, mut runs) = (Instant::now(), 0);
        let is_done = db.transact(|tx| {
            runs += 1;
            body(tx)
        })?;
        if is_done {
            self.latencies.push(began.elapsed());
            self.runs += runs;
        }
        Ok(is_done)
    }

    fn add(mut self, other: Self) -> Self {
        self.latencies.extend(other.latencies);
        self.runs += other.runs;
        self
    }

    fn print(mut self, name: &str, threads: usize, time: Duration) {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let at =
            |part: f64| self.latencies.get((count as f64 * part) as usize).map_or(0., Duration::as_secs_f64);
        let longest = self.latencies.last().map_or(0., Duration::as_secs_f64);
        println!(
            "{name:<28} {threads:>3} threads: {:>8.0}/s, {:.2} runs each, median {:>8.3} ms, p99 {:>8.3} ms, \
             longest {:>8.3} ms",
            count as f64 / time.as_secs_f64(),
            self.runs as f64 / count.max(1) as f64,
            at(0.5) * 1e3,
            at(0.99) * 1e3,
            longest * 1e3,
        );
    }
}

/// A function that removes the first job; each queue test uses another one.
type Take = fn(&Transaction) -> Result<Option<(u64, Vec<u8>)>, Error>;

const TAKES: [(&str, Take); 3] = [
    ("pop_first", |tx| tx.table(&JOBS)?.pop_first()),
    ("skip_locked pop_first", |tx| tx.table(&JOBS)?.skip_locked().pop_first()),
    ("first, then remove", |tx| {
        let jobs = tx.table(&JOBS)?;
        let first = jobs.first()?;
        first.iter().try_for_each(|(key, _)| jobs.remove(key).map(drop))?;
        Ok(first)
    }),
];

fn queue(db: &Database, name: &str, take: Take, threads: usize, time: Duration) -> Result<(), Error> {
    let next = AtomicU64::new(0);
    // Relaxed, all: numbers and a stop flag order nothing; the results are read after `join`.
    let add = |tx: &Transaction, number| {
        tx.table(&JOBS)?.insert(&number, b"sort the letters")?;
        Ok(true)
    };
    for _ in 0..BACKLOG * threads as u64 {
        db.transact(|tx| add(tx, next.fetch_add(1, Relaxed)))?;
    }
    let answer = |tx: &Transaction| {
        let Some((number, text)) = take(tx)? else { return Ok(false) };
        let is_first = tx.table(&LEDGER)?.insert_if_absent(&number, &(text.len() as u64))?;
        assert!(is_first, "job {number} was done before");
        Ok(true)
    };
    let (is_over, taken, backlog) = (AtomicBool::new(false), AtomicU64::new(0), BACKLOG * threads as u64);
    let start = Barrier::new(2 * threads + 1);
    let (made, done, elapsed) = std::thread::scope(|scope| {
        let produce = || {
            let mut tally = Tally::default();
            start.wait();
            while !is_over.load(Relaxed) {
                // Producers wait if they are far ahead of the consumers, so that the queue is neither empty
                // nor long.
                if next.load(Relaxed) > taken.load(Relaxed) + 2 * backlog {
                    std::thread::sleep(Duration::from_micros(200));
                    continue;
                }
                let number = next.fetch_add(1, Relaxed);
                tally.time(db, |tx| add(tx, number))?;
            }
            Ok::<_, Error>(tally)
        };
        let consume = || {
            let mut tally = Tally::default();
            start.wait();
            while !is_over.load(Relaxed) {
                match tally.time(db, answer)? {
                    true => drop(taken.fetch_add(1, Relaxed)),
                    false => std::thread::sleep(Duration::from_micros(200)),
                }
            }
            Ok::<_, Error>(tally)
        };
        let producers: Vec<_> = (0..threads).map(|_| scope.spawn(produce)).collect();
        let consumers: Vec<_> = (0..threads).map(|_| scope.spawn(consume)).collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        is_over.store(true, Relaxed);
        let elapsed = began.elapsed();
        let sum = |threads: Vec<std::thread::ScopedJoinHandle<'_, Result<Tally, Error>>>| {
            threads.into_iter().try_fold(Tally::default(), |sum, thread| {
                Ok::<_, Error>(sum.add(thread.join().expect("a client panicked")?))
            })
        };
        Ok::<_, Error>((sum(producers)?, sum(consumers)?, elapsed))
    })?;
    let jobs_done = done.latencies.len() as u64;
    made.print("  producers", threads, elapsed);
    done.print(name, threads, elapsed);
    db.transact(|tx| {
        let left = tx.table(&JOBS)?.len()?;
        assert_eq!(tx.table(&LEDGER)?.len()?, jobs_done, "each job once");
        assert_eq!(left + jobs_done, next.load(Relaxed), "no job is lost");
        tx.drop_table(&LEDGER)?;
        tx.drop_table(&JOBS).map(drop)
    })
}

/// A function that increments a row; each hot-row test uses another one.
type Add = fn(&Transaction) -> Result<bool, Error>;

const ADDS: [(&str, Add); 2] = [
    ("hot row, get_for_update", |tx| {
        let counters = tx.table(&COUNTERS)?;
        let count = counters.get_for_update(&1)?.unwrap_or(0);
        counters.insert(&1, &(count + 1)).map(|()| true)
    }),
    ("hot row, get", |tx| {
        let counters = tx.table(&COUNTERS)?;
        let count = counters.get(&1)?.unwrap_or(0);
        counters.insert(&1, &(count + 1)).map(|()| true)
    }),
];

fn hot_row(db: &Database, name: &str, add: Add, threads: usize, time: Duration) -> Result<(), Error> {
    db.transact(|tx| tx.table(&COUNTERS)?.insert(&1, &0))?;
    let (tally, elapsed) = clients(threads, time, |_| |tally: &mut Tally| tally.time(db, add).map(drop))?;
    let count = db.transact(|tx| tx.table(&COUNTERS)?.get(&1))?;
    assert_eq!(count, Some(tally.latencies.len() as u64), "each addition once");
    tally.print(name, threads, elapsed);
    Ok(())
}

/// Runs `threads` clients for `time`.
fn clients<C: FnMut(&mut Tally) -> Result<(), Error>>(
    threads: usize,
    time: Duration,
    client: impl Fn(usize) -> C + Sync,
) -> Result<(Tally, Duration), Error> {
    let (is_over, start) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let run = |number| {
        let (mut tally, mut client) = (Tally::default(), client(number));
        start.wait();
        while !is_over.load(Relaxed) {
            client(&mut tally)?;
        }
        Ok::<_, Error>(tally)
    };
    let run = &run;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n))).collect();
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        is_over.store(true, Relaxed); // Relaxed: a stop flag
        let elapsed = began.elapsed();
        let sum = all.into_iter().try_fold(Tally::default(), |sum, thread| {
            Ok::<_, Error>(sum.add(thread.join().expect("a client panicked")?))
        })?;
        Ok((sum, elapsed))
    })
}

fn scans(threads: usize, time: Duration) -> Result<(), Error> {
    const COUNT: u64 = 100_000;
    let db = Database::in_memory()?;
    for chunk in 0..COUNT / 1000 {
        db.transact(|tx| {
            let rows = tx.table(&ROWS)?;
            (chunk * 1000..(chunk + 1) * 1000).try_for_each(|n| rows.insert(&n, &[7; 100]))
        })?;
    }
    let before = db.stats().locks.acquisitions;
    let (tally, elapsed) = clients(threads, time, |number| {
        let (db, mut from) = (&db, number as u64);
        move |tally: &mut Tally| {
            from = (from * 6_364_136_223 + 1_442_695_041) % (COUNT - SCANNED);
            let scan = |tx: &Transaction| {
                let mut rows = 0;
                for row in tx.table(&ROWS)?.range(from..).take(SCANNED as usize) {
                    rows += row?.1.len();
                }
                assert_eq!(rows as u64, 100 * SCANNED);
                Ok(true)
            };
            tally.time(db, scan).map(drop)
        }
    })?;
    let locks = db.stats().locks.acquisitions - before;
    println!("  {:.1} locks per scan of {SCANNED} rows", locks as f64 / tally.latencies.len() as f64);
    tally.print("short scan", threads, elapsed);
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let parts = arguments.next().unwrap_or_else(|| "queue,hot,scan".into());
    let time = Duration::from_millis(arguments.next().and_then(|n| n.parse().ok()).unwrap_or(100));
    let threads = arguments.next().unwrap_or_else(|| "1,8".into());
    let threads: Vec<usize> = threads.split(',').filter_map(|n| n.parse().ok()).collect();
    let has = |part| parts.split(',').any(|p| p == part);
    let dir = std::env::temp_dir().join(format!("azekura-contention-{}", std::process::id()));
    let db = Database::open(&dir)?;
    for &threads in &threads {
        if has("queue") {
            TAKES.iter().try_for_each(|&(name, take)| queue(&db, name, take, threads, time))?;
        }
        if has("hot") {
            ADDS.iter().try_for_each(|&(name, add)| hot_row(&db, name, add, threads, time))?;
        }
        if has("scan") {
            scans(threads, time)?;
        }
    }
    let locks = db.stats().locks;
    println!("{} waits for locks, {} deadlocks", locks.waits, locks.deadlocks);
    db.close()?;
    std::fs::remove_dir_all(&dir).map_err(Error::other)
}
