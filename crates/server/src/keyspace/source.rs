//! The source of reads: a transaction, which locks keys, or a snapshot.

use std::ops::ControlFlow;

use azekura::{Error, RowRef, Snapshot, SnapshotTable, Table, Transaction, ValueRef};

use super::range::Bounds;
use super::{Walk, record};
use crate::error::{CommandError, Failure};

pub(super) enum Source<'tx> {
    Transaction(&'tx Transaction, Table<'tx, [u8], [u8]>),
    Snapshot(&'tx Snapshot, SnapshotTable<'tx, [u8], [u8]>),
}

/// A callback with a key and its record, or the first bytes of the record. The callback may break the walk.
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

    pub(super) fn prefetch<'q>(&self, keys: impl IntoIterator<Item = &'q [u8]>) -> Result<usize, Error> {
        match self {
            Self::Transaction(_, table) => table.prefetch(keys),
            Self::Snapshot(_, table) => table.prefetch(keys),
        }
    }

    pub(super) fn with_value<T>(
        &self,
        key: &[u8],
        each: impl FnOnce(ValueRef<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::Transaction(_, keys) => keys.with_value(key, each),
            Self::Snapshot(_, keys) => keys.with_value(key, each),
        }
    }

    pub(super) fn walk(&self, bounds: Bounds<'_>, walk: Walk, one: One<'_>) -> Result<(), Failure> {
        let each = |row: RowRef<'_, [u8], [u8]>| {
            let flow = match walk {
                Walk::Forward | Walk::Backward => one(row.key_bytes(), &row.value_ref().bytes()?),
                Walk::KeysForward => {
                    let mut head = [0; record::MAX_HEAD_BYTES];
                    let len = row.value_ref().read_at(0, &mut head)?;
                    one(row.key_bytes(), &head[..len])
                }
            };
            flow.map_err(Error::from)
        };
        match (self, walk) {
            (Self::Transaction(_, keys), Walk::Backward) => keys.for_each_back(bounds, each)?,
            (Self::Snapshot(_, keys), Walk::Backward) => keys.for_each_back(bounds, each)?,
            (Self::Transaction(_, keys), _) => keys.for_each(bounds, each)?,
            (Self::Snapshot(_, keys), _) => keys.for_each(bounds, each)?,
        }
        Ok(())
    }
}
