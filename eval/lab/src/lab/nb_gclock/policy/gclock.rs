//! GCLOCK (Smith, TODS 1978; paper §2.2 and Fig. 5): a reference count per page, and a clock hand that
//! decrements the count of each page that it passes. Weakness: a page that was used once is passed once
//! before its eviction, so scans and rarely used pages displace useful pages.
//!
//! Counts are unbounded, as in the paper. A full turn over pinned frames ends the search, where the paper's
//! waits.

use super::Policy;
use azekura_base::sync::machine;

/// The paper's GCLOCK, for use under a lock.
#[derive(Debug)]
pub struct Gclock {
    counts: Vec<u64>,
    hand: usize,
    used: usize,
}

impl Policy for Gclock {
    const NAME: &'static str = "gclock";

    fn new(frames: usize) -> Self {
        Self { counts: vec![0; frames], hand: 0, used: 0 }
    }

    fn hit(&mut self, frame: u32) {
        machine::writes(&self.counts[frame as usize]);
        self.counts[frame as usize] += 1;
    }

    fn admit(&mut self, _page: u64, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let frame = if self.used < self.counts.len() {
            self.used += 1;
            self.used - 1
        } else {
            self.victim(may_leave)?
        };
        self.counts[frame] = 1;
        Some(frame as u32)
    }
}

impl Gclock {
    fn victim(&mut self, may_leave: &dyn Fn(u32) -> bool) -> Option<usize> {
        let mut pinned = 0;
        while pinned < self.counts.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.counts.len();
            machine::writes(&self.hand);
            if !may_leave(at as u32) {
                pinned += 1;
                continue;
            }
            pinned = 0;
            machine::writes(&self.counts[at]);
            self.counts[at] = self.counts[at].saturating_sub(1);
            if self.counts[at] == 0 {
                return Some(at);
            }
        }
        None
    }
}
