//! Tables of a snapshot, and iterators over their rows.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use azekura_btree::Tree;

use super::Snapshot;
use super::cursor::Cursor;
use crate::Error;
use crate::bounds::{ByteBounds, KeyPrefix, KeyRange, Prefix};
use crate::key::{EncodeKey, Key};
use crate::prefetch::prefetch;
use crate::range::RowRef;
use crate::table::{RowOf, Types};
use crate::thread_memory::with_buffers;
use crate::transaction::Direction;
use crate::value::Value;
use crate::value_ref::ValueRef;

/// A table in a snapshot; returned by [`Snapshot::table`]. Several threads may use a table at once.
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
    name: Cow<'s, str>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for SnapshotTable<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotTable").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'s, K: Key + ?Sized, V: Value + ?Sized> SnapshotTable<'s, K, V> {
    pub(super) fn new(snapshot: &'s Snapshot, tree: Option<Tree>, name: Cow<'s, str>) -> Self {
        Self { snapshot, tree, name, types: PhantomData }
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn fetch<Q: ?Sized, T>(
        &self,
        key: &Q,
        each: impl FnOnce(ValueRef<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error>
    where
        K: EncodeKey<Q>,
    {
        let snapshot = self.snapshot;
        snapshot.db().lifetime.check_process()?;
        let Some(tree) = self.tree else { return Ok(None) };
        with_buffers(|bytes, cell| {
            K::encode(key, bytes);
            snapshot.read_key(tree, bytes, cell)?.map(each).transpose()
        })
    }

    /// Returns the value at `key`.
    ///
    /// # Errors
    ///
    /// [`Error::SnapshotTooOld`]; [`Error::Decode`]; damage of a page.
    pub fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.fetch(key, |value| value.decode::<V>(&self.name))
    }

    /// Lends the value at `key` to `each`; see [`Table::with_value`](crate::Table::with_value).
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get), and those of `each`.
    pub fn with_value<Q: ?Sized, T>(
        &self,
        key: &Q,
        each: impl FnOnce(ValueRef<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.fetch(key, each)
    }

    /// Returns `true` if there is a row at `key`.
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

    /// Announces that the rows at `keys` will be read soon; see [`Table::prefetch`](crate::Table::prefetch).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] in a forked process.
    pub fn prefetch<'q, Q: ?Sized + 'q>(&self, keys: impl IntoIterator<Item = &'q Q>) -> Result<usize, Error>
    where
        K: EncodeKey<Q>,
    {
        let db = self.snapshot.db();
        db.lifetime.check_process()?;
        Ok(self.tree.map_or(0, |tree| prefetch::<K, Q>(&db.env, tree, keys)))
    }

    /// Returns an iterator over the rows of a range, in key order and from both ends.
    pub fn range(&self, range: impl KeyRange<K>) -> SnapshotRange<'s, K, V> {
        self.rows(&ByteBounds::of(&range))
    }

    /// Returns an iterator over the rows with keys that begin with `prefix`; see [`Prefix`].
    pub fn prefix(&self, prefix: impl KeyPrefix<K>) -> SnapshotRange<'s, K, V> {
        self.range(Prefix(prefix))
    }

    /// Returns an iterator over all rows, in key order and from both ends.
    pub fn iter(&self) -> SnapshotRange<'s, K, V> {
        self.rows(&ByteBounds::ALL)
    }

    fn rows(&self, bounds: &ByteBounds) -> SnapshotRange<'s, K, V> {
        let cursor = Cursor::new(self.snapshot, self.tree, bounds);
        SnapshotRange { cursor, table: self.name().into(), types: PhantomData }
    }

    /// Passes each row of a range to `each`, in key order, without decoding it and without reading a large
    /// value, until `each` breaks.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get), and those of `each`.
    pub fn for_each(
        &self,
        range: impl KeyRange<K>,
        each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.lend_rows(&ByteBounds::of(&range), Direction::Forward, each)
    }

    /// Passes rows to `each` as [`for_each`](Self::for_each) does, but in descending key order.
    ///
    /// # Errors
    ///
    /// As for [`for_each`](Self::for_each).
    pub fn for_each_back(
        &self,
        range: impl KeyRange<K>,
        each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.lend_rows(&ByteBounds::of(&range), Direction::Backward, each)
    }

    fn lend_rows(
        &self,
        bounds: &ByteBounds,
        direction: Direction,
        mut each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let cursor = Cursor::new(self.snapshot, self.tree, bounds);
        cursor.for_each(direction, |key, value| {
            each(RowRef { table: &self.name, key, value, types: PhantomData })
        })
    }

    /// Returns the row with the least key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn first(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.iter().next().transpose()
    }

    /// Returns the row with the greatest key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.iter().next_back().transpose()
    }

    /// Returns the number of rows. Reads all leaves of the table.
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

    /// Returns `true` if the table has no rows.
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

/// A table that keeps its snapshot open, for objects that cannot borrow the snapshot, such as objects of
/// other languages; returned by [`Snapshot::owned_table`].
pub struct OwnedSnapshotTable<K: ?Sized, V: ?Sized> {
    snapshot: Snapshot,
    tree: Option<Tree>,
    name: Box<str>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for OwnedSnapshotTable<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedSnapshotTable").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> OwnedSnapshotTable<K, V> {
    pub(super) fn new(table: SnapshotTable<'_, K, V>) -> Self {
        let SnapshotTable { snapshot, tree, name, types } = table;
        Self { snapshot: snapshot.clone(), tree, name: name.into(), types }
    }

    /// Returns the table; reads no page and allocates no memory.
    pub fn table(&self) -> SnapshotTable<'_, K, V> {
        SnapshotTable::new(&self.snapshot, self.tree, Cow::Borrowed(&self.name))
    }
}

/// Iterator over the rows of a range in a snapshot; returned by [`SnapshotTable::range`].
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
        RowRef::<K, V> { table: &self.table, key, value, types: PhantomData }.decode()
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
