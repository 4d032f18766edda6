//! Multimap tables: an ordered set of values for each key.
//!
//! A multimap table is stored as a table of rows with the key `(key, value)` and no value: the values of one
//! key are adjacent and in order. The table can also be opened as a `TableDefinition<(K, V), ()>`.

use std::convert::Infallible;
use std::fmt;
use std::ops::Bound;

use crate::Error;
use crate::bounds::{ByteBounds, KeyRange};
use crate::key::{DecodeError, EncodeKey, Key};
use crate::range::Range;
use crate::snapshot::{Snapshot, SnapshotRange, SnapshotTable};
use crate::table::{RowOf, Table, TableDefinition, Types};
use crate::transaction::Transaction;

/// The key type of the table that stores a multimap: encoded as `(K, V)`, of types that need not be sized.
enum Pair<K: ?Sized, V: ?Sized> {
    /// A variant that cannot be constructed.
    #[expect(dead_code, reason = "only the type is used")]
    Never(Infallible, Types<K, V>),
}

/// A key and a value of a multimap by reference.
struct Parts<'a, Q: ?Sized, W: ?Sized>(&'a Q, &'a W);

impl<K: EncodeKey<Q> + ?Sized, V: EncodeKey<W> + ?Sized, Q: ?Sized, W: ?Sized> EncodeKey<Parts<'_, Q, W>>
    for Pair<K, V>
{
    fn encode(key: &Parts<'_, Q, W>, out: &mut Vec<u8>) {
        K::encode_part(key.0, out);
        V::encode(key.1, out);
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> EncodeKey<(K::Owned, V::Owned)> for Pair<K, V> {
    fn encode(key: &(K::Owned, V::Owned), out: &mut Vec<u8>) {
        K::encode_part(&key.0, out);
        V::encode(&key.1, out);
    }
}

impl<K: ?Sized, V: ?Sized> EncodeKey<Self> for Pair<K, V> {
    fn encode(key: &Self, _out: &mut Vec<u8>) {
        match key {
            Self::Never(never, _) => match *never {},
        }
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> Key for Pair<K, V> {
    type Owned = (K::Owned, V::Owned);
    fn type_name() -> String {
        format!("({}, {})", K::type_name(), V::type_name())
    }
    fn decode(mut input: &[u8]) -> Result<Self::Owned, DecodeError> {
        Ok((K::decode_part(&mut input)?, V::decode(input)?))
    }
    fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError> {
        Ok((K::decode_part(input)?, V::decode_part(input)?))
    }
}

impl<K: ?Sized, V: ?Sized> KeyRange<Pair<K, V>> for ByteBounds {
    fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (self.lower.clone(), self.upper.clone())
    }
    fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (self.lower.clone(), self.upper.clone())
    }
    fn row_limit(&self) -> usize {
        self.row_limit
    }
}

/// Returns the bounds of the rows of one key.
fn values_of<K: EncodeKey<Q> + ?Sized, Q: ?Sized>(key: &Q) -> ByteBounds {
    let mut part = Vec::new();
    K::encode_part(key, &mut part);
    ByteBounds::prefix(&part)
}

/// The name and types of a multimap table, which has an ordered set of values for each key. A definition
/// costs nothing and can be a `const`. The value type must be a type that can be a key.
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, MultimapTableDefinition};
///
/// const BY_CITY: MultimapTableDefinition<str, u64> = MultimapTableDefinition::new("by_city");
///
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let by_city = tx.multimap_table(&BY_CITY)?;
///     for (city, person) in [("Nara", 3), ("Uji", 2), ("Nara", 1), ("Nara", 3)] {
///         by_city.insert(city, &person)?;
///     }
///     assert_eq!(by_city.get("Nara").collect::<Result<Vec<_>, _>>()?, [1, 3]);
///     assert_eq!(by_city.len()?, 3);
///     assert!(by_city.remove("Uji", &2)?);
///     Ok(())
/// })?;
/// assert_eq!(db.read(|snapshot| Ok(snapshot.multimap_table(&BY_CITY)?.iter().count()))?, 2);
/// # Ok(())
/// # }
/// ```
pub struct MultimapTableDefinition<K: ?Sized, V: ?Sized>(TableDefinition<Pair<K, V>, ()>);

impl<K: ?Sized, V: ?Sized> MultimapTableDefinition<K, V> {
    /// Returns the definition of a multimap table with this name.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self(TableDefinition::new(name))
    }

    /// Returns the definition of a multimap table with a name that is built at run time.
    pub fn named(name: impl Into<String>) -> Self {
        Self(TableDefinition::named(name))
    }

    /// Returns the table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }
}

impl<K: ?Sized, V: ?Sized> AsRef<str> for MultimapTableDefinition<K, V> {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for MultimapTableDefinition<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MultimapTableDefinition").field(&self.name()).finish()
    }
}

impl Transaction {
    /// Opens a multimap table for reading and writing, as [`table`](Self::table) opens a table.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn multimap_table<K: Key + ?Sized, V: Key + ?Sized>(
        &self,
        table: &MultimapTableDefinition<K, V>,
    ) -> Result<MultimapTable<'_, K, V>, Error> {
        self.table(&table.0).map(MultimapTable)
    }
}

impl Snapshot {
    /// Returns a multimap table of the snapshot, as [`table`](Self::table) returns a table.
    ///
    /// # Errors
    ///
    /// As for [`table`](Self::table).
    pub fn multimap_table<K: Key + ?Sized, V: Key + ?Sized>(
        &self,
        table: &MultimapTableDefinition<K, V>,
    ) -> Result<SnapshotMultimapTable<'_, K, V>, Error> {
        self.table(&table.0).map(SnapshotMultimapTable)
    }
}

/// A multimap table inside a transaction; returned by [`Transaction::multimap_table`]. The locks are those of
/// a [`Table`] with a row for each pair of key and value. The encoded pair may have at most
/// [`Database::max_key_bytes`](crate::Database::max_key_bytes) bytes.
pub struct MultimapTable<'tx, K: ?Sized, V: ?Sized>(Table<'tx, Pair<K, V>, ()>);

/// A multimap table in a snapshot; returned by [`Snapshot::multimap_table`].
pub struct SnapshotMultimapTable<'s, K: ?Sized, V: ?Sized>(SnapshotTable<'s, Pair<K, V>, ()>);

impl<K: ?Sized, V: ?Sized> Clone for MultimapTable<'_, K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> MultimapTable<'_, K, V> {
    /// Adds `value` to the set of `key`; returns `false` if the set already had it.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn insert<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeKey<W>,
    {
        self.0.insert_if_absent(&Parts(key, value), &())
    }

    /// Removes `value` from the set of `key`; returns `false` if the set did not have it.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn remove<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeKey<W>,
    {
        self.0.delete(&Parts(key, value))
    }

    /// Removes all values of `key`; returns the number of removed values.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn remove_all<Q: ?Sized>(&self, key: &Q) -> Result<u64, Error>
    where
        K: EncodeKey<Q>,
    {
        self.0.remove_range(values_of::<K, Q>(key))
    }
}

macro_rules! reading {
    ($($table:ident $life:lifetime $rows:ident;)*) => {$(
        impl<K: ?Sized, V: ?Sized> fmt::Debug for $table<'_, K, V> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($table)).field(&self.0).finish()
            }
        }

        impl<$life, K: Key + ?Sized, V: Key + ?Sized> $table<$life, K, V> {
            /// Returns the table's name.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// Returns an iterator over the values of `key`, in order and from both ends.
            pub fn get<Q: ?Sized>(&self, key: &Q) -> MultimapValues<$life, K, V>
            where
                K: EncodeKey<Q>,
            {
                MultimapValues(MultimapRange(Rows::$rows(self.0.range(values_of::<K, Q>(key)))))
            }

            /// Returns `true` if `value` is in the set of `key`.
            ///
            /// # Errors
            ///
            /// As for reading rows.
            pub fn contains<Q: ?Sized, W: ?Sized>(&self, key: &Q, value: &W) -> Result<bool, Error>
            where
                K: EncodeKey<Q>,
                V: EncodeKey<W>,
            {
                self.0.contains(&Parts(key, value))
            }

            /// Returns an iterator over the keys of `range`, each with each of its values, in order and from
            /// both ends.
            pub fn range(&self, range: impl KeyRange<K>) -> MultimapRange<$life, K, V> {
                MultimapRange(Rows::$rows(self.0.range(ByteBounds::of_first_parts(&range))))
            }

            /// Returns an iterator over all keys, each with each of its values, in order and from both ends.
            pub fn iter(&self) -> MultimapRange<$life, K, V> {
                MultimapRange(Rows::$rows(self.0.iter()))
            }

            /// Returns the first key with its first value.
            ///
            /// # Errors
            ///
            /// As for reading rows.
            pub fn first(&self) -> Result<Option<(K::Owned, V::Owned)>, Error> {
                self.iter().next().transpose()
            }

            /// Returns the last key with its last value.
            ///
            /// # Errors
            ///
            /// As for reading rows.
            pub fn last(&self) -> Result<Option<(K::Owned, V::Owned)>, Error> {
                self.iter().next_back().transpose()
            }

            /// Returns the number of values of all keys. Reads all leaves of the table.
            ///
            /// # Errors
            ///
            /// As for reading rows.
            pub fn len(&self) -> Result<u64, Error> {
                self.0.len()
            }

            /// Returns `true` if no key has a value.
            ///
            /// # Errors
            ///
            /// As for reading rows.
            pub fn is_empty(&self) -> Result<bool, Error> {
                self.0.is_empty()
            }
        }

        impl<$life, K: Key + ?Sized, V: Key + ?Sized> IntoIterator for &$table<$life, K, V> {
            type Item = Result<(K::Owned, V::Owned), Error>;
            type IntoIter = MultimapRange<$life, K, V>;
            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }
    )*};
}
reading! {
    MultimapTable 'tx Locked;
    SnapshotMultimapTable 's Snapshot;
}

#[derive(Debug)]
enum Rows<'t, K: ?Sized, V: ?Sized> {
    Locked(Range<'t, Pair<K, V>, ()>),
    Snapshot(SnapshotRange<'t, Pair<K, V>, ()>),
}

/// Iterator over keys with their values; returned by [`MultimapTable::range`] and
/// [`SnapshotMultimapTable::range`].
#[derive(Debug)]
#[must_use = "iterators are lazy: nothing is read until `next` is called"]
pub struct MultimapRange<'t, K: ?Sized, V: ?Sized>(Rows<'t, K, V>);

/// Iterator over the values of one key; returned by [`MultimapTable::get`] and
/// [`SnapshotMultimapTable::get`].
#[derive(Debug)]
#[must_use = "iterators are lazy: nothing is read until `next` is called"]
pub struct MultimapValues<'t, K: ?Sized, V: ?Sized>(MultimapRange<'t, K, V>);

type Row<K, V> = Result<RowOf<Pair<K, V>, ()>, Error>;

fn without_unit<K: Key + ?Sized, V: Key + ?Sized>(row: Row<K, V>) -> Result<(K::Owned, V::Owned), Error> {
    row.map(|(pair, ())| pair)
}

impl<K: Key + ?Sized, V: Key + ?Sized> Iterator for MultimapRange<'_, K, V> {
    type Item = Result<(K::Owned, V::Owned), Error>;
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Rows::Locked(rows) => rows.next(),
            Rows::Snapshot(rows) => rows.next(),
        }
        .map(without_unit::<K, V>)
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> DoubleEndedIterator for MultimapRange<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Rows::Locked(rows) => rows.next_back(),
            Rows::Snapshot(rows) => rows.next_back(),
        }
        .map(without_unit::<K, V>)
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> Iterator for MultimapValues<'_, K, V> {
    type Item = Result<V::Owned, Error>;
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|row| row.map(|(_, value)| value))
    }
}

impl<K: Key + ?Sized, V: Key + ?Sized> DoubleEndedIterator for MultimapValues<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|row| row.map(|(_, value)| value))
    }
}
