//! The rows of a range, read from both ends.

use std::fmt;
use std::marker::PhantomData;

use crate::Error;
use crate::bounds::ByteBounds;
use crate::key::{DecodeError, Key};
use crate::locking::ScanLocks;
use crate::scan::Cursor;
use crate::table::{RowOf, Types};
use crate::transaction::{Direction, OpenTree, Transaction};
use crate::value::Value;
use crate::value_ref::ValueRef;

/// Iterator over the rows of a range; returned by [`Table::range`](crate::Table::range).
///
/// The iterator returns the rows that its transaction had when the iterator was created: it includes the
/// transaction's earlier writes, but not later ones. After an error the iterator ends. Each row needs an
/// allocation for its key and for its value, unless their types need none;
/// [`Table::for_each`](crate::Table::for_each) and [`Table::for_each_back`](crate::Table::for_each_back) lend
/// rows without allocations. Like its [`Table`](crate::Table), an iterator stays in one thread.
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
///     for (name, sacks) in [("barley", 7), ("rice", 5), ("soy", 9)] {
///         stock.insert(name, &sacks)?;
///     }
///     let most = stock.range("b"..="rice").map(|row| Ok(row?.1)).collect::<Result<Vec<_>, Error>>()?;
///     assert_eq!(most, [7, 5]);
///     assert_eq!(stock.range(..).next_back().transpose()?, Some(("soy".into(), 9)));
///     Ok(())
/// })
/// # }
/// ```
#[must_use = "iterators are lazy: nothing is read or locked until `next` is called"]
pub struct Range<'tx, K: ?Sized, V: ?Sized> {
    cursor: Cursor<'tx>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Range<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("cursor", &self.cursor).finish()
    }
}

type Decoded<K, V> = Result<RowOf<K, V>, Error>;

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Range<'tx, K, V> {
    pub(crate) fn new(tx: &'tx Transaction, tree: OpenTree, bounds: ByteBounds, locks: ScanLocks) -> Self {
        Self { cursor: Cursor::new(tx, tree, bounds, locks), types: PhantomData }
    }

    fn step(&mut self, direction: Direction) -> Option<Decoded<K, V>> {
        match self.cursor.advance(direction) {
            Ok(false) => None,
            Err(error) => Some(Err(error)),
            Ok(true) => Some(self.row().inspect_err(|_| self.cursor.end())),
        }
    }

    fn row(&mut self) -> Decoded<K, V> {
        let (key, value) = self.cursor.row()?;
        RowRef::<K, V> { table: self.cursor.table(), key, value, types: PhantomData }.decode()
    }
}

/// A row lent by [`Table::for_each`](crate::Table::for_each). Key and value are decoded on request, and a
/// large value is read only on request.
pub struct RowRef<'r, K: ?Sized, V: ?Sized> {
    pub(crate) table: &'r str,
    pub(crate) key: &'r [u8],
    pub(crate) value: ValueRef<'r>,
    pub(crate) types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for RowRef<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowRef").field("key", &self.key).field("value", &self.value).finish()
    }
}

impl<'r, K: Key + ?Sized, V: Value + ?Sized> RowRef<'r, K, V> {
    /// Decodes the key.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the row was written with another key type.
    pub fn key(&self) -> Result<K::Owned, Error> {
        K::decode(self.key).map_err(|source| self.undecodable(source))
    }

    /// Decodes the value.
    ///
    /// # Errors
    ///
    /// The errors of [`key`](Self::key), for the value type. For a large value, also those of
    /// [`ValueRef::bytes`].
    pub fn value(&self) -> Result<V::Owned, Error> {
        self.value.decode::<V>(self.table)
    }

    /// Returns the encoded key; for keys of bytes or text, these are their bytes.
    #[must_use]
    #[inline]
    pub const fn key_bytes(&self) -> &'r [u8] {
        self.key
    }

    /// Returns the encoded value, without reading a large value.
    #[inline]
    #[must_use]
    pub const fn value_ref(&self) -> ValueRef<'r> {
        self.value
    }

    pub(crate) fn decode(&self) -> Decoded<K, V> {
        Ok((self.key()?, self.value()?))
    }

    fn undecodable(&self, source: DecodeError) -> Error {
        Error::Decode { table: self.table.to_owned(), source }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Range<'_, K, V> {
    type Item = Decoded<K, V>;
    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for Range<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}
