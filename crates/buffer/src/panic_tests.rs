//! Tests of G9: a panic of the page store or the log during a fix or a write-back loses no buffer, no frame,
//! no latch, and no right to read or write.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use azekura_base::durable::NoLog;
use azekura_base::page::PageType;
use azekura_base::{DurableLog, LogFailed, Lsn, PageId};

use crate::frame::{Frame, NO_BUFFER};
use crate::store::Access;
use crate::{BufferPool, FixError, MemStore, PoolOptions};

const PAGE: usize = 4096;
const FRAMES: usize = 3;

/// Runs `work`, which must panic.
fn panics<T>(work: impl FnOnce() -> T) {
    assert!(catch_unwind(AssertUnwindSafe(work)).is_err(), "the store or log was to panic");
}

fn pool(log: Arc<dyn DurableLog>) -> (BufferPool, Arc<MemStore>) {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: FRAMES * PAGE, ..PoolOptions::default() };
    let store = Arc::new(MemStore::new(PAGE));
    (BufferPool::new(options, Arc::clone(&store) as _, log).unwrap(), store)
}

/// Asserts that every buffer is spare or in a frame, and that no frame is pinned, latched or being written.
fn assert_nothing_is_held(pool: &BufferPool) {
    let spare: Vec<u32> = std::iter::from_fn(|| pool.take_spare_buffer()).collect();
    // A free frame may keep a buffer.
    let has_buffer = |frame: &&Frame| frame.buffer() != NO_BUFFER;
    let held = pool.frames.iter().filter(has_buffer).count();
    assert_eq!(spare.len() + held, pool.buffers(), "no buffer is lost");
    spare.into_iter().for_each(|buffer| pool.put_spare_buffer(buffer));
    for frame in pool.frames.iter() {
        assert!(!frame.is_pinned() && !frame.is_being_written());
        assert!(frame.latch.try_lock_exclusive(), "nobody holds the latch");
        frame.latch.unlock_exclusive_unchanged();
    }
}

/// Asserts in addition that all frames can be fixed at the same time.
fn assert_whole(pool: &BufferPool) {
    assert_nothing_is_held(pool);
    let all: Vec<_> = (1_000..).take(FRAMES).map(|id| pool.fix(PageId(id)).unwrap()).collect();
    assert!(matches!(pool.fix(PageId(999)), Err(FixError::PoolExhausted { pinned: FRAMES, .. })));
    drop(all);
    pool.flush_all().unwrap();
    assert_eq!(pool.stats().dirty_pages, 0);
    assert!(pool.policy.is_whole());
}

fn change(pool: &BufferPool, id: u64) {
    let mut page = pool.fix_new(PageId(id)).unwrap();
    page.will_change(Lsn(1));
    page.page_mut().format(PageType::Leaf, PageId(id));
}

#[test]
fn g9_a_read_that_panics_leaves_buffer_frame_and_the_right_to_read() {
    let (pool, store) = pool(Arc::new(NoLog));
    for page in (0..2 * pool.buffers() as u64).map(PageId) {
        store.set_hook(move |access| assert_ne!(access, Access::Read(page), "injected panic"));
        panics(|| pool.fix(page));
        assert_nothing_is_held(&pool);
        let id = pool.frame_of(page).unwrap();
        let frame = &pool.frames[id.0 as usize];
        assert!(frame.claim_reading(), "the next one reads at once");
        frame.disclaim_reading();
        store.clear_hook();
        drop(pool.fix(page).unwrap());
    }
    assert_whole(&pool);
}

#[test]
fn g9_a_write_back_that_panics_leaves_its_page_dirty_and_free_to_be_written() {
    let (pool, store) = pool(Arc::new(NoLog));
    (0..FRAMES as u64).for_each(|id| change(&pool, id));
    for _ in 0..10 {
        store.set_hook(|access| assert!(!matches!(access, Access::Write(_)), "injected panic"));
        panics(|| pool.fix(PageId(50)));
        assert_nothing_is_held(&pool);
        panics(|| pool.clean(None, 1));
        assert_nothing_is_held(&pool);
        panics(|| pool.flush_all());
        assert_nothing_is_held(&pool);
        store.clear_hook();
        assert_eq!(pool.stats().dirty_pages, FRAMES as u64);
        assert_eq!(pool.min_recovery_lsn(), Some(Lsn(1)), "no change is thought to be on disk");
    }
    drop(pool.fix(PageId(50)).unwrap());
    assert_whole(&pool);
}

/// A log that panics in every method once the flag is set.
#[derive(Debug, Default)]
struct PanickingLog(AtomicBool);

impl PanickingLog {
    fn maybe(&self) {
        assert!(!self.0.load(SeqCst), "injected panic");
    }
}

impl DurableLog for PanickingLog {
    fn next_lsn(&self) -> Lsn {
        self.maybe();
        Lsn(9)
    }
    fn durable_lsn(&self) -> Lsn {
        self.maybe();
        Lsn(9)
    }
    fn make_durable(&self, _lsn: Lsn) -> Result<(), LogFailed> {
        self.maybe();
        Ok(())
    }
}

#[test]
fn g9_a_log_that_panics_in_a_write_back_leaves_no_latch() {
    let log = Arc::new(PanickingLog::default());
    let (pool, _) = pool(Arc::clone(&log) as _);
    (0..FRAMES as u64).for_each(|id| change(&pool, id));
    for _ in 0..10 {
        log.0.store(true, SeqCst);
        panics(|| pool.fix(PageId(50)));
        assert_nothing_is_held(&pool);
        panics(|| pool.flush_all());
        assert_nothing_is_held(&pool);
        log.0.store(false, SeqCst);
    }
    assert_whole(&pool);
}

/// A lost insertion without a panic: two threads assign a frame to the same page.
#[test]
fn g9_the_frame_and_the_buffer_of_a_lost_insertion_are_reused() {
    use crate::stall::{Gate, Point, stalling_at};
    let (pool, _) = pool(Arc::new(NoLog));
    for round in 0..2 * pool.buffers() as u64 {
        // A victim has a buffer.
        (0..FRAMES as u64).for_each(|id| drop(pool.fix(PageId(100 * round + id)).unwrap()));
        let (gate, page) = (Arc::new(Gate::default()), PageId(100 * round + 50));
        std::thread::scope(|s| {
            s.spawn(|| {
                let fix = || drop(pool.fix(page).unwrap());
                stalling_at(Point::Named("published a frame"), &gate, fix);
            });
            assert!(gate.stopped_at().is_some());
            drop(pool.fix(page).unwrap());
            gate.open();
        });
        assert_nothing_is_held(&pool);
    }
    assert_whole(&pool);
}
