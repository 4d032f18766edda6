//! Lots for the policies that draw: SplitMix64, a few instructions and no allocation.

use super::PageNo;

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Lots(u64);

impl Lots {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero. The bias is below `end / 2^32`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(end)) >> 32) as u32
    }
}

/// Chooses one of the pages it is shown, each with the same chance.
#[derive(Debug, Default)]
pub(crate) struct Urn {
    chosen: Option<PageNo>,
    shown: u32,
}

impl Urn {
    pub(crate) fn show(&mut self, page: PageNo, lots: &mut Lots) {
        self.shown += 1;
        if lots.below(self.shown) == 0 {
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
    fn lots_are_even() {
        let mut lots = Lots::new(1);
        let mut drawn = [0_u32; 7];
        let mut urns = [0_u32; 7];
        for _ in 0..70_000 {
            drawn[lots.below(7) as usize] += 1;
            let mut urn = Urn::default();
            (0..7).for_each(|page| urn.show(PageNo(page), &mut lots));
            urns[urn.chosen().unwrap().index()] += 1;
        }
        // Six standard deviations of a binomial count with mean 10,000.
        for count in drawn.into_iter().chain(urns) {
            assert!(count.abs_diff(10_000) < 560, "{drawn:?} {urns:?}");
        }
    }
}
