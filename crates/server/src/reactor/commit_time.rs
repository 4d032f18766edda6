//! Expected duration of a commit wait, and the choice that follows from it: a thread keeps its reactor
//! during a short wait and offers it to another thread during a long one.
//!
//! A hand-over costs a wake-up, two thread switches and cold caches, and the two threads then alternate
//! while commits arrive. If a flush is shorter than that, the thread that ran the batch writes the log
//! itself and then replies. If a flush is longer, another thread drives the reactor meanwhile.
//!
//! | duration of the last wait | new expected duration |
//! |---|---|
//! | first wait | that duration |
//! | longer than expected | that duration, at most three times the old expectation |
//! | shorter than expected | the old expectation less an eighth of the difference |
//!
//! The growth limit tolerates the single slow flushes that every device and every busy machine has. Without
//! it, one slow flush would cause many hand-overs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Expected wait below which the thread keeps its reactor during the wait.
const SHORT: Duration = Duration::from_micros(120);
/// Commit delay as a multiple of the flush time: the device then takes at most a ninth of the time.
const DELAY_FLUSHES: u64 = 8;
/// Upper bound of the commit delay: the first connection of the batch waits for it.
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(1);
/// Largest factor by which one wait raises the expectation, and a value in nanoseconds up to which one wait
/// may always raise the expectation.
const GROWTH: u64 = 3;
const GROWN_NS: u64 = 60_000;
/// Expected duration before the first measured wait.
const UNKNOWN: u64 = u64::MAX;

/// Moving estimate of the commit wait. Only the reactor's committer writes it, and there is one at a time.
#[derive(Debug)]
pub(super) struct CommitTime {
    expected_ns: AtomicU64,
}

impl Default for CommitTime {
    fn default() -> Self {
        Self { expected_ns: AtomicU64::new(UNKNOWN) }
    }
}

impl CommitTime {
    /// Returns `true` if the next wait is expected to be shorter than a hand-over of the reactor.
    pub(super) fn is_short(&self) -> bool {
        // Relaxed, here and below: an estimate; it orders nothing.
        u128::from(self.expected_ns.load(Relaxed)) < SHORT.as_nanos()
    }

    /// Returns the commit delay: the longest time for which more requests are collected for one flush.
    pub(super) fn max_commit_delay(&self) -> Duration {
        Duration::from_nanos(self.expected_ns.load(Relaxed).saturating_mul(DELAY_FLUSHES))
            .min(MAX_COMMIT_DELAY)
    }

    /// Records the duration of a wait.
    pub(super) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(UNKNOWN - 1);
        let expected = match self.expected_ns.load(Relaxed) {
            UNKNOWN => took,
            expected if took >= expected => took.min(expected.saturating_mul(GROWTH).max(GROWN_NS)),
            expected => expected - (expected - took).div_ceil(8),
        };
        self.expected_ns.store(expected, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: impl IntoIterator<Item = u64>) -> bool {
        let time = CommitTime::default();
        waits.into_iter().for_each(|us| time.note(Duration::from_micros(us)));
        time.is_short()
    }

    #[test]
    fn no_wait_counts_as_short_before_a_measurement() {
        assert!(!after([]));
        assert!(after([25]));
        assert!(!after([1000]));
    }

    #[test]
    fn one_slow_wait_among_short_ones_changes_nothing() {
        let quick = |count| std::iter::repeat_n(25, count);
        assert!(after(quick(100).chain([5000])));
        let time = CommitTime::default();
        quick(100).for_each(|us| time.note(Duration::from_micros(us)));
        for wait in 0..1000 {
            time.note(Duration::from_micros(if wait % 20 == 0 { 5000 } else { 25 }));
            assert!(time.is_short(), "wait {wait}");
        }
    }

    #[test]
    fn after_two_slow_waits_no_wait_counts_as_short_for_a_while() {
        let quick = |count| std::iter::repeat_n(25, count);
        assert!(!after(quick(100).chain([5000, 5000])));
        assert!(!after(quick(100).chain([5000, 5000]).chain(quick(5))));
        assert!(after(quick(100).chain([5000, 5000]).chain(quick(30))));
        assert!(!after(quick(100).chain([150, 150, 150])), "also where they are not much slower");
        assert!(!after([0, 5000, 5000]), "nor where waits took no time before");
    }

    #[test]
    fn the_estimate_falls_to_the_measured_waits_and_no_lower() {
        let time = CommitTime::default();
        (0..1000).for_each(|_| time.note(Duration::MAX));
        assert!(!time.is_short());
        assert_eq!(time.max_commit_delay(), MAX_COMMIT_DELAY);
        (0..1000).for_each(|_| time.note(Duration::from_nanos(7)));
        assert_eq!(time.expected_ns.load(Relaxed), 7);
        time.note(Duration::ZERO);
        assert_eq!(time.expected_ns.load(Relaxed), 6);
    }
}
