//! System calls that deliver a result once (F1): the state of a child that has ended, a connection, a signal,
//! the value that the call replaces. If the kernel cannot write such a result into far memory, the result is
//! lost, so the call cannot be repeated (`again`). The kernel gets ordinary memory, and the calling thread
//! copies the result.

use super::fail;
use super::given::{asked, filled, numbered, reads, writes};
use crate::next::Next;
use crate::session::is_unserved;
use libc::{c_char, c_uint, off_t, pid_t, siginfo_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// Ordinary memory in place of a value of the program, if the kernel cannot access that value.
pub(super) struct Kept<T> {
    of: *mut T,
    is_far: bool,
    value: MaybeUninit<T>,
}

impl<T> Kept<T> {
    /// # Safety
    ///
    /// The pointer is null, or the caller may read and write the value.
    pub(super) unsafe fn new(of: *mut T) -> Self {
        let is_far = is_unserved(of as usize, size_of::<T>());
        let value = if is_far {
            // SAFETY: a far pointer is not null. The value may be uninitialized, which this type permits.
            unsafe { of.cast::<MaybeUninit<T>>().read() }
        } else {
            MaybeUninit::uninit()
        };
        Self { of, is_far, value }
    }

    pub(super) fn pointer(&mut self) -> *mut T {
        if self.is_far { self.value.as_mut_ptr() } else { self.of }
    }

    /// Copies the value back.
    ///
    /// # Safety
    ///
    /// The contract of `new`.
    pub(super) unsafe fn give_back(self) {
        if self.is_far {
            // SAFETY: the caller keeps this function's contract.
            unsafe { self.of.cast::<MaybeUninit<T>>().write(self.value) }
        }
    }
}

macro_rules! once {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = [$($kept:ident),+];)+) => {
        next_functions! { $($name: unsafe extern "C" fn($($kind),*) -> $result;)+ }

        /// Finds all functions.
        pub(super) fn resolve() {
            $(next::$name.resolve();)+
            ACCEPT.resolve();
            ACCEPT4.resolve();
            NANOSLEEP.resolve();
            THRD_SLEEP.resolve();
            CLOCK_NANOSLEEP.resolve();
            GETSOCKOPT.resolve();
            resolve_names();
        }

        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    $(let mut $kept = Kept::new($kept);)+
                    let result = {
                        $(let $kept = $kept.pointer();)+
                        next::$name.get()($($argument),*)
                    };
                    if result != -1 {
                        $($kept.give_back();)+
                    }
                    result
                }
            }
        )+
    };
}

type Usage = libc::rusage;
type Interval = libc::itimerval;
type Timer = libc::itimerspec;
type Signals = libc::sigset_t;
type Queue = libc::mq_attr;

// Arguments that are constant in C are copied back unchanged.
once! {
    wait(state: *mut c_int) -> pid_t = [state];
    waitpid(process: pid_t, state: *mut c_int, options: c_int) -> pid_t = [state];
    wait3(state: *mut c_int, options: c_int, usage: *mut Usage) -> pid_t = [state, usage];
    wait4(process: pid_t, state: *mut c_int, options: c_int, usage: *mut Usage) -> pid_t = [state, usage];
    waitid(kind: c_uint, id: libc::id_t, state: *mut siginfo_t, options: c_int) -> c_int = [state];
    pipe(fds: *mut [c_int; 2]) -> c_int = [fds];
    pipe2(fds: *mut [c_int; 2], flags: c_int) -> c_int = [fds];
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut [c_int; 2]) -> c_int = [fds];
    sendfile(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t = [at];
    sendfile64(to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t = [at];
    splice(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint)
        -> ssize_t = [at, to_at];
    copy_file_range(
        from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint
    ) -> ssize_t = [at, to_at];
    eventfd_read(fd: c_int, value: *mut u64) -> c_int = [value];
    setitimer(which: c_int, new: *mut Interval, old: *mut Interval) -> c_int = [new, old];
    timerfd_settime(fd: c_int, flags: c_int, new: *mut Timer, old: *mut Timer) -> c_int = [new, old];
    timer_settime(timer: libc::timer_t, flags: c_int, new: *mut Timer, old: *mut Timer) -> c_int = [new, old];
    mq_setattr(queue: c_int, new: *mut Queue, old: *mut Queue) -> c_int = [new, old];
    adjtimex(time: *mut libc::timex) -> c_int = [time];
    clock_adjtime(clock: c_int, time: *mut libc::timex) -> c_int = [time];
    timespec_get(time: *mut timespec, base: c_int) -> c_int = [time];
    timespec_getres(time: *mut timespec, base: c_int) -> c_int = [time];
    pthread_timedjoin_np(thread: libc::pthread_t, result: *mut *mut c_void, until: *mut timespec) -> c_int =
        [until];
    pthread_clockjoin_np(
        thread: libc::pthread_t, result: *mut *mut c_void, clock: c_int, until: *mut timespec
    ) -> c_int = [until];
    sigwaitinfo(set: *mut Signals, signal: *mut siginfo_t) -> c_int = [set, signal];
    sigtimedwait(set: *mut Signals, signal: *mut siginfo_t, time: *mut timespec) -> c_int =
        [set, signal, time];
}

type Sleep = unsafe extern "C" fn(*const timespec, *mut timespec) -> c_int;
type Nap = unsafe extern "C" fn(c_int, c_int, *const timespec, *mut timespec) -> c_int;
type GetOption = unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;

static NANOSLEEP: Next<Sleep> = Next::new(c"nanosleep");
static THRD_SLEEP: Next<Sleep> = Next::new(c"thrd_sleep");
static CLOCK_NANOSLEEP: Next<Nap> = Next::new(c"clock_nanosleep");
static GETSOCKOPT: Next<GetOption> = Next::new(c"getsockopt");

/// Longest value of a socket option that is kept in ordinary memory. Longer values are tables, which the
/// kernel can return again.
const OPTION: usize = 4096;

/// # Safety
///
/// The contract of the C library's function. The kernel writes the rest of the time after it has waited.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nanosleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(left);
        let left = kept.pointer();
        let result = asked(&[reads(time, 16)], || NANOSLEEP.get()(time, left));
        kept.give_back();
        result
    }
}

/// # Safety
///
/// The contract of the C library's function. The kernel writes the rest of the time after it has waited.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn thrd_sleep(time: *const timespec, left: *mut timespec) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let (mut time, mut left) = (Kept::new(time.cast_mut()), Kept::new(left));
        let result = THRD_SLEEP.get()(time.pointer(), left.pointer());
        left.give_back();
        result
    }
}

/// # Safety
///
/// The contract of the C library's function. The kernel writes the rest of the time after it has waited.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn clock_nanosleep(
    clock: c_int,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(left);
        let left = kept.pointer();
        let number = numbered(&[reads(time, 16)], || CLOCK_NANOSLEEP.get()(clock, flags, time, left));
        kept.give_back();
        number
    }
}

/// # Safety
///
/// The contract of the C library's function. The kernel clears some options when it returns them
/// (`SO_ERROR`).
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function. The copy is not longer than the caller's
    // buffer.
    unsafe {
        let is_far = is_unserved(value as usize, 1) || is_unserved(length as usize, size_of::<socklen_t>());
        let given =
            if is_far && !value.is_null() && !length.is_null() { *length as usize } else { usize::MAX };
        if given > OPTION {
            let arguments = [writes(value, OPTION), filled(length)];
            return asked(&arguments, || GETSOCKOPT.get()(fd, level, name, value, length));
        }
        let mut kept = [0_u8; OPTION];
        ptr::copy_nonoverlapping(value.cast::<u8>(), kept.as_mut_ptr(), given);
        let mut known = given as socklen_t;
        let result = GETSOCKOPT.get()(fd, level, name, kept.as_mut_ptr().cast(), &raw mut known);
        if result == 0 {
            ptr::copy_nonoverlapping(kept.as_ptr(), value.cast::<u8>(), given.min(known as usize));
        }
        *length = known;
        result
    }
}

type Accept = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type Accept4 = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;

static ACCEPT: Next<Accept> = Next::new(c"accept");
static ACCEPT4: Next<Accept4> = Next::new(c"accept4");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept(fd: c_int, name: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { accepted(name, length, |name, length| ACCEPT.get()(fd, name, length)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept4(
    fd: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { accepted(name, length, |name, length| ACCEPT4.get()(fd, name, length, flags)) }
}

/// Accepts a connection, with the address of its peer in ordinary memory.
///
/// # Safety
///
/// The contract of `accept`.
unsafe fn accepted(
    name: *mut sockaddr,
    length: *mut socklen_t,
    call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    let is_far = is_unserved(name as usize, size_of::<sockaddr>()) || is_unserved(length as usize, 4);
    if !is_far || name.is_null() || length.is_null() {
        return call(name, length);
    }
    // SAFETY: all zeros is a valid address. The copy is not longer than the caller's buffer.
    unsafe {
        let mut kept: libc::sockaddr_storage = std::mem::zeroed();
        let given = *length;
        if given > i32::MAX as socklen_t {
            fail(libc::EINVAL);
            return -1;
        }
        let mut known = given.min(size_of_val(&kept) as socklen_t);
        let result = call((&raw mut kept).cast(), &raw mut known);
        if result >= 0 {
            let bytes = known.min(given) as usize;
            ptr::copy_nonoverlapping((&raw const kept).cast::<u8>(), name.cast(), bytes);
            *length = known;
        }
        result
    }
}

/// Makes a call that replaces a part of a file name, with the name in ordinary memory. After a failure the C
/// library has replaced that part, too, so the call cannot be repeated.
///
/// # Safety
///
/// The name is one of the program, which the caller may write.
unsafe fn named<R>(name: *mut c_char, call: impl FnOnce(*mut c_char) -> R) -> R {
    let mut kept = [0; libc::PATH_MAX as usize];
    // SAFETY: the caller keeps this function's contract. The name fits into the copy.
    unsafe {
        if !is_unserved(name as usize, 1) || libc::strlen(name) >= kept.len() {
            return call(name);
        }
        let bytes = libc::strlen(name) + 1;
        ptr::copy_nonoverlapping(name, kept.as_mut_ptr(), bytes);
        let result = call(kept.as_mut_ptr());
        ptr::copy_nonoverlapping(kept.as_ptr(), name, bytes);
        result
    }
}

macro_rules! names {
    ($($name:ident, $next:ident, $symbol:literal $(, $flags:ident)*;)+) => {
        $(
            static $next: Next<unsafe extern "C" fn(*mut c_char $(, names!(@ $flags))*) -> c_int> =
                Next::new($symbol);

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(name: *mut c_char $(, $flags: c_int)*) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { named(name, |name| $next.get()(name $(, $flags)*)) }
            }
        )+

        fn resolve_names() {
            $($next.resolve();)+
            MKDTEMP.resolve();
            MKTEMP.resolve();
        }
    };
    (@ $flags:ident) => { c_int };
}

names! {
    mkstemp, MKSTEMP, c"mkstemp";
    mkstemp64, MKSTEMP64, c"mkstemp64";
    mkostemp, MKOSTEMP, c"mkostemp", flags;
    mkostemp64, MKOSTEMP64, c"mkostemp64", flags;
    mkstemps, MKSTEMPS, c"mkstemps", suffix;
    mkstemps64, MKSTEMPS64, c"mkstemps64", suffix;
    mkostemps, MKOSTEMPS, c"mkostemps", suffix, flags;
    mkostemps64, MKOSTEMPS64, c"mkostemps64", suffix, flags;
}

type Name = unsafe extern "C" fn(*mut c_char) -> *mut c_char;

static MKDTEMP: Next<Name> = Next::new(c"mkdtemp");
static MKTEMP: Next<Name> = Next::new(c"mktemp");

/// # Safety
///
/// The contract of the C library's function, which makes the name empty if it finds none.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mktemp(name: *mut c_char) -> *mut c_char {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { named(name, |name| MKTEMP.get()(name)) };
    name
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mkdtemp(name: *mut c_char) -> *mut c_char {
    // SAFETY: the caller keeps the contract of the C function.
    let made = unsafe { named(name, |name| MKDTEMP.get()(name)) };
    if made.is_null() { made } else { name }
}
