//! Memory servers as the second tier of the page cache: point reads of a store ten times as large as its
//! cache, from the disk alone and with servers.

use std::path::Path;
use std::time::Instant;

use azekura::{Database, Error, TableDefinition};
use azekura_far::Server;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use super::LabError;

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const VALUE: usize = 400;
const BATCH: u64 = 1000;

/// Results of point reads, without or with servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reads {
    /// Rows read per second.
    pub per_second: f64,
    /// Pages that the servers returned.
    pub far_hits: u64,
    /// Requests for pages that the servers did not have.
    pub far_misses: u64,
}

/// Fills a store in the directory with `rows` rows, and reads as many at random: first without a server, then
/// with one that has enough memory for all pages.
///
/// # Errors
///
/// [`LabError::Store`], [`LabError::Server`].
pub fn measure(folder: &Path, rows: u64, seed: u64) -> Result<[Reads; 2], LabError> {
    let path = folder.join("tier");
    let cache = usize::try_from(rows).unwrap_or(usize::MAX) * VALUE / 10;
    let builder = || Database::builder().cache_bytes(cache);
    let db = builder().open(&path)?;
    for first in (0..rows).step_by(BATCH as usize) {
        db.transact(|tx| {
            let table = tx.table(&ROWS)?;
            (first..(first + BATCH).min(rows)).try_for_each(|key| table.insert(&key, &[key as u8; VALUE]))
        })?;
    }
    db.checkpoint()?;
    db.close()?;
    let disk = read(&builder().open(&path)?, rows, seed)?;
    let bytes = 4 * rows * VALUE as u64 + (16 << 20);
    let server = Server::builder().capacity(bytes).listen("127.0.0.1:0").map_err(LabError::Server)?;
    let far = read(&builder().far_cache([server.address().to_string()], bytes).open(&path)?, rows, seed)?;
    Ok([disk, far])
}

/// Reads in two passes. The first fills the cache and the server; the result is that of the second.
fn read(db: &Database, rows: u64, seed: u64) -> Result<Reads, Error> {
    let far = |db: &Database| db.stats().far.map_or((0, 0), |far| (far.hits, far.misses));
    let mut per_second = 0.0;
    let mut before = (0, 0);
    for pass in 0..2 {
        before = far(db);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed + pass);
        let began = Instant::now();
        for _ in 0..rows / BATCH {
            db.transact(|tx| {
                let table = tx.table(&ROWS)?;
                (0..BATCH).try_for_each(|_| table.get(&rng.random_range(0..rows)).map(drop))
            })?;
        }
        per_second = rows as f64 / began.elapsed().as_secs_f64();
    }
    let after = far(db);
    Ok(Reads { per_second, far_hits: after.0 - before.0, far_misses: after.1 - before.1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_from_servers_where_there_are_any() {
        // On a busy machine a server may be lost, which answers within half a second otherwise.
        let mut trials = (0..20).map(|_| measure(tempfile::tempdir().unwrap().path(), 20_000, 3).unwrap());
        let [disk, far] = trials.find(|[_, far]| far.far_hits > 0).expect("pages from a server");
        assert_eq!((disk.far_hits, disk.far_misses), (0, 0));
        assert!(far.far_hits > 0 && far.per_second > 0.0 && disk.per_second > 0.0, "{far:?}");
    }
}
