//! Limits of the address space (`RLIMIT_AS`), of private memory (`RLIMIT_DATA`), and of files
//! (`RLIMIT_FSIZE`), which counts the spill file. The kernel counts all of
//! `--max-far` and the layer's own memory. So under such a limit a program with far memory would be refused
//! memory that it gets without far memory. A program that begins under such a limit is refused before `main`.
//! If a program sets such a limit later, its far memory becomes ordinary memory first.

use crate::session::{end_far, spilled_bytes};
use azekura_far::sys;
use libc::{c_long, pid_t, rlimit};
use std::ffi::{c_int, c_uint};
use std::ptr;

/// The limits, with their names in messages.
const COUNTED: [(c_uint, &str); 3] = [
    (libc::RLIMIT_AS, "RLIMIT_AS, `ulimit -v`"),
    (libc::RLIMIT_DATA, "RLIMIT_DATA, `ulimit -d`"),
    (libc::RLIMIT_FSIZE, "RLIMIT_FSIZE, `ulimit -f`"),
];

/// Returns `true` if a limit is smaller than the memory that the kernel counts for it.
fn is_too_small(which: c_uint, bytes: u64) -> bool {
    if which == libc::RLIMIT_FSIZE { bytes < spilled_bytes() } else { bytes != libc::RLIM_INFINITY }
}

/// Returns the limit under which this process cannot have far memory: its name, and its value in bytes.
pub(crate) fn in_force() -> Option<(&'static str, u64)> {
    COUNTED.into_iter().find_map(|(which, name)| {
        let mut limit = rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        limits_of(0, which, None, Some(&mut limit));
        is_too_small(which, limit.rlim_cur).then_some((name, limit.rlim_cur))
    })
}

fn limits_of(process: pid_t, which: c_uint, new: Option<&rlimit>, old: Option<&mut rlimit>) -> c_int {
    let new = new.map_or(0, |limit| ptr::from_ref(limit) as usize);
    let old = old.map_or(0, |limit| ptr::from_mut(limit) as usize);
    // SAFETY: the addresses are those of limits, or null.
    unsafe { sys::call(libc::SYS_prlimit64, [process as usize, which as usize, new, old, 0, 0]) as c_int }
}

/// Sets a limit of this or another process. The kernel gets copies, because the program's arguments may be
/// far memory.
///
/// # Safety
///
/// Both pointers are null, or point to limits of the caller.
unsafe fn set(process: pid_t, which: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    let new = unsafe { new.as_ref() }.copied();
    // SAFETY: the call accesses no memory of this process.
    let is_own = process == 0 || process == unsafe { libc::getpid() };
    if let Some((_, name)) = COUNTED.into_iter().find(|&(counted, _)| counted == which)
        && is_own
        && new.is_some_and(|limit| is_too_small(which, limit.rlim_cur))
    {
        end_far(&format!("setrlimit ({name})"), "the kernel counts --max-far for this limit");
    }
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    let done = limits_of(process, which, new.as_ref(), Some(&mut before));
    if done == 0 && !old.is_null() {
        // SAFETY: the caller keeps this function's contract.
        unsafe { old.write(before) };
    }
    done
}

macro_rules! limits {
    ($($own:ident, $any:ident;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $own(which: c_uint, new: *const rlimit) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { set(0, which, new, ptr::null_mut()) }
            }

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $any(
                process: pid_t,
                which: c_uint,
                new: *const rlimit,
                old: *mut rlimit,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { set(process, which, new, old) }
            }
        )+
    };
}

limits! {
    setrlimit, prlimit;
    setrlimit64, prlimit64;
}

/// Executes these calls by their system call numbers. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, [a, b, c, d, ..]: [usize; 6]) -> Option<c_long> {
    let limit = ptr::with_exposed_provenance_mut::<rlimit>;
    // SAFETY: the caller keeps the contract. Integers keep their low half, as in the kernel.
    unsafe {
        match number {
            libc::SYS_setrlimit => Some(setrlimit(a as c_uint, limit(b)).into()),
            libc::SYS_prlimit64 => Some(set(a as pid_t, b as c_uint, limit(c), limit(d)).into()),
            _ => None,
        }
    }
}
