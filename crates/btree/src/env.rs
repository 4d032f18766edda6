//! The environment of tree operations: the page pool, the log, and the space maps.

use std::sync::Arc;

use azekura_base::page::PageType;
use azekura_base::{DurableLog, Lsn, PageId, PageWords, StripedCounter};
use azekura_buffer::{BufferPool, ExclusiveGuard};
use azekura_wal::{AppendError, LogBufferId, Order, Wal};

use crate::change::{PageOp, apply_checked, check};
use crate::contention::Contention;
use crate::error::TreeError;
use crate::node::{Node, NodeSpec, Scratch};
use crate::overflow::run_pages;
use crate::record::{self, Head};
use crate::space::{Space, fix_unwritten};
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};
use crate::version::Versions;

/// The log as the tree sees it: records can be appended. [`Wal`] implements it; tests have other logs.
pub trait Log: DurableLog {
    /// Appends a record to log buffer `worker` and returns its LSN, which is in the `order` requested. A log
    /// that gives each record the next LSN may ignore `order`.
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
    /// Number of failed optimistic attempts after which a descent latches its way down. 0: it always latches,
    /// which is slow, for tests.
    pub optimistic_attempts: u32,
    /// Most memory for row versions, in bytes.
    pub version_bytes: u64,
    /// A part of the protocol of snapshots that a test omits.
    pub left_out: Option<crate::version::VersionPart>,
}

impl Default for EnvOptions {
    /// Returns as many pages as the pool can name, 64 attempts, 64 MiB of versions.
    fn default() -> Self {
        Self {
            max_pages: azekura_buffer::MAX_PAGE_ID + 1,
            optimistic_attempts: 64,
            version_bytes: 64 << 20,
            left_out: None,
        }
    }
}

/// Returns the largest record body that this crate appends, with a margin: a run of a large value, or a whole
/// page, with its fields. A log's buffers must accept records of that size.
#[must_use]
pub const fn max_record_bytes(page_size: usize) -> usize {
    run_pages(page_size) as usize * page_size + page_size + 1024
}

/// Pool, log and space maps of one store. Shared by all its threads.
pub struct Env {
    pool: Arc<BufferPool>,
    log: Arc<dyn Log>,
    space: Space,
    contention: Contention,
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
    /// Combines a pool and a log. No I/O.
    #[must_use]
    pub fn new(pool: Arc<BufferPool>, log: Arc<dyn Log>, options: EnvOptions) -> Self {
        let space = Space::new(pool.body_bytes(), options.max_pages);
        Self {
            pool,
            log,
            space,
            contention: Contention::new(),
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

    /// Bytes of a page, without those that the page file uses for itself.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.pool.body_bytes()
    }

    pub(crate) const fn optimistic_attempts(&self) -> u32 {
        self.optimistic_attempts
    }

    pub(crate) const fn contention(&self) -> &Contention {
        &self.contention
    }

    /// Row versions and open snapshots.
    #[must_use]
    pub const fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the number of leaves to which scans have descended, including those without records.
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

    /// Formats an empty page file as an empty store, by one record: the first space map (page 0), and an
    /// empty tree with id 0 and root page 1, which it returns.
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
        self.apply_logged(worker, &Head::System, &mut guards, &[(0, map), (1, image)])?;
        Ok(tree)
    }

    /// Performs one mini-transaction: appends a record with `ops` to the log, then applies them.
    ///
    /// Each operation names its page by the index of its guard. Operations on one page are adjacent, and none
    /// depends on another one of this call. On an error no page has changed. Waits only for the log (a full
    /// buffer); the pages stay latched meanwhile, and until the caller drops the guards.
    pub(crate) fn apply_logged(
        &self,
        worker: LogBufferId,
        head: &Head<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        for &(i, ref op) in ops {
            check(op, guards[i].words(), guards[i].page_id())?;
        }
        // Before the append: a checkpoint between append and apply must see these pages as dirty from an LSN
        // that is not above the record's.
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
            // W7: above the page's LSN (RANGE-3), or drawn under the latch, so that the page has no larger
            // one (RANGE-4).
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

    /// As [`Self::apply_logged`], for an update of `txn` with an inverse, which goes to `log` once the record
    /// is appended.
    pub(crate) fn apply_logged_update(
        &self,
        writer: Writer,
        log: &mut UndoLog,
        undo: UndoOp<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        // Before the page shows the change (VERSION-2). If the append fails, the image equals the row.
        self.versions.before_change(log, &undo, guards.first().map(|guard| Node::new(guard.words())));
        let lsn = self.apply_logged(writer.worker, &Head::Update { txn: writer.txn, undo }, guards, ops)?;
        log.push(&undo);
        Ok(lsn)
    }
}

/// Returns the required place of a record with these operations: after the last changes of its pages. The
/// record of an operation that takes, frees or formats pages comes after all other records, because such a
/// page may not show its last change (RANGE-4).
fn order_of(guards: &[ExclusiveGuard<'_>], ops: &[(usize, PageOp<'_>)]) -> Order {
    if ops.iter().all(|(_, op)| op.is_of_rows()) {
        let last = guards.iter().map(|guard| guard.words().lsn()).max();
        Order::After(last.unwrap_or(Lsn(0)))
    } else {
        Order::Newest
    }
}

/// Frees a page that was to be formatted, and is not. It is dirty, so it will be written: it must be a valid
/// page, and as new as the log, so that redo applies no records of its earlier content to it.
#[cold]
fn leave_free(guard: &mut ExclusiveGuard<'_>, next_lsn: Lsn) {
    let id = guard.page_id();
    if guard.words().page_id() != id {
        let mut page = guard.page_mut();
        page.format(PageType::Free, id);
        page.set_lsn(Lsn(next_lsn.0 - 1));
    }
}

/// The transaction and the log buffer of appended records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The transaction.
    pub txn: azekura_base::TxnId,
    /// The transaction's log buffer.
    pub worker: LogBufferId,
}

/// Returns a leaf without entries or bounds.
pub(crate) fn empty_leaf(page_size: usize, tree: Tree) -> Scratch {
    let mut scratch = Scratch::new(page_size);
    scratch
        .format(NodeSpec { level: 0, tree: tree.id, lower: b"", upper: b"" })
        .expect("no fences to be too long");
    scratch
}

/// Runs `f` with this thread's buffer for a record or a key, empty. A nested call, for example by a
/// [`KeyLocks`](crate::KeyLocks) that uses a tree, gets another buffer.
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

/// Returns the error of a page that is no node.
pub(crate) fn corrupt_node(page: PageWords<'_>, page_id: PageId) -> TreeError {
    let reason = match page.page_type() {
        None => "no page type has this number",
        Some(azekura_base::page::PageType::Free) => "a free page in the place of a node",
        Some(_) => "not the node that its place demands",
    };
    TreeError::corrupt(page_id, reason)
}
