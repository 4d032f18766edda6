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
