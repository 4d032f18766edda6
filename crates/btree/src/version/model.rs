//! The steps of the version store for interleaving models: the production code, on a tree without pages.

use azekura_base::{PageId, TreeId};

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
    versions.sweep(&versions.open_now());
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_base::Lsn;

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
