//! Measures the memory of a cache without the bytes of its pages.

use std::sync::Arc;

use azekura_base::durable::NoLog;
use azekura_buffer::{BufferPool, PoolOptions};
use azekura_lab::lab::nb_gclock::cache::PageCache;
use azekura_lab::lab::nb_gclock::device::{Device, PAGE_BYTES};

/// Returns the bytes of metadata per frame of the default pool, computed from its structures.
pub(super) fn metadata_per_frame(frames: usize) -> f64 {
    let options =
        PoolOptions { page_size: PAGE_BYTES, capacity_bytes: frames * PAGE_BYTES, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::new(Device::memory()), Arc::new(NoLog));
    pool.expect("a pool of the lab's size").stats().metadata_bytes as f64 / frames as f64
}

/// Returns the allocated bytes per page of a full cache, without those of its `capacity` pages. `None` if the
/// allocator has no statistics.
pub(super) fn besides_pages(capacity: usize, build: impl FnOnce() -> Box<dyn PageCache>) -> Option<f64> {
    let before = allocated()?;
    let cache = build();
    (0..2 * capacity as u64).for_each(|page| assert_eq!(cache.visit(page), page));
    let taken = allocated()?.saturating_sub(before) as f64 / capacity as f64;
    drop(cache);
    Some(taken - PAGE_BYTES as f64)
}

/// Returns the number of bytes that are allocated now, including the allocator's overhead.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn allocated() -> Option<usize> {
    // SAFETY: the call only reads statistics.
    let info = unsafe { libc::mallinfo2() };
    Some(info.uordblks + info.hblkhd)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn allocated() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_lab::lab::nb_gclock::cache::Kind;

    /// Checks only that there is a result: concurrent tests allocate too.
    #[test]
    fn a_full_cache_is_weighed_where_the_allocator_tells() {
        let given = besides_pages(1_024, || Kind::TwoRings.build(1_024, Device::memory()));
        assert_eq!(given.is_some(), cfg!(all(target_os = "linux", target_env = "gnu")));
        assert!((50.0..64.0).contains(&metadata_per_frame(8_192)));
    }
}
