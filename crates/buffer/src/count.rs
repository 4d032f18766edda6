//! Counters of the writes to shared memory that a fix, a hit or a miss costs. They are counted, not timed,
//! so the results are the same on every machine.
//!
//! The counters are always enabled. A count is one addition to a word of the thread, next to an instruction
//! that is ten times as slow: 3 % of a hit by fix if all data are in the nearest cache, not measurable
//! otherwise. A peek at a warm page counts nothing, because it writes nothing.
//!
//! Each atomic instruction of the pool, the general cache and their policies has a counter. Tests compare
//! the sums with bounds, and `azekura-lab nb-gclock` prints them.

use std::cell::Cell;
use std::ops::Sub;

/// Counts of one thread since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Atomic read-modify-writes tried: compare-and-swap, addition, exchange. Each keeps what follows from
    /// overlapping with what went before.
    pub read_modify_writes: u64,
    /// Writes to cache lines that several threads write or read: these read-modify-writes, and plain stores.
    pub shared_writes: u64,
}

impl Sub for Costs {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            read_modify_writes: self.read_modify_writes - before.read_modify_writes,
            shared_writes: self.shared_writes - before.shared_writes,
        }
    }
}

thread_local! {
    static SHARED_RMWS: Cell<u64> = const { Cell::new(0) };
    static OWN_RMWS: Cell<u64> = const { Cell::new(0) };
    static SHARED_STORES: Cell<u64> = const { Cell::new(0) };
}

/// Notes a read-modify-write of a shared line.
#[inline]
pub fn shared_rmw() {
    SHARED_RMWS.with(|count| count.set(count.get() + 1));
}

/// Notes a read-modify-write of a line that is the thread's own, as a rule.
#[inline]
pub fn own_rmw() {
    OWN_RMWS.with(|count| count.set(count.get() + 1));
}

/// Notes a store to a shared line.
#[inline]
pub fn shared_store() {
    SHARED_STORES.with(|count| count.set(count.get() + 1));
}

/// The calling thread's costs so far.
#[must_use]
pub fn on_this_thread() -> Costs {
    let [shared, own, stores] = [&SHARED_RMWS, &OWN_RMWS, &SHARED_STORES].map(|count| count.with(Cell::get));
    Costs { read_modify_writes: shared + own, shared_writes: shared + stores }
}
