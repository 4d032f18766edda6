//! The memory of a cache besides the bytes of its pages.

use std::sync::Arc;

use azekura_base::durable::NoLog;
use azekura_buffer::{BufferPool, PoolOptions};
use azekura_lab::lab::nb_gclock::cache::PageCache;
use azekura_lab::lab::nb_gclock::device::{Device, PAGE_BYTES};

/// Of the default pool, from its structures.
pub(super) fn metadata_per_frame(frames: usize) -> f64 {
    let options =
        PoolOptions { page_size: PAGE_BYTES, capacity_bytes: frames * PAGE_BYTES, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::new(Device::memory()), Arc::new(NoLog));
    pool.expect("a pool of the lab's size").stats().metadata_bytes as f64 / frames as f64
}

/// Of a cache that is full, as the allocator has it: bytes per page of those `capacity`. `None` where the
/// allocator does not tell.
pub(super) fn besides_pages(capacity: usize, build: impl FnOnce() -> Box<dyn PageCache>) -> Option<f64> {
    let before = allocated()?;
    let cache = build();
    (0..2 * capacity as u64).for_each(|page| assert_eq!(cache.visit(page), page));
    let taken = allocated()?.saturating_sub(before) as f64 / capacity as f64;
    drop(cache);
    Some(taken - PAGE_BYTES as f64)
}

/// Bytes that are allocated now, with the allocator's own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn allocated() -> Option<usize> {
    // SAFETY: it only reads.
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

    /// Allocations of concurrent tests are counted too, so this test compares with no bound.
    #[test]
    fn a_full_cache_is_weighed_where_the_allocator_tells() {
        let given = besides_pages(1_024, || Kind::TwoRings.build(1_024, Device::memory()));
        assert_eq!(given.is_some(), cfg!(all(target_os = "linux", target_env = "gnu")));
        assert!((50.0..64.0).contains(&metadata_per_frame(8_192)));
    }
}
