//! Two rings: a policy with the hit ratio of S3-FIFO and W-TinyLFU, in which a hit only updates GCLOCK's
//! reference count.
//!
//! New pages enter a small **probation** ring (1 % of the frames, a FIFO; S3-FIFO, SOSP 2023, and 2Q, VLDB
//! 1994). Pages that are used again in probation move to the **main** ring, a GCLOCK. So pages that are used
//! once, by scans and by the tail of the distribution, use few frames, and the other frames are unaffected.
//!
//! A miss:
//! 1. Take the next probation slot, by its hand (see `probation`). The page in this slot is the *candidate*.
//!    Age the sketch, once per miss.
//! 2. The main hand searches for its next victim, the *main victim*: cold, clean, unpinned. Warm pages on the
//!    way lose a use, as in GCLOCK. If the main victim is not evicted, the hand stays before it. So the next
//!    candidate of the same stripe of threads is compared with it too (each stripe has its own main victim).
//! 3. The candidate wins if it was used twice in probation. It also wins if it was evicted, loaded again, and
//!    used recently more often than the main victim (see `sketch`). Then the main victim is evicted, and the
//!    two frames swap slots: the candidate continues in main, and the freed frame receives the new page in
//!    probation.
//! 4. Otherwise the candidate is evicted, and its frame receives the new page in the same slot. No slot is
//!    written.
//! 5. A pinned candidate is skipped. A dirty candidate is skipped too, and the cleaner is called. After
//!    [`MAX_PASSED`] skipped candidates the main victim is evicted and swapped with the last dirty one, so
//!    that probation keeps moving.
//! 6. Turns are assigned in batches, so the turns of one thread need not reach every slot. If there is no
//!    main victim, no candidate and no dirty page, each frame is checked once. The first frame that is clean
//!    and unpinned is evicted, warm or not, and receives the new page in the same slot. A bounded search
//!    omits this step: it spends half of its checks on step 2 and the rest on candidates. A later search
//!    finds a main victim that is farther away, because the hands keep their positions.
//!
//! **Change of the hot set** (see `phase_change`). While unusually many probation pages are used, the main
//! ring and the sketch describe the old working set. Then the sketch ages faster, and warm pages of main lose
//! half of their uses at a time. A candidate that was loaded again wins with half of the main victim's uses.
//!
//! The rings are one array of frame numbers, probation first. A slot is only a hint; the pin word alone
//! decides whether a frame may be taken, as in `nb_gclock`. The invariants guarantee that no frame
//! disappears from the array:
//!
//! - **RING-1** A main slot with the number of an evicted frame is written only by that frame's owner.
//! - **RING-2** When no swap is running, the slots are a permutation of the frames. Proof: a swap owns the
//!   main victim's frame *v* and has read main slot *q* with *v* after that, so *q* does not change (RING-1).
//!   Its CAS stores *v* in probation slot *p* in place of the candidate *f*, and its store puts *f* into *q*.
//!   If *p* was changed in between, even back to *f*, one of the two frames still exchanges its slot with the
//!   other. If the CAS fails, nothing was written.
//!
//! | swap, owner of v | another thread |
//! |---|---|
//! | CAS slot p: f → v | |
//! | *f is in no slot, v in two* | finds v evicted: skips it |
//! | store slot q: v → f | |
//!
//! A thread that stalls permanently between the two steps hides one frame from the hands (and one more, which
//! it owns). No other thread waits for it (G10), and step 6 finds the frame.
//!
//! Limits: a change of the hot set to pages that were never loaded before is detected late. Some of these
//! pages must first be used within probation, and the others loaded again. In a pool of less than a few
//! hundred frames, a page leaves the probation ring before a second use.

use std::ops::ControlFlow::{Break, Continue};

use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::count::{shared_rmw, shared_store};
use crate::frame::{Evicted, Frame, FrameId, nth_frame};
use azekura_base::zeroed::ZeroedArray;

use super::phase_change::PhaseChange;
use super::probation::Probation;
use super::sketch::Sketch;
use super::turns::{Batch, Turns};
use super::{MAX_ROUNDS, Search, Sweep};

/// Least number of batches of main-hand turns per ring: a batch is at most 1/64 of the ring.
const MAIN_BATCH_SHARE: u64 = 64;
const MAX_MAIN_BATCH: u64 = 16;
/// Number of counts of the sketch that a miss ages, in units of 1/[`PER_COUNT`](super::sketch::PER_COUNT)
/// count. One constant is for normal operation, the other for a phase change.
const AGED: u64 = 1;
const AGED_IN_PHASE_CHANGE: u64 = 10;
/// Largest number of pinned or dirty candidates that one sweep skips.
const MAX_PASSED: usize = if cfg!(loom) { 2 } else { 32 };

/// Two slots to swap, once the caller owns the frame in the main slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    probation_slot: usize,
    candidate: FrameId,
    main_slot: usize,
}

/// The rings, their hands and the sketch.
#[derive(Debug)]
pub struct TwoRings {
    slots: ZeroedArray<AtomicU32>,
    /// The slots and turns of the probation ring.
    probation: Probation,
    phase_change: PhaseChange,
    /// The hand of the main ring; each stripe of threads has a separate main victim.
    main_hand: Turns,
    sketch: Sketch,
}

/// The main hand's next victim.
#[derive(Clone, Copy)]
struct MainVictim {
    frame: FrameId,
    slot: usize,
    /// The turn of the main hand.
    turn: Batch,
}

/// A search, and the frames that it found.
struct Met<'s> {
    search: &'s mut Search,
    first_dirty: Option<FrameId>,
}

impl Met<'_> {
    fn dirty(&mut self, frame: FrameId) {
        self.search.dirty_met += 1;
        self.first_dirty.get_or_insert(frame);
    }
}

impl TwoRings {
    pub(crate) fn new(frames: usize) -> Self {
        let probation = Probation::new(frames);
        let main = (frames - probation.slots()) as u64;
        Self {
            slots: ZeroedArray::new(frames, || AtomicU32::new(0)),
            probation,
            phase_change: PhaseChange::new(frames),
            main_hand: Turns::new((main / MAIN_BATCH_SHARE).clamp(1, MAX_MAIN_BATCH)),
            sketch: Sketch::new(frames),
        }
    }

    /// Returns the memory of the slots and the sketch, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.sketch.bytes()
    }

    fn frame_at(&self, slot: usize) -> FrameId {
        FrameId(self.slots[slot].load(Relaxed) ^ self.first_at(slot)) // Relaxed: a slot is a hint
    }

    /// Returns the initial frame of a slot. A slot stores the XOR with it, so all slots begin as zeroes.
    fn first_at(&self, slot: usize) -> u32 {
        nth_frame(slot, self.slots.len()).0
    }

    fn main(&self) -> usize {
        self.slots.len() - self.probation.slots()
    }

    /// Records that pages are about to be read ahead.
    pub(crate) fn reads_ahead(&self) {
        self.probation.reads_ahead();
    }

    /// Searches for a victim, by the steps of the module head.
    pub(crate) fn sweep(&self, frames: &[Frame], search: &mut Search) -> Sweep {
        let mut met = Met { search, first_dirty: None };
        let found = self.victim(frames, &mut met);
        match (found, met.first_dirty) {
            (Some((frame, swap)), _) => {
                self.sketch.add(frames[frame.0 as usize].page_id()); // FRAME-1: fixed until we leave
                Sweep::Victim { frame, swap }
            }
            (None, Some(dirty)) => Sweep::Dirty(dirty),
            (None, None) if met.search.is_bounded() => Sweep::BoundReached,
            (None, None) => {
                Sweep::Nothing { pinned: frames.iter().filter(|frame| frame.is_pinned()).count() }
            }
        }
    }

    fn victim(&self, frames: &[Frame], met: &mut Met<'_>) -> Option<(FrameId, Option<Swap>)> {
        let is_phase_change = self.phase_change.is_on(|| self.probation.hand().now());
        let mut main_victim = self.main_victim(frames, is_phase_change, met);
        let (mut last_dirty, mut has_aged) = (None, false);
        // Without a main victim, used candidates lose their uses in probation.
        let candidates = if main_victim.is_some() { MAX_PASSED } else { self.probation.slots() * MAX_ROUNDS };
        for _ in 0..candidates {
            if !met.search.look() {
                break;
            }
            let turn = self.probation.hand().next();
            let probation_slot = self.probation.slot(turn);
            let candidate = self.frame_at(probation_slot);
            let frame = &frames[candidate.0 as usize];
            if !frame.is_open() || frame.is_pinned() {
                continue;
            }
            if !std::mem::replace(&mut has_aged, true) {
                self.sketch.age(turn, if is_phase_change { AGED_IN_PHASE_CHANGE } else { AGED });
            }
            if !frame.is_cold() {
                self.phase_change.note_use(turn);
            }
            if let Some(MainVictim { frame: victim, slot, turn: main_turn }) = main_victim
                && self.is_better(frames, candidate, victim, is_phase_change)
            {
                if frames[victim.0 as usize].try_evict() {
                    self.main_hand.take(main_turn);
                    frame.set_ref_count(1);
                    return Some((victim, Some(Swap { probation_slot, candidate, main_slot: slot })));
                }
                main_victim = self.main_victim(frames, is_phase_change, met); // Another thread was faster.
                continue;
            }
            if main_victim.is_none() && !frame.cool() {
                continue;
            }
            if frame.is_dirty() {
                met.dirty(candidate);
                last_dirty = Some((candidate, probation_slot));
            } else if frame.try_evict() {
                return Some((candidate, None));
            }
        }
        let Some(MainVictim { frame, turn, slot }) = main_victim else {
            let may_be_any = met.first_dirty.is_none() && !met.search.is_bounded();
            return if may_be_any { anyone(frames).map(|frame| (frame, None)) } else { None };
        };
        frames[frame.0 as usize].try_evict().then(|| {
            self.main_hand.take(turn);
            let swap = |(candidate, probation_slot)| Swap { probation_slot, candidate, main_slot: slot };
            (frame, last_dirty.map(swap))
        })
    }

    /// Performs step 2; returns `None` if no frame of the main ring is clean and unpinned.
    fn main_victim(&self, frames: &[Frame], is_phase_change: bool, met: &mut Met<'_>) -> Option<MainVictim> {
        if self.main() == 0 {
            return None;
        }
        let main = self.main() as u64;
        let (mut step, mut has_cooled) = (0, false);
        let most = met.search.half().min(main * MAX_ROUNDS as u64);
        let found = self.main_hand.find(most, |turn| {
            met.search.look();
            if step > 0 && step % main == 0 && !std::mem::take(&mut has_cooled) {
                return Break(None); // A whole round of pinned, dirty and closed frames.
            }
            step += 1;
            let slot = self.probation.slots() + (turn % main) as usize;
            let id = self.frame_at(slot);
            let frame = &frames[id.0 as usize];
            if !frame.is_open() || frame.is_pinned() {
                return Continue(());
            }
            if !frame.is_cold() {
                if is_phase_change {
                    frame.cool_by_half()
                } else {
                    _ = frame.cool();
                }
                has_cooled = true;
            } else if frame.is_dirty() {
                met.dirty(id);
            } else {
                return Break(Some((id, slot)));
            }
            Continue(())
        });
        found.map(|(turn, (frame, slot))| MainVictim { frame, slot, turn })
    }

    /// Applies the rule of step 3 to two frames. Without a pin the page ids may be stale; then either result
    /// is acceptable.
    fn is_better(
        &self,
        frames: &[Frame],
        candidate: FrameId,
        main_victim: FrameId,
        is_phase_change: bool,
    ) -> bool {
        let [candidate, main_victim] = [candidate, main_victim].map(|id| &frames[id.0 as usize]);
        let returns = |frame: &Frame| u32::from(self.sketch.estimate(frame.page_id()));
        is_better(candidate.uses(), returns(candidate), returns(main_victim), is_phase_change)
    }

    /// Swaps the slots of step 3, unless they have changed. The caller owns the victim.
    pub(crate) fn swap(&self, swap: Swap, owner: &Evicted) {
        let Swap { probation_slot, candidate, main_slot } = swap;
        // Relaxed: a thread that evicts this frame later acquires this owner's stores through the pin word,
        // and checks the slot again here.
        if self.frame_at(main_slot) != owner.frame {
            return; // The frame moved between the read of its slot and the eviction.
        }
        shared_rmw();
        let (probation, first) = (&self.slots[probation_slot], self.first_at(probation_slot));
        let [before, after] = [candidate.0 ^ first, owner.frame.0 ^ first];
        if probation.compare_exchange(before, after, Relaxed, Relaxed).is_ok() {
            crate::stall::sync_point!("half a swap");
            shared_store();
            self.slots[main_slot].store(candidate.0 ^ self.first_at(main_slot), Relaxed); // Relaxed: RING-1
        }
    }

    /// Returns the first `looks` frames in the order of the next sweep: candidates, then the main ring.
    pub(crate) fn ahead(&self, looks: usize) -> impl Iterator<Item = FrameId> {
        let (turn, hand) = (self.probation.hand().hand(), self.main_hand.hand());
        let first = self.probation.slots();
        let candidates = self.probation.round(turn).into_iter();
        let main = (0..self.main() as u64)
            .map(move |step| first + (hand.wrapping_add(step) % self.main() as u64) as usize);
        candidates.chain(main).take(looks).map(|slot| self.frame_at(slot))
    }

    /// Returns `true` if RING-2 holds now; no swap may be running.
    #[cfg(any(test, loom))]
    pub(crate) fn is_permutation(&self) -> bool {
        let mut all: Vec<u32> = (0..self.slots.len()).map(|slot| self.frame_at(slot).0).collect();
        all.sort_unstable();
        all.into_iter().eq(0..self.slots.len() as u32)
    }
}

/// Performs step 6. So a sweep returns [`Sweep::Nothing`] only if each frame was pinned or in use by another
/// sweep when it was checked, or if another sweep was faster.
fn anyone(frames: &[Frame]) -> Option<FrameId> {
    (0..frames.len() as u32).map(FrameId).find(|id| frames[id.0 as usize].try_evict())
}

/// Returns whether the candidate wins in step 3. `returns` estimates the recent evictions of a page, most of
/// which were followed by a load.
const fn is_better(uses: u32, returns: u32, victim_returns: u32, is_phase_change: bool) -> bool {
    uses > 1
        || returns + uses > victim_returns
        || is_phase_change && returns > 0 && returns >= victim_returns / 2
}

#[cfg(all(test, not(loom)))]
mod tests;
