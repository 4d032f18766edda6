//! Iteration over a table's leaves, for copies that omit unchanged leaves.

use std::ops::Bound::Unbounded;

use azekura_base::{Lsn, TreeId};
use azekura_btree::{LeafBatch, Scan, Tree};

use super::Snapshot;
use crate::Error;
use crate::catalog::CATALOG;

/// The rows of one table of a snapshot, leaf by leaf.
#[derive(Debug)]
pub(crate) struct Leaves<'s> {
    snapshot: &'s Snapshot,
    scan: Option<Scan>,
    rows: LeafBatch,
    large: Vec<u8>,
}

impl<'s> Leaves<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, tree: Option<Tree>) -> Self {
        let scan = tree.map(|tree| Scan::new(tree, Unbounded, Unbounded));
        Self { snapshot, scan, rows: LeafBatch::new(), large: Vec::new() }
    }

    /// Returns the key at which the next leaf begins; `None` at the end of the table.
    pub(crate) fn position(&self) -> Option<&[u8]> {
        self.scan.as_ref().filter(|scan| !scan.is_done()).map(Scan::position)
    }

    /// Reads the next leaf with rows, and leaves without rows before it. Returns the largest page LSN of
    /// these leaves; Returns `None` at the end of the table.
    pub(crate) fn advance(&mut self) -> Result<Option<Lsn>, Error> {
        let snapshot = self.snapshot;
        self.rows.clear();
        let Some(scan) = self.scan.as_mut().filter(|scan| !scan.is_done()) else { return Ok(None) };
        snapshot.db().lifetime.check_process()?;
        let found = scan.next_batch_in(&snapshot.db().env, snapshot.view(), usize::MAX, &mut self.rows);
        // Checked first, because a snapshot that is too old may read freed pages, which are not damage.
        snapshot.checked(())?;
        let newest = found.map_err(|error| snapshot.failed(error))?;
        let last_commit = || snapshot.db().locks.table_dependency(scan.tree().id);
        snapshot.inner.durability.note(newest, last_commit);
        Ok(Some(newest))
    }

    /// Returns the number of rows in the leaf that was read last.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns key and value of row `i` of the leaf that was read last; reads the pages of a large value.
    pub(crate) fn row(&mut self, i: usize) -> Result<(&[u8], &[u8]), Error> {
        self.large.clear();
        let read = self.rows.read_value(&self.snapshot.db().env, i, &mut self.large);
        self.snapshot.checked(())?;
        read.map_err(|error| self.snapshot.failed(error))?;
        Ok((self.rows.key(i), &self.large))
    }
}

impl Snapshot {
    /// Returns `true` if a leaf of the catalog may have a change above `lsn`: a table was created, renamed or
    /// dropped.
    pub(crate) fn has_catalog_changed_since(&self, lsn: Lsn) -> Result<bool, Error> {
        let mut leaves = Leaves::new(self, Some(CATALOG));
        while let Some(newest) = leaves.advance()? {
            if newest > lsn {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the leaves of the table with this name and tree.
    pub(crate) fn leaves(&self, name: &str, tree: TreeId) -> Result<Leaves<'_>, Error> {
        let found = self.tree(name, None)?.filter(|found| found.id == tree);
        Ok(Leaves::new(self, found))
    }
}
