//! Tidying up: merges of neighbours and shrinking of the root.
//!
//! This is upkeep. A tree that was never tidied is larger than it could be and just as right, so failing to
//! get a frame or log space for it is not the caller's failure: the next removal tries again.

use azekura_buffer::ExclusiveGuard;
use azekura_wal::WorkerId;

use super::is_underfull;
use crate::change::PageOp;
use crate::descent::{Descent, Pair, expect_level};
use crate::env::Env;
use crate::error::TreeError;
use crate::node::{CorruptNode, Node, NodeSpec, Scratch, merged_fit};
use crate::record::Head;
use crate::tree::Tree;

/// Merges the leaf that covers `key` with a neighbour below the same parent, if it is underfull and both fit
/// one page with room to spare; then likewise upwards; a root with one child takes its place.
///
/// # Errors
///
/// Only [`TreeError::Corrupt`] and [`TreeError::Apply`]; see the module's head for the others.
pub(crate) fn tidy(env: &Env, tree: Tree, worker: WorkerId, key: &[u8]) -> Result<(), TreeError> {
    let mut level = 0;
    loop {
        match tidy_level(env, tree, worker, key, level) {
            Ok(Next::Above) => level += 1,
            Ok(Next::Nothing) => return Ok(()),
            Err(error @ (TreeError::Corrupt { .. } | TreeError::Apply(_))) => return Err(error),
            Err(_) => return Ok(()),
        }
    }
}

/// Where tidying goes on.
enum Next {
    Above,
    Nothing,
}

fn tidy_level(env: &Env, tree: Tree, worker: WorkerId, key: &[u8], level: u8) -> Result<Next, TreeError> {
    let mut descent = Descent::new(env, tree);
    let Pair { parent, node } = descent.pair(key, level)?;
    let Some(parent) = parent else { return Ok(Next::Nothing) };
    let (view, above) = (Node::new(node.words()), Node::new(parent.words()));
    if above.count() <= 1 {
        if parent.page_id() != tree.root {
            return Ok(Next::Above);
        }
        return shrink_root(env, worker, parent, node).map(|()| Next::Nothing);
    }
    if !is_underfull(view) {
        return Ok(Next::Nothing);
    }
    let slot = above.slot_covering(key);
    if above.child(slot) != node.page_id() {
        return Err(TreeError::corrupt(parent.page_id(), "a child is not where its key leads"));
    }
    let neighbours = latch_neighbours(env, &parent, node, slot, level)?;
    merge(env, worker, parent, neighbours)
}

/// Two children of one parent, and the parent's slot of the right one.
struct Neighbours<'p> {
    left: ExclusiveGuard<'p>,
    right: ExclusiveGuard<'p>,
    right_slot: usize,
}

/// Latches `node`, in the parent's slot `slot`, together with the neighbour right of it, or else left of it.
fn latch_neighbours<'e>(
    env: &'e Env,
    parent: &ExclusiveGuard<'_>,
    node: ExclusiveGuard<'e>,
    slot: usize,
    level: u8,
) -> Result<Neighbours<'e>, TreeError> {
    let above = Node::new(parent.words());
    let latch = |slot| -> Result<ExclusiveGuard<'e>, TreeError> {
        let guard = env.pool().fix(above.child(slot))?.exclusive();
        expect_level(guard.words(), guard.page_id(), level)?;
        Ok(guard)
    };
    if slot + 1 < above.count() {
        return Ok(Neighbours { left: node, right: latch(slot + 1)?, right_slot: slot + 1 });
    }
    // Latches go from left to right, so the node is let go first. Its parent stays latched: it cannot be
    // split or merged meanwhile, though its records may change.
    drop(node);
    Ok(Neighbours { left: latch(slot - 1)?, right: latch(slot)?, right_slot: slot })
}

fn merge(
    env: &Env,
    worker: WorkerId,
    parent: ExclusiveGuard<'_>,
    neighbours: Neighbours<'_>,
) -> Result<Next, TreeError> {
    let Neighbours { left, right, right_slot } = neighbours;
    let (left_node, right_node) = (Node::new(left.words()), Node::new(right.words()));
    let fit = merged_fit(left_node, right_node);
    // Room to spare: or the next insertion splits again.
    let Some(_) = fit.filter(|&(used, capacity)| used * 4 <= capacity * 3) else { return Ok(Next::Nothing) };
    let merged =
        merged(env.page_size(), left_node, right_node).map_err(TreeError::on_page(left.page_id()))?;
    let mut image = Vec::new();
    let image = PageOp::image_of(merged.page(), &mut image);

    let freed = right.page_id();
    let (map, clear) = env.space().freeing(env.pool(), freed, 1)?;
    let mut guards = [parent, left, right, map];
    let ops = [(0, PageOp::Remove { slot: right_slot as u16 }), (1, image), (2, PageOp::Release), (3, clear)];
    env.commit(worker, &Head::System, &mut guards, &ops)?;
    env.space().freed(freed);
    let above = Node::new(guards[0].words());
    Ok(if is_underfull(above) || above.count() <= 1 { Next::Above } else { Next::Nothing })
}

fn merged(page_size: usize, left: Node<'_>, right: Node<'_>) -> Result<Scratch, CorruptNode> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    left.lower_into(&mut lower);
    right.upper_into(&mut upper);
    let spec = NodeSpec { level: left.level().unwrap_or(0), tree: left.tree(), lower: &lower, upper: &upper };
    let mut scratch = Scratch::new(page_size);
    scratch.format(spec)?;
    scratch.push_slots(left, 0..left.count())?;
    scratch.push_slots(right, 0..right.count())?;
    Ok(scratch)
}

/// Takes the root's only child into the root.
fn shrink_root(
    env: &Env,
    worker: WorkerId,
    root: ExclusiveGuard<'_>,
    child: ExclusiveGuard<'_>,
) -> Result<(), TreeError> {
    let mut image = Vec::new();
    let image = PageOp::image_of(child.words(), &mut image);
    let freed = child.page_id();
    let (map, clear) = env.space().freeing(env.pool(), freed, 1)?;
    let mut guards = [root, child, map];
    env.commit(worker, &Head::System, &mut guards, &[(0, image), (1, PageOp::Release), (2, clear)])?;
    env.space().freed(freed);
    Ok(())
}
