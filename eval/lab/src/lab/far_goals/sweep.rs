//! Sweeps and random accesses over memory of any kind: far memory, or an ordinary vector on swap.

use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Bytes of a cache line; a sweep accesses each line once.
const LINE: usize = 64;
const WORD: usize = 8;
/// Page size of the random accesses.
const SMALL_PAGE: usize = 4096;
const MEGA: f64 = 1e6;
/// Reads between two clock reads.
const TIMED: u32 = 10_000;

/// Measured speeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speeds {
    /// Speed of a sweep that reads and writes every line, in megabytes per second.
    pub read_write: f64,
    /// Speed of a sweep that reads every line, in megabytes per second.
    pub read_only: f64,
    /// Mean time of a random read and write, hits and misses, in microseconds.
    pub random_us: f64,
}

/// The memory did not keep the written bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sweep found {found:#x} instead of {expected:#x}: a byte came back wrong")]
pub struct WrongSum {
    /// Sum of the first words of all lines, as read.
    pub found: u64,
    /// Expected sum.
    pub expected: u64,
}

/// Fills the memory, half of it with incompressible bytes, and measures sweeps and random accesses. Verifies
/// the contents during the run.
///
/// # Errors
///
/// [`WrongSum`] if a byte is wrong.
pub fn run(memory: &mut [u8], touches: u32, seed: u64) -> Result<Speeds, WrongSum> {
    let mut expected = fill(memory, seed);
    let bytes = memory.len() as f64;
    // The first sweep begins in the state that filling leaves, so only the second one is measured.
    add_one(memory);
    let began = Instant::now();
    add_one(memory);
    let read_write = bytes / MEGA / began.elapsed().as_secs_f64();
    expected = expected.wrapping_add(2 * (memory.len() / LINE) as u64);
    check(memory, expected)?;
    let began = Instant::now();
    check(memory, expected)?;
    let read_only = bytes / MEGA / began.elapsed().as_secs_f64();
    let began = Instant::now();
    touch_at_random(memory, touches, seed);
    let random_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(touches.max(1));
    check(memory, expected.wrapping_add(touches.into()))?;
    Ok(Speeds { read_write, read_only, random_us })
}

/// Fills the memory and returns the sum of the first words of all lines.
fn fill(memory: &mut [u8], seed: u64) -> u64 {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut sum = 0_u64;
    for (number, line) in memory.chunks_exact_mut(LINE).enumerate() {
        let (random, words) = line.split_at_mut(LINE / 2);
        rng.fill(random);
        words.fill(number as u8 | 1);
        sum = sum.wrapping_add(first_word(line));
    }
    sum
}

fn first_word(line: &[u8]) -> u64 {
    line.first_chunk::<WORD>().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn increment(line: &mut [u8]) {
    let next = first_word(line).wrapping_add(1);
    line[..WORD].copy_from_slice(&next.to_ne_bytes());
}

fn add_one(memory: &mut [u8]) {
    memory.chunks_exact_mut(LINE).for_each(increment);
}

fn check(memory: &[u8], expected: u64) -> Result<(), WrongSum> {
    let found = memory.chunks_exact(LINE).map(first_word).fold(0, u64::wrapping_add);
    if found == expected { Ok(()) } else { Err(WrongSum { found, expected }) }
}

/// Increments a word in random pages of 4 KiB.
pub(super) fn touch_at_random(memory: &mut [u8], touches: u32, seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ 1);
    let pages = memory.len() / SMALL_PAGE;
    for _ in 0..touches {
        let at = rng.random_range(0..pages) * SMALL_PAGE;
        increment(&mut memory[at..at + LINE]);
    }
}

/// Returns the nanoseconds of a random read at a position that depends on the previous read. Makes `reads`
/// reads, or fewer if they take longer than `within`.
pub(super) fn read_at_random(memory: &mut [u8], reads: u32, within: Duration, seed: u64) -> f64 {
    fill(memory, seed);
    let lines = (memory.len() / LINE) as u64;
    let began = Instant::now();
    let (mut at, mut done) = (seed, 0);
    while done < reads && (done == 0 || began.elapsed() < within) {
        for _ in 0..TIMED {
            // The next position depends on the value read, so the processor cannot predict it.
            at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(first_word(line(memory, at, lines)) | 1);
        }
        done += TIMED;
    }
    let nanos = began.elapsed().as_nanos() as f64;
    std::hint::black_box(at);
    nanos / f64::from(done.max(1))
}

fn line(memory: &[u8], at: u64, lines: u64) -> &[u8] {
    let start = ((at >> 20) % lines) as usize * LINE;
    &memory[start..start + LINE]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_of_good_memory_passes_and_one_changed_line_is_found() {
        let mut memory = vec![0_u8; 1 << 20];
        let speeds = run(&mut memory, 1000, 7).unwrap();
        assert!(speeds.read_write > 0.0 && speeds.read_only > 0.0 && speeds.random_us > 0.0, "{speeds:?}");
        let sum = memory.chunks_exact(LINE).map(first_word).fold(0, u64::wrapping_add);
        assert_eq!(check(&memory, sum), Ok(()));
        memory[LINE * 5] ^= 1;
        assert!(check(&memory, sum).is_err());
    }
}
