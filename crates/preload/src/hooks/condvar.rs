//! Condition variables, semaphores, barriers and joins: waits for an action of another thread.
//!
//! These waits are recorded as idle, because a thread without work may wait for any time. A thread that was
//! woken, and later signals the same object itself, has used the object as a lock. This is recorded as a
//! hold, by which crates/record distinguishes locks from queues. The C library locks the mutex of a condition
//! variable again before it returns. A wait for the mutex there is part of the wait on the condition
//! variable.

use super::{address, begun, ended, ended_by, hook, is_valid, released, signals, taken};
use crate::next::next;
use crate::session::is_on;
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};
use libc::{
    c_int, c_void, clockid_t, pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_t, sem_t, timespec,
};

type Cond = *mut pthread_cond_t;
type Mutex = *mut pthread_mutex_t;

next!(WAIT: unsafe extern "C-unwind" fn(Cond, Mutex) -> c_int = condvar(c"pthread_cond_wait"));
next!(TIMED: unsafe extern "C-unwind" fn(Cond, Mutex, *const timespec) -> c_int =
    condvar(c"pthread_cond_timedwait"));
next!(CLOCK: unsafe extern "C-unwind" fn(Cond, Mutex, clockid_t, *const timespec) -> c_int =
    new(c"pthread_cond_clockwait"));
next!(SIGNAL: unsafe extern "C" fn(Cond) -> c_int = condvar(c"pthread_cond_signal"));
next!(BROADCAST: unsafe extern "C" fn(Cond) -> c_int = condvar(c"pthread_cond_broadcast"));
next!(POST: unsafe extern "C" fn(*mut sem_t) -> c_int = new(c"sem_post"));
next!(CLOCK_SEMAPHORE: unsafe extern "C-unwind" fn(*mut sem_t, clockid_t, *const timespec) -> c_int =
    new(c"sem_clockwait"));
next!(SEMAPHORE: unsafe extern "C-unwind" fn(*mut sem_t) -> c_int = new(c"sem_wait"));
next!(TRY_SEMAPHORE: unsafe extern "C-unwind" fn(*mut sem_t) -> c_int = new(c"sem_trywait"));
next!(TIMED_SEMAPHORE: unsafe extern "C-unwind" fn(*mut sem_t, *const timespec) -> c_int =
    new(c"sem_timedwait"));
next!(JOIN: unsafe extern "C-unwind" fn(pthread_t, *mut *mut c_void) -> c_int = new(c"pthread_join"));
next!(BARRIER: unsafe extern "C-unwind" fn(*mut pthread_barrier_t) -> c_int = new(c"pthread_barrier_wait"));

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

hook!(pthread_cond_wait => wait, "rdx", "x2");
hook!(pthread_cond_timedwait => timed_wait, "rcx", "x3");
hook!(pthread_cond_clockwait => clock_wait, "r8", "x4");
hook!(sem_wait => semaphore, "rsi", "x1");
hook!(sem_timedwait => timed_semaphore, "rdx", "x2");
hook!(sem_clockwait => clock_semaphore, "rcx", "x3");
hook!(pthread_cond_signal => signal, "rsi", "x1");
hook!(pthread_cond_broadcast => broadcast, "rsi", "x1");
hook!(sem_post => post, "rsi", "x1");
hook!(pthread_join => join, "rdx", "x2");
hook!(pthread_barrier_wait => barrier, "rsi", "x1");

/// Records `call`, in which `mutex` is released and taken again.
pub(super) fn waits(cond: Cond, mutex: Mutex, from: usize, call: impl FnOnce() -> c_int) -> c_int {
    released(address(mutex));
    let waiting = begun(Called::Condition, from, address(cond), WaitKind::Idle);
    let result = call();
    ended_by(waiting, result == 0);
    if result == 0 {
        taken(Called::Condition, from, address(cond), HoldMode::Exclusive);
    }
    taken(Called::Mutex, from, address(mutex), HoldMode::Exclusive);
    result
}

unsafe extern "C-unwind" fn wait(cond: Cond, mutex: Mutex, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant.
    let call = || unsafe { WAIT.get()(cond, mutex) };
    if is_on() { waits(cond, mutex, from, call) } else { call() }
}

unsafe extern "C-unwind" fn timed_wait(
    cond: Cond,
    mutex: Mutex,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `wait`.
    let call = || unsafe { TIMED.get()(cond, mutex, until) };
    if is_on() { waits(cond, mutex, from, call) } else { call() }
}

unsafe extern "C-unwind" fn clock_wait(
    cond: Cond,
    mutex: Mutex,
    clock: clockid_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `wait`.
    let call = || unsafe { CLOCK.get()(cond, mutex, clock, until) };
    if is_on() { waits(cond, mutex, from, call) } else { call() }
}

unsafe extern "C-unwind" fn signal(cond: Cond, from: usize) -> c_int {
    signals(Called::Condition, from, address(cond));
    // SAFETY: as in `wait`.
    let result = unsafe { SIGNAL.get()(cond) };
    released(address(cond));
    result
}

unsafe extern "C-unwind" fn broadcast(cond: Cond, from: usize) -> c_int {
    signals(Called::Condition, from, address(cond));
    // SAFETY: as in `wait`.
    let result = unsafe { BROADCAST.get()(cond) };
    released(address(cond));
    result
}

/// Tries to take the semaphore; if its value is 0, calls `wait` and records it as a wait.
///
/// # Safety
///
/// The semaphore must be valid.
unsafe fn semaphore_or(semaphore: *mut sem_t, from: usize, wait: impl FnOnce() -> c_int) -> c_int {
    if !is_on() {
        return wait();
    }
    // The C library's function is a cancellation point even if it does not wait; its try variant is not.
    // SAFETY: a canceled thread unwinds through this frame, which has no destructor (HOOK-4).
    unsafe { pthread_testcancel() };
    // SAFETY: by the caller's contract.
    let result = if unsafe { tried(semaphore) } {
        0
    } else {
        let waiting = begun(Called::Semaphore, from, address(semaphore), WaitKind::Idle);
        let result = wait();
        ended_by(waiting, result == 0);
        result
    };
    if result == 0 {
        taken(Called::Semaphore, from, address(semaphore), HoldMode::Exclusive);
    }
    result
}

unsafe extern "C-unwind" fn semaphore(semaphore: *mut sem_t, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant, or
    // to its try variant.
    unsafe { semaphore_or(semaphore, from, || SEMAPHORE.get()(semaphore)) }
}

unsafe extern "C-unwind" fn timed_semaphore(
    semaphore: *mut sem_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `semaphore`.
    unsafe {
        if !is_valid(libc::CLOCK_REALTIME, until) {
            return TIMED_SEMAPHORE.get()(semaphore, until);
        }
        semaphore_or(semaphore, from, || TIMED_SEMAPHORE.get()(semaphore, until))
    }
}

unsafe extern "C-unwind" fn clock_semaphore(
    semaphore: *mut sem_t,
    clock: clockid_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `semaphore`.
    unsafe {
        if !is_valid(clock, until) {
            return CLOCK_SEMAPHORE.get()(semaphore, clock, until);
        }
        semaphore_or(semaphore, from, || CLOCK_SEMAPHORE.get()(semaphore, clock, until))
    }
}

unsafe extern "C-unwind" fn post(semaphore: *mut sem_t, from: usize) -> c_int {
    let object = address(semaphore);
    signals(Called::Semaphore, from, object);
    // SAFETY: as in `semaphore`. Another thread may free the semaphore after this call.
    let result = unsafe { POST.get()(semaphore) };
    released(object);
    result
}

/// Tries to take the semaphore; returns `true` on success. A failure leaves `errno` unchanged (HOOK-1).
unsafe fn tried(semaphore: *mut sem_t) -> bool {
    // SAFETY: the caller's semaphore.
    crate::local::quietly(|| unsafe { TRY_SEMAPHORE.get()(semaphore) }) == 0
}

unsafe extern "C-unwind" fn join(thread: pthread_t, result: *mut *mut c_void, from: usize) -> c_int {
    // SAFETY: as in `wait`.
    let call = || unsafe { JOIN.get()(thread, result) };
    if !is_on() {
        return call();
    }
    let waiting = begun(Called::Join, from, thread as usize, WaitKind::Idle);
    let result = call();
    ended(waiting);
    result
}

unsafe extern "C-unwind" fn barrier(barrier: *mut pthread_barrier_t, from: usize) -> c_int {
    // SAFETY: as in `wait`.
    let call = || unsafe { BARRIER.get()(barrier) };
    if !is_on() {
        return call();
    }
    let waiting = begun(Called::Barrier, from, address(barrier), WaitKind::Idle);
    let result = call();
    ended(waiting);
    result
}
