//! Creation of the tables of the keys.

use azekura::{Database, Error, Transaction};

use super::record::{self, Form};
use super::{EXPIRY, EXPIRY_TABLE, KEYS, KEYS_TABLE, count};

/// Prepares the tables before the server starts.
pub(crate) fn prepare(db: &Database) -> Result<(), Error> {
    db.transact(make_tables)?;
    count::prepare(db)
}

/// Creates missing tables. Otherwise the transaction that adds the first row would create them, and all
/// clients would wait for the end of that transaction, which may be interactive.
pub(super) fn make_tables(tx: &Transaction) -> Result<(), Error> {
    if !tx.table_exists(KEYS_TABLE)? {
        let keys = tx.table(&KEYS)?;
        record::encoded(b"", None, Form::Assigned, |bytes| keys.insert(b"", bytes))?;
        keys.remove(b"")?;
    }
    if !tx.table_exists(EXPIRY_TABLE)? {
        let (rows, row) = (tx.table(&EXPIRY)?, (0, Vec::new()));
        rows.insert(&row, &())?;
        rows.remove(&row)?;
    }
    Ok(())
}

/// Writes to the log, and changes nothing. Waits for no lock.
pub(crate) fn change_nothing(tx: &Transaction) -> Result<(), Error> {
    tx.set_nowait(true)?;
    let (rows, row) = (tx.table(&EXPIRY)?, (0, Vec::new()));
    rows.insert(&row, &())?;
    rows.remove(&row).map(drop)
}
