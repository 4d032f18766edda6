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
}
