//! What all threads of a recording have drawn so far: with many of them, each need draw fewer of its first
//! ones.
//!
//! A thread cannot tell by itself whether a recording has enough of an operation or of holds. Here each adds
//! what it drew, as long as there are few, and looks up how many there are. So a recording of thirty threads
//! costs little more at its start than one of a single thread.
//!
//! Relaxed everywhere: estimates that only steer how many are drawn. Each drawn one says what it stands for,
//! so sums stay right.

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Operations that have an account of their own; others share one with an operation of the same remainder.
pub(super) const ACCOUNTS: usize = 64;

/// A count of what was drawn, or stood for, by all threads. Exact only while it is small.
#[derive(Debug)]
pub(super) struct Count(AtomicU32);

impl Count {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Adds to it, unless it says "many" already: then the line is only read, by all.
    #[inline]
    pub(super) fn add(&self, number: u32, many: u32) {
        if self.0.load(Relaxed) < many {
            self.0.fetch_add(number, Relaxed);
        }
    }

    /// How many so far.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// The counts of one recording.
#[derive(Debug)]
pub struct Drawn {
    /// Holds, those that were not drawn too.
    pub(super) holds: Count,
    /// Executions, those that were not drawn too, by account.
    pub(super) executions: [Count; ACCOUNTS],
}

impl Drawn {
    /// Nothing was drawn yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { holds: Count::new(), executions: [const { Count::new() }; ACCOUNTS] }
    }
}

impl Default for Drawn {
    fn default() -> Self {
        Self::new()
    }
}
