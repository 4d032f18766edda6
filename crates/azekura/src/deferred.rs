//! What a committed transaction leaves to do: freeing large values that it replaced and tables that it dropped.
//!
//! Undo must be able to put a removed value back, so its pages stay until the commit record is in the log. From then on they are freed in
//! bounded steps, each one log record, and `End` says that nothing is left. A restart that finds a commit without its
//! `End` goes on where the steps stopped. What is left follows from the undo entries alone
//! ([`UndoLog::deferred_frees`], in order): no other list has to survive.

use std::collections::HashMap;

use azekura_base::{Lsn, PageId};
use azekura_btree::record::encode;
use azekura_btree::{Deferred, Env, Head, UndoLog, Writer, free_step};
use azekura_wal::Order;

use crate::Error;

/// What is left of a committed transaction.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    /// `None` for what is free already.
    items: Vec<Option<Deferred>>,
}

impl Leftovers {
    pub(crate) fn of(undo: &UndoLog) -> Self {
        Self { items: undo.deferred_frees().into_iter().map(Some).collect() }
    }

    /// What is left after the free steps of the log: `freed` has each item's newest head, page 0 for one that is free.
    pub(crate) fn after(undo: &UndoLog, freed: &HashMap<u64, PageId>) -> Self {
        let mut left = Self::of(undo);
        for (index, item) in (0u64..).zip(&mut left.items) {
            match freed.get(&index) {
                None => {}
                Some(PageId(0)) => *item = None,
                Some(&head) => *item = Some(Deferred::Chain(head)),
            }
        }
        left
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Frees what is left and logs the end.
    pub(crate) fn free(&mut self, env: &Env, writer: Writer) -> Result<(), Error> {
        for (index, item) in (0u64..).zip(&mut self.items) {
            while let Some(what) = *item {
                *item = free_step(env, writer, index, what)?;
            }
        }
        append_end(env, writer)
    }

    /// What is still there after a failure.
    pub(crate) fn into_rest(self) -> impl Iterator<Item = Deferred> {
        self.items.into_iter().flatten()
    }
}

/// Logs that nothing more is to be done for the transaction.
pub(crate) fn append_end(env: &Env, writer: Writer) -> Result<(), Error> {
    let mut end = Vec::with_capacity(16);
    encode(&mut end, &Head::End { txn: writer.txn }, std::iter::empty());
    env.log().append(writer.worker, &end, Order::Newest, Lsn(0))?;
    Ok(())
}
