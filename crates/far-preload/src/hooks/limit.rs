//! Limits of the address space (`RLIMIT_AS`) and of private memory (`RLIMIT_DATA`). The kernel counts all of
//! `--max-far` and the layer's own memory for them, so a program with far memory would be refused memory that
//! it is given without. A program that begins under such a limit is refused before `main`; one that sets it
//! later has its far memory made ordinary memory first.

use crate::session::end_far;
use azekura_far::sys;
use libc::{c_long, pid_t, rlimit};
use std::ffi::{c_int, c_uint};
use std::ptr;

/// The limits, with the names that a message uses.
const COUNTED: [(c_uint, &str); 2] =
    [(libc::RLIMIT_AS, "RLIMIT_AS, `ulimit -v`"), (libc::RLIMIT_DATA, "RLIMIT_DATA, `ulimit -d`")];

/// The limit under which this process cannot have far memory, in bytes, and its name.
pub(crate) fn in_force() -> Option<(&'static str, u64)> {
    COUNTED.into_iter().find_map(|(which, name)| {
        let mut limit = rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        limits_of(0, which, None, Some(&mut limit));
        (limit.rlim_cur != libc::RLIM_INFINITY).then_some((name, limit.rlim_cur))
    })
}

fn limits_of(process: pid_t, which: c_uint, new: Option<&rlimit>, old: Option<&mut rlimit>) -> c_int {
    let new = new.map_or(0, |limit| ptr::from_ref(limit) as usize);
    let old = old.map_or(0, |limit| ptr::from_mut(limit) as usize);
    // SAFETY: addresses of limits, or null.
    unsafe { sys::call(libc::SYS_prlimit64, [process as usize, which as usize, new, old, 0, 0]) as c_int }
}

/// Sets a limit of this or another process. The kernel gets copies, as the program's arguments may be far.
///
/// # Safety
///
/// Both are null, or limits of the caller's.
unsafe fn set(process: pid_t, which: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: the caller's.
    let new = unsafe { new.as_ref() }.copied();
    // SAFETY: no memory is passed.
    let is_own = process == 0 || process == unsafe { libc::getpid() };
    if let Some((_, name)) = COUNTED.into_iter().find(|&(counted, _)| counted == which)
        && is_own
        && new.is_some_and(|limit| limit.rlim_cur != libc::RLIM_INFINITY)
    {
        end_far(&format!("setrlimit ({name})"), "the kernel counts --max-far for this limit");
    }
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    let done = limits_of(process, which, new.as_ref(), Some(&mut before));
    if done == 0 && !old.is_null() {
        // SAFETY: the caller's.
        unsafe { old.write(before) };
    }
    done
}

macro_rules! limits {
    ($($own:ident, $any:ident;)+) => {
        $(
            /// # Safety
            ///
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $own(which: c_uint, new: *const rlimit) -> c_int {
                // SAFETY: passed on.
                unsafe { set(0, which, new, ptr::null_mut()) }
            }

            /// # Safety
            ///
            /// As the C library's.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $any(
                process: pid_t,
                which: c_uint,
                new: *const rlimit,
                old: *mut rlimit,
            ) -> c_int {
                // SAFETY: passed on.
                unsafe { set(process, which, new, old) }
            }
        )+
    };
}

limits! {
    setrlimit, prlimit;
    setrlimit64, prlimit64;
}

/// These calls by their numbers.
///
/// # Safety
///
/// As the call of this number.
pub(super) unsafe fn by_number(number: c_long, [a, b, c, d, ..]: [usize; 6]) -> Option<c_long> {
    let limit = ptr::with_exposed_provenance_mut::<rlimit>;
    // SAFETY: the caller's; numbers keep their low half, as the kernel reads them.
    unsafe {
        match number {
            libc::SYS_setrlimit => Some(setrlimit(a as c_uint, limit(b)).into()),
            libc::SYS_prlimit64 => Some(set(a as pid_t, b as c_uint, limit(c), limit(d)).into()),
            _ => None,
        }
    }
}
