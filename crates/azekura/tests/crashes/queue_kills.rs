//! A queue with several producers and consumers, killed again and again: each job is done exactly once.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use azekura::{Database, TableDefinition};

const JOBS: TableDefinition<u64, u64> = TableDefinition::new("jobs");
const LEDGER: TableDefinition<u64, u64> = TableDefinition::new("ledger");
const CHILD: &str = "AZEKURA_TEST_CHILD_OF_QUEUE_KILLS";
const PRODUCERS: u64 = 4;
const CONSUMERS: u64 = 8;

fn open(dir: &Path) -> Database {
    Database::builder().cache_bytes(4 << 20).wal_segment_bytes(2 << 20).open(dir.join("store")).unwrap()
}

/// Writes one line by one call, so that the lines of several threads do not mix.
fn print(line: String) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Adds jobs from `first` on and does them until the process is killed. A line is printed before a job is
/// added (`+ job`) and after it is done (`- job`).
fn work_until_killed(dir: &Path, first: u64) {
    println!(); // ends a line that the harness may have begun
    let db = open(dir);
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..PRODUCERS {
            scope.spawn(|| {
                loop {
                    // Relaxed: a counter of its own.
                    let job = next.fetch_add(1, Relaxed);
                    print(format!("+ {job}"));
                    db.transact(|tx| tx.table(&JOBS)?.insert(&job, &(job * 3))).unwrap();
                }
            });
        }
        for consumer in 0..CONSUMERS {
            let db = &db;
            scope.spawn(move || {
                loop {
                    let done = db.transact(|tx| {
                        let jobs = tx.table(&JOBS)?;
                        let skips = consumer % 2 == 0;
                        let taken = if skips { jobs.skip_locked().pop_first()? } else { jobs.pop_first()? };
                        let Some((job, value)) = taken else { return Ok(None) };
                        assert_eq!(value, job * 3);
                        assert!(tx.table(&LEDGER)?.insert_if_absent(&job, &consumer)?, "{job} was done");
                        Ok(Some(job))
                    });
                    match done.unwrap() {
                        Some(job) => print(format!("- {job}")),
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
    });
}

#[test]
fn each_job_is_done_exactly_once_under_kills() {
    if let Some(first) = std::env::var_os(CHILD) {
        let (first, dir) = first.to_str().unwrap().split_once(' ').unwrap();
        return work_until_killed(Path::new(dir), first.parse().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut added, mut done) = (HashSet::new(), HashSet::new());
    for (round, least) in [300, 2000, 20, 1000, 500].into_iter().enumerate() {
        let first = added.iter().max().map_or(0, |most: &u64| most + PRODUCERS);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["queue_kills::each_job_is_done_exactly_once_under_kills", "--exact", "--nocapture"])
            .env(CHILD, format!("{first} {}", dir.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut seen = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(job) = line.strip_prefix("+ ").and_then(|job| job.parse().ok()) {
                added.insert(job);
            } else if let Some(job) = line.strip_prefix("- ").and_then(|job| job.parse().ok()) {
                assert!(done.insert(job), "job {job} was done twice");
                seen += 1;
                if seen == least {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        assert!(seen >= least, "round {round}: the child ended by itself");
        let db = open(dir.path());
        let keys = |table: &TableDefinition<u64, u64>| -> HashSet<u64> {
            db.transact(|tx| tx.table(table)?.iter().map(|row| Ok(row?.0)).collect()).unwrap()
        };
        let (waiting, ledger) = (keys(&JOBS), keys(&LEDGER));
        assert!(waiting.is_disjoint(&ledger), "round {round}: a job is done and still in the queue");
        assert!(done.is_subset(&ledger), "round {round}: an acknowledged job is not in the ledger");
        // Each consumer and each producer may have committed one job without a line.
        assert!(ledger.len() - done.len() <= CONSUMERS as usize, "round {round}");
        let known: HashSet<u64> = waiting.union(&ledger).copied().collect();
        assert!(known.is_subset(&added), "round {round}: a job that was never added");
        assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
        db.close().unwrap();
        done = ledger;
    }
}
