//! Read-ahead: pages that a scan will need soon are read into the pool together.
//!
//! 1. Assign a frame to each page that is not in the pool, as a miss does, and claim its reading. A page that
//!    is resident, or being read by another thread, is skipped.
//! 2. Divide the claimed pages into *runs*. The pages of one run are read by one call of the store. A run may
//!    span at most [`MAX_GAP`] consecutive skipped pages: their bytes are read as well and dropped, which
//!    costs less than another read. So reads stay large when a part of the table is resident.
//! 3. Read one run after the other, install its pages, and unpin their frames.
//!
//! Before, a scan *announces* the pages of these runs and of later ones to the store
//! ([`BufferPool::announce`]), which may start device reads for them. Announced pages need no frames. So the
//! device reads ahead although a small pool reads few pages at once.
//!
//! The pages get a reference count of 0; the visit for which they were read makes it 1. So a scan does not
//! make its pages warm, and with two rings they are evicted through probation. A thread that needs one of the
//! pages meanwhile waits as for any page being read (see `pool`). If the reading thread stalls, the waiting
//! threads read the pages themselves, and use a victim's buffer when the spare ones are used up (G10).

use azekura_base::sync::atomic::{Ordering::Release, fence};
use azekura_base::{PageId, PageWords};

use crate::frame::{MAX_PAGE_ID, NO_BUFFER};
use crate::guard::PageGuard;
use crate::pool::{BufferPool, Filling, Fixed};
use crate::stall::sync_point;
use crate::stats::Counter;

/// Largest number of pages that one call reads in.
const MAX_PAGES: usize = 128;
/// Largest number of consecutive skipped pages within one read. At 8 KiB per page this is 64 KiB, which a
/// device of 1 GB/s transfers in 64 µs: less than the 100 µs of a separate read.
const MAX_GAP: usize = 8;
/// Number of pages that one call checks, per page that it may read in; the other pages are resident.
const LOOKS_PER_PAGE: usize = 4;
/// Number of frames of the pool per page that one call may read ahead. One call reads at most a quarter of
/// the probation ring, so that a few scans do not evict each other's pages.
const SHARE: usize = 400;

/// Largest number of pages that a scan announces beyond the pages that it reads in: 2 MiB at 8 KiB per page.
pub const MOST_ANNOUNCED: usize = 256;

/// Number of prefetches after a miss that may find no page to announce. Further ones do nothing until the
/// thread's next miss, so that they cost nothing if all pages are in the pool, or in the system's page cache.
const FRUITLESS_PREFETCHES: u64 = 4;

/// The pages that one scan has announced to the store.
#[derive(Clone, Debug, Default)]
pub struct Announced {
    last: Option<PageId>,
    /// Number of announced pages that the scan has not read in yet.
    unread: usize,
}

impl Announced {
    /// Counts pages that the scan reads in now. Returns `true` if at most half of `most` announced pages are
    /// left, so that further ones should be announced, many at a time.
    pub fn reads(&mut self, pages: usize, most: usize) -> bool {
        self.unread = self.unread.saturating_sub(pages);
        self.unread <= most / 2
    }
}

/// A page that this thread has claimed to read. The buffer is released before the pin.
struct Claimed<'p> {
    filling: Filling<'p>,
    guard: PageGuard<'p>,
}

impl Claimed<'_> {
    fn page_id(&self) -> PageId {
        self.guard.page_id()
    }

    /// Returns `true` if `next` belongs to the same run as `self`.
    fn is_one_read_with(&self, next: &Self) -> bool {
        is_one_run(self.page_id(), next.page_id())
    }
}

/// Returns `true` if the two pages, in ascending order, belong to the same run.
fn is_one_run(page: PageId, next: PageId) -> bool {
    next.0.checked_sub(page.0 + 1).is_some_and(|gap| gap <= MAX_GAP as u64)
}

/// Returns the number of pages from the first to the last page of a run.
fn span(run: &[Claimed<'_>]) -> usize {
    let last = run.last().map_or(0, |page| page.page_id().0 + 1);
    run.first().map_or(0, |page| last - page.page_id().0) as usize
}

impl BufferPool {
    /// Returns the largest number of pages that one [`BufferPool::read_ahead`] reads in.
    #[must_use]
    pub fn read_ahead_pages(&self) -> usize {
        (self.capacity_frames() / SHARE).clamp(1, MAX_PAGES)
    }

    /// Returns the largest number of pages that one [`BufferPool::read_ahead_of`] checks.
    #[must_use]
    pub fn read_ahead_looks(&self) -> usize {
        self.read_ahead_pages() * LOOKS_PER_PAGE
    }

    /// Reads the pages that are not in the pool, of the `pages` pages from `first` on. Returns their number.
    ///
    /// This is a hint: it checks at most [`BufferPool::read_ahead_looks`] pages and reads at most
    /// [`BufferPool::read_ahead_pages`] pages. An error only ends the call; the fix of that page reports the
    /// error again. The call blocks for the store: a scan that must not wait calls it from another thread.
    /// The cost is that of a miss per page, without the store's call.
    pub fn read_ahead(&self, first: PageId, pages: usize) -> usize {
        let end = first.0.saturating_add(pages as u64);
        self.read_ahead_of((first.0..end).map(PageId))
    }

    /// Reads ahead as [`BufferPool::read_ahead`] does, for any pages in ascending order. Pages that are
    /// consecutive, or have a short gap between them, are read by one call of the store.
    pub fn read_ahead_of(&self, pages: impl IntoIterator<Item = PageId>) -> usize {
        self.policy.reads_ahead();
        let pages = pages.into_iter().take(self.read_ahead_looks()).filter(|id| id.0 < MAX_PAGE_ID);
        let absent = pages.map_while(|id| self.claim_page(id)).flatten();
        let mut claimed: Vec<Claimed<'_>> = absent.take(self.read_ahead_pages()).collect();
        sync_point!("claimed pages to read ahead");
        let mut runs: Vec<&mut [Claimed<'_>]> = claimed.chunk_by_mut(Claimed::is_one_read_with).collect();
        runs.iter_mut().map(|run| self.fill_run(run)).sum()
    }

    /// Announces pages to the store that a scan reads now or later, in the order of the scan; the first `now`
    /// pages are read now. Pages up to the last one of an earlier call with the same `announced` are omitted,
    /// and resident pages.
    ///
    /// This is a hint, and does not wait for the device. The cost is one call of the store for each run of
    /// adjacent pages.
    pub fn announce(&self, announced: &mut Announced, pages: &[PageId], now: usize) {
        let begin = pages.iter().position(|&page| Some(page) == announced.last).map_or(0, |last| last + 1);
        let mut new = pages[begin..].to_vec();
        *announced = Announced { last: pages.last().copied(), unread: pages.len().saturating_sub(now) };
        new.retain(|&page| page.0 < MAX_PAGE_ID && !self.is_resident(page));
        new.sort_unstable();
        let runs: Vec<&[PageId]> = new.chunk_by(|&page, &next| is_one_run(page, next)).collect();
        if runs.len() == 1 && pages.len() <= now {
            return; // The read itself follows at once.
        }
        for run in runs {
            self.store.will_read(run[0], (run[run.len() - 1].0 - run[0].0 + 1) as usize);
        }
    }

    /// Returns `true` if the calling thread should [prefetch](Self::prefetch): it has read pages in lately.
    /// Costs one load.
    #[must_use]
    pub fn should_prefetch(&self) -> bool {
        self.counters.own(Counter::PrefetchesLeft) > 0
    }

    /// Notes that the calling thread has read pages in, for [`should_prefetch`](Self::should_prefetch).
    pub(crate) fn note_read(&self) {
        if !cfg!(loom) {
            // A hint, on which no protocol depends: models need not explore it.
            self.counters.set_own(Counter::PrefetchesLeft, FRUITLESS_PREFETCHES);
        }
    }

    /// Returns `true` if the store has all of the pages in memory, so that an announcement does not help.
    #[must_use]
    pub fn are_cached(&self, pages: &[PageId]) -> bool {
        pages.iter().all(|&page| self.store.is_cached(page))
    }

    /// Announces absent pages that the calling thread needs soon, in any order. The caller passes none if it
    /// found only pages that are resident or [cached](Self::are_cached).
    pub fn prefetch(&self, mut pages: Vec<PageId>) {
        if pages.is_empty() {
            let left = self.counters.own(Counter::PrefetchesLeft);
            self.counters.set_own(Counter::PrefetchesLeft, left.saturating_sub(1));
        }
        pages.sort_unstable();
        pages.dedup();
        if pages.len() < 2 {
            return; // A single page is read at once.
        }
        // Pages between them are not read, unlike those of a scan: they are not needed.
        for run in pages.chunk_by(|page, next| page.0 + 1 == next.0) {
            self.store.will_read(run[0], run.len());
        }
    }

    /// Returns `true` if the pool has the content of the page. Pins nothing and counts no use. The answer may
    /// be outdated when the caller gets it.
    #[must_use]
    pub fn is_resident(&self, page_id: PageId) -> bool {
        self.frame_of(page_id).is_some_and(|id| self.frames[id.0 as usize].buffer() != NO_BUFFER)
    }

    /// Performs step 1; returns `None` when no frame is available.
    fn claim_page(&self, page_id: PageId) -> Option<Option<Claimed<'_>>> {
        // A resident page is neither pinned nor counted as used. An empty frame may belong to a failed read.
        if self.is_resident(page_id) {
            return Some(None);
        }
        let Fixed { filling, guard } = self.fix_frame(page_id, false).ok()?;
        let frame = guard.frame();
        if frame.buffer() != NO_BUFFER {
            return Some(None);
        }
        Some(filling.or_else(|| self.claim_reading(frame)).map(|filling| Claimed { filling, guard }))
    }

    /// Reads one run and installs its pages.
    fn fill_run(&self, run: &mut [Claimed<'_>]) -> usize {
        // Release: the buffers held other pages, see `BufferPool::page_in`.
        fence(Release);
        let first = run[0].page_id();
        let mut places: Vec<Option<PageWords<'_>>> = vec![None; span(run)];
        for page in run.iter() {
            places[(page.page_id().0 - first.0) as usize] = Some(page.filling.words());
        }
        if self.store.read_across(first, &places).is_err() {
            return 0;
        }
        self.note_read();
        if run.iter().any(|page| self.check_lsn(page.page_id(), page.filling.words()).is_err()) {
            return 0;
        }
        sync_point!("filled buffers ahead");
        run.iter_mut().map(|claimed| usize::from(claimed.filling.install())).sum()
    }
}

#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "a failed step ends the test")]
mod tests {
    use super::*;
    use crate::stall::{Gate, Point, stalling_at};
    use crate::store::{Access, PageStore, StoreError};
    use crate::{FixError, MemStore, PoolOptions};
    use azekura_base::PageBuf;
    use azekura_base::durable::NoLog;
    use azekura_base::sync::Mutex;
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
        assert_eq!(pool.read_ahead(PageId(0), 100), 10);
        let reads = store.reads();
        (0..10).for_each(|id| assert_eq!(pool.fix(PageId(id)).unwrap().page_id(), PageId(id)));
        assert_eq!((reads, store.reads(), pool.stats().misses), (13, 13, 13));
        assert_eq!(pool.read_ahead(PageId(0), 10), 0);
        assert_eq!(pool.read_ahead(PageId(MAX_PAGE_ID - 2), 10), 2, "there are no more pages");
        assert_eq!(pool.read_ahead(PageId(u64::MAX), 10), 0);
    }

    /// A call of the store.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Call {
        WillRead(u64, usize),
        ReadAcross(u64, usize),
    }

    /// A store that records the calls of a read-ahead.
    #[derive(Debug)]
    struct Noting(MemStore, Mutex<Vec<Call>>);

    impl PageStore for Noting {
        fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
            self.0.read_page(id, out)
        }
        fn read_across(&self, first: PageId, out: &[Option<PageWords<'_>>]) -> Result<(), StoreError> {
            self.1.lock().push(Call::ReadAcross(first.0, out.len()));
            self.0.read_across(first, out)
        }
        fn will_read(&self, first: PageId, pages: usize) {
            self.1.lock().push(Call::WillRead(first.0, pages));
        }
        fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
            self.0.write_pages(batch)
        }
        fn sync(&self) -> Result<(), StoreError> {
            self.0.sync()
        }
    }

    #[test]
    fn a_read_goes_across_resident_pages() {
        let store = Arc::new(Noting(MemStore::new(PAGE), Mutex::new(Vec::new())));
        let options = PoolOptions { page_size: PAGE, capacity_bytes: 8000 * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap();
        // Absent pages: 1, 3, 12 (after a gap of 8 pages); 30, 31; and 50.
        let absent = [1, 3, 12, 30, 31, 50];
        (0..60).filter(|id| !absent.contains(id)).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
        assert_eq!((pool.read_ahead(PageId(0), 60), pool.read_ahead_pages()), (6, 20));
        let calls = std::mem::take(&mut *store.1.lock());
        assert_eq!(calls, [Call::ReadAcross(1, 12), Call::ReadAcross(30, 2), Call::ReadAcross(50, 1)]);
        let reads = store.0.reads();
        assert!(absent.into_iter().all(|id| pool.fix(PageId(id)).unwrap().page_id() == PageId(id)));
        assert_eq!(store.0.reads(), reads, "all are resident");
        assert_eq!(pool.read_ahead(PageId(100), 100), 20, "no more than one call brings in");
    }

    #[test]
    fn pages_are_announced_once_by_runs_and_further_ones_when_half_of_them_are_read() {
        let store = Arc::new(Noting(MemStore::new(PAGE), Mutex::new(Vec::new())));
        let options = PoolOptions { page_size: PAGE, capacity_bytes: 100 * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap();
        let mut announced = Announced::default();
        let calls = |pages: &[u64], announced: &mut Announced| {
            let pages: Vec<PageId> = pages.iter().copied().map(PageId).collect();
            pool.announce(announced, &pages, 1);
            std::mem::take(&mut *store.1.lock())
        };
        assert!(announced.reads(1, 4), "nothing is announced yet");
        let first = calls(&[70, 5, 9, 71, 8], &mut announced);
        assert_eq!(first, [Call::WillRead(5, 5), Call::WillRead(70, 2)]);
        assert_eq!([1, 1, 1].map(|pages| announced.reads(pages, 4)), [false, true, true]);
        let next = calls(&[71, 8, 20, MAX_PAGE_ID, 4], &mut announced);
        assert_eq!(next, [Call::WillRead(4, 1), Call::WillRead(20, 1)]);
        assert_eq!(calls(&[20, MAX_PAGE_ID, 4], &mut announced), [], "all are announced");
    }

    #[test]
    fn a_prefetch_announces_single_pages_and_ends_after_some_without_an_absent_page() {
        let store = Arc::new(Noting(MemStore::new(PAGE), Mutex::new(Vec::new())));
        let options = PoolOptions { page_size: PAGE, capacity_bytes: 100 * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap();
        let prefetch = |pages: &[u64]| {
            pool.prefetch(pages.iter().copied().map(PageId).collect());
            std::mem::take(&mut *store.1.lock())
        };
        drop(pool.fix_new(PageId(3)).unwrap());
        assert!(!pool.should_prefetch(), "no page was read in");
        drop(pool.fix(PageId(1)).unwrap());
        assert!(pool.should_prefetch() && !pool.are_cached(&[PageId(1)]));
        let calls = prefetch(&[70, 5, 9, 71, 70, 7]);
        let call = |first, pages| Call::WillRead(first, pages);
        assert_eq!(calls, [call(5, 1), call(7, 1), call(9, 1), call(70, 2)]);
        assert_eq!(prefetch(&[3, 3]), [], "a single page");
        for _ in 0..FRUITLESS_PREFETCHES {
            assert!(pool.should_prefetch());
            assert_eq!(prefetch(&[]), []);
        }
        assert!(!pool.should_prefetch());
        drop(pool.fix(PageId(2)).unwrap());
        assert!(pool.should_prefetch());
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
            store.set_hook(|access| assert_ne!(access, Access::Read(PageId(5)), "injected panic"));
            let ahead = std::panic::AssertUnwindSafe(|| pool.read_ahead(PageId(0), 20));
            assert!(std::panic::catch_unwind(ahead).is_err());
            store.clear_hook();
        }
        let pinned: Vec<_> = (0..400 * 20).map(|id| pool.fix(PageId(id)).unwrap()).collect();
        assert_eq!(pinned.len(), pool.capacity_frames(), "every frame, each with a buffer");
    }

    /// Threads that need pages of a stopped read-ahead are not blocked, even if it holds more buffers than
    /// are spare.
    #[test]
    fn g10_a_stopped_read_ahead_blocks_no_reader_of_its_pages() {
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
            gate.open(); // Before any assertion: a stopped thread would prevent the end of the scope.
            assert_eq!(wrong, None);
        });
        assert_eq!(pool.stats().duplicate_reads, 24);
        let all: Vec<_> = (0..400 * 24).map(|id| pool.fix(PageId(id)).unwrap()).collect();
        assert_eq!(all.len(), pool.capacity_frames());
    }
}
