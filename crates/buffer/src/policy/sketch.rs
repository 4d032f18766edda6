//! How often a page was loaded of late: a count-min sketch of four-bit counts (the idea of W-TinyLFU, Einziger et al. 2017, taken off the path of hits).
//!
//! It is written when a page leaves and read when a page has to prove itself, so a hit touches nothing of it. 64 counts per frame, 32 bytes. Each
//! page has two counts; adding raises only the lesser (conservative update), so that two pages must share both to be taken for each other.
//!
//! Aging has no stop-the-world halving: every miss halves one count, the next in turn, so a count halves every 64 × frames misses.
//!
//! Relaxed loads and stores throughout, two counts to a byte: an addition may be lost between two threads. It is a hint, and a lost
//! one is as good as one that came a little later.

// std's own atomics: no protocol rests on the counts, so no model needs to see them.
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use azekura_base::PageId;

const COUNTS_PER_FRAME: usize = 64;
const MAX: u8 = 15;

/// The sketch.
#[derive(Debug)]
pub(crate) struct Sketch {
    bytes: Box<[AtomicU8]>,
    shift: u32,
}

impl Sketch {
    pub(crate) fn new(frames: usize) -> Self {
        let counts = (frames * COUNTS_PER_FRAME).next_power_of_two();
        Self {
            bytes: (0..counts / 2).map(|_| AtomicU8::new(0)).collect(),
            shift: u64::BITS - counts.trailing_zeros(),
        }
    }

    const fn places(&self, page: PageId) -> [usize; 2] {
        let first = page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let second = (first ^ (first >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        [(first >> self.shift) as usize, (second >> self.shift) as usize]
    }

    fn count(&self, place: usize) -> u8 {
        self.bytes[place / 2].load(Relaxed) >> (4 * (place % 2)) & MAX
    }

    fn set(&self, place: usize, count: u8) {
        let (byte, shift) = (&self.bytes[place / 2], 4 * (place % 2));
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

    /// One step of aging: `turn` counts the steps.
    pub(crate) fn age(&self, turn: u64) {
        let place = (turn % (self.bytes.len() as u64 * 2)) as usize;
        let count = self.count(place);
        if count > 0 {
            self.set(place, count / 2);
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
        (0..128).for_each(|turn| sketch.age(turn));
        for page in 0..40 {
            assert_eq!(sketch.estimate(PageId(page)), before[page as usize] / 2);
        }
    }
}
