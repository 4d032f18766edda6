//! Directory streams: the C library reads entries into a buffer of its own by its own system calls, not
//! through these hooks. So that buffer is ordinary memory, whichever allocator the program has (F1).

use super::thread::with_ordinary_memory;
use crate::next::Next;
use libc::{DIR, c_char};
use std::ffi::c_int;

static OPENDIR: Next<unsafe extern "C" fn(*const c_char) -> *mut DIR> = Next::new(c"opendir");
static FDOPENDIR: Next<unsafe extern "C" fn(c_int) -> *mut DIR> = Next::new(c"fdopendir");
static CLOSEDIR: Next<unsafe extern "C" fn(*mut DIR) -> c_int> = Next::new(c"closedir");

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // The name may be far: it is touched, and the call is repeated.
    for _ in 0..super::again::TRIES {
        // SAFETY: passed on.
        let entries = with_ordinary_memory(|| unsafe { OPENDIR.get()(path) });
        // SAFETY: the caller's text.
        if !entries.is_null() || super::errno() != libc::EFAULT || unsafe { !super::again::touch_text(path) }
        {
            return entries;
        }
    }
    std::ptr::null_mut()
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    // SAFETY: passed on.
    with_ordinary_memory(|| unsafe { FDOPENDIR.get()(fd) })
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn closedir(entries: *mut DIR) -> c_int {
    // SAFETY: passed on.
    with_ordinary_memory(|| unsafe { CLOSEDIR.get()(entries) })
}

/// Finds the C library's functions.
pub(super) fn settle() {
    OPENDIR.settle();
    FDOPENDIR.settle();
    CLOSEDIR.settle();
}
