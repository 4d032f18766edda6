//! A commit in a parallel log, tested through the store with every log protocol, must not wait for an idle
//! log buffer (W1), for an open transaction (W2), or for further commits (W3).

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::{LogShape, PROTOCOLS};
use azekura::{Builder, Database, Durability, TableDefinition};
use azekura_io::FaultFs;

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

/// Returns log settings with one stream, with several log buffers per stream, and with one stream per log
/// buffer.
fn shapes() -> impl Iterator<Item = LogShape> {
    let of = |protocol| {
        [(1, 1), (4, 1), (5, 2), (16, 16)].map(|(workers, streams)| LogShape { protocol, workers, streams })
    };
    PROTOCOLS.into_iter().flat_map(of)
}

fn store(disk: &FaultFs, shape: LogShape, background: bool) -> Database {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).wal_segment_bytes(2 << 20);
    let builder: Builder = builder.background(background).file_system(Arc::new(disk.clone()));
    shape.apply(builder).open("db").unwrap()
}

/// Returns the store after a power loss that drops all unsynced writes.
fn after_power_loss(disk: &FaultFs) -> Database {
    let left = disk.crash_losing_all();
    store(&left, LogShape { protocol: PROTOCOLS[0], workers: 3, streams: 2 }, false)
}

fn get(db: &Database, key: u64) -> Option<u64> {
    db.transact(|tx| tx.table(&ROWS)?.get(&key)).unwrap()
}

fn put(db: &Database, key: u64) {
    db.transact(|tx| tx.table(&ROWS)?.insert(&key, &key)).unwrap();
}

/// Runs `other` in a thread, for every log setting, with and without background threads. While `other` waits,
/// ten commits must complete and be durable. A power loss at that time must leave row 1 as `found` states.
fn commits_beside(other: fn(&Database, &dyn Fn()), found: Option<u64>) {
    for (shape, background) in shapes().flat_map(|shape| [(shape, false), (shape, true)]) {
        let disk = FaultFs::new();
        let db = store(&disk, shape, background);
        put(&db, 0);
        let meet = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                other(&db, &|| {
                    meet.wait();
                    meet.wait();
                });
            });
            meet.wait();
            (2..12).for_each(|key| put(&db, key));
            let left = after_power_loss(&disk);
            assert!((2..12).all(|key| get(&left, key) == Some(key)), "{shape:?}");
            assert_eq!(get(&left, 1), found, "{shape:?}");
            meet.wait();
        });
    }
}

#[test]
fn w1_an_idle_writer_delays_no_commit_of_another_thread() {
    let idles = |db: &Database, wait: &dyn Fn()| {
        put(db, 1);
        wait();
    };
    commits_beside(idles, Some(1));
}

#[test]
fn w2_a_commit_does_not_wait_for_the_end_of_an_open_transaction() {
    let stays_open = |db: &Database, wait: &dyn Fn()| {
        let open = db.begin().unwrap();
        open.table(&ROWS).unwrap().insert(&1, &1).unwrap();
        wait();
        open.abort().unwrap();
    };
    commits_beside(stays_open, None);
}

/// Waits for a condition, with a limit so that a broken log fails the test instead of hanging it.
fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn w3_the_last_commit_of_an_idle_store_becomes_durable() {
    for shape in shapes() {
        let disk = FaultFs::new();
        let db = store(&disk, shape, true);
        put(&db, 0);
        let write = |key: u64| move |tx: &azekura::Transaction| tx.table(&ROWS)?.insert(&key, &key);
        let ((), ticket) = db.transact_async(write(1)).unwrap();
        wait_until("the ticket", || ticket.is_durable().unwrap());
        assert_eq!(get(&after_power_loss(&disk), 1), Some(1), "{shape:?}");

        // The commit does not even request a flush.
        let tx = db.begin().unwrap();
        tx.set_durability(Durability::Relaxed);
        write(2)(&tx).unwrap();
        tx.commit().unwrap();
        wait_until("a commit that nobody asked for", || get(&after_power_loss(&disk), 2) == Some(2));
    }
}
