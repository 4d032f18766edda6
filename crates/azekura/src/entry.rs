//! Entries: the row at one key, which is read once and locked for a change.

use std::fmt;

use crate::Error;
use crate::key::{EncodeKey, Key};
use crate::table::Table;
use crate::transaction::WriteKind;
use crate::value::{EncodeValue, Value};

/// The row at one key, present or not, locked for a change; returned by [`Table::entry`].
#[must_use = "an entry changes nothing until one of its methods is called"]
pub struct Entry<'t, 'tx, K: Key + ?Sized, V: Value + ?Sized> {
    table: &'t Table<'tx, K, V>,
    key: Vec<u8>,
    value: Option<V::Owned>,
}

impl<K: Key + ?Sized, V: Value + ?Sized> fmt::Debug for Entry<'_, '_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Table<'tx, K, V> {
    /// Reads the row at `key`, locks it for a change, and returns it as an [`Entry`]. To change a value by a
    /// function of the old one, use [`update`](Self::update).
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const IDS: TableDefinition<str, u64> = TableDefinition::new("ids");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| {
    ///     let ids = tx.table(&IDS)?;
    ///     assert_eq!(ids.entry("Nara")?.or_insert(&1)?, 1);
    ///     assert_eq!(ids.entry("Nara")?.or_insert(&2)?, 1);
    ///     let entry = ids.entry("Nara")?;
    ///     if entry.value() == Some(&1) {
    ///         entry.remove()?;
    ///     }
    ///     assert!(ids.is_empty()?);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn entry<Q: ?Sized>(&self, key: &Q) -> Result<Entry<'_, 'tx, K, V>, Error>
    where
        K: EncodeKey<Q>,
    {
        self.with_key(key, |tx, key| {
            let value = tx.read_for_update(&self.tree, key, |value| self.take(value))?;
            Ok(Entry { table: self, key: key.to_vec(), value })
        })
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Entry<'_, '_, K, V> {
    /// Returns the row's value, or `None` if there is no row.
    #[must_use]
    pub const fn value(&self) -> Option<&V::Owned> {
        self.value.as_ref()
    }

    /// Stores `value` if there is no row, and returns the row's value.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn or_insert<W: ?Sized>(self, value: &W) -> Result<V::Owned, Error>
    where
        V: EncodeValue<W>,
    {
        if let Some(old) = self.value {
            return Ok(old);
        }
        let mut bytes = self.write(value)?;
        self.table.take(&mut bytes)
    }

    /// Stores `value`, whether or not there is a row, and returns the old value.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn insert<W: ?Sized>(self, value: &W) -> Result<Option<V::Owned>, Error>
    where
        V: EncodeValue<W>,
    {
        self.write(value)?;
        Ok(self.value)
    }

    /// Removes the row, if there is one, and returns its value.
    ///
    /// # Errors
    ///
    /// As for [`Table::insert`].
    pub fn remove(self) -> Result<Option<V::Owned>, Error> {
        if self.value.is_some() {
            self.table.tx.delete(&self.table.tree, &self.key)?;
        }
        Ok(self.value)
    }

    fn write<W: ?Sized>(&self, value: &W) -> Result<Vec<u8>, Error>
    where
        V: EncodeValue<W>,
    {
        let mut bytes = Vec::new();
        self.table.encoded(V::encode(value, &mut bytes))?;
        self.table.tx.write(&self.table.tree, &self.key, &bytes, WriteKind::Put)?;
        Ok(bytes)
    }
}
