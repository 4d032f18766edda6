//! The frames that hold no page: a stack of all threads, and a small stack for each stripe of threads.
//!
//! The initial frames and those that the cleaner frees are on the *common* stack, where every miss looks. A
//! miss that loses the race for its page puts its frame on the stack of its *stripe*, and the next miss of
//! this stripe takes it. Otherwise the losers would contend for one word. A stripe keeps at most about one
//! frame per thread, and a miss that finds no victim takes frames of all stripes ([`FreeFrames::pop_any`]).

use azekura_base::CachePadded;
use azekura_base::striped::{line_count, thread_stripe};

use crate::frame::{Evicted, Frame, FrameId, nth_frame, turn_of};
use crate::index_stack::{Below, IndexStack};

/// Frames of the pool per stripe: the frames that the stripes keep are a small part of the pool. A pool with
/// less than two stripes has only the common stack.
const FRAMES_PER_STRIPE: usize = 64;

/// The free frames, identified by their turns. The header of each frame holds the next frame of its stack.
#[derive(Debug)]
pub struct FreeFrames {
    common: CachePadded<IndexStack>,
    stripes: Box<[CachePadded<IndexStack>]>,
}

/// The headers of all frames, which hold the links of the stacks.
struct Headers<'f>(&'f [Frame]);

impl Headers<'_> {
    fn frame(&self, turn: u32) -> FrameId {
        nth_frame(turn as usize, self.0.len())
    }

    fn evicted(&self, turn: u32) -> Evicted {
        Evicted { frame: self.frame(turn) }
    }
}

impl Below for Headers<'_> {
    fn below(&self, turn: u32) -> u32 {
        self.0[self.frame(turn).0 as usize].below()
    }

    fn set_below(&self, turn: u32, below: u32) {
        self.0[self.frame(turn).0 as usize].set_below(below);
    }
}

impl FreeFrames {
    /// Returns a list of all `frames` frames.
    pub fn all(frames: usize) -> Self {
        let stripes = (frames / FRAMES_PER_STRIPE).min(line_count());
        Self::with_stripes(frames, if stripes < 2 { 0 } else { stripes })
    }

    fn with_stripes(frames: usize, stripes: usize) -> Self {
        let empty = || CachePadded::new(IndexStack::new(0));
        Self {
            common: CachePadded::new(IndexStack::new(frames)),
            stripes: (0..stripes).map(|_| empty()).collect(),
        }
    }

    /// Returns the stack of the calling thread.
    fn own(&self) -> &IndexStack {
        match self.stripes.len() {
            0 => &self.common,
            stripes => &self.stripes[thread_stripe() % stripes],
        }
    }

    /// Takes a frame from the stack of the calling thread or the common one. `None` does not mean that no
    /// frame is free: see [`pop_any`](Self::pop_any).
    pub fn pop(&self, frames: &[Frame]) -> Option<Evicted> {
        let headers = Headers(frames);
        let turn = self.own().pop(&headers).or_else(|| self.common.pop(&headers));
        turn.map(|turn| headers.evicted(turn))
    }

    /// Takes a frame from any stack. Returns `None` if all stacks are empty. Reads a cache line per stripe.
    pub(crate) fn pop_any(&self, frames: &[Frame]) -> Option<Evicted> {
        let headers = Headers(frames);
        let others = || self.stripes.iter().find_map(|stack| stack.pop(&headers));
        self.pop(frames).or_else(|| others().map(|turn| headers.evicted(turn)))
    }

    /// Returns the approximate number of frames on the common stack.
    pub(crate) fn len(&self) -> usize {
        self.common.len()
    }

    /// Adds the frame to the common stack.
    pub fn push(&self, owner: Evicted, frames: &[Frame]) {
        self.common.push(turn_of(owner.frame, frames.len()) as u32, &Headers(frames));
    }

    /// Adds the frame to the stack of the calling thread. For a frame that the thread took for a miss and did
    /// not need.
    pub(crate) fn push_own(&self, owner: Evicted, frames: &[Frame]) {
        self.own().push(turn_of(owner.frame, frames.len()) as u32, &Headers(frames));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn popped(free: &FreeFrames, frames: &[Frame]) -> Vec<Evicted> {
        std::iter::from_fn(|| free.pop(frames)).collect()
    }

    #[test]
    fn frames_come_in_the_order_of_their_turns_and_then_those_given_back() {
        let frames: Vec<Frame> = (0..5).map(|_| Frame::new()).collect();
        let free = FreeFrames::all(5);
        let mut all = popped(&free, &frames);
        assert_eq!(all.iter().map(|owner| owner.frame.0).collect::<Vec<_>>(), [0, 2, 4, 1, 3]);
        all.drain(..).for_each(|owner| free.push(owner, &frames));
        let again: Vec<u32> = std::iter::from_fn(|| free.pop(&frames)).map(|owner| owner.frame.0).collect();
        assert_eq!(again, [3, 1, 4, 2, 0]);
    }

    #[test]
    fn a_frame_of_another_stripe_is_found_if_no_other_is_free() {
        let frames: Vec<Frame> = (0..4).map(|_| Frame::new()).collect();
        let free = FreeFrames::with_stripes(4, 64);
        let mut all = popped(&free, &frames);
        let mine = all.pop().expect("four frames");
        free.push_own(mine, &frames);
        assert_eq!((free.len(), popped(&free, &frames).len()), (0, 1), "the stripe's frame");
        let left = all.len();
        // Threads get consecutive stripes, so this thread does not have the stripe of each of them.
        for owner in all {
            std::thread::scope(|s| _ = s.spawn(|| free.push_own(owner, &frames)));
        }
        let any: Vec<Evicted> = std::iter::from_fn(|| free.pop_any(&frames)).collect();
        assert_eq!(any.len(), left);
    }
}
