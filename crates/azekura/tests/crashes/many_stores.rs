//! Many stores of one process: a kill during writes to all of them loses no acknowledged row, and their
//! recoveries run at the same time.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use azekura::{Database, Error, TableDefinition};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const CHILD: &str = "AZEKURA_TEST_CHILD_OF_MANY_STORES";
const STORES: usize = 100;
const WRITERS: usize = 8;

fn open(dir: &Path, store: usize) -> Database {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).wal_segment_bytes(2 << 20);
    builder.open(dir.join(store.to_string())).unwrap()
}

/// Returns the number of rows; they are numbered from 0 without a gap.
fn rows(db: &Database) -> Result<u64, Error> {
    db.transact(|tx| {
        let mut count = 0;
        for row in tx.table(&ROWS)?.iter() {
            let (key, value) = row?;
            assert_eq!((key, value), (count, vec![key as u8; 300]));
            count += 1;
        }
        Ok(count)
    })
}

/// Runs `work` for every store, by one thread per writer.
fn for_each_store(work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            // Relaxed: the counter is the only shared state.
            scope.spawn(|| {
                while let Some(store) = Some(next.fetch_add(1, Relaxed)).filter(|&store| store < STORES) {
                    work(store);
                }
            });
        }
    });
}

/// Writes rows to all stores until the process is killed. Each acknowledged row is a line of the output, with
/// the number of its store.
fn write_until_killed(dir: &Path) {
    println!(); // ends a line that the test harness may have begun
    let stores: Vec<_> = (0..STORES).map(|store| open(dir, store)).collect();
    let counts: Vec<_> = stores.iter().map(|store| rows(store).unwrap()).collect();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (stores, counts) = (&stores, &counts);
            scope.spawn(move || {
                for round in 0.. {
                    for store in (writer..STORES).step_by(WRITERS) {
                        let key = counts[store] + round;
                        let value = [key as u8; 300];
                        stores[store].transact(|tx| tx.table(&ROWS)?.insert(&key, &value[..])).unwrap();
                        let mut line = store.to_string();
                        line.push('\n');
                        std::io::stdout().write_all(line.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
}

#[test]
fn a_kill_under_a_hundred_stores_loses_no_acknowledged_row_of_any() {
    if let Some(dir) = std::env::var_os(CHILD) {
        return write_until_killed(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mut written = [0; STORES];
    for (round, lines) in [500, 3000, 1500].into_iter().enumerate() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "many_stores::a_kill_under_a_hundred_stores_loses_no_acknowledged_row_of_any",
                "--exact",
                "--nocapture",
            ])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = written;
        let mut seen = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            // The test harness of the child also writes lines. Each line is written completely, by one short
            // write to a pipe.
            let Some(store) = line.unwrap().parse().ok().filter(|&store: &usize| store < STORES) else {
                continue;
            };
            acknowledged[store] += 1;
            seen += 1;
            if seen == lines {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= lines, "round {round}: the child ended by itself");
        let found: Vec<_> = (0..STORES).map(|_| AtomicUsize::new(0)).collect();
        for_each_store(|store| {
            let db = open(dir.path(), store);
            // Relaxed: read after the threads have ended.
            found[store].store(rows(&db).unwrap() as usize, Relaxed);
            assert!(db.check(&mut |_, _| ()).unwrap().is_clean(), "store {store}");
            db.close().unwrap();
        });
        for store in 0..STORES {
            written[store] = found[store].load(Relaxed);
            // One row of each store may have been durable and not acknowledged.
            let (found, least) = (written[store], acknowledged[store]);
            assert!((least..=least + 1).contains(&found), "round {round}, store {store}: {found} of {least}");
        }
    }
}
