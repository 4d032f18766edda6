//! The source of reads: a transaction, which locks keys, or a snapshot.

use std::ops::ControlFlow;

use azekura::{Error, Snapshot, SnapshotTable, Table, Transaction};

use super::{Bounds, Walk, record};
use crate::error::{CommandError, Failure};

pub(super) enum Source<'tx> {
    Transaction(&'tx Transaction, Table<'tx, [u8], [u8]>),
    Snapshot(&'tx Snapshot, SnapshotTable<'tx, [u8], [u8]>),
}

/// A callback with a key and its record, or the first bytes of it; it may break the walk.
type One<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Failure>;

impl<'tx> Source<'tx> {
    /// Returns the transaction with its table, for locks and changes.
    pub(super) const fn transaction(
        &self,
    ) -> Result<(&'tx Transaction, &Table<'tx, [u8], [u8]>), CommandError> {
        match self {
            Self::Transaction(tx, keys) => Ok((*tx, keys)),
            Self::Snapshot(..) => Err(CommandError::ReadOnly),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Self::Transaction(_, keys) => keys.get(key),
            Self::Snapshot(_, keys) => keys.get(key),
        }
    }

    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        each: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::Transaction(_, keys) => keys.with_value(key, each),
            Self::Snapshot(_, keys) => keys.with_value(key, each),
        }
    }

    pub(super) fn walk(&self, bounds: Bounds<'_>, walk: Walk, one: One<'_>) -> Result<(), Failure> {
        match (self, walk) {
            (Self::Transaction(_, keys), Walk::Backward) => backward(keys.range(bounds).rev(), one)?,
            (Self::Snapshot(_, keys), Walk::Backward) => backward(keys.range(bounds).rev(), one)?,
            (Self::Transaction(_, keys), Walk::Forward) => {
                keys.for_each(bounds, |row| one(row.key_bytes(), row.value_bytes()).map_err(Error::from))?;
            }
            (Self::Snapshot(_, keys), Walk::Forward) => {
                keys.for_each(bounds, |row| one(row.key_bytes(), row.value_bytes()).map_err(Error::from))?;
            }
            (Self::Transaction(_, keys), Walk::KeysForward) => {
                let one = |key: &[u8], start: &[u8]| one(key, start).map_err(Error::from);
                keys.for_each_value_prefix(bounds, record::MAX_HEAD_BYTES, one)?;
            }
            (Self::Snapshot(_, keys), Walk::KeysForward) => {
                let one = |key: &[u8], start: &[u8]| one(key, start).map_err(Error::from);
                keys.for_each_value_prefix(bounds, record::MAX_HEAD_BYTES, one)?;
            }
        }
        Ok(())
    }
}

fn backward(
    rows: impl Iterator<Item = Result<(Vec<u8>, Vec<u8>), Error>>,
    one: One<'_>,
) -> Result<(), Failure> {
    for row in rows {
        let (key, bytes) = row?;
        if one(&key, &bytes)?.is_break() {
            break;
        }
    }
    Ok(())
}
