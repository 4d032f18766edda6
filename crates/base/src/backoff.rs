//! Exponential back-off: spins for longer and longer, then yields the processor.

use crate::sync::{hint, thread};

/// Back-off with doubling pauses up to a limit, followed by yields of the processor.
///
/// One `Backoff` is for one wait. Create a new one for the next wait.
#[derive(Debug, Default)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    const SPIN_STEPS: u32 = 6;
    const YIELD_STEPS: u32 = 10;

    /// Returns a back-off that has not waited yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { step: 0 }
    }

    /// Waits longer than the last time, up to the limit.
    pub fn pause(&mut self) {
        if cfg!(loom) || self.step > Self::SPIN_STEPS {
            thread::yield_now();
        } else {
            for _ in 0..1u32 << self.step {
                hint::spin_loop();
            }
        }
        self.step = self.step.saturating_add(1);
    }

    /// Returns `true` if spinning has not helped, so that the caller should sleep until it is woken.
    #[must_use]
    pub const fn is_exhausted(&self) -> bool {
        self.step > Self::YIELD_STEPS
    }
}
