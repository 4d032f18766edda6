//! Looks up the first key after a leaf, while that leaf stays latched or before it is validated.
//!
//! The next leaf is read optimistically, without waiting: a thread that has latched it may wait for the first
//! leaf.

use azekura_buffer::OptimisticPage;

use crate::descent::{Restart, Seek, walk};
use crate::env::{Env, with_buffer};
use crate::error::TreeError;
use crate::locks::{Blocked, GapWant, KeyLocks, NextKey};
use crate::node::Node;
use crate::tree::Tree;

/// The result of trying to lock a gap.
pub(crate) enum Gap<'p> {
    /// Locked, and the next key was unchanged when the lock was granted.
    Locked,
    /// The lock cannot be granted at once.
    Blocked,
    /// The next key could not be looked up: release everything, handle the cause, start over.
    Restart(Restart<'p>),
}

/// Tries to lock the gap below the key of slot `slot` of `node`; that key may be the first one of a later
/// leaf.
///
/// `node` is latched, or the caller validates it after this call and before it relies on the lock.
pub(crate) fn lock_gap<'e>(
    env: &'e Env,
    tree: Tree,
    node: Node<'_>,
    slot: usize,
    want: GapWant,
    locks: &mut dyn KeyLocks,
) -> Gap<'e> {
    if !locks.is_needed() {
        return Gap::Locked;
    }
    with_buffer(|key| {
        let mut seen = Vec::new();
        let next = if slot < node.count() {
            node.key_into(slot, key);
            NextKey::Key(key)
        } else if node.is_last() {
            NextKey::End
        } else {
            node.upper_into(key);
            match first_from(env, tree, key, &mut seen) {
                Ok(true) => NextKey::Key(key),
                Ok(false) => NextKey::End,
                Err(cause) => return Gap::Restart(cause),
            }
        };
        let locked = locks.try_gap(tree.id, next, want);
        // Validated after the lock request: `next` was still the next key when the lock was granted or
        // refused.
        match (seen.into_iter().all(OptimisticPage::is_valid), locked) {
            (true, Ok(())) => Gap::Locked,
            (true, Err(Blocked)) => Gap::Blocked,
            (false, _) => Gap::Restart(Restart::Changed),
        }
    })
}

/// Replaces `from`, a fence, by the least key not below it; returns `false` if there is none. Appends the
/// leaves that were read to `seen`.
fn first_from<'e>(
    env: &'e Env,
    tree: Tree,
    from: &mut Vec<u8>,
    seen: &mut Vec<OptimisticPage<'e>>,
) -> Result<bool, Restart<'e>> {
    loop {
        let leaf = walk(env.pool(), tree, Seek::Covering(from), 0)?.page;
        seen.push(leaf);
        let node = Node::new(leaf.words());
        let (is_empty, is_last) = (node.count() == 0, node.is_last());
        let mut found = Vec::new();
        if is_empty {
            node.upper_into(&mut found);
        } else {
            node.key_into(0, &mut found);
        }
        if !leaf.is_valid() {
            return Err(Restart::Changed);
        }
        if !is_empty {
            *from = found;
            return Ok(true);
        }
        if is_last {
            return Ok(false);
        }
        if found <= *from {
            return Err(Restart::Failed(TreeError::corrupt(
                leaf.words().page_id(),
                "the fences do not ascend",
            )));
        }
        *from = found;
    }
}
