//! The versions of keys that a range read did not return.
//!
//! A key is absent in version 0 and in every version that ends with a tombstone. If only one of these
//! versions is possible, the range read saw that version. The read depends on the version's writer, and the
//! writer of the next version depends on the read. (That is a phantom, if these dependencies close a cycle.)
//! If several versions are possible, the read is still later than the writer of the first one, and earlier
//! than the writer of the version after the last one ([`add_bounds`]).
//!
//! In a serializable history, a version is also impossible if the reader is known to precede the version's
//! writer, or to follow the writer of the next version. Each dependency found in this way can exclude more
//! versions, so the search is repeated until nothing changes ([`add_eliminated`]). A resulting cycle proves
//! only that the history is not serializable. The check does not find out which version was read, and so
//! which weaker level is violated.
//!
//! If several versions remain possible, an anomaly may remain undetected.

use crate::graph::{Graph, RW_RANGE, Why};
use crate::infer::{add_wr, maker, next_writers};
use crate::versions::{Absent, Observations};

/// Versions of a key that a range read may have seen.
struct Candidates {
    absent: Absent,
    versions: Vec<usize>,
    /// `true` if the last version may be a removal that no read returned.
    may_be_unseen: bool,
}

/// Adds the dependencies that range reads prove by absent keys, at any level of isolation.
pub(crate) fn add_bounds(graph: &mut Graph, all: &Observations) {
    for &absent in &all.absent {
        add_bounds_of(graph, all, &candidates(all, absent));
    }
}

/// Adds the dependencies that range reads prove by absent keys if the history is serializable. Before the
/// call, the graph has the bounds and no cycle; afterward it may have a cycle.
pub(crate) fn add_eliminated(graph: &mut Graph, all: &Observations) {
    let mut open: Vec<Candidates> = all.absent.iter().map(|&absent| candidates(all, absent)).collect();
    open.retain(|of| of.versions.len() > 1);
    while !open.is_empty() {
        let Some(reach) = Reach::new(graph) else { return }; // the graph has a cycle already
        let mut is_changed = false;
        for of in &mut open {
            let before = std::mem::take(&mut of.versions);
            of.versions =
                before.iter().copied().filter(|&v| is_possible(all, &reach, of.absent, v)).collect();
            if of.versions.is_empty() {
                // There is a contradiction: no version is possible. The last version that existed in time is
                // used, so that the cycle can be reported.
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

/// Adds that the reader follows the writer of the first candidate, and precedes the writers that inserted the
/// key again after the last candidate.
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

/// Returns `true` if the reader precedes the writer of this version.
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
