//! The numbers of keys, kept in the store for `DBSIZE` and `INFO keyspace`.
//!
//! Each row of `redis.counts` has two numbers. Their sums are the number of records in `redis.keys`, and the
//! number of these records that expire. A transaction that changes a number adds the difference to one of the
//! rows, so the sums are exact after a rollback, a crash or a restore. The sums include expired records that
//! are not removed yet. By KEY-1 each of these has a row in `redis.expiry`, and [`live`] subtracts the
//! expired rows.
//!
//! - **COUNT-1** In each snapshot the sums are the numbers of records. A program that writes rows to
//!   `redis.keys` itself has to change the sums in the same transaction.
//! - **COUNT-2** The row lock in `redis.counts` is the last lock of its transaction, which then commits. So
//!   the transaction is in no deadlock for this lock, and holds the lock briefly. Only snapshots read the
//!   rows without changing them.
//! - **COUNT-3** Each thread uses its own row, as far as there are rows, so that commits of several threads
//!   do not wait for each other.
//!
//! In a cluster the numbers are those of the node's own rows. A leaf that moves changes them at both nodes
//! (`rows`).

use std::cell::Cell;
use std::ops::{AddAssign, ControlFlow};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use azekura::{Database, Error, Snapshot, TableDefinition, Transaction};

use super::visits::Visits;
use super::{EXPIRY, KEYS, KEYS_TABLE};

const COUNTS_TABLE: &str = "redis.counts";
const COUNTS: TableDefinition<u32, (i64, i64)> = TableDefinition::new(COUNTS_TABLE);
/// Table of earlier versions, with the number of records only.
const FORMER_TABLE: &str = "redis.count";

/// Maximum of rows. Further threads share rows.
const ROWS: u32 = 64;

/// Numbers of records, or changes of these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    pub(crate) records: i64,
    /// Records that expire.
    pub(crate) expiring: i64,
}

impl AddAssign for KeyCounts {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.expiring += other.expiring;
    }
}

/// Returns the row of the calling thread (COUNT-3).
fn own_row() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        // Relaxed: the numbers need only be distinct.
        static ROW: Cell<u32> = Cell::new(NEXT.fetch_add(1, Relaxed) % ROWS);
    }
    ROW.get()
}

/// Adds `added` to the numbers of records, as the last step of a transaction (COUNT-2).
pub(crate) fn add(tx: &Transaction, added: KeyCounts) -> Result<(), Error> {
    if added == KeyCounts::default() {
        return Ok(());
    }
    let (rows, row) = (tx.table(&COUNTS)?, own_row());
    let (records, expiring) = rows.get_for_update(&row)?.unwrap_or_default();
    rows.insert(&row, &(records + added.records, expiring + added.expiring))
}

/// Returns the numbers of records in a snapshot that have not expired at `now_ms`. The cost depends on the
/// number of expired records, not on the number of all records.
pub(crate) fn live(snapshot: &Snapshot, now_ms: u64) -> Result<KeyCounts, Error> {
    let mut sum = KeyCounts::default();
    for row in snapshot.table(&COUNTS)?.iter() {
        let (_, (records, expiring)) = row?;
        sum += KeyCounts { records, expiring };
    }
    let (end, visits) = ((now_ms.saturating_add(1), Vec::new()), Visits::default());
    snapshot.table(&EXPIRY)?.for_each(..end, |_| {
        visits.note();
        sum += KeyCounts { records: -1, expiring: -1 };
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(sum)
}

/// Prepares the numbers before the server starts. Counts all records if a store has no numbers, or if an
/// earlier version has changed its keys.
pub(super) fn prepare(db: &Database) -> Result<(), Error> {
    let is_kept = db.transact(|tx| Ok(tx.table_exists(COUNTS_TABLE)? && !tx.table_exists(FORMER_TABLE)?))?;
    if is_kept {
        return Ok(());
    }
    let snapshot = db.snapshot()?;
    let records = snapshot.table(&KEYS)?.len()?;
    let expiring = snapshot.table(&EXPIRY)?.len()?;
    if records > 0 {
        tracing::info!(table = KEYS_TABLE, records, expiring, "keys counted");
    }
    drop(snapshot);
    db.transact(|tx| {
        tx.drop_table(FORMER_TABLE)?;
        begin(tx, (records.cast_signed(), expiring.cast_signed()))
    })
}

/// Creates the table of the numbers with these sums, in place of an earlier one.
fn begin(tx: &Transaction, sums: (i64, i64)) -> Result<(), Error> {
    tx.drop_table(COUNTS_TABLE)?;
    tx.table(&COUNTS)?.insert(&0, &sums)
}

/// Restarts the numbers at zero, after all records are removed.
pub(super) fn restart(tx: &Transaction) -> Result<(), Error> {
    begin(tx, (0, 0))
}
