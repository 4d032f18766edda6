//! Queues of frames: doubly linked by frame number, so that a frame can be removed from the middle.

use azekura_base::sync::machine;

const NONE: u32 = u32::MAX;

/// The links of all frames; each frame is in at most one queue.
#[derive(Debug)]
pub(super) struct Links(Vec<[u32; 2]>);

impl Links {
    pub(super) fn new(frames: usize) -> Self {
        Self(vec![[NONE; 2]; frames])
    }

    fn of(&self, frame: u32) -> [u32; 2] {
        machine::reads(&self.0[frame as usize]);
        self.0[frame as usize]
    }

    fn set(&mut self, frame: u32, links: [u32; 2]) {
        machine::writes(&self.0[frame as usize]);
        self.0[frame as usize] = links;
    }

    fn set_newer(&mut self, frame: u32, newer: u32) {
        self.set(frame, [newer, self.0[frame as usize][1]]);
    }

    fn set_older(&mut self, frame: u32, older: u32) {
        self.set(frame, [self.0[frame as usize][0], older]);
    }
}

/// A queue; the links of its frames are in a [`Links`].
#[derive(Debug)]
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { newest: NONE, oldest: NONE, len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, links: &mut Links, frame: u32) {
        links.set(frame, [NONE, self.newest]);
        machine::writes(self);
        match self.newest {
            NONE => self.oldest = frame,
            newest => links.set_newer(newest, frame),
        }
        self.newest = frame;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, links: &mut Links, frame: u32) {
        let [newer, older] = links.of(frame);
        match newer {
            NONE => self.newest = older,
            newer => links.set_older(newer, older),
        }
        match older {
            NONE => self.oldest = newer,
            older => links.set_newer(older, newer),
        }
        machine::writes(self);
        self.len -= 1;
    }

    /// Returns the frames from the oldest to the newest.
    pub(super) fn oldest_first(&self, links: &Links) -> impl Iterator<Item = u32> {
        let some = |frame| (frame != NONE).then_some(frame);
        std::iter::successors(some(self.oldest), move |&frame| some(links.of(frame)[0]))
    }

    /// Removes and returns the oldest frame for which `may_leave` returns `true`.
    pub(super) fn take_oldest(&mut self, links: &mut Links, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let frame = self.oldest_first(links).find(|&frame| may_leave(frame))?;
        self.remove(links, frame);
        Some(frame)
    }
}
