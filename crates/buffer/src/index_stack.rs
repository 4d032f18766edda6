//! A lock-free stack of small numbers: free frames, spare buffers (Treiber's stack with a tag against ABA).
//!
//! - **STACK-1** The head packs (tag, number + 1); each push and pop moves the tag, so a pop that was overtaken fails.

use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};

use crate::count::shared_rmw;

#[derive(Debug)]
pub(crate) struct IndexStack {
    head: AtomicU64,
    /// `next[n]`: the number below `n`, plus one; 0 at the bottom.
    next: Box<[AtomicU32]>,
}

const TAG_ONE: u64 = 1 << 32;
const NUMBER: u64 = TAG_ONE - 1;

impl IndexStack {
    /// An empty stack for numbers below `bound`.
    pub(crate) fn new(bound: usize) -> Self {
        Self { head: AtomicU64::new(0), next: (0..bound).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.next)
    }

    /// Puts a number on top; it must not be in the stack.
    pub(crate) fn push(&self, number: u32) {
        let mut head = self.head.load(Relaxed);
        loop {
            self.next[number as usize].store((head & NUMBER) as u32, Relaxed);
            let new = ((head & !NUMBER).wrapping_add(TAG_ONE)) | u64::from(number + 1);
            shared_rmw();
            // Release part: `next` above, and whatever the number stands for, become visible to the popper.
            match self.head.compare_exchange_weak(head, new, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the number on top.
    pub(crate) fn pop(&self) -> Option<u32> {
        // Acquire: pairs with the Release of the push that stored this head; so its `next` is visible.
        let mut head = self.head.load(Acquire);
        loop {
            let number = ((head & NUMBER) as u32).checked_sub(1)?;
            // Relaxed: may be another push's by now; then the tag has moved and the CAS fails (STACK-1).
            let below = self.next[number as usize].load(Relaxed);
            let new = ((head & !NUMBER).wrapping_add(TAG_ONE)) | u64::from(below);
            shared_rmw();
            match self.head.compare_exchange_weak(head, new, AcqRel, Acquire) {
                Ok(_) => return Some(number),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_neither_lost_nor_doubled() {
        let stack = IndexStack::new(64);
        (0..64).for_each(|n| stack.push(n));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..5_000 {
                        let (a, b) = (stack.pop(), stack.pop());
                        a.into_iter().chain(b).for_each(|n| stack.push(n));
                    }
                });
            }
        });
        let mut all: Vec<u32> = std::iter::from_fn(|| stack.pop()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..64).collect::<Vec<_>>());
    }
}
