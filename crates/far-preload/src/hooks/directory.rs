//! Directory streams. The C library reads entries into its own buffer by its own system calls, which bypass
//! the hooks. So this buffer is ordinary memory, with any allocator of the program (F1).

use super::thread::with_ordinary_memory;
use crate::next::Next;
use libc::{DIR, c_char};
use std::ffi::c_int;

static OPENDIR: Next<unsafe extern "C" fn(*const c_char) -> *mut DIR> = Next::new(c"opendir");
static FDOPENDIR: Next<unsafe extern "C" fn(c_int) -> *mut DIR> = Next::new(c"fdopendir");
static CLOSEDIR: Next<unsafe extern "C" fn(*mut DIR) -> c_int> = Next::new(c"closedir");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // The name may be in far memory: the hook touches it and repeats the call.
    for _ in 0..super::given::TRIES {
        // SAFETY: the caller keeps the contract of the C function.
        let entries = with_ordinary_memory(|| unsafe { OPENDIR.get()(path) });
        // SAFETY: the string is that of the caller.
        if !entries.is_null() || super::errno() != libc::EFAULT || unsafe { !super::given::touch_text(path) }
        {
            return entries;
        }
    }
    std::ptr::null_mut()
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    // SAFETY: the caller keeps the contract of the C function.
    with_ordinary_memory(|| unsafe { FDOPENDIR.get()(fd) })
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn closedir(entries: *mut DIR) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    with_ordinary_memory(|| unsafe { CLOSEDIR.get()(entries) })
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    OPENDIR.resolve();
    FDOPENDIR.resolve();
    CLOSEDIR.resolve();
}
