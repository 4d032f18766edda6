//! `CountingFs`: a layer that counts the calls and bytes which reach the file system below it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use azekura_base::page::PageWord;

use crate::fs::{File, FileLock, Fs, OpenOptions};

/// A file system that counts the calls to another one.
///
/// ```
/// use azekura_io::{CountingFs, Fs, MemFs, OpenOptions};
/// use std::{path::Path, sync::Arc};
///
/// let fs = CountingFs::new(Arc::new(MemFs::new()));
/// let file = fs.open(Path::new("log"), OpenOptions::new().create(true))?;
/// file.write_at_sync(0, &[7; 10])?;
/// let counts = fs.counts();
/// assert_eq!((counts.created, counts.writes, counts.bytes_written, counts.syncs), (1, 1, 10, 1));
/// assert_eq!(counts.open_files, 1);
/// assert_eq!(fs.bytes_written_to(|path| path.ends_with("log")), 10);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CountingFs {
    inner: Arc<dyn Fs>,
    counters: Arc<Counters>,
}

/// Counts since the layer was made, or since [`CountingFs::reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of files opened, including those created.
    pub opened: u64,
    /// Number of files that `open` created.
    pub created: u64,
    /// Number of handles and locks that are open now; not reset.
    pub open_files: u64,
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Number of announced reads ([`File::will_read`]).
    pub announced: u64,
    /// Number of writes of all kinds, changes of length, and discards.
    pub writes: u64,
    /// Bytes written, including zeroes.
    pub bytes_written: u64,
    /// Number of syncs of files and directories, and of synchronous writes.
    pub syncs: u64,
    /// Number of renames.
    pub renames: u64,
    /// Number of removed files.
    pub removed: u64,
}

impl Counts {
    /// Returns the number of calls that change something: writes, syncs, and changes of names.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.created + self.writes + self.syncs + self.renames + self.removed
    }
}

// Relaxed everywhere: the counters order nothing, and a test reads them after the calls have returned.
#[derive(Debug, Default)]
struct Counters {
    opened: AtomicU64,
    created: AtomicU64,
    open_files: AtomicU64,
    reads: AtomicU64,
    bytes_read: AtomicU64,
    announced: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    syncs: AtomicU64,
    renames: AtomicU64,
    removed: AtomicU64,
    bytes_by_file: Mutex<BTreeMap<PathBuf, Arc<AtomicU64>>>,
}

impl CountingFs {
    /// Returns a layer above `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Fs>) -> Self {
        Self { inner, counters: Arc::default() }
    }

    /// Returns the current counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let c = &self.counters;
        Counts {
            opened: c.opened.load(Relaxed),
            created: c.created.load(Relaxed),
            open_files: c.open_files.load(Relaxed),
            reads: c.reads.load(Relaxed),
            bytes_read: c.bytes_read.load(Relaxed),
            announced: c.announced.load(Relaxed), // Relaxed: see `Counters`
            writes: c.writes.load(Relaxed),
            bytes_written: c.bytes_written.load(Relaxed),
            syncs: c.syncs.load(Relaxed),
            renames: c.renames.load(Relaxed),
            removed: c.removed.load(Relaxed),
        }
    }

    /// Returns the bytes written to files with a counted path, including zeroes. A file counts by its name
    /// when it was opened.
    #[must_use]
    pub fn bytes_written_to(&self, is_counted: impl Fn(&Path) -> bool) -> u64 {
        let files = self.counters.bytes_by_file.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().filter(|(path, _)| is_counted(path)).map(|(_, bytes)| bytes.load(Relaxed)).sum()
    }

    /// Sets all numbers to 0, except that of open files.
    pub fn reset(&self) {
        let c = &self.counters;
        let all = [&c.opened, &c.created, &c.reads, &c.bytes_read, &c.writes, &c.bytes_written];
        all.into_iter()
            .chain([&c.announced, &c.syncs, &c.renames, &c.removed])
            .for_each(|n| n.store(0, Relaxed));
        let files = c.bytes_by_file.lock().unwrap_or_else(PoisonError::into_inner);
        files.values().for_each(|bytes| bytes.store(0, Relaxed));
    }
}

impl CountingFs {
    fn bytes_of(&self, path: &Path) -> Arc<AtomicU64> {
        let mut files = self.counters.bytes_by_file.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(files.entry(path.to_path_buf()).or_default())
    }

    fn locked(&self, inner: Box<dyn FileLock>) -> Box<dyn FileLock> {
        let counters = Arc::clone(&self.counters);
        count(&counters.open_files, 1);
        Box::new(CountingLock { _inner: inner, counters })
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

impl Fs for CountingFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let was_there = self.inner.exists(path);
        let inner = self.inner.open(path, options)?;
        let counters = Arc::clone(&self.counters);
        count(&counters.opened, 1);
        count(&counters.created, u64::from(!was_there));
        count(&counters.open_files, 1);
        Ok(Arc::new(CountingFile { inner, counters, bytes_written: self.bytes_of(path) }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.inner.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        count(&self.counters.renames, 1);
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        count(&self.counters.removed, 1);
        self.inner.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        count(&self.counters.syncs, 1);
        self.inner.sync_dir(path)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        Ok(self.inner.lock_exclusive(path)?.map(|inner| self.locked(inner)))
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        Ok(self.inner.lock_shared(path)?.map(|inner| self.locked(inner)))
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.inner.absolute(path)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.inner.canonical(path)
    }
}

#[derive(Debug)]
struct CountingLock {
    _inner: Box<dyn FileLock>,
    counters: Arc<Counters>,
}

impl FileLock for CountingLock {}

impl Drop for CountingLock {
    fn drop(&mut self) {
        self.counters.open_files.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
struct CountingFile {
    inner: Arc<dyn File>,
    counters: Arc<Counters>,
    /// Bytes written to this file.
    bytes_written: Arc<AtomicU64>,
}

impl CountingFile {
    fn read<T>(&self, read: io::Result<T>, bytes: impl FnOnce(&T) -> u64) -> io::Result<T> {
        count(&self.counters.reads, 1);
        read.inspect(|done| count(&self.counters.bytes_read, bytes(done)))
    }

    fn write(&self, bytes: u64) {
        count(&self.counters.writes, 1);
        count(&self.counters.bytes_written, bytes);
        count(&self.bytes_written, bytes);
    }
}

impl Drop for CountingFile {
    fn drop(&mut self) {
        self.counters.open_files.fetch_sub(1, Relaxed);
    }
}

impl File for CountingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read(self.inner.read_at(offset, buf), |&n| n as u64)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        self.read(self.inner.read_words_at(offset, out), |&n| n as u64)
    }

    fn reads_are_random(&self) {
        self.inner.reads_are_random();
    }

    fn is_cached(&self, offset: u64) -> bool {
        self.inner.is_cached(offset)
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.counters.announced.fetch_add(1, Relaxed); // Relaxed: see `Counters`
        self.inner.will_read(offset, len);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(buf.len() as u64);
        self.inner.write_at(offset, buf)
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(buf.len() as u64);
        count(&self.counters.syncs, 1);
        self.inner.write_at_sync(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        count(&self.counters.syncs, 1);
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.inner.next_data(offset)
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        self.inner.disk_bytes()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.write(0);
        self.inner.set_len(len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write(len);
        self.inner.write_zeroes(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write(0);
        self.inner.allocate(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write(0);
        self.inner.discard(offset, len)
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
}
