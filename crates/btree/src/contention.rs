//! Detects leaves that many writers latch for different records, and requests a split of such leaves.
//!
//! Two writers of different records wait for one latch only because the records are in one leaf. A few hot
//! records (warehouses, counters) fit one leaf, and its latch then limits the rate of all their changes. So a
//! leaf with frequent conflicts is split although it has room ([`crate::structure`]), repeatedly if needed,
//! down to one record per leaf.
//!
//! 1. A writer that waited for other threads during its descent adds 1 to the count of its leaf.
//! 2. Of the writers that did not wait, one in [`SAMPLED`] subtracts [`DECAY`]. So a count stays low while
//!    fewer than one writer in 16 waits, regardless of the number of writers. The LSN of the change selects
//!    the sampled writers. The other writers without conflicts write no shared memory here.
//! 3. The writer that raises a count to [`CONTENDED`] splits the leaf, and the count restarts at 0.
//!
//! A slot of the table holds one leaf. Conflicts of another leaf with the same slot first lower the count;
//! that leaf takes the slot when the count is 0. The table is only an estimate that selects splits. Lost
//! updates between two threads and forgotten leaves do no harm.
//!
//! The idea of splitting for contention is from A. Alhomssi, V. Leis, *Contention and Space Management in
//! B-Trees*, CIDR 2021. The measure of contention is not from that paper.

use std::sync::OnceLock;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, PageId};

/// One writer without conflicts in this many lowers the count of its leaf.
const SAMPLED: u64 = 64;
const DECAY: u64 = 4;
/// Count of conflicts, after decay, at which a leaf is contended.
const CONTENDED: u64 = 16;
/// Number of slots: the largest number of leaves that are observed at once.
const SLOTS: usize = 256;
const COUNT_BITS: u32 = 8;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// The table: one leaf and its count in each slot.
pub(crate) struct Contention {
    /// The slots, allocated at the first conflict.
    slots: OnceLock<Box<[AtomicU64]>>,
}

impl Contention {
    pub(crate) fn new() -> Self {
        Self { slots: OnceLock::new() }
    }

    /// Counts a change of `leaf` with this LSN; returns whether the leaf is contended. `has_met_others`: the
    /// writer waited for other threads.
    #[inline]
    pub(crate) fn changed(&self, leaf: PageId, lsn: Lsn, has_met_others: bool) -> bool {
        if has_met_others {
            return self.raise(leaf);
        }
        if lsn.0.is_multiple_of(SAMPLED) {
            self.lower(leaf);
        }
        false
    }

    #[cold]
    fn raise(&self, leaf: PageId) -> bool {
        let slot = self.slot(leaf);
        // Relaxed, here and below: the count is an estimate (see the module head).
        let (page, count) = parts(slot.load(Relaxed));
        let now = if page == leaf || count == 0 { count + 1 } else { count - 1 };
        let is_contended = page == leaf && now >= CONTENDED;
        let of = if page == leaf || count == 0 { leaf } else { page };
        slot.store(word(of, if is_contended { 0 } else { now }), Relaxed);
        is_contended
    }

    fn lower(&self, leaf: PageId) {
        let Some(slots) = self.slots.get() else { return };
        let slot = &slots[slot_of(leaf)];
        let (page, count) = parts(slot.load(Relaxed)); // Relaxed, also below: the count is an estimate
        if page == leaf && count > 0 {
            slot.store(word(leaf, count.saturating_sub(DECAY)), Relaxed);
        }
    }

    fn slot(&self, leaf: PageId) -> &AtomicU64 {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        &slots[slot_of(leaf)]
    }
}

const fn slot_of(leaf: PageId) -> usize {
    (leaf.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SLOTS
}

const fn parts(word: u64) -> (PageId, u64) {
    (PageId(word >> COUNT_BITS), word & COUNT)
}

const fn word(page: PageId, count: u64) -> u64 {
    page.0 << COUNT_BITS | count
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the number of times that a leaf is found contended in 100,000 changes. `met_of_thousand` of
    /// 1,000 writers wait for other threads.
    fn found(met_of_thousand: u64) -> usize {
        let contention = Contention::new();
        let mut state = 1_u64;
        let mut chance = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 1000
        };
        (0..100_000)
            .filter(|&lsn| contention.changed(PageId(7), Lsn(lsn), chance() < met_of_thousand))
            .count()
    }

    #[test]
    fn a_leaf_is_contended_where_many_writers_meet_and_never_where_few_do() {
        assert_eq!((found(0), found(20), found(30)), (0, 0, 0));
        assert!(
            found(500) > 2000 && found(1000) == 100_000 / CONTENDED as usize,
            "{} and {}",
            found(500),
            found(1000)
        );
    }

    #[test]
    fn a_leaf_takes_the_place_of_another_only_once_its_count_is_0() {
        let contention = Contention::new();
        let first = PageId(1);
        let same = |&other: &PageId| std::ptr::eq(contention.slot(other), contention.slot(first));
        let second = (2..).map(PageId).find(same).expect("there are more pages than slots");
        (0..10).for_each(|_| assert!(!contention.changed(first, Lsn(1), true)));
        (0..10).for_each(|_| assert!(!contention.changed(second, Lsn(1), true)));
        assert_eq!(parts(contention.slot(first).load(Relaxed)), (first, 0)); // Relaxed: one thread
        assert!(!contention.changed(second, Lsn(1), true));
        assert_eq!(parts(contention.slot(first).load(Relaxed)), (second, 1)); // Relaxed: one thread
    }
}
