//! Counts of samples over all threads of a recording, so that with many threads each one records fewer of its
//! first executions and holds.
//!
//! A thread alone cannot determine whether a recording has enough samples of an operation or of holds. Each
//! thread adds its own samples while the total is small, and reads the total. So at its start a recording of
//! thirty threads costs little more than one of a single thread.
//!
//! Relaxed everywhere: estimates that only control sampling. Each sample carries its weight, so sums stay
//! correct.

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of accounts of operations. Operations with the same remainder share an account.
pub(super) const ACCOUNTS: usize = 64;

/// The number of samples, or their weight, over all threads. Exact only while it is small.
#[derive(Debug)]
pub(super) struct Count(AtomicU32);

impl Count {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Adds `number` unless the count has reached `many`. From then on all threads only read the cache line.
    #[inline]
    pub(super) fn add(&self, number: u32, many: u32) {
        if self.0.load(Relaxed) < many {
            self.0.fetch_add(number, Relaxed);
        }
    }

    /// Returns the count so far.
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// The counts of one recording.
#[derive(Debug)]
pub struct SampleCounts {
    /// Number of holds, including those that were not sampled.
    pub(super) holds: Count,
    /// Number of executions by account, including those that were not sampled.
    pub(super) executions: [Count; ACCOUNTS],
}

impl SampleCounts {
    /// Returns counts of 0.
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
