//! A mutex that the child of a fork can make new.
//!
//! A fork copies memory and one thread. A mutex that another thread held stays locked in the child for ever, and what it
//! guards may be half changed.

use azekura_base::sync::Mutex;
use std::cell::UnsafeCell;
use std::ops::Deref;

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

impl<T> Deref for ForkMutex<T> {
    type Target = Mutex<T>;

    fn deref(&self) -> &Mutex<T> {
        // SAFETY: the only exclusive use is `renew`, which excludes this one.
        unsafe { &*self.0.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutex_left_locked_is_open_again_when_made_new() {
        let mutex = ForkMutex::new(1);
        std::mem::forget(mutex.lock());
        assert!(mutex.try_lock().is_none());
        // SAFETY: one thread, and its guard was forgotten.
        unsafe { mutex.renew(2) };
        assert_eq!(*mutex.lock(), 2);
    }
}
