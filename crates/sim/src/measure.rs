//! A stretch of a run that is measured: for threads of a machine, who know when it begins and ends.

use crate::handle::with;
use crate::stalls::PlaceStalls;
use azekura_base::sync::machine;

/// What a machine did in a stretch of a run.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Accesses, and turns of spins.
    pub steps: u64,
    /// Where threads waited for lines, the costliest place first.
    pub stalls: Vec<PlaceStalls>,
}

/// A stretch under way.
#[derive(Debug)]
#[must_use = "a stretch is over when it is asked for"]
pub struct Stretching(u64);

/// Begins a stretch: where threads have waited so far is forgotten. Stretches of one run come one after another.
///
/// # Panics
///
/// If the caller is no thread of a machine.
pub fn begin() -> Stretching {
    assert!(machine::current().is_some(), "a thread of a machine begins a stretch");
    with(|world| {
        world.stalls.clear();
        Stretching(world.steps)
    })
}

impl Stretching {
    /// Ends it.
    ///
    /// # Panics
    ///
    /// If the caller is no thread of a machine.
    #[must_use]
    pub fn end(self) -> Stretch {
        assert!(machine::current().is_some(), "a thread of a machine ends a stretch");
        with(|world| Stretch { steps: world.steps - self.0, stalls: world.stalls.by_place() })
    }
}
