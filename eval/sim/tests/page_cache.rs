//! The page cache on a machine. In every operation that claims to be lock-free, a thread that stops forever
//! at any access to shared memory blocks no other thread (hazard G10). The locked baseline shows that the
//! test can fail.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::durable::NoLog;
use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
use azekura_base::{Lsn, PageId};
use azekura_baselines::TtasLock;
use azekura_buffer::{BufferPool, HandKind, Peek, Policy, PoolOptions};
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, stop_everywhere, stop_everywhere_under};
use azekura_trace::Site;
use std::collections::HashMap;
use std::sync::Arc;

mod common;

use common::Zeroes;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

const FRAMES: usize = 5;
const PAGES: u64 = 12;
const POLICIES: [Policy; 3] =
    [Policy::NbGclock(HandKind::Atomic), Policy::NbGclock(HandKind::Striped), Policy::TwoRings];

fn pool(policy: Policy) -> Arc<BufferPool> {
    let options = PoolOptions { page_size: 4096, capacity_bytes: FRAMES * 4096, policy };
    Arc::new(BufferPool::new(options, Arc::new(Zeroes), Arc::new(NoLog)).unwrap())
}

/// The work of thread 0, which is stopped.
type Work = fn(&BufferPool);

/// Thread 0 does `work`. Meanwhile, two other threads visit all pages three times.
fn scene(policy: Policy, work: Work) -> Scene {
    let pool = pool(policy);
    (0..PAGES).for_each(|page| drop(pool.fix(PageId(page)).unwrap()));
    let visits = Arc::new(AtomicU64::new(0));
    let mut scene = Scene::new();
    let theirs = Arc::clone(&pool);
    scene.thread(move || work(&theirs));
    for thread in 0..2 {
        let (pool, visits) = (Arc::clone(&pool), Arc::clone(&visits));
        scene.thread(move || {
            for step in 0..3 * PAGES {
                let page = PageId((step * (thread + 1)) % PAGES);
                assert_eq!(pool.fix(page).unwrap().page_id(), page);
                visits.fetch_add(1, SeqCst);
            }
        });
    }
    scene.check(move || {
        let (visits, dirty) = (visits.load(SeqCst), pool.stats().dirty_pages);
        if visits == 6 * PAGES && dirty == 0 {
            Ok(())
        } else {
            Err(format!("{visits} visits, {dirty} dirty"))
        }
    });
    scene
}

const OPERATIONS: [(&str, Work); 4] = [
    ("a fix of a page that is there", |pool| drop(pool.fix(PageId(PAGES - 1)).unwrap())),
    ("fixes of pages that are not", |pool| {
        // In another order than that of the other threads, which would otherwise do all the reading.
        for page in (3..8).rev() {
            drop(pool.fix(PageId(page)).unwrap());
        }
    }),
    ("looks at pages", |pool| {
        for page in 0..PAGES {
            if let Peek::Page(seen) = pool.peek(PageId(page)) {
                let _ = seen.is_valid();
            }
        }
    }),
    ("read-ahead", |pool| {
        for page in 0..PAGES {
            let _came = pool.read_ahead(PageId(page), 1);
        }
    }),
];

#[test]
fn g10_a_stop_at_any_access_in_the_pool_blocks_no_thread() {
    for policy in POLICIES {
        for (name, work) in OPERATIONS {
            let stopped = stop_everywhere(|| scene(policy, work));
            let accesses = stopped.unwrap_or_else(|why| panic!("{name}, {policy:?}: {why}")).accesses;
            assert!(accesses >= 5, "{name}, {policy:?}: {accesses} accesses");
        }
    }
}

#[test]
fn random_schedules_of_the_pool_give_each_thread_its_pages() {
    for policy in POLICIES {
        let fixes = OPERATIONS[1].1;
        at_random(60, 1, || scene(policy, fixes)).unwrap_or_else(|failure| panic!("{policy:?}: {failure}"));
    }
}

static LOCK: Site = Site::new("test: table lock");

/// The test fails for a conventional page table: a map under a lock.
#[test]
fn g10_the_same_test_fails_on_a_table_under_a_lock() {
    let why = stop_everywhere(|| {
        let table: Arc<TtasLock<HashMap<u64, u64>>> = Arc::new(TtasLock::new(HashMap::new()));
        let mut scene = Scene::new();
        for _ in 0..3 {
            let table = Arc::clone(&table);
            scene.thread(move || {
                for page in 0..PAGES {
                    *table.lock(&LOCK).entry(page).or_default() += 1;
                }
            });
        }
        scene
    })
    .unwrap_err();
    assert!(why.contains("steps were not enough") && why.contains("ttas.rs"), "{why}");
}

/// Changes are made under a page's latch, so a stopped thread blocks the threads that latch the same page.
#[test]
fn g10_a_stop_with_a_page_latch_blocks_only_threads_that_latch_the_page() {
    let scene = |same_page: bool| {
        let pool = pool(Policy::TwoRings);
        let mut scene = Scene::new();
        for thread in 0..3 {
            let pool = Arc::clone(&pool);
            scene.thread(move || {
                let page = if same_page { 1 } else { thread };
                for _ in 0..3 {
                    pool.fix(PageId(page)).unwrap().exclusive().will_change(Lsn(1));
                }
            });
        }
        scene
    };
    stop_everywhere(|| scene(false)).unwrap();
    // By time alone, the other threads may be finished before thread 0 has the latch.
    let why = stop_everywhere_under(0..20, || scene(true)).unwrap_err();
    assert!(why.contains("no thread can continue") && why.contains("park.rs"), "{why}");
}
