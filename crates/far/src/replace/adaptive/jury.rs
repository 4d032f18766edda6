//! Two ways to choose who leaves, and which of them has been right of late.
//!
//! Whoever decides, both are asked for each victim, and each name is remembered until that page is wanted: if it left, that is when it comes back; if it
//! stayed, when it is touched, which is seen because its reference bit is clear. So each judge learns from all cases, not only from those in which it
//! was obeyed, and nothing is spent on trying the other.

use std::collections::VecDeque;

use crate::replace::{PageNo, Shape};
use crate::sparse::Sparse;

/// A way to choose. Both look at pages whose reference bit is clear only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The page whose predicted next use is farthest from now.
    Farthest,
    /// A random page that was not touched in this era, an unmodified one if there is one (as U-NRU).
    LowestClass,
}

impl Judge {
    /// Who decides while nothing is known comes first.
    pub const ALL: [Self; 2] = [Self::Farthest, Self::LowestClass];
}

/// The mean is over about so many rewards.
const REMEMBERED: f64 = 32.0;
/// A page that nobody wants for so many times the frames is as good a choice as can be.
const LONG: u64 = 32;
/// No vote is open for this page.
const NONE: u64 = u64::MAX;

/// What the judges earned, and what they are still to earn.
#[derive(Clone, Debug)]
pub struct Jury {
    means: [Mean; 2],
    favourite: Judge,
    /// Per page, by judge: when it was named, if that was not rewarded yet.
    votes: Sparse<[u64; 2]>,
    /// All votes in their order; one that was rewarded stays until it is the oldest.
    order: VecDeque<(PageNo, Judge, u64)>,
    newest: Option<PageNo>,
    long: u64,
}

/// Of the latest rewards.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    rewards: f64,
}

impl Mean {
    fn add(&mut self, reward: f64) {
        self.rewards = (self.rewards + 1.0).min(REMEMBERED);
        self.value += (reward - self.value) / self.rewards;
    }
}

impl Jury {
    /// Nobody has earned anything.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let pages = shape.pages as usize;
        Self {
            means: Default::default(),
            favourite: Judge::Farthest,
            votes: Sparse::new([NONE; 2], pages),
            order: VecDeque::with_capacity(4 * pages),
            newest: None,
            long: LONG * u64::from(shape.frames),
        }
    }

    /// Who chooses the next victim: the one whose pages stayed unwanted longest; at a tie, whoever did last time.
    pub fn decide(&mut self) -> Judge {
        for judge in Judge::ALL {
            if self.reward(judge) > self.reward(self.favourite) {
                self.favourite = judge;
            }
        }
        self.favourite
    }

    /// A judge's recent mean time until a page that it named was wanted.
    #[must_use]
    pub fn reward(&self, judge: Judge) -> f64 {
        self.means[judge as usize].value
    }

    /// A judge names a page.
    pub fn vote(&mut self, page: PageNo, judge: Judge, now: u64) {
        self.close_old(now);
        let vote = &mut self.votes[page.index()][judge as usize];
        if *vote == NONE {
            *vote = now;
            self.order.push_back((page, judge, now));
        }
    }

    /// Forgets votes that were rewarded, and rewards those that are old enough, or in the way.
    fn close_old(&mut self, now: u64) {
        while let Some(&(page, judge, at)) = self.order.front() {
            let open = self.votes[page.index()][judge as usize] == at;
            if open && now - at < self.long && self.order.len() < self.order.capacity() {
                break;
            }
            self.order.pop_front();
            if open {
                self.close(page, judge, now);
            }
        }
    }

    /// The page is wanted, whether it was here or away.
    pub fn wanted(&mut self, page: PageNo, now: u64) {
        Judge::ALL.into_iter().for_each(|judge| self.close(page, judge, now));
    }

    fn close(&mut self, page: PageNo, judge: Judge, now: u64) {
        let at = std::mem::replace(&mut self.votes[page.index()][judge as usize], NONE);
        if at != NONE {
            self.means[judge as usize].add((now - at).min(self.long) as f64);
        }
    }

    /// The page is to leave.
    pub fn chose(&mut self, page: PageNo) {
        self.newest = Some(page);
    }

    /// Whether the page was chosen last and has not left since.
    #[must_use]
    pub fn just_chose(&self, page: PageNo) -> bool {
        self.newest == Some(page)
    }

    /// A page left.
    pub fn left(&mut self, page: PageNo) {
        if self.just_chose(page) {
            self.newest = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judge_whose_pages_stay_unwanted_longest_decides_whoever_did() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 100 });
        assert_eq!(jury.decide(), Judge::Farthest);
        jury.vote(PageNo(1), Judge::Farthest, 10);
        jury.vote(PageNo(2), Judge::LowestClass, 10);
        jury.wanted(PageNo(1), 50);
        assert_eq!((jury.reward(Judge::Farthest), jury.decide()), (40.0, Judge::Farthest));
        jury.wanted(PageNo(2), 100);
        assert_eq!((jury.reward(Judge::LowestClass), jury.decide()), (90.0, Judge::LowestClass));
        // It errs for a while.
        for at in 100..140 {
            jury.vote(PageNo(3), Judge::LowestClass, at);
            jury.wanted(PageNo(3), at + 1);
        }
        assert_eq!(jury.decide(), Judge::Farthest);
    }

    #[test]
    fn a_page_named_by_both_rewards_both_and_named_again_only_once() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 100 });
        for at in [5, 6, 7] {
            Judge::ALL.into_iter().for_each(|judge| jury.vote(PageNo(4), judge, at));
        }
        jury.wanted(PageNo(4), 25);
        jury.wanted(PageNo(4), 26);
        assert_eq!(Judge::ALL.map(|judge| jury.reward(judge)), [20.0, 20.0]);
    }

    #[test]
    fn a_page_that_nobody_wants_is_a_full_reward_after_a_while() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 2 });
        jury.vote(PageNo(1), Judge::Farthest, 5);
        jury.vote(PageNo(2), Judge::LowestClass, 5 + LONG * 2 - 1);
        assert_eq!(jury.reward(Judge::Farthest), 0.0);
        jury.vote(PageNo(3), Judge::LowestClass, 5 + LONG * 2 + 3);
        assert_eq!(jury.reward(Judge::Farthest), (LONG * 2) as f64);
    }

    #[test]
    fn votes_never_need_more_room_than_there_was_at_the_start() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 1_000_000 });
        let room = jury.order.capacity();
        for at in 0..10_000 {
            let page = PageNo(at as u32 * 3 % 8);
            Judge::ALL.into_iter().for_each(|judge| jury.vote(page, judge, at));
            if at % 3 == 0 {
                jury.wanted(page, at);
            }
        }
        assert_eq!(jury.order.capacity(), room);
    }
}
