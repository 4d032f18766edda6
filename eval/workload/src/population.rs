//! The existing records while several threads insert.
//!
//! A reader must not read a record before its insert has ended, and inserts end in any order. Items are
//! therefore numbered at the beginning of their inserts, and all items below the *horizon* exist.

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::collections::BTreeSet;

/// The items of one data set, shared by all streams over it.
#[derive(Debug)]
pub struct Population {
    /// Number of the next item to insert. [`Population::begin_insert`] increments it.
    next: AtomicU64,
    /// All items below this number exist. Written under the lock of `ahead`, read by every stream.
    horizon: AtomicU64,
    /// Existing items above the horizon.
    ahead: Mutex<BTreeSet<u64>>,
}

impl Population {
    /// Returns a population with the items `0 .. records`.
    #[must_use]
    pub fn new(records: u64) -> Self {
        Self {
            next: AtomicU64::new(records),
            horizon: AtomicU64::new(records),
            ahead: Mutex::new(BTreeSet::new()),
        }
    }

    /// Returns the horizon; every item below it exists.
    #[must_use]
    pub fn horizon(&self) -> u64 {
        // Acquire: pairs with the Release in `acknowledge`, so a thread that reads an item number runs after
        // the commit of the item.
        self.horizon.load(Acquire)
    }

    /// Returns the number of a new item. If its insert never succeeds, the horizon stays at or below the
    /// number.
    pub fn begin_insert(&self) -> u64 {
        // Relaxed: the number only has to be unique; `acknowledge` publishes the item.
        self.next.fetch_add(1, Relaxed)
    }

    /// Records that the insert of `item` is committed.
    pub fn acknowledge(&self, item: u64) {
        let mut ahead = self.ahead.lock();
        ahead.insert(item);
        // Relaxed: only written under the mutex, which is held.
        let mut horizon = self.horizon.load(Relaxed);
        while ahead.remove(&horizon) {
            horizon += 1;
        }
        // Release: pairs with the Acquire in `horizon`.
        self.horizon.store(horizon, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_horizon_waits_for_the_lowest_open_insert() {
        let population = Population::new(10);
        let (a, b, c) = (population.begin_insert(), population.begin_insert(), population.begin_insert());
        assert_eq!((a, b, c), (10, 11, 12));
        population.acknowledge(c);
        population.acknowledge(b);
        assert_eq!(population.horizon(), 10);
        population.acknowledge(a);
        assert_eq!(population.horizon(), 13);
    }

    #[test]
    fn many_inserters_leave_no_gap() {
        let population = Population::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        population.acknowledge(population.begin_insert());
                    }
                });
            }
        });
        assert_eq!(population.horizon(), 4_000);
        assert!(population.ahead.lock().is_empty());
    }
}
