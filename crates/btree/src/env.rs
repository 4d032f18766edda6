//! What every operation on a tree works with: the page pool, the log, and the space maps.

use std::sync::Arc;

use azekura_base::page::PageType;
use azekura_base::{DurableLog, Lsn, PageId, PageWords, StripedCounter};
use azekura_buffer::{BufferPool, ExclusiveGuard};
use azekura_wal::{AppendError, LogBufferId, Order, Wal};

use crate::change::{PageOp, apply_checked, check};
use crate::error::TreeError;
use crate::heat::Heat;
use crate::node::{Node, NodeSpec, Scratch};
use crate::overflow::run_pages;
use crate::record::{self, Head};
use crate::space::{Space, fix_unwritten};
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};
use crate::version::Versions;

/// The log as the tree sees it: somewhere to append to. [`Wal`] is one; tests have others.
pub trait Log: DurableLog {
    /// Appends a record to log buffer `worker` and returns its LSN, which is above what `order` names. A log
    /// that gives each record the next LSN need not look at `order`.
    ///
    /// # Errors
    ///
    /// [`AppendError`]: nothing was appended, no LSN drawn.
    fn append(&self, worker: LogBufferId, body: &[u8], order: Order) -> Result<Lsn, AppendError>;
}

impl Log for Wal {
    fn append(&self, worker: LogBufferId, body: &[u8], order: Order) -> Result<Lsn, AppendError> {
        self.append_in_order(worker, body, order)
    }
}

/// Settings of an [`Env`].
#[derive(Clone, Copy, Debug)]
pub struct EnvOptions {
    /// The page file never has more pages than this.
    pub max_pages: u64,
    /// How often a descent may fail because something changed underneath before it latches its way down. 0 is
    /// always: slow, but a way to test that way.
    pub optimistic_attempts: u32,
    /// Most memory for row versions, in bytes.
    pub version_bytes: u64,
    /// A part of the protocol of snapshots that a test leaves out.
    pub left_out: Option<crate::version::VersionPart>,
}

impl Default for EnvOptions {
    /// As many pages as the pool can name; 64 attempts; 64 MiB of versions.
    fn default() -> Self {
        Self {
            max_pages: azekura_buffer::MAX_PAGE_ID + 1,
            optimistic_attempts: 64,
            version_bytes: 64 << 20,
            left_out: None,
        }
    }
}

/// Most bytes of a record body that this crate appends, with room to spare: a run of a large value, or a
/// whole page, and what goes with it. A log's buffers must take records of that size.
#[must_use]
pub const fn max_record_bytes(page_size: usize) -> usize {
    run_pages(page_size) as usize * page_size + page_size + 1024
}

/// Pool, log and space maps of one store. Shared by all its threads.
pub struct Env {
    pool: Arc<BufferPool>,
    log: Arc<dyn Log>,
    space: Space,
    heat: Heat,
    versions: Versions,
    scanned_leaves: StripedCounter,
    optimistic_attempts: u32,
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("page_size", &self.page_size())
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}

impl Env {
    /// Puts a pool and a log together. No I/O.
    #[must_use]
    pub fn new(pool: Arc<BufferPool>, log: Arc<dyn Log>, options: EnvOptions) -> Self {
        let space = Space::new(pool.page_size(), options.max_pages);
        Self {
            pool,
            log,
            space,
            heat: Heat::new(),
            versions: Versions::new(options.version_bytes).leave_out(options.left_out),
            optimistic_attempts: options.optimistic_attempts,
            scanned_leaves: StripedCounter::new(),
        }
    }

    /// The page pool.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(crate) fn shared_pool(&self) -> Arc<BufferPool> {
        Arc::clone(&self.pool)
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &dyn Log {
        &*self.log
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.pool.page_size()
    }

    pub(crate) const fn optimistic_attempts(&self) -> u32 {
        self.optimistic_attempts
    }

    pub(crate) const fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Row versions and open snapshots.
    #[must_use]
    pub const fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Leaves that scans have come to, those without records included.
    #[must_use]
    pub fn scanned_leaves(&self) -> u64 {
        self.scanned_leaves.sum()
    }

    pub(crate) fn leaf_scanned(&self) {
        self.scanned_leaves.add(1);
    }

    pub(crate) const fn space(&self) -> &Space {
        &self.space
    }

    /// Makes an empty store of an empty page file, by one record: the first space map (page 0), and a tree
    /// without records whose root is page 1, which it returns; its id is 0.
    ///
    /// # Errors
    ///
    /// [`TreeError`]; in particular [`TreeError::Corrupt`] if the file already holds a store.
    pub fn format(&self, worker: LogBufferId) -> Result<Tree, TreeError> {
        let tree = Tree { id: azekura_base::TreeId(0), root: PageId(1) };
        let mut guards = [fix_unwritten(&self.pool, PageId(0))?, self.pool.fix_new(tree.root)?];
        let (scratch, mut buffer) = (empty_leaf(self.page_size(), tree), Vec::new());
        let image = PageOp::image_of(scratch.page(), &mut buffer);
        let map = PageOp::SpaceMake { used: 1 };
        self.commit(worker, &Head::System, &mut guards, &[(0, map), (1, image)])?;
        Ok(tree)
    }

    /// Performs one mini-transaction: appends a record with `ops` to the log, then applies them.
    ///
    /// Each operation names its page by the index of its guard; operations on one page stand side by side,
    /// and none depends on another of this call. On an error no page has changed. Waits at most for the log
    /// (a full buffer); the pages stay latched meanwhile, and until the caller drops the guards.
    pub(crate) fn commit(
        &self,
        worker: LogBufferId,
        head: &Head<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        for &(i, ref op) in ops {
            check(op, guards[i].words(), guards[i].page_id())?;
        }
        // Before the append: a checkpoint that runs between append and apply must see these pages as dirty
        // from an LSN that is not above the record's.
        let bound = self.log.lsn_bound();
        guards.iter_mut().for_each(|guard| guard.will_change(bound));
        let order = order_of(guards, ops);
        let lsn = with_buffer(|body| {
            record::encode(body, head, ops.iter().map(|&(i, ref op)| (guards[i].page_id(), op)));
            self.log.append(worker, body, order)
        })
        .inspect_err(|_| guards.iter_mut().for_each(|guard| leave_free(guard, self.log.next_lsn())))?;
        for &(i, ref op) in ops {
            let page_id = guards[i].page_id();
            let mut page = guards[i].page_mut();
            apply_checked(op, &mut page, page_id);
            // W7: above the page's LSN (RANGE-3), or drawn under the latch, so that no larger one has come to
            // this page before it (RANGE-4).
            page.set_lsn(lsn);
        }
        if ops.iter().any(|(_, op)| matches!(op, PageOp::SpaceClear { .. })) {
            self.space.freed_by(lsn);
        }
        if self.space.is_recorded() {
            self.space.note_change(ops.iter().map(|(i, op)| (guards[*i].page_id(), op)));
        }
        Ok(lsn)
    }

    /// [`Self::commit`] of an update of `txn`, whose inverse goes to `log` once the record is appended.
    pub(crate) fn commit_update(
        &self,
        writer: Writer,
        log: &mut UndoLog,
        undo: UndoOp<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        // Before the page shows the change (VERSION-2). If the append fails, the image equals the row.
        self.versions.before_change(log, &undo, guards.first().map(|guard| Node::new(guard.words())));
        let lsn = self.commit(writer.worker, &Head::Update { txn: writer.txn, undo }, guards, ops)?;
        log.push(&undo);
        Ok(lsn)
    }
}

/// What a record with these operations comes after: the last changes of its pages. Those of pages that it
/// takes, frees or makes from nothing may not show in them, so such a record comes after everything
/// (RANGE-4).
fn order_of(guards: &[ExclusiveGuard<'_>], ops: &[(usize, PageOp<'_>)]) -> Order {
    if ops.iter().all(|(_, op)| op.is_of_rows()) {
        let last = guards.iter().map(|guard| guard.words().lsn()).max();
        Order::After(last.unwrap_or(Lsn(0)))
    } else {
        Order::Newest
    }
}

/// Makes a page that was to be formatted, and is not, a free one. It is dirty, so it will be written: it must
/// be a page, and as new as the log, so that records of its former life are not redone on it.
#[cold]
fn leave_free(guard: &mut ExclusiveGuard<'_>, next_lsn: Lsn) {
    let id = guard.page_id();
    if guard.words().page_id() != id {
        let mut page = guard.page_mut();
        page.format(PageType::Free, id);
        page.set_lsn(Lsn(next_lsn.0 - 1));
    }
}

/// In whose name records are appended, and to which buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The transaction.
    pub txn: azekura_base::TxnId,
    /// The calling thread's log worker.
    pub worker: LogBufferId,
}

/// A leaf without entries or bounds.
pub(crate) fn empty_leaf(page_size: usize, tree: Tree) -> Scratch {
    let mut scratch = Scratch::new(page_size);
    scratch
        .format(NodeSpec { level: 0, tree: tree.id, lower: b"", upper: b"" })
        .expect("no fences to be too long");
    scratch
}

/// Runs `f` with this thread's buffer for a record or a key, empty. If `f` asks for it again, as a keeper of
/// locks may that uses a tree, that is another one.
pub(crate) fn with_buffer<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    azekura_base::per_thread! {
        static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let mut buffer = BUFFER.with_borrow_mut(std::mem::take);
    buffer.clear();
    let result = f(&mut buffer);
    BUFFER.with_borrow_mut(|kept| *kept = buffer);
    result
}

/// The page as a node of `tree`, or what is wrong with it.
pub(crate) fn corrupt_node(page: PageWords<'_>, page_id: PageId) -> TreeError {
    let reason = match page.page_type() {
        None => "no page type has this number",
        Some(azekura_base::page::PageType::Free) => "a free page in the place of a node",
        Some(_) => "not the node that its place demands",
    };
    TreeError::corrupt(page_id, reason)
}
