//! The whole check: observe, infer, look for circles.

use crate::absence::add_absences;
use crate::cycle::{Cycle, cycles};
use crate::graph::sentence;
use crate::history::History;
use crate::infer::dependencies;
use crate::report::{Anomaly, Level, Report};
use crate::versions::observe;

/// Looks for anomalies that `level` forbids; of circles, the shortest of each kind.
///
/// Cost: about linear in the number of values shown by reads; removed keys under range reads need a bit for each
/// pair of transactions. Ten thousand transactions take about two seconds.
///
/// # Panics
///
/// If a value was written twice to one list: that is a mistake of the test, and would make every verdict worthless.
#[must_use]
pub fn check(history: &History, level: Level) -> Report {
    let mut all = observe(history);
    let mut anomalies = std::mem::take(&mut all.anomalies);
    let known = dependencies(history, &all);
    let mut graph = known.clone();
    add_absences(&mut graph, &all);
    let mut found = cycles(&graph, false);
    let needs_time = found.is_empty() && level == Level::StrictSerializable;
    if needs_time {
        // Again, with time: it adds order, and so may also tell which version a range read saw.
        graph = known;
        graph.add_time(history, |txn| all.counts[txn]);
        add_absences(&mut graph, &all);
        found = cycles(&graph, true);
    }
    anomalies.extend(found.iter().map(|cycle| tell(history, cycle, needs_time)));
    anomalies.retain(|a| a.forbidden_from() <= level);
    anomalies.sort_by_key(|a| (a.forbidden_from(), a.kind));
    let (transactions, dependencies) = (history.transactions.len(), graph.dependencies());
    Report { anomalies, transactions, dependencies }
}

fn tell(history: &History, cycle: &Cycle, is_realtime: bool) -> Anomaly {
    let transactions: Vec<usize> = cycle.steps.iter().map(|s| s.from as usize).collect();
    let mut text = cycle.kind.name().to_string();
    if is_realtime {
        text.push_str(" against the order in time");
    }
    for (i, step) in cycle.steps.iter().enumerate() {
        let to = transactions[(i + 1) % transactions.len()];
        let line = sentence(history, step.from as usize, to, step.edge.kind, step.edge.why);
        text.push_str(&format!("\n  {line}"));
    }
    for &n in &transactions {
        text.push_str(&format!("\n  T{n} = {}", history.transactions[n]));
    }
    Anomaly { kind: cycle.kind, is_realtime, transactions, text }
}
