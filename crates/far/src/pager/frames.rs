//! Which frames hold memory: a frame that a page left behind is filled again before memory is asked of the system.

/// Free frames.
#[derive(Debug)]
pub(super) struct Frames {
    full: Vec<u32>,
    empty: Vec<u32>,
}

impl Frames {
    pub(super) fn new(frames: u32) -> Self {
        Self { full: Vec::with_capacity(frames as usize), empty: (0..frames).rev().collect() }
    }

    /// One to write into; whether it has memory does not matter.
    pub(super) fn take(&mut self) -> u32 {
        self.full
            .pop()
            .or_else(|| self.empty.pop())
            .expect("there are frames for all pages that may be local or leaving")
    }

    /// One without memory, for a page to be moved into; `empty` takes a frame's memory away.
    pub(super) fn take_empty(&mut self, empty: impl FnOnce(u32)) -> u32 {
        self.empty.pop().unwrap_or_else(|| {
            let frame = self.take();
            empty(frame);
            frame
        })
    }

    pub(super) fn give_full(&mut self, frame: u32) {
        self.full.push(frame);
    }

    pub(super) fn give_empty(&mut self, frame: u32) {
        self.empty.push(frame);
    }

    /// How many free ones hold memory.
    pub(super) fn full(&self) -> usize {
        self.full.len()
    }

    /// All of them.
    #[cfg(test)]
    pub(super) fn free(&self) -> impl Iterator<Item = u32> + '_ {
        self.full.iter().chain(&self.empty).copied()
    }

    /// One that holds memory and need not.
    pub(super) fn surplus(&mut self) -> Option<u32> {
        self.full.pop()
    }
}
