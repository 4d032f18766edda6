//! Values that are written and read in pieces.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use azekura::{Database, Error, TableDefinition, Transaction};
use azekura_io::FaultFs;

const FILES: TableDefinition<u64, [u8]> = TableDefinition::new("files");
const PIECE: usize = 512 * (8192 - 48);

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 32) as u8).collect()
}

/// A source of bytes that calls `each` before each read, with the number of bytes read so far.
struct Source<'a, F> {
    bytes: &'a [u8],
    read: usize,
    each: F,
}

impl<'a, F: FnMut(usize) -> io::Result<()>> Source<'a, F> {
    fn new(bytes: &'a [u8], each: F) -> Self {
        Self { bytes, read: 0, each }
    }
}

impl<F: FnMut(usize) -> io::Result<()>> Read for Source<'_, F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (self.each)(self.read)?;
        // Reads of odd lengths.
        let len = out.len().min(70_001).min(self.bytes.len() - self.read);
        out[..len].copy_from_slice(&self.bytes[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

fn open(fs: &FaultFs) -> Result<Database, Error> {
    Database::builder().file_system(Arc::new(fs.clone())).cache_bytes(2 << 20).background(false).open("store")
}

fn stored(db: &Database, key: u64) -> Option<Vec<u8>> {
    let value = db.transact(|tx| tx.table(&FILES)?.get(&key)).unwrap();
    let read = db.transact(|tx| {
        tx.table(&FILES)?.with_value(&key, |value| {
            let mut bytes = Vec::new();
            value.reader().read_to_end(&mut bytes).map_err(Error::other)?;
            assert_eq!(bytes.len() as u64, value.len());
            Ok(bytes)
        })
    });
    assert!(read.unwrap() == value, "the reader and `get` differ");
    value
}

fn assert_clean(db: &Database) {
    // A repair frees leaked pages: there are none.
    let report = db.repair(&mut |_, _| ()).unwrap();
    assert!(report.is_clean() && report.freed_pages == 0, "{report:?}");
}

#[test]
fn values_of_all_sizes_are_written_and_read_in_pieces() {
    let fs = FaultFs::new();
    let sizes = [
        0,
        1,
        2_520,
        2_521,
        8_144,
        8_145,
        100_000,
        PIECE - 1,
        PIECE,
        PIECE + 1,
        2 * PIECE,
        2 * PIECE + 9_000,
    ];
    let db = open(&fs).unwrap();
    for (key, size) in (0..).zip(sizes) {
        let value = bytes(size, key);
        let write = |tx: &Transaction| tx.table(&FILES)?.insert_from(&key, Source::new(&value, |_| Ok(())));
        assert_eq!(db.transact(write).unwrap(), size as u64);
        assert!(stored(&db, key).unwrap() == value, "{size}");
    }
    assert_clean(&db);
    // The process dies: the log has all of it.
    drop(db);
    let db = open(&fs.crash(1)).unwrap();
    for (key, size) in (0..).zip(sizes) {
        assert!(stored(&db, key).unwrap() == bytes(size, key), "{size}");
        db.transact(|tx| tx.table(&FILES)?.remove(&key)).unwrap();
    }
    assert_clean(&db);
}

#[test]
fn a_source_that_fails_leaves_the_row_and_the_transaction() {
    let fs = FaultFs::new();
    let db = open(&fs).unwrap();
    let (old, new) = (bytes(50_000, 1), bytes(2 * PIECE + 100, 2));
    db.transact(|tx| tx.table(&FILES)?.insert(&1, &old)).unwrap();
    for fails_at in [0, 70_001, PIECE, 2 * PIECE] {
        let tx = db.begin().unwrap();
        let files = tx.table(&FILES).unwrap();
        files.insert(&2, b"before").unwrap();
        let mut source = Source::new(&new, |read| match read {
            read if read >= fails_at => Err(io::Error::other("the connection broke")),
            _ => Ok(()),
        });
        let failed = files.insert_from(&1, &mut source).unwrap_err();
        assert!(matches!(&failed, Error::Other(_)) && failed.to_string().contains("broke"), "{failed}");
        assert!(files.get(&1).unwrap().unwrap() == old);
        assert_eq!(files.get(&2).unwrap().as_deref(), Some(&b"before"[..]));
        let panics = AssertUnwindSafe(|| {
            let mut source = Source::new(&new, |read| {
                assert!(read < fails_at, "a panic of the source");
                Ok(())
            });
            files.insert_from(&1, &mut source)
        });
        assert!(catch_unwind(panics).is_err());
        files.insert(&3, b"after").unwrap();
        tx.commit().unwrap();
        assert!(stored(&db, 1).unwrap() == old);
        assert_clean(&db);
    }
}

#[test]
fn a_source_that_fails_makes_no_table() {
    let db = open(&FaultFs::new()).unwrap();
    for len in [100, 3 * PIECE] {
        let bytes = bytes(len, 1);
        let fails =
            |read: usize| if read < len { Ok(()) } else { Err(io::Error::other("the source ended early")) };
        db.transact(|tx| {
            assert!(matches!(
                tx.table(&FILES)?.insert_from(&1, Source::new(&bytes, fails)),
                Err(Error::Other(_))
            ));
            Ok(())
        })
        .unwrap();
        assert_eq!(db.table_names().unwrap(), Vec::<String>::new());
        assert_clean(&db);
    }
}

#[test]
fn a_source_may_read_its_transaction_and_not_write_in_it() {
    let fs = FaultFs::new();
    let db = open(&fs).unwrap();
    let value = bytes(PIECE + 20_000, 3);
    db.transact(|tx| tx.table(&FILES)?.insert(&1, &value)).unwrap();
    let tx = db.begin().unwrap();
    let files = tx.table(&FILES).unwrap();
    // A copy of a row, by the reader of the other one.
    files.with_value(&1, |from| files.insert_from(&2, from.reader())).unwrap();
    assert!(files.get(&2).unwrap().unwrap() == value);
    let savepoint = tx.savepoint().unwrap();
    let writes = Source::new(&value, |_| files.insert(&9, b"in between").map_err(io::Error::other));
    let refused = files.insert_from(&1, writes).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    assert!(files.get(&9).unwrap().is_none(), "the failed call is undone with the writes of its source");
    let returns = Source::new(&value, |read| match read {
        0 => Ok(()),
        _ => tx.rollback_to(savepoint).map_err(io::Error::other),
    });
    let refused = files.insert_from(&1, returns).unwrap_err();
    assert!(refused.full_message().contains("savepoint"), "{refused}");
    tx.commit().unwrap();
    assert!(stored(&db, 1).unwrap() == value && stored(&db, 2).unwrap() == value);
    assert_clean(&db);
}

#[test]
fn a_reader_continues_at_the_same_byte_after_a_failed_read() {
    let fs = FaultFs::new();
    let db = open(&fs).unwrap();
    let value = bytes(PIECE + 100_000, 4);
    db.transact(|tx| tx.table(&FILES)?.insert(&1, &value)).unwrap();
    db.checkpoint().unwrap();
    let snapshot = db.snapshot().unwrap();
    let (mut read, mut failures) = (Vec::new(), 0);
    let each = |value: azekura::ValueRef<'_>| {
        let mut reader = value.reader();
        let (mut buffer, mut next_failure) = ([0; 5_000], 0);
        loop {
            // The cache is smaller than the value, so its pages are read from the file.
            if read.len() >= next_failure {
                fs.fail_read_at(1);
                next_failure += 1_000_000;
            }
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => read.extend_from_slice(&buffer[..len]),
                Err(_) => failures += 1,
            }
        }
    };
    snapshot.table(&FILES).unwrap().with_value(&1, each).unwrap();
    assert!(read == value, "{} bytes", read.len());
    assert!(failures > 0);
}

#[test]
fn a_power_loss_at_any_time_leaves_the_old_value_or_the_new_one() {
    let (old, new) = (bytes(30_000, 1), bytes(PIECE + 30_000, 2));
    let run = |fs: &FaultFs| -> Result<(), Error> {
        let db = open(fs)?;
        db.transact(|tx| tx.table(&FILES)?.insert(&1, &old))?;
        db.transact(|tx| tx.table(&FILES)?.insert_from(&1, Source::new(&new, |_| Ok(()))))?;
        db.close()
    };
    let fs = FaultFs::new();
    run(&fs).unwrap();
    let ios = fs.io_count();
    let mut seen = [0; 3];
    for (seed, cut) in (1..=ios).step_by(1 + ios as usize / 60).enumerate() {
        let fs = FaultFs::new();
        fs.cut_power_at(cut);
        let is_acknowledged = run(&fs).is_ok();
        let fs = fs.crash(seed as u64);
        let Ok(db) = open(&fs) else { panic!("cut at {cut}: cannot open") };
        let value = stored(&db, 1);
        let which = match &value {
            None => 0,
            Some(value) if *value == old => 1,
            Some(value) if *value == new => 2,
            Some(value) => panic!("cut at {cut}: {} bytes of neither value", value.len()),
        };
        seen[which] += 1;
        assert!(!is_acknowledged || which == 2, "cut at {cut}");
        assert_clean(&db);
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
