//! Creates trees, drops trees, and frees a dropped tree's pages in bounded steps.
//!
//! A dropped tree stays unchanged until its transaction has committed. Then it is freed step by step, like
//! the chains of large values. Each step is one record of bounded size and leaves a smaller tree: it frees
//! the last leaves first, then the inner nodes without children. The freeing thread has exclusive use of the
//! tree. A crash leaves a smaller tree, and the same steps continue with it.

use azekura_base::{PageId, TreeId};
use azekura_buffer::ExclusiveGuard;
use azekura_wal::LogBufferId;

use crate::change::PageOp;
use crate::descent::expect_level;
use crate::env::{Env, Writer, corrupt_node, empty_leaf};
use crate::error::TreeError;
use crate::node::{Cell, FLAG_OVERFLOW, Node};
use crate::overflow::{OverflowRef, runs_of_one_map};
use crate::record::Head;
use crate::space::find_pages;
use crate::space::map_of;
use crate::tree::{Tree, WriteCtx};
use crate::undo::{Deferred, UndoOp};

/// Largest number of leaves that one step frees.
const LEAVES_PER_STEP: usize = 64;
/// Largest number of runs of leaked pages that one record frees.
const RUNS_PER_RECORD: usize = 64;

impl Tree {
    /// Creates an empty tree with the id `id` for the transaction of `ctx`.
    ///
    /// # Errors
    ///
    /// [`TreeError::SpaceFull`], or an error of pool or log.
    pub fn create(env: &Env, ctx: &mut WriteCtx<'_>, id: TreeId) -> Result<Self, TreeError> {
        let found = find_pages(env, ctx.log_buffer, 1, &[])?;
        let tree = Self { id, root: found.first };
        let (take, scratch, mut image) = (found.op(), empty_leaf(env.page_size(), tree), Vec::new());
        let image = PageOp::image_of(scratch.page(), &mut image);
        let mut guards = [found.map, env.pool().fix_new(tree.root)?];
        let undo = UndoOp::DropTree { tree };
        env.apply_logged_update(ctx.writer(), ctx.undo, undo, &mut guards, &[(0, take), (1, image)])?;
        Ok(tree)
    }

    /// Logs for the transaction of `ctx` that the tree is freed after the commit ([`crate::free_step`]).
    /// Until then the tree stays unchanged. The caller holds table lock X, and removes the tree's name.
    ///
    /// # Errors
    ///
    /// [`TreeError::Append`].
    pub fn drop_at_commit(&self, env: &Env, ctx: &mut WriteCtx<'_>) -> Result<(), TreeError> {
        env.apply_logged_update(ctx.writer(), ctx.undo, UndoOp::KeepTree { tree: *self }, &mut [], &[])?;
        Ok(())
    }
}

/// Frees a bounded part of `what`, a deferred free of the committed transaction `writer.txn`.
///
/// `index` is the position of `what` in [`crate::UndoLog::deferred_frees`]. Returns the rest, or `None` once
/// all is free. After a crash, continue with the newest `next_head` that the log has for this index, or with
/// the item itself. Repeating a step does no harm.
///
/// # Errors
///
/// [`TreeError`]; nothing was freed by this step.
pub fn free_step(
    env: &Env,
    writer: Writer,
    index: u64,
    what: Deferred,
) -> Result<Option<Deferred>, TreeError> {
    match what {
        Deferred::Chain(head) => free_chain_step(env, writer, index, head),
        Deferred::Tree(tree) => {
            if prune_step(env, tree, writer.log_buffer)? {
                return Ok(Some(what));
            }
            let runs = [(tree.root, 1)];
            let (map, ops) = clear_ops(env, &runs)?;
            let record = Head::FreeStep { txn: writer.txn, index, next_head: PageId(0) };
            env.apply_logged(writer.log_buffer, &record, &mut [map], &ops_at(0, ops))?;
            env.space().freed(tree.root);
            Ok(None)
        }
    }
}

fn free_chain_step(
    env: &Env,
    writer: Writer,
    index: u64,
    head: PageId,
) -> Result<Option<Deferred>, TreeError> {
    let (runs, next_head) = runs_of_one_map(env, head)?;
    let (map, ops) = clear_ops(env, &runs)?;
    let record = Head::FreeStep { txn: writer.txn, index, next_head };
    env.apply_logged(writer.log_buffer, &record, &mut [map], &ops_at(0, ops))?;
    note_freed(env, &runs);
    Ok((next_head != PageId(0)).then_some(Deferred::Chain(next_head)))
}

/// Latches the space map of `runs`, which are not empty and share one map; returns the operations that free
/// them.
fn clear_ops<'e>(
    env: &'e Env,
    runs: &[(PageId, u32)],
) -> Result<(ExclusiveGuard<'e>, Vec<PageOp<'static>>), TreeError> {
    let bit = |first| map_of(first, env.page_size()).1;
    let map = env.pool().fix(map_of(runs[0].0, env.page_size()).0)?.exclusive();
    let ops = runs.iter().map(|&(first, count)| PageOp::SpaceClear { first: bit(first), count }).collect();
    Ok((map, ops))
}

/// Frees pages that are in use and unreferenced, in ascending order, each at most once
/// ([`Report::leaked`](crate::Report::leaked)).
///
/// # Errors
///
/// [`TreeError`]; some of the pages may have been freed.
pub fn free_leaked(env: &Env, log_buffer: LogBufferId, leaked: &[PageId]) -> Result<(), TreeError> {
    let map = |page_id| map_of(page_id, env.page_size()).0;
    let mut runs: Vec<(PageId, u32)> = Vec::new();
    for &page_id in leaked {
        match runs.last_mut() {
            Some((first, count))
                if first.0 + u64::from(*count) == page_id.0 && map(*first) == map(page_id) =>
            {
                *count += 1;
            }
            _ => runs.push((page_id, 1)),
        }
    }
    let parts = runs.chunk_by(|a, b| map(a.0) == map(b.0)).flat_map(|runs| runs.chunks(RUNS_PER_RECORD));
    for runs in parts {
        let (map, ops) = clear_ops(env, runs)?;
        env.apply_logged(log_buffer, &Head::System, &mut [map], &ops_at(0, ops))?;
        note_freed(env, runs);
    }
    Ok(())
}

fn ops_at(guard: usize, ops: Vec<PageOp<'static>>) -> Vec<(usize, PageOp<'static>)> {
    ops.into_iter().map(|op| (guard, op)).collect()
}

fn note_freed(env: &Env, runs: &[(PageId, u32)]) {
    runs.iter().for_each(|run| env.space().freed(run.0));
}

/// Frees a part of the tree, with one log record. Returns `false` if only an empty root leaf is left. The
/// caller has exclusive use of the tree.
pub(crate) fn prune_step(env: &Env, tree: Tree, log_buffer: LogBufferId) -> Result<bool, TreeError> {
    let root = env.pool().fix(tree.root)?.exclusive();
    let mut height = Node::new(root.words()).level().ok_or_else(|| corrupt_node(root.words(), tree.root))?;
    let mut parent: Option<ExclusiveGuard<'_>> = None;
    let mut at = root;
    loop {
        let node = Node::new(at.words());
        let count = node.count();
        match (parent.take(), count, height) {
            (None, 0, 0) => return Ok(false),
            (None, 0, _) => return reset_root(env, tree, log_buffer, at),
            (Some(above), 0, 1..) => return drop_last_child(env, log_buffer, above, at),
            (_, _, 0) if last_large(node).is_some() => return prune_value(env, log_buffer, at),
            (None, _, 0) => return reset_root(env, tree, log_buffer, at),
            (Some(above), _, 0) => {
                drop(at);
                return prune_leaves(env, log_buffer, above);
            }
            (_, _, _) => {
                let child = env.pool().fix(node.child(count - 1))?.exclusive();
                height -= 1;
                expect_level(child.words(), child.page_id(), height)?;
                parent = Some(at);
                at = child;
            }
        }
    }
}

/// Makes the root an empty leaf, after all its children were freed.
fn reset_root(
    env: &Env,
    tree: Tree,
    log_buffer: LogBufferId,
    root: ExclusiveGuard<'_>,
) -> Result<bool, TreeError> {
    let (scratch, mut image) = (empty_leaf(env.page_size(), tree), Vec::new());
    let image = PageOp::image_of(scratch.page(), &mut image);
    env.apply_logged(log_buffer, &Head::System, &mut [root], &[(0, image)])?;
    Ok(true)
}

/// Frees the inner node `child`, which has no children left and is the last child of `above`.
fn drop_last_child(
    env: &Env,
    log_buffer: LogBufferId,
    above: ExclusiveGuard<'_>,
    child: ExclusiveGuard<'_>,
) -> Result<bool, TreeError> {
    let last = Node::new(above.words()).count() - 1;
    let runs = [(child.page_id(), 1)];
    let (map, ops) = clear_ops(env, &runs)?;
    let mut all = vec![(0, PageOp::Remove { slot: last as u16 }), (1, PageOp::Release)];
    all.extend(ops_at(2, ops));
    env.apply_logged(log_buffer, &Head::System, &mut [above, child, map], &all)?;
    note_freed(env, &runs);
    Ok(true)
}

/// Returns the last slot that refers to a large value.
fn last_large(node: Node<'_>) -> Option<usize> {
    (0..node.count()).rev().find(|&i| node.slot(i).flags & FLAG_OVERFLOW != 0)
}

/// Frees the first runs of the leaf's last large value. Removes the slot once the whole value is free.
fn prune_value(env: &Env, log_buffer: LogBufferId, leaf: ExclusiveGuard<'_>) -> Result<bool, TreeError> {
    let wrong = TreeError::corrupt(leaf.page_id(), "a reference to a large value has a wrong length");
    let node = Node::new(leaf.words());
    let Some(slot) = last_large(node) else { return Ok(true) };
    let mut bytes = Vec::new();
    node.value_into(node.slot(slot), &mut bytes);
    let reference = OverflowRef::decode(&bytes).ok_or(wrong)?;
    let (runs, next) = runs_of_one_map(env, reference.head)?;
    let rest = OverflowRef { head: next, ..reference }.encode();
    let slot = slot as u16;
    let op = if next == PageId(0) {
        PageOp::Remove { slot }
    } else {
        PageOp::Replace { slot, cell: Cell { flags: FLAG_OVERFLOW, value: &rest } }
    };
    let (map, ops) = clear_ops(env, &runs)?;
    let mut all = vec![(0, op)];
    all.extend(ops_at(1, ops));
    env.apply_logged(log_buffer, &Head::System, &mut [leaf, map], &all)?;
    note_freed(env, &runs);
    Ok(true)
}

/// Frees the last leaves below `above` that have no large values and share a space map.
fn prune_leaves(env: &Env, log_buffer: LogBufferId, above: ExclusiveGuard<'_>) -> Result<bool, TreeError> {
    let node = Node::new(above.words());
    let mut runs = Vec::new();
    for slot in (0..node.count()).rev().take(LEAVES_PER_STEP) {
        let page_id = node.child(slot);
        let map = |id| map_of(id, env.page_size()).0;
        if runs.first().is_some_and(|&(first, _)| map(first) != map(page_id)) {
            break;
        }
        // HOP-2: a snapshot's reader of the leaf must not validate it after the rollback of a load.
        let leaf = env.pool().fix(page_id)?.exclusive();
        expect_level(leaf.words(), page_id, 0)?;
        if last_large(Node::new(leaf.words())).is_some() {
            break;
        }
        leaf.invalidate();
        runs.push((page_id, 1));
    }
    let mut upper = Vec::new();
    node.upper_into(&mut upper);
    let keep = (node.count() - runs.len()) as u16;
    let (map, ops) = clear_ops(env, &runs)?;
    let mut all = vec![(0, PageOp::Truncate { keep, upper: &upper })];
    all.extend(ops_at(1, ops));
    env.apply_logged(log_buffer, &Head::System, &mut [above, map], &all)?;
    note_freed(env, &runs);
    Ok(true)
}
