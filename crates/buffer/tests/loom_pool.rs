//! The whole pool, with few forced switches: pages that are loaded and evicted in one or two frames lose no
//! change and are not confused (page-in and its installation, G2, G5, FRAME-5).
//!
//! Page words are atomics of `std`, which loom does not track. This is correct under pins and latches, but a
//! peek cannot be modeled here: loom may combine an old version with words that are always the newest.
//! `loom_frame` models it, with a word of loom's.
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

mod loom_common;

use std::collections::BTreeMap;

use azekura_base::durable::NoLog;
use azekura_base::page::PageType;
use azekura_base::sync::{Arc, thread};
use azekura_base::{Lsn, PageBuf, PageId};
use azekura_buffer::{BufferPool, FixError, HandKind, PageStore, Policy, PoolOptions, StoreError};
use loom_common::model;

const PAGE: usize = 4096;
const COUNTER: usize = 3;

/// Pages in a mutex of `std` that is never held across a switch point.
#[derive(Debug, Default)]
struct Disk(std::sync::Mutex<BTreeMap<PageId, Vec<u8>>>);

impl PageStore for Disk {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        match self.0.lock().unwrap().get(&id) {
            Some(page) => out.copy_from_slice(page),
            None => out.fill(0),
        }
        Ok(())
    }
    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        let mut pages = self.0.lock().unwrap();
        batch.iter().for_each(|(id, page)| drop(pages.insert(*id, page.to_vec())));
        Ok(())
    }
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn pool(frames: usize, policy: Policy) -> Arc<BufferPool> {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: frames * PAGE, policy };
    Arc::new(
        BufferPool::new(options, std::sync::Arc::new(Disk::default()), std::sync::Arc::new(NoLog)).unwrap(),
    )
}

/// Increments a page's counter; returns `false` if no frame was available.
fn increment(pool: &BufferPool, id: u64) -> bool {
    let page = match pool.fix(PageId(id)) {
        Ok(page) => page,
        Err(FixError::PoolExhausted { .. }) => return false,
        Err(error) => panic!("{error}"),
    };
    let mut page = page.exclusive();
    page.will_change(Lsn(1));
    let mut words = page.page_mut();
    let count = words.word(COUNTER);
    if count == 0 {
        words.format(PageType::Leaf, PageId(id));
    }
    assert_eq!(words.page_id(), PageId(id), "another page's content");
    words.set_word(COUNTER, count + 1);
    true
}

fn count(pool: &BufferPool, id: u64) -> u64 {
    pool.fix(PageId(id)).unwrap().shared().words().word(COUNTER)
}

fn spawn(pool: &Arc<BufferPool>, run: impl FnOnce(&BufferPool) -> u64 + 'static) -> thread::JoinHandle<u64> {
    let pool = Arc::clone(pool);
    thread::spawn(move || run(&pool))
}

#[test]
fn two_misses_of_one_page_share_one_frame() {
    model("two misses on one page", 2, 10_000, || {
        let pool = pool(2, Policy::TwoRings);
        let other = spawn(&pool, |pool| u64::from(increment(pool, 7)));
        let ours = u64::from(increment(&pool, 7));
        assert_eq!(other.join().unwrap() + ours, 2, "two frames are enough");
        assert_eq!(count(&pool, 7), 2, "G2: a change was lost");
    });
}

#[test]
fn a_page_evicted_during_a_fix_keeps_its_changes() {
    model("a fix, and a fix that evicts its page", 2, 10_000, || {
        let pool = pool(1, Policy::NbGclock(HandKind::Atomic));
        assert!(increment(&pool, 7));
        let other = spawn(&pool, |pool| u64::from(increment(pool, 8)));
        let ours = u64::from(increment(&pool, 7));
        let theirs = other.join().unwrap();
        assert_eq!((count(&pool, 7), count(&pool, 8)), (1 + ours, theirs));
    });
}
