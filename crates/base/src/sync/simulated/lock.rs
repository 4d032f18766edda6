//! parking_lot's mutex, condition variable and readers-writer lock. On a machine their state is one word of
//! one cache line. The word is acquired by compare-and-swap. A thread spins for as long as parking_lot spins,
//! and then sleeps on the word.

use crate::Backoff;
use crate::sync::machine::{Access, Machine, current};
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::{Duration, Instant};

/// Number of attempts before a thread sleeps: three doubling pauses and seven yields as in parking_lot, and
/// the first attempt.
const TRIES: usize = 11;
/// Size of the state word of a lock in bytes.
const STATE_BYTES: usize = 1;

#[track_caller]
fn acquire<G>(machine: &dyn Machine, state: usize, take: impl Fn() -> Option<G>) -> G {
    let place = Location::caller();
    loop {
        let mut backoff = Backoff::new();
        for _ in 0..TRIES {
            machine.access(state, STATE_BYTES, Access::Swap, place);
            if let Some(guard) = take() {
                return guard;
            }
            backoff.pause();
        }
        machine.access(state, STATE_BYTES, Access::Swap, place);
        // The last attempt, and registering as asleep, are one step.
        match take() {
            Some(guard) => return guard,
            None => machine.park(state, None),
        }
    }
}

/// Wakes up to `how_many` sleeping threads after a release.
fn released(state: usize, how_many: usize) {
    if let Some(machine) = current() {
        machine.unpark(state, how_many);
    }
}

/// Reports the access that releases a lock, at the source location where the lock was acquired. That location
/// identifies the lock.
fn releases(state: usize, taken_at: &'static Location<'static>) {
    if let Some(machine) = current() {
        machine.access(state, STATE_BYTES, Access::Swap, taken_at);
    }
}

/// A mutex without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }
    /// Returns the value, and consumes the mutex.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    fn state(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }
    /// Blocks until the mutex is locked.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let guard = match current() {
            Some(machine) => acquire(machine, self.state(), || self.0.try_lock()),
            None => self.0.lock(),
        };
        MutexGuard { mutex: self, guard: Some(guard), taken_at: Location::caller() }
    }
    /// Locks the mutex if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Swap, Location::caller());
        }
        let taken_at = Location::caller();
        self.0.try_lock().map(|guard| MutexGuard { mutex: self, guard: Some(guard), taken_at })
    }
    /// Returns `true` if the lock is held.
    #[track_caller]
    pub fn is_locked(&self) -> bool {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Load, Location::caller());
        }
        self.0.is_locked()
    }
    /// Returns the value, by exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// Guard of a locked [`Mutex`].
#[derive(Debug)]
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    guard: Option<parking_lot::MutexGuard<'a, T>>,
    taken_at: &'static Location<'static>,
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        let state = self.mutex.state();
        releases(state, self.taken_at);
        self.guard = None;
        released(state, 1);
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_ref().expect("held until dropped")
    }
}
impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until dropped")
    }
}

/// Result of a wait with a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns `true` if the wait timed out.
    #[must_use]
    pub const fn timed_out(&self) -> bool {
        self.0
    }
}

/// A condition variable.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Returns a condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }
    fn state(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
    /// Releases the mutex, sleeps until notified, and locks the mutex again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until_woken(guard, None);
    }
    /// Waits as [`wait`](Self::wait) does, with a timeout.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.wait_until_woken(guard, Some(timeout))
    }
    /// Waits as [`wait`](Self::wait) does, until a point in time of the clock of [`Instant`].
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        self.wait_until_woken(guard, Some(until.saturating_duration_since(Instant::now())))
    }
    #[track_caller]
    fn wait_until_woken<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        timeout: Option<Duration>,
    ) -> WaitTimeoutResult {
        let inner = guard.guard.as_mut().expect("held until dropped");
        let Some(machine) = current() else {
            return WaitTimeoutResult(match timeout {
                Some(timeout) => self.0.wait_for(inner, timeout).timed_out(),
                None => {
                    self.0.wait(inner);
                    false
                }
            });
        };
        let (mutex, began) = (guard.mutex.state(), machine.now());
        releases(mutex, guard.taken_at);
        guard.guard = None;
        // The release, and registering as asleep, are one step.
        machine.unpark(mutex, 1);
        machine.park(self.state(), timeout);
        let timed_out = timeout.is_some_and(|timeout| machine.now() - began >= timeout);
        guard.guard = Some(acquire(machine, mutex, || guard.mutex.0.try_lock()));
        WaitTimeoutResult(timed_out)
    }
    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
        released(self.state(), 1);
    }
    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
        released(self.state(), usize::MAX);
    }
}

/// A readers-writer lock without poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Returns a lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }
    /// Returns the value, and consumes the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    fn state(&self) -> usize {
        std::ptr::from_ref(self).cast::<()>().addr()
    }
    /// Blocks until the lock is held shared.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let guard = match current() {
            Some(machine) => acquire(machine, self.state(), || self.0.try_read()),
            None => self.0.read(),
        };
        RwLockReadGuard { state: self.state(), guard: Some(guard), taken_at: Location::caller() }
    }
    /// Blocks until the lock is held exclusively.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let guard = match current() {
            Some(machine) => acquire(machine, self.state(), || self.0.try_write()),
            None => self.0.write(),
        };
        RwLockWriteGuard { state: self.state(), guard: Some(guard), taken_at: Location::caller() }
    }
    /// Acquires the lock shared, if no writer holds it.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Swap, Location::caller());
        }
        let (state, taken_at) = (self.state(), Location::caller());
        self.0.try_read().map(|guard| RwLockReadGuard { state, guard: Some(guard), taken_at })
    }
    /// Acquires the lock exclusively, if it is free.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Swap, Location::caller());
        }
        let (state, taken_at) = (self.state(), Location::caller());
        self.0.try_write().map(|guard| RwLockWriteGuard { state, guard: Some(guard), taken_at })
    }
    /// Returns the value, by exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

macro_rules! guard {
    ($name:ident) => {
        /// Guard of an [`RwLock`].
        #[derive(Debug)]
        #[must_use]
        pub struct $name<'a, T: ?Sized> {
            state: usize,
            guard: Option<parking_lot::$name<'a, T>>,
            taken_at: &'static Location<'static>,
        }
        impl<T: ?Sized> Drop for $name<'_, T> {
            fn drop(&mut self) {
                releases(self.state, self.taken_at);
                self.guard = None;
                released(self.state, usize::MAX);
            }
        }
        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                self.guard.as_ref().expect("held until dropped")
            }
        }
    };
}
guard!(RwLockReadGuard);
guard!(RwLockWriteGuard);
impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("held until dropped")
    }
}
