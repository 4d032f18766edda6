//! A mutex that the child of a fork can make new.
//!
//! A fork copies memory and one thread. A mutex that another thread held stays locked in the child for ever,
//! and what it guards may be half changed. (std's mutex and not the workspace's: that one parks in a table of
//! the process, whose locks would be copied as well.)

use azekura_base::sync::machine::simulated;
use azekura_base::sync::thread;
use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A mutex that can be replaced when only one thread is left.
pub(super) struct ForkMutex<T>(UnsafeCell<Mutex<T>>);

// SAFETY: shared use goes through the mutex; `renew` demands that there is no other thread.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(Mutex::new(value)))
    }

    /// Makes the mutex new. What was in it is leaked, because it may be half changed.
    ///
    /// # Safety
    ///
    /// The caller is the only thread of its process and holds no guard of this mutex.
    pub(super) unsafe fn renew(&self, value: T) {
        // SAFETY: the caller's promise: nobody else has a reference.
        unsafe { std::ptr::write(self.0.get(), Mutex::new(value)) }
    }
}

impl<T> ForkMutex<T> {
    /// Locks it.
    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        // SAFETY: the only exclusive use is `renew`, which excludes this one.
        let mutex = unsafe { &*self.0.get() };
        // A thread of a simulated machine may not block the thread that carries them all, the holder too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutex_left_locked_is_open_again_when_made_new() {
        let mutex = ForkMutex::new(1);
        std::mem::forget(mutex.lock());
        // SAFETY: one thread, and its guard was forgotten.
        unsafe { mutex.renew(2) };
        assert_eq!(*mutex.lock(), 2);
    }
}
