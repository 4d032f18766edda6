//! The lock table on a machine. Its locks are not lock-free. The claim is that intents on a table delay only
//! threads that lock the whole table, whichever thread stops forever (hazard G10). Also tests schedules of
//! grants, upgrades and deadlocks.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{Lsn, TreeId, TxnId};
use azekura_lock::{KeyMode, KeyRef, LockError, LockOptions, LockTable, TableMode, TxnLocks};
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Failure, Scene, at_random, exhaust, stop_everywhere_under};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

const TREE: TreeId = TreeId(0);
const KEY: KeyRef<'static> = KeyRef::Key(b"k");
const OTHER: KeyRef<'static> = KeyRef::Key(b"j");

fn table(stripes: usize) -> Arc<LockTable> {
    Arc::new(LockTable::new(LockOptions { stripes, dependency_slots: 1, seed: 1, ..LockOptions::default() }))
}

/// A transaction's use of its locks.
type Work = fn(&LockTable, &mut TxnLocks);

/// Three threads with a transaction each, all begun before the threads run. Thread 0 does `first` three
/// times, the others do `others`.
fn transactions(first: Work, others: Work) -> Scene {
    let table = table(64);
    let mut scene = Scene::new();
    for thread in 0..3 {
        let (mut locks, table) = (table.begin(TxnId(thread + 1)), Arc::clone(&table));
        let work = if thread == 0 { first } else { others };
        scene.thread(move || {
            for turn in 0..3 {
                work(&table, &mut locks);
                table.release(&mut locks, Some(Lsn(turn + 1)));
                table.begin_again(&mut locks, TxnId(10 * (turn + 1) + thread));
            }
            table.release_all(locks, None);
        });
    }
    let left = Arc::clone(&table);
    scene.check(move || match left.stats().locks {
        0 => Ok(()),
        locks => Err(format!("{locks} locks are left")),
    });
    scene
}

fn lock(table: &LockTable, locks: &mut TxnLocks, mode: TableMode) {
    table.lock_table(locks, TREE, mode).unwrap();
}

const INTENT: Work = |table, locks| {
    lock(table, locks, TableMode::IS);
    lock(table, locks, TableMode::IX);
};
const WHOLE: Work = |table, locks| lock(table, locks, TableMode::S);
const KEY_WRITE: Work = |table, locks| {
    table.lock_key(locks, TREE, KEY, KeyMode::UPDATE).unwrap();
};
const OTHER_READ: Work = |table, locks| {
    table.lock_key(locks, TREE, OTHER, KeyMode::READ).unwrap();
};

#[test]
fn g10_a_stop_with_an_intent_blocks_no_intent_and_with_a_key_no_other_stripe() {
    let stopped = stop_everywhere_under(1..40, || transactions(INTENT, INTENT)).unwrap();
    assert!(stopped.accesses >= 20 && stopped.was_in("table.rs"), "{stopped:?}");
    stop_everywhere_under(1..40, || transactions(KEY_WRITE, OTHER_READ)).unwrap();
}

#[test]
fn g10_a_stop_with_an_intent_blocks_table_locks_and_with_a_key_its_lock() {
    for (first, others) in [(INTENT, WHOLE), (KEY_WRITE, KEY_WRITE)] {
        let why = stop_everywhere_under(1..40, || transactions(first, others)).unwrap_err();
        assert!(why.contains("no thread can continue"), "{why}");
    }
}

/// Threads that add to a number under a lock acquired by `acquire`. Deadlock victims are counted.
fn adding(
    threads: u64,
    acquire: impl Fn(&LockTable, &mut TxnLocks, u64) -> Result<(), LockError> + Copy + Send + 'static,
) -> Scene {
    let (table, number, victims) = (table(1), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut scene = Scene::new();
    for thread in 0..threads {
        let (table, number, victims) = (Arc::clone(&table), Arc::clone(&number), Arc::clone(&victims));
        scene.thread(move || {
            let mut locks = table.begin(TxnId(thread + 1));
            match acquire(&table, &mut locks, thread) {
                // A load and a store: with two threads in the lock, one addition could be lost.
                Ok(()) => number.store(number.load(Relaxed) + 1, Relaxed),
                Err(LockError::Deadlock { .. }) => {
                    victims.fetch_add(1, Relaxed);
                }
                Err(other) => panic!("{other}"),
            }
            table.release_all(locks, None);
        });
    }
    scene.check(move || {
        let (added, gave_way) = (number.load(Relaxed), victims.load(Relaxed));
        let left = table.stats().locks;
        if added + gave_way == threads && added > 0 && left == 0 {
            Ok(())
        } else {
            Err(format!("{added} added, {gave_way} gave way, {left} locks are left"))
        }
    });
    scene
}

fn search(scene: impl Fn() -> Scene) -> Result<(), Box<Failure>> {
    exhaust(1, &scene)?;
    at_random(300, 1, &scene)
}

#[test]
fn writers_of_a_key_are_serialized() {
    search(|| adding(3, |table, locks, _| table.lock_key(locks, TREE, KEY, KeyMode::UPDATE).map(drop)))
        .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn two_readers_that_upgrade_have_one_deadlock_victim() {
    search(|| {
        adding(2, |table, locks, _| {
            table.lock_key(locks, TREE, KEY, KeyMode::READ)?;
            table.lock_key(locks, TREE, KEY, KeyMode::UPDATE).map(drop)
        })
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// Locks KEY by a range that also contains OTHER, and waits for KEY if necessary.
fn scan(table: &LockTable, locks: &mut TxnLocks) -> Result<(), LockError> {
    let keys = || std::iter::once(&b"k"[..]);
    while table.try_lock_range(locks, TREE, (b"a", Some(b"z")), keys(), KeyMode::SCAN).is_err() {
        table.lock_key(locks, TREE, KEY, KeyMode::SCAN)?;
    }
    Ok(())
}

#[test]
fn a_range_scan_excludes_writers_and_two_upgrades_have_one_victim() {
    for (threads, scans) in [(2, 2), (2, 1), (3, 1)] {
        search(|| {
            adding(threads, move |table, locks, thread| {
                if thread < scans {
                    scan(table, locks)?;
                }
                table.lock_key(locks, TREE, KEY, KeyMode::UPDATE).map(drop)
            })
        })
        .unwrap_or_else(|failure| panic!("{threads} threads, {scans} scans: {failure}"));
    }
}

#[test]
fn a_deadlock_has_one_victim() {
    const KEYS: [KeyRef<'static>; 3] = [KEY, OTHER, KeyRef::End];
    search(|| {
        adding(3, |table, locks, thread| {
            for turn in [thread, thread + 1] {
                table.lock_key(locks, TREE, KEYS[turn as usize % 3], KeyMode::UPDATE)?;
            }
            // Only two threads share each key, so a lock of its own protects the number.
            table.lock_key(locks, TREE, KeyRef::Key(b"number"), KeyMode::UPDATE).map(drop)
        })
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_table_that_is_locked_whole_has_no_intents_beside_it() {
    search(|| {
        adding(2, |table, locks, thread| {
            let mode = if thread == 0 { TableMode::IX } else { TableMode::X };
            table.lock_table(locks, TREE, mode).map(drop)
        })
    })
    .unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn a_lock_that_is_not_taken_is_missed_and_the_schedule_is_made_small() {
    let failure = search(|| {
        adding(2, |table, locks, thread| {
            let mode = if thread == 0 { KeyMode::READ } else { KeyMode::UPDATE };
            let key = if thread == 0 { OTHER } else { KEY };
            table.lock_key(locks, TREE, key, mode).map(drop)
        })
    })
    .unwrap_err();
    assert!(failure.reason.contains("1 added") && failure.preemptions.len() == 1, "{failure}");
    assert!(failure.to_string().contains("lock_table.rs"), "{failure}");
}
