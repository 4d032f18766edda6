//! Grants of locks, waits for locks, and their order.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panic, too")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::common::{OTHER, TREE, key, table, until_waiting};
use azekura_base::{Lsn, TxnId};
use azekura_lock::{
    AnyMode, GapMode, KeyMode, KeyRef, LockError, LockName, LockOptions, LockTable, RecordMode, TableMode,
    WouldBlock,
};

#[test]
fn readers_share_a_key_and_a_writer_does_not() {
    let table = table();
    let (mut a, mut b, mut c) = (table.begin(TxnId(1)), table.begin(TxnId(2)), table.begin(TxnId(3)));
    assert_eq!(table.try_lock_key(&mut a, TREE, key("k"), KeyMode::READ), Ok(Lsn(0)));
    assert_eq!(table.try_lock_key(&mut b, TREE, key("k"), KeyMode::READ), Ok(Lsn(0)));
    assert_eq!(table.try_lock_key(&mut c, TREE, key("k"), KeyMode::UPDATE), Err(WouldBlock));
    assert_eq!(table.try_lock_key(&mut c, OTHER, key("k"), KeyMode::UPDATE), Ok(Lsn(0)), "another tree");
    assert_eq!(table.try_lock_key(&mut c, TREE, KeyRef::End, KeyMode::DELETE_NEXT), Ok(Lsn(0)), "its end");
    assert_eq!(table.holders(TREE, key("k")), [(TxnId(1), KeyMode::READ), (TxnId(2), KeyMode::READ)]);
    for t in [a, b, c] {
        table.release_all(t, None);
    }
    assert_eq!((table.holders(TREE, key("k")), table.stats().locks), (vec![], 0));
}

#[test]
fn gap_and_record_are_locked_independently() {
    let table = table();
    let (mut scan, mut update, mut insert) =
        (table.begin(TxnId(1)), table.begin(TxnId(2)), table.begin(TxnId(3)));
    assert!(table.try_lock_key(&mut scan, TREE, key("k"), KeyMode::READ_GAP).is_ok());
    assert!(
        table.try_lock_key(&mut update, TREE, key("k"), KeyMode::UPDATE).is_ok(),
        "only the gap was read"
    );
    assert!(table.try_test_key(&mut insert, TREE, key("k"), KeyMode::INSERT_TEST).is_err(), "a phantom");
    table.release_all(scan, None);
    assert!(table.try_test_key(&mut insert, TREE, key("k"), KeyMode::INSERT_TEST).is_ok());
    assert_eq!(table.held_key_mode(&insert, TREE, key("k")), KeyMode::NONE, "tested, not held");
    table.release_all(update, None);
    table.release_all(insert, None);
}

#[test]
fn asking_again_adds_up_to_the_supremum() {
    let table = table();
    let mut t = table.begin(TxnId(1));
    for (mode, sum) in [
        (KeyMode::READ, KeyMode::READ),
        (KeyMode::READ_GAP, KeyMode::SCAN),
        (KeyMode::READ, KeyMode::SCAN),
        (KeyMode::INSERT, KeyMode::DELETE),
    ] {
        table.lock_key(&mut t, TREE, key("k"), mode).unwrap();
        assert_eq!(table.held_key_mode(&t, TREE, key("k")), sum);
    }
    for (mode, sum) in
        [(TableMode::IS, TableMode::IS), (TableMode::IX, TableMode::IX), (TableMode::S, TableMode::SIX)]
    {
        table.lock_table(&mut t, TREE, mode).unwrap();
        assert_eq!(table.held_table_mode(&t, TREE), Some(sum));
    }
    assert_eq!((t.len(), table.held_table_mode(&t, OTHER)), (2, None));
    table.release_all(t, None);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn a_lock_on_the_whole_table_needs_no_locks_on_keys() {
    let table = table();
    let (mut s, mut x) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_table(&mut s, TREE, TableMode::S).unwrap();
    table.lock_table(&mut x, OTHER, TableMode::X).unwrap();
    for name in ["a", "b", "c"] {
        table.lock_key(&mut s, TREE, key(name), KeyMode::SCAN).unwrap();
        table.lock_key(&mut x, OTHER, key(name), KeyMode::DELETE).unwrap();
    }
    assert_eq!((s.len(), x.len()), (1, 1));
    table.release_all(s, None);
    table.release_all(x, None);
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let table = table();
    let mut first = table.begin(TxnId(1));
    table.lock_key(&mut first, TREE, key("k"), KeyMode::READ).unwrap();
    let order = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        let go = |txn, mode| {
            let (table, order) = (&table, &order);
            s.spawn(move || {
                let mut t = table.begin(TxnId(txn));
                table.lock_key(&mut t, TREE, key("k"), mode).unwrap();
                order.lock().unwrap().push(txn);
                table.release_all(t, None);
            });
            until_waiting(table, TxnId(txn));
        };
        go(2, KeyMode::UPDATE);
        let mut late = table.begin(TxnId(9));
        assert!(table.try_lock_key(&mut late, TREE, key("k"), KeyMode::READ).is_err(), "overtakes a writer");
        assert!(table.try_lock_key(&mut late, TREE, key("k"), KeyMode::READ_GAP).is_ok(), "disturbs nobody");
        table.release_all(late, None);
        go(3, KeyMode::READ);
        go(4, KeyMode::UPDATE);
        assert!(order.lock().unwrap().is_empty());
        table.release_all(first, None);
    });
    assert_eq!(*order.lock().unwrap(), [2, 3, 4]);
}

/// Fairness: each release grants the lock to the first waiter, and a later request is queued after all
/// earlier ones. So a waiter waits for as many grants as there were waiters before it when it arrived.
#[test]
fn each_release_grants_the_lock_to_the_waiter_that_came_first() {
    const THREADS: u64 = 16;
    const ROUNDS: u64 = 150;
    let table = table();
    let queue = || -> Vec<TxnId> {
        let waiters = table.dump().into_iter().flat_map(|d| d.waiters);
        waiters.map(|waiter| waiter.0).collect()
    };
    // The queue as read by the previous holder, the longest queue, and the queues that broke the rule.
    let seen = Mutex::new((Vec::new(), 0, Vec::new()));
    std::thread::scope(|s| {
        for thread in 1..=THREADS {
            let (table, queue, seen) = (&table, &queue, &seen);
            s.spawn(move || {
                for round in 0..ROUNDS {
                    let txn = TxnId(round * THREADS + thread);
                    let mut t = table.begin(txn);
                    table.lock_key(&mut t, TREE, key("k"), KeyMode::UPDATE).unwrap();
                    std::thread::yield_now(); // The other threads enqueue meanwhile.
                    let now = queue();
                    let mut seen = seen.lock().unwrap();
                    let before = std::mem::replace(&mut seen.0, now.clone());
                    if before
                        .split_first()
                        .is_some_and(|(&first, rest)| first != txn || !now.starts_with(rest))
                    {
                        seen.2.push((txn, before, now.clone()));
                    }
                    seen.1 = now.len().max(seen.1);
                    drop(seen);
                    table.release_all(t, None);
                }
            });
        }
    });
    let (_, longest, broken) = seen.into_inner().unwrap();
    assert!((2..THREADS as usize).contains(&longest), "at most {longest} waited");
    assert_eq!((broken, table.stats().deadlocks), (Vec::new(), 0));
}

#[test]
fn an_upgrade_goes_before_newcomers() {
    let table = table();
    let (mut upgrades, mut other) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_key(&mut upgrades, TREE, key("k"), KeyMode::READ).unwrap();
    table.lock_key(&mut other, TREE, key("k"), KeyMode::READ).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut t = table.begin(TxnId(3));
            table.lock_key(&mut t, TREE, key("k"), KeyMode::UPDATE).unwrap();
            table.release_all(t, None);
        });
        until_waiting(&table, TxnId(3));
        let upgrade = s.spawn(|| {
            table.lock_key(&mut upgrades, TREE, key("k"), KeyMode::UPDATE).unwrap();
            upgrades
        });
        until_waiting(&table, TxnId(1));
        let waiters: Vec<TxnId> =
            table.dump().into_iter().flat_map(|d| d.waiters).map(|(txn, _)| txn).collect();
        assert_eq!(waiters, [TxnId(1), TxnId(3)]);
        table.release_all(other, None);
        let upgraded = upgrade.join().unwrap();
        assert_eq!(table.holders(TREE, key("k")), [(TxnId(1), KeyMode::UPDATE)]);
        table.release_all(upgraded, None);
    });
}

#[test]
fn a_test_waits_its_turn_and_holds_nothing() {
    let table = table();
    let mut reader = table.begin(TxnId(1));
    table.lock_key(&mut reader, TREE, key("k"), KeyMode::SCAN).unwrap();
    std::thread::scope(|s| {
        let inserter = s.spawn(|| {
            let mut t = table.begin(TxnId(2));
            table.wait_test_key(&mut t, TREE, key("k"), KeyMode::INSERT_TEST).unwrap();
            assert_eq!((t.len(), table.held_key_mode(&t, TREE, key("k"))), (0, KeyMode::NONE));
            table.release_all(t, None);
        });
        until_waiting(&table, TxnId(2));
        table.release_all(reader, None);
        inserter.join().unwrap();
    });
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn a_test_by_a_holder_changes_nothing_it_holds() {
    let table = table();
    let (mut reader, mut other) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_key(&mut reader, TREE, key("k"), KeyMode::READ_GAP).unwrap();
    assert!(table.try_test_key(&mut reader, TREE, key("k"), KeyMode::INSERT_TEST).is_ok(), "it is alone");
    assert_eq!(table.held_key_mode(&reader, TREE, key("k")), KeyMode::READ_GAP);
    table.lock_key(&mut other, TREE, key("k"), KeyMode::READ_GAP).unwrap();
    assert!(table.try_test_key(&mut reader, TREE, key("k"), KeyMode::INSERT_TEST).is_err());
    std::thread::scope(|s| {
        let tester = s.spawn(|| {
            table.wait_test_key(&mut reader, TREE, key("k"), KeyMode::INSERT_TEST).unwrap();
            reader
        });
        until_waiting(&table, TxnId(1));
        table.release_all(other, None);
        let reader = tester.join().unwrap();
        assert_eq!(table.held_key_mode(&reader, TREE, key("k")), KeyMode::READ_GAP);
        table.release_all(reader, None);
    });
}

#[test]
fn intents_of_many_transactions_and_tables_meet_no_strong_lock() {
    let table = table();
    let mut all: Vec<_> = (1..=20).map(|n| table.begin(TxnId(n))).collect();
    for (n, t) in (0u32..).zip(&mut all) {
        for tree in 0..12 {
            let mode = if (n + tree) % 2 == 0 { TableMode::IS } else { TableMode::IX };
            table.try_lock_table(t, azekura_base::TreeId(tree), mode).unwrap();
        }
    }
    assert_eq!(table.table_holders(TREE).len(), 20);
    let mut strong = table.begin(TxnId(99));
    assert_eq!(table.try_lock_table(&mut strong, TREE, TableMode::S), Err(WouldBlock));
    for t in all {
        table.release_all(t, None);
    }
    assert_eq!(table.try_lock_table(&mut strong, TREE, TableMode::X), Ok(Lsn(0)));
    table.release_all(strong, None);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn a_transaction_of_many_tables_notes_its_intents_and_of_very_many_shares_the_rest() {
    let table = table();
    for tables in [9, 40, 300] {
        let before = table.stats().noted_intents;
        let mut many = table.begin(TxnId(1));
        for mode in [TableMode::IS, TableMode::IX] {
            for tree in 0..tables {
                table.try_lock_table(&mut many, azekura_base::TreeId(tree), mode).unwrap();
            }
        }
        let stats = table.stats();
        let noted = u64::from(tables.min(256));
        assert_eq!(stats.noted_intents - before, 2 * noted, "{tables} tables, each noted and made stronger");
        assert_eq!(stats.locks as u64, u64::from(tables) - noted);
        let mut strong = table.begin(TxnId(2));
        for tree in 0..tables {
            let tree = azekura_base::TreeId(tree);
            assert_eq!(table.try_lock_table(&mut strong, tree, TableMode::S), Err(WouldBlock), "{tree:?}");
        }
        table.release_all(many, None);
        for tree in 0..tables {
            table.try_lock_table(&mut strong, azekura_base::TreeId(tree), TableMode::X).unwrap();
        }
        table.release_all(strong, None);
        assert_eq!(table.stats().locks, 0);
    }
}

#[test]
fn a_strong_lock_waits_for_noted_intents_and_new_intents_wait_for_it() {
    let table = table();
    let mut intent = table.begin(TxnId(1));
    table.lock_table(&mut intent, TREE, TableMode::IX).unwrap();
    assert_eq!(table.stats().noted_intents, 1);
    std::thread::scope(|s| {
        let strong = s.spawn(|| {
            let mut t = table.begin(TxnId(2));
            table.lock_table(&mut t, TREE, TableMode::X).unwrap();
            t
        });
        until_waiting(&table, TxnId(2));
        let late = s.spawn(|| {
            let mut t = table.begin(TxnId(3));
            table.lock_table(&mut t, TREE, TableMode::IS).unwrap();
            t
        });
        until_waiting(&table, TxnId(3));
        assert_eq!(table.table_holders(TREE), [(TxnId(1), TableMode::IX)]);
        table.release_all(intent, None);
        let strong = strong.join().unwrap();
        assert_eq!(table.table_holders(TREE), [(TxnId(2), TableMode::X)]);
        table.release_all(strong, None);
        let late = late.join().unwrap();
        assert_eq!(table.table_holders(TREE), [(TxnId(3), TableMode::IS)]);
        table.release_all(late, None);
    });
    let mut next = table.begin(TxnId(4));
    table.lock_table(&mut next, TREE, TableMode::IX).unwrap();
    assert_eq!(table.stats().noted_intents, 2, "the fast path is open again");
    table.release_all(next, None);
}

#[test]
fn closing_ends_every_wait_and_refuses_new_ones_but_no_grant() {
    let table = table();
    let mut holder = table.begin(TxnId(1));
    table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut holder, TREE, key("k"), KeyMode::UPDATE).unwrap();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (2..6)
            .map(|txn| {
                let table = &table;
                scope.spawn(move || {
                    let mut waiter = table.begin(TxnId(txn));
                    let refused = if txn % 2 == 0 {
                        table.lock_table(&mut waiter, TREE, TableMode::S)
                    } else {
                        table.lock_key(&mut waiter, TREE, key("k"), KeyMode::READ)
                    };
                    assert_eq!(refused, Err(LockError::Closed));
                    table.release_all(waiter, None);
                })
            })
            .collect();
        while table.stats().waits < 4 {
            std::thread::yield_now();
        }
        table.close_waits();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    let mut late = table.begin(TxnId(9));
    assert_eq!(table.lock_key(&mut late, TREE, key("k"), KeyMode::READ), Err(LockError::Closed));
    assert!(table.lock_key(&mut late, TREE, key("other"), KeyMode::UPDATE).is_ok());
    table.release_all(holder, None);
    assert!(table.lock_key(&mut late, TREE, key("k"), KeyMode::READ).is_ok());
    table.release_all(late, None);
}

#[test]
fn a_holder_knows_which_gaps_it_has_closed() {
    let table = table();
    let mut holder = table.begin(TxnId(1));
    table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
    for turn in 0..2 {
        table.lock_key(&mut holder, TREE, key("inserted"), KeyMode::INSERT).unwrap();
        assert_eq!(table.closed_gap(&holder, TREE, key("inserted")), None);
        table.lock_key(&mut holder, TREE, key("scanned"), KeyMode::SCAN).unwrap();
        table.lock_key(&mut holder, TREE, key("deleted"), KeyMode::DELETE).unwrap();
        for name in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            table.lock_key(&mut holder, TREE, key(name), KeyMode::UPDATE).unwrap();
        }
        let closed = ["inserted", "scanned", "deleted", "g", "other"]
            .map(|name| table.closed_gap(&holder, TREE, key(name)));
        assert_eq!(closed, [None, Some(GapMode::S), Some(GapMode::X), None, None], "turn {turn}");
        table.release(&mut holder, None);
        table.begin_again(&mut holder, TxnId(2 + turn));
        assert_eq!(table.closed_gap(&holder, TREE, key("scanned")), None);
        table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
    }
    table.release_all(holder, None);
}

#[test]
fn a_request_without_waiting_is_refused_and_the_transaction_continues() {
    let table = table();
    let (mut holder, mut other) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut holder, TREE, key("k"), KeyMode::UPDATE).unwrap();
    other.set_nowait(true);
    assert_eq!(table.lock_table(&mut other, TREE, TableMode::S), Err(LockError::WouldBlock));
    assert!(other.is_empty());
    table.lock_table(&mut other, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut other, TREE, key("other"), KeyMode::UPDATE).unwrap();
    let held = other.len();
    assert_eq!(table.lock_key(&mut other, TREE, key("k"), KeyMode::READ), Err(LockError::WouldBlock));
    assert_eq!(table.wait_test_key(&mut other, TREE, key("k"), KeyMode::READ), Err(LockError::WouldBlock));
    assert_eq!((other.len(), table.stats().waits), (held, 0));
    assert!(!table.has_waiters(&holder));
    table.release_all(holder, None);
    table.detach(&mut other); // This thread will wait for it.
    table.lock_key(&mut other, TREE, key("k"), KeyMode::UPDATE).unwrap();
    // From now on another transaction waits for `other`. The next transaction with this list waits again.
    let mut third = table.begin(TxnId(3));
    third.set_timeout(Some(Duration::from_millis(1)));
    table.lock_table(&mut third, TREE, TableMode::IS).unwrap();
    assert!(matches!(
        table.lock_key(&mut third, TREE, key("k"), KeyMode::READ),
        Err(LockError::Timeout { .. })
    ));
    assert!(table.has_waiters(&other));
    table.release(&mut other, None);
    table.begin_again(&mut other, TxnId(4));
    assert!(!table.has_waiters(&other));
    table.detach(&mut third);
    table.lock_key(&mut third, TREE, key("k"), KeyMode::UPDATE).unwrap();
    other.set_timeout(Some(Duration::from_millis(1)));
    assert!(matches!(
        table.lock_key(&mut other, TREE, key("k"), KeyMode::READ),
        Err(LockError::Timeout { .. })
    ));
    table.release_all(third, None);
    table.release_all(other, None);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn a_timeout_names_the_blocking_transaction() {
    let table = table();
    let (mut holder, mut waiter) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.detach(&mut holder);
    table.lock_table(&mut holder, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut holder, TREE, key("k"), KeyMode::UPDATE).unwrap();
    waiter.set_timeout(Some(Duration::from_millis(2)));
    for strong in [false, true] {
        let refused = if strong {
            table.lock_table(&mut waiter, TREE, TableMode::S)
        } else {
            table.lock_key(&mut waiter, TREE, key("k"), KeyMode::READ)
        };
        match refused.unwrap_err() {
            LockError::Timeout { waited, holders } => {
                assert!(waited >= Duration::from_millis(2));
                assert_eq!(holders, [TxnId(1)]);
            }
            other => panic!("{other}"),
        }
    }
    assert!(waiter.is_empty());
    table.release_all(holder, None);
    waiter.set_timeout(None);
    table.lock_table(&mut waiter, TREE, TableMode::IX).unwrap();
    table.lock_key(&mut waiter, TREE, key("k"), KeyMode::UPDATE).unwrap();
    table.release_all(waiter, None);
    let stats = table.stats();
    assert_eq!((stats.timeouts, stats.waits, stats.locks), (2, 2, 0));
    assert!(stats.wait_time >= Duration::from_millis(4));
}

#[test]
fn the_dump_shows_every_lock() {
    let table = table();
    let (mut a, mut b) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_table(&mut a, TREE, TableMode::IX).unwrap();
    table.lock_table(&mut b, TREE, TableMode::IS).unwrap();
    table.lock_key(&mut a, TREE, KeyRef::End, KeyMode::new(GapMode::X, RecordMode::None)).unwrap();
    let dump = table.dump();
    assert_eq!(dump.len(), 2);
    assert_eq!(dump[0].name, LockName::End(TREE));
    assert_eq!(dump[0].to_string(), "end of tree 1: held by 1 (gap X)");
    assert_eq!(dump[1].holders.len(), 2);
    assert!(dump[1].holders.contains(&(TxnId(2), AnyMode::Table(TableMode::IS))));
    table.release_all(a, None);
    table.release_all(b, None);
    assert!(table.dump().is_empty());
}

#[test]
fn a_range_holds_its_keys_until_its_transaction_ends() {
    let table = table();
    let (mut scan, mut other, mut writer) =
        (table.begin(TxnId(1)), table.begin(TxnId(2)), table.begin(TxnId(3)));
    let range = |t: &mut _, (from, to): (&str, Option<&str>), keys: &[&'static str]| {
        let range = (from.as_bytes(), to.map(str::as_bytes));
        table.try_lock_range(t, TREE, range, keys.iter().map(|key| key.as_bytes()), KeyMode::SCAN)
    };
    // "m" does not exist, and another transaction has locked it.
    table.lock_key(&mut other, TREE, key("m"), KeyMode::UPDATE).unwrap();
    assert_eq!(range(&mut scan, ("b", Some("n")), &["b", "c"]), Ok(Lsn(0)));
    assert_eq!(range(&mut scan, ("n", Some("t")), &["s"]), Ok(Lsn(0)), "the range is extended");
    assert_eq!(table.stats().ranges, 2);
    // The range contains "m", but does not lock it before the other transaction releases it (KEYRANGE-2).
    assert!(table.try_lock_key(&mut scan, TREE, key("m"), KeyMode::READ).is_err());
    assert_eq!(range(&mut scan, ("b", Some("t")), &["b", "c", "m", "s"]), Err(2));
    table.release(&mut other, Some(Lsn(3)));
    assert_eq!(table.try_lock_key(&mut scan, TREE, key("m"), KeyMode::READ), Ok(Lsn(3)), "W8");
    assert_eq!(range(&mut scan, ("b", Some("t")), &["b", "c", "m", "s"]), Ok(Lsn(3)), "W8");
    table.begin_again(&mut other, TxnId(2));
    for name in ["b", "c", "d", "m", "s"] {
        assert_eq!(table.held_key_mode(&scan, TREE, key(name)), KeyMode::SCAN);
        assert_eq!(table.closed_gap(&scan, TREE, key(name)), Some(GapMode::S));
        assert!(table.try_test_key(&mut writer, TREE, key(name), KeyMode::INSERT_TEST).is_err());
        assert!(table.try_lock_key(&mut writer, TREE, key(name), KeyMode::UPDATE).is_err());
        assert!(
            table.try_lock_key(&mut writer, TREE, key(name), KeyMode::READ).is_ok(),
            "readers share {name}"
        );
    }
    for (tree, name) in [(TREE, "a"), (TREE, "t"), (OTHER, "c")] {
        assert_eq!(table.held_key_mode(&scan, tree, key(name)), KeyMode::NONE);
        assert!(table.try_lock_key(&mut writer, tree, key(name), KeyMode::DELETE).is_ok(), "outside: {name}");
    }
    // A range with a blocked key: the transaction holds nothing for it.
    assert_eq!(range(&mut other, ("o", None), &["p", "t", "u"]), Err(1));
    assert_eq!(table.held_key_mode(&other, TREE, key("u")), KeyMode::NONE);
    assert!(table.try_lock_key(&mut writer, TREE, key("u"), KeyMode::UPDATE).is_ok());
    table.release_all(other, None);
    // The scanner can change the rows that it has read, once the other reader has released its locks.
    assert!(table.try_lock_key(&mut scan, TREE, key("c"), KeyMode::UPDATE).is_err());
    table.release_all(writer, Some(Lsn(7)));
    assert!(table.try_lock_key(&mut scan, TREE, key("c"), KeyMode::UPDATE).is_ok());
    assert_eq!(table.held_key_mode(&scan, TREE, key("c")), KeyMode::new(GapMode::S, RecordMode::X));
    let mut reader = table.begin(TxnId(4));
    assert!(table.try_lock_key(&mut reader, TREE, key("c"), KeyMode::READ).is_err());
    assert_eq!(range(&mut reader, ("t", None), &["t"]), Ok(Lsn(7)), "the dependency of a range (W8)");
    table.release_all(scan, None);
    assert!(table.try_lock_key(&mut reader, TREE, key("c"), KeyMode::DELETE).is_ok());
    table.release_all(reader, None);
    assert_eq!(table.stats().locks, 0);
}

/// A scan locks its keys one by one if the transaction has the largest number of ranges already.
#[test]
fn a_scan_that_has_too_many_ranges_locks_keys() {
    let table = table();
    let (mut scan, mut writer) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    let keys: Vec<[u8; 2]> = (0..100).map(|n| [n, 0]).collect();
    for key in &keys {
        let to = [key[0], 1];
        let run = std::iter::once(&key[..]);
        assert!(table.try_lock_range(&mut scan, TREE, (key, Some(&to)), run, KeyMode::SCAN).is_ok());
    }
    assert_eq!((scan.len(), table.stats().ranges), (36, 64));
    // A second scan of the same run adds no range.
    for key in &keys[..64] {
        let (to, run) = ([key[0], 1], std::iter::once(&key[..]));
        assert!(table.try_lock_range(&mut scan, TREE, (key, Some(&to)), run, KeyMode::SCAN).is_ok());
    }
    assert_eq!((scan.len(), table.stats().ranges), (36, 64));
    let blocked = keys
        .iter()
        .filter(|key| table.try_lock_key(&mut writer, TREE, KeyRef::Key(*key), KeyMode::UPDATE).is_err());
    assert_eq!(blocked.count(), 100);
    table.release_all(scan, None);
    assert!(
        keys.iter()
            .all(|key| { table.try_lock_key(&mut writer, TREE, KeyRef::Key(key), KeyMode::UPDATE).is_ok() })
    );
    table.release_all(writer, None);
    assert_eq!(table.stats().locks, 0);
}

#[test]
fn an_interrupted_wait_is_withdrawn_and_the_locks_stay() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // The first call lets the wait continue. Relaxed: one thread.
    let interrupt: fn() -> bool = || CALLS.fetch_add(1, Relaxed) > 0;
    let table = LockTable::new(LockOptions { interrupt: Some(interrupt), ..LockOptions::default() });
    let (mut holder, mut waiter) = (table.begin(TxnId(1)), table.begin(TxnId(2)));
    table.lock_key(&mut holder, TREE, key("k"), KeyMode::UPDATE).unwrap();
    table.detach(&mut holder); // otherwise the wait would be for the waiter's own thread
    table.lock_key(&mut waiter, TREE, key("other"), KeyMode::UPDATE).unwrap();
    let refused = table.lock_key(&mut waiter, TREE, key("k"), KeyMode::READ);
    assert_eq!(refused, Err(LockError::Interrupted));
    assert_eq!(CALLS.load(Relaxed), 2);
    assert_eq!(table.holders(TREE, key("k")), [(TxnId(1), KeyMode::UPDATE)]);
    assert_eq!(table.holders(TREE, key("other")), [(TxnId(2), KeyMode::UPDATE)]);
    table.release_all(holder, None);
    table.lock_key(&mut waiter, TREE, key("k"), KeyMode::READ).unwrap();
    table.release_all(waiter, None);
    let stats = table.stats();
    assert_eq!((stats.timeouts, stats.waits, stats.locks), (0, 1, 0));
}
