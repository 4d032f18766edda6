//! Swap-in history (paper §2.1 and its reference 4): Simple, but not the page that followed last time.
//!
//! Each page stores the number of the page that was swapped in right after it. When the page is swapped in
//! again, that other page is expected next, and is not chosen as the victim.
//!
//! Cost: that of Simple, and one page number for each page that was ever paged in and for its neighbors. No
//! access bits. The steadiest policy of the paper: never worse than Simple in its seven programs. Weakness:
//! useless if the order of swaps does not repeat. Like Simple, the policy ignores uses without swaps.

use super::set::PageSet;
use super::{Access, AccessBits, PageNo, Replacement, Shape};
use crate::sparse::Sparse;

const NONE: u32 = u32::MAX;

/// Simple's hand, and the successor of each page.
#[derive(Clone, Debug)]
pub struct SwapInHistory {
    resident: PageSet,
    hand: PageNo,
    successor: Sparse<u32>,
    newest: u32,
}

impl SwapInHistory {
    /// Creates a policy without resident pages and without history, and with the hand at the first page.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            resident: PageSet::new(shape.pages),
            hand: PageNo(0),
            successor: Sparse::new(NONE, shape.pages as usize),
            newest: NONE,
        }
    }

    fn next(&mut self) -> PageNo {
        let page = self.resident.next_from(self.hand).expect("a page is resident");
        self.hand = PageNo(page.0 + 1);
        page
    }
}

impl Replacement for SwapInHistory {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.resident.insert(page);
        if self.newest != NONE {
            self.successor[self.newest as usize] = page.0;
        }
        self.newest = page.0;
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, incoming: Option<PageNo>, _: &mut dyn AccessBits) -> PageNo {
        let spared = incoming.map_or(NONE, |page| self.successor[page.index()]);
        let first = self.next();
        if first.0 == spared && self.resident.len() > 1 { self.next() } else { first }
    }

    fn page_out(&mut self, page: PageNo) {
        self.resident.remove(page);
    }
}
