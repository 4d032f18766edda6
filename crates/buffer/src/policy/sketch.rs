//! How often a page was loaded of late: a count-min sketch of four-bit counts (the idea of W-TinyLFU, Einziger et al. 2017, taken off the path of hits).
//!
//! It is written when a page leaves and read when a page has to prove itself, so a hit touches nothing of it. 64 counts per frame, 32 bytes. Each
//! page has two counts, in one cache line, because a miss that waited for two more lines would cost a sixth more; adding raises only the lesser
//! (conservative update), so that two pages must share both to be taken for each other.
//!
//! Aging has no stop-the-world halving: every miss halves one count, the next in turn, so a count halves every 64 × frames misses; more of them in
//! a surge.
//!
//! Relaxed loads and stores throughout, two counts to a byte: an addition may be lost between two threads. It is a hint, and a lost
//! one is as good as one that came a little later.

// std's own atomics: no protocol rests on the counts, so no model needs to see them.
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use azekura_base::PageId;

use crate::count::shared_store;

const COUNTS_PER_FRAME: usize = 64;
const COUNTS_PER_LINE: usize = 128;
const MAX: u8 = 15;

/// The counts of one cache line; both of a page's are in one.
#[derive(Debug)]
#[repr(align(64))]
struct Line([AtomicU8; COUNTS_PER_LINE / 2]);

/// The sketch.
#[derive(Debug)]
pub(crate) struct Sketch {
    lines: Box<[Line]>,
    shift: u32,
}

impl Sketch {
    pub(crate) fn new(frames: usize) -> Self {
        let counts = (frames * COUNTS_PER_FRAME).next_power_of_two().max(COUNTS_PER_LINE);
        let line = || Line(std::array::from_fn(|_| AtomicU8::new(0)));
        Self {
            lines: (0..counts / COUNTS_PER_LINE).map(|_| line()).collect(),
            shift: u64::BITS - counts.trailing_zeros(),
        }
    }

    /// Bytes of the sketch.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val::<[Line]>(&*self.lines)
    }

    const fn places(&self, page: PageId) -> [usize; 2] {
        let first = (page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize;
        let second = (page.0 ^ (page.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> self.shift;
        [first, first / COUNTS_PER_LINE * COUNTS_PER_LINE + second as usize % COUNTS_PER_LINE]
    }

    const fn byte(&self, place: usize) -> &AtomicU8 {
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

    /// About how often the page left, of late; never less than it did, but for aging.
    pub(crate) fn estimate(&self, page: PageId) -> u8 {
        let [a, b] = self.places(page);
        self.count(a).min(self.count(b))
    }

    /// The page leaves.
    pub(crate) fn add(&self, page: PageId) {
        let raised = (self.estimate(page) + 1).min(MAX);
        for place in self.places(page) {
            if self.count(place) < raised {
                self.set(place, raised);
            }
        }
    }

    /// One step of aging, which halves `counts` of them: `turn` counts the steps.
    pub(crate) fn age(&self, turn: u64, counts: u64) {
        let all = (self.lines.len() * COUNTS_PER_LINE) as u64;
        for nth in turn.wrapping_mul(counts)..turn.wrapping_mul(counts).wrapping_add(counts) {
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
        let sketch = Sketch::new(2); // 128 counts
        for page in 0..40 {
            (0..page).for_each(|_| sketch.add(PageId(page)));
        }
        for page in 0..40u64 {
            assert!(u64::from(sketch.estimate(PageId(page))) >= page.min(15), "page {page}");
        }
        let before: Vec<u8> = (0..40).map(|page| sketch.estimate(PageId(page))).collect();
        (0..64).for_each(|turn| sketch.age(turn, 1));
        (16..32).for_each(|turn| sketch.age(turn, 4));
        for page in 0..40 {
            assert_eq!(sketch.estimate(PageId(page)), before[page as usize] / 2);
        }
    }
}
