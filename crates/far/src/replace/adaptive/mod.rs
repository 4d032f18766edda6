//! Adaptive: the page whose next use is predicted to be farthest, or one of U-NRU's lowest class, by whichever rule has been right of late. Ours, not
//! the paper's: its open problem is a policy that fits each program without a parameter (§3.3, §4).
//!
//! 1. **Time** is counted in what can be seen: pages that come in and reference bits that are set again.
//! 2. **Thrift** ([`thrift`]). What swaps, cleared bits and their faults take is measured by the region ([`Spent`](super::Spent)). Bits are cleared only as long as that costs less
//!    than the swaps it saves; otherwise nobody looks, and Swap-in history decides, which needs no bits.
//! 3. **Clearing** ([`watch`]). A touched page is left alone until its burst of use should be over, then its bit is cleared, so that its next use is seen. How long
//!    that takes is learnt per page: touched again at once means wait twice as long next time, not at once half as long. Each page that comes in pays
//!    for some clearings, four or eight, by what they cost beside a swap.
//! 4. **Prediction** ([`rhythm`]). A page is used again after the mean of its last two intervals; farthest is the page with the largest
//!    distance from now to then, either way: a page long overdue is as good a victim as one not due for long. In a cyclic sweep that is the page just
//!    passed, so most of the sweep stays (what LRU, FIFO and Clock get wrong); without rhythm it is the page unused for longest.
//! 5. **Class**. Where use has phases and no rhythm, U-NRU is the paper's best: a page that was not touched since the last clearing, unmodified if there is
//!    one. Here nothing is cleared for it: an era begins, and what was touched before it counts as untouched. It has fifty swaps, the paper's own figure for all programs (Fig. 7),
//!    and in a large memory as many as a sixteenth of its pages: by replay that is 14 % fewer swaps of MG (W, a quarter local), and elsewhere the same.
//! 6. **Judges** ([`jury`]). Both rules name a page each time. The time until the page is wanted, be it here or away, is the rule's reward: the very
//!    quantity that Belady's rule maximises. The rule with the higher recent mean decides.
//!
//! Cost: two looks at each page that may leave, at 256 by lot if they are more; at most eight ([`thrift::MANY`]) changes of protection and later faults
//! per swap; and some 150 bytes for each page that ever came, and its neighbours. Weak at use without any pattern in space or time, where nothing helps, and with few swaps, where there is nothing to learn from.
//! The constants are of the method, none is of a program. They were chosen on the evaluation's own programs (sizes S and W, pages of 4 KiB).

pub mod jury;
pub mod known;
pub mod rhythm;
mod roll;
pub mod thrift;
pub mod watch;

use super::rng::{Lots, Urn};
use super::{Access, AccessBits, PageNo, Replacement, Shape, SwapInHistory};
use jury::{Judge, Jury};
use known::Known;
use thrift::Thrift;
use watch::Watch;

/// Swaps of an era, at least, and the part of the frames that is as many where that is more.
const ERA: u32 = 50;
const ERA_PART: u32 = 16;
/// Pages looked at for a victim: all that may leave, or if they are more so many by lot.
const LOOKED_AT: usize = 256;

/// The resident pages and all that is known of every page.
#[derive(Clone, Debug)]
pub struct Adaptive {
    thrift: Thrift,
    /// Who decides while nobody looks.
    blind: SwapInHistory,
    known: Known,
    watch: Watch,
    jury: Jury,
    lots: Lots,
    /// Who is looked at for this victim.
    shown: Vec<PageNo>,
    now: u64,
    /// When this era began, and its swaps so far.
    era: u64,
    swaps: u32,
    swaps_of_era: u32,
}

impl Adaptive {
    /// With nothing resident and nothing known.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let watch = Watch::new(shape);
        Self {
            thrift: Thrift::new(shape),
            blind: SwapInHistory::new(shape),
            known: Known::new(shape, watch.first_patience()),
            watch,
            jury: Jury::new(shape),
            lots: Lots::new(seed),
            shown: Vec::with_capacity(LOOKED_AT),
            now: 0,
            era: 0,
            swaps: 0,
            swaps_of_era: (shape.frames / ERA_PART).max(ERA),
        }
    }

    fn touched(&mut self, page: PageNo, bits: &mut dyn AccessBits) {
        self.known.touched(page, self.now, self.watch.longest_patience());
        self.watch.touched(page, &self.known);
        if self.thrift.looks() {
            self.watch.clear_due(self.now, &mut self.known, bits);
        }
    }

    /// The page that a judge would have leave, of those that are shown: their bits are clear, or all bits are set.
    fn choose(&mut self, judge: Judge, bits: &dyn AccessBits) -> PageNo {
        let Self { known, shown, lots, now, era, .. } = self;
        let idle = || shown.iter().copied().filter(|&page| known.idle.contains(page));
        let chosen = match judge {
            Judge::Farthest => idle().max_by_key(|&page| known.rhythm(page).next_use().abs_diff(*now)),
            Judge::LowestClass => {
                let mut classes: [Urn; 2] = Default::default();
                for page in idle().filter(|&page| known.rhythm(page).last_touch() < *era) {
                    classes[usize::from(bits.is_modified(page))].show(page, lots);
                }
                classes.into_iter().find_map(Urn::chosen)
            }
        };
        // Otherwise the page that is known to be unused for longest.
        let oldest = || shown.iter().copied().min_by_key(|&page| known.rhythm(page).last_touch());
        chosen.or_else(oldest).expect("a page is resident")
    }

    /// Draws who is looked at.
    fn look(&mut self) {
        self.known.idle.show(LOOKED_AT, &mut self.lots, &mut self.shown);
        if self.shown.is_empty() {
            self.known.resident.show(LOOKED_AT, &mut self.lots, &mut self.shown);
        }
    }
}

impl Replacement for Adaptive {
    fn page_in(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits) {
        self.now += 1;
        self.thrift.came(bits.spent());
        self.blind.page_in(page, access, bits);
        self.jury.wanted(page, self.now);
        self.watch.pay(self.thrift.budget());
        self.known.resident.insert(page);
        self.touched(page, bits);
    }

    fn referenced(&mut self, page: PageNo, _: Access, bits: &mut dyn AccessBits) {
        self.now += 1;
        self.jury.wanted(page, self.now);
        self.touched(page, bits);
    }

    fn victim(&mut self, incoming: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        if !self.thrift.looks() {
            return self.blind.victim(incoming, bits);
        }
        self.look();
        let named = Judge::ALL.map(|judge| self.choose(judge, bits));
        let mut victim = named[self.jury.decide() as usize];
        if self.jury.just_chose(victim) {
            // It could not leave.
            victim = self.known.resident.another_than(victim).unwrap_or(victim);
        }
        for (judge, page) in Judge::ALL.into_iter().zip(named) {
            self.jury.vote(page, judge, self.now);
            if page != victim && bits.is_referenced(page) {
                // Every bit was set: how good this choice is must be seen.
                self.watch.left(page);
                self.known.clear(page, self.now, bits);
            }
        }
        self.jury.chose(victim);
        victim
    }

    fn wants_modified(&self) -> bool {
        self.thrift.looks()
    }

    fn page_out(&mut self, page: PageNo) {
        self.blind.page_out(page);
        self.known.left(page);
        self.watch.left(page);
        self.jury.left(page);
        self.swaps += 1;
        if self.swaps == self.swaps_of_era {
            self.swaps = 0;
            self.era = self.now;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::replace::replay::{Costs, Trace, optimal_swap_ins, replay};
    use crate::replace::rng::Lots;
    use crate::replace::{Access, PageNo, Policy};

    fn swap_ins(trace: &Trace, policy: Policy, frames: u32) -> u64 {
        replay(trace, policy, frames, &Costs::PAPER, 1).swap_ins
    }

    #[test]
    fn cyclic_sweeps_cost_little_more_than_they_must() {
        for (pages, frames) in [(400, 100), (400, 200), (400, 300)] {
            let trace = Trace::of_reads((0..60 * pages).map(|touch| PageNo(touch % pages)));
            let (found, least) =
                (swap_ins(&trace, Policy::Adaptive, frames), optimal_swap_ins(&trace, frames));
            assert!(found * 10 <= least * 13, "{frames} of {pages}: {found} swaps, {least} must be");
        }
    }

    #[test]
    fn a_few_pages_always_in_use_stay_through_a_sweep() {
        // Between the touches of two pages of the sweep, each of ten is touched.
        let mut trace = Trace::new(16);
        for touch in 0..20_000 {
            trace.touch(PageNo(100 + touch % 1000), Access::Read);
            (0..10).for_each(|page| trace.touch(PageNo(page), Access::Write));
            trace.end_epoch();
        }
        let (found, least) = (swap_ins(&trace, Policy::Adaptive, 300), optimal_swap_ins(&trace, 300));
        assert!(found * 10 <= least * 13, "{found} swaps, {least} must be");
    }

    #[test]
    fn it_follows_a_program_that_changes_its_ways() {
        // Sweeps, then use by lot with nine in ten on a tenth of the pages, then sweeps again.
        let mut lots = Lots::new(3);
        let mut trace = Trace::new(1);
        for touch in 0..60_000 {
            let page = match touch / 20_000 {
                1 if lots.below(10) > 0 => lots.below(100),
                1 => lots.below(1000),
                _ => touch % 1000,
            };
            trace.touch(PageNo(page), Access::Read);
            trace.end_epoch();
        }
        for frames in [250, 500, 750] {
            let ours = swap_ins(&trace, Policy::Adaptive, frames);
            let best = Policy::PAPER.into_iter().map(|policy| swap_ins(&trace, policy, frames)).min();
            assert!(Some(ours) < best, "{frames} frames: {ours} swaps, the best of the eight {best:?}");
        }
    }
}
