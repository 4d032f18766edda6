//! Tests of waiting for durable commits: only for commits that a snapshot has shown, and for all of these.

use std::sync::Arc;

use azekura::{Database, Durability, Error, Snapshot, Transaction};
use azekura_io::FaultFs;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::{COUNTS, OTHER, builder};

/// Opens a store without background threads: only commits that a call waits for become durable.
fn open(fs: &FaultFs) -> Database {
    let builder = builder().background(false).log_buffers(3).wal_streams(2).wal_segment_bytes(2 << 20);
    builder.file_system(Arc::new(fs.clone())).open("db").unwrap()
}

fn relaxed(db: &Database, body: impl FnOnce(&Transaction) -> Result<(), Error>) {
    let tx = db.begin().unwrap();
    tx.set_durability(Durability::Relaxed);
    body(&tx).unwrap();
    tx.commit().unwrap();
}

/// Returns the number of flushes that a read causes.
fn flushes<T>(db: &Database, read: impl FnOnce(&Snapshot) -> Result<T, Error>) -> u64 {
    let before = db.stats().log.flushes;
    db.read(read).unwrap();
    db.stats().log.flushes - before
}

#[test]
fn a_read_waits_for_the_commits_that_it_has_seen_and_for_no_other() {
    const LAST: u64 = 3000;
    let fs = FaultFs::new();
    let db = open(&fs);
    db.transact(|tx| {
        (0..LAST).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0))?;
        (0..LAST).try_for_each(|key| tx.table(&OTHER)?.insert(&key, &0))
    })
    .unwrap();
    assert_eq!(flushes(&db, |s| s.table(&COUNTS)?.len()), 0, "all is durable");

    relaxed(&db, |tx| tx.table(&COUNTS)?.insert(&7, &1));
    assert_eq!(flushes(&db, |s| s.table(&COUNTS)?.get(&2999)), 0, "another leaf");
    // Another row of the leaf may share a slot of commit LSNs with the written row (see `depend` of
    // azekura-lock): the seed of the slots is random. So one of several rows suffices.
    let is_independent = |key: u64| {
        relaxed(&db, |tx| tx.table(&COUNTS)?.insert(&7, &1));
        flushes(&db, |s| s.table(&COUNTS)?.get(&key)) == 0
    };
    assert!((8..12).any(is_independent), "another row of the leaf");
    assert_eq!(
        flushes(&db, |s| s
            .table(&COUNTS)?
            .range(1000..)
            .count()
            .try_into()
            .map_err(Error::other)
            .map(|rows: u64| rows)),
        0,
        "other leaves"
    );
    assert_eq!(flushes(&db, |s| s.table(&OTHER)?.len()), 0, "another table");
    assert!(flushes(&db, |s| s.table(&COUNTS)?.get(&7)) > 0, "the row");
    assert_eq!(flushes(&db, |s| s.table(&COUNTS)?.get(&7)), 0, "it is durable now");

    relaxed(&db, |tx| tx.table(&COUNTS)?.remove(&7).map(drop));
    assert!(flushes(&db, |s| s.table(&COUNTS)?.get(&7)) > 0, "an absent row");
    relaxed(&db, |tx| tx.table(&COUNTS)?.remove(&9).map(drop));
    assert!(flushes(&db, |s| s.table(&COUNTS)?.range(..20).next().transpose()) > 0, "a range");
    relaxed(&db, |tx| tx.table(&COUNTS)?.insert(&LAST, &1));
    assert!(flushes(&db, |s| s.table(&COUNTS)?.last()) > 0, "a range from its end");
    relaxed(&db, |tx| tx.drop_table("other").map(drop));
    assert!(flushes(&db, |s| s.table(&OTHER)?.is_empty()) > 0, "an absent table");

    // A snapshot does not wait for a commit that is newer.
    let old = db.snapshot().unwrap();
    relaxed(&db, |tx| tx.table(&COUNTS)?.insert(&100, &5));
    let before = db.stats().log.flushes;
    assert_eq!(old.table(&COUNTS).unwrap().get(&100).unwrap(), Some(0));
    old.wait_durable().unwrap();
    assert_eq!(db.stats().log.flushes, before);
    assert!(flushes(&db, |s| s.table(&COUNTS)?.get(&100)) > 0);
}

/// All rows that `db.read` has returned survive a power loss that drops all unsynced writes.
#[test]
fn rows_returned_by_a_read_survive_a_power_loss() {
    const KEYS: u64 = 400;
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let db = open(&fs);
        db.transact(|tx| (0..KEYS).step_by(2).try_for_each(|key| tx.table(&COUNTS)?.insert(&key, &0)))
            .unwrap();
        // Versions are on from the start, or only from the read on.
        let _early = random.random_bool(0.5).then(|| db.snapshot().unwrap());
        for n in 1..random.random_range(2..60) {
            let key = random.random_range(0..KEYS);
            let tx = db.begin_on_log_buffer(random.random_range(0..3)).unwrap();
            tx.set_durability(Durability::Relaxed);
            let table = tx.table(&COUNTS).unwrap();
            match random.random_bool(0.3) {
                true => drop(table.remove(&key).unwrap()),
                false => table.insert(&key, &n).unwrap(),
            }
            match random.random_bool(0.1) {
                true => tx.abort().unwrap(),
                false => tx.commit().unwrap(),
            }
        }
        let from = random.random_range(0..KEYS);
        let to = random.random_range(from + 1..=KEYS);
        let is_range = random.random_bool(0.5);
        let rows = |s: &Snapshot| -> Result<Vec<(u64, u64)>, Error> {
            let table = s.table(&COUNTS)?;
            match is_range {
                true => table.range(from..to).collect(),
                false => Ok(table.get(&from)?.map(|value| (from, value)).into_iter().collect()),
            }
        };
        let seen = db.read(rows).unwrap();
        let left = open(&fs.crash_losing_all());
        assert_eq!(left.read(rows).unwrap(), seen, "seed {seed}, {from}..{to}, a range: {is_range}");
    }
}

#[test]
fn a_durable_snapshot_shows_an_earlier_state_and_causes_no_flush() {
    let fs = FaultFs::new();
    let db = open(&fs);
    let write = |n| relaxed(&db, |tx| tx.table(&COUNTS)?.insert(&1, &n));
    let seen = |s: &Snapshot| s.table(&COUNTS).unwrap().get(&1).unwrap();
    write(1);
    assert_eq!(seen(&db.durable_snapshot().unwrap()), Some(1), "nothing else is known to be durable");
    write(2);
    let flushes = db.stats().log.flushes;
    let durable = db.durable_snapshot().unwrap();
    assert_eq!(seen(&durable), Some(1));
    durable.wait_durable().unwrap();
    write(3);
    assert_eq!(seen(&db.durable_snapshot().unwrap()), Some(1));
    assert_eq!(db.stats().log.flushes, flushes);
    db.read(|s| Ok(seen(s))).unwrap(); // flushes the log
    write(4);
    assert_eq!(seen(&db.durable_snapshot().unwrap()), Some(2), "the state of the second call");
    assert_eq!((seen(&durable), seen(&db.snapshot().unwrap())), (Some(1), Some(4)));
    db.checkpoint().unwrap();
    assert_eq!(seen(&db.durable_snapshot().unwrap()), Some(4), "the present state is durable");
    let left = open(&fs.crash_losing_all());
    assert_eq!(seen(&left.snapshot().unwrap()), Some(4));
}
