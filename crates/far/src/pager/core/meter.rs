//! Measured cost of paging: the region's part of [`Spent`].
//!
//! The pager's thread cannot measure the time from the program's access to the pager and back. This time is
//! measured once at the start, by an access from another thread ([`Meter::calibrated`]), and added to each
//! fault. The program's own time is not derived from it: on a busy machine the time of many faults that is
//! not measured would appear as work of the program.

use super::nanos;
use crate::replace::Spent;
use std::time::Instant;

/// Number of cleared bits after which their mean replaces the calibrated cost.
const ENOUGH: u64 = 16;
/// Number of latest swaps. Their median is the price of a swap.
const LATEST: usize = 16;

/// Counts and times since the region was created.
#[derive(Clone, Copy, Debug)]
pub(in crate::pager) struct Meter {
    /// Time of a fault without the time of its handler.
    way_ns: f64,
    /// Calibrated cost of clearing one bit and setting it again.
    first_bit_ns: f64,
    swaps: Sum,
    /// Times of the latest swaps in nanoseconds, as a ring.
    latest: [u64; LATEST],
    cleared: Sum,
    set: Sum,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    ns: u64,
}

impl Sum {
    fn add(&mut self, since: Instant) -> u64 {
        let ns = nanos(since);
        self.count += 1;
        self.ns += ns;
        ns
    }

    fn mean(self) -> f64 {
        self.ns as f64 / self.count.max(1) as f64
    }
}

impl Meter {
    pub(super) fn new() -> Self {
        Self {
            way_ns: 0.0,
            first_bit_ns: 0.0,
            swaps: Sum::default(),
            latest: [0; LATEST],
            cleared: Sum::default(),
            set: Sum::default(),
        }
    }

    /// Records that a page arrived for a thread that has waited since `since`. Returns the time in
    /// nanoseconds.
    pub(super) fn came(&mut self, since: Instant) -> u64 {
        let place = self.swaps.count as usize % LATEST;
        self.latest[place] = self.swaps.add(since);
        self.latest[place]
    }

    /// Records that a bit was cleared. Returns the time in nanoseconds.
    pub(super) fn cleared(&mut self, since: Instant) -> u64 {
        self.cleared.add(since)
    }

    /// Records a fault that only set a bit. Returns the time in nanoseconds.
    pub(super) fn set(&mut self, since: Instant) -> u64 {
        self.set.add(since)
    }

    /// Returns the time in faults that only set a bit.
    pub(in crate::pager) fn set_ns(&self) -> u64 {
        self.set.ns
    }

    /// Returns the time spent in clearing bits.
    pub(in crate::pager) fn cleared_ns(&self) -> u64 {
        self.cleared.ns
    }

    /// Returns a meter with calibrated costs: of a fault without its handler, and of a cleared bit.
    pub(in crate::pager) fn calibrated(way_ns: f64, bit_ns: f64) -> Self {
        Self { way_ns, first_bit_ns: bit_ns, ..Self::new() }
    }

    /// Returns the price of a swap: the median of the latest swaps (the lower one of two), including the
    /// fixed cost.
    fn swap_price_ns(&self) -> f64 {
        let known = LATEST.min(usize::try_from(self.swaps.count).unwrap_or(LATEST));
        let mut latest = self.latest;
        let latest = &mut latest[..known];
        latest.sort_unstable();
        latest.get(known.saturating_sub(1) / 2).map_or(0.0, |&ns| ns as f64 + self.way_ns)
    }

    /// Returns the costs for the policy.
    pub(super) fn spent(&self) -> Spent {
        let with_ways = |sum: Sum| sum.ns as f64 + self.way_ns * sum.count as f64;
        let swap_ns = with_ways(self.swaps);
        let bits_ns = self.cleared.ns as f64 + with_ways(self.set);
        let bit_ns = if self.cleared.count.min(self.set.count) < ENOUGH {
            self.first_bit_ns
        } else {
            self.cleared.mean() + self.set.mean() + self.way_ns
        };
        Spent { swaps: self.swaps.count, swap_ns, bits_ns, swap_price_ns: self.swap_price_ns(), bit_ns }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fault_costs_are_charged_by_kind() {
        let way = 1e6;
        let mut meter = Meter::calibrated(way, 77.0);
        let ago = |ms| Instant::now() - Duration::from_millis(ms);
        let (swap, cleared, set) = (meter.came(ago(1000)), meter.cleared(ago(50)), meter.set(ago(200)));
        let spent = meter.spent();
        assert_eq!((spent.swaps, spent.swap_ns), (1, swap as f64 + way));
        assert_eq!(spent.bits_ns, cleared as f64 + set as f64 + way);
        assert_eq!(spent.bit_ns, 77.0, "one bit says little");
        for _ in 0..ENOUGH {
            meter.cleared(ago(50));
            meter.set(ago(200));
        }
        assert!(meter.spent().bit_ns >= 2.5e8 + way);
    }

    #[test]
    fn one_disturbed_page_in_does_not_change_the_cost() {
        let mut meter = Meter::calibrated(1e6, 77.0);
        assert_eq!(meter.spent().swap_price_ns, 0.0);
        let mut come = |ms| meter.came(Instant::now() - Duration::from_millis(ms));
        // This thread may be stopped at any time, so the measured times are compared.
        let mut first = [9000, 30, 8000, 10].map(&mut come);
        first.sort_unstable();
        assert_eq!(meter.spent().swap_price_ns, first[1] as f64 + 1e6);
        let mut latest: Vec<u64> = (0..LATEST as u64)
            .map(|more| meter.came(Instant::now() - Duration::from_secs(1 + more)))
            .collect();
        latest.sort_unstable();
        assert_eq!(
            meter.spent().swap_price_ns,
            latest[LATEST / 2 - 1] as f64 + 1e6,
            "the first are forgotten"
        );
    }
}
