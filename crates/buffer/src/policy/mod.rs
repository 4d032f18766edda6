//! Replacement policies: they choose the page to evict for a new one.

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

/// The replacement policy of a pool. Both policies are lock-free, and a hit costs the same with both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nb-GCLOCK as in the paper: one ring of all frames.
    NbGclock(HandKind),
    /// A small probation ring before the GCLOCK ring, and a sketch of recent loads: for larger pools and for
    /// workloads with scans. Uses 20 more bytes per frame.
    #[default]
    TwoRings,
}

/// Number of rounds after which a sweep ends without a victim.
const MAX_ROUNDS: usize = if cfg!(loom) { 2 } else { MAX_REF_COUNT as usize + 2 };

/// The bound of one search for a victim, and its cost so far.
#[derive(Debug)]
pub struct Search {
    /// Number of frames that the search may still check.
    left: usize,
    /// Number of frames checked so far.
    pub(crate) looks: usize,
    /// Number of cold dirty frames among the checked ones.
    pub(crate) dirty_met: usize,
}

impl Search {
    /// Returns a search that checks at most `most_looks` frames.
    pub(crate) const fn bounded(most_looks: usize) -> Self {
        Self { left: most_looks, looks: 0, dirty_met: 0 }
    }

    /// Returns a search that is bounded only by `MAX_ROUNDS` rounds.
    pub const fn full() -> Self {
        Self::bounded(usize::MAX)
    }

    /// Counts a check of a frame; returns `false` if the bound is reached.
    fn look(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        (self.left, self.looks) = (self.left - 1, self.looks + 1);
        true
    }

    /// Returns half of the remaining checks, for one of two steps.
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
    /// No clean frame was cold; this frame is cold and dirty.
    Dirty(FrameId),
    /// No victim: every frame was pinned or in use by another sweep, or other sweeps were faster.
    Nothing {
        /// Number of frames that were pinned when they were last read.
        pinned: usize,
    },
    /// The search reached its bound; the frames beyond it were not checked.
    BoundReached,
}

/// The state of a policy.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a pool has one value; a box would add an indirection to each miss"
)]
pub enum Replacement {
    /// Nb-GCLOCK: the paper's single ring.
    NbGclock(ClockHand),
    /// Two rings: the default.
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

    /// Returns the memory that grows with the number of frames, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::NbGclock(_) => 0,
            Self::TwoRings(rings) => rings.bytes(),
        }
    }

    /// Searches for a victim.
    pub fn sweep(&self, frames: &[Frame], search: &mut Search) -> Sweep {
        match self {
            Self::NbGclock(hand) => nb_gclock::sweep(frames, hand, search),
            Self::TwoRings(rings) => rings.sweep(frames, search),
        }
    }

    /// Informs the policy that the caller owns the victim of the sweep.
    pub fn evicted(&self, swap: Option<Swap>, owner: &Evicted) {
        if let (Self::TwoRings(rings), Some(swap)) = (self, swap) {
            rings.swap(swap, owner);
        }
    }

    /// Informs the policy that pages are about to be read ahead.
    pub(crate) fn reads_ahead(&self) {
        if let Self::TwoRings(rings) = self {
            rings.reads_ahead();
        }
    }

    /// Returns dirty frames in approximately the order of the sweep; `looks` bounds the search for them.
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

    /// Returns `true` if the policy has lost no frame; no thread may be in a miss.
    #[cfg(test)]
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::NbGclock(_) => true,
            Self::TwoRings(rings) => rings.is_permutation(),
        }
    }
}
