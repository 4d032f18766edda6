//! Whether forecasts are worth more than ages: learnt from pairs of pages, of which one is expected farthest
//! and the other is unused for longest.
//!
//! Both are remembered when they are compared, whichever leaves and wherever they are then: a page that is
//! away is seen when it comes back, one that is here by its bit. Who is used again first should have stayed.
//! Policies that choose between two experts by what each would have sent away have done so before (ARC,
//! Megiddo and Modha, FAST 2003; LeCaR, Vietri et al., HotStorage 2018); here nothing is weighed or
//! simulated, and of each page only the latest comparison counts.
//!
//! Who comes back soon is counted before who comes back late, so ages look better than they are when a phase
//! has just begun. Therefore a page of which nobody can say when it is needed, or only a single interval
//! does, is not compared (`Known::farthest_or_oldest`, `Adaptive::choose`).
//!
//! - **DUEL-1** A page's return decides its latest comparison: for the other side if the rival was not used
//!   since, else for its own. So a page is counted once for each comparison at the most, and a rival that
//!   never returns does not delay the verdict.

use super::confidence::Confidence;
use crate::replace::{PageNo, Shape};
use crate::sparse::Sparse;

/// The latest comparison of a page.
#[derive(Clone, Copy, Debug)]
struct Duel {
    rival: PageNo,
    /// Events count from one; zero if there was none.
    at: u64,
    /// It was the forecast that would have sent this page away, not its age.
    by_forecast: bool,
}

/// All that are open, and what came of the others.
#[derive(Clone, Debug)]
pub(super) struct Duels {
    open: Sparse<Duel>,
    forecasts: Confidence,
}

impl Duels {
    /// None yet; forecasts are believed, as long as not most of them prove wrong.
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

    /// One duel after the other, and who is used again after it, in that order; each event is one later.
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
