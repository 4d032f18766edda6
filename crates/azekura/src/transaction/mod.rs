//! A transaction: strict two-phase locking, logical undo, early lock release at commit.
//!
//! | state | means | leaves it |
//! |---|---|---|
//! | active | reads and writes | `commit`, `abort`, drop, or an error that rolls back |
//! | over | committed or undone, locks released; each call fails with [`Error::Aborted`] | drop |
//! | parked | the undo itself failed; its locks stay | space for the log, or reopening: see `parked` |
//!
//! - **TXN-1** A change is made only while its record lock is held, and also its gap locks if a key is
//!   inserted or removed.
//! - **TXN-2** Locks are released only after the commit record, or the end of the undo, is in the log buffer
//!   (W9).
//! - **TXN-3** A failed call leaves the transaction unchanged, or ends it.
//! - **TXN-4** A transaction is in the active list from before its first record until after its last one.
//! - **TXN-5** The commit of a transaction that a conflict has rolled back returns the conflict. So a caller
//!   that has ignored the conflict runs the transaction again.

mod commit;
mod load;
mod parked;
mod pieces;
mod rows;
mod small_map;
mod state;
mod tables;

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::time::Duration;

use azekura_base::sync::time::Instant;
use azekura_base::{TreeId, TxnId};
use azekura_btree::Tree;
use azekura_lock::LockError;
use azekura_wal::LogBufferId;

use crate::Error;
use crate::database::Shared;
use crate::interrupt::check_interrupt;
use crate::key::Key;
use crate::lifetime::Use;
use crate::options::Durability;
use crate::probe;
use crate::table::{Table, TableDefinition};
use crate::ticket::CommitTicket;
use crate::value::Value;

pub(crate) use load::{Next, NextRow};
pub(crate) use parked::Parked;
pub(crate) use rows::check_row;
pub(crate) use state::{OpenTree, State, StatePool, TypesOf};

/// The effect of a write on an existing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// Overwrites the value.
    Put,
    /// Overwrites the value and returns the old one.
    Replace,
    /// Keeps the value, and returns an empty value to report that there is one.
    InsertIfAbsent,
}

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Returns the opposite direction.
    pub(crate) const fn reversed(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }
}

/// A state of a transaction that a rollback can restore; returned by [`Transaction::savepoint`].
#[derive(Clone, Copy, Debug)]
pub struct Savepoint {
    /// Address of the open store: transactions of different stores have the same ids.
    store: usize,
    txn: TxnId,
    number: u64,
}

/// Table and key of a row that a transaction read and then wrote.
pub(crate) type UpgradedRow = (TreeId, Vec<u8>);

/// A serializable transaction; returned by [`Database::begin`](crate::Database::begin) or
/// [`Database::transact`](crate::Database::transact).
///
/// Any number of transactions run at once, on any threads. A transaction can move between threads, but only
/// one thread at a time can use it. A transaction that is dropped without `commit` is rolled back. In a
/// deadlock, one of the transactions is rolled back, and its call fails with [`Error::Deadlock`]; `transact`
/// then runs the closure again. A call that would wait for another transaction of the same thread fails with
/// [`Error::SelfDeadlock`].
///
/// # Examples
///
/// ```
/// use azekura::{Database, Durability, Error, TableDefinition};
/// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
///
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// let tx = db.begin()?;
/// tx.set_durability(Durability::Relaxed);
/// tx.table(&STOCK)?.insert("rice", &7)?;
/// tx.commit()?;
/// let tx = db.begin()?;
/// tx.table(&STOCK)?.remove("rice")?;
/// drop(tx); // rolled back
/// assert_eq!(db.transact(|tx| tx.table(&STOCK)?.get("rice"))?, Some(7));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropped without `commit` the transaction is rolled back"]
pub struct Transaction {
    db: Use,
    id: TxnId,
    durability: Cell<Durability>,
    /// The transaction's state; `None` after the transaction has ended.
    state: RefCell<Option<Box<State>>>,
    /// The conflict that rolled the transaction back, if any.
    conflict: RefCell<Option<Error>>,
    /// Tables in which this transaction, or an earlier attempt, was a deadlock victim because it upgraded the
    /// lock of a row that it had read. Reads of these tables take the write lock.
    upgrades: RefCell<Vec<TreeId>>,
    /// The row of the last such upgrade. Reads of it take the write lock (UPGRADE-1).
    upgraded: RefCell<Option<UpgradedRow>>,
    /// Time at which the transaction began; read only if the transaction's duration is limited.
    began: Option<Instant>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Transaction {
    pub(crate) fn begin(db: Use) -> Result<Self, Error> {
        db.checkpoint_if_due();
        let (state, id) = State::begin(&db);
        let durability = Cell::new(db.options.durability);
        let began = db.options.transaction_timeout.map(|_| Instant::now());
        let state = RefCell::new(Some(state));
        let conflict = RefCell::new(None);
        let (upgrades, upgraded) = (RefCell::default(), RefCell::default());
        Ok(Self { db, id, durability, state, conflict, upgrades, upgraded, began })
    }

    /// Returns this transaction's number. A transaction with a larger number is younger, unless both began at
    /// about the same time.
    #[must_use]
    pub const fn id(&self) -> TxnId {
        self.id
    }

    /// Sets the durability that this transaction's commit waits for (default:
    /// [`Builder::durability`](crate::Builder::durability)). Takes `&self`, so that the closure of
    /// [`Database::transact`](crate::Database::transact) can call it.
    pub fn set_durability(&self, durability: Durability) {
        self.durability.set(durability);
    }

    /// Limits each later wait of this transaction for a lock (`None`: no limit; default:
    /// [`Builder::lock_timeout`](crate::Builder::lock_timeout)). If a lock is not granted in time, the
    /// transaction is rolled back with [`Error::LockTimeout`], and can be run again.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`]: the transaction is over.
    pub fn set_lock_timeout(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.state()?.locks.set_timeout(timeout);
        Ok(())
    }

    /// Makes later calls fail with [`Error::WouldBlock`] if they would wait for another transaction's lock
    /// (`NOWAIT` in SQL; default: `false`, they wait). A failed call leaves the transaction unchanged except
    /// for the locks that the call acquired. Use this in threads that have other work to do.
    ///
    /// A transaction that does not wait cannot deadlock. Calls still wait for the disk and the log.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`]: the transaction is over.
    pub fn set_nowait(&self, nowait: bool) -> Result<(), Error> {
        self.state()?.locks.set_nowait(nowait);
        Ok(())
    }

    /// Declares that another thread may continue and end this transaction. Without this declaration, a call
    /// fails with [`Error::SelfDeadlock`] if it would wait for a transaction that the same thread used last,
    /// because the wait would not end. A call waits for a detached transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`]: the transaction is over.
    pub fn detach_from_thread(&self) -> Result<(), Error> {
        self.db.locks.detach(&mut self.state()?.locks);
        Ok(())
    }

    /// Returns an error if the function of [`Builder::interrupt`](crate::Builder::interrupt) returns `true`.
    pub(crate) fn check_interrupt(&self) -> Result<(), Error> {
        check_interrupt(self.db.options.interrupt)
    }

    /// Returns `true` if another transaction waits for a lock of this transaction, or has waited for one
    /// earlier. A long transaction that can be split should then commit. May return a false positive. Costs a
    /// few loads.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.state().is_ok_and(|state| self.db.locks.has_waiters(&state.locks))
    }

    /// Opens a table for reading and writing, in constant time. The first insert into a table that does not
    /// exist creates it; until then reads find no rows.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a name that is empty or longer than [`MAX_TABLE_NAME`](crate::MAX_TABLE_NAME)
    /// bytes. The first read or write of a table that has rows of other types fails with
    /// [`Error::TableTypeMismatch`].
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<Table<'_, K, V>, Error> {
        Ok(Table::new(self, self.open_tree(table.name(), table.types_of())?))
    }

    /// Returns a savepoint: the present state, which [`rollback_to`](Self::rollback_to) can restore any
    /// number of times.
    ///
    /// An operation on several rows that fails in the middle leaves its first rows changed. A savepoint
    /// before the operation allows to undo them.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const T: TableDefinition<u32, u32> = TableDefinition::new("t");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// # let tx = db.begin()?;
    /// # let keys = [1, 2];
    /// # let has_room = |key| key < 2;
    /// let before = tx.savepoint()?;
    /// let table = tx.table(&T)?;
    /// for key in keys {
    ///     table.insert(&key, &0)?;
    ///     if !has_room(key) {
    ///         tx.rollback_to(before)?; // none of them
    ///         break;
    ///     }
    /// }
    /// assert_eq!(table.get(&1)?, None);
    /// # tx.commit()
    /// # }
    /// ```
    ///
    /// While the rows of a bulk load are being read, a savepoint refers to the state before the load.
    ///
    /// # Errors
    ///
    /// [`Error::Aborted`]: the transaction is over.
    pub fn savepoint(&self) -> Result<Savepoint, Error> {
        Ok(Savepoint { store: self.store_address(), txn: self.id, number: self.state()?.add_savepoint() })
    }

    /// Undoes every change made since `savepoint`. The locks are kept.
    ///
    /// May wait for a lock. If the undo removes a row at the end of a gap that the transaction has read, the
    /// gap grows, and is locked up to the next row.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the savepoint belongs to another transaction, an earlier rollback has removed it,
    /// or the rows of a bulk load or the source of `insert_from` are being read. Conflict errors.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<(), Error> {
        self.check_time()?;
        let state = self.state()?;
        if state.load.is_some() {
            return Err(Error::Invalid(
                "a bulk load or `insert_from` is running in this transaction; return to a savepoint after it"
                    .into(),
            ));
        }
        let is_own = savepoint.txn == self.id && savepoint.store == self.store_address();
        let undo_len = state.undo_len_at(savepoint.number).filter(|_| is_own);
        drop(state);
        let undo_len = undo_len.ok_or_else(|| {
            Error::Invalid(
                "the savepoint belongs to another transaction, or an earlier rollback has removed it".into(),
            )
        })?;
        self.return_to(undo_len).map_err(|error| self.fail(error))
    }

    /// Commits the transaction. Returns when the transaction is durable, or at once with
    /// [`Durability::Relaxed`].
    ///
    /// A read-only transaction also waits, if it has read a change that is not durable yet.
    ///
    /// If the transaction wrote more than 256 KiB of large values (of rows above 2.5 KiB), it may wait for
    /// two syncs: of the page file, then of the log.
    ///
    /// # Errors
    ///
    /// [`Error::Log`]: the log failed. Only reopening the store shows whether the transaction is durable.
    /// [`Error::PageIo`]: large values could not be written; the transaction was rolled back. The conflict
    /// error of an earlier call that rolled the transaction back, also if the caller has ignored it.
    pub fn commit(self) -> Result<(), Error> {
        let _commit = probe::commit();
        let relaxed = self.durability.get() == Durability::Relaxed;
        let commit = self.commit_record()?;
        if relaxed { Ok(()) } else { self.db.wait_durable(commit) }
    }

    /// Commits the transaction and returns at once with a ticket that reports when it is durable. If the
    /// transaction wrote more than 256 KiB of large values, the call may first wait for a sync of the page
    /// file (see [`commit`](Self::commit)).
    ///
    /// Other transactions see the changes from now on. A transaction that has read them cannot become durable
    /// earlier.
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub fn commit_async(self) -> Result<CommitTicket, Error> {
        let _commit = probe::commit();
        let commit = self.commit_record()?;
        Ok(CommitTicket::new(&self.db, commit))
    }

    /// Commits as [`commit_async`](Self::commit_async) does, without requesting a flush of the log. Use it
    /// for one of several commits that the caller waits for together. The first [`wait`](CommitTicket::wait)
    /// flushes all of them, usually in the caller's thread. In contrast, `commit_async` wakes the log's flush
    /// thread at once.
    ///
    /// A commit with a ticket that is never awaited or polled becomes durable with the next flush, or after
    /// about 10 ms. Without background threads, only the next flush makes it durable.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const T: TableDefinition<u64, u64> = TableDefinition::new("t");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let mut newest = None;
    /// for i in 0..100 {
    ///     let tx = db.begin()?;
    ///     tx.table(&T)?.insert(&i, &i)?;
    ///     newest = Some(tx.commit_deferred_flush()?);
    /// }
    /// newest.map_or(Ok(()), azekura::CommitTicket::wait)?; // one flush makes all 100 durable
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`commit`](Self::commit).
    pub fn commit_deferred_flush(self) -> Result<CommitTicket, Error> {
        let _commit = probe::commit();
        let commit = self.commit_record()?;
        Ok(CommitTicket::quiet(&self.db, commit))
    }

    /// Rolls the transaction back. Dropping the transaction does the same without reporting an error. Returns
    /// `Ok` if an error has already rolled the transaction back.
    ///
    /// # Errors
    ///
    /// An error of the log or of a page. The changed rows then stay locked until the undo can continue: when
    /// a full disk has space again ([`Error::LogFull`]), or when the store is opened again.
    pub fn abort(self) -> Result<(), Error> {
        if self.is_over() { self.db.lifetime.check_process() } else { self.roll_back() }
    }

    /// Returns `true` if an error of an earlier call has rolled the transaction back. Each call then fails
    /// with [`Error::Aborted`], and [`commit`](Self::commit) with the conflict, if there was one.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.borrow().as_ref().is_none_or(|state| state.is_doomed())
    }

    /// Sets the log buffer of the transaction, before its first call; for tests.
    pub(crate) fn use_log_buffer(&self, log_buffer: LogBufferId) {
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.log_buffer = log_buffer;
        }
    }

    /// Removes the time limit of the transaction.
    pub(crate) fn without_time_limit(mut self) -> Self {
        self.began = None;
        self
    }

    /// Rolls the transaction back if its time limit has passed. Runs at the start of a call, when no change
    /// is incomplete.
    pub(super) fn check_time(&self) -> Result<(), Error> {
        let (Some(began), Some(limit)) = (self.began, self.db.options.transaction_timeout) else {
            return Ok(());
        };
        let open = began.elapsed();
        if open <= limit || self.state.borrow().is_none() {
            return Ok(());
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.roll_back()?;
        Err(Error::TransactionTimeout { txn: self.id, open_ms: millis(open), limit_ms: millis(limit) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.db
    }

    fn store_address(&self) -> usize {
        std::ptr::from_ref(self.shared()).addr()
    }

    /// Returns the conflict that rolled this transaction back, if any.
    pub(crate) fn take_conflict(&self) -> Option<Error> {
        self.conflict.take()
    }

    /// Returns the tables in which reads take the write lock, for the next attempt of this transaction.
    pub(crate) fn upgrades(&self) -> Vec<TreeId> {
        self.upgrades.take()
    }

    /// Returns the row of the last upgrade that made this transaction a deadlock victim.
    pub(crate) fn upgraded(&self) -> Option<UpgradedRow> {
        self.upgraded.take()
    }

    pub(crate) fn read_for_update_in(&self, tables: Vec<TreeId>, row: Option<UpgradedRow>) {
        *self.upgrades.borrow_mut() = tables;
        *self.upgraded.borrow_mut() = row;
    }

    /// Records that a lock request made this transaction a deadlock victim, if it already held a weaker lock
    /// on that key. `upgraded` is then the row; without a key, it is the end of the table.
    fn note_upgrade(&self, error: &LockError, upgraded: Option<(TreeId, Option<&[u8]>)>) {
        let (LockError::Deadlock { .. }, Some((tree, key))) = (error, upgraded) else { return };
        let mut upgrades = self.upgrades.borrow_mut();
        if !upgrades.contains(&tree) {
            upgrades.push(tree);
        }
        *self.upgraded.borrow_mut() = key.map(|key| (tree, key.to_vec()));
    }

    fn reads_for_update(&self, tree: Tree) -> bool {
        self.upgrades.borrow().contains(&tree.id)
    }

    fn reads_row_for_update(&self, tree: Tree, key: &[u8]) -> bool {
        let is_upgraded = |row: &UpgradedRow| row.0 == tree.id && row.1 == key;
        self.reads_for_update(tree) || self.upgraded.borrow().as_ref().is_some_and(is_upgraded)
    }

    /// Returns a number that changes with every write, so that iterators detect that their buffers are
    /// outdated.
    #[inline]
    pub(crate) fn write_count(&self) -> u64 {
        self.state.borrow().as_ref().map_or(u64::MAX, |s| s.write_count)
    }

    fn state(&self) -> Result<RefMut<'_, State>, Error> {
        self.db.lifetime.check_process()?;
        RefMut::filter_map(self.state.borrow_mut(), |state| state.as_deref_mut().filter(|s| !s.is_doomed()))
            .map_err(|_| Error::Aborted { txn: self.id })
    }

    /// Encodes a key into the transaction's buffer for the duration of one call.
    pub(crate) fn with_key<T>(
        &self,
        encode: impl FnOnce(&mut Vec<u8>),
        call: impl FnOnce(&Self, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut bytes = std::mem::take(&mut self.state()?.key_buf);
        bytes.clear();
        encode(&mut bytes);
        let result = call(self, &bytes);
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.key_buf = bytes;
        }
        result
    }

    /// Lends the transaction's buffer for a value, empty, for the duration of one call.
    pub(crate) fn with_value<T>(
        &self,
        call: impl FnOnce(&mut Vec<u8>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut bytes = std::mem::take(&mut self.state()?.value_buf);
        bytes.clear();
        let result = call(&mut bytes);
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.value_buf = bytes;
        }
        result
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.state.borrow().is_some() {
            // No caller can receive the error. A rollback that fails is parked and retried.
            let _ = self.roll_back();
        }
    }
}
