//! Bulk loads: fill a table with many rows at once.

use crate::Error;
use crate::key::{AsKey, Key};
use crate::table::Table;
use crate::transaction::Next;
use crate::value::{AsValue, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Table<'_, K, V> {
    /// Fills the table, which must be empty, with rows in ascending order of their keys; returns the number
    /// of rows. A bulk load is several times as fast as [`insert`](Self::insert): it builds the table's pages
    /// from the leaves up, and logs no row.
    ///
    /// The load is one change of this transaction. It becomes durable as a whole when the transaction
    /// commits. A crash before the commit, an abort, or a rollback to a savepoint undoes it as a whole. The
    /// table is locked exclusively until the transaction ends. The pages are written and made durable before
    /// the call returns, and a load into recently freed pages needs a checkpoint. So a bulk load is faster
    /// than inserts from a few thousand rows on. Values in overflow pages (from about five sixteenths of a
    /// page on) are logged. In a store with an [archive](crate::Builder::archive) all rows are logged, and
    /// their undo entries are in memory until the transaction ends: insert many rows in several transactions.
    /// The same holds if this transaction has changed rows of the table before, or if an open snapshot can
    /// read rows that were removed from it.
    ///
    /// `rows` may read in this transaction, but must not write in it. The load fills its pages completely.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const SQUARES: TableDefinition<u32, u64> = TableDefinition::new("squares");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let rows = db.transact(|tx| {
    ///     tx.table(&SQUARES)?.bulk_load((0..10_000).map(|n: u32| (n, u64::from(n).pow(2))))
    /// })?;
    /// assert_eq!(rows, 10_000);
    /// assert_eq!(db.transact(|tx| tx.table(&SQUARES)?.get(&99))?, Some(9801));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::NotEmpty`]: the table has rows.
    /// - [`Error::NotAscending`]: a key is not above the one before it.
    /// - [`Error::Invalid`]: a key or value is too long, or `rows` wrote in this transaction; those writes
    ///   are undone, too.
    /// - Conflict errors, and errors of the log and of files.
    ///
    /// After an error, the transaction is as it was before the call, or it has been rolled back.
    pub fn bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<u64, Error> {
        self.try_bulk_load(rows.into_iter().map(Ok))
    }

    /// Fills the table as [`bulk_load`](Self::bulk_load) does, from rows that can fail, such as rows that are
    /// read from a file.
    ///
    /// # Errors
    ///
    /// The errors of [`bulk_load`](Self::bulk_load), and the first error among the rows.
    pub fn try_bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = Result<(Q, W), Error>>,
    ) -> Result<u64, Error> {
        let mut rows = rows.into_iter();
        self.tx.bulk_load(&self.tree, &mut |key_bytes, value_bytes| {
            let Some((key, value)) = rows.next().transpose()? else { return Ok(Next::End) };
            key.encode_key(key_bytes);
            self.encoded(value.encode_value(value_bytes))?;
            Ok(Next::Row)
        })
    }

    /// Stores rows that are in any order; returns the number of different keys. If several rows have the same
    /// key, the last one is stored. It replaces a row of the table with that key.
    ///
    /// The rows are sorted first. At most `memory_bytes` of them are sorted in memory; more rows use
    /// temporary files in the store's directory, which are removed before this function returns. An empty
    /// table is filled as [`bulk_load`](Self::bulk_load) does. A table with rows gets the new rows in key
    /// order, by ordinary writes of this transaction, so each of its pages is changed once.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const CUBES: TableDefinition<u64, u64> = TableDefinition::new("cubes");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// let rows = (0..10_000_u64).map(|n| n * 7_919 % 10_007).map(|n| (n, n.pow(3)));
    /// let loaded = db.transact(|tx| tx.table(&CUBES)?.bulk_load_unsorted(rows.clone(), 64 << 20))?;
    /// assert_eq!(loaded, 10_000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`bulk_load`](Self::bulk_load), except those for unsorted rows and for a table with
    /// rows. [`Error::Io`]: a temporary file cannot be written or read.
    pub fn bulk_load_unsorted<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = (Q, W)>,
        memory_bytes: usize,
    ) -> Result<u64, Error> {
        self.try_bulk_load_unsorted(rows.into_iter().map(Ok), memory_bytes)
    }

    /// Stores rows as [`bulk_load_unsorted`](Self::bulk_load_unsorted) does, from rows that can fail.
    ///
    /// # Errors
    ///
    /// The errors of [`bulk_load_unsorted`](Self::bulk_load_unsorted), and the first error among the rows.
    pub fn try_bulk_load_unsorted<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = Result<(Q, W), Error>>,
        memory_bytes: usize,
    ) -> Result<u64, Error> {
        let mut sorter = self.tx.row_sorter(memory_bytes);
        let (mut key_bytes, mut value_bytes) = (Vec::new(), Vec::new());
        for row in rows {
            let (key, value) = row?;
            key_bytes.clear();
            value_bytes.clear();
            key.encode_key(&mut key_bytes);
            self.encoded(value.encode_value(&mut value_bytes))?;
            sorter.push(&key_bytes, &value_bytes)?;
        }
        let is_empty = self.is_empty()?;
        let rows = sorter.into_sorted()?;
        self.as_one(|| self.tx.load_sorted(&self.tree, rows, is_empty))
    }
}
