//! Synchronization for loom models.

pub use loom::hint;
pub use loom::sync::Arc;
pub use loom::sync::atomic;

use atomic::{AtomicU32, Ordering};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// loom's threads.
pub mod thread {
    pub use loom::thread::*;

    /// Yields, because a model has no time.
    pub fn sleep(_time: std::time::Duration) {
        yield_now();
    }
}

/// Clocks of waits.
pub mod time {
    pub use std::time::Instant;
}

/// loom's mutex with the interface of parking_lot's (no poisoning).
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a mutex around `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }
    /// Blocks until the mutex is locked.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("a model thread panicked")))
    }
    /// Locks the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|g| MutexGuard(Some(g)))
    }
    /// Returns the value, by exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("a model thread panicked")
    }
}

/// Guard of a locked [`Mutex`].
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect("held")
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held")
    }
}

/// loom's readers-writer lock with the interface of parking_lot's.
#[derive(Debug, Default)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Returns a lock around `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }
    /// Blocks until the lock is held shared.
    pub fn read(&self) -> loom::sync::RwLockReadGuard<'_, T> {
        self.0.read().expect("a model thread panicked")
    }
    /// Blocks until the lock is held exclusively.
    pub fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().expect("a model thread panicked")
    }
}

/// loom's condition variable with the interface of parking_lot's.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// Returns a condition variable without waiters.
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }
    /// Releases the mutex, sleeps until notified, and locks the mutex again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.0.take().expect("held");
        guard.0 = Some(self.0.wait(inner).expect("a model thread panicked"));
    }
    /// Waits as [`wait`](Self::wait) does, with a timeout. A timeout of 0 expires at once, and any other
    /// never, because the model has no clock.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        if !timeout.is_zero() {
            self.wait(guard);
        }
        WaitTimeoutResult(timeout.is_zero())
    }
    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Result of a wait with a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns `true` if the wait timed out.
    #[must_use]
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// Model of a futex word: the check of the value and the sleep are one step under a mutex.
#[derive(Debug)]
pub struct WaitWord {
    word: AtomicU32,
    asleep: Mutex<()>,
    wake: Condvar,
}

impl WaitWord {
    /// Returns a word with the value `value`.
    pub fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value), asleep: Mutex::new(()), wake: Condvar::new() }
    }
    /// Returns the atomic.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }
    /// Sleeps while the word is `expected`. The model has no time, so a timeout never expires.
    pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let mut asleep = self.asleep.lock();
        if self.word.load(Ordering::SeqCst) == expected {
            self.wake.wait(&mut asleep);
        }
    }
    /// Wakes every sleeper.
    pub fn wake_all(&self) {
        let _asleep = self.asleep.lock();
        self.wake.notify_all();
    }
    /// Wakes one sleeper.
    pub fn wake_one(&self) {
        let _asleep = self.asleep.lock();
        self.wake.notify_one();
    }
    /// Stores `value` and wakes every sleeper.
    pub fn set_and_wake(&self, value: u32) {
        self.word.store(value, Ordering::Release);
        self.wake_all();
    }
}
