//! Choice between two rules, predicted distance and age, learned from pairs of pages: one that is expected
//! farthest, and one that is unused for longest.
//!
//! Both pages are remembered when they are compared, whichever is evicted. A paged-out page is seen when it
//! is paged in again, a resident one by its reference bit. The page that is used again first should have
//! stayed. Policies that choose between two experts by their hypothetical victims are known (ARC, Megiddo
//! and Modha, FAST 2003; LeCaR, Vietri et al., HotStorage 2018); here nothing is weighted or simulated, and
//! only the latest comparison of each page counts.
//!
//! Pages with a short reuse time are counted before those with a long one, so ages look better than they are
//! at the beginning of a phase. Therefore a page without a prediction, or with a prediction from a single
//! interval, is not compared (`Known::farthest_or_oldest`, `Adaptive::choose`).
//!
//! - **DUEL-1** The next use of a page decides its latest comparison: against the rule that chose this page
//!   as the victim if the rival was not used since, otherwise for that rule. So a page counts at most once
//!   per comparison, and a rival that is never used again does not delay the result.

use super::confidence::Confidence;
use crate::replace::{PageNo, Shape};
use crate::sparse::Sparse;

/// The latest comparison of a page.
#[derive(Clone, Copy, Debug)]
struct Duel {
    rival: PageNo,
    /// Events count from one; zero if there was none.
    at: u64,
    /// The forecast would have evicted this page, not its age.
    by_forecast: bool,
}

/// The open duels, and the results of the others.
#[derive(Clone, Debug)]
pub(super) struct Duels {
    open: Sparse<Duel>,
    forecasts: Confidence,
}

impl Duels {
    /// No duels yet; forecasts are trusted as long as not most of them prove wrong.
    pub(super) fn new(shape: Shape) -> Self {
        let none = Duel { rival: PageNo(0), at: 0, by_forecast: false };
        Self { open: Sparse::new(none, shape.pages as usize), forecasts: Confidence::EVEN }
    }

    /// Chooses the victim of two pages: the one that is expected farthest, or the one that is unused for
    /// longest. Remembers both.
    pub(super) fn choose(&mut self, farthest: PageNo, oldest: PageNo, now: u64) -> PageNo {
        if farthest != oldest {
            self.open[farthest.index()] = Duel { rival: oldest, at: now, by_forecast: true };
            self.open[oldest.index()] = Duel { rival: farthest, at: now, by_forecast: false };
        }
        if self.forecasts.holds() { farthest } else { oldest }
    }

    /// The page is used; `last_touch` is a page's last use before now.
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

    /// Replays one duel after the other. Lists the pages that are used again after each, in order; each event
    /// has the next number.
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
    fn who_is_used_again_first_should_have_stayed() {
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
        // The forecast was wrong, then twice right.
        uses.used(FARTHEST);
        for other in [10, 20] {
            uses.choose(PageNo(other), PageNo(other + 1));
            uses.used(PageNo(other + 1));
        }
        (0..100).for_each(|_| uses.used(FARTHEST));
        assert_eq!(uses.choose(FARTHEST, OLDEST), FARTHEST);
    }

    #[test]
    fn a_rival_that_never_returns_decides_against_each_page_that_does() {
        // The forecast sends away one page after the other, each comes back, and the oldest never does.
        let mut uses = Uses::new();
        for page in 0..20 {
            uses.choose(PageNo(page), OLDEST);
        }
        // All are believed until then.
        assert_eq!(uses.choose(FARTHEST, OLDEST), FARTHEST);
        (0..20).for_each(|page| uses.used(PageNo(page)));
        // So the one use of the oldest at the end does not outweigh them.
        uses.used(OLDEST);
        assert_eq!(uses.choose(FARTHEST, OLDEST), OLDEST);
    }

    #[test]
    fn of_one_page_nothing_is_learnt() {
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
