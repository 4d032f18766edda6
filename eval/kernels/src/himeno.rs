//! The Himeno benchmark: Jacobi's method for the pressure of an incompressible flow, with 19 points and
//! fourteen arrays of single precision.
//!
//! As in the benchmark, the computed grid is smaller than the arrays by one in each dimension; the last
//! planes of the arrays stay zero.
//!
//! Memory: every iteration sweeps over all arrays in step, and then copies the new pressure back. The
//! benchmark prints the sum of squared changes (*gosa*). It publishes neither reference values nor a number
//! of iterations, because it measures a rate. Here the number of iterations is fixed, and gosa is compared
//! with its value in double precision for the same sweeps.

use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};

/// Grid sizes of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grid {
    /// 33 × 33 × 65.
    Xs,
    /// 65 × 65 × 129.
    S,
    /// 129 × 129 × 257.
    M,
    /// 257 × 257 × 513.
    L,
}

impl Grid {
    /// All grid sizes.
    pub const ALL: [Self; 4] = [Self::Xs, Self::S, Self::M, Self::L];

    fn dims(self) -> [usize; 3] {
        match self {
            Self::Xs => [33, 33, 65],
            Self::S => [65, 65, 129],
            Self::M => [129, 129, 257],
            Self::L => [257, 257, 513],
        }
    }

    /// Returns the dimensions of the computed part of the arrays.
    fn used(self) -> [usize; 3] {
        self.dims().map(|len| len - 1)
    }

    /// Returns gosa of the last iteration in double precision, in single precision, and their largest
    /// relative difference.
    fn gosa(self) -> (f64, f64, f64) {
        let at = self as usize;
        (GOSA[at], GOSA_IN_SINGLE[at], TOLERANCE[at])
    }
}

/// Gosa in double precision, computed by a test of this module.
const GOSA: [f64; 4] = [
    5.187_144_757_044_468e-3,
    3.023_639_454_396_909e-3,
    1.622_892_279_446_727_8e-3,
    8.396_218_066_157_139e-4,
];

/// Gosa in single precision. The results are the same on every machine, because no operation is reordered. A
/// page with wrong content changes them.
const GOSA_IN_SINGLE: [f64; 4] =
    [0.005187429549353473, 0.0030245624976240754, 0.0016245385251712177, 0.0008426587361653251];

/// Tolerance for rounding. On a finer grid, changes are smaller relative to the pressure, so rounding affects
/// them more.
const TOLERANCE: [f64; 4] = [2e-4, 1e-3, 3e-3, 2e-2];

const ITERATIONS: usize = 12;
const OMEGA: f32 = 0.8;
const ARRAYS: usize = 14;

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(grid: Grid) -> usize {
    with_slack(ARRAYS * padded::<f32>(grid.dims().iter().product()))
}

/// Runs the iterations, and verifies gosa.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(grid: Grid, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let mut arrays = Arrays::new(grid, memory)?;
    arrays.fill();
    let mut gosa = 0.0;
    for _ in 0..ITERATIONS {
        gosa = arrays.sweep();
        arrays.copy_back();
    }
    let (in_double, in_single, tolerance) = grid.gosa();
    Ok(Verdict {
        checks: vec![
            Check::near("gosa against double precision", gosa, in_double, tolerance),
            Check::near("gosa", gosa, in_single, 1e-12),
        ],
    })
}

/// The arrays of the benchmark, with their original names.
struct Arrays<M: Memory> {
    dims: [usize; 3],
    used: [usize; 3],
    p: M::Array<f32>,
    a: [M::Array<f32>; 4],
    b: [M::Array<f32>; 3],
    c: [M::Array<f32>; 3],
    bnd: M::Array<f32>,
    wrk1: M::Array<f32>,
    wrk2: M::Array<f32>,
}

impl<M: Memory> Arrays<M> {
    fn new(grid: Grid, memory: &mut M) -> Result<Self, OutOfMemory> {
        let len = grid.dims().iter().product();
        let mut array = || memory.array::<f32>(len);
        Ok(Self {
            dims: grid.dims(),
            used: grid.used(),
            p: array()?,
            a: [array()?, array()?, array()?, array()?],
            b: [array()?, array()?, array()?],
            c: [array()?, array()?, array()?],
            bnd: array()?,
            wrk1: array()?,
            wrk2: array()?,
        })
    }

    /// Calls `visit` with the plane and the indices of each computed row, without a border of `border`
    /// points.
    fn rows(
        dims: [usize; 3],
        used: [usize; 3],
        border: usize,
        mut visit: impl FnMut(usize, std::ops::Range<usize>),
    ) {
        for i in border..used[0] - border {
            for j in border..used[1] - border {
                let row = (i * dims[1] + j) * dims[2];
                visit(i, row + border..row + used[2] - border);
            }
        }
    }

    fn fill(&mut self) {
        let Self { dims, used, p, a, b, c, bnd, wrk1, wrk2 } = self;
        let last = (used[0] - 1) as f32;
        Self::rows(*dims, *used, 0, |i, row| {
            let value = (i * i) as f32 / (last * last);
            for at in row {
                p.set(at, value);
                for (a, value) in a.iter_mut().zip([1.0, 1.0, 1.0, 1.0 / 6.0]) {
                    a.set(at, value);
                }
                b.iter_mut().for_each(|b| b.set(at, 0.0));
                c.iter_mut().for_each(|c| c.set(at, 1.0));
                bnd.set(at, 1.0);
                wrk1.set(at, 0.0);
                wrk2.set(at, 0.0);
            }
        });
    }

    /// Computes one iteration into `wrk2`. Returns the sum of squared changes.
    fn sweep(&mut self) -> f64 {
        let mut gosa = 0.0;
        Self::rows(self.dims, self.used, 1, |_, row| {
            for at in row {
                let change = self.change(at);
                gosa += f64::from(change * change);
                self.wrk2.set(at, self.p.get(at) + OMEGA * change);
            }
        });
        gosa
    }

    #[inline]
    fn change(&self, at: usize) -> f32 {
        let (plane, row) = (self.dims[1] * self.dims[2], self.dims[2]);
        let Self { p, a, b, c, .. } = self;
        // Signed sum of the four corners in the plane of two dimensions.
        let cross = |u: usize, v: usize| {
            p.get(at + u + v) - p.get(at - u + v) - p.get(at + u - v) + p.get(at - u - v)
        };
        let sum = a[0].get(at) * p.get(at + plane)
            + a[1].get(at) * p.get(at + row)
            + a[2].get(at) * p.get(at + 1)
            + b[0].get(at) * cross(plane, row)
            + b[1].get(at) * cross(row, 1)
            + b[2].get(at) * cross(plane, 1)
            + c[0].get(at) * p.get(at - plane)
            + c[1].get(at) * p.get(at - row)
            + c[2].get(at) * p.get(at - 1)
            + self.wrk1.get(at);
        (sum * a[3].get(at) - p.get(at)) * self.bnd.get(at)
    }

    fn copy_back(&mut self) {
        let Self { dims, used, p, wrk2, .. } = self;
        Self::rows(*dims, *used, 1, |_, row| row.for_each(|at| p.set(at, wrk2.get(at))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the same sweeps in double precision, with the coefficients of `fill`: six neighbors, one
    /// sixth each.
    fn gosa_in_double(grid: Grid) -> f64 {
        let [ni, nj, nk] = grid.used();
        let last = (ni - 1) as f64;
        let mut p: Vec<f64> = (0..ni * nj * nk).map(|at| ((at / (nj * nk)) as f64 / last).powi(2)).collect();
        let mut gosa = 0.0;
        for _ in 0..ITERATIONS {
            let before = p.clone();
            gosa = 0.0;
            for i in 1..ni - 1 {
                for j in 1..nj - 1 {
                    for at in (i * nj + j) * nk + 1..(i * nj + j + 1) * nk - 1 {
                        let steps = [nj * nk, nk, 1];
                        let sum: f64 = steps.iter().map(|step| before[at + step] + before[at - step]).sum();
                        let change = sum / 6.0 - before[at];
                        gosa += change * change;
                        p[at] += 0.8 * change;
                    }
                }
            }
        }
        gosa
    }

    #[test]
    fn the_table_of_gosa_is_what_double_precision_gives() {
        for grid in [Grid::Xs, Grid::S] {
            let gosa = gosa_in_double(grid);
            assert!((gosa / grid.gosa().0 - 1.0).abs() < 1e-12, "{grid:?}: {gosa:e}");
        }
    }

    #[test]
    #[ignore = "takes seconds with optimisation, minutes without"]
    fn the_table_of_gosa_is_right_for_the_large_grids_too() {
        for grid in [Grid::M, Grid::L] {
            let gosa = gosa_in_double(grid);
            assert!((gosa / grid.gosa().0 - 1.0).abs() < 1e-12, "{grid:?}: {gosa:e}");
        }
    }
}
