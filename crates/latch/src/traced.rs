//! A mutex with traced contended waits and holds (invariant 8 of the architecture).
//!
//! [`TracedMutex`] wraps the mutex of `sync`. A thread that cannot lock it at once waits under the mutex's
//! trace site. A probe is one relaxed load while tracing is off. While tracing is on, the holder stores its
//! thread's tag, so that a waiter can name the holder. A random sample of holds, and all holds after a wait,
//! are recorded. They give the utilization of the mutex.

use std::ops::{Deref, DerefMut};

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::sync::{Mutex, MutexGuard};
use azekura_trace::{HoldGuard, HoldMode, Site, ThreadTag, WaitKind, hold, is_enabled, thread_tag, wait_for};

/// A value under a mutex. Held for some hundred instructions, and never while the holder sleeps.
#[derive(Debug)]
pub struct TracedMutex<T> {
    site: &'static Site,
    /// Tag of the last holder while tracing was on. Written by the holder, read by waiters. Only a hint, so
    /// all accesses are Relaxed.
    holder: AtomicU32,
    mutex: Mutex<T>,
}

impl<T> TracedMutex<T> {
    /// Returns a mutex around `value`; its waits and holds are recorded under `site`.
    #[must_use]
    pub fn new(site: &'static Site, value: T) -> Self {
        Self { site, holder: AtomicU32::new(0), mutex: Mutex::new(value) }
    }

    /// Locks the mutex. Blocks while another thread holds it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> TracedGuard<'_, T> {
        // No first attempt in a model: it would double the number of schedules and show nothing.
        let first = if cfg!(loom) { None } else { self.mutex.try_lock() };
        // No closure, because a simulated machine would then record this line as the place where the mutex is
        // acquired.
        let guard = match first {
            Some(guard) => guard,
            None => self.lock_contended(),
        };
        if is_enabled() {
            self.holder.store(thread_tag().0, Relaxed);
        }
        TracedGuard { guard, _hold: hold(self.site, self.address(), HoldMode::Exclusive) }
    }

    #[cold]
    #[track_caller]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        let holder = ThreadTag(self.holder.load(Relaxed));
        let _waiting = wait_for(self.site, self.address(), WaitKind::Latch, holder);
        self.mutex.lock()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Guard of a locked [`TracedMutex`].
#[derive(Debug)]
#[must_use]
pub struct TracedGuard<'a, T> {
    // Dropped first: a hold is recorded after the mutex is released.
    guard: MutexGuard<'a, T>,
    _hold: HoldGuard,
}

impl<T> Deref for TracedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for TracedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
