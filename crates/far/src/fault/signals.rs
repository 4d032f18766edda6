//! SIGSEGV, shared with the program. The mechanism's handler stays installed. The program's action is stored
//! here, and its handler is called for faults outside of far memory.
//!
//! The C library's `sigaction` may be a hook of the preload library, so the real function is passed by
//! [`set_function`].

use std::mem;
use std::ptr;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

type Function =
    unsafe extern "C" fn(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

static FUNCTION: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());
/// The program's action; null if the mechanism's handler is not installed. Actions are never freed, because a
/// handler may be reading one, and programs set few actions.
static ACTION: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Sets the function that changes the kernel's signal actions.
pub fn set_function(function: Function) {
    FUNCTION.store(function as *mut libc::c_void, Relaxed); // Relaxed: no other thread exists yet
}

/// Reads or changes the kernel's action for a signal, as `sigaction` does.
pub(super) unsafe fn kernel_action(
    signal: libc::c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    let function = FUNCTION.load(Relaxed);
    // SAFETY: the pointer is null or a function of this type; the caller keeps the contract of `sigaction`.
    unsafe {
        if function.is_null() {
            return libc::sigaction(signal, new, old);
        }
        mem::transmute::<*mut libc::c_void, Function>(function)(signal, new, old)
    }
}

/// Returns `true` if the mechanism's handler for SIGSEGV is installed in this process.
#[must_use]
pub fn are_held() -> bool {
    !ACTION.load(Relaxed).is_null() // Relaxed: the action is read with Acquire
}

/// Returns the program's action for SIGSEGV; `None` if the mechanism's handler is not installed.
#[must_use]
pub fn program_action() -> Option<libc::sigaction> {
    // Acquire: pairs with AcqRel in `set_program_action`. SAFETY: the pointer is null, or the action is never
    // freed.
    unsafe { ACTION.load(Acquire).as_ref() }.copied()
}

/// Sets the program's action for SIGSEGV. The first call stores the action that was in force before the
/// mechanism's handler was installed.
pub fn set_program_action(action: libc::sigaction) {
    ACTION.swap(Box::into_raw(Box::new(action)), AcqRel);
}

/// Resets the program's action to the default. Called from the signal handler, so it does not allocate.
pub(super) fn reset_program_action() {
    static DEFAULT: libc::sigaction = {
        // SAFETY: all zeros is a valid `sigaction`, that of the default action.
        unsafe { mem::zeroed() }
    };
    ACTION.store(ptr::from_ref(&DEFAULT).cast_mut(), Release);
}

/// Marks this process as a child. Called in a child process that has a copy of its parent's memory but was
/// made by a call that does not run the `fork` handlers.
pub fn child_begins() {
    super::sigsegv::in_child();
}
