//! Tests of tables that are created and dropped: no transaction uses a dropped table, whatever entries are
//! cached.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use azekura::{Database, Error, MultimapTableDefinition, Prefix, TableDefinition, Transaction};
use azekura_io::{Fs, MemFs};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const ROWS: TableDefinition<u32, u32> = TableDefinition::new("rows");
const OTHER: TableDefinition<u32, u32> = TableDefinition::new("other");

fn get(tx: &Transaction, key: u32) -> Result<Option<u32>, Error> {
    tx.table(&ROWS)?.get(&key)
}

fn put(tx: &Transaction, key: u32, value: u32) -> Result<(), Error> {
    tx.table(&ROWS)?.insert(&key, &value)
}

#[test]
fn a_table_dropped_and_made_again_is_not_mistaken_for_the_old_one() {
    let db = Database::in_memory().expect("opens");
    for round in 0..20 {
        db.transact(|tx| put(tx, 1, round)).expect("writes");
        assert_eq!(db.transact(|tx| get(tx, 1)).expect("reads"), Some(round));
        // Other transactions cache the table while this one drops it and then rolls the drop back.
        let tx = db.begin().expect("begins");
        let before = tx.savepoint().expect("is open");
        assert!(tx.drop_table("rows").expect("drops"));
        assert_eq!(get(&tx, 1).expect("reads"), None);
        tx.rollback_to(before).expect("rolls back");
        assert_eq!(get(&tx, 1).expect("reads"), Some(round));
        tx.abort().expect("aborts");
        assert_eq!(db.transact(|tx| get(tx, 1)).expect("reads"), Some(round));
        assert!(db.transact(|tx| tx.drop_table("rows")).expect("drops"));
        assert_eq!(db.transact(|tx| get(tx, 1)).expect("reads"), None);
        assert!(!db.transact(|tx| tx.table_exists("rows")).expect("looks"));
    }
}

#[test]
fn a_table_with_an_undone_creation_does_not_exist() {
    let db = Database::in_memory().expect("opens");
    for _ in 0..20 {
        let tx = db.begin().expect("begins");
        put(&tx, 1, 1).expect("writes");
        tx.abort().expect("aborts");
        assert_eq!(db.transact(|tx| get(tx, 1)).expect("reads"), None);
        assert!(!db.transact(|tx| tx.table_exists("rows")).expect("looks"));
    }
    assert_eq!(db.table_names().expect("lists"), Vec::<String>::new());
}

#[test]
fn dropping_and_making_under_many_readers_never_shows_half_a_table() {
    let db = Database::in_memory().expect("opens");
    let make = |value| {
        db.transact(|tx| {
            tx.drop_table("rows")?;
            (0..50).try_for_each(|key| put(tx, key, value))
        })
    };
    make(0).expect("makes");
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < 60 {
                        let seen = db
                            .transact(|tx| {
                                tx.table(&OTHER)?.get(&0)?;
                                tx.table(&ROWS)?.iter().collect::<Result<Vec<_>, _>>()
                            })
                            .expect("reads");
                        assert_eq!(seen.len(), 50);
                        assert!(seen.iter().all(|(_, value)| *value == seen[0].1 && *value >= last));
                        last = seen[0].1;
                    }
                })
            })
            .collect();
        (1..=60).for_each(|value| make(value).expect("makes"));
        readers.into_iter().for_each(|reader| reader.join().expect("a reader failed"));
    });
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_table_is_refused_to_other_types_and_lists_its_own() {
    let db = Database::in_memory().expect("opens");
    let wrong_value = TableDefinition::<u32, i32>::new("rows");
    let wrong_key = TableDefinition::<i32, u32>::new("rows");
    let refused = |result: Result<(), Error>| {
        let Err(Error::TableTypeMismatch { table, stored, asked }) = result else { panic!("{result:?}") };
        assert_eq!((table.as_str(), stored.to_string()), ("rows", "keys u32, values u32".into()));
        asked.to_string()
    };
    let tx = db.begin().expect("begins");
    put(&tx, 1, 7).expect("writes");
    for tx in [tx, db.begin().expect("begins"), db.begin().expect("begins")] {
        assert_eq!(get(&tx, 1).expect("reads"), Some(7));
        let wrong = tx.table(&wrong_value).expect("a handle");
        assert_eq!(refused(wrong.get(&1).map(drop)), "keys u32, values i32");
        refused(wrong.insert(&2, &2));
        refused(wrong.remove(&1).map(drop));
        refused(wrong.iter().try_for_each(|row| row.map(drop)));
        refused(wrong.get_for_update(&1).map(drop));
        assert_eq!(
            refused(tx.table(&wrong_key).and_then(|t| t.contains(&1)).map(drop)),
            "keys i32, values u32"
        );
        assert_eq!(get(&tx, 1).expect("reads"), Some(7));
        let raw = TableDefinition::raw("rows");
        let bytes = tx.table(&raw).expect("a handle").get(&1_u32.to_be_bytes()).expect("reads");
        assert_eq!(bytes, Some(7_u32.to_le_bytes().to_vec()));
        tx.commit().expect("commits");
    }
    // After the drop, the name can be used with any types, in the same transaction.
    db.transact(|tx| {
        tx.drop_table("rows")?;
        tx.table(&wrong_key)?.insert(&-1, &1)?;
        assert!(matches!(get(tx, 1), Err(Error::TableTypeMismatch { .. })));
        tx.table(&TableDefinition::raw("bytes"))?.insert(b"k", b"v")
    })
    .expect("makes it anew");
    let tables = db.tables().expect("lists");
    let listed: Vec<_> = tables.iter().map(|t| (t.name.as_str(), t.types.to_string())).collect();
    let expected = [("bytes", "keys bytes, values bytes"), ("rows", "keys i32, values u32")];
    assert_eq!(listed, expected.map(|(name, types)| (name, types.to_owned())));
}

#[test]
fn types_outlast_a_restart_and_owned_text_is_text() {
    let fs = std::sync::Arc::new(azekura_io::MemFs::new());
    let open = || Database::builder().file_system(fs.clone()).open("db").expect("opens");
    let db = open();
    let names = "names".to_owned();
    db.transact(|tx| {
        tx.table(&TableDefinition::<(String, u64), str>::named(names.as_str()))?.insert(&("a", 1), "v")
    })
    .expect("writes");
    db.close().expect("closes");
    let db = open();
    let same = TableDefinition::<(&str, u64), str>::new("names");
    assert_eq!(db.transact(|tx| tx.table(&same)?.get(&("a", 1))).expect("reads"), Some("v".into()));
    let other = TableDefinition::<(String, u32), str>::new("names");
    let refused = db.transact(|tx| tx.table(&other)?.first());
    assert!(matches!(refused, Err(Error::TableTypeMismatch { .. })), "{refused:?}");
}

#[test]
fn a_renamed_table_has_its_rows_under_the_new_name_only() {
    let db = Database::in_memory().expect("opens");
    let fill = |tx: &Transaction| (0..100).try_for_each(|key| put(tx, key, key));
    let count =
        |tx: &Transaction, name: &'static str| tx.table(&TableDefinition::<u32, u32>::new(name))?.len();
    db.transact(fill).expect("fills");
    for round in 0..3 {
        // Other transactions cache the old name meanwhile.
        assert_eq!(db.transact(|tx| count(tx, "rows")).expect("counts"), 100, "round {round}");
        let tx = db.begin().expect("begins");
        let before = tx.savepoint().expect("is open");
        assert!(tx.rename_table(&ROWS, "moved").expect("renames"));
        assert_eq!((count(&tx, "rows").unwrap(), count(&tx, "moved").unwrap()), (0, 100));
        // A rollback of later changes keeps the new name.
        let after = tx.savepoint().expect("is open");
        tx.table(&OTHER).unwrap().insert(&1, &1).expect("writes");
        tx.rollback_to(after).expect("rolls back");
        if round == 1 {
            tx.rollback_to(before).expect("rolls back");
            assert_eq!((count(&tx, "rows").unwrap(), count(&tx, "moved").unwrap()), (100, 0));
            tx.commit().expect("commits");
            continue;
        }
        tx.commit().expect("commits");
        assert_eq!(db.table_names().expect("lists"), ["moved"]);
        let counts = db.transact(|tx| Ok((count(tx, "rows")?, count(tx, "moved")?)));
        assert_eq!(counts.expect("counts"), (0, 100));
        db.transact(|tx| tx.rename_table("moved", &ROWS)).expect("renames");
    }
    db.transact(|tx| tx.table(&OTHER)?.insert(&1, &1)).expect("writes");
    let refused = db.transact(|tx| tx.rename_table(&ROWS, &OTHER));
    assert!(matches!(refused, Err(Error::TableExists { ref name }) if name == "other"), "{refused:?}");
    assert!(!db.transact(|tx| tx.rename_table("absent", "new")).expect("looks"));
    assert!(db.transact(|tx| tx.drop_table(&ROWS)).expect("drops"));
    assert_eq!(db.table_names().expect("lists"), ["other"]);
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

/// A handle refers to a table by name: it does not keep the table's old name after its transaction has
/// renamed or dropped the table.
#[test]
fn a_handle_that_was_made_before_finds_what_its_name_has_now() {
    let db = Database::in_memory().expect("opens");
    for is_dropped in [false, true] {
        db.transact(|tx| (0..1_000).try_for_each(|key| put(tx, key, key))).expect("fills");
        let tx = db.begin().expect("begins");
        let rows = tx.table(&ROWS).expect("a handle");
        let mut iterator = rows.iter();
        assert_eq!(iterator.next().expect("a row").expect("reads"), (0, 0));
        if is_dropped {
            assert!(tx.drop_table(&ROWS).expect("drops"));
        } else {
            assert!(tx.rename_table(&ROWS, "moved").expect("renames"));
        }
        assert_eq!((rows.get(&1).expect("reads"), rows.len().expect("counts")), (None, 0));
        // The iterator continues over the table for which it was created.
        assert!(iterator.map(|row| row.expect("reads")).eq((1..1_000).map(|key| (key, key))));
        rows.insert(&7, &8).expect("makes a table of the name");
        tx.commit().expect("commits");
        let found = db.transact(|tx| Ok((tx.table(&ROWS)?.len()?, tx.table(&ROWS)?.get(&7)?)));
        assert_eq!(found.expect("reads"), (1, Some(8)));
        assert_eq!(
            db.table_names().expect("lists"),
            if is_dropped { vec!["rows"] } else { vec!["moved", "rows"] }
        );
        db.transact(|tx| Ok((tx.drop_table(&ROWS)?, tx.drop_table("moved")?))).expect("drops");
    }
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn rows_are_counted_changed_compared_and_removed_as_in_a_map() -> Result<(), Error> {
    let db = Database::in_memory()?;
    db.transact(|tx| {
        let rows = tx.table(&ROWS)?;
        assert!(rows.is_empty()? && rows.len()? == 0);
        assert!(!rows.compare_and_set(&1, Some(&0), Some(&1))?, "there is no table yet");
        assert!(rows.compare_and_set(&1, None, None)? && rows.compare_and_set(&1, None, Some(&7))?);
        assert!(!rows.compare_and_set(&1, None, Some(&8))? && !rows.compare_and_set(&1, Some(&8), None)?);
        assert!(rows.compare_and_set(&1, Some(&7), Some(&9))? && rows.get(&1)? == Some(9));
        assert!(rows.compare_and_set(&1, Some(&9), None)? && rows.is_empty()?);
        for key in 0..5_000 {
            rows.update(&(key % 2_500), |old| Some(old.unwrap_or(0) + 1))?;
        }
        assert!(rows.len()? == 2_500 && rows.iter().all(|row| row.is_ok_and(|(_, value)| value == 2)));
        rows.update(&7, |old| (old != Some(2)).then_some(0))?;
        assert_eq!((rows.get(&7)?, rows.len()?), (None, 2_499));
        assert_eq!(rows.remove_range(100..2_400)?, 2_300);
        assert_eq!(rows.remove_range(100..2_400)?, 0);
        assert_eq!(rows.retain_in(..50, |key, _| key % 2 == 0)?, 24);
        let odd = rows.extract_if(50..2_450, |key, value| key % 2 == 1 && *value == 2)?;
        assert!(
            odd.into_iter().eq((50..100).chain(2_400..2_450).filter(|key| key % 2 == 1).map(|key| (key, 2)))
        );
        assert_eq!(rows.retain(|key, _| key % 2 == 0)?, 25);
        let kept = (&rows).into_iter().map(|row| row.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
        assert!(kept.iter().copied().eq((0..100).chain(2_400..2_500).filter(|key| key % 2 == 0)));
        Ok(())
    })
}

#[test]
fn a_predicate_that_panics_removes_nothing() {
    let db = Database::in_memory().expect("opens");
    db.transact(|tx| (0..100).try_for_each(|key| put(tx, key, key))).expect("fills");
    let tx = db.begin().expect("begins");
    let rows = tx.table(&ROWS).expect("a handle");
    let retain = || rows.retain(|key, _| if key == 90 { panic!("the predicate fails") } else { false });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(retain)).is_err());
    let extract =
        || rows.extract_if(.., |&key, _| if key == 90 { panic!("the predicate fails") } else { true });
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(extract)).is_err());
    tx.commit().expect("commits");
    assert_eq!(db.transact(|tx| tx.table(&ROWS)?.len()).expect("counts"), 100);
}

#[test]
fn a_value_that_cannot_be_read_again_is_not_stored() {
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
    }
    const EITHERS: TableDefinition<u32, azekura::Serde<Either>> = TableDefinition::new("eithers");
    let db = Database::in_memory().expect("opens");
    let refused = db.transact(|tx| tx.table(&EITHERS)?.insert(&1, &Either::Number(7)));
    let Err(error @ Error::Encode { .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(error.kind(), azekura::ErrorKind::Invalid);
    let cause = std::error::Error::source(&error).and_then(std::error::Error::source);
    assert!(cause.is_some_and(|cause| !cause.to_string().is_empty()), "{error:?}");
    assert_eq!(db.table_names().expect("lists"), Vec::<String>::new());
}

#[test]
fn a_refused_first_row_makes_no_table() {
    let db = Database::in_memory().expect("opens");
    let long = vec![1; db.max_key_bytes() + 1];
    db.transact(|tx| {
        let bytes = tx.table(&TableDefinition::<[u8], [u8]>::new("bytes"))?;
        assert!(matches!(bytes.insert(&long, "value"), Err(Error::Invalid(_))));
        assert!(matches!(bytes.insert_from(&long, &b"value"[..]), Err(Error::Invalid(_))));
        Ok(())
    })
    .expect("goes on");
    assert_eq!(db.table_names().expect("lists"), Vec::<String>::new());
    assert!(db.check(&mut |_, _| {}).expect("checks").is_clean());
}

/// The caller of a failed `remove` or `replace` may continue the transaction, and must find the row.
#[test]
fn an_old_value_that_cannot_be_decoded_stays() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let raw = TableDefinition::raw("rows");
    for odd in [vec![7; 3], vec![7; 20_000]] {
        db.transact(|tx| put(tx, 1, 1))?;
        db.transact(|tx| tx.table(&raw)?.insert(&1_u32.to_be_bytes(), &odd))?;
        db.transact(|tx| {
            let rows = tx.table(&ROWS)?;
            rows.insert(&2, &2)?;
            assert!(matches!(rows.remove(&1), Err(Error::Decode { .. })));
            assert!(matches!(rows.replace(&1, &5), Err(Error::Decode { .. })));
            assert_eq!(tx.table(&raw)?.get(&1_u32.to_be_bytes())?.as_ref(), Some(&odd));
            rows.remove(&2).map(|two| assert_eq!(two, Some(2)))
        })?;
        assert_eq!(db.transact(|tx| tx.table(&raw)?.get(&1_u32.to_be_bytes()))?.as_ref(), Some(&odd));
    }
    assert!(db.check(&mut |_, _| {})?.is_clean());
    Ok(())
}

const TAGS: MultimapTableDefinition<[u8], u16> = MultimapTableDefinition::new("tags");

type Tags = BTreeSet<(Vec<u8>, u16)>;

/// Asserts the keys from `low` to `high` in a multimap, in its snapshot, and in its model.
macro_rules! assert_range {
    ($rows:expr, $old:expr, $model:expr, $range:expr, $is_in:expr) => {{
        let expected: Vec<_> = $model.iter().filter(|(key, _)| $is_in(key)).cloned().collect();
        assert_eq!($rows.range($range).collect::<Result<Vec<_>, _>>()?, expected);
        assert_eq!($old.range($range).collect::<Result<Vec<_>, _>>()?, expected);
        let backward = expected.iter().rev().cloned().collect::<Vec<_>>();
        assert_eq!($rows.range($range).rev().collect::<Result<Vec<_>, _>>()?, backward);
    }};
}

#[test]
fn a_multimap_table_is_an_ordered_set_for_each_key() -> Result<(), Error> {
    let db = Database::in_memory()?;
    let mut random = StdRng::seed_from_u64(7);
    // The bytes 0 and 255 have special encodings.
    let mut key = || {
        let len = random.random_range(0..4);
        (
            (0..len).map(|_| [0, 1, 0xff][random.random_range(0..3)]).collect::<Vec<u8>>(),
            random.random_range(0..9),
        )
    };
    let mut model = Tags::new();
    for _ in 0..200 {
        db.transact(|tx| {
            let tags = tx.multimap_table(&TAGS)?;
            for _ in 0..4 {
                let (key, value): (Vec<u8>, u16) = key();
                assert_eq!(tags.insert(&key, &value)?, model.insert((key, value)));
            }
            let (key, value) = key();
            assert_eq!(tags.contains(&key, &value)?, model.contains(&(key.clone(), value)));
            assert_eq!(tags.remove(&key, &value)?, model.remove(&(key, value)));
            Ok(())
        })?;
    }
    let snapshot = db.snapshot()?;
    let old = snapshot.multimap_table(&TAGS)?;
    let tx = db.begin()?;
    let tags = tx.multimap_table(&TAGS)?;
    assert_eq!((tags.len()?, old.len()?), (model.len() as u64, model.len() as u64));
    assert_eq!((tags.first()?, old.last()?), (model.first().cloned(), model.last().cloned()));
    for _ in 0..200 {
        let (low, high) = (key().0, key().0);
        let (low, high) = (low.as_slice().min(&high), low.as_slice().max(&high));
        let of_low: Vec<_> = model.iter().filter(|(key, _)| key == low).map(|(_, value)| *value).collect();
        assert_eq!(tags.get(low).collect::<Result<Vec<_>, _>>()?, of_low);
        assert_eq!(old.get(low).rev().collect::<Result<BTreeSet<_>, _>>()?, of_low.into_iter().collect());
        assert_range!(tags, old, model, .., |_| true);
        assert_range!(tags, old, model, low..high, |key: &[u8]| key >= low && key < high);
        assert_range!(tags, old, model, low..=high, |key: &[u8]| key >= low && key <= high);
        let above = (Bound::Excluded(low), Bound::Unbounded);
        assert_range!(tags, old, model, above, |key: &[u8]| key > low);
        assert_range!(tags, old, model, Prefix(low), |key: &[u8]| key.starts_with(low));
    }
    let (first, _) = tags.first()?.expect("many rows");
    let of_first = model.iter().filter(|(key, _)| *key == first).count() as u64;
    assert_eq!(tags.remove_all(&first)?, of_first);
    assert_eq!(tags.get(&first).count(), 0);
    assert_eq!(tags.len()?, model.len() as u64 - of_first);
    Ok(())
}

#[test]
fn a_multimap_table_is_a_table_of_pairs() -> Result<(), Error> {
    let db = Database::in_memory()?;
    const PAIRS: TableDefinition<(Vec<u8>, u16), ()> = TableDefinition::new("tags");
    db.transact(|tx| tx.multimap_table(&TAGS)?.insert("a", &1))?;
    assert_eq!(db.transact(|tx| tx.table(&PAIRS)?.first())?, Some(((b"a".to_vec(), 1), ())));
    const OTHER_TYPES: MultimapTableDefinition<str, u16> = MultimapTableDefinition::new("tags");
    let refused = db.transact(|tx| tx.multimap_table(&OTHER_TYPES)?.insert("a", &1));
    assert!(matches!(refused, Err(Error::TableTypeMismatch { .. })), "{refused:?}");
    assert!(db.transact(|tx| tx.drop_table(&TAGS))?);
    Ok(())
}

#[test]
fn an_entry_reads_once_and_changes_once() -> Result<(), Error> {
    let db = Database::in_memory()?;
    db.transact(|tx| {
        let rows = tx.table(&ROWS)?;
        assert_eq!(rows.entry(&1)?.value(), None);
        assert_eq!(rows.entry(&1)?.or_insert(&7)?, 7);
        assert_eq!(rows.entry(&1)?.or_insert(&8)?, 7);
        assert_eq!(rows.entry(&1)?.insert(&9)?, Some(7));
        assert_eq!(rows.entry(&2)?.insert(&9)?, None);
        assert_eq!(rows.entry(&2)?.remove()?, Some(9));
        assert_eq!(rows.entry(&2)?.remove()?, None);
        assert_eq!(rows.iter().collect::<Result<Vec<_>, _>>()?, [(1, 9)]);
        Ok(())
    })?;
    // The read takes the lock for a change, so a second such reader waits.
    let tx = db.begin()?;
    let rows = tx.table(&ROWS)?;
    let _entry = rows.entry(&1)?;
    let other = db.begin()?;
    other.set_nowait(true)?;
    assert!(matches!(other.table(&ROWS)?.entry(&1), Err(Error::WouldBlock { .. })));
    Ok(())
}

/// Returns a key of up to `longest` bytes. Many keys share a long beginning, and many differ at once.
fn long_key(rng: &mut StdRng, longest: usize) -> Vec<u8> {
    let len = match rng.random_range(0..4) {
        0 => rng.random_range(1..=20),
        1 => rng.random_range(1..=longest),
        _ => longest,
    };
    let mut key = vec![1; len];
    for _ in 0..rng.random_range(0..3) {
        let at = [0, len / 2, len - 1, rng.random_range(0..len)][rng.random_range(0..4)];
        key[at] = rng.random();
    }
    key
}

#[test]
fn keys_of_a_quarter_of_a_page_are_ordinary_keys() {
    const LONG: TableDefinition<[u8], [u8]> = TableDefinition::new("long");
    const LOADED: TableDefinition<[u8], [u8]> = TableDefinition::new("loaded");
    for (page_size, seed) in [(4096, 1), (8192, 2), (16384, 3), (65536, 4)] {
        let mut rng = StdRng::seed_from_u64(seed);
        let files = Arc::new(MemFs::new());
        let open = || {
            let builder = Database::builder().page_size(page_size).cache_bytes(16 << 20);
            builder.file_system(Arc::clone(&files) as Arc<dyn Fs>).open("/db").expect("opens")
        };
        let mut db = open();
        assert_eq!(db.max_key_bytes(), page_size / 4);
        let mut model = BTreeMap::new();
        for round in 0..40 {
            let tx = db.begin().expect("begins");
            let table = tx.table(&LONG).expect("is there");
            let mut changed = model.clone();
            for _ in 0..60 {
                let key = long_key(&mut rng, page_size / 4);
                if rng.random_range(0..3) > 0 {
                    let most = if rng.random_range(0..10) == 0 { page_size } else { page_size / 8 };
                    let value = vec![rng.random(); rng.random_range(0..most)];
                    table.insert(&key, &value).expect("inserts");
                    changed.insert(key, value);
                } else if let Some((near, _)) = changed.range(key..).next() {
                    let near = near.clone();
                    assert!(table.delete(&near).expect("removes"));
                    changed.remove(&near);
                }
            }
            if round % 4 == 3 {
                tx.abort().expect("rolls back");
            } else {
                tx.commit().expect("commits");
                model = changed;
            }
            if round % 10 == 9 {
                db.close().expect("closes");
                db = open();
            }
        }
        let too_long = vec![1; page_size / 4 + 1];
        let refused = db.transact(|tx| tx.table(&LONG)?.insert(&too_long, ""));
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        let rows = model.iter().map(|(key, value)| (key.as_slice(), value.as_slice()));
        db.transact(|tx| tx.table(&LOADED)?.bulk_load(rows.clone())).expect("loads");
        let snapshot = db.snapshot().expect("opens");
        for definition in [&LONG, &LOADED] {
            let table = snapshot.table(definition).expect("is there");
            let found: BTreeMap<_, _> = table.iter().map(|row| row.expect("reads")).collect();
            assert!(found == model, "{} rows of {}", found.len(), model.len());
            let mut back: Vec<_> = table.iter().rev().map(|row| row.expect("reads").0).collect();
            back.reverse();
            assert!(back.iter().eq(model.keys()));
        }
        drop(snapshot);
        assert!(db.check(&mut |_, _| {}).expect("checks").is_clean());
        // A table without rows is small again.
        for definition in [&LONG, &LOADED] {
            db.transact(|tx| {
                let table = tx.table(definition)?;
                model.keys().try_for_each(|key| table.delete(key).map(|was_there| assert!(was_there)))
            })
            .expect("removes");
        }
        assert!(db.check(&mut |_, _| {}).expect("checks").is_clean());
    }
}
