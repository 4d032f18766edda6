//! Tests of the cost of reads by snapshots, which is counted.

use std::thread;

use azekura::{Database, Snapshot};

use super::{COUNTS, ROWS, in_memory};

fn insert(db: &Database, key: u64, value: u64) {
    db.transact(|tx| tx.table(&COUNTS)?.insert(&key, &value)).unwrap();
}

/// Returns a snapshot that does not share the all-visible LSN of one that was opened before the last commit.
fn fresh_snapshot(db: &Database) -> Snapshot {
    thread::sleep(std::time::Duration::from_millis(1));
    db.snapshot().unwrap()
}

/// Returns the number of version look-ups while all rows are read from both ends, and some by key. All counts
/// must equal `value`, except those in `others`.
fn lookups(db: &Database, snapshot: &Snapshot, rows: u64, value: u64, others: &[(u64, u64)]) -> u64 {
    let before = db.stats().snapshots.version_lookups;
    let table = snapshot.table(&COUNTS).unwrap();
    let wanted = |key: u64| others.iter().find(|other| other.0 == key).map_or(value, |other| other.1);
    assert!(table.iter().map(Result::unwrap).all(|(key, value)| value == wanted(key)));
    assert!(table.iter().rev().map(Result::unwrap).all(|(key, value)| value == wanted(key)));
    for key in (0..rows).step_by(97) {
        assert_eq!(table.get(&key).unwrap(), Some(wanted(key)));
    }
    db.stats().snapshots.version_lookups - before
}

#[test]
fn leaves_without_changes_above_the_all_visible_lsn_are_read_without_a_look_for_versions() {
    const ROWS: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| (0..ROWS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    db.checkpoint().unwrap();
    let first = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &first, ROWS, 0, &[]), 0, "no change is newer than the snapshot");

    // After a change of one leaf, only reads of this leaf look up versions, in each snapshot that was open.
    insert(&db, 1500, 1);
    let of_one_leaf = lookups(&db, &first, ROWS, 0, &[]);
    assert!((2..=2 + ROWS / 97).contains(&of_one_leaf), "{of_one_leaf}");
    let second = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &second, ROWS, 0, &[(1500, 1)]), 0, "it sees the change");

    // An open transaction holds back the all-visible LSN of later snapshots, but not that of earlier ones.
    let open = db.begin().unwrap();
    open.table(&COUNTS).unwrap().insert(&7, &7).unwrap();
    insert(&db, 2900, 2);
    let third = fresh_snapshot(&db);
    assert!(lookups(&db, &third, ROWS, 0, &[(1500, 1), (2900, 2)]) >= 4);
    open.commit().unwrap();
    let fourth = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &fourth, ROWS, 0, &[(7, 7), (1500, 1), (2900, 2)]), 0);
}

/// A checkpoint that copies the undo log of an open transaction moves the first LSN that a restart needs. But
/// the changes of the transaction are still older than the copy, and must stay hidden.
#[test]
fn the_changes_of_an_open_transaction_stay_hidden_after_its_undo_log_was_carried() {
    const ROWS: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| (0..ROWS).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))).unwrap();
    let open = db.begin().unwrap();
    open.table(&COUNTS).unwrap().insert(&7, &7).unwrap();
    for round in 1..4 {
        insert(&db, 2900, round);
        db.checkpoint().unwrap();
    }
    let snapshot = fresh_snapshot(&db);
    assert!(lookups(&db, &snapshot, ROWS, 0, &[(2900, 3)]) > 0);
    open.commit().unwrap();
    assert!(lookups(&db, &snapshot, ROWS, 0, &[(2900, 3)]) > 0, "still hidden");
}

/// A committed transaction that waits for an older snapshot before it frees pages does not hold back the
/// all-visible LSN.
#[test]
fn a_transaction_that_waits_to_free_does_not_hold_the_all_visible_lsn() {
    const ROWS_LEN: u64 = 3000;
    let db = in_memory();
    db.transact(|tx| {
        (0..ROWS_LEN).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))?;
        tx.table(&ROWS)?.insert(&1, &[1; 50_000])
    })
    .unwrap();
    let old = fresh_snapshot(&db);
    db.transact(|tx| tx.table(&ROWS)?.insert(&1, &[2; 50_000])).unwrap();
    insert(&db, 2900, 3);
    assert_eq!(db.stats().snapshots.waiting_to_free, 1);
    let new = fresh_snapshot(&db);
    assert_eq!(lookups(&db, &new, ROWS_LEN, 0, &[(2900, 3)]), 0);
    assert_eq!(old.table(&ROWS).unwrap().get(&1).unwrap(), Some(vec![1; 50_000]));
}
