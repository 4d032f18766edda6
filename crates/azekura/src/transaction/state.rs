//! The state of a running transaction. The memory of an ended transaction is reused.
//!
//! - **STATE-1** A state in the pool holds no lock and is not in the active list. It keeps its memory, and
//!   the names of tables with their last trees. Those are valid only by the rules of `catalog`.
//! - **SAVE-1** A savepoint is in the list only while the undo log has not been shorter than at the
//!   savepoint: undo removes the savepoints above its new end. Later entries may make the log as long again,
//!   so a length alone does not identify a position in it.

use std::ops::Range;
use std::sync::Arc;

use azekura_base::striped::stripe_count;
use azekura_base::sync::{Mutex, MutexGuard};
use azekura_base::{CachePadded, Lsn, PerStripe, TreeId, TxnId};
use azekura_btree::{LeafVersion, Tree, UndoLog, UndoOp};
use azekura_lock::{TableMode, TxnLocks};
use azekura_wal::LogBufferId;

use crate::active::{ActiveHandle, SharedUndo, TxnUndo};
use crate::catalog::{Hint, TableTypes};
use crate::database::Shared;

use super::small_map::SmallMap;

/// The types with which a table is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TypesOf {
    /// A function that returns the types of the definition.
    Program(fn() -> TableTypes),
    /// Type names from a language binding.
    Named(&'static TableTypes),
}

impl TypesOf {
    pub(crate) fn names(self) -> TableTypes {
        match self {
            Self::Program(names) => names(),
            Self::Named(names) => names.clone(),
        }
    }

    /// Returns `true` if both have the same source of types. Compares no names, so equal types from different
    /// sources are not detected.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Program(one), Self::Program(other)) => std::ptr::fn_addr_eq(one, other),
            (Self::Named(one), Self::Named(other)) => std::ptr::eq(one, other),
            _ => false,
        }
    }
}

/// An open table: its number in the transaction, its name and its types.
#[derive(Clone, Debug)]
pub(crate) struct OpenTree {
    pub(super) slot: usize,
    pub(super) name: Arc<str>,
    /// The types with which the table is open; `None` if all types are accepted.
    pub(super) types: Option<TypesOf>,
}

impl OpenTree {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Debug, Default)]
pub(super) struct TableSlot {
    /// The tree, with a lock on it; `None` if it was not looked up yet, or the table does not exist.
    pub(super) tree: Option<Tree>,
    /// The table's tree when a transaction last looked it up.
    pub(super) hint: Option<Hint>,
    /// The types of the rows of `tree` and `hint`.
    pub(super) types: Option<Arc<TableTypes>>,
    /// The types with which the table was opened last, after they were found equal to the types of its rows.
    pub(super) checked: Option<TypesOf>,
}

impl TableSlot {
    /// Records the types of the rows of the slot's tree, after the tree was looked up again.
    pub(super) fn set_types(&mut self, types: Arc<TableTypes>) {
        if self.types.as_ref() != Some(&types) {
            (self.types, self.checked) = (Some(types), None);
        }
    }

    /// Returns `true` if the table is known to be open with the types of its rows; compares no names.
    #[inline]
    pub(super) fn is_checked(&self, asked: Option<TypesOf>) -> bool {
        match (asked, self.checked) {
            (None, _) => true,
            (Some(asked), Some(checked)) => asked.is(checked),
            (Some(_), None) => false,
        }
    }
}

/// A running bulk load of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadMark {
    /// Number of entries of the undo log when the load began.
    pub(super) undo_len: usize,
    /// `true` if the transaction must be rolled back when the load has ended (LOAD-4).
    pub(super) is_doomed: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(super) locks: TxnLocks,
    /// The undo log, which is locked for one change at a time because checkpoints copy it (ACTIVE-2).
    undo: SharedUndo,
    pub(super) log_buffer: LogBufferId,
    pub(super) listed: Option<ActiveHandle>,
    /// LSN of the newest commit with changes that this transaction has read.
    pub(super) depends_on: Lsn,
    pub(super) slots: SmallMap<Arc<str>, TableSlot>,
    pub(super) table_modes: SmallMap<TreeId, TableMode>,
    /// Names of the tables that this transaction has dropped or renamed, one for each row removed from the
    /// catalog. The cache of the catalog forgets them at commit.
    pub(super) dropped: Vec<Arc<str>>,
    pub(super) write_count: u64,
    /// The leaf of the last row that was read since the last change.
    pub(super) read_leaf: Option<LeafVersion>,
    /// The bulk load that is running.
    pub(super) load: Option<LoadMark>,
    /// The savepoints that can be restored, ascending: number, and entries of the undo log at the savepoint
    /// (SAVE-1).
    pub(super) savepoints: Vec<(u64, usize)>,
    newest_savepoint: u64,
    /// Number of record locks per table since the last attempt to lock the whole table (lock escalation).
    pub(super) record_locks: SmallMap<TreeId, usize>,
    /// Buffer for one encoded key.
    pub(super) key_buf: Vec<u8>,
    pub(super) value_buf: Vec<u8>,
    /// Ids for this transaction and the next ones that use this memory.
    ids: Range<u64>,
}

/// Number of transaction ids drawn at once, so that 16 transactions need only one write to the shared
/// counter.
const ID_BLOCK: u64 = 16;
/// Number of table names that are kept for the next transaction.
const KEPT_SLOTS: usize = 16;
/// Largest size of each buffer, in bytes, that is kept for the next transaction.
const KEPT_BYTES: usize = 64 << 10;

impl State {
    /// Returns the state and the id of a transaction that begins now.
    pub(super) fn begin(db: &Shared) -> (Box<Self>, TxnId) {
        let Some(mut state) = db.states.take() else { return Self::new(db) };
        let id = state.next_id(db);
        db.locks.begin_again(&mut state.locks, id);
        state.log_buffer = db.wal.log_buffer();
        (state, id)
    }

    fn new(db: &Shared) -> (Box<Self>, TxnId) {
        let mut ids = db.draw_txn_ids(ID_BLOCK);
        let id = TxnId(ids.start);
        ids.start += 1;
        let state = Box::new(Self {
            locks: db.locks.begin(id),
            undo: SharedUndo::default(),
            log_buffer: db.wal.log_buffer(),
            listed: None,
            depends_on: Lsn(0),
            slots: SmallMap::new(),
            table_modes: SmallMap::new(),
            dropped: Vec::new(),
            write_count: 0,
            read_leaf: None,
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

    /// Keeps the state for the next transaction; its locks have already been released (STATE-1).
    pub(super) fn retire(mut self: Box<Self>, db: &Shared) {
        debug_assert!(self.locks.is_empty() && self.listed.is_none(), "STATE-1");
        let mut undo = self.undo.lock();
        debug_assert!(undo.owner.is_none(), "STATE-1");
        if undo.log.memory() > KEPT_BYTES {
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
        self.read_leaf = None;
        self.load = None;
        self.savepoints.clear();
        if let Some(state) = db.states.give(self) {
            db.locks.release_all(state.locks, None);
        }
    }

    /// Locks the undo log for one change, and for the log record of that change.
    pub(super) fn undo(&self) -> MutexGuard<'_, TxnUndo> {
        self.undo.lock()
    }

    /// Returns the undo log and the other parts that are needed to change a page.
    pub(super) fn parts(&mut self) -> (&mut TxnLocks, &SharedUndo, LogBufferId) {
        (&mut self.locks, &self.undo, self.log_buffer)
    }

    /// Returns the number of entries of the undo log.
    pub(super) fn undo_len(&self) -> usize {
        self.undo().log.len()
    }

    /// Returns `true` if the transaction is rolled back as soon as its bulk load has ended.
    pub(super) fn is_doomed(&self) -> bool {
        self.load.is_some_and(|load| load.is_doomed)
    }

    /// Adds a savepoint at the present state and returns its number. During a bulk load, the savepoint refers
    /// to the state before the load, because other changes do not see the load before its end.
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

    /// Returns the number of undo entries at a savepoint, or `None` if the savepoint was removed.
    pub(super) fn undo_len_at(&self, savepoint: u64) -> Option<usize> {
        let at = self.savepoints.binary_search_by_key(&savepoint, |&(number, _)| number).ok()?;
        Some(self.savepoints[at].1)
    }

    /// Removes the savepoints above the end of the undo log (SAVE-1).
    pub(super) fn forget_undone_savepoints(&mut self) {
        let undo_len = self.undo_len();
        let kept = self.savepoints.partition_point(|&(_, len)| len <= undo_len);
        self.savepoints.truncate(kept);
    }

    /// Returns `true` if `is_such` returns `true` for an entry of the undo log.
    pub(super) fn has_undo(&self, is_such: impl FnMut(UndoOp<'_>) -> bool) -> bool {
        self.undo().log.iter().any(is_such)
    }

    /// Adds the transaction to the active list before its first record (TXN-4).
    pub(super) fn list(&mut self, db: &Shared, id: TxnId) -> ActiveHandle {
        use azekura_base::DurableLog;
        let Self { listed, undo, log_buffer, .. } = self;
        *listed.get_or_insert_with(|| db.active.insert(id, undo, *log_buffer, || db.wal.lsn_bound()))
    }

    /// Records that a lock was granted that a commit with this LSN had released early. The acknowledgment of
    /// this transaction waits for that commit (W8), and its records get larger LSNs (RANGE-3).
    pub(super) fn depend_on(&mut self, db: &Shared, lsn: Lsn) {
        if lsn > self.depends_on {
            self.depends_on = lsn;
            db.wal.raise_floor(self.log_buffer, lsn);
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

/// Number of states kept per stripe; additional concurrent transactions allocate their states.
const KEPT_STATES: usize = 64;

/// States in boxes, so that a move copies a pointer instead of several hundred bytes.
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

    /// Keeps `state`, or returns it if the stripe is full.
    fn give(&self, state: Box<State>) -> Option<Box<State>> {
        let mut kept = self.stripe().lock();
        if kept.len() == KEPT_STATES {
            return Some(state);
        }
        kept.push(state);
        None
    }
}
