//! The test that distinguishes a difference of two recordings from the noise inside them.
//!
//! A recording has [`SLICES`] slices of time. The first and the last one are left out, because they have the
//! start and the end of the program. Two neighboring slices make one of [`SAMPLES`] samples. An operation
//! that ends in less than half of the samples, such as a thread, has one sample per execution instead. A
//! difference is significant if all of these hold:
//!
//! 1. Rank test: the samples differ at [`LEVEL`] by the test of Mann and Whitney, two-sided, after Holm's
//!    correction for all rows of the comparison.
//! 2. Spread: of the pairs of a sample before and a sample after, [`SAME_DIRECTION`] differ in the same
//!    direction, or [`SAME_DIRECTION_IF_LARGE`] if the values differ by a factor of [`LARGE`]. Neighboring
//!    slices resemble each other in real programs, so the rank test alone reports differences that the spread
//!    of the slices explains.
//! 3. Size: the larger value is [`FACTOR_OF_SLICES`] times the smaller one, or [`FACTOR_OF_RUNS`] times if
//!    executions are the samples. The slices of one run do not show the noise between runs.
//!
//! With fewer than [`LEAST_TESTED`] executions on one side, the rank test has no result; then all pairs must
//! differ in the same direction.

use super::bootstrap::{Ratio, interval};
use crate::analyze::SLICES;
use serde::Serialize;

/// Number of samples of a recording.
pub(super) const SAMPLES: usize = SLICES / 2 - 1;
/// Probability that the comparison of two recordings of one process in a steady state has a significant row.
pub(super) const LEVEL: f64 = 0.05;
/// Smallest number of samples for the rank test: half of [`SAMPLES`].
pub(super) const LEAST_TESTED: usize = SAMPLES.div_ceil(2);
/// Smallest part of the pairs of samples that differ in the same direction.
const SAME_DIRECTION: f64 = 0.95;
/// This part for a large difference: so two samples of 15, in which the program stalled, do not hide it.
const SAME_DIRECTION_IF_LARGE: f64 = 0.85;
/// Smallest factor of a large difference.
const LARGE: f64 = 4.0;
/// Smallest factor if slices of time are the samples. Runs of one program differ by up to 10 % in throughput
/// on a machine with other load.
pub(super) const FACTOR_OF_SLICES: f64 = 1.1;
/// Smallest factor if executions are the samples: they have all of a run's noise in common.
pub(super) const FACTOR_OF_RUNS: f64 = 1.5;
/// Largest number of samples for which the rank test is exact.
const EXACT: usize = 20;
/// Smallest number of samples with an interval.
const LEAST_INTERVAL: usize = 3;

/// Result of the test of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgment {
    /// The spread of the samples does not explain the difference.
    Significant,
    /// The spread of the samples explains the difference, or the difference is small.
    NotSignificant,
    /// One of the recordings has no samples of this number.
    NotJudged,
}

impl Judgment {
    /// Returns the name of the judgment in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Significant => "significant",
            Self::NotSignificant => "not significant",
            Self::NotJudged => "not judged",
        }
    }
}

/// Returns the rule in words, for a comparison in which `rows` rows have a rank test.
pub(super) fn rule(rows: u64) -> String {
    let (percent, slices, runs) = (LEVEL * 100.0, FACTOR_OF_SLICES, FACTOR_OF_RUNS);
    [
        "  significant: the spread of the samples of time does not explain the difference.".into(),
        format!("  Samples: {SAMPLES} of two slices of time each, without the first and the last slice."),
        format!("  Test: Mann and Whitney, {percent:.0} %, with Holm's correction for {rows} rows; 19 of 20"),
        format!("  pairs of samples (17 of 20 from a factor of {LARGE}) differ in the same direction; the"),
        format!("  factor is at least {slices}. Threads, and other operations that end in few slices, have"),
        format!(
            "  executions as samples, and their factor is at least {runs}. The interval is that of after"
        ),
        "  minus before, for this row alone.".into(),
        "  The noise between runs is not known.".into(),
    ]
    .join("\n")
}

/// One number in one recording: its samples, and its value.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples {
    pub(super) ratio: Ratio,
    /// `true` if executions are the samples, or if the number of executions is that of a whole run.
    pub(super) is_of_run: bool,
}

impl Samples {
    /// Samples of slices of time: numerator and denominator of each slice. Slices without a denominator make
    /// no sample.
    pub(super) fn of_slices(slices: impl IntoIterator<Item = (f64, f64)>, is_of_run: bool) -> Self {
        let slices: Vec<_> = slices.into_iter().collect();
        let inner = slices.get(1..slices.len().saturating_sub(1)).unwrap_or_default();
        let sum = |pair: &[(f64, f64)]| pair.iter().fold((0.0, 0.0), |sum, s| (sum.0 + s.0, sum.1 + s.1));
        let samples = inner.chunks(2).map(sum).filter(|sample| sample.1 > 0.0);
        Self { ratio: Ratio::new(samples), is_of_run }
    }

    /// Samples of executions: numerator and denominator of each.
    pub(super) fn of_executions(executions: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self { ratio: Ratio::new(executions), is_of_run: true }
    }
}

/// Test of one row, before the correction for many rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Test {
    /// `true` if the conditions 2 and 3 hold.
    is_large: bool,
    /// Probability of ranks as different as these by chance; `None` without a rank test.
    p: Option<f64>,
    samples: (usize, usize),
    interval: Option<(f64, f64)>,
}

impl Test {
    pub(super) fn new(before: &Samples, after: &Samples) -> Self {
        let (a, b) = (before.ratio.samples(), after.ratio.samples());
        let samples = (a.len(), b.len());
        let fewest = a.len().min(b.len());
        let has_interval = fewest >= LEAST_INTERVAL;
        let interval = has_interval.then(|| interval(&before.ratio, &after.ratio));
        if fewest == 0 {
            return Self { is_large: false, p: None, samples, interval };
        }
        let ranks = Ranks::new(&a, &b);
        let is_tested = fewest >= LEAST_TESTED;
        let is_of_run = before.is_of_run || after.is_of_run;
        let factor = if is_of_run { FACTOR_OF_RUNS } else { FACTOR_OF_SLICES };
        let (x, y) = (before.ratio.value(), after.ratio.value());
        let differ_by = |factor: f64| x.max(y) >= factor * x.min(y) && x != y;
        let same_direction = match is_tested {
            false => 1.0,
            true if differ_by(LARGE) => SAME_DIRECTION_IF_LARGE,
            true => SAME_DIRECTION,
        };
        let is_large = differ_by(factor) && ranks.same_direction() >= same_direction;
        // Only a row that may be significant needs the exact probability.
        let p = is_tested.then(|| ranks.probability(is_large));
        Self { is_large, p, samples, interval }
    }

    /// Returns `true` if the difference exceeds the spread of the samples and the smallest factor.
    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }
}

/// Test of one row, after the correction for many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tested {
    pub(super) judgment: Judgment,
    pub(super) p: Option<f64>,
    pub(super) samples: (usize, usize),
    pub(super) interval: Option<(f64, f64)>,
}

/// Corrects the probabilities of all rows of a comparison (Holm) and judges the rows.
pub(super) fn judge(tests: &[Test]) -> Vec<Tested> {
    let mut order: Vec<(f64, usize)> =
        tests.iter().enumerate().filter_map(|(at, test)| Some((test.p?, at))).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut corrected: Vec<Option<f64>> = vec![None; tests.len()];
    let mut highest: f64 = 0.0;
    for (done, (p, at)) in order.iter().enumerate() {
        highest = highest.max(p * (order.len() - done) as f64).min(1.0);
        corrected[*at] = Some(highest);
    }
    let judged = |(test, p): (&Test, Option<f64>)| Tested {
        judgment: match test.samples {
            (0, _) | (_, 0) => Judgment::NotJudged,
            _ if test.is_large && p.is_none_or(|p| p <= LEVEL) => Judgment::Significant,
            _ => Judgment::NotSignificant,
        },
        p,
        samples: test.samples,
        interval: test.interval,
    };
    tests.iter().zip(corrected).map(judged).collect()
}

/// Ranks of the samples of two recordings.
struct Ranks {
    /// Twice the rank of each sample; equal samples have the mean of their ranks.
    doubled: Vec<usize>,
    /// Sum of the doubled ranks of the first recording.
    sum: usize,
    count: (usize, usize),
}

impl Ranks {
    fn new(a: &[f64], b: &[f64]) -> Self {
        let mut all: Vec<(f64, bool)> = a.iter().map(|v| (*v, true)).collect();
        all.extend(b.iter().map(|v| (*v, false)));
        all.sort_by(|x, y| x.0.total_cmp(&y.0));
        let (mut doubled, mut sum) = (Vec::with_capacity(all.len()), 0);
        for equal in all.chunk_by(|x, y| x.0 == y.0) {
            let rank = 2 * doubled.len() + equal.len() + 1;
            sum += rank * equal.iter().filter(|sample| sample.1).count();
            doubled.resize(doubled.len() + equal.len(), rank);
        }
        Self { doubled, sum, count: (a.len(), b.len()) }
    }

    /// Returns the part of the pairs that differ in the more frequent direction; an equal pair counts half.
    fn same_direction(&self) -> f64 {
        let (n, m) = self.count;
        let above = (self.sum - n * (n + 1)) as f64 / (2 * n * m) as f64;
        above.max(1.0 - above)
    }

    /// Returns the probability that a random division of the samples differs as much as this one.
    fn probability(&self, is_exact: bool) -> f64 {
        if is_exact && self.count.0.max(self.count.1) <= EXACT { self.exact() } else { self.normal() }
    }

    fn exact(&self) -> f64 {
        let (n, most) = (self.count.0, self.doubled.iter().sum::<usize>());
        // Number of choices of `k` samples with this sum of ranks, at `k * (most + 1) + sum`.
        let width = most + 1;
        let mut choices = vec![0.0; (n + 1) * width];
        choices[0] = 1.0;
        for rank in &self.doubled {
            for k in (1..=n).rev() {
                let (fewer, these) = choices.split_at_mut(k * width);
                let fewer = &fewer[(k - 1) * width..];
                these[*rank..width].iter_mut().zip(fewer).for_each(|(to, from)| *to += from);
            }
        }
        let sums = &choices[n * width..];
        let all: f64 = sums.iter().sum();
        let low: f64 = sums[..=self.sum].iter().sum();
        let high: f64 = sums[self.sum..].iter().sum();
        (2.0 * low.min(high) / all).min(1.0)
    }

    /// Returns the probability by the normal distribution with the same variance.
    fn normal(&self) -> f64 {
        let (n, m, all) = (self.count.0 as f64, self.count.1 as f64, self.doubled.len() as f64);
        let mean = all + 1.0; // of the doubled ranks
        let squares: f64 = self.doubled.iter().map(|rank| (*rank as f64 - mean).powi(2)).sum();
        let deviation = (n * m * squares / (all * (all - 1.0))).sqrt();
        if deviation == 0.0 {
            return 1.0;
        }
        let off = ((self.sum as f64 - n * mean).abs() - 1.0).max(0.0);
        complementary_error(off / deviation / std::f64::consts::SQRT_2)
    }
}

/// Returns the complementary error function of an argument of at least 0, with a relative error below 1.2e-7
/// (W. H. Press et al., Numerical Recipes, 6.2).
fn complementary_error(x: f64) -> f64 {
    const COEFFICIENTS: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let t = 1.0 / (1.0 + 0.5 * x);
    let series = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * t + c);
    t * (series - x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_tables_for_this_test() {
        let p = |a: &[f64], b: &[f64]| Ranks::new(a, b).probability(true);
        // No overlap: 2 of the 252 divisions of 10 samples, and 2 of 155117520.
        assert!((p(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]) - 2.0 / 252.0).abs() < 1e-12);
        let low: Vec<f64> = (0..15).map(f64::from).collect();
        let high: Vec<f64> = (20..35).map(f64::from).collect();
        assert!((p(&low, &high) * 155_117_520.0 - 2.0).abs() < 1e-6);
        // Ranks 1, 2, 5 and 7 of 10: 18 of the 210 choices have a sum of at most 15.
        let mixed = p(&[1.0, 2.0, 5.0, 7.0], &[3.0, 4.0, 6.0, 8.0, 9.0, 10.0]);
        assert!((mixed - 36.0 / 210.0).abs() < 1e-12, "{mixed}");
        assert_eq!(p(&[1.0; 9], &[1.0; 8]), 1.0);
        // The normal distribution is close where the exact one is not used.
        let a: Vec<f64> = (0..19).map(|i| f64::from(i * 7 % 19)).collect();
        let b: Vec<f64> = (0..20).map(|i| f64::from(i * 7 % 20) + 5.5).collect();
        let ranks = Ranks::new(&a, &b);
        assert!((ranks.exact() - ranks.normal()).abs() < 0.003, "{} {}", ranks.exact(), ranks.normal());
    }

    /// Returns 32 slices around `mean`. Each depends on its neighbor by `rho`; the first and the last are far
    /// off.
    fn slices(state: &mut u64, mean: f64, deviation: f64, rho: f64) -> Samples {
        let mut normal = || {
            let mut sum = -6.0;
            for _ in 0..12 {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                sum += (*state >> 11) as f64 / (1_u64 << 53) as f64;
            }
            sum
        };
        let mut noise = normal();
        let mut values: Vec<f64> = Vec::new();
        for _ in 0..SLICES {
            values.push((mean * (1.0 + deviation * noise)).max(0.0));
            noise = rho * noise + (1.0 - rho * rho).sqrt() * normal();
        }
        (values[0], values[SLICES - 1]) = (mean * 40.0 * normal().abs(), 0.0);
        Samples::of_slices(values.into_iter().map(|v| (v, 1.0)), false)
    }

    /// Returns the number of comparisons of 20 rows, of 500, with a significant row.
    fn comparisons_with_a_result(deviation: f64, rho: f64, factor: f64) -> usize {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut has_result = |_: &usize| {
            let mut pair = |_| {
                let before = slices(&mut state, 1.0, deviation, rho);
                Test::new(&before, &slices(&mut state, factor, deviation, rho))
            };
            let tests: Vec<Test> = (0..20).map(&mut pair).collect();
            judge(&tests).iter().any(|row| row.judgment == Judgment::Significant)
        };
        (0..500).filter(&mut has_result).count()
    }

    #[test]
    fn equal_recordings_differ_at_most_at_the_level_whatever_their_spread() {
        for deviation in [0.0, 0.02, 0.1, 0.3, 1.0] {
            for rho in [0.0, 0.5] {
                let count = comparisons_with_a_result(deviation, rho, 1.0);
                assert!(count <= 25, "{count} of 500 with a spread of {deviation}, {rho} from the neighbor");
            }
        }
    }

    #[test]
    fn a_small_difference_is_not_significant_however_small_the_spread() {
        assert_eq!(comparisons_with_a_result(0.001, 0.0, 1.08), 0);
        assert_eq!(comparisons_with_a_result(0.001, 0.0, 1.0 / 1.08), 0);
    }

    #[test]
    fn a_factor_of_6_5_is_significant_in_all_rows_of_one_pair() {
        let mut state = 7;
        for deviation in [0.01, 0.1, 0.3] {
            for (before, after) in [(6.5, 1.0), (1.0, 6.5), (6.5, 0.0)] {
                let mut pair = |_| {
                    let before = slices(&mut state, before, deviation, 0.3);
                    Test::new(&before, &slices(&mut state, after, deviation, 0.3))
                };
                let tests: Vec<Test> = (0..500).map(&mut pair).collect();
                let rows = judge(&tests);
                assert!(rows.iter().all(|row| row.judgment == Judgment::Significant), "{deviation}");
            }
        }
    }

    /// Two samples of the first recording have the value of the second one.
    #[test]
    fn two_samples_in_which_the_program_stalled_do_not_hide_a_large_difference() {
        let of = |value: f64, stalled: &[usize]| {
            let slice = |at| if stalled.contains(&at) { 1.0 } else { value };
            Samples::of_slices((0..SLICES).map(|at| (slice(at), 1.0)), false)
        };
        let judgment =
            |value, stalled: &[usize]| judge(&[Test::new(&of(value, stalled), &of(1.0, &[]))])[0].judgment;
        assert_eq!(judgment(6.5, &[5, 6, 9, 10]), Judgment::Significant);
        assert_eq!(judgment(1.3, &[5, 6, 9, 10]), Judgment::NotSignificant);
        assert_eq!(judgment(1.3, &[]), Judgment::Significant);
    }

    #[test]
    fn few_executions_need_a_large_factor_and_no_overlap() {
        let of = |values: &[f64]| Samples::of_executions(values.iter().map(|v| (*v, 1.0)));
        let judgment = |a: &[f64], b: &[f64]| judge(&[Test::new(&of(a), &of(b))])[0].judgment;
        assert_eq!(judgment(&[6.5], &[1.0]), Judgment::Significant);
        assert_eq!(judgment(&[1.4], &[1.0]), Judgment::NotSignificant);
        assert_eq!(judgment(&[6.5, 7.0, 0.9], &[1.0, 1.1]), Judgment::NotSignificant, "they overlap");
        assert_eq!(judgment(&[6.5, 7.0, 6.9], &[]), Judgment::NotJudged);
        assert_eq!(judgment(&[0.0], &[0.0]), Judgment::NotSignificant);
    }
}
