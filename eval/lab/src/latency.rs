//! Histograms of latencies.

use hdrhistogram::Histogram;
use std::time::Duration;

/// A histogram of latencies with an error of at most 1 %, in about 30 KiB, which stay in a core's cache.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u32>);

const LONGEST_NS: u64 = 1_000_000_000_000;

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 2).expect("bounds and digits are valid"))
    }
}

impl Latencies {
    /// Adds a latency; values above 1000 s count as 1000 s.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS);
        self.0.saturating_record(ns.max(1));
    }

    /// Adds all latencies of `other`.
    ///
    /// # Panics
    ///
    /// Never: all histograms have the same bounds.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// Returns the number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the latency that a share of `quantile` (0 to 1) does not exceed, in microseconds; 0 if there
    /// is none.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        us(self.0.value_at_quantile(quantile))
    }

    /// Returns the mean in microseconds; 0 if there is none.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// Returns the largest latency in microseconds; 0 if there is none.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        us(self.0.max())
    }
}

#[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
fn us(ns: u64) -> f64 {
    // More than two decimals would exceed the precision of the histogram.
    (ns as f64 / 10.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_percent() {
        let mut a = Latencies::default();
        let mut b = Latencies::default();
        for us in 1..=1_000 {
            if us % 2 == 0 { &mut a } else { &mut b }.record(Duration::from_micros(us));
        }
        a.merge(&b);
        assert_eq!(a.count(), 1_000);
        assert!((a.mean_us() - 500.5).abs() < 5.0, "{}", a.mean_us());
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0), (1.0, 1_000.0)] {
            let seen = a.quantile_us(quantile);
            assert!((seen - expected).abs() <= expected * 0.011, "{quantile}: {seen}, expected {expected}");
        }
    }

    #[test]
    fn a_latency_beyond_the_scale_is_counted_as_the_longest() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_secs(100_000));
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.max_us() >= 0.9e9);
    }
}
