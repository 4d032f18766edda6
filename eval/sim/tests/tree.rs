//! The B+tree on a machine. Claims of `azekura_btree::descent`: a reader holds no latch, so it may stop
//! forever at any step without blocking a thread (hazard G10). A writer that stops blocks only threads that
//! reach the nodes that it has latched: one leaf for a change in place, the leaf and its parent for a split.
//! Also tests schedules of splits against readers (HOP-1, HOP-3).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::durable::NoLog;
use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
use azekura_base::{DurableLog, LogFailed, Lsn, TreeId, TxnId};
use azekura_btree::{
    Env, EnvOptions, Log, NoLocks, Outcome, PutMode, Tree, UndoLog, WriteCtx, Written, verify,
};
use azekura_buffer::{BufferPool, PoolOptions};
use azekura_sim::explore::{Scene, at_random, exhaust, stop_everywhere_under};
use azekura_sim::{LineAllocator, Profile, Simulation};
use azekura_wal::{AppendError, LogBufferId, Order};
use std::rc::Rc;
use std::sync::Arc;

mod common;

use common::Zeroes;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

const PAGE: usize = 4096;
/// Number of initial keys, doubled: even keys exist from the beginning, odd ones may be inserted.
const KEYS: u64 = 40;
/// Bytes of a value: large, so that a leaf holds few records.
const VALUE: usize = 500;

/// A log that only counts records, so that it never waits.
#[derive(Debug)]
struct Counts(AtomicU64);

impl DurableLog for Counts {
    fn next_lsn(&self) -> Lsn {
        Lsn(self.0.load(SeqCst))
    }
    fn durable_lsn(&self) -> Lsn {
        Lsn(self.0.load(SeqCst) - 1)
    }
    fn make_durable(&self, _lsn: Lsn) -> Result<(), LogFailed> {
        Ok(())
    }
}

impl Log for Counts {
    fn append(&self, _worker: LogBufferId, _body: &[u8], _: Order) -> Result<Lsn, AppendError> {
        Ok(Lsn(self.0.fetch_add(1, SeqCst)))
    }
}

/// A tree of a root and some leaves, all in the pool.
struct Store {
    env: Env,
    tree: Tree,
}

impl Store {
    fn new() -> Arc<Self> {
        let options = PoolOptions { page_size: PAGE, capacity_bytes: 64 * PAGE, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::new(Zeroes), Arc::new(NoLog)).unwrap();
        let env = Env::new(Arc::new(pool), Arc::new(Counts(AtomicU64::new(1))), EnvOptions::default());
        let tree = env.format(LogBufferId::from_index(0)).unwrap();
        let store = Self { env, tree };
        (0..KEYS).step_by(2).for_each(|key| store.put(key, PutMode::Insert));
        Arc::new(store)
    }

    fn put(&self, key: u64, mode: PutMode) {
        let (mut undo, log_buffer) = (UndoLog::new(), LogBufferId::from_index(0));
        let mut ctx = WriteCtx { txn: TxnId(1), log_buffer, undo: &mut undo, locks: &mut NoLocks };
        let value = [key as u8; VALUE];
        let written = self.tree.put(&self.env, &mut ctx, &key.to_be_bytes(), &value, mode, None).unwrap();
        assert!(matches!(written, Outcome::Done(Written::Inserted | Written::Replaced)), "{written:?}");
    }

    fn remove(&self, key: u64) {
        let (mut undo, log_buffer) = (UndoLog::new(), LogBufferId::from_index(0));
        let mut ctx = WriteCtx { txn: TxnId(1), log_buffer, undo: &mut undo, locks: &mut NoLocks };
        let removed = self.tree.remove(&self.env, &mut ctx, &key.to_be_bytes(), None).unwrap();
        assert_eq!(removed, Outcome::Done(true), "{key} was there");
    }

    fn has(&self, key: u64) -> bool {
        let mut value = Vec::new();
        let is_there = self.tree.get(&self.env, &key.to_be_bytes(), &mut value).unwrap();
        assert!(!is_there || value == [key as u8; VALUE], "{key} has another's value");
        is_there
    }

    /// Reads all initial keys.
    fn read_all(&self) {
        (0..KEYS).step_by(2).for_each(|key| assert!(self.has(key), "{key} is not found"));
    }

    fn check(&self) -> Result<(), String> {
        let report =
            verify(&self.env, &[self.tree], &[], &mut |_, _| {}).map_err(|error| error.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.findings)) }
    }
}

impl Store {
    fn leaves(&self) -> u64 {
        verify(&self.env, &[self.tree], &[], &mut |_, _| {}).unwrap().trees[0].leaf_pages
    }
}

/// Returns the number of leaves that are split off when threads repeatedly change one record each, `apart`
/// keys from each other.
fn new_leaves(threads: u64, apart: u64) -> u64 {
    let store = Store::new();
    let before = store.leaves();
    let mut simulation = Simulation::new(Rc::new(Profile::one_socket()), threads as usize, 1);
    for thread in 0..threads {
        let store = Arc::clone(&store);
        simulation.thread(move || (0..400).for_each(|_| store.put(thread * apart, PutMode::Replace)));
    }
    simulation.run().unwrap();
    store.check().unwrap();
    store.read_all();
    store.leaves() - before
}

#[test]
fn leaves_with_contending_writers_are_split_and_others_are_not() {
    assert_eq!((new_leaves(1, 2), new_leaves(2, KEYS - 2)), (0, 0), "nobody meets anybody");
    let new = new_leaves(4, 2);
    assert!((3..=6).contains(&new), "four records of a leaf with seven: {new} new leaves");
}

#[test]
fn writers_of_one_record_split_its_leaf_once() {
    let store = Store::new();
    let before = store.leaves();
    let mut simulation = Simulation::new(Rc::new(Profile::one_socket()), 4, 1);
    for _ in 0..4 {
        let store = Arc::clone(&store);
        simulation.thread(move || (0..1000).for_each(|_| store.put(4, PutMode::Replace)));
    }
    simulation.run().unwrap();
    store.check().unwrap();
    assert!(
        store.leaves() - before <= 3,
        "seven records: halved three times at most, not {before} to {}",
        store.leaves()
    );
}

/// The work of a thread.
type Work = fn(&Store);

fn scene(first: Work, others: [Work; 2]) -> Scene {
    let store = Store::new();
    let mut scene = Scene::new();
    for work in [first, others[0], others[1]] {
        let store = Arc::clone(&store);
        scene.thread(move || work(&store));
    }
    scene.check(move || store.check());
    scene
}

const READ: Work = Store::read_all;
const CHANGE_FIRST: Work = |store| store.put(0, PutMode::Replace);
const READ_FIRST: Work = |store| assert!(store.has(0));
const CHANGE_LAST: Work = |store| store.put(KEYS - 2, PutMode::Replace);
const READ_LAST: Work = |store| assert!(store.has(KEYS - 2));
const READ_LAST_OFTEN: Work = |store| (0..10).for_each(|_| READ_LAST(store));
/// Inserts more records than fit into the first leaf.
const SPLIT_FIRST: Work = |store| [1, 3, 5, 7, 9].iter().for_each(|&key| store.put(key, PutMode::Insert));
const SPLIT_LAST: Work = |store| (1..6).for_each(|more| store.put(KEYS - 2 + more, PutMode::Insert));
/// Reads records of the leaf that [`SPLIT_FIRST`] splits: some stay, others move to the new leaf.
const READ_SPLIT: Work = |store| {
    for key in [2, 6, 8, 12] {
        assert!(store.has(key), "{key} is not found");
    }
};
/// Empties leaves in the middle so that they are merged, then inserts records at the end, where the freed
/// pages become leaves.
const MERGE_AND_REUSE: Work = |store| {
    (10..30).step_by(2).filter(|key| !KEPT.contains(key)).for_each(|key| store.remove(key));
    (KEYS..KEYS + 12).for_each(|key| store.put(key, PutMode::Insert));
};
/// Records that are not removed, but may move.
const KEPT: [u64; 3] = [14, 20, 26];
const READ_KEPT: Work = |store| {
    for key in KEPT {
        assert!(store.has(key), "{key} is not found");
    }
};

#[test]
fn the_tree_has_leaves_enough_for_these_tests() {
    let store = Store::new();
    let leaves =
        |store: &Store| verify(&store.env, &[store.tree], &[], &mut |_, _| {}).unwrap().trees[0].leaf_pages;
    let before = leaves(&store);
    SPLIT_FIRST(&store);
    assert!(before >= 3 && leaves(&store) > before, "{before} leaves, then {}", leaves(&store));
    assert_eq!(store.tree.id, TreeId(0));
}

#[test]
fn g10_a_stopped_reader_blocks_no_writer_no_split_and_no_reader() {
    let stopped = stop_everywhere_under(1..3, || scene(READ, [SPLIT_FIRST, CHANGE_LAST])).unwrap();
    assert!(stopped.accesses >= 60 && stopped.was_in("page_table.rs"), "{stopped:?}");
}

#[test]
fn g10_a_writer_stopped_in_a_leaf_blocks_no_access_to_other_leaves() {
    let stopped =
        stop_everywhere_under(1..10, || scene(CHANGE_FIRST, [READ_LAST_OFTEN, CHANGE_LAST])).unwrap();
    assert!(stopped.accesses >= 10, "{stopped:?}");
}

#[test]
fn g10_a_stopped_writer_blocks_its_leaf_and_in_a_split_the_parent() {
    for (first, others) in [
        (CHANGE_FIRST, [READ_FIRST, READ_FIRST]),
        (CHANGE_FIRST, [CHANGE_FIRST, READ_LAST]),
        (SPLIT_FIRST, [READ_LAST_OFTEN, READ_LAST]),
    ] {
        let why = stop_everywhere_under(1..10, || scene(first, others)).unwrap_err();
        assert!(why.contains("no thread can continue"), "{why}");
    }
}

#[test]
fn hop_1_readers_find_every_key_in_schedules_of_splits() {
    let small: fn() -> Scene = || scene(SPLIT_FIRST, [READ_FIRST, READ_LAST]);
    let runs = exhaust(1, small).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(runs > 200, "{runs}");
    // HOP-3: a whole split or merge between any two steps of a reader. Without interruptions, the threads run
    // in the order 1, 2, 0.
    for (reader, writer) in [(READ_SPLIT, SPLIT_FIRST), (READ_KEPT, MERGE_AND_REUSE)] {
        let runs =
            exhaust(1, || scene(READ_LAST, [reader, writer])).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(runs > 200, "{runs}");
    }
    at_random(60, 1, || scene(MERGE_AND_REUSE, [READ_KEPT, READ_KEPT]))
        .unwrap_or_else(|failure| panic!("{failure}"));
    at_random(40, 1, || scene(SPLIT_FIRST, [READ, READ])).unwrap_or_else(|failure| panic!("{failure}"));
    at_random(40, 1, || scene(SPLIT_FIRST, [SPLIT_LAST, READ])).unwrap_or_else(|failure| panic!("{failure}"));
}
