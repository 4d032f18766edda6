//! FIFO (paper §2.1): the victim is the page that was paged in first.
//!
//! Cost: constant, no access bits. Weakness: in a cyclic sweep over slightly more than the memory, each page
//! is evicted just before it is used. The paper finds FIFO steady but worse than Simple.

use super::list::PageList;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The queue of resident pages in the order in which they came.
#[derive(Clone, Debug)]
pub struct Fifo {
    queue: PageList,
}

impl Fifo {
    /// Creates a policy without resident pages.
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
        // If `victim` is called again before the page has left, it returns the next page.
        self.queue.move_to_back(victim);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        self.queue.remove(page);
    }
}
