//! The whole check: collects the versions, infers dependencies, and searches for cycles.

use crate::absence::{add_bounds, add_eliminated};
use crate::cycle::{Cycle, any_cycle, cycles};
use crate::graph::{Graph, sentence};
use crate::history::History;
use crate::infer::dependencies;
use crate::report::{Anomaly, Level, Report};
use crate::versions::{Observations, observe};

/// Searches for anomalies that `level` forbids. For cycles, reports the shortest one of each kind.
///
/// Cost: about linear in the number of values returned by reads; range reads over removed keys also need a
/// bit for each pair of transactions. Ten thousand transactions take about two seconds.
///
/// # Panics
///
/// If a value was written twice to one list. That is a mistake of the test, and would make every result
/// worthless.
#[must_use]
pub fn check(history: &History, level: Level) -> Report {
    let mut all = observe(history);
    let mut anomalies = std::mem::take(&mut all.anomalies);
    let mut graph = dependencies(history, &all);
    add_bounds(&mut graph, &all);
    let mut found = cycle_anomalies(history, &all, &graph, false);
    if found.is_empty() && level == Level::StrictSerializable {
        graph.add_time(history, |txn| all.counts[txn]);
        found = cycle_anomalies(history, &all, &graph, true);
    }
    anomalies.append(&mut found);
    anomalies.retain(|a| a.forbidden_from() <= level);
    anomalies.sort_by_key(|a| (a.forbidden_from(), a.kind));
    let (transactions, dependencies) = (history.transactions.len(), graph.dependencies());
    Report { anomalies, transactions, dependencies }
}

/// Returns cycles of proven dependencies. If there are none, returns a cycle of the dependencies that follow
/// if the history is serializable.
fn cycle_anomalies(history: &History, all: &Observations, certain: &Graph, time: bool) -> Vec<Anomaly> {
    let found = cycles(certain, time);
    if !found.is_empty() {
        return found.iter().map(|cycle| anomaly_of(history, cycle, time)).collect();
    }
    let mut graph = certain.clone();
    add_eliminated(&mut graph, all);
    let cycle = any_cycle(&graph, time);
    cycle.iter().map(|cycle| anomaly_of(history, cycle, time)).map(Anomaly::of_several_explanations).collect()
}

fn anomaly_of(history: &History, cycle: &Cycle, is_realtime: bool) -> Anomaly {
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
