//! Distribution of values in bounded memory: exact for few values, otherwise exact to one part in 128.

/// Number of values that are kept exactly.
const EXACT: usize = 1 << 16;
/// Logarithm of the number of buckets for each power of two.
const FINE_LOG: u32 = 7;
const BUCKETS: usize = (65 - FINE_LOG as usize) << FINE_LOG;

/// Values with weights.
#[derive(Debug, Clone)]
pub(crate) enum Spread {
    /// Values and weights, in order of arrival.
    Few(Vec<(u64, u32)>),
    /// Weights by bucket, and the largest value.
    Many { counts: Box<[u64]>, largest: u64 },
}

impl Default for Spread {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Spread {
    /// Adds a value with this weight.
    #[inline]
    pub(crate) fn add(&mut self, value: u64, weight: u32) {
        if let Self::Few(values) = self {
            if values.len() < EXACT {
                values.push((value, weight));
                return;
            }
            let values = std::mem::take(values);
            *self = Self::Many { counts: vec![0; BUCKETS].into_boxed_slice(), largest: 0 };
            values.into_iter().for_each(|(value, weight)| self.count(value, weight.into()));
        }
        self.count(value, weight.into());
    }

    /// Adds all values of `other`.
    pub(crate) fn merge(&mut self, other: Self) {
        match other {
            Self::Few(values) => values.into_iter().for_each(|(value, weight)| self.add(value, weight)),
            Self::Many { counts, largest } => {
                if let Self::Few(values) = self {
                    let few = std::mem::take(values);
                    *self = Self::Many { counts, largest };
                    few.into_iter().for_each(|(value, weight)| self.count(value, weight.into()));
                } else if let Self::Many { counts: own, largest: own_largest } = self {
                    own.iter_mut().zip(&counts).for_each(|(own, count)| *own += count);
                    *own_largest = largest.max(*own_largest);
                }
            }
        }
    }

    fn count(&mut self, value: u64, weight: u64) {
        if let Self::Many { counts, largest } = self {
            counts[bucket(value)] += weight;
            *largest = value.max(*largest);
        }
    }

    /// Returns the median, the 99th percentile, and the maximum.
    pub(crate) fn quantiles(self) -> [u64; 3] {
        match self {
            Self::Few(values) => exact(values),
            Self::Many { counts, largest } => {
                let all: u64 = counts.iter().sum();
                let at = |part: f64| {
                    let index = ((all as f64 * part).ceil() as u64).saturating_sub(1);
                    let mut before = 0;
                    let found = counts.iter().position(|count| {
                        before += count;
                        before > index
                    });
                    found.map_or(largest, middle).min(largest)
                };
                [at(0.5), at(0.99), largest]
            }
        }
    }
}

/// Returns the bucket of a value. Below 128 each value has its own bucket; above, each power of two has 128
/// buckets.
fn bucket(value: u64) -> usize {
    let log = 63 - (value | 1 << FINE_LOG).leading_zeros();
    let octave = (log - FINE_LOG) as usize;
    let fine = (value >> octave) as usize;
    // The leading bit of `fine` is set in all octaves but the first, so consecutive octaves do not overlap.
    (octave << FINE_LOG) + fine
}

fn middle(bucket: usize) -> u64 {
    let octave = (bucket >> FINE_LOG).saturating_sub(1);
    let fine = (bucket - (octave << FINE_LOG)) as u64;
    (fine << octave) + (1_u64 << octave >> 1)
}

/// Returns the exact quantiles. Avoids sorting if all values have weight 1.
fn exact(mut values: Vec<(u64, u32)>) -> [u64; 3] {
    let Some(&(longest, _)) = values.iter().max_by_key(|v| v.0) else { return [0; 3] };
    let all: u64 = values.iter().map(|v| u64::from(v.1)).sum();
    let index = |part: f64| ((all as f64 * part).ceil() as u64).saturating_sub(1);
    let (half, most) = (index(0.5), index(0.99));
    if all == values.len() as u64 {
        let (below, &mut (p99, _), _) = values.select_nth_unstable(most as usize);
        let p50 = if half < most { below.select_nth_unstable(half as usize).1.0 } else { p99 };
        return [p50, p99, longest];
    }
    values.sort_unstable();
    let at = |index: u64| {
        let mut before = 0;
        let of = values.iter().find(|v| {
            before += u64::from(v.1);
            before > index
        });
        of.map_or(longest, |v| v.0)
    };
    [at(half), at(most), longest]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = (u64, u32)>) -> Spread {
        let mut spread = Spread::default();
        values.into_iter().for_each(|(value, weight)| spread.add(value, weight));
        spread
    }

    #[test]
    fn few_values_spread_as_they_do_when_sorted() {
        assert_eq!(Spread::default().quantiles(), [0; 3]);
        for n in 1..300_u64 {
            let values: Vec<u64> = (0..n).map(|i| i * 7919 % 1000).collect();
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let at = |part: f64| sorted[((n as f64 * part).ceil() as usize).saturating_sub(1)];
            let expected = [at(0.5), at(0.99), at(1.0)];
            assert_eq!(of(values.iter().map(|v| (*v, 1))).quantiles(), expected, "{n}");
            // A value with weight 3 is equivalent to the value three times.
            let thrice = of(values.iter().flat_map(|v| [(*v, 1); 3])).quantiles();
            assert_eq!(of(values.into_iter().map(|v| (v, 3))).quantiles(), thrice, "{n}");
        }
    }

    #[test]
    fn every_value_has_a_bucket_near_it() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1_u64 << shift) + (1_u64 << shift >> 3), u64::MAX >> shift] {
                let reported = middle(bucket(value));
                assert!(reported.abs_diff(value) <= value >> FINE_LOG, "{value} is reported as {reported}");
            }
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn many_values_spread_nearly_as_they_do_when_sorted_and_take_no_more_room() {
        let values = || (0..200_000_u64).map(|i| i * 7919 % 100_003);
        let many = of(values().map(|v| (v, 1)));
        assert!(matches!(many, Spread::Many { .. }));
        let mut merged = of(values().take(70_000).map(|v| (v, 1)));
        merged.merge(of(values().skip(70_000).take(10).map(|v| (v, 1))));
        let mut rest = of(values().skip(70_010).take(5).map(|v| (v, 1)));
        rest.merge(of(values().skip(70_015).map(|v| (v, 1))));
        merged.merge(rest);
        let mut sorted: Vec<u64> = values().collect();
        sorted.sort_unstable();
        for spread in [many, merged] {
            let [p50, p99, longest] = spread.quantiles();
            assert_eq!(longest, *sorted.last().unwrap());
            for (reported, part) in [(p50, 0.5), (p99, 0.99)] {
                let exact = sorted[(200_000.0 * part) as usize - 1];
                assert!(reported.abs_diff(exact) <= exact / 100, "{part}: {reported} and not {exact}");
            }
        }
    }
}
