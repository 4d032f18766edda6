//! Models of the lock table's grants and wake-ups, with the production code.
//!
//! - Grant and wake-up: a waiter is granted its lock and woken, in every schedule (SLEEP-1, SLEEP-2).
//! - Intents against a strong lock: they are never both held, no thread stays asleep, and the fast path opens
//!   again (INTENT-1).
//! - Ranges against a writer: they are never both held, and no thread stays asleep (KEYRANGE-1).
//! - Deadlock: two transactions that wait for each other never both sleep (WAIT-1), and only one is a victim.
//!
//! The first and third model are exhaustive; the others bound the preemptions. an_intent… (3 million
//! schedules) and two_that… (1 million) also passed without the bound.
//!
//! A lost wake-up or a missed deadlock leaves every thread asleep, which loom reports.
#![cfg(loom)]

use azekura_base::{Lsn, TreeId, TxnId};
use azekura_lock::{KeyMode, KeyRef, LockError, LockOptions, LockTable, TableMode};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const TREE: TreeId = TreeId(0);

fn table() -> Arc<LockTable> {
    Arc::new(LockTable::new(LockOptions {
        stripes: 1,
        dependency_slots: 1,
        seed: 1,
        ..LockOptions::default()
    }))
}

fn model(preemptions: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let schedules = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&schedules);
    builder.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        f();
    });
    println!("{} schedules", schedules.load(std::sync::atomic::Ordering::Relaxed));
}

const KEY: KeyRef<'static> = KeyRef::Key(b"k");
const OTHER: KeyRef<'static> = KeyRef::Key(b"j");

#[test]
fn a_lock_is_handed_from_one_writer_to_the_next() {
    model(None, || {
        let table = table();
        // loom's cell reports two unordered accesses: here only the lock orders them.
        let guarded = Arc::new(UnsafeCell::new(0u64));
        let write = |table: &LockTable, cell: &UnsafeCell<u64>, txn: u64| {
            let mut t = table.begin(TxnId(txn));
            let depends_on = table.lock_key(&mut t, TREE, KEY, KeyMode::UPDATE).unwrap();
            let before = cell.with_mut(|value| {
                // loom returns a raw pointer; reading through it would need `unsafe`, so only the access is
                // modeled.
                value.addr()
            });
            assert_ne!(before, 0);
            table.release_all(t, Some(Lsn(txn)));
            depends_on
        };
        let (table2, guarded2) = (Arc::clone(&table), Arc::clone(&guarded));
        let other = thread::spawn(move || write(&table2, &guarded2, 2));
        let mine = write(&table, &guarded, 1);
        let theirs = other.join().unwrap();
        // The second holder depends on the first.
        assert!((mine, theirs) == (Lsn(0), Lsn(1)) || (mine, theirs) == (Lsn(2), Lsn(0)), "{mine} {theirs}");
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn two_readers_and_a_writer_all_get_the_lock() {
    model(Some(3), || {
        let table = table();
        let run = |table: &LockTable, txn: u64, mode: KeyMode| {
            let mut t = table.begin(TxnId(txn));
            table.lock_key(&mut t, TREE, KEY, mode).unwrap();
            let holders = table.holders(TREE, KEY);
            assert!(holders.iter().all(|h| h.0 == TxnId(txn) || h.1.is_compatible(mode)));
            table.release_all(t, None);
        };
        let others: Vec<_> = [(2, KeyMode::READ), (3, KeyMode::READ)]
            .map(|(txn, mode)| {
                let table = Arc::clone(&table);
                thread::spawn(move || run(&table, txn, mode))
            })
            .into();
        run(&table, 1, KeyMode::UPDATE);
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn intents_and_a_strong_lock_exclude_each_other() {
    model(None, || {
        let table = table();
        let guarded = Arc::new(UnsafeCell::new(0u64));
        let (table2, guarded2) = (Arc::clone(&table), Arc::clone(&guarded));
        let strong = thread::spawn(move || {
            let mut t = table2.begin(TxnId(2));
            let depends_on = table2.lock_table(&mut t, TREE, TableMode::S).unwrap();
            guarded2.with_mut(|value| assert_ne!(value.addr(), 0));
            // After the access: this locks the intents' mutexes, which would order the access, too.
            assert!(table2.table_holders(TREE).iter().all(|h| h.1 == TableMode::S), "IX beside S");
            table2.release_all(t, None);
            depends_on
        });
        let mut t = table.begin(TxnId(1));
        table.lock_table(&mut t, TREE, TableMode::IX).unwrap();
        guarded.with_mut(|value| assert_ne!(value.addr(), 0));
        table.release_all(t, Some(Lsn(5)));
        let depends_on = strong.join().unwrap();
        assert!(depends_on == Lsn(0) || depends_on == Lsn(5));
        let mut later = table.begin(TxnId(3));
        table.lock_table(&mut later, TREE, TableMode::IX).unwrap();
        assert!(table.dump().iter().all(|d| d.waiters.is_empty()));
        let noted = table.stats().noted_intents;
        table.release_all(later, None);
        assert!(noted >= 1, "the fast path is open again");
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn an_intent_that_grows_meets_a_strong_lock() {
    model(Some(4), || {
        let table = table();
        let table2 = Arc::clone(&table);
        let strong = thread::spawn(move || {
            let mut t = table2.begin(TxnId(2));
            let locked = table2.lock_table(&mut t, TREE, TableMode::SIX);
            if locked.is_ok() {
                let holders = table2.table_holders(TREE);
                assert!(holders.iter().all(|h| h.0 == TxnId(2) || h.1 == TableMode::IS), "{holders:?}");
            }
            table2.release_all(t, None);
        });
        let mut t = table.begin(TxnId(1));
        table.lock_table(&mut t, TREE, TableMode::IS).unwrap();
        table.lock_table(&mut t, TREE, TableMode::IX).unwrap();
        assert_eq!(table.table_holders(TREE), [(TxnId(1), TableMode::IX)]);
        table.release_all(t, None);
        strong.join().unwrap();
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn two_waiters_for_each_other_never_both_sleep() {
    model(Some(4), || {
        let table = table();
        let run = |table: &LockTable, txn: u64, keys: [KeyRef<'static>; 2]| {
            let mut t = table.begin(TxnId(txn));
            let locked =
                keys.iter().try_for_each(|&k| table.lock_key(&mut t, TREE, k, KeyMode::UPDATE).map(drop));
            table.release_all(t, None);
            locked
        };
        let table2 = Arc::clone(&table);
        let young = thread::spawn(move || run(&table2, 2, [OTHER, KEY]));
        assert_eq!(run(&table, 1, [KEY, OTHER]), Ok(()), "the old one never gives way");
        if let Err(refused) = young.join().unwrap() {
            assert!(matches!(refused, LockError::Deadlock { victim: TxnId(2), .. }), "{refused}");
        }
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn a_range_and_a_writer_exclude_each_other() {
    model(Some(3), || {
        let table = table();
        // loom's cell reports two unordered accesses: here only the lock orders them.
        let guarded = Arc::new(UnsafeCell::new(0u64));
        let (table2, guarded2) = (Arc::clone(&table), Arc::clone(&guarded));
        let scan = thread::spawn(move || {
            let mut t = table2.begin(TxnId(2));
            // The range also holds the key "j", which does not exist.
            let range = (&b"a"[..], Some(&b"z"[..]));
            let depends_on = loop {
                match table2.try_lock_range(&mut t, TREE, range, std::iter::once(&b"k"[..]), KeyMode::SCAN) {
                    Ok(depends_on) => break depends_on,
                    Err(_) => drop(table2.lock_key(&mut t, TREE, KEY, KeyMode::SCAN).unwrap()),
                }
            };
            guarded2.with(|value| assert_ne!(value.addr(), 0));
            table2.release_all(t, None);
            depends_on
        });
        let mut t = table.begin(TxnId(1));
        table.lock_key(&mut t, TREE, KEY, KeyMode::UPDATE).unwrap();
        guarded.with_mut(|value| assert_ne!(value.addr(), 0));
        table.release_all(t, Some(Lsn(5)));
        let depends_on = scan.join().unwrap();
        assert!(depends_on == Lsn(0) || depends_on == Lsn(5));
        assert_eq!(table.stats().locks, 0);
    });
}

#[test]
fn two_ranges_that_are_written_to_never_both_sleep() {
    model(Some(2), || {
        let table = table();
        let run = |table: &LockTable, txn: u64, mine: &'static [u8], other: KeyRef<'static>| {
            let mut t = table.begin(TxnId(txn));
            let range = (mine, Some(&b"z"[..]));
            let run = std::iter::once(mine);
            let range = table.try_lock_range(&mut t, TREE, range, run, KeyMode::SCAN);
            let locked =
                range.is_ok().then(|| table.lock_key(&mut t, TREE, other, KeyMode::UPDATE).map(drop));
            table.release_all(t, None);
            locked
        };
        let table2 = Arc::clone(&table);
        let young = thread::spawn(move || run(&table2, 2, b"k", OTHER));
        let old = run(&table, 1, b"j", KEY);
        assert!(matches!(old, None | Some(Ok(()))), "the old one never gives way: {old:?}");
        if let Some(Err(refused)) = young.join().unwrap() {
            assert!(matches!(refused, LockError::Deadlock { victim: TxnId(2), .. }), "{refused}");
        }
        assert_eq!(table.stats().locks, 0);
    });
}
