//! Parked rollbacks: rollbacks that could not be finished, usually because the disk was too full for the log
//! records of the undo.
//!
//! - **PARKED-1** The changes of such a transaction are still in the pages, and no other transaction may see
//!   them, so the transaction keeps its locks. The transaction also stays in the active list, which keeps the
//!   log that a restart needs for the undo.
//!
//! A parked rollback continues where it stopped: before the next checkpoint and, in stores without background
//! threads, before the next transaction; otherwise at the next restart. Once the log has failed, only a
//! restart can finish the rollback. While a rollback is parked, no call may wait for a lock, because the
//! rollback may hold that lock: each wait ends with a typed error.

use azekura_base::TxnId;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::State;
use crate::Error;
use crate::database::Shared;

/// The unfinished rollbacks.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    rollbacks: Mutex<Vec<(TxnId, Box<State>)>>,
    count: AtomicUsize,
    /// The message of the last undo that failed.
    reason: Mutex<String>,
}

impl Parked {
    /// Returns the number of parked rollbacks, including those that are being retried.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: may be slightly outdated.
        self.count.load(Relaxed)
    }

    /// Returns the error of a call that may not wait for a lock.
    pub(crate) fn pending(&self) -> Error {
        Error::RollbackPending { transactions: self.len().max(1), reason: self.reason.lock().clone() }
    }
}

impl Shared {
    /// Undoes all changes of a transaction and releases its locks. If the undo fails, parks the rollback.
    pub(super) fn roll_back(&self, id: TxnId, mut state: Box<State>) -> Result<(), Error> {
        match state.undo_all(self, id) {
            Ok(()) => {
                self.end(state, None);
                Ok(())
            }
            Err(error) => {
                let error = error.in_store(&self.path);
                self.locks.detach(&mut state.locks); // no thread can end it by a call
                self.parked.count.fetch_add(1, Relaxed);
                *self.parked.reason.lock() = error.full_message();
                let mut rollbacks = self.parked.rollbacks.lock();
                rollbacks.push((id, state));
                self.locks.close_waits();
                drop(rollbacks);
                self.report_failed_change(&error);
                self.checkpoint_calls.wake_from_sleep(); // the checkpointer retries the rollback
                Err(error)
            }
        }
    }

    /// Retries the parked rollbacks. Their errors were returned when they failed first.
    pub(crate) fn retry_parked(&self) {
        if self.parked.len() == 0 {
            return;
        }
        let _rollback = crate::probe::rollback();
        let again = std::mem::take(&mut *self.parked.rollbacks.lock());
        let tried = again.len();
        for (id, state) in again {
            let _ = self.roll_back(id, state);
        }
        self.parked.count.fetch_sub(tried, Relaxed);
        let rollbacks = self.parked.rollbacks.lock();
        if rollbacks.is_empty() && self.wal.failure().is_none() {
            self.locks.open_waits(); // under the mutex, so that no rollback is parked meanwhile
        }
        drop(rollbacks);
        self.report_state();
    }
}
