//! RECOVERY-2 with a log that draws LSNs ahead: later changes may have LSNs far below its counter. A page
//! that changes while it is written needs the log from that change on.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::{Arc, Mutex, Weak};

use azekura_base::page::PageType;
use azekura_base::{DurableLog, LogFailed, Lsn, PageId};
use azekura_buffer::{BufferPool, MemStore, PoolOptions};

const PAGE: usize = 4096;
const ID: PageId = PageId(7);

/// A log with a counter far ahead. It changes the page once, while the page's image waits for the log.
#[derive(Default)]
struct Ahead {
    /// Durable LSN.
    durable: u64,
    /// The pool, and the LSN of the change.
    to_change: Mutex<Option<(Weak<BufferPool>, Lsn)>>,
}

impl DurableLog for Ahead {
    fn next_lsn(&self) -> Lsn {
        Lsn(1000)
    }
    fn lsn_bound(&self) -> Lsn {
        Lsn(self.durable + 1)
    }
    fn durable_lsn(&self) -> Lsn {
        Lsn(self.durable)
    }
    fn make_durable(&self, _lsn: Lsn) -> Result<(), LogFailed> {
        let change = self.to_change.lock().unwrap().take();
        if let Some((pool, lsn)) = change {
            write(&pool.upgrade().unwrap(), self.lsn_bound(), lsn);
        }
        Ok(())
    }
}

fn write(pool: &BufferPool, bound: Lsn, lsn: Lsn) {
    let mut guard = pool.fix_new(ID).unwrap();
    guard.will_change(bound);
    let mut page = guard.page_mut();
    page.format(PageType::Leaf, ID);
    page.set_lsn(lsn);
}

/// Returns the recovery LSN of a page that was changed with LSN 5, and with LSN `second` while it was
/// written.
fn recovery_lsn(durable: u64, second: u64) -> Option<Lsn> {
    let log = Arc::new(Ahead { durable, ..Ahead::default() });
    let options = PoolOptions { page_size: PAGE, capacity_bytes: 64 * PAGE, ..PoolOptions::default() };
    let store = Arc::new(MemStore::new(PAGE));
    let pool = Arc::new(BufferPool::new(options, store, Arc::clone(&log) as _).unwrap());
    write(&pool, log.lsn_bound(), Lsn(5));
    *log.to_change.lock().unwrap() = Some((Arc::downgrade(&pool), Lsn(second)));
    assert_eq!(pool.clean(Some(Lsn::MAX), 8).unwrap(), 1);
    pool.min_recovery_lsn()
}

#[test]
fn a_change_made_during_the_write_is_covered_though_its_lsn_was_drawn_long_ago() {
    assert_eq!(recovery_lsn(2, 6), Some(Lsn(6)), "what follows the page's LSN");
    assert_eq!(recovery_lsn(4, 900), Some(Lsn(6)));
}

#[test]
fn the_recovery_lsn_is_above_the_durable_lsn() {
    assert_eq!(recovery_lsn(40, 41), Some(Lsn(41)));
}
