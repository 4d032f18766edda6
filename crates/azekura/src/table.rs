//! Typed tables: definitions with name and types, and the operations of a transaction on a table.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use crate::Error;
use crate::bounds::{ByteBounds, KeyPrefix, KeyRange, Prefix};
use crate::catalog::TableTypes;
use crate::key::{DecodeError, EncodeKey, Key};
use crate::locking::ScanLocks;
use crate::probe;
use crate::range::{Range, RowRef};
use crate::scan::Cursor;
use crate::transaction::{Direction, OpenTree, Transaction, TypesOf, WriteKind};
use crate::value::{EncodeError, EncodeValue, Value};
use crate::value_ref::ValueRef;

/// Largest length of a table name in bytes.
pub const MAX_TABLE_NAME: usize = 255;

/// Size of values, in bytes, from which on the buffer is moved into the result instead of copied.
const KEEPABLE: usize = 4096;

/// Decodes a value; for a large value, moves the memory of the buffer into the result.
fn decode<V: Value + ?Sized>(value: &mut Vec<u8>) -> Result<V::Owned, DecodeError> {
    if value.len() < KEEPABLE { V::decode(value) } else { V::decode_vec(std::mem::take(value)) }
}

/// The types of a table, without a key or a value.
pub(crate) type Types<K, V> = PhantomData<(fn(&K), fn(&V))>;

/// A row as reads return it: key and value.
pub type RowOf<K, V> = (<K as Key>::Owned, <V as Value>::Owned);

/// A table's name and types. A definition costs nothing and can be a `const`.
///
/// # Examples
///
/// ```
/// use azekura::TableDefinition;
/// const BALANCES: TableDefinition<u64, i64> = TableDefinition::new("balances");
/// const BY_CITY: TableDefinition<(String, u64), ()> = TableDefinition::new("by_city"); // a secondary index
/// let bytes = TableDefinition::<[u8], [u8]>::named(format!("shard-{}", 3));
/// assert_eq!(bytes.name(), "shard-3");
/// ```
pub struct TableDefinition<K: ?Sized, V: ?Sized> {
    name: Cow<'static, str>,
    rows: RowTypes,
    types: Types<K, V>,
}

/// The types that the rows of a table must have.
#[derive(Clone, Copy)]
enum RowTypes {
    /// The key and value types of the definition.
    Program,
    /// All types are accepted.
    Any,
    /// The types with these names.
    Named(&'static TableTypes),
}

impl<K: ?Sized, V: ?Sized> TableDefinition<K, V> {
    /// Returns the definition of the table with this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), rows: RowTypes::Program, types: PhantomData }
    }

    /// Returns the definition of a table with a name that is built at run time.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), rows: RowTypes::Program, types: PhantomData }
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<K: ?Sized, V: ?Sized> AsRef<str> for TableDefinition<K, V> {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

impl TableDefinition<[u8], [u8]> {
    /// Returns the definition of the table with this name with keys and values as bytes, regardless of the
    /// types of its rows. Use it in tools that list, copy or repair tables. Keys and values that are written
    /// through the definition must be encodings of the table's types.
    pub fn raw(name: impl Into<String>) -> Self {
        Self { rows: RowTypes::Any, ..Self::named(name) }
    }

    /// Returns the definition of the table with this name, with encoded keys and values and with types of
    /// these [names](Key::type_name). Use it in language bindings, which learn types at run time. The names
    /// are compared with the types of the table's rows, and a new table gets these types. Keys and values
    /// that are written through the definition must be encodings of these types.
    ///
    /// The names stay in memory until the process ends, once for each pair of names.
    ///
    /// # Examples
    ///
    /// ```
    /// use azekura::{Database, Error, TableDefinition};
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| tx.table(&TableDefinition::<str, u16>::new("t"))?.insert("rice", &7))?;
    /// let encoded = TableDefinition::encoded("t", "str", "u16");
    /// assert_eq!(db.transact(|tx| tx.table(&encoded)?.get("rice"))?, Some(vec![7, 0]));
    /// let other = TableDefinition::encoded("t", "str", "str");
    /// let refused = db.transact(|tx| tx.table(&other)?.get("rice"));
    /// assert!(matches!(refused, Err(Error::TableTypeMismatch { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn encoded(name: impl Into<String>, key_type: &str, value_type: &str) -> Self {
        Self { rows: RowTypes::Named(TableTypes::kept(key_type, value_type)), ..Self::named(name) }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> TableDefinition<K, V> {
    /// Returns the types to compare with the types of the rows.
    pub(crate) fn types_of(&self) -> Option<TypesOf> {
        match self.rows {
            RowTypes::Program => Some(TypesOf::Program(TableTypes::of::<K, V>)),
            RowTypes::Any => None,
            RowTypes::Named(names) => Some(TypesOf::Named(names)),
        }
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for TableDefinition<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TableDefinition<{}, {}>({:?})",
            std::any::type_name::<PhantomData<K>>(),
            std::any::type_name::<PhantomData<V>>(),
            self.name
        )
    }
}

/// A table inside a transaction; returned by [`Transaction::table`].
///
/// Keys and values are passed by reference, in any type that [`EncodeKey`] and [`EncodeValue`] list. For
/// example, a table of `String` keys accepts `"rice"`, and a table of `(String, u64)` keys accepts `&("rice",
/// 7)`. Ranges are [`KeyRange`]s: `..`, `"a".."b"`, `("rice", 0)..`, [`Prefix`]`(("rice",))`.
///
/// Reads lock the returned rows against changes, and the gaps between them against insertions, until the
/// transaction ends. So their results stay valid until the commit. Any call may block on another
/// transaction's lock, and may fail with [`Error::Deadlock`]; the transaction has then been rolled back.
///
/// A table borrows its transaction, and one thread at a time uses both. Neither a table nor a [`Range`] can
/// be sent to another thread: send the transaction, and open the table there. For readers in several threads
/// at once, open a [`Snapshot`](crate::Snapshot).
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, TableDefinition};
/// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
///
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let stock = tx.table(&STOCK)?;
///     stock.insert("barley", &7)?;
///     stock.insert("rice", &5)?;
///     stock.update("rice", |old| old.map(|sacks| sacks - 1))?;
///     assert_eq!(stock.get("rice")?, Some(4));
///     for row in stock.range("b"..) {
///         let (name, sacks) = row?;
///         println!("{name}: {sacks}");
///     }
///     assert_eq!(stock.remove("barley")?, Some(7));
///     assert_eq!(stock.len()?, 1);
///     Ok(())
/// })
/// # }
/// ```
pub struct Table<'tx, K: ?Sized, V: ?Sized> {
    pub(crate) tx: &'tx Transaction,
    pub(crate) tree: OpenTree,
    /// `true` for a table returned by [`skip_locked`](Self::skip_locked).
    pub(crate) skips_locked: bool,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> Clone for Table<'_, K, V> {
    fn clone(&self) -> Self {
        Self { tx: self.tx, tree: self.tree.clone(), skips_locked: self.skips_locked, types: PhantomData }
    }
}

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> IntoIterator for &Table<'tx, K, V> {
    type Item = <Range<'tx, K, V> as Iterator>::Item;
    type IntoIter = Range<'tx, K, V>;

    fn into_iter(self) -> Range<'tx, K, V> {
        self.iter()
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Table<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("name", &self.tree.name()).finish_non_exhaustive()
    }
}

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Table<'tx, K, V> {
    pub(crate) const fn new(tx: &'tx Transaction, tree: OpenTree) -> Self {
        Self { tx, tree, skips_locked: false, types: PhantomData }
    }

    pub(crate) fn with_skips_locked(&self, skips_locked: bool) -> Self {
        Self { skips_locked, ..Self::new(self.tx, self.tree.clone()) }
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.tree.name()
    }

    /// Returns the value at `key`.
    ///
    /// # Errors
    ///
    /// Conflict errors, damage of a page, or [`Error::Decode`] if the value is not a `V`.
    pub fn get<Q: ?Sized>(&self, key: &Q) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
    {
        let _get = probe::get();
        self.with_key(key, |tx, bytes| tx.read(&self.tree, bytes, |value| self.take(value)))
    }

    /// Returns the value at `key` and locks the row for a change.
    ///
    /// If two transactions read the same row and then write it, they deadlock: each waits for the other's
    /// read lock, and one of them has to run again. With this function, the second transaction waits for the
    /// first. The cost is that of [`get`](Self::get).
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const COUNTERS: TableDefinition<str, u64> = TableDefinition::new("counters");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| {
    ///     let counters = tx.table(&COUNTERS)?;
    ///     let visits = counters.get_for_update("visits")?.unwrap_or(0);
    ///     counters.insert("visits", &(visits + 1))
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn get_for_update<Q: ?Sized>(&self, key: &Q) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.with_key(key, |tx, bytes| tx.read_for_update(&self.tree, bytes, |value| self.take(value)))
    }

    /// Lends the value at `key` to `each`, without decoding it and without reading a large value. Returns
    /// `None` if there is no row. See [`ValueRef`].
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const T: TableDefinition<u64, [u8]> = TableDefinition::new("t");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let length = db.transact(|tx| {
    ///     let table = tx.table(&T)?;
    ///     table.insert(&1, b"seven b")?;
    ///     table.with_value(&1, |value| Ok(value.len()))
    /// })?;
    /// assert_eq!(length, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get), and errors of `each`.
    pub fn with_value<Q: ?Sized, T>(
        &self,
        key: &Q,
        each: impl FnOnce(ValueRef<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error>
    where
        K: EncodeKey<Q>,
    {
        let _get = probe::get();
        self.with_key(key, |tx, bytes| tx.lend(&self.tree, bytes, each))
    }

    /// Returns `true` if there is a value at `key`.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn contains<Q: ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
    {
        let _get = probe::get();
        self.with_key(key, |tx, bytes| tx.contains(&self.tree, bytes))
    }

    /// Stores `value` at `key`, replacing an existing value.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the key or value is too long. [`Error::Encode`]: the value of a serde type could
    /// not be decoded again. Conflict errors, and errors of the log and of the cache.
    pub fn insert<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<(), Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        self.write(key, value, WriteKind::Put).map(drop)
    }

    /// Stores `value` at `key` if there is no row; returns `false` if there is a row already.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn insert_if_absent<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        Ok(self.write(key, value, WriteKind::InsertIfAbsent)?.is_none())
    }

    /// Stores `value` at `key` and returns the previous value.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn replace<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        self.changing(|| self.write(key, value, WriteKind::Replace))
    }

    /// Removes the value at `key` and returns it.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn remove<Q: ?Sized>(&self, key: &Q) -> Result<Option<V::Owned>, Error>
    where
        K: EncodeKey<Q>,
    {
        let _remove = probe::remove();
        self.changing(|| self.with_key(key, |tx, bytes| tx.remove(&self.tree, bytes)))
    }

    /// Removes the value at `key` without reading it; returns `false` if there was no row. For a large value
    /// only the page numbers are read, after the commit.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn delete<Q: ?Sized>(&self, key: &Q) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
    {
        let _remove = probe::remove();
        self.with_key(key, |tx, bytes| tx.delete(&self.tree, bytes))
    }

    /// Returns an iterator over the rows with keys in `range`, in key order and from both ends.
    ///
    /// The iterator returns the rows that this transaction had when the iterator was created. Rows that the
    /// transaction inserts, changes or removes afterward are returned in their earlier state, so a loop that
    /// moves rows ahead ends. Rows are read and locked a few at a time as the iterator moves. A change that
    /// another transaction commits before the iterator reaches the row is included. A rollback to a savepoint
    /// older than the iterator ends it with [`Error::Invalid`].
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const PLACES: TableDefinition<u64, str> = TableDefinition::new("places");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| {
    ///     let places = tx.table(&PLACES)?;
    ///     places.insert(&1, "first")?;
    ///     places.insert(&2, "second")?;
    ///     for row in places.iter() {
    ///         let (place, name) = row?;
    ///         places.remove(&place)?;
    ///         places.insert(&(place + 10), &name)?; // not met again
    ///     }
    ///     assert_eq!(places.iter().map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>()?, [11, 12]);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn range(&self, range: impl KeyRange<K>) -> Range<'tx, K, V> {
        Range::new(self.tx, self.tree.clone(), ByteBounds::of(&range), ScanLocks::default())
    }

    /// Returns an iterator over the rows with keys that begin with `prefix`: text, bytes, or the leading
    /// parts of a tuple, such as `("Nara",)` for keys `(String, u64)`. [`Prefix`] is the same range as an
    /// argument of other calls.
    pub fn prefix(&self, prefix: impl KeyPrefix<K>) -> Range<'tx, K, V> {
        self.range(Prefix(prefix))
    }

    /// Returns an iterator over all rows, in key order and from both ends; see [`range`](Self::range).
    pub fn iter(&self) -> Range<'tx, K, V> {
        Range::new(self.tx, self.tree.clone(), ByteBounds::ALL, ScanLocks::default())
    }

    /// Calls `each` with the rows of `range`, in key order, until `each` breaks or fails. The rows are lent:
    /// they are decoded, and large values are read, only on request of `each`. Like [`range`](Self::range),
    /// this passes the rows that the transaction had at the time of the call.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// use std::ops::ControlFlow;
    /// # const STOCK: TableDefinition<str, u32> = TableDefinition::new("stock");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// # let rows = [("barley", 7), ("rice", 5), ("soy", 9)];
    /// # db.transact(|tx| tx.table(&STOCK)?.bulk_load(rows))?;
    /// let mut sum = 0;
    /// db.transact(|tx| {
    ///     sum = 0; // the closure may run again
    ///     tx.table(&STOCK)?.for_each("b".."s", |row| {
    ///         sum += row.value()?;
    ///         Ok(ControlFlow::Continue(()))
    ///     })
    /// })?;
    /// assert_eq!(sum, 12);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get), and errors of `each`.
    pub fn for_each(
        &self,
        range: impl KeyRange<K>,
        each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.lend_rows(ByteBounds::of(&range), Direction::Forward, each)
    }

    /// Calls `each` as [`for_each`](Self::for_each) does, but in descending key order.
    ///
    /// # Errors
    ///
    /// As for [`for_each`](Self::for_each).
    pub fn for_each_back(
        &self,
        range: impl KeyRange<K>,
        each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.lend_rows(ByteBounds::of(&range), Direction::Backward, each)
    }

    fn lend_rows(
        &self,
        bounds: ByteBounds,
        direction: Direction,
        mut each: impl FnMut(RowRef<'_, K, V>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let cursor = Cursor::new(self.tx, self.tree.clone(), bounds, ScanLocks::default());
        cursor.for_each(direction, |key, value| {
            each(RowRef { table: self.tree.name(), key, value, types: PhantomData })
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

    /// Encodes `key` into the transaction's buffer for the duration of one call.
    pub(crate) fn with_key<Q: ?Sized, T>(
        &self,
        key: &Q,
        call: impl FnOnce(&Transaction, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Error>
    where
        K: EncodeKey<Q>,
    {
        self.tx.with_key(|bytes| K::encode(key, bytes), call)
    }

    fn write<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        value: &W,
        kind: WriteKind,
    ) -> Result<Option<Vec<u8>>, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        let _put = probe::put();
        self.with_key(key, |tx, key| {
            tx.with_value(|bytes| {
                self.encoded(V::encode(value, bytes))?;
                tx.write(&self.tree, key, bytes, kind)
            })
        })
    }

    /// Runs a change that returns the old value of a row, and decodes that value. If the value cannot be
    /// decoded, undoes the change (TXN-3).
    fn changing(
        &self,
        change: impl FnOnce() -> Result<Option<Vec<u8>>, Error>,
    ) -> Result<Option<V::Owned>, Error> {
        let before = self.tx.undo_len()?;
        let Some(mut old) = change()? else { return Ok(None) };
        self.take(&mut old).map(Some).or_else(|error| self.tx.end_call(before, Err(error)))
    }

    /// Decodes a value; for a large value, moves the memory of the buffer into the result.
    pub(crate) fn take(&self, value: &mut Vec<u8>) -> Result<V::Owned, Error> {
        decode::<V>(value).map_err(|e| self.decode_error(e))
    }

    pub(crate) fn encoded(&self, encoded: Result<(), EncodeError>) -> Result<(), Error> {
        encoded.map_err(|source| Error::Encode { table: self.tree.name().to_owned(), source })
    }

    pub(crate) fn decoded<T>(&self, decoded: Result<T, DecodeError>) -> Result<T, Error> {
        decoded.map_err(|error| self.decode_error(error))
    }

    pub(crate) fn decode_error(&self, source: DecodeError) -> Error {
        Error::Decode { table: self.tree.name().to_owned(), source }
    }
}

impl<K: Key + ?Sized> Table<'_, K, [u8]> {
    /// Stores all bytes of `source` at `key`, replacing an existing value; returns their number.
    ///
    /// A large value is read and written in pieces of 4 MiB, so it is never in memory whole; see also
    /// [`ValueRef::reader`](crate::ValueRef::reader). The row is locked while the source is read. The source
    /// may read in this transaction. It may not write in it or undo parts of it. A closure of
    /// [`transact`](crate::Database::transact) runs again after a conflict and must open its source again.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert); [`Error::Invalid`] if the source has more than 1 GiB, or writes in
    /// this transaction; [`Error::Other`] with the [`std::io::Error`] of the source. The row is unchanged
    /// after an error.
    ///
    /// # Panics
    ///
    /// If `source` panics. The row is then unchanged.
    pub fn insert_from<Q: ?Sized>(&self, key: &Q, mut source: impl Read) -> Result<u64, Error>
    where
        K: EncodeKey<Q>,
    {
        let _put = probe::put();
        self.with_key(key, |tx, key| tx.write_from(&self.tree, key, &mut source))
    }
}
