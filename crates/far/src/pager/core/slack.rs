//! The split of the budget between local pages (`limit`) and pages being paged out (`slack`). The sum is
//! constant.
//!
//! A page that is paged out gives its room to the next one at once, but its frame is free only when a
//! replica has its bytes. A sequential sweep has many pages in transfer and needs a large slack, or it waits
//! for replies. A program with random accesses has few, and each page of slack is a page that it misses.
//!
//! - **SLACK-1** `slack` follows the number of pages that leave at a time: [`PER_EVICTION`] times the moving
//!   average of a victim's run, between [`least`] and the plan's.
//! - **SLACK-2** `slack` grows by at most half of the room that one eviction made, and never shrinks below
//!   the number of leaving pages. So it never makes a page leave or wait (PAGER-1).

use super::Core;
use super::unmanaged::LEAST;

/// Evictions of average size that may be under way.
const PER_EVICTION: usize = 8;
/// Weight of the average, in evictions.
const WEIGHT: usize = 16;
/// The smallest slack is the budget divided by this number.
const LEAST_PART: usize = 64;

/// Returns the smallest slack for a budget of pages; `most` is the largest one.
pub(crate) fn least(budget: usize, most: usize) -> usize {
    (budget / LEAST_PART).max(1).min(most)
}

/// Follows the number of pages that leave at a time.
#[derive(Debug)]
pub(super) struct Slack {
    least: usize,
    most: usize,
    /// [`WEIGHT`] times the average of a victim's run.
    average: usize,
}

impl Slack {
    /// The state for a budget of pages; `most` is the largest slack.
    pub(super) fn new(budget: usize, most: usize) -> Self {
        Self { least: least(budget, most), most, average: WEIGHT }
    }

    pub(super) fn least(&self) -> usize {
        self.least
    }

    /// Notes the pages of a victim's run. Returns the slack that is wanted now.
    fn observe(&mut self, pages: usize) -> usize {
        self.average = self.average - self.average / WEIGHT + pages;
        (PER_EVICTION * self.average / WEIGHT).clamp(self.least, self.most)
    }
}

impl Core {
    /// Pages kept free ahead of need.
    pub(super) fn reserve(&self) -> usize {
        // Where all pages find room no page leaves, also not ahead of need: there is no slack.
        (2 * self.run).min(self.slack / 2)
    }

    /// Notes the number of evictions that made room for a victim's run.
    pub(super) fn split_anew(&mut self, run: usize, evicted: usize) {
        let wanted = self.split.observe(run);
        let before = self.slack;
        if wanted > before {
            // TIER-1: the tier leaves some local pages, also when the slack grows.
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
        // Of a small budget one page; none where all pages find room.
        assert_eq!((least(8, 1), least(60, 7), least(5, 0)), (1, 1, 0));
    }
}
