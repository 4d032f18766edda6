//! Reads by snapshot: the rows of the leaf, corrected by versions.

use azekura_base::Lsn;
use azekura_base::sync::thread;

use super::sorted::Entry;
use super::{SnapshotId, VersionPart, Versions};
use crate::descent::{Descent, Leaf, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::node::Position;
use crate::scan::LeafBatch;
use crate::tree::{Tree, load_if_large};

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

    /// Replaces rows of `batch` by the rows that are visible to the snapshot. `batch` holds all rows of the
    /// range from `from` up to `to` (exclusive; `None`: the end). The caller validates the leaf afterwards
    /// (VERSION-2).
    pub(crate) fn correct(
        &self,
        tree: Tree,
        from: &[u8],
        to: Option<&[u8]>,
        batch: &mut LeafBatch,
        is_ascending: bool,
    ) {
        let mut changed = self.versions.store.resolve_range(tree.id, from, to, self.timestamp);
        if self.versions.leaves_out(VersionPart::OuterRows) {
            let ends = (!batch.is_empty()).then(|| (batch.key(0), batch.key(batch.len() - 1)));
            let (least, greatest) = ends.map_or((&[][..], &[][..]), |(a, b)| (a.min(b), a.max(b)));
            changed.retain(|entry| (least..=greatest).contains(&entry.version().key()));
        }
        if changed.is_empty() {
            return;
        }
        if !is_ascending {
            changed.reverse();
        }
        let mut corrected = LeafBatch::new();
        let mut changed = changed.into_iter().peekable();
        let push = |corrected: &mut LeafBatch, entry: &Entry| {
            let version = entry.version();
            if let Some(cell) = version.before() {
                corrected.push_copy(version.key(), cell.flags, cell.value);
            }
        };
        for i in 0..batch.len() {
            let key = batch.key(i);
            let comes_before = |other: &[u8]| if is_ascending { other < key } else { other > key };
            while let Some(entry) = changed.next_if(|entry| comes_before(entry.version().key())) {
                push(&mut corrected, &entry);
            }
            match changed.next_if(|entry| entry.version().key() == key) {
                Some(entry) => push(&mut corrected, &entry),
                None => corrected.push_from(batch, i),
            }
        }
        changed.for_each(|entry| push(&mut corrected, &entry));
        *batch = corrected;
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
    /// Reads the value of `key` in a snapshot into `out`, replacing its content. Takes no lock. The cost is
    /// that of [`get`](Self::get). Versions are looked up only if the leaf has changes above the snapshot's
    /// all-visible LSN.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn get_in(
        &self,
        env: &Env,
        view: View<'_>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<SeenRow, TreeError> {
        let seen = self.get_cell_in(env, view, key, out)?;
        seen.flags.map_or(Ok(()), |flags| load_if_large(env, flags, out))?;
        Ok(seen)
    }

    /// Reads the content of the cell of `key` in a snapshot, as [`get_in`](Self::get_in) does for values; see
    /// [`get_cell`](Self::get_cell).
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
                let before = view.versions.store.resolve(self.id, key, view.timestamp, |before| {
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
