//! Merges a node with few entries into a neighbor, so that a tree is only as large as its records need.
//!
//! A node is *bare* if it is a leaf without records, or an inner node with one child. Only the root may stay
//! bare, with the exception in rule 3. A neighbor is a node beside it below the same parent. The rules apply
//! in this order, with the right neighbor first:
//!
//! 1. A bare leaf is unlinked: a neighbor's fence moves over the leaf's range. The neighbor's entries are not
//!    moved.
//! 2. A bare inner node is merged with a neighbor if both fit one page. Another underfull node is merged only
//!    if a quarter of the page stays free; otherwise the next insertion would split the page again.
//! 3. A bare node that fits neither neighbor receives a part of a neighbor's entries. (Fences that are
//!    further apart share a shorter prefix, so the entries of a full neighbor may need more bytes than a page
//!    has.) The exception: two inner nodes with three children together, between fences that share no prefix
//!    and have nearly a quarter of a page each, neither fit one page nor make two nodes that are not bare.
//! 4. A bare node without a neighbor has a bare parent. The parent is merged or given children first. A root
//!    with one child receives that child's entries.
//!
//! The parent is checked next, because it may have become underfull.
//!
//! Merging is optional. A tree in which a merge fails is larger than necessary but correct. So a lack of
//! frames or log space is not reported to the caller: the next removal tries again. A removal also merges a
//! leaf that a crash left bare, between the record of the leaf's last removal and the record of the merge.

use azekura_buffer::ExclusiveGuard;
use azekura_wal::LogBufferId;

use super::is_underfull;
use super::split::make_room_above;
use crate::change::{self, PageOp};
use crate::descent::{Descent, Pair, expect_level};
use crate::env::Env;
use crate::error::TreeError;
use crate::node::{
    CHILD_BYTES, Cell, CorruptNode, Node, NodeSpec, Scratch, entry_bytes, merged_fit, separator,
};
use crate::record::Head;
use crate::tree::Tree;

/// Largest number of changes per call, so that a call ends. A bare node needs about two changes at each
/// level. Crashes between these changes may leave hundreds of bare nodes side by side.
const MOST_STEPS: usize = 10_000;

/// Merges the leaf that covers `key` with a neighbor if the leaf is underfull, and continues upwards.
///
/// # Errors
///
/// Only [`TreeError::Corrupt`] and [`TreeError::Apply`]. Other errors are ignored, see the module head.
pub(crate) fn tidy(env: &Env, tree: Tree, log_buffer: LogBufferId, key: &[u8]) -> Result<(), TreeError> {
    let (mut level, mut is_lower_left) = (0, false);
    for _ in 0..MOST_STEPS {
        match (Tidying { env, tree, log_buffer, key, level }).step() {
            Ok(Next::Again) => {}
            Ok(Next::Above) => level += 1,
            Ok(Next::AboveFirst) => (level, is_lower_left) = (level + 1, true),
            Ok(Next::Nothing) if is_lower_left => (level, is_lower_left) = (0, false),
            Err(error @ (TreeError::Corrupt { .. } | TreeError::Apply(_))) => return Err(error),
            Ok(Next::Nothing) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

/// The level at which tidying continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The same level: the node, or the root above it, is bare.
    Again,
    /// The parent, which may be underfull now.
    Above,
    /// The parent, and then again from the leaf: the node has no neighbor yet.
    AboveFirst,
    Nothing,
}

/// The tidying of one level on the path to a key.
#[derive(Clone, Copy)]
struct Tidying<'k> {
    env: &'k Env,
    tree: Tree,
    log_buffer: LogBufferId,
    key: &'k [u8],
    level: u8,
}

/// Returns `true` for a leaf without records, or an inner node with one child.
fn is_bare(node: Node<'_>) -> bool {
    node.count() <= usize::from(node.level() != Some(0))
}

/// Two adjacent children of one parent, and the left child's slot in the parent.
struct Neighbors<'p> {
    left: ExclusiveGuard<'p>,
    right: ExclusiveGuard<'p>,
    slot: usize,
}

/// The way to merge two neighbors when one is underfull.
enum Plan {
    /// The left node is a bare leaf: the right node's lower fence moves down.
    UnlinkLeft,
    /// The right node is a bare leaf: the left node's upper fence moves up.
    UnlinkRight,
    /// All entries move to the left node.
    Join,
}

impl<'k> Tidying<'k> {
    fn step(self) -> Result<Next, TreeError> {
        let mut descent = Descent::new(self.env, self.tree);
        let Pair { parent, node } = descent.pair(self.key, self.level)?;
        let Some(parent) = parent else { return Ok(Next::Nothing) };
        let above = Node::new(parent.words());
        if above.count() <= 1 {
            let is_root = parent.page_id() == self.tree.root;
            return if is_root { self.shrink_root(parent, node) } else { Ok(Next::AboveFirst) };
        }
        if !is_underfull(Node::new(node.words())) {
            return Ok(Next::Nothing);
        }
        let at = above.slot_covering(self.key);
        if above.child(at) != node.page_id() {
            return Err(TreeError::corrupt(parent.page_id(), "a child is not where its key leads"));
        }
        // Latches are acquired from left to right, so the node is released first. Its parent stays latched:
        // meanwhile the node can be neither split nor merged, but its entries may change.
        drop(node);
        let with_right = (at + 1 < above.count()).then_some(at);
        let pairs = with_right.into_iter().chain(at.checked_sub(1));
        for slot in pairs.clone() {
            let pair = self.latch(&parent, slot)?;
            if let Some(plan) = plan(&pair, slot == at) {
                return self.merge(parent, pair, &plan);
            }
        }
        for slot in pairs {
            let pair = self.latch(&parent, slot)?;
            let node = Node::new(if slot == at { &pair.left } else { &pair.right }.words());
            if !is_bare(node) {
                return Ok(Next::Nothing);
            }
            if let Some(halves) = halves(self.env.page_size(), &pair)? {
                return self.rebalance(parent, pair, &halves);
            }
        }
        Ok(Next::Nothing)
    }

    /// Latches the children in the parent's slots `slot` and `slot + 1`.
    fn latch(self, parent: &ExclusiveGuard<'_>, slot: usize) -> Result<Neighbors<'k>, TreeError> {
        let above = Node::new(parent.words());
        let latch = |slot| -> Result<ExclusiveGuard<'k>, TreeError> {
            let guard = self.env.pool().fix(above.child(slot))?.exclusive();
            expect_level(guard.words(), guard.page_id(), self.level)?;
            Ok(guard)
        };
        Ok(Neighbors { left: latch(slot)?, right: latch(slot + 1)?, slot })
    }

    /// Merges two nodes into one.
    fn merge(self, parent: ExclusiveGuard<'_>, pair: Neighbors<'_>, plan: &Plan) -> Result<Next, TreeError> {
        let Neighbors { left, right, slot } = pair;
        let (left_node, right_node) = (Node::new(left.words()), Node::new(right.words()));
        let (mut fence, mut image) = (Vec::new(), Vec::new());
        // The remaining guard, the guard of the released page, and the change of the remaining page.
        let (stays, goes, op) = match plan {
            Plan::UnlinkLeft => {
                left_node.lower_into(&mut fence);
                (right, left, PageOp::LowerFence { lower: &fence })
            }
            Plan::UnlinkRight => {
                right_node.upper_into(&mut fence);
                let keep = left_node.count() as u16;
                (left, right, PageOp::Truncate { keep, upper: &fence })
            }
            Plan::Join => {
                let merged = joined(self.env.page_size(), left_node, right_node)
                    .map_err(TreeError::on_page(left.page_id()))?;
                let op = PageOp::image_of(merged.page(), &mut image);
                (left, right, op)
            }
        };
        let child = stays.page_id().0.to_le_bytes();
        let mut ops = vec![(0, PageOp::Remove { slot: slot as u16 + 1 })];
        if matches!(plan, Plan::UnlinkLeft) {
            ops.push((0, PageOp::Replace { slot: slot as u16, cell: Cell::inline(&child) }));
        }
        let freed = goes.page_id();
        let (map, clear) = self.env.space().freeing(self.env.pool(), freed, 1)?;
        ops.extend([(1, op), (2, PageOp::Release), (3, clear)]);
        let mut guards = [parent, stays, goes, map];
        self.env.apply_logged(self.log_buffer, &Head::System, &mut guards, &ops)?;
        self.env.space().freed(freed);
        let (above, node) = (Node::new(guards[0].words()), Node::new(guards[1].words()));
        let is_root_bare = is_bare(above) && guards[0].page_id() == self.tree.root;
        Ok(if is_bare(node) || is_root_bare {
            Next::Again
        } else if is_underfull(above) || is_bare(above) {
            Next::Above
        } else {
            Next::Nothing
        })
    }

    /// Distributes the entries over both nodes.
    fn rebalance(
        self,
        parent: ExclusiveGuard<'_>,
        pair: Neighbors<'_>,
        halves: &Halves,
    ) -> Result<Next, TreeError> {
        let above = Node::new(parent.words());
        let suffix_len = halves.separator.len().saturating_sub(above.prefix_len());
        let bytes = entry_bytes(suffix_len, CHILD_BYTES);
        // The new separator takes the place of the old one.
        let old_bytes = entry_bytes(above.slot(pair.slot + 1).suffix_len.into(), CHILD_BYTES);
        if bytes > above.free() + old_bytes {
            drop((parent, pair));
            make_room_above(self.env, self.tree, self.log_buffer, (self.key, self.level + 1), bytes)?;
            return Ok(Next::Again);
        }
        let Neighbors { left, right, slot } = pair;
        let new_above = with_separator(self.env.page_size(), above, slot + 1, &halves.separator)
            .map_err(TreeError::on_page(parent.page_id()))?;
        let [mut above_image, mut left_image, mut right_image] = [(); 3].map(|()| Vec::new());
        let ops = [
            (0, PageOp::image_of(new_above.page(), &mut above_image)),
            (1, PageOp::image_of(halves.left.page(), &mut left_image)),
            (2, PageOp::image_of(halves.right.page(), &mut right_image)),
        ];
        self.env.apply_logged(self.log_buffer, &Head::System, &mut [parent, left, right], &ops)?;
        Ok(Next::Nothing)
    }

    /// Moves the root's only child into the root.
    fn shrink_root(self, root: ExclusiveGuard<'_>, child: ExclusiveGuard<'_>) -> Result<Next, TreeError> {
        let mut image = Vec::new();
        let image = PageOp::image_of(child.words(), &mut image);
        let freed = child.page_id();
        let (map, clear) = self.env.space().freeing(self.env.pool(), freed, 1)?;
        let mut guards = [root, child, map];
        let ops = [(0, image), (1, PageOp::Release), (2, clear)];
        self.env.apply_logged(self.log_buffer, &Head::System, &mut guards, &ops)?;
        self.env.space().freed(freed);
        // The root is still an inner node. The former child may have had only one child, and now the root
        // has.
        Ok(if self.level == 0 { Next::Nothing } else { Next::AboveFirst })
    }
}

/// Returns the plan to merge the two nodes, if there is one. `is_left`: the left node is the underfull one.
fn plan(pair: &Neighbors<'_>, is_left: bool) -> Option<Plan> {
    let (left, right) = (Node::new(pair.left.words()), Node::new(pair.right.words()));
    let node = if is_left { left } else { right };
    if node.level() == Some(0) && node.count() == 0 {
        let mut fence = Vec::new();
        let (guard, plan) =
            if is_left { (&pair.right, Plan::UnlinkLeft) } else { (&pair.left, Plan::UnlinkRight) };
        let op = if is_left {
            left.lower_into(&mut fence);
            PageOp::LowerFence { lower: &fence }
        } else {
            right.upper_into(&mut fence);
            PageOp::Truncate { keep: left.count() as u16, upper: &fence }
        };
        return change::check(&op, guard.words(), guard.page_id()).is_ok().then_some(plan);
    }
    let (used, capacity) = merged_fit(left, right)?;
    let fits = if is_bare(node) { used <= capacity } else { used * 4 <= capacity * 3 };
    (fits && is_underfull(node)).then_some(Plan::Join)
}

fn joined(page_size: usize, left: Node<'_>, right: Node<'_>) -> Result<Scratch, CorruptNode> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    left.lower_into(&mut lower);
    right.upper_into(&mut upper);
    part(page_size, left, right, 0..left.count() + right.count(), (&lower, &upper))
}

/// Builds a node between two fences with the entries `range`, counted over `left` and `right` together.
fn part(
    page_size: usize,
    left: Node<'_>,
    right: Node<'_>,
    range: std::ops::Range<usize>,
    (lower, upper): (&[u8], &[u8]),
) -> Result<Scratch, CorruptNode> {
    let spec = NodeSpec { level: left.level().unwrap_or(0), tree: left.tree(), lower, upper };
    let border = left.count();
    let mut scratch = Scratch::new(page_size);
    scratch.format(spec)?;
    scratch.push_slots(left, range.start.min(border)..range.end.min(border))?;
    scratch.push_slots(right, range.start.max(border) - border..range.end.max(border) - border)?;
    Ok(scratch)
}

/// Returns the inner node `above` with another key for the child in slot `slot`, which is not slot 0.
fn with_separator(
    page_size: usize,
    above: Node<'_>,
    slot: usize,
    separator: &[u8],
) -> Result<Scratch, CorruptNode> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    above.lower_into(&mut lower);
    above.upper_into(&mut upper);
    let level = above.level().unwrap_or(0);
    let mut scratch = Scratch::new(page_size);
    scratch.format(NodeSpec { level, tree: above.tree(), lower: &lower, upper: &upper })?;
    scratch.push_slots(above, 0..slot)?;
    scratch.push(separator, Cell::inline(&above.child(slot).0.to_le_bytes()))?;
    scratch.push_slots(above, slot + 1..above.count())?;
    Ok(scratch)
}

/// Two neighbors after a rebalance.
struct Halves {
    left: Scratch,
    right: Scratch,
    separator: Vec<u8>,
}

/// Divides the entries of two neighbors so that neither node stays bare. The division is even if both halves
/// fit their pages. Otherwise the bare node receives fewer entries.
fn halves(page_size: usize, pair: &Neighbors<'_>) -> Result<Option<Halves>, TreeError> {
    let (left, right) = (Node::new(pair.left.words()), Node::new(pair.right.words()));
    let (border, all) = (left.count(), left.count() + right.count());
    let is_leaf = left.level() == Some(0);
    let key = |i| {
        let (node, i) = if i < border { (left, i) } else { (right, i - border) };
        if is_leaf { node.key(i) } else { node.child_key(i) }
    };
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    left.lower_into(&mut lower);
    right.upper_into(&mut upper);
    let mut moved = all / 2;
    while moved > 0 {
        let at = if is_bare(left) { border + moved } else { border.saturating_sub(moved) };
        // The neighbor keeps enough entries to not be bare itself.
        let fewest = if is_leaf { 1 } else { 2 };
        if (fewest..=all.saturating_sub(fewest)).contains(&at) {
            let first = key(at);
            let fence = if is_leaf { separator(&key(at - 1), &first).to_vec() } else { first };
            let left_half = part(page_size, left, right, 0..at, (&lower, &fence));
            let right_half = part(page_size, left, right, at..all, (&fence, &upper));
            if let (Ok(left), Ok(right)) = (left_half, right_half) {
                return Ok(Some(Halves { left, right, separator: fence }));
            }
        }
        moved /= 2;
    }
    Ok(None)
}
