//! A mutex that spins, yields, then sleeps until it is released: the `mutex_t` of InnoDB 5.0.
//!
//! | value of the word | meaning | transitions |
//! |---|---|---|
//! | 0 | free | any thread, by CAS to 1 or by swap to 2 |
//! | 1 | held | its holder, to 0; a thread about to sleep, to 2 |
//! | 2 | held, threads may sleep | its holder, to 0; the holder then wakes all sleepers |
//!
//! - **SYNC-1** Only the thread that moved the word away from 0 uses the value, until it moves it back.
//! - **SYNC-2** A sleeping thread has read the bucket's count, then stored 2 over a value other than 0. So a
//!   later release finds the 2, increments the count (PARK-1), and wakes the sleepers.
//!
//! A release wakes all sleepers, as InnoDB's `os_event_set` does. With many threads this is expensive, and
//! one reason why contention increases itself.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use azekura_base::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_base::sync::{hint, thread};
use azekura_trace::{HoldGuard, HoldMode, Site, WaitKind, hold, wait};

use azekura_latch::park::Bucket;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_WITH_SLEEPERS: u32 = 2;

/// Number of reads of a held lock before its waiter yields the processor (`SYNC_SPIN_ROUNDS`).
const SPIN_ROUNDS: u32 = 20;
/// Longest pause between two reads, in units of ten spin hints (`srv_spin_wait_delay`).
const SPIN_DELAY: u32 = 6;

/// Calls `is_held` repeatedly, with pauses of varying length, until it returns `false` or the rounds are used
/// up; then yields once.
pub(crate) fn spin_while(is_held: impl Fn() -> bool) {
    if cfg!(loom) {
        return; // models sleep at once: spinning adds no other behavior
    }
    for round in 0..SPIN_ROUNDS {
        if !is_held() {
            return;
        }
        // Multiples of an odd number replace random numbers.
        (0..round.wrapping_mul(11) % SPIN_DELAY * 10).for_each(|_| hint::spin_loop());
    }
    thread::yield_now();
}

/// A mutex with a site under which its waits and holds are traced.
#[derive(Debug)]
pub struct SyncMutex<T> {
    word: AtomicU32,
    site: &'static Site,
    value: UnsafeCell<T>,
    /// Lets a model detect that two threads use the value without an order between them.
    #[cfg(loom)]
    witness: loom::cell::UnsafeCell<()>,
}

// SAFETY: SYNC-1 gives the value to one thread at a time, so `T: Send` is enough for the mutex to be shared.
unsafe impl<T: Send> Sync for SyncMutex<T> {}

impl<T> SyncMutex<T> {
    /// Creates a free mutex around `value`.
    #[must_use]
    pub fn new(site: &'static Site, value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            site,
            value: UnsafeCell::new(value),
            #[cfg(loom)]
            witness: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Locks the mutex; blocks while another thread holds it. Contended waits are traced.
    #[inline]
    pub fn lock(&self) -> SyncMutexGuard<'_, T> {
        // Acquire: pairs with the Release of the guard's drop.
        if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        self.entered()
    }

    /// Locks the mutex if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<SyncMutexGuard<'_, T>> {
        // Acquire: as in `lock`.
        let taken = self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        taken.then(|| self.entered())
    }

    fn entered(&self) -> SyncMutexGuard<'_, T> {
        #[cfg(loom)]
        self.witness.with_mut(|_| ());
        let hold = hold(self.site, self.address(), HoldMode::Exclusive);
        SyncMutexGuard { mutex: self, value: PhantomData, _hold: hold }
    }

    fn address(&self) -> usize {
        &raw const self.word as usize
    }

    #[cold]
    fn wait(&self) {
        let _waiting = wait(self.site, self.address(), WaitKind::Latch);
        loop {
            // Relaxed: a hint; the CAS decides.
            spin_while(|| self.word.load(Relaxed) != FREE);
            // Acquire: as in `lock`.
            if self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
            let bucket = Bucket::of(self.address());
            let count = bucket.count();
            // SYNC-2. Acquire: as in `lock`, if the mutex has just become free. The stored 2 then causes a
            // needless wake-up at the next release.
            if self.word.swap(HELD_WITH_SLEEPERS, Acquire) == FREE {
                return;
            }
            bucket.sleep(count);
        }
    }

    /// Returns the value through the exclusive reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to the value of a [`SyncMutex`]. Threads may share the guard only if they may share the value:
///
/// ```compile_fail,E0277
/// use std::cell::Cell;
/// fn is_sync<T: Sync>() {}
/// is_sync::<azekura_baselines::SyncMutexGuard<'static, Cell<u32>>>(); // a `Cell` is `Send`, and not `Sync`
/// ```
#[derive(Debug)]
#[must_use]
pub struct SyncMutexGuard<'a, T> {
    mutex: &'a SyncMutex<T>,
    /// The guard is an exclusive reference to the value: it is `Sync` and `Send` if that reference is.
    value: PhantomData<&'a mut T>,
    /// Dropped after the mutex is released.
    _hold: HoldGuard,
}

impl<T> Deref for SyncMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: SYNC-1; this guard exists only in the thread that holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for SyncMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: SYNC-1; the guard is borrowed exclusively, so this is the only reference.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for SyncMutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next holder.
        if self.mutex.word.swap(FREE, Release) == HELD_WITH_SLEEPERS {
            Bucket::of(self.mutex.address()).wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static SITE: Site = Site::new("test");

    #[test]
    fn one_at_a_time_however_long_it_is_held() {
        let mutex = SyncMutex::new(&SITE, 0u64);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for i in 0..2_000 {
                        let mut value = mutex.lock();
                        let seen = *value;
                        if i % 500 == 0 {
                            // Longer than a thread spins, so that the other threads sleep.
                            std::thread::sleep(std::time::Duration::from_micros(200));
                        }
                        *value = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*mutex.lock(), 16_000);
    }

    #[test]
    fn try_lock_of_a_held_mutex_fails() {
        let mutex = SyncMutex::new(&SITE, ());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }
}
