//! Scans that lock rows for a change or removal, optionally skipping locked rows.
//!
//! If several consumers read the first row with a read lock and then remove it, they deadlock. All of them
//! hold the read lock, and each waits until the others release their locks. The functions here lock the row
//! for the change when they read it, so the second consumer waits for the first, or skips the row.

use crate::Error;
use crate::bounds::{ByteBounds, KeyRange};
use crate::key::Key;
use crate::locking::{Purpose, ScanLocks};
use crate::range::Range;
use crate::scan::Cursor;
use crate::table::{RowOf, Table};
use crate::transaction::Direction;
use crate::value::Value;

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Table<'tx, K, V> {
    /// Returns the same table, with other locking. The calls `range_for_update`, `first_for_update`,
    /// `last_for_update`, `pop_first` and `pop_last` skip rows that other transactions have locked, instead
    /// of waiting for them (`SKIP LOCKED` in SQL).
    ///
    /// Such a call does not return all rows, and its result may be outdated at once: other transactions may
    /// insert and remove rows in the range. A row that is returned is locked as without `skip_locked`. Use
    /// this for queues with several consumers, if a consumer can process any row. Such a call still waits for
    /// a lock on the whole table, which a scan of thousands of rows or `drop_table` takes.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// const JOBS: TableDefinition<u64, str> = TableDefinition::new("jobs");
    /// # fn main() -> Result<(), Error> {
    /// # let db = Database::in_memory()?;
    /// db.transact(|tx| {
    ///     let jobs = tx.table(&JOBS)?;
    ///     (1..=4).try_for_each(|n| jobs.insert(&n, "count barrels"))
    /// })?;
    /// let (first, second) = (db.begin()?, db.begin()?);
    /// let take = |tx: &azekura::Transaction| tx.table(&JOBS)?.skip_locked().pop_first();
    /// let (one, other) = (take(&first)?.expect("four jobs"), take(&second)?.expect("three jobs"));
    /// assert_ne!(one.0, other.0);
    /// first.commit()?;
    /// drop(second); // its job is back in the table
    /// assert!(db.transact(|tx| tx.table(&JOBS)?.contains(&other.0))?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn skip_locked(&self) -> Self {
        self.with_skips_locked(true)
    }

    /// Returns the rows of `range`, in key order and from both ends. Each row is locked for a change of its
    /// value. See [`get_for_update`](Self::get_for_update).
    pub fn range_for_update(&self, range: impl KeyRange<K>) -> Range<'tx, K, V> {
        let locks = ScanLocks { purpose: Purpose::Update, skips_locked: self.skips_locked };
        Range::new(self.tx, self.tree.clone(), ByteBounds::of(&range), locks)
    }

    /// Returns the row with the least key, and locks it for a change or for its removal.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn first_for_update(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.for_removal().next().transpose()
    }

    /// Returns the row with the greatest key, and locks it for a change or for its removal.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn last_for_update(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.for_removal().next_back().transpose()
    }

    /// Removes the row with the least key and returns it.
    ///
    /// Consumers that call this at once wait for each other, in the order of their calls, until the commit
    /// record of the previous one is in the log; they do not wait for the flush of that record. With
    /// [`skip_locked`](Self::skip_locked) consumers do not wait, and get different rows.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn pop_first(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.pop(Direction::Forward)
    }

    /// Removes the row with the greatest key and returns it. Consumers wait as for
    /// [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn pop_last(&self) -> Result<Option<RowOf<K, V>>, Error> {
        self.pop(Direction::Backward)
    }

    fn removal_locks(&self) -> ScanLocks {
        ScanLocks { purpose: Purpose::Remove, skips_locked: self.skips_locked }
    }

    fn for_removal(&self) -> Range<'tx, K, V> {
        Range::new(self.tx, self.tree.clone(), ByteBounds::ALL, self.removal_locks())
    }

    fn pop(&self, direction: Direction) -> Result<Option<RowOf<K, V>>, Error> {
        let mut cursor = Cursor::new(self.tx, self.tree.clone(), ByteBounds::ALL, self.removal_locks());
        let mut key_bytes = Vec::new();
        while cursor.advance(direction)? {
            let (key, value) = cursor.row()?;
            let row = (self.decoded(K::decode(key))?, value.decode::<V>(self.name())?);
            key_bytes.clear();
            key_bytes.extend_from_slice(key);
            let is_removed = if self.skips_locked {
                self.tx.remove_without_waiting(&self.tree, &key_bytes)?
            } else {
                self.tx.delete(&self.tree, &key_bytes)?
            };
            if is_removed {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}
