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

/// Returns the operation of a transaction's body with its retries and its commit.
pub(crate) fn transaction() -> OperationGuard {
    operation(&TRANSACTION)
}

/// Returns the operation of reading one key.
#[inline]
pub(crate) fn get() -> OperationGuard {
    operation(&GET)
}

/// Returns the operation of writing one key.
#[inline]
pub(crate) fn put() -> OperationGuard {
    operation(&PUT)
}

/// Returns the operation of a bulk load of a table.
pub(crate) fn bulk_load() -> OperationGuard {
    operation(&BULK_LOAD)
}

/// Returns the operation of removing one key.
#[inline]
pub(crate) fn remove() -> OperationGuard {
    operation(&REMOVE)
}

/// Returns the operation of reading one batch of rows of a range.
pub(crate) fn scan() -> OperationGuard {
    operation(&SCAN)
}

/// Returns the operation from appending the commit record until it is durable, or until the ticket is
/// returned.
pub(crate) fn commit() -> OperationGuard {
    operation(&COMMIT)
}

/// Returns the operation of undoing a transaction.
pub(crate) fn rollback() -> OperationGuard {
    operation(&ROLLBACK)
}

/// Returns the operation of waiting for the commit of a ticket.
pub(crate) fn ticket() -> OperationGuard {
    operation(&TICKET)
}

/// Returns the operation of a checkpoint.
pub(crate) fn checkpoint() -> OperationGuard {
    operation(&CHECKPOINT)
}
