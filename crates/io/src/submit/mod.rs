//! `SubmitFs`: the operating system's files, with a choice of how synchronous writes are submitted to the
//! kernel.
//!
//! The P-WAL paper compares `write` with the batch interface of its device (OpenNVM; the variants P-WAL++ and
//! Aether++), which no longer exists. The successors of that interface:
//!
//! | way | system call | not available for |
//! |---|---|---|
//! | [`Way::Pwrite`] | `pwritev2` with `RWF_DSYNC` on a direct file | – |
//! | [`Way::Ring`] | io_uring with a registered buffer, `RWF_DSYNC` | kernels, containers without io_uring |
//! | [`SubmitFs::atomic`] | `RWF_ATOMIC` in addition: no torn writes | files without atomic units (`statx`) |
//!
//! With a ring, writes above 256 KiB use `pwritev2`. An atomic write has a length of a power of two within
//! the units of the file, at a multiple of that length; other writes are plain.
//!
//! If a way is not available, a fallback is used, for one write or permanently. [`SubmitFs::report`] reports
//! the fallback, which is equally durable. All other calls are those of [`OsFs`].

mod ring;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::page::PageWord;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::is_unavailable;
use crate::fs::{File, FileLock, Fs, OpenOptions};
use crate::os::{OsFile, OsFs};
use ring::{BUFFER_BYTES, Lost, Ring};

/// Flags `STATX_WRITE_ATOMIC` and `RWF_ATOMIC` of Linux 6.11, for which rustix has no names.
const STATX_WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x1_0000);
const RWF_ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// The way in which synchronous writes are submitted to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// One system call per write.
    #[default]
    Pwrite,
    /// io_uring, with a registered buffer.
    Ring,
}

/// The reason of a fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// No ring is available; all writes use `pwritev2`.
    NoRing {
        /// The kernel's error number.
        errno: i32,
    },
    /// The kernel's rings do not support synchronous writes; all writes use `pwritev2`.
    RingRefuses {
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
            Self::NoRing { errno } => write!(f, "no io_uring: {}", reason(errno)),
            Self::RingRefuses { errno } => {
                write!(f, "io_uring refuses synchronous writes: {}", reason(errno))
            }
            Self::NoAtomicUnits => f.write_str("the file system or the device has no atomic writes"),
            Self::AtomicRefused { errno } => write!(f, "an atomic write was refused: {}", reason(errno)),
        }
    }
}

/// Statistics of synchronous writes. If the kernel writes in parts, each part counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmitReport {
    /// Number of writes by `pwritev2`.
    pub by_pwrite: u64,
    /// Number of writes by io_uring.
    pub by_ring: u64,
    /// Number of atomic writes among both.
    pub atomic: u64,
    /// Reasons of fallbacks, each once.
    pub fallbacks: Vec<Fallback>,
}

/// State that all files of one `SubmitFs` share.
#[derive(Debug, Default)]
struct Shared {
    way: Way,
    atomic: bool,
    /// Unused rings. The number of rings is the largest number of concurrent writers so far.
    rings: Mutex<Vec<Ring>>,
    /// `true` if rings are not available. Relaxed everywhere: a hint; a thread that reads an outdated `false`
    /// is refused once more.
    no_rings: AtomicBool,
    // Relaxed: counters.
    by_pwrite: AtomicU64,
    by_ring: AtomicU64,
    atomics: AtomicU64,
    fallbacks: Mutex<Vec<Fallback>>,
}

/// The operating system's file system, with a choice of how synchronous writes are submitted.
///
/// ```
/// use azekura_io::submit::{SubmitFs, Way};
/// use azekura_io::{Fs, OpenOptions};
///
/// let fs = SubmitFs::new(Way::Ring).atomic(true);
/// # let path = std::env::temp_dir().join(format!("azekura-submit-example-{}", std::process::id()));
/// let log = fs.open(&path, OpenOptions::new().create(true))?;
/// log.write_at_sync(0, b"durable, whichever way")?;
/// let report = fs.report();
/// assert_eq!(report.by_ring + report.by_pwrite, 1);
/// report.fallbacks.iter().for_each(|reason| eprintln!("{reason}"));
/// # fs.remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SubmitFs {
    shared: Arc<Shared>,
}

impl SubmitFs {
    /// Returns the operating system's file system, with synchronous writes submitted in this way if
    /// available.
    #[must_use]
    pub fn new(way: Way) -> Self {
        let fs = Self { shared: Arc::new(Shared { way, ..Shared::default() }) };
        if way == Way::Ring {
            // Tries to make a ring at once, so that a fallback is reported before the first write.
            fs.shared.put_back(fs.shared.take_ring());
        }
        fs
    }

    /// Returns a file system that also requests atomic writes if `yes`, with its own counters. Files that are
    /// open already are unchanged.
    #[must_use]
    pub fn atomic(self, yes: bool) -> Self {
        Self { shared: Arc::new(Shared { way: self.shared.way, atomic: yes, ..Shared::default() }) }
    }

    /// Returns the counters of writes.
    #[must_use]
    pub fn report(&self) -> SubmitReport {
        SubmitReport {
            by_pwrite: self.shared.by_pwrite.load(Relaxed),
            by_ring: self.shared.by_ring.load(Relaxed),
            atomic: self.shared.atomics.load(Relaxed),
            fallbacks: self.shared.fallbacks.lock().clone(),
        }
    }
}

impl Shared {
    fn note(&self, fallback: Fallback) {
        let mut fallbacks = self.fallbacks.lock();
        if !fallbacks.contains(&fallback) {
            fallbacks.push(fallback);
        }
    }

    /// Takes a ring for one write, if rings are wanted and available.
    fn take_ring(&self) -> Option<Ring> {
        if self.way != Way::Ring || self.no_rings.load(Relaxed) {
            return None;
        }
        let idle = self.rings.lock().pop();
        idle.or_else(|| match Ring::new() {
            Ok(ring) => Some(ring),
            Err(error) => {
                self.no_rings.store(true, Relaxed);
                self.note(Fallback::NoRing { errno: error.raw_os_error().unwrap_or(0) });
                None
            }
        })
    }

    /// Records that the kernel's rings do not write: all later writes use `pwritev2`.
    fn refuse_rings(&self, error: &io::Error) {
        self.no_rings.store(true, Relaxed);
        self.note(Fallback::RingRefuses { errno: error.raw_os_error().unwrap_or(0) });
    }

    fn put_back(&self, ring: Option<Ring>) {
        self.rings.lock().extend(ring);
    }
}

impl Fs for SubmitFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let os = OsFs::new().open_file(path, options)?;
        let atomic_units = if self.shared.atomic { atomic_units(&os) } else { None };
        if self.shared.atomic && atomic_units.is_none() {
            self.shared.note(Fallback::NoAtomicUnits);
        }
        Ok(Arc::new(SubmitFile {
            os,
            shared: Arc::clone(&self.shared),
            atomic_units,
            no_atomic: AtomicBool::new(false),
        }))
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

/// Returns the sizes that an atomic write of this file may have, as the kernel reports them.
fn atomic_units(file: &OsFile) -> Option<(u64, u64)> {
    let stat = rustix::fs::statx(file.handle(), c"", AtFlags::EMPTY_PATH, STATX_WRITE_ATOMIC).ok()?;
    let is_supported = StatxFlags::from_bits_retain(stat.stx_mask).contains(STATX_WRITE_ATOMIC);
    let (min, max) = (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max);
    (is_supported && min > 0 && file.is_direct()).then_some((min.into(), max.into()))
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
struct SubmitFile {
    os: OsFile,
    shared: Arc<Shared>,
    /// Sizes that an atomic write may have; `None` if atomic writes are not requested or not available.
    atomic_units: Option<(u64, u64)>,
    /// `true` if the kernel has refused an atomic write nevertheless. Relaxed: a hint.
    no_atomic: AtomicBool,
}

impl SubmitFile {
    /// Writes at least one byte of `buf`, durably or with `unsynced` set. Returns the number of bytes.
    fn write_some(&self, buf: &[u8], offset: u64, unsynced: &mut bool) -> io::Result<usize> {
        if !self.no_atomic.load(Relaxed) && may_be_atomic(self.atomic_units, offset, buf.len() as u64) {
            match self.write_flagged(buf, offset, ReadWriteFlags::DSYNC | RWF_ATOMIC, unsynced) {
                Err(error) if is_refusal(&error) => {
                    self.no_atomic.store(true, Relaxed);
                    self.shared.note(Fallback::AtomicRefused { errno: error.raw_os_error().unwrap_or(0) });
                }
                done => {
                    self.shared.atomics.fetch_add(u64::from(done.is_ok()), Relaxed);
                    return done;
                }
            }
        }
        self.write_flagged(buf, offset, ReadWriteFlags::DSYNC, unsynced)
    }

    fn write_flagged(
        &self,
        buf: &[u8],
        offset: u64,
        flags: ReadWriteFlags,
        unsynced: &mut bool,
    ) -> io::Result<usize> {
        let fits = buf.len() <= BUFFER_BYTES;
        if let Some(ring) = fits.then(|| self.shared.take_ring()).flatten() {
            let bits = flags.bits().cast_signed();
            match ring.write(self.os.handle(), offset, buf, bits) {
                Ok((ring, done)) => {
                    self.shared.put_back(Some(ring));
                    match done {
                        Err(error) if is_refusal(&error) && !flags.contains(RWF_ATOMIC) => {
                            self.shared.refuse_rings(&error);
                        }
                        done => {
                            self.shared.by_ring.fetch_add(1, Relaxed);
                            return done;
                        }
                    }
                }
                // The call that submits the write is not available, so nothing was submitted.
                Err(Lost(error)) if Errno::from_io_error(&error).is_some_and(is_unavailable) => {
                    self.shared.refuse_rings(&error);
                }
                Err(Lost(error)) => return Err(error),
            }
        }
        self.shared.by_pwrite.fetch_add(1, Relaxed);
        if flags.contains(RWF_ATOMIC) {
            let slices = [io::IoSlice::new(buf)];
            return Ok(rustix::io::pwritev2(self.os.handle(), &slices, offset, flags)?);
        }
        self.os.write_dsync(buf, offset, unsynced)
    }
}

/// Returns `true` if the error means that the kernel does not support the operation.
fn is_refusal(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errno == Errno::INVAL || is_unavailable(errno))
}

impl File for SubmitFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.os.read_at(offset, buf)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        self.os.read_words_at(offset, out)
    }

    fn reads_are_random(&self) {
        self.os.reads_are_random();
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.os.will_read(offset, len);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.os.write_at(offset, buf)
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut unsynced = false;
        self.os.write_all(offset, buf, |buf, offset| self.write_some(buf, offset, &mut unsynced))?;
        if unsynced { self.os.sync() } else { Ok(()) }
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

    fn open(fs: &SubmitFs) -> (tempfile::TempDir, Arc<dyn File>) {
        let scratch = tempfile::tempdir().unwrap();
        let file = fs.open(&scratch.path().join("f"), OpenOptions::new().create(true).direct(true)).unwrap();
        (scratch, file)
    }

    fn pages(count: usize, byte: u8) -> PageBuf {
        let mut pages = PageBuf::zeroed(count * 4096);
        pages.fill(byte);
        pages
    }

    #[test]
    fn a_ring_is_used_where_it_can_be_had_and_reported_where_not() {
        let fs = SubmitFs::new(Way::Ring);
        let (_scratch, file) = open(&fs);
        for n in 0..10 {
            file.write_at_sync(n * 4096, &pages(1, 7)).unwrap();
        }
        let report = fs.report();
        assert_eq!(report.by_ring + report.by_pwrite, 10, "{report:?}");
        match &report.fallbacks[..] {
            [] => assert_eq!(report.by_ring, 10),
            [Fallback::NoRing { .. } | Fallback::RingRefuses { .. }] => {
                eprintln!("no ring here: {}", report.fallbacks[0]);
                assert_eq!(report.by_ring, 0);
            }
            others => panic!("{others:?}"),
        }
        let mut bytes = PageBuf::zeroed(40960);
        assert_eq!(file.read_at(0, &mut bytes).unwrap(), 40960);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_write_too_large_for_a_ring_buffer_succeeds() {
        let fs = SubmitFs::new(Way::Ring);
        let (_scratch, file) = open(&fs);
        file.write_at_sync(0, &pages(BUFFER_BYTES / 4096 + 1, 7)).unwrap();
        assert_eq!((fs.report().by_ring, fs.report().by_pwrite), (0, 1));
        assert_eq!(file.len().unwrap(), BUFFER_BYTES as u64 + 4096);
    }

    #[test]
    fn atomic_writes_are_done_or_fallen_back_from_with_a_reason() {
        for way in [Way::Pwrite, Way::Ring] {
            let fs = SubmitFs::new(way).atomic(true);
            let (_scratch, file) = open(&fs);
            file.write_at_sync(4096, &pages(1, 9)).unwrap();
            let report = fs.report();
            let refused = report
                .fallbacks
                .iter()
                .any(|f| matches!(f, Fallback::NoAtomicUnits | Fallback::AtomicRefused { .. }));
            assert!(refused != (report.atomic > 0), "{report:?}");
            if refused {
                eprintln!("no atomic writes here: {report:?}");
            }
            let mut bytes = PageBuf::zeroed(8192);
            assert_eq!(file.read_at(0, &mut bytes).unwrap(), 8192);
            assert!(bytes[4096..].iter().all(|&byte| byte == 9));
        }
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
        // A file on a file system without atomic writes.
        for way in [Way::Pwrite, Way::Ring] {
            let fs = SubmitFs::new(way);
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join("f");
            let os = OsFs::new().open_file(&path, OpenOptions::new().create(true)).unwrap();
            let file = SubmitFile {
                os,
                shared: Arc::clone(&fs.shared),
                atomic_units: Some((1, 1 << 20)),
                no_atomic: AtomicBool::new(false),
            };
            // The file is buffered, so every kernel refuses an atomic write.
            file.write_at_sync(0, &[5; 4096]).unwrap();
            let report = fs.report();
            assert!(matches!(report.fallbacks[..], [.., Fallback::AtomicRefused { .. }]), "{report:?}");
            assert_eq!(report.atomic, 0);
            assert_eq!(std::fs::read(&path).unwrap(), [5; 4096]);
            assert!(file.no_atomic.load(Relaxed));
        }
    }
}
