//! The costs of a transaction in the log: writes to the LSN counter, the only cache line that all
//! transactions share, and the bytes that rows in key order need in all files. Costs are counted, not timed.
//!
//! The paper logs BEGIN, each update and END (section 5.2.1): three draws for U-1 and twelve for U-10. Here
//! there is no BEGIN, a structure change of many pages is one record, and a read-only transaction draws no
//! LSN. With ranges, one draw serves many records.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;
use std::time::Duration;

use azekura::{CommitTicket, Database, Durability, LogProtocol, TableDefinition};
use azekura_io::{CountingFs, MemFs};

const ROWS: TableDefinition<u32, u32> = TableDefinition::new("rows");

/// Returns a store with rows and without background threads; each of its records draws its own LSN.
fn store(protocol: LogProtocol) -> Database {
    store_with_ranges(protocol, 1)
}

fn store_with_ranges(protocol: LogProtocol, most: u32) -> Database {
    let db = Database::builder().background(false).log_protocol(protocol).log_buffers(4).wal_streams(2);
    let db = db.wal_lsn_range(most).open_in_memory().unwrap();
    db.transact(|tx| (0..1000).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &0))).unwrap();
    db
}

/// Returns the number of LSN draws and of records in `work`.
fn costs(db: &Database, work: impl FnOnce(&Database)) -> (u64, u64) {
    let before = db.stats().log;
    work(db);
    let after = db.stats().log;
    (after.lsn_draws - before.lsn_draws, after.records - before.records)
}

fn update(db: &Database, count: u32) {
    db.transact(|tx| (0..count).try_for_each(|key| tx.table(&ROWS)?.insert(&(key * 7), &1))).unwrap();
}

#[test]
fn an_update_draws_once_and_a_commit_once() {
    for protocol in [LogProtocol::PWal, LogProtocol::Serial, "epoch".parse().unwrap()] {
        let db = store(protocol);
        update(&db, 1); // from now on the transaction's memory has the table's name
        assert_eq!(costs(&db, |db| update(db, 1)), (2, 2), "U-1, {protocol}");
        assert_eq!(costs(&db, |db| update(db, 10)), (11, 11), "U-10, {protocol}");
    }
}

#[test]
fn in_ranges_a_transaction_draws_once_and_many_that_are_flushed_together_a_few_times() {
    for protocol in [LogProtocol::PWal, "epoch".parse().unwrap()] {
        let db = store_with_ranges(protocol, 64);
        for (count, records) in [(1, 2), (10, 11)] {
            update(&db, count); // sizes the next LSN range for as many records
            assert_eq!(costs(&db, |db| update(db, count)), (1, records), "U-{count}, {protocol}");
        }
        let pipelined = |db: &Database| {
            let commit =
                |key: u32| db.transact_deferred_flush(|tx| tx.table(&ROWS)?.insert(&key, &1)).unwrap().1;
            let tickets: Vec<_> = (0..100).map(commit).collect();
            tickets.into_iter().reduce(CommitTicket::max).unwrap().wait().unwrap();
        };
        pipelined(&db);
        let (draws, records) = costs(&db, pipelined);
        assert_eq!(records, 200);
        assert!(draws <= 5, "{draws} draws for 100 of U-1, {protocol}");
    }
}

#[test]
fn a_read_only_transaction_draws_no_lsn() {
    let db = store(LogProtocol::PWal);
    let read = |db: &Database| {
        db.transact(|tx| {
            tx.table(&ROWS)?.get(&5)?;
            tx.table(&ROWS)?.iter().try_for_each(|row| row.map(drop))
        })
        .unwrap();
        db.begin().unwrap().abort().unwrap();
    };
    assert_eq!(costs(&db, read), (0, 0));
}

#[test]
fn an_abort_draws_for_each_update_twice_and_for_its_end() {
    let db = store(LogProtocol::PWal);
    let abort = |db: &Database| {
        let tx = db.begin().unwrap();
        (0..3).for_each(|key| tx.table(&ROWS).unwrap().insert(&key, &9).unwrap());
        tx.abort().unwrap();
    };
    assert_eq!(costs(&db, abort), (3 + 3 + 1, 7));
}

#[test]
fn a_split_with_all_its_pages_draws_once() {
    let db = store(LogProtocol::PWal);
    let fill = |db: &Database| {
        db.transact(|tx| (1000..9000).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &0))).unwrap();
    };
    let (draws, records) = costs(&db, fill);
    let beyond = draws - 8001;
    assert_eq!(draws, records);
    // A leaf of 8 KiB holds several hundred such rows.
    assert!((5..60).contains(&beyond), "{beyond} records for the splits of 8000 insertions");
}

#[test]
fn commits_that_are_waited_for_together_are_one_flush() {
    let db = store(LogProtocol::PWal);
    let flushes = db.stats().log.flushes;
    let commit = |key: u32| db.transact_deferred_flush(|tx| tx.table(&ROWS)?.insert(&key, &1)).unwrap().1;
    let tickets: Vec<_> = (0..100).map(commit).collect();
    assert!(tickets.iter().all(|ticket| !ticket.is_durable().unwrap()), "nobody was asked to write");
    assert_eq!(db.stats().log.flushes, flushes);
    tickets.into_iter().reduce(CommitTicket::max).unwrap().wait().unwrap();
    assert_eq!(db.stats().log.flushes, flushes + 1);
}

const BLOBS: TableDefinition<u64, [u8]> = TableDefinition::new("blobs");
const VALUE: [u8; 400] = [7; 400];
/// Size of the key and the value of a row, in bytes.
const ROW_BYTES: u64 = 8 + VALUE.len() as u64;
/// Number of rows of a transaction.
const GROUP: u64 = 100;

/// Bytes written to each kind of file, per byte of the rows.
#[derive(Debug)]
#[allow(dead_code, reason = "shown when an assertion fails")]
struct Written {
    all: f64,
    log: f64,
    pages: f64,
    double_write: f64,
}

impl Written {
    fn by(fs: &CountingFs, rows: u64) -> Self {
        let per_byte = |bytes: u64| bytes as f64 / (rows * ROW_BYTES) as f64;
        let to = |name: &str| {
            per_byte(fs.bytes_written_to(|path| path.iter().any(|part| part.to_str() == Some(name))))
        };
        let all = per_byte(fs.counts().bytes_written);
        Self { all, log: to("wal"), pages: to("pages"), double_write: to("dw") }
    }
}

/// Inserts rows in key order.
fn grow(db: &Database, rows: std::ops::Range<u64>) {
    for first in rows.step_by(GROUP as usize) {
        db.transact(|tx| {
            let table = tx.table(&BLOBS)?;
            (first..first + GROUP).try_for_each(|key| table.insert(&key, &VALUE[..]))
        })
        .unwrap();
    }
}

/// Runs with a cache that holds the rows, with one that does not, and with frequent checkpoints. The log has
/// its final size before the bytes are counted, because its files are then reused.
#[test]
fn ordered_growth_writes_each_row_to_the_log_and_to_its_page() {
    const ROWS: u64 = 60_000;
    for (cache_bytes, recovery_ms) in [(64 << 20, 200), (64 << 20, 100), (4 << 20, 200)] {
        let fs = CountingFs::new(Arc::new(MemFs::new()));
        let builder = Database::builder().background(false).cache_bytes(cache_bytes).wal_streams(1);
        let builder = builder.recovery_time(Duration::from_millis(recovery_ms)).wal_segment_bytes(2 << 20);
        let db = builder.file_system(Arc::new(fs.clone())).open("/db").unwrap();
        grow(&db, 0..ROWS);
        db.checkpoint().unwrap();
        fs.reset();
        grow(&db, ROWS..2 * ROWS);
        db.checkpoint().unwrap();
        let written = Written::by(&fs, ROWS);
        let what = format!("cache of {cache_bytes} bytes, restart in {recovery_ms} ms: {written:?}");
        println!("{what}");
        assert!(written.pages + written.double_write < 1.1, "{what}");
        assert!(written.all < 2.2, "{what}");
    }
}

/// The first rows of a store: the log grows into new blocks, and transactions of 2 MB write each block once.
#[test]
fn a_load_into_a_new_store_writes_each_row_to_the_log_once() {
    const ROWS: u64 = 40_000;
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    let db = Database::builder().background(false).cache_bytes(64 << 20).file_system(Arc::new(fs.clone()));
    let db = db.open("/db").unwrap();
    for first in (0..ROWS).step_by(5000) {
        db.transact(|tx| {
            let table = tx.table(&BLOBS)?;
            (first..first + 5000).try_for_each(|key| table.insert(&key, &VALUE[..]))
        })
        .unwrap();
    }
    db.close().unwrap();
    let written = Written::by(&fs, ROWS);
    println!("{written:?}");
    assert!(written.log < 1.2, "{written:?}");
    assert!(written.pages < 1.1, "{written:?}");
}

#[test]
fn a_bulk_load_writes_each_row_once() {
    const ROWS: u64 = 100_000;
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    let db = Database::builder().background(false).cache_bytes(16 << 20).file_system(Arc::new(fs.clone()));
    let db = db.open("/db").unwrap();
    db.transact(|tx| tx.table(&BLOBS)?.bulk_load((0..ROWS).map(|key| (key, VALUE)))).unwrap();
    db.close().unwrap();
    let written = Written::by(&fs, ROWS);
    println!("{written:?}");
    assert!(written.all < 1.1, "{written:?}");
}

/// Values with pages of their own are not logged either. All rows together have as many bytes as those of the
/// test above.
#[test]
fn a_bulk_load_writes_each_large_value_once() {
    for value_bytes in [16_288, 100_000, 2_000_000] {
        let rows = 100_000 * (8 + VALUE.len()) / value_bytes;
        let fs = CountingFs::new(Arc::new(MemFs::new()));
        let db = Database::builder().background(false).cache_bytes(16 << 20);
        let db = db.file_system(Arc::new(fs.clone())).open("/db").unwrap();
        let value = vec![7; value_bytes];
        db.transact(|tx| tx.table(&BLOBS)?.bulk_load((0..rows as u64).map(|key| (key, &value[..])))).unwrap();
        db.close().unwrap();
        let written = Written::by(&fs, 100_000);
        println!("values of {value_bytes} bytes: {written:?}");
        assert!(written.all < 1.1, "values of {value_bytes} bytes: {written:?}");
    }
}

/// The large values of a transaction beyond the first 256 KiB are written to the page file before the commit,
/// and not to the log.
#[test]
fn a_transaction_with_many_large_values_writes_them_once() {
    for (value_bytes, of_transaction) in [(16_288, 1000), (100_000, 200), (3_000_000, 7)] {
        let rows = 100_000 * (8 + VALUE.len()) / value_bytes / of_transaction * of_transaction;
        let fs = CountingFs::new(Arc::new(MemFs::new()));
        let db = Database::builder().background(false).cache_bytes(16 << 20);
        let db = db.file_system(Arc::new(fs.clone())).open("/db").unwrap();
        let value = vec![7; value_bytes];
        for first in (0..rows as u64).step_by(of_transaction) {
            db.transact(|tx| {
                let table = tx.table(&BLOBS)?;
                (first..first + of_transaction as u64).try_for_each(|key| table.insert(&key, &value[..]))
            })
            .unwrap();
        }
        db.close().unwrap();
        let written = Written::by(&fs, (rows * value_bytes / (8 + VALUE.len())) as u64);
        println!("values of {value_bytes} bytes: {written:?}");
        // Only the first 8 MiB of the page file, which a new store allocates, are written twice.
        assert!(written.pages < 1.1, "values of {value_bytes} bytes: {written:?}");
        assert!(written.log < 0.15, "values of {value_bytes} bytes: {written:?}");
    }
}

/// Small transactions and relaxed ones have large values in the log: a commit needs one sync.
#[test]
fn a_commit_of_one_large_value_waits_only_for_the_log() {
    for (value_bytes, durability) in [(60_000, Durability::Immediate), (3_000_000, Durability::Relaxed)] {
        let fs = CountingFs::new(Arc::new(MemFs::new()));
        let db = Database::builder().background(false).cache_bytes(64 << 20);
        let db = db.file_system(Arc::new(fs.clone())).open("/db").unwrap();
        let before = db.stats().log;
        let tx = db.begin().unwrap();
        tx.set_durability(durability);
        tx.table(&BLOBS).unwrap().insert(&1, &vec![7; value_bytes][..]).unwrap();
        tx.commit().unwrap();
        let bytes = db.stats().log.record_bytes - before.record_bytes;
        assert!(bytes as usize > value_bytes, "{bytes} bytes of log for {value_bytes}");
    }
}
