//! Errors of lock requests.

use std::time::Duration;

use azekura_base::TxnId;

/// The error of a request that would have to wait for the lock; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lock is taken; wait for it, or try again later")]
pub struct WouldBlock;

/// The reason that a wait for a lock ended without the lock. The transaction keeps the locks that it held
/// before.
///
/// The caller rolls the transaction back. After a deadlock or a timeout it may retry the transaction. After
/// [`WouldBlock`](Self::WouldBlock) or [`Interrupted`](Self::Interrupted) it may also continue the
/// transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The transaction was the youngest in a cycle of waiting transactions.
    #[error(
        "deadlock: transaction {victim} is the victim of the cycle {}; roll it back and retry",
        shown(cycle)
    )]
    Deadlock {
        /// The transaction that gets this error.
        victim: TxnId,
        /// The cycle: each transaction waits for the next one, and the last for the first.
        cycle: Vec<TxnId>,
    },
    /// The request would wait for a transaction of the same thread, directly or through other waits.
    #[error(
        "transaction {victim} would wait for transaction {holder} of the same thread; end that one first"
    )]
    SelfDeadlock {
        /// The transaction that gets this error.
        victim: TxnId,
        /// The blocking transaction.
        holder: TxnId,
    },
    /// The lock was not granted in time.
    #[error(
        "no lock within {} ms, blocked by {}; roll back and retry, or raise the lock timeout",
        waited.as_millis(),
        list(holders)
    )]
    Timeout {
        /// Length of the wait.
        waited: Duration,
        /// The blocking transactions at the end of the wait.
        holders: Vec<TxnId>,
    },
    /// [`LockOptions::interrupt`](crate::LockOptions::interrupt) ended the wait.
    #[error("the wait for the lock was interrupted")]
    Interrupted,
    /// The transaction does not wait for locks: [`TxnLocks::set_nowait`](crate::TxnLocks::set_nowait). Or its
    /// thread may not wait longer: BLOCK-3 of [`azekura_base::blocking`].
    #[error("the lock is taken, and this transaction does not wait for locks")]
    WouldBlock,
    /// Waits are closed: [`LockTable::close_waits`](crate::LockTable::close_waits) was called.
    #[error("the lock is held, and its holder may be unable to release it: the store refuses changes")]
    Closed,
}

fn shown(cycle: &[TxnId]) -> String {
    let mut names: Vec<String> = cycle.iter().map(TxnId::to_string).collect();
    names.extend(names.first().cloned());
    names.join(" -> ")
}

fn list(txns: &[TxnId]) -> String {
    let names: Vec<String> = txns.iter().map(TxnId::to_string).collect();
    format!("{} {}", if names.len() == 1 { "transaction" } else { "transactions" }, names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_transaction_and_the_remedy() {
        let deadlock = LockError::Deadlock { victim: TxnId(9), cycle: vec![TxnId(4), TxnId(9)] };
        let text = deadlock.to_string();
        assert!(
            text.contains("transaction 9") && text.contains("4 -> 9 -> 4") && text.contains("retry"),
            "{text}"
        );
        let timeout =
            LockError::Timeout { waited: Duration::from_millis(50), holders: vec![TxnId(3), TxnId(5)] };
        let text = timeout.to_string();
        assert!(
            text.contains("50 ms") && text.contains("transactions 3, 5") && text.contains("retry"),
            "{text}"
        );
    }
}
