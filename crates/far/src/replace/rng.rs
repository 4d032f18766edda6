//! Random numbers for the policies: a small seeded generator of the crate `rand`. It does not allocate
//! (REPLACE-2).

use super::PageNo;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// A seeded random number generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(Xoshiro256PlusPlus);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number below `end`, which must not be zero.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0.random_range(0..end)
    }
}

/// Chooses one of the offered pages, each with the same probability (reservoir sampling).
#[derive(Debug, Default)]
pub(crate) struct Reservoir {
    chosen: Option<PageNo>,
    shown: u32,
}

impl Reservoir {
    pub(crate) fn show(&mut self, page: PageNo, rng: &mut Rng) {
        self.shown += 1;
        if rng.below(self.shown) == 0 {
            self.chosen = Some(page);
        }
    }

    pub(crate) fn chosen(self) -> Option<PageNo> {
        self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_draws_are_uniform() {
        let mut rng = Rng::new(1);
        let mut drawn = [0_u32; 7];
        let mut urns = [0_u32; 7];
        for _ in 0..70_000 {
            drawn[rng.below(7) as usize] += 1;
            let mut reservoir = Reservoir::default();
            (0..7).for_each(|page| reservoir.show(PageNo(page), &mut rng));
            urns[reservoir.chosen().unwrap().index()] += 1;
        }
        // Six standard deviations of a binomial count with mean 10,000.
        for count in drawn.into_iter().chain(urns) {
            assert!(count.abs_diff(10_000) < 560, "{drawn:?} {urns:?}");
        }
    }
}
