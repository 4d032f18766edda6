//! Detection of forks: distinguishes a process from its parent.
//!
//! A fork copies the memory and one thread. A store in this memory is unusable in the child: its threads are
//! missing, its locks may be held by them, and its files belong to the parent. So an object that owns threads
//! or files stores the [`Generation`] in which it was created, and refuses to work in another one.
//!
//! ```
//! let here = azekura_base::fork::Generation::current();
//! assert!(here.is_current()); // and `false` in a child that is forked from now on
//! ```

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of forks between the start of the program and this process, as far as [`libc::pthread_atfork`]
/// reports them.
///
/// std's own atomic: the value changes only in a process with one thread, so no model needs to see it.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// Returns the current process. The first call starts counting forks.
    #[must_use]
    pub fn current() -> Self {
        static COUNTED: Once = Once::new();
        COUNTED.call_once(|| {
            // SAFETY: the handler is a function of this program, and only stores to an atomic. An error (no
            // memory) leaves forks uncounted.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(FORKS.load(Relaxed)) // Relaxed: no other data is read through it
    }

    /// Returns `true` in the same process, and `false` in a process that was forked from it. Costs a load of
    /// a cache line that no thread writes.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Relaxed) // Relaxed: no other data is read through it
    }
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed); // Relaxed: the child has one thread
}
