//! Counters spread over cache lines: each thread adds to a line of its own, a reader sums them all.

use crate::CachePadded;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Fewest and most stripes.
const STRIPES: (usize, usize) = (16, 512);
/// Fewest lines of a counter. A thread that loses its processor delays no other one here, so few more lines
/// than processors are needed; and each store has a dozen counters.
const FEWEST_LINES: usize = 4;

/// Returns the number of processors that this process may use, determined at the first call, which reads
/// several files of control groups.
#[must_use]
pub fn processors() -> usize {
    #[cfg(loom)]
    return 1;
    #[cfg(all(not(loom), feature = "sim"))]
    if let Some(machine) = crate::sync::machine::current() {
        return machine.processors().max(1);
    }
    #[cfg(not(loom))]
    {
        static COUNT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// Returns the number of stripes over which threads are distributed: two for each processor, so that
/// concurrent threads seldom share one; a power of two, at least 16.
#[must_use]
pub fn stripe_count() -> usize {
    stripes(STRIPES.0)
}

fn stripes(fewest: usize) -> usize {
    (2 * processors()).next_power_of_two().clamp(fewest, STRIPES.1)
}

/// Returns the stripe of the calling thread: a small number, assigned round robin, constant for the thread's
/// life.
#[must_use]
pub fn thread_stripe() -> usize {
    // A machine's threads have numbers of their own, so that its runs are alike.
    #[cfg(all(not(loom), feature = "sim"))]
    if let Some(machine) = crate::sync::machine::current() {
        return machine.thread_number();
    }
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        // std's own atomic: the stripe only spreads load, no protocol depends on it, so no model needs to see
        // it.
        static STRIPE: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    STRIPE.with(|s| *s)
}

/// A statistics counter without a contended cache line. Exact when no thread is adding; otherwise the value
/// of some moment.
#[derive(Debug)]
pub struct StripedCounter {
    stripes: Box<[CachePadded<AtomicU64>]>,
}

impl Default for StripedCounter {
    fn default() -> Self {
        Self::new()
    }
}

impl StripedCounter {
    /// A counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { stripes: (0..stripes(FEWEST_LINES)).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Adds `n` on the calling thread's line.
    #[inline]
    #[track_caller]
    pub fn add(&self, n: u64) {
        // Relaxed: a statistic; nothing is published through it.
        self.stripes[thread_stripe() % self.stripes.len()].fetch_add(n, Relaxed);
    }

    /// The sum over all lines.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.stripes.iter().map(|s| s.load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// A source of distinct numbers for threads and handles.
#[derive(Debug, Default)]
pub struct Sequence(AtomicUsize);

impl Sequence {
    /// The next number.
    pub fn next(&self) -> usize {
        // Relaxed: only distinctness matters.
        self.0.fetch_add(1, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_what_every_thread_added() {
        let counter = StripedCounter::new();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..1000).for_each(|_| counter.add(2)));
            }
        });
        assert_eq!(counter.sum(), 8000);
    }
}
