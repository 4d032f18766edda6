//! Statistics of the pool.

use azekura_base::StripedCounter;

use crate::pool::BufferPool;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) misses: StripedCounter,
    pub(crate) duplicate_reads: StripedCounter,
    pub(crate) evictions: StripedCounter,
    pub(crate) pages_written: StripedCounter,
    pub(crate) pages_cleaned: StripedCounter,
    pub(crate) foreground_writes: StripedCounter,
    pub(crate) cleaner_looks: StripedCounter,
    pub(crate) long_searches: StripedCounter,
    pub(crate) waits_for_frames: StripedCounter,
}

/// Statistics of a pool since its creation. Hits are not counted: the count would cost more than the hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Number of frames.
    pub frames: usize,
    /// Bytes of a page.
    pub page_size: usize,
    /// Memory besides the pages, in bytes: headers, page table, policy, lists.
    pub metadata_bytes: usize,
    /// Approximate number of dirty pages now.
    pub dirty_pages: u64,
    /// Page-ins.
    pub misses: u64,
    /// Page-ins of these that another thread completed first (paper, Table 2).
    pub duplicate_reads: u64,
    /// Evicted pages.
    pub evictions: u64,
    /// Page images written.
    pub pages_written: u64,
    /// Pages that were clean after their write: the images written, without those of pages that changed
    /// during the write.
    pub pages_cleaned: u64,
    /// Images of these that a miss wrote, because no clean page was cold.
    pub foreground_writes: u64,
    /// Frames that the cleaner checked to free frames for misses.
    pub cleaner_looks: u64,
    /// Misses that checked more than 64 frames.
    pub long_searches: u64,
    /// Times that a miss slept until the cleaner freed frames.
    pub waits_for_frames: u64,
}

impl BufferPool {
    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let counters = &self.counters;
        PoolStats {
            frames: self.capacity_frames(),
            page_size: self.page_size(),
            metadata_bytes: self.metadata_bytes(),
            dirty_pages: (self.dirty_count() as i64).max(0) as u64,
            misses: counters.misses.sum(),
            duplicate_reads: counters.duplicate_reads.sum(),
            evictions: counters.evictions.sum(),
            pages_written: counters.pages_written.sum(),
            pages_cleaned: counters.pages_cleaned.sum(),
            foreground_writes: counters.foreground_writes.sum(),
            cleaner_looks: counters.cleaner_looks.sum(),
            long_searches: counters.long_searches.sum(),
            waits_for_frames: counters.waits_for_frames.sum(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{BufferPool, HandKind, MemStore, Policy, PoolOptions};
    use azekura_base::durable::NoLog;
    use std::sync::Arc;

    /// Header 32; a line of the table for 9 frames, 7.1; hint 4 to 8; dirty bit 0.1; two rings: 4 and 16.
    #[test]
    fn a_frame_takes_no_more_bytes_besides_its_page_than_are_promised() {
        for (policy, most) in [(Policy::NbGclock(HandKind::Striped), 48.0), (Policy::TwoRings, 68.0)] {
            for frames in [4_096, 5_000, 32_768] {
                let options = PoolOptions { page_size: 8192, capacity_bytes: frames * 8192, policy };
                let pool =
                    BufferPool::new(options, Arc::new(MemStore::new(8192)), Arc::new(NoLog)).expect("valid");
                let per_frame = pool.stats().metadata_bytes as f64 / frames as f64;
                assert!((most - 5.0..=most).contains(&per_frame), "{policy:?}, {frames} frames: {per_frame}");
            }
        }
    }
}
