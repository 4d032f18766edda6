//! The steps of the version store for interleaving models: the production code, on a tree without pages.

use azekura_base::{Lsn, PageId, TreeId};

use super::sparse::{InPlace, LeftOut};
use super::store::image_of;
use super::{SnapshotId, Versions};
use crate::node::Cell;
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};

const TREE: Tree = Tree { id: TreeId(1), root: PageId(2) };

/// Performs the step before a row appears, under the mutex of the undo log. Pushes the entry for the row.
pub fn before_insert(versions: &Versions, undo: &mut UndoLog, key: &[u8]) {
    let op = UndoOp::RemoveKey { tree: TREE, key };
    versions.before_change(undo, &op, None);
    undo.push(&op);
}

/// Performs the step of a backfill for each row that a transaction has inserted.
pub fn backfill_inserts(versions: &Versions, undo: &mut UndoLog) {
    undo.writer.status(versions);
    let keys: Vec<Vec<u8>> = undo.iter().filter_map(inserted).collect();
    undo.writer.kept_in = versions.mode();
    for key in keys {
        versions.install(&mut undo.writer, (TREE.id, &key, None), versions.mode(), || None);
    }
}

fn inserted(op: UndoOp<'_>) -> Option<Vec<u8>> {
    match op {
        UndoOp::RemoveKey { key, .. } => Some(key.to_vec()),
        _ => None,
    }
}

/// Performs the step before a row of the leaf changes, under the mutex of the undo log. Pushes the entry for
/// the change.
pub fn before_update(versions: &Versions, undo: &mut UndoLog, key: &[u8]) {
    let op = UndoOp::PutBack { tree: TREE, key, cell: Cell { flags: 0, value: b"" } };
    versions.before_change(undo, &op, None);
    undo.push(&op);
}

/// A row of a leaf: its key, its page, and the page LSN.
#[derive(Clone, Copy, Debug)]
pub struct RowAt<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The leaf.
    pub page: PageId,
    /// The page LSN of the leaf.
    pub page_lsn: Lsn,
}

/// Performs the steps of a change in place of a row with this `value`, under the mutex of the undo log and
/// the latch of the leaf. `change` changes the leaf and returns the LSN of the change.
pub fn change_in_place(
    versions: &Versions,
    undo: &mut UndoLog,
    row: RowAt<'_>,
    value: &[u8],
    change: impl FnOnce() -> Lsn,
) {
    let (tree, key) = (Tree { root: row.page, ..TREE }, row.key);
    let op = UndoOp::PutBack { tree, key, cell: Cell { flags: 0, value } };
    let in_place = InPlace { page: row.page, page_lsn: row.page_lsn, slot: 0 };
    let mode = versions.mode();
    let marks = (!mode.is_multiple_of(2)).then(|| {
        versions.store_unless_marked(undo, &op, Some(in_place), mode, |writer| {
            let image = || image_of(Cell { flags: 0, value });
            versions.install(writer, (tree.id, key, Some(row.page)), mode, image)
        })
    });
    let lsn = change();
    if let Some(Some(marks)) = marks {
        marks.done(lsn);
    }
    undo.push(&op);
}

/// Performs the step of a backfill for the rows that a transaction has changed in place.
pub fn backfill_changes(versions: &Versions, undo: &mut UndoLog) {
    let is_complete = undo.writer.kept_in == versions.mode();
    let count = if is_complete { undo.writer.left_out.first } else { undo.len() };
    undo.writer.status(versions);
    let mut rows = Vec::new();
    for op in (0..count).filter_map(|i| undo.get(i)) {
        if let UndoOp::PutBack { tree, key, cell } = op {
            rows.push((tree, key.to_vec(), cell.value.to_vec()));
        }
    }
    undo.writer.kept_in = versions.mode();
    undo.writer.left_out = LeftOut::default();
    for (tree, key, value) in rows {
        let image = image_of(Cell { flags: 0, value: &value });
        versions.store_visited(&mut undo.writer, (tree.id, &key, Some(tree.root)), image);
    }
}

/// Begins a sparse period, as after a time without openings.
pub fn begin_sparse(versions: &Versions) {
    versions.begin_sparse();
}

/// Returns the value of a row that a snapshot reads instead of the value in the leaf.
#[must_use]
pub fn value_before(versions: &Versions, snapshot: &SnapshotId, row: RowAt<'_>) -> Option<Vec<u8>> {
    let row = (TREE.id, row.key, Some(row.page));
    let read = |before: Option<Cell<'_>>| before.map(|cell| cell.value.to_vec());
    versions.store.resolve(row, snapshot.timestamp(), read).flatten()
}

/// Turns versions off, as after a time without open snapshots.
pub fn turn_off(versions: &Versions) {
    versions.turn_off_now();
}

/// Returns `true` if a row of the leaf is visible to a snapshot, in its present state or in an earlier one.
#[must_use]
pub fn sees_inserted(versions: &Versions, snapshot: &SnapshotId, key: &[u8]) -> bool {
    let row = (TREE.id, key, Some(TREE.root));
    let before = versions.store.resolve(row, snapshot.timestamp(), |before| before.is_some());
    before.unwrap_or(true)
}

/// Drops the versions that no snapshot needs.
pub fn prune(versions: &Versions) {
    versions.store.prune(&versions.open_now());
    versions.end_sweep();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn open(versions: &Versions) -> SnapshotId {
        let visit = |_: &Versions| Ok::<(), std::convert::Infallible>(());
        versions.open(visit, || Lsn(0), || TreeId(2)).expect("infallible")
    }

    #[test]
    fn version_6_a_snapshot_opened_during_a_sweep_keeps_its_versions() {
        let (versions, mut undo) = (Versions::new(u64::MAX), UndoLog::new());
        versions.close(&open(&versions)); // This turns versions on.
        let list_of_the_sweep = versions.open_now();
        let snapshot = open(&versions);
        before_insert(&versions, &mut undo, b"a");
        versions.commit(&mut undo, Lsn(1));
        versions.store.prune(&list_of_the_sweep);
        assert!(!sees_inserted(&versions, &snapshot, b"a"));
        versions.close(&snapshot);
        prune(&versions);
        assert_eq!(versions.stats().versions, 0);
    }
}
