//! Statistics of the pool.

use azekura_base::StripedCounters;

use crate::pool::BufferPool;

/// The counters of a pool; see [`PoolStats`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Misses,
    DuplicateReads,
    Evictions,
    PagesWritten,
    PagesCleaned,
    ForegroundWrites,
    CleanerLooks,
    LongSearches,
    WaitsForFrames,
    /// Number of dirty frames. It decreases too: -1 is added as the largest `u64`.
    DirtyFrames,
    /// Number of prefetches of this line's threads that may find no page to announce before the next miss.
    PrefetchesLeft,
}

#[derive(Debug, Default)]
pub(crate) struct Counters(StripedCounters<{ Counter::PrefetchesLeft as usize + 1 }>);

impl Counters {
    #[inline]
    #[track_caller]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.0.add(counter as usize, n);
    }

    #[inline]
    pub(crate) fn own(&self, counter: Counter) -> u64 {
        self.0.own(counter as usize)
    }

    #[inline]
    #[track_caller]
    pub(crate) fn set_own(&self, counter: Counter, n: u64) {
        self.0.set_own(counter as usize, n);
    }

    pub(crate) fn sum(&self, counter: Counter) -> u64 {
        self.0.sum(counter as usize)
    }
}

/// Statistics of a pool since its creation. Hits are not counted: counting would cost more than the hit.
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
    /// Number of page-ins.
    pub misses: u64,
    /// Number of page-ins that another thread completed first (paper, Table 2).
    pub duplicate_reads: u64,
    /// Number of evicted pages.
    pub evictions: u64,
    /// Number of page images written.
    pub pages_written: u64,
    /// Number of pages that were clean after their write: the images written, without those of pages that
    /// changed during the write.
    pub pages_cleaned: u64,
    /// Number of images that a miss wrote, because no clean page was cold.
    pub foreground_writes: u64,
    /// Number of frames that the cleaner checked to free frames for misses.
    pub cleaner_looks: u64,
    /// Number of misses that checked more than 64 frames.
    pub long_searches: u64,
    /// Number of times that a miss slept until the cleaner freed frames.
    pub waits_for_frames: u64,
}

impl BufferPool {
    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let sum = |counter| self.counters.sum(counter);
        PoolStats {
            frames: self.capacity_frames(),
            page_size: self.page_size(),
            metadata_bytes: self.metadata_bytes(),
            dirty_pages: (self.dirty_count() as i64).max(0) as u64,
            misses: sum(Counter::Misses),
            duplicate_reads: sum(Counter::DuplicateReads),
            evictions: sum(Counter::Evictions),
            pages_written: sum(Counter::PagesWritten),
            pages_cleaned: sum(Counter::PagesCleaned),
            foreground_writes: sum(Counter::ForegroundWrites),
            cleaner_looks: sum(Counter::CleanerLooks),
            long_searches: sum(Counter::LongSearches),
            waits_for_frames: sum(Counter::WaitsForFrames),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::{BufferPool, HandKind, MemStore, Policy, PoolOptions};
    use azekura_base::durable::NoLog;
    use std::sync::Arc;

    /// The metadata per frame stay below the documented bytes. Header 32; a line of the table for 9 frames,
    /// 7.1; hint 4 to 8; dirty bit 0.1; two rings 4 and 16.
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
