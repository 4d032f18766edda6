//! Which leaves writers fight for: those that only share a leaf, and not a record, are given leaves of their
//! own.
//!
//! Two writers of different records meet at a latch only because the records lie in one leaf. Few hot records
//! (warehouses, counters) lie in one leaf all together, and then its latch, not the store, says how many are
//! changed in a second. So a leaf whose writers meet often is split though it has room
//! ([`crate::structure`]), again and again if need be, down to a record each.
//!
//! 1. A writer that met others during its descent makes its leaf warmer by one.
//! 2. Of the others, one in [`SAMPLED`] cools it by [`COOLING`]: so leaves where fewer than one writer in
//!    sixteen meets another stay cold, however long it goes on. Who is sampled is said by the change's LSN,
//!    which is at hand: a writer alone writes nothing shared here.
//! 3. A leaf that is [`HOT`] is split by the writer who found out, and begins anew.
//!
//! A slot of the table has one leaf; another that comes to it cools it first, and takes it when it is cold.
//! All of it is a guess that decides nothing but where a split is worth its page: steps lost between two
//! threads, and leaves forgotten, do no harm.
//!
//! The idea of splitting for contention: A. Alhomssi, V. Leis, *Contention and Space Management in B-Trees*,
//! CIDR 2021. The measure is ours.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, PageId};

/// One writer in so many cools its leaf.
const SAMPLED: u64 = 64;
const COOLING: u64 = 4;
/// Meetings, less what has cooled since.
const HOT: u64 = 16;
/// Leaves that are watched at once, at most.
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

    /// A leaf was changed, with this LSN, by a writer that met others or did not; whether it is hot.
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
        // Relaxed, here and below: a guess (see the head).
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

    /// How often a leaf is found hot in 100,000 changes of which so many of a thousand meet others.
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
