//! Two rings: the hit ratio of S3-FIFO and W-TinyLFU with nothing on the path of hits but GCLOCK's count.
//!
//! New pages enter a small **probation** ring (1 % of the frames, a FIFO; S3-FIFO, SOSP 2023, and 2Q, VLDB 1994). Pages used again there move to the
//! **main** ring, which is GCLOCK as before. So the one-time pages of scans and of the tail pass through a few frames and leave the rest alone.
//!
//! A miss:
//! 1. Take the next probation slot, by its hand (see `turns`). The page there is the *candidate*. Age the sketch.
//! 2. The main hand looks for its next victim, the *bar*: cold, clean, unpinned. Warm pages it passes cool, as in GCLOCK. Unless the bar is
//!    taken the hand stays before it, so that the next candidate meets it too (that of the same stripe of threads: each has its own bar).
//! 3. The candidate was used twice in probation, or left, came back and was used more often of late than the bar left (see `sketch`)? Then the bar is
//!    evicted, and the two frames swap slots: the candidate goes on in main, and the freed frame takes the new page in probation.
//! 4. Else the candidate is evicted, and its frame takes the new page where it is. No slot is written.
//! 5. A pinned candidate is passed; a dirty one too, and the cleaner called. After [`MAX_PASSED`] of them the bar is evicted, and swapped for the last dirty
//!    one, so that probation keeps moving.
//! 6. No bar, no candidate, and nothing dirty? Turns come in batches, so those that one thread gets need not lead to every slot. So each frame is looked at
//!    once, and the first that is clean and unpinned is evicted, warm or not; its frame takes the new page where it is.
//!
//! **Quick slots.** Most turns go round the first [`QUICK`] slots of probation, so that new pages are copied over memory that is still in the
//! processor's caches; the other slots get one turn in so many. Pages read ahead are to stay until their scan comes to them: for two rounds after a
//! read-ahead every slot has the same turns.
//!
//! **A hot set that jumps** (see `surge`). While more pages than usual are used in probation, the main ring and the sketch speak of yesterday: the sketch
//! ages faster, warm pages of main lose half of their uses at a time, and a candidate that came back as often as half of what the bar has is enough.
//!
//! The rings are one array of frame numbers, probation first. Its slots are hints for where to look: that a frame is free to take is decided by its pin
//! word alone, as in `nb_gclock`. What must hold is that no frame is lost from them:
//!
//! - **RING-1** A main slot that names an evicted frame is written only by that frame's owner.
//! - **RING-2** When no swap is under way the slots are a permutation of the frames. Proof: a swap owns the bar's frame *v* and has seen main slot *q* name
//!   it after that, so *q* stays (RING-1). Its CAS puts *v* into probation slot *p* for the candidate *f*, and its store puts *f* into *q*. Had *p* been
//!   changed in between, even to *f* again, one of the two still trades its place with the other. If the CAS fails nothing was written.
//!
//! | swap, owner of v | another |
//! |---|---|
//! | CAS slot p: f → v | |
//! | *f is in no slot, v in two* | meets v, evicted: passes it |
//! | store slot q: v → f | |
//!
//! A thread that stops for ever between the two keeps one frame from the hands (and one more, which it owns); nobody waits for it (G10), and step 6 finds it.
//!
//! Weak case: a hot set that jumps to pages never seen before is believed only after some of its pages were used within probation, and the others came back.
//! A pool of less than some hundred frames has a probation ring too short to see a second use.

use std::ops::ControlFlow::{Break, Continue};

use azekura_base::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::count::{shared_rmw, shared_store};
use crate::frame::{Evicted, Frame, FrameId, nth_frame};

use super::sketch::Sketch;
use super::surge::Surge;
use super::turns::{Batch, Turns};
use super::{MAX_ROUNDS, Sweep};

/// One frame in so many is in probation.
const PROBATION_SHARE: usize = 100;
/// Probation slots that most turns go round: half a megabyte of 8-KiB pages. Hit ratios are the same with a third or three times as many.
const QUICK: usize = 64;
/// Turns of the probation hand are dealt out to threads in batches: an eighth of the ring at most, so that slots have their turns at about equal
/// distances.
const BATCH_SHARE: u64 = 8;
const MAX_BATCH: u64 = 8;
/// Those of the main hand: a 64th of the ring at most.
const MAIN_BATCH_SHARE: u64 = 64;
const MAX_MAIN_BATCH: u64 = 16;
/// Counts of the sketch that a miss ages, and in a surge; in parts of [`PER_COUNT`](super::sketch::PER_COUNT).
const AGED: u64 = 1;
const AGED_IN_SURGE: u64 = 10;
/// Pinned or dirty candidates passed by one sweep.
const MAX_PASSED: usize = if cfg!(loom) { 2 } else { 32 };

/// Two slots to swap once the frame in the second is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Swap {
    probation_slot: usize,
    candidate: FrameId,
    main_slot: usize,
}

/// The rings, their hands and the sketch.
#[derive(Debug)]
pub(crate) struct TwoRings {
    slots: Box<[AtomicU32]>,
    /// Length of the first ring.
    probation: usize,
    /// Turns of the probation hand below this go round all of the ring, for pages that were read ahead.
    all_until: AtomicU64,
    surge: Surge,
    /// Candidates taken so far.
    probation_hand: Turns,
    /// Main frames passed so far; each stripe of threads has a bar of its own.
    main_hand: Turns,
    sketch: Sketch,
}

/// The main hand's next victim.
#[derive(Clone, Copy)]
struct Bar {
    frame: FrameId,
    slot: usize,
    /// Of the main hand.
    turn: Batch,
}

/// What a sweep met.
#[derive(Default)]
struct Met {
    dirty: usize,
    first_dirty: Option<FrameId>,
}

impl Met {
    fn dirty(&mut self, frame: FrameId) {
        self.dirty += 1;
        self.first_dirty.get_or_insert(frame);
    }
}

impl TwoRings {
    pub(crate) fn new(frames: usize) -> Self {
        let probation = (frames / PROBATION_SHARE).max(1);
        Self {
            slots: (0..frames).map(|turn| AtomicU32::new(nth_frame(turn, frames).0)).collect(),
            probation,
            all_until: AtomicU64::new(0),
            surge: Surge::new(frames),
            probation_hand: Turns::new((probation as u64 / BATCH_SHARE).clamp(1, MAX_BATCH)),
            main_hand: Turns::new(((frames - probation) as u64 / MAIN_BATCH_SHARE).clamp(1, MAX_MAIN_BATCH)),
            sketch: Sketch::new(frames),
        }
    }

    /// Bytes of slots and sketch.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.sketch.bytes()
    }

    fn frame_at(&self, slot: usize) -> FrameId {
        FrameId(self.slots[slot].load(Relaxed)) // a hint, see above
    }

    const fn main(&self) -> usize {
        self.slots.len() - self.probation
    }

    /// Pages are about to be read ahead.
    pub(crate) fn reads_ahead(&self) {
        // Relaxed, here and where it is read: it only says which slot has a turn.
        let until = self.probation_hand.hand() + 2 * self.probation as u64;
        if self.all_until.load(Relaxed) < until {
            shared_store();
            self.all_until.store(until, Relaxed);
        }
    }

    /// Looks for a victim; see the steps above.
    pub(crate) fn sweep(&self, frames: &[Frame], dirty_met: &mut usize) -> Sweep {
        let mut met = Met::default();
        let found = self.victim(frames, &mut met);
        *dirty_met += met.dirty;
        match (found, met.first_dirty) {
            (Some((frame, swap)), _) => {
                self.sketch.add(frames[frame.0 as usize].page_id()); // stays while we are in (FRAME-1)
                Sweep::Victim { frame, swap }
            }
            (None, Some(dirty)) => Sweep::Dirty(dirty),
            (None, None) => {
                Sweep::Nothing { pinned: frames.iter().filter(|frame| frame.is_pinned()).count() }
            }
        }
    }

    fn victim(&self, frames: &[Frame], met: &mut Met) -> Option<(FrameId, Option<Swap>)> {
        let is_surging = self.surge.is_on(|| self.probation_hand.now());
        let mut bar = self.bar(frames, is_surging, met);
        let mut last_dirty = None;
        // With no bar, candidates that were used have to cool where they are.
        let candidates = if bar.is_some() { MAX_PASSED } else { self.probation * MAX_ROUNDS };
        for _ in 0..candidates {
            let (candidate, probation_slot, turn) = self.next_candidate(is_surging);
            let frame = &frames[candidate.0 as usize];
            if !frame.is_open() || frame.is_pinned() {
                continue;
            }
            if !frame.is_cold() {
                self.surge.note_use(turn);
            }
            if let Some(Bar { frame: victim, slot, turn: of_bar }) = bar
                && self.is_better(frames, candidate, victim, is_surging)
            {
                if frames[victim.0 as usize].try_evict() {
                    self.main_hand.take(of_bar);
                    frame.set_ref_count(1);
                    return Some((victim, Some(Swap { probation_slot, candidate, main_slot: slot })));
                }
                bar = self.bar(frames, is_surging, met); // somebody was faster; on with the next candidate
                continue;
            }
            if bar.is_none() && !frame.cool() {
                continue;
            }
            if frame.is_dirty() {
                met.dirty(candidate);
                last_dirty = Some((candidate, probation_slot));
            } else if frame.try_evict() {
                return Some((candidate, None));
            }
        }
        let Some(Bar { frame, turn, slot }) = bar else {
            return if met.first_dirty.is_none() { anyone(frames).map(|frame| (frame, None)) } else { None };
        };
        frames[frame.0 as usize].try_evict().then(|| {
            self.main_hand.take(turn);
            let swap = |(candidate, probation_slot)| Swap { probation_slot, candidate, main_slot: slot };
            (frame, last_dirty.map(swap))
        })
    }

    /// Step 1: frame, slot, turn.
    fn next_candidate(&self, is_surging: bool) -> (FrameId, usize, u64) {
        let turn = self.probation_hand.next();
        self.sketch.age(turn, if is_surging { AGED_IN_SURGE } else { AGED });
        let slot = self.probation_slot(turn);
        (self.frame_at(slot), slot, turn)
    }

    /// Which slot has the turn.
    fn probation_slot(&self, turn: u64) -> usize {
        let (all, quick) = (self.probation as u64, self.probation.min(QUICK) as u64);
        let slot = if quick == all || turn < self.all_until.load(Relaxed) {
            turn % all
        } else if !turn.is_multiple_of(quick) {
            turn % quick
        } else {
            match turn / quick % (all - quick + 1) {
                0 => 0,
                slow => quick - 1 + slow,
            }
        };
        slot as usize
    }

    /// Step 2: `None` if no frame of the main ring is clean and unpinned.
    fn bar(&self, frames: &[Frame], is_surging: bool, met: &mut Met) -> Option<Bar> {
        if self.main() == 0 {
            return None;
        }
        let main = self.main() as u64;
        let (mut step, mut has_cooled) = (0, false);
        let found = self.main_hand.find(main * MAX_ROUNDS as u64, |turn| {
            if step > 0 && step % main == 0 && !std::mem::take(&mut has_cooled) {
                return Break(None); // a whole round of pinned, dirty and closed frames
            }
            step += 1;
            let slot = self.probation + (turn % main) as usize;
            let id = self.frame_at(slot);
            let frame = &frames[id.0 as usize];
            if !frame.is_open() || frame.is_pinned() {
                return Continue(());
            }
            if !frame.is_cold() {
                if is_surging {
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
        found.map(|(turn, (frame, slot))| Bar { frame, slot, turn })
    }

    /// Step 3. Without a pin the ids may be stale: then the answer is as good as another.
    fn is_better(&self, frames: &[Frame], candidate: FrameId, bar: FrameId, is_surging: bool) -> bool {
        let [candidate, bar] = [candidate, bar].map(|id| &frames[id.0 as usize]);
        let returns = |frame: &Frame| u32::from(self.sketch.estimate(frame.page_id()));
        is_better(candidate.uses(), returns(candidate), returns(bar), is_surging)
    }

    /// Swaps the slots of step 3, if they are still what they were. The caller owns the victim.
    pub(crate) fn swap(&self, swap: Swap, owner: &Evicted) {
        let Swap { probation_slot, candidate, main_slot } = swap;
        // Relaxed: whoever evicts this frame later has acquired what its owner did (the pin word), and looks again here.
        if self.frame_at(main_slot) != owner.frame {
            return; // it moved between our look and our eviction of it
        }
        shared_rmw();
        let probation = &self.slots[probation_slot];
        if probation.compare_exchange(candidate.0, owner.frame.0, Relaxed, Relaxed).is_ok() {
            crate::stall::sync_point!("half a swap");
            shared_store();
            self.slots[main_slot].store(candidate.0, Relaxed); // RING-1
        }
    }

    /// The frames in the order in which the sweep will look at them: candidates, then the main ring; some `looks` of them.
    pub(crate) fn ahead(&self, looks: usize) -> impl Iterator<Item = FrameId> {
        let (turn, hand) = (self.probation_hand.hand(), self.main_hand.hand());
        let candidates =
            (0..self.probation as u64).map(move |step| self.probation_slot(turn.wrapping_add(step)));
        let main = (0..self.main() as u64)
            .map(move |step| self.probation + (hand.wrapping_add(step) % self.main() as u64) as usize);
        candidates.chain(main).take(looks).map(|slot| self.frame_at(slot))
    }

    /// Whether RING-2 holds now; nobody may be in a swap.
    #[cfg(any(test, loom))]
    pub(crate) fn is_permutation(&self) -> bool {
        let mut all: Vec<u32> = (0..self.slots.len()).map(|slot| self.frame_at(slot).0).collect();
        all.sort_unstable();
        all.into_iter().eq(0..self.slots.len() as u32)
    }
}

/// Step 6. So a sweep says that there is nothing only if each frame was pinned or in other hands when it was looked at, or if another sweep was faster.
fn anyone(frames: &[Frame]) -> Option<FrameId> {
    (0..frames.len() as u32).map(FrameId).find(|id| frames[id.0 as usize].try_evict())
}

/// The rule of step 3. `returns` is how often of late a page left, to come back as a rule.
const fn is_better(uses: u32, returns: u32, bar_returns: u32, is_surging: bool) -> bool {
    uses > 1 || returns + uses > bar_returns || is_surging && returns > 0 && returns >= bar_returns / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::MAX_REF_COUNT;
    use crate::policy::{Policy, Replacement};
    use crate::{BufferPool, MemStore, PoolOptions};
    use azekura_base::durable::NoLog;
    use azekura_base::{Lsn, PageId};
    use std::collections::{HashMap, VecDeque};
    use std::sync::Arc;

    /// The policy in one thread, as plainly as can be: the pages in slots of probation, those of main in a queue whose front is under the hand.
    struct Reference {
        uses: HashMap<u64, u32>,
        probation: Vec<u64>,
        main: VecDeque<u64>,
        lengths: (usize, usize),
        sketch: Sketch,
        surge: Surge,
        turn: u64,
        turns_in_surge: u64,
    }

    impl Reference {
        fn new(frames: usize) -> Self {
            let probation = (frames / PROBATION_SHARE).max(1);
            Self {
                uses: HashMap::new(),
                probation: Vec::new(),
                main: VecDeque::new(),
                lengths: (probation, frames - probation),
                sketch: Sketch::new(frames),
                surge: Surge::new(frames),
                turn: 0,
                turns_in_surge: 0,
            }
        }

        fn fix(&mut self, page: u64) -> bool {
            if let Some(uses) = self.uses.get_mut(&page) {
                *uses = (*uses + 1).min(MAX_REF_COUNT - 1);
                return true;
            }
            if self.probation.len() < self.lengths.0 {
                self.probation.push(page);
            } else if self.main.len() < self.lengths.1 {
                self.main.push_back(page);
            } else {
                self.replace(page);
            }
            self.uses.insert(page, 0);
            false
        }

        /// One turn in 64 goes to slot 0 and those from 64 on, one after the other.
        fn slot(&self) -> usize {
            let slow = [0].into_iter().chain(QUICK..self.probation.len());
            match self.turn as usize {
                turn if self.probation.len() <= QUICK => turn % self.probation.len(),
                turn if turn.is_multiple_of(QUICK) => slow.cycle().nth(turn / QUICK).expect("endless"),
                turn => turn % QUICK,
            }
        }

        fn replace(&mut self, page: u64) {
            let is_surging = self.surge.is_on(|| self.turn);
            while let Some(uses @ 1..) = self.uses.get_mut(&self.main[0]) {
                *uses = if is_surging { *uses / 2 } else { *uses - 1 };
                self.main.rotate_left(1);
            }
            self.sketch.age(self.turn, if is_surging { AGED_IN_SURGE } else { AGED });
            let slot = self.slot();
            let (candidate, bar) = (self.probation[slot], self.main[0]);
            let uses = self.uses[&candidate];
            if uses > 0 {
                self.surge.note_use(self.turn);
            }
            self.turn += 1;
            self.turns_in_surge += u64::from(is_surging);
            let [returns, bar_returns] =
                [candidate, bar].map(|page| u32::from(self.sketch.estimate(PageId(page))));
            let has_come_back = is_surging && returns >= 1 && returns >= bar_returns / 2;
            let leaves = if uses > 1 || uses + returns > bar_returns || has_come_back {
                self.main.pop_front();
                self.main.push_back(candidate);
                self.uses.insert(candidate, 0);
                bar
            } else {
                candidate
            };
            self.sketch.add(PageId(leaves));
            self.uses.remove(&leaves);
            self.probation[slot] = page;
        }
    }

    fn pool(frames: usize) -> BufferPool {
        let options =
            PoolOptions { page_size: 4096, capacity_bytes: frames * 4096, policy: Policy::TwoRings };
        BufferPool::new(options, Arc::new(MemStore::new(4096)), Arc::new(NoLog)).expect("valid options")
    }

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    #[test]
    fn in_one_thread_it_keeps_the_pages_that_the_plain_policy_keeps() {
        for (seed, frames, steps) in
            [(1u64, 8usize, 20_000), (2, 150, 20_000), (3, 230, 20_000), (4, 6_600, 80_000)]
        {
            let (pool, mut reference, mut state) = (pool(frames), Reference::new(frames), seed);
            let mut kept: HashMap<bool, u32> = HashMap::new();
            for step in 0..steps {
                // Skewed: the product of two uniform numbers. The hot pages are others after every quarter; in the third each is used twice in a row.
                let (factors, quarter) =
                    ([random(&mut state, 1000), random(&mut state, 1000)], step * 4 / steps);
                let page = factors[0] * factors[1] * 4 * frames as u64 / 1_000_000 + quarter * frames as u64;
                for _ in 0..if quarter == 2 { 2 } else { 1 } {
                    let misses = pool.stats().misses;
                    drop(pool.fix(PageId(page)).unwrap());
                    let is_hit = pool.stats().misses == misses;
                    let expected = reference.fix(page);
                    assert_eq!(is_hit, expected, "seed {seed}, {frames} frames, step {step}, page {page}");
                    *kept.entry(is_hit).or_default() += 1;
                }
            }
            assert!(kept[&true] > 2_000 && kept[&false] > 2_000, "{kept:?}");
            assert!(pool.policy.is_whole());
            let (surging, turns) = (reference.turns_in_surge, reference.turn);
            assert!(
                frames < 100 || surging > turns / 20 && surging < turns,
                "in surge {surging} of {turns} turns"
            );
        }
    }

    #[test]
    fn every_probation_slot_has_its_turns_and_all_the_same_after_a_read_ahead() {
        let rings = TwoRings::new(10_000); // 100 in probation
        let mut turns = [0; 100];
        (0..37 * 64 * 10).for_each(|turn| turns[rings.probation_slot(turn)] += 1);
        let slow: Vec<usize> = (0..100).filter(|&slot| turns[slot] == 10).collect();
        assert_eq!(slow, [0].into_iter().chain(QUICK..100).collect::<Vec<_>>());
        assert!((1..QUICK).all(|slot| turns[slot] == 370), "{turns:?}");
        rings.reads_ahead();
        let round: Vec<usize> = (0..200).map(|turn| rings.probation_slot(turn)).collect();
        assert_eq!(round, (0..100).chain(0..100).collect::<Vec<_>>());
        assert_eq!(rings.probation_slot(200 + 57), 1, "quick again");
    }

    /// Hands that stand anywhere towards each other, as threads leave them: in a pool all of whose frames but one are pinned.
    #[test]
    fn g6_the_one_frame_that_is_unpinned_is_found_wherever_the_hands_are() {
        for frames in [2, 3, 4, 7, 130, 330] {
            for free in (0..frames).step_by(1 + frames / 60) {
                for apart in [0, 1, 2, 3, 5, 64] {
                    let pool = pool(frames);
                    (0..2 * frames as u64).for_each(|page| drop(pool.fix(PageId(page)).unwrap()));
                    let Replacement::TwoRings(rings) = &pool.policy else { unreachable!("asked for") };
                    let in_pool: Vec<PageId> = pool.frames.iter().map(Frame::page_id).collect();
                    let mut pins: Vec<_> = in_pool.iter().map(|&page| pool.fix(page).unwrap()).collect();
                    assert!(
                        matches!(rings.sweep(&pool.frames, &mut 0), Sweep::Nothing { pinned } if pinned == frames)
                    );
                    // What the sweep has left of its turns is far from those that come next.
                    [&rings.main_hand, &rings.probation_hand]
                        .into_iter()
                        .for_each(|hand| hand.others_take(apart));
                    drop(pins.swap_remove(free));
                    let Sweep::Victim { frame, .. } = rings.sweep(&pool.frames, &mut 0) else {
                        panic!("{frames} frames, {free} is unpinned, others took {apart} turns");
                    };
                    assert_eq!(frame.0 as usize, free);
                }
            }
        }
    }

    #[test]
    fn a_scan_passes_through_probation_and_leaves_the_used_pages() {
        let pool = pool(200);
        for _ in 0..3 {
            (0..150).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        }
        (1_000..3_000).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        let misses = pool.stats().misses;
        (0..150).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        assert!(pool.stats().misses - misses <= 4, "no more than was in probation when the scan began");
    }

    #[test]
    fn g3_dirty_candidates_are_passed_and_the_bar_gives_its_frame() {
        let pool = pool(300); // three in probation: the first given out
        for id in 0..300 {
            let mut page = pool.fix(PageId(id)).unwrap().exclusive();
            if id < 3 {
                page.will_change(Lsn(1));
            }
        }
        for id in 300..310 {
            drop(pool.fix(PageId(id)).unwrap());
        }
        assert_eq!(pool.stats().foreground_writes, 0);
        assert!(pool.policy.is_whole());
    }

    #[test]
    fn threads_that_swap_all_the_time_lose_no_frame() {
        let pool = pool(120);
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let pool = &pool;
                s.spawn(move || {
                    let mut state = thread;
                    for _ in 0..5_000 {
                        let page = random(&mut state, 100) * random(&mut state, 100) / 20;
                        drop(pool.fix(PageId(page)).unwrap());
                    }
                });
            }
        });
        let Replacement::TwoRings(rings) = &pool.policy else { unreachable!("asked for") };
        assert!(rings.is_permutation());
        let moved = (0..120).filter(|&slot| rings.frame_at(slot) != nth_frame(slot, 120)).count();
        assert!(moved > 20, "only {moved} frames ever changed rings");
    }
}
