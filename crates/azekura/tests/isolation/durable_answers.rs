//! W8: a result that depends on a commit is not returned before that commit is durable.

use std::sync::Arc;
use std::thread;

use azekura::{Builder, Database, Durability, Error, TableDefinition, Transaction};
use azekura_io::FaultFs;

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

/// Returns settings without background threads: only commits that a client waits for become durable.
fn options(fs: &FaultFs) -> Builder {
    Database::builder()
        .page_size(4096)
        .cache_bytes(64 * 4096)
        .log_buffers(3)
        .wal_streams(2)
        .wal_segment_bytes(2 << 20)
        .background(false)
        .file_system(Arc::new(fs.clone()))
}

fn table(tx: &Transaction) -> Result<Rows, Error> {
    tx.table(&ROWS)?.iter().collect()
}

type Rows = Vec<(u64, u64)>;
type Body = fn(&Transaction) -> Result<(), Error>;

/// Name of the case, writes of T1, reads of T2, and the expected rows.
type Case<'a> = (&'a str, Body, Body, &'a Rows);

/// Runs `write` as T1 and commits without waiting. Runs `look` as T2, if it is given, and waits for its
/// commit. Then the power fails. Returns the rows after the restart.
fn rows_after(write: Body, look: Option<Body>, seed: u64) -> Rows {
    let fs = FaultFs::new();
    let db = options(&fs).open("db").expect("opens");
    db.transact(|tx| (1..=5).try_for_each(|n| tx.table(&ROWS)?.insert(&(n * 10), &0))).expect("filled");
    // Each transaction runs in its own thread, so that they may use different log buffers.
    let run = |body: Body, durability| {
        let tx = db.begin()?;
        tx.set_durability(durability);
        body(&tx)?;
        tx.commit()
    };
    let on_a_thread = |body, durability| {
        thread::scope(|s| s.spawn(|| run(body, durability)).join().expect("no panic")).expect("commits");
    };
    on_a_thread(write, Durability::Relaxed);
    if let Some(look) = look {
        on_a_thread(look, Durability::Immediate);
    }
    fs.cut_power();
    let disk = if seed == 0 { fs.crash_losing_all() } else { fs.crash(seed) };
    drop(db);
    let db = options(&disk).open("db").expect("recovers");
    let report = db.check(&mut |_, _| {}).expect("every page can be read");
    assert!(report.is_clean(), "{:?}", report.findings);
    db.transact(table).expect("reads")
}

#[test]
fn w8_a_reader_does_not_answer_before_what_it_saw_is_durable() {
    let start: Rows = (1..=5).map(|n| (n * 10, 0)).collect();
    let with = |change: &dyn Fn(&mut Rows)| {
        let mut rows = start.clone();
        change(&mut rows);
        rows
    };
    let updated = with(&|rows| rows[2].1 = 7);
    let inserted = with(&|rows| rows.insert(2, (25, 7)));
    let removed = with(&|rows| rows.retain(|row| row.0 != 30));
    let update: Body = |tx| tx.table(&ROWS)?.insert(&30, &7);
    let insert: Body = |tx| tx.table(&ROWS)?.insert(&25, &7);
    let remove: Body = |tx| tx.table(&ROWS)?.remove(&30).map(drop);
    let get: Body = |tx| tx.table(&ROWS)?.get(&30).map(drop);
    let get_new: Body = |tx| tx.table(&ROWS)?.get(&25).map(drop);
    let scan: Body = |tx| table(tx).map(drop);
    // The range ends below the next key, 40: only the gap of that key depends on the removal.
    let scan_emptiness: Body = |tx| tx.table(&ROWS)?.range(30..35).try_for_each(|row| row.map(drop));
    let insert_in_vain: Body = |tx| tx.table(&ROWS)?.insert_if_absent(&25, &1).map(drop);
    let remove_in_vain: Body = |tx| tx.table(&ROWS)?.remove(&30).map(drop);
    let look_and_roll_back: Body = |tx| {
        let savepoint = tx.savepoint()?;
        tx.table(&ROWS)?.insert(&30, &8)?;
        tx.rollback_to(savepoint)
    };
    let cases: [Case<'_>; 9] = [
        ("get of an update", update, get, &updated),
        ("scan of an update", update, scan, &updated),
        ("get of an insert", insert, get_new, &inserted),
        ("scan of an insert", insert, scan, &inserted),
        ("insert_if_absent that found a row", insert, insert_in_vain, &inserted),
        ("get of a removed row", remove, get, &removed),
        ("scan over a removed row", remove, scan_emptiness, &removed),
        ("remove that found nothing", remove, remove_in_vain, &removed),
        ("a write that was rolled back", update, look_and_roll_back, &updated),
    ];
    for (name, write, look, expected) in cases {
        assert_eq!(rows_after(write, None, 0), start, "{name}: unless somebody waits, the cut takes it");
        for seed in 0..4 {
            assert_eq!(&rows_after(write, Some(look), seed), expected, "{name}, crash seed {seed}");
        }
    }
}

/// W8 for a writer: if a transaction that has read a change survives, the change survives, too.
#[test]
fn w8_a_writer_is_not_durable_before_what_it_saw() {
    let update: Body = |tx| tx.table(&ROWS)?.insert(&30, &7);
    let copy: Body = |tx| {
        let rows = tx.table(&ROWS)?;
        let seen = rows.get(&30)?.unwrap_or(0);
        rows.insert(&50, &seen)
    };
    for seed in 0..4 {
        let rows = rows_after(update, Some(copy), seed);
        assert_eq!(rows[2..], [(30, 7), (40, 0), (50, 7)], "crash seed {seed}");
    }
}
