//! The functions of ISO C for threads, mutexes and condition variables. In glibc, the objects are those of
//! POSIX, but the results differ.

use super::condvar::waits;
use super::{address, begun, ended, ended_by, hook, released, signals, taken};
use crate::next::next;
use crate::session::is_on;
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};
use libc::{c_int, pthread_cond_t, pthread_mutex_t, pthread_t, timespec};

type Mutex = *mut pthread_mutex_t;
type Cond = *mut pthread_cond_t;

const SUCCESS: c_int = 0;
const BUSY: c_int = 1;

next!(LOCK: unsafe extern "C" fn(Mutex) -> c_int = new(c"mtx_lock"));
next!(TRY: unsafe extern "C" fn(Mutex) -> c_int = new(c"mtx_trylock"));
next!(TIMED: unsafe extern "C" fn(Mutex, *const timespec) -> c_int = new(c"mtx_timedlock"));
next!(UNLOCK: unsafe extern "C" fn(Mutex) -> c_int = new(c"mtx_unlock"));
next!(WAIT: unsafe extern "C-unwind" fn(Cond, Mutex) -> c_int = new(c"cnd_wait"));
next!(TIMED_WAIT: unsafe extern "C-unwind" fn(Cond, Mutex, *const timespec) -> c_int = new(c"cnd_timedwait"));
next!(SIGNAL: unsafe extern "C" fn(Cond) -> c_int = new(c"cnd_signal"));
next!(BROADCAST: unsafe extern "C" fn(Cond) -> c_int = new(c"cnd_broadcast"));
next!(JOIN: unsafe extern "C-unwind" fn(pthread_t, *mut c_int) -> c_int = new(c"thrd_join"));
next!(SLEEP: unsafe extern "C-unwind" fn(*const timespec, *mut timespec) -> c_int = new(c"thrd_sleep"));

hook!(mtx_lock => lock, "rsi", "x1");
hook!(mtx_trylock => try_lock, "rsi", "x1");
hook!(mtx_timedlock => timed_lock, "rdx", "x2");
hook!(mtx_unlock => unlock, "rsi", "x1");
hook!(cnd_wait => wait, "rdx", "x2");
hook!(cnd_timedwait => timed_wait, "rcx", "x3");
hook!(cnd_signal => signal, "rsi", "x1");
hook!(cnd_broadcast => broadcast, "rsi", "x1");
hook!(thrd_join => join, "rdx", "x2");
hook!(thrd_sleep => sleep, "rdx", "x2");

/// Tries to lock; if another thread has the mutex, calls `wait` and records it as a wait.
///
/// # Safety
///
/// The mutex must be valid.
unsafe fn lock_or(mutex: Mutex, from: usize, wait: impl FnOnce() -> c_int) -> c_int {
    if !is_on() {
        return wait();
    }
    // SAFETY: by the caller's contract.
    let mut result = unsafe { TRY.get()(mutex) };
    if result == BUSY {
        let waiting = begun(Called::Mutex, from, address(mutex), WaitKind::Latch);
        result = wait();
        ended_by(waiting, result == SUCCESS);
    }
    if result == SUCCESS {
        taken(Called::Mutex, from, address(mutex), HoldMode::Exclusive);
    }
    result
}

unsafe extern "C-unwind" fn lock(mutex: Mutex, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant, or
    // to its try variant.
    unsafe { lock_or(mutex, from, || LOCK.get()(mutex)) }
}

unsafe extern "C-unwind" fn timed_lock(mutex: Mutex, until: *const timespec, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    unsafe { lock_or(mutex, from, || TIMED.get()(mutex, until)) }
}

unsafe extern "C-unwind" fn try_lock(mutex: Mutex, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let result = unsafe { TRY.get()(mutex) };
    if result == SUCCESS {
        taken(Called::Mutex, from, address(mutex), HoldMode::Exclusive);
    }
    result
}

unsafe extern "C-unwind" fn unlock(mutex: Mutex, _from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let result = unsafe { UNLOCK.get()(mutex) };
    released(address(mutex));
    result
}

unsafe extern "C-unwind" fn wait(cond: Cond, mutex: Mutex, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let call = || unsafe { WAIT.get()(cond, mutex) };
    if is_on() { waits(cond, mutex, from, call) } else { call() }
}

unsafe extern "C-unwind" fn timed_wait(
    cond: Cond,
    mutex: Mutex,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `lock`.
    let call = || unsafe { TIMED_WAIT.get()(cond, mutex, until) };
    if is_on() { waits(cond, mutex, from, call) } else { call() }
}

unsafe extern "C-unwind" fn signal(cond: Cond, from: usize) -> c_int {
    signals(Called::Condition, from, address(cond));
    // SAFETY: as in `lock`.
    let result = unsafe { SIGNAL.get()(cond) };
    released(address(cond));
    result
}

unsafe extern "C-unwind" fn broadcast(cond: Cond, from: usize) -> c_int {
    signals(Called::Condition, from, address(cond));
    // SAFETY: as in `lock`.
    let result = unsafe { BROADCAST.get()(cond) };
    released(address(cond));
    result
}

unsafe extern "C-unwind" fn join(thread: pthread_t, result: *mut c_int, from: usize) -> c_int {
    // SAFETY: as in `lock`.
    let call = || unsafe { JOIN.get()(thread, result) };
    if !is_on() {
        return call();
    }
    let waiting = begun(Called::Join, from, thread as usize, WaitKind::Idle);
    let result = call();
    ended(waiting);
    result
}

unsafe extern "C-unwind" fn sleep(time: *const timespec, rest: *mut timespec, from: usize) -> c_int {
    super::watched(
        Called::Sleep,
        0,
        from,
        || WaitKind::Idle,
        || {
            // SAFETY: as in `lock`.
            unsafe { SLEEP.get()(time, rest) }
        },
    )
}
