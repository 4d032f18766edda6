//! The names under which operations of the store appear in recordings (see `azekura_trace`).
//!
//! A transaction run by [`Database::transact`](crate::Database::transact) is an operation around the calls
//! made in it; in a transaction begun by hand the calls are operations of their own. Without a recording each
//! costs one relaxed load.

use azekura_trace::{Operation, OperationGuard, operation};

static TRANSACTION: Operation = Operation::new("transaction");
static GET: Operation = Operation::new("get");
static PUT: Operation = Operation::new("put");
static BULK_LOAD: Operation = Operation::new("bulk load");
static REMOVE: Operation = Operation::new("remove");
static SCAN: Operation = Operation::new("scan step");
static COMMIT: Operation = Operation::new("commit");
static ROLLBACK: Operation = Operation::new("rollback");
static TICKET: Operation = Operation::new("ticket wait");
static CHECKPOINT: Operation = Operation::new("checkpoint");

/// A body with its retries and its commit.
pub(crate) fn transaction() -> OperationGuard {
    operation(&TRANSACTION)
}

/// A read of one key.
#[inline]
pub(crate) fn get() -> OperationGuard {
    operation(&GET)
}

/// A write of one key.
#[inline]
pub(crate) fn put() -> OperationGuard {
    operation(&PUT)
}

/// A bulk load of a table.
pub(crate) fn bulk_load() -> OperationGuard {
    operation(&BULK_LOAD)
}

/// A removal of one key.
#[inline]
pub(crate) fn remove() -> OperationGuard {
    operation(&REMOVE)
}

/// One batch of rows of a range.
pub(crate) fn scan() -> OperationGuard {
    operation(&SCAN)
}

/// From the commit record to durability, or to the ticket.
pub(crate) fn commit() -> OperationGuard {
    operation(&COMMIT)
}

/// The undo of a transaction.
pub(crate) fn rollback() -> OperationGuard {
    operation(&ROLLBACK)
}

/// The wait for an earlier commit.
pub(crate) fn ticket() -> OperationGuard {
    operation(&TICKET)
}

/// A checkpoint, requested or due.
pub(crate) fn checkpoint() -> OperationGuard {
    operation(&CHECKPOINT)
}
