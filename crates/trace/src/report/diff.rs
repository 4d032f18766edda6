//! Comparison of two recordings: the difference of every operation and every lock, with its confidence
//! interval.

use super::bootstrap::{Ratio, interval};
use crate::WaitClass;
use crate::analyze::{Analysis, OperationRow, SLICES, Sums, WaitRow};
use serde::Serialize;
use std::collections::BTreeSet;

/// Two recordings side by side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    /// Label of the first recording.
    pub before: String,
    /// Label of the second recording.
    pub after: String,
    /// Bottleneck of the first recording.
    pub verdict_before: String,
    /// Bottleneck of the second recording.
    pub verdict_after: String,
    /// Per operation: throughput, and times per execution.
    pub operations: Vec<DiffRow>,
    /// Per operation and site: wait per execution, largest difference first.
    pub waits: Vec<DiffRow>,
}

/// One number in both recordings. Times are nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DiffRow {
    /// The operation.
    pub operation: String,
    /// Name of the number; for waits the site's label.
    pub metric: String,
    /// `true` for a rate per second, `false` for nanoseconds.
    pub is_rate: bool,
    /// Value in the first recording.
    pub before: f64,
    /// Value in the second recording.
    pub after: f64,
    /// `after / before - 1`; `None` if `before` is 0.
    pub change: Option<f64>,
    /// Lower end of the difference's 95 % interval.
    pub low: f64,
    /// Upper end of that interval.
    pub high: f64,
    /// `true` if the interval does not contain 0.
    pub is_significant: bool,
}

impl Diff {
    /// Compares two analyses. A row that only one of them has is 0 in the other one.
    #[must_use]
    pub fn new(before: &Analysis, after: &Analysis) -> Self {
        let mut waits = waits(before, after);
        waits.sort_by(|a, b| {
            let size = |r: &DiffRow| (r.after - r.before).abs();
            size(b)
                .total_cmp(&size(a))
                .then_with(|| (&a.operation, &a.metric).cmp(&(&b.operation, &b.metric)))
        });
        Self {
            before: name(before, "(before)"),
            after: name(after, "(after)"),
            verdict_before: before.verdict.sentence(),
            verdict_after: after.verdict.sentence(),
            operations: operations(before, after),
            waits,
        }
    }
}

/// Name and time of a metric of an operation.
type Metric = (&'static str, fn(&Sums) -> u64);

const METRICS: [Metric; 4] =
    [("elapsed", |s| s.elapsed), ("CPU", |s| s.cpu), ("lock wait", |s| s.lock), ("I/O wait", |s| s.io)];

fn name(analysis: &Analysis, otherwise: &str) -> String {
    let label = &analysis.recorded.label;
    if label.is_empty() { otherwise.into() } else { label.clone() }
}

fn operations(before: &Analysis, after: &Analysis) -> Vec<DiffRow> {
    let find = |analysis: &Analysis, name: &str| -> Option<OperationRow> {
        analysis.operations.iter().find(|o| o.name == name).cloned()
    };
    let names = before.operations.iter().chain(&after.operations);
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    for OperationRow { name, .. } in names.filter(|o| seen.insert(o.name.clone())) {
        let (a, b) = (find(before, name), find(after, name));
        if let (Some(a), Some(b)) = (&a, &b)
            && !a.few.is_empty()
            && !b.few.is_empty()
        {
            rows.extend(of_few((before, a), (after, b)));
            continue;
        }
        let slices = |row: Option<OperationRow>| row.map(|row| row.slices).unwrap_or_default();
        let (a, b) = (slices(a), slices(b));
        let (a_slice, b_slice) = (slice_seconds(before), slice_seconds(after));
        let rate =
            |slices: &[Sums], seconds: f64| Ratio::new(slices.iter().map(|s| (s.executions as f64, seconds)));
        rows.push(row(name, PER_SECOND, true, &rate(&a, a_slice), &rate(&b, b_slice)));
        for (metric, of) in METRICS {
            let ratio =
                |slices: &[Sums]| Ratio::new(slices.iter().map(|s| (of(s) as f64, s.executions as f64)));
            push_nonzero(&mut rows, row(name, metric, false, &ratio(&a), &ratio(&b)));
        }
    }
    rows
}

const PER_SECOND: &str = "per second";

fn push_nonzero(rows: &mut Vec<DiffRow>, row: DiffRow) {
    if row.before != 0.0 || row.after != 0.0 {
        rows.push(row);
    }
}

/// Returns the rows of an operation with few executions, such as threads. A slice of time rarely contains the
/// end of an execution, so durations are sampled by execution. Waits are sampled by slice, each slice with an
/// equal part of the executions. Fewer than [`LEAST_FEW`] executions show no noise, and CPU time is known
/// only for all executions together. In these cases no difference is significant.
fn of_few((before, a): (&Analysis, &OperationRow), (after, b): (&Analysis, &OperationRow)) -> Vec<DiffRow> {
    let has_samples = a.few.len().min(b.few.len()) >= LEAST_FEW;
    let judged = |row: DiffRow, has_samples: bool| DiffRow {
        is_significant: row.is_significant && has_samples,
        ..row
    };
    let durations = |row: &OperationRow| Ratio::new(row.few.iter().map(|ns| (*ns as f64, 1.0)));
    let rate = |analysis: &Analysis, row: &OperationRow| {
        let seconds = analysis.recorded.duration_ns.max(1) as f64 / 1e9;
        let all: u64 = row.few.iter().sum();
        let part = |ns: &u64| (1.0, seconds * *ns as f64 / all.max(1) as f64);
        Ratio::new(row.few.iter().map(part))
    };
    let whole = |row: &OperationRow, of: fn(&Sums) -> u64| {
        let sum: u64 = row.slices.iter().map(of).sum();
        Ratio::new([(sum as f64, row.executions as f64)])
    };
    let waits = |analysis: &Analysis, row: &OperationRow, class: WaitClass| {
        let is_it = |wait: &&WaitRow| {
            wait.operation == row.name && wait.kind.is_some_and(|kind| kind.class() == class)
        };
        let mut slices = vec![0; SLICES];
        for wait in analysis.waits.iter().filter(is_it) {
            slices.iter_mut().zip(&wait.slices).for_each(|(all, ns)| *all += ns);
        }
        by_slices(slices, row.executions)
    };
    let name = &a.name;
    let mut rows = Vec::new();
    rows.push(judged(row(name, PER_SECOND, true, &rate(before, a), &rate(after, b)), has_samples));
    rows.push(judged(row(name, "elapsed", false, &durations(a), &durations(b)), has_samples));
    push_nonzero(
        &mut rows,
        judged(row(name, "CPU", false, &whole(a, |s| s.cpu), &whole(b, |s| s.cpu)), false),
    );
    for (metric, class) in [("lock wait", WaitClass::Lock), ("I/O wait", WaitClass::Io)] {
        let of = (waits(before, a, class), waits(after, b, class));
        push_nonzero(&mut rows, row(name, metric, false, &of.0, &of.1));
    }
    rows
}

/// Smallest number of executions from which the noise of durations is estimated.
const LEAST_FEW: usize = 3;

/// Returns the time per execution; each slice has an equal part of the executions.
fn by_slices(slices: Vec<u64>, executions: u64) -> Ratio {
    let part = executions as f64 / SLICES as f64;
    Ratio::new(slices.into_iter().map(|ns| (ns as f64, part)))
}

fn slice_seconds(analysis: &Analysis) -> f64 {
    analysis.recorded.duration_ns.max(1) as f64 / 1e9 / SLICES as f64
}

fn waits(before: &Analysis, after: &Analysis) -> Vec<DiffRow> {
    let mut seen = BTreeSet::new();
    before
        .waits
        .iter()
        .chain(&after.waits)
        .filter(|w| seen.insert((w.operation.clone(), w.site.clone())))
        .filter(|w| w.operation != "(outside)")
        .map(|w| {
            let (a, b) = (per_execution(before, w), per_execution(after, w));
            row(&w.operation, &w.site, false, &a, &b)
        })
        .collect()
}

/// Returns the site's wait per execution of the operation, in slices.
fn per_execution(analysis: &Analysis, wait: &WaitRow) -> Ratio {
    let Some(operation) = analysis.operations.iter().find(|o| o.name == wait.operation) else {
        return Ratio::default();
    };
    let same = |w: &&WaitRow| w.operation == wait.operation && w.site == wait.site;
    let waited =
        analysis.waits.iter().find(same).map(|w| w.slices.clone()).unwrap_or_else(|| vec![0; SLICES]);
    if !operation.few.is_empty() {
        return by_slices(waited, operation.executions);
    }
    let pairs = waited.into_iter().zip(&operation.slices);
    Ratio::new(pairs.map(|(ns, sums)| (ns as f64, sums.executions as f64)))
}

fn row(operation: &str, metric: &str, is_rate: bool, before: &Ratio, after: &Ratio) -> DiffRow {
    let (low, high) = interval(before, after);
    let (before, after) = (before.value(), after.value());
    DiffRow {
        operation: operation.into(),
        metric: metric.into(),
        is_rate,
        before,
        after,
        change: (before != 0.0).then(|| after / before - 1.0),
        low,
        high,
        is_significant: low > 0.0 || high < 0.0,
    }
}
