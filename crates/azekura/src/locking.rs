//! The locks of each operation on a tree, and the proof that they make transactions serializable.
//!
//! The lock of a key has a record part and a part for the gap below the key (down to the previous key). The
//! end of a tree has a gap, too. Locks are named by key, so the record part also protects the absence of a
//! key.
//!
//! | operation | on the key | on the next key (or the end) |
//! |---|---|---|
//! | `get`, present or not | record S | – |
//! | scan | gap S + record S, each key in the range | gap S, the first key beyond the range |
//! | scan for update | gap S + record X, each key in the range | gap S, the first key beyond the range |
//! | scan for removal | gap X + record X, each key in the range | gap X, the first key beyond the range |
//! | scan past locked rows | record S or X; for removal gap X + record X | –; for removal gap X, tested |
//! | update in place | record X | – |
//! | insert | gap I + record X | gap I, tested: must be grantable, but is not acquired |
//! | delete | gap X + record X | gap X |
//!
//! A scan past locked rows protects only the rows that it returns. Other transactions may insert and remove
//! rows in its range, and the scan omits rows that others have locked. A scan for removal also omits a row if
//! the gap above the row is locked, because the removal would have to wait for that gap.
//!
//! A reading scan locks the rows of a step in a leaf as one *range* ([`LockTable::try_lock_range`]). The
//! range has the same modes on the same keys, and also covers absent keys between them. A change of an absent
//! key is either an insert, which the gap lock forbids anyway, or changes nothing.
//!
//! All locks are held to the end of the transaction (strict two-phase locking). Gap I is compatible with I
//! only, S with S only, X with nothing. A transaction that holds a gap in S or X may insert a key into that
//! gap. Then it also locks the gap of the new key in the same mode. The old lock then covers only the upper
//! part of the gap.
//!
//! **Results of a scan stay valid.** Suppose T scanned a range, and U changes T's result before T ends.
//! - *U updates or deletes a key of the range*: it needs record X on it; T holds record S.
//! - *U inserts a key K into the range*: let N be the next key when U inserts, determined under the leaf's
//!   exclusive latch. T holds gap S on the least key at or above K that existed during T's scan, and that key
//!   still exists (deleting it needs gap X on it). So N is that key, or a key below it that T inserted after
//!   its scan, on which T also holds gap S. (Another transaction cannot have inserted a key there: its test
//!   of gap I fails as U's does.) In each case T holds gap S on N, so U's test of gap I fails.
//!
//! **No dirty reads of absent keys.** If U deleted K and may still abort, a scan of T over the position of K
//! reaches N, the next key, and U holds gap X on N. If U inserted K and aborts, the removal of K merges its
//! gap into N's. No other transaction can rely on K's gap alone, because U holds gap I on it. U itself can,
//! because U continues after a rollback to a savepoint. So before the undo removes K, U takes gap S on N if
//! it has read K's gap. (While K exists and U holds that lock, no key can be inserted between K and N, and N
//! cannot be removed.)
//!
//! **No key appears between the read and the lock.** Gap locks are requested without waiting, while the leaf
//! is latched exclusively (writes) or before its version is validated (reads). If a lock cannot be granted,
//! the operation releases its latches, waits for the lock, and reads again.
//!
//! **Results wait for the commits that they depend on** (W8). Locks are released at commit, before the log is
//! on disk. For each slot, the lock table stores the newest commit LSN of a released lock. The next holder
//! raises its `depends_on` to that LSN, and a read-only commit waits until that LSN is durable. Later records
//! of the holder have larger LSNs (RANGE-3).

use azekura_base::{Lsn, TreeId};
use azekura_btree::{Blocked, BlockedRecords, GapWant, KeyLocks, LeafBatch, NextKey};
use azekura_lock::{
    GapMode, KeyMode, KeyRef, LockError, LockTable, RecordMode, TableMode, TxnLocks, WouldBlock,
};
use azekura_wal::{LogBufferId, Wal};

use crate::left_out::LeftOut;

/// Number of rows of a scan step from which on one range lock replaces the locks on the keys. One range lock
/// costs about as much as two key locks. A range lock also covers absent keys in the range.
const RANGE_ROWS: usize = 2;

/// The purpose for which a scan reads rows, which determines their locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    #[default]
    Read,
    /// The rows will get other values.
    Update,
    /// The rows will be removed. After the scan, removing the first or last row waits for no other lock.
    Remove,
}

/// The locks of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanLocks {
    pub(crate) purpose: Purpose,
    /// `true` if the scan omits rows that other transactions have locked, and locks no gaps.
    pub(crate) skips_locked: bool,
}

impl ScanLocks {
    const fn row(self) -> KeyMode {
        match (self.purpose, self.skips_locked) {
            (Purpose::Read, false) => KeyMode::SCAN,
            (Purpose::Read, true) => KeyMode::READ,
            (Purpose::Update, false) => KeyMode::new(GapMode::S, RecordMode::X),
            (Purpose::Update, true) => KeyMode::UPDATE,
            (Purpose::Remove, _) => KeyMode::DELETE,
        }
    }

    const fn gap(self) -> Option<KeyMode> {
        match (self.purpose, self.skips_locked) {
            (_, true) => None,
            (Purpose::Read | Purpose::Update, false) => Some(KeyMode::READ_GAP),
            (Purpose::Remove, false) => Some(KeyMode::DELETE_NEXT),
        }
    }

    /// Returns the mode of the intention lock on the table.
    pub(crate) const fn table(self) -> TableMode {
        if matches!(self.purpose, Purpose::Read) { TableMode::IS } else { TableMode::IX }
    }

    /// Returns the mode of a lock on the whole table that makes row locks unnecessary.
    pub(crate) const fn whole_table(self) -> TableMode {
        if matches!(self.purpose, Purpose::Read) { TableMode::S } else { TableMode::X }
    }
}

/// A lock that could not be granted at once. The operation waits for it after it has released its latches.
#[derive(Debug)]
pub(crate) struct BlockedLock {
    tree: TreeId,
    /// The key; `None` is the end of the tree.
    key: Option<Vec<u8>>,
    mode: KeyMode,
    /// `true` if the lock is only tested, not acquired.
    is_test: bool,
}

impl BlockedLock {
    /// Returns the tree and the key if the transaction already holds a lock on the key in a weaker mode.
    pub(crate) fn upgraded(&self, table: &LockTable, held: &TxnLocks) -> Option<(TreeId, Option<&[u8]>)> {
        let key = self.key.as_deref().map_or(KeyRef::End, KeyRef::Key);
        (table.held_key_mode(held, self.tree, key) != KeyMode::NONE)
            .then_some((self.tree, self.key.as_deref()))
    }

    /// Waits until the lock can be granted, and acquires it unless it is only tested.
    pub(crate) fn wait(&self, table: &LockTable, held: &mut TxnLocks) -> Result<Lsn, LockError> {
        let key = self.key.as_deref().map_or(KeyRef::End, KeyRef::Key);
        if self.is_test {
            table.wait_test_key(held, self.tree, key, self.mode)
        } else {
            table.lock_key(held, self.tree, key, self.mode)
        }
    }
}

/// The locks of one operation on one tree; the tree requests them.
#[derive(Debug)]
pub(crate) struct OperationLocks<'a> {
    table: &'a LockTable,
    /// The log, and the log buffer of the operation.
    log: (&'a Wal, LogBufferId),
    held: &'a mut TxnLocks,
    /// The key that is inserted or removed; `None` for scans.
    key: Option<&'a [u8]>,
    /// The transaction's lock on the whole table.
    table_mode: Option<TableMode>,
    pub(crate) depends_on: Lsn,
    /// The lock that blocked the operation.
    pub(crate) wanted: Option<BlockedLock>,
    /// The locks of this operation's scan.
    pub(crate) scan: ScanLocks,
    pub(crate) left_out: LeftOut,
}

impl<'a> OperationLocks<'a> {
    pub(crate) fn new(
        table: &'a LockTable,
        log: (&'a Wal, LogBufferId),
        held: &'a mut TxnLocks,
        key: Option<&'a [u8]>,
        table_mode: Option<TableMode>,
    ) -> Self {
        let (depends_on, wanted) = (Lsn(0), None);
        let scan = ScanLocks::default();
        Self { table, log, held, key, table_mode, depends_on, wanted, scan, left_out: LeftOut::default() }
    }

    /// Records the commit LSN of a granted lock, at once, because the next record must have a larger LSN
    /// (RANGE-3).
    fn depend_on(&mut self, lsn: Lsn) {
        if lsn > self.depends_on {
            self.depends_on = lsn;
            self.log.0.raise_floor(self.log.1, lsn);
        }
    }

    fn lock(&mut self, tree: TreeId, key: KeyRef<'_>, mode: KeyMode) -> Result<(), Blocked> {
        self.request(tree, key, mode, false)
    }

    fn test(&mut self, tree: TreeId, key: KeyRef<'_>, mode: KeyMode) -> Result<(), Blocked> {
        self.request(tree, key, mode, true)
    }

    /// Locks a key, or tests whether it could be locked.
    #[inline]
    fn request(
        &mut self,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
        is_test: bool,
    ) -> Result<(), Blocked> {
        let Some(mode) = self.left_out.rest_of(mode) else { return Ok(()) };
        if self.table_mode.is_some_and(|m| m.covers_key(mode)) {
            return Ok(());
        }
        let granted = match is_test {
            false => self.table.try_lock_key(self.held, tree, key, mode),
            true => self.table.try_test_key(self.held, tree, key, mode),
        };
        match granted {
            Ok(depends_on) => {
                self.depend_on(depends_on);
                Ok(())
            }
            Err(WouldBlock) => self.blocked(tree, key, mode, is_test),
        }
    }

    fn blocked(
        &mut self,
        tree: TreeId,
        key: KeyRef<'_>,
        mode: KeyMode,
        is_test: bool,
    ) -> Result<(), Blocked> {
        let key = match key {
            KeyRef::Key(bytes) => Some(bytes.to_vec()),
            KeyRef::End => None,
        };
        self.wanted = Some(BlockedLock { tree, key, mode, is_test });
        Err(Blocked)
    }

    /// Tries to lock the gap for the insertion of `self.key` below `next`.
    fn try_insert(&mut self, tree: TreeId, next: KeyRef<'_>) -> Result<(), Blocked> {
        self.test(tree, next, KeyMode::INSERT_TEST)?;
        let closed = self.table.closed_gap(self.held, tree, next);
        let inherited = closed.filter(|_| !self.left_out.is_inherited_gap()).unwrap_or(GapMode::I);
        let mode = KeyMode::INSERT.supremum(KeyMode { gap: inherited, ..KeyMode::NONE });
        let key = self.key.expect("an insert has a key");
        self.lock(tree, KeyRef::Key(key), mode)
    }
}

const fn key_ref(next: NextKey<'_>) -> KeyRef<'_> {
    match next {
        NextKey::Key(bytes) => KeyRef::Key(bytes),
        NextKey::End => KeyRef::End,
    }
}

impl KeyLocks for OperationLocks<'_> {
    fn is_needed(&self) -> bool {
        let needed = if self.key.is_some() { KeyMode::DELETE } else { self.scan.row() };
        !self.table_mode.is_some_and(|m| m.covers_key(needed))
    }

    fn try_gap(&mut self, tree: TreeId, next: NextKey<'_>, want: GapWant) -> Result<(), Blocked> {
        let next = key_ref(next);
        match want {
            GapWant::Read => self.scan.gap().map_or(Ok(()), |mode| self.lock(tree, next, mode)),
            GapWant::Insert => self.try_insert(tree, next),
            GapWant::Delete => self.lock(tree, next, KeyMode::DELETE_NEXT),
            GapWant::TestDelete => self.test(tree, next, KeyMode::DELETE_NEXT),
        }
    }

    fn try_scan(&mut self, tree: TreeId, key: &[u8]) -> Result<(), Blocked> {
        self.lock(tree, KeyRef::Key(key), self.scan.row())
    }

    fn try_scan_run(
        &mut self,
        tree: TreeId,
        range: (&[u8], Option<&[u8]>),
        run: &LeafBatch,
    ) -> Result<(), Blocked> {
        if self.scan.purpose != Purpose::Read || run.len() < RANGE_ROWS {
            return (0..run.len()).try_for_each(|i| self.try_scan(tree, run.key(i)));
        }
        let Some(mode) = self.left_out.rest_of(self.scan.row()) else { return Ok(()) };
        if self.table_mode.is_some_and(|m| m.covers_key(mode)) {
            return Ok(());
        }
        let keys = (0..run.len()).map(|i| run.key(i));
        match self.table.try_lock_range(self.held, tree, range, keys, mode) {
            Ok(depends_on) => {
                self.depend_on(depends_on);
                Ok(())
            }
            Err(i) => self.blocked(tree, KeyRef::Key(run.key(i)), mode, false),
        }
    }

    fn blocked_records(&self) -> BlockedRecords {
        match self.scan {
            ScanLocks { skips_locked: false, .. } => BlockedRecords::Stop,
            ScanLocks { purpose: Purpose::Remove, .. } => BlockedRecords::PassOverUnlessRemovable,
            ScanLocks { .. } => BlockedRecords::PassOver,
        }
    }
}
