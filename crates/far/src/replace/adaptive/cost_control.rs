//! Cost control: reference bits are cleared only while the clearing costs at most a quarter of a swap. Both
//! costs are measured.
//!
//! | a swap costs | clearings per page-in |
//! |---|---|
//! | at least 32 clearings | [many](MANY) |
//! | at least 16 clearings | [few](FEW) |
//! | less | none |
//!
//! - So the loss is bounded: bits that save no swap cost at most three eighths of the swaps' time.
//! - Fewer than [`FEW`] clearings would save nothing: if only some pages are watched, the others appear
//!   unused. In replays of Himeno and MG, two clearings per swap take longer than none. Four take the least
//!   time if a swap costs less than thirty clearings.
//! - The number increases as soon as more clearings are cheap. It decreases only if the bits of a stretch
//!   cost three eighths of its swaps and so many clearings are not cheap. Credit that accumulated during
//!   first touches, or without page-ins, may be spent at once, so a high cost of the bits alone does not
//!   show that a clearing has become expensive.
//!
//! A stretch is as many page-ins as there are frames, at most `LONGEST_STRETCH`. Stretches are short,
//! because a single page pays for as many clearings as a run of pages, so costs that were measured in a sweep
//! do not apply to random accesses.
//!
//! Rejected: trials, in which expensive bits are cleared for some stretches to see if the program proceeds
//! faster (decision 076).

use crate::replace::Shape;
use crate::replace::spent::Spent;

/// Number of clearings per page-in while many are cheap.
pub const MANY: u32 = 8;
/// Number of clearings per page-in while only few are cheap.
pub const FEW: u32 = 4;
/// Number of swaps after which the measured cost of a swap is used. The cost is the lower median of the
/// latest swaps, so one slow swap of the first two does not raise it. A larger number costs swaps: with four,
/// a program of the evaluation with few swaps makes 1.33 times the swaps of the best policy, with two at most
/// 1.25.
const FIRST: u64 = 2;
/// Least number of page-ins of a stretch.
const LEAST_STRETCH: u64 = 32;
/// Largest number of page-ins of a stretch.
const LONGEST_STRETCH: u64 = 256;
/// Part of the swaps' time that bits may cost in a stretch before their number decreases.
const MOST_PART: f64 = 0.375;

/// The current number of clearings, and the measurements for the next decision.
#[derive(Clone, Debug)]
pub struct CostControl {
    /// Number of clearings per page-in; `None` before the cost of a swap is known.
    clearings: Option<u32>,
    /// Number of page-ins of a stretch; `came`: page-ins of the current stretch so far.
    stretch: u64,
    came: u64,
    /// Costs at the beginning of the current stretch.
    then: Spent,
}

impl CostControl {
    /// Creates the control without measurements.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            clearings: None,
            stretch: u64::from(shape.frames).clamp(LEAST_STRETCH, LONGEST_STRETCH),
            came: 0,
            then: Spent::default(),
        }
    }

    /// Returns `true` if bits are to be cleared now.
    #[must_use]
    pub fn looks(&self) -> bool {
        self.clearings.is_some_and(|clearings| clearings > 0)
    }

    /// Returns the number of clearings for which a page-in pays. Before anything is measured it is the
    /// largest number: nothing is cleared yet, so the credit lets all resident pages be watched as soon as
    /// clearing is known to be cheap.
    #[must_use]
    pub fn budget(&self) -> u32 {
        self.clearings.unwrap_or(MANY)
    }

    /// Records a page-in.
    pub fn came(&mut self, spent: Spent) {
        let Some(clearings) = self.clearings else { return self.came_first(spent) };
        self.came += 1;
        if self.came < self.stretch {
            return;
        }
        let stretch = spent.since(self.then);
        (self.then, self.came) = (spent, 0);
        if stretch.swaps < self.stretch / 2 {
            // Most pages were touched for the first time, so the stretch has too few swaps.
            return;
        }
        let cheap = cheap_clearings(stretch);
        if cheap > clearings || stretch.bits_ns > stretch.swap_ns * MOST_PART {
            self.clearings = Some(cheap);
        }
    }

    /// Records a page-in before the cost of a swap is known.
    fn came_first(&mut self, spent: Spent) {
        let since = spent.since(self.then);
        if spent.swaps == 0 {
            // The cost of evictions for first touches is not part of the cost of a swap.
            self.then = spent;
        } else if since.swaps >= FIRST {
            (self.clearings, self.then) = (Some(cheap_clearings(since)), spent);
        }
    }
}

/// Returns the number of clearings that cost at most a quarter of a swap: [`MANY`], [`FEW`] or none.
fn cheap_clearings(spent: Spent) -> u32 {
    let is_cheap = |&clearings: &u32| f64::from(clearings) * spent.bit_ns <= spent.swap_price_ns / 4.0;
    [MANY, FEW].into_iter().find(is_cheap).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u32 = 100;
    /// Part of the affordable clearings that take place.
    const CLEARED: f64 = 0.75;

    /// Costs of a simulated machine.
    struct World {
        swap: f64,
        bit: f64,
    }

    /// Simulates page-ins. Returns the number of those that happened while bits were cleared.
    fn run(cost_control: &mut CostControl, spent: &mut Spent, world: &World, pages: u32) -> u32 {
        let mut looking = 0;
        for _ in 0..pages {
            let looks = cost_control.looks();
            looking += u32::from(looks);
            spent.swaps += 1;
            spent.swap_ns += world.swap;
            spent.bits_ns += if looks { CLEARED * f64::from(cost_control.budget()) * world.bit } else { 0.0 };
            (spent.swap_price_ns, spent.bit_ns) = (world.swap, world.bit);
            cost_control.came(*spent);
        }
        looking
    }

    fn new() -> (CostControl, Spent) {
        (CostControl::new(Shape { pages: 1000, frames: FRAMES }), Spent::default())
    }

    #[test]
    fn with_costly_page_ins_clearing_starts_at_once_and_continues() {
        let (mut cost_control, mut spent) = new();
        let dear = World { swap: 1000.0, bit: 20.0 };
        assert_eq!(run(&mut cost_control, &mut spent, &dear, 10_000), 10_000 - FIRST as u32);
    }

    #[test]
    fn a_slow_first_page_in_allows_no_clearings() {
        let (mut cost_control, mut spent) = new();
        let at = |swap| World { swap, bit: 20.0 };
        // The cost is the lower median of the latest swaps: of two, one may be slow.
        assert_eq!(run(&mut cost_control, &mut spent, &at(9000.0), 1), 0);
        assert_eq!(run(&mut cost_control, &mut spent, &at(100.0), 10_000), 0);
    }

    #[test]
    fn a_page_in_allows_many_or_few_clearings_while_they_are_cheap() {
        // Cost of a swap in bits, and the resulting budget, whether the bits save swaps or not.
        for (bits, budget) in [(35.0, MANY), (32.0, MANY), (30.0, FEW), (16.0, FEW), (15.0, 0)] {
            let (mut cost_control, mut spent) = new();
            run(&mut cost_control, &mut spent, &World { swap: 20.0 * bits, bit: 20.0 }, 6 * FRAMES + 10);
            assert_eq!(cost_control.budget(), budget, "a swap as costly as {bits} bits");
        }
    }

    #[test]
    fn bits_are_never_cleared_while_they_are_expensive() {
        let (mut cost_control, mut spent) = new();
        let thrashing = World { swap: 60.0, bit: 22.0 };
        assert_eq!(run(&mut cost_control, &mut spent, &thrashing, 1_000_000), 0);
    }

    #[test]
    fn the_number_of_clearings_follows_the_cost_of_a_page_in() {
        let (mut cost_control, mut spent) = new();
        let mut at = |swap| {
            run(&mut cost_control, &mut spent, &World { swap, bit: 20.0 }, 6 * FRAMES + 10);
            cost_control.budget()
        };
        assert_eq!([100.0, 400.0, 1000.0, 100.0].map(&mut at), [0, FEW, MANY, 0]);
    }

    #[test]
    fn after_a_cost_rise_bits_are_cleared_for_a_few_hundred_pages() {
        let (mut cost_control, mut spent) =
            (CostControl::new(Shape { pages: 100_000, frames: 50_000 }), Spent::default());
        let runs = World { swap: 1000.0, bit: 20.0 };
        run(&mut cost_control, &mut spent, &runs, 10_000);
        let by_lot = World { swap: 100.0, bit: 20.0 };
        // The rest of the current stretch is not evaluated.
        let looking = run(&mut cost_control, &mut spent, &by_lot, 20_000);
        assert!((1..=2 * LONGEST_STRETCH as u32).contains(&looking), "{looking}");
    }

    #[test]
    fn a_burst_of_deferred_clearings_does_not_raise_their_cost() {
        let (mut cost_control, mut spent) = new();
        let dear = World { swap: 1000.0, bit: 20.0 };
        run(&mut cost_control, &mut spent, &dear, 1000);
        // Adds ten times the cost of the swaps of a stretch.
        spent.bits_ns += 10.0 * 1000.0 * f64::from(FRAMES);
        assert_eq!(run(&mut cost_control, &mut spent, &dear, 1000), 1000);
    }

    #[test]
    fn clearing_starts_with_costly_page_ins_and_ends_with_cheap_ones() {
        let (mut cost_control, mut spent) = new();
        let at = |swap| World { swap, bit: 20.0 };
        run(&mut cost_control, &mut spent, &at(100.0), 1000);
        assert!(!cost_control.looks());
        run(&mut cost_control, &mut spent, &at(1000.0), 3 * FRAMES);
        assert!(cost_control.looks());
        run(&mut cost_control, &mut spent, &at(100.0), 3 * FRAMES);
        assert!(!cost_control.looks());
    }

    #[test]
    fn first_touches_do_not_change_the_page_in_cost() {
        let (mut cost_control, mut spent) = new();
        for _ in 0..1000 {
            // No page was swapped in yet, but many pages were paged out.
            spent.swap_ns += 1000.0;
            spent.swap_price_ns = 100.0;
            cost_control.came(spent);
        }
        run(&mut cost_control, &mut spent, &World { swap: 100.0, bit: 20.0 }, 10);
        assert!(!cost_control.looks());
        let (mut cost_control, mut spent) = new();
        run(&mut cost_control, &mut spent, &World { swap: 1000.0, bit: 20.0 }, 1000);
        // Only pages that were never touched before are paged in. Their bits cost time, and no swap pays for
        // them.
        for _ in 0..1000 {
            spent.bits_ns += 20.0;
            cost_control.came(spent);
        }
        assert!(cost_control.looks());
    }
}
