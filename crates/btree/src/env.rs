//! The environment of tree operations: the page pool, the log, and the space maps.

use std::sync::Arc;

use azekura_base::page::PageType;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
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

/// The part of the log that trees need: records can be appended. [`Wal`] implements it; tests use other logs.
pub trait Log: DurableLog {
    /// Appends a record to `log_buffer` and returns the record's LSN, which satisfies `order`. A log that
    /// gives each record the next LSN may ignore `order`.
    ///
    /// # Errors
    ///
    /// [`AppendError`]: nothing was appended, and no LSN was drawn.
    fn append(&self, log_buffer: LogBufferId, body: &[u8], order: Order) -> Result<Lsn, AppendError>;
}

impl Log for Wal {
    fn append(&self, log_buffer: LogBufferId, body: &[u8], order: Order) -> Result<Lsn, AppendError> {
        self.append_in_order(log_buffer, body, order)
    }
}

/// Settings of an [`Env`].
#[derive(Clone, Copy, Debug)]
pub struct EnvOptions {
    /// Largest number of pages in the page file.
    pub max_pages: u64,
    /// Number of failed optimistic attempts after which a descent latches its way down. With 0 every descent
    /// latches, which is slow: for tests.
    pub optimistic_attempts: u32,
    /// Largest memory for row versions, in bytes.
    pub version_bytes: u64,
    /// A part of the snapshot protocol that a test leaves out.
    pub left_out: Option<crate::version::VersionPart>,
}

impl Default for EnvOptions {
    /// Returns the defaults: all pages that the pool can address, 64 attempts, and 64 MiB of row versions.
    fn default() -> Self {
        Self {
            max_pages: azekura_buffer::MAX_PAGE_ID + 1,
            optimistic_attempts: 64,
            version_bytes: 64 << 20,
            left_out: None,
        }
    }
}

/// Returns the largest size of a record body that this crate appends, in bytes and with a margin. The largest
/// bodies contain a run of a large value or a whole page. The log's buffers must accept records of that size.
#[must_use]
pub const fn max_record_bytes(page_size: usize) -> usize {
    run_pages(page_size) as usize * page_size + page_size + 1024
}

/// Pool, log and space maps of one store, shared by all threads.
pub struct Env {
    pool: Arc<BufferPool>,
    log: Arc<dyn Log>,
    space: Space,
    contention: Contention,
    versions: Versions,
    scanned_leaves: StripedCounter,
    optimistic_attempts: u32,
    /// The redo LSN of the durable checkpoint; 0 if all pages must be in the log (UNLOGGED-2).
    redo_lsn: AtomicU64,
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
    /// Combines a pool and a log. Performs no I/O.
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
            redo_lsn: AtomicU64::new(0),
        }
    }

    /// Returns the page pool.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(crate) fn shared_pool(&self) -> Arc<BufferPool> {
        Arc::clone(&self.pool)
    }

    /// Returns the log.
    #[must_use]
    pub fn log(&self) -> &dyn Log {
        &*self.log
    }

    /// Returns the size of a page in bytes, without the part that the page file uses.
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

    /// Announces that a restart would redo no record below `lsn`: a checkpoint with this redo LSN is durable.
    /// Large values can be left out of the log only after this call. Not for a store with an archive,
    /// because its log must describe all rows.
    pub fn note_redo_lsn(&self, lsn: Lsn) {
        // Release: pairs with the Acquire in `may_leave_out_of_log`. The checkpoint is durable.
        self.redo_lsn.fetch_max(lsn.0, Release);
    }

    /// Returns `true` if a restart would redo no record of a page that was freed (UNLOGGED-2). The caller has
    /// latched the space map of a free page, so the record that freed this page is included.
    pub(crate) fn may_leave_out_of_log(&self) -> bool {
        // Acquire: pairs with the Release in `note_redo_lsn`.
        Lsn(self.redo_lsn.load(Acquire)) > self.space.last_freed()
    }

    /// Returns the row versions and open snapshots.
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
    pub fn format(&self, log_buffer: LogBufferId) -> Result<Tree, TreeError> {
        let tree = Tree { id: azekura_base::TreeId(0), root: PageId(1) };
        let mut guards = [fix_unwritten(&self.pool, PageId(0))?, self.pool.fix_new(tree.root)?];
        let (scratch, mut buffer) = (empty_leaf(self.page_size(), tree), Vec::new());
        let image = PageOp::image_of(scratch.page(), &mut buffer);
        let map = PageOp::SpaceMake { used: 1 };
        self.apply_logged(log_buffer, &Head::System, &mut guards, &[(0, map), (1, image)])?;
        Ok(tree)
    }

    /// Performs one mini-transaction: appends a record with `ops` to the log, then applies them.
    ///
    /// Each operation names its page by the index of the page's guard. Operations on one page are adjacent,
    /// and no operation depends on another operation of this call. On an error no page has changed. Waits
    /// only for the log (a full buffer). The pages stay latched until the caller drops the guards.
    pub(crate) fn apply_logged(
        &self,
        log_buffer: LogBufferId,
        head: &Head<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        for &(i, ref op) in ops {
            check(op, guards[i].words(), guards[i].page_id())?;
        }
        // Before the append: a checkpoint between append and apply must treat these pages as dirty since an
        // LSN that is not above the record's.
        let bound = self.log.lsn_bound();
        guards.iter_mut().for_each(|guard| guard.will_change(bound));
        let order = order_of(guards, ops);
        let lsn = with_buffer(|body| {
            record::encode(body, head, ops.iter().map(|&(i, ref op)| (guards[i].page_id(), op)));
            self.log.append(log_buffer, body, order)
        })
        .inspect_err(|_| guards.iter_mut().for_each(|guard| leave_free(guard, self.log.next_lsn())))?;
        for &(i, ref op) in ops {
            let page_id = guards[i].page_id();
            let mut page = guards[i].page_mut();
            apply_checked(op, &mut page, page_id);
            // W7: the LSN is above the page's LSN (RANGE-3), or it was drawn under the latch, so that the
            // page has no larger one (RANGE-4).
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

    /// Performs a mini-transaction as [`Self::apply_logged`] does, for an update of `writer.txn` with the
    /// inverse `undo`. Pushes the inverse to `log` after the record was appended.
    pub(crate) fn apply_logged_update(
        &self,
        writer: Writer,
        log: &mut UndoLog,
        undo: UndoOp<'_>,
        guards: &mut [ExclusiveGuard<'_>],
        ops: &[(usize, PageOp<'_>)],
    ) -> Result<Lsn, TreeError> {
        // Before the page contains the change (VERSION-2). If the append fails, the before-image equals the
        // row.
        let leaf = guards.first().map(|guard| Node::new(guard.words()));
        let marks = self.versions.before_change(log, &undo, leaf.zip(ops.first().map(|(_, op)| op)));
        let lsn =
            self.apply_logged(writer.log_buffer, &Head::Update { txn: writer.txn, undo }, guards, ops)?;
        if let Some(marks) = marks {
            marks.done(lsn);
        }
        log.push(&undo);
        Ok(lsn)
    }
}

/// Returns the LSN order that a record with these operations requires: after the last changes of its pages.
/// The record of an operation that allocates, frees or formats pages comes after all other records, because
/// the LSN of its last change may be missing from such a page (RANGE-4).
fn order_of(guards: &[ExclusiveGuard<'_>], ops: &[(usize, PageOp<'_>)]) -> Order {
    if ops.iter().all(|(_, op)| op.is_of_rows()) {
        let last = guards.iter().map(|guard| guard.words().lsn()).max();
        Order::After(last.unwrap_or(Lsn(0)))
    } else {
        Order::Newest
    }
}

/// Formats a page as free if the append of the record that was to format it failed.
///
/// The page is dirty and will be written, so it must be a valid page. Its LSN is the log's newest, so that
/// redo applies no records of its earlier content to it.
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
    pub log_buffer: LogBufferId,
}

/// Returns a leaf without entries or bounds.
pub(crate) fn empty_leaf(page_size: usize, tree: Tree) -> Scratch {
    let mut scratch = Scratch::new(page_size);
    scratch
        .format(NodeSpec { level: 0, tree: tree.id, lower: b"", upper: b"" })
        .expect("no fences to be too long");
    scratch
}

/// Runs `f` with this thread's empty buffer for a record or a key. A nested call, for example by a
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

/// Returns the error for a page that is not a node.
pub(crate) fn corrupt_node(page: PageWords<'_>, page_id: PageId) -> TreeError {
    let reason = match page.page_type() {
        None => "no page type has this number",
        Some(azekura_base::page::PageType::Free) => "a free page where the tree has a node",
        Some(_) => "not the node that belongs in its place",
    };
    TreeError::corrupt(page_id, reason)
}
