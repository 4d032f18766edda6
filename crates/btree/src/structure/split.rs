//! Splits a node that lacks room or a contended leaf, and grows the root.

use azekura_base::TreeId;
use azekura_buffer::ExclusiveGuard;
use azekura_wal::LogBufferId;

use super::fits;
use crate::change::PageOp;
use crate::descent::{Descent, Pair};
use crate::env::Env;
use crate::error::TreeError;
use crate::node::{
    CHILD_BYTES, Cell, CorruptNode, Node, NodeSpec, Position, Scratch, SplitPoint, choose_split, entry_bytes,
};
use crate::record::Head;
use crate::space::find_pages;
use crate::tree::Tree;

/// Splits the leaf that covers `key`, unless it has room now for a value of `value_len` bytes under that key.
///
/// Afterward the leaf may lack room again, because other threads insert as well. The caller starts over.
pub(crate) fn make_room(
    env: &Env,
    tree: Tree,
    log_buffer: LogBufferId,
    key: &[u8],
    value_len: usize,
) -> Result<(), TreeError> {
    split_at(env, tree, log_buffer, SplitGoal { key, level: 0, what: What::Value(value_len) })
}

/// Splits the leaf that covers `key` if it has more than one record, even if it has room. Its writers then
/// use separate leaves ([`crate::contention`]).
///
/// The split is optional: a tree in which it fails is still correct.
///
/// # Errors
///
/// Only [`TreeError::Corrupt`] and [`TreeError::Apply`].
#[cold]
pub(crate) fn split_contended(
    env: &Env,
    tree: Tree,
    log_buffer: LogBufferId,
    key: &[u8],
) -> Result<(), TreeError> {
    match split_at(env, tree, log_buffer, SplitGoal { key, level: 0, what: What::FewerRecords }) {
        Err(error @ (TreeError::Corrupt { .. } | TreeError::Apply(_))) => Err(error),
        _ => Ok(()),
    }
}

/// Splits the inner node of `level` on the path to `key`, unless it has room now for a separator entry of
/// `separator_bytes` bytes. The caller starts over.
pub(super) fn make_room_above(
    env: &Env,
    tree: Tree,
    log_buffer: LogBufferId,
    (key, level): (&[u8], u8),
    separator_bytes: usize,
) -> Result<(), TreeError> {
    split_at(env, tree, log_buffer, SplitGoal { key, level, what: What::Separator(separator_bytes) })
}

/// The purpose of splitting the node on the path to `key`.
#[derive(Clone, Copy)]
struct SplitGoal<'k> {
    key: &'k [u8],
    level: u8,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// At level 0: room for a value of this many bytes under the key.
    Value(usize),
    /// Above level 0: room for a separator entry of this many bytes.
    Separator(usize),
    /// At level 0: fewer than two records in the leaf. One split is made otherwise.
    FewerRecords,
}

impl SplitGoal<'_> {
    fn is_met(self, node: Node<'_>) -> bool {
        match self.what {
            What::Value(bytes) => fits(node, self.key, bytes),
            What::Separator(bytes) => bytes <= node.free(),
            What::FewerRecords => node.count() < 2,
        }
    }

    const fn value_len(self) -> usize {
        match self.what {
            What::Value(bytes) => bytes,
            What::Separator(_) => CHILD_BYTES,
            What::FewerRecords => 0,
        }
    }
}

/// Splits the node of `wanted.level` on the path to `wanted.key`, after splitting the nodes above it as
/// needed.
///
/// Recurses at most once per level of the tree.
fn split_at(env: &Env, tree: Tree, log_buffer: LogBufferId, wanted: SplitGoal<'_>) -> Result<(), TreeError> {
    let mut descent = Descent::new(env, tree);
    loop {
        let Pair { parent, node } = descent.pair(wanted.key, wanted.level)?;
        let view = Node::new(node.words());
        if view.level().is_some_and(|level| level < wanted.level) || wanted.is_met(view) {
            return Ok(());
        }
        let Some(parent) = parent else {
            grow_root(env, log_buffer, node)?;
            continue;
        };
        let cut = choose_split(view, wanted.key, wanted.value_len())
            .ok_or(TreeError::corrupt(node.page_id(), "a full node with too few entries to split"))?;
        let above = Node::new(parent.words());
        let bytes = entry_bytes(cut.separator.len().saturating_sub(above.prefix_len()), CHILD_BYTES);
        if bytes <= above.free() {
            return split(env, log_buffer, parent, node, &cut);
        }
        drop((parent, node));
        let what = What::Separator(bytes);
        split_at(env, tree, log_buffer, SplitGoal { key: wanted.key, level: wanted.level + 1, what })?;
    }
}

/// Splits `node` in two; `parent` has room for the separator.
fn split(
    env: &Env,
    log_buffer: LogBufferId,
    parent: ExclusiveGuard<'_>,
    node: ExclusiveGuard<'_>,
    cut: &SplitPoint,
) -> Result<(), TreeError> {
    let (slot, prefix_len) = slot_for(&parent, &node, &cut.separator)?;
    let right = right_half(env.page_size(), Node::new(node.words()), cut)
        .map_err(TreeError::on_page(node.page_id()))?;
    let mut image = Vec::new();
    let image = PageOp::image_of(right.page(), &mut image);

    let found = find_pages(env, log_buffer, 1, &[parent.page_id(), node.page_id()])?;
    let take = found.op();
    let new = env.pool().fix_new(found.first)?;
    let child = new.page_id().0.to_le_bytes();
    let separator = PageOp::Insert {
        slot: slot as u16,
        suffix: &cut.separator[prefix_len..],
        cell: Cell::inline(&child),
    };
    let truncate = PageOp::Truncate { keep: cut.at as u16, upper: &cut.separator };
    let mut guards = [parent, node, found.map, new];
    let ops = [(0, separator), (1, truncate), (2, take), (3, image)];
    env.apply_logged(log_buffer, &Head::System, &mut guards, &ops)?;
    Ok(())
}

/// Returns the slot of `parent` for the new right sibling of `node`, and the parent's prefix length.
fn slot_for(
    parent: &ExclusiveGuard<'_>,
    node: &ExclusiveGuard<'_>,
    separator: &[u8],
) -> Result<(usize, usize), TreeError> {
    let above = Node::new(parent.words());
    match above.search(separator) {
        Position::Absent(slot)
            if slot > 0 && above.child(slot - 1) == node.page_id() && above.covers(separator) =>
        {
            Ok((slot, above.prefix_len()))
        }
        _ => {
            Err(TreeError::corrupt(parent.page_id(), "the separators around a child differ from its fences"))
        }
    }
}

fn right_half(page_size: usize, node: Node<'_>, cut: &SplitPoint) -> Result<Scratch, CorruptNode> {
    let mut upper = Vec::new();
    node.upper_into(&mut upper);
    let level = node.level().unwrap_or(0);
    let mut right = Scratch::new(page_size);
    right.format(NodeSpec { level, tree: node.tree(), lower: &cut.separator, upper: &upper })?;
    right.push_slots(node, cut.at..node.count())?;
    Ok(right)
}

/// Moves the root's entries to a new child, which becomes the root's only child.
fn grow_root(env: &Env, log_buffer: LogBufferId, root: ExclusiveGuard<'_>) -> Result<(), TreeError> {
    let view = Node::new(root.words());
    let level = view.level().unwrap_or(0);
    if level == u8::MAX {
        return Err(TreeError::corrupt(root.page_id(), "the tree is higher than any valid tree"));
    }
    let mut child_image = Vec::new();
    let child_image = PageOp::image_of(root.words(), &mut child_image);

    let found = find_pages(env, log_buffer, 1, &[root.page_id()])?;
    let take = found.op();
    let new = env.pool().fix_new(found.first)?;
    let top = root_above(env.page_size(), view.tree(), level + 1, &new)
        .map_err(TreeError::on_page(root.page_id()))?;
    let mut root_image = Vec::new();
    let root_image = PageOp::image_of(top.page(), &mut root_image);
    let mut guards = [root, found.map, new];
    env.apply_logged(
        log_buffer,
        &Head::System,
        &mut guards,
        &[(0, root_image), (1, take), (2, child_image)],
    )?;
    Ok(())
}

fn root_above(
    page_size: usize,
    tree: TreeId,
    level: u8,
    child: &ExclusiveGuard<'_>,
) -> Result<Scratch, CorruptNode> {
    let mut top = Scratch::new(page_size);
    top.format(NodeSpec { level, tree, lower: b"", upper: b"" })?;
    top.push(b"", Cell::inline(&child.page_id().0.to_le_bytes()))?;
    Ok(top)
}
