//! What is known of all pages: when each was used, and which resident ones have a clear reference bit.

use super::rhythm::Rhythm;
use super::roll::Roll;
use crate::replace::{AccessBits, PageNo, Shape};
use crate::sparse::Sparse;

/// The policy's own memory of what it saw and did.
#[derive(Clone, Debug)]
pub struct Known {
    rhythms: Sparse<Rhythm>,
    pub(super) resident: Roll,
    /// Resident, and not touched since the bit was cleared: who may leave.
    pub(super) idle: Roll,
}

impl Known {
    /// Nothing is resident; the first burst of each page is given `2^patience` events.
    #[must_use]
    pub(super) fn new(shape: Shape, patience: u8) -> Self {
        let rhythms = Sparse::new(Rhythm::new(patience), shape.pages as usize);
        Self { rhythms, resident: Roll::new(shape), idle: Roll::new(shape) }
    }

    pub(super) fn rhythm(&self, page: PageNo) -> &Rhythm {
        &self.rhythms[page.index()]
    }

    /// When the page should be used again.
    pub(super) fn next_use(&mut self, page: PageNo, now: u64) -> Option<u64> {
        self.rhythms[page.index()].next_use(now)
    }

    /// The page came in, or was touched for the first time since its bit was cleared.
    pub(super) fn touched(&mut self, page: PageNo, now: u64, longest_patience: u8) {
        self.rhythms[page.index()].touch(now, longest_patience);
        self.idle.remove(page);
    }

    /// Clears the bit of a resident page.
    pub(super) fn clear(&mut self, page: PageNo, now: u64, bits: &mut dyn AccessBits) {
        bits.clear_referenced(page);
        self.rhythms[page.index()].clear(now);
        self.idle.insert(page);
    }

    pub(super) fn left(&mut self, page: PageNo) {
        self.resident.remove(page);
        self.idle.remove(page);
    }
}
