//! Cost of a hit and of a miss for each cache, in counts that are the same on every machine.
//!
//! `azekura_buffer::count` counts the operations of one thread. Without contention no compare-and-swap fails.

use azekura_buffer::count;
use serde::{Deserialize, Serialize};

use super::cache::{Kind, PageCache};
use super::device::{Device, Reading};

/// Number of frames of the caches.
const FRAMES: usize = 1_000;
/// Number of counted visits of each kind.
const VISITS: u64 = 2_000;

/// Average cost of one visit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Number of atomic read-modify-writes.
    pub read_modify_writes: f64,
    /// Number of writes to shared cache lines, including the read-modify-writes.
    pub shared_writes: f64,
    /// Number of system calls, if pages are read with `pread`.
    pub system_calls: f64,
}

/// Costs of one cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Name of the cache.
    pub cache: String,
    /// Cost of a visit to a page that was visited often.
    pub hit: Cost,
    /// Cost of a visit to a new page while the cache is full.
    pub miss: Cost,
}

/// Counts the operations of a cache.
#[must_use]
pub fn count(kind: Kind) -> Costs {
    let cache = kind.build(FRAMES, Device::memory());
    let hot = || (0..50u64).cycle().take(VISITS as usize);
    per_visit(&*cache, hot()); // until the reference counts are saturated
    let hit = per_visit(&*cache, hot());
    let new = |nth: u64| (1 + nth) * 10_000..(1 + nth) * 10_000 + VISITS;
    per_visit(&*cache, new(0)); // until the cache is full
    let miss = per_visit(&*cache, new(1));
    Costs { cache: kind.name().into(), hit, miss }
}

fn per_visit(cache: &dyn PageCache, pages: impl Iterator<Item = u64>) -> Cost {
    let (before, misses) = (count::on_this_thread(), cache.tally().misses);
    pages.for_each(|page| assert_eq!(cache.visit(page), page));
    let (costs, misses) = (count::on_this_thread() - before, cache.tally().misses - misses);
    let each = |count: u64| count as f64 / VISITS as f64;
    Cost {
        read_modify_writes: each(costs.read_modify_writes),
        shared_writes: each(costs.shared_writes),
        system_calls: each(misses * Reading::Optimistic.calls_per_page()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peek_writes_nothing_and_no_cache_costs_more_than_it_did() {
        // Bounds of (hit: read-modify-writes, shared writes; miss: the same), rounded up to a half.
        let bounds = |kind| match kind {
            Kind::TwoRingsPeek => [0.0, 0.0, 11.5, 14.5],
            Kind::TwoRings => [2.0, 2.0, 11.5, 14.5],
            Kind::NbAtomic | Kind::NbStriped => [2.0, 2.0, 11.5, 13.5],
            Kind::Lru | Kind::TwoQ | Kind::Gclock | Kind::S3Fifo => [3.0, 4.0, 5.0, 7.0],
        };
        for kind in Kind::ALL {
            let Costs { hit, miss, .. } = count(kind);
            let found =
                [hit.read_modify_writes, hit.shared_writes, miss.read_modify_writes, miss.shared_writes];
            for (found, bound) in found.into_iter().zip(bounds(kind)) {
                assert!(found <= bound && found > bound - 1.0, "{}: {hit:?}, {miss:?}", kind.name());
            }
            assert_eq!((hit.system_calls, miss.system_calls), (0.0, 1.0), "{}", kind.name());
        }
    }
}
