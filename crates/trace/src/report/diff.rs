//! Comparison of two recordings: the difference of every operation and every lock, its confidence interval,
//! and the test whether the noise inside the recordings explains it.

use super::significance::{Judgment, LEAST_TESTED, Samples, Test, judge};
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
    /// Number of rows with a rank test, for which the probabilities are corrected.
    pub rows_tested: u64,
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
    /// Lower end of the difference's 95 % interval, without the first and the last slice of time; `None` with
    /// fewer than three samples.
    pub low: Option<f64>,
    /// Upper end of that interval.
    pub high: Option<f64>,
    /// Number of samples in the first recording.
    pub samples_before: u64,
    /// Number of samples in the second recording.
    pub samples_after: u64,
    /// Probability of the rank test, corrected for all rows; `None` if there are too few samples for it.
    pub p: Option<f64>,
    /// Result of the test.
    pub judgment: Judgment,
    /// `true` if `judgment` is [`Judgment::Significant`].
    pub is_significant: bool,
}

impl Diff {
    /// Compares two analyses. A row that only one of them has is 0 in the other one.
    #[must_use]
    pub fn new(before: &Analysis, after: &Analysis) -> Self {
        let mut rows = Rows::default();
        operations(before, after, &mut rows);
        let operation_rows = rows.rows.len();
        waits(before, after, &mut rows);
        let tested = judge(&rows.tests);
        let rows_tested = tested.iter().filter(|tested| tested.p.is_some()).count() as u64;
        for (row, tested) in rows.rows.iter_mut().zip(tested) {
            (row.judgment, row.p) = (tested.judgment, tested.p);
            row.is_significant = tested.judgment == Judgment::Significant;
            (row.samples_before, row.samples_after) = (tested.samples.0 as u64, tested.samples.1 as u64);
            (row.low, row.high) = tested.interval.unzip();
        }
        let mut waits = rows.rows.split_off(operation_rows);
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
            rows_tested,
            operations: rows.rows,
            waits,
        }
    }
}

fn name(analysis: &Analysis, otherwise: &str) -> String {
    let label = &analysis.recorded.label;
    if label.is_empty() { otherwise.into() } else { label.clone() }
}

/// Rows of one comparison, and their tests.
#[derive(Default)]
struct Rows {
    rows: Vec<DiffRow>,
    tests: Vec<Test>,
}

impl Rows {
    /// Adds a row, unless it has no sample, or is 0 in both recordings.
    fn push(&mut self, row: DiffRow, before: &Samples, after: &Samples) {
        if row.before != 0.0 || row.after != 0.0 {
            self.rows.push(row);
            self.tests.push(Test::new(before, after));
        }
    }
}

/// An operation in one recording; `row` is `None` if it was not executed there.
#[derive(Clone, Copy)]
struct Side<'a> {
    analysis: &'a Analysis,
    row: Option<&'a OperationRow>,
}

impl<'a> Side<'a> {
    fn new(analysis: &'a Analysis, operation: &str) -> Self {
        Self { analysis, row: analysis.operations.iter().find(|o| o.name == operation) }
    }

    fn executions(self) -> u64 {
        self.row.map_or(0, |row| row.executions)
    }

    /// Returns `true` if executions are the samples: too few slices have the end of one.
    fn is_of_run(self) -> bool {
        self.row.is_some_and(|row| {
            let ended = row.slices.iter().map(|sums| (0.0, sums.executions as f64));
            !row.few.is_empty() && Samples::of_slices(ended, false).ratio.samples().len() < LEAST_TESTED
        })
    }

    fn rate(self) -> f64 {
        self.executions() as f64 * 1e9 / self.analysis.recorded.duration_ns.max(1) as f64
    }

    /// Returns samples of the number of executions per second.
    fn rates(self) -> Samples {
        let seconds = self.analysis.recorded.duration_ns.max(1) as f64 / 1e9 / SLICES as f64;
        let slices = self.row.map(|row| row.slices.as_slice()).unwrap_or_default();
        let executions = (0..SLICES).map(|at| slices.get(at).map_or(0.0, |sums| sums.executions as f64));
        Samples::of_slices(executions.map(|executions| (executions, seconds)), self.is_of_run())
    }

    /// Returns samples of the number of executions per second for an operation with executions as samples.
    fn rates_of_executions(self) -> Samples {
        let few = self.row.map(|row| row.few.as_slice()).unwrap_or_default();
        let seconds = self.analysis.recorded.duration_ns.max(1) as f64 / 1e9;
        let all: u64 = few.iter().map(|(elapsed, _)| elapsed).sum();
        Samples::of_executions(
            few.iter().map(|(elapsed, _)| (1.0, seconds * *elapsed as f64 / all.max(1) as f64)),
        )
    }

    /// Returns the time per execution.
    fn time(self, of: fn(&Sums) -> u64) -> f64 {
        let sum: u64 = self.row.map_or(0, |row| row.slices.iter().map(of).sum());
        sum as f64 / self.executions().max(1) as f64
    }

    /// Returns samples of the time per execution; `each` is that of one of few executions.
    fn times(self, of: fn(&Sums) -> u64, each: Option<fn(&(u64, u64)) -> u64>) -> Samples {
        let Some(row) = self.row else { return Samples::default() };
        match each {
            Some(each) if self.is_of_run() => {
                Samples::of_executions(row.few.iter().map(|few| (each(few) as f64, 1.0)))
            }
            _ => Samples::of_slices(
                row.slices.iter().map(|sums| (of(sums) as f64, sums.executions as f64)),
                self.is_of_run(),
            ),
        }
    }

    /// Returns samples of the time per execution in these waits: their time in each slice. If executions are
    /// the samples, each slice has an equal part of them.
    fn waits(self, waits: &[u64]) -> Samples {
        let Some(row) = self.row else { return Samples::default() };
        let is_of_run = self.is_of_run();
        let part = row.executions as f64 / SLICES as f64;
        let slices = (0..SLICES).map(|at| {
            let executions = row.slices.get(at).map_or(0.0, |sums| sums.executions as f64);
            let waited = waits.get(at).copied().unwrap_or_default() as f64;
            (waited, if is_of_run { part } else { executions })
        });
        Samples::of_slices(slices, is_of_run)
    }

    /// Returns the time of all waits of a class inside the operation, in slices.
    fn waits_of_class(self, class: WaitClass) -> Vec<u64> {
        let mut slices = vec![0; SLICES];
        let Some(row) = self.row else { return slices };
        let is_it = |wait: &&WaitRow| {
            wait.operation == row.name && wait.kind.is_some_and(|kind| kind.class() == class)
        };
        for wait in self.analysis.waits.iter().filter(is_it) {
            slices.iter_mut().zip(&wait.slices).for_each(|(all, ns)| *all += ns);
        }
        slices
    }
}

fn operations(before: &Analysis, after: &Analysis, rows: &mut Rows) {
    let names = before.operations.iter().chain(&after.operations);
    let mut seen = BTreeSet::new();
    for OperationRow { name, .. } in names.filter(|o| seen.insert(o.name.clone())) {
        of_operation(name, Side::new(before, name), Side::new(after, name), rows);
    }
}

fn of_operation(name: &str, a: Side<'_>, b: Side<'_>, rows: &mut Rows) {
    let is_of_run = a.is_of_run() && b.is_of_run();
    let (elapsed_a, elapsed_b) =
        (a.times(|sums| sums.elapsed, Some(|few| few.0)), b.times(|sums| sums.elapsed, Some(|few| few.0)));
    // The rate of few executions follows from their durations. Their number alone is noise.
    let is_by_durations = is_of_run && Test::new(&elapsed_a, &elapsed_b).is_large();
    let rates = if is_by_durations {
        (a.rates_of_executions(), b.rates_of_executions())
    } else {
        (a.rates(), b.rates())
    };
    rows.push(row(name, PER_SECOND, true, a.rate(), b.rate()), &rates.0, &rates.1);
    let elapsed = row(name, "elapsed", false, a.time(|s| s.elapsed), b.time(|s| s.elapsed));
    rows.push(elapsed, &elapsed_a, &elapsed_b);
    let cpu = |side: Side<'_>| side.times(|sums| sums.cpu, Some(|few| few.1));
    rows.push(row(name, "CPU", false, a.time(|s| s.cpu), b.time(|s| s.cpu)), &cpu(a), &cpu(b));
    for (metric, class, of) in WAITS {
        let samples = |side: Side<'_>| {
            if side.is_of_run() { side.waits(&side.waits_of_class(class)) } else { side.times(of, None) }
        };
        rows.push(row(name, metric, false, a.time(of), b.time(of)), &samples(a), &samples(b));
    }
}

/// Name of the wait of an operation, its class, and its time.
type Waits = (&'static str, WaitClass, fn(&Sums) -> u64);

const WAITS: [Waits; 2] = [("lock wait", WaitClass::Lock, |s| s.lock), ("I/O wait", WaitClass::Io, |s| s.io)];

const PER_SECOND: &str = "per second";

fn waits(before: &Analysis, after: &Analysis, rows: &mut Rows) {
    let mut seen = BTreeSet::new();
    let all = before.waits.iter().chain(&after.waits);
    for wait in all.filter(|w| seen.insert((&w.operation, &w.site)) && w.operation != "(outside)") {
        let (a, b) = (Side::new(before, &wait.operation), Side::new(after, &wait.operation));
        let of = |side: Side<'_>| {
            let same = |w: &&WaitRow| w.operation == wait.operation && w.site == wait.site;
            let found = side.analysis.waits.iter().find(same);
            let samples = side.waits(found.map(|w| w.slices.as_slice()).unwrap_or_default());
            (found.map_or(0.0, |w| w.net_ns as f64 / side.executions().max(1) as f64), samples)
        };
        let ((value_a, a), (value_b, b)) = (of(a), of(b));
        rows.push(row(&wait.operation, &wait.site, false, value_a, value_b), &a, &b);
    }
}

fn row(operation: &str, metric: &str, is_rate: bool, before: f64, after: f64) -> DiffRow {
    DiffRow {
        operation: operation.into(),
        metric: metric.into(),
        is_rate,
        before,
        after,
        change: (before != 0.0).then(|| after / before - 1.0),
        low: None,
        high: None,
        samples_before: 0,
        samples_after: 0,
        p: None,
        judgment: Judgment::NotJudged,
        is_significant: false,
    }
}
