//! SIGSEGV shared with the program: the mechanism's handler stays installed; the program's handler is stored
//! here and called for faults outside of far memory.
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
/// The program's action; null while the mechanism does not hold the signal. Actions are never freed: a
/// handler may be reading one, and programs set few.
static ACTION: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Sets the function that changes the kernel's actions.
pub fn set_function(function: Function) {
    FUNCTION.store(function as *mut libc::c_void, Relaxed); // before there are other threads
}

/// The kernel's action.
pub(super) unsafe fn kernel_action(
    signal: libc::c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> libc::c_int {
    let function = FUNCTION.load(Relaxed);
    // SAFETY: null, or a function of this type; the call is the caller's.
    unsafe {
        if function.is_null() {
            return libc::sigaction(signal, new, old);
        }
        mem::transmute::<*mut libc::c_void, Function>(function)(signal, new, old)
    }
}

/// Returns whether the mechanism holds SIGSEGV in this process.
#[must_use]
pub fn are_held() -> bool {
    !ACTION.load(Relaxed).is_null() // the action itself is read with Acquire
}

/// The program's action for SIGSEGV; `None` while the mechanism does not hold the signal.
#[must_use]
pub fn program_action() -> Option<libc::sigaction> {
    // Acquire: pairs with Release in `set_program_action`. SAFETY: null, or never freed.
    unsafe { ACTION.load(Acquire).as_ref() }.copied()
}

/// Sets the program's action for SIGSEGV; the first one, when the signal is taken over, is the action before.
pub fn set_program_action(action: libc::sigaction) {
    ACTION.swap(Box::into_raw(Box::new(action)), AcqRel);
}

/// The same from the signal's handler, which must not allocate: the default action again.
pub(super) fn reset_program_action() {
    static DEFAULT: libc::sigaction = {
        // SAFETY: all zeros is a valid sigaction, that of the default action.
        unsafe { mem::zeroed() }
    };
    ACTION.store(ptr::from_ref(&DEFAULT).cast_mut(), Release);
}

/// In a child process with a copy of its parent's memory, made by a call that runs no handlers of `fork`.
pub fn child_begins() {
    super::sigsegv::in_child();
}
