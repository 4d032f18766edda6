//! Detects leaves that many writers latch for different records. Such a leaf is split, so that its records
//! get leaves of their own.
//!
//! Two writers of different records wait for one latch only because the records are in one leaf. A few hot
//! records (warehouses, counters) fit one leaf, and its latch then limits the rate of all their changes. So a
//! leaf with frequent conflicts is split although it has room ([`crate::structure`]), repeatedly if needed,
//! down to one record per leaf.
//!
//! 1. A writer that waited for other threads during its descent adds one to the heat of its leaf.
//! 2. Of the other writers, one in [`SAMPLED`] subtracts [`COOLING`]. So a leaf stays cold if fewer than one
//!    writer in sixteen meets another, regardless of the total. The LSN of the change selects the sampled
//!    writers: a writer without conflicts writes nothing shared here.
//! 3. The writer that finds a leaf [`HOT`] splits it, and its heat restarts at 0.
//!
//! A slot of the table holds one leaf. Another leaf with the same slot cools it first, and replaces it when
//! it is cold. The table is only an estimate that selects splits: updates lost between two threads and
//! forgotten leaves do no harm.
//!
//! The idea of splitting for contention: A. Alhomssi, V. Leis, *Contention and Space Management in B-Trees*,
//! CIDR 2021. The measure is ours.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, PageId};

/// One writer in this many cools its leaf.
const SAMPLED: u64 = 64;
const COOLING: u64 = 4;
/// Conflicts, less cooling, from which on a leaf is hot.
const HOT: u64 = 16;
/// Largest number of observed leaves.
const SLOTS: usize = 256;
const HEAT_BITS: u32 = 8;
const HEAT: u64 = (1 << HEAT_BITS) - 1;

/// The table: page and heat in each slot.
pub(crate) struct Heat {
    slots: Box<[AtomicU64]>,
}

impl Heat {
    pub(crate) fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes a change of a leaf with this LSN by a writer that met others or did not; returns whether the
    /// leaf is hot.
    #[inline]
    pub(crate) fn changed(&self, leaf: PageId, lsn: Lsn, has_met_others: bool) -> bool {
        if has_met_others {
            return self.warmer(leaf);
        }
        if lsn.0.is_multiple_of(SAMPLED) {
            self.cooler(leaf);
        }
        false
    }

    #[cold]
    fn warmer(&self, leaf: PageId) -> bool {
        let slot = self.slot(leaf);
        // Relaxed, here and below: an estimate (see the head).
        let (page, heat) = parts(slot.load(Relaxed));
        let now = if page == leaf || heat == 0 { heat + 1 } else { heat - 1 };
        let is_hot = page == leaf && now >= HOT;
        let of = if page == leaf || heat == 0 { leaf } else { page };
        slot.store(word(of, if is_hot { 0 } else { now }), Relaxed);
        is_hot
    }

    fn cooler(&self, leaf: PageId) {
        let slot = self.slot(leaf);
        let (page, heat) = parts(slot.load(Relaxed));
        if page == leaf && heat > 0 {
            slot.store(word(leaf, heat.saturating_sub(COOLING)), Relaxed);
        }
    }

    fn slot(&self, leaf: PageId) -> &AtomicU64 {
        let mixed = leaf.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.slots[mixed as usize % SLOTS]
    }
}

const fn parts(word: u64) -> (PageId, u64) {
    (PageId(word >> HEAT_BITS), word & HEAT)
}

const fn word(page: PageId, heat: u64) -> u64 {
    page.0 << HEAT_BITS | heat
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns how often a leaf is found hot in 100,000 changes of which `met_of_thousand` per thousand meet
    /// others.
    fn hot(met_of_thousand: u64) -> usize {
        let heat = Heat::new();
        let mut state = 1_u64;
        let mut chance = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 1000
        };
        (0..100_000).filter(|&lsn| heat.changed(PageId(7), Lsn(lsn), chance() < met_of_thousand)).count()
    }

    #[test]
    fn a_leaf_is_hot_where_many_writers_meet_and_never_where_few_do() {
        assert_eq!((hot(0), hot(20), hot(30)), (0, 0, 0));
        assert!(hot(500) > 2000 && hot(1000) == 100_000 / HOT as usize, "{} and {}", hot(500), hot(1000));
    }

    #[test]
    fn a_leaf_takes_the_place_of_another_only_once_that_one_is_cold() {
        let heat = Heat::new();
        let first = PageId(1);
        let same = |&other: &PageId| std::ptr::eq(heat.slot(other), heat.slot(first));
        let second = (2..).map(PageId).find(same).expect("there are more pages than slots");
        (0..10).for_each(|_| assert!(!heat.changed(first, Lsn(1), true)));
        (0..10).for_each(|_| assert!(!heat.changed(second, Lsn(1), true)));
        assert_eq!(parts(heat.slot(first).load(Relaxed)), (first, 0));
        assert!(!heat.changed(second, Lsn(1), true));
        assert_eq!(parts(heat.slot(first).load(Relaxed)), (second, 1));
    }
}
