//! Results of a run, as one JSON object or as a table.

use super::check::{CONDITIONS, Checked};
use super::client::KindTally;
use super::plan::Plan;
use super::run::{Opened, Outcome};
use crate::latency::Latencies;
use crate::machine::{Machine, utc_now};
use crate::settings;
use azekura_workload::tpcc::Kind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Results of one kind of transaction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindReport {
    /// Name of the kind, such as `new-order`.
    pub name: String,
    /// Number of committed transactions.
    pub ops: u64,
    /// Number of transactions rolled back because of an unused item.
    pub rolled_back: u64,
    /// Number of retries after deadlocks.
    pub retries: u64,
    /// Median latency.
    pub p50_us: f64,
    /// 90th percentile of the latencies, which the specification limits.
    pub p90_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// Largest latency.
    pub max_us: f64,
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the workload: `tpcc` or `tpcc-new-order`.
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
    /// Number of committed transactions.
    pub ops: u64,
    /// Unit of `ops`: transactions.
    pub unit: String,
    /// `ops / seconds`.
    pub ops_per_s: f64,
    /// Committed New-Orders per minute. This is no audited tpmC, because there are no think times and no
    /// terminals.
    pub new_orders_per_minute: f64,
    /// Median latency of all transactions.
    pub p50_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// 99.9th percentile of the latencies.
    pub p999_us: f64,
    /// Largest latency.
    pub max_us: f64,
    /// Results by kind of transaction.
    pub transactions: Vec<KindReport>,
    /// Number of transactions rolled back because of an unused item.
    pub rolled_back: u64,
    /// Number of retries after deadlocks.
    pub retries: u64,
    /// Number of districts in which a delivery found no open order.
    pub skipped_deliveries: u64,
    /// Bytes of log records without padding to blocks.
    pub log_bytes: u64,
    /// `log_bytes / ops`.
    pub log_bytes_per_transaction: f64,
    /// Bytes of log written, with headers and padding.
    pub log_written_bytes: u64,
    /// Number of warehouses.
    pub warehouses: u32,
    /// Divisor of the specification's numbers of rows: 1 is full scale.
    pub scale_divisor: u32,
    /// Number of rows after loading, including those of the indexes.
    pub loaded_rows: u64,
    /// Duration of loading; `None` if the database existed.
    pub load_seconds: Option<f64>,
    /// Number of earlier runs on the database.
    pub earlier_runs: u64,
    /// Number of log records that opening recovered, if the database existed.
    pub recovered_records: Option<u64>,
    /// Result of the check of the consistency conditions after the run, if there was one.
    pub checked: Option<Checked>,
    /// Cache size of the store, in bytes.
    pub cache_bytes: usize,
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
    pub(super) fn new(plan: &Plan, opened: &Opened, outcome: &Outcome, earlier_runs: u64) -> Self {
        let (measured, tally) = (&outcome.measured, &outcome.measured.tally);
        let seconds = measured.took.as_secs_f64();
        let mut all = Latencies::default();
        tally.kinds.iter().for_each(|kind| all.merge(&kind.latencies));
        let sum = |of: fn(&KindTally) -> u64| tally.kinds.iter().map(of).sum();
        let settings = plan.settings(earlier_runs);
        let new_orders = tally.kinds[Kind::NewOrder.index()].committed;
        Self {
            workload: plan.workload().to_owned(),
            engine: crate::table::OURS.to_owned(),
            commit: plan.commit_word().to_owned(),
            threads: plan.threads,
            in_flight: plan.all_in_flight(),
            seconds,
            ops: tally.committed(),
            unit: "transactions".to_owned(),
            ops_per_s: per(tally.committed(), seconds),
            new_orders_per_minute: per(new_orders, seconds / 60.0),
            p50_us: all.quantile_us(0.5),
            p99_us: all.quantile_us(0.99),
            p999_us: all.quantile_us(0.999),
            max_us: all.max_us(),
            transactions: kinds(&tally.kinds),
            rolled_back: sum(|kind| kind.rolled_back),
            retries: sum(|kind| kind.retries),
            skipped_deliveries: tally.skipped_deliveries,
            log_bytes: measured.log_bytes,
            log_bytes_per_transaction: per(measured.log_bytes, count(tally.committed())),
            log_written_bytes: measured.log_written_bytes,
            warehouses: plan.scale.warehouses(),
            scale_divisor: plan.scale.divisor(),
            loaded_rows: opened.loaded.rows,
            load_seconds: opened.loading.map(|time| time.as_secs_f64()),
            earlier_runs,
            recovered_records: opened.recovery.as_ref().map(|recovery| recovery.records),
            checked: outcome.checked.clone(),
            cache_bytes: plan.cache_bytes,
            settings_hash: settings::hash(&settings),
            settings,
            machine: Machine::here(&plan.dir),
            date: utc_now(),
            revision: plan.revision.clone(),
        }
    }

    /// Returns whether the check found no violation, or was not made.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.checked.as_ref().is_none_or(Checked::is_consistent)
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

    /// Returns the report as text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        self.head(&mut text);
        self.table(&mut text);
        self.verdict(&mut text);
        text
    }

    fn head(&self, text: &mut String) {
        let scale = match self.scale_divisor {
            1 => "full scale".to_owned(),
            divisor => format!("scaled down to 1/{divisor}: not the specification's size"),
        };
        let _ = writeln!(
            text,
            "{}: {} warehouse{}, {scale}; {} thread{}, {} commits in flight ({}); {:.1} s",
            self.workload,
            self.warehouses,
            if self.warehouses == 1 { "" } else { "s" },
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.in_flight,
            self.commit,
            self.seconds,
        );
        let _ = writeln!(
            text,
            "{:.0} New-Orders a minute (not an audited tpmC: no think times), {:.0} transactions a second",
            self.new_orders_per_minute, self.ops_per_s
        );
    }

    fn table(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{:<14} {:>9} {:>11} {:>8} {:>9} {:>9} {:>9} {:>9}",
            "transaction", "committed", "rolled back", "retries", "p50 us", "p90 us", "p99 us", "max us"
        );
        for kind in &self.transactions {
            let _ = writeln!(
                text,
                "{:<14} {:>9} {:>11} {:>8} {:>9.0} {:>9.0} {:>9.0} {:>9.0}",
                kind.name,
                kind.ops,
                kind.rolled_back,
                kind.retries,
                kind.p50_us,
                kind.p90_us,
                kind.p99_us,
                kind.max_us
            );
        }
        let _ = writeln!(
            text,
            "log: {:.0} bytes of records a transaction, {} bytes in all, {} written with padding",
            self.log_bytes_per_transaction, self.log_bytes, self.log_written_bytes
        );
        if self.skipped_deliveries > 0 {
            let _ = writeln!(text, "deliveries found nothing in {} districts", self.skipped_deliveries);
        }
    }

    fn verdict(&self, text: &mut String) {
        let Some(checked) = &self.checked else {
            let _ = writeln!(text, "consistency conditions: not checked");
            return;
        };
        if checked.is_consistent() {
            let comparisons: u64 = checked.comparisons.iter().sum();
            let _ =
                writeln!(text, "consistency conditions: all {CONDITIONS} hold, in {comparisons} comparisons");
            return;
        }
        let _ = writeln!(text, "consistency conditions: {} violations", checked.violated);
        for violation in &checked.violations {
            let _ = writeln!(text, "  {violation}");
        }
    }
}

/// Returns the results of the kinds with at least one transaction.
fn kinds(tallies: &[KindTally]) -> Vec<KindReport> {
    let was_run = |tally: &&KindTally| tally.committed + tally.rolled_back > 0;
    Kind::ALL
        .iter()
        .zip(tallies)
        .filter(|(_, tally)| was_run(tally))
        .map(|(kind, tally)| KindReport {
            name: kind.word().to_owned(),
            ops: tally.committed,
            rolled_back: tally.rolled_back,
            retries: tally.retries,
            p50_us: tally.latencies.quantile_us(0.5),
            p90_us: tally.latencies.quantile_us(0.9),
            p99_us: tally.latencies.quantile_us(0.99),
            max_us: tally.latencies.max_us(),
        })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn count(n: u64) -> f64 {
    n as f64
}

/// Returns `n / of`, rounded to a hundredth; 0 if `of` is 0.
fn per(n: u64, of: f64) -> f64 {
    if of > 0.0 { (count(n) / of * 100.0).round() / 100.0 } else { 0.0 }
}
