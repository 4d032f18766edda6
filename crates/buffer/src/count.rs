//! Counters of the writes to shared memory that a fix, a hit or a miss costs, and of the searches of the page
//! table. Counts, unlike times, are the same on every machine.
//!
//! Each atomic instruction of the pool and its policies has a counter. Tests compare the sums with bounds,
//! and `azekura-lab nb-gclock` prints them. The feature `counters` enables them; without it a count compiles
//! to nothing. A count is one addition to a word of the thread: 3 % of a hit by fix if all data are in the
//! nearest cache. A peek at a warm page counts nothing, because it writes nothing.

#[cfg(feature = "counters")]
use std::cell::Cell;
#[cfg(feature = "counters")]
use std::ops::Sub;

/// Counts of one thread since it began.
#[cfg(feature = "counters")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Atomic read-modify-writes tried: compare-and-swap, addition, exchange. Later instructions of the
    /// thread do not overlap with earlier ones across them.
    pub read_modify_writes: u64,
    /// Writes to cache lines that several threads write or read: these read-modify-writes, and plain stores.
    pub shared_writes: u64,
    /// Searches of the page table by page id.
    pub lookups: u64,
}

#[cfg(feature = "counters")]
impl Sub for Costs {
    type Output = Self;
    fn sub(self, before: Self) -> Self {
        Self {
            read_modify_writes: self.read_modify_writes - before.read_modify_writes,
            shared_writes: self.shared_writes - before.shared_writes,
            lookups: self.lookups - before.lookups,
        }
    }
}

#[cfg(feature = "counters")]
thread_local! {
    static SHARED_RMWS: Cell<u64> = const { Cell::new(0) };
    static OWN_RMWS: Cell<u64> = const { Cell::new(0) };
    static SHARED_STORES: Cell<u64> = const { Cell::new(0) };
    static LOOKUPS: Cell<u64> = const { Cell::new(0) };
}

/// Notes a read-modify-write of a shared line.
#[inline]
pub fn shared_rmw() {
    #[cfg(feature = "counters")]
    SHARED_RMWS.with(|count| count.set(count.get() + 1));
}

/// Notes a read-modify-write of a line that is the thread's own, as a rule.
#[inline]
pub fn own_rmw() {
    #[cfg(feature = "counters")]
    OWN_RMWS.with(|count| count.set(count.get() + 1));
}

/// Notes a store to a shared line.
#[inline]
pub fn shared_store() {
    #[cfg(feature = "counters")]
    SHARED_STORES.with(|count| count.set(count.get() + 1));
}

/// Notes a search of the page table.
#[inline]
pub fn lookup() {
    #[cfg(feature = "counters")]
    LOOKUPS.with(|count| count.set(count.get() + 1));
}

/// The calling thread's costs so far.
#[cfg(feature = "counters")]
#[must_use]
pub fn on_this_thread() -> Costs {
    let counts = [&SHARED_RMWS, &OWN_RMWS, &SHARED_STORES, &LOOKUPS];
    let [shared, own, stores, lookups] = counts.map(|count| count.with(Cell::get));
    Costs { read_modify_writes: shared + own, shared_writes: shared + stores, lookups }
}
