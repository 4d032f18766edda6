//! Counters of the lock table.

use std::time::Duration;

use azekura_base::sync::atomic::Ordering::Relaxed;

use crate::table::LockTable;

/// Counts since the table was made. Exact while the table is not in use; otherwise each count is from a
/// different moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Number of granted locks, including conversions and tests. Requests covered by held locks are not
    /// included.
    pub acquisitions: u64,
    /// Number of granted locks that were intents outside the shared table.
    pub noted_intents: u64,
    /// Number of granted locks that were runs of keys, locked by scans as a range.
    pub ranges: u64,
    /// Number of requests that had to wait.
    pub waits: u64,
    /// Total time of the waits that ended.
    pub wait_time: Duration,
    /// Number of waits that ended because their transaction became the victim of a deadlock.
    pub deadlocks: u64,
    /// Number of waits that ended because of their time limit.
    pub timeouts: u64,
    /// Present number of locks with a holder or waiter, without intents outside the shared table.
    pub locks: usize,
}

impl LockTable {
    /// Returns the counts so far. Acquires every latch of the table in turn: for reports, not for hot paths.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        let mut stats = LockStats::default();
        for stripe in self.stripes.used() {
            let stripe = stripe.lock();
            stats.acquisitions += stripe.acquisitions;
            stats.locks += stripe.len();
        }
        stats.noted_intents =
            (0..self.owners.len()).map(|o| self.owners.get(o).intents.lock().acquisitions).sum();
        stats.ranges = (0..self.owners.len()).map(|o| self.owners.get(o).ranges.lock().acquisitions).sum();
        stats.acquisitions += stats.noted_intents + stats.ranges;
        let waits = self.waits.lock();
        (stats.waits, stats.deadlocks, stats.timeouts) = (waits.begun, waits.deadlocks, waits.timeouts);
        stats.wait_time = Duration::from_micros(self.wait_micros.load(Relaxed)); // Relaxed: a statistic
        stats
    }
}
