//! Removal of what has ended, in bounded steps. Readers do not need it (KEY-2): it gives the space back.

use azekura::{Error, Transaction};

use super::{EXPIRY, KEYS, RecordRef};

/// Keys that one step removes at most; it holds their locks together.
const BATCH_KEYS: usize = 128;

/// Expired rows of `redis.expiry`, the earliest first.
fn due(tx: &Transaction, now_ms: u64) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let end = (now_ms.saturating_add(1), Vec::new());
    let rows = tx.table(&EXPIRY)?.range(..end).take(BATCH_KEYS);
    rows.map(|row| row.map(|(row, ())| row)).collect()
}

/// Removes the records of `due` that are still as it says, and the rows; says how many records.
///
/// The rows were read by a transaction before this one, which holds none of its locks: a key's lock comes
/// before its row's (KEY-4).
fn remove_due(tx: &Transaction, due: &[(u64, Vec<u8>)]) -> Result<usize, Error> {
    let (keys, rows) = (tx.table(&KEYS)?, tx.table(&EXPIRY)?);
    let mut removed = 0;
    for row in due {
        let (at, key) = row;
        let end = match keys.get_for_update(key)? {
            None => None,
            Some(bytes) => RecordRef::decode(&bytes)?.expires_ms,
        };
        if end == Some(*at) {
            keys.remove(key)?;
            removed += 1;
        }
        rows.remove(row)?;
    }
    Ok(removed)
}

/// The time at which the next key ends, in milliseconds since 1970; `None`: no key ends.
fn next_expiry_ms(tx: &Transaction) -> Result<Option<u64>, Error> {
    tx.table(&EXPIRY)?.iter().next().map(|row| row.map(|((at, _), ())| at)).transpose()
}

/// The result of a step of the removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Records that it removed.
    pub(crate) records: usize,
    /// There may be more to remove now.
    pub(crate) is_more: bool,
    /// Nothing was due: when the next key ends, if one does.
    pub(crate) next_ms: Option<u64>,
}

/// One step: removes records that have ended.
pub(crate) fn remove_expired(db: &azekura::Database, now_ms: u64) -> Result<Dropped, Error> {
    let look = |tx: &Transaction| Ok((due(tx, now_ms)?, next_expiry_ms(tx)?));
    let ((due, next_ms), _ticket) = db.transact_deferred_flush(look)?;
    if due.is_empty() {
        return Ok(Dropped { next_ms, ..Dropped::default() });
    }
    // Nobody waits for it: a crash brings records back that have ended, and ended they stay.
    let (removed, _ticket) = db.transact_deferred_flush(|tx| remove_due(tx, &due))?;
    Ok(Dropped { records: removed, is_more: due.len() == BATCH_KEYS, next_ms: Some(now_ms) })
}
