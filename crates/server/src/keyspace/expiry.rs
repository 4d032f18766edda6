//! Removal of expired records, in bounded steps. Reads do not depend on it (KEY-2); it frees space.

use azekura::{Error, Transaction};

use super::{EXPIRY, KEYS, RecordRef, count};

/// Maximum of keys removed in one step. The step holds the locks of all of them.
const BATCH_KEYS: usize = 128;

/// Returns the expired rows of `redis.expiry`, the earliest first.
fn due(tx: &Transaction, now_ms: u64) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let end = (now_ms.saturating_add(1), Vec::new());
    let rows = tx.table(&EXPIRY)?.range(..end).take(BATCH_KEYS);
    rows.map(|row| row.map(|(row, ())| row)).collect()
}

/// Removes the records of `due` that still have that expiry, and the rows. Returns the number of removed
/// records.
///
/// An earlier transaction has read the rows and released its locks. So this one can acquire the lock of a key
/// before the lock of its row (KEY-4).
fn remove_due(tx: &Transaction, due: &[(u64, Vec<u8>)], keeps_count: bool) -> Result<usize, Error> {
    let (keys, rows) = (tx.table(&KEYS)?, tx.table(&EXPIRY)?);
    let (mut removed, mut added) = (0, 0);
    for row in due {
        let (at, key) = row;
        let end = match keys.get_for_update(key)? {
            None => None,
            Some(bytes) => RecordRef::decode(&bytes)?.expires_ms,
        };
        if end == Some(*at) {
            keys.remove(key)?;
            removed += 1;
            added -= 1;
        }
        rows.remove(row)?;
    }
    if keeps_count {
        count::add(tx, added)?;
    }
    Ok(removed)
}

/// Returns the next expiry of a key, in milliseconds since 1970; `None` if no key expires.
fn next_expiry_ms(tx: &Transaction) -> Result<Option<u64>, Error> {
    tx.table(&EXPIRY)?.iter().next().map(|row| row.map(|((at, _), ())| at)).transpose()
}

/// Result of one removal step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Number of removed records.
    pub(crate) records: usize,
    /// More expired records may remain.
    pub(crate) is_more: bool,
    /// Time of the next expiry, if any. No record had expired in this step.
    pub(crate) next_ms: Option<u64>,
}

/// Runs one removal step. `keeps_count`: the store keeps the number of records.
pub(crate) fn remove_expired(
    db: &azekura::Database,
    now_ms: u64,
    keeps_count: bool,
) -> Result<Dropped, Error> {
    let look = |tx: &Transaction| Ok((due(tx, now_ms)?, next_expiry_ms(tx)?));
    let ((due, next_ms), _ticket) = db.transact_deferred_flush(look)?;
    if due.is_empty() {
        return Ok(Dropped { next_ms, ..Dropped::default() });
    }
    // Does not wait for durability: records that return after a crash have expired, so no command finds them.
    let (removed, _ticket) = db.transact_deferred_flush(|tx| remove_due(tx, &due, keeps_count))?;
    Ok(Dropped { records: removed, is_more: due.len() == BATCH_KEYS, next_ms: Some(now_ms) })
}
