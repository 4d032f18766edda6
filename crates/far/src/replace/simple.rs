//! Simple (paper §2.1): the victim is the first resident page at or after the hand. The next search starts
//! after that page.
//!
//! Cost: a search of one bit per page, 64 at a time; no access bits. Good for sweeps. Weakness: if the hand
//! is just ahead of a sweep, each victim is the page that is needed next. Also weak for random accesses, as
//! every policy that ignores use.

use super::set::PageSet;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The resident pages, and the hand over the address space.
#[derive(Clone, Debug)]
pub struct Simple {
    resident: PageSet,
    hand: PageNo,
}

impl Simple {
    /// Creates a policy without resident pages, and with the hand at the first page.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { resident: PageSet::new(shape.pages), hand: PageNo(0) }
    }
}

impl Replacement for Simple {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.resident.insert(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, _: &mut dyn AccessBits) -> PageNo {
        let victim = self.resident.next_from(self.hand).expect("a page is resident");
        self.hand = PageNo(victim.0 + 1);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        self.resident.remove(page);
    }
}
