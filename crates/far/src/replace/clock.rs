//! U-Clock (paper §2.3): FIFO with a second chance, by pseudo reference bits.
//!
//! The search for a victim visits the pages in the order in which they came. A page with bit 1 is cleared and
//! moves to the end; the first page with bit 0 is the victim.
//!
//! Cost: constant per page passed; each clearing is a change of protection and a fault at the next touch. A
//! sweep touches each page after it was cleared, so that every bit is set again: FIFO's victims at a higher
//! price (the paper: Himeno).

use super::list::PageList;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The circle of resident pages, from the hand on.
#[derive(Clone, Debug)]
pub struct UClock {
    circle: PageList,
}

impl UClock {
    /// With nothing resident.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { circle: PageList::new(shape.pages) }
    }
}

impl Replacement for UClock {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.circle.push_back(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        // One round clears every bit, unless the program sets them as fast: then the page where the round
        // began has had its chance.
        for _ in 0..self.circle.len() {
            let page = self.circle.head().expect("the circle has a length");
            if !bits.is_referenced(page) {
                break;
            }
            bits.clear_referenced(page);
            self.circle.move_to_back(page);
        }
        let victim = self.circle.head().expect("a page is resident");
        self.circle.move_to_back(victim);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        self.circle.remove(page);
    }
}
