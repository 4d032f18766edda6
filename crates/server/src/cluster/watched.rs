//! Watched keys in a cluster: their digests at `WATCH`, compared in the transaction of `EXEC`.
//!
//! The owner keeps no state for a client that watches a key, so the key's leaf may move meanwhile and its
//! node may restart. A key that was changed back to the same value and expiry counts as unchanged, unless the
//! client has used it in between:
//!
//! - **WATCHED-1** A command of the client with watched keys compares them with their digests in its own
//!   transaction, before and after it runs. After a difference the key counts as changed, even if it is
//!   changed back before `EXEC`. So all values that the client has read since `WATCH` are the present ones
//!   when the queue runs, and the transaction is serializable.
//! - **WATCHED-2** If the outcome of such a command is unknown, its watched keys count as changed.
//!
//! Commands over ranges of keys (`AZ.RANGE`, `SCAN`) do not compare.

use azekura_fatbtree::{Key, Target, Work};
use sha2::{Digest, Sha256};

use super::Cluster;
use super::wire::{self, Bytes, Call};
use crate::error::{CommandError, Failure};
use crate::keyspace::{Keyspace, RecordRef};

/// Digest of a key's value and expiry; `None`: the key does not exist.
pub(crate) type Fingerprint = Option<Bytes>;

/// Digest of a key that has changed: no value has it.
pub(crate) const CHANGED: Fingerprint = Some(Bytes(Vec::new()));

/// The keys that a client watches, with their digests.
pub(crate) type Watched = Vec<(Bytes, Fingerprint)>;

fn fingerprint_of(record: RecordRef<'_>) -> Bytes {
    let mut digest = Sha256::new();
    // The expiry has a fixed size in the digest, so that no value without an expiry equals another value with
    // one.
    digest.update([u8::from(record.expires_ms.is_some())]);
    digest.update(record.expires_ms.unwrap_or(0).to_le_bytes());
    digest.update(record.value);
    Bytes(digest.finalize().to_vec())
}

/// Returns the present digest of a key.
pub(super) fn look(keys: &Keyspace<'_>, key: &[u8]) -> Result<Fingerprint, Failure> {
    keys.look(key, fingerprint_of)
}

/// Returns `true` if all watched keys are unchanged. First takes write locks if writes follow, because two
/// transactions that both read and then write would deadlock.
pub(super) fn are_unchanged(
    keys: &Keyspace<'_>,
    watched: &[(Bytes, Fingerprint)],
    writes: bool,
) -> Result<bool, Failure> {
    for (key, before) in watched {
        if writes {
            keys.lock(&key.0)?;
        }
        if look(keys, &key.0)? != *before {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Cluster {
    /// Returns the digest of a key of any node.
    pub(crate) fn fingerprint(&self, key: &[u8]) -> Result<Fingerprint, CommandError> {
        let work = Work::Run { is_write: false, others: Vec::new(), bytes: wire::encode(&Call::Look) };
        let (answer, _) = self.ask(Target::At(Key::from(key)), work)?;
        wire::decode(&answer)
    }
}
