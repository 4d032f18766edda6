//! parking_lot's mutex, condition variable and readers-writer lock. On a machine their state is one word of
//! one line: taken by compare-and-swap, spun on for as long as parking_lot spins, then slept on.

use crate::Backoff;
use crate::sync::machine::{Access, Machine, current};
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::{Duration, Instant};

/// Tries before a thread sleeps: parking_lot's three doubling pauses and seven yields, and the one that found
/// the lock taken.
const TRIES: usize = 11;
/// Of the lock's own word.
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
        // One step: the last attempt, and counting as asleep.
        match take() {
            Some(guard) => return guard,
            None => machine.park(state, None),
        }
    }
}

/// The lock is free now; `how_many` of the sleepers may try.
fn released(state: usize, how_many: usize) {
    if let Some(machine) = current() {
        machine.unpark(state, how_many);
    }
}

/// The releasing access, reported at the place where the lock was taken, because that place has its name.
fn releases(state: usize, taken_at: &'static Location<'static>) {
    if let Some(machine) = current() {
        machine.access(state, STATE_BYTES, Access::Swap, taken_at);
    }
}

/// A mutex without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }
    /// The value.
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
    /// The value, by exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// The lock of a [`Mutex`].
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

/// Result of a wait with a time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns `true` if the wait ended by its limit.
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
    /// Releases the mutex, sleeps, takes it again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_until_woken(guard, None);
    }
    /// The same for a bounded time.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> WaitTimeoutResult {
        self.wait_until_woken(guard, Some(timeout))
    }
    /// The same until a point in time, of the system's clock.
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
        // One step: the release, and counting as asleep.
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
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }
    /// The value.
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
    /// Takes the lock shared, if no writer has it.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Swap, Location::caller());
        }
        let (state, taken_at) = (self.state(), Location::caller());
        self.0.try_read().map(|guard| RwLockReadGuard { state, guard: Some(guard), taken_at })
    }
    /// Takes the lock exclusively, if it is free.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        if let Some(machine) = current() {
            machine.access(self.state(), STATE_BYTES, Access::Swap, Location::caller());
        }
        let (state, taken_at) = (self.state(), Location::caller());
        self.0.try_write().map(|guard| RwLockWriteGuard { state, guard: Some(guard), taken_at })
    }
    /// The value, by exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

macro_rules! guard {
    ($name:ident) => {
        /// A lock of an [`RwLock`].
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
