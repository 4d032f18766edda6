//! The cost of one call: a fix that hits, a peek, a fix that misses; with a cold or hot page, alone or
//! concurrent with another thread.
//!
//! `cargo bench -p azekura-buffer`. Absolute numbers depend on the machine; compare the lines of one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use azekura_base::durable::NoLog;
use azekura_base::{PageBuf, PageId};
use azekura_buffer::{BufferPool, HandKind, PageStore, Peek, Policy, PoolOptions, StoreError};
use criterion::{Criterion, criterion_group, criterion_main};

const PAGE: usize = 8192;
const FRAMES: usize = 4096;

/// A store that returns zeroes without delay.
#[derive(Debug)]
struct Zeroes;

impl PageStore for Zeroes {
    fn read_page(&self, _id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        out.fill(0);
        Ok(())
    }
    fn write_pages(&self, _batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn pool(policy: Policy) -> BufferPool {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: FRAMES * PAGE, policy };
    BufferPool::new(options, Arc::new(Zeroes), Arc::new(NoLog)).expect("valid options")
}

/// Returns scattered page numbers, the same in every run.
fn scattered(pages: u64) -> impl FnMut() -> PageId {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        PageId((state >> 33) % pages)
    }
}

fn fix(pool: &BufferPool, id: PageId) -> u64 {
    pool.fix(id).expect("a frame").peek().map_or(0, |page| page.words().word(1))
}

fn peek(pool: &BufferPool, id: PageId) -> u64 {
    let Peek::Page(page) = pool.peek(id) else { return 0 };
    let word = page.words().word(1);
    u64::from(page.is_valid()) + word
}

/// Runs `measured` alone, then while another thread runs it too.
fn alone_and_beside(
    criterion: &mut Criterion,
    name: &str,
    pages: u64,
    policy: Policy,
    measured: fn(&BufferPool, PageId) -> u64,
) {
    let pool = pool(policy);
    (0..pages.min(FRAMES as u64)).for_each(|id| drop(pool.fix(PageId(id))));
    let mut next = scattered(pages);
    criterion.bench_function(name, |b| b.iter(|| measured(&pool, next())));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut next = scattered(pages);
            while !is_over.load(Relaxed) {
                measured(&pool, next());
            }
        });
        criterion.bench_function(&format!("{name}, beside another"), |b| b.iter(|| measured(&pool, next())));
        is_over.store(true, Relaxed);
    });
}

fn all(criterion: &mut Criterion) {
    let frames = FRAMES as u64;
    alone_and_beside(criterion, "peek, scattered pages", frames, Policy::TwoRings, peek);
    alone_and_beside(criterion, "peek, one page", 1, Policy::TwoRings, peek);
    alone_and_beside(criterion, "fix hit, scattered pages", frames, Policy::TwoRings, fix);
    alone_and_beside(criterion, "fix hit, one page", 1, Policy::TwoRings, fix);
    alone_and_beside(
        criterion,
        "fix miss, striped hand",
        64 * frames,
        Policy::NbGclock(HandKind::Striped),
        fix,
    );
    alone_and_beside(
        criterion,
        "fix miss, atomic hand",
        64 * frames,
        Policy::NbGclock(HandKind::Atomic),
        fix,
    );
    alone_and_beside(criterion, "fix miss, two rings", 64 * frames, Policy::TwoRings, fix);
}

/// Measures the cost of the background threads for a pool of 1 GiB with few dirty pages.
fn background(criterion: &mut Criterion) {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: 1 << 30, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::new(Zeroes), Arc::new(NoLog)).expect("valid options");
    for id in 0..100 {
        let mut page = pool.fix_new(PageId(id * 7)).expect("a frame");
        page.will_change(azekura_base::Lsn(1));
    }
    criterion.bench_function("least recovery LSN, 100 of 131,072 frames dirty", |b| {
        b.iter(|| pool.min_recovery_lsn());
    });
    pool.flush_all().expect("the store takes everything");
    criterion.bench_function("cleaner's step, none of 131,072 frames dirty", |b| {
        b.iter(|| pool.clean(None, 64).expect("nothing to write"));
    });
}

criterion_group!(benches, all, background);
criterion_main!(benches);
