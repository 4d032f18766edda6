//! The state of a running transaction; the memory of ended ones is reused.
//!
//! - **STATE-1** A state in the pool holds no lock and is in no list. It has memory, and names of tables with
//!   the trees that they had, which are valid only by the rules of `catalog`.
//! - **SAVE-1** A savepoint is in the list exactly while the undo log has not been shorter than at the
//!   savepoint: undo removes the savepoints beyond the new end. Later entries may make the log as long again,
//!   so a length alone does not identify a position in it.

use std::ops::Range;
use std::sync::Arc;

use azekura_base::striped::stripe_count;
use azekura_base::sync::{Mutex, MutexGuard};
use azekura_base::{CachePadded, Lsn, PerStripe, TreeId, TxnId};
use azekura_btree::{Tree, UndoLog, UndoOp};
use azekura_lock::{TableMode, TxnLocks};
use azekura_wal::LogBufferId;

use crate::active::{ActiveHandle, SharedUndo, TxnUndo};
use crate::catalog::{Hint, TableTypes};
use crate::database::Shared;

use super::small_map::SmallMap;

/// The types of a table that is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TypesOf {
    /// Types of the program.
    Program(fn() -> TableTypes),
    /// Names that a binding gave.
    Named(&'static TableTypes),
}

impl TypesOf {
    pub(crate) fn names(self) -> TableTypes {
        match self {
            Self::Program(names) => names(),
            Self::Named(names) => names.clone(),
        }
    }

    /// Returns `true` if both are the same types; compares no names, and so may miss that they are.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Program(one), Self::Program(other)) => std::ptr::fn_addr_eq(one, other),
            (Self::Named(one), Self::Named(other)) => std::ptr::eq(one, other),
            _ => false,
        }
    }
}

/// An open table's number; valid only in its transaction.
#[derive(Clone, Debug)]
pub(crate) struct OpenTree {
    pub(super) slot: usize,
    pub(super) name: Arc<str>,
    /// The types with which the table is open; `None` for bytes, of any types.
    pub(super) types: Option<TypesOf>,
}

impl OpenTree {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Debug, Default)]
pub(super) struct TableSlot {
    /// The tree, with a lock on it. `None`: not looked up yet, or the table does not exist.
    pub(super) tree: Option<Tree>,
    /// The table's tree at the last lookup by some transaction.
    pub(super) hint: Option<Hint>,
    /// The types of the rows of `tree` and `hint`.
    pub(super) types: Option<Arc<TableTypes>>,
    /// The types with which the table was opened last, after they were found equal to those of its rows.
    pub(super) checked: Option<TypesOf>,
}

impl TableSlot {
    /// Notes the types of the rows of the slot's tree, which was looked up again.
    pub(super) fn set_types(&mut self, types: Arc<TableTypes>) {
        if self.types.as_ref() != Some(&types) {
            (self.types, self.checked) = (Some(types), None);
        }
    }

    /// Returns `true` if the table is known to be open with its own types; compares no names.
    #[inline]
    pub(super) fn is_checked(&self, asked: Option<TypesOf>) -> bool {
        match (asked, self.checked) {
            (None, _) => true,
            (Some(asked), Some(checked)) => asked.is(checked),
            (Some(_), None) => false,
        }
    }
}

/// A bulk load that is running in a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadMark {
    /// Entries of the undo log when the load began.
    pub(super) undo_len: usize,
    /// The transaction is to be rolled back as soon as the load has ended (LOAD-4).
    pub(super) is_doomed: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(super) locks: TxnLocks,
    /// Locked for one change at a time: checkpoints copy it (ACTIVE-2).
    undo: SharedUndo,
    pub(super) worker: LogBufferId,
    pub(super) listed: Option<ActiveHandle>,
    /// The newest commit with changes that this transaction has read.
    pub(super) depends_on: Lsn,
    pub(super) slots: SmallMap<Arc<str>, TableSlot>,
    pub(super) table_modes: SmallMap<TreeId, TableMode>,
    /// Tables dropped or renamed, which the cache forgets at commit, one for each row removed from the
    /// catalog.
    pub(super) dropped: Vec<Arc<str>>,
    pub(super) write_count: u64,
    /// The bulk load that is running.
    pub(super) load: Option<LoadMark>,
    /// The savepoints that can be returned to, with the entries of the undo log at each, ascending (SAVE-1).
    pub(super) savepoints: Vec<(u64, usize)>,
    newest_savepoint: u64,
    /// Record locks taken since the last try to lock the whole table, for escalation.
    pub(super) record_locks: SmallMap<TreeId, usize>,
    /// Memory for one encoded key, and for one encoded value.
    pub(super) key_buf: Vec<u8>,
    pub(super) value_buf: Vec<u8>,
    /// Numbers for this transaction and the next ones that use this memory.
    ids: Range<u64>,
}

/// Transaction numbers drawn at once: one write to the shared counter for this many transactions.
const ID_BLOCK: u64 = 16;
/// Number of table names that are kept for the next transaction.
const KEPT_SLOTS: usize = 16;
/// Memory kept for the next transaction, in bytes, of each kind.
const KEPT_BYTES: usize = 64 << 10;

impl State {
    /// Returns the memory for a transaction that begins now, and its number.
    pub(super) fn begin(db: &Shared) -> (Box<Self>, TxnId) {
        let Some(mut state) = db.states.take() else { return Self::new(db) };
        let id = state.next_id(db);
        db.locks.begin_again(&mut state.locks, id);
        state.worker = db.wal.log_buffer();
        (state, id)
    }

    fn new(db: &Shared) -> (Box<Self>, TxnId) {
        let mut ids = db.draw_txn_ids(ID_BLOCK);
        let id = TxnId(ids.start);
        ids.start += 1;
        let state = Box::new(Self {
            locks: db.locks.begin(id),
            undo: SharedUndo::default(),
            worker: db.wal.log_buffer(),
            listed: None,
            depends_on: Lsn(0),
            slots: SmallMap::new(),
            table_modes: SmallMap::new(),
            dropped: Vec::new(),
            write_count: 0,
            load: None,
            savepoints: Vec::new(),
            newest_savepoint: 0,
            record_locks: SmallMap::new(),
            key_buf: Vec::new(),
            value_buf: Vec::new(),
            ids,
        });
        (state, id)
    }

    fn next_id(&mut self, db: &Shared) -> TxnId {
        if self.ids.is_empty() {
            self.ids = db.draw_txn_ids(ID_BLOCK);
        }
        let id = TxnId(self.ids.start);
        self.ids.start += 1;
        id
    }

    /// Keeps the memory for the next transaction; the locks are released already (STATE-1).
    pub(super) fn retire(mut self: Box<Self>, db: &Shared) {
        debug_assert!(self.locks.is_empty() && self.listed.is_none(), "STATE-1");
        let mut undo = self.undo.lock();
        debug_assert!(undo.owner.is_none(), "STATE-1");
        if undo.log.bytes() > KEPT_BYTES {
            undo.log = UndoLog::new();
        }
        undo.log.clear();
        drop(undo);
        for bytes in [&mut self.key_buf, &mut self.value_buf] {
            if bytes.capacity() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
        if self.slots.len() > KEPT_SLOTS {
            self.slots.clear();
        }
        for slot in self.slots.values_mut() {
            slot.tree = None;
        }
        self.depends_on = Lsn(0);
        self.table_modes.clear();
        self.dropped.clear();
        self.record_locks.clear();
        self.write_count = 0;
        self.load = None;
        self.savepoints.clear();
        if let Some(state) = db.states.give(self) {
            db.locks.release_all(state.locks, None);
        }
    }

    /// Locks the undo log, for one change of it and the record of that change.
    pub(super) fn undo(&self) -> MutexGuard<'_, TxnUndo> {
        self.undo.lock()
    }

    /// Returns the undo log and the other parts that a change of a page needs.
    pub(super) fn parts(&mut self) -> (&mut TxnLocks, &SharedUndo, LogBufferId) {
        (&mut self.locks, &self.undo, self.worker)
    }

    /// Returns the number of entries of the undo log.
    pub(super) fn undo_len(&self) -> usize {
        self.undo().log.len()
    }

    /// Returns `true` if the transaction is rolled back as soon as its bulk load has ended.
    pub(super) fn is_doomed(&self) -> bool {
        self.load.is_some_and(|load| load.is_doomed)
    }

    /// Adds a savepoint here and returns its number. A running bulk load is not visible before its end, so a
    /// savepoint within it marks its beginning.
    pub(super) fn add_savepoint(&mut self) -> u64 {
        let undo_len = self.load.map_or_else(|| self.undo_len(), |load| load.undo_len);
        match self.savepoints.last() {
            Some(&(number, len)) if len == undo_len => number,
            _ => {
                self.newest_savepoint += 1;
                self.savepoints.push((self.newest_savepoint, undo_len));
                self.newest_savepoint
            }
        }
    }

    /// Returns the number of undo entries at a savepoint, if it can still be returned to.
    pub(super) fn undo_len_at(&self, savepoint: u64) -> Option<usize> {
        let at = self.savepoints.binary_search_by_key(&savepoint, |&(number, _)| number).ok()?;
        Some(self.savepoints[at].1)
    }

    /// Drops the savepoints beyond the end of the undo log (SAVE-1).
    pub(super) fn forget_undone_savepoints(&mut self) {
        let undo_len = self.undo_len();
        let kept = self.savepoints.partition_point(|&(_, len)| len <= undo_len);
        self.savepoints.truncate(kept);
    }

    /// Returns `true` if `is_such` returns `true` for an entry of the undo log.
    pub(super) fn has_undo(&self, is_such: impl FnMut(UndoOp<'_>) -> bool) -> bool {
        self.undo().log.iter().any(is_such)
    }

    /// Lists the transaction as active before its first record (TXN-4).
    pub(super) fn list(&mut self, db: &Shared, id: TxnId) -> ActiveHandle {
        use azekura_base::DurableLog;
        let Self { listed, undo, worker, .. } = self;
        *listed.get_or_insert_with(|| db.active.insert(id, undo, *worker, || db.wal.lsn_bound()))
    }

    /// Notes that a lock was granted which a commit with this LSN had released early: the acknowledgment
    /// waits for that commit (W8), and the records of this transaction come after it (RANGE-3).
    pub(super) fn depend_on(&mut self, db: &Shared, lsn: Lsn) {
        if lsn > self.depends_on {
            self.depends_on = lsn;
            db.wal.raise_floor(self.worker, lsn);
        }
    }

    pub(super) fn table_mode(&self, tree: TreeId) -> Option<TableMode> {
        self.table_modes.get(&tree).copied()
    }

    pub(super) fn record_locks_in(&mut self, tree: TreeId) -> &mut usize {
        let known = self.record_locks.find(&tree);
        let at = known.unwrap_or_else(|| self.record_locks.push(tree, 0));
        self.record_locks.at_mut(at)
    }

    pub(super) fn note_table_mode(&mut self, tree: TreeId, mode: TableMode) {
        match self.table_modes.find(&tree) {
            Some(at) => {
                let held = self.table_modes.at_mut(at);
                *held = held.supremum(mode);
            }
            None => drop(self.table_modes.push(tree, mode)),
        }
    }
}

/// States kept per stripe; with more concurrent transactions, the others allocate.
const KEPT_STATES: usize = 64;

/// A boxed state: moved in and out as a pointer, not as some hundred bytes.
type Kept = Mutex<Vec<Box<State>>>;

/// States of ended transactions, for reuse.
#[derive(Debug)]
pub(crate) struct StatePool {
    stripes: PerStripe<Box<CachePadded<Kept>>>,
}

impl StatePool {
    pub(crate) fn new() -> Self {
        Self { stripes: PerStripe::new(stripe_count()) }
    }

    fn stripe(&self) -> &Kept {
        self.stripes.own(Box::default).1
    }

    fn take(&self) -> Option<Box<State>> {
        self.stripe().lock().pop()
    }

    /// Keeps `state`, or returns it if enough are kept.
    fn give(&self, state: Box<State>) -> Option<Box<State>> {
        let mut kept = self.stripe().lock();
        if kept.len() == KEPT_STATES {
            return Some(state);
        }
        kept.push(state);
        None
    }
}
