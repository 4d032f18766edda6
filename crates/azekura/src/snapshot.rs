//! Snapshots: reading the store as it was at one moment, without locks.
//!
//! The rules of visibility are those of [`azekura_btree::Versions`].

use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use azekura_base::{DurableLog, Lsn};
use azekura_btree::{LeafBatch, Scan, SnapshotId, Tree, ValueRef, View};

use crate::bounds::{ByteBounds, KeyPrefix, KeyRange, Prefix};
use crate::catalog::{self, CATALOG, TableInfo};
use crate::database::Shared;
use crate::key::{EncodeKey, Key};
use crate::lifetime::Use;
use crate::range::RowRef;
use crate::table::{self, RowOf, TableDefinition, Types};
use crate::transaction::{Direction, TypesOf};
use crate::value::Value;
use crate::{Database, Error};

/// The largest batch of rows that an iterator copies at once.
const MAX_BATCH: usize = 256;
/// Rows of the first step: it costs a descent, which takes as long as copying some 30 rows.
const FIRST_BATCH: usize = 8;

/// The store as it was when the snapshot was opened: every transaction that had committed, and nothing of any
/// other one. Clones are handles of the same snapshot.
///
/// A snapshot takes no locks: it never waits for a writer, and no writer waits for it. It may be used by many
/// threads at once. While it is open, writers keep the rows that they replace in memory
/// ([`Builder::version_bytes`](crate::Builder::version_bytes)); if that is exceeded, calls of the oldest
/// snapshot fail with [`Error::SnapshotTooOld`]. The store cannot be closed while a snapshot is open.
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
    /// All that the snapshot can see was logged at or below this LSN.
    last_lsn: Lsn,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.using.lifetime.check_process().is_err() {
            return; // the parent's snapshot, in a forked process
        }
        self.using.env.versions().close(&self.id);
        // For what the snapshot kept: versions, and pages to be freed.
        self.using.checkpoint_calls.wake_from_sleep();
    }
}

impl Database {
    /// Opens a snapshot of the present state. It sees every commit that has returned, also an
    /// asynchronous one.
    ///
    /// The first snapshot after a time without any visits each active transaction, and reads the leaf of each
    /// row that it has changed; later ones cost some hundred nanoseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Forked`]; an error of reading pages.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let using = self.owners().enter()?;
        let env = &using.env;
        let id = env.versions().open(|versions| -> Result<(), Error> {
            for undo in using.active.undo_logs() {
                let mut undo = undo.lock();
                if undo.owner.is_some() {
                    versions.backfill(env, &mut undo.log)?;
                }
            }
            Ok(())
        })?;
        let last_lsn = Lsn(using.wal.next_lsn().0 - 1);
        Ok(Snapshot { inner: Arc::new(Inner { using, id, last_lsn }) })
    }

    /// Opens a snapshot, runs `body` on it, and waits until all that it can have seen is durable.
    ///
    /// # Errors
    ///
    /// Those of [`snapshot`](Self::snapshot), of `body`, and of [`Snapshot::wait_durable`].
    pub fn read<T>(&self, body: impl FnOnce(&Snapshot) -> Result<T, Error>) -> Result<T, Error> {
        let snapshot = self.snapshot()?;
        let value = body(&snapshot)?;
        snapshot.wait_durable()?;
        Ok(value)
    }
}

impl Snapshot {
    fn db(&self) -> &Shared {
        &self.inner.using
    }

    fn view(&self) -> View<'_> {
        View::new(self.db().env.versions(), self.inner.id.timestamp())
    }

    /// Passes on what was read, if the versions that it rests on were there.
    fn checked<T>(&self, read: T) -> Result<T, Error> {
        if self.inner.id.is_too_old() {
            return Err(Error::SnapshotTooOld {
                age_ms: u64::try_from(self.age().as_millis()).unwrap_or(u64::MAX),
                limit_bytes: self.db().options.version_bytes_limit(),
            });
        }
        Ok(read)
    }

    /// Time since the snapshot was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.inner.id.age()
    }

    /// Waits until everything that the snapshot can see is durable. A caller that answers others by what it
    /// read calls this first; else a power loss could take back what was answered. Returns at once if no
    /// commit was under way when the snapshot was opened.
    ///
    /// # Errors
    ///
    /// [`Error::Log`]: the log failed; what was read may be lost at the next restart.
    pub fn wait_durable(&self) -> Result<(), Error> {
        self.db().lifetime.check_process()?;
        Ok(self.db().wal.make_durable(self.inner.last_lsn)?)
    }

    /// The tree of a table, if it existed and has the types that are asked for.
    fn tree(&self, name: &str, types: Option<TypesOf>) -> Result<Option<Tree>, Error> {
        self.db().lifetime.check_process()?;
        let mut row = Vec::new();
        let is_there = CATALOG.get_in(&self.db().env, self.view(), name.as_bytes(), &mut row);
        self.checked(())?;
        if !is_there? {
            return Ok(None);
        }
        let entry = catalog::decode(&row).ok_or_else(|| catalog::corrupt_row(name))?;
        let asked = types.map(|types| types());
        match asked {
            Some(asked) if asked != *entry.types => Err(Error::TableTypeMismatch {
                table: name.to_owned(),
                stored: (*entry.types).clone().into(),
                asked: asked.into(),
            }),
            _ => Ok(Some(entry.tree)),
        }
    }

    /// A table as it was. A table that did not exist has no rows.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`]; [`Error::TableTypeMismatch`]; an error of reading pages.
    pub fn table<K: Key + ?Sized, V: Value + ?Sized>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<SnapshotTable<'_, K, V>, Error> {
        let tree = self.tree(table.name(), table.types_of())?;
        Ok(SnapshotTable { snapshot: self, tree, name: table.name().into(), types: PhantomData })
    }

    /// Names of all tables, in byte order.
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
}

impl Snapshot {
    /// All tables with their types, in byte order of their names.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        let mut cursor = Cursor::new(self, Some(CATALOG), &ByteBounds::ALL);
        let mut tables = Vec::new();
        while cursor.advance(Direction::Forward)? {
            let (name, value) = cursor.row()?;
            let name = String::from_utf8_lossy(name).into_owned();
            let entry = catalog::decode(value).ok_or_else(|| catalog::corrupt_row(&name))?;
            tables.push(TableInfo { name, types: (*entry.types).clone() });
        }
        Ok(tables)
    }
}

/// A table in a snapshot; made by [`Snapshot::table`]. Several threads may use one at once.
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, TableDefinition};
/// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
///
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// # db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
/// let snapshot = db.snapshot()?;
/// let stock = snapshot.table(&STOCK)?;
/// assert_eq!(stock.get("rice")?, Some(7));
/// assert_eq!(stock.range("r"..).count(), 1);
/// # Ok(())
/// # }
/// ```
pub struct SnapshotTable<'s, K: ?Sized, V: ?Sized> {
    snapshot: &'s Snapshot,
    tree: Option<Tree>,
    name: Box<str>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for SnapshotTable<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotTable").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'s, K: Key + ?Sized, V: Value + ?Sized> SnapshotTable<'s, K, V> {
    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn fetch<Q: ?Sized, T>(
        &self,
        key: &Q,
        each: impl FnOnce(&mut Vec<u8>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error>
    where
        K: EncodeKey<Q>,
    {
        let snapshot = self.snapshot;
        snapshot.db().lifetime.check_process()?;
        let Some(tree) = self.tree else { return Ok(None) };
        let (mut bytes, mut value) = (Vec::new(), Vec::new());
        K::encode(key, &mut bytes);
        let is_there = tree.get_in(&snapshot.db().env, snapshot.view(), &bytes, &mut value);
        snapshot.checked(())?;
        if is_there? { each(&mut value).map(Some) } else { Ok(None) }
    }

    /// The value at `key`.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`], damage found on the way, or [`Error::Decode`].
    pub fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.fetch(key, |value| {
            // A large value keeps its memory, as in a transaction.
            table::decode::<V>(value).map_err(|source| Error::Decode { table: self.name.to_string(), source })
        })
    }

    /// Lends the bytes of the value at `key` to `each`; see [`Table::with_value`](crate::Table::with_value).
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn with_value<Q: ?Sized, T>(&self, key: &Q, each: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.fetch(key, |value| Ok(each(value)))
    }

    /// Returns whether there is a row at `key`.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn contains<Q: ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
    {
        Ok(self.fetch(key, |_| Ok(()))?.is_some())
    }

    /// Iterates over the rows of a range in key order, from both ends.
    pub fn range(&self, range: impl KeyRange<K>) -> SnapshotRange<'s, K, V> {
        self.rows(&ByteBounds::of(&range))
    }

    /// Iterates over the rows with keys that begin with `prefix`; see [`Prefix`].
    pub fn prefix(&self, prefix: impl KeyPrefix<K>) -> SnapshotRange<'s, K, V> {
        self.range(Prefix(prefix))
    }

    /// Iterates over all rows in key order, from both ends.
    pub fn iter(&self) -> SnapshotRange<'s, K, V> {
        self.rows(&ByteBounds::ALL)
    }

    fn rows(&self, bounds: &ByteBounds) -> SnapshotRange<'s, K, V> {
        let cursor = Cursor::new(self.snapshot, self.tree, bounds);
        SnapshotRange { cursor, table: self.name.clone(), types: PhantomData }
    }

    /// Lends each row of a range to `each`, in key order, without decoding or copying it, until `each`
    /// breaks.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get), and those of `each`.
    pub fn for_each(
        &self,
        range: impl KeyRange<K>,
        mut each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let mut cursor = Cursor::new(self.snapshot, self.tree, &ByteBounds::of(&range));
        while cursor.advance(Direction::Forward)? {
            let (key, value) = cursor.row()?;
            let row = RowRef { table: &self.name, key, value, types: PhantomData };
            if each(row)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The row with the smallest key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn first(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.iter().next().transpose()
    }

    /// The row with the largest key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.iter().next_back().transpose()
    }

    /// Number of rows. Reads all leaves of the table.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn len(&self) -> Result<u64, Error> {
        let mut cursor = Cursor::new(self.snapshot, self.tree, &ByteBounds::ALL);
        let mut rows = 0;
        while cursor.advance(Direction::Forward)? {
            rows += 1;
        }
        Ok(rows)
    }

    /// Returns whether there are no rows.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(!Cursor::new(self.snapshot, self.tree, &ByteBounds::ALL).advance(Direction::Forward)?)
    }
}

impl<'s, K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &SnapshotTable<'s, K, V> {
    type Item = Result<RowOf<K, V>, Error>;
    type IntoIter = SnapshotRange<'s, K, V>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Rows of one direction that were read and not delivered.
#[derive(Debug, Default)]
struct Buffer {
    rows: LeafBatch,
    /// Rows before this one were delivered.
    next: usize,
    /// Rows from this one on were delivered from the other end.
    end: usize,
    limit: usize,
}

impl Buffer {
    fn clear(&mut self) {
        self.rows.clear();
        (self.next, self.end) = (0, 0);
    }
}

/// A place in a range of a snapshot; moves from both ends.
#[derive(Debug)]
struct Cursor<'s> {
    snapshot: &'s Snapshot,
    /// The rows that no buffer has; `None`: there are none.
    scan: Option<Scan>,
    front: Buffer,
    /// In descending order.
    back: Buffer,
    /// The row that the cursor is at: whether it is in the buffer of the front, and where.
    at: (Direction, usize),
    large: Vec<u8>,
}

impl<'s> Cursor<'s> {
    fn new(snapshot: &'s Snapshot, tree: Option<Tree>, bounds: &ByteBounds) -> Self {
        Self {
            snapshot,
            scan: tree.filter(|_| !bounds.is_empty()).map(|tree| bounds.scan(tree)),
            front: Buffer::default(),
            back: Buffer::default(),
            at: (Direction::Forward, 0),
            large: Vec::new(),
        }
    }

    /// Moves to the next row from one end; `false` if none is left. After an error there is none left.
    fn advance(&mut self, direction: Direction) -> Result<bool, Error> {
        let (mine, other) = match direction {
            Direction::Forward => (&mut self.front, &mut self.back),
            Direction::Backward => (&mut self.back, &mut self.front),
        };
        if mine.next == mine.end
            && let Some(scan) = &mut self.scan
        {
            mine.clear();
            mine.limit = (mine.limit * 8).clamp(FIRST_BATCH, MAX_BATCH);
            let snapshot = self.snapshot;
            let (env, view) = (&snapshot.db().env, snapshot.view());
            let read = snapshot.db().lifetime.check_process().and_then(|()| {
                let found = match direction {
                    Direction::Forward => scan.next_batch_in(env, view, mine.limit, &mut mine.rows),
                    Direction::Backward => scan.next_batch_back_in(env, view, mine.limit, &mut mine.rows),
                };
                // First: a snapshot that is too old may meet freed pages, which are no damage.
                snapshot.checked(())?;
                Ok(found?)
            });
            mine.end = mine.rows.len();
            if read.is_err() || scan.is_done() {
                self.scan = None;
            }
            if let Err(error) = read {
                mine.clear();
                other.clear();
                return Err(error);
            }
        }
        if mine.next < mine.end {
            self.at = (direction, mine.next);
            mine.next += 1;
            return Ok(true);
        }
        // The rest was read from the other end; its last row is the next one from this end.
        if other.next < other.end {
            other.end -= 1;
            self.at = (direction.reversed(), other.end);
            return Ok(true);
        }
        Ok(false)
    }

    /// Key, encoded, and value of the row that the cursor is at; reads a large value.
    fn row(&mut self) -> Result<(&[u8], &[u8]), Error> {
        let (direction, at) = self.at;
        let rows = match direction {
            Direction::Forward => &self.front.rows,
            Direction::Backward => &self.back.rows,
        };
        let value = match rows.value(at) {
            ValueRef::Inline(bytes) => bytes,
            ValueRef::Large(_) => {
                self.large.clear();
                let read = rows.read_value(&self.snapshot.db().env, at, &mut self.large);
                self.snapshot.checked(())?;
                read?;
                &self.large
            }
        };
        Ok((rows.key(at), value))
    }
}

/// Iterator over the rows of a range in a snapshot; made by [`SnapshotTable::range`].
#[must_use = "iterators are lazy: nothing is read until `next` is called"]
pub struct SnapshotRange<'s, K: ?Sized, V: ?Sized> {
    cursor: Cursor<'s>,
    table: Box<str>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for SnapshotRange<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRange").field("table", &self.table).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> SnapshotRange<'_, K, V> {
    fn step(&mut self, direction: Direction) -> Option<Result<RowOf<K, V>, Error>> {
        match self.cursor.advance(direction) {
            Ok(false) => None,
            Err(error) => Some(Err(error)),
            Ok(true) => Some(self.row()),
        }
    }

    fn row(&mut self) -> Result<RowOf<K, V>, Error> {
        let (key, value) = self.cursor.row()?;
        match (K::decode(key), V::decode(value)) {
            (Ok(key), Ok(value)) => Ok((key, value)),
            (Err(source), _) | (_, Err(source)) => {
                Err(Error::Decode { table: self.table.to_string(), source })
            }
        }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for SnapshotRange<'_, K, V> {
    type Item = Result<RowOf<K, V>, Error>;
    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for SnapshotRange<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}
