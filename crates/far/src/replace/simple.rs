//! Simple (paper §2.1): from the first page of the address space on, the first resident page found; the next
//! search starts behind it.
//!
//! Cost: a search of one bit per page, 64 at a time; no access bits. Good at sweeps. Weak when the hand runs
//! just ahead of a sweep: then each victim is the page that is needed next. Weak at random access, like
//! everything that does not look at use.

use super::set::PageSet;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The hand over the address space.
#[derive(Clone, Debug)]
pub struct Simple {
    resident: PageSet,
    hand: PageNo,
}

impl Simple {
    /// With nothing resident and the hand at the first page.
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
