//! Every deadlock ends with the youngest transaction as the victim, and only deadlocks have victims.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic, too")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{OTHER, TREE, key, table, until_waiting};
use azekura_base::{TreeId, TxnId};
use azekura_lock::{KeyMode, KeyRef, LockError, LockOptions, LockTable, TableMode, TxnLocks};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Creates a cycle of two transactions: each holds the lock that the other requests. The first one to request
/// waits in a separate thread.
fn cross(
    table: &LockTable,
    mut first: TxnLocks,
    mut second: TxnLocks,
    ask_first: impl FnOnce(&mut TxnLocks) -> Result<(), LockError> + Send,
    ask_second: impl FnOnce(&mut TxnLocks) -> Result<(), LockError>,
) {
    let (old, young) = (first.txn().min(second.txn()), first.txn().max(second.txn()));
    std::thread::scope(|s| {
        let first_txn = first.txn();
        let waiting = s.spawn(move || {
            let asked = ask_first(&mut first);
            assert_eq!(asked.is_err(), first.txn() == young, "the youngest gives way");
            if let Err(LockError::Deadlock { victim, mut cycle }) = asked {
                cycle.sort_unstable();
                assert_eq!((victim, cycle), (young, vec![old, young]));
            }
            table.release_all(first, None);
        });
        until_waiting(table, first_txn);
        let asked = ask_second(&mut second);
        assert_eq!(asked.is_err(), second.txn() == young, "the youngest gives way");
        table.release_all(second, None);
        waiting.join().unwrap();
    });
    assert_eq!((table.stats().deadlocks, table.stats().locks), (1, 0));
}

#[test]
fn the_youngest_transaction_of_a_cycle_is_the_victim() {
    for (first, second) in [(1, 2), (2, 1)] {
        let table = table();
        let (mut a, mut b) = (table.begin(TxnId(first)), table.begin(TxnId(second)));
        table.lock_key(&mut a, TREE, key("a"), KeyMode::UPDATE).unwrap();
        table.lock_key(&mut b, TREE, key("b"), KeyMode::UPDATE).unwrap();
        cross(
            &table,
            a,
            b,
            |a| table.lock_key(a, TREE, key("b"), KeyMode::READ).map(drop),
            |b| table.lock_key(b, TREE, key("a"), KeyMode::READ).map(drop),
        );
    }
}

#[test]
fn two_upgrades_of_one_key_are_a_deadlock() {
    for (first, second) in [(1, 2), (2, 1)] {
        let table = table();
        let (mut a, mut b) = (table.begin(TxnId(first)), table.begin(TxnId(second)));
        table.lock_key(&mut a, TREE, key("k"), KeyMode::READ).unwrap();
        table.lock_key(&mut b, TREE, key("k"), KeyMode::READ).unwrap();
        let upgrade = |t: &mut TxnLocks| table.lock_key(t, TREE, key("k"), KeyMode::UPDATE).map(drop);
        cross(&table, a, b, upgrade, upgrade);
    }
}

#[test]
fn noted_intents_are_seen_by_the_search() {
    for (first, second) in [(1, 2), (2, 1)] {
        let table = table();
        let (mut a, mut b) = (table.begin(TxnId(first)), table.begin(TxnId(second)));
        table.lock_table(&mut a, TREE, TableMode::IX).unwrap();
        table.lock_table(&mut b, OTHER, TableMode::IS).unwrap();
        assert_eq!(table.stats().noted_intents, 2);
        cross(
            &table,
            a,
            b,
            |a| table.lock_table(a, OTHER, TableMode::X).map(drop),
            |b| table.lock_table(b, TREE, TableMode::S).map(drop),
        );
        let mut later = table.begin(TxnId(9));
        table.lock_table(&mut later, TREE, TableMode::IS).unwrap();
        table.lock_table(&mut later, OTHER, TableMode::IS).unwrap();
        assert_eq!(table.stats().noted_intents, 4, "victims closed no fast path for good");
        table.release_all(later, None);
    }
}

#[test]
fn a_cycle_through_a_waiting_newcomer_is_found() {
    // 1 reads k. 2 waits to write k. 3 holds j and waits to read k, after 2. 1 requests j: 1 -> 3 -> 2 -> 1,
    // although 3 conflicts with no holder of k.
    let table = table();
    let (mut one, mut three) = (table.begin(TxnId(1)), table.begin(TxnId(3)));
    table.lock_key(&mut one, TREE, key("k"), KeyMode::READ).unwrap();
    table.lock_key(&mut three, TREE, key("j"), KeyMode::UPDATE).unwrap();
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut two = table.begin(TxnId(2));
            table.lock_key(&mut two, TREE, key("k"), KeyMode::UPDATE).unwrap();
            table.release_all(two, None);
        });
        until_waiting(&table, TxnId(2));
        let victim = s.spawn(|| {
            let refused = table.lock_key(&mut three, TREE, key("k"), KeyMode::READ).unwrap_err();
            let expected = vec![TxnId(1), TxnId(3), TxnId(2)];
            assert_eq!(refused, LockError::Deadlock { victim: TxnId(3), cycle: expected });
            table.release_all(three, None);
        });
        until_waiting(&table, TxnId(3));
        table.lock_key(&mut one, TREE, key("j"), KeyMode::READ).unwrap();
        victim.join().unwrap();
        table.release_all(one, None);
        writer.join().unwrap();
    });
}

/// All locks that are granted and not released, checked at each grant.
#[derive(Default)]
struct Shadow(Mutex<BTreeMap<u32, Vec<(TxnId, KeyMode)>>>);

impl Shadow {
    fn granted(&self, key: u32, txn: TxnId, mode: KeyMode) {
        let mut shadow = self.0.lock().unwrap();
        let holders = shadow.entry(key).or_default();
        holders.retain(|h| h.0 != txn);
        for &(other, theirs) in holders.iter() {
            assert!(mode.is_compatible(theirs), "{txn} got {mode} while {other} has {theirs}");
        }
        holders.push((txn, mode));
    }

    fn released(&self, txn: TxnId) {
        self.0.lock().unwrap().values_mut().for_each(|holders| holders.retain(|h| h.0 != txn));
    }
}

/// Runs one transaction with random locks in random order. Returns `Err` if it became a victim.
fn run(table: &LockTable, shadow: &Shadow, rng: &mut SmallRng, t: &mut TxnLocks) -> Result<(), LockError> {
    let modes: Vec<KeyMode> = KeyMode::all().filter(|&m| m != KeyMode::NONE).collect();
    table.lock_table(t, TREE, if rng.random_bool(0.5) { TableMode::IX } else { TableMode::IS })?;
    for _ in 0..rng.random_range(1..6) {
        let n = rng.random_range(0..8u32);
        let mode = modes[rng.random_range(0..modes.len())];
        let bytes = n.to_be_bytes();
        if rng.random_bool(0.1) {
            table.wait_test_key(t, TREE, KeyRef::Key(&bytes), mode)?;
        } else {
            table.lock_key(t, TREE, KeyRef::Key(&bytes), mode)?;
            let held = table.held_key_mode(t, TREE, KeyRef::Key(&bytes));
            if held != KeyMode::NONE {
                shadow.granted(n, t.txn(), held);
            }
        }
        if rng.random_bool(0.05) {
            let mode = TableMode::ALL[rng.random_range(0..5)];
            table.lock_table(t, TreeId(rng.random_range(1..3)), mode)?;
        }
        if rng.random_bool(0.2) {
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[test]
fn threads_that_lock_random_sets_in_random_order_always_finish() {
    const THREADS: u64 = 8;
    const TRANSACTIONS: u64 = 1500;
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    // A missed deadlock would wait permanently: the timeout turns it into a failure.
    let timeout = Some(Duration::from_secs(60));
    let table = LockTable::new(LockOptions { timeout, stripes: 4, ..LockOptions::default() });
    let (shadow, next) = (Shadow::default(), AtomicU64::new(1));
    let victims = AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (table, shadow, next, victims) = (&table, &shadow, &next, &victims);
            s.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed ^ thread);
                let mut done = 0;
                while done < TRANSACTIONS {
                    let mut t = table.begin(TxnId(next.fetch_add(1, Relaxed)));
                    match run(table, shadow, &mut rng, &mut t) {
                        Ok(()) => done += 1,
                        Err(LockError::Deadlock { victim, .. }) => {
                            assert_eq!(victim, t.txn());
                            victims.fetch_add(1, Relaxed);
                        }
                        Err(other) => panic!("seed {seed}: {other}\n{:?}", table.dump()),
                    }
                    shadow.released(t.txn());
                    table.release_all(t, None);
                }
            });
        }
    });
    let stats = table.stats();
    println!("{stats:?}");
    assert_eq!((stats.locks, stats.timeouts, stats.deadlocks), (0, 0, victims.load(Relaxed)));
}

fn is_self_deadlock(refused: Result<azekura_base::Lsn, LockError>, holder: TxnId) -> bool {
    matches!(refused, Err(LockError::SelfDeadlock { holder: found, .. }) if found == holder)
}

#[test]
fn waiting_for_a_transaction_of_the_same_thread_is_refused() {
    let table = table();
    let (mut outer, mut inner) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_table(&mut outer, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut outer, TREE, key("k"), KeyMode::UPDATE).unwrap();
    assert!(is_self_deadlock(table.lock_table(&mut inner, TREE, TableMode::S), TxnId(1)), "noted intents");
    table.lock_table(&mut inner, TREE, TableMode::IX).unwrap();
    assert!(is_self_deadlock(table.lock_key(&mut inner, TREE, key("k"), KeyMode::READ), TxnId(1)));
    assert!(is_self_deadlock(table.wait_test_key(&mut inner, TREE, key("k"), KeyMode::READ), TxnId(1)));
    table.lock_key(&mut inner, TREE, key("other"), KeyMode::UPDATE).unwrap();
    assert!(is_self_deadlock(table.lock_key(&mut outer, TREE, key("other"), KeyMode::READ), TxnId(2)));
    // The other transaction ended, so there is nothing to wait for; another transaction of this thread may
    // reuse its entry.
    table.release(&mut outer, None);
    table.lock_key(&mut inner, TREE, key("k"), KeyMode::READ).unwrap();
    table.begin_again(&mut outer, TxnId(3));
    table.release_all(outer, None);
    table.release_all(inner, None);
    assert_eq!((table.stats().locks, table.stats().deadlocks), (0, 4));
}

#[test]
fn a_transaction_that_moved_to_another_thread_is_waited_for() {
    let table = table();
    for is_detached in [false, true] {
        let (mut moved, mut waiter) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
        table.lock_table(&mut moved, TREE, TableMode::IX).unwrap();
        table.lock_key(&mut moved, TREE, key("k"), KeyMode::UPDATE).unwrap();
        if is_detached {
            table.detach(&mut moved);
        }
        std::thread::scope(|s| {
            let (lock, locked) = std::sync::mpsc::channel();
            let table = &table;
            s.spawn(move || {
                // A request stores the transaction's present thread; a detached transaction has no thread.
                if !is_detached {
                    table.lock_key(&mut moved, TREE, key("more"), KeyMode::UPDATE).unwrap();
                }
                lock.send(()).unwrap();
                until_waiting(table, TxnId(2));
                table.release_all(moved, None);
            });
            locked.recv().unwrap();
            table.lock_table(&mut waiter, TREE, TableMode::IX).unwrap();
            table.lock_key(&mut waiter, TREE, key("k"), KeyMode::UPDATE).unwrap();
        });
        table.release_all(waiter, None);
    }
    assert_eq!((table.stats().locks, table.stats().deadlocks), (0, 0));
}

/// The outer transaction reads, and a transaction of another thread waits to write. The inner transaction, in
/// the thread of the outer one, would queue after the writer. Tested in both orders of the two waits.
#[test]
fn a_cycle_through_another_thread_and_the_own_one_is_refused() {
    for inner_waits_first in [false, true] {
        let table = table();
        let mut outer = table.begin(TxnId(1));
        table.lock_table(&mut outer, TREE, TableMode::IX).unwrap();
        table.lock_key(&mut outer, TREE, key("k"), KeyMode::READ).unwrap();
        std::thread::scope(|s| {
            let table = &table;
            let (go, gone) = std::sync::mpsc::channel::<()>();
            let (holds, held) = std::sync::mpsc::channel();
            s.spawn(move || {
                let mut writer = table.begin(TxnId(2));
                table.lock_table(&mut writer, TREE, TableMode::IX).unwrap();
                table.lock_key(&mut writer, TREE, key("mine"), KeyMode::UPDATE).unwrap();
                holds.send(()).unwrap();
                if inner_waits_first {
                    until_waiting(table, TxnId(3));
                }
                table.lock_key(&mut writer, TREE, key("k"), KeyMode::UPDATE).unwrap();
                gone.recv().unwrap();
                table.release_all(writer, None);
            });
            held.recv().unwrap();
            let mut inner = table.begin(TxnId(3));
            table.lock_table(&mut inner, TREE, TableMode::IX).unwrap();
            let wanted = if inner_waits_first {
                "mine"
            } else {
                until_waiting(table, TxnId(2));
                "k"
            };
            let refused = table.lock_key(&mut inner, TREE, key(wanted), KeyMode::READ);
            assert!(is_self_deadlock(refused, TxnId(1)), "{inner_waits_first}");
            table.release_all(inner, None);
            table.release_all(outer, None);
            go.send(()).unwrap();
        });
        assert_eq!((table.stats().locks, table.stats().deadlocks), (0, 1));
    }
}
