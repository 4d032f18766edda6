//! Estimates the number of recent loads of each page: a count-min sketch of four-bit counts (the idea of
//! W-TinyLFU, Einziger et al. 2017, without cost for hits).
//!
//! The sketch is written when a page is evicted, and read when a page in probation is a candidate, so a hit
//! does not access it. It has 32 counts per frame, which are 16 bytes. Each page has two counts, in one cache
//! line; a second cache line would make a miss 1/6 more expensive. An addition raises only the lower count
//! (conservative update). So the estimate of a page is too high only if other pages share both its counts.
//!
//! *Aging.* The counts are never halved all at once. Every fifth miss halves one count, in cyclic order, so a
//! count is halved every 160 × frames misses, and ten times as often in a phase change. (Simulated on the
//! paper's workload at 4,096, 8,192, 16,384 and 32,768 frames, and at 32,768 frames with the flat reading;
//! hit ratios in percent. 64 counts, one halved per miss: 30.09, 33.15, 36.42, 39.93, 5.64. 32, one per miss:
//! 29.68, 32.81, 36.12, 39.67, 5.13. 32, one per five: 30.09, 33.07, 36.36, 39.89, 5.42. 24, one per six:
//! 29.96, 33.01, 36.29, 39.80, 5.20. 16, one per six: 29.58, 32.70, 36.03, 39.55, 4.82. Half as many counts
//! cost few hits when they age more slowly.)
//!
//! All loads and stores are Relaxed, and a byte holds two counts: a concurrent addition may be lost. The
//! counts are hints, and losing an addition has the same effect as making it a little later.

// Atomics of `std`: no protocol depends on the counts, so models need not include them.
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use azekura_base::zeroed::{ZeroIsValid, ZeroedArray};

use azekura_base::PageId;

use crate::count::shared_store;

const COUNTS_PER_FRAME: usize = 32;
const COUNTS_PER_LINE: usize = 128;
const MAX: u8 = 15;
/// Number of aging steps per halved count.
pub(crate) const PER_COUNT: u64 = 5;

/// The counts of one cache line. Both counts of a page are in the same line.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU8; COUNTS_PER_LINE / 2]);

// SAFETY: atomic integers only, 64 bytes of 64.
unsafe impl ZeroIsValid for Line {}

/// A count-min sketch of recent loads per page.
#[derive(Debug)]
pub(crate) struct Sketch {
    lines: ZeroedArray<Line>,
}

impl Sketch {
    pub(crate) fn new(frames: usize) -> Self {
        let lines = (frames * COUNTS_PER_FRAME).div_ceil(COUNTS_PER_LINE);
        let line = || Line(std::array::from_fn(|_| AtomicU8::new(0)));
        Self { lines: ZeroedArray::new(lines, line) }
    }

    /// Returns the memory of the sketch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[Line]>(&*self.lines)
    }

    /// Returns the positions of the two counts of `page`.
    fn places(&self, page: PageId) -> [usize; 2] {
        let hash = page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let scaled = (hash >> 32) * self.lines.len() as u64;
        let first = (scaled as u32 as u64 * COUNTS_PER_LINE as u64) >> 32;
        let second = (page.0 ^ (page.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 32;
        let line = (scaled >> 32) as usize * COUNTS_PER_LINE;
        [line + first as usize, line + second as usize % COUNTS_PER_LINE]
    }

    fn byte(&self, place: usize) -> &AtomicU8 {
        &self.lines[place / COUNTS_PER_LINE].0[place % COUNTS_PER_LINE / 2]
    }

    fn count(&self, place: usize) -> u8 {
        self.byte(place).load(Relaxed) >> (4 * (place % 2)) & MAX
    }

    fn set(&self, place: usize, count: u8) {
        let (byte, shift) = (self.byte(place), 4 * (place % 2));
        shared_store();
        byte.store(byte.load(Relaxed) & !(MAX << shift) | count << shift, Relaxed);
    }

    /// Returns an estimate of the recent evictions of `page`. Only aging and lost additions make it too low.
    pub(crate) fn estimate(&self, page: PageId) -> u8 {
        let [a, b] = self.places(page);
        self.count(a).min(self.count(b))
    }

    /// Counts an eviction of `page`.
    pub(crate) fn add(&self, page: PageId) {
        let raised = (self.estimate(page) + 1).min(MAX);
        for place in self.places(page) {
            if self.count(place) < raised {
                self.set(place, raised);
            }
        }
    }

    /// Performs aging step number `turn`, which halves `counts` / [`PER_COUNT`] counts.
    pub(crate) fn age(&self, turn: u64, counts: u64) {
        let all = (self.lines.len() * COUNTS_PER_LINE) as u64;
        let from = turn.wrapping_mul(counts);
        for nth in from / PER_COUNT..from.wrapping_add(counts) / PER_COUNT {
            let place = (nth % all) as usize;
            let count = self.count(place);
            if count > 0 {
                self.set(place, count / 2);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_low_saturate_and_halve_in_one_round() {
        let sketch = Sketch::new(4); // 128 counts.
        for page in 0..40 {
            (0..page).for_each(|_| sketch.add(PageId(page)));
        }
        for page in 0..40u64 {
            assert!(u64::from(sketch.estimate(PageId(page))) >= page.min(15), "page {page}");
        }
        let before: Vec<u8> = (0..40).map(|page| sketch.estimate(PageId(page))).collect();
        (0..5 * 64).for_each(|turn| sketch.age(turn, 1)); // The first half, one count in five turns.
        (32..64).for_each(|turn| sketch.age(turn, 10)); // The second half, two counts per turn.
        for page in 0..40 {
            assert_eq!(sketch.estimate(PageId(page)), before[page as usize] / 2);
        }
    }
}
