//! Analysis: which transactions the log leaves unended, and what undoes them.

use std::collections::HashMap;

use azekura_base::{Lsn, PageId, TxnId};
use azekura_btree::{Head, Record, UndoLog};

/// A transaction as the log tells of it.
#[derive(Debug, Default)]
pub(super) struct InLog {
    pub(super) undo: UndoLog,
    /// Committed, but with something left to free.
    pub(super) is_committed: bool,
    /// Chains of [`Leftovers`](crate::deferred::Leftovers) that are free up to a new head.
    pub(super) freed: HashMap<u64, PageId>,
    /// Its first compensation of something that the scan has not seen.
    pub(super) began_before: Option<Lsn>,
}

/// What the records seen so far say about transactions.
#[derive(Debug)]
pub(super) struct Analysis {
    pub(super) unended: HashMap<TxnId, InLog>,
    /// Above every transaction seen.
    pub(super) next_txn: TxnId,
}

impl Analysis {
    pub(super) fn new(next_txn: TxnId) -> Self {
        Self { unended: HashMap::new(), next_txn }
    }

    pub(super) fn see(&mut self, lsn: Lsn, record: &Record<'_>) {
        let txn = match record.head {
            Head::Update { txn, ref undo } => {
                self.unended.entry(txn).or_default().undo.push(undo);
                txn
            }
            Head::Compensate { txn } => {
                let known = self.unended.entry(txn).or_default();
                if known.undo.is_empty() {
                    // It compensates what lies before the place where the scan began: RESTART-1.
                    known.began_before.get_or_insert(lsn);
                }
                known.undo.pop();
                txn
            }
            Head::Commit { txn, has_deferred: true } => {
                self.unended.entry(txn).or_default().is_committed = true;
                txn
            }
            Head::Commit { txn, has_deferred: false } | Head::End { txn } => {
                self.unended.remove(&txn);
                txn
            }
            Head::FreeStep { txn, index, next_head } => {
                self.unended.entry(txn).or_default().freed.insert(index, next_head);
                txn
            }
            Head::System => return,
        };
        self.next_txn = self.next_txn.max(TxnId(txn.0 + 1));
    }
}
