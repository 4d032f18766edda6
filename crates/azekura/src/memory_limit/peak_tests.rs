//! Memory of a whole process under a limit: a child process, which takes the limit from its environment, runs
//! a store at its defaults.

use std::fs;
use std::ops::Range;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Database, Durability, Error, TableDefinition};

const VARIABLE: &str = "AZEKURA_TEST_MEMORY_LIMIT";
const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const VALUE_BYTES: usize = 1_000;
const THREADS: u64 = 16;
const ROWS_PER_TRANSACTION: u64 = 100;

/// The limit of a child process.
pub(super) fn limit_of_child() -> Option<u64> {
    std::env::var(VARIABLE).ok()?.parse().ok()
}

/// Peak of anonymous memory: without files, so neither the program's nor the system's page cache.
#[derive(Default)]
struct Peak(AtomicU64);

impl Peak {
    fn look(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kib: u64 = line.trim().strip_suffix("kB").unwrap().trim().parse().unwrap();
        self.0.fetch_max(kib << 10, Relaxed); // only a number
    }
}

/// Random order without a random number: an odd factor permutes the numbers of 64 bits.
fn key(row: u64) -> u64 {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Each thread writes its rows, in transactions of [`ROWS_PER_TRANSACTION`].
fn write(db: &Database, rows: Range<u64>, byte: u8, peak: &Peak) {
    let share = (rows.end - rows.start) / THREADS;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let first = rows.start + thread * share;
                for from in (first..first + share).step_by(ROWS_PER_TRANSACTION as usize) {
                    let written = db.transact(|tx| {
                        let table = tx.table(&ROWS)?;
                        for row in from..(from + ROWS_PER_TRANSACTION).min(first + share) {
                            table.insert(&key(row), &vec![byte; VALUE_BYTES])?;
                        }
                        peak.look();
                        Ok(())
                    });
                    written.unwrap();
                }
            });
        }
    });
}

/// Loads rows of half the limit in random order by many threads that do not wait for flushes, changes half of
/// them while a snapshot keeps the old versions, and reads all.
fn work(limit: u64) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let peak = Peak::default();
    let db = Database::builder().durability(Durability::Relaxed).open(dir.path()).unwrap();
    let rows = limit / 2 / VALUE_BYTES as u64;
    write(&db, 0..rows, 1, &peak);
    let snapshot = db.snapshot().unwrap();
    write(&db, 0..rows / 2, 2, &peak);
    let old = snapshot.table(&ROWS).and_then(|table| table.get(&key(0)));
    // More old versions than the memory allows.
    assert!(matches!(&old, Err(Error::SnapshotTooOld { .. })), "{:?}", old.map_err(|e| e.kind()));
    drop(snapshot);
    let read = db.read(|s| {
        let mut count = 0;
        for row in s.table(&ROWS)?.iter() {
            row?;
            count += 1;
        }
        Ok(count)
    });
    assert_eq!(read.unwrap(), rows / THREADS * THREADS);
    peak.look();
    db.close().unwrap();
    peak.0.into_inner()
}

#[test]
fn a_process_at_its_defaults_stays_within_three_quarters_of_its_memory() {
    const NAME: &str =
        "memory_limit::peak_tests::a_process_at_its_defaults_stays_within_three_quarters_of_its_memory";
    if let Some(limit) = limit_of_child() {
        println!("peak {}", work(limit));
        return;
    }
    let limit = 64 << 20;
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(VARIABLE, limit.to_string())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    let peak: u64 = output.split("peak ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak > limit / 8 && peak <= limit * 3 / 4, "{} MiB of {}", peak >> 20, limit >> 20);
}
