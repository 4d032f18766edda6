//! Scans from both ends, lent and given, with writes in between: against a `BTreeMap`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::ops::ControlFlow::{Break, Continue};

use azekura::{Database, Error, Table, Transaction};
use proptest::prelude::*;

const ROWS: Table<u32, [u8]> = Table::new("rows");

/// Some values are too large for a page.
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
    tx.table(&ROWS)?.visit(range, |row| {
        seen.push((row.key()?, row.value()?));
        assert_eq!(row.key_bytes(), row.key()?.to_be_bytes());
        Ok(if seen.len() == limit { Break(()) } else { Continue(()) })
    })?;
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
            }
        }
    }
}

#[test]
fn an_error_of_the_visitor_ends_the_visit_and_comes_back() {
    let (db, _) = filled(10);
    let tx = db.begin().expect("begins");
    let mut seen = 0;
    let result = tx.table(&ROWS).expect("opens").visit::<u32>(.., |_| {
        seen += 1;
        Err(Error::Invalid("enough".into()))
    });
    assert!(matches!(result, Err(Error::Invalid(message)) if message == "enough"));
    assert_eq!(seen, 1);
}

#[test]
fn a_visit_sees_what_its_visitor_writes_before_it() {
    let (db, mut model) = filled(300);
    let tx = db.begin().expect("begins");
    let rows = tx.table(&ROWS).expect("opens");
    let mut seen = Vec::new();
    rows.visit::<u32>(.., |row| {
        let key = row.key()?;
        seen.push(key);
        if key % 10 == 0 && key < 590 {
            rows.insert(&(key + 1), b"new")?;
            rows.remove(&(key + 2))?;
            model.insert(key + 1, b"new".to_vec());
            model.remove(&(key + 2));
        }
        Ok(Continue(()))
    })
    .expect("visits");
    assert_eq!(seen, model.keys().copied().collect::<Vec<_>>());
}

#[derive(Clone, Debug)]
enum Step {
    Next,
    NextBack,
    Write(u32),
    Remove(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Next),
        4 => Just(Step::NextBack),
        1 => (0..800u32).prop_map(Step::Write),
        1 => (0..800u32).prop_map(Step::Remove),
    ];
    // Long runs of each kind, so that batches grow.
    proptest::collection::vec((step, 1..60usize), 1..40)
        .prop_map(|runs| runs.into_iter().flat_map(|(step, n)| std::iter::repeat_n(step, n)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn an_iterator_used_from_both_ends_while_rows_change_gives_each_row_that_is_there_once(steps in steps()) {
        let (db, mut model) = filled(400);
        let tx = db.begin().expect("begins");
        let rows = tx.table(&ROWS).expect("opens");
        let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
        let mut range = rows.iter();
        let mut over = false;
        for (n, step) in steps.into_iter().enumerate() {
            let rest = || model.range((lower, upper));
            match step {
                Step::Next | Step::NextBack if over => prop_assert!(range.next().is_none()),
                Step::Next => {
                    let expected = rest().next().map(|(&k, v)| (k, v.clone()));
                    prop_assert_eq!(range.next().transpose().expect("scans"), expected.clone());
                    expected.map_or_else(|| over = true, |(key, _)| lower = Bound::Excluded(key));
                }
                Step::NextBack => {
                    let expected = rest().next_back().map(|(&k, v)| (k, v.clone()));
                    prop_assert_eq!(range.next_back().transpose().expect("scans"), expected.clone());
                    expected.map_or_else(|| over = true, |(key, _)| upper = Bound::Excluded(key));
                }
                Step::Write(key) => {
                    let new = value(key, n as u8);
                    rows.insert(&key, &new).expect("writes");
                    model.insert(key, new);
                }
                Step::Remove(key) => {
                    prop_assert_eq!(rows.remove(&key).expect("removes"), model.remove(&key));
                }
            }
            // `BTreeMap::range` panics where the ends cross; nothing is left there anyway.
            if let (Bound::Excluded(a), Bound::Excluded(b)) = (lower, upper) && a >= b {
                break;
            }
        }
    }
}

#[test]
fn a_walk_over_the_starts_of_values_reads_one_page_of_a_large_one() {
    let table: Table<[u8], [u8]> = Table::new("t");
    let db = Database::builder().cache_bytes(1 << 20).open_in_memory().expect("opens");
    let value: Vec<u8> = (0..400_000_u32).map(|i| (i % 251) as u8).collect();
    db.transact(|tx| {
        let t = tx.table(&table)?;
        t.insert(b"small", b"abc")?;
        (0..10_u8).try_for_each(|i| t.insert(&[i], &value))
    })
    .expect("fills");
    let walk = || {
        let before = db.stats().cache.misses;
        let mut found = Vec::new();
        db.transact(|tx| {
            found.clear();
            tx.table(&table)?.visit_starts::<Vec<u8>>(.., 9, |key, start| {
                found.push((key.to_vec(), start.to_vec()));
                Ok(Continue(()))
            })
        })
        .expect("walks");
        (found, db.stats().cache.misses - before)
    };
    let (found, misses) = walk();
    let mut wanted: Vec<_> = (0..10_u8).map(|i| (vec![i], value[..9].to_vec())).collect();
    wanted.push((b"small".to_vec(), b"abc".to_vec()));
    assert_eq!(found, wanted);
    // Each has some fifty pages, and all of them together are four times the cache.
    assert!(misses <= 40, "{misses} pages were read");
}
