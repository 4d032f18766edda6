//! Cycles in the dependency graph: strongly connected components by Tarjan's algorithm, then the shortest
//! cycle of each kind.

use std::collections::VecDeque;

use crate::graph::{Edge, Edges, Graph, Node, RW, RW_RANGE, TIME, WR, WW};
use crate::report::Kind;

/// A cycle: each edge ends at the node at which the next one begins, and the last ends at the first node.
#[derive(Clone, Debug)]
pub(crate) struct Cycle {
    pub(crate) kind: Kind,
    pub(crate) steps: Vec<Step>,
}

/// One edge of a cycle, from one transaction to another; ticks are omitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) from: Node,
    pub(crate) edge: Edge,
}

/// A kind of cycle, with at least one edge of `one` and all other edges of `rest`.
struct Class {
    kind: Kind,
    one: Edges,
    rest: Edges,
}

/// The classes of cycles, worst first. Each requires an edge, or a number of edges, that earlier classes do
/// not have.
const CLASSES: [Class; 5] = [
    Class { kind: Kind::G0, one: WW, rest: WW },
    Class { kind: Kind::G1c, one: WR, rest: WW | WR },
    Class { kind: Kind::GSingle, one: RW, rest: WW | WR },
    Class { kind: Kind::G2Item, one: RW, rest: WW | WR | RW },
    Class { kind: Kind::Phantom, one: RW_RANGE, rest: WW | WR | RW | RW_RANGE },
];

/// Largest number of edges of a component that are tried as the first edge of a cycle. The limit bounds the
/// work for a broken store, which yields thousands of cycles.
const TRIED: usize = 2000;

/// Returns the shortest cycle of each class; with `time`, the cycle may include edges of the order in time.
pub(crate) fn cycles(graph: &Graph, time: bool) -> Vec<Cycle> {
    let extra = if time { TIME } else { 0 };
    CLASSES.iter().filter_map(|class| shortest(graph, class, extra)).collect()
}

/// Returns the shortest cycle of any edges, which is reported as a phantom, the kind that only the highest
/// levels forbid.
pub(crate) fn any_cycle(graph: &Graph, time: bool) -> Option<Cycle> {
    let all = WW | WR | RW | RW_RANGE;
    shortest(graph, &Class { kind: Kind::Phantom, one: all, rest: all }, if time { TIME } else { 0 })
}

fn shortest(graph: &Graph, class: &Class, extra: Edges) -> Option<Cycle> {
    let allowed = class.one | class.rest | extra;
    let component = components(graph, allowed);
    let mut best: Option<Vec<Step>> = None;
    let mut tried = 0;
    for from in 0..graph.transactions as Node {
        for &edge in &graph.edges[from as usize] {
            if edge.kind & class.one == 0 || component[from as usize] != component[edge.to as usize] {
                continue;
            }
            tried += 1;
            if tried > TRIED {
                break;
            }
            let Some(mut back) = path(graph, edge.to, from, class.rest | extra, &component) else { continue };
            back.insert(0, Step { from, edge });
            let several = back.iter().filter(|s| s.edge.kind == RW).count() >= 2;
            let fits = class.kind != Kind::G2Item || several;
            if fits && best.as_ref().is_none_or(|b| back.len() < b.len()) {
                best = Some(back);
            }
        }
    }
    best.map(|steps| Cycle { kind: class.kind, steps })
}

/// Returns the shortest path over allowed edges inside one component, as steps between transactions. Steps
/// along the chain of ticks have length 0: only transactions are counted.
fn path(graph: &Graph, from: Node, to: Node, allowed: Edges, component: &[u32]) -> Option<Vec<Step>> {
    let mut came: Vec<Option<(Node, Edge)>> = vec![None; graph.edges.len()];
    let mut done = vec![false; graph.edges.len()];
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        if node == to {
            return Some(steps(graph, &came, from, to));
        }
        if std::mem::replace(&mut done[node as usize], true) {
            continue;
        }
        for &edge in &graph.edges[node as usize] {
            let next = edge.to as usize;
            if edge.kind & allowed == 0 || component[next] != component[from as usize] || done[next] {
                continue;
            }
            // A node is final only when it is taken from the queue; until then a shorter path may replace
            // this one.
            let is_free = graph.is_tick(node);
            if came[next].is_none() || is_free {
                came[next] = Some((node, edge));
            }
            if is_free { queue.push_front(edge.to) } else { queue.push_back(edge.to) }
        }
    }
    None
}

fn steps(graph: &Graph, came: &[Option<(Node, Edge)>], from: Node, to: Node) -> Vec<Step> {
    let (mut steps, mut at) = (Vec::new(), to);
    while at != from {
        let (mut before, edge) = came[at as usize].expect("a path leads back to its start");
        while graph.is_tick(before) {
            before = came[before as usize].expect("a tick is reached from somewhere").0;
        }
        steps.push(Step { from: before, edge });
        at = before;
    }
    steps.reverse();
    steps
}

/// Returns the number of the strongly connected component of each node over allowed edges (Tarjan 1972,
/// without recursion).
pub(crate) fn components(graph: &Graph, allowed: Edges) -> Vec<u32> {
    const NEW: u32 = u32::MAX;
    let n = graph.edges.len();
    let (mut number, mut low) = (vec![NEW; n], vec![0; n]);
    let (mut component, mut components) = (vec![NEW; n], 0);
    let (mut stack, mut counter) = (Vec::new(), 0);
    for root in 0..n {
        let mut calls = if number[root] == NEW { vec![(root, 0)] } else { Vec::new() };
        while let Some((node, next)) = calls.last_mut() {
            let node = *node;
            if *next == 0 {
                (number[node], low[node]) = (counter, counter);
                counter += 1;
                stack.push(node);
            }
            let edges = &graph.edges[node];
            let child = edges[*next..].iter().position(|e| e.kind & allowed != 0).map(|at| *next + at);
            *next = child.map_or(edges.len() + 1, |at| at + 1);
            if let Some(at) = child {
                let to = edges[at].to as usize;
                if number[to] == NEW {
                    calls.push((to, 0));
                } else if component[to] == NEW {
                    low[node] = low[node].min(number[to]);
                }
                continue;
            }
            calls.pop();
            if let Some(&(parent, _)) = calls.last() {
                low[parent] = low[parent].min(low[node]);
            }
            if low[node] == number[node] {
                while component[node] == NEW {
                    component[stack.pop().expect("the node itself is on it")] = components;
                }
                components += 1;
            }
        }
    }
    component
}
