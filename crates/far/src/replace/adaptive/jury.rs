//! Five ways to choose who leaves, and which of them has been right of late.

use crate::replace::list::PageLists;
use crate::replace::rng::Lots;
use crate::replace::{PageNo, Shape};

/// A way to choose. The first three look at pages whose reference bit is clear only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// The page whose predicted next use is farthest from now.
    Farthest,
    /// The page that was not touched for longest.
    Oldest,
    /// A random page, an unmodified one if there is one (as U-NRU).
    LowestClass,
    /// The next page by address (as Simple).
    Hand,
    /// A random page.
    Lot,
}

impl Judge {
    const ALL: [Self; 5] = [Self::Farthest, Self::Oldest, Self::LowestClass, Self::Hand, Self::Lot];
}

/// One victim in so many is chosen by a judge drawn by lot.
const EXPLORED: u32 = 16;
/// A reward counts for so much of the mean.
const RATE: f64 = 1.0 / 16.0;
/// A page that stays away for so many times the frames is as good a choice as can be.
const LONG: u64 = 8;

/// What the judges earned, and what they are still to earn.
#[derive(Clone, Debug)]
pub struct Jury {
    /// Recent mean time until a judge's victims were wanted again; infinite if none was yet.
    rewards: [f64; 5],
    /// Pages that are away and not yet rewarded, the longest away first.
    away: PageLists,
    /// Per page: who chose it, and when it left.
    chosen: Vec<(Judge, u64)>,
    newest: Option<PageNo>,
    long: u64,
}

impl Jury {
    /// Nobody has earned anything.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            rewards: [f64::INFINITY; 5],
            away: PageLists::new(shape.pages, 1),
            chosen: vec![(Judge::Farthest, 0); shape.pages as usize],
            newest: None,
            long: LONG * u64::from(shape.frames),
        }
    }

    /// Who chooses the next victim.
    pub(crate) fn decide(&self, lots: &mut Lots) -> Judge {
        if lots.below(EXPLORED) == 0 {
            return Judge::ALL[lots.below(5) as usize];
        }
        let better = |a: Judge, b: Judge| if self.reward(b) > self.reward(a) { b } else { a };
        Judge::ALL.into_iter().reduce(better).unwrap_or(Judge::Farthest)
    }

    /// A judge's recent mean.
    #[must_use]
    pub fn reward(&self, judge: Judge) -> f64 {
        self.rewards[judge as usize]
    }

    /// A judge chose a page.
    pub fn chose(&mut self, page: PageNo, judge: Judge) {
        self.chosen[page.index()].0 = judge;
        self.newest = Some(page);
    }

    /// Whether the page was chosen last and has not left since.
    #[must_use]
    pub fn just_chose(&self, page: PageNo) -> bool {
        self.newest == Some(page)
    }

    /// A page left. Only if it was chosen is anybody rewarded for it.
    pub fn left(&mut self, page: PageNo, now: u64) {
        if self.newest == Some(page) {
            self.newest = None;
            self.chosen[page.index()].1 = now;
            self.away.push_back(0, page);
        }
        while let Some(longest) = self.away.head(0)
            && now - self.chosen[longest.index()].1 >= self.long
        {
            self.came_back(longest, now);
        }
    }

    /// A page is wanted again, or has been away for long enough.
    pub fn came_back(&mut self, page: PageNo, now: u64) {
        if !self.away.remove(page) {
            return;
        }
        let (judge, left) = self.chosen[page.index()];
        let time = (now - left).min(self.long) as f64;
        let mean = &mut self.rewards[judge as usize];
        *mean = if mean.is_infinite() { time } else { *mean + (time - *mean) * RATE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(jury: &mut Jury, page: u32, judge: Judge, left: u64, back: u64) {
        jury.chose(PageNo(page), judge);
        jury.left(PageNo(page), left);
        jury.came_back(PageNo(page), back);
    }

    #[test]
    fn the_judge_whose_victims_stay_away_longest_decides() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 100 });
        for (page, judge) in (0..).zip(Judge::ALL) {
            sentence(&mut jury, page, judge, 10, if judge == Judge::Hand { 90 } else { 40 });
        }
        let mut lots = Lots::new(1);
        let mut hand = 0;
        for _ in 0..1000 {
            hand += u32::from(jury.decide(&mut lots) == Judge::Hand);
        }
        assert!((900..1000).contains(&hand), "{hand}: nearly always, never quite");
        // It errs for a while.
        (0..40).for_each(|_| sentence(&mut jury, 0, Judge::Hand, 100, 101));
        assert!(jury.reward(Judge::Hand) < jury.reward(Judge::Lot));
    }

    #[test]
    fn a_page_that_stays_away_is_a_full_reward_and_one_that_left_by_itself_none() {
        let mut jury = Jury::new(Shape { pages: 8, frames: 2 });
        jury.left(PageNo(1), 5);
        jury.came_back(PageNo(1), 6);
        assert!(jury.reward(Judge::Farthest).is_infinite());
        jury.chose(PageNo(1), Judge::Oldest);
        jury.left(PageNo(1), 5);
        jury.chose(PageNo(2), Judge::Lot);
        jury.left(PageNo(2), 5 + LONG * 2);
        assert_eq!(jury.reward(Judge::Oldest), (LONG * 2) as f64);
    }
}
