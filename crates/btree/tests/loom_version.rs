//! Models of snapshots concurrent with a committing transaction, with the production steps.
//!
//! - A snapshot sees all of a transaction or nothing of it, in any order of opening, reading and commit
//!   (STATUS-1, VERSION-3; V2 of the hazards). A transaction that had committed before is visible entirely.
//! - The same holds while the opening turns versions on and visits the transaction (VERSION-1).
//! - The same holds while a thread drops the versions that no snapshot needs (VERSION-6, SNAP-1), and while
//!   another opener advances the clock.
//! - A snapshot that is opened while versions are turned off has images of all later changes (SNAP-2).
//! - A snapshot sees no intermediate state of a transaction while versions are turned off and on (VERSION-7).
//! - A snapshot sees the state of one moment while a sparse period begins and ends, also of rows that change
//!   without an image (SPARSE-1 to SPARSE-3).
//!
//! A row of the leaf and the version of its latch are one atomic word. A reader copies the word, looks up
//! versions, and validates the word. No write of the reader orders later writers (VERSION-2).
#![cfg(loom)]

use azekura_base::{Lsn, PageId, TreeId};
use azekura_btree::version_model::{
    RowAt, backfill_changes, backfill_inserts, before_insert, before_update, begin_sparse, change_in_place,
    prune, sees_inserted, turn_off, value_before,
};
use azekura_btree::{SnapshotId, UndoLog, Versions};
use loom::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

const KEYS: [&[u8]; 2] = [b"a", b"b"];

struct Store {
    versions: Versions,
    /// One word per row. The lowest bit is set if the leaf has the row. The word changes with each change of
    /// the row.
    leaf: [AtomicU64; 2],
    /// The undo log, and whether its transaction is open.
    undo: Mutex<(UndoLog, bool)>,
}

impl Store {
    fn new() -> Self {
        Self {
            versions: Versions::new(u64::MAX),
            leaf: std::array::from_fn(|_| AtomicU64::new(0)),
            undo: Mutex::new((UndoLog::new(), true)),
        }
    }

    /// Commits another transaction, if versions are on: the next opener then advances the clock.
    fn commit_another(&self) {
        let mut undo = UndoLog::new();
        before_insert(&self.versions, &mut undo, b"other");
        self.versions.commit(&mut undo, Lsn(1));
    }

    fn insert(&self, row: usize) {
        let mut undo = self.undo.lock().expect("not poisoned");
        before_insert(&self.versions, &mut undo.0, KEYS[row]);
        self.leaf[row].store(1, Release); // Release: the end of the exclusive latch
    }

    fn update(&self, row: usize) {
        let mut undo = self.undo.lock().expect("not poisoned");
        before_update(&self.versions, &mut undo.0, KEYS[row]);
        self.leaf[row].fetch_add(2, Release); // Release: as in `insert`
    }

    fn commit(&self) {
        let mut undo = self.undo.lock().expect("not poisoned");
        undo.1 = false;
        self.versions.commit(&mut undo.0, Lsn(1));
    }

    fn open(&self) -> SnapshotId {
        let visit = |versions: &Versions| {
            let mut undo = self.undo.lock().expect("not poisoned");
            if undo.1 && !undo.0.is_empty() {
                backfill_inserts(versions, &mut undo.0);
            }
            Ok::<(), std::convert::Infallible>(())
        };
        self.versions.open(visit, || Lsn(0), || TreeId(2)).expect("infallible")
    }

    fn read(&self, snapshot: &SnapshotId, row: usize) -> bool {
        loop {
            let leaf = self.leaf[row].load(Acquire); // Acquire: pairs with the Release of writers
            let sees = leaf & 1 == 1 && sees_inserted(&self.versions, snapshot, KEYS[row]);
            fence(Acquire); // Acquire: the validation of an optimistic latch
            if self.leaf[row].load(Relaxed) == leaf {
                return sees;
            }
            thread::yield_now();
        }
    }
}

/// Runs a transaction that writes two rows and commits, while a snapshot is opened and reads both.
fn a_snapshot_beside_a_transaction(versions_are_on: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let store = Arc::new(Store::new());
        let first = versions_are_on.then(|| store.open());
        store.commit_another();
        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                store.insert(0);
                store.insert(1);
                store.commit();
            }
        });
        let snapshot = store.open();
        // From the end to the beginning: a torn transaction would show its later row without its earlier one,
        // or the reverse.
        let seen = [store.read(&snapshot, 0), store.read(&snapshot, 1)];
        assert_eq!(seen[0], seen[1], "half a transaction");
        assert_eq!(store.read(&snapshot, 0), seen[0], "the answer changed");
        writer.join().expect("no panic");
        assert_eq!([store.read(&snapshot, 0), store.read(&snapshot, 1)], seen, "after the commit");
        if let Some(first) = first {
            assert_eq!(store.read(&first, 0), false, "opened before the transaction");
        }
        let later = store.open();
        assert_eq!([store.read(&later, 0), store.read(&later, 1)], [true; 2], "opened after the commit");
    });
}

#[test]
fn v2_a_snapshot_sees_all_of_a_transaction_or_nothing() {
    a_snapshot_beside_a_transaction(true);
}

#[test]
fn v4_the_first_opener_visits_a_transaction_or_the_transaction_knows() {
    a_snapshot_beside_a_transaction(false);
}

/// A transaction that writes two rows is visible entirely or not at all, while versions are dropped.
#[test]
fn version_6_a_snapshot_beside_a_sweep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // This turns versions on.
        store.commit_another();
        store.insert(0);
        store.insert(1);
        let pruner = thread::spawn({
            let store = Arc::clone(&store);
            move || prune(&store.versions)
        });
        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || store.commit()
        });
        let snapshot = store.open();
        let first = store.read(&snapshot, 0);
        let second = store.read(&snapshot, 1);
        assert_eq!(first, second, "all of the transaction or nothing");
        writer.join().expect("no panic");
        pruner.join().expect("no panic");
    });
}

/// Two threads open snapshots while a transaction commits. Both see all of the transaction or nothing. The
/// second snapshot of a thread sees at least the transactions of its first one.
#[test]
fn version_8_two_openers_beside_a_commit() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // This turns versions on.
        store.commit_another();
        store.insert(0);
        store.insert(1);
        let reads = |store: &Store| {
            let snapshot = store.open();
            let seen = [store.read(&snapshot, 0), store.read(&snapshot, 1)];
            assert_eq!(seen[0], seen[1], "half a transaction");
            store.versions.close(&snapshot);
            seen[0]
        };
        let reader = thread::spawn({
            let store = Arc::clone(&store);
            move || reads(&store)
        });
        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || store.commit()
        });
        let first = reads(&store);
        assert!(first <= reads(&store), "a commit that was seen is seen later");
        writer.join().expect("no panic");
        reader.join().expect("no panic");
        assert!(reads(&store), "opened after the commit");
    });
}

/// A snapshot is opened while versions are turned off. A transaction that begins later is hidden from it.
#[test]
fn snap_2_an_opening_beside_the_end_of_versions() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // This turns versions on.
        let switch = thread::spawn({
            let store = Arc::clone(&store);
            move || turn_off(&store.versions)
        });
        let snapshot = store.open();
        store.insert(0);
        store.commit();
        assert!(!store.read(&snapshot, 0), "opened before the transaction");
        switch.join().expect("no panic");
        assert!(!store.read(&snapshot, 0), "opened before the transaction");
    });
}

/// A row that a transaction inserted, and updates while versions are turned off and a snapshot is opened, is
/// hidden from that snapshot.
#[test]
fn version_7_an_update_beside_the_end_of_versions() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // This turns versions on.
        store.insert(0);
        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || store.update(0)
        });
        turn_off(&store.versions);
        let snapshot = store.open();
        assert!(!store.read(&snapshot, 0), "an intermediate state");
        writer.join().expect("no panic");
        assert!(!store.read(&snapshot, 0), "an intermediate state, later");
    });
}

/// A leaf with one row. The word of the leaf is its page LSN and the value of the row.
struct Counter {
    versions: Versions,
    leaf: AtomicU64,
    /// The undo log of the transaction that may be active, and whether it is open. Its mutex is also the lock
    /// of the row.
    undo: Mutex<(UndoLog, bool)>,
}

impl Counter {
    fn new() -> Self {
        Self {
            versions: Versions::new(u64::MAX),
            leaf: AtomicU64::new(1),
            undo: Mutex::new((UndoLog::new(), true)),
        }
    }

    fn row(page_lsn: u64) -> RowAt<'static> {
        RowAt { key: KEYS[0], page: PageId(2), page_lsn: Lsn(page_lsn) }
    }

    /// Adds one to the row.
    fn add(&self, undo: &mut UndoLog) {
        let value = self.leaf.load(Relaxed); // Relaxed: only the writer that holds the row changes it
        change_in_place(&self.versions, undo, Self::row(value), &value.to_le_bytes(), || {
            self.leaf.store(value + 1, Release); // Release: the end of the exclusive latch
            Lsn(value + 1)
        });
    }

    /// Adds one in a transaction that no opener visits.
    fn add_and_commit(&self) {
        let mut undo = UndoLog::new();
        self.add(&mut undo);
        self.versions.commit(&mut undo, Lsn(1));
    }

    fn open(&self) -> SnapshotId {
        let visit = |versions: &Versions| {
            let mut undo = self.undo.lock().expect("not poisoned");
            if undo.1 && !undo.0.is_empty() {
                backfill_changes(versions, &mut undo.0);
            }
            Ok::<(), std::convert::Infallible>(())
        };
        self.versions.open(visit, || Lsn(0), || TreeId(2)).expect("infallible")
    }

    fn read(&self, snapshot: &SnapshotId) -> u64 {
        loop {
            let leaf = self.leaf.load(Acquire); // Acquire: pairs with the Release of writers
            let before = value_before(&self.versions, snapshot, Self::row(leaf));
            fence(Acquire); // Acquire: the validation of an optimistic latch
            if self.leaf.load(Relaxed) == leaf {
                return before.map_or(leaf, |value| u64::from_le_bytes(value.try_into().expect("8 bytes")));
            }
            thread::yield_now();
        }
    }

    /// Changes the row twice in a transaction, and commits it.
    fn transaction(&self) {
        for _ in 0..2 {
            self.add(&mut self.undo.lock().expect("not poisoned").0);
        }
        let mut undo = self.undo.lock().expect("not poisoned");
        undo.1 = false;
        self.versions.commit(&mut undo.0, Lsn(1));
    }
}

/// A snapshot is opened while a transaction changes a row without an image: the snapshot sees all of the
/// transaction or nothing, and a snapshot that was opened before the period sees its own state.
#[test]
fn sparse_1_an_opening_beside_a_transaction_without_images() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let counter = Arc::new(Counter::new());
        let first = counter.open(); // This turns versions on.
        begin_sparse(&counter.versions);
        counter.add_and_commit(); // This stores the image of 1, and marks the row.
        let writer = thread::spawn({
            let counter = Arc::clone(&counter);
            move || counter.transaction()
        });
        let snapshot = counter.open();
        let seen = counter.read(&snapshot);
        assert!(seen == 2 || seen == 4, "an intermediate state: {seen}");
        assert_eq!(counter.read(&first), 1, "opened before");
        writer.join().expect("no panic");
        assert_eq!((counter.read(&snapshot), counter.read(&first)), (seen, 1), "after the commit");
        assert_eq!(counter.read(&counter.open()), 4, "opened after the commit");
    });
}

/// A sparse period begins while a snapshot is opened and transactions change a row.
#[test]
fn sparse_2_the_begin_of_a_period_beside_an_opening() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let counter = Arc::new(Counter::new());
        let first = counter.open(); // This turns versions on.
        counter.add_and_commit();
        let writer = thread::spawn({
            let counter = Arc::clone(&counter);
            move || {
                begin_sparse(&counter.versions);
                counter.add_and_commit();
                counter.transaction();
            }
        });
        let snapshot = counter.open();
        let seen = counter.read(&snapshot);
        assert!(matches!(seen, 2 | 3 | 5), "an intermediate state: {seen}");
        writer.join().expect("no panic");
        assert_eq!((counter.read(&snapshot), counter.read(&first)), (seen, 1), "later");
    });
}
