//! Mutexes and spin locks. A hook first tries to lock, and records a wait only if that fails. Holds are
//! sampled at random.
//!
//! A robust mutex is not tried first: if it is not recoverable, glibc's `pthread_mutex_trylock` returns the
//! error and leaves the mutex locked, so the program's next lock would never return. Its wait is recorded if
//! the thread left its processor.

use super::{address, begun, ended_by, hook, is_valid, released, taken, watched};
use crate::next::next;
use crate::session::{if_recording, is_on, is_planted, passes_over_hold, planted};
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};
use libc::{c_int, clockid_t, pthread_mutex_t, pthread_mutexattr_t, pthread_spinlock_t, timespec};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

type Mutex = *mut pthread_mutex_t;
type Spin = *mut pthread_spinlock_t;

next!(LOCK: unsafe extern "C" fn(Mutex) -> c_int = new(c"pthread_mutex_lock"));
next!(TRY: unsafe extern "C" fn(Mutex) -> c_int = new(c"pthread_mutex_trylock"));
next!(TIMED: unsafe extern "C" fn(Mutex, *const timespec) -> c_int = new(c"pthread_mutex_timedlock"));
next!(CLOCK: unsafe extern "C" fn(Mutex, clockid_t, *const timespec) -> c_int =
    new(c"pthread_mutex_clocklock"));
next!(UNLOCK: unsafe extern "C" fn(Mutex) -> c_int = new(c"pthread_mutex_unlock"));
next!(INIT: unsafe extern "C" fn(Mutex, *const pthread_mutexattr_t) -> c_int = new(c"pthread_mutex_init"));
next!(SPIN: unsafe extern "C" fn(Spin) -> c_int = new(c"pthread_spin_lock"));
next!(TRY_SPIN: unsafe extern "C" fn(Spin) -> c_int = new(c"pthread_spin_trylock"));
next!(UNSPIN: unsafe extern "C" fn(Spin) -> c_int = new(c"pthread_spin_unlock"));

hook!(pthread_mutex_lock => lock, "rsi", "x1");
hook!(pthread_mutex_trylock => try_lock, "rsi", "x1");
hook!(pthread_mutex_timedlock => timed_lock, "rdx", "x2");
hook!(pthread_mutex_clocklock => clock_lock, "rcx", "x3");
hook!(pthread_mutex_unlock => unlock, "rsi", "x1");
hook!(pthread_mutex_init => init, "rdx", "x2");
hook!(pthread_spin_lock => spin_lock, "rsi", "x1");
hook!(pthread_spin_unlock => spin_unlock, "rsi", "x1");

/// Returns the result of a try-lock; if another thread holds the mutex, calls `wait` and records it as a
/// wait.
fn taken_or(called: Called, from: usize, object: usize, tried: c_int, wait: impl FnOnce() -> c_int) -> c_int {
    let result = if tried == libc::EBUSY {
        let waiting = begun(called, from, object, WaitKind::Latch);
        let result = wait();
        ended_by(waiting, result != libc::ETIMEDOUT);
        result
    } else {
        tried
    };
    if result == 0 || result == libc::EOWNERDEAD {
        taken(called, from, object, HoldMode::Exclusive);
        planted(object);
    }
    result
}

/// Returns `true` if the mutex is robust, by the bit of its kind that all initializers contain.
#[inline]
unsafe fn is_robust(mutex: Mutex) -> bool {
    /// Offset of the kind in the mutex of 64-bit processors.
    const KIND_AT: usize = 16;
    const ROBUST: i32 = 16;
    // SAFETY: the caller's mutex. The C library changes other bits of the kind, atomically.
    let kind = unsafe { AtomicI32::from_ptr(mutex.cast::<i32>().byte_add(KIND_AT)) };
    kind.load(Relaxed) & ROBUST != 0 // Relaxed: the bit is constant
}

/// Locks a robust mutex by `lock`.
#[cold]
#[inline(never)]
fn lock_robust(mutex: Mutex, from: usize, lock: impl FnOnce() -> c_int) -> c_int {
    let result = watched(Called::Mutex, address(mutex), from, || WaitKind::Latch, lock);
    if is_on() && matches!(result, 0 | libc::EOWNERDEAD) {
        taken(Called::Mutex, from, address(mutex), HoldMode::Exclusive);
        planted(address(mutex));
    }
    result
}

/// Locks a mutex. In most calls it only tries to lock and counts down the thread's counter of holds.
unsafe extern "C-unwind" fn lock(mutex: Mutex, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant, or
    // to its try variant.
    unsafe {
        if is_robust(mutex) {
            return lock_robust(mutex, from, || LOCK.get()(mutex));
        }
        let tried = TRY.get()(mutex);
        if tried == 0 && !is_planted(address(mutex)) && passes_over_hold() {
            return 0;
        }
        tried_lock(mutex, from, tried)
    }
}

/// Completes [`lock`] in the cases that may be recorded.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn tried_lock(mutex: Mutex, from: usize, tried: c_int) -> c_int {
    // SAFETY: as in `lock`.
    unsafe {
        match (is_on(), tried) {
            (true, _) => taken_or(Called::Mutex, from, address(mutex), tried, || LOCK.get()(mutex)),
            (false, libc::EBUSY) => LOCK.get()(mutex),
            (false, _) => tried,
        }
    }
}

unsafe extern "C-unwind" fn try_lock(mutex: Mutex, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let result = unsafe { TRY.get()(mutex) };
    if result == 0 && is_on() {
        taken(Called::Mutex, from, address(mutex), HoldMode::Exclusive);
    }
    result
}

unsafe extern "C-unwind" fn timed_lock(mutex: Mutex, until: *const timespec, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    unsafe {
        if !is_on() {
            return TIMED.get()(mutex, until);
        }
        if is_robust(mutex) {
            return lock_robust(mutex, from, || TIMED.get()(mutex, until));
        }
        taken_or(Called::Mutex, from, address(mutex), TRY.get()(mutex), || TIMED.get()(mutex, until))
    }
}

unsafe extern "C-unwind" fn clock_lock(
    mutex: Mutex,
    clock: clockid_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `lock`.
    unsafe {
        if !is_on() || !is_valid(clock, until) {
            return CLOCK.get()(mutex, clock, until);
        }
        if is_robust(mutex) {
            return lock_robust(mutex, from, || CLOCK.get()(mutex, clock, until));
        }
        taken_or(Called::Mutex, from, address(mutex), TRY.get()(mutex), || CLOCK.get()(mutex, clock, until))
    }
}

unsafe extern "C-unwind" fn unlock(mutex: Mutex, _from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let result = unsafe { UNLOCK.get()(mutex) };
    released(address(mutex));
    result
}

/// Records the place that created a mutex, which names the mutex if it is not a variable.
unsafe extern "C-unwind" fn init(mutex: Mutex, attributes: *const pthread_mutexattr_t, from: usize) -> c_int {
    if_recording(|thread| thread.mark(Called::Mutex, from, address(mutex)));
    // SAFETY: as in `lock`.
    unsafe { INIT.get()(mutex, attributes) }
}

unsafe extern "C-unwind" fn spin_lock(lock: Spin, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    unsafe {
        if !is_on() {
            return SPIN.get()(lock);
        }
        taken_or(Called::SpinLock, from, address(lock), TRY_SPIN.get()(lock), || SPIN.get()(lock))
    }
}

unsafe extern "C-unwind" fn spin_unlock(lock: Spin, _from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let result = unsafe { UNSPIN.get()(lock) };
    released(address(lock));
    result
}
