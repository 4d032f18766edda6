use super::*;
use crate::frame::MAX_REF_COUNT;
use crate::policy::probation::QUICK;
use crate::policy::{Policy, Replacement, Search};
use crate::{BufferPool, MemStore, PoolOptions};
use azekura_base::durable::NoLog;
use azekura_base::{Lsn, PageId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A simple single-threaded form of the policy: the pages of probation in slots, the pages of main in a queue
/// with its front at the hand.
struct Reference {
    uses: HashMap<u64, u32>,
    probation: Vec<u64>,
    main: VecDeque<u64>,
    lengths: (usize, usize),
    sketch: Sketch,
    phase_change: PhaseChange,
    turn: u64,
    turns_in_phase_change: u64,
}

impl Reference {
    fn new(frames: usize) -> Self {
        let probation = (frames / 100).max(1);
        Self {
            uses: HashMap::new(),
            probation: Vec::new(),
            main: VecDeque::new(),
            lengths: (probation, frames - probation),
            sketch: Sketch::new(frames),
            phase_change: PhaseChange::new(frames),
            turn: 0,
            turns_in_phase_change: 0,
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

    /// Returns the next slot. One turn in 64 visits slot 0 and the slots from 64 on, one after the other.
    fn slot(&self) -> usize {
        let slow = [0].into_iter().chain(QUICK..self.probation.len());
        match self.turn as usize {
            turn if self.probation.len() <= QUICK => turn % self.probation.len(),
            turn if turn.is_multiple_of(QUICK) => slow.cycle().nth(turn / QUICK).expect("endless"),
            turn => turn % QUICK,
        }
    }

    fn replace(&mut self, page: u64) {
        let is_phase_change = self.phase_change.is_on(|| self.turn);
        while let Some(uses @ 1..) = self.uses.get_mut(&self.main[0]) {
            *uses = if is_phase_change { *uses / 2 } else { *uses - 1 };
            self.main.rotate_left(1);
        }
        self.sketch.age(self.turn, if is_phase_change { AGED_IN_PHASE_CHANGE } else { AGED });
        let slot = self.slot();
        let (candidate, main_victim) = (self.probation[slot], self.main[0]);
        let uses = self.uses[&candidate];
        if uses > 0 {
            self.phase_change.note_use(self.turn);
        }
        self.turn += 1;
        self.turns_in_phase_change += u64::from(is_phase_change);
        let [returns, victim_returns] =
            [candidate, main_victim].map(|page| u32::from(self.sketch.estimate(PageId(page))));
        let has_come_back = is_phase_change && returns >= 1 && returns >= victim_returns / 2;
        let leaves = if uses > 1 || uses + returns > victim_returns || has_come_back {
            self.main.pop_front();
            self.main.push_back(candidate);
            self.uses.insert(candidate, 0);
            main_victim
        } else {
            candidate
        };
        self.sketch.add(PageId(leaves));
        self.uses.remove(&leaves);
        self.probation[slot] = page;
    }
}

fn pool(frames: usize) -> BufferPool {
    let options = PoolOptions { page_size: 4096, capacity_bytes: frames * 4096, policy: Policy::TwoRings };
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
            // Skewed: the product of two uniform numbers. The hot pages change after every quarter; in the
            // third quarter each page is used twice in a row.
            let (factors, quarter) = ([random(&mut state, 1000), random(&mut state, 1000)], step * 4 / steps);
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
        let (in_phase_change, turns) = (reference.turns_in_phase_change, reference.turn);
        assert!(
            frames < 100 || in_phase_change > turns / 20 && in_phase_change < turns,
            "in phase_change {in_phase_change} of {turns} turns"
        );
    }
}

/// The hands are at arbitrary positions to each other, as threads leave them, in a pool with one unpinned
/// frame.
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
                let swept = rings.sweep(&pool.frames, &mut Search::full());
                assert!(matches!(swept, Sweep::Nothing { pinned } if pinned == frames));
                // The remaining turns of the sweep are far from the next ones.
                [&rings.main_hand, rings.probation.hand()]
                    .into_iter()
                    .for_each(|hand| hand.others_take(apart));
                drop(pins.swap_remove(free));
                let Sweep::Victim { frame, .. } = rings.sweep(&pool.frames, &mut Search::full()) else {
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
    let pool = pool(300); // Three frames in probation: the first ones allocated.
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
