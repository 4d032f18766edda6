//! S3-FIFO (Yang et al., SOSP 2023): a small FIFO of new pages (10 %), a main FIFO with second chances, and
//! the numbers of pages evicted from the small one. Weakness: a page that is used once in the small queue and
//! again only after its number was removed counts as new. Under a lock its lists cost as much as those of
//! other policies.

use super::Policy;
use super::ghost::Ghost;
use super::list::{Links, Queue};

/// S3-FIFO with use counts up to 3.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    small: Queue,
    main: Queue,
    uses: Vec<u8>,
    pages: Vec<u64>,
    ghost: Ghost,
    small_length: usize,
    used: usize,
}

impl Policy for S3Fifo {
    const NAME: &'static str = "s3-fifo";

    fn new(frames: usize) -> Self {
        let small_length = (frames / 10).max(1);
        Self {
            links: Links::new(frames),
            small: Queue::new(),
            main: Queue::new(),
            uses: vec![0; frames],
            pages: vec![0; frames],
            ghost: Ghost::new(frames - small_length),
            small_length,
            used: 0,
        }
    }

    fn hit(&mut self, frame: u32) {
        let uses = &mut self.uses[frame as usize];
        *uses = (*uses + 1).min(3);
    }

    fn admit(&mut self, page: u64, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let frame = if self.used < self.pages.len() {
            self.used += 1;
            self.used as u32 - 1
        } else {
            self.victim(may_leave)?
        };
        self.pages[frame as usize] = page;
        self.uses[frame as usize] = 0;
        let queue = if self.ghost.take(page) { &mut self.main } else { &mut self.small };
        queue.push(&mut self.links, frame);
        Some(frame)
    }
}

impl S3Fifo {
    fn victim(&mut self, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let small_first = self.small.len() >= self.small_length || self.main.len() == 0;
        let from_small = if small_first { self.leave_small(may_leave) } else { None };
        from_small.or_else(|| self.leave_main(may_leave)).or_else(|| self.leave_small(may_leave))
    }

    /// Evicts a page of the small queue. Pages that were used at least twice move to the main queue instead;
    /// if that is full, its oldest page is evicted.
    fn leave_small(&mut self, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        while let Some(frame) = self.small.take_oldest(&mut self.links, may_leave) {
            if self.uses[frame as usize] > 1 {
                self.uses[frame as usize] = 0;
                self.main.push(&mut self.links, frame);
                if self.main.len() > self.uses.len() - self.small_length {
                    return self.leave_main(may_leave);
                }
            } else {
                self.ghost.push(self.pages[frame as usize]);
                return Some(frame);
            }
        }
        None
    }

    fn leave_main(&mut self, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        loop {
            let frame = self.main.take_oldest(&mut self.links, may_leave)?;
            if self.uses[frame as usize] == 0 {
                return Some(frame);
            }
            self.uses[frame as usize] -= 1;
            self.main.push(&mut self.links, frame);
        }
    }
}
