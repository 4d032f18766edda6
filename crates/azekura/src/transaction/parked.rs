//! Parked rollbacks: those that could not be finished yet, usually because the disk was too full for the log
//! records of the undo.
//!
//! - **PARKED-1** The changes of such a transaction are still in the pages, and no other transaction may see
//!   them: its locks stay. It stays in the active list as well, which keeps the log that a restart needs for
//!   its undo.
//!
//! A parked rollback continues where it stopped: before the next checkpoint and, in stores without background
//! threads, before the next transaction; otherwise at the next restart. Once the log has failed, only a
//! restart can finish it. While a rollback is parked no call may wait for a lock, because that lock may
//! belong to it: each wait ends with a typed error.

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
}

impl Parked {
    /// Returns their number, including one that is being retried.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: may be slightly outdated.
        self.count.load(Relaxed)
    }
}

impl Shared {
    /// Undoes everything, if there is anything, and releases the locks; parks the rest after a failure.
    pub(super) fn roll_back(&self, id: TxnId, mut state: Box<State>) -> Result<(), Error> {
        match state.undo_all(self, id) {
            Ok(()) => {
                self.end(state, None);
                Ok(())
            }
            Err(error) => {
                self.locks.detach(&mut state.locks); // no thread can end it by a call
                self.parked.count.fetch_add(1, Relaxed);
                let mut rollbacks = self.parked.rollbacks.lock();
                rollbacks.push((id, state));
                self.locks.close_waits();
                drop(rollbacks);
                self.report_failed_change(&error);
                self.checkpoint_calls.wake_from_sleep(); // the checkpointer tries again
                Err(error)
            }
        }
    }

    /// Retries the parked rollbacks. The reason of each failure was returned before.
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
            self.locks.open_waits(); // under the lock: not after another rollback was parked
        }
        drop(rollbacks);
        self.report_state();
    }
}
