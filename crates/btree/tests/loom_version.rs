//! Models of snapshots beside a committing transaction, run over the shipped steps.
//!
//! - A snapshot sees all of a transaction or nothing of it, in whatever order opening, reading and the commit
//!   come (STATUS-1, VERSION-3; V2 of the hazards), and everything of one that had committed before.
//! - The same while the opening turns versions on and visits the transaction (VERSION-1).
//! - The same while a thread drops the versions that no snapshot needs (VERSION-6).
//! - A snapshot sees no intermediate state of a transaction while versions are turned off and on (VERSION-7).
//!
//! A row of the leaf and its latch are a mutex: a reader that copies, looks for versions and validates sees
//! what one under the mutex sees (VERSION-2).
#![cfg(loom)]

use azekura_base::{Lsn, TreeId};
use azekura_btree::version_model::{
    backfill_inserts, before_insert, before_update, prune, sees_inserted, turn_off,
};
use azekura_btree::{SnapshotId, UndoLog, Versions};
use loom::sync::{Arc, Mutex};
use loom::thread;

const KEYS: [&[u8]; 2] = [b"a", b"b"];

struct Store {
    versions: Versions,
    leaf: [Mutex<bool>; 2],
    /// The undo log, and whether its transaction is open.
    undo: Mutex<(UndoLog, bool)>,
}

impl Store {
    fn new() -> Self {
        Self {
            versions: Versions::new(u64::MAX),
            leaf: std::array::from_fn(|_| Mutex::new(false)),
            undo: Mutex::new((UndoLog::new(), true)),
        }
    }

    fn insert(&self, row: usize) {
        let mut undo = self.undo.lock().expect("not poisoned");
        let mut leaf = self.leaf[row].lock().expect("not poisoned");
        before_insert(&self.versions, &mut undo.0, KEYS[row]);
        *leaf = true;
    }

    fn update(&self, row: usize) {
        let mut undo = self.undo.lock().expect("not poisoned");
        let _leaf = self.leaf[row].lock().expect("not poisoned");
        before_update(&self.versions, &mut undo.0, KEYS[row]);
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
        let leaf = self.leaf[row].lock().expect("not poisoned");
        *leaf && sees_inserted(&self.versions, snapshot, KEYS[row])
    }
}

/// A transaction writes two rows and commits; meanwhile a snapshot is opened and reads both.
fn a_snapshot_beside_a_transaction(versions_are_on: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let store = Arc::new(Store::new());
        let first = versions_are_on.then(|| store.open());
        let writer = thread::spawn({
            let store = Arc::clone(&store);
            move || {
                store.insert(0);
                store.insert(1);
                store.commit();
            }
        });
        let snapshot = store.open();
        // From the end to the beginning: a torn transaction shows as its later row without its earlier one,
        // or the other way round.
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

/// A transaction writes two rows and commits, and a snapshot reads both, while versions are dropped.
#[test]
fn version_6_a_snapshot_beside_a_sweep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(5); // with 3, a sweep without the clock is not noticed
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // versions are on
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

/// A transaction has inserted a row, and updates it while versions are turned off and a snapshot is opened.
#[test]
fn version_7_an_update_beside_the_end_of_versions() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let store = Arc::new(Store::new());
        store.versions.close(&store.open()); // versions are on
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
