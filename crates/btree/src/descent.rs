//! The descent from the root to a node, without writing a shared cache line on warm inner pages (G8).
//!
//! One hop, optimistically:
//!
//! 1. The parent's version was read when the descent reached the parent. Search the parent for the child id.
//! 2. Peek at the child: read the *child's* version.
//! 3. Validate the parent. If it has changed, nothing that was read so far is reliable: start over.
//! 4. The child becomes the parent.
//!
//! - **HOP-1** A child's version is read before its parent is validated. So at the moment of that validation
//!   the page was the parent's child, and the version is from that moment or later. Every later change of the
//!   child, including a release and reuse of its page, changes the version.
//! - **HOP-2** A page is removed from a tree only under its own exclusive latch and its parent's. Both
//!   versions change.
//! - **HOP-3** Data that was read in a node is used only after the node was validated (or was latched by an
//!   upgrade of the version under which the data was read).
//!
//! ```text
//! reader                              writer: merges C away, then C becomes part of another tree
//! P.version; reads "key -> C" in P
//!                                     latches P and C; P forgets C, C is released; unlatches both
//!                                     latches C; C becomes a leaf of another tree; unlatches
//! C.version (the new one)
//! validates P: fails, starts over     -- without step 3 it would find the other tree's leaf valid
//! ```
//!
//! If the reader reads C's version before the writer latches C, the final validation of C fails. There is no
//! third case: `tests/loom_hop.rs` runs this code against that writer.
//!
//! *Progress.* A reader of resident pages holds nothing, so a reader that stops at any step never blocks
//! another thread. A writer that stops blocks only threads that reach the nodes that it has latched. For a
//! change in place this is the leaf. For a split these are the leaf, its new sibling and their parent, which
//! also delays readers of its other leaves. Tested by stopping threads at every access to shared memory:
//! `eval/sim/tests/tree.rs`.
//!
//! A page that is not in the pool is fixed (read in) while nothing is latched. If a page stays latched, the
//! descent sleeps without pin or latch, and the trace records this wait. (Waiters with a pin would take the
//! cache line of the latch from its holder; on 64 processors the holder could then not release the latch.)
//! After [`crate::EnvOptions::optimistic_attempts`] failures the descent uses latches: shared down to the
//! parent, each child latched before its parent is released. So progress is certain.

use azekura_base::{Backoff, PageId, PageWords};
use azekura_buffer::{
    BufferPool, ExclusiveGuard, FixError, OptimisticPage, PageGuard, PageVersion, Peek, SharedGuard,
};

use crate::env::{Env, corrupt_node};
use crate::error::TreeError;
use crate::node::Node;
use crate::tree::Tree;

/// Number of encounters with a latched page after which the descent sleeps until the latch is free.
const BUSY_SPINS: u32 = 8;
/// Number of pages that a descent keeps pinned for its next attempt.
const KEPT_PAGES: usize = 3;

/// The target of a descent.
#[derive(Clone, Copy, Debug)]
pub enum Seek<'k> {
    /// The node that covers this key.
    Covering(&'k [u8]),
    /// The node that covers the keys just below this key.
    Before(&'k [u8]),
    /// The last node of the level.
    Last,
}

impl Seek<'_> {
    pub(crate) fn slot(self, node: Node<'_>) -> usize {
        match self {
            Self::Covering(key) => node.slot_covering(key),
            Self::Before(key) => node.slot_before(key),
            Self::Last => node.count().saturating_sub(1),
        }
    }
}

/// A page read optimistically: its words, and a check that they are unchanged.
pub trait OptimisticRead: Copy {
    /// Returns the page's words; they may change while they are read.
    fn words(&self) -> PageWords<'_>;
    /// Returns `true` if the page is unchanged since this value was made.
    fn is_valid(self) -> bool;
}

impl OptimisticRead for OptimisticPage<'_> {
    #[inline]
    fn words(&self) -> PageWords<'_> {
        OptimisticPage::words(self)
    }
    #[inline]
    fn is_valid(self) -> bool {
        OptimisticPage::is_valid(self)
    }
}

/// The result of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop<L> {
    /// The child with this id, which was the parent's child when its version was read (HOP-1).
    Child(PageId, L),
    /// The parent has changed: start over.
    Changed,
}

/// Descends one level: from `parent` to the child that `seek` leads to. `look` reads the child's version.
#[inline]
pub fn hop<P: OptimisticRead, L>(parent: P, seek: Seek<'_>, look: impl FnOnce(PageId) -> L) -> Hop<L> {
    let node = Node::new(parent.words());
    let child = node.child(seek.slot(node));
    // The id may be invalid if the page is changing; a search for an absent page does no harm.
    let looked = look(child);
    // HOP-1: after `look`, which read the child's version.
    if parent.is_valid() { Hop::Child(child, looked) } else { Hop::Changed }
}

/// The reason that an optimistic descent ended early.
#[derive(Debug)]
pub(crate) enum Restart<'p> {
    /// A visited node has changed since its version was read.
    Changed,
    /// Another thread holds the exclusive latch of this page, or is reading it in.
    Busy(PageId),
    /// This page is not in the pool; the second field is its parent.
    Absent(PageId, Option<OptimisticPage<'p>>),
    /// The structure is corrupt.
    Failed(TreeError),
}

/// The end of a descent, not validated yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked<'p> {
    /// The node above; `None` if `page` is the root.
    pub(crate) parent: Option<OptimisticPage<'p>>,
    pub(crate) page: OptimisticPage<'p>,
}

/// Walks optimistically to the node of `level` that `seek` leads to. Stops at the root if the tree is lower.
#[inline]
pub(crate) fn walk<'p>(
    pool: &'p BufferPool,
    tree: Tree,
    seek: Seek<'_>,
    level: u8,
) -> Result<Walked<'p>, Restart<'p>> {
    let root = match pool.peek(tree.root) {
        Peek::Page(page) => page,
        Peek::Busy => return Err(Restart::Busy(tree.root)),
        Peek::Absent => return Err(Restart::Absent(tree.root, None)),
    };
    let Some(mut height) = Node::new(root.words()).level() else { return Err(misplaced(None, root)) };
    let mut at = Walked { parent: None, page: root };
    while height > level {
        let (child, looked) = match hop(at.page, seek, |id| pool.peek(id)) {
            Hop::Child(id, looked) => (id, looked),
            Hop::Changed => return Err(Restart::Changed),
        };
        let page = match looked {
            Peek::Page(page) => page,
            Peek::Busy => return Err(Restart::Busy(child)),
            Peek::Absent => return Err(Restart::Absent(child, Some(at.page))),
        };
        height -= 1;
        if Node::new(page.words()).level() != Some(height) {
            return Err(misplaced(Some(at.page), page));
        }
        at = Walked { parent: Some(at.page), page };
    }
    Ok(at)
}

/// Handles a page of an unexpected level: the tree is corrupt if the page and its parent are unchanged.
#[cold]
fn misplaced<'p>(parent: Option<OptimisticPage<'p>>, page: OptimisticPage<'p>) -> Restart<'p> {
    let error = corrupt_node(page.words(), page.words().page_id());
    let is_stable = page.is_valid() && parent.is_none_or(OptimisticPage::is_valid);
    if is_stable { Restart::Failed(error) } else { Restart::Changed }
}

/// A leaf to read from.
#[derive(Debug)]
pub(crate) enum Leaf<'p> {
    /// An unlatched page: the reader must validate it after reading.
    Unlatched(OptimisticPage<'p>),
    /// A latched page: unchanged while the guard lives.
    Latched(SharedGuard<'p>),
}

impl Leaf<'_> {
    #[inline]
    pub(crate) fn node(&self) -> Node<'_> {
        match self {
            Self::Unlatched(page) => Node::new(page.words()),
            Self::Latched(guard) => Node::new(guard.words()),
        }
    }

    /// Returns the leaf's page and version for a later read of the same version; `None` if the leaf is
    /// latched.
    pub(crate) const fn page_version(&self) -> Option<PageVersion> {
        match self {
            Self::Unlatched(page) => Some(page.page_version()),
            Self::Latched(_) => None,
        }
    }

    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Self::Unlatched(page) => page.is_valid(),
            Self::Latched(_) => true,
        }
    }
}

/// The attempts of one operation's descent, and its reactions to failed attempts.
#[derive(Debug)]
pub(crate) struct Descent<'e> {
    env: &'e Env,
    tree: Tree,
    attempts: u32,
    busy: u32,
    has_met_others: bool,
    backoff: Backoff,
    kept: Vec<PageGuard<'e>>,
}

impl<'e> Descent<'e> {
    pub(crate) const fn new(env: &'e Env, tree: Tree) -> Self {
        Self {
            env,
            tree,
            attempts: 0,
            busy: 0,
            has_met_others: false,
            backoff: Backoff::new(),
            kept: Vec::new(),
        }
    }

    /// Returns `true` if threads that changed the visited pages delayed the descent.
    pub(crate) const fn has_met_others(&self) -> bool {
        self.has_met_others
    }

    /// Returns the leaf that `seek` leads to, for reading.
    #[inline]
    pub(crate) fn leaf(&mut self, seek: Seek<'_>) -> Result<Leaf<'e>, TreeError> {
        while self.attempts < self.env.optimistic_attempts() {
            match walk(self.env.pool(), self.tree, seek, 0) {
                Ok(at) => return Ok(Leaf::Unlatched(at.page)),
                Err(cause) => self.restart(cause)?,
            }
        }
        loop {
            let parent = self.latched_parent(seek, 0)?;
            let guard = self.env.pool().fix(self.below(parent.as_ref(), seek))?.shared();
            match Node::new(guard.words()).level() {
                Some(0) => return Ok(Leaf::Latched(guard)),
                Some(_) if parent.is_none() => {} // The root was a leaf, and the tree has grown since.
                _ => return Err(corrupt_node(guard.words(), guard.page_id())),
            }
        }
    }

    /// Returns the leaf as [`Self::leaf`] does, and its parent (not validated), if the leaf is not latched
    /// and not the root. Calls `absent` with the parent (not validated) of each leaf that is not in the
    /// pool, before that leaf is read in.
    pub(crate) fn leaf_or(
        &mut self,
        seek: Seek<'_>,
        absent: &mut dyn FnMut(OptimisticPage<'e>),
    ) -> Result<(Leaf<'e>, Option<OptimisticPage<'e>>), TreeError> {
        while self.attempts < self.env.optimistic_attempts() {
            match walk(self.env.pool(), self.tree, seek, 0) {
                Ok(at) => return Ok((Leaf::Unlatched(at.page), at.parent)),
                Err(cause) => {
                    if let Restart::Absent(_, Some(parent)) = &cause {
                        absent(*parent);
                    }
                    self.restart(cause)?;
                }
            }
        }
        Ok((self.leaf(seek)?, None))
    }

    /// Returns the leaf that covers `key`, latched exclusively.
    #[inline]
    pub(crate) fn leaf_exclusive(&mut self, key: &[u8]) -> Result<ExclusiveGuard<'e>, TreeError> {
        let seek = Seek::Covering(key);
        while self.attempts < self.env.optimistic_attempts() {
            match walk(self.env.pool(), self.tree, seek, 0) {
                // HOP-3: the upgrade succeeds only if the leaf is unchanged since the walk.
                Ok(at) => match at.page.upgrade() {
                    Some(guard) => return Ok(guard),
                    None => self.restart(Restart::Changed)?,
                },
                Err(cause) => self.restart(cause)?,
            }
        }
        loop {
            let parent = self.latched_parent(seek, 0)?;
            let guard = self.env.pool().fix(self.below(parent.as_ref(), seek))?.exclusive();
            match Node::new(guard.words()).level() {
                Some(0) => return Ok(guard),
                Some(_) if parent.is_none() => {} // The root was a leaf, and the tree has grown since.
                _ => return Err(corrupt_node(guard.words(), guard.page_id())),
            }
        }
    }

    /// Returns the node of `level` that covers `key`, and its parent, both latched exclusively. Without a
    /// parent the node is the root, and may be below `level`.
    pub(crate) fn pair(&mut self, key: &[u8], level: u8) -> Result<Pair<'e>, TreeError> {
        let seek = Seek::Covering(key);
        while self.attempts < self.env.optimistic_attempts() {
            match walk(self.env.pool(), self.tree, seek, level) {
                Ok(at) => match upgrade_both(at) {
                    Some(pair) => return Ok(pair),
                    None => self.restart(Restart::Changed)?,
                },
                Err(cause) => self.restart(cause)?,
            }
        }
        self.latched_pair(seek, level)
    }

    fn latched_pair(&self, seek: Seek<'_>, level: u8) -> Result<Pair<'e>, TreeError> {
        let pool = self.env.pool();
        let mut pair = Pair { parent: None, node: pool.fix(self.tree.root)?.exclusive() };
        loop {
            let node = Node::new(pair.node.words());
            let height = node.level().ok_or_else(|| corrupt_node(pair.node.words(), pair.node.page_id()))?;
            if height <= level {
                return Ok(pair);
            }
            let child = pool.fix(node.child(seek.slot(node)))?.exclusive();
            expect_level(child.words(), child.page_id(), height - 1)?;
            pair = Pair { parent: Some(pair.node), node: child };
        }
    }

    /// Returns the node just above `level` that `seek` leads to, latched for readers; `None` if the root is
    /// on `level` or below.
    fn latched_parent(&self, seek: Seek<'_>, level: u8) -> Result<Option<SharedGuard<'e>>, TreeError> {
        let pool = self.env.pool();
        let mut at = pool.fix(self.tree.root)?.shared();
        let mut height =
            Node::new(at.words()).level().ok_or_else(|| corrupt_node(at.words(), at.page_id()))?;
        if height <= level {
            return Ok(None);
        }
        while height > level + 1 {
            let node = Node::new(at.words());
            let child = pool.fix(node.child(seek.slot(node)))?.shared();
            height -= 1;
            expect_level(child.words(), child.page_id(), height)?;
            at = child;
        }
        Ok(Some(at))
    }

    fn below(&self, parent: Option<&SharedGuard<'_>>, seek: Seek<'_>) -> PageId {
        parent.map_or(self.tree.root, |parent| {
            let node = Node::new(parent.words());
            node.child(seek.slot(node))
        })
    }

    /// Handles a failed validation.
    pub(crate) fn changed(&mut self) -> Result<(), TreeError> {
        self.restart(Restart::Changed)
    }

    /// Handles an early end of an attempt; no latch may be held. The next attempt starts from the root.
    #[cold]
    pub(crate) fn restart(&mut self, cause: Restart<'e>) -> Result<(), TreeError> {
        match cause {
            Restart::Changed => {
                self.attempts += 1;
                self.has_met_others = true;
                self.backoff.pause();
            }
            Restart::Busy(page_id) => self.wait_for(page_id),
            Restart::Absent(page_id, parent) => self.fix_for_retry(page_id, parent)?,
            Restart::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn wait_for(&mut self, page_id: PageId) {
        self.attempts += 1;
        self.busy += 1;
        self.has_met_others = true;
        self.backoff.pause();
        if self.busy.is_multiple_of(BUSY_SPINS) {
            // Sleeps until the latch is free. If the page has left the tree, the wait was unnecessary.
            self.env.pool().wait_while_latched(page_id);
        }
    }

    /// Reads a page in and keeps it pinned, so that the next attempt finds it.
    fn fix_for_retry(
        &mut self,
        page_id: PageId,
        parent: Option<OptimisticPage<'e>>,
    ) -> Result<(), TreeError> {
        self.attempts += 1;
        match self.env.pool().fix_without_reference(page_id) {
            Ok(guard) => {
                if self.kept.len() == KEPT_PAGES {
                    drop(self.kept.remove(0));
                }
                self.kept.push(guard);
                Ok(())
            }
            // The page may have been freed since its parent was read; its block in the file may then be
            // unreadable.
            Err(_) if parent.is_some_and(|parent| !parent.is_valid()) => Ok(()),
            Err(FixError::PoolExhausted { .. }) if !self.kept.is_empty() => {
                self.kept.clear();
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A node and its parent, latched exclusively.
#[derive(Debug)]
pub(crate) struct Pair<'p> {
    /// `None` if the node is the root.
    pub(crate) parent: Option<ExclusiveGuard<'p>>,
    pub(crate) node: ExclusiveGuard<'p>,
}

/// Upgrades the parent first, in latch order. Neither upgrade waits.
fn upgrade_both(at: Walked<'_>) -> Option<Pair<'_>> {
    let parent = match at.parent {
        Some(parent) => Some(parent.upgrade()?),
        None => None,
    };
    Some(Pair { parent, node: at.page.upgrade()? })
}

pub(crate) fn expect_level(page: PageWords<'_>, page_id: PageId, level: u8) -> Result<(), TreeError> {
    if Node::new(page).level() == Some(level) { Ok(()) } else { Err(corrupt_node(page, page_id)) }
}
