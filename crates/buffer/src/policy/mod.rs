//! Replacement policies: the choice of the page that is evicted for a new one.

pub(crate) mod clock_hand;
pub(crate) mod nb_gclock;
pub(crate) mod phase_change;
mod probation;
pub(crate) mod sketch;
pub(crate) mod turns;
pub(crate) mod two_rings;

use self::clock_hand::ClockHand;
use self::two_rings::{Swap, TwoRings};
use crate::dirty_map::DirtyMap;
use crate::frame::{Evicted, Frame, FrameId, MAX_REF_COUNT};

pub use clock_hand::HandKind;

/// The replacement policy of a pool. Both are lock-free, and a hit costs the same under both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nb-GCLOCK as the paper has it: one ring of all frames.
    NbGclock(HandKind),
    /// A small probation ring before the GCLOCK ring, and a sketch of recent loads: for larger pools and for
    /// workloads with scans. Takes 20 bytes more per frame.
    #[default]
    TwoRings,
}

/// Rounds after which a sweep gives up.
const MAX_ROUNDS: usize = if cfg!(loom) { 2 } else { MAX_REF_COUNT as usize + 2 };

/// The bound of one search for a victim, and its cost so far.
#[derive(Debug)]
pub struct Search {
    /// The remaining bound of frames to look at.
    left: usize,
    /// Frames looked at.
    pub(crate) looks: usize,
    /// Cold dirty frames among them.
    pub(crate) dirty_met: usize,
}

impl Search {
    /// Looks at `most_looks` frames at most.
    pub(crate) const fn bounded(most_looks: usize) -> Self {
        Self { left: most_looks, looks: 0, dirty_met: 0 }
    }

    /// Has no bound but `MAX_ROUNDS` rounds.
    pub const fn full() -> Self {
        Self::bounded(usize::MAX)
    }

    /// Counts a look; `false` if the bound is reached.
    fn look(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        (self.left, self.looks) = (self.left - 1, self.looks + 1);
        true
    }

    /// Half of the looks left, for one of two steps.
    const fn half(&self) -> u64 {
        self.left.div_ceil(2) as u64
    }

    const fn is_bounded(&self) -> bool {
        self.left < usize::MAX / 2
    }
}

/// Result of a sweep.
#[derive(Debug)]
pub enum Sweep {
    /// A frame that the caller has begun to evict.
    Victim {
        /// The frame.
        frame: FrameId,
        /// The argument for [`Replacement::evicted`], once the caller owns the frame.
        swap: Option<Swap>,
    },
    /// No clean frame was cold; this one is cold and dirty.
    Dirty(FrameId),
    /// Every frame was pinned or in use by another sweep, or other sweeps were faster.
    Nothing {
        /// Frames that were pinned when they were last read.
        pinned: usize,
    },
    /// The bound of the search was reached; the frames beyond it were not looked at.
    BoundReached,
}

/// The state of a policy.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per pool; a box would cost each miss one more indirection"
)]
pub enum Replacement {
    /// The paper's ring.
    NbGclock(ClockHand),
    /// The default.
    TwoRings(TwoRings),
}

impl Replacement {
    /// Returns the state of `policy` for this number of frames.
    pub fn new(policy: Policy, frames: usize) -> Self {
        match policy {
            Policy::NbGclock(hand) => Self::NbGclock(ClockHand::new(hand)),
            Policy::TwoRings => Self::TwoRings(TwoRings::new(frames)),
        }
    }

    /// Memory that grows with the number of frames.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::NbGclock(_) => 0,
            Self::TwoRings(rings) => rings.bytes(),
        }
    }

    /// Looks for a victim.
    pub fn sweep(&self, frames: &[Frame], search: &mut Search) -> Sweep {
        match self {
            Self::NbGclock(hand) => nb_gclock::sweep(frames, hand, search),
            Self::TwoRings(rings) => rings.sweep(frames, search),
        }
    }

    /// Notes that the caller owns the victim of the sweep.
    pub fn evicted(&self, swap: Option<Swap>, owner: &Evicted) {
        if let (Self::TwoRings(rings), Some(swap)) = (self, swap) {
            rings.swap(swap, owner);
        }
    }

    /// Notes that pages are about to be read ahead.
    pub(crate) fn reads_ahead(&self) {
        if let Self::TwoRings(rings) = self {
            rings.reads_ahead();
        }
    }

    /// Returns dirty frames in about the order of the sweep; `looks` bounds the search for them.
    pub(crate) fn dirty_ahead<'a>(
        &'a self,
        dirty: &'a DirtyMap,
        looks: usize,
    ) -> Box<dyn Iterator<Item = FrameId> + 'a> {
        match self {
            Self::NbGclock(hand) => Box::new(dirty.iter_from(hand.position()).take(looks)),
            Self::TwoRings(rings) => Box::new(rings.ahead(looks).filter(|&id| dirty.contains(id))),
        }
    }

    /// Returns `true` if the policy still has every frame; no thread may be in a miss.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::NbGclock(_) => true,
            Self::TwoRings(rings) => rings.is_permutation(),
        }
    }
}
