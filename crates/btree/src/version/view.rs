//! Reads by snapshot: the rows of the leaf, corrected by versions.

use azekura_base::sync::thread;
use azekura_base::{Lsn, PageId};

use super::{SnapshotId, VersionPart, Versions};
use crate::descent::{Descent, Leaf, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::node::Position;
use crate::scan::LeafBatch;
use crate::tree::Tree;

/// Size of the images at which a batch of a snapshot is cut, in bytes: the positions in a batch are 32-bit
/// numbers. The rows of a leaf are far smaller, but one leaf may have the range of all rows that were removed
/// after the snapshot.
const MOST_BATCH_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 30 };

/// The store as it is visible to a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    versions: &'a Versions,
    timestamp: u64,
    all_visible: Lsn,
}

impl<'a> View<'a> {
    /// Returns the view of a snapshot, which must stay open meanwhile.
    #[must_use]
    pub fn new(versions: &'a Versions, snapshot: &SnapshotId) -> Self {
        Self { versions, timestamp: snapshot.timestamp, all_visible: snapshot.all_visible }
    }

    /// Returns `true` if the rows of a leaf with this page LSN are visible to the snapshot unchanged
    /// (VERSION-5).
    pub(crate) fn sees_as_is(&self, page_lsn: Lsn) -> bool {
        page_lsn <= self.all_visible
    }

    /// Returns `true` if the leaf is unchanged since it was read. Called after the look-up of versions.
    pub(crate) fn is_still_valid(&self, leaf: &Leaf<'_>) -> bool {
        self.versions.leaves_out(VersionPart::LastValidation) || leaf.is_valid()
    }

    /// Pauses between the copy of a leaf and the look-up of versions if a test has left out V5, so that a
    /// rollback can run. The leaf is then validated before the pause, and the result is returned.
    pub(crate) fn pause(&self, leaf: &Leaf<'_>) -> bool {
        if !self.versions.leaves_out(VersionPart::LastValidation) {
            return true;
        }
        let is_valid = leaf.is_valid();
        thread::yield_now();
        is_valid
    }

    /// Returns `true` if no row of `tree` is visible to the snapshot, regardless of its leaves. Called once
    /// for each leaf that is not read [as it is](Self::sees_as_is).
    pub(crate) fn is_empty(&self, tree: Tree) -> bool {
        self.versions.lookups.add(1);
        self.versions.is_empty_in(tree.id, self.timestamp)
    }

    /// Replaces rows of `batch` by the rows that are visible to the snapshot. Copies only the replacements.
    /// `batch` holds all rows of the leaf `page` in the range from `from` up to `to` (exclusive; `None`: the
    /// end). The caller validates the leaf afterward (VERSION-2). Returns the last key of the batch if the
    /// rest of the range has more rows than fit.
    pub(crate) fn correct(
        &self,
        (tree, page): (Tree, PageId),
        from: &[u8],
        to: Option<&[u8]>,
        batch: &mut LeafBatch,
        is_ascending: bool,
    ) -> Option<Vec<u8>> {
        let open = || self.versions.open_now();
        let mut changed =
            self.versions.store.resolve_range((tree.id, page), (from, to), self.timestamp, open);
        if self.versions.leaves_out(VersionPart::OuterRows) {
            let ends = (!batch.is_empty()).then(|| (batch.key(0), batch.key(batch.len() - 1)));
            let (least, greatest) = ends.map_or((&[][..], &[][..]), |(a, b)| (a.min(b), a.max(b)));
            changed.retain(|entry| (least..=greatest).contains(&entry.version().key()));
        }
        if changed.is_empty() {
            return None;
        }
        if !is_ascending {
            changed.reverse();
        }
        let rows = batch.take_entries(changed.len());
        let (mut rows, mut changed) = (&rows[..], changed.into_iter());
        let most = batch.used_bytes() + MOST_BATCH_BYTES;
        while batch.used_bytes() < most {
            let Some(entry) = changed.next() else {
                batch.keep(rows);
                return None;
            };
            let key = entry.version().key();
            let comes_before =
                |row: &_| if is_ascending { batch.key_of(row) < key } else { batch.key_of(row) > key };
            let (unchanged, rest) = rows.split_at(rows.partition_point(comes_before));
            let is_in_leaf = rest.first().is_some_and(|row| batch.key_of(row) == key);
            rows = &rest[usize::from(is_in_leaf)..];
            batch.keep(unchanged);
            if let Some(cell) = entry.version().before() {
                batch.push_copy(key, cell.flags, cell.value);
            }
        }
        let is_cut = !rows.is_empty() || changed.len() > 0;
        is_cut.then(|| batch.key(batch.len() - 1).to_vec())
    }
}

/// The state of a key in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRow {
    /// The flags of the key's cell; `None` if the key has no value.
    pub flags: Option<u16>,
    /// The page LSN of the leaf.
    pub page_lsn: Lsn,
}

impl Tree {
    /// Reads the content of the cell of `key` in a snapshot into `out`, replacing what it has; see
    /// [`get_cell`](Self::get_cell). Takes no lock. Versions are looked up only if the leaf has changes above
    /// the snapshot's all-visible LSN.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn get_cell_in(
        &self,
        env: &Env,
        view: View<'_>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<SeenRow, TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = descent.leaf(Seek::Covering(key))?;
            let node = leaf.node();
            out.clear();
            let mut flags = None;
            if let Position::Found(i) = node.search(key) {
                let slot = node.slot(i);
                node.value_into(slot, out);
                flags = Some(slot.flags);
            }
            let page_lsn = node.page().lsn();
            let was_valid = view.pause(&leaf);
            if view.sees_as_is(page_lsn) {
                // No version needs to be looked up.
            } else if view.is_empty(*self) {
                flags = None;
            } else {
                let page = Some(node.page().page_id());
                let before = view.versions.store.resolve((self.id, key, page), view.timestamp, |before| {
                    out.clear();
                    before.map(|cell| {
                        out.extend_from_slice(cell.value);
                        cell.flags
                    })
                });
                flags = before.unwrap_or(flags);
            }
            if view.is_still_valid(&leaf) && was_valid {
                return Ok(SeenRow { flags, page_lsn });
            }
            descent.changed()?;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_base::TreeId;

    use super::*;
    use crate::node::Cell;
    use crate::undo::{UndoLog, UndoOp};

    const TREE: Tree = Tree { id: TreeId(1), root: PageId(7) };

    /// Reads a range in batches, as a scan does; returns the keys, and the number of batches. `leaf` has the
    /// present rows.
    fn read(view: &View<'_>, leaf: &[Vec<u8>], is_ascending: bool) -> (Vec<Vec<u8>>, usize) {
        let (mut from, mut to, mut keys, mut batches) = (Vec::new(), None::<Vec<u8>>, Vec::new(), 0);
        loop {
            let is_inside = |key: &&Vec<u8>| **key >= from && to.as_ref().is_none_or(|to| *key < to);
            let mut rows: Vec<_> = leaf.iter().filter(is_inside).collect();
            if !is_ascending {
                rows.reverse();
            }
            let mut batch = LeafBatch::new();
            rows.into_iter().for_each(|key| batch.push_copy(key, 0, &[1; 100]));
            let of_leaf = batch.used_bytes();
            let cut = view.correct((TREE, PageId(7)), &from, to.as_deref(), &mut batch, is_ascending);
            assert!(batch.used_bytes() < of_leaf + MOST_BATCH_BYTES + 300);
            keys.extend((0..batch.len()).map(|i| batch.key(i).to_vec()));
            batches += 1;
            let Some(last) = cut else { return (keys, batches) };
            if is_ascending {
                from = [&last[..], &[0]].concat();
            } else {
                to = Some(last);
            }
        }
    }

    /// A removal of many rows leaves one leaf for their whole range.
    #[test]
    fn a_batch_is_cut_before_its_positions_overflow() {
        let versions = Versions::new(64 << 20);
        let id = versions.open(|_| Ok::<(), ()>(()), || Lsn(0), || TreeId(9)).expect("opens");
        let mut undo = UndoLog::new();
        let all: Vec<Vec<u8>> = (0..200_u16).map(|n| n.to_be_bytes().to_vec()).collect();
        let (present, removed): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|key| key[1] % 3 == 0);
        for key in &removed {
            let cell = Cell { flags: 0, value: &[7; 200] };
            versions.before_change(&mut undo, &UndoOp::PutBack { tree: TREE, key, cell }, None);
        }
        let view = View::new(&versions, &id);
        for is_ascending in [true, false] {
            let (mut keys, batches) = read(&view, &present, is_ascending);
            if !is_ascending {
                keys.reverse();
            }
            assert!(keys == all && batches > 5, "{} rows in {batches} batches", keys.len());
        }
        versions.close(&id);
    }
}
