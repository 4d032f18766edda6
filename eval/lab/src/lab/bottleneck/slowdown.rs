//! Cost of recording in throughput: Table 4 of the paper, by whole runs with and without a recording, with
//! bounds.

use super::front::Probes;
use super::interval::{mean, median};
use super::measure::Outcome;
use super::settings::Point;
use serde::Serialize;

/// Pairs of runs without and with a recording, in turn.
#[derive(Debug, Clone, Serialize)]
pub struct Slowdown {
    /// The case.
    #[serde(flatten)]
    pub point: Point,
    /// The operations that the recording distinguished.
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
    /// The median of the pairs' losses: what a pair in which the machine changed its pace says does not move
    /// it.
    pub median: f64,
    /// Its 95 % interval, from the order of the pairs alone (the sign test's); `None` with fewer than six
    /// pairs.
    pub median_interval: Option<(f64, f64)>,
    /// Processor time that a page needs more, as part of what it needs with the recording: what is lost where
    /// the processors are the limit. Of the whole process, the collector included; steadier than the
    /// throughput where others use the machine.
    pub cpu_loss: f64,
    /// Its 95 % interval, likewise.
    pub cpu_interval: Option<(f64, f64)>,
}

impl Slowdown {
    /// From pairs of (without, with).
    #[must_use]
    pub fn of(point: Point, probes: Probes, pairs: &[[Outcome; 2]]) -> Self {
        let n = pairs.len().max(1) as f64;
        let of_pairs = |of: &dyn Fn(&[Outcome; 2]) -> f64| pairs.iter().map(of).sum::<f64>() / n;
        let recordings = || pairs.iter().filter_map(|[_, with]| with.recording.as_ref());
        let seconds: f64 = pairs.iter().map(|[_, with]| with.measured.as_secs_f64()).sum();
        let ratios: Vec<f64> = pairs.iter().map(|[a, b]| (b.rate() / a.rate()).ln()).collect();
        let (cpu_loss, cpu_interval) = mean(
            &pairs
                .iter()
                .map(|[a, b]| (a.cpu / a.rate() / (b.cpu / b.rate())).ln())
                .filter(|log| log.is_finite())
                .collect::<Vec<_>>(),
        );
        let (median, median_interval) = median(&ratios);
        let (loss, interval) = mean(&ratios);
        Self {
            point,
            probes,
            pairs: pairs.len(),
            without: (of_pairs(&|p| p[0].rate()), of_pairs(&|p| p[0].cpu)),
            with: (of_pairs(&|p| p[1].rate()), of_pairs(&|p| p[1].cpu)),
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
