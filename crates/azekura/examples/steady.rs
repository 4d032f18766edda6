//! Workloads that insert and remove rows permanently: a queue, sessions with random keys, and rows with a
//! time to live. Prints for each minute the leaves visited to find the first row, the levels of the tree, the
//! pages in use, and the size of the page file. Fails if the last minute differs from the first by more than
//! a tenth.
//!
//! Run: `cargo run --release -p azekura --example steady -- 60` for 60 minutes. Without a number, the program
//! runs three periods of one second instead of minutes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use azekura::{Database, Durability, Error, TableDefinition};

const QUEUE: TableDefinition<u64, [u8]> = TableDefinition::new("queue");
const SESSIONS: TableDefinition<str, [u8]> = TableDefinition::new("sessions");
const EXPIRING: TableDefinition<(u64, u64), [u8]> = TableDefinition::new("expiring");

const QUEUE_ROWS: u64 = 1_000;
const SESSION_ROWS: usize = 20_000;
/// Longest time to live of an expiring row, in steps of its workload.
const LONGEST_LIFE: u64 = 20_000;
/// Number of steps in one transaction.
const BATCH: u64 = 20;

/// A linear congruential generator, so that each run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// One workload: a store, and the state of its steps.
struct Workload {
    name: &'static str,
    db: Database,
    dir: PathBuf,
    steps: u64,
    values: u64,
    random: Random,
    sessions: Vec<String>,
    step: fn(&mut Self) -> Result<(), Error>,
    /// Number of searches for the first row, and of leaves that they visited.
    looks: u64,
    leaves: u64,
}

/// Measurements of one minute.
#[derive(Clone, Copy, Debug)]
struct Sample {
    steps: u64,
    leaves_per_look: f64,
    height: f64,
    leaf_pages: f64,
    pages: f64,
    file_bytes: f64,
}

impl Workload {
    fn new(root: &Path, name: &'static str, step: fn(&mut Self) -> Result<(), Error>) -> Result<Self, Error> {
        let dir = root.join(name);
        let db = Database::builder().cache_bytes(64 << 20).durability(Durability::Relaxed).open(&dir)?;
        let (random, sessions) = (Random(7), Vec::new());
        Ok(Self { name, db, dir, steps: 0, values: 0, random, sessions, step, looks: 0, leaves: 0 })
    }

    /// Returns a value; every fiftieth value is stored in overflow pages.
    fn value(&mut self) -> Vec<u8> {
        self.values += 1;
        let len = if self.values.is_multiple_of(50) { 20_000 } else { 20 + self.random.next(200) };
        vec![7; len as usize]
    }

    /// Counts one search for a row, and the leaves that it visited; `before` is the earlier count.
    fn looked(&mut self, before: u64) {
        self.looks += 1;
        self.leaves += self.db.stats().scanned_leaves - before;
    }

    /// Appends a row to the queue, and removes the first row, in each step.
    fn queue(&mut self) -> Result<(), Error> {
        let values: Vec<_> = (0..BATCH).map(|_| self.value()).collect();
        for (i, value) in (self.steps..).zip(&values) {
            let before = self.db.stats().scanned_leaves;
            let has_looked = self.db.transact(|tx| {
                let queue = tx.table(&QUEUE)?;
                queue.insert(&i, value)?;
                if i < QUEUE_ROWS {
                    return Ok(false);
                }
                let (first, _) = queue.first()?.expect("the queue is never empty");
                assert_eq!(first, i - QUEUE_ROWS);
                queue.remove(&first).map(|_| true)
            })?;
            if has_looked {
                self.looked(before);
            }
        }
        Ok(())
    }

    /// Ends sessions and begins others.
    fn session(&mut self) -> Result<(), Error> {
        for _ in 0..BATCH {
            let (name, value) = (format!("session/{:012x}", self.random.next(1 << 31)), self.value());
            let old = (self.sessions.len() == SESSION_ROWS).then(|| {
                let ended = self.random.next(SESSION_ROWS as u64) as usize;
                self.sessions.swap_remove(ended)
            });
            let before = self.db.stats().scanned_leaves;
            self.db.transact(|tx| {
                let sessions = tx.table(&SESSIONS)?;
                if let Some(old) = &old {
                    sessions.remove(old.as_str())?;
                }
                sessions.insert(&name, &value)?;
                sessions.range(name.as_str()..).next().transpose().map(drop)
            })?;
            self.looked(before);
            self.sessions.push(name);
        }
        Ok(())
    }

    /// Inserts rows with a time to live, and removes expired rows.
    fn expiry(&mut self) -> Result<(), Error> {
        let rows: Vec<_> = (self.steps..self.steps + BATCH)
            .map(|now| ((now + 1 + self.random.next(LONGEST_LIFE), now), self.value()))
            .collect();
        let now = self.steps;
        self.db.transact(|tx| {
            let expiring = tx.table(&EXPIRING)?;
            rows.iter().try_for_each(|(key, value)| expiring.insert(key, value))?;
            let over: Vec<_> =
                expiring.range(..(now, 0)).map(|row| Ok(row?.0)).collect::<Result<_, Error>>()?;
            over.iter().try_for_each(|key| expiring.remove(key).map(drop))
        })?;
        let before = self.db.stats().scanned_leaves;
        self.db.transact(|tx| tx.table(&EXPIRING)?.first().map(drop))?;
        self.looked(before);
        Ok(())
    }

    fn run(&mut self, mut goes_on: impl FnMut(u64) -> bool) -> Result<(), Error> {
        while goes_on(self.steps) {
            (self.step)(self)?;
            self.steps += BATCH;
        }
        Ok(())
    }

    fn sample(&mut self, time: Duration) -> Result<Sample, Error> {
        (self.looks, self.leaves) = (0, 0);
        let steps = self.steps;
        let (mut leaf_pages, mut pages) = (0.0, 0.0);
        let mut height = 0;
        const LOOKS: u32 = 4;
        for _ in 0..LOOKS {
            let began = Instant::now();
            self.run(|_| began.elapsed() < time / LOOKS)?;
            let report = self.db.check(&mut |_, _| {})?;
            assert!(report.is_clean(), "{:?}", report.findings);
            height = height.max(report.tables[0].height);
            leaf_pages += report.tables[0].leaf_pages as f64 / f64::from(LOOKS);
            pages += report.pages as f64 / f64::from(LOOKS);
        }
        let file_bytes = std::fs::metadata(self.dir.join("pages")).map_err(Error::other)?.len() as f64;
        let leaves_per_look = self.leaves as f64 / self.looks as f64;
        let steps = self.steps - steps;
        Ok(Sample { steps, leaves_per_look, height: f64::from(height), leaf_pages, pages, file_bytes })
    }
}

/// Returns the names of the measurements that differ by more than a tenth.
fn differences(first: Sample, last: Sample) -> Vec<&'static str> {
    let parts: [(_, fn(Sample) -> f64); 5] = [
        ("leaves visited for a look", |s| s.leaves_per_look),
        ("levels", |s| s.height),
        ("leaf pages", |s| s.leaf_pages),
        ("pages in use", |s| s.pages),
        ("bytes of the page file", |s| s.file_bytes),
    ];
    let differs = |part: fn(Sample) -> f64| (part(last) / part(first) - 1.0).abs() > 0.1;
    parts.into_iter().filter(|&(_, part)| differs(part)).map(|(name, _)| name).collect()
}

fn main() -> Result<(), Error> {
    let minutes = std::env::args().nth(1).and_then(|n| n.parse::<u32>().ok());
    let (periods, period) =
        minutes.map_or((3, Duration::from_secs(1)), |n| (n.max(2), Duration::from_secs(60)));
    let root = std::env::temp_dir().join(format!("azekura-steady-{}", std::process::id()));
    let mut workloads = [
        Workload::new(&root, "queue", Workload::queue)?,
        Workload::new(&root, "session", Workload::session)?,
        Workload::new(&root, "expiry", Workload::expiry)?,
    ];
    for workload in &mut workloads {
        // Each row has been inserted and removed several times before the first sample.
        workload.run(|steps| steps < 6 * SESSION_ROWS as u64)?;
    }
    let mut firsts = Vec::new();
    let mut is_steady = true;
    for period_number in 1..=periods {
        for (i, workload) in workloads.iter_mut().enumerate() {
            let sample = workload.sample(period / 3)?;
            println!(
                "{:>3} {:<8} {:>9} steps, {:.3} leaves a look, {} levels, {:.0} leaves, {:.0} pages, {} B",
                period_number,
                workload.name,
                sample.steps,
                sample.leaves_per_look,
                sample.height,
                sample.leaf_pages,
                sample.pages,
                sample.file_bytes
            );
            if period_number == 1 {
                firsts.push(sample);
            }
            let differences = differences(firsts[i], sample);
            if period_number == periods && !differences.is_empty() {
                println!("{}: not as in the first minute: {differences:?}", workload.name);
                is_steady = false;
            }
        }
    }
    for workload in workloads {
        workload.db.close()?;
    }
    std::fs::remove_dir_all(&root).map_err(Error::other)?;
    if is_steady { Ok(()) } else { Err(Error::Invalid("the tables did not stay as they were".into())) }
}
