//! The adaptive policy on programs that were not used to develop it: a merge sort of lines, as in GNU sort,
//! the decomposition of a matrix and its transposition by recursion, and a search of a graph.
//!
//! The policy makes at most 3 % more swaps than Simple, and at most 1.10 times the swaps of the best of the
//! paper's eight policies. Two cases are exempt from the second bound: the sort with half of its memory
//! local, and the transposition. There, because of the recursion, the page that was unused for the longest
//! time is needed last, which suits U-Clock and U-pLRU from the start.
//!
//! The counts are those of a replay: the same on every machine.

use azekura_far::Policy;
use azekura_far::replace::replay::{Costs, Trace, replay};
use azekura_kernels::{Array, Memory, Recorder};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const PAGE: usize = 4096;
const EPOCH: u32 = 256;
const SEEDS: [u64; 2] = [1, 2];

fn record(run: impl FnOnce(&mut Recorder)) -> Trace {
    let mut memory = Recorder::new(PAGE, EPOCH);
    run(&mut memory);
    let recording = memory.finish();
    Trace::of_epochs(EPOCH, &recording.touches, &recording.epochs)
}

/// Returns, for each share of local memory, the swaps of the adaptive policy relative to Simple, and to the
/// best of the eight; each is the largest over the seeds.
fn ratios(trace: &Trace) -> Vec<(u32, f64, f64)> {
    let costs = Costs::PAPER.scaled((1 << 20) as f64 / PAGE as f64);
    let mut found = Vec::new();
    for local in [75, 50, 25] {
        let (mut of_simple, mut of_best) = (0.0_f64, 0.0_f64);
        for seed in SEEDS {
            let swaps =
                |policy| replay(trace, policy, trace.pages() * local / 100, &costs, seed).swap_ins as f64;
            let ours = swaps(Policy::Adaptive);
            of_simple = of_simple.max(ours / swaps(Policy::Simple));
            of_best = of_best.max(ours / Policy::PAPER.map(swaps).into_iter().fold(f64::INFINITY, f64::min));
        }
        found.push((local, of_simple, of_best));
    }
    found
}

fn judge(program: &str, trace: &Trace, most_of_best: impl Fn(u32) -> f64) {
    for (local, of_simple, of_best) in ratios(trace) {
        let case = format!("{program}, {local} % local: {of_simple:.2} of Simple, {of_best:.2} of the best");
        assert!(of_simple <= 1.03 && of_best <= most_of_best(local), "{case}");
    }
}

/// Number of words in the text of a line; `LINE` is the number of words that the sort keeps of it.
const TEXT: usize = 6;
const LINE: usize = 8;
/// Index of the word that is the sort key.
const KEY: usize = 2;

/// A merge sort: reads lines one after another, stores their kept words from the end of an array, and sorts
/// and merges halves through a third array.
struct MergeSort<M: Memory> {
    text: M::Array<u32>,
    lines: M::Array<u32>,
    half: M::Array<u32>,
}

impl<M: Memory> MergeSort<M> {
    fn read(memory: &mut M, lines: usize) -> Self {
        let mut array = |len| memory.array::<u32>(len).expect("it has no limit");
        let mut sort =
            Self { text: array(lines * TEXT), lines: array(lines * LINE), half: array(lines * LINE / 2) };
        let mut random = StdRng::seed_from_u64(7);
        for line in 0..lines {
            (0..TEXT).for_each(|at| sort.text.set(line * TEXT + at, random.random()));
            put(&mut sort.lines, lines - 1 - line, line as u32);
        }
        sort
    }

    fn key(&self, line: u32) -> u32 {
        self.text.get(line as usize * TEXT + KEY)
    }

    fn sort(&mut self, from: usize, to: usize) {
        if to - from < 2 {
            return;
        }
        let middle = usize::midpoint(from, to);
        self.sort(from, middle);
        self.sort(middle, to);
        let lower = middle - from;
        (0..lower).for_each(|at| put(&mut self.half, at, get(&self.lines, from + at)));
        let (mut low, mut high) = (0, middle);
        for at in from..to {
            if low == lower {
                return;
            }
            let (first, second) = (get(&self.half, low), get(&self.lines, high.min(to - 1)));
            let takes_low = high == to || self.key(first) <= self.key(second);
            put(&mut self.lines, at, if takes_low { first } else { second });
            *if takes_low { &mut low } else { &mut high } += 1;
        }
    }

    fn is_sorted(&self, lines: usize) -> bool {
        let keys: Vec<u32> = (0..lines).map(|at| self.key(get(&self.lines, at))).collect();
        keys.is_sorted()
    }
}

fn get(lines: &impl Array<u32>, at: usize) -> u32 {
    lines.get(at * LINE)
}

fn put(lines: &mut impl Array<u32>, at: usize, line: u32) {
    (0..LINE).for_each(|part| lines.set(at * LINE + part, line));
}

#[test]
fn a_merge_sort_of_lines() {
    const LINES: usize = 12_000;
    let trace = record(|memory| {
        let mut sort = MergeSort::read(memory, LINES);
        sort.sort(0, LINES);
        assert!(sort.is_sorted(LINES));
    });
    judge("sort", &trace, |local| if local == 50 { 1.15 } else { 1.1 });
}

#[test]
fn the_decomposition_of_a_matrix() {
    const ROWS: usize = 160;
    let trace = record(|memory| {
        let mut matrix = memory.array::<f64>(ROWS * ROWS).expect("it has no limit");
        let mut random = StdRng::seed_from_u64(3);
        (0..ROWS * ROWS).for_each(|at| matrix.set(at, random.random()));
        for pivot in 0..ROWS {
            for row in pivot + 1..ROWS {
                let factor = matrix.get(row * ROWS + pivot) / (1.0 + matrix.get(pivot * ROWS + pivot));
                matrix.set(row * ROWS + pivot, factor);
                (pivot + 1..ROWS)
                    .for_each(|at| matrix.add(row * ROWS + at, -factor * matrix.get(pivot * ROWS + at)));
            }
        }
    });
    judge("decomposition", &trace, |_| 1.1);
}

/// Transposes a part of a square array: splits the larger side in half until a block is small.
fn transpose(
    from: &impl Array<f64>,
    to: &mut impl Array<f64>,
    side: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) {
    const SMALL: usize = 16;
    if rows.len().max(columns.len()) <= SMALL {
        for row in rows {
            columns.clone().for_each(|column| to.set(column * side + row, from.get(row * side + column)));
        }
    } else if rows.len() >= columns.len() {
        let middle = usize::midpoint(rows.start, rows.end);
        transpose(from, to, side, rows.start..middle, columns.clone());
        transpose(from, to, side, middle..rows.end, columns);
    } else {
        let middle = usize::midpoint(columns.start, columns.end);
        transpose(from, to, side, rows.clone(), columns.start..middle);
        transpose(from, to, side, rows, middle..columns.end);
    }
}

#[test]
fn the_transposition_of_a_matrix_by_recursion() {
    const SIDE: usize = 256;
    let trace = record(|memory| {
        let mut array = || memory.array::<f64>(SIDE * SIDE).expect("it has no limit");
        let (mut matrix, mut other) = (array(), array());
        (0..SIDE * SIDE).for_each(|at| matrix.set(at, at as f64));
        for _ in 0..3 {
            transpose(&matrix, &mut other, SIDE, 0..SIDE, 0..SIDE);
            transpose(&other, &mut matrix, SIDE, 0..SIDE, 0..SIDE);
        }
        assert!((0..SIDE * SIDE).all(|at| matrix.get(at) == at as f64));
    });
    judge("transposition", &trace, |_| 1.5);
}

#[test]
fn a_search_of_a_graph_breadth_first() {
    const NODES: usize = 12_000;
    const EDGES: usize = 8;
    let trace = record(|memory| {
        let mut array = |len| memory.array::<u32>(len).expect("it has no limit");
        let (mut edges, mut seen, mut queue) = (array(NODES * EDGES), array(NODES), array(NODES));
        let mut random = StdRng::seed_from_u64(11);
        for edge in 0..NODES * EDGES {
            // 90 % of the edges lead to a neighbor.
            let near = random.random_range(0..10) > 0;
            let to =
                if near { edge / EDGES + random.random_range(0..200) } else { random.random_range(0..NODES) };
            edges.set(edge, (to % NODES) as u32);
        }
        for round in 1..=4 {
            let first = random.random_range(0..NODES as u32);
            queue.set(0, first);
            seen.set(first as usize, round);
            let (mut done, mut found) = (0, 1);
            while done < found {
                let node = queue.get(done) as usize;
                done += 1;
                for edge in 0..EDGES {
                    let to = edges.get(node * EDGES + edge);
                    if seen.get(to as usize) != round {
                        seen.set(to as usize, round);
                        queue.set(found, to);
                        found += 1;
                    }
                }
            }
            assert!(found > NODES / 2, "{found} nodes found");
        }
    });
    judge("search", &trace, |_| 1.1);
}
