//! The whole-store check: every page of every tree, and the space maps against them.
//!
//! The check reads every page in use through the pool, which verifies checksums. After a damaged page it
//! skips the pages below that page and continues with the others.
//!
//! Writers may run concurrently. The check holds a latch for one node, or for a node and its parent, and no
//! locks:
//!
//! - **CHECK-1** A node is compared with its parent while both are latched, and only if the parent has not
//!   changed since the check copied its children. Otherwise the walk resumes from the root, at the first key
//!   that it has not read (`walk`). So each key is read once, and concurrent changes cause no findings inside
//!   a tree.
//! - **CHECK-2** Pages that are allocated or freed after the start are recorded under the latch of their map
//!   (`space::Recording`). The comparison of the trees with the maps skips them. For all other pages the map
//!   is constant.
//! - **CHECK-3** The owner of a page that stays in use may still change: a transaction removes a large value
//!   from a leaf before the walk reads the leaf, and restores the value afterward. [`Held`] pages of open
//!   transactions are not reported as leaked. A transaction that begins or ends such a change during the
//!   check is an exception: a page may then seem leaked, or used twice. [`Report::is_changed`] reports that
//!   such a finding is possible. Decide by a second check, or by a check without writers.
//!
//! A damaged page that stays in use is always found: either the walk reaches the page, or no other page
//! refers to it.

mod walk;

use std::collections::{HashMap, HashSet};

use azekura_base::page::PageType;
use azekura_base::{PageId, TreeId};

use crate::env::Env;
use crate::error::TreeError;
use crate::overflow::chain_of;
use crate::space::{Recording, group_pages, has_next, is_used, map_of};
use crate::tree::Tree;
use crate::undo::Deferred;

/// Number of pages between two calls of `progress`.
const PROGRESS_STEP: u64 = 64;

/// One finding of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The damaged page.
    pub page_id: PageId,
    /// Description of the damage.
    pub what: String,
}

/// Counts of one tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// The tree's id.
    pub id: TreeId,
    /// Number of levels; 1 if the root is a leaf.
    pub height: u32,
    /// Number of records.
    pub records: u64,
    /// Number of inner pages.
    pub inner_pages: u64,
    /// Number of leaves.
    pub leaf_pages: u64,
    /// Number of bytes of the leaves that records use.
    pub leaf_bytes_used: u64,
    /// Number of pages of large values.
    pub overflow_pages: u64,
    /// `true` if the tree was freed during the check.
    pub is_freed: bool,
}

/// Pages that an open transaction keeps in use, although no tree may refer to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A run of pages.
    Run {
        /// The first page.
        first: PageId,
        /// The number of pages.
        count: u32,
    },
    /// The chain of a large value, or a tree with all its pages.
    Deferred(Deferred),
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of visited pages, including space maps.
    pub pages: u64,
    /// One report per tree, in the order in which the trees were passed.
    pub trees: Vec<TreeReport>,
    /// Pages that are marked as used and unreferenced, in ascending order. If there are findings, some of
    /// these pages may be below a damaged page.
    pub leaked: Vec<PageId>,
    /// All other damage.
    pub findings: Vec<Finding>,
    /// `true` if pages were changed during the check. A page that is in use and seems leaked, or used twice,
    /// may then be valid (CHECK-3).
    pub is_changed: bool,
}

impl Report {
    /// Returns `true` if the check found no damage.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.leaked.is_empty()
    }
}

/// Checks `trees` while no other thread writes. Also checks that the trees, `pending` (the deferred frees of
/// committed transactions) and the space maps account for exactly the same pages. Calls `progress` with the
/// number of visited pages and the number of pages in use.
///
/// # Errors
///
/// [`TreeError::Fix`] if the pool itself fails. Damage of the store is in the report, not an error.
pub fn verify(
    env: &Env,
    trees: &[Tree],
    pending: &[Deferred],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, TreeError> {
    let start = || Ok::<_, TreeError>((trees.to_vec(), pending.to_vec()));
    verify_beside_writers(env, start, Vec::new, None, progress)
}

/// Checks as [`verify`] does, while transactions read and write. `start` returns the trees and the pending
/// frees, and is called once changes are recorded. `held` returns the pages that open transactions hold, and
/// is called after all trees were walked. If `interrupt` returns `true`, the check stops. No latch is held
/// during these calls.
///
/// # Errors
///
/// The errors of [`verify`], the errors of `start`, and [`TreeError::Interrupted`].
pub fn verify_beside_writers<E: From<TreeError>>(
    env: &Env,
    start: impl FnOnce() -> Result<(Vec<Tree>, Vec<Deferred>), E>,
    held: impl FnOnce() -> Vec<Held>,
    interrupt: Option<&dyn Fn() -> bool>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Report, E> {
    let mut check = Check { interrupt, ..Check::new(env, progress) };
    // The maps are read after the recording started (CHECK-2).
    let maps = check.read_maps()?;
    let (trees, pending) = start()?;
    for &tree in &trees {
        check.tree(tree)?;
    }
    for &item in &pending {
        check.deferred(item)?;
    }
    check.report.trees.truncate(trees.len());
    for (report, tree) in check.report.trees.iter_mut().zip(&trees) {
        report.is_freed = check.changes.is_changed(tree.root);
    }
    let held = check.pages_of(&held())?;
    check.compare(&maps, &held);
    check.report.is_changed = check.changes.is_any_changed();
    Ok(check.report)
}

/// The used bits of one group, from its map.
struct Map {
    page_id: PageId,
    used: Vec<bool>,
}

struct Check<'a> {
    env: &'a Env,
    report: Report,
    changes: Recording,
    /// For each visited page, the page that refers to it.
    owners: HashMap<PageId, PageId>,
    /// Pages with a second owner, or at the position of a map.
    suspects: Vec<Finding>,
    in_use: u64,
    /// The number of visited pages at which `progress` is called next.
    progress_at: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    interrupt: Option<&'a dyn Fn() -> bool>,
}

impl<'a> Check<'a> {
    fn new(env: &'a Env, progress: &'a mut dyn FnMut(u64, u64)) -> Self {
        Self {
            env,
            report: Report::default(),
            changes: env.space().record(),
            owners: HashMap::new(),
            suspects: Vec::new(),
            in_use: 0,
            progress_at: PROGRESS_STEP,
            progress,
            interrupt: None,
        }
    }

    fn find(&mut self, page_id: PageId, what: impl Into<String>) {
        self.report.findings.push(Finding { page_id, what: what.into() });
    }

    /// Classifies an error: damage becomes a finding; any other error ends the check.
    fn sort(&mut self, page_id: PageId, error: TreeError) -> Result<(), TreeError> {
        match error {
            TreeError::Corrupt { page_id, reason } => self.find(page_id, reason),
            TreeError::Fix(azekura_buffer::FixError::PoolExhausted { .. }) => return Err(error),
            other => self.find(page_id, describe(&other)),
        }
        Ok(())
    }

    /// Classifies an error as [`sort`](Self::sort) does, for a chain that begins at `head`. The chain may
    /// have been freed.
    fn sort_of_chain(&mut self, head: PageId, error: TreeError) -> Result<(), TreeError> {
        let at = if let TreeError::Corrupt { page_id, .. } = error { page_id } else { head };
        // A page is allocated again only after the record that freed it was noted.
        if self.changes.is_changed(head) || self.changes.is_changed(at) {
            return Ok(());
        }
        self.sort(head, error)
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

    /// Records that `owner` refers to `page_id`; returns `false` if another page does, too. A page that was
    /// freed and allocated again has one owner each time.
    fn claim(&mut self, page_id: PageId, owner: PageId) -> bool {
        self.report.pages += 1;
        let other = self.owners.insert(page_id, owner);
        if let Some(other) = other.filter(|_| !self.changes.is_changed(page_id)) {
            let what = format!("used twice: by page {other} and by page {owner}");
            self.suspects.push(Finding { page_id, what });
            return false;
        }
        if map_of(page_id, self.env.page_size()).1 == 0 {
            self.find(page_id, format!("a space map, but page {owner} uses it"));
            return false;
        }
        true
    }

    /// Reports the progress of the check, or stops it. No page is latched.
    fn tell_progress(&mut self) -> Result<(), TreeError> {
        if self.report.pages >= self.progress_at {
            self.progress_at = self.report.pages + PROGRESS_STEP;
            (self.progress)(self.report.pages, self.in_use);
            if self.interrupt.is_some_and(|is_interrupted| is_interrupted()) {
                return Err(TreeError::Interrupted);
            }
        }
        Ok(())
    }

    fn deferred(&mut self, item: Deferred) -> Result<(), TreeError> {
        match item {
            Deferred::Tree(tree) => self.dropped_tree(tree),
            Deferred::Chain(head) => {
                let chain = chain_of(self.env, head);
                self.chain_pages(head, chain)
            }
        }
    }

    fn chain_pages(&mut self, head: PageId, chain: Result<Vec<PageId>, TreeError>) -> Result<(), TreeError> {
        match chain {
            Ok(pages) => pages.into_iter().for_each(|page_id| {
                self.claim(page_id, head);
            }),
            Err(error) => self.sort_of_chain(head, error)?,
        }
        Ok(())
    }

    fn count(&mut self, add: impl FnOnce(&mut TreeReport)) {
        if let Some(tree) = self.report.trees.last_mut() {
            add(tree);
        }
    }

    /// Returns all pages of `held`. Damage in these pages is not reported: they may be freed at any time.
    fn pages_of(&self, held: &[Held]) -> Result<HashSet<PageId>, TreeError> {
        let mut progress = |_, _| ();
        let mut pages = Check::new(self.env, &mut progress);
        for &item in held {
            match item {
                Held::Run { first, count } => {
                    let run = (0..u64::from(count)).map(|i| (PageId(first.0 + i), first));
                    pages.owners.extend(run);
                }
                Held::Deferred(item) => pages.deferred(item)?,
            }
        }
        Ok(pages.owners.into_keys().collect())
    }

    /// Compares the maps with the visited pages.
    fn compare(&mut self, maps: &[Map], held: &HashSet<PageId>) {
        let mut suspects = std::mem::take(&mut self.suspects);
        let mut find = |page_id, what: &str| suspects.push(Finding { page_id, what: what.into() });
        let mut leaked = Vec::new();
        for map in maps {
            for (bit, &is_used) in map.used.iter().enumerate().skip(1) {
                let page_id = PageId(map.page_id.0 + bit as u64);
                match (is_used, self.owners.contains_key(&page_id)) {
                    (true, false) if !held.contains(&page_id) => leaked.push(page_id),
                    (false, true) => find(page_id, "in use, but marked as free"),
                    _ => {}
                }
            }
        }
        let end = maps.len() as u64 * group_pages(self.env.page_size());
        let beyond = self.owners.keys().copied().filter(|page_id| page_id.0 >= end);
        beyond.for_each(|page_id| find(page_id, "in use, but in no group with a map"));
        leaked.retain(|&page_id| !self.changes.is_changed(page_id));
        suspects.retain(|suspect| !self.changes.is_changed(suspect.page_id));
        self.report.leaked = leaked;
        self.report.findings.append(&mut suspects);
    }
}

/// Returns an error with its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
