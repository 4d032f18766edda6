//! Undoes the changes of a transaction, newest first, and logs the undo.
//!
//! The undo of each entry is one compensation record. Recovery counts these records: each states that the
//! newest entry not yet undone is undone. A structure change during undo is a separate record that belongs to
//! no transaction.

use azekura_base::PageId;

use crate::change::PageOp;
use crate::descent::Descent;
use crate::destroy;
use crate::env::{Env, Writer};
use crate::error::TreeError;
use crate::node::{Cell, Node, Position, entry_bytes};
use crate::record::Head;
use crate::structure;
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};
use crate::write::covering_leaf;

/// Undoes and removes the entries of `undo` beyond the first `len`.
///
/// # Errors
///
/// [`TreeError`]; `undo` then holds the entries that remain, and a later call continues with them.
pub fn roll_back_to(env: &Env, writer: Writer, undo: &mut UndoLog, len: usize) -> Result<(), TreeError> {
    while undo.len() > len {
        let Some(op) = undo.last() else { break };
        undo_one(env, writer, &op)?;
        if let UndoOp::RemoveKey { tree, key }
        | UndoOp::PutBack { tree, key, .. }
        | UndoOp::Flip { tree, key, .. } = op
        {
            env.versions().undone(undo, tree.id, key);
        }
        undo.pop();
    }
    Ok(())
}

/// Undoes one entry, the newest of the transaction. The transaction still holds its locks, or no other thread
/// runs.
///
/// # Errors
///
/// [`TreeError`]; the entry is then not undone.
pub fn undo_one(env: &Env, writer: Writer, op: &UndoOp<'_>) -> Result<(), TreeError> {
    match *op {
        UndoOp::RemoveKey { tree, key } => remove_key(env, writer, tree, key),
        UndoOp::PutBack { tree, key, cell } => put_back(env, writer, tree, key, cell),
        UndoOp::Flip { tree, key, at, diff } => {
            on_key(env, writer, tree, key, |slot| PageOp::Flip { slot, at, diff }).map(|_| ())
        }
        UndoOp::FreePages { first, count } => free_pages(env, writer, first, count),
        UndoOp::DropTree { tree } => {
            while destroy::prune_step(env, tree, writer.log_buffer)? {}
            free_pages(env, writer, tree.root, 1)
        }
        UndoOp::EmptyTree { tree, .. } => {
            while destroy::prune_step(env, tree, writer.log_buffer)? {}
            env.apply_logged(writer.log_buffer, &compensate(writer), &mut [], &[]).map(|_| ())
        }
        UndoOp::KeepTree { .. } => {
            env.apply_logged(writer.log_buffer, &compensate(writer), &mut [], &[]).map(|_| ())
        }
    }
}

const fn compensate(writer: Writer) -> Head<'static> {
    Head::Compensate { txn: writer.txn }
}

/// Applies an operation to the slot of a key that must exist; returns whether its leaf should be merged now.
fn on_key<'o>(
    env: &Env,
    writer: Writer,
    tree: Tree,
    key: &[u8],
    op: impl FnOnce(u16) -> PageOp<'o>,
) -> Result<bool, TreeError> {
    let leaf = covering_leaf(&mut Descent::new(env, tree), key)?;
    let Position::Found(slot) = Node::new(leaf.words()).search(key) else {
        return Err(TreeError::corrupt(leaf.page_id(), "the key of an undo entry is missing"));
    };
    let mut guards = [leaf];
    env.apply_logged(writer.log_buffer, &compensate(writer), &mut guards, &[(0, op(slot as u16))])?;
    Ok(structure::is_tidy_due(Node::new(guards[0].words())))
}

fn remove_key(env: &Env, writer: Writer, tree: Tree, key: &[u8]) -> Result<(), TreeError> {
    if on_key(env, writer, tree, key, |slot| PageOp::Remove { slot })? {
        // An optional step: the entry *is* undone, so an error here must not be reported as a failed undo.
        let _ = structure::tidy(env, tree, writer.log_buffer, key);
    }
    Ok(())
}

fn put_back(env: &Env, writer: Writer, tree: Tree, key: &[u8], cell: Cell<'_>) -> Result<(), TreeError> {
    loop {
        let leaf = covering_leaf(&mut Descent::new(env, tree), key)?;
        let node = Node::new(leaf.words());
        if !structure::fits(node, key, cell.value.len()) {
            drop(leaf);
            structure::make_room(env, tree, writer.log_buffer, key, cell.value.len())?;
            continue;
        }
        let op = match node.search(key) {
            Position::Found(slot) => PageOp::Replace { slot: slot as u16, cell },
            Position::Absent(slot) => {
                let suffix = &key[node.prefix_len()..];
                debug_assert!(entry_bytes(suffix.len(), cell.value.len()) <= node.free());
                PageOp::Insert { slot: slot as u16, suffix, cell }
            }
        };
        env.apply_logged(writer.log_buffer, &compensate(writer), &mut [leaf], &[(0, op)])?;
        return Ok(());
    }
}

fn free_pages(env: &Env, writer: Writer, first: PageId, count: u32) -> Result<(), TreeError> {
    let (map, clear) = env.space().freeing(env.pool(), first, count)?;
    env.apply_logged(writer.log_buffer, &compensate(writer), &mut [map], &[(0, clear)])?;
    env.space().freed(first);
    Ok(())
}
