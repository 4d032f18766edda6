//! G10: a thread that stops permanently between any two steps of a fix, an eviction, a page-in or a
//! write-back blocks no other thread. The others fix, read and change every page, also the stopped thread's
//! pages, unless that thread holds their latch.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura_base::durable::NoLog;
use azekura_base::page::PageType;
use azekura_base::{Lsn, PageId};

use crate::stall::{Gate, Point, stalling_at};
use crate::{BufferPool, MemStore, PoolOptions};

const PAGE: usize = 4096;
const FRAMES: usize = 5;
const PAGES: u64 = 12;
const COUNTER: usize = 20;
/// The page on which the stopped thread works.
const ITS_PAGE: u64 = 3;

struct Scene {
    pool: BufferPool,
    changes: [AtomicU64; PAGES as usize],
}

impl Scene {
    /// Returns a small pool through which all pages have passed once. The last ones are resident, dirty or
    /// clean.
    fn new(is_flushed: bool) -> Self {
        let options =
            PoolOptions { page_size: PAGE, capacity_bytes: FRAMES * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::new(MemStore::new(PAGE)), Arc::new(NoLog)).unwrap();
        for id in 0..PAGES {
            let mut page = pool.fix_new(PageId(id)).unwrap();
            page.will_change(Lsn(1));
            page.page_mut().format(PageType::Leaf, PageId(id));
        }
        if is_flushed {
            pool.flush_all().unwrap();
        }
        Self { pool, changes: Default::default() }
    }

    /// Fixes a page, and increments its counter if no thread has it latched.
    fn visit(&self, id: u64) {
        let page = self.pool.fix(PageId(id)).unwrap();
        if let Some(peeked) = page.peek() {
            let found = peeked.words().page_id();
            assert!(found == PageId(id) || !peeked.is_valid(), "page {found} for page {id}");
        }
        if let Ok(mut page) = page.try_exclusive() {
            page.will_change(Lsn(1));
            let mut words = page.page_mut();
            words.set_word(COUNTER, words.word(COUNTER) + 1);
            self.changes[id as usize].fetch_add(1, SeqCst);
        }
    }

    fn check(&self, what: &str) {
        for id in 0..PAGES {
            let page = self.pool.fix(PageId(id)).unwrap().shared();
            let expected = self.changes[id as usize].load(SeqCst);
            assert_eq!(page.words().word(COUNTER), expected, "changes of page {id}, {what}");
        }
    }
}

/// Stops `work` at each of its points in turn. Two other threads meanwhile visit all pages three times.
fn others_go_on(is_flushed: bool, work: impl Fn(&Scene) + Sync) -> Vec<&'static str> {
    let mut places = Vec::new();
    for n in 0.. {
        let scene = Scene::new(is_flushed);
        let gate = Arc::new(Gate::default());
        let stopped_at = std::thread::scope(|s| {
            s.spawn(|| stalling_at(Point::Nth(n), &gate, || work(&scene)));
            let stopped_at = gate.stopped_at();
            std::thread::scope(|others| {
                for _ in 0..2 {
                    others.spawn(|| (0..3 * PAGES).for_each(|i| scene.visit(i % PAGES)));
                }
            });
            gate.open();
            stopped_at
        });
        scene.check(stopped_at.unwrap_or("the end"));
        scene.pool.flush_all().unwrap();
        assert_eq!(scene.pool.stats().dirty_pages, 0);
        let Some(place) = stopped_at else { break };
        places.push(place);
    }
    places
}

#[test]
fn g10_a_stopped_miss_with_a_clean_victim_blocks_no_thread() {
    let places = others_go_on(true, |scene| scene.visit(ITS_PAGE));
    assert!(places.len() >= 10, "{places:?}");
}

#[test]
fn g10_a_stopped_miss_with_a_dirty_victim_blocks_no_thread() {
    let places = others_go_on(false, |scene| scene.visit(ITS_PAGE));
    assert!(places.iter().any(|place| place.contains("image")), "{places:?}");
}

#[test]
fn g10_a_stopped_new_page_blocks_no_thread() {
    let places = others_go_on(true, |scene| {
        // A page that no other thread uses: a reader could not know its content.
        drop(scene.pool.fix_new(PageId(PAGES + 1)).unwrap());
    });
    assert!(places.len() >= 10, "{places:?}");
}

#[test]
fn g10_a_stopped_read_ahead_blocks_no_thread() {
    let places = others_go_on(true, |scene| {
        scene.pool.read_ahead(PageId(ITS_PAGE), 1);
    });
    assert!(places.contains(&"filled buffers ahead"), "{places:?}");
}

#[test]
fn g10_a_stopped_cleaner_blocks_no_thread() {
    let places = others_go_on(false, |scene| {
        scene.pool.clean(None, 2).unwrap();
    });
    assert!(places.len() >= 4, "{places:?}");
}

#[test]
fn g10_a_stopped_flush_blocks_no_thread() {
    let places = others_go_on(false, |scene| scene.pool.flush_all().unwrap());
    assert!(places.len() >= 10, "{places:?}");
}

/// FRAME-5. A frame has a page's id although it lost the insertion, and another thread reaches it by a stale
/// lookup in the table:
///
/// | stale | loser | this thread |
/// |---|---|---|
/// | finds page 0 in frame 0 | | |
/// | | | page 0 leaves frame 0 |
/// | | publishes frame 0 for page 0 | |
/// | | | page 0 into frame 1, changed there |
/// | pins frame 0 | | |
/// | *must not fill it from disk* | | |
#[test]
fn frame_5_a_frame_that_lost_its_insertion_is_not_filled() {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: 2 * PAGE, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::new(MemStore::new(PAGE)), Arc::new(NoLog)).unwrap();
    let scene = Scene { pool, changes: Default::default() };
    let mut page = scene.pool.fix_new(PageId(0)).unwrap();
    page.will_change(Lsn(1));
    page.page_mut().format(PageType::Leaf, PageId(0));
    drop(page);
    scene.pool.flush_all().unwrap();
    let (stale, loser) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    std::thread::scope(|s| {
        let stale_thread = s.spawn(|| {
            stalling_at(Point::Named("found a frame in the table"), &stale, || increment(&scene.pool));
        });
        assert!(stale.stopped_at().is_some());
        let in_frame_1 = scene.pool.fix(PageId(5)).unwrap();
        drop(scene.pool.fix(PageId(6)).unwrap()); // takes frame 0
        let loser_thread = s.spawn(|| {
            stalling_at(Point::Named("published a frame"), &loser, || increment(&scene.pool));
        });
        assert!(loser.stopped_at().is_some());
        drop(in_frame_1);
        increment(&scene.pool);
        stale.open();
        stale_thread.join().unwrap();
        loser.open();
        loser_thread.join().unwrap();
    });
    let page = scene.pool.fix(PageId(0)).unwrap().shared();
    assert_eq!(page.words().word(COUNTER), 3);
}

fn increment(pool: &BufferPool) {
    let mut page = pool.fix(PageId(0)).unwrap().exclusive();
    page.will_change(Lsn(1));
    let mut words = page.page_mut();
    assert_eq!(words.page_id(), PageId(0));
    words.set_word(COUNTER, words.word(COUNTER) + 1);
}
