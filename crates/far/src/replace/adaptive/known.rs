//! Data about all pages: the times of their uses, and the resident pages with a clear reference bit.

use super::confidence::Confidence;
use super::duels::Duels;
use super::reuse_history::ReuseHistory;
use super::roll::Roll;
use crate::replace::{AccessBits, PageNo, Shape};
use crate::sparse::Sparse;

/// Recorded uses of all pages, with the predictors that learn from them.
#[derive(Clone, Debug)]
pub struct Known {
    histories: Sparse<ReuseHistory>,
    confidence: Confidence,
    duels: Duels,
    pub(super) resident: Roll,
    /// Resident pages that were not touched since their bit was cleared: the candidates for eviction.
    pub(super) idle: Roll,
}

impl Known {
    /// Creates the data without resident pages. The first burst of each page lasts `2^burst_exponent` events.
    #[must_use]
    pub(super) fn new(shape: Shape, burst_exponent: u8) -> Self {
        let histories = Sparse::new(ReuseHistory::new(burst_exponent), shape.pages as usize);
        let (resident, idle) = (Roll::new(shape), Roll::new(shape));
        Self { histories, confidence: Confidence::NONE, duels: Duels::new(shape), resident, idle }
    }

    pub(super) fn reuse_history(&self, page: PageNo) -> &ReuseHistory {
        &self.histories[page.index()]
    }

    /// Returns the page that is unused for longest.
    ///
    /// # Panics
    ///
    /// If `pages` is empty.
    pub(super) fn oldest(&self, pages: &[PageNo]) -> PageNo {
        let oldest = pages.iter().copied().min_by_key(|&page| self.reuse_history(page).last_touch());
        oldest.expect("a page is shown")
    }

    /// Chooses the victim of two pages: the page with the farthest predicted use, and the oldest page. A page
    /// with a single interval is not compared; its prediction already depends on the confidence in single
    /// intervals.
    pub(super) fn farthest_or_oldest(&mut self, farthest: PageNo, oldest: PageNo, now: u64) -> PageNo {
        if self.reuse_history(farthest).is_single() {
            farthest
        } else {
            self.duels.choose(farthest, oldest, now)
        }
    }

    /// Returns the predicted time of the page's next use, from its own history or else from its neighbors. A
    /// single interval that is not yet trusted counts for at most the time for which the page has been
    /// unused.
    pub(super) fn next_use(&mut self, page: PageNo, now: u64) -> Option<u64> {
        let reuse_history = &mut self.histories[page.index()];
        match reuse_history.next_use(now) {
            Some(due) if reuse_history.is_single() && !self.confidence.holds() => {
                Some(due.min(now + (now - reuse_history.last_touch())))
            }
            Some(due) => Some(due),
            None => self.next_use_by_neighbors(page, now),
        }
    }

    /// Predicts the next use from a neighbor: the last use of this page plus the latest interval of the
    /// nearest suitable page. Pages at distance one, two, four and so on to either side are examined. A page
    /// is suitable if it was used after this page and its interval is not over for this page; of two, the
    /// page used last counts. So the pages ahead of a sweep are expected in the order of the sweep.
    fn next_use_by_neighbors(&self, page: PageNo, now: u64) -> Option<u64> {
        let last = self.reuse_history(page).last_touch();
        let says = |at: usize| {
            let neighbor = self.histories.get(at).filter(|neighbor| neighbor.last_touch() > last)?;
            let due = last + neighbor.latest()?;
            (due > now).then_some((neighbor.last_touch(), due))
        };
        let steps = std::iter::successors(Some(1), |step| Some(2 * step));
        let mut nearest = steps.take_while(|&step| step < self.histories.len()).filter_map(|step| {
            let below = page.index().checked_sub(step).and_then(says);
            below.max(says(page.index() + step))
        });
        nearest.next().map(|(_, due)| due)
    }

    /// Records that the page was paged in, or was touched for the first time since its bit was cleared.
    pub(super) fn touched(&mut self, page: PageNo, now: u64, longest_burst_exponent: u8) {
        self.duels.used(page, |rival| self.histories[rival.index()].last_touch());
        let reuse_history = &mut self.histories[page.index()];
        if reuse_history.touch(now, longest_burst_exponent)
            && let Some(borne_out) = reuse_history.second_confirms_first()
        {
            self.confidence.learn(borne_out);
        }
        self.idle.remove(page);
    }

    /// Clears the bit of a resident page.
    pub(super) fn clear(&mut self, page: PageNo, now: u64, bits: &mut dyn AccessBits) {
        bits.clear_referenced(page);
        self.histories[page.index()].clear(now);
        self.idle.insert(page);
    }

    pub(super) fn left(&mut self, page: PageNo) {
        self.resident.remove(page);
        self.idle.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace::adaptive::tests::Bits;

    fn new() -> Known {
        Known::new(Shape { pages: 1000, frames: 1000 }, 0)
    }

    /// Records a use at time `at`, and clears the bit at once.
    fn touch(known: &mut Known, page: u32, at: u64) {
        known.touched(PageNo(page), at, 8);
        known.clear(PageNo(page), at, &mut Bits);
    }

    #[test]
    fn pages_ahead_of_a_sweep_are_expected_in_its_order() {
        // The pages are written one after the other, then read in the same order up to page 20.
        for upward in [true, false] {
            let mut known = new();
            let page = |nth: u32| if upward { 100 + nth } else { 300 - nth };
            (0..100).for_each(|nth| touch(&mut known, page(nth), 1 + u64::from(nth)));
            assert_eq!(known.next_use(PageNo(page(40)), 200), None, "nobody came again yet");
            (0..=20).for_each(|nth| touch(&mut known, page(nth), 301 + u64::from(nth)));
            // Each page that the second sweep passed waited 300 events.
            for nth in 21..100 {
                let due = known.next_use(PageNo(page(nth)), 321);
                let distant = (0..7).any(|power| (nth - 20..=nth).contains(&(1 << power)));
                assert_eq!(due, distant.then(|| 301 + u64::from(nth)), "{nth}");
            }
            // A single page far from the sweep, used before the sweep and not since.
            touch(&mut known, 900, 50);
            assert_eq!(known.next_use(PageNo(900), 400), None);
        }
    }

    #[test]
    fn only_an_older_neighbor_with_a_later_use_is_a_precedent() {
        let mut known = new();
        touch(&mut known, 10, 1);
        touch(&mut known, 10, 101);
        touch(&mut known, 11, 102);
        assert_eq!(known.next_use(PageNo(11), 110), None, "the neighbor's use was earlier");
        touch(&mut known, 13, 90);
        touch(&mut known, 12, 120);
        touch(&mut known, 12, 150);
        assert_eq!(known.next_use(PageNo(11), 131), Some(132), "as long as the neighbor at 12");
        assert_eq!(known.next_use(PageNo(11), 132), None, "longer than any neighbor waited");
        touch(&mut known, 9, 1);
        touch(&mut known, 9, 301);
        assert_eq!(known.next_use(PageNo(11), 310), Some(402), "two below");
    }

    #[test]
    fn a_single_interval_is_capped_by_its_age_until_others_were_confirmed() {
        let mut known = new();
        touch(&mut known, 500, 1);
        touch(&mut known, 500, 201);
        assert_eq!(known.next_use(PageNo(500), 210), Some(219), "unused for nine");
        assert_eq!(known.next_use(PageNo(500), 390), Some(401), "no later than it says itself");
        for page in 0..30 {
            [1, 301, 601].into_iter().for_each(|at| touch(&mut known, page, at));
        }
        touch(&mut known, 600, 602);
        touch(&mut known, 600, 802);
        assert_eq!(known.next_use(PageNo(600), 810), Some(1002), "now it is believed");
        for page in 100..130 {
            [1, 301, 311].into_iter().for_each(|at| touch(&mut known, page, at));
        }
        assert_eq!(known.next_use(PageNo(600), 810), Some(818), "and now not any more");
    }

    #[test]
    fn after_wrong_forecasts_the_oldest_page_is_evicted() {
        let mut known = new();
        touch(&mut known, 5, 1);
        [2, 102].into_iter().for_each(|at| touch(&mut known, 6, at));
        [3, 103, 203].into_iter().for_each(|at| touch(&mut known, 7, at));
        let [oldest, single, regular] = [5, 6, 7].map(PageNo);
        assert_eq!(known.oldest(&[regular, oldest, single]), oldest);
        let leave = |known: &mut Known, page| known.farthest_or_oldest(page, oldest, 210);
        assert_eq!([single, regular].map(|page| leave(&mut known, page)), [single, regular]);
        // The page is used again before the oldest page.
        touch(&mut known, 7, 220);
        assert_eq!([single, regular].map(|page| leave(&mut known, page)), [single, oldest]);
    }
}
