//! The miss-ratio curve: how many misses more local memory would avoid.
//!
//! The pages that were paged out are in a list, the latest last. A touched page at place *n* from the end
//! would have stayed resident with *n* more local pages, provided that pages are paged out in the order of
//! their last use. Pages are sampled by a hash of their number: one page of 2^`shift` is in the list, so each
//! place represents 2^`shift` pages. The length of the list is limited, so a miss costs at most one pass over
//! it.

/// Largest number of pages in the list.
const MOST: usize = 1024;
/// Number of buckets of the histogram; `PARTS` buckets represent as many pages as are local. So the curve
/// ends at eight times the local memory.
const BUCKETS: usize = 64;
const PARTS: usize = 8;

/// Histogram of misses by the additional pages that would have avoided them; see the [module](self).
#[derive(Debug)]
pub(super) struct MissCurve {
    /// Sampled pages that were paged out, the latest last.
    left: Vec<u32>,
    shift: u32,
    /// Number of pages that a bucket represents.
    width: usize,
    /// Number of sampled misses, by the additional pages that would have avoided them.
    avoided: [u64; BUCKETS],
    /// Number of sampled misses that more memory than the curve covers would have avoided.
    beyond: u64,
}

impl MissCurve {
    /// Creates an empty curve for this number of local pages.
    pub(super) fn new(limit: usize) -> Self {
        let width = limit.div_ceil(PARTS).max(1);
        Self { left: Vec::new(), shift: 0, width, avoided: [0; BUCKETS], beyond: 0 }
    }

    fn is_sampled(&self, page: u32) -> bool {
        page.wrapping_mul(0x9e37_79b1).checked_shr(32 - self.shift).unwrap_or(0) == 0
    }

    /// Removes a page from the list. Returns its place from the end; the last place is 1.
    fn take(&mut self, page: u32) -> Option<usize> {
        let place = self.left.iter().rposition(|&other| other == page)?;
        let behind = self.left.len() - place;
        self.left.remove(place);
        Some(behind)
    }

    /// Records that a page was paged out.
    pub(super) fn left(&mut self, page: u32) {
        if !self.is_sampled(page) {
            return;
        }
        self.take(page);
        self.left.push(page);
        if self.left.len() > MOST {
            self.shift += 1;
            let all = std::mem::take(&mut self.left);
            self.left = all.into_iter().filter(|&page| self.is_sampled(page)).collect();
            self.avoided.iter_mut().for_each(|count| *count /= 2);
            self.beyond /= 2;
        }
    }

    /// Removes a page that is empty, or that was paged in without a miss.
    pub(super) fn forget(&mut self, page: u32) {
        if !self.left.is_empty() && self.is_sampled(page) {
            self.take(page);
        }
    }

    /// Records a miss of a page. Returns the number of additional local pages that would have avoided the
    /// miss; `usize::MAX` if the curve does not reach that far, and `None` if the page is not sampled.
    pub(super) fn missed(&mut self, page: u32) -> Option<usize> {
        if !self.is_sampled(page) {
            return None;
        }
        let more = self.take(page).map(|behind| behind << self.shift);
        let place = more.map(|more| (more - 1) / self.width);
        *place.and_then(|place| self.avoided.get_mut(place)).unwrap_or(&mut self.beyond) += 1;
        Some(more.unwrap_or(usize::MAX))
    }

    /// Returns the number of additional local pages that would have avoided `hundredths` percent of the
    /// misses. Returns `None` if the curve does not reach that far, or if there was no miss.
    pub(super) fn more_for(&self, hundredths: u64) -> Option<usize> {
        let all = self.beyond + self.avoided.iter().sum::<u64>();
        let mut avoided = 0;
        let enough = |count: &u64| {
            avoided += count;
            avoided * 100 >= all * hundredths
        };
        let place = self.avoided.iter().position(enough).filter(|_| all > 0)?;
        Some((place + 1) * self.width)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs a program that cycles through `pages` pages, of which the last `local` are resident.
    fn walk(pages: u32, local: u32) -> MissCurve {
        let mut curve = MissCurve::new(local as usize);
        for touch in 0..6 * pages {
            if touch >= pages {
                let _ = curve.missed(touch % pages);
            }
            if touch >= local {
                curve.left((touch - local) % pages);
            }
        }
        curve
    }

    #[test]
    fn a_walk_needs_all_of_its_pages_and_less_avoids_nothing() {
        let curve = walk(300, 100);
        assert_eq!((curve.shift, curve.beyond), (0, 0));
        assert_eq!(
            (curve.more_for(1), curve.more_for(100)),
            (Some(208), Some(208)),
            "200 and a bucket's rest"
        );
        let sampled = walk(50_000, 20_000);
        assert!(sampled.shift >= 4, "{}", sampled.shift);
        let half = sampled.more_for(50).expect("within the curve");
        assert!((27_000..=33_000).contains(&half), "{half}");
        assert_eq!(walk(2000, 100).more_for(1), None, "nineteen times as much");
        assert_eq!(MissCurve::new(9).more_for(50), None);
    }

    #[test]
    fn prefetched_and_empty_pages_are_no_misses() {
        let mut curve = MissCurve::new(64);
        (0..10).for_each(|page| curve.left(page));
        (0..9).for_each(|page| curve.forget(page));
        assert_eq!(curve.more_for(1), None);
        curve.missed(9);
        assert_eq!(curve.more_for(100), Some(8));
        curve.missed(3);
        assert_eq!((curve.more_for(50), curve.more_for(51)), (Some(8), None));
    }
}
