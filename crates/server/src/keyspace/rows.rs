//! Records that come and go whole, with a leaf of a cluster that moves: their rows in `redis.expiry` go along
//! (KEY-1).

use azekura::{Error, Transaction};

use super::{EXPIRY, RecordRef};

/// A record came.
pub(crate) fn attach(tx: &Transaction, key: &[u8], record: &[u8]) -> Result<(), Error> {
    match RecordRef::decode(record)?.expires_ms {
        Some(at) => tx.table(&EXPIRY)?.insert(&(at, key.to_vec()), &()),
        None => Ok(()),
    }
}

/// A record went.
pub(crate) fn detach(tx: &Transaction, key: &[u8], record: &[u8]) -> Result<(), Error> {
    match RecordRef::decode(record)?.expires_ms {
        Some(at) => tx.table(&EXPIRY)?.remove(&(at, key.to_vec())).map(drop),
        None => Ok(()),
    }
}
