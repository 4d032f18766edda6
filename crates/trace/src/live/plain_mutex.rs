//! The mutex of a recording's own state: the one of `std`, because the workspace's mutex has probes.

use azekura_base::sync::machine::simulated;
use azekura_base::sync::thread;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex without probes.
pub(super) struct PlainMutex<T>(Mutex<T>);

impl<T> PlainMutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks the mutex.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        let mutex = &self.0;
        // One thread runs all threads of a simulated machine, including the lock's holder, so it must not
        // block.
        while simulated().is_some() {
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => thread::yield_now(),
            }
        }
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
