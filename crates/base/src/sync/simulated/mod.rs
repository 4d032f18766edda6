//! Synchronization of code that may be simulated: the real types, with a call of the
//! [`machine`](super::machine) before each step.
//!
//! Every type here is as large as the real one, so what shares a cache line does so in the simulation too.

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

    /// One turn of a spin.
    #[inline]
    pub fn spin_loop() {
        match current() {
            Some(machine) => machine.pause(),
            None => std::hint::spin_loop(),
        }
    }
}

/// std's atomic under one of ours.
pub(super) const fn real_of(word: &atomic::AtomicU32) -> &std::sync::atomic::AtomicU32 {
    word.real()
}
