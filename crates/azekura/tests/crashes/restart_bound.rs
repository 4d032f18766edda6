//! A restart does at most the work that its setting allows: log to read, pages to read (in the cache or not),
//! and changes to undo. The work is counted from the report of the restart, not timed.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;
use std::time::Duration;

use crate::common::deterministic;
use azekura::{Database, RecoveryReport, TableDefinition, Transaction};
use azekura_io::FaultFs;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
const OTHER: TableDefinition<u64, [u8]> = TableDefinition::new("other");
const PAGE: usize = 4096;
/// Number of frames; the cache holds all rows, so no page is evicted.
const FRAMES: usize = 4_000;
/// Number of rows, about 8 per page.
const KEYS: u64 = 12_000;
/// Bound on a restart; equals the work of 400 pages, or of 1.3 MB of log.
const BOUND: Duration = Duration::from_millis(20);
/// Number of updates of one transaction.
const UPDATES: usize = 20;

fn open(fs: &FaultFs, time: Duration) -> Database {
    deterministic(Arc::new(fs.clone()), PAGE, FRAMES).recovery_time(time).open("db").unwrap()
}

fn filled(fs: &FaultFs, time: Duration) -> Database {
    let db = open(fs, time);
    for keys in (0..KEYS).collect::<Vec<_>>().chunks(500) {
        let put =
            |tx: &Transaction| keys.iter().try_for_each(|key| tx.table(&ROWS)?.insert(key, &[1; 450][..]));
        db.transact(put).unwrap();
    }
    db.checkpoint().unwrap();
    db
}

/// Changes rows all over the table; each change dirties a page and logs a few bytes.
fn scatter(tx: &Transaction, rng: &mut StdRng, updates: usize) -> Result<(), azekura::Error> {
    for _ in 0..updates {
        let (key, value) = (rng.random_range(0..KEYS), rng.random::<u8>());
        tx.table(&ROWS)?.insert(&key, &[value; 450][..])?;
    }
    Ok(())
}

/// Returns the recovery report after a kill at this moment.
fn restarted(fs: &FaultFs) -> RecoveryReport {
    open(&fs.kill(), Duration::MAX).stats().recovery
}

/// Returns the largest estimated time of restarts, after kills between transactions.
fn longest(time: Duration) -> Duration {
    let fs = FaultFs::new();
    let db = filled(&fs, time);
    let mut rng = StdRng::seed_from_u64(5);
    let mut longest = Duration::ZERO;
    for n in 0..240 {
        db.transact(|tx| scatter(tx, &mut rng, UPDATES)).unwrap();
        if n % 8 == 0 {
            longest = longest.max(restarted(&fs).counted_time());
        }
    }
    longest
}

#[test]
fn pages_that_stay_in_the_cache_count() {
    let (bounded, unbounded) = (longest(BOUND), longest(Duration::MAX));
    assert!(bounded <= BOUND * 5 / 4, "{bounded:?} of {BOUND:?}");
    assert!(bounded >= BOUND / 2, "{bounded:?}: it is no bound if everything is written at once");
    assert!(unbounded > BOUND * 3, "{unbounded:?}: there is something to bound");
}

#[test]
fn open_transactions_count() {
    let fs = FaultFs::new();
    let db = filled(&fs, BOUND);
    let mut rng = StdRng::seed_from_u64(6);
    let open = db.begin().unwrap();
    let mut undone = 0;
    for _ in 0..16 {
        // Inserts rows that no other transaction uses, so that none waits for them.
        let keys = KEYS + undone..KEYS + undone + 64;
        keys.for_each(|key| open.table(&ROWS).unwrap().insert(&key, &[2; 40][..]).unwrap());
        undone += 64;
        db.transact(|tx| scatter(tx, &mut rng, UPDATES)).unwrap();
        let report = restarted(&fs);
        assert_eq!((report.losers, report.undone), (1, undone), "{report:?}");
        // The log of the open transaction is held back beyond the bound; its pages and undo are not.
        let log = Duration::from_secs_f64(report.log_bytes as f64 / f64::from(64 << 20));
        let counted = report.counted_time().saturating_sub(log);
        assert!(counted <= BOUND * 5 / 4, "{counted:?} of {BOUND:?}: {report:?}");
    }
    open.abort().unwrap();
}

#[test]
fn the_undo_rate_of_a_restart_is_the_estimate_for_the_next() {
    let fs = FaultFs::new();
    let db = filled(&fs, Duration::MAX);
    let default = db.stats().undo_per_second;
    let open_one = |db: &Database, rows: u64| {
        let tx = db.begin().unwrap();
        (0..rows).for_each(|n| tx.table(&ROWS).unwrap().insert(&(KEYS + n), &[2; 40][..]).unwrap());
        tx
    };
    let killed = |tx: &Transaction, db: &Database| {
        assert!(tx.table(&ROWS).unwrap().contains(&KEYS).unwrap(), "it is open");
        // The commit of another transaction also writes the records of the open one. It uses another table,
        // because the open transaction may have locked its whole table.
        db.transact(|tx| tx.table(&OTHER)?.insert(&0, &[3; 40][..])).unwrap();
        open(&fs.kill(), Duration::MAX).stats()
    };
    let few = open_one(&db, 100);
    let stats = killed(&few, &db);
    assert_eq!((stats.recovery.undone, stats.undo_per_second), (100, default), "so few say nothing");
    few.abort().unwrap();
    let many = open_one(&db, 3_000);
    let known = db.stats().undo_per_second;
    let stats = killed(&many, &db);
    let seen = 3_000.0 / stats.recovery.undo_time.as_secs_f64();
    assert_eq!(stats.recovery.undone, 3_000);
    assert!((stats.undo_per_second / seen.clamp(1e3, 2e6) - 1.0).abs() < 1e-6, "{stats:?}");
    assert_eq!(db.stats().undo_per_second, known, "what a kill found is of the store that was opened then");
    many.abort().unwrap();
    assert!(db.stats().undo_per_second <= default * 1.000_001, "a rollback only shows that it is slower");
}
