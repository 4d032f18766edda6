//! Writing one key: insert, put, replace, remove.
//!
//! Each operation finds the leaf, latches it, and looks for the key. If a key is inserted or removed, it
//! tries the gap lock. If the leaf lacks room, a structure change makes room, and the operation starts over.
//! The last step is the mini-transaction.
//!
//! - **LAST-1** A transaction remembers the leaf of its last change, and the leaf that it has read since,
//!   each with the page's version at that time. While the page has this version, the leaf is in the tree
//!   (HOP-2) and has the same fences. So if the fences enclose the next key, the transaction changes that key
//!   without a descent: an upgrade of the version acquires the latch. Writes and removals in key order
//!   descend once for each leaf, and once more after each merge. A row that is read and then changed needs
//!   one descent.

use azekura_base::{Lsn, PageId};
use azekura_buffer::ExclusiveGuard;

use crate::change::PageOp;
use crate::descent::{Descent, Restart};
use crate::env::{Env, corrupt_node};
use crate::error::TreeError;
use crate::locks::{GapWant, Outcome};
use crate::next::{Gap, lock_gap};
use crate::node::{Cell, FLAG_OVERFLOW, Node, Position, entry_bytes, max_inline_value, max_key};
use crate::overflow::{self, MAX_VALUE, OverflowRef};
use crate::rollback;
use crate::structure;
use crate::tree::{LeafVersion, Tree, WriteCtx, load_if_large};
use crate::undo::UndoOp;

/// The keys that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Writes any key.
    Put,
    /// Writes only an absent key.
    Insert,
    /// Writes only a present key.
    Replace,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The key is new.
    Inserted,
    /// The key had another value before.
    Replaced,
    /// Nothing was written: the key exists ([`PutMode::Insert`]).
    Exists,
    /// Nothing was written: the key is absent ([`PutMode::Replace`]).
    Missing,
}

/// The last step that a write performs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Stops before the change.
    Probe,
    /// Makes the change.
    Write,
}

impl Tree {
    /// Writes `value` under `key` by the rule `mode`. If `old` is given, it receives the previous value.
    ///
    /// The caller holds record X on the key. For a new key, [`GapWant::Insert`] is requested for the next
    /// key; on [`Outcome::Blocked`] nothing was changed. Values above [`max_inline_value`] become an overflow
    /// chain. The chain is written before the key, and undone if the key cannot be written.
    ///
    /// # Errors
    ///
    /// [`TreeError::KeyTooLong`], [`TreeError::ValueTooLong`], [`TreeError::SpaceFull`], or an error of pool
    /// or log. The caller rolls back the entries that a failed call left in the undo log.
    pub fn put(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        value: &[u8],
        mode: PutMode,
        old: Option<&mut Vec<u8>>,
    ) -> Result<Outcome<Written>, TreeError> {
        check_sizes(env, key, value)?;
        if value.len() <= max_inline_value(env.page_size(), key.len()) {
            return self.put_cell(env, ctx, key, Cell::inline(value), mode, old, Depth::Write);
        }
        let probe = Cell { flags: FLAG_OVERFLOW, value: &[0; 16] };
        match self.put_cell(env, ctx, key, probe, mode, None, Depth::Probe)? {
            Outcome::Done(Written::Inserted | Written::Replaced) => {}
            nothing_to_do => return Ok(nothing_to_do),
        }
        let mark = ctx.undo.len();
        let reference = overflow::write(env, ctx.writer(), ctx.undo, value)?.encode();
        let cell = Cell { flags: FLAG_OVERFLOW, value: &reference };
        let outcome = self.put_cell(env, ctx, key, cell, mode, old, Depth::Write)?;
        if !matches!(outcome, Outcome::Done(Written::Inserted | Written::Replaced)) {
            rollback::roll_back_to(env, ctx.writer(), ctx.undo, mark)?;
        }
        Ok(outcome)
    }

    /// Writes the value of a chain under `key`, as [`put`](Self::put) does with [`PutMode::Put`]. The caller
    /// has written the chain, and rolls it back if this call fails.
    ///
    /// # Errors
    ///
    /// As for [`put`](Self::put).
    pub fn put_chain(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        chain: OverflowRef,
    ) -> Result<Outcome<Written>, TreeError> {
        check_sizes(env, key, &[])?;
        let cell = Cell { flags: FLAG_OVERFLOW, value: &chain.encode() };
        self.put_cell(env, ctx, key, cell, PutMode::Put, None, Depth::Write)
    }

    #[expect(clippy::too_many_arguments, reason = "a private step of `put`, with the same arguments")]
    fn put_cell(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        cell: Cell<'_>,
        mode: PutMode,
        mut old: Option<&mut Vec<u8>>,
        depth: Depth,
    ) -> Result<Outcome<Written>, TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = self.leaf_to_change(env, ctx, &mut descent, key)?;
            let node = Node::new(leaf.words());
            let step = match (node.search(key), mode) {
                (Position::Found(_), PutMode::Insert) => return Ok(Outcome::Done(Written::Exists)),
                (Position::Absent(_), PutMode::Replace) => return Ok(Outcome::Done(Written::Missing)),
                (Position::Found(_), _) if depth == Depth::Probe => {
                    return Ok(Outcome::Done(Written::Replaced));
                }
                (Position::Found(slot), _) => {
                    self.replace_at(env, ctx, leaf, slot, key, cell, old.as_deref_mut())?
                }
                (Position::Absent(slot), _) => self.insert_at(env, ctx, leaf, slot, key, cell, depth)?,
            };
            match step {
                Step::Done(done) => return Ok(Outcome::Done(done)),
                Step::Changed(done, change) => {
                    self.split_if_contended(env, ctx, key, change, &descent)?;
                    return Ok(Outcome::Done(done));
                }
                Step::Blocked => return Ok(Outcome::Blocked),
                Step::Restart(cause) => descent.restart(cause)?,
                Step::NoRoom => structure::make_room(env, *self, ctx.log_buffer, key, cell.value.len())?,
            }
        }
    }

    /// Returns the leaf that covers `key`, latched exclusively: the leaf of the last change (LAST-1), or the
    /// result of a descent.
    #[inline]
    fn leaf_to_change<'e>(
        &self,
        env: &'e Env,
        ctx: &mut WriteCtx<'_>,
        descent: &mut Descent<'e>,
        key: &[u8],
    ) -> Result<ExclusiveGuard<'e>, TreeError> {
        let seen = ctx.undo.take_leaves();
        if let Some(leaf) = seen.into_iter().flatten().find_map(|seen| self.unchanged_leaf(env, seen, key)) {
            return Ok(leaf);
        }
        ctx.undo.descents += 1;
        covering_leaf(descent, key)
    }

    /// Returns a remembered leaf, latched, if it is unchanged and covers `key` (LAST-1).
    #[inline]
    fn unchanged_leaf<'e>(&self, env: &'e Env, seen: LeafVersion, key: &[u8]) -> Option<ExclusiveGuard<'e>> {
        if seen.tree != *self {
            return None;
        }
        let page = env.pool().peek_again(seen.version)?;
        if !Node::new(page.words()).covers(key) {
            return None;
        }
        page.upgrade()
    }

    #[expect(clippy::too_many_arguments, reason = "a private step of `put`, with the same arguments")]
    fn insert_at<'e>(
        &self,
        env: &'e Env,
        ctx: &mut WriteCtx<'_>,
        leaf: ExclusiveGuard<'e>,
        slot: usize,
        key: &[u8],
        cell: Cell<'_>,
        depth: Depth,
    ) -> Result<Step<'e>, TreeError> {
        let node = Node::new(leaf.words());
        match lock_gap(env, *self, node, slot, GapWant::Insert, ctx.locks) {
            Gap::Locked => {}
            Gap::Blocked => return Ok(Step::Blocked),
            Gap::Restart(cause) => return Ok(Step::Restart(cause)),
        }
        if depth == Depth::Probe {
            return Ok(Step::Done(Written::Inserted));
        }
        let suffix = &key[node.prefix_len()..];
        if entry_bytes(suffix.len(), cell.value.len()) > node.free() {
            return Ok(Step::NoRoom);
        }
        let op = PageOp::Insert { slot: slot as u16, suffix, cell };
        let undo = UndoOp::RemoveKey { tree: *self, key };
        let change = self.change_leaf(env, ctx, leaf, undo, op)?;
        Ok(Step::Changed(Written::Inserted, change))
    }

    #[expect(clippy::too_many_arguments, reason = "a private step of `put`, with the same arguments")]
    fn replace_at<'e>(
        &self,
        env: &'e Env,
        ctx: &mut WriteCtx<'_>,
        leaf: ExclusiveGuard<'e>,
        slot: usize,
        key: &[u8],
        cell: Cell<'_>,
        old_out: Option<&mut Vec<u8>>,
    ) -> Result<Step<'e>, TreeError> {
        let node = Node::new(leaf.words());
        if !structure::fits(node, key, cell.value.len()) {
            return Ok(Step::NoRoom);
        }
        let old_slot = node.slot(slot);
        let mut old = Vec::new();
        node.value_into(old_slot, &mut old);
        let old_cell = Cell { flags: old_slot.flags, value: &old };
        let mut diff = Vec::new();
        let (op, undo) = if old_cell.flags == 0 && cell.flags == 0 && old.len() == cell.value.len() {
            let at = difference(&old, cell.value, &mut diff);
            let op = PageOp::Flip { slot: slot as u16, at, diff: &diff };
            (op, UndoOp::Flip { tree: *self, key, at, diff: &diff })
        } else {
            let op = PageOp::Replace { slot: slot as u16, cell };
            (op, UndoOp::PutBack { tree: *self, key, cell: old_cell })
        };
        let change = self.change_leaf(env, ctx, leaf, undo, op)?;
        hand_out(env, old_slot.flags, old, old_out)?;
        Ok(Step::Changed(Written::Replaced, change))
    }

    /// Performs the mini-transaction of one operation on a leaf, and remembers the leaf.
    fn change_leaf(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        leaf: ExclusiveGuard<'_>,
        undo: UndoOp<'_>,
        op: PageOp<'_>,
    ) -> Result<Change, TreeError> {
        let mut guards = [leaf];
        let lsn = env.apply_logged_update(ctx.writer(), ctx.undo, undo, &mut guards, &[(0, op)])?;
        let [leaf] = guards;
        ctx.undo.last_leaf = Some(LeafVersion { tree: *self, version: leaf.version_after() });
        Ok(Change { page_id: leaf.page_id(), lsn })
    }

    /// Splits the leaf with `key`, which this thread has just changed, if writers of different records
    /// contend for its latch.
    #[inline]
    fn split_if_contended(
        &self,
        env: &Env,
        ctx: &WriteCtx<'_>,
        key: &[u8],
        change: Change,
        descent: &Descent<'_>,
    ) -> Result<(), TreeError> {
        if env.contention().changed(change.page_id, change.lsn, descent.has_met_others()) {
            structure::split_contended(env, *self, ctx.log_buffer, key)?;
        }
        Ok(())
    }

    /// Removes `key`; returns whether it was present. If `old` is given, it receives the previous value.
    ///
    /// The caller holds record X and gap X on the key. [`GapWant::Delete`] is requested for the next key; on
    /// [`Outcome::Blocked`] nothing was changed. A large value's chain is freed by [`crate::free_step`].
    ///
    /// # Errors
    ///
    /// An error of pool or log. The caller rolls back the entries that a failed call left in the undo log.
    pub fn remove(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        old: Option<&mut Vec<u8>>,
    ) -> Result<Outcome<bool>, TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = self.leaf_to_change(env, ctx, &mut descent, key)?;
            let node = Node::new(leaf.words());
            let Position::Found(slot) = node.search(key) else { return Ok(Outcome::Done(false)) };
            match lock_gap(env, *self, node, slot + 1, GapWant::Delete, ctx.locks) {
                Gap::Locked => {}
                Gap::Blocked => return Ok(Outcome::Blocked),
                Gap::Restart(cause) => {
                    drop(leaf);
                    descent.restart(cause)?;
                    continue;
                }
            }
            let (flags, value) = self.remove_at(env, ctx, leaf, slot, key)?;
            hand_out(env, flags, value, old)?;
            return Ok(Outcome::Done(true));
        }
    }

    /// Removes slot `slot` of the latched leaf; returns the slot's flags and value.
    fn remove_at(
        &self,
        env: &Env,
        ctx: &mut WriteCtx<'_>,
        leaf: ExclusiveGuard<'_>,
        slot: usize,
        key: &[u8],
    ) -> Result<(u16, Vec<u8>), TreeError> {
        let node = Node::new(leaf.words());
        let old_slot = node.slot(slot);
        let mut old = Vec::new();
        node.value_into(old_slot, &mut old);
        let undo = UndoOp::PutBack { tree: *self, key, cell: Cell { flags: old_slot.flags, value: &old } };
        let mut guards = [leaf];
        let op = PageOp::Remove { slot: slot as u16 };
        env.apply_logged_update(ctx.writer(), ctx.undo, undo, &mut guards, &[(0, op)])?;
        let [leaf] = guards;
        let is_tidy_due = structure::is_tidy_due(Node::new(leaf.words()));
        ctx.undo.last_leaf = Some(LeafVersion { tree: *self, version: leaf.version_after() });
        drop(leaf);
        if is_tidy_due {
            structure::tidy(env, *self, ctx.log_buffer, key)?;
        }
        Ok((old_slot.flags, old))
    }
}

/// The result of one attempt with a latched leaf. The leaf is no longer latched.
enum Step<'p> {
    /// Nothing was changed.
    Done(Written),
    /// The leaf was changed.
    Changed(Written, Change),
    Blocked,
    Restart(Restart<'p>),
    NoRoom,
}

/// A change of a leaf.
#[derive(Clone, Copy)]
struct Change {
    page_id: PageId,
    lsn: Lsn,
}

pub(crate) fn check_sizes(env: &Env, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
    let max = max_key(env.page_size());
    if key.len() > max {
        return Err(TreeError::KeyTooLong { len: key.len(), max });
    }
    if value.len() as u64 > MAX_VALUE {
        return Err(TreeError::ValueTooLong { len: value.len() as u64, max: MAX_VALUE });
    }
    Ok(())
}

/// Returns the leaf that covers `key`, latched exclusively and checked.
pub(crate) fn covering_leaf<'e>(
    descent: &mut Descent<'e>,
    key: &[u8],
) -> Result<ExclusiveGuard<'e>, TreeError> {
    let leaf = descent.leaf_exclusive(key)?;
    let node = Node::new(leaf.words());
    if node.level() != Some(0) {
        return Err(corrupt_node(leaf.words(), leaf.page_id()));
    }
    if node.covers(key) {
        return Ok(leaf);
    }
    Err(TreeError::corrupt(leaf.page_id(), "its fences do not enclose a key that its parent assigns to it"))
}

/// Appends the XOR of two values of equal length, from the first difference to the last. Returns the offset
/// of the first difference.
fn difference(old: &[u8], new: &[u8], diff: &mut Vec<u8>) -> u16 {
    let first = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let end = old.len() - old[first..].iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    diff.extend(old[first..end].iter().zip(&new[first..end]).map(|(a, b)| a ^ b));
    first as u16
}

/// Copies the old value to `out` if the caller requested it. The chain of a large value stays until after the
/// commit.
fn hand_out(env: &Env, flags: u16, mut old: Vec<u8>, out: Option<&mut Vec<u8>>) -> Result<(), TreeError> {
    if let Some(out) = out {
        load_if_large(env, flags, &mut old)?;
        *out = old;
    }
    Ok(())
}
