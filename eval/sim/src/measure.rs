//! Counts accesses in a part of a run. Threads of the machine say when this part begins and ends.

use crate::coherence::{Time, picoseconds};
use crate::handle::with;
use crate::stalls::{PlaceStalls, Stalls};
use azekura_base::sync::machine;
use std::time::Duration;

/// Counts of a part of a run.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Number of accesses.
    pub steps: u64,
    /// Places at which threads waited for lines, the costliest first.
    pub stalls: Vec<PlaceStalls>,
}

/// The period in which accesses are counted, and their counts.
#[derive(Debug)]
pub(crate) struct Counting {
    pub(crate) from: Time,
    pub(crate) until: Time,
    pub(crate) steps: u64,
    pub(crate) stalls: Stalls,
}

impl Default for Counting {
    fn default() -> Self {
        Self { from: 0, until: Time::MAX, steps: 0, stalls: Stalls::default() }
    }
}

/// Counts the accesses of all threads from one time of the machine's clock until another. Earlier counts are
/// discarded.
///
/// # Panics
///
/// If the caller is not a thread of a machine.
pub fn between(from: Duration, until: Duration) {
    assert!(machine::current().is_some(), "a thread of a machine says what is measured");
    let time = |moment: Duration| picoseconds(moment.as_secs_f64() * 1e9);
    let counting = Counting { from: time(from), until: time(until), ..Counting::default() };
    with(|world| world.counting = counting);
}

/// Returns the counts so far.
///
/// # Panics
///
/// If the caller is not a thread of a machine.
#[must_use]
pub fn counted() -> Stretch {
    assert!(machine::current().is_some(), "a thread of a machine asks what was measured");
    with(|world| Stretch { steps: world.counting.steps, stalls: world.counting.stalls.by_place() })
}
