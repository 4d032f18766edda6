//! Measures the memory of a pool besides its pages, as reported by the allocator and the system, so that no
//! memory is left uncounted.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use azekura_base::durable::NoLog;
use azekura_base::page::PageType;
use azekura_base::{Lsn, PageId};
use azekura_buffer::{BufferPool, HandKind, MemStore, Policy, PoolOptions};

/// The system's allocator, with a count of the bytes that are allocated now.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call forwards to the system's allocator, with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAGE: usize = 8192;
/// Number of buffers that a pool has besides one per frame.
const SPARE: usize = 16;

/// Returns the number of bytes that are allocated now.
fn held() -> usize {
    ALLOCATED.load(Relaxed) + azekura_base::zeroed::mapped_bytes() // Relaxed: one thread
}

fn pool(frames: usize, policy: Policy) -> BufferPool {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: frames * PAGE, policy };
    BufferPool::new(options, Arc::new(MemStore::new(PAGE)), Arc::new(NoLog)).unwrap()
}

/// Returns the number of bytes besides the pages and the spare buffers.
fn besides_pages(frames: usize, policy: Policy) -> usize {
    let before = held();
    let pool = pool(frames, policy);
    let taken = held() - before;
    drop(pool);
    taken - (frames + SPARE) * PAGE
}

/// A single test, because all threads of a process share the count.
#[test]
fn a_frame_takes_less_than_sixty_five_bytes_and_nothing_is_left_uncounted() {
    for (policy, per_frame) in [(Policy::TwoRings, 64), (Policy::NbGclock(HandKind::Striped), 44)] {
        let [few, many] = [4_096, 32_768].map(|frames| besides_pages(frames, policy));
        let slope = (many - few) as f64 / (32_768 - 4_096) as f64;
        assert!(
            (per_frame - 1..=per_frame).contains(&(slope.ceil() as usize)),
            "{policy:?}: {slope} per frame"
        );
        assert!(few - 4_096 * per_frame < 32 << 10, "{policy:?}: {few} for 4,096 frames");
        assert!(many < 32_768 * 65, "{policy:?}: {many} for 32,768 frames, all told");
    }
    nothing_is_added_by_use();
}

/// Loads, changes, writes and evicts pages, and checks that no memory grows with their number.
fn nothing_is_added_by_use() {
    let pool = pool(512, Policy::TwoRings);
    let turn_over = || {
        for id in 0..2_000 {
            let mut page = pool.fix_new(PageId(id)).unwrap();
            page.will_change(Lsn(1));
            page.page_mut().format(PageType::Leaf, PageId(id));
        }
        pool.flush_all().unwrap();
    };
    turn_over(); // Allocates the store's own pages and the threads' buffers.
    let before = held();
    turn_over();
    let grown = held().saturating_sub(before);
    assert!(grown < 4_096, "{grown} more bytes");
}
