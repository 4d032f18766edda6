//! The left side of SP: five pentadiagonal systems along each line of points, in variables that make them
//! independent.
//!
//! Three of the five describe transport with the fluid and have the same diagonals. The fourth and fifth
//! describe sound in forward and backward direction. In each direction, lines are eliminated in the order of
//! addresses, so a direction is one forward and one backward sweep over all arrays.

use std::f64::consts::FRAC_1_SQRT_2;

use super::flux::Derived;
use super::{C1_C5, C2, C3_C4, DISSIPATION, Grid, PARTS, Parts, SMOOTHING};
use crate::memory::{Array, Memory, OutOfMemory};

const DIAGONALS: usize = 5;
/// The three systems (fluid, sound forward, sound backward): their parts of the right side, and the sign of
/// the speed of sound.
const SYSTEMS: [(&[usize], f64); 3] = [(&[0, 1, 2], 0.0), (&[3], 1.0), (&[4], -1.0)];

/// The diagonals of the three systems, one diagonal after another.
pub(super) struct Diagonals<A> {
    grid: Grid,
    cells: A,
}

impl<A: Array<f64>> Diagonals<A> {
    pub(super) const PER_POINT: usize = SYSTEMS.len() * DIAGONALS;

    pub(super) fn new<M: Memory<Array<f64> = A>>(grid: Grid, memory: &mut M) -> Result<Self, OutOfMemory> {
        Ok(Self { grid, cells: memory.array::<f64>(Self::PER_POINT * grid.points())? })
    }

    #[inline]
    fn get(&self, system: usize, diagonal: usize, at: usize) -> f64 {
        self.cells.get((system * DIAGONALS + diagonal) * self.grid.points() + at)
    }

    #[inline]
    fn set(&mut self, system: usize, diagonal: usize, at: usize, value: f64) {
        self.cells.set((system * DIAGONALS + diagonal) * self.grid.points() + at, value);
    }

    #[inline]
    fn subtract(&mut self, system: usize, diagonal: usize, at: usize, value: f64) {
        self.set(system, diagonal, at, self.get(system, diagonal, at) - value);
    }

    /// Computes the diagonals of one direction.
    pub(super) fn fill(&mut self, way: usize, step_time: f64, derived: &Derived<A>) {
        let grid = self.grid;
        let stride = grid.strides()[way];
        let cells = (grid.side - 1) as f64;
        let (first, second) = (0.5 * step_time * cells, step_time * cells * cells);
        let fourth = step_time * DISSIPATION;
        // The specification takes the largest of four bounds of the spectrum. If the density is positive,
        // this is the one of heat conduction.
        let smoothing = |at: usize| SMOOTHING[way] + C1_C5 * C3_C4 * derived.volume.get(at);
        let last = grid.side - 2;
        grid.each_inner(|at, place| {
            let (before, after, place) = (at - stride, at + stride, place[way]);
            let velocity = |at: usize| derived.velocity[way].get(at);
            let centre = if place == 1 || place == last { 5.0 } else { 6.0 };
            let inside = |inside: bool, weight: f64| if inside { weight * fourth } else { 0.0 };
            let row = [
                inside(place > 2, 1.0),
                inside(place > 1, -4.0) - first * velocity(before) - second * smoothing(before),
                centre * fourth + 1.0 + 2.0 * second * smoothing(at),
                inside(place < last, -4.0) + first * velocity(after) - second * smoothing(after),
                inside(place + 1 < last, 1.0),
            ];
            (0..).zip(row).for_each(|(diagonal, value)| self.set(0, diagonal, at, value));
        });
        grid.each_inner(|at, _| {
            let sound = [at - stride, at + stride].map(|at| first * derived.speed.get(at));
            for (system, &(_, sign)) in SYSTEMS.iter().enumerate().skip(1) {
                let mut row: [f64; DIAGONALS] = std::array::from_fn(|diagonal| self.get(0, diagonal, at));
                row[1] -= sign * sound[0];
                row[3] += sign * sound[1];
                (0..).zip(row).for_each(|(diagonal, value)| self.set(system, diagonal, at, value));
            }
        });
    }

    /// Replaces the right side by the solution of every line. Boundary values do not change, so a row ends at
    /// the last computed point.
    pub(super) fn solve(&mut self, way: usize, right: &mut Parts<A>) {
        let grid = self.grid;
        let stride = grid.strides()[way];
        let last = grid.side - 2;
        for (system, &(parts, _)) in SYSTEMS.iter().enumerate() {
            grid.each_inner(|at, place| {
                let pivot = 1.0 / self.get(system, 2, at);
                let ahead = [3, 4].map(|diagonal| self.get(system, diagonal, at) * pivot);
                (3..).zip(ahead).for_each(|(diagonal, value)| self.set(system, diagonal, at, value));
                parts.iter().for_each(|&part| right.set(part, at, right.get(part, at) * pivot));
                for distance in (1..=2).take_while(|distance| place[way] + distance <= last) {
                    let there = at + distance * stride;
                    let factor = self.get(system, 2 - distance, there);
                    self.subtract(system, 3 - distance, there, factor * ahead[0]);
                    self.subtract(system, 4 - distance, there, factor * ahead[1]);
                    for &part in parts {
                        right.set(part, there, right.get(part, there) - factor * right.get(part, at));
                    }
                }
            });
        }
        for (system, &(parts, _)) in SYSTEMS.iter().enumerate() {
            grid.each_inner_back(|at, place| {
                for distance in (1..=2).take_while(|distance| place[way] + distance <= last) {
                    let factor = self.get(system, 2 + distance, at);
                    for &part in parts {
                        let there = right.get(part, at + distance * stride);
                        right.set(part, at, right.get(part, at) - factor * there);
                    }
                }
            });
        }
    }
}

/// Transforms the right side to the variables of the x direction.
pub(super) fn to_x<A: Array<f64>>(derived: &Derived<A>, right: &mut Parts<A>) {
    right.grid.each_inner(|at, _| {
        let [r1, r2, r3, r4, r5] = right.all(at);
        let [x, y, z] = [0, 1, 2].map(|way| derived.velocity[way].get(at));
        let (volume, speed) = (derived.volume.get(at), derived.speed.get(at));
        let work = derived.kinetic_by_mass.get(at) * r1 - x * r2 - y * r3 - z * r4 + r5;
        let pressure = C2 / (speed * speed) * work;
        let shear = FRAC_1_SQRT_2 * volume * (x * r1 - r2);
        let sound = FRAC_1_SQRT_2 * volume * speed * pressure;
        let values =
            [r1 - pressure, -volume * (z * r1 - r4), volume * (y * r1 - r3), sound - shear, sound + shear];
        right.set_all(at, values);
    });
}

/// Transforms the right side from the variables of the x direction to those of the y direction.
pub(super) fn x_to_y<A: Array<f64>>(right: &mut Parts<A>) {
    right.grid.each_inner(|at, _| {
        let [r1, r2, r3, r4, r5] = right.all(at);
        let (turned, mean) = (FRAC_1_SQRT_2 * r3, 0.5 * (r4 + r5));
        right.set_all(at, [-r2, r1, FRAC_1_SQRT_2 * (r4 - r5), mean - turned, mean + turned]);
    });
}

/// Transforms the right side from the variables of the y direction to those of the z direction.
pub(super) fn y_to_z<A: Array<f64>>(right: &mut Parts<A>) {
    right.grid.each_inner(|at, _| {
        let [r1, r2, r3, r4, r5] = right.all(at);
        let (turned, mean) = (FRAC_1_SQRT_2 * r1, 0.5 * (r4 + r5));
        right.set_all(at, [FRAC_1_SQRT_2 * (r4 - r5), -r3, r2, mean - turned, mean + turned]);
    });
}

/// Transforms the right side from the variables of the z direction back to the original ones.
pub(super) fn from_z<A: Array<f64>>(solution: &Parts<A>, derived: &Derived<A>, right: &mut Parts<A>) {
    right.grid.each_inner(|at, _| {
        let [r1, r2, r3, r4, r5] = right.all(at);
        let [x, y, z] = [0, 1, 2].map(|way| derived.velocity[way].get(at));
        let (density, speed) = (solution.get(0, at), derived.speed.get(at));
        let pressure = FRAC_1_SQRT_2 * density / speed * (r4 + r5);
        let mass = r3 + pressure;
        let push = FRAC_1_SQRT_2 * density * (r4 - r5);
        let energy = density * (y * r1 - x * r2)
            + derived.kinetic_by_mass.get(at) * mass
            + speed * speed / C2 * pressure
            + z * push;
        let values: [f64; PARTS] =
            [mass, x * mass - density * r2, y * mass + density * r1, z * mass + push, energy];
        right.set_all(at, values);
    });
}
