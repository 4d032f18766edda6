//! `RingFs`: the operating system's files, with synchronous writes through io_uring.
//!
//! The P-WAL paper compares `write` with the batch interface of its device (OpenNVM; the variants P-WAL++ and
//! Aether++), which no longer exists. The successors of that interface are io_uring with a registered buffer
//! and `RWF_DSYNC`, and `RWF_ATOMIC` for writes that are not torn. An atomic write has a length of a power of
//! two within the units of the file (`statx`), at a multiple of that length; other writes are plain.
//!
//! A write above 256 KiB is a write of [`OsFs`], and so is each write if the kernel has no rings. It is
//! equally durable. [`RingFs::report`] has the reasons. All other calls are those of [`OsFs`].

mod ring;

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::page::PageWord;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use azekura_io::{File, FileLock, Fs, OpenOptions, OsFs};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use ring::{BUFFER_BYTES, Lost, Ring};

/// Flags `STATX_WRITE_ATOMIC` and `RWF_ATOMIC` of Linux 6.11, for which rustix has no names.
const STATX_WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);
const RWF_ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// The reason of a fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// No ring is available, or the kernel's rings do not support synchronous writes.
    NoRing {
        /// The kernel's error number.
        errno: i32,
    },
    /// A file was opened on a file system or device without atomic write units.
    NoAtomicUnits,
    /// The kernel refused an atomic write within the units that it reports.
    AtomicRefused {
        /// The kernel's error number.
        errno: i32,
    },
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            Self::NoRing { errno } => write!(f, "no synchronous writes by io_uring: {}", reason(errno)),
            Self::NoAtomicUnits => f.write_str("the file system or the device has no atomic writes"),
            Self::AtomicRefused { errno } => write!(f, "an atomic write was refused: {}", reason(errno)),
        }
    }
}

/// Statistics of synchronous writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingReport {
    /// Number of writes by io_uring.
    pub by_ring: u64,
    /// Number of writes by `pwritev2`.
    pub by_pwrite: u64,
    /// Number of atomic writes among both.
    pub atomic: u64,
    /// Reasons of fallbacks, each once.
    pub fallbacks: Vec<Fallback>,
}

/// State that all files of one `RingFs` share.
#[derive(Debug, Default)]
struct Shared {
    /// Unused rings. The number of rings is the largest number of concurrent writers so far.
    rings: Mutex<Vec<Ring>>,
    /// `true` if rings are not available. Relaxed everywhere: a hint; a thread that reads an outdated `false`
    /// is refused once more.
    no_rings: AtomicBool,
    // Relaxed: counters.
    by_ring: AtomicU64,
    by_pwrite: AtomicU64,
    atomic: AtomicU64,
    fallbacks: Mutex<Vec<Fallback>>,
}

/// The operating system's file system, with synchronous writes through io_uring.
#[derive(Clone, Debug)]
pub struct RingFs(Arc<Shared>);

impl RingFs {
    /// Returns the file system. Makes the first ring, so that a fallback is reported before the first write.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared::default();
        let first = shared.take_ring();
        shared.rings.lock().extend(first);
        Self(Arc::new(shared))
    }

    /// Returns the counters of writes.
    #[must_use]
    pub fn report(&self) -> RingReport {
        RingReport {
            by_ring: self.0.by_ring.load(Relaxed),
            by_pwrite: self.0.by_pwrite.load(Relaxed),
            atomic: self.0.atomic.load(Relaxed),
            fallbacks: self.0.fallbacks.lock().clone(),
        }
    }
}

impl Default for RingFs {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    fn note(&self, fallback: Fallback) {
        let mut fallbacks = self.fallbacks.lock();
        if !fallbacks.contains(&fallback) {
            fallbacks.push(fallback);
        }
    }

    /// Takes a ring for one write, if there are rings.
    fn take_ring(&self) -> Option<Ring> {
        if self.no_rings.load(Relaxed) {
            return None;
        }
        let idle = self.rings.lock().pop();
        idle.or_else(|| Ring::new().map_err(|error| self.refuse_rings(&error)).ok())
    }

    /// Records that the kernel's rings do not write: no later write uses a ring.
    fn refuse_rings(&self, error: &io::Error) {
        self.no_rings.store(true, Relaxed);
        self.note(Fallback::NoRing { errno: error.raw_os_error().unwrap_or(0) });
    }
}

impl Fs for RingFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let os = OsFs::new().open(path, options)?;
        let flags = if os.is_direct() { OFlags::DIRECT } else { OFlags::empty() };
        let mut again = std::fs::OpenOptions::new();
        let file = again.read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let atomic_units = if os.is_direct() { atomic_units(&file) } else { None };
        if atomic_units.is_none() {
            self.0.note(Fallback::NoAtomicUnits);
        }
        let (shared, no_atomic) = (Arc::clone(&self.0), AtomicBool::new(false));
        Ok(Arc::new(RingFile { os, file, shared, atomic_units, no_atomic }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        OsFs::new().create_dir_all(path)
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        OsFs::new().list_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        OsFs::new().exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsFs::new().rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        OsFs::new().remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        OsFs::new().sync_dir(path)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        OsFs::new().lock_exclusive(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        OsFs::new().lock_shared(path)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        OsFs::new().absolute(path)
    }
}

/// Returns the sizes that an atomic write of this direct file may have, as the kernel reports them.
fn atomic_units(file: &std::fs::File) -> Option<(u64, u64)> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, STATX_WRITE_ATOMIC).ok()?;
    let is_supported = StatxFlags::from_bits_retain(stat.stx_mask).contains(STATX_WRITE_ATOMIC);
    let (min, max) = (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max);
    (is_supported && min > 0).then_some((min.into(), max.into()))
}

/// Returns `true` if a write may be atomic: a length that is a power of two within the units, at a multiple
/// of the length.
fn may_be_atomic(units: Option<(u64, u64)>, offset: u64, len: u64) -> bool {
    units.is_some_and(|(min, max)| (min..=max).contains(&len))
        && len.is_power_of_two()
        && offset.is_multiple_of(len)
}

/// An open file.
#[derive(Debug)]
struct RingFile {
    os: Arc<dyn File>,
    /// The same file, for the rings.
    file: std::fs::File,
    shared: Arc<Shared>,
    /// Sizes that an atomic write may have; `None` if atomic writes are not available.
    atomic_units: Option<(u64, u64)>,
    /// `true` if the kernel has refused an atomic write nevertheless. Relaxed: a hint.
    no_atomic: AtomicBool,
}

impl RingFile {
    /// Writes durably, atomically if that is possible. Returns the number of written bytes, or `None` if
    /// [`OsFs`] has to write.
    fn write_some(&self, offset: u64, buf: &[u8]) -> Option<io::Result<usize>> {
        if !self.no_atomic.load(Relaxed) && may_be_atomic(self.atomic_units, offset, buf.len() as u64) {
            let flags = ReadWriteFlags::DSYNC | RWF_ATOMIC;
            let done = self.write_by_ring(offset, buf, flags).unwrap_or_else(|| {
                let done = rustix::io::pwritev2(&self.file, &[io::IoSlice::new(buf)], offset, flags);
                self.shared.by_pwrite.fetch_add(u64::from(done.is_ok()), Relaxed);
                Ok(done?)
            });
            match done {
                Err(error) if is_refusal(&error) => {
                    self.no_atomic.store(true, Relaxed);
                    self.shared.note(Fallback::AtomicRefused { errno: error.raw_os_error().unwrap_or(0) });
                }
                done => {
                    self.shared.atomic.fetch_add(u64::from(done.is_ok()), Relaxed);
                    return Some(done);
                }
            }
        }
        match self.write_by_ring(offset, buf, ReadWriteFlags::DSYNC)? {
            Err(error) if is_refusal(&error) => {
                self.shared.refuse_rings(&error);
                None
            }
            done => Some(done),
        }
    }

    /// Returns the result of a write by a ring; `None` if no ring takes the write.
    fn write_by_ring(&self, offset: u64, buf: &[u8], flags: ReadWriteFlags) -> Option<io::Result<usize>> {
        let ring = (buf.len() <= BUFFER_BYTES).then(|| self.shared.take_ring()).flatten()?;
        match ring.write(&self.file, offset, buf, flags.bits().cast_signed()) {
            Ok((ring, done)) => {
                self.shared.rings.lock().push(ring);
                self.shared.by_ring.fetch_add(u64::from(done.is_ok()), Relaxed);
                Some(done)
            }
            // The call that submits the write is not available, so nothing was submitted.
            Err(Lost(error)) if is_refusal(&error) => {
                self.shared.refuse_rings(&error);
                None
            }
            Err(Lost(error)) => Some(Err(error)),
        }
    }
}

/// Returns `true` if the error means that the kernel, the file system or a filter of system calls does not
/// support the operation.
fn is_refusal(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM))
}

impl File for RingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.os.read_at(offset, buf)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        self.os.read_words_at(offset, out)
    }

    fn reads_are_random(&self) {
        self.os.reads_are_random();
    }

    fn is_cached(&self, offset: u64) -> bool {
        self.os.is_cached(offset)
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.os.will_read(offset, len);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.os.write_at(offset, buf)
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let written = match self.write_some(offset, buf) {
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => 0,
            Some(done) => done?,
            None => 0,
        };
        if written == buf.len() {
            return Ok(());
        }
        // A direct file continues after a short write at a whole block.
        let done = written / self.os.alignment() * self.os.alignment();
        self.shared.by_pwrite.fetch_add(1, Relaxed);
        self.os.write_at_sync(offset + done as u64, &buf[done..])
    }

    fn sync(&self) -> io::Result<()> {
        self.os.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.os.len()
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.os.next_data(offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.os.set_len(len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.os.write_zeroes(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.os.allocate(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.os.discard(offset, len)
    }

    fn alignment(&self) -> usize {
        self.os.alignment()
    }

    fn is_direct(&self) -> bool {
        self.os.is_direct()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::PageBuf;

    fn open(fs: &RingFs) -> (tempfile::TempDir, Arc<dyn File>) {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = OpenOptions::new().create(true).direct(true);
        let file = fs.open(&scratch.path().join("f"), options).expect("opens");
        (scratch, file)
    }

    fn pages(count: usize, byte: u8) -> PageBuf {
        let mut pages = PageBuf::zeroed(count * 4096);
        pages.fill(byte);
        pages
    }

    #[test]
    fn writes_use_a_ring_or_the_report_has_the_reason() {
        let fs = RingFs::new();
        let (_scratch, file) = open(&fs);
        for n in 0..10 {
            file.write_at_sync(n * 4096, &pages(1, 7)).expect("writes");
        }
        let report = fs.report();
        let has = |reason: fn(&Fallback) -> bool| report.fallbacks.iter().any(reason);
        assert_eq!(report.by_ring + report.by_pwrite, 10, "{report:?}");
        assert_eq!(report.by_ring == 0, has(|why| matches!(why, Fallback::NoRing { .. })), "{report:?}");
        assert_eq!(report.atomic == 0, has(|why| !matches!(why, Fallback::NoRing { .. })), "{report:?}");
        let mut bytes = PageBuf::zeroed(40_960);
        assert_eq!(file.read_at(0, &mut bytes).expect("reads"), 40_960);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_write_too_large_for_a_ring_buffer_succeeds() {
        let fs = RingFs::new();
        let (_scratch, file) = open(&fs);
        file.write_at_sync(0, &pages(BUFFER_BYTES / 4096 + 1, 7)).expect("writes");
        assert_eq!((fs.report().by_ring, fs.report().by_pwrite), (0, 1));
        assert_eq!(file.len().expect("a length"), BUFFER_BYTES as u64 + 4096);
    }

    #[test]
    fn only_powers_of_two_within_the_units_at_their_own_multiples_may_be_atomic() {
        let units = Some((4096, 16_384));
        assert!(may_be_atomic(units, 8192, 8192) && may_be_atomic(units, 0, 16_384));
        for (offset, len) in [(4096, 8192), (0, 12_288), (0, 32_768), (0, 2048), (0, 0)] {
            assert!(!may_be_atomic(units, offset, len), "{offset} {len}");
        }
        assert!(!may_be_atomic(None, 0, 4096));
    }

    #[test]
    fn a_refusal_of_an_atomic_write_is_met_by_an_ordinary_one() {
        let (fs, scratch) = (RingFs::new(), tempfile::tempdir().expect("a directory"));
        let path = scratch.path().join("f");
        // The file is buffered, so every kernel refuses an atomic write.
        let os = OsFs::new().open(&path, OpenOptions::new().create(true)).expect("opens");
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("opens");
        let (shared, no_atomic) = (Arc::clone(&fs.0), AtomicBool::new(false));
        let file = RingFile { os, file, shared, atomic_units: Some((1, 1 << 20)), no_atomic };
        file.write_at_sync(0, &[5; 4096]).expect("writes");
        let report = fs.report();
        assert!(matches!(report.fallbacks[..], [.., Fallback::AtomicRefused { .. }]), "{report:?}");
        assert_eq!(report.atomic, 0);
        assert_eq!(std::fs::read(&path).expect("reads"), [5; 4096]);
        assert!(file.no_atomic.load(Relaxed));
    }
}
