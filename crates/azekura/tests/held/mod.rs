//! A file system in memory that delays writes of some threads until they are released, and detects a caller
//! that returns before these writes have ended.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use azekura_io::{File, FileLock, Fs, MemFs, OpenOptions};

/// Time in milliseconds during which a released write checks whether the caller has returned. A caller that
/// waits for the write cannot return before. A caller that does not wait is detected unless it needs longer
/// than this.
const TURNS: u32 = 300;

/// The state of the held writes.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    held: AtomicU32,
    is_let_go: AtomicBool,
    has_returned: AtomicBool,
    late: AtomicU32,
    /// Number of held writes that have completed this check.
    judged: AtomicU32,
}

impl Hold {
    /// Waits until a write is held.
    pub(crate) fn wait_for_one(&self) {
        while self.held() == 0 {
            thread::yield_now();
        }
    }

    pub(crate) fn release(&self) {
        self.is_let_go.store(true, SeqCst);
    }

    /// Records that the call has returned that must wait for the writes.
    pub(crate) fn note_return(&self) {
        self.has_returned.store(true, SeqCst);
    }

    /// Returns the number of writes that were held.
    pub(crate) fn held(&self) -> u32 {
        self.held.load(SeqCst)
    }

    /// Returns the number of held writes that had not ended when the call returned. Waits until each held
    /// write has completed its check.
    pub(crate) fn late(&self) -> u32 {
        while self.judged.load(SeqCst) < self.held() {
            thread::yield_now();
        }
        self.late.load(SeqCst)
    }

    fn pass(&self) {
        self.held.fetch_add(1, SeqCst);
        while !self.is_let_go.load(SeqCst) {
            thread::yield_now();
        }
        let is_late = (0..TURNS).any(|_| {
            thread::sleep(Duration::from_millis(1));
            self.has_returned.load(SeqCst)
        });
        self.late.fetch_add(u32::from(is_late), SeqCst);
        self.judged.fetch_add(1, SeqCst);
    }
}

/// A file system that holds writes: see the [module](self).
#[derive(Debug)]
pub(crate) struct HeldFs {
    inner: Arc<dyn Fs>,
    file: &'static str,
    thread: &'static str,
    hold: Arc<Hold>,
}

impl HeldFs {
    /// Returns a file system in memory that holds the first write to files named `file` by threads named
    /// `thread`.
    pub(crate) fn new(file: &'static str, thread: &'static str) -> (Self, Arc<Hold>) {
        Self::over(Arc::new(MemFs::new()), file, thread)
    }

    /// Returns a file system that does the same over `inner`.
    pub(crate) fn over(inner: Arc<dyn Fs>, file: &'static str, thread: &'static str) -> (Self, Arc<Hold>) {
        let hold = Arc::<Hold>::default();
        (Self { inner, file, thread, hold: Arc::clone(&hold) }, hold)
    }
}

impl Fs for HeldFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let inner = self.inner.open(path, options)?;
        if path.file_name().is_none_or(|name| name != self.file) {
            return Ok(inner);
        }
        Ok(Arc::new(HeldFile { inner, thread: self.thread, hold: Arc::clone(&self.hold) }))
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
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.inner.lock_exclusive(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.inner.lock_shared(path)
    }
}

#[derive(Debug)]
struct HeldFile {
    inner: Arc<dyn File>,
    thread: &'static str,
    hold: Arc<Hold>,
}

impl HeldFile {
    fn pass(&self) {
        if thread::current().name() == Some(self.thread) && self.hold.held() == 0 {
            self.hold.pass();
        }
    }
}

impl File for HeldFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.pass();
        self.inner.write_at(offset, buf)
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.pass();
        self.inner.write_at_sync(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.write_zeroes(offset, len)
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }
}
