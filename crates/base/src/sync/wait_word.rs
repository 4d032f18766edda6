//! Futex words: of the system, or of a simulated machine.

use super::atomic::{AtomicU32, Ordering};
use super::machine::{Work, simulated};
use super::real_of;
use rustix::thread::futex;
use std::time::Duration;

/// A 32-bit word on which threads can sleep until it changes (a futex).
///
/// One system call wakes any number of sleeping threads.
#[derive(Debug, Default)]
pub struct WaitWord(AtomicU32);

impl WaitWord {
    /// Returns a word with the value `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// Returns the atomic. After a change for which threads wait, call [`WaitWord::wake_all`] or
    /// [`WaitWord::wake_one`].
    pub const fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Sleeps while the word is `expected`, until woken or timed out. May return early, so the caller must
    /// check the word again.
    #[track_caller]
    pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
        if let Some(machine) = simulated() {
            // The read, and registering as asleep, are one step.
            if self.0.load(Ordering::SeqCst) == expected {
                machine.park(std::ptr::from_ref(self).addr(), timeout);
            }
            return;
        }
        let timeout = timeout.map(|t| futex::Timespec {
            tv_sec: t.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        // EAGAIN (changed), EINTR and ETIMEDOUT all require another check.
        let _ = futex::wait(real_of(&self.0), futex::Flags::PRIVATE, expected, timeout.as_ref());
    }

    /// Wakes every sleeper.
    pub fn wake_all(&self) {
        self.wake(i32::MAX as u32);
    }

    /// Wakes one sleeper, if there is one.
    pub fn wake_one(&self) {
        self.wake(1);
    }

    fn wake(&self, at_most: u32) {
        match simulated() {
            Some(machine) => {
                if machine.unpark(std::ptr::from_ref(self).addr(), at_most as usize) == 0 {
                    machine.work(Work::SystemCall); // the call takes time also if no thread sleeps
                }
            }
            None => drop(futex::wake(real_of(&self.0), futex::Flags::PRIVATE, at_most)),
        }
    }

    /// Stores `value` and wakes every sleeper.
    #[track_caller]
    pub fn set_and_wake(&self, value: u32) {
        // Release: pairs with the Acquire load of a waiter that sees the new value.
        self.0.store(value, Ordering::Release);
        self.wake_all();
    }
}
