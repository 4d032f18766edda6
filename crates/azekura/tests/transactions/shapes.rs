//! Tests of calls with each type of key and value, as a user would write them: they compile without
//! annotations and without clones, and find the rows.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use azekura::{Database, Error, Key, KeyRange, Prefix, Serde, Table, TableDefinition, Value};

const NUMBERS: TableDefinition<u64, u64> = TableDefinition::new("numbers");
const SIGNED: TableDefinition<i32, bool> = TableDefinition::new("signed");
const FLAGS: TableDefinition<bool, f64> = TableDefinition::new("flags");
const TEXT: TableDefinition<str, str> = TableDefinition::new("text");
const OWNED_TEXT: TableDefinition<String, String> = TableDefinition::new("owned text");
const TEXT_REF: TableDefinition<&str, &str> = TableDefinition::new("text by reference");
const BYTES: TableDefinition<[u8], [u8]> = TableDefinition::new("bytes");
const OWNED_BYTES: TableDefinition<Vec<u8>, Vec<u8>> = TableDefinition::new("owned bytes");
const ARRAYS: TableDefinition<[u8; 3], [u8; 2]> = TableDefinition::new("arrays");
const OPTIONS: TableDefinition<Option<u64>, Option<u64>> = TableDefinition::new("options");
const OPTIONAL_TEXT: TableDefinition<Option<String>, Option<String>> = TableDefinition::new("optional text");
const PAIRS: TableDefinition<(String, u64), (String, u64)> = TableDefinition::new("pairs");
const TRIPLES: TableDefinition<(u32, Vec<u8>, Option<u16>), (bool, [u8; 2], String)> =
    TableDefinition::new("triples");
const QUADRUPLES: TableDefinition<(i8, String, bool, [u8; 2]), (u8, u8, u8, u8)> =
    TableDefinition::new("quadruples");
const NESTED: TableDefinition<((String, u8), u64), Option<(String, u8)>> = TableDefinition::new("nested");
const SERDE: TableDefinition<u64, Serde<BTreeMap<String, Vec<u32>>>> = TableDefinition::new("serde");

/// Returns the number of rows in a range, as counted by each call that accepts a range.
macro_rules! count {
    ($db:expr, $table:expr, $range:expr) => {{
        $db.transact(|tx| {
            let table = tx.table(&$table)?;
            let found = table.range($range).count();
            assert_eq!(table.range($range).rev().count(), found);
            assert_eq!(table.range_for_update($range).count(), found);
            let mut rows = 0;
            table.for_each($range, |row| {
                row.key()?;
                rows += 1;
                Ok(ControlFlow::Continue(()))
            })?;
            assert_eq!(rows, found);
            let snapshot = $db.snapshot()?;
            let old = snapshot.table(&$table)?;
            assert_eq!(old.range($range).count(), found);
            let mut rows = 0;
            old.for_each($range, |_| {
                rows += 1;
                Ok(ControlFlow::Continue(()))
            })?;
            assert_eq!(rows, found);
            let before = tx.savepoint()?;
            assert_eq!(table.remove_range($range)?, found as u64);
            assert_eq!(table.range($range).count(), 0);
            tx.rollback_to(before)?;
            Ok(found)
        })?
    }};
}

/// Stores, reads, changes and removes a row by each call that accepts a key.
macro_rules! row {
    ($db:expr, $table:expr, $key:expr, $value:expr) => {{
        $db.transact(|tx| {
            let table = tx.table(&$table)?;
            table.insert($key, $value)?;
            assert!(!table.insert_if_absent($key, $value)?);
            let value = table.get($key)?.expect("was stored");
            assert_eq!(table.replace($key, $value)?, Some(value.clone()));
            assert_eq!(table.get_for_update($key)?, Some(value.clone()));
            assert!(table.with_value($key, |_| Ok(()))?.is_some());
            assert!(table.compare_and_set($key, Some($value), Some($value))?);
            assert!(table.compare_and_set($key, Some(&value), Some(&value))?);
            assert!(table.contains($key)?);
            table.update($key, |old| old)?;
            assert!(table.delete($key)?);
            assert_eq!(table.remove($key)?, None);
            table.insert($key, &value)?;
            let (key, _) = table.range(..).next().expect("one row")?;
            assert!(table.contains(&key)?, "a key that was read is a key to read with");
            Ok(())
        })?;
        let snapshot = $db.snapshot()?;
        let table = snapshot.table(&$table)?;
        assert!(table.contains($key)?);
        assert!(table.get($key)?.is_some());
        assert!(table.with_value($key, |_| Ok(()))?.is_some());
    }};
}

#[test]
fn numbers_and_flags() -> Result<(), Error> {
    let db = Database::in_memory()?;
    row!(db, NUMBERS, &7, &1);
    row!(db, NUMBERS, &9, &1);
    let (six, small) = (6_u64, 8_u32);
    assert_eq!(count!(db, NUMBERS, ..), 2);
    assert_eq!(count!(db, NUMBERS, 8..), 1);
    assert_eq!(count!(db, NUMBERS, &six..&8), 1);
    assert_eq!(count!(db, NUMBERS, six..u64::from(small)), 1);
    assert_eq!(count!(db, NUMBERS, ..=9), 2);
    assert_eq!(count!(db, NUMBERS, 7..=9), 2);
    assert_eq!(count!(db, NUMBERS, (Bound::Excluded(7), Bound::Unbounded)), 1);
    assert_eq!(count!(db, NUMBERS, (Bound::Excluded(&7), Bound::Included(&9))), 1);
    let is_there = db.transact(|tx| tx.table(&NUMBERS)?.contains(&small.into()))?;
    assert!(!is_there);
    row!(db, SIGNED, &-5, &true);
    assert_eq!(count!(db, SIGNED, -6..), 1);
    assert_eq!(count!(db, SIGNED, ..-5), 0);
    row!(db, FLAGS, &true, &0.5);
    assert_eq!(count!(db, FLAGS, false..), 1);
    assert_eq!(count!(db, FLAGS, ..true), 0);
    Ok(())
}

#[test]
fn text_and_bytes() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let (name, shared, cow) = ("Nara".to_owned(), Arc::<str>::from("Nara"), Cow::Borrowed("Nara"));
    macro_rules! text {
        ($($table:expr),*) => {$(
            row!(db, $table, "Nara", "text");
            row!(db, $table, &name, &name);
            row!(db, $table, name.as_str(), name.as_str());
            row!(db, $table, &name.clone(), &format!("{name}!"));
            row!(db, $table, &shared, &shared);
            row!(db, $table, &cow, &cow);
            assert_eq!(count!(db, $table, ..), 1);
            assert_eq!(count!(db, $table, "M".."O"), 1);
            assert_eq!(count!(db, $table, name.as_str()..), 1);
            assert_eq!(count!(db, $table, &name..), 1);
            assert_eq!(count!(db, $table, name.clone()..), 1);
            assert_eq!(count!(db, $table, ..="Nara"), 1);
            assert_eq!(count!(db, $table, (Bound::Excluded("Nara"), Bound::Unbounded)), 0);
            assert_eq!(count!(db, $table, Prefix("Na")), 1);
            assert_eq!(count!(db, $table, Prefix(&name)), 1);
        )*};
    }
    text!(TEXT, OWNED_TEXT, TEXT_REF);
    let bytes = b"key".to_vec();
    macro_rules! bytes {
        ($($table:expr),*) => {$(
            row!(db, $table, b"key", b"value");
            row!(db, $table, &bytes, &bytes);
            row!(db, $table, bytes.as_slice(), bytes.as_slice());
            row!(db, $table, &[107, 101, 121], &[0; 300]);
            row!(db, $table, &[107, 101, 121], &[]);
            row!(db, $table, "key", "value");
            assert_eq!(count!(db, $table, ..), 1);
            assert_eq!(count!(db, $table, b"a"..b"l"), 1);
            assert_eq!(count!(db, $table, b"a".as_slice()..), 1);
            assert_eq!(count!(db, $table, &bytes[..]..), 1);
            assert_eq!(count!(db, $table, bytes.clone()..=bytes.clone()), 1);
            assert_eq!(count!(db, $table, ..[0xff]), 1);
            assert_eq!(count!(db, $table, Prefix(b"ke")), 1);
        )*};
    }
    bytes!(BYTES, OWNED_BYTES);
    row!(db, ARRAYS, b"abc", b"de");
    row!(db, ARRAYS, &[1, 2, 3], &[4, 5]);
    assert_eq!(count!(db, ARRAYS, ..), 2);
    assert_eq!(count!(db, ARRAYS, [1, 2, 4]..), 1);
    assert_eq!(count!(db, ARRAYS, b"abc"..=b"abc"), 1);
    assert_eq!(count!(db, ARRAYS, Prefix(b"ab")), 1);
    Ok(())
}

#[test]
fn options_and_tuples() -> Result<(), Error> {
    let db = Database::in_memory()?;
    row!(db, OPTIONS, &None, &Some(1));
    row!(db, OPTIONS, &Some(5), &Some(1));
    assert_eq!(count!(db, OPTIONS, ..), 2);
    assert_eq!(count!(db, OPTIONS, None..Some(5)), 1);
    assert_eq!(count!(db, OPTIONS, Some(0)..), 1);
    row!(db, OPTIONAL_TEXT, &Some("Nara"), &Some("Nara"));
    row!(db, OPTIONAL_TEXT, &Some("Nara".to_owned()), &Some("Nara".to_owned()));
    row!(db, OPTIONAL_TEXT, &None::<&str>, &Some("nothing"));
    assert_eq!(count!(db, OPTIONAL_TEXT, Some("M")..), 1);
    let name = "Nara".to_owned();
    row!(db, PAIRS, &("Nara", 0), &("Nara", 0));
    row!(db, PAIRS, &("Nara", 0), &("Nara".to_owned(), 0));
    row!(db, PAIRS, &(&name, 1), &(&name, 1));
    row!(db, PAIRS, &(name.clone(), 1), &(name.as_str(), 1));
    assert_eq!(count!(db, PAIRS, ..), 2);
    assert_eq!(count!(db, PAIRS, ("Nara", 1)..), 1);
    assert_eq!(count!(db, PAIRS, ("Nara", 0)..=("Nara", u64::MAX)), 2);
    assert_eq!(count!(db, PAIRS, (&name, 0)..(&name, 1)), 1);
    assert_eq!(count!(db, PAIRS, (Bound::Excluded(("Nara", 0)), Bound::Unbounded)), 1);
    assert_eq!(count!(db, PAIRS, (Bound::Excluded(&(name.clone(), 0)), Bound::Unbounded)), 1);
    assert_eq!(count!(db, PAIRS, Prefix(("Nara",))), 2);
    assert_eq!(count!(db, PAIRS, Prefix(&(&name,))), 2);
    assert_eq!(count!(db, PAIRS, Prefix(("Nar",))), 0);
    row!(db, TRIPLES, &(1, b"bytes", None), &(true, [1, 2], "text"));
    row!(db, TRIPLES, &(1, vec![1], Some(2)), &(false, *b"ab", String::new()));
    assert_eq!(count!(db, TRIPLES, (1, [2], None)..), 1);
    assert_eq!(count!(db, TRIPLES, Prefix((1,))), 2);
    assert_eq!(count!(db, TRIPLES, Prefix((1, b"bytes"))), 1);
    row!(db, QUADRUPLES, &(-1, "text", true, [1, 2]), &(1, 2, 3, 4));
    assert_eq!(count!(db, QUADRUPLES, ..=(-1, "text", true, [1, 1])), 0);
    assert_eq!(count!(db, QUADRUPLES, Prefix((-1, "text", true))), 1);
    row!(db, NESTED, &(("Nara", 1), 2), &Some(("Uji", 3)));
    assert_eq!(count!(db, NESTED, (("Nara", 1), 0)..), 1);
    assert_eq!(count!(db, NESTED, Prefix((("Nara", 1),))), 1);
    Ok(())
}

#[test]
fn serde_values_and_bulk_loads() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let value = BTreeMap::from([("a".to_owned(), vec![1, 2])]);
    row!(db, SERDE, &1, &value);
    db.transact(|tx| {
        let table = tx.table(&SERDE)?;
        table.insert(&2, &[("b".to_owned(), vec![3])].into())?;
        table.insert(&3, &BTreeMap::default())?;
        table.retain(|_, _| false).map(drop)
    })?;
    let (rows, texts) = (BTreeMap::from([(1, value)]), BTreeMap::from([("b".to_owned(), "c".to_owned())]));
    db.transact(|tx| {
        assert_eq!(tx.table(&SERDE)?.bulk_load(&rows)?, 1);
        assert_eq!(tx.table(&SERDE)?.bulk_load_unsorted(rows.clone(), 1 << 20)?, 1);
        assert_eq!(tx.table(&NUMBERS)?.bulk_load((0..9).map(|n| (n, n)))?, 9);
        assert_eq!(tx.table(&TEXT)?.bulk_load(&texts)?, 1);
        assert_eq!(tx.table(&OWNED_TEXT)?.bulk_load(texts.clone())?, 1);
        assert_eq!(tx.table(&PAIRS)?.bulk_load([(("a", 1), ("b", 2))])?, 1);
        assert_eq!(tx.table(&BYTES)?.bulk_load([(b"a", vec![1]), (b"b", vec![2])])?, 2);
        assert_eq!(tx.table(&ARRAYS)?.bulk_load([([0; 3], [1; 2])])?, 1);
        Ok(())
    })
}

/// Uses keys, values and ranges in a function that is generic over tables.
fn move_row<K: Key + ?Sized, V: Value + ?Sized>(
    table: &Table<'_, K, V>,
    from: &K,
    to: &K::Owned,
    all: impl KeyRange<K>,
) -> Result<Vec<K::Owned>, Error> {
    if let Some(value) = table.remove(from)? {
        table.insert(to, &value)?;
    }
    let keys = table.range(all).map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>()?;
    for key in &keys {
        assert!(table.contains(key)? && table.range(key..=key).count() == 1);
    }
    Ok(keys)
}

#[test]
fn generic_functions_pass_on_keys() -> Result<(), Error> {
    let db = Database::in_memory()?;
    db.transact(|tx| {
        let pairs = tx.table(&PAIRS)?;
        pairs.insert(&("a", 1), &("x", 1))?;
        assert_eq!(move_row(&pairs, &("a".into(), 1), &("b".into(), 2), ..)?, [("b".to_owned(), 2)]);
        let text = tx.table(&TEXT)?;
        text.insert("a", "x")?;
        assert_eq!(move_row(&text, "a", &"b".into(), "b"..)?, ["b"]);
        Ok(())
    })
}
