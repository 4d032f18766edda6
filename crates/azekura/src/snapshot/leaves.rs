//! Iteration over a table's leaves, for copies that omit unchanged leaves.

use std::ops::Bound::Unbounded;

use azekura_base::{Lsn, TreeId};
use azekura_btree::{ChainReader, LeafBatch, Scan, Tree};

use super::Snapshot;
use crate::Error;
use crate::catalog::CATALOG;
use crate::transaction::Next;
use crate::value_ref::ValueRef;

/// Number of bytes of a large value that are copied at once.
const PART_BYTES: usize = 256 << 10;

/// The rows of one table of a snapshot, leaf by leaf.
#[derive(Debug)]
pub(crate) struct Leaves<'s> {
    snapshot: &'s Snapshot,
    scan: Option<Scan>,
    rows: LeafBatch,
    /// The large value that is being copied.
    large: Option<Large<'s>>,
}

/// The rest of a large value.
#[derive(Debug)]
struct Large<'s> {
    pages: ChainReader<'s>,
    /// Number of bytes that were not copied yet.
    bytes_left: u64,
}

impl<'s> Leaves<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, tree: Option<Tree>) -> Self {
        let scan = tree.map(|tree| Scan::new(tree, Unbounded, Unbounded));
        Self { snapshot, scan, rows: LeafBatch::new(), large: None }
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

    /// Returns key and value of row `i` of the leaf that was read last.
    pub(crate) fn row(&self, i: usize) -> Result<(&[u8], ValueRef<'_>), Error> {
        let (key, cell) = self.rows.row(i);
        ValueRef::check(cell)?;
        Ok((key, ValueRef::seen(cell, self.snapshot)))
    }

    /// Appends key and value of row `i` to two buffers; of a large value, the first part. After
    /// [`Next::Part`], [`copy_part`](Self::copy_part) has the next part.
    pub(crate) fn copy_row(
        &mut self,
        i: usize,
        key: &mut Vec<u8>,
        value: &mut Vec<u8>,
    ) -> Result<Next, Error> {
        let (bytes, found) = self.row(i)?;
        key.extend_from_slice(bytes);
        let Some(reference) = found.large() else {
            value.extend_from_slice(&found.bytes()?);
            return Ok(Next::Row);
        };
        let pages = ChainReader::new(&self.snapshot.db().env, reference);
        let pages = pages.map_err(|error| self.snapshot.failed(error))?;
        self.large = Some(Large { pages, bytes_left: reference.len });
        self.copy_part(value)
    }

    /// Appends the next part of a large value to `out`.
    pub(crate) fn copy_part(&mut self, out: &mut Vec<u8>) -> Result<Next, Error> {
        let Some(large) = &mut self.large else { return Ok(Next::Row) };
        let begin = out.len();
        let read = loop {
            match large.pages.next_page(out) {
                Ok(true) if out.len() - begin < PART_BYTES => {}
                done => break done,
            }
        };
        self.snapshot.checked(())?;
        read.map_err(|error| self.snapshot.failed(error))?;
        large.bytes_left = large.bytes_left.saturating_sub((out.len() - begin) as u64);
        Ok(if large.bytes_left > 0 { Next::Part } else { Next::Row })
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
