//! Tests of scans from both ends, with lent and with owned rows, and with writes in between, against a
//! `BTreeMap`.

mod lent;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::ControlFlow::{Break, Continue};

use azekura::{Database, Error, Limit, TableDefinition, Transaction};
use proptest::prelude::*;

const ROWS: TableDefinition<u32, [u8]> = TableDefinition::new("rows");

/// Returns a value; some values are too large for a page.
fn value(n: u32, version: u8) -> Vec<u8> {
    let len = if n.is_multiple_of(50) { 30_000 } else { n as usize % 90 };
    vec![version; len]
}

fn filled(count: u32) -> (Database, BTreeMap<u32, Vec<u8>>) {
    let db = Database::builder().page_size(4096).cache_bytes(4 << 20).open_in_memory().expect("opens");
    let model: BTreeMap<_, _> = (0..count).map(|n| (2 * n, value(n, 0))).collect();
    db.transact(|tx| {
        let rows = tx.table(&ROWS)?;
        model.iter().try_for_each(|(key, value)| rows.insert(key, value))
    })
    .expect("fills");
    (db, model)
}

fn visited(
    tx: &Transaction,
    range: (Bound<u32>, Bound<u32>),
    limit: usize,
) -> Result<Vec<(u32, Vec<u8>)>, Error> {
    let mut seen = Vec::new();
    tx.table(&ROWS)?.for_each(range, |row| {
        seen.push((row.key()?, row.value()?));
        assert_eq!(row.key_bytes(), row.key()?.to_be_bytes());
        Ok(if seen.len() == limit { Break(()) } else { Continue(()) })
    })?;
    Ok(seen)
}

/// Returns the rows of a range in descending order, as lent by a transaction and by a snapshot.
fn visited_back(
    db: &Database,
    tx: &Transaction,
    range: (Bound<u32>, Bound<u32>),
    limit: usize,
) -> Result<Vec<(u32, Vec<u8>)>, Error> {
    let (mut seen, mut in_snapshot) = (Vec::new(), Vec::new());
    tx.table(&ROWS)?.for_each_back(range, |row| {
        seen.push((row.key()?, row.value()?));
        Ok(if seen.len() == limit { Break(()) } else { Continue(()) })
    })?;
    db.snapshot()?.table(&ROWS)?.for_each_back(range, |row| {
        in_snapshot.push((row.key()?, row.value()?));
        Ok(if in_snapshot.len() == limit { Break(()) } else { Continue(()) })
    })?;
    assert_eq!(in_snapshot, seen);
    Ok(seen)
}

#[test]
fn lending_and_giving_scans_agree_with_a_map_on_every_kind_of_bound() {
    let (db, model) = filled(700);
    let bounds = [Bound::Unbounded, Bound::Included(398), Bound::Excluded(398), Bound::Excluded(399)];
    for lower in bounds {
        for upper in bounds.map(|b| b.map(|n| n + 600)) {
            for limit in [1, 2, 77, usize::MAX] {
                let range = (lower, upper);
                let expected: Vec<_> = model.range(range).take(limit).map(|(&k, v)| (k, v.clone())).collect();
                let tx = db.begin().expect("begins");
                assert_eq!(visited(&tx, range, limit).expect("visits"), expected, "{range:?} {limit}");
                let given: Result<Vec<_>, _> =
                    tx.table(&ROWS).expect("opens").range(range).take(limit).collect();
                assert_eq!(given.expect("scans"), expected, "{range:?} {limit}");
                let back: Vec<_> =
                    model.range(range).rev().take(limit).map(|(&k, v)| (k, v.clone())).collect();
                assert_eq!(visited_back(&db, &tx, range, limit).expect("visits"), back, "{range:?} {limit}");
                let limited = Limit(range, limit);
                let rows = tx.table(&ROWS).expect("opens");
                let snapshot = db.snapshot().expect("opens");
                let seen = snapshot.table(&ROWS).expect("opens");
                let lists: [Result<Vec<_>, _>; 4] = [
                    rows.range(limited).collect(),
                    seen.range(limited).collect(),
                    rows.range(limited).rev().collect(),
                    seen.range(limited).rev().collect(),
                ];
                for (list, wanted) in lists.into_iter().zip([&expected, &expected, &back, &back]) {
                    assert_eq!(&list.expect("scans"), wanted, "{limited:?}");
                }
            }
        }
    }
}

#[test]
fn an_error_of_the_callback_ends_the_scan_and_is_returned() {
    let (db, _) = filled(10);
    let tx = db.begin().expect("begins");
    let mut seen = 0;
    let result = tx.table(&ROWS).expect("opens").for_each(.., |_| {
        seen += 1;
        Err(Error::Invalid("enough".into()))
    });
    assert!(matches!(result, Err(Error::Invalid(message)) if message == "enough"));
    assert_eq!(seen, 1);
}

#[test]
fn for_each_shows_the_table_at_its_begin() {
    let (db, model) = filled(300);
    let tx = db.begin().expect("begins");
    let rows = tx.table(&ROWS).expect("opens");
    let mut seen = Vec::new();
    rows.for_each(.., |row| {
        let key = row.key()?;
        seen.push((key, row.value()?));
        rows.insert(&(key + 1), b"new")?;
        rows.remove(&(key + 2))?;
        rows.insert(&(key + 4), b"other")?;
        Ok(Continue(()))
    })
    .expect("visits");
    assert_eq!(seen, model.into_iter().collect::<Vec<_>>());
}

#[test]
fn for_each_back_shows_the_table_at_its_begin() {
    let (db, model) = filled(300);
    let tx = db.begin().expect("begins");
    let rows = tx.table(&ROWS).expect("opens");
    let mut seen = Vec::new();
    rows.for_each_back(.., |row| {
        let key = row.key()?;
        seen.push((key, row.value()?));
        if key >= 4 {
            rows.insert(&(key - 1), b"new")?;
            rows.remove(&(key - 2))?;
            rows.insert(&(key - 4), b"other")?;
        }
        Ok(Continue(()))
    })
    .expect("visits");
    assert_eq!(seen, model.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn rows_moved_ahead_of_the_iterator_are_met_once() {
    let (db, model) = filled(2_000);
    let tx = db.begin().expect("begins");
    let rows = tx.table(&ROWS).expect("opens");
    let mut met = 0;
    for row in rows.iter() {
        let (key, value) = row.expect("scans");
        rows.remove(&key).expect("removes");
        rows.insert(&(key + 1), &value).expect("inserts");
        met += 1;
    }
    assert_eq!(met, model.len());
    let moved: BTreeMap<u32, Vec<u8>> = model.into_iter().map(|(key, value)| (key + 1, value)).collect();
    assert_eq!(rows.iter().collect::<Result<BTreeMap<_, _>, _>>().expect("scans"), moved);
}

#[test]
fn a_row_ahead_that_changes_repeatedly_is_shown_in_its_first_state() {
    let (db, model) = filled(300);
    for backward in [false, true] {
        let tx = db.begin().expect("begins");
        let rows = tx.table(&ROWS).expect("opens");
        let ahead = |n: u32| if backward { n } else { 598 - n };
        let (mut range, mut n) = (rows.iter(), 0_u8);
        let mut seen = Vec::new();
        while let Some(row) = if backward { range.next_back() } else { range.next() } {
            seen.push(row.expect("scans"));
            n = n.wrapping_add(1);
            let same_length = |key| rows.insert(&key, &value(key / 2, n)).expect("writes");
            same_length(ahead(2));
            same_length(ahead(4));
            rows.insert(&ahead(6), &vec![n; n as usize % 7]).expect("writes");
            if n.is_multiple_of(3) {
                rows.insert(&ahead(4), b"another length").expect("writes");
                rows.remove(&ahead(8)).expect("removes");
                rows.remove(&ahead(9)).expect("removes");
            } else {
                same_length(ahead(8));
                same_length(ahead(9));
            }
        }
        if backward {
            seen.reverse();
        }
        assert_eq!(seen, model.clone().into_iter().collect::<Vec<_>>());
    }
}

#[test]
fn an_iterator_shows_a_table_that_was_emptied_and_loaded_or_dropped_meanwhile() {
    for drops in [false, true] {
        for read_before in [0, 1, 70] {
            let (db, mut model) = filled(300);
            let tx = db.begin().expect("begins");
            let rows = tx.table(&ROWS).expect("opens");
            rows.insert(&7, b"own, of before").expect("inserts");
            model.insert(7, b"own, of before".to_vec());
            let mut range = rows.iter();
            let mut seen: Vec<_> = range.by_ref().take(read_before).map(|row| row.expect("scans")).collect();
            if drops {
                tx.drop_table(ROWS.name()).expect("drops");
                rows.insert(&1, b"in the next table").expect("makes another one");
            } else {
                model.keys().for_each(|key| drop(rows.remove(key).expect("removes")));
                rows.bulk_load((0..5000_u32).map(|n| (n, b"loaded".to_vec()))).expect("loads");
                rows.insert(&20, b"changed").expect("inserts");
                rows.remove(&22).expect("removes");
            }
            for (n, row) in range.enumerate() {
                seen.push(row.expect("scans"));
                // These rows are only in the table after the changes.
                rows.insert(&595, &vec![1; n % 3]).expect("inserts");
                rows.remove(&(2 * n as u32 + 61)).expect("removes");
            }
            assert_eq!(seen, model.into_iter().collect::<Vec<_>>(), "drops: {drops}, {read_before}");
        }
    }
}

#[test]
fn an_unused_iterator_over_a_dropped_table_returns_an_error() {
    let (db, _) = filled(10);
    let tx = db.begin().expect("begins");
    let mut range = tx.table(&ROWS).expect("opens").iter();
    tx.drop_table(ROWS.name()).expect("drops");
    let refused = range.next();
    assert!(matches!(refused, Some(Err(Error::Invalid(_)))), "{refused:?}");
    assert!(range.next().is_none());
}

#[test]
fn an_iterator_over_an_absent_table_shows_no_rows_of_a_later_one() {
    const LATER: TableDefinition<u32, [u8]> = TableDefinition::new("later");
    type Make = fn(&Transaction) -> Result<(), Error>;
    let ways: [Make; 4] = [
        |tx| tx.rename_table(&ROWS, &LATER).map(drop),
        |tx| tx.table(&LATER)?.insert(&1, b"created"),
        |tx| tx.table(&LATER)?.bulk_load([(1_u32, b"loaded".to_vec())]).map(drop),
        |tx| {
            tx.table(&LATER)?.insert(&1, b"created")?;
            tx.drop_table(&LATER)?;
            tx.rename_table(&ROWS, &LATER).map(drop)
        },
    ];
    for (way, make) in ways.into_iter().enumerate() {
        let (db, _) = filled(10);
        let tx = db.begin().expect("begins");
        let later = tx.table(&LATER).expect("opens");
        let (mut range, mut back) = (later.iter(), later.iter());
        make(&tx).expect("makes the table");
        assert!(range.next().is_none() && range.next().is_none(), "way {way}");
        assert!(back.next_back().is_none(), "way {way}");
        assert!(later.iter().next().is_some_and(|row| row.is_ok()), "way {way}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Next,
    NextBack,
    /// A value of the same length for each key, so that only bits flip.
    Write(u32),
    Lengthen(u32),
    Remove(u32),
    Savepoint,
    /// A rollback to the newest savepoint, or to an earlier one.
    RollBack(usize),
    NewIterator,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Next),
        4 => Just(Step::NextBack),
        2 => (0..800u32).prop_map(Step::Write),
        1 => (0..800u32).prop_map(Step::Lengthen),
        2 => (0..800u32).prop_map(Step::Remove),
        1 => Just(Step::Savepoint),
        1 => (0..2usize).prop_map(Step::RollBack),
        1 => Just(Step::NewIterator),
    ];
    // Runs of equal steps are long, so that batches grow; writes change adjacent rows.
    proptest::collection::vec((step, 1..60usize), 1..60).prop_map(|runs| {
        let repeat = |(step, n): (Step, usize)| -> Vec<Step> {
            let key = |key: u32, i: u32| (key + i) % 800;
            let each = |i: u32| match step {
                Step::Write(at) => Step::Write(key(at, i)),
                Step::Lengthen(at) => Step::Lengthen(key(at, i)),
                Step::Remove(at) => Step::Remove(key(at, i)),
                ref other => other.clone(),
            };
            let once = matches!(step, Step::Savepoint | Step::RollBack(_) | Step::NewIterator);
            (0..if once { 1 } else { n as u32 }).map(each).collect()
        };
        runs.into_iter().flat_map(repeat).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn an_iterator_used_from_both_ends_shows_the_table_at_its_begin(steps in steps()) {
        let (db, mut model) = filled(400);
        let tx = db.begin().expect("begins");
        let rows = tx.table(&ROWS).expect("opens");
        let mut range = rows.iter();
        // The rows that the iterator must still return, and the number of changes when it was created.
        let (mut rest, mut made_at) = (model.clone(), 0);
        let mut changes = 0;
        let mut savepoints = Vec::new();
        let mut is_undone = false;
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Next | Step::NextBack => {
                    let is_next = matches!(step, Step::Next);
                    let shown = if is_next { range.next() } else { range.next_back() };
                    if is_undone {
                        // An iterator that has returned its end, or its error, returns no more rows.
                        let is_refused = matches!(shown, Some(Err(Error::Invalid(_))));
                        prop_assert!(is_refused || rest.is_empty() && shown.is_none(), "{:?}", shown);
                        rest.clear();
                    } else {
                        let expected = if is_next { rest.pop_first() } else { rest.pop_last() };
                        prop_assert_eq!(shown.transpose().expect("scans"), expected);
                    }
                }
                Step::Write(key) | Step::Lengthen(key) => {
                    let mut new = value(key / 2, n as u8);
                    if matches!(step, Step::Lengthen(_)) {
                        new.extend([n as u8; 3]);
                    }
                    rows.insert(&key, &new).expect("writes");
                    model.insert(key, new);
                    changes += 1;
                }
                Step::Remove(key) => {
                    let old = model.remove(&key);
                    changes += u32::from(old.is_some());
                    prop_assert_eq!(rows.remove(&key).expect("removes"), old);
                }
                Step::Savepoint => savepoints.push((tx.savepoint().expect("open"), changes, model.clone())),
                Step::RollBack(skip) => {
                    savepoints.truncate(savepoints.len().saturating_sub(skip));
                    if let Some((savepoint, at, before)) = savepoints.pop() {
                        tx.rollback_to(savepoint).expect("rolls back");
                        (changes, model) = (at, before);
                        is_undone |= at < made_at;
                    }
                }
                Step::NewIterator => {
                    range = rows.iter();
                    (rest, made_at, is_undone) = (model.clone(), changes, false);
                }
            }
        }
        prop_assert_eq!(rows.iter().collect::<Result<BTreeMap<_, _>, _>>().expect("scans"), model);
    }
}

/// A short scan locks ranges of rows, not each row; its requests to the lock table are counted.
#[test]
fn a_scan_of_fifty_rows_asks_for_few_locks() -> Result<(), Error> {
    let (db, _) = filled(700);
    for backward in [false, true] {
        let tx = db.begin()?;
        let before = db.stats().locks.acquisitions;
        let mut rows = tx.table(&ROWS)?.range(200..);
        for _ in 0..50 {
            let row = if backward { rows.next_back() } else { rows.next() };
            row.expect("there are more")?;
        }
        let locks = db.stats().locks.acquisitions - before;
        // Locks of the table, of the first row, of a range for each further step of 2, 4, 8, … rows (split
        // where a leaf ends), and of the gaps there. A request for each row would be more than 63.
        assert!((6..=20).contains(&locks), "{locks} requests");
        tx.commit()?;
    }
    Ok(())
}

/// Counts the leaves to which a scan of 50 rows descends, for each kind of scan.
#[test]
fn a_scan_of_fifty_rows_descends_once_for_each_leaf() -> Result<(), Error> {
    let (db, _) = filled(700);
    let leaves = |scan: &dyn Fn() -> Result<usize, Error>| {
        let before = db.stats().scanned_leaves;
        assert_eq!(scan()?, 50);
        Ok::<u64, Error>(db.stats().scanned_leaves - before)
    };
    let tx = db.begin()?;
    let (rows, snapshot) = (tx.table(&ROWS)?, db.snapshot()?);
    let seen = snapshot.table(&ROWS)?;
    for from in [200, 300, 400] {
        let counts = [
            leaves(&|| Ok(rows.range(from..).take(50).count()))?,
            leaves(&|| Ok(rows.range(..from).rev().take(50).count()))?,
            leaves(&|| Ok(rows.range(Limit(from.., 50)).count()))?,
            leaves(&|| Ok(seen.range(from..).take(50).count()))?,
            leaves(&|| Ok(seen.range(..from).rev().take(50).count()))?,
            leaves(&|| Ok(seen.range(Limit(from.., 50)).count()))?,
        ];
        // Fifty rows need less than one leaf of 4 KiB. A descent for each step would visit six leaves, or
        // three with a snapshot.
        assert!(counts.iter().all(|count| *count <= 2), "{counts:?} from {from}");
    }
    tx.commit()
}

#[test]
fn a_scan_with_a_limit_locks_no_row_beyond_it_and_asks_once_for_each_leaf() -> Result<(), Error> {
    let (db, model) = filled(700);
    for (backward, limit) in [(false, 50), (true, 50), (false, 1), (false, 7)] {
        let scanner = without_waits(&db)?;
        assert!(scanner.table(&ROWS)?.get(&1000)?.is_some()); // looks up the table
        let before = db.stats().locks.acquisitions;
        let rows = scanner.table(&ROWS)?.range(Limit(200..400, limit));
        let keys = if backward {
            rows.rev().map(|row| Ok(row?.0)).collect()
        } else {
            rows.map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>()
        }?;
        // A range in each of two leaves, and the gaps at the ends of a leaf.
        assert!(db.stats().locks.acquisitions - before <= 4, "{}", db.stats().locks.acquisitions - before);
        assert_eq!(keys.len(), limit);
        let writer = without_waits(&db)?;
        let table = writer.table(&ROWS)?;
        for key in model.range(200..400).map(|row| *row.0) {
            let is_locked = is_refused(&table.insert(&key, b"changed"));
            assert_eq!(is_locked, keys.contains(&key), "{key} of {limit} rows, backward: {backward}");
        }
    }
    Ok(())
}

/// Begins a transaction with `set_nowait`: a call that would wait fails.
fn without_waits(db: &Database) -> Result<Transaction, Error> {
    let tx = db.begin()?;
    tx.set_nowait(true)?;
    Ok(tx)
}

fn is_refused<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::WouldBlock { .. }))
}

#[test]
fn scanned_rows_stay_unchanged_until_the_transaction_ends() -> Result<(), Error> {
    let (db, _) = filled(700);
    let scanner = without_waits(&db)?;
    let seen = visited(&scanner, (Bound::Included(100), Bound::Excluded(301)), usize::MAX)?;
    assert_eq!(seen.len(), 101);
    let other = without_waits(&db)?;
    let rows = other.table(&ROWS)?;
    for key in [100, 102, 200, 300] {
        assert!(is_refused(&rows.insert(&key, b"changed")), "the row {key}");
        assert!(is_refused(&rows.remove(&key)), "the row {key}");
        assert!(is_refused(&rows.insert(&(key - 1), b"new")), "into the gap below {key}");
        assert_eq!(rows.get(&key)?, Some(value(key / 2, 0)), "readers share the row {key}");
    }
    assert!(is_refused(&rows.insert(&301, b"new")), "into the gap above the last row");
    for key in [96, 97, 303, 304] {
        rows.insert(&key, b"outside")?;
    }
    // The scanner's own changes, and the gap above a new row, which the scanner has read.
    let own = scanner.table(&ROWS)?;
    other.abort()?;
    own.insert(&151, b"own")?;
    own.remove(&200)?;
    own.insert(&250, b"own")?;
    let other = without_waits(&db)?;
    let rows = other.table(&ROWS)?;
    for key in [149, 151, 199, 200, 250, 298] {
        assert!(is_refused(&rows.insert(&key, b"new")), "{key}");
    }
    assert!(is_refused(&rows.get(&250)), "written by the scanner");
    scanner.commit()?;
    for key in [149, 151, 199, 200, 250, 298] {
        rows.insert(&key, b"new")?;
    }
    other.commit()?;
    Ok(())
}

/// A scan that fails at a row that another transaction has locked has locked no row after it.
#[test]
fn a_refused_scan_holds_no_rows_behind_the_one_that_refused_it() -> Result<(), Error> {
    let (db, _) = filled(700);
    let (writer, scanner, other) = (without_waits(&db)?, without_waits(&db)?, without_waits(&db)?);
    writer.table(&ROWS)?.insert(&140, b"changed")?;
    let seen = visited(&scanner, (Bound::Included(100), Bound::Excluded(301)), usize::MAX);
    assert!(is_refused(&seen), "{seen:?}");
    for key in [160, 161, 240] {
        other.table(&ROWS)?.insert(&key, b"new")?;
    }
    writer.table(&ROWS)?.insert(&150, b"its own way is free")?;
    writer.commit()?;
    other.commit()?;
    assert_eq!(visited(&scanner, (Bound::Included(100), Bound::Excluded(301)), usize::MAX)?.len(), 102);
    scanner.commit()
}
