//! The steps of the version store for models of interleavings: the shipped steps, on a tree without pages.

use std::sync::Arc;

use azekura_base::{PageId, TreeId};

use super::store::Resolved;
use super::{SnapshotId, Versions};
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};

const TREE: Tree = Tree { id: TreeId(1), root: PageId(2) };

/// The step before a row appears, under the mutex of the undo log; notes the row in the log.
pub fn before_insert(versions: &Versions, undo: &mut UndoLog, key: &[u8]) {
    let op = UndoOp::RemoveKey { tree: TREE, key };
    versions.before_change(undo, &op, None);
    undo.push(&op);
}

/// The step of a backfill for each row that a transaction has inserted.
pub fn backfill_inserts(versions: &Versions, undo: &mut UndoLog) {
    let status = Arc::clone(undo.writer.status(versions));
    let keys: Vec<Vec<u8>> = undo.iter().filter_map(inserted).collect();
    for key in keys {
        versions.install(TREE.id, &key, &status, || None);
    }
}

fn inserted(op: UndoOp<'_>) -> Option<Vec<u8>> {
    match op {
        UndoOp::RemoveKey { key, .. } => Some(key.to_vec()),
        _ => None,
    }
}

/// Returns whether a snapshot sees a row that the leaf has.
#[must_use]
pub fn sees_inserted(versions: &Versions, snapshot: &SnapshotId, key: &[u8]) -> bool {
    versions.store.resolve(TREE.id, key, snapshot.timestamp()) == Resolved::AsInLeaf
}
