//! The costs of removing many rows: pages read, log records, and the disk space that a checkpoint gives back.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use azekura::{Database, TableDefinition};
use azekura_io::{FaultFs, File, FileLock, Fs, OpenOptions, OsFs};

const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");

/// Returns the number of pages that `remove` reads in a store with 20 values of 256 KiB.
fn pages_read(remove: impl FnOnce(&Database)) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::builder().page_size(8192).background(false).open(dir.path()).unwrap();
    let db = open();
    db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[7; 256 << 10][..]))).unwrap();
    db.close().unwrap();
    drop(db);
    let db = open();
    let before = db.stats().cache.misses;
    remove(&db);
    let read = db.stats().cache.misses - before;
    assert_eq!(db.transact(|tx| tx.table(&ROWS)?.len()).unwrap(), 0);
    read
}

/// A free step reads the first page of each run of a value. The other pages need not be read.
#[test]
fn a_removal_of_many_rows_reads_no_large_values() {
    let by_key = pages_read(|db| {
        db.transact(|tx| (0..20).try_for_each(|key| tx.table(&ROWS)?.delete(&key).map(drop))).unwrap();
    });
    let by_range = pages_read(|db| {
        assert_eq!(db.transact(|tx| tx.table(&ROWS)?.remove_range(..)).unwrap(), 20);
    });
    let by_filter = pages_read(|db| {
        let removed = |tx: &azekura::Transaction| tx.table(&ROWS)?.update(&3, |_| None::<Vec<u8>>);
        db.transact(removed).unwrap();
        assert_eq!(db.transact(|tx| tx.table(&ROWS)?.remove_range(..)).unwrap(), 19);
    });
    let value_pages = (256 << 10) / 8192;
    assert!(by_range <= by_key + 4, "{by_range} pages, {by_key} by key");
    // `update` passes the old value to the caller, so it reads this value once.
    assert!(by_filter <= by_key + 4 + value_pages, "{by_filter} pages, {by_key} by key");
}

/// Returns the space that the page file takes on the disk.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(dir.join("pages")).unwrap().blocks() * 512
}

fn put(db: &Database, keys: Range<u64>, byte: u8) {
    db.transact(|tx| keys.clone().try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[byte; 1000][..])))
        .unwrap();
}

fn remove(db: &Database, keys: Range<u64>) -> u64 {
    db.transact(|tx| tx.table(&ROWS)?.remove_range(keys.clone())).unwrap()
}

/// Skipped on a file system without holes.
#[test]
fn a_checkpoint_after_the_removal_of_most_rows_frees_disk_space() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Database::builder().page_size(8192).background(false).open(dir.path()).unwrap();
    let db = open();
    put(&db, 0..20_000, 1);
    db.checkpoint().unwrap();
    let full = disk_bytes(dir.path());
    assert!(full > 20 << 20, "{full}");
    let snapshot = db.snapshot().unwrap();
    assert_eq!(remove(&db, 100..19_900), 19_800);
    db.checkpoint().unwrap();
    let after = disk_bytes(dir.path());
    let probe = OsFs::new().open(&dir.path().join("probe"), OpenOptions::new().create(true)).unwrap();
    probe.write_at(0, &[1; 8192]).unwrap();
    if probe.discard(0, 8192).is_err() {
        return;
    }
    // The space allocated for the growth of the file stays.
    assert!(full - after > 19_800 * 1000, "{after} of {full} bytes");
    // A snapshot reads the removed rows from memory.
    assert_eq!(snapshot.table(&ROWS).unwrap().get(&5_000).unwrap().as_deref(), Some(&[1; 1000][..]));
    drop(snapshot);
    assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
    put(&db, 5_000..10_000, 2);
    db.checkpoint().unwrap();
    let again = disk_bytes(dir.path());
    assert!((after + 4_000_000..full).contains(&again), "{again} bytes with 5 MB of rows more than {after}");
    db.close().unwrap();
    drop(db);
    let db = open();
    put(&db, 10_000..11_000, 3);
    assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
    let rows: u64 = db.transact(|tx| tx.table(&ROWS)?.len()).unwrap();
    assert_eq!(rows, 200 + 5_000 + 1_000);
}

/// A simulated disk on which a released range is an unsynced write of zeroes: a crash keeps all, a part or
/// nothing of it.
#[derive(Clone, Debug)]
struct Holes {
    fs: FaultFs,
    released: Arc<AtomicU64>,
}

impl Fs for Holes {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let (file, released) = (self.fs.open(path, options)?, Arc::clone(&self.released));
        Ok(Arc::new(HoleFile { file, released }))
    }
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.fs.create_dir_all(path)
    }
    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.fs.list_dir(path)
    }
    fn exists(&self, path: &Path) -> bool {
        self.fs.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.sync_dir(path)
    }
    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.fs.lock_exclusive(path)
    }
    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.fs.lock_shared(path)
    }
}

#[derive(Debug)]
struct HoleFile {
    file: Arc<dyn File>,
    released: Arc<AtomicU64>,
}

impl File for HoleFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, buf)
    }
    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.file.write_at_sync(offset, buf)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.write_zeroes(offset, len)
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.released.fetch_add(len, Relaxed);
        self.file.write_zeroes(offset, len)
    }
    fn alignment(&self) -> usize {
        self.file.alignment()
    }
}

type Rows = BTreeMap<u64, u8>;

/// One transaction or checkpoint of the workload.
#[derive(Clone)]
enum Step {
    Put(Range<u64>, u8),
    Remove(Range<u64>),
    Checkpoint,
}

/// Fills pages, frees most of them, uses them again, and releases free pages in between.
fn steps() -> Vec<Step> {
    use Step::{Checkpoint, Put, Remove};
    vec![
        Put(0..150, 1),
        Checkpoint,
        Remove(5..140),
        Checkpoint,
        Put(20..80, 2),
        Remove(0..10),
        Checkpoint,
        Put(100..150, 3),
        Remove(20..75),
        Checkpoint,
        Put(200..260, 4),
    ]
}

/// Runs the steps until one fails; returns the states of the store after each step, and the number of steps
/// that succeeded.
fn run(holes: &Holes) -> (Vec<Rows>, usize) {
    let mut states = vec![Rows::new()];
    let Ok(db) = open_on(holes) else { return (states, 0) };
    for step in steps() {
        let mut next = states.last().unwrap().clone();
        let done = match step {
            Step::Put(keys, byte) => {
                next.extend(keys.clone().map(|key| (key, byte)));
                db.transact(|tx| {
                    keys.clone().try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[byte; 1000][..]))
                })
            }
            Step::Remove(keys) => {
                next.retain(|key, _| !keys.contains(key));
                db.transact(|tx| tx.table(&ROWS)?.remove_range(keys.clone()).map(drop))
            }
            Step::Checkpoint => db.checkpoint(),
        };
        states.push(next);
        if done.is_err() {
            return (states.clone(), states.len() - 2);
        }
    }
    let acknowledged = states.len() - 1;
    (states, acknowledged)
}

fn open_on(holes: &Holes) -> Result<Database, azekura::Error> {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).background(false).log_buffers(1);
    let builder = builder.wal_streams(1).wal_segment_bytes(2 << 20);
    builder.file_system(Arc::new(holes.clone())).open("db")
}

#[test]
fn a_power_loss_at_any_io_loses_no_row_beside_released_pages() {
    let mut cut = 1;
    loop {
        let holes = Holes { fs: FaultFs::new(), released: Arc::default() };
        holes.fs.cut_power_at(cut);
        let (states, acknowledged) = run(&holes);
        let is_cut = holes.fs.power_is_off();
        for seed in [cut, cut + 1_000_003] {
            let after = Holes { fs: holes.fs.crash(seed), released: Arc::default() };
            let db = open_on(&after).unwrap_or_else(|error| panic!("cut at {cut}, seed {seed}: {error:?}"));
            let rows = db.transact(|tx| {
                let mut rows = Rows::new();
                for row in tx.table(&ROWS)?.iter() {
                    let (key, value) = row?;
                    assert!(value.len() == 1000 && value.iter().all(|&byte| byte == value[0]));
                    rows.insert(key, value[0]);
                }
                Ok(rows)
            });
            assert!(states[acknowledged..].contains(&rows.unwrap()), "cut at {cut}, seed {seed}");
            let report = db.check(&mut |_, _| {}).unwrap();
            assert!(report.is_clean(), "cut at {cut}, seed {seed}: {report:?}");
            put(&db, 300..350, 5);
            db.checkpoint().unwrap();
            assert!(db.check(&mut |_, _| {}).unwrap().is_clean(), "cut at {cut}, seed {seed}");
        }
        if !is_cut {
            assert!(holes.released.load(Relaxed) > 200 << 10, "{:?}", holes.released);
            break;
        }
        cut += 1;
    }
}

/// Each removed row has a record with its old value, for the undo (decision 066).
#[test]
fn a_removed_row_costs_one_record_with_its_value() {
    const COUNT: u64 = 5_000;
    let db = Database::builder().background(false).open_in_memory().unwrap();
    db.transact(|tx| (0..COUNT).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &[1; 100][..]))).unwrap();
    let before = db.stats().log;
    assert_eq!(remove(&db, 0..COUNT), COUNT);
    let after = db.stats().log;
    let (records, bytes) = (after.records - before.records, after.record_bytes - before.record_bytes);
    println!("{records} records and {bytes} bytes for {COUNT} rows of 108 bytes");
    assert!((COUNT..COUNT * 21 / 20).contains(&records), "{records}");
    assert!(bytes < COUNT * (108 + 30), "{bytes}");
}
