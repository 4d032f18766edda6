//! IS: ten rankings of integer keys by counting, with five verified ranks in each, and a final sort of the
//! keys.
//!
//! Memory: the keys in order, a counter per key value with random accesses, and the sorted keys.

use super::{Class, lcg::Lcg};
use crate::memory::{Array, Memory, OutOfMemory, padded, with_slack};
use crate::verdict::{Check, Verdict};

const ITERATIONS: usize = 10;

struct Size {
    keys: usize,
    max_key: usize,
    /// Index of each verified key, its rank, and the change of the rank with the iteration. The two keys that
    /// each iteration overwrites shift the rank.
    probes: [(usize, usize, fn(usize) -> isize); 5],
}

const fn up<const BY: isize>(iteration: usize) -> isize {
    iteration as isize - BY
}

const fn down<const BY: isize>(iteration: usize) -> isize {
    BY - iteration as isize
}

fn size(class: Class) -> Size {
    match class {
        Class::S => Size {
            keys: 1 << 16,
            max_key: 1 << 11,
            probes: [
                (48_427, 0, up::<0>),
                (17_148, 18, up::<0>),
                (23_627, 346, up::<0>),
                (62_548, 64_917, down::<0>),
                (4_431, 65_463, down::<0>),
            ],
        },
        Class::W => Size {
            keys: 1 << 20,
            max_key: 1 << 16,
            probes: [
                (357_773, 1_249, up::<2>),
                (934_767, 11_698, up::<2>),
                (875_723, 1_039_987, down::<0>),
                (898_999, 1_043_896, down::<0>),
                (404_505, 1_048_018, down::<0>),
            ],
        },
        Class::A => Size {
            keys: 1 << 23,
            max_key: 1 << 19,
            probes: [
                (2_112_377, 104, up::<1>),
                (662_041, 17_523, up::<1>),
                (5_336_171, 123_928, up::<1>),
                (3_642_833, 8_288_932, down::<1>),
                (4_250_760, 8_388_264, down::<1>),
            ],
        },
    }
}

/// Returns the bytes that the program needs.
#[must_use]
pub fn bytes(class: Class) -> usize {
    let Size { keys, max_key, .. } = size(class);
    with_slack(2 * padded::<i32>(keys) + padded::<i32>(max_key))
}

/// Ranks the keys, verifies ranks, sorts the keys, and verifies their order.
///
/// # Errors
///
/// If the memory is too small.
pub fn run<M: Memory>(class: Class, memory: &mut M) -> Result<Verdict, OutOfMemory> {
    let size = size(class);
    let mut keys = memory.array::<i32>(size.keys)?;
    let mut ranks = memory.array::<i32>(size.max_key)?;
    let mut sorted = memory.array::<i32>(size.keys)?;
    fill(&mut keys, size.max_key);
    let mut verdict = Verdict::default();
    for iteration in 1..=ITERATIONS {
        keys.set(iteration, iteration as i32);
        keys.set(iteration + ITERATIONS, (size.max_key - iteration) as i32);
        rank(&keys, &mut ranks);
        for (at, expected, shift) in size.probes {
            let below = keys.get(at) as usize;
            let found = if below == 0 { 0 } else { ranks.get(below - 1) as usize };
            let expected = expected.wrapping_add_signed(shift(iteration));
            verdict.checks.push(Check::exact(
                format!("iteration {iteration}, rank of key {at}"),
                found,
                expected,
            ));
        }
    }
    sort(&keys, &mut ranks, &mut sorted);
    let misplaced = (1..size.keys).filter(|&at| sorted.get(at - 1) > sorted.get(at)).count();
    verdict.checks.push(Check::exact("keys out of order", misplaced, 0));
    Ok(verdict)
}

/// Generates nearly normally distributed keys: each is the mean of four random numbers.
fn fill(keys: &mut impl Array<i32>, max_key: usize) {
    let mut lcg = Lcg::default();
    let quarter = (max_key / 4) as f64;
    for at in 0..keys.len() {
        let sum = lcg.next_f64() + lcg.next_f64() + lcg.next_f64() + lcg.next_f64();
        keys.set(at, (quarter * sum) as i32);
    }
}

/// Counts, for each value, the keys that are at most as large.
fn rank(keys: &impl Array<i32>, ranks: &mut impl Array<i32>) {
    (0..ranks.len()).for_each(|value| ranks.set(value, 0));
    for at in 0..keys.len() {
        ranks.add(keys.get(at) as usize, 1);
    }
    for value in 1..ranks.len() {
        ranks.add(value, ranks.get(value - 1));
    }
}

/// Moves each key to its sorted position; changes the ranks.
fn sort(keys: &impl Array<i32>, ranks: &mut impl Array<i32>, sorted: &mut impl Array<i32>) {
    for at in 0..keys.len() {
        let key = keys.get(at);
        ranks.add(key as usize, -1);
        sorted.set(ranks.get(key as usize) as usize, key);
    }
}
