//! Copies of a store in use, file by file and piece by piece as `cp` creates them, in every order of the
//! files.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use azekura::{Database, Error, ErrorKind, TableDefinition};
use azekura_io::{Fs, MemFs, OpenOptions};

use crate::life::{DIR, PAGE, paths, write};
use crate::mutate::Random;

const ACCOUNTS: TableDefinition<u64, [u8]> = TableDefinition::new("accounts");
const COUNT: u64 = 600;
/// Large values. Each transaction stores three, and most of them are not in the log.
const BLOBS: TableDefinition<u64, [u8]> = TableDefinition::new("blobs");
const BLOB_BYTES: usize = 20_000;
const SUM: u64 = COUNT * 100;
/// Number of bytes that are copied at once.
const PIECE: usize = 128 << 10;

fn open(fs: &MemFs, background: bool) -> Result<Database, Error> {
    Database::builder()
        .page_size(PAGE)
        .cache_bytes(40 * PAGE)
        .wal_segment_bytes(2 << 20)
        .recovery_time(Duration::from_millis(50))
        .logged_value_bytes(0)
        .background(background)
        .file_system(Arc::new(fs.clone()))
        .open(DIR)
}

/// Returns an account row with padding, so that the table does not fit in the cache.
fn account(balance: u64) -> Vec<u8> {
    let mut row = vec![balance as u8; 400];
    row[..8].copy_from_slice(&balance.to_le_bytes());
    row
}

fn balance(row: &[u8]) -> u64 {
    row.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

fn transfer(db: &Database, random: &mut Random) -> Result<(), Error> {
    let (from, to) = (random.next() % COUNT, random.next() % COUNT);
    db.transact(|tx| {
        let table = tx.table(&ACCOUNTS)?;
        let rich = balance(&table.get_for_update(&from)?.unwrap_or_default());
        if from == to || rich == 0 {
            return Ok(());
        }
        let poor = balance(&table.get_for_update(&to)?.unwrap_or_default());
        table.insert(&from, &account(rich - 1))?;
        table.insert(&to, &account(poor + 1))
    })
}

/// Stores three large values; every 50 times, removes the earlier ones first.
fn store_blobs(db: &Database, turn: u64) -> Result<(), Error> {
    if turn % 50 == 49 {
        db.transact(|tx| tx.table(&BLOBS)?.remove_range(..).map(drop))?;
    }
    db.transact(|tx| {
        let table = tx.table(&BLOBS)?;
        (3 * turn..3 * turn + 3).try_for_each(|key| table.insert(&key, &[key as u8; BLOB_BYTES][..]))
    })
}

/// Copies all files while they are written, in an order that the seed selects. Skips a file that is removed
/// meanwhile, as `cp` does.
fn copy(source: &MemFs, random: &mut Random) -> MemFs {
    let copied = MemFs::new();
    let mut order: Vec<(u64, PathBuf)> =
        paths(source).into_iter().map(|path| (random.next(), path)).collect();
    order.sort_unstable();
    for (_, path) in order {
        if let Some(bytes) = read_in_pieces(source, &path) {
            write(&copied, &path, &bytes);
        }
    }
    copied
}

fn read_in_pieces(fs: &MemFs, path: &Path) -> Option<Vec<u8>> {
    let file = fs.open(path, OpenOptions::new()).ok()?;
    let mut bytes = Vec::new();
    loop {
        let mut piece = vec![0; PIECE];
        let read = file.read_at(bytes.len() as u64, &mut piece).ok()?;
        bytes.extend_from_slice(&piece[..read]);
        if read < PIECE {
            return Some(bytes);
        }
        std::thread::yield_now();
    }
}

/// Returns the sum of all accounts, if the copy opens; its `check` must then find no damage.
fn sum(copy: &MemFs) -> Result<u64, Error> {
    let db = open(copy, false)?;
    let sum = db.transact(|tx| {
        let table = tx.table(&ACCOUNTS)?;
        table.iter().map(|row| row.map(|(_, row)| balance(&row))).sum::<Result<u64, Error>>()
    })?;
    db.transact(|tx| {
        let mut count = 0;
        for row in tx.table(&BLOBS)?.iter() {
            let (key, value) = row?;
            assert!(value == [key as u8; BLOB_BYTES], "value {key}");
            count += 1;
        }
        assert_eq!(count % 3, 0, "a transaction is there as a whole");
        Ok::<_, Error>(())
    })?;
    let report = db.check(&mut |_, _| {})?;
    assert!(report.is_clean(), "{:?}", report.findings);
    Ok(sum)
}

#[test]
fn a_copy_of_a_store_in_use_is_refused_or_has_the_right_sum() {
    let fs = MemFs::new();
    let db = open(&fs, true).expect("creates");
    let fill = |tx: &azekura::Transaction| {
        (0..COUNT).try_for_each(|n| tx.table(&ACCOUNTS)?.insert(&n, &account(100)))
    };
    db.transact(fill).expect("fills");
    let is_over = AtomicBool::new(false);
    let (mut right, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (db, is_over) = (&db, &is_over);
            scope.spawn(move || {
                let random = &mut Random::new(seed);
                // Relaxed: the flag orders nothing.
                while !is_over.load(Relaxed) {
                    transfer(db, random).expect("commits");
                }
            });
        }
        scope.spawn(|| {
            let mut turn = 0;
            // Relaxed: the flag orders nothing.
            while !is_over.load(Relaxed) {
                store_blobs(&db, turn).expect("commits");
                turn += 1;
            }
        });
        for seed in 0..crate::campaign::runs() / 15 {
            let copied = copy(&fs, &mut Random::new(seed));
            match std::panic::catch_unwind(AssertUnwindSafe(|| sum(&copied))) {
                Ok(Ok(SUM)) => right += 1,
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => refused += 1,
                wrong => {
                    is_over.store(true, Relaxed); // Relaxed: as above
                    panic!("copy {seed}: {wrong:?}");
                }
            }
        }
        is_over.store(true, Relaxed); // Relaxed: as above
    });
    println!("copies of a store in use: {right} right, {refused} refused");
}
