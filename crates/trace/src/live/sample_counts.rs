//! Counts of samples over all threads of a recording: with many threads each one records fewer of its first
//! executions and holds.
//!
//! A thread alone cannot determine whether a recording has enough samples of an operation or of holds. Each
//! thread adds its own while the total is small, and reads the total. So a recording of thirty threads costs
//! little more at its start than one of a single thread.
//!
//! Relaxed everywhere: estimates that only control sampling. Each sample carries its weight, so sums stay
//! correct.

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Operations that have an account of their own; others share one with an operation of the same remainder.
pub(super) const ACCOUNTS: usize = 64;

/// The number of samples, or their weight, over all threads. Exact only while it is small.
#[derive(Debug)]
pub(super) struct Count(AtomicU32);

impl Count {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Adds to it, unless it is "many" already: then all threads only read the line.
    #[inline]
    pub(super) fn add(&self, number: u32, many: u32) {
        if self.0.load(Relaxed) < many {
            self.0.fetch_add(number, Relaxed);
        }
    }

    /// The count so far.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// The counts of one recording.
#[derive(Debug)]
pub struct SampleCounts {
    /// Holds, those that were not drawn too.
    pub(super) holds: Count,
    /// Executions, those that were not drawn too, by account.
    pub(super) executions: [Count; ACCOUNTS],
}

impl SampleCounts {
    /// Nothing was drawn yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { holds: Count::new(), executions: [const { Count::new() }; ACCOUNTS] }
    }
}

impl Default for SampleCounts {
    fn default() -> Self {
        Self::new()
    }
}
