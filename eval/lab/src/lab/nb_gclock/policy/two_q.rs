//! 2Q, full version (Johnson and Shasha, VLDB 1994), with the paper's K_in = 20 % and K_out = 30 % of the
//! frames. Weakness: a page that returns after more than K_out evictions counts as new, and each hit in A_m
//! moves a page in a list, under the lock.

use super::Policy;
use super::ghost::Ghost;
use super::list::{Links, Queue};
use azekura_base::sync::machine;

/// 2Q: a FIFO of new pages, numbers of pages evicted from it, and an LRU list of pages that were read again.
#[derive(Debug)]
pub struct TwoQ {
    links: Links,
    a1in: Queue,
    am: Queue,
    is_in_am: Vec<bool>,
    pages: Vec<u64>,
    a1out: Ghost,
    k_in: usize,
    used: usize,
}

impl Policy for TwoQ {
    const NAME: &'static str = "2q";

    fn new(frames: usize) -> Self {
        Self {
            links: Links::new(frames),
            a1in: Queue::new(),
            am: Queue::new(),
            is_in_am: vec![false; frames],
            pages: vec![0; frames],
            a1out: Ghost::new(frames * 3 / 10),
            k_in: (frames / 5).max(1),
            used: 0,
        }
    }

    fn hit(&mut self, frame: u32) {
        machine::reads(&self.is_in_am[frame as usize]);
        if self.is_in_am[frame as usize] {
            self.am.remove(&mut self.links, frame);
            self.am.push(&mut self.links, frame);
        }
    }

    fn admit(&mut self, page: u64, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let frame = if self.used < self.pages.len() {
            self.used += 1;
            self.used as u32 - 1
        } else {
            self.victim(may_leave)?
        };
        self.pages[frame as usize] = page;
        let came_back = self.a1out.take(page);
        self.is_in_am[frame as usize] = came_back;
        let queue = if came_back { &mut self.am } else { &mut self.a1in };
        queue.push(&mut self.links, frame);
        Some(frame)
    }
}

impl TwoQ {
    fn victim(&mut self, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        let from_a1in = self.a1in.len() > self.k_in || self.am.len() == 0;
        self.leave(from_a1in, may_leave).or_else(|| self.leave(!from_a1in, may_leave))
    }

    fn leave(&mut self, from_a1in: bool, may_leave: &dyn Fn(u32) -> bool) -> Option<u32> {
        if !from_a1in {
            return self.am.take_oldest(&mut self.links, may_leave);
        }
        let frame = self.a1in.take_oldest(&mut self.links, may_leave)?;
        self.a1out.push(self.pages[frame as usize]);
        Some(frame)
    }
}
