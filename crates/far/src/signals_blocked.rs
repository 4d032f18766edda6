//! Signals of the program, blocked in a thread for a time.
//!
//! - **SIGNAL-1** A thread of the program that holds the pager's lock, a lock of a replica, or the lock of
//!   the preload library's heap has all signals blocked, and so do the threads of this layer. A handler of
//!   the program may touch a page that is paged out. It then waits for the fault thread, which may need that
//!   lock. A handler may also fork, exit or map memory, which needs the lock of the heap.

use std::fmt;

/// Blocks all signals in this thread until it is dropped (SIGNAL-1). SIGSEGV may stay unblocked if the
/// preload library is loaded.
#[must_use = "the signals are unblocked when this is dropped"]
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    /// Blocks all signals.
    #[allow(clippy::new_without_default, reason = "a guard has no default")]
    pub fn new() -> Self {
        // SAFETY: both sets are local variables, and all zeros is a valid set.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl fmt::Debug for SignalsBlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SignalsBlocked")
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores the signal mask that `new` read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
