//! Calls that close or replace descriptors. They skip the layer's descriptors, which appear closed to the
//! program.

use super::fail;
use super::given::{asked, writes};
use crate::next::Next;
use azekura_far::{descriptors, sys};
use libc::c_long;
use std::ffi::{c_int, c_uint};
use std::ptr;

static CLOSE: Next<unsafe extern "C" fn(c_int) -> c_int> = Next::new(c"close");
static DUP: Next<unsafe extern "C" fn(c_int) -> c_int> = Next::new(c"dup");
static DUP2: Next<unsafe extern "C" fn(c_int, c_int) -> c_int> = Next::new(c"dup2");
static DUP3: Next<unsafe extern "C" fn(c_int, c_int, c_int) -> c_int> = Next::new(c"dup3");
static FCNTL: Next<unsafe extern "C" fn(c_int, c_int, usize) -> c_int> = Next::new(c"fcntl");

/// Returns `true` if a descriptor in a call of the program is hidden, and then sets `errno` to `EBADF`.
fn is_closed(fd: c_int) -> bool {
    let hides = !super::thread::is_ours() && descriptors::is_hidden(fd);
    if hides {
        fail(libc::EBADF);
    }
    hides
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if is_closed(fd) { -1 } else { unsafe { CLOSE.get()(fd) } }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if is_closed(fd) { -1 } else { unsafe { DUP.get()(fd) } }
}

/// # Safety
///
/// The contract of the C library's function. A number of a hidden descriptor is treated as above the limit.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if is_closed(fd) || is_closed(to) { -1 } else { unsafe { DUP2.get()(fd, to) } }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if is_closed(fd) || is_closed(to) { -1 } else { unsafe { DUP3.get()(fd, to, flags) } }
}

/// Size of the largest argument of `fcntl` in memory: `struct flock`.
const LOCK: usize = 32;

/// # Safety
///
/// The contract of the C library's function, which takes one argument after the command: a number, or the
/// address of a lock or of a shorter value.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if is_closed(fd) {
        return -1;
    }
    let given = [writes(ptr::with_exposed_provenance_mut::<u8>(argument), LOCK)];
    // SAFETY: the caller keeps the contract of the C function.
    asked(&given, || unsafe { FCNTL.get()(fd, command, argument) })
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { fcntl(fd, command, argument) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let call = |first: c_uint, last: c_uint, flags: c_int| {
        let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
        // SAFETY: the caller keeps the contract of the system call.
        unsafe { sys::call(libc::SYS_close_range, arguments) as c_int }
    };
    let (mut first, mut flags) = (first, flags);
    let hidden = descriptors::hidden().into_iter().filter_map(|fd| c_uint::try_from(fd).ok());
    for fd in hidden {
        if !(first..=last).contains(&fd) {
            continue;
        }
        if fd > first {
            let done = call(first, fd - 1, flags);
            if done < 0 {
                return done;
            }
            // The descriptor table is unshared only once.
            flags &= !(libc::CLOSE_RANGE_UNSHARE as c_int);
        }
        first = fd + 1;
    }
    // The kernel refuses a range that begins after its end. That is correct only if the program's range does.
    if first > last && first > 0 && descriptors::is_hidden((first - 1).cast_signed()) {
        return 0;
    }
    call(first, last, flags)
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0) };
}

/// Executes these calls by their system call numbers. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, [a, b, c, ..]: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller keeps the contract. Integers keep their low half, as in the kernel.
    unsafe {
        match number {
            libc::SYS_close => Some(close(a as c_int).into()),
            libc::SYS_dup => Some(dup(a as c_int).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => Some(dup2(a as c_int, b as c_int).into()),
            libc::SYS_dup3 => Some(dup3(a as c_int, b as c_int, c as c_int).into()),
            libc::SYS_close_range => Some(close_range(a as c_uint, b as c_uint, c as c_int).into()),
            _ => None,
        }
    }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    CLOSE.resolve();
    DUP.resolve();
    DUP2.resolve();
    DUP3.resolve();
    FCNTL.resolve();
}
