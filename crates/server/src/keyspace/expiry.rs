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

/// One step: says how many records it removed, and whether there may be more.
pub(crate) fn drop_ended(db: &azekura::Database, now_ms: u64) -> Result<(usize, bool), Error> {
    let due = db.transact_deferred_flush(|tx| due(tx, now_ms)).map(|(due, _)| due)?;
    if due.is_empty() {
        return Ok((0, false));
    }
    // Nobody waits for it: a crash brings records back that have ended, and ended they stay.
    let (removed, _ticket) = db.transact_deferred_flush(|tx| remove_due(tx, &due))?;
    Ok((removed, due.len() == BATCH_KEYS))
}
