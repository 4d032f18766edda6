//! Cost control: reference bits are cleared only while the clearing costs less than the swaps that it saves.
//! Both costs are measured.
//!
//! | mode | bits are cleared | ends when |
//! |---|---|---|
//! | `Unknown` | no | the cost of a swap is known, after the first swap |
//! | `Cheap` | [many](MANY) | the bits cost three eighths of the swaps, and more than the quarter below |
//! | `Blind` | no | swaps became expensive, or a trial is affordable |
//! | `Trial` | [few](FEW) | two stretches of learning and one that counts are over |
//! | `Won` | few | the burden exceeds that of `Blind`; or after a long time; or many became cheap |
//!
//! - `Cheap`: all clearings of a swap cost at most a quarter of the swap, so the loss is bounded.
//! - A trial is affordable when the swaps have cost sixteen times its limit, and sixteen times the cost of
//!   the last failed trial. The first trial is free if few clearings cost at most a quarter of a swap. A
//!   trial is won if its burden is at least 5 % below that of `Blind`.
//! - Fewer than [`FEW`] clearings would save nothing: if only some pages are watched, the others appear
//!   unused. In replays of Himeno and MG, two clearings per swap take longer than none. Four take the least
//!   time if a swap costs less than thirty clearings.
//!
//! A stretch is as many page-ins as there are frames. The *burden* is the time of swaps and bits divided by
//! the time of the program itself. The control minimizes the burden. The stretch after a change of mode does
//! not count, because the local pages were chosen in the mode before. With cheap bits and many frames,
//! stretches are shorter. The reason is that a single page pays for as many clearings as a run of pages, so
//! costs that were measured in a sweep do not apply to random accesses.
//!
//! If swaps are cheap, the total cost is that of Swap-in history plus at most a sixteenth of the swaps' time.
//! If swaps are expensive, bits are used from the first swaps on.

use crate::replace::Shape;
use crate::replace::spent::Spent;

/// Number of clearings per page-in while they are cheap.
pub const MANY: u32 = 8;
/// Number of clearings per page-in while they are expensive but save more than they cost.
pub const FEW: u32 = 4;
/// Number of swaps after which the measured cost of a swap is used.
const FIRST: u64 = 1;
/// Least number of page-ins of a stretch.
const LEAST_STRETCH: u64 = 32;
/// Largest number of page-ins of a stretch in the mode `Cheap`, which compares no stretches.
const CHEAP_STRETCH: u64 = 256;
/// Divisor of the cost of all swaps: trials cost at most this part of it.
const TRIAL_PART: f64 = 16.0;
/// Number of stretches of a trial before the one that counts.
const LEARNING: u32 = 2;
/// Number of stretches: a won trial that proves wrong within them counts as lost.
const LUCK: u32 = 8;
/// Number of stretches for which a won trial is valid.
const BELIEVED: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Unknown,
    Cheap,
    Blind,
    Trial,
    Won,
}

/// The current mode, and the measurements for the next decision.
#[derive(Clone, Debug)]
pub struct CostControl {
    mode: Mode,
    /// Number of page-ins of a stretch; `came`: page-ins of the current stretch so far.
    stretch: u64,
    came: u64,
    /// Number of finished stretches in the current mode.
    stretches: u32,
    /// Costs at the beginning of the current stretch.
    then: Spent,
    /// Moving average of the burden in the mode `Blind`; `None` if no stretch was measured.
    blind_burden: Option<f64>,
    /// No trial begins before the swaps have cost this time.
    next_trial_ns: f64,
    /// Cost of bits at the beginning of the trial.
    before_trial_ns: f64,
}

impl CostControl {
    /// Creates the control without measurements.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            mode: Mode::Unknown,
            stretch: u64::from(shape.frames).max(LEAST_STRETCH),
            came: 0,
            stretches: 0,
            then: Spent::default(),
            blind_burden: None,
            next_trial_ns: 0.0,
            before_trial_ns: 0.0,
        }
    }

    /// Returns `true` if bits are to be cleared now.
    #[must_use]
    pub fn looks(&self) -> bool {
        matches!(self.mode, Mode::Cheap | Mode::Trial | Mode::Won)
    }

    /// Returns the number of clearings for which a page-in pays. Before anything is measured it is the
    /// largest number: nothing is cleared yet, so the credit lets all resident pages be watched as soon as
    /// clearing is known to be cheap.
    #[must_use]
    pub fn budget(&self) -> u32 {
        match self.mode {
            Mode::Unknown | Mode::Cheap => MANY,
            Mode::Blind => 0,
            Mode::Trial | Mode::Won => FEW,
        }
    }

    /// Records a page-in.
    pub fn came(&mut self, spent: Spent) {
        if self.mode == Mode::Unknown {
            let since = spent.since(self.then);
            if spent.swaps == 0 {
                // The cost of evictions for first touches is not part of the cost of a swap.
                self.then = spent;
            } else if since.swaps >= FIRST {
                self.turn(if is_cheap(MANY, since) { Mode::Cheap } else { Mode::Blind }, spent);
            }
            return;
        }
        self.came += 1;
        if self.came >= self.stretch() {
            self.end_stretch(spent);
        }
    }

    /// Returns the number of page-ins of a stretch in the current mode.
    fn stretch(&self) -> u64 {
        if self.mode == Mode::Cheap { self.stretch.min(CHEAP_STRETCH) } else { self.stretch }
    }

    fn end_stretch(&mut self, spent: Spent) {
        let stretch = spent.since(self.then);
        let came = self.stretch();
        self.then = spent;
        self.came = 0;
        self.stretches += 1;
        if stretch.swaps < came / 2 {
            // Most pages were touched for the first time, so the stretch has too few swaps.
            return;
        }
        match self.mode {
            Mode::Unknown => {}
            Mode::Cheap => {
                // Credit that accumulated during first touches, or without page-ins, may be spent at once. So
                // a single expensive stretch does not show that the costs have changed.
                if stretch.bits_ns > stretch.swap_ns * 0.375 && !is_cheap(MANY, stretch) {
                    self.turn(Mode::Blind, spent);
                }
            }
            Mode::Blind => self.judge_blind(stretch, spent),
            Mode::Trial => {
                if self.stretches > LEARNING {
                    let won = self.blind_burden.is_some_and(|blind| stretch.burden() < blind * 0.95);
                    if !won {
                        self.lose(spent);
                    }
                    self.turn(if won { Mode::Won } else { Mode::Blind }, spent);
                }
            }
            Mode::Won => {
                let worse = self.blind_burden.is_some_and(|blind| stretch.burden() > blind);
                if worse && self.stretches < LUCK {
                    self.lose(spent);
                }
                if is_cheap(MANY, stretch) {
                    self.turn(Mode::Cheap, spent);
                } else if worse || self.stretches > BELIEVED {
                    self.turn(Mode::Blind, spent);
                }
            }
        }
    }

    fn judge_blind(&mut self, stretch: Spent, spent: Spent) {
        if is_cheap(MANY, stretch) {
            return self.turn(Mode::Cheap, spent);
        }
        if self.stretches < 2 {
            return;
        }
        let burden = stretch.burden();
        self.blind_burden = Some(self.blind_burden.map_or(burden, |known| known + (burden - known) / 4.0));
        let trial = f64::from(LEARNING + 1) * self.stretch as f64 * f64::from(FEW) * spent.bit_ns;
        let is_free = self.next_trial_ns == 0.0 && is_cheap(FEW, stretch);
        if is_free || spent.swap_ns >= self.next_trial_ns.max(TRIAL_PART * trial) {
            self.before_trial_ns = spent.bits_ns;
            self.turn(Mode::Trial, spent);
        }
    }

    /// Postpones the next trial until the swaps have paid for this one.
    fn lose(&mut self, spent: Spent) {
        self.next_trial_ns = spent.swap_ns + TRIAL_PART * (spent.bits_ns - self.before_trial_ns);
    }

    fn turn(&mut self, mode: Mode, spent: Spent) {
        (self.mode, self.then, self.came, self.stretches) = (mode, spent, 0, 0);
    }
}

/// Returns `true` if this number of clearings costs at most a quarter of a swap.
fn is_cheap(clearings: u32, spent: Spent) -> bool {
    f64::from(clearings) * spent.bit_ns <= spent.swap_price_ns / 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u32 = 100;
    /// Part of the affordable clearings that take place.
    const CLEARED: f64 = 0.75;

    /// Costs of a simulated machine and program.
    struct World {
        swap: f64,
        bit: f64,
        /// The program's own time between two swaps, without and with cleared bits.
        between: [f64; 2],
    }

    /// Simulates page-ins. Returns the number of those that happened while bits were cleared.
    fn run(cost_control: &mut CostControl, spent: &mut Spent, world: &World, pages: u32) -> u32 {
        let mut looking = 0;
        for _ in 0..pages {
            let looks = cost_control.looks();
            looking += u32::from(looks);
            spent.swaps += 1;
            spent.swap_ns += world.swap;
            spent.program_ns += world.between[usize::from(looks)];
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
        let dear = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        assert_eq!(run(&mut cost_control, &mut spent, &dear, 10_000), 10_000 - FIRST as u32);
    }

    #[test]
    fn a_page_in_allows_many_or_few_clearings_while_they_save_misses() {
        // Cost of a swap in bits, and the resulting budget if clearing helps and if it does not.
        for (bits, helped, in_vain) in
            [(35.0, MANY, MANY), (32.0, MANY, MANY), (30.0, FEW, 0), (16.0, FEW, 0), (15.0, 0, 0)]
        {
            for (between, budget) in [([500.0, 2000.0], helped), ([500.0; 2], in_vain)] {
                let (mut cost_control, mut spent) = new();
                run(
                    &mut cost_control,
                    &mut spent,
                    &World { swap: 20.0 * bits, bit: 20.0, between },
                    6 * FRAMES + 10,
                );
                assert_eq!(cost_control.budget(), budget, "a swap as dear as {bits} bits, {between:?}");
            }
        }
    }

    #[test]
    fn after_a_cost_rise_bits_are_cleared_for_a_few_hundred_pages() {
        let (mut cost_control, mut spent) =
            (CostControl::new(Shape { pages: 100_000, frames: 50_000 }), Spent::default());
        let runs = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        run(&mut cost_control, &mut spent, &runs, 10_000);
        let by_lot = World { swap: 100.0, bit: 20.0, between: [500.0; 2] };
        // The rest of the current stretch is not evaluated.
        let looking = run(&mut cost_control, &mut spent, &by_lot, 20_000);
        assert!((1..=2 * CHEAP_STRETCH as u32).contains(&looking), "{looking}");
    }

    #[test]
    fn a_burst_of_deferred_clearings_does_not_raise_their_cost() {
        let (mut cost_control, mut spent) = new();
        let dear = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        run(&mut cost_control, &mut spent, &dear, 1000);
        // Adds ten times the cost of the swaps of a stretch.
        spent.bits_ns += 10.0 * 1000.0 * f64::from(FRAMES);
        assert_eq!(run(&mut cost_control, &mut spent, &dear, 1000), 1000);
    }

    #[test]
    fn few_useful_clearings_become_many_when_page_ins_cost_more() {
        let (mut cost_control, mut spent) = new();
        let mut at = |swap| {
            run(
                &mut cost_control,
                &mut spent,
                &World { swap, bit: 20.0, between: [500.0, 2000.0] },
                6 * FRAMES + 10,
            );
            cost_control.budget()
        };
        assert_eq!([400.0, 1000.0].map(&mut at), [FEW, MANY]);
    }

    #[test]
    fn useless_clearing_costs_at_most_a_sixteenth_of_the_page_ins() {
        for swap in [10.0, 100.0, 300.0] {
            let (mut cost_control, mut spent) = new();
            let cheap = World { swap, bit: 20.0, between: [500.0; 2] };
            let looking = run(&mut cost_control, &mut spent, &cheap, 1_000_000);
            assert!(looking > 0, "it tries now and then");
            assert!(spent.bits_ns <= spent.swap_ns / TRIAL_PART, "swaps of {swap}: {spent:?}");
        }
    }

    /// Returns the longest sequence of page-ins during which bits were cleared.
    fn longest_look(cost_control: &mut CostControl, spent: &mut Spent, world: &World, pages: u32) -> u32 {
        let (mut longest, mut now) = (0, 0);
        for _ in 0..pages {
            now = if run(cost_control, spent, world, 1) > 0 { now + 1 } else { 0 };
            longest = longest.max(now);
        }
        longest
    }

    #[test]
    fn a_trial_that_saves_nothing_ends_after_its_third_stretch() {
        let (mut cost_control, mut spent) = new();
        let cheap = World { swap: 100.0, bit: 20.0, between: [500.0; 2] };
        assert_eq!(longest_look(&mut cost_control, &mut spent, &cheap, 100_000), 3 * FRAMES);
    }

    #[test]
    fn trials_won_by_chance_cost_as_much_as_lost_ones() {
        let (mut cost_control, mut spent) = new();
        let world = |between| World { swap: 100.0, bit: 20.0, between: [500.0, between] };
        let mut looking = 0;
        for _ in 0..1_000_000 {
            // Clearing appears to help until the trial is over.
            let between = if looking < 3 * FRAMES { 2000.0 } else { 500.0 };
            looking =
                if run(&mut cost_control, &mut spent, &world(between), 1) > 0 { looking + 1 } else { 0 };
        }
        assert!(spent.bits_ns > 0.0 && spent.bits_ns <= spent.swap_ns / TRIAL_PART, "{spent:?}");
    }

    #[test]
    fn useful_clearing_is_found_by_a_trial_and_ends_when_useless() {
        let (mut cost_control, mut spent) = new();
        // A swap and its bits cost 1.6 swaps, but there are a quarter as many swaps.
        let pays = World { swap: 100.0, bit: 20.0, between: [500.0, 2000.0] };
        run(&mut cost_control, &mut spent, &pays, 40_000);
        let looking = run(&mut cost_control, &mut spent, &pays, 100_000);
        assert!(looking > 80_000, "{looking} of 100,000");
        let no_more = World { between: [500.0; 2], ..pays };
        run(&mut cost_control, &mut spent, &no_more, 1000);
        assert!(!cost_control.looks());
        let looking = run(&mut cost_control, &mut spent, &no_more, 100_000);
        // The bits of trials cost a sixteenth of the swaps.
        assert!(looking < 11_000, "{looking} of 100,000");
    }

    #[test]
    fn clearing_starts_with_costly_page_ins_and_ends_with_cheap_ones() {
        let (mut cost_control, mut spent) = new();
        let at = |swap| World { swap, bit: 20.0, between: [500.0; 2] };
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
        run(&mut cost_control, &mut spent, &World { swap: 100.0, bit: 20.0, between: [500.0; 2] }, 10);
        assert!(!cost_control.looks());
        let (mut cost_control, mut spent) = new();
        run(&mut cost_control, &mut spent, &World { swap: 1000.0, bit: 20.0, between: [500.0; 2] }, 1000);
        // Only pages that were never touched before are paged in. Their bits cost time, and no swap pays for
        // them.
        for _ in 0..1000 {
            spent.bits_ns += 20.0;
            cost_control.came(spent);
        }
        assert!(cost_control.looks());
    }
}
