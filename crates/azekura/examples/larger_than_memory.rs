//! A store many times larger than its page cache, scanned from end to end.
//!
//! The cache has 2 MiB, the table about 20 MiB. The scan reads every page once, and the cache does not grow.
//!
//! Run: `cargo run --release -p azekura --example larger_than_memory`

use azekura::{Database, Error, TableDefinition};

const EVENTS: TableDefinition<u64, [u8]> = TableDefinition::new("events");
const ROWS: u64 = 100_000;
const VALUE_BYTES: usize = 200;

fn main() -> Result<(), Error> {
    let dir = std::env::temp_dir().join(format!("azekura-large-{}", std::process::id()));
    let cache_bytes = 2 << 20;
    let db = Database::builder().cache_bytes(cache_bytes).open(&dir)?;

    for batch in 0..ROWS / 5_000 {
        db.transact(|tx| {
            let events = tx.table(&EVENTS)?;
            let mut value = [0u8; VALUE_BYTES];
            for id in batch * 5_000..(batch + 1) * 5_000 {
                value[..8].copy_from_slice(&id.to_le_bytes());
                events.insert(&id, &value)?;
            }
            Ok(())
        })?;
    }

    let (rows, bytes) = db.transact(|tx| {
        tx.table(&EVENTS)?.iter().try_fold((0u64, 0u64), |(rows, bytes), row| {
            let (id, value) = row?;
            assert!(id == rows && value[..8] == id.to_le_bytes());
            Ok((rows + 1, bytes + value.len() as u64))
        })
    })?;
    println!("{rows} rows, {bytes} bytes of values, through a cache of {cache_bytes} bytes");
    assert_eq!(rows, ROWS);
    println!("last ten, backwards: {:?}", last_ids(&db, 10)?);
    db.close()?;
    std::fs::remove_dir_all(&dir).map_err(Error::other)
}

fn last_ids(db: &Database, n: usize) -> Result<Vec<u64>, Error> {
    db.transact(|tx| tx.table(&EVENTS)?.iter().rev().take(n).map(|row| Ok(row?.0)).collect())
}
