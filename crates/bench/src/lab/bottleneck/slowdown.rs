//! What recording costs in throughput: Table 4 of the paper, with bounds.

use super::front::Probes;
use super::measure::Outcome;
use super::settings::Point;
use serde::Serialize;

/// Pairs of runs without and with a recording, in turn.
#[derive(Debug, Clone, Serialize)]
pub struct Slowdown {
    /// What was run.
    #[serde(flatten)]
    pub point: Point,
    /// What the recording told apart.
    pub probes: Probes,
    /// Pairs.
    pub pairs: usize,
    /// Mean bogotransactions per second and processors in use, without.
    pub without: (f64, f64),
    /// The same, with.
    pub with: (f64, f64),
    /// Events recorded per second.
    pub events: f64,
    /// Events lost in all recordings.
    pub lost: u64,
    /// Part of the throughput that was lost: the mean over the pairs, of the logarithms.
    pub loss: f64,
    /// Its 95 % interval (Student's t over the pairs' logarithms); `None` with fewer than two pairs.
    pub interval: Option<(f64, f64)>,
    /// The median of the pairs' losses: what a pair in which the machine changed its pace says does not move it.
    pub median: f64,
    /// Its 95 % interval, from the order of the pairs alone (the sign test's); `None` with fewer than six pairs.
    pub median_interval: Option<(f64, f64)>,
    /// Processor time that a page needs more, as part of what it needs with the recording: what is lost where the processors are the
    /// limit. Of the whole process, the collector included; steadier than the throughput where others use the machine.
    pub cpu_loss: f64,
    /// Its 95 % interval, likewise.
    pub cpu_interval: Option<(f64, f64)>,
}

impl Slowdown {
    /// From pairs of (without, with).
    #[must_use]
    pub fn of(point: Point, probes: Probes, pairs: &[[Outcome; 2]]) -> Self {
        let n = pairs.len().max(1) as f64;
        let mean = |of: &dyn Fn(&[Outcome; 2]) -> f64| pairs.iter().map(of).sum::<f64>() / n;
        let recordings = || pairs.iter().filter_map(|[_, with]| with.recording.as_ref());
        let seconds: f64 = pairs.iter().map(|[_, with]| with.measured.as_secs_f64()).sum();
        let ratios: Vec<f64> = pairs.iter().map(|[a, b]| (b.rate() / a.rate()).ln()).collect();
        let (cpu_loss, cpu_interval) = loss(
            &pairs
                .iter()
                .map(|[a, b]| (a.cpu / a.rate() / (b.cpu / b.rate())).ln())
                .filter(|log| log.is_finite())
                .collect::<Vec<_>>(),
        );
        let (median, median_interval) = median_loss(&ratios);
        let (loss, interval) = loss(&ratios);
        Self {
            point,
            probes,
            pairs: pairs.len(),
            without: (mean(&|p| p[0].rate()), mean(&|p| p[0].cpu)),
            with: (mean(&|p| p[1].rate()), mean(&|p| p[1].cpu)),
            events: recordings().map(|r| r.events() as f64).sum::<f64>() / seconds.max(1e-9),
            lost: recordings().map(azekura_trace::Recording::lost).sum(),
            loss,
            interval,
            median,
            median_interval,
            cpu_loss,
            cpu_interval,
        }
    }
}

/// The mean loss of logarithmic ratios, and its 95 % interval.
fn loss(ratios: &[f64]) -> (f64, Option<(f64, f64)>) {
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

/// The median loss of logarithmic ratios, and its 95 % interval: between the two ratios that as many lie outside of on each side as a fair coin
/// falls on one side at most, 39 times of 40.
fn median_loss(ratios: &[f64]) -> (f64, Option<(f64, f64)>) {
    let mut losses: Vec<f64> = ratios.iter().map(|log| 1.0 - log.exp()).collect();
    losses.sort_by(f64::total_cmp);
    let n = losses.len();
    let Some(&upper_middle) = losses.get(n / 2) else { return (0.0, None) };
    let median = f64::midpoint(upper_middle, losses[(n - 1) / 2]);
    let outside = rarely_fewer(n);
    (median, (outside > 0).then(|| (losses[outside - 1], losses[n - outside])))
}

/// The largest number such that fewer of `n` fair coins show heads in one of 40 throws at most.
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

/// The 97.5 % quantile of Student's distribution.
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
        let (few, many) = (loss(&pairs(4)), loss(&pairs(20)));
        assert!((few.0 - 0.2).abs() < 1e-9 && (many.0 - 0.2).abs() < 1e-9);
        let width = |i: Option<(f64, f64)>| {
            i.map(|(low, high)| {
                assert!(low < 0.2 && 0.2 < high);
                high - low
            })
        };
        assert!(width(few.1).unwrap() > 2.0 * width(many.1).unwrap());
        assert_eq!(loss(&[0.0]), (0.0, None));
    }

    #[test]
    fn the_median_and_its_interval_are_not_moved_by_pairs_that_the_machine_disturbed() {
        // Tables of the sign test: with 40 pairs from the 14th to the 27th, with 20 from the 6th to the 15th, with 6 all of them.
        assert_eq!([5, 6, 10, 20, 40].map(rarely_fewer), [0, 1, 2, 6, 14]);
        let mut ratios: Vec<f64> = (0..40).map(|i| (0.980 + f64::from(i) * 1e-4).ln()).collect();
        let quiet = median_loss(&ratios);
        ratios[0] = 0.5_f64.ln();
        ratios[39] = 3.0_f64.ln();
        assert_eq!(median_loss(&ratios), quiet);
        let (low, high) = quiet.1.unwrap();
        assert!(
            (quiet.0 - 0.01805).abs() < 1e-6 && (low - 0.0174).abs() < 1e-6 && (high - 0.0187).abs() < 1e-6
        );
        assert_eq!(median_loss(&[0.0; 5]), (0.0, None));
        assert_eq!(median_loss(&[]), (0.0, None));
    }
}
