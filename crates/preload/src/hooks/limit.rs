//! Hooks of calls with which a program limits its memory. [`super::futex`] hooks the calls by number.
//!
//! The area takes 512 MB of addresses, which these limits count. So the process unmaps most of the area
//! before the limit is set. Threads that then find no slot are not recorded, but counted.

use super::hook;
use crate::local::quietly;
use crate::next::next;
use crate::session::limit_slots;
use libc::{c_int, c_long, c_uint, pid_t, rlimit};
use std::ptr;

type Set = unsafe extern "C" fn(c_uint, *const rlimit) -> c_int;
type SetAny = unsafe extern "C" fn(pid_t, c_uint, *const rlimit, *mut rlimit) -> c_int;

// With limits of 64 bits, the C library's functions with and without `64` in the name are the same.
next!(SET: Set = new(c"setrlimit"));
next!(SET_ANY: SetAny = new(c"prlimit"));
next!(LOCK_ALL: unsafe extern "C" fn(c_int) -> c_int = new(c"mlockall"));

hook!(setrlimit => set, "rdx", "x2");
hook!(setrlimit64 => set, "rdx", "x2");
hook!(prlimit => set_any, "r8", "x4");
hook!(prlimit64 => set_any, "r8", "x4");
hook!(mlockall => lock_all, "rsi", "x1");

unsafe extern "C" fn set(resource: c_uint, new: *const rlimit, _from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant.
    unsafe {
        is_set(0, resource, new);
        SET.get()(resource, new)
    }
}

unsafe extern "C" fn set_any(
    process: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
    _from: usize,
) -> c_int {
    // SAFETY: as in `set`.
    unsafe {
        is_set(process, resource, new);
        SET_ANY.get()(process, resource, new, old)
    }
}

/// Prepares for a limit of the address space.
///
/// # Safety
///
/// `new` is null or points to a limit.
unsafe fn is_set(process: pid_t, resource: c_uint, new: *const rlimit) {
    // SAFETY: by the caller's contract; `getpid` has no precondition.
    let is_own = process == 0 || process == unsafe { libc::getpid() };
    if resource == libc::RLIMIT_AS
        && is_own
        // SAFETY: by the caller's contract.
        && let Some(new) = unsafe { new.as_ref() }
        && new.rlim_cur != libc::RLIM_INFINITY
    {
        limit_slots(new.rlim_cur);
    }
}

/// Prepares for a limit of the address space by the system call `number`.
///
/// # Safety
///
/// The arguments are those of the system call.
pub(super) unsafe fn is_called(number: c_long, [a, b, c]: [c_long; 3]) {
    let limit = |argument: c_long| ptr::with_exposed_provenance(argument as usize);
    // SAFETY: by the caller's contract.
    unsafe {
        match number {
            libc::SYS_setrlimit => is_set(0, a as c_uint, limit(b)),
            libc::SYS_prlimit64 => is_set(a as pid_t, b as c_uint, limit(c)),
            _ => {}
        }
    }
}

/// Locks the memory. If the area exceeds the limit of locked memory, removes most of it first.
unsafe extern "C" fn lock_all(flags: c_int, _from: usize) -> c_int {
    // SAFETY: as in `set`.
    let lock = || unsafe { LOCK_ALL.get()(flags) };
    let result = lock();
    // SAFETY: the C library's errno of this thread.
    if result == 0 || unsafe { *libc::__errno_location() } != libc::ENOMEM {
        return result;
    }
    let mut limit = rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    quietly(|| unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) });
    limit_slots(limit.rlim_cur);
    lock()
}
