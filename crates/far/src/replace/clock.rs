//! U-Clock (paper §2.3): FIFO with a second chance, by pseudo reference bits.
//!
//! The search for a victim visits the pages in the order in which they were paged in. A page with bit 1 gets
//! bit 0 and moves to the end. The first page with bit 0 is the victim.
//!
//! Cost: constant per visited page. Each cleared bit costs a change of protection, and a fault at the next
//! touch. A sweep touches each page after its bit was cleared, so that every bit is set again. U-Clock then
//! has the victims of FIFO at a higher cost (in the paper: Himeno).

use super::list::PageList;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The resident pages as a circle, beginning at the hand.
#[derive(Clone, Debug)]
pub struct UClock {
    circle: PageList,
}

impl UClock {
    /// Creates a policy without resident pages.
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
        // One round clears every bit. If the program sets the bits at the same rate, the page at which the
        // round began is the victim.
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
