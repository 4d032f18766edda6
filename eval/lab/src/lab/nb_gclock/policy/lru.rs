//! Least recently used. Weakness: a scan longer than the pool replaces all pages, and each hit moves a page
//! in the one list, under the lock.

use super::Policy;
use super::list::{Links, Queue};

/// Textbook LRU with one list.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    queue: Queue,
    used: u32,
    frames: u32,
}

impl Policy for Lru {
    const NAME: &'static str = "lru";

    fn new(frames: usize) -> Self {
        Self { links: Links::new(frames), queue: Queue::new(), used: 0, frames: frames as u32 }
    }

    fn hit(&mut self, frame: u32) {
        self.queue.remove(&mut self.links, frame);
        self.queue.push(&mut self.links, frame);
    }

    fn admit(&mut self, _page: u64, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let frame = if self.used < self.frames {
            self.used += 1;
            self.used - 1
        } else {
            self.queue.take_oldest(&mut self.links, may_leave)?
        };
        self.queue.push(&mut self.links, frame);
        Some(frame)
    }
}
