//! Replay of one trace with one policy and one number of frames.

use std::time::Duration;

use super::Trace;
use crate::replace::{Access, AccessBits, PageNo, Policy, Replacement, Shape, Spent};

/// Costs of operations in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// One memory access of the program, with the computation before it.
    pub access: f64,
    /// Transfer of a page that is paged in.
    pub swap_in: f64,
    /// Transfer of a modified page that is paged out.
    pub write_back: f64,
    /// A fault: the signal, its handler, and the return.
    pub fault: f64,
    /// A change of a page's protection.
    pub protect: f64,
}

impl Costs {
    /// Costs of the paper: pages of 1 MiB over 10 Gbit/s; signal 14 µs and mprotect 3 µs (§3.2.1); 2 ns per
    /// access.
    pub const PAPER: Self =
        Self { access: 2.0, swap_in: 839_000.0, write_back: 839_000.0, fault: 14_000.0, protect: 3_000.0 };

    /// Returns the costs if each page of the trace represents one that is `factor` times as large. An access
    /// then represents `factor` accesses.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { access: self.access * factor, ..self }
    }
}

/// Counts and times of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Number of first touches of pages, which transfer nothing.
    pub first_touches: u64,
    /// Number of touches of paged-out pages: the paper's remote swaps.
    pub swap_ins: u64,
    /// Number of pages that were paged out.
    pub swap_outs: u64,
    /// Number of pages that were paged out and had been written since they were paged in.
    pub write_backs: u64,
    /// Number of reference bits that a fault set again.
    pub references_set: u64,
    /// Number of modified bits that needed a separate fault.
    pub modified_set: u64,
    /// Number of reference bits that were cleared.
    pub cleared: u64,
    /// Number of calls of the policy in which bits were cleared.
    pub clearings: u64,
    /// Time of clearing bits in nanoseconds.
    pub clear_ns: f64,
    /// Time of setting bits in nanoseconds.
    pub set_ns: f64,
    /// Time of waiting for pages in nanoseconds.
    pub swap_ns: f64,
    /// Time of the program itself in nanoseconds.
    pub compute_ns: f64,
}

impl Outcome {
    /// Returns the total time in nanoseconds.
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.clear_ns + self.set_ns + self.swap_ns + self.compute_ns
    }

    /// Returns the mean time between clearings (Fig. 3), if there were any.
    #[must_use]
    pub fn clear_interval(&self) -> Option<Duration> {
        (self.clearings > 0).then(|| Duration::from_secs_f64(self.total_ns() / self.clearings as f64 * 1e-9))
    }
}

/// Replays the trace with a policy by name.
///
/// # Panics
///
/// If `frames` is zero, or the policy returns a victim that is not resident.
#[must_use]
pub fn replay(trace: &Trace, policy: Policy, frames: u32, costs: &Costs, seed: u64) -> Outcome {
    let mut policy = policy.build(Shape { pages: trace.pages(), frames }, seed);
    replay_with(trace, &mut *policy, frames, costs)
}

/// Replays the trace with a policy that was created for `trace.pages()` and `frames`.
///
/// # Panics
///
/// In the cases of [`replay`].
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
    /// Waiting time for evictions that made a frame free for a first touch. Not part of the price of a swap.
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
        let Outcome { swap_ins, swap_ns, clear_ns, set_ns, .. } = self.outcome;
        let spent = &mut self.bits.spent;
        (spent.swaps, spent.swap_ns) = (swap_ins, swap_ns - self.first_touches_ns);
        spent.bits_ns = clear_ns + set_ns;
    }

    /// Calls the policy's timer if it is due. After a wait longer than the interval the timer is called once,
    /// not many times.
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
