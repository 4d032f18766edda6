//! Random (paper §2.1): any resident page, at random.
//!
//! Cost: constant, no access bits. Good if accesses have no pattern, or a pattern for which the other
//! policies choose badly (the paper: Cluster 3.0, CG). Weakness: evicts pages that are used again soon (the
//! paper: MG).

use super::rng::Rng;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

const OUT: u32 = u32::MAX;

/// The resident pages in any order, and the position of each.
#[derive(Clone, Debug)]
pub struct Random {
    resident: Vec<PageNo>,
    place: Vec<u32>,
    rng: Rng,
}

impl Random {
    /// Creates a policy without resident pages.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let pages = shape.pages as usize;
        Self { resident: Vec::with_capacity(pages), place: vec![OUT; pages], rng: Rng::new(seed) }
    }
}

impl Replacement for Random {
    fn page_in(&mut self, page: PageNo, _: Access, _: &mut dyn AccessBits) {
        self.place[page.index()] = self.resident.len() as u32;
        self.resident.push(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, _: &mut dyn AccessBits) -> PageNo {
        self.resident[self.rng.below(self.resident.len() as u32) as usize]
    }

    fn page_out(&mut self, page: PageNo) {
        let place = std::mem::replace(&mut self.place[page.index()], OUT);
        self.resident.swap_remove(place as usize);
        if let Some(moved) = self.resident.get(place as usize) {
            self.place[moved.index()] = place;
        }
    }
}
