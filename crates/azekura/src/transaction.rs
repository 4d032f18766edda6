//! A transaction: strict two-phase locking, logical undo, early lock release at commit.
//!
//! | state | means | leaves it |
//! |---|---|---|
//! | active | reads and writes | `commit`, `abort`, drop, or an error that rolls back |
//! | over | committed or undone, locks gone; each call fails with [`Error::Aborted`] | drop |
//! | stuck | the undo itself failed because the log is broken; its locks stay, the store takes no more writes | reopening |
//!
//! - **TXN-1** A change is made only while its record lock, and where a key appears or disappears its gap locks, are held.
//! - **TXN-2** Locks are released only after the commit record, or the end of the undo, is in the log buffer (W9).
//! - **TXN-3** A failed call leaves the transaction as it was before the call, or over.
//! - **TXN-4** A transaction is in the active list from before its first record until after its last one.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::sync::Arc;

use azekura_base::{DurableLog, Lsn, TreeId, TxnId};
use azekura_btree::{
    Env, Head, Outcome, PutMode, Tree, TreeError, UndoLog, UndoOp, WriteCtx, Writer, Written, roll_back_to,
};
use azekura_lock::{GapMode, KeyMode, KeyRef, LockError, TableMode, TxnLocks};
use azekura_wal::WorkerId;

use crate::Error;
use crate::active::Listed;
use crate::catalog::{self, CATALOG};
use crate::database::Shared;
use crate::deferred::{self, Leftovers};
use crate::key::Key;
use crate::locking::{LockPart, OperationLocks, Wanted};
use crate::options::Durability;
use crate::range::{Batch, ByteBounds};
use crate::table::{MAX_TABLE_NAME, OpenTable, Table};
use crate::ticket::CommitTicket;
use crate::value::Value;

/// A table as one transaction knows it; a number that means something to its transaction only.
#[derive(Clone, Debug)]
pub(crate) struct OpenTree {
    slot: usize,
    name: Arc<str>,
}

impl OpenTree {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// What a write does with a value that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Overwrites it.
    Put,
    /// Overwrites it and gives it back.
    Replace,
    /// Leaves it, and says so by giving back an empty value.
    InsertNew,
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A place in a transaction to come back to; made by [`Transaction::savepoint`].
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    txn: TxnId,
    undo_len: usize,
}

#[derive(Debug)]
struct TableSlot {
    name: Arc<str>,
    /// `None`: not looked up yet, or not there.
    tree: Option<Tree>,
}

#[derive(Debug)]
pub(crate) struct State {
    locks: TxnLocks,
    undo: UndoLog,
    worker: WorkerId,
    listed: Option<Listed>,
    /// The newest commit that this transaction saw something of.
    depends_on: Lsn,
    slots: Vec<TableSlot>,
    table_modes: Vec<(TreeId, TableMode)>,
    /// Tables dropped, to be forgotten by the cache at commit.
    dropped: Vec<Arc<str>>,
    key_buf: Vec<u8>,
    write_count: u64,
    /// Record locks taken since the last try to lock the whole table, for escalation.
    record_locks: Vec<(TreeId, usize)>,
}

/// A serializable transaction; made by [`Database::begin`](crate::Database::begin) or
/// [`Database::transact`](crate::Database::transact).
///
/// Any number run at once, on any threads; one transaction can move between threads but is used by one at a time. Dropped without `commit`
/// it is rolled back. A deadlock ends with [`Error::Deadlock`] in one of the transactions in it, which is then rolled back already.
pub struct Transaction {
    db: Arc<Shared>,
    id: TxnId,
    durability: Durability,
    /// `None` once it is over.
    state: RefCell<Option<State>>,
    must_retry: Cell<bool>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Transaction {
    pub(crate) fn begin(db: Arc<Shared>) -> Result<Self, Error> {
        db.checkpoint_if_due()?;
        let id = db.next_txn();
        let state = State {
            locks: db.locks.begin(id),
            undo: UndoLog::new(),
            worker: db.wal.worker(),
            listed: None,
            depends_on: Lsn(0),
            slots: Vec::new(),
            table_modes: Vec::new(),
            dropped: Vec::new(),
            key_buf: Vec::new(),
            write_count: 0,
            record_locks: Vec::new(),
        };
        let durability = db.options.durability;
        Ok(Self { db, id, durability, state: RefCell::new(Some(state)), must_retry: Cell::new(false) })
    }

    /// This transaction's number; larger is younger.
    #[must_use]
    pub const fn id(&self) -> TxnId {
        self.id
    }

    /// Chooses what this transaction's commit waits for.
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// Opens a table for reading and writing. A table that does not exist is made by the first insert into it; until then
    /// reading it finds nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a name that is empty or longer than [`MAX_TABLE_NAME`] bytes.
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        table: &Table<K, V>,
    ) -> Result<OpenTable<'_, K, V>, Error> {
        Ok(OpenTable::new(self, self.open_tree(table.name())?))
    }

    /// Whether there is a table of this name.
    ///
    /// # Errors
    ///
    /// As for reading a row.
    pub fn table_exists(&self, name: &str) -> Result<bool, Error> {
        let open = self.open_tree(name)?;
        Ok(self.resolve(&open, TableMode::IS)?.is_some())
    }

    /// Removes a table and everything in it; says whether there was one. Its pages are freed after the commit.
    ///
    /// Waits for every other transaction that uses the table.
    ///
    /// # Errors
    ///
    /// As for writing a row.
    pub fn drop_table(&self, name: &str) -> Result<bool, Error> {
        let open = self.open_tree(name)?;
        let Some(tree) = self.resolve(&open, TableMode::X)? else { return Ok(false) };
        self.remove_from(CATALOG, name.as_bytes())?;
        self.statement(|tx, state| {
            let State { locks, undo, worker, .. } = state;
            let mut held = OperationLocks::new(&tx.db.locks, locks, None, Some(TableMode::X));
            let mut ctx = WriteCtx { txn: tx.id, worker: *worker, undo, locks: &mut held };
            tree.drop_at_commit(&tx.db.env, &mut ctx).map_err(Error::from)
        })?;
        let mut state = self.state()?;
        state.slots[open.slot].tree = None;
        state.dropped.push(open.name);
        Ok(true)
    }

    /// A place to come back to with [`rollback_to`](Self::rollback_to).
    ///
    /// # Panics
    ///
    /// If the transaction is over.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        let state = self.state.borrow();
        let undo_len =
            state.as_ref().expect("a transaction that is over has no places to come back to").undo.len();
        Savepoint { txn: self.id, undo_len }
    }

    /// Undoes every change made since `savepoint`. Locks stay.
    ///
    /// May wait: where a row goes that the transaction inserted itself and then scanned up to, the gap that it read reaches to the
    /// next row now, and has to be locked.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a savepoint of another transaction, or one that a rollback went past; conflict errors.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<(), Error> {
        let mut state = self.state()?;
        if savepoint.txn != self.id || savepoint.undo_len > state.undo.len() {
            return Err(Error::Invalid("this savepoint is not one of this transaction as it is now".into()));
        }
        let result = self
            .pass_on_gaps(&mut state, savepoint.undo_len)
            .and_then(|()| self.undo_to(&mut state, savepoint.undo_len));
        drop(state);
        result.map_err(|error| self.fail(error))
    }

    /// Before inserted keys vanish: locks the gap above each one whose own gap this transaction has read (see `locking`).
    fn pass_on_gaps(&self, state: &mut State, undo_len: usize) -> Result<(), Error> {
        if self.db.options.left_out == Some(LockPart::UndoneNext) {
            return Ok(());
        }
        let mut inserted = Vec::new();
        for entry in (undo_len..state.undo.len()).filter_map(|i| state.undo.get(i)) {
            if let UndoOp::RemoveKey { tree, key } = entry {
                inserted.push((tree, key.to_vec()));
            }
        }
        // Ascending: the next key may be an inserted one too, and then passes on what it gets here.
        inserted.sort_unstable_by(|(a, k), (b, l)| (a.id, k).cmp(&(b.id, l)));
        inserted.dedup();
        for (tree, key) in inserted {
            let held = self.db.locks.held_key_mode(&state.locks, tree.id, KeyRef::Key(&key));
            if matches!(held.gap, GapMode::S | GapMode::X) {
                let above = ByteBounds::right_above(key);
                crate::scan::batch(self, tree, &above, Direction::Forward, 1, state)?;
            }
        }
        Ok(())
    }

    /// Ends the transaction and makes it last. Returns when it is durable, or at once with [`Durability::Relaxed`].
    ///
    /// A transaction that only read waits too, if it saw something that is not durable yet.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] when the log failed: whether the transaction is durable is then known only after reopening.
    pub fn commit(self) -> Result<(), Error> {
        let relaxed = self.durability == Durability::Relaxed;
        let lsn = self.commit_record()?;
        if relaxed { Ok(()) } else { self.db.wait_durable(lsn) }
    }

    /// Ends the transaction and returns at once with a ticket that tells when it is durable.
    ///
    /// Others see its effects from now on; whoever commits having seen them becomes durable after it.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub fn commit_async(self) -> Result<CommitTicket, Error> {
        let lsn = self.commit_record()?;
        Ok(CommitTicket::new(&self.db.wal, lsn))
    }

    /// Ends the transaction and undoes all of it. Dropping does the same, without telling what went wrong.
    ///
    /// # Errors
    ///
    /// An error of the log or of a page on the way; a restart of the store then finishes the undo.
    pub fn abort(self) -> Result<(), Error> {
        self.roll_back()
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.db
    }

    /// Whether this transaction was rolled back so that others could go on.
    pub(crate) fn must_retry(&self) -> bool {
        self.must_retry.get()
    }

    /// Moves with every change, so that iterators notice that what they buffered is old.
    pub(crate) fn write_count(&self) -> u64 {
        self.state.borrow().as_ref().map_or(u64::MAX, |s| s.write_count)
    }

    fn state(&self) -> Result<RefMut<'_, State>, Error> {
        RefMut::filter_map(self.state.borrow_mut(), Option::as_mut)
            .map_err(|_| Error::Aborted { txn: self.id })
    }

    /// Encodes `key` into the transaction's buffer for the time of one call.
    pub(crate) fn with_key<K: Key + ?Sized, T>(
        &self,
        key: &K,
        call: impl FnOnce(&Self, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut bytes = std::mem::take(&mut self.state()?.key_buf);
        bytes.clear();
        key.encode(&mut bytes);
        let result = call(self, &bytes);
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.key_buf = bytes;
        }
        result
    }
}

/// Tables by name.
impl Transaction {
    fn open_tree(&self, name: &str) -> Result<OpenTree, Error> {
        if name.is_empty() || name.len() > MAX_TABLE_NAME.min(azekura_btree::max_key(self.db.page_size())) {
            return Err(Error::Invalid(format!(
                "a table name of {} bytes; 1 to {MAX_TABLE_NAME} are possible",
                name.len()
            )));
        }
        let mut state = self.state()?;
        let slot = state.slots.iter().position(|s| *s.name == *name);
        let slot = slot.unwrap_or_else(|| {
            state.slots.push(TableSlot { name: name.into(), tree: None });
            state.slots.len() - 1
        });
        Ok(OpenTree { slot, name: Arc::clone(&state.slots[slot].name) })
    }

    /// The tree of a table, locked in `mode` at least; `None` if there is no such table (which stays so: its row is locked).
    fn resolve(&self, open: &OpenTree, mode: TableMode) -> Result<Option<Tree>, Error> {
        let (known, is_dropped) = {
            let state = self.state()?;
            (state.slots[open.slot].tree, state.dropped.contains(&open.name))
        };
        if let Some(tree) = known {
            self.lock_table(tree, mode)?;
            return Ok(Some(tree));
        }
        // The cache still has a table that this transaction itself dropped.
        if let Some(tree) = self.db.catalog.cached(&open.name)
            && !is_dropped
        {
            self.lock_table(tree, mode)?;
            if self.db.catalog.cached(&open.name) == Some(tree) {
                self.state()?.slots[open.slot].tree = Some(tree);
                return Ok(Some(tree));
            }
        }
        self.lock_table(CATALOG, TableMode::IS)?;
        let Some(row) = self.read_from(CATALOG, open.name.as_bytes())? else { return Ok(None) };
        let tree = catalog::decode(&row).ok_or_else(|| Error::CorruptPage {
            page: CATALOG.root,
            reason: format!("the catalogue's row of table {:?} is no tree", open.name),
        })?;
        self.lock_table(tree, mode)?;
        // A table that this transaction made itself is nobody else's to know before it commits.
        if !self.has_written_catalog(&open.name)? {
            self.db.catalog.remember(&open.name, tree);
        }
        self.state()?.slots[open.slot].tree = Some(tree);
        Ok(Some(tree))
    }

    /// Whether this transaction changed the catalogue's row of `name`.
    fn has_written_catalog(&self, name: &str) -> Result<bool, Error> {
        let is_row = |op: UndoOp<'_>| matches!(op, UndoOp::RemoveKey { tree, key } if tree == CATALOG && key == name.as_bytes());
        Ok(self.state()?.undo.iter().any(is_row))
    }

    fn resolve_or_create(&self, open: &OpenTree) -> Result<Tree, Error> {
        if let Some(tree) = self.resolve(open, TableMode::IX)? {
            return Ok(tree);
        }
        let id = self.db.catalog.new_id();
        // Exclusive from the start: nobody else can see the table yet, and its keys need no locks of their own.
        self.lock_table(CATALOG, TableMode::IX)?;
        let tree = self.statement(|tx, state| {
            tx.db.locks.lock_table(&mut state.locks, id, TableMode::X).map_err(|e| tx.lock_failed(e))?;
            state.table_modes.push((id, TableMode::X));
            tx.listed(state);
            let State { locks, undo, worker, .. } = state;
            let mut held = OperationLocks::new(&tx.db.locks, locks, None, Some(TableMode::X));
            let mut ctx = WriteCtx { txn: tx.id, worker: *worker, undo, locks: &mut held };
            Tree::create(&tx.db.env, &mut ctx, id).map_err(Error::from)
        })?;
        let row = catalog::encode(tree);
        if self.write_to(CATALOG, open.name.as_bytes(), &row, WriteKind::InsertNew)?.is_some() {
            return Err(Error::Invalid(format!("table {:?} appeared while it was made", open.name)));
        }
        self.state()?.slots[open.slot].tree = Some(tree);
        Ok(tree)
    }

    fn lock_table(&self, tree: Tree, mode: TableMode) -> Result<(), Error> {
        let mut state = self.state()?;
        if state.table_mode(tree.id).is_some_and(|m| m.covers(mode)) {
            return Ok(());
        }
        match self.db.locks.lock_table(&mut state.locks, tree.id, mode) {
            Ok(depends_on) => {
                state.depends_on = state.depends_on.max(depends_on);
                state.note_table_mode(tree.id, mode);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(self.fail(self.lock_failed(error)))
            }
        }
    }
}

/// Rows.
impl Transaction {
    pub(crate) fn read(&self, open: &OpenTree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.resolve(open, TableMode::IS)? {
            Some(tree) => self.read_from(tree, key),
            None => Ok(None),
        }
    }

    pub(crate) fn write(
        &self,
        open: &OpenTree,
        key: &[u8],
        value: &[u8],
        kind: WriteKind,
    ) -> Result<Option<Vec<u8>>, Error> {
        let tree = self.resolve_or_create(open)?;
        self.write_to(tree, key, value, kind)
    }

    pub(crate) fn remove(&self, open: &OpenTree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.resolve(open, TableMode::IX)? {
            Some(tree) => self.remove_from(tree, key),
            None => Ok(None),
        }
    }

    fn read_from(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check_key(key)?;
        self.lock_key(tree, key, KeyMode::READ)?;
        let mut value = Vec::new();
        match tree.get(&self.db.env, key, &mut value) {
            Ok(found) => Ok(found.then_some(value)),
            Err(error) => Err(self.fail(error.into())),
        }
    }

    fn write_to(
        &self,
        tree: Tree,
        key: &[u8],
        value: &[u8],
        kind: WriteKind,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.check_key(key)?;
        self.check_value(value)?;
        self.lock_table(tree, TableMode::IX)?;
        self.escalate(tree, 1, TableMode::X)?;
        self.lock_key(tree, key, KeyMode::UPDATE)?;
        let mode = if kind == WriteKind::InsertNew { PutMode::Insert } else { PutMode::Put };
        let mut old = (kind == WriteKind::Replace).then(Vec::new);
        let written =
            self.change(tree, key, |env, ctx| tree.put(env, ctx, key, value, mode, old.as_mut()))?;
        Ok(match written {
            Written::Inserted | Written::Missing => None,
            Written::Replaced | Written::Exists => Some(old.unwrap_or_default()),
        })
    }

    fn remove_from(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check_key(key)?;
        self.lock_table(tree, TableMode::IX)?;
        self.escalate(tree, 1, TableMode::X)?;
        self.lock_key(tree, key, KeyMode::DELETE)?;
        let mut old = Vec::new();
        let was_there = self.change(tree, key, |env, ctx| tree.remove(env, ctx, key, Some(&mut old)))?;
        Ok(was_there.then_some(old))
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        let max = azekura_btree::max_key(self.db.page_size());
        if key.len() > max {
            return Err(Error::Invalid(format!(
                "a key of {} bytes; at most {max} fit with pages of {} bytes",
                key.len(),
                self.db.page_size()
            )));
        }
        Ok(())
    }

    fn check_value(&self, value: &[u8]) -> Result<(), Error> {
        if value.len() as u64 > azekura_btree::MAX_VALUE {
            return Err(Error::Invalid(format!(
                "a value of {} bytes; at most {} are possible",
                value.len(),
                azekura_btree::MAX_VALUE
            )));
        }
        Ok(())
    }

    /// A record lock, waited for if need be.
    fn lock_key(&self, tree: Tree, key: &[u8], mode: KeyMode) -> Result<(), Error> {
        let mut state = self.state()?;
        let Some(mode) = LockPart::rest_of(mode, self.db.options.left_out) else { return Ok(()) };
        if state.table_mode(tree.id).is_some_and(|m| m.covers_key(mode)) {
            return Ok(());
        }
        match self.db.locks.lock_key(&mut state.locks, tree.id, KeyRef::Key(key), mode) {
            Ok(depends_on) => {
                state.depends_on = state.depends_on.max(depends_on);
                Ok(())
            }
            Err(error) => {
                drop(state);
                Err(self.fail(self.lock_failed(error)))
            }
        }
    }

    /// Runs one change of a tree until its gap locks are had, as one statement (TXN-3).
    fn change<T>(
        &self,
        tree: Tree,
        key: &[u8],
        mut call: impl FnMut(&Env, &mut WriteCtx<'_>) -> Result<Outcome<T>, TreeError>,
    ) -> Result<T, Error> {
        self.statement(|tx, state| {
            tx.listed(state);
            loop {
                let mut undo = std::mem::take(&mut state.undo);
                let worker = state.worker;
                let (outcome, wanted) = tx.with_locks(state, tree, Some(key), |locks| {
                    call(&tx.db.env, &mut WriteCtx { txn: tx.id, worker, undo: &mut undo, locks })
                });
                state.undo = undo;
                match outcome? {
                    Outcome::Done(value) => {
                        state.write_count += 1;
                        return Ok(value);
                    }
                    Outcome::Blocked => tx.wait_for(state, wanted)?,
                }
            }
        })
    }

    /// Runs one attempt of an operation on a tree with the locks it may ask for; gives what it wants if it was blocked.
    pub(crate) fn with_locks<T>(
        &self,
        state: &mut State,
        tree: Tree,
        key: Option<&[u8]>,
        attempt: impl FnOnce(&mut OperationLocks<'_>) -> T,
    ) -> (T, Option<Wanted>) {
        let table_mode = state.table_mode(tree.id);
        let mut locks = OperationLocks::new(&self.db.locks, &mut state.locks, key, table_mode);
        locks.left_out = self.db.options.left_out;
        let result = attempt(&mut locks);
        let (depends_on, wanted) = (locks.depends_on, locks.wanted.take());
        state.depends_on = state.depends_on.max(depends_on);
        (result, wanted)
    }

    /// Waits for what blocked an operation, with no latch held.
    pub(crate) fn wait_for(&self, state: &mut State, wanted: Option<Wanted>) -> Result<(), Error> {
        let wanted = wanted.expect("a blocked operation says what it wants");
        let depends_on = wanted.wait(&self.db.locks, &mut state.locks).map_err(|e| self.lock_failed(e))?;
        state.depends_on = state.depends_on.max(depends_on);
        Ok(())
    }

    /// Rows of `bounds` from one end, locked; `max` at most.
    pub(crate) fn scan(
        &self,
        open: &OpenTree,
        bounds: &ByteBounds,
        direction: Direction,
        max: usize,
    ) -> Result<Batch, Error> {
        let Some(tree) = self.resolve(open, TableMode::IS)? else {
            return Ok(Batch { rows: Vec::new(), exhausted: true });
        };
        self.escalate(tree, max, TableMode::S)?;
        let mut state = self.state()?;
        let result = crate::scan::batch(self, tree, bounds, direction, max, &mut state);
        drop(state);
        result.map_err(|error| self.fail(error))
    }

    /// Counts `more` record locks in a table; once there are many, tries to lock the whole table in `mode`, which needs no waiting if
    /// nobody is in the way. A scan or load of a large table so costs one lock, and memory for a few thousand.
    fn escalate(&self, tree: Tree, more: usize, mode: TableMode) -> Result<(), Error> {
        let mut state = self.state()?;
        if state.table_mode(tree.id).is_some_and(|m| m.covers(mode)) {
            return Ok(());
        }
        let count = state.record_locks_in(tree.id);
        *count += more;
        if *count <= self.db.options.escalation {
            return Ok(());
        }
        *count = 0;
        if let Ok(depends_on) = self.db.locks.try_lock_table(&mut state.locks, tree.id, mode) {
            state.depends_on = state.depends_on.max(depends_on);
            state.note_table_mode(tree.id, mode);
        }
        Ok(())
    }
}

/// Ends.
impl Transaction {
    const fn writer(&self, state: &State) -> Writer {
        Writer { txn: self.id, worker: state.worker }
    }

    /// Lists the transaction as active before its first record (TXN-4).
    fn listed(&self, state: &mut State) -> Listed {
        *state.listed.get_or_insert_with(|| self.db.active.insert(self.id, || self.db.wal.next_lsn()))
    }

    /// Runs one call that changes things; what it left half done is undone when it fails (TXN-3).
    fn statement<T>(&self, call: impl FnOnce(&Self, &mut State) -> Result<T, Error>) -> Result<T, Error> {
        let mut state = self.state()?;
        let before = state.undo.len();
        let result = call(self, &mut state);
        let Err(error) = result else { return result };
        let undone = if ends_transaction(&error) { Ok(()) } else { self.undo_to(&mut state, before) };
        drop(state);
        match undone {
            Ok(()) => Err(self.fail(error)),
            Err(_) => {
                // The undo needs a working log, and it failed: the whole transaction is left to the next restart.
                let _ = self.roll_back();
                Err(error)
            }
        }
    }

    /// Passes an error on; one that ends the transaction rolls it back first.
    fn fail(&self, error: Error) -> Error {
        if ends_transaction(&error) {
            self.must_retry.set(error.is_retryable());
            if let Err(stuck) = self.roll_back() {
                self.must_retry.set(false);
                return stuck;
            }
        }
        error
    }

    fn lock_failed(&self, error: LockError) -> Error {
        match error {
            LockError::Deadlock { cycle, .. } => Error::Deadlock { txn: self.id, cycle },
            LockError::Timeout { waited, holders } => Error::LockTimeout {
                txn: self.id,
                waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                holders,
            },
            other => Error::other(other),
        }
    }

    /// Undoes the newest entries until `len` are left, each with its compensation record.
    fn undo_to(&self, state: &mut State, len: usize) -> Result<(), Error> {
        if state.undo.len() <= len {
            return Ok(());
        }
        state.write_count += 1;
        let writer = self.writer(state);
        roll_back_to(&self.db.env, writer, &mut state.undo, len)?;
        // A table may have been made or dropped in what was undone: look it up again when it is used again. A cached tree that this
        // transaction has dropped is forgotten at commit, so only what it still drops counts.
        for slot in &mut state.slots {
            slot.tree = None;
        }
        let kept = state.undo.iter().filter(|op| matches!(op, UndoOp::KeepTree { .. })).count();
        state.dropped.truncate(kept);
        Ok(())
    }

    /// Undoes everything and releases the locks (TXN-2).
    fn roll_back(&self) -> Result<(), Error> {
        let Some(mut state) = self.state.borrow_mut().take() else {
            return Err(Error::Aborted { txn: self.id });
        };
        if state.listed.is_some() {
            let undone = self
                .undo_to(&mut state, 0)
                .and_then(|()| deferred::append_end(&self.db.env, self.writer(&state)));
            if let Err(error) = undone {
                // Its changes are still in the pages: nobody may see them, so its locks stay, and it stays in the
                // active list so that the log it needs for its undo at the next restart stays too.
                self.db.wal.poison(&format!("transaction {} could not be rolled back: {error}", self.id));
                // Leaked on purpose.
                std::mem::forget(state);
                return Err(error);
            }
        }
        self.end(state, None);
        Ok(())
    }

    /// Appends the commit record and releases the locks; gives the LSN whose durability makes the answer true.
    fn commit_record(&self) -> Result<Lsn, Error> {
        let Some(mut state) = self.state.borrow_mut().take() else {
            return Err(Error::Aborted { txn: self.id });
        };
        if state.listed.is_none() || state.undo.is_empty() {
            // Nothing to make durable, but what it saw may not be durable yet (W8).
            let depends_on = state.depends_on;
            let ended = match state.listed {
                Some(_) => deferred::append_end(&self.db.env, self.writer(&state)),
                None => Ok(()),
            };
            self.end(state, None);
            return ended.map(|()| depends_on);
        }
        let mut leftovers = Leftovers::of(&state.undo);
        let has_deferred = !leftovers.is_empty();
        let gate = has_deferred.then(|| self.db.leftovers_gate.read());
        let writer = self.writer(&state);
        let commit_lsn =
            match deferred::append(&self.db.env, writer, &Head::Commit { txn: self.id, has_deferred }) {
                Ok(lsn) => lsn,
                Err(error) => {
                    *self.state.borrow_mut() = Some(state);
                    drop(gate);
                    self.roll_back()?;
                    return Err(error);
                }
            };
        for name in &state.dropped {
            self.db.catalog.forget(name);
        }
        if !has_deferred {
            self.end(state, Some(commit_lsn));
            return Ok(commit_lsn);
        }
        let listed = state.listed.take();
        self.end(state, Some(commit_lsn));
        match leftovers.free(&self.db.env, writer) {
            Ok(()) => {
                if let Some(listed) = listed {
                    self.db.active.remove(listed);
                }
            }
            // Committed all the same; it stays in the active list, so that a restart finds what is left to free.
            Err(error) => {
                self.db.unfreed.lock().extend(leftovers.into_rest());
                self.db.note_background_error(&error);
            }
        }
        drop(gate);
        Ok(commit_lsn)
    }

    fn end(&self, mut state: State, commit_lsn: Option<Lsn>) {
        self.db.locks.release_all(state.locks, commit_lsn);
        if let Some(listed) = state.listed.take() {
            self.db.active.remove(listed);
        }
    }

    /// Locks every table for reading.
    pub(crate) fn lock_all_tables(&self) -> Result<(), Error> {
        self.lock_table(CATALOG, TableMode::S)?;
        let mut trees = Vec::new();
        crate::scan::unlocked(&self.db.env, CATALOG, &mut |_, value| {
            trees.extend(catalog::decode(value));
            Ok(())
        })?;
        trees.into_iter().try_for_each(|tree| self.lock_table(tree, TableMode::S))
    }

    /// Names of all tables, in byte order.
    pub(crate) fn table_names(&self) -> Result<Vec<String>, Error> {
        self.lock_table(CATALOG, TableMode::S)?;
        let mut names = Vec::new();
        crate::scan::unlocked(&self.db.env, CATALOG, &mut |name, _| {
            names.push(String::from_utf8_lossy(name).into_owned());
            Ok(())
        })?;
        Ok(names)
    }
}

/// Whether a transaction cannot go on after this error.
fn ends_transaction(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::Log(_))
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.state.borrow().is_some() {
            // Nobody is left to tell; a rollback that fails poisons the log, and the next restart finishes it.
            let _ = self.roll_back();
        }
    }
}

impl State {
    fn table_mode(&self, tree: TreeId) -> Option<TableMode> {
        self.table_modes.iter().find(|(id, _)| *id == tree).map(|(_, mode)| *mode)
    }

    fn record_locks_in(&mut self, tree: TreeId) -> &mut usize {
        let at = self.record_locks.iter().position(|(id, _)| *id == tree).unwrap_or_else(|| {
            self.record_locks.push((tree, 0));
            self.record_locks.len() - 1
        });
        &mut self.record_locks[at].1
    }

    fn note_table_mode(&mut self, tree: TreeId, mode: TableMode) {
        match self.table_modes.iter_mut().find(|(id, _)| *id == tree) {
            Some((_, held)) => *held = held.supremum(mode),
            None => self.table_modes.push((tree, mode)),
        }
    }
}
