//! Records that arrive or leave with a moving leaf of a cluster, together with their rows in `redis.expiry`
//! (KEY-1).

use azekura::{Error, Transaction};

use super::{EXPIRY, RecordRef};

/// Adds the row of a record that has arrived.
pub(crate) fn attach(tx: &Transaction, key: &[u8], record: &[u8]) -> Result<(), Error> {
    match RecordRef::decode(record)?.expires_ms {
        Some(at) => tx.table(&EXPIRY)?.insert(&(at, key.to_vec()), &()),
        None => Ok(()),
    }
}

/// Removes the row of a record that has left.
pub(crate) fn detach(tx: &Transaction, key: &[u8], record: &[u8]) -> Result<(), Error> {
    match RecordRef::decode(record)?.expires_ms {
        Some(at) => tx.table(&EXPIRY)?.remove(&(at, key.to_vec())).map(drop),
        None => Ok(()),
    }
}
