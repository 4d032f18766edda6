//! Choice between two rules, predicted distance and age. The choice is learned from comparisons (duels) of
//! two pages: the page with the farthest predicted use, and the page that is unused for longest.
//!
//! Both pages of a comparison are remembered, whichever is evicted. The next use of a paged-out page is
//! detected by its page-in, that of a resident page by its reference bit. The page that is used again first
//! should have stayed. Other policies also choose between two experts by their hypothetical victims (ARC,
//! Megiddo and Modha, FAST 2003; LeCaR, Vietri et al., HotStorage 2018). Here nothing is weighted or
//! simulated, and only the latest comparison of each page counts.
//!
//! Pages with a short reuse time are counted before pages with a long one, so the age rule looks too good at
//! the beginning of a phase. Therefore a page without a prediction, or with a prediction from a single
//! interval, is not compared (`Known::farthest_or_oldest`, `Adaptive::choose`).
//!
//! - **DUEL-1** The next use of a page decides its latest comparison. If the rival was not used since, the
//!   result is against the rule that chose this page as the victim. Otherwise it is for that rule. So a page
//!   counts at most once per comparison, and a rival that is never used again does not delay the result.

use super::confidence::Confidence;
use crate::replace::{PageNo, Shape};
use crate::sparse::Sparse;

/// The latest comparison of a page.
#[derive(Clone, Copy, Debug)]
struct Duel {
    rival: PageNo,
    /// Event number of the comparison; events count from one, and zero means no comparison.
    at: u64,
    /// Set if the prediction rule would have evicted this page; otherwise the age rule.
    by_forecast: bool,
}

/// The open comparisons, and the confidence in predictions from the decided ones.
#[derive(Clone, Debug)]
pub(super) struct Duels {
    open: Sparse<Duel>,
    forecasts: Confidence,
}

impl Duels {
    /// Creates the state without comparisons. Predictions are trusted until most of them prove wrong.
    pub(super) fn new(shape: Shape) -> Self {
        let none = Duel { rival: PageNo(0), at: 0, by_forecast: false };
        Self { open: Sparse::new(none, shape.pages as usize), forecasts: Confidence::EVEN }
    }

    /// Chooses the victim of two pages: the page with the farthest predicted use, or the page that is unused
    /// for longest. Remembers the comparison for both.
    pub(super) fn choose(&mut self, farthest: PageNo, oldest: PageNo, now: u64) -> PageNo {
        if farthest != oldest {
            self.open[farthest.index()] = Duel { rival: oldest, at: now, by_forecast: true };
            self.open[oldest.index()] = Duel { rival: farthest, at: now, by_forecast: false };
        }
        if self.forecasts.holds() { farthest } else { oldest }
    }

    /// Records a use of a page, which decides its open comparison. `last_touch` returns a page's last use
    /// before now.
    pub(super) fn used(&mut self, page: PageNo, last_touch: impl FnOnce(PageNo) -> u64) {
        let Duel { rival, at, by_forecast } = self.open[page.index()];
        if at > 0 {
            self.open[page.index()].at = 0;
            let rival_was_first = last_touch(rival) >= at;
            self.forecasts.learn(by_forecast == rival_was_first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { pages: 100, frames: 50 };
    const FARTHEST: PageNo = PageNo(3);
    const OLDEST: PageNo = PageNo(70);

    /// A sequence of comparisons and uses. Each event has the next number.
    struct Uses {
        duels: Duels,
        last: [u64; 100],
        now: u64,
    }

    impl Uses {
        fn new() -> Self {
            Self { duels: Duels::new(SHAPE), last: [0; 100], now: 1 }
        }

        fn choose(&mut self, farthest: PageNo, oldest: PageNo) -> PageNo {
            self.now += 1;
            self.duels.choose(farthest, oldest, self.now)
        }

        fn used(&mut self, page: PageNo) {
            self.now += 1;
            self.duels.used(page, |page| self.last[page.index()]);
            self.last[page.index()] = self.now;
        }
    }

    #[test]
    fn the_victim_that_is_used_again_first_was_the_wrong_choice() {
        for (used, chosen) in [
            (&[FARTHEST, OLDEST][..], OLDEST),
            (&[FARTHEST], OLDEST),
            (&[OLDEST, FARTHEST], FARTHEST),
            (&[OLDEST], FARTHEST),
            (&[PageNo(50)], FARTHEST),
        ] {
            let mut uses = Uses::new();
            uses.choose(FARTHEST, OLDEST);
            used.iter().for_each(|&page| uses.used(page));
            assert_eq!(uses.choose(FARTHEST, OLDEST), chosen, "{used:?}");
        }
    }

    #[test]
    fn a_page_that_is_used_again_and_again_is_counted_once() {
        let mut uses = Uses::new();
        uses.choose(FARTHEST, OLDEST);
        // The prediction was wrong once, then right twice.
        uses.used(FARTHEST);
        for other in [10, 20] {
            uses.choose(PageNo(other), PageNo(other + 1));
            uses.used(PageNo(other + 1));
        }
        (0..100).for_each(|_| uses.used(FARTHEST));
        assert_eq!(uses.choose(FARTHEST, OLDEST), FARTHEST);
    }

    #[test]
    fn predictions_lose_if_their_victims_are_used_and_the_oldest_is_not() {
        // Predictions evict one page after the other, each page returns, and the oldest page is never used.
        let mut uses = Uses::new();
        for page in 0..20 {
            uses.choose(PageNo(page), OLDEST);
        }
        // Predictions are trusted until then.
        assert_eq!(uses.choose(FARTHEST, OLDEST), FARTHEST);
        (0..20).for_each(|page| uses.used(PageNo(page)));
        // The single use of the oldest page at the end does not outweigh the others.
        uses.used(OLDEST);
        assert_eq!(uses.choose(FARTHEST, OLDEST), OLDEST);
    }

    #[test]
    fn a_choice_of_one_page_changes_nothing() {
        for (used, chosen) in [(FARTHEST, OLDEST), (OLDEST, FARTHEST)] {
            let mut uses = Uses::new();
            uses.choose(FARTHEST, OLDEST);
            uses.used(used);
            for _ in 0..100 {
                assert_eq!(uses.choose(PageNo(50), PageNo(50)), PageNo(50));
                uses.used(PageNo(50));
            }
            assert_eq!(uses.choose(FARTHEST, OLDEST), chosen);
        }
    }
}
