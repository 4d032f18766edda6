//! Analysis: finds the transactions in the log that have not ended, and their undo entries.

use std::collections::HashMap;

use azekura_base::{Lsn, PageId, TxnId};
use azekura_btree::{Carry, Head, Record, RecordError, UndoLog};

/// The state of a transaction, as found in its records.
#[derive(Debug, Default)]
pub(super) struct InLog {
    pub(super) undo: UndoLog,
    /// Parts of a copy of the undo log; empty after the last part has been read.
    copy: UndoLog,
    /// `true` if the transaction has committed, but may have deferred frees left.
    pub(super) is_committed: bool,
    /// For each item of [`Leftovers`](crate::deferred::Leftovers) that was freed up to some page, the new
    /// first page of its chain.
    pub(super) freed: HashMap<u64, PageId>,
    /// LSN of the first change; 1 if the scan may have begun after it.
    pub(super) began: Option<Lsn>,
    /// LSN of the first compensation of a record that is before the start of the scan.
    pub(super) began_before: Option<Lsn>,
}

impl InLog {
    /// Adds a part of a copy of the undo log; a complete copy replaces all earlier records (CARRY-2).
    fn take_copy(&mut self, part: &Carry<'_>) -> Result<(), RecordError> {
        if part.is_first {
            self.copy = UndoLog::new();
        }
        self.copy.append_part(part.entries)?;
        if part.is_last {
            let undo = std::mem::take(&mut self.copy);
            *self = Self { undo, is_committed: part.is_committed, began: Some(Lsn(1)), ..Self::default() };
        }
        Ok(())
    }
}

/// The state of all transactions, from the records read so far.
#[derive(Debug)]
pub(super) struct Analysis {
    pub(super) unended: HashMap<TxnId, InLog>,
    /// A transaction id above all ids in the records.
    pub(super) next_txn: TxnId,
}

impl Analysis {
    pub(super) fn new(next_txn: TxnId) -> Self {
        Self { unended: HashMap::new(), next_txn }
    }

    pub(super) fn see(&mut self, lsn: Lsn, record: &Record<'_>) -> Result<(), RecordError> {
        let txn = match record.head {
            Head::Update { txn, ref undo } => {
                let known = self.unended.entry(txn).or_default();
                known.began.get_or_insert(lsn);
                known.undo.push(undo);
                txn
            }
            Head::Compensate { txn } => {
                let known = self.unended.entry(txn).or_default();
                if known.undo.is_empty() {
                    // The record compensates a record before the start of the scan: RESTART-1.
                    known.began_before.get_or_insert(lsn);
                }
                known.undo.pop();
                txn
            }
            Head::Commit { txn, has_deferred: true, .. } => {
                self.unended.entry(txn).or_default().is_committed = true;
                txn
            }
            Head::Commit { txn, has_deferred: false, .. } | Head::End { txn } => {
                self.unended.remove(&txn);
                txn
            }
            Head::FreeStep { txn, index, next_head } => {
                self.unended.entry(txn).or_default().freed.insert(index, next_head);
                txn
            }
            Head::Carry { txn, ref part } => {
                self.unended.entry(txn).or_default().take_copy(part)?;
                txn
            }
            Head::System => return Ok(()),
        };
        self.next_txn = self.next_txn.max(TxnId(txn.0 + 1));
        Ok(())
    }
}
