//! Bulk loads: a table filled with many rows at once.

use crate::Error;
use crate::key::{AsKey, Key};
use crate::table::Table;
use crate::value::{AsValue, Value};

impl<K: Key + ?Sized, V: Value + ?Sized> Table<'_, K, V> {
    /// Fills the table, which must be empty, with rows in ascending order of their keys; returns the number
    /// of rows. Several times as fast as [`insert`](Self::insert): builds the table's pages from the leaves
    /// up, and logs no row.
    ///
    /// The load is one change of this transaction: durable as a whole once the transaction has committed, and
    /// undone as a whole by a crash before, an abort, or a rollback to a savepoint. The table is locked
    /// exclusively until the transaction ends. Pages are written and made durable before the call returns,
    /// and recently freed pages cost a checkpoint, so the call is worth it from about a thousand rows on.
    /// Values that have pages of their own are logged nevertheless
    /// (from about five sixteenths of a page on).
    ///
    /// `rows` may read in this transaction, and must not write in it. Pages become full.
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
    /// - [`Error::Invalid`]: a key or value is too long, or `rows` wrote in this transaction; that is undone,
    ///   too.
    /// - Conflict errors, and errors of log and files.
    ///
    /// The transaction is then as it was before the call, or over.
    pub fn bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = (Q, W)>,
    ) -> Result<u64, Error> {
        self.try_bulk_load(rows.into_iter().map(Ok))
    }

    /// Fills the table as [`bulk_load`](Self::bulk_load) does, from rows that can fail, as those of a file.
    ///
    /// # Errors
    ///
    /// As for [`bulk_load`](Self::bulk_load), and the first error among the rows.
    pub fn try_bulk_load<Q: AsKey<K>, W: AsValue<V>>(
        &self,
        rows: impl IntoIterator<Item = Result<(Q, W), Error>>,
    ) -> Result<u64, Error> {
        let mut rows = rows.into_iter();
        self.tx.bulk_load(&self.tree, &mut |key_bytes, value_bytes| {
            let Some((key, value)) = rows.next().transpose()? else { return Ok(false) };
            key.encode_key(key_bytes);
            self.encoded(value.encode_value(value_bytes))?;
            Ok(true)
        })
    }

    /// Stores rows that come in any order; returns the number of different keys. Of several rows with one key
    /// the last is kept, and replaces a row that the table has.
    ///
    /// The rows are sorted first, `memory_bytes` of them at a time, in files in the store's directory if they
    /// are more; the files are removed before this returns. An empty table is then filled as
    /// [`bulk_load`](Self::bulk_load) does, and a table with rows is written to in key order, by ordinary
    /// writes of this transaction, so that each of its pages is changed once.
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
    /// As for [`bulk_load`](Self::bulk_load), but for the order of the rows and a table with rows; and
    /// [`Error::Io`] if a file cannot be written or read.
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
    /// As for [`bulk_load_unsorted`](Self::bulk_load_unsorted), and the first error among the rows.
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
        let is_empty = self.first()?.is_none();
        self.tx.load_sorted(&self.tree, sorter.into_sorted()?, is_empty)
    }
}
