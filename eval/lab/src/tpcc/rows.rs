//! Requirements of a TPC-C transaction on a store: typed tables inside of a transaction.
//!
//! [`azekura::Transaction`] is one; so is a transaction of any engine that keeps bytes in key order, by
//! [`KeyedRows`](super::keyed::KeyedRows). The five transactions and the consistency conditions are written
//! once, over this.

use super::schema::{Broken, UnusedItem};
use azekura::{Error, Key, Serde, Table, TableDefinition, Transaction, Value};
use std::fmt::Debug;
use std::ops::ControlFlow::{self, Continue};

/// A key that is a value of its own, as those of the schema are.
pub trait RowKey: Key<Owned = Self> + Debug + Clone + Sized {}

impl<K: Key<Owned = K> + Debug + Clone> RowKey for K {}

/// A row as the schema has them: a serde type, or nothing in an index.
pub trait Row: Value {}

impl<T> Row for Serde<T> where Self: Value<Owned = T> {}
impl Row for () {}

/// A transaction.
pub trait Rows {
    /// An error of the store; a conflict among them, after which the transaction is run again.
    type Error: From<Broken> + From<UnusedItem>;
    /// A table in it.
    type Open<'r, K: RowKey, V: Row>: OpenRows<K, V, Error = Self::Error>
    where
        Self: 'r;

    /// Opens a table.
    ///
    /// # Errors
    ///
    /// An error of the store.
    fn open<K: RowKey, V: Row>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<Self::Open<'_, K, V>, Self::Error>;
}

/// A table in a transaction. All fail with what the store says.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
pub trait OpenRows<K: RowKey, V: Row> {
    /// As the transaction's.
    type Error;

    /// The row at a key.
    fn row(&self, key: &K) -> Result<Option<V::Owned>, Self::Error>;

    /// The row at a key, which is going to be changed.
    fn row_for_update(&self, key: &K) -> Result<Option<V::Owned>, Self::Error>;

    /// Stores a row, whether there was one or not.
    fn put(&self, key: &K, row: &V::Owned) -> Result<(), Self::Error>;

    /// Stores a row at a key that must be free; otherwise returns [`Broken`].
    fn add(&self, key: &K, row: &V::Owned) -> Result<(), Self::Error>;

    /// Removes the first row from `first` to `last`, both included; returns its key.
    fn take_first(&self, first: &K, last: &K) -> Result<Option<K>, Self::Error>;

    /// The last key from `first` to `last`, both included.
    fn last_key(&self, first: &K, last: &K) -> Result<Option<K>, Self::Error>;

    /// Shows the rows from `first` to `last`, both included, in key order; or, of a table that an engine
    /// keeps in descending order ([`DESCENDING`](super::keyed::DESCENDING)), in any.
    fn each(
        &self,
        first: &K,
        last: &K,
        each: &mut dyn FnMut(K, V::Owned) -> ControlFlow<()>,
    ) -> Result<(), Self::Error>;
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        Self::other(broken)
    }
}

impl From<UnusedItem> for Error {
    fn from(unused: UnusedItem) -> Self {
        Self::other(unused)
    }
}

impl Rows for Transaction {
    type Error = Error;
    type Open<'r, K: RowKey, V: Row> = Table<'r, K, V>;

    fn open<K: RowKey, V: Row>(&self, table: &TableDefinition<K, V>) -> Result<Table<'_, K, V>, Error> {
        self.table(table)
    }
}

impl<K: RowKey, V: Row> OpenRows<K, V> for Table<'_, K, V> {
    type Error = Error;

    fn row(&self, key: &K) -> Result<Option<V::Owned>, Error> {
        self.get(key)
    }

    fn row_for_update(&self, key: &K) -> Result<Option<V::Owned>, Error> {
        self.get_for_update(key)
    }

    fn put(&self, key: &K, row: &V::Owned) -> Result<(), Error> {
        self.insert(key, row)
    }

    fn add(&self, key: &K, row: &V::Owned) -> Result<(), Error> {
        if self.insert_if_absent(key, row)? {
            Ok(())
        } else {
            Err(Broken::has_already(self.name(), key).into())
        }
    }

    fn take_first(&self, first: &K, last: &K) -> Result<Option<K>, Error> {
        let Some((key, _)) = self.range(first..=last).next().transpose()? else { return Ok(None) };
        // It is locked since it was read.
        self.remove(&key)?.ok_or_else(|| Broken::lacks(self.name(), &key))?;
        Ok(Some(key))
    }

    fn last_key(&self, first: &K, last: &K) -> Result<Option<K>, Error> {
        Ok(self.range(first..=last).next_back().transpose()?.map(|(key, _)| key))
    }

    fn each(
        &self,
        first: &K,
        last: &K,
        each: &mut dyn FnMut(K, V::Owned) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.for_each(first..=last, |row| Ok(each(row.key()?, row.value()?)))
    }
}

/// Collects the rows of a walk.
///
/// # Errors
///
/// An error of the store.
pub fn collect<K: RowKey, V: Row, O: OpenRows<K, V>, T>(
    table: &O,
    first: &K,
    last: &K,
    mut take: impl FnMut(K, V::Owned) -> T,
) -> Result<Vec<T>, O::Error> {
    let mut all = Vec::new();
    table.each(first, last, &mut |key, row| {
        all.push(take(key, row));
        Continue(())
    })?;
    Ok(all)
}
