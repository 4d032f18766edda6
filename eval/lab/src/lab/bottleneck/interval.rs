//! Statistics of pairs of measurements: mean, median and Hodges–Lehmann estimator, each with a 95 %
//! confidence interval.
//!
//! Each function takes logarithms of ratios (rate with recording divided by rate without) and returns the
//! lost part: 0.02 is two percent.

/// Returns the mean loss, and its 95 % interval by Student's t distribution.
pub(super) fn mean(ratios: &[f64]) -> (f64, Option<(f64, f64)>) {
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n.max(1.0);
    let part = |log: f64| 1.0 - log.exp();
    if ratios.len() < 2 {
        return (part(mean), None);
    }
    let variance = ratios.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = student(ratios.len() - 1) * (variance / n).sqrt();
    (part(mean), Some((part(mean + half), part(mean - half))))
}

/// Returns the median loss, and its 95 % interval by the sign test. The interval ends at two of the losses:
/// with a probability of at most 2.5 % on each side, fewer losses lie beyond it than by fair coin flips.
pub(super) fn median(ratios: &[f64]) -> (f64, Option<(f64, f64)>) {
    let mut losses: Vec<f64> = ratios.iter().map(|log| 1.0 - log.exp()).collect();
    losses.sort_by(f64::total_cmp);
    let n = losses.len();
    let Some(&upper_middle) = losses.get(n / 2) else { return (0.0, None) };
    let median = f64::midpoint(upper_middle, losses[(n - 1) / 2]);
    let outside = rarely_fewer(n);
    (median, (outside > 0).then(|| (losses[outside - 1], losses[n - outside])))
}

/// Returns the median of the means of all pairs of losses, each also paired with itself (J. L. Hodges, E. L.
/// Lehmann 1963), and its 95 % interval by Wilcoxon's signed-rank test. Single disturbed measurements affect
/// it as little as a median, and it is nearly as precise as a mean. It assumes that disturbances affect both
/// sides alike. The interval is `None` for fewer than ten ratios, for which the normal approximation is too
/// coarse.
pub(super) fn middle(ratios: &[f64]) -> (f64, Option<(f64, f64)>) {
    let mut means: Vec<f64> = Vec::with_capacity(ratios.len() * (ratios.len() + 1) / 2);
    for (at, a) in ratios.iter().enumerate() {
        means.extend(ratios[at..].iter().map(|b| f64::midpoint(*a, *b)));
    }
    means.sort_by(f64::total_cmp);
    let Some(last) = means.len().checked_sub(1) else { return (0.0, None) };
    let part = |log: f64| 1.0 - log.exp();
    let middle = part(f64::midpoint(means[last / 2], means[last.div_ceil(2)]));
    let n = ratios.len() as f64;
    let outside = n * (n + 1.0) / 4.0 - 1.96 * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let outside = (outside.max(0.0) as usize).min(last / 2);
    (middle, (ratios.len() >= 10).then(|| (part(means[last - outside]), part(means[outside]))))
}

/// Returns the largest number *k* such that fewer than *k* heads in `n` fair coin flips have a probability of
/// at most 2.5 %.
fn rarely_fewer(n: usize) -> usize {
    let (mut of_exactly, mut of_fewer) = (0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX)), 0.0);
    for heads in 0..n {
        of_fewer += of_exactly;
        if of_fewer > 0.025 {
            return heads;
        }
        of_exactly *= (n - heads) as f64 / (heads + 1) as f64;
    }
    0
}

/// Returns the 97.5 % quantile of Student's t distribution with `freedom` degrees of freedom.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    TABLE.get(freedom.max(1) - 1).copied().unwrap_or(2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_holds_the_loss_and_shrinks_with_more_pairs() {
        let pairs = |n: usize| -> Vec<f64> {
            (0..n).map(|i| (0.8f64).ln() + if i % 2 == 0 { 0.05 } else { -0.05 }).collect()
        };
        let (few, many) = (mean(&pairs(4)), mean(&pairs(20)));
        assert!((few.0 - 0.2).abs() < 1e-9 && (many.0 - 0.2).abs() < 1e-9);
        let width = |i: Option<(f64, f64)>| {
            i.map(|(low, high)| {
                assert!(low < 0.2 && 0.2 < high);
                high - low
            })
        };
        assert!(width(few.1).unwrap() > 2.0 * width(many.1).unwrap());
        assert_eq!(mean(&[0.0]), (0.0, None));
    }

    #[test]
    fn the_median_and_its_interval_are_not_moved_by_pairs_that_the_machine_disturbed() {
        // From tables of the sign test: with 40 pairs the interval is from the 14th to the 27th value, with
        // 20 from the 6th to the 15th, and with 6 it spans all values.
        assert_eq!([5, 6, 10, 20, 40].map(rarely_fewer), [0, 1, 2, 6, 14]);
        let mut ratios: Vec<f64> = (0..40).map(|i| (0.980 + f64::from(i) * 1e-4).ln()).collect();
        let quiet = median(&ratios);
        ratios[0] = 0.5_f64.ln();
        ratios[39] = 3.0_f64.ln();
        assert_eq!(median(&ratios), quiet);
        let (low, high) = quiet.1.unwrap();
        assert!(
            (quiet.0 - 0.01805).abs() < 1e-6 && (low - 0.0174).abs() < 1e-6 && (high - 0.0187).abs() < 1e-6
        );
        assert_eq!(median(&[0.0; 5]), (0.0, None));
        assert_eq!(median(&[]), (0.0, None));
    }

    /// Draws a nearly normal number, deterministically: the sum of twelve uniform numbers, minus six.
    fn normal(random: &mut u64) -> f64 {
        let mut uniform = || {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (*random >> 11) as f64 / (1_u64 << 53) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    #[test]
    fn of_a_hundred_experiments_some_ninety_five_have_the_truth_in_the_interval_of_the_middle() {
        let mut random = 0x9e37_79b9_7f4a_7c15;
        let (mut within, mut width) = (0, 0.0);
        for _ in 0..1_000 {
            // Noise of 4 %; every twentieth block has ten times as much.
            let ratios: Vec<f64> = (0..60)
                .map(|i| 0.98_f64.ln() + normal(&mut random) * if i % 20 == 0 { 0.4 } else { 0.04 })
                .collect();
            let (_, interval) = middle(&ratios);
            let (low, high) = interval.expect("sixty are enough");
            within += u32::from(low <= 0.02 && 0.02 <= high);
            width += (high - low) / 1_000.0;
        }
        // The expected number is 950, with a standard deviation of 7.
        assert!((920..=980).contains(&within), "{within}");
        let sharp = 2.0 * 1.96 * 0.04 / 60_f64.sqrt();
        assert!(width < 1.35 * sharp, "{width} where a mean of undisturbed ones has {sharp}");
    }

    #[test]
    fn the_middle_is_that_of_all_means_of_two() {
        let parts = |of: (f64, Option<(f64, f64)>)| (of.0, of.1.is_some());
        assert_eq!(parts(middle(&[])), (0.0, false));
        assert_eq!(parts(middle(&[0.0; 9])), (0.0, false));
        assert_eq!(middle(&[0.0; 10]), (0.0, Some((0.0, 0.0))));
        // The means of all pairs of 0, 1, 5 (in hundredths) are 0, 0.5, 1, 2.5, 3, 5.
        let (three, _) = middle(&[0.0, 0.01, 0.05]);
        assert!((three - (1.0 - 0.0175_f64.exp())).abs() < 1e-12);
    }
}
