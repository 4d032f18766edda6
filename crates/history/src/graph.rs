//! Dependencies between transactions, each with its evidence.
//!
//! | edge A → B | meaning |
//! |---|---|
//! | ww | B appended right after A to the same list |
//! | wr | B read a value that A wrote, and no newer value |
//! | rw | A read a list without B's append, which came next |
//! | rw of a range | A read a range without a key that B inserted next |
//! | time | A had ended when B began |
//!
//! Time is a chain of *ticks*, one for each end of a transaction. A transaction points to the tick of its
//! end, each tick to the next one, and the last tick before a transaction's beginning to that transaction. So
//! the order in time needs few edges.

use crate::history::{History, Op};

pub(crate) type Node = u32;

/// The kinds of an edge, as a set of bits.
pub(crate) type Edges = u8;
pub(crate) const WW: Edges = 1;
pub(crate) const WR: Edges = 2;
pub(crate) const RW: Edges = 4;
pub(crate) const RW_RANGE: Edges = 8;
pub(crate) const TIME: Edges = 16;

/// The evidence of an edge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Why {
    pub(crate) key: u64,
    /// The last value that the earlier transaction wrote or read, if any.
    pub(crate) before: Option<u64>,
    /// The value that was written next, or that was read.
    pub(crate) after: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) to: Node,
    pub(crate) kind: Edges,
    pub(crate) why: Why,
}

/// A dependency graph. Nodes `0..transactions` are transactions; the others are ticks.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) transactions: usize,
    pub(crate) edges: Vec<Vec<Edge>>,
}

const NO_REASON: Why = Why { key: 0, before: None, after: None };

impl Graph {
    pub(crate) fn new(transactions: usize) -> Self {
        Self { transactions, edges: vec![Vec::new(); transactions] }
    }

    /// Adds an edge between different transactions, unless one of that kind exists already.
    pub(crate) fn add(&mut self, from: usize, to: usize, kind: Edges, why: Why) -> bool {
        let edges = &mut self.edges[from];
        let is_new = from != to && !edges.iter().any(|e| e.to as usize == to && e.kind == kind);
        if is_new {
            edges.push(Edge { to: to as Node, kind, why });
        }
        is_new
    }

    /// Adds the order in time of the transactions for which `counts` returns `true`.
    pub(crate) fn add_time(&mut self, history: &History, counts: impl Fn(usize) -> bool) {
        let mut ends: Vec<(u64, usize)> = history
            .transactions
            .iter()
            .enumerate()
            .filter(|&(n, _)| counts(n))
            .filter_map(|(n, t)| Some((t.ended?, n)))
            .collect();
        ends.sort_unstable();
        let tick = |i: usize| self.transactions + i;
        let edge = |to: usize| Edge { to: to as Node, kind: TIME, why: NO_REASON };
        let mut ticks = vec![Vec::new(); ends.len()];
        for (i, &(_, n)) in ends.iter().enumerate() {
            self.edges[n].push(edge(tick(i)));
            if i + 1 < ends.len() {
                ticks[i].push(edge(tick(i + 1)));
            }
        }
        for (n, t) in history.transactions.iter().enumerate().filter(|&(n, _)| counts(n)) {
            let before = ends.partition_point(|&(ended, _)| ended < t.began);
            if before > 0 {
                ticks[before - 1].push(edge(n));
            }
        }
        self.edges.append(&mut ticks);
    }

    pub(crate) fn is_tick(&self, node: Node) -> bool {
        node as usize >= self.transactions
    }

    /// Returns the number of edges between transactions.
    pub(crate) fn dependencies(&self) -> usize {
        self.edges[..self.transactions].iter().flatten().filter(|e| e.kind != TIME).count()
    }
}

/// Describes a step of a cycle in a sentence.
pub(crate) fn sentence(history: &History, from: usize, to: usize, kind: Edges, why: Why) -> String {
    let Why { key, before, after } = why;
    let value = |v: Option<u64>| v.map_or("nothing".to_string(), |v| v.to_string());
    match kind {
        WW => format!(
            "T{from} -ww-> T{to}: T{to} appended {} to k{key} after T{from}'s {}",
            value(after),
            value(before)
        ),
        WR => format!("T{from} -wr-> T{to}: T{to} saw {} of T{from} in k{key}", value(before)),
        RW => format!(
            "T{from} -rw-> T{to}: T{from} read k{key} up to {} and not {}, which T{to} wrote",
            value(before),
            value(after)
        ),
        RW_RANGE => format!(
            "T{from} -rw-> T{to}: T{from} did not meet k{key} in {}, where T{to} put it by {}",
            range_over(history, from, key),
            value(after)
        ),
        _ => format!("T{from} -time-> T{to}: T{from} had ended before T{to} began"),
    }
}

/// Returns the first range read of a transaction over `key`, as text.
fn range_over(history: &History, txn: usize, key: u64) -> String {
    let ranges = history.transactions[txn].ops.iter().filter_map(|op| match op {
        Op::Scan { from, to, .. } if (*from..*to).contains(&key) => Some(format!("k{from}..k{to}")),
        _ => None,
    });
    ranges.into_iter().next().unwrap_or_default()
}
