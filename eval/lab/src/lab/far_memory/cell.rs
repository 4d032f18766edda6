//! Result of one program with one share of local memory and one policy.

use azekura_far::Policy;
use azekura_far::replace::replay::{Costs, replay};
use serde::{Deserialize, Serialize};

use super::record::Recorded;

/// Counts of a run, and their cost in seconds (virtual seconds in a replay).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The program with its size.
    pub kernel: String,
    /// The policy with its interval, if it has one.
    pub policy: String,
    /// Local memory in percent of the program's memory.
    pub local: u32,
    /// Pages of the program.
    pub pages: u32,
    /// Pages that may be local.
    pub frames: u32,
    /// Minimum number of swaps with any policy; zero if unknown.
    pub optimal: u64,
    /// Pages that were paged in: the paper's remote swaps.
    pub swap_ins: u64,
    /// Pages that were paged out.
    pub swap_outs: u64,
    /// Modified pages that were paged out.
    pub write_backs: u64,
    /// Reference bits set by a fault of a local page.
    pub bits_set: u64,
    /// Reference bits cleared.
    pub bits_cleared: u64,
    /// Seconds spent clearing reference bits.
    pub clear_s: f64,
    /// Seconds spent setting reference bits and modified bits.
    pub set_s: f64,
    /// Seconds spent waiting for pages.
    pub swap_s: f64,
    /// Seconds of the program itself.
    pub compute_s: f64,
    /// Mean milliseconds between two clearings of the reference bits, if known.
    pub clear_interval_ms: Option<f64>,
}

impl Cell {
    /// Replays a recorded program with a policy.
    #[must_use]
    pub fn replayed(
        recorded: &Recorded,
        policy: Policy,
        local: u32,
        optimal: u64,
        costs: &Costs,
        seed: u64,
    ) -> Self {
        let frames = recorded.frames(local);
        let outcome = replay(&recorded.trace, policy, frames, costs, seed);
        Self {
            kernel: recorded.kernel.to_string(),
            policy: policy.to_string(),
            local,
            pages: recorded.trace.pages(),
            frames,
            optimal,
            swap_ins: outcome.swap_ins,
            swap_outs: outcome.swap_outs,
            write_backs: outcome.write_backs,
            bits_set: outcome.references_set,
            bits_cleared: outcome.cleared,
            clear_s: outcome.clear_ns * 1e-9,
            set_s: outcome.set_ns * 1e-9,
            swap_s: outcome.swap_ns * 1e-9,
            compute_s: outcome.compute_ns * 1e-9,
            clear_interval_ms: outcome.clear_interval().map(|every| every.as_secs_f64() * 1e3),
        }
    }

    /// Returns the total time in seconds.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.clear_s + self.set_s + self.swap_s + self.compute_s
    }
}
