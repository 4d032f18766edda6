//! Counters of the writes to shared memory by a fix, a hit or a miss, and of the searches of the page table.
//! Counts, unlike times, are the same on every machine.
//!
//! Each atomic instruction of the pool and its policies has a counter. Tests compare the sums with bounds,
//! and `azekura-lab nb-gclock` prints them. The feature `counters` enables the counters; without it they
//! compile to nothing. Counting adds to a word of the thread, which costs 3 % of a hit by fix if all data are
//! in the nearest cache. A peek at a warm page counts nothing, because it writes nothing.

#[cfg(feature = "counters")]
use std::cell::Cell;
#[cfg(feature = "counters")]
use std::ops::Sub;

/// The counts of one thread since it began.
#[cfg(feature = "counters")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Attempted atomic read-modify-writes: compare-and-swap, addition, exchange. The processor does not
    /// overlap later instructions of the thread with earlier ones across them.
    pub read_modify_writes: u64,
    /// Writes to cache lines that several threads access: the read-modify-writes on shared lines, and plain
    /// stores.
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

/// Counts a read-modify-write of a shared line.
#[inline]
pub fn shared_rmw() {
    #[cfg(feature = "counters")]
    SHARED_RMWS.with(|count| count.set(count.get() + 1));
}

/// Counts a read-modify-write of a line that usually only this thread accesses.
#[inline]
pub fn own_rmw() {
    #[cfg(feature = "counters")]
    OWN_RMWS.with(|count| count.set(count.get() + 1));
}

/// Counts a store to a shared line.
#[inline]
pub fn shared_store() {
    #[cfg(feature = "counters")]
    SHARED_STORES.with(|count| count.set(count.get() + 1));
}

/// Counts a search of the page table.
#[inline]
pub fn lookup() {
    #[cfg(feature = "counters")]
    LOOKUPS.with(|count| count.set(count.get() + 1));
}

/// Returns the calling thread's counts so far.
#[cfg(feature = "counters")]
#[must_use]
pub fn on_this_thread() -> Costs {
    let counts = [&SHARED_RMWS, &OWN_RMWS, &SHARED_STORES, &LOOKUPS];
    let [shared, own, stores, lookups] = counts.map(|count| count.with(Cell::get));
    Costs { read_modify_writes: shared + own, shared_writes: shared + stores, lookups }
}
