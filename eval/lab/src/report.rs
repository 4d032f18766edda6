//! Results of one cell, with its settings and the machine, as one JSON object.

use crate::machine::{Machine, utc_now};
use crate::phase::Measured;
use crate::plan::Plan;
use crate::settings::{self, Cell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Results of all runs of one cell. The figures are those of the run with the median rate, except latencies,
/// which are medians over the runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the workload, such as `u1`.
    pub workload: String,
    /// Name of the engine.
    pub engine: String,
    /// `blocking` or `pipelined`.
    pub commit: String,
    /// Number of client threads.
    pub threads: usize,
    /// Largest number of commits in flight over all threads together.
    pub in_flight: usize,
    /// Length of the measured phase.
    pub seconds: f64,
    /// Number of completed operations.
    pub ops: u64,
    /// Unit of `ops`: transactions, reads, records or operations.
    pub unit: String,
    /// `ops / seconds`.
    pub ops_per_s: f64,
    /// Median latency of a transaction.
    pub p50_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// 99.9th percentile of the latencies.
    pub p999_us: f64,
    /// Largest latency.
    pub max_us: f64,
    /// Median latency of the transactions that wrote; `None` unless others only read.
    pub write_p50_us: Option<f64>,
    /// 99th percentile of the latencies of the transactions that wrote; `None` unless others only read.
    pub write_p99_us: Option<f64>,
    /// Bytes of log records without padding to blocks, if the engine counts them.
    pub log_bytes: Option<u64>,
    /// Bytes that the process wrote to files: the log with its padding, data, compaction, and so on.
    pub written_bytes: Option<u64>,
    /// Number of retries after conflicts.
    pub retries: u64,
    /// Number of records in the table before the run, or after it for a load.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Cache size of the engine, in bytes.
    pub cache_bytes: u64,
    /// Number of runs.
    pub runs: usize,
    /// Rate of each run, in the order of the runs.
    pub run_ops_per_s: Vec<f64>,
    /// Difference of the highest and the lowest rate, divided by the median.
    pub spread: f64,
    /// All settings that affect the figures, except the machine.
    pub settings: BTreeMap<String, String>,
    /// Hash of `settings`: reports with equal hashes are comparable.
    pub settings_hash: String,
    /// Description of the machine.
    pub machine: Machine,
    /// Creation time of the report, in UTC.
    pub date: String,
    /// Commit of the measured source code, if known.
    pub revision: Option<String>,
}

impl Report {
    /// Returns the report of a cell's runs.
    ///
    /// # Panics
    ///
    /// If there is no run.
    #[must_use]
    pub fn new(cell: &Cell<'_>, plan: &Plan, machine: &Machine, runs: &[Measured]) -> Self {
        let rates: Vec<f64> = runs.iter().map(rate).collect();
        let middle = &runs[median_index(&rates).expect("at least one run")];
        let settings = cell.settings(plan);
        let quantile = |q| median(runs.iter().map(|run| all(run).quantile_us(q)));
        let write_quantile = |q| {
            let mixed = runs.iter().all(|run| run.tally.reads.count() > 0 && run.tally.writes.count() > 0);
            mixed.then(|| median(runs.iter().map(|run| run.tally.writes.quantile_us(q))))
        };
        let median_rate = rate(middle);
        Self {
            workload: cell.workload.to_string(),
            engine: cell.engine.name().to_owned(),
            commit: cell.commit.word().to_owned(),
            threads: cell.threads,
            in_flight: cell.commit.in_flight(cell.threads),
            seconds: rounded(middle.took.as_secs_f64(), 1e6),
            ops: middle.tally.ops,
            unit: cell.workload.unit().to_owned(),
            ops_per_s: median_rate,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
            max_us: median(runs.iter().map(|run| all(run).max_us())),
            write_p50_us: write_quantile(0.5),
            write_p99_us: write_quantile(0.99),
            log_bytes: middle.log_bytes,
            written_bytes: Some(middle.usage.written_bytes),
            retries: middle.tally.retries,
            records: cell.workload.records(),
            value_bytes: cell.workload.value_bytes(),
            cache_bytes: plan.cache_for(cell.workload),
            runs: runs.len(),
            spread: spread(&rates, median_rate),
            run_ops_per_s: rates,
            settings_hash: settings::hash(&settings),
            settings,
            machine: machine.clone(),
            date: utc_now(),
            revision: plan.revision.clone(),
        }
    }

    /// Returns the report as one line of JSON.
    ///
    /// # Panics
    ///
    /// Never: every field has a JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and maps with string keys")
    }

    /// Returns the engine's name in charts and tables, with the commits in flight if they are pipelined.
    #[must_use]
    pub fn series(&self) -> String {
        if self.commit == "pipelined" {
            format!("{} async {}", self.engine, self.in_flight)
        } else {
            self.engine.clone()
        }
    }
}

fn all(run: &Measured) -> crate::latency::Latencies {
    let mut all = run.tally.reads.clone();
    all.merge(&run.tally.writes);
    all
}

#[expect(clippy::cast_precision_loss, reason = "operation counts are far below 2^53")]
fn rate(run: &Measured) -> f64 {
    let seconds = run.took.as_secs_f64();
    if seconds > 0.0 { rounded(run.tally.ops as f64 / seconds, 100.0) } else { 0.0 }
}

/// Rounds to a multiple of `1 / parts`.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Returns the index of the median. For an even number of values it is the lower of the two in the middle, so
/// that it belongs to a run.
fn median_index(values: &[f64]) -> Option<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    order.get(values.len().saturating_sub(1) / 2).copied()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    median_index(&values).map_or(0.0, |at| values[at])
}

fn spread(rates: &[f64], median: f64) -> f64 {
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    if median > 0.0 { rounded((most - least) / median, 1e3) } else { 0.0 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a report with default values, for tests.
    pub(crate) fn sample(engine: &str, threads: usize, rate: f64) -> Report {
        Report {
            workload: "u1".into(),
            engine: engine.into(),
            commit: "blocking".into(),
            threads,
            in_flight: threads,
            seconds: 1.0,
            ops: 1,
            unit: "transactions".into(),
            ops_per_s: rate,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
            max_us: 4.0,
            write_p50_us: None,
            write_p99_us: None,
            log_bytes: None,
            written_bytes: None,
            retries: 0,
            records: 10,
            value_bytes: 100,
            cache_bytes: 1,
            runs: 1,
            run_ops_per_s: vec![rate],
            spread: 0.0,
            settings: BTreeMap::new(),
            settings_hash: settings::hash(&BTreeMap::new()),
            machine: Machine::here(std::path::Path::new("/")),
            date: utc_now(),
            revision: None,
        }
    }

    #[test]
    fn the_median_is_a_run_that_was_made() {
        assert_eq!(median_index(&[3.0, 1.0, 2.0]), Some(2));
        assert_eq!(median_index(&[4.0, 1.0, 3.0, 2.0]), Some(3));
        assert_eq!(median_index(&[5.0]), Some(0));
        assert_eq!(median_index(&[]), None);
    }

    #[test]
    fn spread_is_the_range_over_the_median() {
        assert!((spread(&[90.0, 100.0, 120.0], 100.0) - 0.3).abs() < 1e-9);
        assert!(spread(&[100.0], 100.0).abs() < 1e-9);
    }
}
