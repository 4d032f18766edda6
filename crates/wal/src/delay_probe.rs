//! How long a record waits to be durable: one record at a time is timed, from some moment after it was drawn.
//!
//! | `lsn` | state | who may leave it |
//! |---|---|---|
//! | 0 | nothing is timed | the adapter: stores the time, then the LSN |
//! | `n` | record `n` is timed | whoever sees it durable: reads the time, then clears the LSN by CAS, and counts |
//!
//! - **PROBE-1** LSNs only rise, so a time that was read before the CAS succeeded belongs to the LSN that it cleared.

use std::time::Instant;

use azekura_base::Lsn;
use azekura_base::sync::atomic::{AtomicU64, Ordering::*};

/// The measurement.
#[derive(Debug)]
pub(crate) struct DelayProbe {
    origin: Instant,
    lsn: AtomicU64,
    began_ns: AtomicU64,
    // Relaxed: sums that are only looked at.
    waits: AtomicU64,
    wait_ns: AtomicU64,
}

impl DelayProbe {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            lsn: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Times a record that is not durable yet, unless another is still timed. For one thread.
    pub(crate) fn arm(&self, lsn: Lsn) {
        if self.lsn.load(Relaxed) == 0 {
            self.began_ns.store(self.now(), Relaxed);
            // Release: pairs with the Acquire in `observe`, which then reads the time.
            self.lsn.store(lsn.0, Release);
        }
    }

    /// Tells that everything up to `durable` is durable. Costs a load unless the timed record is among it.
    pub(crate) fn observe(&self, durable: Lsn) {
        let lsn = self.lsn.load(Acquire);
        if lsn == 0 || lsn > durable.0 {
            return;
        }
        let began = self.began_ns.load(Relaxed);
        // Release: the time was read before whoever arms again writes it (PROBE-1).
        if self.lsn.compare_exchange(lsn, 0, AcqRel, Relaxed).is_ok() {
            self.waits.fetch_add(1, Relaxed);
            self.wait_ns.fetch_add(self.now().saturating_sub(began), Relaxed);
        }
    }

    /// How many were timed, and for how long in all.
    pub(crate) fn sums(&self) -> (u64, u64) {
        (self.waits.load(Relaxed), self.wait_ns.load(Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_timed_once_until_it_is_durable() {
        let probe = DelayProbe::new();
        probe.observe(Lsn(100));
        assert_eq!(probe.sums().0, 0, "nothing was timed");
        probe.arm(Lsn(5));
        probe.arm(Lsn(9));
        probe.observe(Lsn(4));
        assert_eq!(probe.sums().0, 0);
        probe.observe(Lsn(5));
        probe.observe(Lsn(9));
        assert_eq!(probe.sums().0, 1, "the second was not timed");
        probe.arm(Lsn(10));
        probe.observe(Lsn(20));
        assert_eq!(probe.sums().0, 2);
    }
}
