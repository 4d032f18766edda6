//! Reader-writer locks. A hook first tries to lock, and records a wait only if that fails. Holds are sampled
//! at random.

use super::{address, begun, ended_by, hook, is_valid, released, taken};
use crate::next::{Next, next};
use crate::session::{if_recording, is_on, passes_over_hold};
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};
use libc::{c_int, clockid_t, pthread_rwlock_t, pthread_rwlockattr_t, timespec};

type Lock = *mut pthread_rwlock_t;
type Plain = unsafe extern "C" fn(Lock) -> c_int;
type Timed = unsafe extern "C" fn(Lock, *const timespec) -> c_int;
type Clock = unsafe extern "C" fn(Lock, clockid_t, *const timespec) -> c_int;

next!(READ: Plain = new(c"pthread_rwlock_rdlock"));
next!(TRY_READ: Plain = new(c"pthread_rwlock_tryrdlock"));
next!(TIMED_READ: Timed = new(c"pthread_rwlock_timedrdlock"));
next!(WRITE: Plain = new(c"pthread_rwlock_wrlock"));
next!(TRY_WRITE: Plain = new(c"pthread_rwlock_trywrlock"));
next!(TIMED_WRITE: Timed = new(c"pthread_rwlock_timedwrlock"));
next!(CLOCK_READ: Clock = new(c"pthread_rwlock_clockrdlock"));
next!(CLOCK_WRITE: Clock = new(c"pthread_rwlock_clockwrlock"));
next!(UNLOCK: Plain = new(c"pthread_rwlock_unlock"));
next!(INIT: unsafe extern "C" fn(Lock, *const pthread_rwlockattr_t) -> c_int = new(c"pthread_rwlock_init"));

hook!(pthread_rwlock_rdlock => read, "rsi", "x1");
hook!(pthread_rwlock_wrlock => write, "rsi", "x1");
hook!(pthread_rwlock_timedrdlock => timed_read, "rdx", "x2");
hook!(pthread_rwlock_timedwrlock => timed_write, "rdx", "x2");
hook!(pthread_rwlock_clockrdlock => clock_read, "rcx", "x3");
hook!(pthread_rwlock_clockwrlock => clock_write, "rcx", "x3");
hook!(pthread_rwlock_unlock => unlock, "rsi", "x1");
hook!(pthread_rwlock_init => init, "rdx", "x2");

/// Returns the result of a try-lock; if the lock is held, calls `wait` and records it as a wait.
fn taken_or(from: usize, lock: Lock, mode: HoldMode, tried: c_int, wait: impl FnOnce() -> c_int) -> c_int {
    let result = if tried == libc::EBUSY {
        let waiting = begun(Called::Rwlock, from, address(lock), WaitKind::Latch);
        let result = wait();
        ended_by(waiting, result != libc::ETIMEDOUT);
        result
    } else {
        tried
    };
    if result == 0 {
        taken(Called::Rwlock, from, address(lock), mode);
    }
    result
}

/// Takes a read lock. In most calls it only tries to lock and counts down the thread's counter of holds.
unsafe extern "C-unwind" fn read(lock: Lock, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant, or
    // to its try variant.
    unsafe {
        let tried = TRY_READ.get()(lock);
        if tried == 0 && passes_over_hold() {
            return 0;
        }
        tried_lock(lock, from, tried, HoldMode::Shared, READ.get())
    }
}

unsafe extern "C-unwind" fn write(lock: Lock, from: usize) -> c_int {
    // SAFETY: as in `read`.
    unsafe {
        let tried = TRY_WRITE.get()(lock);
        if tried == 0 && passes_over_hold() {
            return 0;
        }
        tried_lock(lock, from, tried, HoldMode::Exclusive, WRITE.get())
    }
}

/// Completes [`read`] and [`write`] in the cases that may be recorded.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn tried_lock(
    lock: Lock,
    from: usize,
    tried: c_int,
    mode: HoldMode,
    wait: Plain,
) -> c_int {
    // SAFETY: as in `read`.
    unsafe {
        match (is_on(), tried) {
            (true, _) => taken_or(from, lock, mode, tried, || wait(lock)),
            (false, libc::EBUSY) => wait(lock),
            (false, _) => tried,
        }
    }
}

/// Acquires a lock until a time of a clock: `wait` is the call of the program, and `tried` the same call
/// without a wait.
unsafe fn acquire_until(
    (clock, until): (clockid_t, *const timespec),
    from: usize,
    lock: Lock,
    mode: HoldMode,
    tried: &Next<Plain>,
    wait: impl Fn() -> c_int,
) -> c_int {
    // SAFETY: as in `read`.
    unsafe {
        if !is_on() || !is_valid(clock, until) {
            return wait();
        }
        taken_or(from, lock, mode, tried.get()(lock), wait)
    }
}

unsafe extern "C-unwind" fn timed_read(lock: Lock, until: *const timespec, from: usize) -> c_int {
    let limit = (libc::CLOCK_REALTIME, until);
    // SAFETY: as in `read`.
    let wait = || unsafe { TIMED_READ.get()(lock, until) };
    // SAFETY: as in `read`.
    unsafe { acquire_until(limit, from, lock, HoldMode::Shared, &TRY_READ, wait) }
}

unsafe extern "C-unwind" fn timed_write(lock: Lock, until: *const timespec, from: usize) -> c_int {
    let limit = (libc::CLOCK_REALTIME, until);
    // SAFETY: as in `read`.
    let wait = || unsafe { TIMED_WRITE.get()(lock, until) };
    // SAFETY: as in `read`.
    unsafe { acquire_until(limit, from, lock, HoldMode::Exclusive, &TRY_WRITE, wait) }
}

unsafe extern "C-unwind" fn clock_read(
    lock: Lock,
    clock: clockid_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `read`.
    let wait = || unsafe { CLOCK_READ.get()(lock, clock, until) };
    // SAFETY: as in `read`.
    unsafe { acquire_until((clock, until), from, lock, HoldMode::Shared, &TRY_READ, wait) }
}

unsafe extern "C-unwind" fn clock_write(
    lock: Lock,
    clock: clockid_t,
    until: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `read`.
    let wait = || unsafe { CLOCK_WRITE.get()(lock, clock, until) };
    // SAFETY: as in `read`.
    unsafe { acquire_until((clock, until), from, lock, HoldMode::Exclusive, &TRY_WRITE, wait) }
}

unsafe extern "C-unwind" fn unlock(lock: Lock, _from: usize) -> c_int {
    // SAFETY: as in `read`.
    let result = unsafe { UNLOCK.get()(lock) };
    released(address(lock));
    result
}

unsafe extern "C-unwind" fn init(lock: Lock, attributes: *const pthread_rwlockattr_t, from: usize) -> c_int {
    if_recording(|thread| thread.mark(Called::Rwlock, from, address(lock)));
    // SAFETY: as in `read`.
    unsafe { INIT.get()(lock, attributes) }
}
