//! Calls of the file system: writing selected pages and no others, as usual pages and as fresh pages; misses.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::HashSet;
use std::sync::Arc;

use azekura_base::durable::NoLog;
use azekura_base::page::{PageType, image};
use azekura_base::{Lsn, PageId};
use azekura_buffer::page_file::PageFile;
use azekura_buffer::{BufferPool, MemStore, PageStore, PoolOptions};
use azekura_io::{CountingFs, MemFs};

const PAGE: usize = 4096;

fn pool(frames: usize) -> (BufferPool, Arc<MemStore>) {
    let store = Arc::new(MemStore::new(PAGE));
    let options = PoolOptions { page_size: PAGE, capacity_bytes: frames * PAGE, ..PoolOptions::default() };
    (BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap(), store)
}

fn write(pool: &BufferPool, id: u64, lsn: u64) {
    let mut guard = pool.fix_new(PageId(id)).unwrap();
    guard.will_change(Lsn(lsn));
    let mut page = guard.page_mut();
    page.format(PageType::Leaf, PageId(id));
    page.set_lsn(Lsn(lsn));
}

fn stored(store: &MemStore, id: u64) -> Option<Lsn> {
    store.image(PageId(id)).map(|page| image::lsn(&page))
}

#[test]
fn pages_that_are_named_are_written_and_others_stay_dirty() {
    let (pool, store) = pool(200);
    (0..100).for_each(|id| write(&pool, id, id + 1));
    let named: Vec<PageId> = (0..100).filter(|id| id % 3 == 0).chain([500]).map(PageId).collect();
    for are_fresh in [false, true] {
        pool.flush_pages(&named, are_fresh).unwrap();
        for id in 0..100 {
            assert_eq!(stored(&store, id), (id % 3 == 0).then_some(Lsn(id + 1)), "page {id}");
        }
    }
    let writes = store.writes();
    pool.flush_pages(&named, true).unwrap();
    assert_eq!(store.writes(), writes, "clean ones are not written again");
}

/// Each page is written when the call returns, even if the cleaner writes and evicts pages concurrently.
#[test]
fn pages_that_others_write_or_evict_meanwhile_are_written_when_it_returns() {
    let (pool, store) = pool(40);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..4_000 {
                pool.clean(None, 8).unwrap();
                write(&pool, 10_000 + n % 60, 1_000_000 + n);
            }
        });
        for round in 1..200 {
            let pages: Vec<PageId> = (0..20).map(|i| PageId(round * 20 + i)).collect();
            pages.iter().for_each(|id| write(&pool, id.0, round));
            pool.flush_pages(&pages, round % 2 == 0).unwrap();
            for id in pages {
                assert_eq!(stored(&store, id.0), Some(Lsn(round)), "page {id}");
            }
        }
    });
}

/// Returns the address of a page in the pool.
fn memory_of(pool: &BufferPool, id: u64) -> usize {
    pool.fix(PageId(id)).unwrap().shared().words().atomics().as_ptr().addr()
}

#[test]
fn pages_that_are_evicted_leave_if_they_are_clean_and_unused_and_their_frames_are_used_next() {
    let (pool, store) = pool(100);
    let pages: Vec<PageId> = (0..20).map(PageId).collect();
    pages.iter().for_each(|id| write(&pool, id.0, 1));
    let memory: HashSet<_> = (0..20).map(|id| memory_of(&pool, id)).collect();
    pool.evict_pages(&pages);
    assert_eq!(pool.stats().evictions, 0, "all are dirty");
    pool.flush_pages(&pages, false).unwrap();
    write(&pool, 3, 2);
    let in_use = pool.fix(PageId(4)).unwrap();
    pool.evict_pages(&pages);
    assert_eq!(pool.stats().evictions, 18);
    drop(in_use);
    (20..38).for_each(|id| write(&pool, id, 1));
    let later: HashSet<_> = (20..38).map(|id| memory_of(&pool, id)).collect();
    assert!(later.is_subset(&memory), "the memory of the evicted pages is used again");
    for id in 0..20 {
        let lsn = pool.fix(PageId(id)).unwrap().shared().words().lsn();
        assert_eq!(lsn, Lsn(if id == 3 { 2 } else { 1 }), "page {id}");
    }
    pool.write_all().unwrap();
    assert_eq!(stored(&store, 3), Some(Lsn(2)));
}

/// A miss is one read. One more read, of the LSN map, serves the first 4,032 pages.
#[test]
fn a_miss_makes_one_call_of_the_file_system() {
    const PAGES: u64 = 2_000;
    let fs = Arc::new(CountingFs::new(Arc::new(MemFs::new())));
    PageFile::create(Arc::clone(&fs) as _, "db".as_ref(), PAGE).unwrap();
    let opened = |frames: usize| {
        let file = Arc::new(PageFile::open(Arc::clone(&fs) as _, "db".as_ref(), PAGE).unwrap());
        let capacity_bytes = frames * PAGE;
        let options = PoolOptions { page_size: PAGE, capacity_bytes, ..PoolOptions::default() };
        (BufferPool::new(options, Arc::clone(&file) as _, Arc::new(NoLog)).unwrap(), file)
    };
    let (pool, file) = opened(2 * PAGES as usize);
    (0..PAGES).for_each(|id| write(&pool, id, 1));
    pool.write_all().unwrap();
    file.sync_for_checkpoint().unwrap();
    drop((pool, file));
    let (pool, _file) = opened(100);
    fs.reset();
    (0..PAGES).for_each(|id| drop(pool.fix(PageId(id)).unwrap()));
    let counts = fs.counts();
    assert_eq!(pool.stats().misses, PAGES);
    assert!((PAGES..=PAGES + 1).contains(&counts.reads), "{counts:?}");
    assert!(counts.opened <= 1 && counts.changes() == 0, "{counts:?}");
}

/// Measures the bytes written to the files per byte of the pages, while the file grows.
#[test]
fn a_page_of_a_growing_file_is_written_twice_and_a_fresh_one_once() {
    for (are_fresh, most) in [(false, 2.1), (true, 1.01)] {
        let fs = Arc::new(CountingFs::new(Arc::new(MemFs::new())));
        PageFile::create(Arc::clone(&fs) as _, "db".as_ref(), PAGE).unwrap();
        let file = Arc::new(PageFile::open(Arc::clone(&fs) as _, "db".as_ref(), PAGE).unwrap());
        let options = PoolOptions { page_size: PAGE, capacity_bytes: 800 * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::clone(&file) as _, Arc::new(NoLog)).unwrap();
        // The double-write area has its full size after the first writes.
        let first: Vec<PageId> = (0..800).map(PageId).collect();
        first.iter().for_each(|id| write(&pool, id.0, 1));
        pool.flush_pages(&first, false).unwrap();
        file.sync().unwrap();
        fs.reset();
        for round in 1..6 {
            let pages: Vec<PageId> = (800 * round..800 * (round + 1)).map(PageId).collect();
            pages.iter().for_each(|id| write(&pool, id.0, 1));
            pool.flush_pages(&pages, are_fresh).unwrap();
        }
        let written = fs.counts().bytes_written as f64 / (5 * 800 * PAGE) as f64;
        assert!(written >= 1.0 && written <= most, "{written} bytes per byte, fresh: {are_fresh}");
    }
}
