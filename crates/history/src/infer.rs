//! Dependencies between transactions, inferred from the versions of lists.

use crate::graph::{Graph, RW, RW_RANGE, WR, WW, Why};
use crate::history::History;
use crate::versions::{Observations, Versions};

/// Returns every dependency that the returned lists prove. Dependencies from absent keys in range reads are
/// added later (`absence`).
pub(crate) fn dependencies(history: &History, all: &Observations) -> Graph {
    let mut graph = Graph::new(history.transactions.len());
    for (&key, versions) in &all.versions {
        add_overwrites(&mut graph, all, key, versions);
    }
    for seen in &all.seen {
        let versions = &all.versions[&seen.key];
        add_wr(&mut graph, all, seen.txn, seen.key, seen.version);
        let is_range_of_nothing = seen.in_range && seen.version == 0;
        let kind = if is_range_of_nothing { RW_RANGE } else { RW };
        for (txn, value) in next_writers(all, seen.key, versions, seen.version) {
            let before = seen.version.checked_sub(1).map(|at| versions.order[at]);
            graph.add(seen.txn, txn, kind, Why { key: seen.key, before, after: Some(value) });
        }
    }
    graph
}

/// Returns the transaction that wrote a version, if that transaction counts; version 0 has no writer.
pub(crate) fn maker(all: &Observations, key: u64, versions: &Versions, version: usize) -> Option<usize> {
    let value = *versions.order.get(version.checked_sub(1)?)?;
    all.writers.get(&(key, value)).map(|w| w.txn).filter(|&txn| all.counts[txn])
}

/// Returns the writers of the next version, with their values; after the last version that was read, these
/// are all writers of appends that no read returned.
pub(crate) fn next_writers(
    all: &Observations,
    key: u64,
    versions: &Versions,
    version: usize,
) -> Vec<(usize, u64)> {
    let known = (version..versions.order.len())
        .find_map(|at| Some((maker(all, key, versions, at + 1)?, versions.order[at])));
    match known {
        Some(next) => vec![next],
        None => versions.unseen.iter().map(|&value| (all.writers[&(key, value)].txn, value)).collect(),
    }
}

/// Adds that `reader` read this version of `key`, or a later one.
pub(crate) fn add_wr(graph: &mut Graph, all: &Observations, reader: usize, key: u64, version: usize) -> bool {
    let versions = &all.versions[&key];
    maker(all, key, versions, version).is_some_and(|writer| {
        let value = versions.order[version - 1];
        graph.add(writer, reader, WR, Why { key, before: Some(value), after: None })
    })
}

fn add_overwrites(graph: &mut Graph, all: &Observations, key: u64, versions: &Versions) {
    let makers: Vec<(usize, u64)> = (1..=versions.order.len())
        .filter_map(|v| Some((maker(all, key, versions, v)?, versions.order[v - 1])))
        .collect();
    for pair in makers.windows(2) {
        let why = Why { key, before: Some(pair[0].1), after: Some(pair[1].1) };
        graph.add(pair[0].0, pair[1].0, WW, why);
    }
    if let Some(&(last, before)) = makers.last() {
        for &value in &versions.unseen {
            let why = Why { key, before: Some(before), after: Some(value) };
            graph.add(last, all.writers[&(key, value)].txn, WW, why);
        }
    }
}
