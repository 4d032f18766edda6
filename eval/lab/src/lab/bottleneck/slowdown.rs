//! Cost of recording in throughput: Table 4 of the paper, by whole runs with and without a recording, with
//! confidence intervals.

use super::front::Probes;
use super::interval::{mean, median};
use super::measure::Outcome;
use super::settings::Point;
use serde::Serialize;

/// Results of pairs of runs without and with a recording.
#[derive(Debug, Clone, Serialize)]
pub struct Slowdown {
    /// The measured combination.
    #[serde(flatten)]
    pub point: Point,
    /// The operations that the recording distinguished.
    pub probes: Probes,
    /// Number of pairs.
    pub pairs: usize,
    /// Mean bogotransactions per second and mean number of used processors, without recording.
    pub without: (f64, f64),
    /// Mean bogotransactions per second and mean number of used processors, with recording.
    pub with: (f64, f64),
    /// Events recorded per second.
    pub events: f64,
    /// Number of lost events in all recordings.
    pub lost: u64,
    /// Lost part of the throughput: the mean of the logarithmic ratios over the pairs.
    pub loss: f64,
    /// 95 % interval of `loss` (Student's t over the pairs' logarithms); `None` with fewer than two pairs.
    pub interval: Option<(f64, f64)>,
    /// Median of the pairs' losses; a pair in which the speed of the machine changed hardly affects it.
    pub median: f64,
    /// 95 % interval of `median`, by the sign test; `None` with fewer than six pairs.
    pub median_interval: Option<(f64, f64)>,
    /// Additional processor time per page with recording, as a part of the processor time per page with
    /// recording. This is the loss where the processors limit the throughput. Includes the whole process with
    /// the collector. Varies less than the throughput if other processes use the machine.
    pub cpu_loss: f64,
    /// 95 % interval of `cpu_loss` (Student's t).
    pub cpu_interval: Option<(f64, f64)>,
}

impl Slowdown {
    /// Computes the results from pairs of runs (without, with).
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
