//! Rollbacks that could not be finished yet: most often because the disk was too full for the log of the
//! undo.
//!
//! - **PARKED-1** What such a transaction changed is still in the pages, and nobody may see it: its locks
//!   stay. It stays in the active list as well, so that the log which a restart needs for its undo stays too.
//!
//! A parked rollback goes on where it stopped: before the next checkpoint and, in stores without background
//! threads, before the next transaction; else at the next restart. Once the log has failed only the restart
//! is left. While a rollback is parked nobody may wait for a lock, because it may be one of these: each wait
//! ends with a typed error.

use azekura_base::TxnId;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::State;
use crate::Error;
use crate::database::Shared;

/// The rollbacks that are not finished.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    rollbacks: Mutex<Vec<(TxnId, Box<State>)>>,
    count: AtomicUsize,
}

impl Parked {
    /// How many there are; one that is just tried again counts.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a look, which may be late.
        self.count.load(Relaxed)
    }
}

impl Shared {
    /// Undoes everything, if there is anything, and releases the locks; parks what cannot be finished.
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
                self.checkpoint_calls.wake_from_sleep(); // which tries again
                Err(error)
            }
        }
    }

    /// Tries to finish what is parked. Why that fails each of its transactions was told already.
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
