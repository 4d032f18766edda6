//! Tests of lent values: of every size, in parts, and while their rows and pages change.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use azekura::{Database, Error, ErrorKind, TableDefinition, ValueRef};

const BYTES: TableDefinition<u32, [u8]> = TableDefinition::new("bytes");
/// Payload of a page of a large value in bytes, with pages of 4 KiB.
const PAYLOAD: usize = 4048;
/// Largest length of a value that is stored in the leaf, with keys of at most 8 bytes: five sixteenths of a
/// page, less 40 bytes.
const LONGEST_IN_LEAF: usize = 1240;

fn value(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (seed + i + i / 251) as u8).collect()
}

/// Returns sizes at and around each limit: empty, in the leaf, one page, one log record, several runs.
fn sizes() -> [usize; 18] {
    let record = 16 * PAYLOAD;
    let page = [PAYLOAD - 1, PAYLOAD, PAYLOAD + 1];
    let records = [record - 1, record, record + 1];
    [
        0,
        1,
        8,
        511,
        512,
        513,
        LONGEST_IN_LEAF - 1,
        LONGEST_IN_LEAF,
        LONGEST_IN_LEAF + 1,
        page[0],
        page[1],
        page[2],
        records[0],
        records[1],
        records[2],
        400_000,
        4 << 20,
        5 << 20,
    ]
}

fn store(cache_bytes: usize, rows: &[(u32, Vec<u8>)]) -> Database {
    let db = Database::builder().page_size(4096).cache_bytes(cache_bytes).background(false);
    let db = db.version_bytes(64 << 20).open_in_memory().expect("opens");
    let insert = |(key, value): &(u32, Vec<u8>)| db.transact(|tx| tx.table(&BYTES)?.insert(key, value));
    rows.iter().try_for_each(insert).expect("fills");
    db
}

fn pieces(value: ValueRef<'_>) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    value.for_each_piece(|piece| {
        assert!(!piece.is_empty());
        all.extend_from_slice(piece);
        Ok(Continue(()))
    })?;
    Ok(all)
}

/// Reads a value in each way, and compares the results.
fn check(value: ValueRef<'_>, wanted: &[u8]) -> Result<(), Error> {
    assert_eq!((value.len(), value.is_empty()), (wanted.len() as u64, wanted.is_empty()));
    assert!(*value.bytes()? == *wanted, "{} bytes, whole", wanted.len());
    let in_leaf = (wanted.len() <= LONGEST_IN_LEAF).then_some(wanted);
    assert!(value.as_slice() == in_leaf, "{} bytes, as a slice", wanted.len());
    assert!(pieces(value)? == wanted, "{} bytes, in pieces", wanted.len());
    let len = wanted.len();
    for at in
        [0, 1, 7, PAYLOAD - 3, PAYLOAD, 2 * PAYLOAD + 5, (4 << 20) + 9, len.saturating_sub(5), len, len + 1]
    {
        for wish in [0, 1, 9, 700, 2 * PAYLOAD + 1] {
            let mut out = vec![0xEE; wish];
            let got = value.read_at(at as u64, &mut out)?;
            let rest = wanted.get(at..).unwrap_or_default();
            assert_eq!(got, wish.min(rest.len()), "{wish} bytes of {len} from {at}");
            assert!(
                out[..got] == rest[..got] && out[got..].iter().all(|&byte| byte == 0xEE),
                "{len} from {at}"
            );
        }
    }
    assert_eq!(value.read_at(u64::MAX, &mut [0; 8])?, 0);
    Ok(())
}

#[test]
fn values_of_all_sizes_are_lent_by_tables_and_snapshots() -> Result<(), Error> {
    let rows: Vec<_> = (0..).zip(sizes()).map(|(key, len)| (key, value(key, len))).collect();
    for cache_bytes in [1 << 20, 32 << 20] {
        let db = store(cache_bytes, &rows);
        let (tx, snapshot) = (db.begin()?, db.snapshot()?);
        let (table, old) = (tx.table(&BYTES)?, snapshot.table(&BYTES)?);
        for (key, wanted) in &rows {
            assert!(table.get(key)?.as_ref() == Some(wanted) && old.get(key)?.as_ref() == Some(wanted));
            assert_eq!(table.with_value(key, |value| check(value, wanted))?, Some(()));
            assert_eq!(old.with_value(key, |value| check(value, wanted))?, Some(()));
        }
        assert_eq!(table.with_value(&99, |_| Ok(()))?, None);
        assert_eq!(old.with_value(&99, |_| Ok(()))?, None);
        let (mut forward, mut back) = (rows.iter(), rows.iter().rev());
        let (mut old_forward, mut old_back) = (rows.iter(), rows.iter().rev());
        let check_row = |row: azekura::RowRef<'_, u32, [u8]>, wanted: Option<&(u32, Vec<u8>)>| {
            let (key, wanted) = wanted.expect("as many rows");
            assert_eq!(row.key()?, *key);
            assert!(row.value()? == *wanted);
            check(row.value_ref(), wanted)?;
            Ok(Continue(()))
        };
        table.for_each(.., |row| check_row(row, forward.next()))?;
        table.for_each_back(.., |row| check_row(row, back.next()))?;
        old.for_each(.., |row| check_row(row, old_forward.next()))?;
        old.for_each_back(.., |row| check_row(row, old_back.next()))?;
        assert_eq!((forward.len(), back.len(), old_forward.len(), old_back.len()), (0, 0, 0, 0));
        tx.commit()?;
    }
    Ok(())
}

/// Ten values of 400,000 bytes, with a total size of four times the cache.
#[test]
fn pages_of_a_value_are_read_only_as_far_as_its_bytes_are_asked_for() -> Result<(), Error> {
    let rows: Vec<_> = (0..10).map(|key| (key, value(key, 400_000))).collect();
    let db = store(1 << 20, &rows);
    let snapshot = db.snapshot()?;
    let old = snapshot.table(&BYTES)?;
    // Reads `bytes` bytes of each value; returns the numbers of pages read into the cache.
    let misses = |bytes: usize| -> Result<[u64; 2], Error> {
        let mut start = vec![0; bytes];
        let mut look = |row: azekura::RowRef<'_, u32, [u8]>| {
            assert_eq!(row.value_ref().len(), 400_000);
            let key = row.key()?;
            assert_eq!(row.value_ref().read_at(0, &mut start)?, bytes);
            assert!(start == rows[key as usize].1[..bytes]);
            Ok(Continue(()))
        };
        let before = db.stats().cache.misses;
        db.transact(|tx| tx.table(&BYTES)?.for_each(.., &mut look))?;
        let between = db.stats().cache.misses;
        old.for_each(.., &mut look)?;
        for key in 0..10 {
            let looked = old.with_value(&key, |value| {
                assert_eq!(value.read_at(0, &mut vec![0; bytes])?, bytes);
                Ok(value.len())
            })?;
            assert_eq!(looked, Some(400_000));
        }
        Ok([between - before, db.stats().cache.misses - between])
    };
    misses(0)?; // reads the nodes of the tree into the cache
    assert_eq!(misses(0)?, [0, 0], "no page of a value is read");
    let [table, snapshot] = misses(9)?;
    assert!(table <= 20 && snapshot <= 20, "{table} and {snapshot} pages for the starts of ten values");
    let [table, _] = misses(2 * PAYLOAD)?;
    assert!(table < 10 * 99, "{table} pages, of 990");
    Ok(())
}

/// The pages of a removed or replaced value stay allocated until the commit, even if the closure itself
/// removes or replaces the value.
#[test]
fn a_lent_value_is_unchanged_while_its_row_changes() -> Result<(), Error> {
    let rows: Vec<_> =
        (0..6).map(|key| (key, value(key, if key % 2 == 0 { 100_000 } else { 300 }))).collect();
    let db = store(4 << 20, &rows);
    let tx = db.begin()?;
    let table = tx.table(&BYTES)?;
    let change = |key: u32| {
        table.delete(&key)?;
        table.insert(&(100 + key), &value(100, 100_000))?;
        table.insert(&key, &value(101, 100_000))?;
        table.insert(&key, &value(102, 200))
    };
    for key in [0, 1] {
        let looked = table.with_value(&key, |lent| {
            let (mut all, mut is_first) = (Vec::new(), true);
            lent.for_each_piece(|piece| {
                all.extend_from_slice(piece);
                if std::mem::take(&mut is_first) {
                    change(key)?;
                }
                Ok(Continue(()))
            })?;
            assert!(all == rows[key as usize].1, "pieces");
            check(lent, &rows[key as usize].1)
        })?;
        assert_eq!(looked, Some(()));
        assert_eq!(table.get(&key)?, Some(value(102, 200)));
    }
    let mut seen = 0;
    table.for_each(2..6, |row| {
        let key = row.key()?;
        change(key)?;
        if key + 1 < 6 {
            table.delete(&(key + 1))?; // a row later in the scan
        }
        seen += 1;
        check(row.value_ref(), &rows[key as usize].1).map(Continue)
    })?;
    assert_eq!(seen, 4);
    // Another transaction reads the same rows from its snapshot, while the pages are freed.
    let old = db.snapshot()?;
    tx.commit()?;
    db.checkpoint()?;
    db.transact(|tx| tx.table(&BYTES)?.insert(&500, &value(7, 500_000)))?;
    for (key, wanted) in &rows {
        old.table(&BYTES)?.with_value(key, |lent| check(lent, wanted))?.expect("is seen");
    }
    Ok(())
}

/// A rollback frees pages at once, and the next value reuses them.
#[test]
fn a_value_that_the_closure_takes_back_is_refused() -> Result<(), Error> {
    let db = store(4 << 20, &[(1, value(1, 100_000)), (2, value(2, 100))]);
    let tx = db.begin()?;
    let table = tx.table(&BYTES)?;
    let before = tx.savepoint()?;
    table.insert(&1, &value(3, 100_000))?;
    let refused = table.with_value(&1, |lent| {
        tx.rollback_to(before)?;
        table.insert(&3, &value(4, 100_000))?; // in the same pages
        assert_eq!(lent.len(), 100_000);
        let errors = [
            lent.bytes().map(drop),
            lent.read_at(0, &mut [0; 8]).map(drop),
            lent.for_each_piece(|_| Ok(Continue(()))),
        ];
        for error in errors {
            let error = error.expect_err("the value is no more");
            assert!(matches!(&error, Error::Invalid(why) if why.contains("savepoint")), "{error}");
        }
        Ok(())
    })?;
    assert_eq!(refused, Some(()));
    // A rollback to a savepoint newer than the lent value changes nothing, and a small value needs no page.
    let lent = table.with_value(&1, |lent| {
        let after = tx.savepoint()?;
        table.insert(&1, &value(5, 200_000))?;
        tx.rollback_to(after)?;
        check(lent, &value(1, 100_000))
    })?;
    assert_eq!(lent, Some(()));
    let before = tx.savepoint()?;
    table.insert(&2, &value(6, 400))?;
    let lent = table.with_value(&2, |lent| {
        tx.rollback_to(before)?;
        check(lent, &value(6, 400))
    })?;
    assert_eq!(lent, Some(()));
    // The same for a row of a scan.
    let before = tx.savepoint()?;
    table.insert(&4, &value(8, 100_000))?;
    let refused = table.for_each(4..5, |row| {
        tx.rollback_to(before)?;
        table.insert(&5, &value(9, 100_000))?;
        let error = row.value().expect_err("the row is no more");
        assert!(matches!(error, Error::Invalid(_)), "{error}");
        Ok(Break(()))
    });
    refused?;
    assert_eq!(table.len()?, 4);
    tx.commit()
}

#[test]
fn a_value_of_a_snapshot_that_becomes_too_old_ends_between_two_pages() -> Result<(), Error> {
    let db = Database::builder().page_size(4096).cache_bytes(4 << 20).background(false).version_bytes(50_000);
    let db = db.open_in_memory()?;
    let put = |key: u32, value: &[u8]| db.transact(|tx| tx.table(&BYTES)?.insert(&key, value));
    put(0, &value(0, 100_000))?;
    (1..400).try_for_each(|key| put(key, &value(key, 300)))?;
    let snapshot = db.snapshot()?;
    let mut seen = Vec::new();
    let result = snapshot.table(&BYTES)?.with_value(&0, |lent| {
        lent.for_each_piece(|piece| {
            seen.extend_from_slice(piece);
            if seen.len() == PAYLOAD {
                put(0, b"new")?;
                (1..400).try_for_each(|key| put(key, b"other"))?;
                db.checkpoint()?;
                put(500, &value(9, 200_000))?; // in the freed pages
            }
            Ok(Continue(()))
        })
    });
    assert!(matches!(result, Err(Error::SnapshotTooOld { .. })), "{result:?}");
    assert!(seen == value(0, 100_000)[..PAYLOAD]);
    Ok(())
}

/// An error or a break of the closure ends the iteration over pieces.
#[test]
fn pieces_end_where_the_closure_ends_them() -> Result<(), Error> {
    let db = store(4 << 20, &[(1, value(1, 100_000)), (2, value(2, 100))]);
    let snapshot = db.snapshot()?;
    for key in [1, 2] {
        let mut count = 0;
        let ended = snapshot.table(&BYTES)?.with_value(&key, |lent| {
            lent.for_each_piece(|_| {
                count += 1;
                Ok(Break(()))
            })?;
            lent.for_each_piece(|_| Err(Error::Invalid("enough".into())))
        });
        let error = ended.expect_err("the closure's");
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("enough"), "{error}");
        assert_eq!(count, 1);
    }
    Ok(())
}

/// A conflict in the closure rolls the transaction back, and another transaction may reuse the pages of its
/// values.
#[test]
fn a_value_ends_with_its_transaction() -> Result<(), Error> {
    const OTHERS: TableDefinition<u32, [u8]> = TableDefinition::new("others");
    let db = Database::builder().lock_timeout(Duration::from_millis(1)).open_in_memory()?;
    db.transact(|tx| {
        tx.table(&OTHERS)?.insert(&1, b"")?;
        (0..9).try_for_each(|key| tx.table(&BYTES)?.insert(&key, b""))
    })?;
    let (locked, has_locked) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|s| {
        let db = &db;
        s.spawn(move || {
            let other = db.begin().expect("begins");
            other.table(&BYTES).expect("opens").insert(&7, b"locked").expect("inserts");
            locked.send(()).expect("is awaited");
            is_done.recv().expect_err("is dropped");
        });
        has_locked.recv().expect("is locked");
        let tx = db.begin()?;
        tx.table(&BYTES)?.insert(&1, &value(1, 100_000))?;
        let ended = tx.table(&BYTES)?.with_value(&1, |lent| {
            let error = tx.table(&BYTES)?.get(&7).expect_err("is locked");
            assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
            db.transact(|tx| tx.table(&OTHERS)?.insert(&1, &value(3, 100_000)))?;
            lent.bytes().map(drop)
        });
        assert!(matches!(ended, Err(Error::Aborted { .. })), "{ended:?}");
        drop(done);
        Ok(())
    })
}

/// Lengths of key prefixes, of the rest of keys, and of values are below, at and above the block size with
/// which a scan copies them.
#[test]
fn rows_of_all_lengths_are_lent_as_they_were_written() -> Result<(), Error> {
    const ROWS: TableDefinition<[u8], [u8]> = TableDefinition::new("rows");
    let lengths = [0, 1, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 100];
    for prefix_len in lengths {
        let mut rows = Vec::new();
        for (i, rest_len) in lengths.into_iter().enumerate() {
            for (j, value_len) in lengths.into_iter().enumerate() {
                let mut key = vec![0xAA; prefix_len];
                key.extend([i as u8, j as u8]);
                key.extend(value(7, rest_len));
                rows.push((key, value((i + 31 * j) as u32, value_len)));
            }
        }
        let db = Database::in_memory()?;
        let fill = |tx: &azekura::Transaction| {
            let table = tx.table(&ROWS)?;
            rows.iter().try_for_each(|(key, value)| table.insert(key, value))
        };
        db.transact(fill)?;
        let (tx, snapshot) = (db.begin()?, db.snapshot()?);
        let (table, old) = (tx.table(&ROWS)?, snapshot.table(&ROWS)?);
        let lend = |lent: &mut Vec<_>, row: azekura::RowRef<'_, [u8], [u8]>| {
            lent.push((row.key_bytes().to_vec(), row.value_ref().bytes()?.into_owned()));
            Ok(Continue(()))
        };
        let mut lent = [const { Vec::new() }; 4];
        let [forward, back, old_forward, old_back] = &mut lent;
        table.for_each(.., |row| lend(forward, row))?;
        table.for_each_back(.., |row| lend(back, row))?;
        old.for_each(.., |row| lend(old_forward, row))?;
        old.for_each_back(.., |row| lend(old_back, row))?;
        back.reverse();
        old_back.reverse();
        assert!(lent.iter().all(|lent| *lent == rows), "keys with a prefix of {prefix_len} bytes");
        assert!(old.iter().collect::<Result<Vec<_>, _>>()? == rows);
        assert!(table.iter().collect::<Result<Vec<_>, _>>()? == rows);
    }
    Ok(())
}

/// A closure that writes, removes and rolls back gets the rows that existed when the scan began.
#[test]
fn rows_are_lent_as_they_were_while_the_closure_writes() -> Result<(), Error> {
    let rows: Vec<_> = (0..600).map(|key| (key, value(key, 9))).collect();
    let db = store(1 << 20, &[]);
    db.transact(|tx| {
        let table = tx.table(&BYTES)?;
        rows.iter().try_for_each(|(key, value)| table.insert(key, value))
    })?;
    for back in [false, true] {
        let (tx, mut lent) = (db.begin()?, Vec::new());
        let table = tx.table(&BYTES)?;
        let each = |row: azekura::RowRef<'_, u32, [u8]>| {
            let key = row.key()?;
            lent.push((key, row.value()?));
            match key % 3 {
                0 => table.insert(&(if back { key.saturating_sub(1) } else { key + 1 }), &[1])?,
                1 => drop(table.remove(&(if back { key.saturating_sub(2) } else { key + 2 }))?),
                _ => {}
            }
            Ok(Continue(()))
        };
        if back {
            table.for_each_back(.., each)?
        } else {
            table.for_each(.., each)?
        }
        if back {
            lent.reverse();
        }
        assert!(lent == rows, "back: {back}");
        tx.abort()?;
    }
    Ok(())
}
