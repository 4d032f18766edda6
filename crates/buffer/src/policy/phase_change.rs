//! Detects that the hot set has changed, from the number of pages that are used while in probation.
//!
//! While the hot pages are in the main ring, few probation pages are used, because they are not hot. When the
//! hot set changes, its hottest pages are used in probation at once, about ten times as many as before. Hits
//! need no extra work for this: the sweep reads the uses of each candidate anyway.
//!
//! The level is the number of used candidates, with a weight that halves every [`PhaseChange::half_life`]
//! turns of the probation hand. Above [`THRESHOLD`] a phase change begins. If the level is at least 1.5 times
//! the threshold, the phase change lasts for a number of turns equal to 1/5 of the frames. It is shorter for
//! a lower level. (Tuned on the paper's workload: with a change every 500,000 references, the hit ratio rose
//! from 27.7 to 31.7 %; without changes it was unchanged.)
//!
//! *False alarms.* With a stationary hot set the level is 3 to 4, and sometimes 9 by chance. During a phase
//! change nearly every miss replaces a page of the main ring. A phase change over 1/5 of the frames would
//! cost 0.15 to 0.4 percentage points of hits over the next millions of references. Whether it begins depends
//! on the order of a few misses, so the hit ratio would depend on the number of threads. Therefore a false
//! alarm is short, because the level is hardly above the threshold. A real phase change continues, because
//! the level is ten times as high. (With a threshold of 12, changes are detected too late: 31.4 % of hits.)
//!
//! A workload that uses most pages several times in a row keeps its level above the threshold. Then the two
//! rings act as 2Q with a quickly aging sketch.

use azekura_base::CachePadded;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::count::{shared_rmw, shared_store};

/// Level above which a phase change begins, in units of 1/256 candidate.
const THRESHOLD: u64 = 9 * ONE;
const ONE: u64 = 256;
const LEVEL_BITS: u32 = 16;

/// The level, and the end of the current phase change. All accesses are Relaxed, and concurrent updates may
/// be lost: both values are estimates.
#[derive(Debug)]
pub(crate) struct PhaseChange {
    /// Turn of the last use, and the level at that turn. It has a separate cache line, because every used
    /// candidate writes it and every miss reads the neighboring fields.
    seen: CachePadded<AtomicU64>,
    /// Turn of the probation hand at which the phase change ends; 0 if there is none.
    until: AtomicU64,
    half_life: u64,
    lasts: u64,
}

impl PhaseChange {
    pub(crate) fn new(frames: usize) -> Self {
        let frames = frames as u64;
        Self {
            seen: CachePadded::new(AtomicU64::new(0)),
            until: AtomicU64::new(0),
            half_life: (frames * 31 / 128).max(1),
            lasts: (frames / 5).max(1),
        }
    }

    /// Returns `true` if a phase change lasts at this turn. Calls `turn` only if a phase change has begun and
    /// was not yet found to have ended.
    #[inline]
    pub(crate) fn is_on(&self, turn: impl FnOnce() -> u64) -> bool {
        let until = self.until.load(Relaxed);
        if until == 0 || turn() < until {
            return until != 0;
        }
        shared_rmw();
        // Relaxed: if the exchange fails, another thread has begun a phase change.
        let _ = self.until.compare_exchange(until, 0, Relaxed, Relaxed);
        false
    }

    /// Counts a use of a candidate in probation.
    pub(crate) fn note_use(&self, turn: u64) {
        let seen = self.seen.load(Relaxed);
        let (then, level) = (seen >> LEVEL_BITS, seen & ((1 << LEVEL_BITS) - 1));
        let now = turn & (u64::MAX >> LEVEL_BITS);
        let level = self.decayed(level, now.saturating_sub(then)) + ONE;
        shared_store();
        self.seen.store(now << LEVEL_BITS | level.min((1 << LEVEL_BITS) - 1), Relaxed);
        let until = turn + self.lasts_at(level);
        if level > THRESHOLD && until > self.until.load(Relaxed) {
            shared_store();
            self.until.store(until, Relaxed); // Relaxed: see `PhaseChange`
        }
    }

    /// Returns the number of turns for which a phase change continues after a use at this level.
    fn lasts_at(&self, level: u64) -> u64 {
        let above = level.saturating_sub(THRESHOLD);
        (self.lasts * above / (THRESHOLD / 2)).min(self.lasts)
    }

    /// Returns the level after `turns` more turns: half after each half-life, linear in between.
    fn decayed(&self, level: u64, turns: u64) -> u64 {
        let halved = level.checked_shr((turns / self.half_life).min(64) as u32).unwrap_or(0);
        halved - halved * (turns % self.half_life) / (2 * self.half_life)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Counts `uses` uses, one every `turns` turns; returns the turn after the last use.
    fn use_every(phase_change: &PhaseChange, start: u64, turns: u64, uses: u64) -> u64 {
        (0..uses).for_each(|n| phase_change.note_use(start + n * turns));
        start + (uses - 1) * turns + 1
    }

    #[test]
    fn many_uses_within_a_half_life_are_a_phase_change_and_the_same_number_spread_out_is_none() {
        let phase_change = PhaseChange::new(6400); // A half-life of 1550 turns.
        let turn = use_every(&phase_change, 1_000, 1_550, 50);
        assert!(!phase_change.is_on(|| turn));
        let turn = use_every(&phase_change, 1_000_000, 50, 20);
        assert!(
            phase_change.is_on(|| turn)
                && phase_change.is_on(|| turn + 1_200)
                && !phase_change.is_on(|| turn + 1_300)
        );
        assert!(!phase_change.is_on(|| unreachable!("it is known to be over")));
        phase_change.note_use(turn + 10_000);
        assert!(!phase_change.is_on(|| turn + 10_001), "earlier uses no longer count");
    }

    /// Measures the share of turns in a phase change under random uses: at the rate of a stationary hot set,
    /// then at ten times that rate.
    #[test]
    fn random_uses_are_rarely_a_phase_change_and_ten_times_as_many_are() {
        let phase_change = PhaseChange::new(6400);
        let (mut state, mut turn, half_life) = (1u64, 0, 1_550);
        let mut share = |one_in: u64, half_lives: u64| {
            let turns = half_lives * half_life;
            let in_phase_change = (0..turns).filter(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                turn += 1;
                if (state >> 33).is_multiple_of(one_in) {
                    phase_change.note_use(turn);
                }
                phase_change.is_on(|| turn)
            });
            in_phase_change.count() as f64 / turns as f64
        };
        let rare = half_life * 144 / 100 / 3;
        let by_chance = share(rare, 2_000);
        assert!(by_chance < 0.002, "{by_chance}");
        share(rare / 10, 2); // The hot set has changed.
        let after_a_change = share(rare / 10, 20);
        assert!(after_a_change > 0.99, "{after_a_change}");
    }

    #[test]
    fn a_level_halves_in_a_half_life_and_never_rises() {
        let phase_change = PhaseChange::new(512); // A half-life of 124 turns.
        for level in [0, 1, 256, 65_535] {
            let decayed: Vec<u64> = (0..2_000).map(|turns| phase_change.decayed(level, turns)).collect();
            assert!(decayed.is_sorted_by(|a, b| a >= b));
            assert_eq!((decayed[0], decayed[124], decayed[248]), (level, level / 2, level / 4));
        }
        assert_eq!(phase_change.decayed(65_535, u64::MAX), 0);
    }
}
