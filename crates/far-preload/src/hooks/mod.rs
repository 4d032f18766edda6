//! The C library's functions as the program sees them.

mod block;
mod map;
mod transfer;

use std::ffi::c_int;

/// Sets `errno`.
fn fail(code: c_int) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = code };
}

fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}
