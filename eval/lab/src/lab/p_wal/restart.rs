//! Duration of recovery: reading a log by merging and by sorting its streams (§4), and a whole restart of the
//! store.

use super::ground::{Ground, Site};
use super::usage::Usage;
use crate::error::{BenchError, EngineError};
use azekura::{Database, TableDefinition};
use azekura_base::Lsn;
use azekura_io::FaultFs;
use azekura_wal::recovery::{replay, sorted::replay_sorted};
use azekura_wal::{LogBufferId, LogIdentity, LogRange, Replayed, Wal, WalOptions};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DATABASE: u64 = 1;
/// Bytes of a record without its frame; with it, an UPDATE of the paper.
const BODY_BYTES: usize = 156 - 3;

/// A closed log with records.
#[derive(Debug)]
pub struct Filled {
    site: Site,
    dir: PathBuf,
    records: u64,
}

/// Method of putting the records of all streams into order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A k-way merge of the streams.
    Merge,
    /// A sort of all records.
    Sort,
}

impl Filled {
    /// Writes a log of `records` records into `streams` streams, in turns of 16 records.
    ///
    /// # Errors
    ///
    /// An error of the log.
    pub fn fill(ground: &Ground, streams: usize, records: u64) -> Result<Self, BenchError> {
        let site = ground.site().map_err(BenchError::io("making a directory in", "the lab's"))?;
        let dir = site.dir.join("wal");
        let options = WalOptions {
            log_buffers: streams,
            streams,
            segment_bytes: 4 << 20,
            buffer_bytes: 64 << 10,
            background: false,
            ..WalOptions::default()
        };
        let identity = LogIdentity { database_id: DATABASE, incarnation: 1, first_lsn: Lsn(1) };
        ground.at_no_cost(|| {
            let wal = Wal::create(Arc::clone(&site.fs), &dir, identity, options)
                .map_err(failed("making the log"))?;
            for n in 0..records {
                let worker = LogBufferId::from_index((n / 16) as usize % streams);
                wal.append(worker, &[b'u'; BODY_BYTES]).map_err(failed("logging"))?;
            }
            wal.close().map_err(failed("closing the log"))
        })?;
        Ok(Self { site, dir, records })
    }

    /// Reads the log and returns the duration.
    ///
    /// # Errors
    ///
    /// An error of the log; [`BenchError::WrongAnswer`] if records are missing.
    pub fn read(&self, way: Way) -> Result<Duration, BenchError> {
        let range = LogRange::open(1, Lsn(1));
        let mut sum = 0_u64;
        let mut each = |lsn: Lsn, body: &[u8]| -> Result<(), Infallible> {
            sum = sum.wrapping_add(lsn.0 ^ body.len() as u64);
            Ok(())
        };
        let began = Instant::now();
        let fs = &*self.site.fs;
        let replayed: Replayed = match way {
            Way::Merge => replay(fs, &self.dir, DATABASE, &[range], Lsn(1), &mut each),
            Way::Sort => replay_sorted(fs, &self.dir, DATABASE, &range, &mut each),
        }
        .map_err(failed("reading the log"))?;
        let took = began.elapsed();
        std::hint::black_box(sum);
        if replayed.records != self.records {
            return Err(BenchError::WrongAnswer {
                what: "log records",
                expected: self.records,
                found: replayed.records,
            });
        }
        Ok(took)
    }
}

/// Results of a restart of the store.
#[derive(Clone, Copy, Debug)]
pub struct Restarted {
    /// Number of log records read.
    pub records: u64,
    /// Time until the store was open.
    pub took: Duration,
    /// Processor time of all threads of the process.
    pub cpu: Duration,
}

impl Restarted {
    /// Returns the records per second of processor time.
    #[must_use]
    pub fn rate_per_cpu(&self) -> f64 {
        self.records as f64 / self.cpu.as_secs_f64().max(1e-9)
    }
}

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const LAST: TableDefinition<u64, [u8]> = TableDefinition::new("last");

/// Returns the builder of a store in memory.
fn store(fs: &FaultFs, streams: usize, recovery_time: Duration) -> azekura::Builder {
    Database::builder()
        .file_system(Arc::new(fs.clone()))
        .cache_bytes(1 << 30)
        .log_buffers(streams)
        .wal_streams(streams)
        .recovery_time(recovery_time)
}

/// Simulates a crash of a store in memory after `updates` updates of 100 bytes in random order, all after the
/// last checkpoint. Opens the store again, with `redo_threads` redo threads or the default number.
///
/// # Errors
///
/// An error of the store; [`BenchError::WrongAnswer`] if a row is missing.
pub fn restart_store(
    updates: u64,
    streams: usize,
    redo_threads: Option<usize>,
) -> Result<Restarted, BenchError> {
    let fault = FaultFs::new();
    let db = store(&fault, streams, Duration::MAX).open("/db").map_err(failed("opening"))?;
    let last = update(&db, updates)?;
    let killed = fault.kill();
    drop(db);
    let again = store(&killed, streams, Duration::MAX);
    let again = match redo_threads {
        Some(threads) => again.redo_threads(threads),
        None => again,
    };
    let restarted = reopen(again, last)?;
    if restarted.records < updates {
        let found = restarted.records;
        return Err(BenchError::WrongAnswer { what: "recovered records", expected: updates, found });
    }
    Ok(restarted)
}

/// Result of an undo during a restart.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    /// Number of undone changes.
    pub changes: u64,
    /// Duration of the undo, by one thread.
    pub took: Duration,
}

/// Simulates a crash of a store in memory during a transaction that has changed `changes` rows in random
/// order. The restart undoes these changes.
///
/// # Errors
///
/// An error of the store; [`BenchError::WrongAnswer`] if changes were not undone.
pub fn undo_at_restart(changes: u64) -> Result<Undone, BenchError> {
    const STREAMS: usize = 2;
    let fault = FaultFs::new();
    let db = store(&fault, STREAMS, Duration::MAX).open("/db").map_err(failed("opening"))?;
    update(&db, changes)?;
    let open = db.begin().map_err(failed("beginning"))?;
    let rows = open.table(&ROWS).map_err(failed("opening the table"))?;
    for n in 0..changes {
        rows.insert(&scattered(n), &[8; 100][..]).map_err(failed("writing"))?;
    }
    // The commit of another transaction makes the records of the open one durable.
    db.transact(|tx| tx.table(&LAST)?.insert(&1, &[][..])).map_err(failed("committing"))?;
    let killed = fault.kill();
    open.abort().map_err(failed("aborting"))?;
    drop(db);
    let db = store(&killed, STREAMS, Duration::MAX).open("/db").map_err(failed("recovering"))?;
    let report = db.stats().recovery;
    if report.undone != changes {
        return Err(BenchError::WrongAnswer {
            what: "undone changes",
            expected: changes,
            found: report.undone,
        });
    }
    Ok(Undone { changes, took: report.undo_time })
}

/// Lower bound of the log bytes of a transaction with one update.
const UPDATE_LOG_BYTES: u64 = 150;
/// Log bytes that the store counts as one second of its restart.
const LOG_BYTES_PER_S: f64 = (64 << 20) as f64;

/// Simulates a crash of a store with the setting `time` for its restart, after it has logged twice as much as
/// it may keep for that time. Opens the store again.
///
/// # Errors
///
/// The same as those of [`restart_store`].
pub fn restart_within(time: Duration) -> Result<Restarted, BenchError> {
    const STREAMS: usize = 2;
    let fault = FaultFs::new();
    let db = store(&fault, STREAMS, time).open("/db").map_err(failed("opening"))?;
    let last = update(&db, (2.0 * time.as_secs_f64() * LOG_BYTES_PER_S) as u64 / UPDATE_LOG_BYTES + 1)?;
    let killed = fault.kill();
    drop(db);
    reopen(store(&killed, STREAMS, time), last)
}

/// Returns the key of update `n`: distinct keys in a scattered order, by an odd multiplier.
const fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16
}

/// Makes `updates` updates, waits until they are durable, and returns the last key.
fn update(db: &Database, updates: u64) -> Result<u64, BenchError> {
    let mut last = None;
    for n in 0..updates.max(1) {
        let key = scattered(n);
        let write = |tx: &azekura::Transaction| tx.table(&ROWS)?.insert(&key, &[7; 100][..]);
        last = Some((key, db.transact_async(write).map_err(failed("writing"))?.1));
    }
    let Some((key, ticket)) = last else { return Ok(0) };
    ticket.wait().map_err(failed("committing"))?;
    Ok(key)
}

fn reopen(store: azekura::Builder, last: u64) -> Result<Restarted, BenchError> {
    let (began, before) = (Instant::now(), Usage::now());
    let db = store.open("/db").map_err(failed("recovering"))?;
    let took = began.elapsed();
    let cpu = Usage::now().since(before).cpu;
    let restarted = Restarted { records: db.stats().recovery.records, took, cpu };
    let is_there = db.transact(|tx| tx.table(&ROWS)?.contains(&last)).map_err(failed("reading"))?;
    if !is_there {
        return Err(BenchError::WrongAnswer { what: "rows of the last commit", expected: 1, found: 0 });
    }
    Ok(restarted)
}

fn failed<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl Fn(E) -> BenchError {
    move |error| EngineError::failed(doing, error).into()
}

#[cfg(test)]
mod tests {
    use super::super::ground::Choice;
    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn both_ways_read_every_record_back() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        for streams in [1, 3] {
            let filled = Filled::fill(&ground, streams, 5_000).unwrap();
            for way in [Way::Merge, Way::Sort] {
                assert!(filled.read(way).unwrap() > Duration::ZERO);
            }
        }
    }

    #[test]
    fn a_killed_store_recovers_every_record() {
        for redo_threads in [None, Some(1)] {
            let restarted = restart_store(500, 2, redo_threads).unwrap();
            assert!(restarted.records >= 500 && restarted.took > Duration::ZERO, "{restarted:?}");
            assert!(restarted.cpu > Duration::ZERO && restarted.rate_per_cpu() > 0.0);
        }
    }

    #[test]
    fn a_transaction_that_was_open_is_undone_change_by_change() {
        let undone = undo_at_restart(500).unwrap();
        assert!(undone.changes == 500 && undone.took > Duration::ZERO, "{undone:?}");
    }

    #[test]
    fn a_store_with_a_short_recovery_time_recovers_its_last_commit() {
        let restarted = restart_within(Duration::from_millis(5)).unwrap();
        assert!(restarted.took > Duration::ZERO, "{restarted:?}");
    }
}
