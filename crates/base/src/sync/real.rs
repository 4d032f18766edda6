//! What shipped code runs on: std's atomics, parking_lot's mutex, a futex.

pub use std::sync::atomic;
pub use std::{hint, sync::Arc, thread};

pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use atomic::{AtomicU32, Ordering};
use rustix::thread::futex;
use std::time::Duration;

/// Clocks of waits.
pub mod time {
    pub use std::time::Instant;
}

/// A 32-bit word that threads can sleep on until it changes (a futex).
///
/// Waking is one system call however many sleep.
#[derive(Debug, Default)]
pub struct WaitWord(AtomicU32);

impl WaitWord {
    /// A word holding `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// The atomic itself; a change that sleepers wait for is followed by [`WaitWord::wake_all`] or
    /// [`WaitWord::wake_one`].
    pub const fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps while the word is `expected`, until woken or timed out. May return early: check again.
    pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.map(|t| futex::Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        // EAGAIN (changed), EINTR and ETIMEDOUT all mean: look again.
        let _ = futex::wait(&self.0, futex::Flags::PRIVATE, expected, timeout.as_ref());
    }

    /// Wakes every sleeper.
    pub fn wake_all(&self) {
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Wakes one sleeper, if there is one.
    pub fn wake_one(&self) {
        let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
    }

    /// Stores `value` and wakes every sleeper.
    pub fn set_and_wake(&self, value: u32) {
        // Release: pairs with the Acquire load of a waiter that sees the new value.
        self.0.store(value, Ordering::Release);
        self.wake_all();
    }
}
