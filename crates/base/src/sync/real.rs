//! Synchronization of shipped code: std's atomics, parking_lot's mutex, a futex.

pub use std::sync::atomic;
pub use std::{hint, sync::Arc, thread};

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

pub use super::wait_word::WaitWord;

/// Clocks of waits.
pub mod time {
    pub use std::time::Instant;
}

/// Returns std's atomic; here both types are the same.
pub(super) const fn real_of(word: &atomic::AtomicU32) -> &std::sync::atomic::AtomicU32 {
    word
}
