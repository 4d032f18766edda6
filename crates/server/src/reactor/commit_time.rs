//! How long the commits of a reactor take, and so whether its thread keeps the reactor while it waits for
//! them.
//!
//! To give a reactor to another thread takes a wake-up, two switches between threads, and caches that begin
//! anew; and the two threads go on taking turns as long as commits come. Where the device is quicker than
//! that, the thread that has run a batch had better write the log itself and answer, as a server with one
//! thread does; where it is slower, the reactor goes on with another thread meanwhile.
//!
//! | the last wait took | expected is |
//! |---|---|
//! | – (it is the first) | what it took |
//! | longer than expected | what it took, but three times what was expected at most: one slow flush among quick ones is forgiven, two or three in a row are not |
//! | less | an eighth less of the difference |
//!
//! Every device has a slow flush now and then, and every machine a moment in which other programs run. A
//! thread that gave its reactor away for long after each of them would rarely keep it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Waits that are expected to end sooner are waited for with the reactor in hand.
const SHORT: Duration = Duration::from_micros(120);
/// So many times what a flush takes may be spent on gathering for it: then no more than a ninth of the time
/// is the device's.
const GATHERED: u64 = 8;
/// Upper bound: the first connection of the batch waits for it.
const LONGEST_GATHERING: Duration = Duration::from_millis(1);
/// Largest factor by which the expectation grows at once, and the value that it may reach in any case.
const GROWTH: u64 = 3;
const GROWN_NS: u64 = 60_000;
/// Nothing was waited for yet.
const UNKNOWN: u64 = u64::MAX;

/// See the module's head. Written by the reactor's committer, of which there is one at a time.
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
    /// Returns `true` if the next wait is expected to end before another thread would have taken the reactor.
    pub(super) fn is_short(&self) -> bool {
        // Relaxed, here and below: a guess that orders nothing.
        u128::from(self.expected_ns.load(Relaxed)) < SHORT.as_nanos()
    }

    /// Returns the time for which gathering more requests pays for one flush.
    pub(super) fn worth_gathering(&self) -> Duration {
        Duration::from_nanos(self.expected_ns.load(Relaxed).saturating_mul(GATHERED)).min(LONGEST_GATHERING)
    }

    /// A wait took so long.
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
    fn nothing_is_taken_for_short_before_it_was_seen() {
        assert!(!after([]));
        assert!(after([25]));
        assert!(!after([1000]));
    }

    #[test]
    fn one_slow_wait_among_quick_ones_is_forgiven() {
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
    fn two_slow_waits_are_enough_to_be_careful_for_a_while() {
        let quick = |count| std::iter::repeat_n(25, count);
        assert!(!after(quick(100).chain([5000, 5000])));
        assert!(!after(quick(100).chain([5000, 5000]).chain(quick(5))));
        assert!(after(quick(100).chain([5000, 5000]).chain(quick(30))));
        assert!(!after(quick(100).chain([150, 150, 150])), "also where they are not much slower");
        assert!(!after([0, 5000, 5000]), "nor where waits took no time before");
    }

    #[test]
    fn it_comes_down_to_what_waits_take_and_no_lower() {
        let time = CommitTime::default();
        (0..1000).for_each(|_| time.note(Duration::MAX));
        assert!(!time.is_short());
        assert_eq!(time.worth_gathering(), LONGEST_GATHERING);
        (0..1000).for_each(|_| time.note(Duration::from_nanos(7)));
        assert_eq!(time.expected_ns.load(Relaxed), 7);
        time.note(Duration::ZERO);
        assert_eq!(time.expected_ns.load(Relaxed), 6);
    }
}
