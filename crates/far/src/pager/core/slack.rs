//! The split of the budget between local pages (`limit`) and pages being paged out (`slack`). The sum is
//! constant.
//!
//! A page that is paged out is no longer local, but its frame is free only when a replica has its bytes. A
//! sequential sweep has many pages in transfer and needs a large slack, or it waits for replies. A program
//! with random accesses has few pages in transfer, and each page of slack is a local page less.
//!
//! - **SLACK-1** `slack` follows the number of pages that are paged out at a time: [`PER_EVICTION`] times the
//!   moving average of a victim's run, between [`least`] and the plan's slack.
//! - **SLACK-2** `slack` grows by at most half of the pages that one eviction freed, and never shrinks below
//!   the number of leaving pages. So a change of `slack` never makes a page leave or wait (PAGER-1).

use super::Core;
use super::unmanaged::LEAST;

/// Number of evictions of average size for which there is slack.
const PER_EVICTION: usize = 8;
/// Number of evictions over which the average is taken.
const WEIGHT: usize = 16;
/// Divisor of the budget: the smallest slack.
const LEAST_PART: usize = 64;

/// Returns the smallest slack for a budget of pages; `most` is the largest one.
pub(crate) fn least(budget: usize, most: usize) -> usize {
    (budget / LEAST_PART).max(1).min(most)
}

/// Moving average of the number of pages that are paged out at a time.
#[derive(Debug)]
pub(super) struct Slack {
    least: usize,
    most: usize,
    /// [`WEIGHT`] times the average number of pages of a victim's run.
    average: usize,
}

impl Slack {
    /// Creates the state for a budget of `budget` pages; `most` is the largest slack.
    pub(super) fn new(budget: usize, most: usize) -> Self {
        Self { least: least(budget, most), most, average: WEIGHT }
    }

    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Records the number of pages of a victim's run. Returns the slack that SLACK-1 requires now.
    fn observe(&mut self, pages: usize) -> usize {
        self.average = self.average - self.average / WEIGHT + pages;
        (PER_EVICTION * self.average / WEIGHT).clamp(self.least, self.most)
    }
}

impl Core {
    /// Returns the number of frames that are kept free ahead of need.
    pub(super) fn reserve(&self) -> usize {
        // If all pages fit, no page is ever paged out: there is no slack.
        (2 * self.run).min(self.slack / 2)
    }

    /// Adapts `slack` after an eviction: `run` is the length of the victim's run, `evicted` the number of
    /// pages that it freed.
    pub(super) fn split_anew(&mut self, run: usize, evicted: usize) {
        let wanted = self.split.observe(run);
        let before = self.slack;
        if wanted > before {
            // TIER-1: the tier leaves some local pages, also when `slack` grows.
            let most = if self.tier.bytes() > 0 { self.limit.saturating_sub(LEAST) } else { usize::MAX };
            self.slack = wanted.min(before + (evicted / 2).min(most));
        } else if wanted < before && self.leaving + self.recopying < before {
            self.slack = before - 1;
        }
        self.full_limit = self.full_limit + before - self.slack;
        self.set_limit();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_slack_is_least_for_single_pages_and_most_for_runs() {
        let mut slack = Slack::new(1024, 128);
        assert_eq!((slack.least(), slack.observe(1)), (16, 16));
        assert_eq!((0..8).map(|_| slack.observe(64)).last(), Some(128));
        assert_eq!((0..80).map(|_| slack.observe(1)).last(), Some(16));
        // A small budget has one page of slack. If all pages fit, there is no slack.
        assert_eq!((least(8, 1), least(60, 7), least(5, 0)), (1, 1, 0));
    }
}
