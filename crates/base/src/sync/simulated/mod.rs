//! Synchronization of code that may be simulated: the real types, with a call of the
//! [`machine`](super::machine) before each step.
//!
//! Every type has the size of the real type, so data that share a cache line share it in the simulation, too.

pub mod atomic;
mod lock;
mod per_thread;
pub mod thread;
pub mod time;

pub use std::sync::Arc;

pub use super::wait_word::WaitWord;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use per_thread::PerThread;

/// Hints to the processor.
pub mod hint {
    use crate::sync::machine::current;

    /// Executes one iteration of a spin loop.
    #[inline]
    pub fn spin_loop() {
        match current() {
            Some(machine) => machine.pause(),
            None => std::hint::spin_loop(),
        }
    }
}

/// Returns std's atomic inside the simulated type.
pub(super) const fn real_of(word: &atomic::AtomicU32) -> &std::sync::atomic::AtomicU32 {
    word.real()
}
