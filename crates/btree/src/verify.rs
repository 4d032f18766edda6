//! The whole-store check: every page of every tree, and the space maps against them.
//!
//! Run it while nothing writes. It reads every page in use through the pool, so checksums are verified on the
//! way. It finds as much as it can: a damaged page costs what hangs below it, not the rest.

use std::collections::HashMap;

use azekura_base::page::PageType;
use azekura_base::{PageId, TreeId};

use crate::env::Env;
use crate::error::TreeError;
use crate::node::{Expected, FLAG_OVERFLOW, Node, verify_node};
use crate::overflow::{OverflowRef, chain_of, walk_chain};
use crate::space::{group_pages, has_next, is_used, map_of};
use crate::tree::Tree;
use crate::undo::Deferred;

/// Something wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub page_id: PageId,
    /// What.
    pub what: String,
}

/// What is in one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// The tree's number.
    pub id: TreeId,
    /// Levels; 1 for a lone leaf.
    pub height: u32,
    /// Records.
    pub records: u64,
    /// Pages above the leaves.
    pub inner_pages: u64,
    /// Leaves.
    pub leaf_pages: u64,
    /// Bytes of the leaves that records use.
    pub leaf_bytes_used: u64,
    /// Pages of large values.
    pub overflow_pages: u64,
}

/// What the check saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Pages visited, maps included.
    pub pages: u64,
    /// One per tree, in the order in which they were given.
    pub trees: Vec<TreeReport>,
    /// Pages that are marked as used and that nothing refers to, in ascending order. If there are findings,
    /// some may belong to what hangs below a damaged page.
    pub leaked: Vec<PageId>,
    /// What else is wrong.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.leaked.is_empty()
    }
}

/// Checks `trees`, and that they, `pending` (what committed transactions still have to free), and the space
/// maps account for exactly the same pages. Calls `progress` with pages visited and pages in use.
///
/// # Errors
///
/// Never for what is wrong with the store: that is in the report. [`TreeError::Fix`] if the pool itself gives
/// up.
pub fn verify(
    env: &Env,
    trees: &[Tree],
    pending: &[Deferred],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, TreeError> {
    let mut check = Check { env, report: Report::default(), owners: HashMap::new(), in_use: 0, progress };
    let maps = check.read_maps()?;
    for &tree in trees {
        check.tree(tree)?;
    }
    for &item in pending {
        match item {
            Deferred::Tree(tree) => check.tree(tree)?,
            Deferred::Chain(head) => {
                let chain = chain_of(env, head);
                check.chain_pages(head, chain)?;
            }
        }
    }
    check.report.trees.truncate(trees.len());
    check.compare(&maps);
    Ok(check.report)
}

/// Used bits of one group, as its map says.
struct Map {
    page_id: PageId,
    used: Vec<bool>,
}

struct Check<'a> {
    env: &'a Env,
    report: Report,
    /// Which page refers to each page visited.
    owners: HashMap<PageId, PageId>,
    in_use: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// A node to visit, and what its parent says about it.
struct Visit {
    page_id: PageId,
    parent: PageId,
    level: Option<u8>,
    lower: Vec<u8>,
    upper: Vec<u8>,
}

impl Check<'_> {
    fn find(&mut self, page_id: PageId, what: impl Into<String>) {
        self.report.findings.push(Finding { page_id, what: what.into() });
    }

    /// Sorts an error: damage is a finding, anything else ends the check.
    fn sort(&mut self, page_id: PageId, error: TreeError) -> Result<(), TreeError> {
        match error {
            TreeError::Corrupt { page_id, reason } => self.find(page_id, reason),
            TreeError::Fix(azekura_buffer::FixError::PoolExhausted { .. }) => return Err(error),
            other => self.find(page_id, describe(&other)),
        }
        Ok(())
    }

    fn read_maps(&mut self) -> Result<Vec<Map>, TreeError> {
        let group = group_pages(self.env.page_size());
        let mut maps = Vec::new();
        loop {
            let page_id = PageId(maps.len() as u64 * group);
            let guard = match self.env.pool().fix(page_id) {
                Ok(guard) => guard.shared(),
                Err(error) => {
                    self.sort(page_id, error.into())?;
                    return Ok(maps);
                }
            };
            if guard.words().page_type() != Some(PageType::SpaceMap) {
                self.find(page_id, "not a space map");
                return Ok(maps);
            }
            let used: Vec<bool> = (0..group as u32).map(|bit| is_used(guard.words(), bit)).collect();
            self.in_use += used.iter().filter(|&&used| used).count() as u64;
            self.report.pages += 1;
            maps.push(Map { page_id, used });
            if !has_next(guard.words()) {
                return Ok(maps);
            }
        }
    }

    /// Notes that `owner` refers to `page_id`; `false` if something else does, too.
    fn claim(&mut self, page_id: PageId, owner: PageId) -> bool {
        self.report.pages += 1;
        if self.report.pages.is_multiple_of(1024) {
            (self.progress)(self.report.pages, self.in_use);
        }
        if let Some(other) = self.owners.insert(page_id, owner) {
            self.find(page_id, format!("used twice: by page {other} and by page {owner}"));
            return false;
        }
        if map_of(page_id, self.env.page_size()).1 == 0 {
            self.find(page_id, format!("a space map, but page {owner} uses it"));
            return false;
        }
        true
    }

    fn tree(&mut self, tree: Tree) -> Result<(), TreeError> {
        self.report.trees.push(TreeReport { id: tree.id, ..TreeReport::default() });
        let mut to_visit =
            vec![Visit { page_id: tree.root, parent: tree.root, level: None, lower: vec![], upper: vec![] }];
        let mut leaves_ahead = 0;
        while let Some(visit) = to_visit.pop() {
            if visit.level == Some(0) {
                if leaves_ahead == 0 {
                    leaves_ahead = self.read_leaves_ahead(&visit, &to_visit);
                }
                leaves_ahead -= 1;
            }
            if self.claim(visit.page_id, visit.parent) {
                self.node(tree, &visit, &mut to_visit)?;
            }
        }
        (self.progress)(self.report.pages, self.in_use);
        Ok(())
    }

    /// Reads a leaf ahead together with the leaves that are visited after it; returns their number, at least
    /// 1.
    fn read_leaves_ahead(&self, first: &Visit, to_visit: &[Visit]) -> usize {
        let pool = self.env.pool();
        let next = to_visit.iter().rev().take_while(|visit| visit.level == Some(0));
        let mut leaves: Vec<PageId> = std::iter::once(first.page_id)
            .chain(next.map(|visit| visit.page_id))
            .take(pool.read_ahead_pages())
            .collect();
        let count = leaves.len();
        leaves.sort_unstable();
        leaves.dedup(); // a damaged parent may name a page twice
        pool.read_ahead_of(leaves);
        count
    }

    fn node(&mut self, tree: Tree, visit: &Visit, to_visit: &mut Vec<Visit>) -> Result<(), TreeError> {
        let page_id = visit.page_id;
        let guard = match self.env.pool().fix(page_id) {
            Ok(guard) => guard.shared(),
            Err(error) => return self.sort(page_id, error.into()),
        };
        let node = Node::new(guard.words());
        let Some(level) = node.level() else {
            self.find(page_id, "not a node of a tree");
            return Ok(());
        };
        let expected = Expected {
            level: visit.level.unwrap_or(level),
            tree: tree.id,
            lower: &visit.lower,
            upper: &visit.upper,
        };
        verify_node(guard.words(), expected, &mut |what| self.find(page_id, what));
        if level != expected.level {
            return Ok(());
        }
        if level == 0 { self.leaf(page_id, node) } else { self.inner(visit, node, level, to_visit) }
    }

    fn inner(
        &mut self,
        visit: &Visit,
        node: Node<'_>,
        level: u8,
        to_visit: &mut Vec<Visit>,
    ) -> Result<(), TreeError> {
        self.count(|tree| {
            tree.inner_pages += 1;
            tree.height = tree.height.max(u32::from(level) + 1);
        });
        // Last child first onto the stack: leaves are then visited from left to right.
        for i in (0..node.count()).rev() {
            let upper = if i + 1 < node.count() { node.key(i + 1) } else { visit.upper.clone() };
            to_visit.push(Visit {
                page_id: node.child(i),
                parent: visit.page_id,
                level: Some(level - 1),
                lower: node.key(i),
                upper,
            });
        }
        Ok(())
    }

    fn leaf(&mut self, page_id: PageId, node: Node<'_>) -> Result<(), TreeError> {
        self.count(|tree| {
            tree.leaf_pages += 1;
            tree.height = tree.height.max(1);
            tree.records += node.count() as u64;
            tree.leaf_bytes_used += node.used() as u64;
        });
        for i in 0..node.count() {
            let slot = node.slot(i);
            if slot.flags & FLAG_OVERFLOW == 0 {
                continue;
            }
            let mut bytes = Vec::new();
            node.value_into(slot, &mut bytes);
            if let Some(reference) = OverflowRef::decode(&bytes) {
                self.large_value(page_id, reference)?;
            }
        }
        Ok(())
    }

    fn large_value(&mut self, owner: PageId, reference: OverflowRef) -> Result<(), TreeError> {
        let mut pages = Vec::new();
        let walked = walk_chain(self.env, reference, |page_id, _, _| pages.push(page_id));
        if let Err(error) = walked {
            self.sort(reference.head, error)?;
        }
        self.count(|tree| tree.overflow_pages += pages.len() as u64);
        pages.into_iter().for_each(|page_id| {
            self.claim(page_id, owner);
        });
        Ok(())
    }

    fn chain_pages(&mut self, head: PageId, chain: Result<Vec<PageId>, TreeError>) -> Result<(), TreeError> {
        match chain {
            Ok(pages) => pages.into_iter().for_each(|page_id| {
                self.claim(page_id, head);
            }),
            Err(error) => self.sort(head, error)?,
        }
        Ok(())
    }

    fn count(&mut self, add: impl FnOnce(&mut TreeReport)) {
        if let Some(tree) = self.report.trees.last_mut() {
            add(tree);
        }
    }

    /// The maps against what was visited.
    fn compare(&mut self, maps: &[Map]) {
        for map in maps {
            for (bit, &is_used) in map.used.iter().enumerate().skip(1) {
                let page_id = PageId(map.page_id.0 + bit as u64);
                match (is_used, self.owners.contains_key(&page_id)) {
                    (true, false) => self.report.leaked.push(page_id),
                    (false, true) => self.find(page_id, "in use, but marked as free"),
                    _ => {}
                }
            }
        }
        let end = maps.len() as u64 * group_pages(self.env.page_size());
        let beyond: Vec<PageId> = self.owners.keys().copied().filter(|page_id| page_id.0 >= end).collect();
        beyond.into_iter().for_each(|page_id| self.find(page_id, "in use, but in no group with a map"));
    }
}

/// An error with its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
