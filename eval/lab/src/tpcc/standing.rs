//! Results of the engines in a comparison, and their tables.

use super::client::{KindTally, Tally};
use crate::latency::Latencies;
use crate::table::{OURS, is_peer};
use crate::usage::Usage;
use azekura_workload::tpcc::Kind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Results of one run.
#[derive(Debug)]
pub struct Ran {
    /// Counts of the run.
    pub tally: Tally,
    /// Length of the run.
    pub took: Duration,
    /// Resources that the process used.
    pub usage: Usage,
    /// Bytes of the store's files on the device after the run.
    pub disk_bytes: u64,
}

impl Ran {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Returns the committed transactions per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.per_second(self.tally.committed())
    }

    fn new_orders(&self) -> &KindTally {
        &self.tally.kinds[Kind::NewOrder.index()]
    }
}

/// Settings that are the same for all engines of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// `tpcc`, or `tpcc-new-order`.
    pub workload: String,
    /// `blocking` or `pipelined`.
    pub commit: String,
    /// Number of client threads.
    pub threads: usize,
    /// Largest number of commits in flight over all threads together.
    pub in_flight: usize,
    /// Number of warehouses.
    pub warehouses: u32,
    /// Divisor of the specification's numbers of rows.
    pub scale_divisor: u32,
}

/// Results of one engine in one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Name of the engine.
    pub engine: String,
    /// Settings of the cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Committed transactions per second: the median of the runs.
    pub ops_per_s: f64,
    /// Committed transactions per second of each run.
    pub ops_per_s_runs: Vec<f64>,
    /// Committed New-Orders per minute in the median run. This is no audited tpmC, because there are no think
    /// times.
    pub new_orders_per_minute: f64,
    /// Median latency of all transactions of all runs.
    pub p50_us: f64,
    /// 99th percentile of the latencies.
    pub p99_us: f64,
    /// 99.9th percentile of the latencies.
    pub p999_us: f64,
    /// Length of the median run.
    pub seconds: f64,
    /// Number of transactions that the median run committed.
    pub committed: u64,
    /// Resources that the process used in the median run.
    pub usage: Usage,
    /// Bytes of the store's files on the device after the median run.
    pub disk_bytes: u64,
    /// 99th percentile of the latencies of New-Orders.
    pub new_order_p99_us: f64,
    /// Number of retries.
    pub retries: u64,
    /// Engine's description of its settings.
    pub settings: BTreeMap<String, String>,
}

impl Standing {
    /// Returns the results of an engine's runs; `None` if there are none.
    #[must_use]
    pub fn of(engine: String, cell: Cell, runs: &[Ran], settings: BTreeMap<String, String>) -> Option<Self> {
        let mut by_rate: Vec<&Ran> = runs.iter().collect();
        by_rate.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
        let median = *by_rate.get(by_rate.len() / 2)?;
        let (mut all, mut new_orders) = (Latencies::default(), Latencies::default());
        runs.iter().flat_map(|run| &run.tally.kinds).for_each(|kind| all.merge(&kind.latencies));
        runs.iter().for_each(|run| new_orders.merge(&run.new_orders().latencies));
        Some(Self {
            engine,
            cell,
            ops_per_s: median.rate(),
            ops_per_s_runs: runs.iter().map(Ran::rate).collect(),
            new_orders_per_minute: 60.0 * median.per_second(median.new_orders().committed),
            p50_us: all.quantile_us(0.5),
            p99_us: all.quantile_us(0.99),
            p999_us: all.quantile_us(0.999),
            seconds: median.took.as_secs_f64(),
            committed: median.tally.committed(),
            usage: median.usage,
            disk_bytes: median.disk_bytes,
            new_order_p99_us: new_orders.quantile_us(0.99),
            retries: runs.iter().flat_map(|run| &run.tally.kinds).map(|kind| kind.retries).sum(),
            settings,
        })
    }
}

fn plural(count: impl Into<u64>) -> &'static str {
    if count.into() == 1 { "" } else { "s" }
}

/// Returns the results as tables, best engine first in each cell. Below each table are the ratios of this
/// project's engine to the best peer, and to its own variants.
#[must_use]
pub fn render(standings: &[Standing]) -> String {
    let mut text = String::new();
    let mut cells: Vec<&Cell> = Vec::new();
    for s in standings {
        if !cells.contains(&&s.cell) {
            cells.push(&s.cell);
        }
    }
    for cell in cells {
        let mut here: Vec<&Standing> = standings.iter().filter(|s| s.cell == *cell).collect();
        here.sort_by(|a, b| b.ops_per_s.total_cmp(&a.ops_per_s));
        let Cell { workload, commit, threads, in_flight, warehouses, scale_divisor } = cell;
        let _ = writeln!(
            text,
            "\n{workload}, {warehouses} warehouse{}, scale 1/{scale_divisor}: {threads} thread{}, \
             {in_flight} commit{} in flight ({commit})\n{:<16} {:>10} {:>16} {:>12} {:>10} {:>10} {:>12} \
             {:>8}",
            plural(*warehouses),
            plural(*threads as u64),
            plural(*in_flight as u64),
            "engine",
            "tx/s",
            "runs",
            "New-Orders/min",
            "p50 us",
            "p99 us",
            "N-O p99 us",
            "retries"
        );
        for s in &here {
            let least = s.ops_per_s_runs.iter().copied().fold(f64::INFINITY, f64::min);
            let most = s.ops_per_s_runs.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                text,
                "{:<16} {:>10.0} {:>16} {:>12.0} {:>10.0} {:>10.0} {:>12.0} {:>8}",
                s.engine,
                s.ops_per_s,
                format!("{least:.0}..{most:.0}"),
                s.new_orders_per_minute,
                s.p50_us,
                s.p99_us,
                s.new_order_p99_us,
                s.retries
            );
        }
        let Some(ours) = here.iter().find(|s| s.engine == OURS) else { continue };
        let best = here.iter().find(|s| is_peer(&s.engine));
        let variants = here.iter().filter(|s| s.engine != OURS && !is_peer(&s.engine));
        for other in best.into_iter().chain(variants) {
            let ratio = ours.ops_per_s / other.ops_per_s.max(1e-9);
            let _ = writeln!(text, "ours is {ratio:.2} of {}", other.engine);
        }
    }
    text
}
