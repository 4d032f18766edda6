//! Deferred frees of a committed transaction: large values that it replaced and tables that it dropped.
//!
//! Undo must be able to restore a removed value, so the value's pages stay allocated until the commit record
//! is in the log. Then the pages are freed in bounded steps. Each step is one log record, and an `End` record
//! follows the last step. A restart that finds a commit without its `End` continues after the last step. The
//! remaining pages follow from the undo entries alone ([`UndoLog::deferred_frees`], in order), so no other
//! list has to be logged.

use std::collections::{HashMap, VecDeque};

use azekura_base::{PageId, TreeId};
use azekura_btree::record::encode;
use azekura_btree::{Committed, Deferred, Env, Head, UndoLog, UndoOp, Writer, free_step};
use azekura_wal::Order;

use crate::Error;
use crate::active::ActiveHandle;
use crate::database::Shared;

/// The row that referred to a large value.
#[derive(Debug)]
struct Row {
    tree: TreeId,
    key: Box<[u8]>,
    cell: Box<[u8]>,
}

#[derive(Debug)]
struct Item {
    what: Deferred,
    /// The row that referred to a large value; `None` for a tree.
    row: Option<Row>,
}

impl Item {
    fn of(op: &UndoOp<'_>) -> Option<Self> {
        let row = |op: &UndoOp<'_>| match *op {
            UndoOp::PutBack { tree, key, cell } => {
                Some(Row { tree: tree.id, key: key.into(), cell: cell.value.into() })
            }
            _ => None,
        };
        op.deferred_free().map(|what| Self { what, row: row(op) })
    }

    /// Returns `true` if an open snapshot can still read the item.
    fn is_needed(&self, env: &Env, committed: &Committed) -> bool {
        let versions = env.versions();
        match (&self.row, self.what) {
            (Some(row), _) => versions.needs_value(committed, row.tree, &row.key, &row.cell),
            (None, Deferred::Tree(tree)) => versions.needs_tree(committed, tree.id),
            (None, Deferred::Chain(_)) => false, // after a restart: no snapshot is that old
        }
    }
}

/// The deferred frees of a committed transaction that remain.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// The items of the transaction; `None` for items that have been freed.
    items: Vec<Option<Item>>,
}

impl Leftovers {
    pub(crate) fn of(undo: &UndoLog) -> Self {
        Self { items: undo.deferred_entries().filter_map(|op| Item::of(&op)).map(Some).collect() }
    }

    /// Returns the items that remain after the free steps in the log. `freed` maps each item to the first
    /// page that remains, or to page 0 if the whole item is free.
    pub(crate) fn after(undo: &UndoLog, freed: &HashMap<u64, PageId>) -> Self {
        let mut left = Self::of(undo);
        for (index, item) in (0u64..).zip(&mut left.items) {
            match freed.get(&index) {
                None => {}
                Some(PageId(0)) => *item = None,
                Some(&head) => *item = Some(Item { what: Deferred::Chain(head), row: None }),
            }
        }
        left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Frees the items that no open snapshot can read. If none remains, logs the end and returns `true`.
    pub(crate) fn free(&mut self, env: &Env, writer: Writer, committed: &Committed) -> Result<bool, Error> {
        for (index, item) in (0u64..).zip(&mut self.items) {
            if item.as_ref().is_some_and(|item| item.is_needed(env, committed)) {
                continue;
            }
            while let Some(Item { what, .. }) = item {
                let rest = free_step(env, writer, index, *what)?;
                *item = rest.map(|what| Item { what, row: None });
            }
        }
        if self.items.iter().any(Option::is_some) {
            return Ok(false);
        }
        append_end(env, writer).map(|()| true)
    }

    /// Returns the remaining items.
    fn rest(&self) -> impl Iterator<Item = Deferred> {
        self.items.iter().flatten().map(|item| item.what)
    }

    /// Returns an undo log with the remaining items as its deferred frees.
    fn rest_as_log(&self) -> UndoLog {
        let mut log = UndoLog::new();
        self.rest().for_each(|what| log.push_deferred(what));
        log
    }
}

/// Pages that a committed transaction could not free because of an error, or because a snapshot can read
/// them. The transaction stays in the active list, so that a restart finds the pages. The checkpointer
/// retries the free.
#[derive(Debug)]
pub(crate) struct Unfreed {
    pub(crate) writer: Writer,
    pub(crate) leftovers: Leftovers,
    pub(crate) listed: Option<ActiveHandle>,
    /// Commit of the transaction. Snapshots that do not include it may read the pages.
    pub(crate) committed: Committed,
    /// The last attempt.
    pub(crate) attempt: Attempt,
}

impl Unfreed {
    fn items(&self) -> usize {
        self.leftovers.rest().count()
    }
}

/// An attempt to free the items of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// Number of closed snapshots before the attempt. If the attempt did not fail with an error, another one
    /// can succeed only after a further snapshot was closed.
    pub(crate) closed_snapshots: u64,
    pub(crate) has_failed: bool,
}

/// Transactions with deferred frees.
#[derive(Debug, Default)]
pub(crate) struct UnfreedQueue {
    /// The last transaction has the largest number of closed snapshots at its last attempt. If any
    /// transaction has a smaller number, the first one has. [`push`](Self::push) keeps both rules.
    queue: VecDeque<Unfreed>,
    /// Number of items of all transactions.
    items: usize,
    /// Number of transactions with a failed attempt.
    failed: usize,
}

impl UnfreedQueue {
    pub(crate) fn push(&mut self, unfreed: Unfreed) {
        self.items += unfreed.items();
        self.failed += usize::from(unfreed.attempt.has_failed);
        let closed = |unfreed: &Unfreed| unfreed.attempt.closed_snapshots;
        if self.queue.back().is_some_and(|last| closed(&unfreed) < closed(last)) {
            self.queue.push_front(unfreed);
        } else {
            self.queue.push_back(unfreed);
        }
    }

    /// Removes up to `most` transactions with the oldest attempts.
    fn take(&mut self, most: usize) -> Vec<Unfreed> {
        let taken: Vec<_> = self.queue.drain(..most.min(self.queue.len())).collect();
        self.items -= taken.iter().map(Unfreed::items).sum::<usize>();
        self.failed -= taken.iter().filter(|unfreed| unfreed.attempt.has_failed).count();
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns `true` if another attempt can succeed, now that this number of snapshots was closed.
    pub(crate) fn is_retry_due(&self, closed_snapshots: u64) -> bool {
        let is_earlier = |first: &Unfreed| first.attempt.closed_snapshots != closed_snapshots;
        self.failed > 0 || self.queue.front().is_some_and(is_earlier)
    }

    /// Returns about the size of a [copy](Shared::carry_unfreed) of all items, in bytes of log.
    pub(crate) fn copy_bytes(&self) -> u64 {
        (self.items * ITEM_BYTES + self.queue.len() * RECORD_BYTES) as u64
    }
}

/// Bytes of log of an item in a copy: the reference of a large value, with the head of an undo entry.
const ITEM_BYTES: usize = 24;
/// Bytes of log of a transaction's copy without items: a record with its frame.
const RECORD_BYTES: usize = 24;

/// Number of transactions with deferred frees that the begin of a transaction retries, in a store without
/// background threads: few, because each begin does this.
pub(crate) const RETRIED_BY_BEGIN: usize = 16;
/// Number of transactions with deferred frees that one check of the checkpointer retries. A limit, so that a
/// check stays short beside a snapshot that keeps many values.
pub(crate) const RETRIED_BY_CHECK: usize = 4096;

impl Shared {
    /// Tries to free the items that earlier attempts left, of up to `most` transactions with the oldest
    /// attempts, if another attempt can succeed. After an error, the rest remains for the next attempt.
    pub(crate) fn retry_unfreed(&self, most: usize) {
        if !self.is_free_due() {
            return;
        }
        let Some(_gate) = self.leftovers_gate.try_read() else { return };
        let closed_snapshots = self.env.versions().closed_snapshots();
        let again = self.unfreed.lock().take(most);
        for mut unfreed in again {
            let freed = unfreed.leftovers.free(&self.env, unfreed.writer, &unfreed.committed);
            if let Ok(true) = freed {
                unfreed.listed.take().into_iter().for_each(|listed| self.active.remove(listed));
            } else {
                unfreed.attempt = Attempt { closed_snapshots, has_failed: freed.is_err() };
                self.unfreed.lock().push(unfreed);
            }
        }
    }

    /// Returns `true` if another attempt to free items can succeed.
    pub(crate) fn is_free_due(&self) -> bool {
        let closed_snapshots = self.env.versions().closed_snapshots();
        self.unfreed.lock().is_retry_due(closed_snapshots)
    }

    /// Carries the remaining items forward (`checkpoint::carry`); returns the number of carried transactions.
    pub(crate) fn carry_unfreed(&self, log_bytes: u64) -> usize {
        let mut carried = 0;
        for unfreed in &mut self.unfreed.lock().queue {
            let Some(listed) = &unfreed.listed else { continue };
            let log = unfreed.leftovers.rest_as_log();
            if let Ok(first) = self.append_copy(unfreed.writer.txn, unfreed.writer.log_buffer, &log, true) {
                unfreed.leftovers.items.retain(Option::is_some); // numbered as in the copy
                self.active.carried(listed, first, log_bytes);
                carried += 1;
            }
        }
        carried
    }

    /// Returns the pages that wait to be freed, for the check of all pages.
    pub(crate) fn unfreed_pages(&self) -> Vec<Deferred> {
        self.unfreed.lock().queue.iter().flat_map(|unfreed| unfreed.leftovers.rest()).collect()
    }
}

/// Logs the end of the transaction.
pub(crate) fn append_end(env: &Env, writer: Writer) -> Result<(), Error> {
    let mut end = Vec::with_capacity(16);
    encode(&mut end, &Head::End { txn: writer.txn }, std::iter::empty());
    env.log().append(writer.log_buffer, &end, Order::Newest)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use azekura_base::TxnId;
    use azekura_wal::LogBufferId;

    use super::*;
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

    /// A snapshot that is open for long leaves many deferred frees.
    #[test]
    fn the_begin_of_a_transaction_retries_few_of_many_deferred_frees() {
        let db = Database::builder().background(false).open_in_memory().expect("opens");
        let put = |value: &[u8]| {
            for key in 0..100_u64 {
                db.transact(|tx| tx.table(&ROWS)?.insert(&key, value)).expect("writes");
            }
        };
        let waiting = || db.shared().unfreed.lock().len();
        put(&[1; 20_000]);
        let snapshot = db.snapshot().expect("opens");
        put(&[2; 20_000]);
        assert_eq!(waiting(), 100);
        drop(snapshot);
        for begun in 1..4 {
            drop(db.begin().expect("begins"));
            assert_eq!(waiting(), 100 - begun * RETRIED_BY_BEGIN);
        }
        db.checkpoint().expect("writes");
        assert_eq!(waiting(), 0);
    }

    #[test]
    fn many_deferred_frees_are_examined_only_after_a_snapshot_was_closed() {
        const KEYS: u64 = 3_000;
        let db = Database::builder().background(false).open_in_memory().expect("opens");
        let put = |value: &[u8]| {
            for key in 0..KEYS {
                db.transact(|tx| tx.table(&ROWS)?.insert(&key, value)).expect("writes");
            }
        };
        put(&[1; 9_000]);
        let (shared, first) = (db.shared(), db.snapshot().expect("opens"));
        put(&[2; 9_000]);
        let second = db.snapshot().expect("opens");
        put(&[3; 9_000]);
        let waiting = || shared.unfreed.lock().len() as u64;
        assert_eq!(waiting(), 2 * KEYS);
        assert!(!shared.is_free_due(), "no snapshot was closed");
        drop(first);
        while shared.is_free_due() {
            shared.retry_unfreed(500);
        }
        assert_eq!(waiting(), KEYS, "those of the second snapshot");
        drop(second);
        assert!(shared.is_free_due());
        shared.retry_unfreed(usize::MAX);
        assert!(waiting() == 0 && !shared.is_free_due());
    }

    /// A commit reads the number of closed snapshots before it tries to free, and may be added late.
    #[test]
    fn a_transaction_with_an_earlier_attempt_is_tried_first() {
        let mut queue = UnfreedQueue::default();
        let push = |queue: &mut UnfreedQueue, closed_snapshots, has_failed| {
            let writer = Writer { txn: TxnId(1), log_buffer: LogBufferId::from_index(0) };
            let (leftovers, committed) = (Leftovers::default(), Committed::default());
            let attempt = Attempt { closed_snapshots, has_failed };
            queue.push(Unfreed { writer, leftovers, listed: None, committed, attempt });
        };
        assert!(!queue.is_retry_due(5));
        [4, 5, 3, 5, 4].into_iter().for_each(|closed| push(&mut queue, closed, false));
        for _ in 0..3 {
            assert!(queue.is_retry_due(5));
            let taken = queue.take(1);
            assert!(taken[0].attempt.closed_snapshots < 5);
            push(&mut queue, 5, false);
        }
        assert!(!queue.is_retry_due(5) && queue.is_retry_due(6));
        push(&mut queue, 5, true);
        assert!(queue.is_retry_due(5));
        drop(queue.take(6));
        assert!(!queue.is_retry_due(5) && queue.is_empty());
    }
}
