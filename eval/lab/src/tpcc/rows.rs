//! Interface of a TPC-C transaction to a store: typed tables within a transaction.
//!
//! [`azekura::Transaction`] implements it. So does a transaction of any engine that stores bytes in key
//! order, through [`KeyedRows`](super::keyed::KeyedRows). The five transactions and the consistency
//! conditions use only this interface.

use super::schema::{Broken, UnusedItem};
use azekura::{Error, Key, Serde, Table, TableDefinition, Transaction, Value};
use std::fmt::Debug;
use std::ops::ControlFlow::{self, Continue};

/// A key type of the schema: an owned value.
pub trait RowKey: Key<Owned = Self> + Debug + Clone + Sized {}

impl<K: Key<Owned = K> + Debug + Clone> RowKey for K {}

/// A row type of the schema: a serde type, or `()` in an index.
pub trait Row: Value {}

impl<T> Row for Serde<T> where Self: Value<Owned = T> {}
impl Row for () {}

/// A transaction with typed tables.
pub trait Rows {
    /// Error of the store; after a conflict the transaction is retried.
    type Error: From<Broken> + From<UnusedItem>;
    /// A table in the transaction.
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

/// A table in a transaction. Every method may return an error of the store.
#[expect(clippy::missing_errors_doc, reason = "the documentation of the trait states the errors")]
pub trait OpenRows<K: RowKey, V: Row> {
    /// Error type of the transaction.
    type Error;

    /// Returns the row of a key.
    fn row(&self, key: &K) -> Result<Option<V::Owned>, Self::Error>;

    /// Returns the row of a key that the transaction will change.
    fn row_for_update(&self, key: &K) -> Result<Option<V::Owned>, Self::Error>;

    /// Inserts or replaces a row.
    fn put(&self, key: &K, row: &V::Owned) -> Result<(), Self::Error>;

    /// Inserts a row; returns [`Broken`] if the key exists.
    fn add(&self, key: &K, row: &V::Owned) -> Result<(), Self::Error>;

    /// Removes the first row from `first` to `last`, both included. Returns its key.
    fn take_first(&self, first: &K, last: &K) -> Result<Option<K>, Self::Error>;

    /// Returns the last key from `first` to `last`, both included.
    fn last_key(&self, first: &K, last: &K) -> Result<Option<K>, Self::Error>;

    /// Passes the rows from `first` to `last`, both included, to `each`. The order is that of the keys,
    /// except in a table that an engine stores in descending order
    /// ([`DESCENDING`](super::keyed::DESCENDING)), where it may be any.
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
        // The row has been locked since it was read.
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

/// Collects the rows from `first` to `last`, both included.
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
