//! Replay of an archive: the transactions between a backup and a time, row by row, into the restored store.
//!
//! 1. The first pass finds the transactions that are left out, because they did not commit after the backup's
//!    time and up to the target, and the changes that transactions rolled back.
//! 2. The second pass applies the other changes, in LSN order, up to the last record of the first pass.
//!
//! - **REPLAY-1** A replayed transaction has no entry in memory, because their number is not bounded. These
//!   have entries: transactions that are open at the target, transactions that committed between the LSN of
//!   the backup and its time, and changes that were rolled back.
//!
//! The backup has exactly the transactions up to its time (ARCHIVE-2), and a row is changed by one
//! transaction at a time. So each change finds the row in the state that its transaction had read. If the row
//! differs, the archive is damaged or does not belong to the backup.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::{Cipher, Lsn, TreeId, TxnId};
use azekura_btree::change::PageOp;
use azekura_btree::node::FLAG_OVERFLOW;
use azekura_btree::{Head, LargeValues, OverflowRef, Record, UndoOp};
use azekura_io::{Fs, OpenOptions};

use super::end::End;
use super::format::{LogReader, file_names};
use super::{CommitTime, bad_record, is_large_value};
use crate::catalog::{self, CATALOG};
use crate::timeline::Position;
use crate::transaction::Next;
use crate::{Database, Durability, Error, TableDefinition, TableInfo, Transaction};

/// Size of the changes, in bytes, after which the transaction in the restored store commits.
const BATCH_BYTES: usize = 1 << 20;

/// An archive, and the backup from which its replay continues.
pub(crate) struct Replay<'a> {
    pub(crate) fs: &'a dyn Fs,
    pub(crate) dir: &'a Path,
    pub(crate) database_id: u64,
    /// First LSN that the backup may lack.
    pub(crate) from: Lsn,
    /// The end of the backup; `None` for a backup of an old version.
    pub(crate) position: Option<Position>,
    /// Commit time of the backup.
    pub(crate) after: CommitTime,
    /// The target time; `None` is the end of the archive.
    pub(crate) to: Option<CommitTime>,
    /// The cipher of the store, known from the backup; `None` if they are not encrypted. The key with which
    /// a file's header wraps the data key may be an older or a newer one than the caller's.
    pub(crate) cipher: Option<Arc<dyn Cipher>>,
}

/// A part of an archive.
enum Part<'a> {
    /// A record, its LSN, and its file.
    Record(&'a Path, Lsn, Record<'a>),
    /// The end of a block: no later part has a commit up to this time.
    Horizon(CommitTime),
}

/// The function that is called for each part, in order.
type Each<'e> = dyn FnMut(Part<'_>) -> Result<(), Error> + 'e;

impl Replay<'_> {
    /// Returns an error if the archive's first position at or after the end of the backup is of another run
    /// than the end of the backup (ARCHIVE-5). `to` and `position` are of the archive. Returns `true` if this
    /// position is before the end of the backup.
    fn is_before_backup(&self, to: Lsn, position: Position) -> Result<bool, Error> {
        let Some(backup) = self.position else { return Ok(false) };
        if to < backup.lsn || position.run == backup.run {
            return Ok(to < backup.lsn);
        }
        let reason = format!(
            "is of another history of the store than the backup, which ends with {backup}: the store was \
             replaced by a copy from an earlier time; restore the backup without it, or from a later backup"
        );
        Err(Error::NotABackup { path: self.dir.into(), reason })
    }

    /// Reads the archive up to the target; returns the horizon of the last block that was read.
    fn read(&self, each: &mut Each<'_>) -> Result<CommitTime, Error> {
        let not_an_archive = |reason: String| Error::NotABackup { path: self.dir.into(), reason };
        let files = file_names(self.fs, self.dir)?;
        let Some(first) = files.iter().rposition(|(first_lsn, _)| *first_lsn <= self.from) else {
            return Err(not_an_archive(format!(
                "is not the archive of the backup: no log file in it begins at or before log record {}, with \
                 which the backup ends; name the archive of the store, with all its files",
                self.from
            )));
        };
        let end = if self.to.is_none() { End::read(self.fs, self.dir)? } else { None };
        if end.is_some_and(|end| end.database_id != self.database_id) {
            return Err(not_an_archive(
                "is not the archive of the backup: its file end.azk is of another store".into(),
            ));
        }
        let (mut next, mut horizon) = (files[first].0, 0);
        let mut is_before = true;
        for (at, (named, name)) in files.iter().enumerate().skip(first) {
            let path = self.dir.join(name);
            let damaged =
                |reason: &str| Err(Error::Corrupt { path: path.clone(), offset: 0, reason: reason.into() });
            let file = self.fs.open(&path, OpenOptions::new().read_only(true));
            let file = file.map_err(|e| Error::io("open", &path, e))?;
            let Some(mut reader) = LogReader::open(file, &path)? else {
                // A crash leaves the newest file without a header, unless it is the first file: that one has
                // its header before the store is open.
                if at > 0 && at + 1 == files.len() && next == *named {
                    break;
                }
                return damaged("the header of this file of the archive is missing");
            };
            let header = reader.header.clone();
            let is_encrypted = !header.wrapped_key.is_empty();
            if header.database_id != self.database_id || is_encrypted != self.cipher.is_some() {
                return Err(not_an_archive(
                    "is not the archive of the backup, but that of another store".into(),
                ));
            }
            reader.decrypt_with(self.cipher.clone());
            if header.first_lsn != *named {
                return damaged("the file has the content of another file of the archive");
            }
            if header.first_lsn != next {
                return damaged(&format!(
                    "the log before this file is missing in the archive; restore to {} at the latest, or \
                     from a later backup",
                    CommitTime(horizon)
                ));
            }
            is_before = is_before && self.is_before_backup(Lsn(next.0 - 1), header.position)?;
            while let Some(block) = reader.next_block()? {
                is_before = is_before && self.is_before_backup(block.to, block.position)?;
                for record in block.records() {
                    let bad = || bad_record(&path, block.to, &"a block of records cannot be decoded");
                    let (lsn, body) = record.ok_or_else(bad)?;
                    let record = Record::decode(body).map_err(|error| bad_record(&path, lsn, &error))?;
                    if lsn >= self.from {
                        each(Part::Record(&path, lsn, record))?;
                    }
                }
                (next, horizon) = (block.to.next(), block.horizon);
                each(Part::Horizon(CommitTime(horizon)))?;
                if self.to.is_some_and(|to| to.0 <= horizon) {
                    return Ok(CommitTime(horizon));
                }
            }
        }
        let horizon = CommitTime(horizon);
        if self.to.is_none() {
            let end = end.ok_or_else(|| End::missing(self.dir, horizon))?;
            end.require(self.dir, next, horizon)?;
        }
        Ok(horizon)
    }
}

/// The result of the first pass (REPLAY-1).
struct Found {
    /// The replayed transactions have commit times above the first, and up to the second.
    times: (CommitTime, CommitTime),
    /// LSN of the last record. The store may append later ones between the passes.
    last: Lsn,
    /// The last horizon.
    horizon: CommitTime,
    /// Changes of transactions without a commit so far, oldest first, that are not rolled back so far.
    changes: HashMap<TxnId, Vec<Lsn>>,
    taken_back: HashSet<Lsn>,
    /// Transactions with commit times above the last horizon: replayed if a later horizon has these times.
    late: HashMap<TxnId, CommitTime>,
    left_out: HashSet<TxnId>,
    /// Number of transactions to replay up to the last horizon.
    replayed: u64,
}

impl Found {
    /// Returns a pass for a backup and a target time; `None` is the end of the archive.
    fn between(after: CommitTime, to: Option<CommitTime>) -> Self {
        Self {
            times: (after, to.unwrap_or(CommitTime(u64::MAX))),
            last: Lsn(0),
            horizon: CommitTime(0),
            changes: HashMap::new(),
            taken_back: HashSet::new(),
            late: HashMap::new(),
            left_out: HashSet::new(),
            replayed: 0,
        }
    }

    fn see(&mut self, lsn: Lsn, head: &Head<'_>) {
        self.last = lsn;
        match *head {
            Head::Update { txn, .. } => self.changes.entry(txn).or_default().push(lsn),
            Head::Compensate { txn } => {
                let Some(changes) = self.changes.get_mut(&txn) else { return };
                self.taken_back.extend(changes.pop());
                if changes.is_empty() {
                    self.changes.remove(&txn);
                }
            }
            Head::Commit { txn, time, .. } => {
                self.changes.remove(&txn);
                let ((after, to), time) = (self.times, CommitTime(time));
                if time <= after || time > to {
                    self.left_out.insert(txn);
                } else if time > self.horizon {
                    self.late.insert(txn, time);
                } else {
                    self.replayed += 1;
                }
            }
            _ => {}
        }
    }

    /// Records that the archive has all commits up to this time.
    fn reach(&mut self, horizon: CommitTime) {
        if horizon > self.horizon {
            let before = self.late.len();
            self.late.retain(|_, time| *time > horizon);
            self.replayed += (before - self.late.len()) as u64;
            self.horizon = horizon;
        }
    }

    /// Ends the pass: transactions without a commit up to the last horizon are left out.
    fn end(&mut self) {
        let late = std::mem::take(&mut self.late).into_keys();
        let open = std::mem::take(&mut self.changes).into_keys();
        self.left_out.extend(late.chain(open));
    }

    fn is_replayed(&self, txn: TxnId, lsn: Lsn) -> bool {
        lsn <= self.last && !self.left_out.contains(&txn) && !self.taken_back.contains(&lsn)
    }
}

/// Applies the changes to `db`, which was restored from the backup. `tables` maps tree numbers of the source
/// store to the backup's tables. Returns the time that the store has reached, and the number of transactions.
pub(crate) fn replay(
    db: &Database,
    replay: &Replay<'_>,
    tables: HashMap<TreeId, String>,
) -> Result<(CommitTime, u64), Error> {
    let mut found = Found::between(replay.after, replay.to);
    let horizon = replay.read(&mut |part| {
        match part {
            Part::Record(_, lsn, record) => found.see(lsn, &record.head),
            Part::Horizon(horizon) => found.reach(horizon),
        }
        Ok(())
    })?;
    found.end();
    // The archive may end before the time of the backup, because a backup logs nothing.
    let end = horizon.max(replay.after);
    let to = replay.to.unwrap_or(end);
    if to > end {
        return Err(Error::Invalid(format!(
            "the archive {} ends at {end}, before the time {to}; name an earlier time",
            replay.dir.display()
        )));
    }
    let pages = LargeValues::new();
    let (taken_out, source, lsn) = (HashMap::new(), PathBuf::new(), Lsn(0));
    let mut apply = Apply { db, tx: None, bytes: 0, tables, taken_out, pages, source, lsn };
    replay.read(&mut |part| {
        let Part::Record(path, lsn, record) = part else { return Ok(()) };
        if apply.source != path {
            apply.source = path.into();
        }
        apply.lsn = lsn;
        apply.pages.note(&record);
        let Head::Update { txn, undo } = record.head else { return Ok(()) };
        let op = record.ops().next().transpose().map_err(|error| apply.bad(&error.to_string()))?;
        let op = op.map(|(_, op)| op).filter(|op| !is_large_value(op));
        if found.is_replayed(txn, lsn) {
            apply.change(undo, op)
        } else {
            apply.skip(op);
            Ok(())
        }
    })?;
    apply.commit()?;
    Ok((to, found.replayed))
}

/// Changes that are being applied to the restored store.
struct Apply<'a> {
    db: &'a Database,
    tx: Option<Transaction>,
    /// Size of the changes in the present transaction.
    bytes: usize,
    tables: HashMap<TreeId, String>,
    /// Old names of tables without a row in the catalog. The next record of their transaction drops the table
    /// or adds a row with a new name.
    taken_out: HashMap<TreeId, String>,
    pages: LargeValues,
    /// Archive file and LSN of the present record, for errors.
    source: PathBuf,
    lsn: Lsn,
}

impl Apply<'_> {
    fn bad(&self, reason: &str) -> Error {
        bad_record(&self.source, self.lsn, &reason)
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.bytes = 0;
        let Some(tx) = self.tx.take() else { return Ok(()) };
        // All transactions become durable at the end of the restore (RESTORE-1).
        tx.set_durability(Durability::Relaxed);
        tx.commit()
    }

    /// Discards the pages of the large value of a change that is not applied.
    fn skip(&mut self, op: Option<PageOp<'_>>) {
        if let Some(PageOp::Insert { cell, .. } | PageOp::Replace { cell, .. }) = op
            && cell.flags & FLAG_OVERFLOW != 0
            && let Some(reference) = OverflowRef::decode(cell.value)
        {
            self.pages.take(reference);
        }
    }

    fn change(&mut self, undo: UndoOp<'_>, op: Option<PageOp<'_>>) -> Result<(), Error> {
        let (tree, key) = match undo {
            UndoOp::RemoveKey { tree, key }
            | UndoOp::PutBack { tree, key, .. }
            | UndoOp::Flip { tree, key, .. } => (tree, key),
            UndoOp::KeepTree { tree } => return self.drop_table(tree.id),
            // Trees are created with their row of the catalog, and pages are freed with their rows.
            UndoOp::FreePages { .. } | UndoOp::DropTree { .. } => return Ok(()),
            UndoOp::EmptyTree { .. } => {
                return Err(self.bad("a bulk load is not in the archive; restore from a later backup"));
            }
        };
        let value = match op {
            Some(PageOp::Insert { cell, .. } | PageOp::Replace { cell, .. }) => {
                if cell.flags & FLAG_OVERFLOW == 0 {
                    Some(cell.value.to_vec())
                } else {
                    let reference = OverflowRef::decode(cell.value);
                    let value = reference.and_then(|reference| self.pages.take(reference));
                    Some(value.ok_or_else(|| self.bad("a part of a large value is missing"))?)
                }
            }
            Some(PageOp::Remove { .. } | PageOp::Flip { .. }) => None,
            _ => return Err(self.bad("the change of a row has no page operation")),
        };
        if self.tx.is_none() {
            self.tx = Some(self.db.begin()?);
        }
        if tree.id == CATALOG.id {
            return self.change_catalog(undo, key, value.as_deref());
        }
        let Some(name) = self.tables.get(&tree.id) else {
            return Err(self.bad("it changes a table that does not exist"));
        };
        let tx = self.tx.as_ref().expect("was begun above");
        let table = tx.table(&TableDefinition::raw(name.as_str()))?;
        let fits = match (undo, &value) {
            (UndoOp::RemoveKey { .. }, Some(value)) => table.insert_if_absent(key, &value[..])?,
            (UndoOp::PutBack { .. }, Some(value)) => table.replace(key, &value[..])?.is_some(),
            (UndoOp::PutBack { .. }, None) => table.remove(key)?.is_some(),
            (UndoOp::Flip { at, diff, .. }, _) => match table.get(key)? {
                Some(mut value) if value.len() >= usize::from(at) + diff.len() => {
                    value[usize::from(at)..].iter_mut().zip(diff).for_each(|(byte, bits)| *byte ^= bits);
                    table.insert(key, &value[..])?;
                    true
                }
                _ => false,
            },
            _ => false,
        };
        if !fits {
            return Err(self.bad("it does not fit the row in the backup; the two are of different stores"));
        }
        self.bytes += key.len() + value.map_or(64, |value| value.len());
        if self.bytes >= BATCH_BYTES { self.commit() } else { Ok(()) }
    }

    /// Creates or renames a table, or removes its name.
    fn change_catalog(&mut self, undo: UndoOp<'_>, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let bad = || self.bad("a row of the catalog cannot be decoded");
        let name = std::str::from_utf8(key).map_err(|_| bad())?.to_owned();
        let tx = self.tx.as_ref().expect("was begun by the caller");
        match (undo, value) {
            (UndoOp::RemoveKey { .. }, Some(value)) => {
                let entry = catalog::decode(value).ok_or_else(bad)?;
                if let Some(old) = self.taken_out.remove(&entry.tree.id) {
                    if !tx.rename_table(&old, &name)? {
                        return Err(self.bad("it renames a table that does not exist"));
                    }
                } else {
                    let info = TableInfo { name: name.clone(), types: (*entry.types).clone() };
                    tx.create_and_load(&info, &mut |_, _| Ok(Next::End))?;
                }
                self.tables.insert(entry.tree.id, name);
                // Later changes of a table of this name belong to another tree, so the present changes are
                // committed first.
                self.commit()
            }
            (UndoOp::PutBack { cell, .. }, None) => {
                let entry = catalog::decode(cell.value).ok_or_else(bad)?;
                self.tables.remove(&entry.tree.id);
                self.taken_out.insert(entry.tree.id, name);
                Ok(())
            }
            _ => Err(bad()),
        }
    }

    /// Drops a table that has no row in the catalog.
    fn drop_table(&mut self, tree: TreeId) -> Result<(), Error> {
        let is_dropped = match (self.taken_out.remove(&tree), &self.tx) {
            (Some(name), Some(tx)) => tx.drop_table(&name)?,
            _ => false,
        };
        if is_dropped { self.commit() } else { Err(self.bad("it drops a table that does not exist")) }
    }
}

#[cfg(test)]
mod tests {
    use azekura_base::PageId;

    use super::*;

    #[test]
    fn every_commit_time_has_a_text() {
        let text = |micros| CommitTime::from_micros(micros).to_string();
        assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(1_795_685_400_250_000), "2026-11-26T09:30:00.250000Z");
        assert_eq!(text(253_402_300_799_999_999), "9999-12-31T23:59:59.999999Z");
        assert_eq!(text(253_402_300_800_000_000), "253402300800000000 µs since 1970");
        assert_eq!(text(u64::MAX), "18446744073709551615 µs since 1970");
    }

    fn update(txn: TxnId) -> Head<'static> {
        Head::Update { txn, undo: UndoOp::FreePages { first: PageId(3), count: 1 } }
    }

    const fn commit(txn: TxnId, time: u64) -> Head<'static> {
        Head::Commit { txn, has_deferred: false, time, last_finished: 0 }
    }

    #[test]
    fn changes_that_a_transaction_took_back_are_known() {
        let txn = TxnId(7);
        let mut found = Found::between(CommitTime(8), None);
        let heads = [update(txn), update(txn), Head::Compensate { txn }, update(txn), commit(txn, 9)];
        (1..).zip(&heads).for_each(|(lsn, head)| found.see(Lsn(lsn), head));
        found.reach(CommitTime(9));
        found.end();
        let updates = [1, 2, 4]; // 3 is the compensation
        let replayed: Vec<u64> =
            updates.into_iter().filter(|&lsn| found.is_replayed(txn, Lsn(lsn))).collect();
        assert_eq!((replayed, found.replayed), (vec![1, 4], 1));
    }

    #[test]
    fn transactions_outside_of_the_times_are_left_out() {
        for (to, replayed) in [(None, vec![2, 3]), (Some(CommitTime(20)), vec![2])] {
            let mut found = Found::between(CommitTime(10), to);
            // 1 is in the backup, 4 is later than the end of the archive, 5 is open, 6 was rolled back.
            for (n, time) in [(1, 10), (2, 11), (3, 21), (4, 30)] {
                found.see(Lsn(n), &update(TxnId(n)));
                found.see(Lsn(10 + n), &commit(TxnId(n), time));
            }
            (5..7).for_each(|n| found.see(Lsn(n), &update(TxnId(n))));
            found.see(Lsn(20), &Head::Compensate { txn: TxnId(6) });
            found.reach(CommitTime(29));
            found.end();
            assert!((1..7).filter(|&n| found.is_replayed(TxnId(n), Lsn(n))).eq(replayed.iter().copied()));
            assert_eq!(found.replayed, replayed.len() as u64);
            assert!(!found.is_replayed(TxnId(9), Lsn(21)), "appended between the passes");
        }
    }

    /// An archive of days has any number of transactions (REPLAY-1).
    #[test]
    fn a_replayed_transaction_takes_no_memory() {
        let mut found = Found::between(CommitTime(0), None);
        for n in 1..10_000 {
            found.see(Lsn(3 * n), &update(TxnId(n)));
            if n % 3 == 0 {
                found.see(Lsn(3 * n + 1), &Head::Compensate { txn: TxnId(n) });
            } else {
                found.see(Lsn(3 * n + 1), &commit(TxnId(n), n));
            }
            found.reach(CommitTime(n));
            assert_eq!(found.changes.len() + found.late.len() + found.left_out.len(), 0);
        }
    }
}
