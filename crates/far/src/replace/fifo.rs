//! FIFO (paper §2.1): the page that came in first leaves first.
//!
//! Cost: constant, no access bits. Weak at a cyclic sweep over a little more than the memory, where each page
//! leaves just before it is used; the paper calls it steady but below Simple.

use super::list::PageList;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The queue of resident pages in the order in which they came.
#[derive(Clone, Debug)]
pub struct Fifo {
    queue: PageList,
}

impl Fifo {
    /// With nothing resident.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { queue: PageList::new(shape.pages) }
    }
}

impl Replacement for Fifo {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.queue.push_back(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, _: &mut dyn AccessBits) -> PageNo {
        let victim = self.queue.head().expect("a page is resident");
        // Asked again before it left, the queue offers the next.
        self.queue.move_to_back(victim);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        self.queue.remove(page);
    }
}
