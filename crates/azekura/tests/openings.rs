//! Openings leave nothing behind: files, bytes and the work of an opening are the same after hundreds of
//! openings as after the third, whether the store was closed or its process killed.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

use std::path::Path;
use std::sync::Arc;

use azekura::{Database, Table};
use azekura_io::{CountingFs, FaultFs, MemFs};

const ROWS: Table<u64, u64> = Table::new("rows");

fn open(fs: &CountingFs) -> Database {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).background(false);
    builder.wal_segment_bytes(2 << 20).file_system(Arc::new(fs.clone())).open("/db").unwrap()
}

fn put(db: &Database, key: u64) {
    db.transact(|tx| tx.table(&ROWS)?.insert(&key, &key)).unwrap();
}

fn rows(db: &Database) -> usize {
    db.transact(|tx| Ok(tx.table(&ROWS)?.iter().count())).unwrap()
}

/// What there is after an opening, and what the opening did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    files: usize,
    bytes: u64,
    open_files: u64,
    bytes_read: u64,
    syncs: u64,
}

/// How a run ends and what it writes, by its number.
struct Runs {
    is_killed: fn(u64) -> bool,
    writes: fn(u64) -> bool,
    checkpoints: fn(u64) -> bool,
}

/// Runs of a store on a disk; what is held after each opening.
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

/// The most of each number in some runs.
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

/// Runs that differ from each other need a few more openings until each kind has followed each other.
fn stays_as_it_is(name: &str, runs: &Runs, settled: usize) {
    let held = run(runs, 300);
    let (first, rest) = held.split_at(settled);
    let (early, late) = (most(first), most(rest));
    // A tree of 300 rows has a few pages more than one of three.
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

#[test]
fn mixed_openings_leave_nothing() {
    stays_as_it_is(
        "mixed",
        &Runs { is_killed: MIXED, writes: |n| n % 3 == 0, checkpoints: |n| n % 5 == 0 },
        30,
    );
}

/// The bytes and files below a directory of a file system in memory.
fn size(fs: &MemFs) -> (usize, u64) {
    let files = fs.files(Path::new("/db")).unwrap();
    (files.len(), files.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

/// Log files that a store does not need, whatever left them: the next opening removes them.
#[test]
fn a_store_that_has_grown_is_brought_back_by_the_next_opening() {
    let fs = MemFs::new();
    let store = || open(&CountingFs::new(Arc::new(fs.clone())));
    put(&store(), 1);
    put(&store(), 2);
    store().close().unwrap();
    let normal = size(&fs);
    let (source, bytes) = fs
        .files(Path::new("/db"))
        .unwrap()
        .into_iter()
        .rfind(|(path, _)| path.parent().is_some_and(|dir| dir.ends_with("00")))
        .unwrap();
    for extra in 0..40_u64 {
        let number = 1000 + extra;
        let path = source.with_file_name(format!("{number:016x}"));
        let file = azekura_io::Fs::open(&fs, &path, azekura_io::OpenOptions::new().create(true)).unwrap();
        // Unused ones, and chunks of the store's earlier runs.
        let bytes = if extra % 2 == 0 { vec![0; bytes.len()] } else { bytes.clone() };
        file.write_at(0, &bytes).unwrap();
    }
    let store = store();
    put(&store, 3);
    assert_eq!(rows(&store), 3);
    store.close().unwrap();
    assert!(size(&fs).0 <= normal.0 + 2, "{normal:?} became {:?}", size(&fs));
}
