//! Tables that come and go: nobody works on one that is gone, whatever was remembered of it.

use azekura::{Database, Error, Table, Transaction};

const ROWS: Table<u32, u32> = Table::new("rows");
const OTHER: Table<u32, u32> = Table::new("other");

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
        // Other transactions remember the table while this one drops it and thinks better of it.
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
fn a_table_whose_making_was_undone_is_not_there() {
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
    let wrong_value = Table::<u32, i32>::new("rows");
    let wrong_key = Table::<i32, u32>::new("rows");
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
        let raw = Table::raw("rows");
        let bytes = tx.table(&raw).expect("a handle").get(&1_u32.to_be_bytes()).expect("reads");
        assert_eq!(bytes, Some(7_u32.to_le_bytes().to_vec()));
        tx.commit().expect("commits");
    }
    // Dropped, the name is free for any types, in the same transaction.
    db.transact(|tx| {
        tx.drop_table("rows")?;
        tx.table(&wrong_key)?.insert(&-1, &1)?;
        assert!(matches!(get(tx, 1), Err(Error::TableTypeMismatch { .. })));
        tx.table(&Table::raw("bytes"))?.insert(b"k", b"v")
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
        tx.table(&Table::<(String, u64), str>::named(names.as_str()))?.insert(&("a".into(), 1), "v")
    })
    .expect("writes");
    db.close().expect("closes");
    let db = open();
    let same = Table::<(&str, u64), str>::new("names");
    assert_eq!(db.transact(|tx| tx.table(&same)?.get(&("a", 1))).expect("reads"), Some("v".into()));
    let other = Table::<(String, u32), str>::new("names");
    let refused = db.transact(|tx| tx.table(&other)?.first());
    assert!(matches!(refused, Err(Error::TableTypeMismatch { .. })), "{refused:?}");
}
