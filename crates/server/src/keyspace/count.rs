//! The number of keys, kept in the store for `DBSIZE`.
//!
//! The rows of `redis.count` are numbers. Their sum is the number of records in `redis.keys`. A transaction
//! that adds or removes records adds the difference to one of the rows, so the sum is exact after a rollback,
//! a crash or a restore. The sum includes expired records that are not removed yet. By KEY-1 each of these
//! has a row in `redis.expiry`, and [`live`] subtracts the expired rows.
//!
//! - **COUNT-1** In each snapshot the sum is the number of records. A program that writes rows to
//!   `redis.keys` itself has to change the sum in the same transaction.
//! - **COUNT-2** The row lock in `redis.count` is the last lock of its transaction, which then commits. So
//!   the transaction is in no deadlock for this lock, and holds the lock briefly. Only snapshots read the
//!   rows without changing them.
//! - **COUNT-3** Each thread uses its own row, as far as there are rows, so that commits of several threads
//!   do not wait for each other.
//!
//! A node of a cluster keeps no count: its rows also change when a leaf moves.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use azekura::{Database, Error, Snapshot, TableDefinition, Transaction};

use super::{EXPIRY, KEYS, KEYS_TABLE};

pub(super) const COUNT_TABLE: &str = "redis.count";
const COUNT: TableDefinition<u32, i64> = TableDefinition::new(COUNT_TABLE);

/// Maximum of rows. Further threads share rows.
const ROWS: u32 = 64;

/// Returns the row of the calling thread (COUNT-3).
fn own_row() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local! {
        // Relaxed: the numbers need only be distinct.
        static ROW: Cell<u32> = Cell::new(NEXT.fetch_add(1, Relaxed) % ROWS);
    }
    ROW.get()
}

/// Adds `added` to the number of records, as the last step of a transaction (COUNT-2).
pub(crate) fn add(tx: &Transaction, added: i64) -> Result<(), Error> {
    if added == 0 {
        return Ok(());
    }
    let (rows, row) = (tx.table(&COUNT)?, own_row());
    let before = rows.get_for_update(&row)?.unwrap_or(0);
    rows.insert(&row, &(before + added))
}

/// Returns the number of records in a snapshot that have not expired at `now_ms`. The cost depends on the
/// number of expired records, not on the number of all records.
pub(super) fn live(snapshot: &Snapshot, now_ms: u64) -> Result<usize, Error> {
    let mut sum = 0_i64;
    for row in snapshot.table(&COUNT)?.iter() {
        sum += row?.1;
    }
    let end = (now_ms.saturating_add(1), Vec::new());
    snapshot.table(&EXPIRY)?.for_each(..end, |_| {
        sum -= 1;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(usize::try_from(sum).unwrap_or(0))
}

/// Prepares the count before the server starts. If a store has no count, such as the store of a former
/// cluster node, all records are counted. Without `keeps` an existing count is dropped, because it would
/// become wrong.
pub(super) fn prepare(db: &Database, keeps: bool) -> Result<(), Error> {
    let is_kept = db.transact(|tx| tx.table_exists(COUNT_TABLE))?;
    if is_kept && !keeps {
        db.transact(|tx| tx.drop_table(COUNT_TABLE))?;
    } else if keeps && !is_kept {
        let records = db.snapshot()?.table(&KEYS)?.len()?;
        if records > 0 {
            tracing::info!(table = KEYS_TABLE, records, "keys counted");
        }
        db.transact(|tx| begin(tx, records.cast_signed()))?;
    }
    Ok(())
}

/// Creates the table of the count, with the sum `records`.
fn begin(tx: &Transaction, records: i64) -> Result<(), Error> {
    tx.table(&COUNT)?.insert(&0, &records)
}

/// Restarts the count at zero, after all records are removed.
pub(super) fn restart(tx: &Transaction) -> Result<(), Error> {
    tx.drop_table(COUNT_TABLE)?;
    begin(tx, 0)
}
