//! The keys as commands see them: strings with an optional expiry time, over one transaction or one
//! snapshot.
//!
//! Three tables of the store hold them. `redis.keys` has one record for each key. `redis.expiry` has a row
//! `(expiry in ms, key)` for each key that expires, so expired keys are found in order. `redis.counts` has
//! the numbers of records ([`count`]).
//!
//! - **KEY-1** A record with an expiry has a row in `redis.expiry`, and each row has such a record: both
//!   change in one transaction.
//! - **KEY-2** No command finds an expired record, whether or not it has been removed. A transaction or a
//!   snapshot judges expiry by the time at which it began, so no key expires during it. Times relative to now
//!   (`EXPIRE`, `TTL`) count from the time of the command.
//! - **KEY-3** Each change of a key notifies [`Watches`] while the key's lock is held.
//! - **KEY-4** A transaction acquires the key's lock before the lock of the key's row in `redis.expiry`.

mod count;
mod expiry;
mod pick;
mod prefetch;
mod range;
mod record;
mod rows;
mod source;
mod tables;
mod visits;

use std::cell::{Cell, OnceCell};
use std::ops::ControlFlow;

use azekura::{Error, Savepoint, Snapshot, Table, TableDefinition, Transaction};

pub(crate) use count::{KeyCounts, add as add_to_count, live as live_counts};
pub(crate) use expiry::remove_expired;
pub(crate) use pick::random_key;
pub(crate) use range::KeyRange;
use record::LentRecord;
pub(crate) use record::{Form, Record, RecordRef};
pub(crate) use rows::attach;
pub(crate) use tables::{change_nothing, prepare};

use source::Source;
use tables::make_tables;
use visits::Visits;

use crate::cursor::Cursors;
use crate::error::{CommandError, Failure};
use crate::resp::Reply;
use crate::watch::{Changed, Watches};

pub(crate) const KEYS_TABLE: &str = "redis.keys";
const EXPIRY_TABLE: &str = "redis.expiry";
const KEYS: TableDefinition<[u8], [u8]> = TableDefinition::new(KEYS_TABLE);
const EXPIRY: TableDefinition<(u64, Vec<u8>), ()> = TableDefinition::new(EXPIRY_TABLE);

/// State of the server that commands use besides their transaction.
#[derive(Debug)]
pub(crate) struct KeyspaceContext {
    pub(crate) watches: Watches,
    pub(crate) cursors: Cursors,
    /// Longest value, in bytes.
    pub(crate) max_value_bytes: usize,
    /// Longest key in bytes, derived from the page size of the store.
    pub(crate) max_key_bytes: usize,
    /// Bound of the replies of one transaction, in bytes.
    pub(crate) max_reply_bytes: usize,
}

/// Expiry of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    Never,
    /// Time in milliseconds since 1970.
    AtMs(u64),
}

impl Expiry {
    pub(crate) const fn from_ms(at: Option<u64>) -> Self {
        match at {
            None => Self::Never,
            Some(at) => Self::AtMs(at),
        }
    }

    const fn ms(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::AtMs(at) => Some(at),
        }
    }
}

/// The keys in one transaction, or in one snapshot.
pub(crate) struct Keyspace<'tx> {
    source: Source<'tx>,
    /// Time by which records are expired (KEY-2), in milliseconds since 1970.
    now_ms: u64,
    /// Time from which relative times count (KEY-2).
    clock_ms: u64,
    pub(crate) context: &'tx KeyspaceContext,
    /// Remaining bytes for the replies of this transaction.
    reply_left: Cell<usize>,
    is_read_only: bool,
    /// Records that this transaction has added, less those that it has removed.
    added: Cell<KeyCounts>,
    /// Bytes of the keys and values that were written.
    written: Cell<usize>,
    /// Mark of the client of the `EXEC` that this transaction runs (WATCH-5).
    own_mark: OnceCell<Changed>,
    visits: Visits,
}

/// A savepoint of the keys.
#[derive(Debug)]
pub(crate) struct Mark {
    savepoint: Savepoint,
    added: KeyCounts,
}

/// Position at which a walk stopped.
#[derive(Debug)]
pub(crate) struct Walked {
    /// The last visited key, if the walk stopped before the end of its range.
    pub(crate) stopped_at: Option<Vec<u8>>,
}

/// Direction and content of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    Forward,
    Backward,
    /// Forward, with only a prefix of each value: a single page of a large value is read, which contains the
    /// expiry time.
    KeysForward,
}

impl<'tx> Keyspace<'tx> {
    pub(crate) fn open(
        tx: &'tx Transaction,
        now_ms: u64,
        context: &'tx KeyspaceContext,
    ) -> Result<Self, Error> {
        let source = Source::Transaction(tx, tx.table(&KEYS)?);
        Ok(Self::new(source, now_ms, context, false))
    }

    /// Creates the keys of a snapshot. Reads lock nothing, and writes are refused.
    pub(crate) fn of_snapshot(
        snapshot: &'tx Snapshot,
        now_ms: u64,
        context: &'tx KeyspaceContext,
    ) -> Result<Self, Error> {
        let source = Source::Snapshot(snapshot, snapshot.table(&KEYS)?);
        Ok(Self::new(source, now_ms, context, true))
    }

    fn new(source: Source<'tx>, now_ms: u64, context: &'tx KeyspaceContext, is_read_only: bool) -> Self {
        let reply_left = Cell::new(context.max_reply_bytes);
        let (added, written, own_mark, visits) = Default::default();
        let clock_ms = now_ms;
        Self { source, now_ms, clock_ms, context, reply_left, is_read_only, added, written, own_mark, visits }
    }

    /// Returns the table of keys, for locks and changes.
    fn table(&self) -> Result<&Table<'tx, [u8], [u8]>, CommandError> {
        self.source.transaction().map(|(_, keys)| keys)
    }

    pub(crate) const fn read_only(mut self, is_read_only: bool) -> Self {
        self.is_read_only = is_read_only;
        self
    }

    /// Continues a transaction in which earlier requests have added `added` records, with a command at
    /// `clock_ms`.
    pub(crate) fn continued(mut self, added: KeyCounts, clock_ms: u64) -> Self {
        self.added.set(added);
        self.clock_ms = clock_ms.max(self.now_ms); // the clock may have been set back
        self
    }

    /// Makes the changes of this transaction not set the mark of the client that runs it (WATCH-5).
    pub(crate) fn leave_unmarked(&self, own: &Changed) {
        self.own_mark.get_or_init(|| own.clone());
    }

    /// Marks a key as changed for the clients that watch it (KEY-3).
    fn touch(&self, key: &[u8]) {
        self.context.watches.touch(key, self.own_mark.get());
    }

    /// Returns the number of records that the transaction has added, less those that it has removed.
    pub(crate) const fn added(&self) -> KeyCounts {
        self.added.get()
    }

    /// Returns the bytes of the keys and values that were written. Replaced and undone bytes are not
    /// subtracted.
    pub(crate) const fn written_bytes(&self) -> usize {
        self.written.get()
    }

    fn note_written(&self, key: &[u8], value: &[u8]) {
        self.written.set(self.written.get().saturating_add(key.len() + value.len()));
    }

    fn note_added(&self, records: i64, expiring: i64) {
        let mut added = self.added.get();
        added += KeyCounts { records, expiring };
        self.added.set(added);
    }

    /// Adds the number of records that this transaction has added to the kept numbers. The transaction then
    /// commits (COUNT-2).
    pub(crate) fn store_count(&self) -> Result<(), Failure> {
        if self.added.get() != KeyCounts::default() {
            count::add(self.source.transaction()?.0, self.added.get())?;
        }
        Ok(())
    }

    /// Returns the number of keys in a snapshot. Returns `None` in a transaction, which walks over the keys
    /// instead, because its reply must stay true until the transaction commits.
    pub(crate) fn kept_count(&self) -> Result<Option<usize>, Failure> {
        match &self.source {
            Source::Snapshot(snapshot, _) => {
                Ok(Some(usize::try_from(count::live(snapshot, self.now_ms)?.records).unwrap_or(0)))
            }
            Source::Transaction(..) => Ok(None),
        }
    }

    /// Returns the time from which relative times count (KEY-2), in milliseconds since 1970.
    pub(crate) const fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// Returns `true` if a key can exist: longer keys are absent for each command, and cannot be stored.
    const fn can_exist(&self, key: &[u8]) -> bool {
        key.len() <= self.context.max_key_bytes
    }

    /// Returns a savepoint; `None` in a snapshot, which has no changes.
    pub(crate) fn savepoint(&self) -> Result<Option<Mark>, Error> {
        match self.source {
            Source::Transaction(tx, _) => {
                Ok(Some(Mark { savepoint: tx.savepoint()?, added: self.added.get() }))
            }
            Source::Snapshot(..) => Ok(None),
        }
    }

    pub(crate) fn rollback_to(&self, mark: Option<Mark>) -> Result<(), Error> {
        match (&self.source, mark) {
            (Source::Transaction(tx, _), Some(Mark { savepoint, added })) => {
                tx.rollback_to(savepoint)?;
                self.added.set(added);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Charges `bytes` to the bound of the transaction's replies.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), CommandError> {
        let left = self.reply_left.get().checked_sub(bytes);
        self.reply_left.set(left.ok_or(CommandError::ReplyTooLong(self.context.max_reply_bytes))?);
        Ok(())
    }

    /// Returns the record of `key`, and charges its value to the bound of the replies.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Record>, Failure> {
        if !self.can_exist(key) {
            return Ok(None);
        }
        self.visits.note();
        let Some(bytes) = self.source.get(key)? else { return Ok(None) };
        let record = Record::decode(bytes)?;
        if !record.is_live(self.now_ms) {
            return Ok(None);
        }
        self.charge(record.value().len())?;
        Ok(Some(record))
    }

    /// Passes the record of `key` to `read`, which reads the bytes of the value that it needs.
    pub(crate) fn lend<T>(
        &self,
        key: &[u8],
        read: impl FnOnce(LentRecord<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        if !self.can_exist(key) {
            return Ok(None);
        }
        self.visits.note();
        let found = self.source.with_value(key, |stored| {
            let record = LentRecord::of(stored)?;
            if record.is_live(self.now_ms) { Ok(Some(read(record)?)) } else { Ok(None) }
        })?;
        Ok(found.flatten())
    }

    /// Passes the record of `key` with its whole value to `look`.
    pub(crate) fn look<T>(
        &self,
        key: &[u8],
        look: impl FnOnce(RecordRef<'_>) -> T,
    ) -> Result<Option<T>, Failure> {
        if !self.can_exist(key) {
            return Ok(None);
        }
        self.visits.note();
        let found = self.source.with_value(key, |stored| {
            let bytes = stored.bytes()?;
            let record = RecordRef::decode(&bytes)?;
            Ok(record.is_live(self.now_ms).then(|| look(record)))
        })?;
        Ok(found.flatten())
    }

    pub(crate) fn exists(&self, key: &[u8]) -> Result<bool, Failure> {
        Ok(self.lend(key, |_| Ok(()))?.is_some())
    }

    /// Returns the record of `key` and locks it for a later write.
    pub(crate) fn get_for_update(&self, key: &[u8]) -> Result<Slot, Failure> {
        self.may_write()?;
        if !self.can_exist(key) {
            return Ok(Slot::default());
        }
        self.visits.note();
        let Some(bytes) = self.table()?.get_for_update(key)? else { return Ok(Slot::default()) };
        let record = Record::decode(bytes)?;
        let old_expires_ms = record.expires_ms;
        Ok(Slot { old_expires_ms, live: Some(record).filter(|record| record.is_live(self.now_ms)) })
    }

    /// Acquires the write lock of `key`. Returns `true` if the key exists.
    pub(crate) fn lock(&self, key: &[u8]) -> Result<bool, Failure> {
        if !self.can_exist(key) {
            return Ok(false);
        }
        let bytes = self.table()?.get_for_update(key)?;
        let is_live = |bytes: Vec<u8>| RecordRef::decode(&bytes).map(|record| record.is_live(self.now_ms));
        Ok(bytes.map(is_live).transpose()?.unwrap_or(false))
    }

    /// Replaces the value of the record that [`get_for_update`](Self::get_for_update) found.
    pub(crate) fn put_existing(
        &self,
        key: &[u8],
        slot: &Slot,
        value: &[u8],
        expiry: Expiry,
    ) -> Result<(), Failure> {
        self.put_form(key, slot, value, expiry, Form::Assigned)
    }

    /// Like [`put_existing`](Self::put_existing), for a value of any form.
    pub(crate) fn put_form(
        &self,
        key: &[u8],
        slot: &Slot,
        value: &[u8],
        expiry: Expiry,
        form: Form,
    ) -> Result<(), Failure> {
        self.check_size(key, value)?;
        self.touch(key);
        let keys = self.table()?;
        record::encoded(value, expiry.ms(), form, |bytes| keys.insert(key, bytes))?;
        self.note_written(key, value);
        self.note_added(i64::from(!slot.has_record()), 0);
        self.move_row(key, slot.old_expires_ms, expiry.ms())
    }

    /// Changes the form of the value that [`get_for_update`](Self::get_for_update) found. The value stays the
    /// same, so a watched key is not marked as changed.
    pub(crate) fn set_form(&self, key: &[u8], slot: &Slot, form: Form) -> Result<(), Failure> {
        let keys = self.table()?;
        record::encoded(slot.value(), slot.expiry().ms(), form, |bytes| keys.insert(key, bytes))?;
        self.note_written(key, slot.value());
        Ok(())
    }

    /// Removes the record that [`get_for_update`](Self::get_for_update) found.
    pub(crate) fn remove_existing(&self, key: &[u8], slot: &Slot) -> Result<(), Failure> {
        self.touch(key);
        let removed = self.table()?.remove(key)?;
        self.note_added(-i64::from(removed.is_some()), 0);
        self.move_row(key, slot.old_expires_ms, None)
    }

    /// Inserts or replaces a value.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], expiry: Expiry) -> Result<(), Failure> {
        self.may_write()?;
        self.check_size(key, value)?;
        self.visits.note();
        let keys = self.table()?;
        let old = record::encoded(value, expiry.ms(), Form::Assigned, |bytes| keys.replace(key, bytes))?;
        // KEY-3: the lock is held since the replacement.
        self.touch(key);
        self.note_written(key, value);
        self.note_added(i64::from(old.is_none()), 0);
        let old_expires_ms = match old {
            None => None,
            Some(old) => RecordRef::decode(&old)?.expires_ms,
        };
        self.move_row(key, old_expires_ms, expiry.ms())
    }

    /// Removes the key. Returns `true` if the key existed.
    pub(crate) fn remove(&self, key: &[u8]) -> Result<bool, Failure> {
        self.may_write()?;
        if !self.can_exist(key) {
            return Ok(false);
        }
        self.visits.note();
        let Some(old) = self.table()?.remove(key)? else { return Ok(false) };
        self.touch(key);
        self.note_added(-1, 0);
        let old = RecordRef::decode(&old)?;
        self.move_row(key, old.expires_ms, None)?;
        Ok(old.is_live(self.now_ms))
    }

    /// Removes every key, by dropping the tables. Does not mark watched keys as changed (WATCH-4).
    pub(crate) fn remove_all(&self) -> Result<(), Failure> {
        self.may_write()?;
        let (tx, _) = self.source.transaction()?;
        tx.drop_table(KEYS_TABLE)?;
        tx.drop_table(EXPIRY_TABLE)?;
        make_tables(tx)?;
        // The lock of `redis.keys` is already held, so no transaction that changes the numbers waits for this
        // one.
        count::restart(tx)?;
        self.added.set(KeyCounts::default());
        Ok(())
    }

    /// Passes the live records of `range` to `each`, in the direction of `walk`, until `each` breaks the
    /// walk. Visits at most `max_looked` records, including expired ones.
    pub(crate) fn walk(
        &self,
        range: &KeyRange,
        walk: Walk,
        max_looked: usize,
        mut each: impl FnMut(&[u8], RecordRef<'_>) -> Result<ControlFlow<()>, Failure>,
    ) -> Result<Walked, Failure> {
        let mut looked = 0;
        let mut stopped_at = None;
        let mut one = |key: &[u8], bytes: &[u8]| -> Result<ControlFlow<()>, Failure> {
            if looked == max_looked {
                return Ok(ControlFlow::Break(()));
            }
            looked += 1;
            self.visits.note();
            let record = RecordRef::decode(bytes)?;
            let flow =
                if record.is_live(self.now_ms) { each(key, record)? } else { ControlFlow::Continue(()) };
            if flow.is_break() || looked == max_looked {
                stopped_at = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            Ok(flow)
        };
        let bounds = range.bounds();
        self.source.walk(bounds, walk, &mut one)?;
        Ok(Walked { stopped_at })
    }

    /// Checks that writes are allowed.
    const fn may_write(&self) -> Result<(), CommandError> {
        if self.is_read_only { Err(CommandError::ReadOnly) } else { Ok(()) }
    }

    const fn check_size(&self, key: &[u8], value: &[u8]) -> Result<(), CommandError> {
        if !self.can_exist(key) {
            return Err(CommandError::KeyTooLong { len: key.len(), max: self.context.max_key_bytes });
        }
        if value.len() > self.context.max_value_bytes { Err(CommandError::ValueTooLong) } else { Ok(()) }
    }

    /// Replaces the row of `key` in `redis.expiry` after its expiry has changed (KEY-1).
    fn move_row(&self, key: &[u8], from_ms: Option<u64>, to_ms: Option<u64>) -> Result<(), Failure> {
        if from_ms == to_ms {
            return Ok(());
        }
        let rows = self.source.transaction()?.0.table(&EXPIRY)?;
        if let Some(at) = from_ms {
            rows.remove(&(at, key.to_vec()))?;
        }
        if let Some(at) = to_ms {
            rows.insert(&(at, key.to_vec()), &())?;
        }
        self.note_added(0, i64::from(to_ms.is_some()) - i64::from(from_ms.is_some()));
        Ok(())
    }
}

/// Bytes by which the row in `redis.expiry` is longer than the key.
pub(crate) const EXPIRY_BYTES: usize = size_of::<u64>();

/// Returns the length of the longest key in bytes: every key that can be stored can expire.
pub(crate) fn max_key_bytes(db: &azekura::Database) -> usize {
    db.max_key_bytes().saturating_sub(EXPIRY_BYTES)
}

/// The locked record of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    /// Expiry of the record, even if the record has expired.
    old_expires_ms: Option<u64>,
    pub(crate) live: Option<Record>,
}

impl Slot {
    /// Returns `true` if there is a record, even an expired one.
    const fn has_record(&self) -> bool {
        self.live.is_some() || self.old_expires_ms.is_some()
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.live.as_ref().map_or(&[], Record::value)
    }

    /// Returns the form of the live record.
    pub(crate) fn form(&self) -> Form {
        self.live.as_ref().map(|record| record.form).unwrap_or_default()
    }

    /// Returns the expiry of the live record.
    pub(crate) fn expiry(&self) -> Expiry {
        Expiry::from_ms(self.live.as_ref().and_then(|record| record.expires_ms))
    }

    /// Returns the value as a reply, and charges it to the bound of the replies.
    pub(crate) fn into_reply(self, keys: &Keyspace<'_>) -> Result<Reply, CommandError> {
        keys.charge(self.value().len())?;
        Ok(self.live.map_or(Reply::Null, Record::into_reply))
    }
}

#[cfg(test)]
mod tests {
    use azekura::Database;
    use azekura_base::blocking;

    use super::visits::LONG_VISIT;
    use super::*;

    thread_local! {
        static ANNOUNCED: Cell<usize> = const { Cell::new(0) };
    }

    /// Other connections of the thread are served during a request for many keys, also if all pages of these
    /// keys are in memory.
    #[test]
    fn a_request_for_many_keys_is_announced_although_it_waits_for_nothing() {
        let db = Database::in_memory().expect("memory");
        prepare(&db).expect("the store works");
        let context = KeyspaceContext {
            watches: Watches::default(),
            cursors: Cursors::new(db.clone(), 0),
            max_value_bytes: 1,
            max_key_bytes: max_key_bytes(&db),
            max_reply_bytes: 1,
        };
        let key = |i: usize| i.to_be_bytes();
        let stored = db.transact(|tx| {
            let keys = Keyspace::open(tx, 0, &context)?;
            (0..3 * LONG_VISIT).try_for_each(|i| keys.put(&key(i), b"", Expiry::AtMs(2)))?;
            Ok(keys.store_count()?)
        });
        stored.expect("the store works");
        let snapshot = db.snapshot().expect("the store is open");
        let keys = Keyspace::of_snapshot(&snapshot, 0, &context).expect("the table exists");
        blocking::on_block(Some(|| {
            ANNOUNCED.set(ANNOUNCED.get() + 1);
            true
        }));
        keys.walk(&KeyRange::ALL, Walk::KeysForward, usize::MAX, |_, _| Ok(ControlFlow::Continue(())))
            .expect("the store works");
        let by_walk = ANNOUNCED.get();
        assert_eq!(live_counts(&snapshot, 2).expect("the store works"), KeyCounts::default());
        let by_count = ANNOUNCED.get();
        for i in 0..LONG_VISIT {
            assert!(keys.exists(&key(i)).expect("the store works"));
        }
        blocking::on_block(None);
        assert!(by_walk >= 3 && by_count >= by_walk + 3 && ANNOUNCED.get() > by_count);
    }
}
