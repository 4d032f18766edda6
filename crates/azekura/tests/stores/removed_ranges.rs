//! The costs of removing many rows: pages read, log records, and the disk space that a checkpoint gives back.

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use azekura::{Database, TableDefinition};
use azekura_io::{FailKind, FaultFs, File, FileLock, Fs, OpenOptions, OsFs};

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

/// A file system that counts released ranges.
///
/// On a simulated disk, a released range is an unsynced write of zeroes: a crash keeps all, a part or nothing
/// of it. Its files report 64 MiB of space beyond their length, so that every release is worth it.
#[derive(Clone, Debug)]
struct Holes<F> {
    fs: F,
    is_simulated: bool,
    calls: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

fn simulated(fs: FaultFs) -> Holes<FaultFs> {
    Holes { fs, is_simulated: true, calls: Arc::default(), bytes: Arc::default() }
}

impl<F: Fs + Clone + 'static> Fs for Holes<F> {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let Self { is_simulated, ref calls, ref bytes, .. } = *self;
        let (calls, bytes) = (Arc::clone(calls), Arc::clone(bytes));
        Ok(Arc::new(HoleFile { file: self.fs.open(path, options)?, is_simulated, calls, bytes }))
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
    is_simulated: bool,
    calls: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
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
        self.calls.fetch_add(1, Relaxed);
        self.bytes.fetch_add(len, Relaxed);
        if self.is_simulated { self.file.write_zeroes(offset, len) } else { self.file.discard(offset, len) }
    }
    fn disk_bytes(&self) -> io::Result<u64> {
        if self.is_simulated { Ok(self.file.len()? + (64 << 20)) } else { self.file.disk_bytes() }
    }
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.file.next_data(offset)
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
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
    /// The steps of the background job, to its end.
    Release,
    Reopen,
}

/// Fills pages, frees most of them, uses them again, and releases free pages in between, by each of the three
/// ways.
fn steps() -> Vec<Step> {
    use Step::{Checkpoint, Put, Release, Remove, Reopen};
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
        Remove(100..140),
        Release,
        Put(0..40, 5),
        Remove(200..255),
        Reopen,
        Put(400..450, 6),
        Remove(5..30),
        Reopen,
    ]
}

/// Runs the steps until one fails; returns the states of the store after each step, and the number of steps
/// that succeeded.
fn run(holes: &Holes<FaultFs>) -> (Vec<Rows>, usize) {
    let mut states = vec![Rows::new()];
    let Ok(mut db) = open_on(holes) else { return (states, 0) };
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
            Step::Release => release(&db).map(drop),
            Step::Reopen => db.close().and_then(|()| open_on(holes)).map(|opened| db = opened),
        };
        states.push(next);
        if done.is_err() {
            return (states.clone(), states.len() - 2);
        }
    }
    let acknowledged = states.len() - 1;
    (states, acknowledged)
}

/// Runs the steps of the background job to its end; returns their number.
fn release(db: &Database) -> Result<u32, azekura::Error> {
    let mut steps = 1;
    while db.release_step()? {
        steps += 1;
    }
    Ok(steps)
}

fn open_on(holes: &Holes<FaultFs>) -> Result<Database, azekura::Error> {
    let builder = Database::builder().page_size(4096).cache_bytes(1 << 20).background(false).log_buffers(1);
    let builder = builder.wal_streams(1).wal_segment_bytes(2 << 20);
    builder.file_system(Arc::new(holes.clone())).open("db")
}

#[test]
fn a_power_loss_at_any_io_loses_no_row_beside_released_pages() {
    let mut cut = 1;
    loop {
        let holes = simulated(FaultFs::new());
        holes.fs.cut_power_at(cut);
        let (states, acknowledged) = run(&holes);
        let is_cut = holes.fs.power_is_off();
        for seed in [cut, cut + 1_000_003] {
            let after = simulated(holes.fs.crash(seed));
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
            assert!(holes.bytes.load(Relaxed) > 400 << 10, "{:?}", holes.bytes);
            break;
        }
        cut += 1;
    }
}

/// After an error of any write, sync or change of a file, the store that is opened next has a state of the
/// workload, and a release never fails a call.
#[test]
fn an_error_of_any_io_loses_no_row_beside_released_pages() {
    let ios = {
        let holes = simulated(FaultFs::new());
        assert_eq!(run(&holes).1, steps().len());
        holes.fs.io_count()
    };
    for at in 1..=ios {
        let holes = simulated(FaultFs::new());
        holes.fs.fail_at(at, FailKind::Io);
        let (states, acknowledged) = run(&holes);
        holes.fs.heal();
        let db = open_on(&holes).unwrap_or_else(|error| panic!("error at {at}: {error:?}"));
        let rows = db.transact(|tx| {
            tx.table(&ROWS)?.iter().map(|row| row.map(|(key, value)| (key, value[0]))).collect()
        });
        assert!(states[acknowledged..].contains(&rows.unwrap()), "error at {at}");
        assert!(db.check(&mut |_, _| {}).unwrap().is_clean(), "error at {at}");
    }
}

/// Returns a store on the operating system's files, with the file system that counts. Returns `None` if that
/// file system has no holes.
fn counted(dir: &Path) -> Option<(Database, Holes<OsFs>)> {
    let probe = OsFs::new().open(&dir.join("probe"), OpenOptions::new().create(true)).unwrap();
    probe.write_at(0, &[1; 8192]).unwrap();
    probe.discard(0, 8192).ok()?;
    let holes = Holes { fs: OsFs::new(), is_simulated: false, calls: Arc::default(), bytes: Arc::default() };
    let builder = Database::builder().page_size(8192).background(false).file_system(Arc::new(holes.clone()));
    Some((builder.open(dir.join("store")).unwrap(), holes))
}

/// Skipped on a file system without holes.
#[test]
fn the_background_job_frees_disk_space_by_few_calls() {
    let dir = tempfile::tempdir().unwrap();
    let Some((db, holes)) = counted(dir.path()) else { return };
    put(&db, 0..40_000, 1);
    assert_eq!(release(&db).unwrap(), 1, "no page is free");
    let full = disk_bytes(db.path());
    remove(&db, 100..39_900);
    // The look, the release, and no more.
    assert!(db.release_step().unwrap());
    assert_eq!(holes.calls.load(Relaxed), 0, "released before the pages have stayed free");
    assert!(!db.release_step().unwrap());
    let (calls, after) = (holes.calls.load(Relaxed), disk_bytes(db.path()));
    println!("{calls} calls, {full} bytes before, {after} after");
    assert!(full - after > 39_000_000, "{after} of {full} bytes");
    assert!((1..=16).contains(&calls), "{calls} calls"); // 8 MiB each
    assert_eq!(release(&db).unwrap(), 1, "all is released");
    assert_eq!(holes.calls.load(Relaxed), calls);
    assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
}

/// A store that is filled and emptied in turns uses its free pages again. They are not released.
#[test]
fn pages_that_are_used_again_within_the_period_are_not_released() {
    let dir = tempfile::tempdir().unwrap();
    let Some((db, holes)) = counted(dir.path()) else { return };
    for round in 0..4 {
        put(&db, 0..30_000, round);
        remove(&db, 0..29_900);
        db.release_step().unwrap(); // a look
        put(&db, 0..30_000, round);
        assert!(!db.release_step().unwrap(), "not worth it any more");
        remove(&db, 0..29_900);
    }
    assert_eq!(holes.calls.load(Relaxed), 0);
}

/// Skipped on a file system without holes.
#[test]
fn the_close_frees_the_disk_space_of_free_pages_and_of_growth() {
    let dir = tempfile::tempdir().unwrap();
    let Some((db, holes)) = counted(dir.path()) else { return };
    put(&db, 0..20_000, 1);
    let full = disk_bytes(db.path());
    remove(&db, 100..19_900);
    db.close().unwrap();
    let after = disk_bytes(db.path());
    let calls = holes.calls.load(Relaxed);
    println!("{calls} calls, {full} bytes before, {after} after");
    // The last rows are at the end of the file.
    assert!(after < 2 << 20 && calls <= 8, "{calls} calls, {after} of {full} bytes");
    drop(db);
    let (db, holes) = counted(dir.path()).unwrap();
    put(&db, 500..2_000, 2);
    let rows: u64 = db.transact(|tx| tx.table(&ROWS)?.len()).unwrap();
    assert_eq!(rows, 200 + 1_500);
    assert!(db.check(&mut |_, _| {}).unwrap().is_clean());
    db.close().unwrap();
    assert!(disk_bytes(db.path()) < 4 << 20, "{}", disk_bytes(db.path()));
    assert_eq!(holes.calls.load(Relaxed), 0, "the file's end is truncated");
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
