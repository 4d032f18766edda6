//! Read-ahead: pages that a scan will come to, brought in together.
//!
//! 1. Give each page that is not in the pool a frame, as a miss does; claim its reading. A page that is
//!    there, or on its way in, is left alone.
//! 2. Read each run of consecutive pages by one call of the store, into buffers.
//! 3. Install them, and let go of the frames.
//!
//! The pages come with a reference count of 0: the visit for which they were fetched makes it 1, so a scan
//! does not turn its pages warm, and under two rings they leave through probation. Who wants one of them
//! meanwhile waits as for any page being read (see `pool`); if the reader is stopped for ever, they read for
//! themselves, and take a page's buffer when the spare ones are used up (G10).

use azekura_base::sync::atomic::{Ordering::Release, fence};
use azekura_base::{PageId, PageWords};

use crate::frame::{MAX_PAGE_ID, NO_BUFFER};
use crate::guard::PageGuard;
use crate::pool::{BufferPool, Filling, Fixed};
use crate::stall::sync_point;

/// Most pages of one call.
const MAX_PAGES: usize = 128;
/// One in so many frames may be read ahead by one call: a quarter of the probation ring, so that a few scans
/// do not push each other's pages out.
const SHARE: usize = 400;

/// A page whose reading we have claimed. The buffer is let go before the pin.
struct Claimed<'p> {
    filling: Filling<'p>,
    guard: PageGuard<'p>,
}

impl BufferPool {
    /// Most pages that one [`BufferPool::read_ahead`] brings in.
    #[must_use]
    pub fn read_ahead_pages(&self) -> usize {
        (self.capacity_frames() / SHARE).clamp(1, MAX_PAGES)
    }

    /// Brings in those of the `pages` pages from `first` on that are not in the pool, one read per run of
    /// them; gives how many came.
    ///
    /// A hint: it looks at [`BufferPool::read_ahead_pages`] pages at most, and an error only ends it, to be
    /// met again by the fix of that page. It blocks for the store; a scan that is not to wait calls it from
    /// another thread. Costs a miss per page, without the store's call.
    pub fn read_ahead(&self, first: PageId, pages: usize) -> usize {
        let end = first.0.saturating_add(pages as u64);
        self.read_ahead_of((first.0..end).map(PageId))
    }

    /// As [`BufferPool::read_ahead`], of any pages: those that follow each other come by one read.
    pub fn read_ahead_of(&self, pages: impl IntoIterator<Item = PageId>) -> usize {
        self.policy.reads_ahead();
        let pages = pages.into_iter().take(self.read_ahead_pages()).filter(|id| id.0 < MAX_PAGE_ID);
        let mut claimed: Vec<Claimed<'_>> = pages.map_while(|id| self.claim_page(id)).flatten().collect();
        sync_point!("claimed pages to read ahead");
        let follows = |a: &Claimed<'_>, b: &Claimed<'_>| a.guard.page_id().0 + 1 == b.guard.page_id().0;
        claimed.chunk_by_mut(follows).map(|run| self.fill_run(run)).sum()
    }

    /// Step 1; `None` when no frame is to be had.
    fn claim_page(&self, page_id: PageId) -> Option<Option<Claimed<'_>>> {
        // Neither pinned nor counted as a use if it is there; an empty frame may be one whose read failed.
        if self.frame_of(page_id).is_some_and(|id| self.frames[id.0 as usize].buffer() != NO_BUFFER) {
            return Some(None);
        }
        let Fixed { filling, guard } = self.fix_frame(page_id, false).ok()?;
        let frame = guard.frame();
        if frame.buffer() != NO_BUFFER {
            return Some(None);
        }
        Some(filling.or_else(|| self.claim_reading(frame)).map(|filling| Claimed { filling, guard }))
    }

    /// Steps 2 and 3.
    fn fill_run(&self, run: &mut [Claimed<'_>]) -> usize {
        // The buffers held other pages, see `BufferPool::page_in`.
        fence(Release);
        let words: Vec<PageWords<'_>> = run.iter().map(|claimed| claimed.filling.words()).collect();
        if self.store.read_words(run[0].guard.page_id(), &words).is_err() {
            return 0;
        }
        if run.iter().zip(&words).any(|(page, words)| self.check_lsn(page.guard.page_id(), *words).is_err()) {
            return 0;
        }
        sync_point!("filled buffers ahead");
        run.iter_mut().map(|claimed| usize::from(claimed.filling.install())).sum()
    }
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "a test ends where it fails")]
mod tests {
    use super::*;
    use crate::stall::{Gate, Point, stalling_at};
    use crate::store::Access;
    use crate::{FixError, MemStore, PoolOptions};
    use azekura_base::durable::NoLog;
    use std::sync::Arc;

    const PAGE: usize = 4096;

    fn pool(frames: usize) -> (BufferPool, Arc<MemStore>) {
        let store = Arc::new(MemStore::new(PAGE));
        let options =
            PoolOptions { page_size: PAGE, capacity_bytes: frames * PAGE, ..PoolOptions::default() };
        (BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap(), store)
    }

    #[test]
    fn pages_read_ahead_are_hits_and_those_that_are_there_are_not_read_again() {
        let (pool, store) = pool(4000);
        for there in [3, 4, 8] {
            drop(pool.fix(PageId(there)).unwrap());
        }
        assert_eq!(pool.read_ahead_pages(), 10);
        assert_eq!(pool.read_ahead(PageId(0), 100), 7);
        let reads = store.reads();
        (0..10).for_each(|id| assert_eq!(pool.fix(PageId(id)).unwrap().page_id(), PageId(id)));
        assert_eq!((reads, store.reads(), pool.stats().misses), (10, 10, 10));
        assert_eq!(pool.read_ahead(PageId(0), 10), 0);
        assert_eq!(pool.read_ahead(PageId(MAX_PAGE_ID - 2), 10), 2, "there are no more pages");
        assert_eq!(pool.read_ahead(PageId(u64::MAX), 10), 0);
    }

    #[test]
    fn a_scan_with_read_ahead_leaves_the_used_pages_where_they_are() {
        let (pool, _) = pool(4000);
        for _ in 0..3 {
            (0..3000).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        }
        for first in (10_000..30_000).step_by(10) {
            pool.read_ahead(PageId(first), 10);
            (first..first + 10).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        }
        let misses = pool.stats().misses;
        assert_eq!(misses, 23_000, "each page of the scan came once");
        (0..3000).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        let lost = pool.stats().misses - misses;
        assert!(lost <= 40, "no more than was in probation when the scan began: {lost}");
    }

    #[test]
    fn an_error_ends_it_and_is_met_by_the_fix_of_its_page() {
        let (pool, store) = pool(4000);
        store.fail_next_read(PageId(5));
        assert_eq!(pool.read_ahead(PageId(0), 10), 0);
        store.fail_next_read(PageId(5));
        assert!(matches!(pool.fix(PageId(5)), Err(FixError::Read(_))));
        (0..10).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        let pinned: Vec<_> = (0..4000).map(|id| pool.fix(PageId(id)).unwrap()).collect();
        assert_eq!(pool.read_ahead(PageId(5000), 10), 0, "no frame is to be had");
        drop(pinned);
    }

    #[test]
    fn g9_a_store_that_panics_under_a_read_ahead_loses_nothing() {
        let (pool, store) = pool(400 * 20);
        for _ in 0..10 {
            store.set_hook(|access| assert_ne!(access, Access::Read(PageId(5)), "told to panic"));
            let ahead = std::panic::AssertUnwindSafe(|| pool.read_ahead(PageId(0), 20));
            assert!(std::panic::catch_unwind(ahead).is_err());
            store.clear_hook();
        }
        let pinned: Vec<_> = (0..400 * 20).map(|id| pool.fix(PageId(id)).unwrap()).collect();
        assert_eq!(pinned.len(), pool.capacity_frames(), "every frame, each with a buffer");
    }

    /// It holds more buffers than are spare.
    #[test]
    fn g10_a_stopped_read_ahead_holds_nobody_up_who_wants_its_pages() {
        let (pool, _) = pool(400 * 24);
        (0..400 * 24).for_each(|id| drop(pool.fix(PageId(100_000 + id)).unwrap()));
        let gate = Arc::new(Gate::default());
        std::thread::scope(|s| {
            s.spawn(|| {
                stalling_at(Point::Named("claimed pages to read ahead"), &gate, || {
                    pool.read_ahead(PageId(0), 24)
                })
            });
            assert!(gate.stopped_at().is_some());
            let wrong = (0..24).find(|&id| pool.fix(PageId(id)).unwrap().page_id() != PageId(id));
            gate.open(); // before anything is asserted: a stopped thread would keep the scope from ending
            assert_eq!(wrong, None);
        });
        assert_eq!(pool.stats().duplicate_reads, 24);
        let all: Vec<_> = (0..400 * 24).map(|id| pool.fix(PageId(id)).unwrap()).collect();
        assert_eq!(all.len(), pool.capacity_frames());
    }
}
