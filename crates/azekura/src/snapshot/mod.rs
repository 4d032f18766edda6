//! Snapshots: reading the state of the store at one moment, without locks.
//!
//! [`azekura_btree::Versions`] has the rules of visibility.

mod cursor;
mod durable;
mod leaves;
mod table;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::{DurableLog, Lsn, TreeId};
use azekura_btree::node::Cell;
use azekura_btree::{SnapshotId, Tree, TreeError, VersionPart, Versions, View};
use azekura_lock::KeyRef;

use self::cursor::Cursor;
use self::durable::Durability;
pub(crate) use self::durable::{DurableSnapshots, SnapshotDurability};
pub use self::table::{OwnedSnapshotTable, SnapshotRange, SnapshotTable};
use crate::active::SharedUndo;
use crate::bounds::ByteBounds;
use crate::catalog::{self, CATALOG, TableInfo};
use crate::database::Shared;
use crate::events::millis;
use crate::key::Key;
use crate::lifetime::Use;
use crate::table::TableDefinition;
use crate::thread_memory::{is_checked, note_checked, with_buffers};
use crate::transaction::{Direction, TypesOf};
use crate::value::Value;
use crate::value_ref::ValueRef;
use crate::{CommitTicket, CommitTime, Database, Error};

/// The state of the store when the snapshot was opened. A snapshot includes every transaction that had
/// committed, and no change of another transaction. Clones are handles of the same snapshot.
///
/// A snapshot takes no locks: it never waits for a writer, and no writer waits for it. Many threads may use a
/// snapshot at once. While it is open, writers keep the rows that they replace in memory. If those rows need
/// more than [`Builder::version_bytes`](crate::Builder::version_bytes), calls of the oldest snapshot fail
/// with [`Error::SnapshotTooOld`]. The store cannot be closed while a snapshot is open.
///
/// The rows of a snapshot may not be durable yet; see [`wait_durable`](Self::wait_durable).
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, TableDefinition};
///
/// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
///
/// # fn main() -> Result<(), Error> {
/// let db = Database::in_memory()?;
/// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
/// let snapshot = db.snapshot()?;
/// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &0))?;
/// assert_eq!(snapshot.table(&STOCK)?.get("rice")?, Some(7));
/// assert_eq!(db.read(|s| s.table(&STOCK)?.get("rice"))?, Some(0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    inner: Arc<Inner>,
}

struct Inner {
    using: Use,
    id: SnapshotId,
    durability: Durability,
    /// Time up to which the snapshot has exactly all commits (ARCHIVE-2); `None` without an archive.
    time: Option<CommitTime>,
    /// `true` after an event has reported that the snapshot is too old.
    is_reported: AtomicBool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.using.lifetime.check_process().is_err() {
            return; // a forked process must not close the parent's snapshot
        }
        self.using.env.versions().close(&self.id);
        // The checkpointer frees the versions and pages that only this snapshot needed.
        self.using.checkpoint_calls.wake_from_sleep();
    }
}

impl Database {
    /// Opens a snapshot of the present state. The snapshot includes every commit that has returned, even
    /// asynchronous ones.
    ///
    /// If no snapshot is open, this function visits each active transaction, and reads the leaf of each row
    /// that those transactions have changed. Otherwise it costs about a hundred nanoseconds, and waits for no
    /// other thread.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`]; [`Error::Forked`]; errors of reading pages; [`Error::TransactionsTooLarge`] if
    /// active transactions have changed too many rows.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let using = self.owners().enter()?;
        let env = &using.env;
        let visit = |versions: &Versions| -> Result<(), Error> {
            let limit_bytes = using.options.version_bytes_limit();
            let undo_logs = using.active.undo_logs();
            // A transaction waits while it is visited. If an earlier visit has found that the images do not
            // fit, the transactions are not visited again.
            let image_bytes = |undo: &SharedUndo| {
                let undo = undo.lock();
                undo.owner.map_or(0, |_| undo.log.image_bytes())
            };
            if !versions.has_space_for(undo_logs.iter().map(image_bytes).sum()) {
                return Err(Error::TransactionsTooLarge { limit_bytes });
            }
            for undo in undo_logs {
                let mut undo = undo.lock();
                if undo.owner.is_none() {
                    using.snapshot_durability.note_unreleased(&using.wal);
                } else if !versions.backfill(env, &mut undo.log)? {
                    return Err(Error::TransactionsTooLarge { limit_bytes });
                }
            }
            Ok(())
        };
        let all_visible = || {
            let lsn = using.all_visible_lsn();
            using.snapshot_durability.note_all_visible(&using.wal, lsn);
            lsn
        };
        let open = || env.versions().open(visit, all_visible, || TreeId(using.catalog.next_id()));
        let (id, time) = match &using.archive {
            None => (open()?, None),
            Some(archive) => {
                // Opening a first snapshot visits transactions, which takes time. Commits must not wait for
                // these visits, so they happen outside of the gate.
                let first = open()?;
                let (id, time) = archive.between_commits(open);
                env.versions().close(&first);
                (id?, Some(CommitTime::from_micros(time)))
            }
        };
        let durability = using.snapshot_durability.of_opener(&using.wal);
        Ok(Snapshot::new(using, id, durability, time))
    }

    /// Opens a snapshot, runs `body` on it, and waits until the commits that `body` has read are durable; see
    /// [`Snapshot::wait_durable`].
    ///
    /// # Errors
    ///
    /// The errors of [`snapshot`](Self::snapshot), of `body`, and of [`Snapshot::wait_durable`].
    pub fn read<T>(&self, body: impl FnOnce(&Snapshot) -> Result<T, Error>) -> Result<T, Error> {
        let snapshot = self.snapshot()?;
        let value = body(&snapshot)?;
        snapshot.wait_durable()?;
        Ok(value)
    }
}

impl Shared {
    /// Returns an LSN below all changes of transactions that are active or begin later. The bound is read
    /// before the list: a transaction that is not in the list draws only LSNs at or above that bound
    /// (ACTIVE-1).
    fn all_visible_lsn(&self) -> Lsn {
        let bound = self.wal.lsn_bound();
        let active = self.active.min_first_change();
        Lsn(active.map_or(bound, |first| first.min(bound)).0.saturating_sub(1))
    }
}

impl Snapshot {
    fn new(using: Use, id: SnapshotId, durability: Durability, time: Option<CommitTime>) -> Self {
        let is_reported = AtomicBool::new(false);
        Self { inner: Arc::new(Inner { using, id, durability, time, is_reported }) }
    }

    pub(crate) fn db(&self) -> &Shared {
        &self.inner.using
    }

    fn view(&self) -> View<'_> {
        View::new(self.db().env.versions(), &self.inner.id)
    }

    /// Returns `read` if the versions that it needed still exist; otherwise [`Error::SnapshotTooOld`].
    pub(crate) fn checked<T>(&self, read: T) -> Result<T, Error> {
        let versions = self.db().env.versions();
        let is_checked = !versions.leaves_out(VersionPart::AgeCheck);
        if let Some(held_bytes) = versions.too_old_at_bytes(&self.inner.id).filter(|_| is_checked) {
            let (age_ms, limit_bytes) = (millis(self.age()), self.db().options.version_bytes_limit());
            // Relaxed: selects the call that reports, and orders nothing.
            if !self.inner.is_reported.swap(true, Relaxed) {
                let path = self.db().path.display();
                tracing::warn!(%path, age_ms, held_bytes, limit_bytes, "snapshot too old: its reads fail");
            }
            return Err(Error::SnapshotTooOld { age_ms, held_bytes, limit_bytes });
        }
        Ok(read)
    }

    /// Returns the snapshot's number, which [`Stats`](crate::Stats) uses. A later snapshot has a larger
    /// number, or the same number if no transaction has committed between the two openings.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.inner.id.timestamp()
    }

    /// Returns the time up to which the snapshot has exactly all commits, in a store with an archive.
    pub(crate) fn commit_time(&self) -> Option<CommitTime> {
        self.inner.time
    }

    /// Returns an LSN below all changes that the snapshot excludes.
    pub(crate) fn all_visible_lsn(&self) -> Lsn {
        self.inner.id.all_visible_lsn()
    }

    /// Returns the time since the snapshot was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.inner.id.age()
    }

    /// Waits until all commits that reads of this snapshot have returned so far are durable. Call this
    /// function before you act on the results; otherwise a power loss could revert them.
    ///
    /// Returns at once if the leaves that were read had no change since the last flush. Otherwise it waits:
    /// for each key that was read, for the last commit that changed the key; for each range, for the last
    /// commit that changed its table.
    ///
    /// # Errors
    ///
    /// [`Error::Log`]: the log failed; the rows read may be lost at the next restart.
    pub fn wait_durable(&self) -> Result<(), Error> {
        self.db().lifetime.check_process()?;
        match self.inner.durability.needed() {
            Lsn(0) => Ok(()),
            needed => Ok(self.db().wal.make_durable(needed)?),
        }
    }

    /// Returns a ticket for the commits that [`wait_durable`](Self::wait_durable) would wait for.
    pub fn durable_ticket(&self) -> CommitTicket {
        CommitTicket::quiet(&self.inner.using, self.inner.durability.needed())
    }

    /// Converts the error of a read; the error of a damaged page names the store.
    pub(crate) fn failed(&self, error: TreeError) -> Error {
        Error::from(error).in_store(&self.db().path)
    }

    /// Reads the cell of a row into `cell`; returns the row's value, or `None` if there is no row.
    fn read_key<'v>(
        &'v self,
        tree: Tree,
        key: &[u8],
        cell: &'v mut Vec<u8>,
    ) -> Result<Option<ValueRef<'v>>, Error> {
        let seen = tree.get_cell_in(&self.db().env, self.view(), key, cell);
        self.checked(())?;
        let seen = seen.map_err(|error| self.failed(error))?;
        let last_commit = || self.db().locks.key_dependency(tree.id, KeyRef::Key(key));
        self.inner.durability.note(seen.page_lsn, last_commit);
        let Some(flags) = seen.flags else { return Ok(None) };
        let cell = Cell { flags, value: cell };
        ValueRef::check(cell)?;
        Ok(Some(ValueRef::seen(cell, self)))
    }

    /// Returns the tree of a table, if the table existed and has the requested types.
    fn tree(&self, name: &str, types: Option<TypesOf>) -> Result<Option<Tree>, Error> {
        self.db().lifetime.check_process()?;
        catalog::check_name(name)?;
        with_buffers(|_, row| {
            let Some(row) = self.read_key(CATALOG, name.as_bytes(), row)? else { return Ok(None) };
            let row = row.bytes()?;
            if types.is_some_and(|types| is_checked(&row, types)) {
                return Ok(catalog::decode_tree(&row));
            }
            let entry = catalog::decode(&row).ok_or_else(|| catalog::corrupt_row(name))?;
            let Some(types) = types else { return Ok(Some(entry.tree)) };
            let asked = types.names();
            if asked != *entry.types {
                let (table, stored) = (name.to_owned(), (*entry.types).clone().into());
                return Err(Error::TableTypeMismatch { table, stored, asked: asked.into() });
            }
            note_checked(&row, types);
            Ok(Some(entry.tree))
        })
    }

    /// Returns a table of the snapshot. A table that did not exist then has no rows.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a name that is empty or longer than [`MAX_TABLE_NAME`](crate::MAX_TABLE_NAME)
    /// bytes; [`Error::SnapshotTooOld`]; [`Error::TableTypeMismatch`]; errors of reading pages.
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<SnapshotTable<'_, K, V>, Error> {
        let tree = self.tree(table.name(), table.types_of())?;
        Ok(SnapshotTable::new(self, tree, table.name().to_owned().into()))
    }

    /// Returns a table that keeps the snapshot open. The catalog is read only by this call;
    /// [`OwnedSnapshotTable::table`] reads no page.
    ///
    /// ```
    /// # use azekura::{Database, Error, OwnedSnapshotTable, TableDefinition};
    /// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
    /// struct Prices(OwnedSnapshotTable<str, u64>);
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// # db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
    /// let prices = Prices(db.snapshot()?.owned_table(&STOCK)?);
    /// assert_eq!(prices.0.table().get("rice")?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn owned_table<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<OwnedSnapshotTable<K, V>, Error> {
        Ok(OwnedSnapshotTable::new(self.table(table)?))
    }

    /// Returns `true` if the snapshot has a table with this name.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn table_exists(&self, name: &str) -> Result<bool, Error> {
        Ok(self.tree(name, None)?.is_some())
    }

    /// Returns the names of all tables, in byte order.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn table_names(&self) -> Result<Vec<String>, Error> {
        let mut cursor = Cursor::new(self, Some(CATALOG), &ByteBounds::ALL);
        let mut names = Vec::new();
        while cursor.advance(Direction::Forward)? {
            names.push(String::from_utf8_lossy(cursor.row()?.0).into_owned());
        }
        Ok(names)
    }

    /// Returns all tables with their types, in byte order of their names.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        Ok(self.tables_and_trees()?.into_iter().map(|(table, _)| table).collect())
    }

    /// Returns all tables with their types and trees, in byte order of their names.
    pub(crate) fn tables_and_trees(&self) -> Result<Vec<(TableInfo, TreeId)>, Error> {
        let mut cursor = Cursor::new(self, Some(CATALOG), &ByteBounds::ALL);
        let mut tables = Vec::new();
        while cursor.advance(Direction::Forward)? {
            let (name, value) = cursor.row()?;
            let name = String::from_utf8_lossy(name).into_owned();
            let entry = catalog::decode(&value.bytes()?).ok_or_else(|| catalog::corrupt_row(&name))?;
            tables.push((TableInfo { name, types: (*entry.types).clone() }, entry.tree.id));
        }
        Ok(tables)
    }
}
