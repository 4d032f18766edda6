//! SP: the three-dimensional compressible Navier-Stokes equations by approximate factorization, with five
//! scalar pentadiagonal systems per line. Follows NAS Technical Report RNR-94-007 §5. Classes, time steps and
//! reference norms are those of NPB 2.3 and 3.4, which are the same.
//!
//! A time step computes the right side from fluxes in x, y and z (`flux`). For each direction it transforms
//! the right side to variables with independent equations, and solves each line (`lines`). Then it updates
//! the solution.
//!
//! Memory, as in NPB 2.3: solution, right side and forcing with five parts each, fifteen diagonals, and seven
//! fields that are computed from the solution. These are 37 numbers per point. Every step sweeps over all of
//! them about a dozen times, with about two dozen arrays in parallel.

mod exact;
mod flux;
mod lines;

use super::Class;
use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};
use flux::Derived;
use lines::Diagonals;

/// Number of parts: density, momentum in three directions, energy.
const PARTS: usize = 5;

const C1: f64 = 1.4;
const C2: f64 = 0.4;
const C1_C2: f64 = C1 * C2;
const C1_C5: f64 = 1.4 * 1.4;
const C3_C4: f64 = 0.1;

/// Coefficients of the second-order smoothing, by direction.
const SMOOTHING: [f64; 3] = [0.75, 0.75, 1.0];
/// Coefficient of the fourth-order smoothing.
const DISSIPATION: f64 = 0.25;

struct Size {
    side: usize,
    steps: usize,
    step_time: f64,
    /// Expected norms of the residual and of the error, by part.
    expected: [[f64; PARTS]; 2],
}

fn size(class: Class) -> Size {
    let (side, steps, step_time, expected) = match class {
        Class::S => (
            12,
            100,
            0.015,
            [
                [
                    2.747_031_545_133_948e-2,
                    1.036_074_670_528_541_7e-2,
                    1.623_574_506_509_553_2e-2,
                    1.584_055_722_445_561_5e-2,
                    3.484_904_060_936_246e-2,
                ],
                [
                    2.728_925_855_737_722_7e-5,
                    1.036_444_664_083_728_5e-5,
                    1.615_479_828_716_647e-5,
                    1.575_070_499_448_01e-5,
                    3.417_766_618_339_053e-5,
                ],
            ],
        ),
        Class::W => (
            36,
            400,
            0.0015,
            [
                [
                    0.189_325_373_358_4e-2,
                    0.171_707_544_777_5e-3,
                    0.277_815_335_093_6e-3,
                    0.288_747_540_998_4e-3,
                    0.314_361_116_124_2e-2,
                ],
                [
                    0.754_208_859_953_4e-4,
                    0.651_285_225_308_6e-5,
                    0.104_909_228_568_8e-4,
                    0.112_883_867_153_5e-4,
                    0.121_284_563_977_3e-3,
                ],
            ],
        ),
        Class::A => (
            64,
            400,
            0.0015,
            [
                [
                    2.479_982_239_930_019_5,
                    1.127_633_796_436_883_2,
                    1.502_897_788_877_049_1,
                    1.421_781_621_169_518,
                    2.129_211_303_513_828,
                ],
                [
                    1.090_014_029_782_055e-4,
                    3.734_395_176_928_209e-5,
                    5.009_278_540_654_163e-5,
                    4.767_109_393_952_825e-5,
                    1.362_161_339_921_3e-4,
                ],
            ],
        ),
    };
    Size { side, steps, step_time, expected }
}

/// Returns the bytes that a class needs.
#[must_use]
pub fn bytes(class: Class) -> usize {
    let points = size(class).side.pow(3);
    let numbers = [PARTS, PARTS, PARTS, Diagonals::<&mut [f64]>::PER_POINT];
    let fields = Derived::<&mut [f64]>::PER_POINT * padded::<f64>(points);
    with_slack(numbers.iter().map(|per_point| padded::<f64>(per_point * points)).sum::<usize>() + fields)
}

/// Runs the time steps of a class, and compares the norms of residual and error with those of the benchmark.
///
/// # Errors
///
/// If the memory has fewer bytes than [`bytes`].
pub fn run<M: Memory>(class: Class, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let Size { side, steps, step_time, expected } = size(class);
    let grid = Grid { side };
    let mut solver = Solver {
        grid,
        step_time,
        solution: Parts::new(grid, memory)?,
        right: Parts::new(grid, memory)?,
        forcing: Parts::new(grid, memory)?,
        derived: Derived::new(grid, memory)?,
        diagonals: Diagonals::new(grid, memory)?,
    };
    solver.force();
    solver.start();
    (0..steps).for_each(|_| solver.step());
    let error = solver.error();
    solver.right_side();
    let residual = solver.right.norm().map(|norm| norm / step_time);
    let checks = compared("residual", residual, expected[0]).chain(compared("error", error, expected[1]));
    Ok(Verdict { checks: checks.collect() })
}

fn compared(what: &str, found: [f64; PARTS], expected: [f64; PARTS]) -> impl Iterator<Item = Check> {
    (0..PARTS).map(move |part| {
        let name = format!("norm of the {what}, part {}", part + 1);
        Check::near(name, found[part], expected[part], 1e-8)
    })
}

/// A cube of points; x is the fastest index. Points on the outer faces have given values, the others are
/// computed.
#[derive(Clone, Copy)]
struct Grid {
    side: usize,
}

impl Grid {
    fn points(self) -> usize {
        self.side.pow(3)
    }

    /// Returns the distances in memory between neighbors in x, y and z.
    fn strides(self) -> [usize; 3] {
        [1, self.side, self.side * self.side]
    }

    fn index(self, place: [usize; 3]) -> usize {
        let [x, y, z] = place;
        (z * self.side + y) * self.side + x
    }

    /// Returns the coordinates of a point in the unit cube.
    fn coordinates(self, place: [usize; 3]) -> [f64; 3] {
        place.map(|at| at as f64 / (self.side - 1) as f64)
    }

    fn is_border(self, place: [usize; 3]) -> bool {
        place.iter().any(|&at| at == 0 || at == self.side - 1)
    }

    /// Calls `visit` with each computed point and its position, in the order of addresses.
    #[inline]
    fn each_inner(self, mut visit: impl FnMut(usize, [usize; 3])) {
        for z in 1..self.side - 1 {
            for y in 1..self.side - 1 {
                let row = self.index([0, y, z]);
                (1..self.side - 1).for_each(|x| visit(row + x, [x, y, z]));
            }
        }
    }

    /// Calls `visit` as [`each_inner`](Self::each_inner) does, from the last point to the first.
    #[inline]
    fn each_inner_back(self, mut visit: impl FnMut(usize, [usize; 3])) {
        for z in (1..self.side - 1).rev() {
            for y in (1..self.side - 1).rev() {
                let row = self.index([0, y, z]);
                (1..self.side - 1).rev().for_each(|x| visit(row + x, [x, y, z]));
            }
        }
    }

    /// Calls `visit` with each point and its position.
    fn each(self, mut visit: impl FnMut(usize, [usize; 3])) {
        for z in 0..self.side {
            for y in 0..self.side {
                let row = self.index([0, y, z]);
                (0..self.side).for_each(|x| visit(row + x, [x, y, z]));
            }
        }
    }
}

/// Five numbers per point, stored part after part.
struct Parts<A> {
    grid: Grid,
    cells: A,
}

impl<A: Array<f64>> Parts<A> {
    fn new<M: Memory<Array<f64> = A>>(grid: Grid, memory: &mut M) -> Result<Self, OutOfMemory> {
        Ok(Self { grid, cells: memory.array::<f64>(PARTS * grid.points())? })
    }

    #[inline]
    fn get(&self, part: usize, at: usize) -> f64 {
        self.cells.get(part * self.grid.points() + at)
    }

    #[inline]
    fn set(&mut self, part: usize, at: usize, value: f64) {
        self.cells.set(part * self.grid.points() + at, value);
    }

    #[inline]
    fn all(&self, at: usize) -> [f64; PARTS] {
        std::array::from_fn(|part| self.get(part, at))
    }

    #[inline]
    fn set_all(&mut self, at: usize, values: [f64; PARTS]) {
        (0..).zip(values).for_each(|(part, value)| self.set(part, at, value));
    }

    /// Returns the root mean square of each part over the computed points.
    fn norm(&self) -> [f64; PARTS] {
        let mut sums = [0.0; PARTS];
        self.grid.each_inner(|at, _| add_squares(&mut sums, self.all(at)));
        self.grid.root_mean(sums)
    }
}

fn add_squares(sums: &mut [f64; PARTS], values: [f64; PARTS]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * value);
}

impl Grid {
    fn root_mean(self, sums: [f64; PARTS]) -> [f64; PARTS] {
        let inner = (self.side - 2) as f64;
        sums.map(|sum| (sum / (inner * inner * inner)).sqrt())
    }
}

struct Solver<A> {
    grid: Grid,
    step_time: f64,
    solution: Parts<A>,
    right: Parts<A>,
    forcing: Parts<A>,
    derived: Derived<A>,
    diagonals: Diagonals<A>,
}

impl<A: Array<f64>> Solver<A> {
    /// Computes the forcing that keeps the exact solution stationary: the negative of its fluxes.
    fn force(&mut self) {
        let grid = self.grid;
        grid.each(|at, place| self.solution.set_all(at, exact::solution(grid.coordinates(place))));
        self.derived.follow(&self.solution);
        (0..3).for_each(|way| flux::add(way, &self.solution, &self.derived, &mut self.right));
        grid.each_inner(|at, _| self.forcing.set_all(at, self.right.all(at).map(|value| -value)));
    }

    /// Sets the exact solution on the faces, and its interpolation inside.
    fn start(&mut self) {
        let grid = self.grid;
        grid.each(|at, place| {
            let point = grid.coordinates(place);
            let value =
                if grid.is_border(place) { exact::solution(point) } else { exact::interpolation(point) };
            self.solution.set_all(at, value);
        });
    }

    fn step(&mut self) {
        self.right_side();
        lines::to_x(&self.derived, &mut self.right);
        for way in 0..3 {
            self.diagonals.fill(way, self.step_time, &self.derived);
            self.diagonals.solve(way, &mut self.right);
            match way {
                0 => lines::x_to_y(&mut self.right),
                1 => lines::y_to_z(&mut self.right),
                _ => lines::from_z(&self.solution, &self.derived, &mut self.right),
            }
        }
        let (solution, right) = (&mut self.solution, &self.right);
        self.grid.each_inner(|at, _| {
            let (old, change) = (solution.all(at), right.all(at));
            solution.set_all(at, std::array::from_fn(|part| old[part] + change[part]));
        });
    }

    /// Computes the right side: forcing plus fluxes, times the time step.
    fn right_side(&mut self) {
        self.derived.follow(&self.solution);
        let (grid, right) = (self.grid, &mut self.right);
        grid.each(|at, _| right.set_all(at, self.forcing.all(at)));
        (0..3).for_each(|way| flux::add(way, &self.solution, &self.derived, right));
        grid.each_inner(|at, _| right.set_all(at, right.all(at).map(|value| value * self.step_time)));
    }

    /// Returns the root mean square distance of the solution from the exact one.
    fn error(&self) -> [f64; PARTS] {
        let mut sums = [0.0; PARTS];
        self.grid.each(|at, place| {
            let (found, exact) = (self.solution.all(at), exact::solution(self.grid.coordinates(place)));
            add_squares(&mut sums, std::array::from_fn(|part| found[part] - exact[part]));
        });
        self.grid.root_mean(sums)
    }
}
