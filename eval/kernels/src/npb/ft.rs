//! FT: a partial differential equation in three dimensions by the Fourier transform: one forward transform,
//! and one inverse transform for each time step.
//!
//! Memory: three grids of complex numbers or of their factors. Each transform sweeps along all three
//! dimensions; two of the sweeps are strided.

use std::f64::consts::PI;

use super::{Class, lcg::Lcg};
use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};

const ALPHA: f64 = 1e-6;
const SUMMED: usize = 1024;

type Complex = (f64, f64);

fn size(class: Class) -> ([usize; 3], [Complex; 6]) {
    match class {
        Class::S => (
            [64, 64, 64],
            [
                (5.546087004964e+02, 4.845363331978e+02),
                (5.546385409189e+02, 4.865304269511e+02),
                (5.546148406171e+02, 4.883910722336e+02),
                (5.545423607415e+02, 4.901273169046e+02),
                (5.544255039624e+02, 4.917475857993e+02),
                (5.542683411902e+02, 4.932597244941e+02),
            ],
        ),
        Class::W => (
            [128, 128, 32],
            [
                (5.673612178944e+02, 5.293246849175e+02),
                (5.631436885271e+02, 5.282149986629e+02),
                (5.594024089970e+02, 5.270996558037e+02),
                (5.560698047020e+02, 5.260027904925e+02),
                (5.530898991250e+02, 5.249400845633e+02),
                (5.504159734538e+02, 5.239212247086e+02),
            ],
        ),
        Class::A => (
            [256, 256, 128],
            [
                (5.046735008193e+02, 5.114047905510e+02),
                (5.059412319734e+02, 5.098809666433e+02),
                (5.069376896287e+02, 5.098144042213e+02),
                (5.077892868474e+02, 5.101336130759e+02),
                (5.085233095391e+02, 5.104914655194e+02),
                (5.091487099959e+02, 5.107917842803e+02),
            ],
        ),
    }
}

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(class: Class) -> usize {
    let points: usize = size(class).0.iter().product();
    with_slack(2 * padded::<f64>(2 * points) + padded::<f64>(points))
}

/// Runs the transforms and time steps, and verifies a sum of 1,024 points after each step.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(class: Class, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let (dims, sums) = size(class);
    let points: usize = dims.iter().product();
    let mut spectrum = Grid { dims, cells: memory.array::<f64>(2 * points)? };
    let mut field = Grid { dims, cells: memory.array::<f64>(2 * points)? };
    let mut decay = memory.array::<f64>(points)?;
    fill_decay(dims, &mut decay);
    let mut lcg = Lcg::default();
    (0..2 * points).for_each(|at| spectrum.cells.set(at, lcg.next_f64()));
    spectrum.transform(1.0);
    let mut verdict = Verdict::default();
    for (step, (re, im)) in (1..).zip(sums) {
        for at in 0..points {
            let (mut value, factor) = (spectrum.get(at), decay.get(at));
            value = (value.0 * factor, value.1 * factor);
            spectrum.set(at, value);
            field.set(at, value);
        }
        field.transform(-1.0);
        let found = field.sum();
        verdict.checks.push(Check::near(format!("step {step}, real part"), found.0, re, 1e-12));
        verdict.checks.push(Check::near(format!("step {step}, imaginary part"), found.1, im, 1e-12));
    }
    Ok(verdict)
}

/// Computes the factors by which a time step reduces each frequency.
fn fill_decay(dims: [usize; 3], decay: &mut impl Array<f64>) {
    let square = |at: usize, of: usize| {
        let folded = if at < of / 2 { at as f64 } else { at as f64 - of as f64 };
        folded * folded
    };
    let mut at = 0;
    for z in 0..dims[2] {
        for y in 0..dims[1] {
            for x in 0..dims[0] {
                let frequency = square(x, dims[0]) + square(y, dims[1]) + square(z, dims[2]);
                decay.set(at, (-4.0 * ALPHA * PI * PI * frequency).exp());
                at += 1;
            }
        }
    }
}

/// A grid of complex numbers; x is the fastest index.
struct Grid<A> {
    dims: [usize; 3],
    cells: A,
}

impl<A: Array<f64>> Grid<A> {
    fn get(&self, at: usize) -> Complex {
        (self.cells.get(2 * at), self.cells.get(2 * at + 1))
    }

    fn set(&mut self, at: usize, value: Complex) {
        self.cells.set(2 * at, value.0);
        self.cells.set(2 * at + 1, value.1);
    }

    /// Transforms all three dimensions, one block of neighboring lines at a time.
    fn transform(&mut self, sign: f64) {
        let [nx, ny, nz] = self.dims;
        let steps = [1, nx, nx * ny];
        for dim in 0..3 {
            let line = Line::new(self.dims[dim], sign);
            let others = [[ny, nz], [nx, nz], [nx, ny]][dim];
            let strides = [[nx, nx * ny], [1, nx * ny], [1, nx]][dim];
            for outer in 0..others[1] {
                for inner in (0..others[0]).step_by(BLOCK) {
                    let block = BLOCK.min(others[0] - inner);
                    let start = outer * strides[1] + inner * strides[0];
                    self.transform_block(&line, start, block, strides[0], steps[dim]);
                }
            }
        }
    }

    /// Transforms lines with starts at a distance of `apart`, and with points at a distance of `step`.
    fn transform_block(&mut self, line: &Line, start: usize, lines: usize, apart: usize, step: usize) {
        let len = line.roots.len();
        let mut block = vec![(0.0, 0.0); lines * len];
        for point in 0..len {
            for nth in 0..lines {
                block[nth * len + point] = self.get(start + nth * apart + point * step);
            }
        }
        block.chunks_exact_mut(len).for_each(|points| line.transform(points));
        for point in 0..len {
            for nth in 0..lines {
                self.set(start + nth * apart + point * step, block[nth * len + point]);
            }
        }
    }

    /// Returns the benchmark's sum over distant points, divided by the number of grid points.
    fn sum(&self) -> Complex {
        let [nx, ny, nz] = self.dims;
        let mut sum = (0.0, 0.0);
        for j in 1..=SUMMED {
            let value = self.get((5 * j % nz * ny + 3 * j % ny) * nx + j % nx);
            sum = (sum.0 + value.0, sum.1 + value.1);
        }
        let points = (nx * ny * nz) as f64;
        (sum.0 / points, sum.1 / points)
    }
}

/// Number of lines that are transformed together, so that strided sweeps use whole cache lines.
const BLOCK: usize = 16;

/// The transform of one length and direction: radix 2, in place.
struct Line {
    roots: Vec<Complex>,
}

impl Line {
    fn new(len: usize, sign: f64) -> Self {
        let root = |at: usize| (sign * 2.0 * PI * at as f64 / len as f64).sin_cos();
        Self { roots: (0..len).map(root).map(|(sin, cos)| (cos, sin)).collect() }
    }

    fn transform(&self, points: &mut [Complex]) {
        let bits = points.len().trailing_zeros();
        for at in 0..points.len() {
            let reversed = at.reverse_bits() >> (usize::BITS - bits);
            if at < reversed {
                points.swap(at, reversed);
            }
        }
        let mut half = 1;
        while half < points.len() {
            let stride = points.len() / (2 * half);
            for pair in points.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (at, (a, b)) in low.iter_mut().zip(high).enumerate() {
                    let root = self.roots[at * stride];
                    let turned = (b.0 * root.0 - b.1 * root.1, b.0 * root.1 + b.1 * root.0);
                    *b = (a.0 - turned.0, a.1 - turned.1);
                    *a = (a.0 + turned.0, a.1 + turned.1);
                }
            }
            half *= 2;
        }
    }
}
