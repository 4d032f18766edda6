//! Records that arrive or leave with a moving leaf of a cluster, together with their rows in `redis.expiry`
//! (KEY-1) and the numbers of records (COUNT-1).

use azekura::{Error, Transaction};

use super::{EXPIRY, KeyCounts, RecordRef, count};

/// Moves the rows of records that have left or arrived, as the last step of the transaction (COUNT-2).
pub(crate) fn attach(
    tx: &Transaction,
    left: &[(Vec<u8>, Vec<u8>)],
    arrived: &[(Vec<u8>, Vec<u8>)],
) -> Result<(), Error> {
    let rows = tx.table(&EXPIRY)?;
    let mut added = KeyCounts::default();
    for (key, record) in left {
        let expires_ms = RecordRef::decode(record)?.expires_ms;
        if let Some(at) = expires_ms {
            rows.remove(&(at, key.clone()))?;
        }
        added += KeyCounts { records: -1, expiring: -i64::from(expires_ms.is_some()) };
    }
    for (key, record) in arrived {
        let expires_ms = RecordRef::decode(record)?.expires_ms;
        if let Some(at) = expires_ms {
            rows.insert(&(at, key.clone()), &())?;
        }
        added += KeyCounts { records: 1, expiring: i64::from(expires_ms.is_some()) };
    }
    count::add(tx, added)
}
