//! The frames that hold no page.

use crate::frame::{Evicted, Frame, FrameId, nth_frame, turn_of};
use crate::index_stack::{Below, IndexStack};

/// A stack of frames, identified by their turns. The header of each frame holds the next frame of the stack.
#[derive(Debug)]
pub struct FreeFrames(IndexStack);

/// The headers of all frames, which hold the links of the stack.
struct Headers<'f>(&'f [Frame]);

impl Headers<'_> {
    fn frame(&self, turn: u32) -> FrameId {
        nth_frame(turn as usize, self.0.len())
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
        Self(IndexStack::new(frames))
    }

    /// Takes a frame. Returns `None` if the list is empty.
    pub fn pop(&self, frames: &[Frame]) -> Option<Evicted> {
        let headers = Headers(frames);
        self.0.pop(&headers).map(|turn| Evicted { frame: headers.frame(turn) })
    }

    /// Returns the approximate number of frames in the list.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the frame to the free list.
    pub fn push(&self, owner: Evicted, frames: &[Frame]) {
        self.0.push(turn_of(owner.frame, frames.len()) as u32, &Headers(frames));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_come_in_the_order_of_their_turns_and_then_those_given_back() {
        let frames: Vec<Frame> = (0..5).map(|_| Frame::new()).collect();
        let free = FreeFrames::all(5);
        let mut all: Vec<Evicted> = std::iter::from_fn(|| free.pop(&frames)).collect();
        assert_eq!(all.iter().map(|owner| owner.frame.0).collect::<Vec<_>>(), [0, 2, 4, 1, 3]);
        all.drain(..).for_each(|owner| free.push(owner, &frames));
        let again: Vec<u32> = std::iter::from_fn(|| free.pop(&frames)).map(|owner| owner.frame.0).collect();
        assert_eq!(again, [3, 1, 4, 2, 0]);
    }
}
