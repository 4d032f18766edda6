//! Removal of expired records, in bounded steps. Reads do not depend on it (KEY-2); it frees space.
//!
//! The removal waits for no lock of a client's transaction, which may stay open for seconds. While it waited,
//! other clients would wait for the locks that it holds. A key that is locked, or that is before an
//! uncommitted key, is left to a later step.

use azekura::{Error, Table, Transaction};

use super::{EXPIRY, KEYS, KeyCounts, RecordRef, count};

/// Maximum of keys removed in one step. The step holds the locks of all of them.
const BATCH_KEYS: usize = 128;

/// Returns the expired rows of `redis.expiry` that are not locked, the earliest first.
fn due(tx: &Transaction, now_ms: u64) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let end = (now_ms.saturating_add(1), Vec::new());
    let rows = tx.table(&EXPIRY)?.skip_locked();
    let rows = rows.range_for_update(..end).take(BATCH_KEYS);
    rows.map(|row| row.map(|(row, ())| row)).collect()
}

/// Removes the records of `due` that still have that expiry and are not locked, and the rows. Returns the
/// number of removed records.
///
/// An earlier transaction has read the rows and released its locks. So this one can acquire the lock of a key
/// before the lock of its row (KEY-4).
fn remove_due(tx: &Transaction, due: &[(u64, Vec<u8>)]) -> Result<usize, Error> {
    tx.set_nowait(true)?;
    let (keys, rows) = (tx.table(&KEYS)?, tx.table(&EXPIRY)?);
    let (mut removed, mut added) = (0, KeyCounts::default());
    for row in due {
        let before = tx.savepoint()?;
        match remove_one(&keys, &rows, row) {
            Ok(false) => {}
            Ok(true) => {
                removed += 1;
                added += KeyCounts { records: -1, expiring: -1 };
            }
            Err(Error::WouldBlock { .. }) => tx.rollback_to(before)?,
            Err(error) => return Err(error),
        }
    }
    // Waits at most for other commits, because the row of the numbers is locked last (COUNT-2).
    tx.set_nowait(false)?;
    count::add(tx, added)?;
    Ok(removed)
}

/// Removes a row, and its record if the record still has that expiry. Returns `true` if the record is
/// removed.
fn remove_one(
    keys: &Table<'_, [u8], [u8]>,
    rows: &Table<'_, (u64, Vec<u8>), ()>,
    row: &(u64, Vec<u8>),
) -> Result<bool, Error> {
    let (at, key) = row;
    let end = match keys.get_for_update(key)? {
        None => None,
        Some(bytes) => RecordRef::decode(&bytes)?.expires_ms,
    };
    let is_expired = end == Some(*at);
    if is_expired {
        keys.remove(key)?;
    }
    rows.remove(row)?;
    Ok(is_expired)
}

/// Returns the next expiry of a key that is not locked, in milliseconds since 1970; `None` if there is none.
fn next_expiry_ms(tx: &Transaction) -> Result<Option<u64>, Error> {
    Ok(tx.table(&EXPIRY)?.skip_locked().first_for_update()?.map(|((at, _), ())| at))
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

/// Runs one removal step.
///
/// # Errors
///
/// [`Error::WouldBlock`]: a transaction has locked the whole table, as `FLUSHALL` does. A later step removes
/// the keys.
pub(crate) fn remove_expired(db: &azekura::Database, now_ms: u64) -> Result<Dropped, Error> {
    let look = |tx: &Transaction| {
        tx.set_nowait(true)?;
        Ok((due(tx, now_ms)?, next_expiry_ms(tx)?))
    };
    let ((due, next_ms), _ticket) = db.transact_deferred_flush(look)?;
    if due.is_empty() {
        return Ok(Dropped { next_ms, ..Dropped::default() });
    }
    // Does not wait for durability: records that return after a crash have expired, so no command finds them.
    let (removed, _ticket) = db.transact_deferred_flush(|tx| remove_due(tx, &due))?;
    let is_more = removed > 0 && due.len() == BATCH_KEYS;
    Ok(Dropped { records: removed, is_more, next_ms: Some(now_ms) })
}

#[cfg(test)]
mod tests {
    use azekura::Database;

    use super::*;
    use crate::keyspace::{EXPIRY_TABLE, prepare};

    /// Otherwise the thread that removes expired keys, and a stop of the server, which waits for this thread,
    /// would wait for the end of an interactive transaction with `FLUSHALL`.
    #[test]
    fn a_table_that_a_transaction_has_locked_is_not_waited_for() {
        let db = Database::in_memory().expect("memory");
        prepare(&db).expect("the store works");
        let tx = db.begin().expect("the store is open");
        tx.drop_table(EXPIRY_TABLE).expect("the store works");
        assert!(matches!(remove_expired(&db, 1), Err(Error::WouldBlock { .. })));
        tx.abort().expect("it is open");
        assert_eq!(remove_expired(&db, 1).expect("nothing is locked"), Dropped::default());
    }
}
