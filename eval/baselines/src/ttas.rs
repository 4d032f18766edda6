//! A test-and-test-and-set lock with exponential back-off: the lock of the papers' baselines.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use azekura_base::Backoff;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_trace::{Site, WaitKind};

/// A mutex that spins, then yields. It never sleeps, so hold it for a few dozen instructions only.
///
/// - **TTAS-1** A thread uses the value only from its CAS that replaced `false`, until it stores `false`.
#[derive(Debug)]
pub struct TtasLock<T> {
    is_held: AtomicBool,
    value: UnsafeCell<T>,
    /// Lets a model detect that two threads use the value without an order between them.
    #[cfg(loom)]
    witness: loom::cell::UnsafeCell<()>,
}

// SAFETY: TTAS-1 gives the value to one thread at a time, so `T: Send` is enough for the lock to be shared.
unsafe impl<T: Send> Sync for TtasLock<T> {}

impl<T> TtasLock<T> {
    /// Creates a free lock around `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            is_held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            witness: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Locks the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<TtasGuard<'_, T>> {
        // Relaxed test first, so that the line of a held lock stays shared. Acquire: pairs with the Release
        // in the guard's drop.
        let taken = !self.is_held.load(Relaxed)
            && self.is_held.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        taken.then(|| {
            #[cfg(loom)]
            self.witness.with_mut(|_| ());
            TtasGuard { lock: self, value: PhantomData }
        })
    }

    /// Locks the lock; waits while another thread holds it. Contended waits are traced under `site`.
    #[inline]
    pub fn lock(&self, site: &'static Site) -> TtasGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.spin(site))
    }

    #[cold]
    fn spin(&self, site: &'static Site) -> TtasGuard<'_, T> {
        let _waiting = azekura_trace::wait(site, std::ptr::from_ref(self) as usize, WaitKind::Latch);
        let mut backoff = Backoff::new();
        loop {
            backoff.pause();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }

    /// Returns the value through the exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to the value of a [`TtasLock`]. Threads may share the guard only if they may share the value:
///
/// ```
/// fn is_sync<T: Sync>() {}
/// is_sync::<azekura_baselines::TtasGuard<'static, u32>>();
/// ```
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// fn is_sync<T: Sync>() {}
/// is_sync::<azekura_baselines::TtasGuard<'static, Cell<u32>>>(); // a `Cell` is `Send`, and not `Sync`
/// ```
#[derive(Debug)]
#[must_use]
pub struct TtasGuard<'a, T> {
    lock: &'a TtasLock<T>,
    /// The guard is an exclusive reference to the value: it is `Sync` and `Send` if that reference is.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for TtasGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: TTAS-1; this guard exists only in the thread that holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for TtasGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: TTAS-1; the guard is borrowed exclusively, so this is the only reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for TtasGuard<'_, T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire CAS of the next holder.
        self.lock.is_held.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static SITE: Site = Site::new("test");
        let lock = TtasLock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..5_000).for_each(|_| *lock.lock(&SITE) += 1));
            }
        });
        assert_eq!(*lock.try_lock().unwrap(), 20_000);
    }
}
