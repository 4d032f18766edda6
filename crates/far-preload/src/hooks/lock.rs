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

static C11_TRY: Next<Try<pthread_mutex_t>> = Next::new(c"mtx_trylock");

/// Takes a mutex of C11, which is a mutex of POSIX with other result codes, or returns `EBUSY`.
///
/// # Safety
///
/// The contract of `mtx_trylock`.
unsafe extern "C" fn try_c11(mutex: *mut pthread_mutex_t) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    if unsafe { C11_TRY.get()(mutex) } == 0 { 0 } else { libc::EBUSY }
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
    mtx_lock, C11_LOCK = c"mtx_lock", try_c11, (lock: pthread_mutex_t);
    mtx_timedlock, C11_TIMED = c"mtx_timedlock", try_c11, (lock: pthread_mutex_t; until);
}

macro_rules! waits {
    ($($name:ident, $next:ident = $function:expr, ($($clock:ident: $of:ty)? $(; $time:ident)?);)+) => {
        $(
            static $next: Next<
                unsafe extern "C" fn(
                    *mut pthread_cond_t, *mut pthread_mutex_t $(, $of)? $(, locks!(@ $time))?
                ) -> c_int
            > = $function;

            /// # Safety
            ///
            /// The contract of the C library's function, which takes the mutex again.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                condition: *mut pthread_cond_t,
                mutex: *mut pthread_mutex_t
                $(, $clock: $of)? $(, $time: locks!(@ $time))?
            ) -> c_int {
                unmanage_object(condition);
                unmanage_object(mutex);
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    $(
                        let mut kept = Kept::new($time.cast_mut());
                        let $time = kept.pointer().cast_const();
                    )?
                    $next.get()(condition, mutex $(, $clock)? $(, $time)?)
                }
            }
        )+

        fn resolve_waits() {
            $($next.resolve();)+
        }
    };
}

waits! {
    pthread_cond_wait, COND_WAIT = Next::condvar(c"pthread_cond_wait"), ();
    pthread_cond_timedwait, COND_TIMED = Next::condvar(c"pthread_cond_timedwait"), (; until);
    pthread_cond_clockwait, COND_CLOCKED = Next::new(c"pthread_cond_clockwait"), (clock: clockid_t; until);
    cnd_wait, C11_WAIT = Next::new(c"cnd_wait"), ();
    cnd_timedwait, C11_TIMED_WAIT = Next::new(c"cnd_timedwait"), (; until);
}

static BARRIER: Next<unsafe extern "C" fn(*mut pthread_barrier_t) -> c_int> =
    Next::new(c"pthread_barrier_wait");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_barrier_wait(barrier: *mut pthread_barrier_t) -> c_int {
    unmanage_object(barrier);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { BARRIER.get()(barrier) }
}

type Once = unsafe extern "C" fn(*mut c_int, Option<unsafe extern "C" fn()>) -> c_int;
type C11Once = unsafe extern "C" fn(*mut c_int, Option<unsafe extern "C" fn()>);

static ONCE: Next<Once> = Next::new(c"pthread_once");
static C11_ONCE: Next<C11Once> = Next::new(c"call_once");

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
    resolve_locks();
    resolve_waits();
    BARRIER.resolve();
    ONCE.resolve();
    C11_ONCE.resolve();
}
