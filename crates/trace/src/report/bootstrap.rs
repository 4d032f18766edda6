//! Confidence intervals of differences, by bootstrap: each recording is divided into slices of time. Slices
//! are drawn repeatedly with replacement, and the spread of the resulting differences is the interval.

/// Number of bootstrap draws.
const DRAWS: usize = 1000;

/// A ratio of sums, such as a time per execution, or executions per slice.
#[derive(Debug, Clone, Default)]
pub(super) struct Ratio {
    /// (numerator, denominator) of each slice.
    slices: Vec<(f64, f64)>,
}

impl Ratio {
    pub(super) fn new(slices: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { slices: slices.into_iter().collect() }
    }

    /// Returns the ratio over all slices; 0 without data.
    pub(super) fn value(&self) -> f64 {
        of(self.slices.iter())
    }

    /// Returns the ratio of each slice.
    pub(super) fn samples(&self) -> Vec<f64> {
        self.slices.iter().map(|slice| of(std::iter::once(slice))).collect()
    }

    fn drawn(&self, random: &mut Random) -> f64 {
        let n = self.slices.len();
        if n == 0 {
            return 0.0;
        }
        of((0..n).map(|_| &self.slices[random.below(n)]))
    }
}

fn of<'a>(slices: impl Iterator<Item = &'a (f64, f64)>) -> f64 {
    let (over, under) = slices.fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    if under == 0.0 { 0.0 } else { over / under }
}

/// Returns the 95 % interval of `after - before`. The same slices give the same interval.
pub(super) fn interval(before: &Ratio, after: &Ratio) -> (f64, f64) {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut differences: Vec<f64> =
        (0..DRAWS).map(|_| after.drawn(&mut random) - before.drawn(&mut random)).collect();
    differences.sort_by(f64::total_cmp);
    (differences[DRAWS / 40], differences[DRAWS - 1 - DRAWS / 40])
}

/// A xorshift generator, which is good enough for the draws.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) as usize * n) >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_recordings_hold_zero_and_far_ones_do_not() {
        let noisy = |mean: f64| Ratio::new((0..32).map(move |i| (mean * 10.0 + f64::from(i % 5), 10.0)));
        let (low, high) = interval(&noisy(3.0), &noisy(3.0));
        assert!(low < 0.0 && 0.0 < high);
        let (low, high) = interval(&noisy(3.0), &noisy(4.0));
        assert!(low > 0.0 && (0.5..1.5).contains(&high), "{low} {high}");
        assert_eq!(interval(&Ratio::default(), &Ratio::default()), (0.0, 0.0));
    }
}
