//! What a committed transaction leaves to do: freeing large values that it replaced and tables that it
//! dropped.
//!
//! Undo must be able to put a removed value back, so its pages stay until the commit record is in the log.
//! From then on they are freed in bounded steps, each one log record, and `End` says that nothing is left. A
//! restart that finds a commit without its `End` goes on where the steps stopped. What is left follows from
//! the undo entries alone ([`UndoLog::deferred_frees`], in order): no other list has to survive.

use std::collections::HashMap;

use azekura_base::{PageId, TreeId};
use azekura_btree::record::encode;
use azekura_btree::{Committed, Deferred, Env, Head, UndoLog, UndoOp, Writer, free_step};
use azekura_wal::Order;

use crate::Error;
use crate::active::Listed;
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
    /// `None` for a tree.
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

    /// Returns whether an open snapshot can still read it.
    fn is_needed(&self, env: &Env, committed: &Committed) -> bool {
        let versions = env.versions();
        match (&self.row, self.what) {
            (Some(row), _) => versions.needs_value(committed, row.tree, &row.key, &row.cell),
            (None, Deferred::Tree(tree)) => versions.needs_tree(committed, tree.id),
            (None, Deferred::Chain(_)) => false, // of a restart: no snapshot is as old
        }
    }
}

/// What is left of a committed transaction.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// `None` for what is free already.
    items: Vec<Option<Item>>,
}

impl Leftovers {
    pub(crate) fn of(undo: &UndoLog) -> Self {
        Self { items: undo.deferred_entries().filter_map(|op| Item::of(&op)).map(Some).collect() }
    }

    /// What is left after the free steps of the log: `freed` has each item's newest head, page 0 for one that
    /// is free.
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

    /// Frees what no open snapshot can read. Logs the end and returns `true` if nothing is left.
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

    /// Returns `true` if a call of [`free`](Self::free) would do something.
    pub(crate) fn can_free(&self, env: &Env, committed: &Committed) -> bool {
        let mut items = self.items.iter().flatten().peekable();
        items.peek().is_none() || items.any(|item| !item.is_needed(env, committed))
    }

    /// What is still there.
    fn rest(&self) -> impl Iterator<Item = Deferred> {
        self.items.iter().flatten().map(|item| item.what)
    }

    /// An undo log whose deferred frees are what is still there.
    fn rest_as_log(&self) -> UndoLog {
        let mut log = UndoLog::new();
        self.rest().for_each(|what| log.push_deferred(what));
        log
    }
}

/// Pages that a committed transaction could not free, because of an error or for a snapshot. The transaction
/// stays in the active list, so that a restart finds what is left; the checkpointer tries again.
#[derive(Debug)]
pub(crate) struct Unfreed {
    pub(crate) writer: Writer,
    pub(crate) leftovers: Leftovers,
    pub(crate) listed: Option<Listed>,
    /// Snapshots that do not see the transaction may read what is to be freed.
    pub(crate) committed: Committed,
}

impl Shared {
    /// Tries to free what earlier attempts left. An error leaves the rest for the next attempt.
    pub(crate) fn retry_unfreed(&self) {
        if self.unfreed.lock().is_empty() {
            return;
        }
        let Some(_gate) = self.leftovers_gate.try_read() else { return };
        let again = std::mem::take(&mut *self.unfreed.lock());
        for mut unfreed in again {
            match unfreed.leftovers.free(&self.env, unfreed.writer, &unfreed.committed) {
                Ok(true) => unfreed.listed.take().into_iter().for_each(|listed| self.active.remove(listed)),
                Ok(false) | Err(_) => self.unfreed.lock().push(unfreed),
            }
        }
    }

    /// Carries what is not freed yet forward (`checkpoint::carry`); returns how many transactions it carried.
    pub(crate) fn carry_unfreed(&self, log_bytes: u64) -> usize {
        let mut carried = 0;
        for unfreed in self.unfreed.lock().iter_mut() {
            let Some(listed) = &unfreed.listed else { continue };
            let log = unfreed.leftovers.rest_as_log();
            if let Ok(first) = self.append_copy(unfreed.writer.txn, unfreed.writer.worker, &log, true) {
                unfreed.leftovers.items.retain(Option::is_some); // numbered as in the copy
                self.active.carried(listed, first, log_bytes);
                carried += 1;
            }
        }
        carried
    }

    /// What waits to be freed, for a check of all pages.
    pub(crate) fn unfreed_pages(&self) -> Vec<Deferred> {
        self.unfreed.lock().iter().flat_map(|unfreed| unfreed.leftovers.rest().collect::<Vec<_>>()).collect()
    }
}

/// Logs that nothing more is to be done for the transaction.
pub(crate) fn append_end(env: &Env, writer: Writer) -> Result<(), Error> {
    let mut end = Vec::with_capacity(16);
    encode(&mut end, &Head::End { txn: writer.txn }, std::iter::empty());
    env.log().append(writer.worker, &end, Order::Newest)?;
    Ok(())
}
