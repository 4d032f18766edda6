//! The list of active transactions with their undo logs: those with at least one write and without an end.
//!
//! - **ACTIVE-1** A transaction is listed, with a lower bound of its first LSN, *before* that LSN is drawn.
//!   It stays listed until its last record (commit, end of abort, end of deferred frees) has been appended.
//! - **ACTIVE-2** While a transaction is listed, its undo log changes only under the mutex of [`TxnUndo`].
//!   The log record of that change, or of the transaction's end, is appended under the same mutex. A
//!   checkpoint copies the undo log under the mutex and appends the copy to the same log buffer. In LSN
//!   order, the copy is therefore after all records that it contains and before all others
//!   (`checkpoint::carry`).
//!
//! A checkpoint reads a lower bound of later LSNs first and the list second. So a transaction that is not in
//! the list either has ended already, or gets only LSNs at or above that bound.
//!
//! A transaction that has committed may stay listed as long as a snapshot can read a value that it replaced.
//! So such entries may be many. They are found by their numbers, and open transactions by a short search.
//!
//! Lock order: the mutex of an undo log, then a stripe of the list.

use std::collections::BTreeMap;
use std::sync::Arc;
// The atomic type of std: no protocol depends on the sum, and a simulated machine has no step for it.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use azekura_base::striped::stripe_count;
use azekura_base::sync::Mutex;
use azekura_base::sync::time::Instant;
use azekura_base::{CachePadded, Lsn, PerStripe, TxnId};
use azekura_btree::UndoLog;
use azekura_wal::LogBufferId;

type Stripe = Mutex<Entries>;

/// The entries of one stripe.
#[derive(Debug, Default)]
struct Entries {
    open: Vec<ActiveEntry>,
    /// Transactions that have committed and have pages to free.
    committed: BTreeMap<TxnId, ActiveEntry>,
}

impl Entries {
    fn iter(&self) -> impl Iterator<Item = &ActiveEntry> {
        self.open.iter().chain(self.committed.values())
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut ActiveEntry> {
        self.open.iter_mut().chain(self.committed.values_mut())
    }

    fn len(&self) -> usize {
        self.open.len() + self.committed.len()
    }

    fn find_open(&self, txn: TxnId) -> Option<usize> {
        self.open.iter().position(|active| active.txn == txn)
    }

    fn find(&mut self, txn: TxnId) -> Option<&mut ActiveEntry> {
        match self.find_open(txn) {
            Some(at) => self.open.get_mut(at),
            None => self.committed.get_mut(&txn),
        }
    }
}

/// Step in which the list records the number of undo entries, so a transaction with fewer entries does not
/// update the list.
const UNDO_STEP: u64 = 64;
/// Step in which the list records the memory of an undo log. A smaller undo log counts as an empty one.
const UNDO_MEMORY_STEP: usize = 64 << 10;

/// The undo log of one transaction, which its owner shares with checkpoints (ACTIVE-2).
#[derive(Debug, Default)]
pub(crate) struct TxnUndo {
    pub(crate) log: UndoLog,
    /// The transaction, from its listing until its last record. A checkpoint copies the log only while this
    /// is set.
    pub(crate) owner: Option<TxnId>,
}

pub(crate) type SharedUndo = Arc<Mutex<TxnUndo>>;

#[derive(Debug)]
struct ActiveEntry {
    txn: TxnId,
    /// A lower bound of the first LSN that a restart needs for this transaction: the LSN of its first record,
    /// or of the last copy of its undo log.
    first_lsn: Lsn,
    /// A lower bound of the LSNs of all changes of this transaction, including those before a copy. After its
    /// commit it only frees pages.
    first_change: Lsn,
    /// Number of undo entries of the transaction, as last recorded.
    undo_entries: u64,
    /// Memory of the undo log, as last recorded: a part of [`ActiveList::undo_memory`].
    undo_memory: u64,
    undo: SharedUndo,
    log_buffer: LogBufferId,
    /// Time at which a checkpoint first found this entry.
    seen: Option<Instant>,
    /// Bytes of log written when a checkpoint first found this `first_lsn`.
    log_bytes: Option<u64>,
}

impl ActiveEntry {
    /// Returns the bytes of log written since `first_lsn`, when `log_bytes` have been written.
    fn held_bytes(&self, log_bytes: u64) -> u64 {
        log_bytes.saturating_sub(self.log_bytes.unwrap_or(log_bytes))
    }
}

/// A transaction that prevents the log from being trimmed.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) txn: TxnId,
    pub(crate) undo: SharedUndo,
    /// The log buffer of the transaction's records.
    pub(crate) log_buffer: LogBufferId,
    pub(crate) listed: ActiveHandle,
}

/// The transaction that has been open longest, by the time of the first checkpoint that found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oldest {
    pub(crate) txn: TxnId,
    pub(crate) age: Duration,
}

#[derive(Debug)]
pub(crate) struct ActiveList {
    /// The stripes of the list. A stripe is allocated for its first transaction. An iteration that finds no
    /// stripe is ordered before all transactions of that stripe, as if it had locked the empty stripe.
    stripes: PerStripe<Box<CachePadded<Stripe>>>,
    /// Memory of the undo logs of all open transactions, in bytes.
    undo_memory: AtomicU64,
}

/// A handle of a transaction's entry in the list, for [`ActiveList::remove`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveHandle {
    stripe: usize,
    txn: TxnId,
    undo_noted: u64,
    memory_noted: usize,
}

impl ActiveList {
    pub(crate) fn new() -> Self {
        Self { stripes: PerStripe::new(stripe_count()), undo_memory: AtomicU64::new(0) }
    }

    fn all(&self) -> impl Iterator<Item = &Stripe> {
        self.stripes.visit().map(|(_, stripe)| &***stripe)
    }

    fn stripe(&self, listed: &ActiveHandle) -> &Stripe {
        self.stripes.get(listed.stripe).expect("a handle names a stripe that was made")
    }

    /// Adds `txn` to the list. `lsn_bound` returns a lower bound of all LSNs that are drawn later; it is
    /// called while the stripe is locked (ACTIVE-1).
    pub(crate) fn insert(
        &self,
        txn: TxnId,
        undo: &SharedUndo,
        log_buffer: LogBufferId,
        lsn_bound: impl FnOnce() -> Lsn,
    ) -> ActiveHandle {
        undo.lock().owner = Some(txn);
        let (stripe, list) = self.stripes.own(Box::default);
        let mut list = list.lock();
        let first_lsn = lsn_bound();
        list.open.push(ActiveEntry {
            txn,
            first_lsn,
            first_change: first_lsn,
            undo_entries: 0,
            undo_memory: 0,
            undo: Arc::clone(undo),
            log_buffer,
            seen: None,
            log_bytes: None,
        });
        ActiveHandle { stripe, txn, undo_noted: 0, memory_noted: 0 }
    }

    pub(crate) fn remove(&self, listed: ActiveHandle) {
        let mut list = self.stripe(&listed).lock();
        match list.find_open(listed.txn) {
            Some(at) => self.forget_memory(&list.open.swap_remove(at)),
            None => drop(list.committed.remove(&listed.txn)),
        }
    }

    /// Subtracts the memory of a transaction that is open no longer.
    fn forget_memory(&self, active: &ActiveEntry) {
        if active.undo_memory > 0 {
            self.undo_memory.fetch_sub(active.undo_memory, Relaxed); // Relaxed: only the number is shared
        }
    }

    /// Records the number of a transaction's undo entries if it has changed by at least [`UNDO_STEP`].
    pub(crate) fn note_undo(&self, listed: &mut ActiveHandle, entries: usize) {
        let entries = entries as u64;
        if entries.abs_diff(listed.undo_noted) < UNDO_STEP {
            return;
        }
        listed.undo_noted = entries;
        if let Some(active) = self.stripe(listed).lock().find(listed.txn) {
            active.undo_entries = entries;
        }
    }

    /// Records the memory of a transaction's undo log if it has changed by at least [`UNDO_MEMORY_STEP`].
    /// Returns `false` if it has grown, and all undo logs together now use more than `limit` bytes.
    pub(crate) fn note_undo_memory(
        &self,
        listed: &mut ActiveHandle,
        bytes: usize,
        limit: impl FnOnce() -> u64,
    ) -> bool {
        if bytes.abs_diff(listed.memory_noted) < UNDO_MEMORY_STEP {
            return true;
        }
        let grows = bytes > listed.memory_noted;
        listed.memory_noted = bytes;
        let mut list = self.stripe(listed).lock();
        let Some(at) = list.find_open(listed.txn) else { return true };
        let Some(active) = list.open.get_mut(at) else { return true };
        let before = std::mem::replace(&mut active.undo_memory, bytes as u64);
        let change = (bytes as u64).wrapping_sub(before); // the sum wraps, too: it is never below a part
        // Relaxed: only the number is shared.
        let sum = self.undo_memory.fetch_add(change, Relaxed).wrapping_add(change);
        !grows || sum <= limit()
    }

    /// Returns the memory of the undo logs of all open transactions, in bytes. The result may differ by up to
    /// [`UNDO_MEMORY_STEP`] for each transaction.
    pub(crate) fn undo_memory(&self) -> u64 {
        self.undo_memory.load(Relaxed) // Relaxed: only the number is shared
    }

    /// Returns the number of undo entries of all listed transactions. The result may differ by up to
    /// [`UNDO_STEP`] for each transaction.
    pub(crate) fn undo_entries(&self) -> u64 {
        self.all().map(|s| s.lock().iter().map(|active| active.undo_entries).sum::<u64>()).sum()
    }

    /// Returns the undo logs of all listed transactions that hold locks. If a log has no owner, its
    /// transaction has appended its last record.
    pub(crate) fn undo_logs(&self) -> Vec<SharedUndo> {
        let undo = |active: &ActiveEntry| Arc::clone(&active.undo);
        let of_stripe = |s: &Stripe| s.lock().open.iter().map(undo).collect::<Vec<_>>();
        self.all().flat_map(of_stripe).collect()
    }

    /// Returns the lowest first LSN of the listed transactions.
    pub(crate) fn min_first_lsn(&self) -> Option<Lsn> {
        self.all().filter_map(|s| s.lock().iter().map(|active| active.first_lsn).min()).min()
    }

    /// Returns a lower bound of the LSNs of all changes of listed transactions that have not committed.
    pub(crate) fn min_first_change(&self) -> Option<Lsn> {
        self.all().filter_map(|s| s.lock().open.iter().map(|active| active.first_change).min()).min()
    }

    /// Records that a listed transaction has committed and released its locks, and stays listed.
    pub(crate) fn committed(&self, listed: &ActiveHandle) {
        let mut list = self.stripe(listed).lock();
        if let Some(at) = list.find_open(listed.txn) {
            let mut active = list.open.swap_remove(at);
            self.forget_memory(&active);
            active.undo_memory = 0; // its pages to free are kept elsewhere
            list.committed.insert(active.txn, active);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all().map(|s| s.lock().len()).sum()
    }

    /// Returns the transactions that have not committed and need log of at least `held_bytes` for their undo,
    /// when `log_bytes` have been written. The first call that finds a listed transaction starts the count of
    /// its age and bytes, so the checkpointer calls this function in every check.
    pub(crate) fn holders(&self, now: Instant, log_bytes: u64, held_bytes: u64) -> Vec<Holder> {
        let mut holders = Vec::new();
        for (stripe, list) in self.stripes.visit() {
            let mut list = list.lock();
            for active in list.iter_mut() {
                active.seen.get_or_insert(now);
                active.log_bytes.get_or_insert(log_bytes);
            }
            let held = list.open.iter().filter(|active| active.held_bytes(log_bytes) >= held_bytes);
            holders.extend(held.map(|active| Holder {
                txn: active.txn,
                undo: Arc::clone(&active.undo),
                log_buffer: active.log_buffer,
                listed: ActiveHandle { stripe, txn: active.txn, undo_noted: 0, memory_noted: 0 },
            }));
        }
        holders
    }

    /// Records that from now on a restart needs no record of this transaction below `first_lsn`. The count of
    /// the log that it holds back starts at `log_bytes`.
    pub(crate) fn carried(&self, listed: &ActiveHandle, first_lsn: Lsn, log_bytes: u64) {
        if let Some(active) = self.stripe(listed).lock().find(listed.txn) {
            active.first_lsn = first_lsn;
            active.log_bytes = Some(log_bytes);
        }
    }

    /// Returns the open transaction that [`holders`](Self::holders) found first.
    pub(crate) fn oldest(&self, now: Instant) -> Option<Oldest> {
        let age = |active: &ActiveEntry| {
            let age = active.seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen));
            Oldest { txn: active.txn, age }
        };
        let of_stripe = |list: &Stripe| list.lock().iter().map(age).max_by_key(|oldest| oldest.age);
        self.all().filter_map(of_stripe).max_by_key(|oldest| oldest.age)
    }

    /// Returns the largest number of bytes of log that any transaction of the list needs for its undo; see
    /// [`holders`](Self::holders).
    pub(crate) fn held_bytes(&self, log_bytes: u64) -> u64 {
        let held = |active: &ActiveEntry| active.held_bytes(log_bytes);
        self.all().filter_map(|s| s.lock().iter().map(held).max()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(list: &ActiveList, txn: u64, lsn: u64) -> ActiveHandle {
        list.insert(TxnId(txn), &SharedUndo::default(), LogBufferId::from_index(0), || Lsn(lsn))
    }

    #[test]
    fn the_oldest_listed_transaction_holds_the_tail() {
        let list = ActiveList::new();
        let a = insert(&list, 1, 10);
        let b = insert(&list, 2, 20);
        assert_eq!(list.min_first_lsn(), Some(Lsn(10)));
        list.remove(a);
        assert_eq!((list.min_first_lsn(), list.len()), (Some(Lsn(20)), 1));
        list.remove(b);
        assert_eq!(list.min_first_lsn(), None);
    }

    #[test]
    fn bytes_are_held_from_the_first_look_until_the_copy() {
        let list = ActiveList::new();
        let (a, now) = (insert(&list, 1, 10), Instant::now());
        assert_eq!(list.holders(now, 100, 0).len(), 1);
        let b = insert(&list, 2, 20);
        assert_eq!(list.holders(now, 150, 50).len(), 1, "the second one holds nothing yet");
        let holders = list.holders(now, 200, 50);
        assert_eq!(holders.iter().map(|h| h.txn.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(list.holders(now, 200, 51).len(), 1);
        assert_eq!(list.held_bytes(200), 100);
        list.carried(&a, Lsn(30), 200);
        assert_eq!(list.min_first_change(), Some(Lsn(10)), "a copy moves no change");
        list.committed(&a);
        assert_eq!(list.min_first_change(), Some(Lsn(20)));
        assert_eq!((list.min_first_lsn(), list.held_bytes(210)), (Some(Lsn(20)), 60));
        assert_eq!(list.holders(now, 210, 0).len(), 1, "the committed one has no undo log");
        assert_eq!(list.oldest(now).map(|oldest| oldest.age), Some(Duration::ZERO));
        list.remove(a);
        list.remove(b);
        assert_eq!((list.oldest(now), list.held_bytes(300)), (None, 0));
    }

    #[test]
    fn undo_work_of_long_transactions_is_counted_until_they_end() {
        let list = ActiveList::new();
        let mut long = insert(&list, 1, 10);
        let mut short = insert(&list, 2, 20);
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

    #[test]
    fn the_memory_of_undo_logs_is_counted_while_their_transactions_are_open() {
        let list = ActiveList::new();
        const LIMIT: fn() -> u64 = || 3 << 20;
        let (mut a, mut b) = (insert(&list, 1, 10), insert(&list, 2, 20));
        assert!(list.note_undo_memory(&mut a, UNDO_MEMORY_STEP - 1, || 0), "too small to count");
        assert!(list.note_undo_memory(&mut a, 1 << 20, LIMIT));
        assert!(list.note_undo_memory(&mut b, 2 << 20, LIMIT));
        assert_eq!(list.undo_memory(), 3 << 20);
        assert!(!list.note_undo_memory(&mut a, 2 << 20, LIMIT), "4 MiB of 3 MiB");
        assert!(list.note_undo_memory(&mut a, 3 << 19, LIMIT), "a smaller log is no failure");
        assert_eq!(list.undo_memory(), 7 << 19);
        list.committed(&a);
        assert_eq!(list.undo_memory(), 2 << 20);
        assert!(list.note_undo_memory(&mut a, 9 << 20, LIMIT), "a committed transaction has no undo");
        list.remove(a);
        list.remove(b);
        assert_eq!(list.undo_memory(), 0);
    }

    /// A snapshot that is open for hours keeps a transaction listed for each large value that was replaced
    /// meanwhile. The calls for open transactions do not search among them.
    #[test]
    fn committed_transactions_are_found_by_their_numbers() {
        let list = ActiveList::new();
        let commit = |txn| {
            let listed = insert(&list, txn, txn);
            list.committed(&listed);
            listed
        };
        let listed: Vec<_> = (1..=50_000).map(commit).collect();
        assert!(list.all().all(|stripe| stripe.lock().open.is_empty()));
        let open = insert(&list, 60_000, 60_000);
        assert_eq!((list.min_first_change(), list.undo_logs().len()), (Some(Lsn(60_000)), 1));
        assert_eq!((list.min_first_lsn(), list.len()), (Some(Lsn(1)), 50_001));
        listed.iter().for_each(|listed| list.carried(listed, Lsn(70_000), 9));
        assert_eq!(list.min_first_lsn(), Some(Lsn(60_000)));
        list.remove(open);
        assert_eq!((list.min_first_lsn(), list.min_first_change()), (Some(Lsn(70_000)), None));
        listed.into_iter().for_each(|listed| list.remove(listed));
        assert_eq!((list.len(), list.min_first_lsn()), (0, None));
    }
}
