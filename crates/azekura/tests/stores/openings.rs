//! Openings leave nothing behind: the files, their sizes, and the work of an opening are the same after
//! hundreds of openings as after the third one. This holds for closed stores and for killed ones.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

mod damaged_pages;
mod encryption;
mod encryption_keys;
mod lookups;
mod release;

use std::path::Path;
use std::sync::Arc;

use azekura::{Database, Error, TableDefinition};
use azekura_io::{CountingFs, FaultFs, Fs, MemFs};

const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

fn open(fs: &CountingFs) -> Database {
    try_open(fs).unwrap()
}

fn try_open(disk: &(impl Fs + Clone + 'static)) -> Result<Database, Error> {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).background(false);
    builder.wal_segment_bytes(2 << 20).file_system(Arc::new(disk.clone())).open("/db")
}

fn put(db: &Database, key: u64) {
    db.transact(|tx| tx.table(&ROWS)?.insert(&key, &key)).unwrap();
}

fn rows(db: &Database) -> usize {
    db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap()
}

/// The files of a store after an opening, and the costs of the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    files: usize,
    bytes: u64,
    open_files: u64,
    bytes_read: u64,
    syncs: u64,
}

/// The kind of end, and the writes, of each run by its number.
struct Runs {
    is_killed: fn(u64) -> bool,
    writes: fn(u64) -> bool,
    checkpoints: fn(u64) -> bool,
}

/// Runs a store `count` times on one disk; returns the files and costs after each opening.
fn run(runs: &Runs, count: u64) -> Vec<Held> {
    let mut disk = FaultFs::new();
    let mut held = Vec::new();
    let mut written = 0;
    for n in 0..count {
        let counting = CountingFs::new(Arc::new(disk.clone()));
        let db = open(&counting);
        let opened = counting.counts();
        assert_eq!(rows(&db), written);
        if (runs.writes)(n) {
            put(&db, n);
            written += 1;
        }
        if (runs.checkpoints)(n) {
            db.checkpoint().unwrap();
        }
        let files = disk.files();
        let bytes = files.iter().map(|path| disk.contents(path).unwrap().len() as u64).sum();
        held.push(Held {
            files: files.len(),
            bytes,
            open_files: counting.counts().open_files,
            bytes_read: opened.bytes_read,
            syncs: opened.syncs,
        });
        if (runs.is_killed)(n) {
            disk = disk.kill();
            drop(db);
        } else {
            db.close().unwrap();
            drop(db);
            assert_eq!(counting.counts().open_files, 0);
        }
    }
    held
}

/// Returns the maximum of each number over some runs.
fn most(held: &[Held]) -> Held {
    held.iter()
        .copied()
        .reduce(|a, b| Held {
            files: a.files.max(b.files),
            bytes: a.bytes.max(b.bytes),
            open_files: a.open_files.max(b.open_files),
            bytes_read: a.bytes_read.max(b.bytes_read),
            syncs: a.syncs.max(b.syncs),
        })
        .unwrap()
}

/// Asserts that the files and costs stay constant. If runs differ from each other, they need a few more
/// openings until each kind has followed each other kind.
fn stays_as_it_is(name: &str, runs: &Runs, settled: usize) {
    let held = run(runs, 300);
    let (first, rest) = held.split_at(settled);
    let (early, late) = (most(first), most(rest));
    // A tree of 300 rows has a few more pages than a tree of three rows.
    let pages = 8 * 4096;
    assert!(late.files <= early.files, "{name}: {early:?} became {late:?}");
    assert!(late.open_files <= early.open_files, "{name}: {early:?} became {late:?}");
    assert!(late.bytes <= early.bytes, "{name}: {early:?} became {late:?}");
    assert!(late.bytes_read <= early.bytes_read + pages, "{name}: {early:?} became {late:?}");
    assert!(late.syncs <= early.syncs, "{name}: {early:?} became {late:?}");
}

const NEVER: fn(u64) -> bool = |_| false;
const ALWAYS: fn(u64) -> bool = |_| true;
const MIXED: fn(u64) -> bool = |n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62 & 1 == 1;

#[test]
fn clean_openings_leave_nothing() {
    let runs = |writes| Runs { is_killed: NEVER, writes, checkpoints: NEVER };
    stays_as_it_is("with a row", &runs(ALWAYS), 3);
    stays_as_it_is("without rows", &runs(NEVER), 3);
    stays_as_it_is("with a checkpoint", &Runs { checkpoints: ALWAYS, ..runs(ALWAYS) }, 3);
}

#[test]
fn killed_openings_leave_nothing() {
    let runs = |writes| Runs { is_killed: ALWAYS, writes, checkpoints: NEVER };
    stays_as_it_is("with a row", &runs(ALWAYS), 3);
    stays_as_it_is("without rows", &runs(NEVER), 3);
    stays_as_it_is("with a checkpoint", &Runs { checkpoints: ALWAYS, ..runs(ALWAYS) }, 3);
}

/// The directory of a new store exists, and its name was never synced. The creation makes the name durable.
#[test]
fn a_store_in_a_new_directory_of_another_program_survives_a_power_loss() {
    let fs = FaultFs::new();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let db = try_open(&fs).unwrap();
    put(&db, 1);
    let disk = fs.crash_losing_all();
    assert_eq!(rows(&try_open(&disk).unwrap()), 1);
}

/// An opening was killed after it had created the directory of the log. The next one makes its name durable.
#[test]
fn a_log_directory_of_a_killed_opening_survives_a_power_loss() {
    let fs = FaultFs::new();
    try_open(&fs).unwrap().close().unwrap();
    fs.create_dir_all(Path::new("/db/wal")).unwrap();
    let db = try_open(&fs).unwrap();
    put(&db, 1);
    let disk = fs.crash_losing_all();
    assert_eq!(rows(&try_open(&disk).unwrap()), 1);
}

/// The first write of a store loses power after its log began and before a record of it is durable, and the
/// recovery loses power as well: pages of the log after that are not taken for pages of a lost log.
#[test]
fn a_log_without_records_and_a_lost_recovery_keep_the_store() {
    let fs = FaultFs::new();
    let db = try_open(&fs).unwrap();
    put(&db, 1);
    db.close().unwrap();
    for cuts in (1..=10).flat_map(|a| (1..=8).map(move |b| [a, b])) {
        let mut disk = fs.kill();
        for cut in cuts {
            disk.cut_power_at(cut);
            let _ = try_open(&disk).and_then(|db| db.transact(|tx| tx.table(&ROWS)?.insert(&1, &2)));
            disk = disk.crash_losing_all();
        }
        let db = try_open(&disk).unwrap_or_else(|e| panic!("power cuts at I/Os {cuts:?}: {e}"));
        put(&db, 2);
        db.close().unwrap();
        let db = try_open(&disk).unwrap();
        assert!(db.check(&mut |_, _| {}).unwrap().is_clean(), "power cuts at I/Os {cuts:?}");
        assert_eq!(rows(&db), 2);
    }
}

/// One recovery loses power after its log began and before the first record of it is durable, one before its
/// log begins, and one later: the log of the third is not taken for a log that lost records.
#[test]
fn recoveries_that_lose_power_in_any_order_keep_the_store() {
    let fs = FaultFs::new();
    let db = try_open(&fs).unwrap();
    put(&db, 1);
    let undone = db.begin().unwrap();
    undone.table(&ROWS).unwrap().insert(&5, &5).unwrap();
    put(&db, 2); // makes the log durable, with the record of the open transaction
    let killed = fs.kill();
    let cuts = (1..=10).flat_map(|a| (1..=5).flat_map(move |b| (3..=12).map(move |c| [a, b, c])));
    for cuts in cuts {
        let mut disk = killed.kill();
        for cut in cuts {
            disk.cut_power_at(cut);
            drop(try_open(&disk));
            disk = disk.crash_losing_all();
        }
        let db = try_open(&disk).unwrap_or_else(|e| panic!("power cuts at I/Os {cuts:?}: {e}"));
        assert_eq!(rows(&db), 2, "{cuts:?}");
    }
}

#[test]
fn mixed_openings_leave_nothing() {
    stays_as_it_is(
        "mixed",
        &Runs { is_killed: MIXED, writes: |n| n % 3 == 0, checkpoints: |n| n % 5 == 0 },
        30,
    );
}

/// Returns the number and the total size of the files below the store's directory.
fn size(fs: &MemFs) -> (usize, u64) {
    let files = fs.files(Path::new("/db")).unwrap();
    (files.len(), files.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

/// The next opening for writing removes log files that a store does not need, whatever their origin.
#[test]
fn a_store_that_has_grown_is_brought_back_by_the_next_opening() {
    let fs = MemFs::new();
    let store = || open(&CountingFs::new(Arc::new(fs.clone())));
    put(&store(), 1);
    let opened = store();
    put(&opened, 2);
    let log =
        |(path, _): &(std::path::PathBuf, Vec<u8>)| path.parent().is_some_and(|dir| dir.ends_with("00"));
    let (source, bytes) = fs.files(Path::new("/db")).unwrap().into_iter().rfind(log).unwrap();
    opened.close().unwrap();
    let normal = size(&fs);
    let kept = fs.files(Path::new("/db")).unwrap().into_iter().filter(log).count();
    assert_eq!(kept, 1, "for the next run");
    for extra in 0..40_u64 {
        let number = 1000 + extra;
        let path = source.with_file_name(format!("{number:016x}"));
        let file = azekura_io::Fs::open(&fs, &path, azekura_io::OpenOptions::new().create(true)).unwrap();
        // Unused log files, and log files with chunks of the store's earlier runs.
        let bytes = if extra % 2 == 0 { vec![0; bytes.len()] } else { bytes.clone() };
        file.write_at(0, &bytes).unwrap();
    }
    let store = store();
    put(&store, 3);
    assert_eq!(rows(&store), 3);
    store.close().unwrap();
    assert_eq!(size(&fs).0, normal.0, "{normal:?} became {:?}", size(&fs));
}

/// Largest number of files, and largest total size, of a store with one row, open or closed.
const SMALL: (usize, u64) = (6, 1 << 20);

/// Opens a store with default settings.
fn open_usual(fs: &CountingFs) -> Database {
    Database::builder().file_system(Arc::new(fs.clone())).open("/db").unwrap()
}

#[test]
fn a_small_store_is_small_and_made_by_four_syncs() {
    let memory = MemFs::new();
    let fs = CountingFs::new(Arc::new(memory.clone()));
    let is_small = |what: &str| {
        let held = (fs.counts().open_files as usize, size(&memory).1);
        assert!(held.0 <= SMALL.0 && held.1 < SMALL.1, "{what}: {held:?}");
    };
    let db = open_usual(&fs);
    let counts = fs.counts();
    // Reads CONTROL and the heads of both page files; pages that were just written are not read again.
    assert!(counts.syncs <= 4 && counts.reads <= 3 && counts.opened <= 6, "{counts:?}");
    is_small("new");
    put(&db, 1);
    is_small("one row");
    db.checkpoint().unwrap();
    is_small("one row in its page");
    db.close().unwrap();
    is_small("closed");
    drop(db);
    assert_eq!(fs.counts().open_files, 0);
    let db = open_usual(&fs);
    assert_eq!(rows(&db), 1);
    put(&db, 2);
    is_small("opened and written again");
    // Many checkpoints: the size of the double-write area stays that of one batch.
    for n in 3..30 {
        put(&db, n);
        db.checkpoint().unwrap();
    }
    is_small("after thirty checkpoints");
}

#[test]
fn a_first_row_takes_seven_syncs_and_the_close_after_it_seven() {
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    let db = Database::builder().background(false).file_system(Arc::new(fs.clone())).open("/db").unwrap();
    let created = fs.counts().syncs;
    put(&db, 1);
    let with_a_row = fs.counts().syncs;
    db.close().unwrap();
    let closed = fs.counts().syncs;
    println!("syncs: {created} to create, {with_a_row} with a row, {closed} closed");
    // The row: the head of the double-write area, the names of the store, of the two directories of the log
    // and of its file, CONTROL, and the log. The close: the size of the page file, the double-write area,
    // the log, the pages, the name and the content of the LSN map, and CONTROL.
    assert!(with_a_row - created <= 7 && closed - with_a_row <= 7, "{created}, {with_a_row}, {closed}");
}

/// Returns the I/O counts of opening a store with this number of tables and reading a row. The last handle
/// closes the store.
fn opening_of(tables: u64) -> azekura_io::Counts {
    let memory = MemFs::new();
    {
        let db = open_usual(&CountingFs::new(Arc::new(memory.clone())));
        for n in 0..tables {
            let name = format!("table {n}");
            db.transact(|tx| tx.table(&TableDefinition::<u64, u64>::named(&name))?.insert(&n, &n)).unwrap();
        }
        put(&db, 7);
    }
    let fs = CountingFs::new(Arc::new(memory));
    let db = open_usual(&fs);
    let tx = db.begin().unwrap();
    assert_eq!(tx.table(&ROWS).unwrap().get(&7).unwrap(), Some(7));
    tx.commit().unwrap();
    db.close().unwrap();
    fs.counts()
}

#[test]
fn a_clean_opening_reads_a_few_pages_and_writes_nothing() {
    let (few, many) = (opening_of(1), opening_of(2_000));
    for counts in [few, many] {
        assert_eq!((counts.changes(), counts.bytes_written), (0, 0), "{counts:?}");
        // Reads CONTROL, the head of the double-write area, the pages from the catalog's root to the row, and
        // their entries in the LSN map.
        assert!(counts.reads <= 9 && counts.bytes_read <= 128 << 10, "{counts:?}");
    }
    assert!(many.opened <= few.opened, "{many:?}");
}

/// A table that is created after a clean opening gets a number that no other table has.
#[test]
fn tables_made_in_each_opening_are_different_ones() {
    let memory = MemFs::new();
    for n in 0..20_u64 {
        let db = open(&CountingFs::new(Arc::new(memory.clone())));
        let name = format!("table {n}");
        db.transact(|tx| tx.table(&TableDefinition::<u64, u64>::named(&name))?.insert(&n, &n)).unwrap();
        for m in 0..=n {
            let name = format!("table {m}");
            let found =
                db.transact(|tx| tx.table(&TableDefinition::<u64, u64>::named(&name))?.get(&m)).unwrap();
            assert_eq!(found, Some(m));
        }
        assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
        if n % 3 > 0 {
            db.close().unwrap();
        }
    }
}

fn read_only(fs: &CountingFs) -> Result<Database, Error> {
    Database::builder().cache_bytes(1 << 20).read_only(true).file_system(Arc::new(fs.clone())).open("/db")
}

/// Opening read-only writes no file, whatever state the store is in, and several processes can read at once.
#[test]
fn several_read_a_closed_or_killed_store_and_nothing_is_written() {
    for is_killed in [false, true] {
        let disk = FaultFs::new();
        let db = open(&CountingFs::new(Arc::new(disk.clone())));
        (0..50).for_each(|n| put(&db, n));
        let open_writer = db.begin().unwrap();
        open_writer.table(&ROWS).unwrap().insert(&1_000, &1).unwrap(); // a loser, if the process is killed
        let counting = CountingFs::new(Arc::new(disk.clone()));
        assert!(matches!(read_only(&counting), Err(Error::InUse { .. })));
        let disk = if is_killed {
            db.transact(|tx| tx.table(&ROWS)?.insert(&1, &1)).unwrap(); // the loser's record is durable, too
            disk.kill()
        } else {
            open_writer.abort().unwrap();
            db.close().unwrap();
            disk
        };
        let counting = CountingFs::new(Arc::new(disk.clone()));
        // From now on any write would fail.
        disk.fail_from(1, azekura_io::FailKind::Io);
        let readers = [read_only(&counting).unwrap(), read_only(&counting).unwrap()];
        for reader in &readers {
            assert_eq!(rows(reader), 50);
            assert_eq!(reader.table_names().unwrap(), ["rows"]);
            assert!(reader.check(&mut |_, _| {}).unwrap().is_clean());
            assert_eq!(reader.stats().recovery.losers, u64::from(is_killed));
            let refused = [
                reader.transact(|tx| tx.table(&ROWS)?.insert(&1, &2)).map(|_| ()),
                reader.transact(|tx| tx.table(&ROWS)?.remove(&1)).map(|_| ()),
                reader.transact(|tx| tx.drop_table("rows")).map(|_| ()),
                reader
                    .transact(|tx| tx.table(&TableDefinition::<u64, u64>::named("new"))?.insert(&1, &1))
                    .map(|_| ()),
                reader.repair(&mut |_, _| {}).map(|_| ()),
            ];
            for refused in refused {
                assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
            }
            reader.checkpoint().unwrap();
        }
        let writer =
            || Database::builder().cache_bytes(1 << 20).file_system(Arc::new(disk.clone())).open("/db");
        assert!(matches!(writer(), Err(Error::InUse { .. })), "while others read");
        readers.iter().for_each(|reader| reader.close().unwrap());
        drop(readers);
        assert_eq!((counting.counts().changes(), counting.counts().open_files), (0, 0));
        disk.heal();
        assert_eq!(rows(&writer().unwrap()), 50);
    }
    let nothing = CountingFs::new(Arc::new(MemFs::new()));
    assert!(matches!(read_only(&nothing), Err(Error::NotFound { .. })));
    assert_eq!(nothing.counts().changes(), 0);
}
