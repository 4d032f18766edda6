//! Locks, condition variables, semaphores and barriers in far memory if the kernel does not wait for pages
//! (F1). A thread that waits makes the kernel read a word of the object. If the page of the word is paged out
//! at this moment, the kernel returns `EFAULT`, and the C library ends the program. So an object leaves far
//! memory before the first wait on it. A free lock is taken without a wait, and stays in far memory.

use super::once::Kept;
use crate::next::Next;
use crate::session::{is_unserved, unmanage};
use libc::{
    clockid_t, pthread_barrier_t, pthread_cond_t, pthread_mutex_t, pthread_rwlock_t, sem_t, timespec,
};
use std::ffi::c_int;

/// A function that takes a lock without a wait, or returns `EBUSY` or -1.
type Try<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// Makes an object leave far memory.
fn unmanage_object<T>(object: *mut T) {
    if is_unserved(object as usize, size_of::<T>()) {
        unmanage(object as usize, size_of::<T>());
    }
}

/// Takes a far lock if it is free, and returns the result. Otherwise makes it leave far memory.
///
/// # Safety
///
/// The lock is null, or one of the caller.
unsafe fn taken<T>(lock: *mut T, attempt: Try<T>) -> Option<c_int> {
    if is_unserved(lock as usize, size_of::<T>()) {
        // SAFETY: a far lock is not null, and the caller keeps this function's contract.
        let done = unsafe { attempt(lock) };
        if done != libc::EBUSY && done != -1 {
            return Some(done);
        }
        unmanage_object(lock);
    }
    None
}

macro_rules! locks {
    ($(
        $name:ident, $next:ident = $symbol:literal, $attempt:path,
        ($lock:ident: $kind:ty $(, $clock:ident: $of:ty)? $(; $time:ident)?);
    )+) => {
        $(
            static $next: Next<
                unsafe extern "C" fn(*mut $kind $(, $of)? $(, locks!(@ $time))?) -> c_int
            > = Next::new($symbol);

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                $lock: *mut $kind $(, $clock: $of)? $(, $time: locks!(@ $time))?
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    if let Some(done) = taken($lock, $attempt) {
                        return done;
                    }
                    $(
                        let mut kept = Kept::new($time.cast_mut());
                        let $time = kept.pointer().cast_const();
                    )?
                    $next.get()($lock $(, $clock)? $(, $time)?)
                }
            }
        )+

        fn resolve_locks() {
            $($next.resolve();)+
        }
    };
    (@ $time:ident) => { *const timespec };
}

locks! {
    pthread_mutex_lock, LOCK = c"pthread_mutex_lock", libc::pthread_mutex_trylock, (lock: pthread_mutex_t);
    pthread_mutex_timedlock, TIMED = c"pthread_mutex_timedlock", libc::pthread_mutex_trylock,
        (lock: pthread_mutex_t; until);
    pthread_mutex_clocklock, CLOCKED = c"pthread_mutex_clocklock", libc::pthread_mutex_trylock,
        (lock: pthread_mutex_t, clock: clockid_t; until);
    pthread_rwlock_rdlock, READ = c"pthread_rwlock_rdlock", libc::pthread_rwlock_tryrdlock,
        (lock: pthread_rwlock_t);
    pthread_rwlock_timedrdlock, TIMED_READ = c"pthread_rwlock_timedrdlock", libc::pthread_rwlock_tryrdlock,
        (lock: pthread_rwlock_t; until);
    pthread_rwlock_clockrdlock, CLOCKED_READ = c"pthread_rwlock_clockrdlock",
        libc::pthread_rwlock_tryrdlock, (lock: pthread_rwlock_t, clock: clockid_t; until);
    pthread_rwlock_wrlock, WRITE = c"pthread_rwlock_wrlock", libc::pthread_rwlock_trywrlock,
        (lock: pthread_rwlock_t);
    pthread_rwlock_timedwrlock, TIMED_WRITE = c"pthread_rwlock_timedwrlock", libc::pthread_rwlock_trywrlock,
        (lock: pthread_rwlock_t; until);
    pthread_rwlock_clockwrlock, CLOCKED_WRITE = c"pthread_rwlock_clockwrlock",
        libc::pthread_rwlock_trywrlock, (lock: pthread_rwlock_t, clock: clockid_t; until);
    sem_wait, SEM_WAIT = c"sem_wait", libc::sem_trywait, (semaphore: sem_t);
    sem_timedwait, SEM_TIMED = c"sem_timedwait", libc::sem_trywait, (semaphore: sem_t; until);
    sem_clockwait, SEM_CLOCKED = c"sem_clockwait", libc::sem_trywait,
        (semaphore: sem_t, clock: clockid_t; until);
}

type Wait = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t) -> c_int;
type WaitUntil = unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, *const timespec) -> c_int;
type WaitByClock =
    unsafe extern "C" fn(*mut pthread_cond_t, *mut pthread_mutex_t, clockid_t, *const timespec) -> c_int;

static COND_WAIT: Next<Wait> = Next::condvar(c"pthread_cond_wait");
static COND_TIMED: Next<WaitUntil> = Next::condvar(c"pthread_cond_timedwait");
static COND_CLOCKED: Next<WaitByClock> = Next::new(c"pthread_cond_clockwait");
static BARRIER: Next<unsafe extern "C" fn(*mut pthread_barrier_t) -> c_int> =
    Next::new(c"pthread_barrier_wait");

/// # Safety
///
/// The contract of the C library's function, which takes the mutex again.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_cond_wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    unmanage_object(condition);
    unmanage_object(mutex);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { COND_WAIT.get()(condition, mutex) }
}

/// # Safety
///
/// The contract of the C library's function, which takes the mutex again.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_cond_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    unmanage_object(condition);
    unmanage_object(mutex);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(until.cast_mut());
        COND_TIMED.get()(condition, mutex, kept.pointer())
    }
}

/// # Safety
///
/// The contract of the C library's function, which takes the mutex again.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_cond_clockwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    clock: clockid_t,
    until: *const timespec,
) -> c_int {
    unmanage_object(condition);
    unmanage_object(mutex);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(until.cast_mut());
        COND_CLOCKED.get()(condition, mutex, clock, kept.pointer())
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int {
    unmanage_object(barrier);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { BARRIER.get()(barrier) }
}

// The functions of C11 and `pthread_once`. A mutex of C11 is one of POSIX, and so is a condition.

type MutexCall = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;
type MutexUntil = unsafe extern "C" fn(*mut pthread_mutex_t, *const timespec) -> c_int;
type Once = unsafe extern "C" fn(*mut c_int, Option<unsafe extern "C" fn()>) -> c_int;
type C11Once = unsafe extern "C" fn(*mut c_int, Option<unsafe extern "C" fn()>);

static C11_TRY: Next<MutexCall> = Next::new(c"mtx_trylock");
static C11_LOCK: Next<MutexCall> = Next::new(c"mtx_lock");
static C11_TIMED: Next<MutexUntil> = Next::new(c"mtx_timedlock");
static C11_WAIT: Next<Wait> = Next::new(c"cnd_wait");
static C11_TIMED_WAIT: Next<WaitUntil> = Next::new(c"cnd_timedwait");
static ONCE: Next<Once> = Next::new(c"pthread_once");
static C11_ONCE: Next<C11Once> = Next::new(c"call_once");

/// Takes a far mutex of C11 if it is free, and returns `true`. Otherwise makes it leave far memory.
///
/// # Safety
///
/// The mutex is one of the caller.
unsafe fn taken_c11(mutex: *mut pthread_mutex_t) -> bool {
    let is_far = is_unserved(mutex as usize, size_of::<pthread_mutex_t>());
    // SAFETY: the caller keeps this function's contract.
    if is_far && unsafe { C11_TRY.get()(mutex) } == 0 {
        return true;
    }
    unmanage_object(mutex);
    false
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mtx_lock(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { if taken_c11(mutex) { 0 } else { C11_LOCK.get()(mutex) } }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mtx_timedlock(mutex: *mut pthread_mutex_t, until: *const timespec) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if taken_c11(mutex) {
            return 0;
        }
        let mut kept = Kept::new(until.cast_mut());
        C11_TIMED.get()(mutex, kept.pointer())
    }
}

/// # Safety
///
/// The contract of the C library's function, which takes the mutex again.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cnd_wait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
) -> c_int {
    unmanage_object(condition);
    unmanage_object(mutex);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { C11_WAIT.get()(condition, mutex) }
}

/// # Safety
///
/// The contract of the C library's function, which takes the mutex again.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cnd_timedwait(
    condition: *mut pthread_cond_t,
    mutex: *mut pthread_mutex_t,
    until: *const timespec,
) -> c_int {
    unmanage_object(condition);
    unmanage_object(mutex);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(until.cast_mut());
        C11_TIMED_WAIT.get()(condition, mutex, kept.pointer())
    }
}

/// # Safety
///
/// The contract of the C library's function. Other threads wait on the word until the function has returned.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_once(word: *mut c_int, run: Option<unsafe extern "C" fn()>) -> c_int {
    unmanage_object(word);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { ONCE.get()(word, run) }
}

/// # Safety
///
/// The contract of the C library's function, which returns nothing. Other threads wait as in `pthread_once`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn call_once(word: *mut c_int, run: Option<unsafe extern "C" fn()>) {
    unmanage_object(word);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { C11_ONCE.get()(word, run) }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    C11_TRY.resolve();
    C11_LOCK.resolve();
    C11_TIMED.resolve();
    C11_WAIT.resolve();
    C11_TIMED_WAIT.resolve();
    ONCE.resolve();
    C11_ONCE.resolve();
    resolve_locks();
    COND_WAIT.resolve();
    COND_TIMED.resolve();
    COND_CLOCKED.resolve();
    BARRIER.resolve();
}
