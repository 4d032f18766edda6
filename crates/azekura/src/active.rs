//! Transactions that have written and not ended: what holds the log's tail.
//!
//! - **ACTIVE-1** A transaction is listed, with a lower bound of its first LSN, *before* that LSN is drawn, and stays listed until its
//!   last record (commit, end of abort, end of deferred frees) has been appended.
//!
//! A checkpoint reads a bound below LSNs to come first and the list second: a transaction that it does not see either ended before, or gets only
//! LSNs from that bound on.

use azekura_base::striped::{stripe_count, thread_stripe};
use azekura_base::sync::Mutex;
use azekura_base::{CachePadded, Lsn, TxnId};

type Stripe = CachePadded<Mutex<Vec<Active>>>;

/// Entries to undo are noted in steps of so many: a short transaction is never asked.
const UNDO_STEP: u64 = 64;

#[derive(Debug)]
struct Active {
    txn: TxnId,
    /// Not above its first LSN.
    first_lsn: Lsn,
    /// What undoes it, as last noted.
    undo_entries: u64,
}

#[derive(Debug)]
pub(crate) struct ActiveList {
    stripes: Box<[Stripe]>,
}

/// Where a transaction is listed; given back to [`ActiveList::remove`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    stripe: usize,
    txn: TxnId,
    undo_noted: u64,
}

impl ActiveList {
    pub(crate) fn new() -> Self {
        Self { stripes: (0..stripe_count()).map(|_| CachePadded::new(Mutex::new(Vec::new()))).collect() }
    }

    /// Lists `txn`; `lsn_bound` gives a bound below all LSNs that are drawn later, and is called inside (ACTIVE-1).
    pub(crate) fn insert(&self, txn: TxnId, lsn_bound: impl FnOnce() -> Lsn) -> Listed {
        let stripe = thread_stripe() % self.stripes.len();
        let mut list = self.stripes[stripe].lock();
        let first_lsn = lsn_bound();
        list.push(Active { txn, first_lsn, undo_entries: 0 });
        Listed { stripe, txn, undo_noted: 0 }
    }

    pub(crate) fn remove(&self, listed: Listed) {
        let mut list = self.stripes[listed.stripe].lock();
        if let Some(at) = list.iter().position(|active| active.txn == listed.txn) {
            list.swap_remove(at);
        }
    }

    /// Notes how many entries undo a transaction, if that has changed much.
    pub(crate) fn note_undo(&self, listed: &mut Listed, entries: usize) {
        let entries = entries as u64;
        if entries.abs_diff(listed.undo_noted) < UNDO_STEP {
            return;
        }
        listed.undo_noted = entries;
        let mut list = self.stripes[listed.stripe].lock();
        if let Some(active) = list.iter_mut().find(|active| active.txn == listed.txn) {
            active.undo_entries = entries;
        }
    }

    /// Entries that undo all listed transactions, less a few of each.
    pub(crate) fn undo_entries(&self) -> u64 {
        self.stripes.iter().map(|s| s.lock().iter().map(|active| active.undo_entries).sum::<u64>()).sum()
    }

    /// The least first LSN of any listed transaction.
    pub(crate) fn min_first_lsn(&self) -> Option<Lsn> {
        self.stripes.iter().filter_map(|s| s.lock().iter().map(|active| active.first_lsn).min()).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.stripes.iter().map(|s| s.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_listed_transaction_holds_the_tail() {
        let list = ActiveList::new();
        let a = list.insert(TxnId(1), || Lsn(10));
        let b = list.insert(TxnId(2), || Lsn(20));
        assert_eq!(list.min_first_lsn(), Some(Lsn(10)));
        list.remove(a);
        assert_eq!((list.min_first_lsn(), list.len()), (Some(Lsn(20)), 1));
        list.remove(b);
        assert_eq!(list.min_first_lsn(), None);
    }

    #[test]
    fn what_long_transactions_have_to_undo_is_counted_and_forgotten_with_them() {
        let list = ActiveList::new();
        let mut long = list.insert(TxnId(1), || Lsn(10));
        let mut short = list.insert(TxnId(2), || Lsn(20));
        for entries in 0..=1000 {
            list.note_undo(&mut long, entries);
        }
        list.note_undo(&mut short, 63);
        let noted = list.undo_entries();
        assert!((1000 - UNDO_STEP..=1000).contains(&noted), "{noted}");
        list.note_undo(&mut long, 0);
        assert_eq!(list.undo_entries(), 0, "it was undone");
        list.note_undo(&mut long, 500);
        list.remove(long);
        assert_eq!(list.undo_entries(), 0);
    }
}
