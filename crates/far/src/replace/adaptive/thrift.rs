//! Whether it pays to look: reference bits are cleared only as long as that costs less than the swaps it
//! saves, both measured.
//!
//! | manner | bits are cleared | ends when |
//! |---|---|---|
//! | `Unknown` | no | what a swap costs is known: after the first |
//! | `Cheap` | yes, [many](MANY): all clearings that a swap pays for cost at most a quarter of it, so little can be lost | they cost three eighths of what the swaps do, and would cost more than that quarter |
//! | `Blind` | no | swaps have become dear, or a trial is paid for: swaps have cost sixteen times what it may, and as many times what the last one that failed did since then. The first is free where a [few](FEW) clearings cost at most a quarter of a swap |
//! | `Trial` | yes, few | two stretches to learn in, and one that counts: won if paging burdens the program less than blind |
//! | `Won` | yes, few | it burdens the program more than blind did; or it was long ago; or many have become cheap |
//!
//! Fewer than a few would save nothing: who sees the use of some pages only takes the others for unused. By
//! replay two clearings for each swap of Himeno and MG take longer than none, where four take the least time
//! of all wherever a swap is worth less than thirty of them.
//!
//! A stretch is as many pages that come as there are frames. *Burden* is the time of swaps and of bits, by
//! the time that the program itself had; it is what there is to be made small, whatever a swap, a change of
//! protection and a fault take here. After a change of manner a stretch is left out: what is local then was
//! chosen in the manner before. Cheap bits are looked at sooner, where there are many frames: each page that
//! comes by lot pays for as many clearings as a run of pages does, and what a sweep of runs has taught of
//! prices does not hold for it.
//!
//! So where swaps are cheap it costs what Swap-in history costs, and a sixteenth of the swaps' time at the
//! most; where they are dear it looks from the first swaps on.

use crate::replace::Shape;
use crate::replace::spent::Spent;

/// Clearings that a page's coming in pays for where they are cheap.
pub const MANY: u32 = 8;
/// And where they are not, as long as they pay.
pub const FEW: u32 = 4;
/// Swaps after which the price of one is believed.
const FIRST: u64 = 1;
/// A stretch is not shorter, however few the frames.
const LEAST_STRETCH: u64 = 32;
/// And not longer while bits are cheap, when nothing is compared with another stretch.
const CHEAP_STRETCH: u64 = 256;
/// Trials may cost such a part of all swaps.
const TRIAL_PART: f64 = 16.0;
/// Stretches of a trial before the one that counts.
const LEARNING: u32 = 2;
/// A trial that was won and proves wrong within so many stretches was won by luck.
const LUCK: u32 = 8;
/// A trial that was won is believed for so many stretches.
const BELIEVED: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Unknown,
    Cheap,
    Blind,
    Trial,
    Won,
}

/// The present manner, and what is known for the next.
#[derive(Clone, Debug)]
pub struct Thrift {
    manner: Manner,
    /// Pages that come in a stretch, and in this one so far.
    stretch: u64,
    came: u64,
    /// Stretches of this manner that are over.
    stretches: u32,
    /// At the beginning of the stretch.
    then: Spent,
    /// Of the latest stretches in the manner `Blind`, if there was one.
    blind_burden: Option<f64>,
    /// No trial before swaps have cost so much.
    next_trial_ns: f64,
    /// Bits at the beginning of the trial.
    before_trial_ns: f64,
}

impl Thrift {
    /// Nothing is known.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            manner: Manner::Unknown,
            stretch: u64::from(shape.frames).max(LEAST_STRETCH),
            came: 0,
            stretches: 0,
            then: Spent::default(),
            blind_burden: None,
            next_trial_ns: 0.0,
            before_trial_ns: 0.0,
        }
    }

    /// Whether bits are to be cleared now.
    #[must_use]
    pub fn looks(&self) -> bool {
        matches!(self.manner, Manner::Cheap | Manner::Trial | Manner::Won)
    }

    /// For how many clearings a page's coming in pays. Before anything is known for the most, as nothing is
    /// cleared yet: so all pages that fill the memory can be looked at as soon as that is cheap.
    #[must_use]
    pub fn budget(&self) -> u32 {
        match self.manner {
            Manner::Unknown | Manner::Cheap => MANY,
            Manner::Blind => 0,
            Manner::Trial | Manner::Won => FEW,
        }
    }

    /// A page came.
    pub fn came(&mut self, spent: Spent) {
        if self.manner == Manner::Unknown {
            let since = spent.since(self.then);
            if spent.swaps == 0 {
                // What leaves to make room for first touches is no part of a swap's price.
                self.then = spent;
            } else if since.swaps >= FIRST {
                self.turn(if is_cheap(MANY, since) { Manner::Cheap } else { Manner::Blind }, spent);
            }
            return;
        }
        self.came += 1;
        if self.came >= self.stretch() {
            self.end_stretch(spent);
        }
    }

    /// Pages that come in a stretch of this manner.
    fn stretch(&self) -> u64 {
        if self.manner == Manner::Cheap { self.stretch.min(CHEAP_STRETCH) } else { self.stretch }
    }

    fn end_stretch(&mut self, spent: Spent) {
        let stretch = spent.since(self.then);
        let came = self.stretch();
        self.then = spent;
        self.came = 0;
        self.stretches += 1;
        if stretch.swaps < came / 2 {
            // Most pages came for the first time: that says nothing of swaps.
            return;
        }
        match self.manner {
            Manner::Unknown => {}
            Manner::Cheap => {
                // What was saved up while pages came for the first time, or none came, may go at once: that
                // is no sign that prices changed.
                if stretch.bits_ns > stretch.swap_ns * 0.375 && !is_cheap(MANY, stretch) {
                    self.turn(Manner::Blind, spent);
                }
            }
            Manner::Blind => self.judge_blind(stretch, spent),
            Manner::Trial => {
                if self.stretches > LEARNING {
                    let won = self.blind_burden.is_some_and(|blind| stretch.burden() < blind * 0.95);
                    if !won {
                        self.lose(spent);
                    }
                    self.turn(if won { Manner::Won } else { Manner::Blind }, spent);
                }
            }
            Manner::Won => {
                let worse = self.blind_burden.is_some_and(|blind| stretch.burden() > blind);
                if worse && self.stretches < LUCK {
                    self.lose(spent);
                }
                if is_cheap(MANY, stretch) {
                    self.turn(Manner::Cheap, spent);
                } else if worse || self.stretches > BELIEVED {
                    self.turn(Manner::Blind, spent);
                }
            }
        }
    }

    fn judge_blind(&mut self, stretch: Spent, spent: Spent) {
        if is_cheap(MANY, stretch) {
            return self.turn(Manner::Cheap, spent);
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
            self.turn(Manner::Trial, spent);
        }
    }

    /// The next trial comes when swaps have paid for this one.
    fn lose(&mut self, spent: Spent) {
        self.next_trial_ns = spent.swap_ns + TRIAL_PART * (spent.bits_ns - self.before_trial_ns);
    }

    fn turn(&mut self, manner: Manner, spent: Spent) {
        (self.manner, self.then, self.came, self.stretches) = (manner, spent, 0, 0);
    }
}

/// Whether so many clearings cost no more than a quarter of a swap.
fn is_cheap(clearings: u32, spent: Spent) -> bool {
    f64::from(clearings) * spent.bit_ns <= spent.swap_price_ns / 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES: u32 = 100;
    /// Such a part of the clearings that are paid for takes place.
    const CLEARED: f64 = 0.75;

    /// A machine and a program.
    struct World {
        swap: f64,
        bit: f64,
        /// The program's own time between two swaps: blind, and looking.
        between: [f64; 2],
    }

    /// So many pages come; how many of them while bits were cleared.
    fn run(thrift: &mut Thrift, spent: &mut Spent, world: &World, pages: u32) -> u32 {
        let mut looking = 0;
        for _ in 0..pages {
            let looks = thrift.looks();
            looking += u32::from(looks);
            spent.swaps += 1;
            spent.swap_ns += world.swap;
            spent.program_ns += world.between[usize::from(looks)];
            spent.bits_ns += if looks { CLEARED * f64::from(thrift.budget()) * world.bit } else { 0.0 };
            (spent.swap_price_ns, spent.bit_ns) = (world.swap, world.bit);
            thrift.came(*spent);
        }
        looking
    }

    fn new() -> (Thrift, Spent) {
        (Thrift::new(Shape { pages: 1000, frames: FRAMES }), Spent::default())
    }

    #[test]
    fn where_swaps_are_dear_it_looks_as_soon_as_it_knows_and_goes_on() {
        let (mut thrift, mut spent) = new();
        let dear = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        assert_eq!(run(&mut thrift, &mut spent, &dear, 10_000), 10_000 - FIRST as u32);
    }

    #[test]
    fn a_swap_pays_for_many_clearings_or_for_a_few_as_long_as_they_save_something() {
        // By how many bits a swap costs: what it pays for when looking helps, and when it does not.
        for (bits, helped, in_vain) in
            [(35.0, MANY, MANY), (32.0, MANY, MANY), (30.0, FEW, 0), (16.0, FEW, 0), (15.0, 0, 0)]
        {
            for (between, budget) in [([500.0, 2000.0], helped), ([500.0; 2], in_vain)] {
                let (mut thrift, mut spent) = new();
                run(
                    &mut thrift,
                    &mut spent,
                    &World { swap: 20.0 * bits, bit: 20.0, between },
                    6 * FRAMES + 10,
                );
                assert_eq!(thrift.budget(), budget, "a swap as dear as {bits} bits, {between:?}");
            }
        }
    }

    #[test]
    fn cheap_bits_that_become_dear_are_cleared_for_a_few_hundred_pages_more_however_many_frames_there_are() {
        let (mut thrift, mut spent) =
            (Thrift::new(Shape { pages: 100_000, frames: 50_000 }), Spent::default());
        let runs = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        run(&mut thrift, &mut spent, &runs, 10_000);
        let by_lot = World { swap: 100.0, bit: 20.0, between: [500.0; 2] };
        // What is left of the stretch that was begun says nothing yet.
        let looking = run(&mut thrift, &mut spent, &by_lot, 20_000);
        assert!((1..=2 * CHEAP_STRETCH as u32).contains(&looking), "{looking}");
    }

    #[test]
    fn a_burst_of_clearings_that_were_saved_up_is_no_sign_that_they_are_dear() {
        let (mut thrift, mut spent) = new();
        let dear = World { swap: 1000.0, bit: 20.0, between: [500.0; 2] };
        run(&mut thrift, &mut spent, &dear, 1000);
        // Ten times what the swaps of a stretch cost.
        spent.bits_ns += 10.0 * 1000.0 * f64::from(FRAMES);
        assert_eq!(run(&mut thrift, &mut spent, &dear, 1000), 1000);
    }

    #[test]
    fn a_few_clearings_that_pay_become_many_when_swaps_become_dearer() {
        let (mut thrift, mut spent) = new();
        let mut at = |swap| {
            run(
                &mut thrift,
                &mut spent,
                &World { swap, bit: 20.0, between: [500.0, 2000.0] },
                6 * FRAMES + 10,
            );
            thrift.budget()
        };
        assert_eq!([400.0, 1000.0].map(&mut at), [FEW, MANY]);
    }

    #[test]
    fn where_looking_saves_nothing_it_costs_a_sixteenth_of_the_swaps_at_the_most() {
        for swap in [10.0, 100.0, 300.0] {
            let (mut thrift, mut spent) = new();
            let cheap = World { swap, bit: 20.0, between: [500.0; 2] };
            let looking = run(&mut thrift, &mut spent, &cheap, 1_000_000);
            assert!(looking > 0, "it tries now and then");
            assert!(spent.bits_ns <= spent.swap_ns / TRIAL_PART, "swaps of {swap}: {spent:?}");
        }
    }

    /// Of a number of pages, so many in a row came while bits were cleared.
    fn longest_look(thrift: &mut Thrift, spent: &mut Spent, world: &World, pages: u32) -> u32 {
        let (mut longest, mut now) = (0, 0);
        for _ in 0..pages {
            now = if run(thrift, spent, world, 1) > 0 { now + 1 } else { 0 };
            longest = longest.max(now);
        }
        longest
    }

    #[test]
    fn a_trial_that_saves_nothing_ends_after_its_third_stretch() {
        let (mut thrift, mut spent) = new();
        let cheap = World { swap: 100.0, bit: 20.0, between: [500.0; 2] };
        assert_eq!(longest_look(&mut thrift, &mut spent, &cheap, 100_000), 3 * FRAMES);
    }

    #[test]
    fn trials_that_are_won_by_luck_are_paid_for_like_those_that_are_lost() {
        let (mut thrift, mut spent) = new();
        let world = |between| World { swap: 100.0, bit: 20.0, between: [500.0, between] };
        let mut looking = 0;
        for _ in 0..1_000_000 {
            // Looking seems to help until the trial is over.
            let between = if looking < 3 * FRAMES { 2000.0 } else { 500.0 };
            looking = if run(&mut thrift, &mut spent, &world(between), 1) > 0 { looking + 1 } else { 0 };
        }
        assert!(spent.bits_ns > 0.0 && spent.bits_ns <= spent.swap_ns / TRIAL_PART, "{spent:?}");
    }

    #[test]
    fn looking_that_pays_is_found_by_a_trial_and_ends_when_it_does_not_pay_any_more() {
        let (mut thrift, mut spent) = new();
        // A swap and its bits cost 1.6 swaps, and there are a quarter as many.
        let pays = World { swap: 100.0, bit: 20.0, between: [500.0, 2000.0] };
        run(&mut thrift, &mut spent, &pays, 40_000);
        let looking = run(&mut thrift, &mut spent, &pays, 100_000);
        assert!(looking > 80_000, "{looking} of 100,000");
        let no_more = World { between: [500.0; 2], ..pays };
        run(&mut thrift, &mut spent, &no_more, 1000);
        assert!(!thrift.looks());
        let looking = run(&mut thrift, &mut spent, &no_more, 100_000);
        // Trials, whose bits cost a sixteenth of the swaps.
        assert!(looking < 11_000, "{looking} of 100,000");
    }

    #[test]
    fn when_swaps_become_dear_it_looks_and_when_they_become_cheap_it_stops() {
        let (mut thrift, mut spent) = new();
        let at = |swap| World { swap, bit: 20.0, between: [500.0; 2] };
        run(&mut thrift, &mut spent, &at(100.0), 1000);
        assert!(!thrift.looks());
        run(&mut thrift, &mut spent, &at(1000.0), 3 * FRAMES);
        assert!(thrift.looks());
        run(&mut thrift, &mut spent, &at(100.0), 3 * FRAMES);
        assert!(!thrift.looks());
    }

    #[test]
    fn first_touches_say_nothing_of_swaps() {
        let (mut thrift, mut spent) = new();
        for _ in 0..1000 {
            // Nothing was swapped in yet, but much has left.
            spent.swap_ns += 1000.0;
            spent.swap_price_ns = 100.0;
            thrift.came(spent);
        }
        run(&mut thrift, &mut spent, &World { swap: 100.0, bit: 20.0, between: [500.0; 2] }, 10);
        assert!(!thrift.looks());
        let (mut thrift, mut spent) = new();
        run(&mut thrift, &mut spent, &World { swap: 1000.0, bit: 20.0, between: [500.0; 2] }, 1000);
        // Pages come that nobody had touched before; their bits cost something, and there is no swap to pay
        // for them.
        for _ in 0..1000 {
            spent.bits_ns += 20.0;
            thrift.came(spent);
        }
        assert!(thrift.looks());
    }
}
