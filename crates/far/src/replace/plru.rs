//! U-pLRU (paper §2.3): the two lists of Linux 2.6.11, by pseudo reference bits.
//!
//! A page that is swapped in is appended to the inactive list. The search for a victim starts at the head of
//! the inactive list: a page with bit 1 moves to the end of the active list, and the first page with bit 0 is
//! the victim. When the inactive list is empty, the whole active list moves there and its bits are cleared.
//! The paper does not state the end at which a page enters, or the number of pages that move. This module
//! makes the simplest choice.
//!
//! Cost: as U-Clock, in bursts. Weakness: the lists distinguish only two degrees of use. Just after a move
//! all pages have the same bits, and a sweep evicts them in their old order (the paper: worse than Simple for
//! Himeno, IS and CG, "room for improvement").

use super::list::PageList;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The active and the inactive list.
#[derive(Clone, Debug)]
pub struct UPlru {
    active: PageList,
    inactive: PageList,
}

impl UPlru {
    /// Creates a policy without resident pages.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { active: PageList::new(shape.pages), inactive: PageList::new(shape.pages) }
    }

    fn refill(&mut self, bits: &mut dyn AccessBits) {
        while let Some(page) = self.active.pop_front() {
            if bits.is_referenced(page) {
                bits.clear_referenced(page);
            }
            self.inactive.push_back(page);
        }
    }

    /// Moves referenced pages to the active list. Returns the first inactive page without a reference.
    fn search(&mut self, bits: &mut dyn AccessBits) -> Option<PageNo> {
        while let Some(page) = self.inactive.head() {
            if !bits.is_referenced(page) {
                return Some(page);
            }
            self.inactive.remove(page);
            self.active.push_back(page);
        }
        None
    }
}

impl Replacement for UPlru {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.inactive.push_back(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        let victim = self.search(bits).or_else(|| {
            self.refill(bits);
            // If the program sets the bits as fast as they are cleared, the search ends with the first
            // inactive page.
            self.inactive.head()
        });
        let victim = victim.expect("a page is resident");
        self.inactive.move_to_back(victim);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        if !self.inactive.remove(page) {
            self.active.remove(page);
        }
    }
}
