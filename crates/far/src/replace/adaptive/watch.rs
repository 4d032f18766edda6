//! Selection of the reference bits to clear, and the times at which they are cleared.

use super::known::Known;
use crate::replace::list::PageLists;
use crate::replace::{AccessBits, PageNo, Shape};

/// The resident pages with a set bit, in lists by the length of their burst of use. All pages of a list wait
/// for the same time, so the first page of a list is due first.
#[derive(Clone, Debug)]
pub struct Watch {
    lists: PageLists,
    /// Index of an additional list: the pages that were due when there was no credit.
    waiting: usize,
    credit_due: u32,
    credit_waiting: u32,
    frames: u32,
}

impl Watch {
    /// Creates the lists for bursts of at most a quarter of the frames.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let longest = (shape.frames / 4).max(1).ilog2() as usize;
        let lists = PageLists::new(shape.pages, longest + 2);
        Self { lists, waiting: longest + 1, credit_due: 0, credit_waiting: 0, frames: shape.frames }
    }

    /// Returns the initial burst exponent of a page: half of the largest one.
    #[must_use]
    pub fn first_patience(&self) -> u8 {
        self.longest_burst_exponent() / 2
    }

    /// Returns the largest burst exponent, which pages in constant use reach.
    #[must_use]
    pub fn longest_burst_exponent(&self) -> u8 {
        self.waiting as u8 - 1
    }

    /// Adds credit for clearings when a page is paged in: half for pages at the end of their burst, half for
    /// pages that had to wait. Each credit is at most the number of frames: a larger one would let one burst
    /// of clearings cancel the savings.
    pub fn pay(&mut self, clearings: u32) {
        for credit in [&mut self.credit_due, &mut self.credit_waiting] {
            *credit = (*credit + clearings / 2).min(self.frames);
        }
    }

    /// Records that the page's bit is set.
    pub fn touched(&mut self, page: PageNo, known: &Known) {
        self.lists.push_back(known.reuse_history(page).burst_exponent().into(), page);
    }

    /// Records that the page is no longer resident.
    pub fn left(&mut self, page: PageNo) {
        self.lists.remove(page);
    }

    /// Clears the bits that are due, as far as the credit suffices.
    pub fn clear_due(&mut self, now: u64, known: &mut Known, bits: &mut dyn AccessBits) {
        for burst_exponent in 0..self.waiting {
            while let Some(page) = self.lists.head(burst_exponent)
                && now - known.reuse_history(page).last_touch() >= 1 << burst_exponent
            {
                self.lists.remove(page);
                if self.credit_due > 0 {
                    self.credit_due -= 1;
                    known.clear(page, now, bits);
                } else {
                    self.lists.push_back(self.waiting, page);
                }
            }
        }
        while self.credit_waiting > 0
            && let Some(page) = self.lists.head(self.waiting)
        {
            self.lists.remove(page);
            self.credit_waiting -= 1;
            known.clear(page, now, bits);
        }
    }
}
