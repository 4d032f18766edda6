//! The exact solution of SP, and its interpolation from the faces of the cube.

use super::PARTS;

/// Coefficients of each part: the constant, then those of x to x⁴, y to y⁴, z to z⁴ (report RNR-94-007, table
/// 5.1).
const COEFFICIENTS: [(f64, [[f64; 4]; 3]); PARTS] = [
    (2.0, [[0.0, 5.0, 0.02, 0.5], [0.0, 3.0, 0.01, 0.4], [4.0, 0.5, 0.03, 0.3]]),
    (1.0, [[0.0, 1.0, 0.01, 0.4], [0.0, 2.0, 0.03, 0.3], [0.0, 3.0, 0.02, 0.5]]),
    (2.0, [[2.0, 0.0, 0.04, 0.3], [0.0, 2.0, 0.03, 0.5], [0.0, 3.0, 0.05, 0.4]]),
    (2.0, [[2.0, 0.0, 0.03, 0.2], [0.0, 2.0, 0.05, 0.1], [0.0, 3.0, 0.04, 0.3]]),
    (5.0, [[4.0, 0.1, 0.05, 0.1], [3.0, 0.4, 0.04, 0.3], [2.0, 0.3, 0.03, 0.2]]),
];

/// Returns the exact solution at a point of the unit cube.
pub(super) fn solution(point: [f64; 3]) -> [f64; PARTS] {
    COEFFICIENTS.map(|(constant, ways)| {
        let polynomial =
            |(at, powers): (f64, [f64; 4])| powers.iter().rev().fold(0.0, |sum, c| at * (c + sum));
        constant + point.into_iter().zip(ways).map(polynomial).sum::<f64>()
    })
}

/// Interpolates the solution between the faces of the cube: linearly between each pair of opposite faces. The
/// three results *x*, *y*, *z* are blended to 1 - (1 - *x*)(1 - *y*)(1 - *z*).
pub(super) fn interpolation(point: [f64; 3]) -> [f64; PARTS] {
    let between: [[f64; PARTS]; 3] = std::array::from_fn(|way| {
        let face = |at: f64| {
            let mut on_face = point;
            on_face[way] = at;
            solution(on_face)
        };
        let (low, high) = (face(0.0), face(1.0));
        std::array::from_fn(|part| point[way] * high[part] + (1.0 - point[way]) * low[part])
    });
    let [x, y, z] = between;
    std::array::from_fn(|part| {
        let (x, y, z) = (x[part], y[part], z[part]);
        x + y + z - x * y - x * z - y * z + x * y * z
    })
}
