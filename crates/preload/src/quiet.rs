//! What must not be recorded: our own calls, and those of signal handlers in the middle of ours (HOOK-3).

use std::cell::Cell;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside of ours.
#[inline]
pub(crate) fn is_quiet() -> bool {
    QUIET.get()
}

/// Passes on all that this thread does, for good.
pub(crate) fn stay_quiet() {
    QUIET.set(true);
}

/// Runs `f`, whose calls are passed on unseen, and leaves `errno` as it was (HOOK-1).
#[inline]
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the C library gives the address of this thread's errno, which is good while the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let was = QUIET.replace(true);
    let result = f();
    QUIET.set(was);
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}
