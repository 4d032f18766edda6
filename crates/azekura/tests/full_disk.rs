//! A disk that has no room for more log: the change is refused by name, the transaction can be rolled back,
//! reading goes on, and so does writing once there is room again.

use std::sync::Arc;
use std::time::Duration;

use azekura::{Database, Error, ErrorKind, Table, Transaction};
use azekura_io::FaultFs;

const ROWS: Table<u32, [u8]> = Table::new("rows");
const OTHER: Table<u32, u32> = Table::new("other");
const KEPT: u32 = 50;

fn open(fs: &FaultFs) -> Database {
    Database::builder()
        .page_size(4096)
        .cache_bytes(8 << 20)
        .wal_workers(2)
        .wal_streams(2)
        .wal_segment_bytes(2 << 20)
        .background(false)
        .lock_timeout(Duration::from_millis(20))
        .file_system(Arc::new(fs.clone()))
        .open("db")
        .expect("opens")
}

/// Writes until the log has no more room, which it is given up to the change of number `full_from`; the
/// transaction is still there, with what it did.
fn fill_up(fs: &FaultFs, tx: &Transaction, full_from: u32) -> Result<u32, Error> {
    let rows = tx.table(&ROWS)?;
    for n in 0..1_000_000 {
        if n == full_from {
            fs.full_from(1);
        }
        // Overwriting needs log, but no more pages.
        if let Err(error) = rows.insert(&(n % KEPT), &[n as u8; 500]) {
            assert!(matches!(error, Error::LogFull { .. }) && error.kind() == ErrorKind::Busy, "{error:?}");
            return Ok(n);
        }
    }
    panic!("the disk was never full");
}

fn assert_content(db: &Database, byte: u8) {
    let rows = db.transact(|tx| tx.table(&ROWS)?.iter().collect::<Result<Vec<_>, _>>()).expect("reads");
    assert_eq!(rows.len(), KEPT as usize);
    assert!(rows.iter().all(|(_, value)| *value == [byte; 500]));
}

fn write_all(db: &Database, byte: u8) -> Result<(), Error> {
    db.transact(|tx| (0..KEPT).try_for_each(|n| tx.table(&ROWS)?.insert(&n, &[byte; 500])))
}

fn assert_goes_on(db: &Database, fs: &FaultFs, byte: u8) {
    fs.heal();
    write_all(db, byte).expect("there is room again");
    assert_content(db, byte);
    assert_eq!(db.stats().parked_rollbacks, 0);
    let report = db.check(&mut |_, _| {}).expect("checks");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_small_transaction_that_meets_a_full_disk_is_undone_out_of_the_reserve() {
    let fs = FaultFs::new();
    let db = open(&fs);
    write_all(&db, 1).expect("writes");
    // It has begun, and done a little, when somebody else takes the last room.
    let small = db.begin().expect("begins");
    let before = small.savepoint().expect("is open");
    let extra = |n: u32| small.table(&ROWS)?.insert(&(1_000 + n), &[9; 500]);
    (0..20).try_for_each(extra).expect("writes");
    let greedy = db.begin().expect("begins");
    assert!(fill_up(&fs, &greedy, 0).expect("the first change finds a table") > 0);
    assert!(matches!(extra(21), Err(Error::LogFull { .. })));
    small.rollback_to(before).expect("undone out of the reserve");
    small.abort().expect("its end goes there, too");
    let late = db.begin().expect("begins");
    assert!(matches!(late.table(&ROWS).expect("opens").insert(&77_777, b"x"), Err(Error::LogFull { .. })));
    late.abort().expect("nothing to undo");
    drop(greedy);
    assert_goes_on(&db, &fs, 2);
    drop(db);
    assert_content(&open(&fs), 2);
}

#[test]
fn a_rollback_too_large_for_the_reserve_keeps_its_rows_locked_until_there_is_room() {
    let fs = FaultFs::new();
    let db = open(&fs);
    db.transact(|tx| tx.table(&OTHER)?.insert(&1, &1)).expect("writes");
    write_all(&db, 1).expect("writes");
    for round in 1..4 {
        let tx = db.begin().expect("begins");
        fill_up(&fs, &tx, 8_000).expect("the first change finds a table");
        assert!(matches!(tx.abort(), Err(Error::LogFull { .. })), "so much to undo has no room");
        assert_eq!(db.stats().parked_rollbacks, 1);
        // Others read on, but not what is not undone.
        assert_eq!(db.transact(|tx| tx.table(&OTHER)?.get(&1)).expect("reads"), Some(1));
        let reader = db.begin().expect("begins");
        let read = reader.table(&ROWS).expect("opens").get(&0);
        assert!(matches!(read, Err(Error::LockTimeout { .. })), "{read:?}");
        drop(reader);
        if round < 3 {
            assert_goes_on(&db, &fs, round + 1);
        }
    }
    drop(db);
    fs.heal();
    let db = open(&fs);
    assert_eq!(db.stats().recovery.losers, 1, "the restart undoes it");
    assert_content(&db, 3);
}
