//! A cold scan reads the next leaves together with a missing leaf, by few reads. A short scan reads no
//! unnecessary page. With few frames it announces later leaves to the store. Counted at the page store, with
//! one thread.

use std::collections::{HashMap, HashSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::{MemLog, World};
use azekura_base::{PageBuf, PageId, PageWords};
use azekura_btree::{Env, EnvOptions, LeafBatch, NoLocks, Outcome, PutMode, Scan, Tree};
use azekura_buffer::{BufferPool, MemStore, PageStore, PoolOptions, StoreError};

const PAGE: usize = 4096;
/// With this number of frames at most twenty pages are read ahead.
const FRAMES: usize = 8_000;
const ROWS: u32 = 12_000;

/// A page store that counts reads, and the pages read.
#[derive(Debug)]
struct Counting {
    store: MemStore,
    reads: AtomicU64,
    pages: AtomicU64,
    announced: Mutex<Announcements>,
}

/// The pages that were announced, and those that were read.
#[derive(Debug, Default)]
struct Announcements {
    /// Announced pages, with the number of announcements.
    pages: HashMap<u64, usize>,
    calls: usize,
    read: HashSet<u64>,
    read_unannounced: u64,
    /// Largest number of announced pages that were not read yet.
    most_ahead: usize,
}

impl Announcements {
    fn reads(&mut self, page: u64) {
        if self.read.insert(page) && !self.pages.contains_key(&page) {
            self.read_unannounced += 1;
        }
    }

    fn announces(&mut self, first: u64, pages: usize) {
        self.calls += 1;
        (first..).take(pages).for_each(|page| *self.pages.entry(page).or_default() += 1);
        let ahead = self.pages.keys().filter(|page| !self.read.contains(page)).count();
        self.most_ahead = self.most_ahead.max(ahead);
    }
}

impl Counting {
    fn count_reads(&self, pages: impl Iterator<Item = u64>) {
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        pages.for_each(|page| announced.reads(page));
    }

    /// Returns the announcements since the last call.
    fn take_announcements(&self) -> Announcements {
        std::mem::take(&mut self.announced.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PageStore for Counting {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        self.read_pages(id, PAGE, out)
    }
    fn read_pages(&self, first: PageId, page_size: usize, out: &mut [u8]) -> Result<(), StoreError> {
        self.reads.fetch_add(1, SeqCst);
        self.pages.fetch_add((out.len() / page_size) as u64, SeqCst);
        self.count_reads((first.0..).take(out.len() / page_size));
        self.store.read_pages(first, page_size, out)
    }
    /// Reads pages by one read of the device, as [`PageFile`](azekura_buffer::page_file::PageFile) does.
    fn read_across(&self, first: PageId, out: &[Option<PageWords<'_>>]) -> Result<(), StoreError> {
        self.reads.fetch_add(1, SeqCst);
        self.pages.fetch_add(out.len() as u64, SeqCst);
        self.count_reads((first.0..).zip(out).filter(|(_, words)| words.is_some()).map(|(page, _)| page));
        self.store.read_across(first, out)
    }
    fn will_read(&self, first: PageId, pages: usize) {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).announces(first.0, pages);
    }
    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.store.write_pages(batch)
    }
    fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }
}

/// A tree on the store, and its number of leaves. No page of it is in a pool.
struct Cold {
    store: Arc<Counting>,
    log: Arc<MemLog>,
    tree: Tree,
    leaves: u64,
    height: u64,
}

fn world(store: &Arc<Counting>, log: &Arc<MemLog>, frames: usize) -> World {
    let options = PoolOptions { page_size: PAGE, capacity_bytes: frames * PAGE, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::clone(store) as _, Arc::clone(log) as _).expect("a pool");
    let env = Env::new(Arc::new(pool), Arc::clone(log) as _, EnvOptions::default());
    World { env, log: Arc::clone(log) }
}

fn key(n: u32) -> Vec<u8> {
    u64::from(n).to_be_bytes().to_vec()
}

impl Cold {
    fn new() -> Self {
        let store = Arc::new(Counting {
            store: MemStore::new(PAGE),
            reads: 0.into(),
            pages: 0.into(),
            announced: Mutex::default(),
        });
        let log = Arc::new(MemLog::default());
        let world = world(&store, &log, FRAMES);
        let tree = world.env.format(crate::common::log_buffer()).expect("formats");
        let mut txn = world.txn(1);
        for n in 0..ROWS {
            txn.put(tree, &key(n), &[n as u8; 300]);
        }
        let report = &world.assert_sound(&[tree], &[]).trees[0];
        let (leaves, height) = (report.leaf_pages, u64::from(report.height));
        assert!(leaves > 500 && height == 3, "{report:?}");
        world.env.pool().flush_all().expect("flushed");
        Self { store, log, tree, leaves, height }
    }

    /// Returns a world with an empty pool.
    fn world(&self, frames: usize) -> World {
        world(&self.store, &self.log, frames)
    }

    /// Returns the number of reads of the store so far, and the number of pages read.
    fn counts(&self) -> [u64; 2] {
        [&self.store.reads, &self.store.pages].map(|count| count.load(SeqCst))
    }

    /// Returns the first `most` rows of a scan, and the reads and pages that it needed.
    fn scan(
        &self,
        world: &World,
        mut scan: Scan,
        is_ascending: bool,
        most: usize,
    ) -> (Vec<Vec<u8>>, u64, u64) {
        let before = [&self.store.reads, &self.store.pages].map(|count| count.load(SeqCst));
        let (mut batch, mut keys) = (LeafBatch::new(), Vec::new());
        while !scan.is_done() && keys.len() < most {
            let outcome = if is_ascending {
                scan.next_batch(&world.env, most, &mut NoLocks, &mut batch)
            } else {
                scan.next_batch_back(&world.env, most, &mut NoLocks, &mut batch)
            };
            assert_eq!(outcome.expect("scan"), Outcome::Done(()));
            keys.extend((0..batch.len()).map(|i| batch.key(i).to_vec()));
        }
        let [reads, pages] = [&self.store.reads, &self.store.pages].map(|count| count.load(SeqCst));
        (keys, reads - before[0], pages - before[1])
    }
}

#[test]
fn a_cold_scan_reads_each_page_once_and_many_at_a_time_in_both_directions() {
    let cold = Cold::new();
    for is_ascending in [true, false] {
        let world = cold.world(FRAMES);
        let whole = Scan::new(cold.tree, Unbounded, Unbounded);
        let (mut keys, reads, pages) = cold.scan(&world, whole.clone(), is_ascending, usize::MAX);
        if !is_ascending {
            keys.reverse();
        }
        assert!(keys.into_iter().eq((0..ROWS).map(key)), "every row, in order");
        assert!(pages > cold.leaves && pages < cold.leaves + 40, "{pages} pages of {} leaves", cold.leaves);
        assert!(
            reads < cold.leaves / 6,
            "{reads} reads for {} leaves, ascending: {is_ascending}",
            cold.leaves
        );
        let (_, reads, _) = cold.scan(&world, whole, is_ascending, usize::MAX);
        assert_eq!(reads, 0, "all of it is there now");
    }
}

/// A scan of a partly resident table reads as many bytes per read as a cold scan. Point reads make random
/// leaves resident, which divides the absent pages into many pieces.
#[test]
fn a_scan_of_a_partly_resident_table_reads_no_fewer_bytes_by_a_read_than_a_cold_one() {
    let cold = Cold::new();
    for is_ascending in [true, false] {
        let whole = Scan::new(cold.tree, Unbounded, Unbounded);
        let (_, most_reads, pages) = cold.scan(&cold.world(FRAMES), whole.clone(), is_ascending, usize::MAX);
        let bytes_by_a_read = pages as f64 / most_reads as f64;
        for resident_quarters in 1..4 {
            let world = cold.world(FRAMES);
            for leaf in
                (0..cold.leaves).filter(|leaf| leaf.wrapping_mul(0x9E37_79B9) >> 7 & 3 < resident_quarters)
            {
                let row = (leaf * u64::from(ROWS) / cold.leaves) as u32;
                assert!(crate::common::get(&world.env, cold.tree, &key(row)).is_some());
            }
            let absent = cold.leaves + 10 - world.env.pool().stats().misses;
            let (keys, reads, pages) = cold.scan(&world, whole.clone(), is_ascending, usize::MAX);
            assert_eq!(keys.len() as u32, ROWS);
            let found = format!("{reads} reads, {pages} pages, {absent} absent; cold {most_reads} reads");
            assert!(absent > cold.leaves / 8 && absent < cold.leaves * 7 / 8, "{found}");
            assert!(reads <= most_reads, "{found}");
            assert!(pages as f64 / reads as f64 >= bytes_by_a_read, "{found}");
        }
    }
}

#[test]
fn a_check_reads_many_leaves_at_a_time_and_each_once() {
    let cold = Cold::new();
    let world = cold.world(FRAMES);
    let before = cold.counts();
    world.assert_sound(&[cold.tree], &[]);
    let [reads, pages] = cold.counts();
    let (reads, pages) = (reads - before[0], pages - before[1]);
    assert!(pages < cold.leaves + 40, "{pages} pages of {} leaves", cold.leaves);
    assert!(reads < cold.leaves / 6, "{reads} reads for {} leaves", cold.leaves);
}

#[test]
fn the_absent_page_of_a_key_is_the_next_one_that_a_read_brings_in() {
    let cold = Cold::new();
    let world = cold.world(FRAMES);
    for n in (0..ROWS).step_by(97) {
        let before = cold.counts()[1];
        let absent = cold.tree.absent_page(&world.env, &key(n));
        assert_eq!(cold.counts()[1], before, "nothing was read");
        assert!(crate::common::get(&world.env, cold.tree, &key(n)).is_some());
        let read = cold.counts()[1] - before;
        assert_eq!(absent.is_some(), read > 0, "row {n}: {absent:?}");
        if n > 0 && read > 0 {
            // The inner pages are resident, or are the absent page.
            assert!(cold.store.take_announcements().read.contains(&absent.expect("absent").0), "row {n}");
        }
        assert_eq!(cold.tree.absent_page(&world.env, &key(n)), None);
    }
}

/// With these few frames the pool reads one page at a time.
#[test]
fn scans_and_checks_with_few_frames_announce_each_later_leaf_once() {
    const FEW_FRAMES: usize = 400;
    let cold = Cold::new();
    let sound = |announced: Announcements, how: &str| {
        let found = format!(
            "{} unannounced, {} ahead, {} calls: {how}",
            announced.read_unannounced, announced.most_ahead, announced.calls
        );
        // Few leaves at the beginning, and the first leaf of each parent, are read without an announcement.
        assert!(announced.read_unannounced < cold.leaves / 10, "{found}");
        assert!(announced.most_ahead > 150 && announced.most_ahead <= 256 + 8, "{found}");
        assert!((announced.calls as u64) < cold.leaves / 10, "{found}");
        let again = announced.pages.values().filter(|&&times| times > 1).count() as u64;
        assert!(again < cold.leaves / 20, "{again} pages were announced again: {how}");
    };
    for is_ascending in [true, false] {
        let world = cold.world(FEW_FRAMES);
        assert_eq!(world.env.pool().read_ahead_pages(), 1);
        drop(cold.store.take_announcements());
        let whole = Scan::new(cold.tree, Unbounded, Unbounded);
        let (keys, _, pages) = cold.scan(&world, whole, is_ascending, usize::MAX);
        assert_eq!(keys.len() as u32, ROWS);
        assert!(pages < cold.leaves + 40, "{pages} pages of {} leaves", cold.leaves);
        sound(cold.store.take_announcements(), if is_ascending { "forward" } else { "backward" });
    }
    let world = cold.world(FEW_FRAMES);
    drop(cold.store.take_announcements());
    world.assert_sound(&[cold.tree], &[]);
    sound(cold.store.take_announcements(), "check");
}

#[test]
fn a_scan_announces_no_more_leaves_than_it_has_read_and_none_beyond_its_range() {
    let cold = Cold::new();
    for is_ascending in [true, false] {
        let (low, high) = (ROWS / 2, ROWS / 2 + 400);
        let bounded = Scan::new(cold.tree, Included(&key(low)), Excluded(&key(high)));
        drop(cold.store.take_announcements());
        let (keys, ..) = cold.scan(&cold.world(400), bounded, is_ascending, usize::MAX);
        assert_eq!(keys.len(), 400);
        let announced = cold.store.take_announcements();
        let beyond = announced.pages.keys().filter(|page| !announced.read.contains(page)).count();
        assert!(!announced.pages.is_empty());
        assert!(beyond <= 8, "{beyond} announced pages were not read");

        let open = Scan::new(cold.tree, Included(&key(low)), Excluded(&key(ROWS)));
        let (_, _, pages) = cold.scan(&cold.world(400), open, is_ascending, 100);
        let announced = cold.store.take_announcements();
        let ahead = announced.pages.keys().filter(|page| !announced.read.contains(page)).count() as u64;
        assert!(ahead <= pages, "{ahead} pages ahead of {pages}");
    }
}

#[test]
fn a_short_scan_and_a_bounded_one_read_no_unneeded_leaf() {
    let cold = Cold::new();
    for is_ascending in [true, false] {
        let from_the_middle = if is_ascending {
            Scan::new(cold.tree, Included(&key(ROWS / 2)), Unbounded)
        } else {
            Scan::new(cold.tree, Unbounded, Excluded(&key(ROWS / 2)))
        };
        let (keys, _, pages) = cold.scan(&cold.world(FRAMES), from_the_middle, is_ascending, 3);
        assert!(keys.len() >= 3 && pages <= cold.height + 1, "{pages} pages for {} rows", keys.len());

        let (low, high) = (ROWS / 2, ROWS / 2 + 400);
        let bounded = Scan::new(cold.tree, Included(&key(low)), Excluded(&key(high)));
        let (keys, reads, pages) = cold.scan(&cold.world(FRAMES), bounded, is_ascending, usize::MAX);
        assert_eq!(keys.len(), 400);
        let leaves = 400 * cold.leaves / u64::from(ROWS);
        // The range begins and ends in the middle of leaves, and may be below two parents.
        assert!(pages <= leaves + 2 + cold.height, "{pages} pages for {leaves} leaves");
        assert!(reads < pages / 2, "{reads} reads of {pages} pages");
    }
}

/// A scan larger than the pool does not evict pages that are in use. A miss of a tree fixes the page and then
/// peeks at it, which counts as one use, not two.
#[test]
fn a_scan_of_a_tree_larger_than_the_pool_leaves_the_leaves_that_are_used() {
    let cold = Cold::new();
    let frames = 400; // With this size there is no read-ahead: one page at a time.
    let world = cold.world(frames);
    let hot = || Scan::new(cold.tree, Unbounded, Excluded(&key(ROWS / 5)));
    for _ in 0..4 {
        cold.scan(&world, hot(), true, usize::MAX);
    }
    let hot_leaves = cold.leaves / 5;
    for _ in 0..2 {
        let rest = Scan::new(cold.tree, Included(&key(ROWS / 5)), Unbounded);
        let (_, _, pages) = cold.scan(&world, rest, true, usize::MAX);
        assert!(pages > cold.leaves / 2, "{pages} pages of the rest were read");
    }
    let (_, _, pages) = cold.scan(&world, hot(), true, usize::MAX);
    assert!(pages < hot_leaves / 4, "{pages} of {hot_leaves} leaves that were used had left");
}

#[test]
fn a_large_value_is_read_many_pages_at_a_time_and_freed_almost_unread() {
    let cold = Cold::new();
    let large: Vec<u8> = (0..9_000_000_u32).map(|i| (i % 251) as u8).collect();
    let whole = cold.world(FRAMES);
    let mut txn = whole.txn(2);
    txn.put(cold.tree, b"large", &large);
    txn.commit();
    let chain = whole.assert_sound(&[cold.tree], &[]).trees[0].overflow_pages;
    assert_eq!(chain, 9_000_000_u64.div_ceil(4048));
    whole.env.pool().flush_all().expect("flushed");

    let world = cold.world(FRAMES);
    let before = cold.counts();
    assert!(crate::common::get(&world.env, cold.tree, b"large").as_deref() == Some(&large[..]));
    let [reads, pages] = cold.counts();
    let (reads, pages) = (reads - before[0], pages - before[1]);
    assert_eq!(pages, chain + cold.height, "each page once");
    assert!(reads <= chain / 20 + 3 * 2 + cold.height, "{reads} reads for {chain} pages");

    let world = cold.world(FRAMES);
    let before = cold.counts();
    let mut txn = world.txn(3);
    let removed = txn.with(&mut NoLocks, |env, ctx| cold.tree.remove(env, ctx, b"large", None));
    assert_eq!(removed.expect("removes"), Outcome::Done(true));
    txn.commit();
    let pages = cold.counts()[1] - before[1];
    assert!(pages <= cold.height + 3 + 1, "{pages} pages: three runs and a map besides the way");
    assert_eq!(world.assert_sound(&[cold.tree], &[]).trees[0].overflow_pages, 0);
}

/// A rollback frees whole runs, even if only a part of the last run's records was written.
#[test]
fn a_large_value_that_is_taken_back_frees_all_of_its_pages() {
    let (world, tree) = World::new(PAGE, 4_000);
    let value = vec![3; 5_000_000];
    for records in 0..90 {
        let mut txn = world.txn(2);
        world.log.break_after(records);
        let put = txn.with(&mut NoLocks, |env, ctx| tree.put(env, ctx, b"large", &value, PutMode::Put, None));
        world.log.repair();
        if put.is_ok() {
            assert!(records > 5_000_000 / 4096 / 16, "{records} records");
            txn.roll_back();
            world.assert_sound(&[tree], &[]);
            return;
        }
        let undo = txn.undo.iter().count();
        assert!(undo <= 2, "{undo} entries for two runs");
        txn.roll_back();
        world.assert_sound(&[tree], &[]);
    }
    panic!("more than 90 records");
}
