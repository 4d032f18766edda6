//! Cost of paging so far, measured by the region. So a policy can compare costs without its own clock.

/// Costs since the region was created, in nanoseconds of virtual or real time. The sums never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Pages that were paged in from a replica or the tier, on demand or ahead of need.
    pub swaps: u64,
    /// Time of waiting for these pages.
    pub swap_ns: f64,
    /// Time for clearing bits, and for faults that only set a bit.
    pub bits_ns: f64,
    /// Current cost of a swap (not a sum): the median of the latest swaps, so that one delayed swap has no
    /// influence.
    pub swap_price_ns: f64,
    /// Current estimate of the cost of clearing one bit (not a sum), including the fault that sets it again.
    pub bit_ns: f64,
}

impl Spent {
    /// Returns the costs between an earlier time and this one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            swaps: self.swaps - earlier.swaps,
            swap_ns: self.swap_ns - earlier.swap_ns,
            bits_ns: self.bits_ns - earlier.bits_ns,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_an_interval_are_the_difference_of_two_totals() {
        let at = |swaps, ns: f64| Spent {
            swaps,
            swap_ns: 100.0 * ns,
            bits_ns: 20.0 * ns,
            swap_price_ns: 90.0,
            bit_ns: 7.0,
        };
        assert_eq!(at(9, 5.0).since(at(4, 3.0)), at(5, 2.0));
    }
}
