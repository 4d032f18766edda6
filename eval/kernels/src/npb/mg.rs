//! MG: multigrid V-cycles for Poisson's equation on a periodic cube.
//!
//! Memory: right side, solution and residual at every level. The finest level has nearly all of the memory,
//! and each cycle sweeps over it several times.

use super::{Class, lcg::Lcg};
use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};

/// Weights by distance: the point itself, its 6 faces, 12 edges and 8 corners.
type Weights = [f64; 4];

const LAPLACE: Weights = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTH: Weights = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const RESTRICT: Weights = [0.5, 0.25, 0.125, 0.0625];
const CHARGES: usize = 10;
const CYCLES: usize = 4;

fn size(class: Class) -> (u32, f64) {
    // log2 of the side, and the final norm of the residual.
    match class {
        Class::S => (5, 0.530_770_700_573_4e-04),
        Class::W => (7, 0.646_732_937_533_9e-05),
        Class::A => (8, 0.243_336_530_906_9e-05),
    }
}

/// Returns the number of points of a cube with its border.
const fn points(level: u32) -> usize {
    let side = (1 << level) + 2;
    side * side * side
}

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(class: Class) -> usize {
    let finest = size(class).0;
    let levels: usize = (1..=finest).map(|level| 2 * padded::<f64>(points(level))).sum();
    with_slack(levels + padded::<f64>(points(finest)))
}

/// Runs the cycles, and verifies the norm of the residual.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(class: Class, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let (finest, norm) = size(class);
    let mut charges = Cube::new(finest, memory)?;
    let mut solution = Vec::new();
    let mut residual = Vec::new();
    for level in 1..=finest {
        solution.push(Cube::new(level, memory)?);
        residual.push(Cube::new(level, memory)?);
    }
    place_charges(&mut charges);
    let top = solution.len() - 1;
    residual[top].residual_of(&charges, &solution[top]);
    for _ in 0..CYCLES {
        cycle(&charges, &mut solution, &mut residual);
        residual[top].residual_of(&charges, &solution[top]);
    }
    Ok(Verdict { checks: vec![Check::near("norm of the residual", residual[top].norm(), norm, 1e-8)] })
}

/// Runs a V-cycle: restricts down to the coarsest level, then interpolates and smooths upward.
fn cycle<A: Array<f64>>(charges: &Cube<A>, solution: &mut [Cube<A>], residual: &mut [Cube<A>]) {
    let top = solution.len() - 1;
    for level in (0..top).rev() {
        let (coarse, fine) = residual.split_at_mut(level + 1);
        coarse[level].restrict(&fine[0]);
    }
    for level in 0..=top {
        if level < top {
            solution[level].clear();
        }
        if level > 0 {
            let (coarse, fine) = solution.split_at_mut(level);
            fine[0].interpolate(&coarse[level - 1]);
            if level < top {
                residual[level].subtract_laplace(&solution[level]);
            } else {
                residual[level].residual_of(charges, &solution[level]);
            }
        }
        solution[level].smooth(&residual[level]);
    }
}

/// Draws a random number for each point. Sets the ten points with the largest numbers to 1, and those with
/// the ten smallest to -1.
fn place_charges<A: Array<f64>>(cube: &mut Cube<A>) {
    let mut lcg = Lcg::default();
    let (mut largest, mut smallest): (Vec<(f64, usize)>, Vec<(f64, usize)>) = Default::default();
    cube.each(|at| {
        let value = lcg.next_f64();
        keep(&mut largest, (value, at));
        keep(&mut smallest, (-value, at));
    });
    smallest.iter().for_each(|&(_, at)| cube.cells.set(at, -1.0));
    largest.iter().for_each(|&(_, at)| cube.cells.set(at, 1.0));
    cube.wrap();
}

/// Keeps the ten largest entries, in descending order.
fn keep(kept: &mut Vec<(f64, usize)>, entry: (f64, usize)) {
    let place = kept.partition_point(|other| other.0 >= entry.0);
    if place < CHARGES {
        kept.insert(place, entry);
        kept.truncate(CHARGES);
    }
}

/// A cube with a border of one point, which repeats the opposite side.
struct Cube<A> {
    side: usize,
    cells: A,
}

impl<A: Array<f64>> Cube<A> {
    fn new<M: Memory<Array<f64> = A>>(level: u32, memory: &mut M) -> Result<Self, OutOfMemory> {
        Ok(Self { side: (1 << level) + 2, cells: memory.array::<f64>(points(level))? })
    }

    /// Calls `visit` with the index of each inner point; x is the fastest index.
    fn each(&self, mut visit: impl FnMut(usize)) {
        let inner = 1..self.side - 1;
        for z in inner.clone() {
            for y in inner.clone() {
                let row = (z * self.side + y) * self.side;
                inner.clone().for_each(|x| visit(row + x));
            }
        }
    }

    fn clear(&mut self) {
        (0..self.cells.len()).for_each(|at| self.cells.set(at, 0.0));
    }

    /// Copies the opposite sides into the border.
    fn wrap(&mut self) {
        let side = self.side;
        let last = side - 2;
        let step = [1, side, side * side];
        for dim in 0..3 {
            let (u, v) = ([1, 0, 0][dim], [2, 2, 1][dim]);
            for a in 0..side {
                for b in 0..side {
                    let base = a * step[u] + b * step[v];
                    self.cells.set(base, self.cells.get(base + last * step[dim]));
                    self.cells.set(base + (side - 1) * step[dim], self.cells.get(base + step[dim]));
                }
            }
        }
    }

    /// Returns the weighted sum of a point and its 26 neighbors.
    #[inline]
    fn around(&self, at: usize, weights: &Weights) -> f64 {
        let (row, plane) = (self.side, self.side * self.side);
        let get = |at: usize| self.cells.get(at);
        // For each of the nine lines along x: the middle point, and the sum of the two outer points.
        let middle = |at: usize| get(at);
        let outer = |at: usize| get(at - 1) + get(at + 1);
        let faces = [at - row, at + row, at - plane, at + plane];
        let edges = [at - plane - row, at - plane + row, at + plane - row, at + plane + row];
        let mut sum = weights[0] * get(at);
        if weights[1] != 0.0 {
            sum += weights[1] * (outer(at) + faces.map(middle).iter().sum::<f64>());
        }
        sum += weights[2] * (faces.map(outer).iter().sum::<f64>() + edges.map(middle).iter().sum::<f64>());
        if weights[3] != 0.0 {
            sum += weights[3] * edges.map(outer).iter().sum::<f64>();
        }
        sum
    }

    /// Computes `self = right - A solution`.
    fn residual_of(&mut self, right: &Self, solution: &Self) {
        let cells = &mut self.cells;
        solution.each(|at| cells.set(at, right.cells.get(at) - solution.around(at, &LAPLACE)));
        self.wrap();
    }

    /// Computes `self = self - A solution`.
    fn subtract_laplace(&mut self, solution: &Self) {
        let cells = &mut self.cells;
        solution.each(|at| cells.set(at, cells.get(at) - solution.around(at, &LAPLACE)));
        self.wrap();
    }

    /// Computes `self = self + S residual`.
    fn smooth(&mut self, residual: &Self) {
        let cells = &mut self.cells;
        residual.each(|at| cells.set(at, cells.get(at) + residual.around(at, &SMOOTH)));
        self.wrap();
    }

    /// Computes each point from every second point of the finer cube and its neighbors.
    fn restrict(&mut self, fine: &Self) {
        let inner = 1..self.side - 1;
        for z in inner.clone() {
            for y in inner.clone() {
                for x in inner.clone() {
                    let center = (2 * z * fine.side + 2 * y) * fine.side + 2 * x;
                    self.cells.set((z * self.side + y) * self.side + x, fine.around(center, &RESTRICT));
                }
            }
        }
        self.wrap();
    }

    /// Adds the coarser cube, with linear interpolation between its points.
    fn interpolate(&mut self, coarse: &Self) {
        // The coarse points on both sides, which are equal where the points coincide.
        let ends = |at: usize| (at / 2, at.div_ceil(2));
        for z in 0..self.side {
            for y in 0..self.side {
                let ((z0, z1), (y0, y1)) = (ends(z), ends(y));
                let rows = [(z0, y0), (z0, y1), (z1, y0), (z1, y1)]
                    .map(|(z, y)| (z * coarse.side + y) * coarse.side);
                for x in 0..self.side {
                    let (x0, x1) = ends(x);
                    let sum: f64 =
                        rows.iter().map(|row| coarse.cells.get(row + x0) + coarse.cells.get(row + x1)).sum();
                    self.cells.add((z * self.side + y) * self.side + x, 0.125 * sum);
                }
            }
        }
    }

    fn norm(&self) -> f64 {
        let mut sum = 0.0;
        self.each(|at| sum += self.cells.get(at) * self.cells.get(at));
        let inner = (self.side - 2) as f64;
        (sum / (inner * inner * inner)).sqrt()
    }
}
