//! One cell's result: what was run, where, with which settings, and what came out. One JSON object.

use crate::machine::{Machine, utc_now};
use crate::phase::Measured;
use crate::plan::Plan;
use crate::settings::{self, Cell};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of all runs of one cell. Figures are those of the median run by rate, except latencies, each
/// the median over the runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The workload's name, as `u1`.
    pub workload: String,
    /// The engine's name.
    pub engine: String,
    /// `blocking` or `pipelined`.
    pub commit: String,
    /// Client threads.
    pub threads: usize,
    /// Commits that could be in flight over all threads together.
    pub in_flight: usize,
    /// Length of the measured stretch.
    pub seconds: f64,
    /// Number of operations done in it.
    pub ops: u64,
    /// Unit of `ops`: transactions, reads, records or operations.
    pub unit: String,
    /// `ops / seconds`.
    pub ops_per_s: f64,
    /// Median latency of a transaction.
    pub p50_us: f64,
    /// Latency that 99 % did not exceed.
    pub p99_us: f64,
    /// Latency that 99.9 % did not exceed.
    pub p999_us: f64,
    /// The longest latency.
    pub max_us: f64,
    /// Median latency of transactions that wrote, when others only read.
    pub write_p50_us: Option<f64>,
    /// Their 99 % latency.
    pub write_p99_us: Option<f64>,
    /// Bytes of log records, without what pads them to blocks, if the engine tells.
    pub log_bytes: Option<u64>,
    /// Bytes that the process had written to files: log with its padding, data, compaction and all.
    pub written_bytes: Option<u64>,
    /// Number of times that transactions conflicted with others and were run again.
    pub retries: u64,
    /// Records in the table when the work began (for a load: when it ended).
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Bytes of the engine's cache.
    pub cache_bytes: u64,
    /// Number of runs.
    pub runs: usize,
    /// The rate of each run, in the order in which they were made.
    pub run_ops_per_s: Vec<f64>,
    /// Highest rate less lowest, over the median.
    pub spread: f64,
    /// Everything that the figures depend on besides the machine.
    pub settings: BTreeMap<String, String>,
    /// A hash of `settings`: equal hashes may be compared.
    pub settings_hash: String,
    /// The machine.
    pub machine: Machine,
    /// Time of the end, in UTC.
    pub date: String,
    /// The commit of the measured source, if the caller knew it.
    pub revision: Option<String>,
}

impl Report {
    /// The report of a cell's runs.
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

    /// The report as one line of JSON.
    ///
    /// # Panics
    ///
    /// Never: every field has a JSON form.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and maps with string keys")
    }

    /// The engine as charts and tables name it: with its commits in flight when they are pipelined.
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

/// To so many parts of one: what lies beyond is noise.
fn rounded(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Index of the median: of an even number, the lower one of the two in the middle, so that it is a run that
/// was made.
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

    /// A report with little in it.
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
