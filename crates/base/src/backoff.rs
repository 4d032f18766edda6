//! Exponential back-off: spin a little, then more, then give the processor away.

use crate::sync::{hint, thread};

/// Doubling pauses up to a bound, then yields of the processor.
///
/// One `Backoff` serves one wait; make a new one for the next.
#[derive(Debug, Default)]
pub struct Backoff {
    step: u32,
}

impl Backoff {
    const SPIN_STEPS: u32 = 6;
    const YIELD_STEPS: u32 = 10;

    /// A back-off that has not waited yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { step: 0 }
    }

    /// Waits a little longer than the last time.
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
