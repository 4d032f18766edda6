//! Keys that a range read did not return: the version that it saw.
//!
//! A key is absent in version 0 and in every version that ends with a tombstone. If only one of these is
//! possible, the range read saw that version: it depends on the version's writer, and the writer of the next
//! version depends on it (a phantom, if that closes a cycle). If several are possible, the read still saw
//! none before the first of them and none after the last ([`add_bounds`]).
//!
//! In a serializable history, a version is also impossible if the reader is known to come before its writer,
//! or after the next version's. Each dependency found in this way can exclude more versions, so this is
//! repeated until nothing changes ([`add_eliminated`]). A resulting cycle proves only that the history is not
//! serializable: the version that was seen, and so the weaker level that is violated, stays open.
//!
//! If several versions stay possible, an anomaly may stay undetected.

use crate::graph::{Graph, RW_RANGE, Why};
use crate::infer::{add_wr, maker, next_writers};
use crate::versions::{Absent, Observations};

/// Versions of a key that a range read may have seen.
struct Candidates {
    absent: Absent,
    versions: Vec<usize>,
    /// A removal that no read returned may have come last.
    may_be_unseen: bool,
}

/// Adds the dependencies that range reads prove by absent keys, at any level of isolation.
pub(crate) fn add_bounds(graph: &mut Graph, all: &Observations) {
    for &absent in &all.absent {
        add_bounds_of(graph, all, &candidates(all, absent));
    }
}

/// Adds the dependencies that range reads prove by absent keys if the history is serializable. The graph has
/// the bounds and no cycle; afterwards it may have one.
pub(crate) fn add_eliminated(graph: &mut Graph, all: &Observations) {
    let mut open: Vec<Candidates> = all.absent.iter().map(|&absent| candidates(all, absent)).collect();
    open.retain(|of| of.versions.len() > 1);
    while !open.is_empty() {
        let Some(reach) = Reach::new(graph) else { return }; // a cycle already: no need for more
        let mut is_changed = false;
        for of in &mut open {
            let before = std::mem::take(&mut of.versions);
            of.versions =
                before.iter().copied().filter(|&v| is_possible(all, &reach, of.absent, v)).collect();
            if of.versions.is_empty() {
                // A contradiction. The last version that existed in time gives the cycle to report.
                of.versions.extend(before.iter().rev().find(|&&v| !is_too_late(all, &reach, of.absent, v)));
            }
            if of.versions.len() < before.len() {
                is_changed |= add_bounds_of(graph, all, of);
            }
        }
        open.retain(|of| of.versions.len() > 1);
        if !is_changed {
            return;
        }
    }
}

fn candidates(all: &Observations, absent: Absent) -> Candidates {
    let key = absent.key;
    let versions = &all.versions[&key];
    let removes = |value: &u64| all.writers.get(&(key, *value)).is_some_and(|w| w.removes);
    let removed = versions.order.iter().enumerate().filter(|(_, value)| removes(value)).map(|(at, _)| at + 1);
    Candidates {
        absent,
        versions: std::iter::once(0).chain(removed).collect(),
        may_be_unseen: versions.unseen.iter().any(removes),
    }
}

/// Makes the reader come after the writer of the first candidate, and before the writers that made the key
/// exist after the last one.
fn add_bounds_of(graph: &mut Graph, all: &Observations, of: &Candidates) -> bool {
    let Absent { txn, key } = of.absent;
    let versions = &all.versions[&key];
    let (Some(&first), Some(&last)) = (of.versions.first(), of.versions.last()) else { return false };
    let mut is_changed = add_wr(graph, all, txn, key, first);
    if !of.may_be_unseen {
        for (next, value) in next_writers(all, key, versions, last) {
            let before = last.checked_sub(1).map(|at| versions.order[at]);
            is_changed |= graph.add(txn, next, RW_RANGE, Why { key, before, after: Some(value) });
        }
    }
    is_changed
}

/// Returns `true` if the reader comes before the writer of this version.
fn is_too_late(all: &Observations, reach: &Reach, absent: Absent, version: usize) -> bool {
    let maker = maker(all, absent.key, &all.versions[&absent.key], version);
    maker.is_some_and(|maker| reach.is_before(absent.txn, maker))
}

fn is_possible(all: &Observations, reach: &Reach, absent: Absent, version: usize) -> bool {
    let versions = &all.versions[&absent.key];
    let is_overtaken = version < versions.order.len()
        && next_writers(all, absent.key, versions, version)
            .iter()
            .any(|&(n, _)| reach.is_before(n, absent.txn));
    !is_overtaken && !is_too_late(all, reach, absent, version)
}

/// The order of transactions: the transitive closure of the dependencies, one bit per pair.
struct Reach {
    words: usize,
    rows: Vec<u64>,
}

impl Reach {
    /// Returns `None` if the graph has a cycle.
    fn new(graph: &Graph) -> Option<Self> {
        let order = topological(graph)?;
        let words = graph.transactions.div_ceil(64);
        let mut rows = vec![0u64; words * graph.edges.len()];
        for &node in order.iter().rev() {
            for edge in &graph.edges[node] {
                let to = edge.to as usize;
                for word in 0..words {
                    rows[node * words + word] |= rows[to * words + word];
                }
                if to < graph.transactions {
                    rows[node * words + to / 64] |= 1 << (to % 64);
                }
            }
        }
        Some(Self { words, rows })
    }

    fn is_before(&self, earlier: usize, later: usize) -> bool {
        self.rows[earlier * self.words + later / 64] >> (later % 64) & 1 == 1
    }
}

/// Returns the nodes, each before those it points to; `None` if there is a cycle.
fn topological(graph: &Graph) -> Option<Vec<usize>> {
    let mut incoming = vec![0u32; graph.edges.len()];
    for edge in graph.edges.iter().flatten() {
        incoming[edge.to as usize] += 1;
    }
    let mut order: Vec<usize> = (0..graph.edges.len()).filter(|&node| incoming[node] == 0).collect();
    let mut at = 0;
    while at < order.len() {
        for edge in &graph.edges[order[at]] {
            incoming[edge.to as usize] -= 1;
            if incoming[edge.to as usize] == 0 {
                order.push(edge.to as usize);
            }
        }
        at += 1;
    }
    (order.len() == graph.edges.len()).then_some(order)
}
