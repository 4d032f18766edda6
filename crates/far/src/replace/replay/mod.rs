//! Trace replay: runs a policy over recorded page touches without real paging, and counts swaps and the cost
//! of access bits.
//!
//! | module | noun |
//! |---|---|
//! | [`trace`] | [`Trace`]: the pages that a program touched, in order |
//! | [`run`] | [`replay`]: one policy, one trace, one number of frames |
//! | [`optimal`] | the least number of swaps that any policy can need (Belady) |
//!
//! Time is virtual ([`Costs`]), so that a replay gives the same result on every machine, and policies with
//! timers can be replayed. One page of a trace may represent a larger page: [`Costs::scaled`].
//!
//! ```
//! use azekura_far::replace::replay::{Costs, Trace, optimal_swap_ins, replay};
//! use azekura_far::{PageNo, Policy};
//!
//! // Three sweeps over ten pages with frames for six: FIFO has each page leave just before it is used.
//! let sweeps = Trace::of_reads((0..30).map(|touch| PageNo(touch % 10)));
//! let swaps = |policy: Policy| replay(&sweeps, policy, 6, &Costs::PAPER, 1).swap_ins;
//! assert_eq!(swaps(Policy::Fifo), 20);
//! assert!(optimal_swap_ins(&sweeps, 6) <= 10);
//! ```

pub mod optimal;
pub mod run;
pub mod trace;

pub use optimal::optimal_swap_ins;
pub use run::{Costs, Outcome, replay, replay_with};
pub use trace::Trace;
