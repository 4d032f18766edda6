//! The walk over one tree, in key order, concurrent with writers (CHECK-1).

use azekura_base::{Lsn, PageId};
use azekura_buffer::{Announced, MOST_ANNOUNCED, SharedGuard};

use super::{Check, TreeReport};
use crate::error::TreeError;
use crate::node::{Expected, FLAG_OVERFLOW, Node, verify_node};
use crate::overflow::{ChainReader, OverflowRef, chain_of};
use crate::tree::Tree;

/// A node to visit, with the bounds from its parent.
struct Place {
    page_id: PageId,
    parent: PageId,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Vec<u8>,
}

/// An inner node on the path from the root, as it was at page LSN `lsn`.
struct Frame {
    page_id: PageId,
    lsn: Lsn,
    level: u8,
    /// Each child with its lower bound.
    children: Vec<(PageId, Vec<u8>)>,
    upper: Vec<u8>,
    /// The index of the next child to visit.
    next: usize,
}

impl Frame {
    fn child(&self, at: usize) -> Place {
        let (page_id, ref lower) = self.children[at];
        let upper = self.children.get(at + 1).map_or(&self.upper, |(_, lower)| lower);
        Place {
            page_id,
            parent: self.page_id,
            level: Some(self.level - 1),
            lower: lower.clone(),
            upper: upper.clone(),
        }
    }
}

/// The part of a node that a visit counts.
#[derive(Clone, Copy)]
enum Visit<'k> {
    /// The whole node: this is its first visit.
    Whole,
    /// The part from `key` on: keys below it were counted before.
    From { key: &'k [u8], is_page_seen: bool },
}

struct Walk {
    tree: Tree,
    path: Vec<Frame>,
    /// `true` if the tree was dropped. A step that frees its values may then have ended within a value.
    is_dropped: bool,
    /// The key at which the walk last resumed from the root.
    resumed_at: Option<Vec<u8>>,
}

impl Check<'_> {
    pub(super) fn tree(&mut self, tree: Tree) -> Result<(), TreeError> {
        self.walk(Walk { tree, path: Vec::new(), is_dropped: false, resumed_at: None })
    }

    pub(super) fn dropped_tree(&mut self, tree: Tree) -> Result<(), TreeError> {
        self.walk(Walk { tree, path: Vec::new(), is_dropped: true, resumed_at: None })
    }

    fn walk(&mut self, mut walk: Walk) -> Result<(), TreeError> {
        let tree = walk.tree;
        self.report.trees.push(TreeReport { id: tree.id, ..TreeReport::default() });
        let findings = self.report.findings.len();
        let root = root_of(tree);
        if self.claim(root.page_id, root.parent) {
            match self.env.pool().fix(root.page_id) {
                Ok(guard) => self.visit(&mut walk, &root, guard.shared(), Visit::Whole)?,
                Err(error) => self.sort(root.page_id, error.into())?,
            }
        }
        let (mut leaves_ahead, mut announced) = (0, Announced::default());
        while let Some(frame) = walk.path.last_mut() {
            if frame.next == frame.children.len() {
                walk.path.pop();
                leaves_ahead = 0;
                continue;
            }
            if frame.level == 1 {
                if leaves_ahead == 0 {
                    leaves_ahead = read_leaves_ahead(self, frame, &mut announced);
                }
                leaves_ahead -= 1;
            }
            self.next_child(&mut walk)?;
            self.tell_progress()?;
        }
        // The root is freed last. So all other findings in a tree that was freed concurrently are discarded.
        if self.changes.is_changed(tree.root) {
            self.report.findings.truncate(findings);
        }
        (self.progress)(self.report.pages, self.in_use);
        Ok(())
    }

    /// Visits the next child of the last node of the path.
    fn next_child(&mut self, walk: &mut Walk) -> Result<(), TreeError> {
        let Some(frame) = walk.path.last_mut() else { return Ok(()) };
        let place = frame.child(frame.next);
        // Fixed before the parent is latched: this may read from the disk.
        let child = self.env.pool().fix(place.page_id);
        let parent = match self.env.pool().fix(frame.page_id) {
            Ok(guard) => guard.shared(),
            Err(error) => {
                walk.path.pop();
                return self.sort(place.parent, error.into());
            }
        };
        if parent.words().lsn() != frame.lsn {
            drop((child, parent));
            return self.resume(walk, &place.lower);
        }
        frame.next += 1;
        if !self.claim(place.page_id, place.parent) {
            return Ok(());
        }
        match child {
            Ok(child) => {
                let child = child.shared();
                drop(parent);
                self.visit(walk, &place, child, Visit::Whole)
            }
            Err(error) => self.sort(place.page_id, error.into()),
        }
    }

    /// Resumes from the root, at the first key that was not visited: an inner node on the path has changed.
    fn resume(&mut self, walk: &mut Walk, from: &[u8]) -> Result<(), TreeError> {
        // In an undamaged tree each call visits at least one more leaf.
        if walk.resumed_at.as_deref().is_some_and(|last| from <= last) {
            self.find(walk.tree.root, "keys of inner nodes do not ascend");
            walk.path.clear();
            return Ok(());
        }
        walk.resumed_at = Some(from.to_vec());
        walk.path.clear();
        let mut place = root_of(walk.tree);
        let mut parent: Option<SharedGuard<'_>> = None;
        loop {
            if parent.as_ref().is_some_and(|parent| parent.page_id() == place.page_id) {
                self.find(place.page_id, "a node is its own child");
                return Ok(());
            }
            let node = match self.env.pool().fix(place.page_id) {
                Ok(guard) => guard.shared(),
                Err(error) => return self.sort(place.page_id, error.into()),
            };
            drop(parent.take());
            let is_page_seen = self.owners.contains_key(&place.page_id);
            if !is_page_seen && !self.claim(place.page_id, place.parent) {
                return Ok(());
            }
            let visit = Visit::From { key: from, is_page_seen };
            let depth = walk.path.len();
            let is_inner = Node::new(node.words()).level().is_some_and(|level| level > 0);
            if !is_inner {
                return self.visit(walk, &place, node, visit);
            }
            parent = self.inner(walk, &place, node, visit);
            if walk.path.len() == depth {
                return Ok(());
            }
            let Some(frame) = walk.path.last_mut() else { return Ok(()) };
            let at = frame.children.partition_point(|(_, lower)| lower.as_slice() <= from).saturating_sub(1);
            if at >= frame.children.len() {
                return Ok(());
            }
            frame.next = at + 1;
            place = frame.child(at);
        }
    }

    /// Checks a node against its bounds. Appends an inner node to the path.
    fn visit(
        &mut self,
        walk: &mut Walk,
        place: &Place,
        guard: SharedGuard<'_>,
        visit: Visit<'_>,
    ) -> Result<(), TreeError> {
        let level = Node::new(guard.words()).level();
        if level.is_some_and(|level| level > 0) {
            self.inner(walk, place, guard, visit);
            return Ok(());
        }
        if self.is_sound(walk.tree, place, &guard) { self.leaf(walk, place, guard, visit) } else { Ok(()) }
    }

    /// Reports all contradictions inside the node and with its parent; returns `false` if its level is wrong.
    fn is_sound(&mut self, tree: Tree, place: &Place, guard: &SharedGuard<'_>) -> bool {
        let page_id = place.page_id;
        let Some(level) = Node::new(guard.words()).level() else {
            self.find(page_id, "not a node of a tree");
            return false;
        };
        let expected = Expected {
            level: place.level.unwrap_or(level),
            tree: tree.id,
            lower: &place.lower,
            upper: &place.upper,
        };
        verify_node(guard.words(), expected, &mut |what| self.find(page_id, what));
        level == expected.level
    }

    /// Appends an inner node to the path if its level is right. Returns the latch.
    fn inner<'g>(
        &mut self,
        walk: &mut Walk,
        place: &Place,
        guard: SharedGuard<'g>,
        visit: Visit<'_>,
    ) -> Option<SharedGuard<'g>> {
        if !self.is_sound(walk.tree, place, &guard) {
            return None;
        }
        let node = Node::new(guard.words());
        let level = node.level()?;
        if !matches!(visit, Visit::From { is_page_seen: true, .. }) {
            self.count(|tree| {
                tree.inner_pages += 1;
                tree.height = tree.height.max(u32::from(level) + 1);
            });
        }
        walk.path.push(Frame {
            page_id: place.page_id,
            lsn: guard.words().lsn(),
            level,
            children: (0..node.count()).map(|i| (node.child(i), node.child_key(i))).collect(),
            upper: place.upper.clone(),
            next: 0,
        });
        Some(guard)
    }

    fn leaf(
        &mut self,
        walk: &Walk,
        place: &Place,
        guard: SharedGuard<'_>,
        visit: Visit<'_>,
    ) -> Result<(), TreeError> {
        let node = Node::new(guard.words());
        let (from, is_seen) = match visit {
            Visit::Whole => (None, false),
            Visit::From { key, is_page_seen } => (Some(key), is_page_seen),
        };
        let first = from.map_or(0, |from| {
            (0..node.count()).find(|&i| node.key(i).as_slice() >= from).unwrap_or(node.count())
        });
        self.count(|tree| {
            tree.height = tree.height.max(1);
            tree.records += (node.count() - first) as u64;
            if !is_seen {
                tree.leaf_pages += 1;
                tree.leaf_bytes_used += node.used() as u64;
            }
        });
        let mut large = Vec::new();
        for i in first..node.count() {
            let slot = node.slot(i);
            if slot.flags & FLAG_OVERFLOW != 0 {
                let mut bytes = Vec::new();
                node.value_into(slot, &mut bytes);
                large.extend(OverflowRef::decode(&bytes));
            }
        }
        drop(guard);
        large.into_iter().try_for_each(|reference| self.large_value(walk, place.page_id, reference))
    }

    fn large_value(&mut self, walk: &Walk, owner: PageId, reference: OverflowRef) -> Result<(), TreeError> {
        let mut pages = Vec::new();
        let walked = if walk.is_dropped {
            chain_of(self.env, reference.head).map(|chain| pages = chain)
        } else {
            ChainReader::new(self.env, reference).and_then(|mut chain| {
                while let Some(page_id) = chain.next_with(|_, _| ())? {
                    pages.push(page_id);
                }
                Ok(())
            })
        };
        if let Err(error) = walked {
            self.sort_of_chain(reference.head, error)?;
        }
        self.count(|tree| tree.overflow_pages += pages.len() as u64);
        pages.into_iter().for_each(|page_id| {
            self.claim(page_id, owner);
        });
        Ok(())
    }
}

fn root_of(tree: Tree) -> Place {
    Place { page_id: tree.root, parent: tree.root, level: None, lower: Vec::new(), upper: Vec::new() }
}

/// Reads ahead the next leaf together with the leaves that are visited after it. Returns their number, at
/// least 1. Announces later leaves.
fn read_leaves_ahead(check: &Check<'_>, frame: &Frame, announced: &mut Announced) -> usize {
    let pool = check.env.pool();
    let count = pool.read_ahead_pages().min(frame.children.len() - frame.next);
    let mut leaves: Vec<PageId> = frame.children[frame.next..].iter().map(|&(page_id, _)| page_id).collect();
    if announced.reads(count, MOST_ANNOUNCED) {
        leaves.truncate(count + MOST_ANNOUNCED);
        pool.announce(announced, &leaves, count);
    }
    leaves.truncate(count);
    leaves.sort_unstable();
    leaves.dedup(); // A damaged parent may refer to a page twice.
    pool.read_ahead_of(leaves);
    count
}
