//! Functions of the C library that cannot be repeated after the kernel could not read a string (F1): a child
//! process of `system` or `popen` has failed, `freopen` has closed the stream, `tempnam` has replaced the
//! directory, and `herror` has written nothing. A string in far memory is
//! copied to ordinary memory first.

use crate::next::Next;
use crate::session::is_unserved;
use libc::{FILE, c_char};
use std::ffi::{CStr, CString, c_int};

type Text = *const c_char;
type Reopen = unsafe extern "C" fn(Text, Text, *mut FILE) -> *mut FILE;

static SYSTEM: Next<unsafe extern "C" fn(Text) -> c_int> = Next::new(c"system");
static POPEN: Next<unsafe extern "C" fn(Text, Text) -> *mut FILE> = Next::new(c"popen");
static TEMPNAM: Next<unsafe extern "C" fn(Text, Text) -> *mut c_char> = Next::new(c"tempnam");
static HERROR: Next<unsafe extern "C" fn(Text)> = Next::new(c"herror");
static FREOPEN: Next<Reopen> = Next::new(c"freopen");
static FREOPEN64: Next<Reopen> = Next::new(c"freopen64");

/// Makes a call with a string in ordinary memory. A thread that is canceled during the call keeps the copy
/// permanently: there is no destructor through which it would unwind.
///
/// # Safety
///
/// The address is that of a string, or null.
unsafe fn with_ordinary<R>(text: Text, call: impl FnOnce(Text) -> R) -> R {
    if !is_unserved(text as usize, 1) {
        return call(text);
    }
    // SAFETY: a far address is not null, so it is that of a string. The copy is freed once.
    unsafe {
        let copy = CStr::from_ptr(text).to_owned().into_raw();
        let result = call(copy);
        drop(CString::from_raw(copy));
        result
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn system(command: Text) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(command, |command| SYSTEM.get()(command)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn popen(command: Text, how: Text) -> *mut FILE {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(command, |command| POPEN.get()(command, how)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn tempnam(directory: Text, prefix: Text) -> *mut c_char {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(directory, |directory| TEMPNAM.get()(directory, prefix)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn herror(prefix: Text) {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(prefix, |prefix| HERROR.get()(prefix)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn freopen(path: Text, how: Text, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(path, |path| FREOPEN.get()(path, how, stream)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn freopen64(path: Text, how: Text, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { with_ordinary(path, |path| FREOPEN64.get()(path, how, stream)) }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    SYSTEM.resolve();
    POPEN.resolve();
    TEMPNAM.resolve();
    HERROR.resolve();
    FREOPEN.resolve();
    FREOPEN64.resolve();
}
