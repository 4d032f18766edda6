//! The right side of SP: flux differences along one direction, with second- and fourth-order smoothing.

use super::{C1, C1_C2, C1_C5, C2, C3_C4, DISSIPATION, Grid, PARTS, Parts, SMOOTHING};
use crate::memory::{Array, Memory, OutOfMemory};

/// Fields that are computed from the solution at each point.
pub(super) struct Derived<A> {
    grid: Grid,
    /// Reciprocal of the density.
    pub(super) volume: A,
    /// Velocity in x, y and z.
    pub(super) velocity: [A; 3],
    /// Kinetic energy per volume.
    kinetic: A,
    /// Kinetic energy per mass.
    pub(super) kinetic_by_mass: A,
    /// Speed of sound.
    pub(super) speed: A,
}

impl<A: Array<f64>> Derived<A> {
    pub(super) const PER_POINT: usize = 7;

    pub(super) fn new<M: Memory<Array<f64> = A>>(grid: Grid, memory: &mut M) -> Result<Self, OutOfMemory> {
        let mut field = || memory.array::<f64>(grid.points());
        Ok(Self {
            grid,
            volume: field()?,
            velocity: [field()?, field()?, field()?],
            kinetic: field()?,
            kinetic_by_mass: field()?,
            speed: field()?,
        })
    }

    /// Computes all fields.
    pub(super) fn follow(&mut self, solution: &Parts<A>) {
        self.grid.each(|at, _| {
            let [density, x, y, z, energy] = solution.all(at);
            let volume = 1.0 / density;
            self.volume.set(at, volume);
            self.velocity.iter_mut().zip([x, y, z]).for_each(|(field, momentum)| {
                field.set(at, momentum * volume);
            });
            let kinetic = 0.5 * (x * x + y * y + z * z) * volume;
            self.kinetic.set(at, kinetic);
            self.kinetic_by_mass.set(at, kinetic * volume);
            self.speed.set(at, (C1_C2 * volume * (energy - kinetic)).sqrt());
        });
    }
}

/// Adds the flux along one direction (0 to 2 for x to z) to the right side of the computed points.
pub(super) fn add<A: Array<f64>>(
    way: usize,
    solution: &Parts<A>,
    derived: &Derived<A>,
    right: &mut Parts<A>,
) {
    let grid = solution.grid;
    let step = grid.strides()[way];
    let cells = (grid.side - 1) as f64;
    // Factors of first differences, of second differences, and of the viscous terms.
    let (first, second, viscous) = (0.5 * cells, cells * cells, C3_C4 * cells * cells);
    let smoothing = SMOOTHING[way] * second;
    let along = 1 + way;
    grid.each_inner(|at, place| {
        let (before, after) = (at - step, at + step);
        let u = [before, at, after].map(|at| solution.all(at));
        let v = [before, at, after].map(|at| derived.velocity[way].get(at));
        let kinetic = [before, after].map(|at| derived.kinetic.get(at));
        let mut sum = right.all(at);
        for part in 0..PARTS {
            sum[part] += smoothing * curvature(u.map(|parts| parts[part]));
        }
        sum[0] -= first * (u[2][along] - u[0][along]);
        for part in 1..=3 {
            let speeds = [before, at, after].map(|at| derived.velocity[part - 1].get(at));
            let mut flow = u[2][part] * v[2] - u[0][part] * v[0];
            let mut drag = viscous * curvature(speeds);
            if part == along {
                flow += C2 * (u[2][4] - kinetic[1] - u[0][4] + kinetic[0]);
                drag *= 4.0 / 3.0;
            }
            sum[part] += drag - first * flow;
        }
        let by_mass = [before, at, after].map(|at| derived.kinetic_by_mass.get(at));
        let volume = [before, at, after].map(|at| derived.volume.get(at));
        let energy: [f64; 3] = std::array::from_fn(|place| u[place][4] * volume[place]);
        sum[4] += viscous
            * ((1.0 - C1_C5) * curvature(by_mass)
                + curvature(v.map(|v| v * v)) / 6.0
                + C1_C5 * curvature(energy));
        sum[4] -= first * ((C1 * u[2][4] - C2 * kinetic[1]) * v[2] - (C1 * u[0][4] - C2 * kinetic[0]) * v[0]);
        for (part, sum) in sum.iter_mut().enumerate() {
            *sum -= DISSIPATION * fourth(solution, part, at, place[way], step);
        }
        right.set_all(at, sum);
    });
}

fn curvature([before, at, after]: [f64; 3]) -> f64 {
    after - 2.0 * at + before
}

/// Returns the fourth difference, without the points beyond the computed ones.
fn fourth<A: Array<f64>>(solution: &Parts<A>, part: usize, at: usize, place: usize, step: usize) -> f64 {
    let last = solution.grid.side - 2;
    let centre = if place == 1 || place == last { 5.0 } else { 6.0 };
    let mut sum = centre * solution.get(part, at);
    for (distance, weight) in [(1, -4.0), (2, 1.0)] {
        if place > distance {
            sum += weight * solution.get(part, at - distance * step);
        }
        if place + distance <= last {
            sum += weight * solution.get(part, at + distance * step);
        }
    }
    sum
}
