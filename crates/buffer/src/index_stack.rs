//! A lock-free stack of small numbers, for free frames and spare buffers: a Treiber stack with a tag against
//! ABA. The stack allocates no memory per number: the object that a number identifies stores the link to the
//! next number. When the stack is empty, numbers that were never pushed are returned in order.
//!
//! - **STACK-1** The head packs (tag, number + 1). Each push and pop changes the tag, so the CAS of a pop
//!   fails if another operation completed first.

use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

// No protocol depends on the count, so no model needs to switch threads at it.
#[cfg(not(loom))]
use azekura_base::sync::atomic::AtomicU32 as Count;
#[cfg(loom)]
use std::sync::atomic::AtomicU32 as Count;

use crate::count::shared_rmw;

/// The links of the stack: for each number the number below it, in 25 bits. Relaxed: the head of the stack
/// orders them.
pub(crate) trait Below {
    /// Returns the stored link, or an arbitrary value if the number is no longer in the stack.
    fn below(&self, number: u32) -> u32;
    /// Stores the link of a number that the caller owns and is about to push.
    fn set_below(&self, number: u32, below: u32);
}

#[derive(Debug)]
pub(crate) struct IndexStack {
    head: AtomicU64,
    /// The least number that was never returned by a pop.
    fresh: AtomicU32,
    bound: u32,
    /// Approximate count of numbers in the stack: relaxed, and updated after the CAS.
    pushed: Count,
}

const TAG_ONE: u64 = 1 << 32;
const NUMBER: u64 = TAG_ONE - 1;

impl IndexStack {
    /// Returns a stack of all numbers below `bound`, in ascending order.
    pub(crate) fn new(bound: usize) -> Self {
        Self { head: AtomicU64::new(0), fresh: AtomicU32::new(0), bound: bound as u32, pushed: Count::new(0) }
    }

    /// Pushes a number, which must not be in the stack.
    pub(crate) fn push(&self, number: u32, notes: &impl Below) {
        let mut head = self.head.load(Relaxed);
        loop {
            notes.set_below(number, (head & NUMBER) as u32);
            let new = ((head & !NUMBER).wrapping_add(TAG_ONE)) | u64::from(number + 1);
            shared_rmw();
            // Release: the link and the data of the number become visible to the thread that pops it.
            match self.head.compare_exchange_weak(head, new, AcqRel, Relaxed) {
                Ok(_) => {
                    self.pushed.fetch_add(1, Relaxed); // Relaxed: an approximate count
                    return;
                }
                Err(now) => head = now,
            }
        }
    }

    /// Pops the number on top, or returns a number that was never pushed.
    pub(crate) fn pop(&self, notes: &impl Below) -> Option<u32> {
        // Acquire: pairs with the Release of the push that stored this head, so the number's link is visible.
        let mut head = self.head.load(Acquire);
        while let Some(number) = ((head & NUMBER) as u32).checked_sub(1) {
            // The value may be the link of a later push, or not a link at all. Then the tag has changed and
            // the CAS fails (STACK-1).
            let below = notes.below(number);
            let new = ((head & !NUMBER).wrapping_add(TAG_ONE)) | u64::from(below);
            shared_rmw();
            match self.head.compare_exchange(head, new, AcqRel, Acquire) {
                Ok(_) => {
                    self.pushed.fetch_sub(1, Relaxed); // Relaxed: an approximate count
                    return Some(number);
                }
                Err(now) => head = now,
            }
        }
        self.take_fresh()
    }

    /// Returns the approximate count of numbers that can be popped.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: approximate counts. Their difference may be negative temporarily.
        let pushed = self.pushed.load(Relaxed).cast_signed().max(0) as usize;
        pushed + self.bound.saturating_sub(self.fresh.load(Relaxed)) as usize
    }

    fn take_fresh(&self) -> Option<u32> {
        // Relaxed: the number publishes nothing; its data existed before the stack.
        if self.fresh.load(Relaxed) >= self.bound {
            return None;
        }
        shared_rmw();
        // The count exceeds the bound by at most the number of threads.
        Some(self.fresh.fetch_add(1, Relaxed)).filter(|&number| number < self.bound)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Notes([AtomicU32; 64]);

    impl Below for Notes {
        fn below(&self, number: u32) -> u32 {
            self.0[number as usize].load(Relaxed)
        }
        fn set_below(&self, number: u32, below: u32) {
            self.0[number as usize].store(below, Relaxed);
        }
    }

    #[test]
    fn numbers_are_neither_lost_nor_doubled() {
        let (stack, notes) = (IndexStack::new(64), Notes(std::array::from_fn(|_| AtomicU32::new(0))));
        assert_eq!((0..3).map_while(|_| stack.pop(&notes)).collect::<Vec<_>>(), [0, 1, 2]);
        (0..3).rev().for_each(|n| stack.push(n, &notes));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..5_000 {
                        let (a, b) = (stack.pop(&notes), stack.pop(&notes));
                        a.into_iter().chain(b).for_each(|n| stack.push(n, &notes));
                    }
                });
            }
        });
        let mut all: Vec<u32> = std::iter::from_fn(|| stack.pop(&notes)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
}
