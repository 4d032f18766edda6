//! The hand of the clock: one shared counter, or one counter striped over cache lines (paper §3.1.3 and
//! contribution (a)).
//!
//! The hand counts passed frames since the start, and the count is never reduced. Positions are always
//! computed modulo the capacity, on both sides of every comparison (G1).

use azekura_base::CachePadded;
use azekura_base::striped::thread_stripe;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::count::shared_rmw;

/// The storage of the hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandKind {
    /// One counter that every evicting thread writes.
    Atomic,
    /// A counter per stripe of threads: a read adds all of them, and a move writes only the thread's own
    /// counter.
    #[default]
    Striped,
}

/// The hand of the clock.
#[derive(Debug)]
pub struct ClockHand {
    stripes: Box<[CachePadded<AtomicU64>]>,
}

const STRIPES: usize = 8;

impl ClockHand {
    pub(crate) fn new(kind: HandKind) -> Self {
        let stripes = if kind == HandKind::Atomic { 1 } else { STRIPES };
        Self { stripes: (0..stripes).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Returns the number of frames passed so far. Relaxed: the position is only a start, and a stale one is
    /// acceptable.
    pub(crate) fn position(&self) -> u64 {
        self.stripes.iter().fold(0, |sum, s| sum.wrapping_add(s.load(Relaxed)))
    }

    /// Moves the hand past `steps` frames.
    pub(crate) fn advance(&self, steps: u64) {
        shared_rmw();
        self.stripes[thread_stripe() % self.stripes.len()].fetch_add(steps, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn g1_both_hands_count_every_step() {
        for kind in [HandKind::Atomic, HandKind::Striped] {
            let hand = ClockHand::new(kind);
            std::thread::scope(|s| {
                for _ in 0..4 {
                    s.spawn(|| (0..1000).for_each(|_| hand.advance(3)));
                }
            });
            assert_eq!(hand.position(), 12_000);
        }
    }
}
