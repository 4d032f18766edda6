//! CG: the smallest eigenvalue of a random sparse matrix by inverse power iteration; each iteration solves a
//! system by 25 steps of the conjugate gradient method.
//!
//! Memory: each step sweeps over the matrix (values and columns) and four vectors, and reads one vector at
//! random positions.

use super::{Class, lcg::Lcg};
use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};

const CG_STEPS: usize = 25;
const RCOND: f64 = 0.1;

struct Size {
    order: usize,
    /// Number of random elements in each generating vector, without the diagonal element.
    nonzero: usize,
    iterations: usize,
    shift: f64,
    zeta: f64,
}

impl Size {
    /// Returns the number of elements in a generating vector.
    fn elements(&self) -> usize {
        self.nonzero + 1
    }

    /// Returns the largest number of elements of the matrix: each generating vector adds its outer product.
    fn products(&self) -> usize {
        self.order * self.elements() * self.elements()
    }
}

fn size(class: Class) -> Size {
    let (order, nonzero, shift, zeta) = match class {
        Class::S => (1_400, 7, 10.0, 8.597_177_507_864_8),
        Class::W => (7_000, 8, 12.0, 10.362_595_087_124),
        Class::A => (14_000, 11, 20.0, 17.130_235_054_029),
    };
    Size { order, nonzero, iterations: 15, shift, zeta }
}

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(class: Class) -> usize {
    let size = size(class);
    let (order, vectors, products) = (size.order, size.order * size.elements(), size.products());
    let generating = padded::<f64>(vectors) + 2 * padded::<u32>(vectors) + padded::<u32>(order + 1);
    let matrix = padded::<f64>(products) + padded::<u32>(products) + padded::<u32>(order + 1);
    with_slack(generating + matrix + 5 * padded::<f64>(order))
}

/// Creates the matrix, runs the iterations, and verifies the estimate of the eigenvalue.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(class: Class, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let size = size(class);
    let matrix = Matrix::random(&size, memory)?;
    let mut vectors = Vectors::new(size.order, memory)?;
    (0..size.order).for_each(|at| vectors.x.set(at, 1.0));
    let mut zeta = 0.0;
    for _ in 0..size.iterations {
        vectors.solve(&matrix);
        let Vectors { x, z, .. } = &mut vectors;
        zeta = size.shift + 1.0 / dot(x, z);
        let scale = 1.0 / dot(z, z).sqrt();
        (0..size.order).for_each(|at| x.set(at, scale * z.get(at)));
    }
    Ok(Verdict { checks: vec![Check::near("zeta", zeta, size.zeta, 1e-10)] })
}

/// A sparse matrix, stored row by row.
struct Matrix<M: Memory> {
    values: M::Array<f64>,
    columns: M::Array<u32>,
    starts: M::Array<u32>,
}

impl<M: Memory> Matrix<M> {
    /// Creates the weighted sum of outer products of random sparse vectors, `sum of w^i v_i v_i^T`, with a
    /// shifted diagonal.
    fn random(size: &Size, memory: &mut M) -> Result<Self, OutOfMemory> {
        let generators = Generators::new(size, memory)?;
        let mut values = memory.array::<f64>(size.products())?;
        let mut columns = memory.array::<u32>(size.products())?;
        let mut starts = memory.array::<u32>(size.order + 1)?;
        // Each row is accumulated in one dense row.
        let (mut row, mut used) = (vec![0.0; size.order], Vec::new());
        let ratio = RCOND.powf(1.0 / size.order as f64);
        let mut end = 0;
        for at in 0..size.order {
            for of_row in generators.in_row(at) {
                let vector = generators.members.get(of_row) as usize / size.elements();
                let weight = ratio.powi(vector as i32)
                    * generators.values.get(generators.members.get(of_row) as usize);
                for element in vector * size.elements()..(vector + 1) * size.elements() {
                    let column = generators.rows.get(element);
                    if column == u32::MAX {
                        continue;
                    }
                    if !used.contains(&column) {
                        used.push(column);
                    }
                    row[column as usize] += weight * generators.values.get(element);
                }
            }
            row[at] += RCOND - size.shift;
            for &column in &used {
                values.set(end, std::mem::take(&mut row[column as usize]));
                columns.set(end, column);
                end += 1;
            }
            used.clear();
            starts.set(at + 1, end as u32);
        }
        Ok(Self { values, columns, starts })
    }

    /// Computes `q = A p`.
    fn times(&self, p: &M::Array<f64>, q: &mut M::Array<f64>) {
        for row in 0..p.len() {
            let elements = self.starts.get(row) as usize..self.starts.get(row + 1) as usize;
            let sum = elements.map(|at| self.values.get(at) * p.get(self.columns.get(at) as usize)).sum();
            q.set(row, sum);
        }
    }
}

/// The random sparse vectors, with their elements in each row of the matrix.
struct Generators<M: Memory> {
    values: M::Array<f64>,
    /// Row of each element; `u32::MAX` if the vector has one element less.
    rows: M::Array<u32>,
    /// Indices of the elements, sorted by row.
    members: M::Array<u32>,
    starts: M::Array<u32>,
}

impl<M: Memory> Generators<M> {
    fn new(size: &Size, memory: &mut M) -> Result<Self, OutOfMemory> {
        let elements = size.order * size.elements();
        let mut values = memory.array::<f64>(elements)?;
        let mut rows = memory.array::<u32>(elements)?;
        let mut members = memory.array::<u32>(elements)?;
        let mut starts = memory.array::<u32>(size.order + 1)?;
        let mut lcg = Lcg::default();
        lcg.next_f64(); // the benchmark discards its first number
        for vector in 0..size.order {
            let drawn = draw(&mut lcg, size, vector as u32);
            for element in 0..size.elements() {
                let (row, value) = drawn.get(element).copied().unwrap_or((u32::MAX, 0.0));
                rows.set(vector * size.elements() + element, row);
                values.set(vector * size.elements() + element, value);
            }
        }
        by_row(&rows, &mut starts, &mut members);
        Ok(Self { values, rows, members, starts })
    }

    fn in_row(&self, row: usize) -> std::ops::Range<usize> {
        self.starts.get(row) as usize..self.starts.get(row + 1) as usize
    }
}

/// Draws elements at different random positions, and sets the diagonal element to 0.5.
fn draw(lcg: &mut Lcg, size: &Size, diagonal: u32) -> Vec<(u32, f64)> {
    let range = size.order.next_power_of_two() as f64;
    let mut drawn: Vec<(u32, f64)> = Vec::with_capacity(size.elements());
    while drawn.len() < size.nonzero {
        let (value, place) = (lcg.next_f64(), (range * lcg.next_f64()) as u32);
        if (place as usize) < size.order && drawn.iter().all(|&(row, _)| row != place) {
            drawn.push((place, value));
        }
    }
    match drawn.iter_mut().find(|(row, _)| *row == diagonal) {
        Some((_, value)) => *value = 0.5,
        None => drawn.push((diagonal, 0.5)),
    }
    drawn
}

/// Sorts the elements by row with a counting sort; `starts` receives the start of each row.
fn by_row(rows: &impl Array<u32>, starts: &mut impl Array<u32>, members: &mut impl Array<u32>) {
    let present = |element: &usize| rows.get(*element) != u32::MAX;
    for element in (0..rows.len()).filter(present) {
        starts.add(rows.get(element) as usize + 1, 1);
    }
    for row in 1..starts.len() {
        starts.add(row, starts.get(row - 1));
    }
    let mut next: Vec<u32> = (0..starts.len()).map(|row| starts.get(row)).collect();
    for element in (0..rows.len()).filter(present) {
        let place = &mut next[rows.get(element) as usize];
        members.set(*place as usize, element as u32);
        *place += 1;
    }
}

/// The vectors of the iteration, with the names of the specification.
struct Vectors<M: Memory> {
    x: M::Array<f64>,
    z: M::Array<f64>,
    p: M::Array<f64>,
    q: M::Array<f64>,
    r: M::Array<f64>,
}

impl<M: Memory> Vectors<M> {
    fn new(order: usize, memory: &mut M) -> Result<Self, OutOfMemory> {
        Ok(Self {
            x: memory.array(order)?,
            z: memory.array(order)?,
            p: memory.array(order)?,
            q: memory.array(order)?,
            r: memory.array(order)?,
        })
    }

    /// Solves `A z = x` approximately.
    fn solve(&mut self, matrix: &Matrix<M>) {
        let Self { x, z, p, q, r } = self;
        for at in 0..x.len() {
            z.set(at, 0.0);
            r.set(at, x.get(at));
            p.set(at, x.get(at));
        }
        let mut rho = dot(r, r);
        for _ in 0..CG_STEPS {
            matrix.times(p, q);
            let alpha = rho / dot(p, q);
            for at in 0..x.len() {
                z.add(at, alpha * p.get(at));
                r.add(at, -alpha * q.get(at));
            }
            let before = std::mem::replace(&mut rho, dot(r, r));
            let beta = rho / before;
            for at in 0..x.len() {
                p.set(at, r.get(at) + beta * p.get(at));
            }
        }
    }
}

fn dot(a: &impl Array<f64>, b: &impl Array<f64>) -> f64 {
    (0..a.len()).map(|at| a.get(at) * b.get(at)).sum()
}
