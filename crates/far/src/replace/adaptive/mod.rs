//! Adaptive: evicts the page with the farthest predicted next use, from each page's own history. This policy
//! is not in the paper, which leaves open a policy without parameters that fits each program (§3.3, §4).
//! Farthest next use is Belady's rule, which is optimal if the prediction is right.
//!
//! 1. **Time** is counted in visible events: page-ins, and reference bits that are set again.
//! 2. **Cost control** ([`cost_control`]). The region measures the cost of swaps, of cleared bits and of
//!    their faults ([`Spent`](super::Spent)). Bits are cleared only while this costs at most a quarter of the
//!    swaps. Otherwise no bits are cleared, and the policy of swap-in history, which needs no bits, chooses
//!    the victims.
//! 3. **Clearing** ([`watch`]). The bit of a touched page is cleared when its burst of use should be over, so
//!    that its next use is detected. The wait is learned per page: it doubles if the page is touched again at
//!    once, and halves otherwise. Each page-in pays for some clearings, four or eight, depending on their
//!    cost relative to a swap.
//! 4. **Prediction** ([`reuse_history`]). Each page keeps its last 64 intervals between uses, both while it
//!    is resident and while it is paged out. The predicted interval is the one that followed the interval
//!    most similar to the latest. So a page that is used several times in each step of a program, at
//!    different distances, is predicted correctly each time. An interval shorter than the time since the last
//!    use is excluded, so an overdue page is expected after the next precedent.
//! 5. **The beginning** ([`known`]). Some pages were used only once, or have been unused for longer than ever
//!    before. Such a page is expected after the interval of the nearest page that was used since and waited
//!    longer: programs access arrays in order, so the pages ahead of a sweep are expected in its order. A
//!    page that was used twice has one interval, which may belong to an earlier phase, for example the time
//!    from writing to the first reading. All pages teach whether the second interval of a page confirms the
//!    first (`confidence`). Until most do, the page is expected at the latest after the time for which it has
//!    been unused. So a page that was just used is not evicted because of a single interval.
//! 6. **Wrong predictions** (`duels`): the page that has been unused for longest leaves, as with U-Clock and
//!    U-pLRU. Each eviction records two pages, the page with the farthest predicted use and the oldest page.
//!    The page of the two that is used again first should have stayed. So the policy learns, from all pages,
//!    which of the rules was right recently, regardless of the rule that it follows. An example is recursion:
//!    intervals double from level to level, and the page that is unused for longest is needed last.
//! 7. **No prediction**, not even from a neighbor: a page is expected after the time for which it has been
//!    unused. One such page, drawn at random, competes with the page of the farthest prediction. The two are
//!    not compared as in 6, because the oldest page would be wrong in each sweep that is larger than memory.
//!    So pages that the sweep just passed, which have a reuse history, leave, and most of the sweep stays
//!    from its second round on (LRU, FIFO and Clock evict all of it).
//!
//! Cost: each search for a victim examines each candidate, or 32 at random if there are more. For a candidate
//! without a history it also examines two pages for each power of two up to the region's size. Duels take
//! less than 3 % of the instructions. Each swap causes at most eight ([`cost_control::MANY`]) changes of
//! protection and later faults. Memory is about 220 bytes for each page that was ever paged in, and for its
//! neighbors. First writes need not be detected.
//!
//! Weaknesses: uses without any pattern in space or time, for which no policy helps; few swaps, so that
//! chance decides or a phase ends before enough is learned; recursion that halves its data (a transposition:
//! 1.4 times the swaps of U-Clock). The constants belong to the method, not to a program. They were chosen on
//! the evaluation's own programs (sizes S and W, pages of 4 KiB) and six others. `eval/results` has some
//! programs that were replayed afterward.

mod confidence;
pub mod cost_control;
mod duels;
pub mod known;
pub mod reuse_history;
mod roll;
pub mod watch;

use super::rng::{Reservoir, Rng};
use super::{Access, AccessBits, PageNo, Replacement, Shape, SwapInHistory};
use cost_control::CostControl;
use known::Known;
use watch::Watch;

/// Largest number of pages examined for a victim: all candidates, or this number of them at random. The page
/// with the farthest predicted use often has a wrong prediction: with 256, MG and SP have more swaps, and FT,
/// with its right predictions, has fewer.
const LOOKED_AT: usize = 32;

/// The resident pages, and the history of every page.
#[derive(Clone, Debug)]
pub struct Adaptive {
    cost_control: CostControl,
    /// Policy while no reference bits are cleared.
    blind: SwapInHistory,
    known: Known,
    watch: Watch,
    rng: Rng,
    /// Candidates for the current victim.
    shown: Vec<PageNo>,
    /// The last victim, if it has not left since.
    chosen: Option<PageNo>,
    now: u64,
}

impl Adaptive {
    /// Creates a policy without resident pages and without history.
    #[must_use]
    pub fn new(shape: Shape, seed: u64) -> Self {
        let watch = Watch::new(shape);
        Self {
            cost_control: CostControl::new(shape),
            blind: SwapInHistory::new(shape),
            known: Known::new(shape, watch.first_patience()),
            watch,
            rng: Rng::new(seed),
            shown: Vec::with_capacity(LOOKED_AT),
            chosen: None,
            now: 0,
        }
    }

    fn touched(&mut self, page: PageNo, bits: &mut dyn AccessBits) {
        self.known.touched(page, self.now, self.watch.longest_burst_exponent());
        self.watch.touched(page, &self.known);
        if self.cost_control.looks() {
            self.watch.clear_due(self.now, &mut self.known, bits);
        }
    }

    /// Chooses a candidate with a clear bit: the page with the farthest predicted next use, the oldest page
    /// if predictions prove wrong, or a page without a prediction. If all bits are set, chooses the page with
    /// the oldest last use.
    fn choose(&mut self) -> PageNo {
        let Self { known, shown, rng, now, .. } = self;
        known.idle.show(LOOKED_AT, rng, shown);
        if shown.is_empty() {
            known.resident.show(LOOKED_AT, rng, shown);
            return known.oldest(shown);
        }
        let (mut farthest, mut unknown) = (None, Reservoir::default());
        for &page in shown.iter() {
            match known.next_use(page, *now) {
                Some(at) => farthest = farthest.max(Some((at - *now, page))),
                None => unknown.show(page, rng),
            }
        }
        let unknown = unknown.chosen().map(|page| (*now - known.reuse_history(page).last_touch(), page));
        match (farthest, unknown) {
            (farthest, Some(unknown)) if farthest < Some(unknown) => unknown.1,
            (farthest, _) => {
                let (_, farthest) = farthest.expect("a page was shown");
                known.farthest_or_oldest(farthest, known.oldest(shown), *now)
            }
        }
    }
}

impl Replacement for Adaptive {
    fn page_in(&mut self, page: PageNo, access: Access, bits: &mut dyn AccessBits) {
        self.now += 1;
        self.cost_control.came(bits.spent());
        self.blind.page_in(page, access, bits);
        self.watch.pay(self.cost_control.budget());
        self.known.resident.insert(page);
        self.touched(page, bits);
    }

    fn referenced(&mut self, page: PageNo, _: Access, bits: &mut dyn AccessBits) {
        if !self.known.idle.has(page) {
            return; // its use was already counted when its run, which had a common bit, was split
        }
        self.now += 1;
        self.touched(page, bits);
    }

    fn victim(&mut self, incoming: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        if !self.cost_control.looks() {
            return self.blind.victim(incoming, bits);
        }
        let mut victim = self.choose();
        if self.chosen == Some(victim) {
            // The page was chosen before and could not leave.
            victim = self.known.resident.another_than(victim).unwrap_or(victim);
        }
        self.chosen = Some(victim);
        victim
    }

    fn page_out(&mut self, page: PageNo) {
        self.blind.page_out(page);
        self.known.left(page);
        self.watch.left(page);
        self.chosen = self.chosen.filter(|&chosen| chosen != page);
    }
}

#[cfg(test)]
mod tests {
    use crate::replace::replay::{Costs, Trace, optimal_swap_ins, replay};
    use crate::replace::rng::Rng;
    use crate::replace::{Access, AccessBits, Adaptive, PageNo, Policy, Replacement, Shape, Spent};

    /// Bits that are always clear and cost nothing.
    pub(super) struct Bits;

    impl AccessBits for Bits {
        fn is_referenced(&self, _: PageNo) -> bool {
            false
        }
        fn is_modified(&self, _: PageNo) -> bool {
            false
        }
        fn clear_referenced(&mut self, _: PageNo) {}
        fn spent(&self) -> Spent {
            Spent::default()
        }
    }

    #[test]
    fn repeated_reports_of_a_clear_bit_count_as_one_use() {
        let mut adaptive = Adaptive::new(Shape { pages: 10, frames: 5 }, 1);
        adaptive.page_in(PageNo(3), Access::Read, &mut Bits);
        let now = adaptive.now;
        (0..2).for_each(|_| adaptive.referenced(PageNo(3), Access::Write, &mut Bits));
        assert_eq!(adaptive.now, now, "nothing new was seen");
        adaptive.known.clear(PageNo(3), now, &mut Bits);
        adaptive.watch.left(PageNo(3));
        (0..2).for_each(|_| adaptive.referenced(PageNo(3), Access::Write, &mut Bits));
        assert_eq!(adaptive.now, now + 1, "once it is clear, the first touch is");
    }

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
    fn the_first_rounds_of_a_sweep_keep_the_next_pages() {
        // The first two rounds have no history. The page that is unused for longest is needed next, so
        // evicting by age would page each page in again.
        for (pages, frames) in [(400, 200), (400, 300), (2000, 1500)] {
            let trace = Trace::of_reads((0..3 * pages).map(|touch| PageNo(touch % pages)));
            let found = swap_ins(&trace, Policy::Adaptive, frames);
            assert!(found * 10 <= u64::from(2 * pages) * 8, "{frames} of {pages}: {found} swaps");
        }
    }

    #[test]
    fn pages_that_are_never_used_again_leave() {
        let done = (0..400).map(|touch| PageNo(touch % 200));
        let sweeps = (0..60 * 200).map(|touch| PageNo(200 + touch % 200));
        let trace = Trace::of_reads(done.chain(sweeps));
        let (found, least) = (swap_ins(&trace, Policy::Adaptive, 150), optimal_swap_ins(&trace, 150));
        assert!(found * 10 <= least * 13, "{found} swaps, {least} must be");
    }

    #[test]
    fn steps_of_several_phases_are_foreseen() {
        // In each step three arrays are used in turn, as in A B A C A A. So an array has several intervals.
        let mut trace = Trace::new(1);
        for step in 0..40 * 6 {
            let array = [0, 1, 0, 2, 0, 0][step % 6];
            for page in 0..100 {
                trace.touch(PageNo(100 * array + page), Access::Write);
                trace.end_epoch();
            }
        }
        for frames in [80, 150, 220] {
            let (found, least) =
                (swap_ins(&trace, Policy::Adaptive, frames), optimal_swap_ins(&trace, frames));
            assert!(found * 10 <= least * 14, "{frames} frames: {found} swaps, {least} must be");
        }
    }

    #[test]
    fn a_few_pages_always_in_use_stay_through_a_sweep() {
        // Ten pages are touched between any two pages of the sweep.
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
    fn the_policy_adapts_to_a_program_that_changes_its_pattern() {
        // Sweeps, then random accesses of which nine in ten touch a tenth of the pages, then sweeps again.
        let mut rng = Rng::new(3);
        let mut trace = Trace::new(1);
        for touch in 0..60_000 {
            let page = match touch / 20_000 {
                1 if rng.below(10) > 0 => rng.below(100),
                1 => rng.below(1000),
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
