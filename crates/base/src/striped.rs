//! State spread over threads: each thread uses its own part, and a reader visits all parts.
//!
//! A process may have a thousand stores, most of them idle. So the counters of one module share cache lines
//! ([`StripedCounters`]), and larger parts are created at the first use ([`PerStripe`]).

use std::sync::OnceLock;

use crate::CachePadded;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Smallest and largest number of stripes.
const STRIPES: (usize, usize) = (16, 512);
/// Smallest number of cache lines of a counter. A preempted thread delays no other thread here, so about one
/// line per processor suffices, and each store has a dozen counters.
const FEWEST_LINES: usize = 4;

/// Returns the number of processors that this process may use. The first call determines it and reads several
/// files of control groups.
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

/// Returns the number of stripes over which threads are distributed: a power of two, at least 16, and two per
/// processor, so that concurrent threads seldom share a stripe.
#[must_use]
pub fn stripe_count() -> usize {
    stripes(STRIPES.0)
}

/// Returns the number of cache lines for state that no thread locks: a thread that is preempted while it uses
/// its line delays no other thread.
#[must_use]
pub fn line_count() -> usize {
    stripes(FEWEST_LINES)
}

fn stripes(fewest: usize) -> usize {
    (2 * processors()).next_power_of_two().clamp(fewest, STRIPES.1)
}

/// Returns the stripe of the calling thread: a small number, assigned round robin, constant for the life of
/// the thread.
#[must_use]
pub fn thread_stripe() -> usize {
    // Threads of a simulated machine have their own numbers, so that its runs are reproducible.
    #[cfg(all(not(loom), feature = "sim"))]
    if let Some(machine) = crate::sync::machine::current() {
        return machine.thread_number();
    }
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        // std's own atomic: the stripe only spreads load, and no protocol depends on it, so no model needs to
        // see it. (Relaxed: only a number.)
        static STRIPE: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    STRIPE.with(|s| *s)
}

/// Statistics counters without a contended cache line. A counter is exact while no thread is adding.
/// Otherwise the sum is the value of some moment. Up to 16 counters of a thread are on one line.
#[derive(Debug)]
pub struct StripedCounters<const N: usize> {
    lines: Box<[CachePadded<[AtomicU64; N]>]>,
}

impl<const N: usize> Default for StripedCounters<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> StripedCounters<N> {
    /// Returns counters at zero.
    #[must_use]
    pub fn new() -> Self {
        let line = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { lines: (0..line_count()).map(|_| line()).collect() }
    }

    /// Adds `n` to a counter, on the calling thread's line.
    #[inline]
    #[track_caller]
    pub fn add(&self, counter: usize, n: u64) {
        // Relaxed: a statistic; nothing is published through it.
        self.lines[thread_stripe() % self.lines.len()][counter].fetch_add(n, Relaxed);
    }

    /// Returns the number on the calling thread's line, for hints that each line has for itself.
    #[inline]
    #[must_use]
    pub fn own(&self, counter: usize) -> u64 {
        // Relaxed: as in `add`.
        self.lines[thread_stripe() % self.lines.len()][counter].load(Relaxed)
    }

    /// Replaces the number on the calling thread's line.
    #[inline]
    #[track_caller]
    pub fn set_own(&self, counter: usize, n: u64) {
        // Relaxed: as in `add`. A number of another thread on this line may be lost.
        self.lines[thread_stripe() % self.lines.len()][counter].store(n, Relaxed);
    }

    /// Returns the sum of a counter over all lines.
    #[must_use]
    pub fn sum(&self, counter: usize) -> u64 {
        // Relaxed: as in `add`.
        self.lines.iter().map(|line| line[counter].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// A single striped counter.
#[derive(Debug, Default)]
pub struct StripedCounter(StripedCounters<1>);

impl StripedCounter {
    /// Returns a counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `n` on the calling thread's line.
    #[inline]
    #[track_caller]
    pub fn add(&self, n: u64) {
        self.0.add(0, n);
    }

    /// Returns the sum over all lines.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.sum(0)
    }
}

/// One pointer for each [stripe of threads](stripe_count), created when the first thread of the stripe needs
/// it. A store that few threads use has few pointers.
///
/// - **STRIPE-MADE** A pointer is created under the mutex `making`, and a visitor locks that mutex before the
///   visit. So a pointer that the visitor does not see is created later, by a thread that sees all writes
///   that the visitor made before the visit. All threads that use the pointer see these writes, too.
#[derive(Debug)]
pub struct PerStripe<P> {
    pointers: Box<[OnceLock<P>]>,
    making: Mutex<()>,
}

impl<P> PerStripe<P> {
    /// Returns an empty array for `stripes` stripes.
    #[must_use]
    pub fn new(stripes: usize) -> Self {
        Self { pointers: (0..stripes).map(|_| OnceLock::new()).collect(), making: Mutex::new(()) }
    }

    /// Returns the number of the calling thread's stripe, and its pointer, created by `make` if there is
    /// none.
    #[inline]
    pub fn own(&self, make: impl FnOnce() -> P) -> (usize, &P) {
        let stripe = thread_stripe() % self.pointers.len();
        let own = &self.pointers[stripe];
        (stripe, own.get().unwrap_or_else(|| self.make(own, make)))
    }

    #[cold]
    fn make<'a>(&self, own: &'a OnceLock<P>, make: impl FnOnce() -> P) -> &'a P {
        let _making = self.making.lock(); // STRIPE-MADE
        own.get_or_init(make)
    }

    /// Returns the pointer of a stripe if [`own`](Self::own) has created it.
    #[must_use]
    pub fn get(&self, stripe: usize) -> Option<&P> {
        self.pointers.get(stripe).and_then(OnceLock::get)
    }

    /// Returns the existing pointers, with the numbers of their stripes.
    pub fn visit(&self) -> impl Iterator<Item = (usize, &P)> {
        drop(self.making.lock()); // STRIPE-MADE
        self.pointers.iter().enumerate().filter_map(|(stripe, pointer)| Some((stripe, pointer.get()?)))
    }
}

/// A source of distinct numbers for threads and handles.
#[derive(Debug, Default)]
pub struct Sequence(AtomicUsize);

impl Sequence {
    /// Returns the next number.
    pub fn next(&self) -> usize {
        // Relaxed: the numbers only have to be distinct.
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

    #[test]
    fn counters_of_one_line_are_apart() {
        let counters = StripedCounters::<16>::new();
        (0..16).for_each(|which| counters.add(which, which as u64 + 1));
        assert!((0..16).all(|which| counters.sum(which) == which as u64 + 1));
        assert_eq!(size_of_val(&counters.lines[0]), 128);
    }

    #[test]
    fn a_stripe_is_made_by_its_first_thread_and_met_by_every_visit() {
        let values = PerStripe::<Box<AtomicUsize>>::new(4);
        assert_eq!(values.visit().count(), 0);
        let add = || {
            let (stripe, value) = values.own(Box::default);
            value.fetch_add(1, Relaxed); // Relaxed: the end of the scope provides the ordering
            stripe
        };
        let first = add();
        assert_eq!(values.visit().map(|(stripe, _)| stripe).collect::<Vec<_>>(), [first]);
        std::thread::scope(|s| {
            (0..8).for_each(|_| drop(s.spawn(|| (0..1000).for_each(|_| _ = add()))));
        });
        let sum: usize = values.visit().map(|(_, value)| value.load(Relaxed)).sum(); // Relaxed: as above
        assert_eq!(sum, 8001);
        assert!(values.get(first).is_some() && values.get(4).is_none());
    }
}
