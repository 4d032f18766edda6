//! Table operations that are composed of other operations: counting, changing a value by a function of the
//! old one, removing many rows.

use crate::Error;
use crate::bounds::{ByteBounds, KeyRange};
use crate::key::{EncodeKey, Key};
use crate::locking::ScanLocks;
use crate::scan::Cursor;
use crate::table::Table;
use crate::transaction::{Direction, WriteKind};
use crate::value::{EncodeValue, Value};

/// Number of keys that are collected before their rows are removed.
const REMOVED_AT_ONCE: usize = 1024;

impl<K: Key + ?Sized, V: Value + ?Sized> Table<'_, K, V> {
    /// Returns the number of rows. Reads and locks every row, but does not read large values.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn len(&self) -> Result<u64, Error> {
        let (mut cursor, mut rows) = (self.cursor(ByteBounds::ALL), 0);
        while cursor.advance(Direction::Forward)? {
            rows += 1;
        }
        Ok(rows)
    }

    /// Returns `true` if the table has no row. Costs as much as [`first`](Self::first).
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(!self.cursor(ByteBounds::ALL).advance(Direction::Forward)?)
    }

    /// Replaces the value at `key` by the result of `change`. `None` stands for an absent row, as argument
    /// and as result. The row is locked for update before `change` runs.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const VISITS: TableDefinition<str, u64> = TableDefinition::new("visits");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| tx.table(&VISITS)?.update("home", |old| Some(old.unwrap_or(0) + 1)))?;
    /// assert_eq!(db.transact(|tx| tx.table(&VISITS)?.get("home"))?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn update<Q: ?Sized, W>(
        &self,
        key: &Q,
        change: impl FnOnce(Option<V::Owned>) -> Option<W>,
    ) -> Result<(), Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        self.with_key(key, |tx, key| {
            let old = tx.read_for_update(&self.tree, key, |value| self.take(value))?;
            match change(old) {
                Some(value) => tx.with_value(|bytes| {
                    self.encoded(V::encode(&value, bytes))?;
                    tx.write(&self.tree, key, bytes, WriteKind::Put).map(drop)
                }),
                None => tx.delete(&self.tree, key).map(drop),
            }
        })
    }

    /// Stores `new` at `key` if the present value is `expected`, and returns `true` in that case. `None`
    /// stands for an absent row. Values are compared in their encoded form. The row is locked for update even
    /// if nothing is stored.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn compare_and_set<Q: ?Sized, W: ?Sized>(
        &self,
        key: &Q,
        expected: Option<&W>,
        new: Option<&W>,
    ) -> Result<bool, Error>
    where
        K: EncodeKey<Q>,
        V: EncodeValue<W>,
    {
        let encode = |value: &W| {
            let mut bytes = Vec::new();
            self.encoded(V::encode(value, &mut bytes)).map(|()| bytes)
        };
        let (expected, new) = (expected.map(encode).transpose()?, new.map(encode).transpose()?);
        self.with_key(key, |tx, key| {
            let is_expected = |stored: &mut Vec<u8>| Ok(expected.as_ref() == Some(stored));
            let found = tx.read_for_update(&self.tree, key, is_expected)?;
            if !found.unwrap_or(expected.is_none()) {
                return Ok(false);
            }
            match &new {
                Some(value) if found.is_some() => {
                    tx.write(&self.tree, key, value, WriteKind::Put).map(|_| true)
                }
                // If the table did not exist, nothing was locked, so only an insert decides.
                Some(value) => {
                    tx.write(&self.tree, key, value, WriteKind::InsertIfAbsent).map(|old| old.is_none())
                }
                None if found.is_some() => tx.delete(&self.tree, key),
                None => Ok(true),
            }
        })
    }

    /// Removes the rows of `range`, and returns their number.
    ///
    /// # Errors
    ///
    /// The errors of [`insert`](Self::insert). The transaction is then as it was before the call, or has been
    /// rolled back.
    pub fn remove_range(&self, range: impl KeyRange<K>) -> Result<u64, Error> {
        let mut cursor = self.cursor(ByteBounds::of(&range));
        self.as_one(|| {
            let (mut keys, mut removed) = (Vec::new(), 0);
            loop {
                while keys.len() < REMOVED_AT_ONCE && cursor.advance(Direction::Forward)? {
                    keys.push(cursor.row()?.0.to_vec());
                }
                if keys.is_empty() {
                    return Ok(removed);
                }
                removed += keys.len() as u64;
                self.remove_all(&mut keys)?;
                self.tx.check_interrupt()?;
            }
        })
    }

    /// Removes the rows for which `keep` returns `false`, and returns their number. All rows are read before
    /// the first one is removed. The keys of the rows to remove are kept in memory until then, and a panic of
    /// `keep` changes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`insert`](Self::insert). The transaction is then as it was before the call, or has been
    /// rolled back.
    pub fn retain(&self, keep: impl FnMut(K::Owned, V::Owned) -> bool) -> Result<u64, Error> {
        self.retain_in(.., keep)
    }

    /// Removes rows as [`retain`](Self::retain) does, but only rows of `range`.
    ///
    /// # Errors
    ///
    /// As for [`retain`](Self::retain).
    pub fn retain_in(
        &self,
        range: impl KeyRange<K>,
        mut keep: impl FnMut(K::Owned, V::Owned) -> bool,
    ) -> Result<u64, Error> {
        self.remove_if(&range, |key, value| !keep(key, value))
    }

    /// Removes the rows of `range` for which `extract` returns `true`, and returns them in key order. All
    /// rows are read before the first one is removed. The removed rows are kept in memory, and a panic of
    /// `extract` changes nothing.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const JOBS: TableDefinition<u64, str> = TableDefinition::new("jobs");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// for (number, job) in [(1, "mail"), (2, "scan"), (3, "mail")] {
    ///     db.transact(|tx| tx.table(&JOBS)?.insert(&number, job))?;
    /// }
    /// let mails = db.transact(|tx| tx.table(&JOBS)?.extract_if(.., |_, job| job == "mail"))?;
    /// assert_eq!(mails, [(1, "mail".to_owned()), (3, "mail".to_owned())]);
    /// assert_eq!(db.transact(|tx| tx.table(&JOBS)?.len())?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`retain`](Self::retain).
    pub fn extract_if(
        &self,
        range: impl KeyRange<K>,
        mut extract: impl FnMut(&K::Owned, &V::Owned) -> bool,
    ) -> Result<Vec<(K::Owned, V::Owned)>, Error> {
        let mut extracted = Vec::new();
        self.remove_if(&range, |key, value| {
            let is_extracted = extract(&key, &value);
            if is_extracted {
                extracted.push((key, value));
            }
            is_extracted
        })?;
        Ok(extracted)
    }

    fn remove_if(
        &self,
        range: &impl KeyRange<K>,
        mut is_removed: impl FnMut(K::Owned, V::Owned) -> bool,
    ) -> Result<u64, Error> {
        let (mut cursor, mut keys) = (self.cursor(ByteBounds::of(range)), Vec::new());
        while cursor.advance(Direction::Forward)? {
            let (key, value) = cursor.row()?;
            if is_removed(self.decoded(K::decode(key))?, value.decode::<V>(self.name())?) {
                keys.push(key.to_vec());
            }
        }
        let removed = keys.len() as u64;
        self.as_one(|| self.remove_all(&mut keys)).map(|()| removed)
    }

    fn cursor(&self, bounds: ByteBounds) -> Cursor<'_> {
        Cursor::new(self.tx, self.tree.clone(), bounds, ScanLocks::default())
    }

    fn remove_all(&self, keys: &mut Vec<Vec<u8>>) -> Result<(), Error> {
        keys.drain(..).try_for_each(|key| self.tx.delete(&self.tree, &key).map(drop))
    }

    /// Runs several changes as one unit: an error undoes the earlier ones (TXN-3). `changes` must not read
    /// rows after it has inserted some: the undo of its inserts passes no gap on.
    pub(crate) fn as_one<T>(&self, changes: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let before = self.tx.undo_len()?;
        self.tx.end_call(before, changes())
    }
}
