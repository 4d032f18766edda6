//! Row operations, with the locks that each call takes before it accesses the tree.

use azekura_btree::node::Cell;
use azekura_btree::{
    Env, LeafBatch, Outcome, PutMode, Scan, Tree, TreeError, UndoOp, WriteCtx, Written, max_inline_value,
};
use azekura_lock::{KeyMode, KeyRef, TableMode};

use super::{Direction, OpenTree, State, Transaction, WriteKind};
use crate::Error;
use crate::active::SharedUndo;
use crate::bounds::ByteBounds;
use crate::catalog::CATALOG;
use crate::locking::{BlockedLock, OperationLocks, Purpose, ScanLocks};
use crate::options::Durability;
use crate::own_writes::{OwnWrites, UndoMark, Undone};
use crate::value_ref::ValueRef;

impl Transaction {
    /// Reads the value at `key` into the transaction's buffer and passes it to `each`, which may take the
    /// buffer's memory.
    pub(crate) fn read<T>(
        &self,
        open: &OpenTree,
        key: &[u8],
        each: impl FnOnce(&mut Vec<u8>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(tree) = self.resolve(open, TableMode::IS)? else { return Ok(None) };
        self.with_value(|value| match self.read_into(tree, key, value)? {
            true => each(value).map(Some),
            false => Ok(None),
        })
    }

    /// Lends the value at `key` to `each`. For a large value, only the reference to its pages has been read.
    pub(crate) fn lend<T>(
        &self,
        open: &OpenTree,
        key: &[u8],
        each: impl FnOnce(ValueRef<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(tree) = self.resolve(open, TableMode::IS)? else { return Ok(None) };
        self.with_value(|cell| {
            self.check_key(key)?;
            self.lock_to_read(tree, key)?;
            let flags = tree.get_cell(&self.db.env, key, cell).map_err(|error| self.fail(error.into()))?;
            let Some(flags) = flags else { return Ok(None) };
            // A small value needs no mark, and taking a mark locks the undo log.
            let mark = if flags == 0 { UndoMark::default() } else { UndoMark::of(&self.state()?.undo().log) };
            let cell = Cell { flags, value: cell };
            ValueRef::check(cell)?;
            each(ValueRef::locked(cell, self, &mark)).map(Some)
        })
    }

    /// Fails if the transaction is over, or has undone changes that are older than the mark (LENT-1).
    pub(crate) fn check_not_undone(&self, mark: UndoMark) -> Result<(), Error> {
        let undone = |Undone| {
            let reason = "a rollback to an earlier savepoint has ended this lent value; read the row again";
            Error::Invalid(reason.into())
        };
        mark.is_shrunk(&self.state()?.undo().log).map(drop).map_err(undone)
    }

    /// Reads the value as [`read`](Self::read) does, but takes the write lock (TXN-1). If the table does not
    /// exist yet, no lock is taken.
    pub(crate) fn read_for_update<T>(
        &self,
        open: &OpenTree,
        key: &[u8],
        each: impl FnOnce(&mut Vec<u8>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(tree) = self.resolve(open, TableMode::IX)? else { return Ok(None) };
        self.check_key(key)?;
        self.escalate(tree, 1, TableMode::X)?;
        self.lock_key(tree, key, KeyMode::UPDATE)?;
        self.with_value(|value| match self.fetch(tree, key, value)? {
            true => each(value).map(Some),
            false => Ok(None),
        })
    }

    pub(crate) fn contains(&self, open: &OpenTree, key: &[u8]) -> Result<bool, Error> {
        let Some(tree) = self.resolve(open, TableMode::IS)? else { return Ok(false) };
        self.check_key(key)?;
        self.lock_to_read(tree, key)?;
        tree.contains(&self.db.env, key).map_err(|error| self.fail(error.into()))
    }

    pub(crate) fn write(
        &self,
        open: &OpenTree,
        key: &[u8],
        value: &[u8],
        kind: WriteKind,
    ) -> Result<Option<Vec<u8>>, Error> {
        if let Some(tree) = self.resolve(open, TableMode::IX)? {
            return self.write_to(tree, key, value, kind);
        }
        // A failed write of the first row leaves neither the table nor its pages (TXN-3).
        let before = self.undo_len()?;
        let written = self.resolve_or_create(open).and_then(|tree| self.write_to(tree, key, value, kind));
        self.end_call(before, written)
    }

    pub(crate) fn remove(&self, open: &OpenTree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.resolve(open, TableMode::IX)? {
            Some(tree) => self.remove_from(tree, key),
            None => Ok(None),
        }
    }

    /// Removes `key`, which the transaction has locked for removal, unless the removal would wait for a lock.
    /// Returns `true` if the row was removed.
    pub(crate) fn remove_without_waiting(&self, open: &OpenTree, key: &[u8]) -> Result<bool, Error> {
        let was_nowait = self.state()?.locks.is_nowait();
        self.state()?.locks.set_nowait(true);
        let removed = self.delete(open, key);
        if let Ok(mut state) = self.state() {
            state.locks.set_nowait(was_nowait);
        }
        match removed {
            Err(Error::WouldBlock { .. }) => Ok(false),
            other => other,
        }
    }

    /// Removes the row at `key` without reading a large value; returns `true` if there was a row.
    pub(crate) fn delete(&self, open: &OpenTree, key: &[u8]) -> Result<bool, Error> {
        match self.resolve(open, TableMode::IX)? {
            Some(tree) => self.take_from(tree, key, None),
            None => Ok(false),
        }
    }

    pub(super) fn read_from(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.read_into(tree, key, &mut value)?.then_some(value))
    }

    fn read_into(&self, tree: Tree, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.check_key(key)?;
        self.lock_to_read(tree, key)?;
        self.fetch(tree, key, value)
    }

    fn lock_to_read(&self, tree: Tree, key: &[u8]) -> Result<(), Error> {
        if !self.reads_row_for_update(tree, key) {
            return self.lock_key(tree, key, KeyMode::READ);
        }
        self.lock_table(tree, TableMode::IX)?;
        self.lock_key(tree, key, KeyMode::UPDATE)
    }

    /// Reads the value at a key that is locked.
    fn fetch(&self, tree: Tree, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let read = tree.get_in_leaf(&self.db.env, key, value);
        let (found, leaf) = read.map_err(|error| self.fail(error.into()))?;
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.read_leaf = leaf;
        }
        Ok(found)
    }

    /// Writes to a tree on which the transaction holds at least IX.
    pub(super) fn write_to(
        &self,
        tree: Tree,
        key: &[u8],
        value: &[u8],
        kind: WriteKind,
    ) -> Result<Option<Vec<u8>>, Error> {
        check_value(value)?;
        self.lock_to_write(tree, key)?;
        let mode = if kind == WriteKind::InsertIfAbsent { PutMode::Insert } else { PutMode::Put };
        let mut old = (kind == WriteKind::Replace).then(Vec::new);
        self.announce_value(key, value.len())?;
        let written =
            self.change(tree, key, |env, ctx| tree.put(env, ctx, key, value, mode, old.as_mut()))?;
        Ok(match written {
            Written::Inserted | Written::Missing => None,
            Written::Replaced | Written::Exists => Some(old.unwrap_or_default()),
        })
    }

    /// Announces that `bytes` bytes of a value will be written. If the commit may wait for the page file,
    /// pages of large values may be left out of the log.
    pub(super) fn announce_value(&self, key: &[u8], bytes: usize) -> Result<(), Error> {
        if bytes > max_inline_value(self.db.env.page_size(), key.len()) {
            let state = self.state()?;
            let may_wait = self.durability.get() != Durability::Relaxed && !state.locks.is_nowait();
            state.undo().log.values.announce(bytes, may_wait.then_some(self.db.options.logged_value_bytes));
        }
        Ok(())
    }

    pub(super) fn remove_from(&self, tree: Tree, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut old = Vec::new();
        Ok(self.take_from(tree, key, Some(&mut old))?.then_some(old))
    }

    fn take_from(&self, tree: Tree, key: &[u8], mut old: Option<&mut Vec<u8>>) -> Result<bool, Error> {
        self.check_key(key)?;
        self.lock_table(tree, TableMode::IX)?;
        self.escalate(tree, 1, TableMode::X)?;
        self.lock_key(tree, key, KeyMode::DELETE)?;
        self.change(tree, key, |env, ctx| tree.remove(env, ctx, key, old.as_deref_mut()))
    }

    fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        check_key(self.db.env.page_size(), key)
    }

    /// Checks a key, and locks it for a write.
    pub(super) fn lock_to_write(&self, tree: Tree, key: &[u8]) -> Result<(), Error> {
        self.check_key(key)?;
        self.escalate(tree, 1, TableMode::X)?;
        self.lock_key(tree, key, KeyMode::UPDATE)
    }

    /// Takes a record lock, and waits if necessary.
    fn lock_key(&self, tree: Tree, key: &[u8], mode: KeyMode) -> Result<(), Error> {
        let mut state = self.state()?;
        let Some(mode) = self.db.options.left_out.rest_of(mode) else { return Ok(()) };
        if state.table_mode(tree.id).is_some_and(|m| m.covers_key(mode)) {
            return Ok(());
        }
        match self.db.locks.lock_key(&mut state.locks, tree.id, KeyRef::Key(key), mode) {
            Ok(depends_on) => {
                state.depend_on(&self.db, depends_on);
                Ok(())
            }
            Err(error) => {
                let held = self.db.locks.held_key_mode(&state.locks, tree.id, KeyRef::Key(key));
                self.note_upgrade(&error, (held != KeyMode::NONE).then_some((tree.id, Some(key))));
                drop(state);
                Err(self.fail(self.lock_failed(error)))
            }
        }
    }

    /// Runs one change of a tree until its gap locks are granted, as one statement (TXN-3).
    pub(super) fn change<T>(
        &self,
        tree: Tree,
        key: &[u8],
        mut call: impl FnMut(&Env, &mut WriteCtx<'_>) -> Result<Outcome<T>, TreeError>,
    ) -> Result<T, Error> {
        self.statement(|tx, state| {
            tx.listed(state);
            let mut read_leaf = state.read_leaf.take();
            loop {
                let log_buffer = state.log_buffer;
                let (outcome, wanted) = tx.with_locks(state, tree, Some(key), |locks, undo| {
                    let undo = &mut undo.lock().log;
                    if let Some(leaf) = read_leaf.take() {
                        undo.note_read(leaf);
                    }
                    call(&tx.db.env, &mut WriteCtx { txn: tx.id, log_buffer, undo, locks })
                });
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

    /// Runs one attempt of an operation on a tree with its locks; returns the lock that blocked it, if any.
    pub(crate) fn with_locks<T>(
        &self,
        state: &mut State,
        tree: Tree,
        key: Option<&[u8]>,
        attempt: impl FnOnce(&mut OperationLocks<'_>, &SharedUndo) -> T,
    ) -> (T, Option<BlockedLock>) {
        let table_mode = state.table_mode(tree.id);
        let (locks, undo, log_buffer) = state.parts();
        let wal = (&*self.db.wal, log_buffer);
        let mut locks = OperationLocks::new(&self.db.locks, wal, locks, key, table_mode);
        locks.left_out = self.db.options.left_out;
        let result = attempt(&mut locks, undo);
        let (depends_on, wanted) = (locks.depends_on, locks.wanted.take());
        state.depend_on(&self.db, depends_on);
        (result, wanted)
    }

    /// Waits for the lock that blocked an operation. The caller holds no latch.
    pub(crate) fn wait_for(&self, state: &mut State, wanted: Option<BlockedLock>) -> Result<(), Error> {
        let wanted = wanted.expect("a blocked operation says what it wants");
        let depends_on = wanted.wait(&self.db.locks, &mut state.locks).map_err(|error| {
            self.note_upgrade(&error, wanted.upgraded(&self.db.locks, &state.locks));
            self.lock_failed(error)
        })?;
        state.depend_on(&self.db, depends_on);
        Ok(())
    }

    /// Returns the tree of a table, with a table lock that allows a cursor to lock rows; `None` if there is
    /// no such table.
    pub(crate) fn resolve_to_scan(&self, open: &OpenTree, locks: ScanLocks) -> Result<Option<Tree>, Error> {
        self.resolve(open, locks.table())
    }

    /// Returns the environment of tree operations.
    pub(crate) fn env(&self) -> &Env {
        &self.db.env
    }

    /// Returns the state for a new cursor: the tree of the table if it is known, an empty set of own writes,
    /// and the write count.
    pub(crate) fn for_cursor(&self, open: &OpenTree) -> (Option<Tree>, OwnWrites, u64) {
        match self.state() {
            Ok(state) => {
                let slot = state.slots.at(open.slot);
                let tree = slot.tree.filter(|_| slot.is_checked(open.types));
                (tree, OwnWrites::since(&state.undo().log), state.write_count)
            }
            Err(_) => (None, OwnWrites::default(), u64::MAX),
        }
    }

    /// Adds the latest writes of this transaction to the own writes of a cursor.
    pub(crate) fn look_at_own(
        &self,
        own: &mut OwnWrites,
        tree: Tree,
        rest: &ByteBounds,
    ) -> Result<(), Error> {
        own.look(&self.state()?.undo().log, tree, rest).map_err(|_| cursor_is_undone())
    }

    /// Returns `true` if a rollback undid entries since the last check of `own`. Fails if one of these
    /// entries was older than the cursor.
    pub(crate) fn is_rolled_back_since(&self, own: &OwnWrites) -> Result<bool, Error> {
        own.mark().is_shrunk(&self.state()?.undo().log).map_err(|_| cursor_is_undone())
    }

    /// Returns `false` if the table was absent when the cursor of `own` was created, and this transaction has
    /// created it, or renamed another table, since. Fails if this transaction has dropped or renamed the
    /// table since.
    pub(crate) fn had_table(&self, open: &OpenTree, own: &OwnWrites) -> Result<bool, Error> {
        let is_row = |tree: Tree, key: &[u8]| tree == CATALOG && key == open.name().as_bytes();
        let had_table = {
            let state = self.state()?;
            let undo = state.undo();
            let mut since = (own.mark().len()..undo.log.len()).filter_map(|i| undo.log.get(i));
            since.find_map(|op| match op {
                UndoOp::RemoveKey { tree, key } if is_row(tree, key) => Some(false),
                UndoOp::PutBack { tree, key, .. } if is_row(tree, key) => Some(true),
                _ => None,
            })
        };
        if had_table == Some(true) {
            return Err(Error::Invalid(format!(
                "table {:?} was dropped or renamed before an iterator over it had read its first row",
                open.name()
            )));
        }
        Ok(had_table.is_none())
    }

    /// Reads and locks the next rows of `bounds` from one end, at most `max`. Returns `true` if they are the
    /// last rows. `scan` continues after the previous rows; `None` at the beginning.
    pub(crate) fn scan(
        &self,
        (tree, mut locks): (Tree, ScanLocks),
        bounds: &ByteBounds,
        scan: &mut Option<Scan>,
        direction: Direction,
        max: usize,
        found: &mut LeafBatch,
    ) -> Result<bool, Error> {
        let _scan = crate::probe::scan();
        self.check_time()?;
        if locks.purpose == Purpose::Read && self.reads_for_update(tree) {
            locks.purpose = Purpose::Remove;
        }
        self.lock_table(tree, locks.table())?;
        self.escalate(tree, 0, locks.whole_table())?;
        let scan = scan.get_or_insert_with(|| bounds.scan(tree));
        let mut state = self.state()?;
        let result = crate::scan::batch(self, (tree, locks), scan, direction, max, &mut state, found);
        *state.record_locks_in(tree.id) += found.len();
        drop(state);
        result.map_err(|error| self.fail(error))?;
        Ok(scan.is_done())
    }

    /// Counts `more` record locks in a table. If there are many, tries to lock the whole table in `mode`
    /// without waiting. So a scan or load of a large table needs only one lock, and usually memory for a few
    /// thousand. Another transaction with locks in the table prevents this. If the transaction has
    /// [`ESCALATIONS`] times as many locks, it therefore waits for the whole table.
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
        let most = self.db.options.escalation.saturating_mul(ESCALATIONS);
        if state.locks.len() > most.min(self.db.options.most_locks()) {
            drop(state);
            return self.lock_table(tree, mode);
        }
        *state.record_locks_in(tree.id) = 0;
        if let Ok(depends_on) = self.db.locks.try_lock_table(&mut state.locks, tree.id, mode) {
            state.depend_on(&self.db, depends_on);
            state.note_table_mode(tree.id, mode);
        }
        Ok(())
    }
}

/// Largest number of locks of a transaction, divided by the number of row locks after which it tries to lock
/// the whole table: about a million locks, each of 100 to 200 bytes. `memory_bytes` may allow fewer.
const ESCALATIONS: usize = 1024;

fn cursor_is_undone() -> Error {
    Error::Invalid("a rollback to an earlier savepoint has ended this iterator; make a new one".into())
}

/// Returns an error if the row is too large for any table.
pub(crate) fn check_row(page_size: usize, key: &[u8], value: &[u8]) -> Result<(), Error> {
    check_key(page_size, key)?;
    check_value(value)
}

fn check_key(page_size: usize, key: &[u8]) -> Result<(), Error> {
    let max = azekura_btree::max_key(page_size);
    if key.len() > max {
        return Err(Error::Invalid(format!(
            "a key of {} bytes; at most {max} fit with pages of this size, more with larger pages",
            key.len()
        )));
    }
    Ok(())
}

fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() as u64 > azekura_btree::MAX_VALUE {
        return Err(Error::Invalid(format!(
            "a value of {} bytes is too long; the limit is {}",
            value.len(),
            azekura_btree::MAX_VALUE
        )));
    }
    Ok(())
}
