//! One policy, one trace, one number of frames.

use std::time::Duration;

use super::Trace;
use crate::replace::{Access, AccessBits, PageNo, Policy, Replacement, Shape, Spent};

/// Costs of operations, in virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One access of the program to its memory, with the computation before it.
    pub access: f64,
    /// A page's way in.
    pub swap_in: f64,
    /// A modified page's way out.
    pub write_back: f64,
    /// A fault: signal, its handler, and back.
    pub fault: f64,
    /// A change of a page's protection.
    pub protect: f64,
}

impl Costs {
    /// In nanoseconds: pages of 1 MiB over 10 Gbit/s; signal 14 us and mprotect 3 us as in the paper's
    /// §3.2.1; 2 ns per access.
    pub const PAPER: Self =
        Self { access: 2.0, swap_in: 839_000.0, write_back: 839_000.0, fault: 14_000.0, protect: 3_000.0 };

    /// Each page of the trace represents one that is `factor` times as large: an access represents as many.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { access: self.access * factor, ..self }
    }
}

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// First touches of pages: they come in without a transfer.
    pub first_touches: u64,
    /// Touches of pages that were away: the paper's remote swaps.
    pub swap_ins: u64,
    /// Pages that left.
    pub swap_outs: u64,
    /// Pages that left and had been written since they came.
    pub write_backs: u64,
    /// Reference bits set again by a fault of a resident page.
    pub references_set: u64,
    /// Modified bits set by a fault of their own.
    pub modified_set: u64,
    /// Reference bits cleared.
    pub cleared: u64,
    /// Calls of the policy in which bits were cleared.
    pub clearings: u64,
    /// Nanoseconds of clearing bits.
    pub clear_ns: f64,
    /// Nanoseconds of setting bits.
    pub set_ns: f64,
    /// Nanoseconds of waiting for pages.
    pub swap_ns: f64,
    /// Nanoseconds of the program itself.
    pub compute_ns: f64,
}

impl Outcome {
    /// All of it.
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.clear_ns + self.set_ns + self.swap_ns + self.compute_ns
    }

    /// Mean time between clearings (Fig. 3), if there were any.
    #[must_use]
    pub fn clear_interval(&self) -> Option<Duration> {
        (self.clearings > 0).then(|| Duration::from_secs_f64(self.total_ns() / self.clearings as f64 * 1e-9))
    }
}

/// Runs the trace with a policy by name.
///
/// # Panics
///
/// If `frames` is zero, or the policy offers a page that is not resident.
#[must_use]
pub fn replay(trace: &Trace, policy: Policy, frames: u32, costs: &Costs, seed: u64) -> Outcome {
    let mut policy = policy.build(Shape { pages: trace.pages(), frames }, seed);
    replay_with(trace, &mut *policy, frames, costs)
}

/// Runs the trace with a policy that was made for `trace.pages()` and `frames`.
///
/// # Panics
///
/// As [`replay`].
#[must_use]
pub fn replay_with(trace: &Trace, policy: &mut dyn Replacement, frames: u32, costs: &Costs) -> Outcome {
    assert!(frames > 0, "a program needs a frame");
    let mut run = Run::new(trace.pages(), policy, frames, *costs);
    for epoch in trace.epochs() {
        for (page, access) in epoch {
            run.touch(page, access);
        }
        run.outcome.compute_ns += f64::from(trace.epoch_accesses()) * costs.access;
        run.timers();
    }
    run.outcome
}

struct Run<'p> {
    policy: &'p mut dyn Replacement,
    frames: u32,
    resident: u32,
    costs: Costs,
    bits: Bits,
    next_timer: f64,
    outcome: Outcome,
    /// Of the waiting, that which made room for first touches: no part of a swap's price.
    first_touches_ns: f64,
}

impl<'p> Run<'p> {
    fn new(pages: u32, policy: &'p mut dyn Replacement, frames: u32, costs: Costs) -> Self {
        let next_timer = policy.timer().map_or(f64::INFINITY, |every| every.as_secs_f64() * 1e9);
        let bit_ns = costs.fault + 2.0 * costs.protect;
        let spent = Spent { swap_price_ns: costs.swap_in, bit_ns, ..Spent::default() };
        let bits = Bits { pages: vec![State::default(); pages as usize], cleared: 0, spent };
        Self {
            policy,
            frames,
            resident: 0,
            costs,
            bits,
            next_timer,
            outcome: Outcome::default(),
            first_touches_ns: 0.0,
        }
    }

    fn touch(&mut self, page: PageNo, access: Access) {
        let state = self.bits.pages[page.index()];
        if !state.resident {
            self.bring_in(page, access);
        } else if !state.referenced {
            self.bits.set(page, access);
            self.outcome.references_set += 1;
            self.outcome.set_ns += self.costs.fault + self.costs.protect;
            self.policy.referenced(page, access, &mut self.bits);
            self.count_clearing();
        } else if access == Access::Write && !state.modified {
            self.bits.set(page, access);
            self.outcome.modified_set += 1;
            self.outcome.set_ns += self.costs.fault + self.costs.protect;
        }
    }

    fn bring_in(&mut self, page: PageNo, access: Access) {
        if self.resident == self.frames {
            self.make_room(page);
        }
        let state = &mut self.bits.pages[page.index()];
        if state.seen {
            self.outcome.swap_ins += 1;
            self.outcome.swap_ns += self.costs.swap_in;
        } else {
            self.outcome.first_touches += 1;
        }
        *state = State { seen: true, resident: true, referenced: true, modified: access == Access::Write };
        self.resident += 1;
        self.account();
        self.policy.page_in(page, access, &mut self.bits);
        self.count_clearing();
        self.timers();
    }

    fn make_room(&mut self, incoming: PageNo) {
        let is_swap = self.bits.pages[incoming.index()].seen;
        let victim = self.policy.victim(Some(incoming), &mut self.bits);
        self.count_clearing();
        let state = &mut self.bits.pages[victim.index()];
        assert!(state.resident, "victim {victim} is not resident");
        self.outcome.swap_outs += 1;
        if state.modified {
            self.outcome.write_backs += 1;
            self.outcome.swap_ns += self.costs.write_back;
            self.first_touches_ns += if is_swap { 0.0 } else { self.costs.write_back };
        }
        *state = State { seen: true, ..State::default() };
        self.resident -= 1;
        self.policy.page_out(victim);
    }

    /// Reports the costs so far to the policy.
    fn account(&mut self) {
        let Outcome { swap_ins, swap_ns, clear_ns, set_ns, compute_ns, .. } = self.outcome;
        let spent = &mut self.bits.spent;
        (spent.swaps, spent.swap_ns) = (swap_ins, swap_ns - self.first_touches_ns);
        (spent.bits_ns, spent.program_ns) = (clear_ns + set_ns, compute_ns);
    }

    /// Timers that are due. After a wait longer than the interval one signal is pending, not many.
    fn timers(&mut self) {
        if self.outcome.total_ns() < self.next_timer {
            return;
        }
        self.policy.on_timer(&mut self.bits);
        self.count_clearing();
        let every = self.policy.timer().map_or(f64::INFINITY, |every| every.as_secs_f64() * 1e9);
        self.next_timer = self.outcome.total_ns() + every;
    }

    fn count_clearing(&mut self) {
        let cleared = std::mem::take(&mut self.bits.cleared);
        self.outcome.cleared += cleared;
        self.outcome.clearings += u64::from(cleared > 0);
        self.outcome.clear_ns += cleared as f64 * self.costs.protect;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    seen: bool,
    resident: bool,
    referenced: bool,
    modified: bool,
}

struct Bits {
    pages: Vec<State>,
    cleared: u64,
    spent: Spent,
}

impl Bits {
    fn set(&mut self, page: PageNo, access: Access) {
        let state = &mut self.pages[page.index()];
        state.referenced = true;
        state.modified |= access == Access::Write;
    }
}

impl AccessBits for Bits {
    fn is_referenced(&self, page: PageNo) -> bool {
        self.pages[page.index()].referenced
    }

    fn is_modified(&self, page: PageNo) -> bool {
        self.pages[page.index()].modified
    }

    fn clear_referenced(&mut self, page: PageNo) {
        let state = &mut self.pages[page.index()];
        assert!(state.resident, "page {page} is not resident and has no bit to clear");
        self.cleared += u64::from(state.referenced);
        state.referenced = false;
    }

    fn spent(&self) -> Spent {
        self.spent
    }
}
