//! A set of pages with random draws and iteration. The cost of these operations does not depend on the size
//! of the region.

use crate::replace::rng::Rng;
use crate::replace::{PageNo, Shape};

/// A set of pages in no order, of fixed size. Allocates nothing after its construction.
#[derive(Clone, Debug)]
pub(super) struct Roll {
    pages: Vec<PageNo>,
    /// For each page, its position in `pages`, counted from one; zero if the page is not in the set.
    places: Vec<u32>,
}

impl Roll {
    /// Creates an empty set with capacity for all pages that can be resident.
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            pages: Vec::with_capacity(shape.frames.min(shape.pages) as usize),
            places: vec![0; shape.pages as usize],
        }
    }

    pub(super) fn has(&self, page: PageNo) -> bool {
        self.places[page.index()] > 0
    }

    pub(super) fn insert(&mut self, page: PageNo) {
        let place = &mut self.places[page.index()];
        if *place == 0 {
            self.pages.push(page);
            *place = self.pages.len() as u32;
        }
    }

    pub(super) fn remove(&mut self, page: PageNo) {
        let place = std::mem::take(&mut self.places[page.index()]) as usize;
        if place > 0 {
            self.pages.swap_remove(place - 1);
            if let Some(moved) = self.pages.get(place - 1) {
                self.places[moved.index()] = place as u32;
            }
        }
    }

    /// Writes all pages of the set to `shown`. If there are more than `most`, draws that many at random, with
    /// replacement.
    pub(super) fn show(&self, most: usize, rng: &mut Rng, shown: &mut Vec<PageNo>) {
        shown.clear();
        if self.pages.len() <= most {
            shown.extend(&self.pages);
        } else {
            let drawn = (0..most).map(|_| self.pages[rng.below(self.pages.len() as u32) as usize]);
            shown.extend(drawn);
        }
    }

    /// Returns a page of the set other than `page`, if there is one.
    pub(super) fn another_than(&self, page: PageNo) -> Option<PageNo> {
        self.pages.iter().copied().find(|&other| other != page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SHAPE: Shape = Shape { pages: 100, frames: 40 };

    #[test]
    fn a_set_has_the_added_and_not_removed_pages() {
        let (mut roll, mut plain, mut rng) = (Roll::new(SHAPE), BTreeSet::new(), Rng::new(5));
        for _ in 0..5000 {
            let page = PageNo(rng.below(SHAPE.pages));
            if plain.len() < 40 && rng.below(2) == 0 {
                roll.insert(page);
                plain.insert(page);
            } else {
                roll.remove(page);
                plain.remove(&page);
            }
            let mut shown = Vec::new();
            roll.show(40, &mut rng, &mut shown);
            assert_eq!((shown.len(), shown.into_iter().collect()), (plain.len(), plain.clone()));
            assert_eq!(roll.another_than(page).is_some(), plain.iter().any(|&other| other != page));
        }
        assert_eq!(roll.pages.capacity(), 40);
    }

    #[test]
    fn samples_of_a_set_are_uniform() {
        let (mut roll, mut rng, mut shown) = (Roll::new(SHAPE), Rng::new(1), Vec::new());
        (0..40).for_each(|page| roll.insert(PageNo(page)));
        let mut drawn = [0_u32; 40];
        for _ in 0..10_000 {
            roll.show(4, &mut rng, &mut shown);
            assert_eq!(shown.len(), 4);
            shown.iter().for_each(|page| drawn[page.index()] += 1);
        }
        // Six standard deviations of a binomial count with mean 1,000.
        assert!(drawn.iter().all(|count| count.abs_diff(1000) < 190), "{drawn:?}");
    }
}
