//! Sources of the rows of tables.

use std::sync::{Arc, Weak};

use azekura::OwnedSnapshotTable;

use crate::Store;
use crate::snapshot::SnapshotCell;
use crate::transaction::SharedTx;

/// The source of a table's rows.
#[derive(Clone)]
pub(crate) enum Scope {
    /// A database: each operation is one transaction.
    Database(Arc<Store>),
    Transaction(SharedTx),
    /// A table of a snapshot, which is looked up once, and the snapshot, which has the table until it is
    /// closed.
    Snapshot(Arc<SnapshotCell>, Weak<OpenTable>),
}

impl Scope {
    /// Returns the identity of the store.
    pub(super) fn store(&self) -> Weak<Store> {
        match self {
            Self::Database(store) => Arc::downgrade(store),
            Self::Transaction(shared) => Weak::clone(&shared.store),
            Self::Snapshot(cell, _) => Weak::clone(&cell.store),
        }
    }
}

/// A table of a snapshot. Its store is freed after it, and closes without the GIL.
pub(crate) struct OpenTable {
    pub(super) table: OwnedSnapshotTable<[u8], [u8]>,
    pub(super) _store: Arc<Store>,
}
