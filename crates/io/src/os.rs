//! `OsFs`: the operating system's files, direct or buffered.
//!
//! Direct I/O is optional. It is enabled after the file is open, because an open with `O_DIRECT` that fails
//! may leave a new, empty file behind. The alignment comes from `statx` if the kernel reports it (Linux 6.1).

mod scatter;
mod within;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use azekura_base::page::PageWord;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::{PageBuf, blocking};
use azekura_trace::{Site, WaitGuard, WaitKind, wait};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{check_aligned, check_aligned_range, check_end, is_unavailable, os};
use crate::fs::{File, FileLock, Fs, OpenOptions};
use within::Within;

/// Assumed alignment of a direct file if the kernel does not report one: enough for every sector size in use.
const ASSUMED_ALIGNMENT: usize = 4096;
/// Size in bytes of the blocks that [`File::write_zeroes`] writes, at multiples of this size. Small blocks
/// keep concurrent small writes fast, such as those of a log during the preparation of its next segment.
/// Beside blocks of 1 MiB a synced write of 4 KiB took 1.7 ms on average and 42 ms at most; beside blocks of
/// this size, 90 µs and 310 µs (`eval/results/2026-11-21-beside-peers.md`). The zeroes took no longer.
const ZERO_BLOCK_BYTES: usize = 128 << 10;
/// Largest file offset: the maximum of the kernel's `loff_t`.
const MAX_LEN: u64 = i64::MAX as u64;

static ZEROES: LazyLock<PageBuf> = LazyLock::new(|| PageBuf::zeroed(ZERO_BLOCK_BYTES));

static READ: Site = Site::new("file read");
static WRITE: Site = Site::new("file write");
static SYNC: Site = Site::new("file sync");
static DISCARD: Site = Site::new("file discard");

/// Default permission bits of files: only the owner may read and write.
pub const FILE_MODE: u32 = 0o600;

/// The operating system's file system.
///
/// New files have the mode 0600 and new directories 0700, without the bits of the process's umask.
#[derive(Clone, Copy, Debug)]
pub struct OsFs {
    file_mode: u32,
}

impl Default for OsFs {
    fn default() -> Self {
        Self::new()
    }
}

impl OsFs {
    /// Returns the operating system's file system.
    #[must_use]
    pub const fn new() -> Self {
        Self { file_mode: FILE_MODE }
    }

    /// Returns the operating system's file system with this mode for new files. Users that may read files may
    /// search directories: 0640 for files gives 0750 for directories.
    #[must_use]
    pub const fn with_file_mode(mode: u32) -> Self {
        Self { file_mode: mode & 0o666 }
    }

    const fn dir_mode(self) -> u32 {
        0o700 | self.file_mode | (self.file_mode & 0o444) >> 2
    }

    fn lock(file: std::fs::File, how: FlockOperation) -> io::Result<Option<Box<dyn FileLock>>> {
        // The lock belongs to the open file description, so two opens inside one process exclude each other
        // too.
        match retry(|| rustix::fs::flock(&file, how)) {
            Ok(()) => Ok(Some(Box::new(OsLock { file, process: std::process::id() }))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(os(errno)),
        }
    }

    /// Returns a file that was opened with these options.
    fn opened(file: std::fs::File, options: OpenOptions) -> io::Result<OsFile> {
        if file.metadata()?.is_dir() {
            return Err(os(Errno::ISDIR)); // a read-only open of a directory succeeds
        }
        let alignment = if options.direct { make_direct(&file)? } else { None };
        Ok(OsFile { file, alignment, no_dsync: AtomicBool::new(false) })
    }
}

impl Fs for OsFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        options.check()?;
        refuse_pipe(path)?;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            .create(options.create)
            .create_new(options.create_new)
            .truncate(false)
            .mode(self.file_mode)
            .open(path)?;
        Ok(Arc::new(Self::opened(file, options)?))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(self.dir_mode()).create(path)
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let dir = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECTORY.bits().cast_signed())
            .open(path)?;
        dir.sync_all()
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(self.file_mode);
        refuse_pipe(path)?;
        Self::lock(options.open(path)?, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        refuse_pipe(path)?;
        Self::lock(std::fs::File::open(path)?, FlockOperation::NonBlockingLockShared)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::canonicalize(path)
    }

    fn within(&self, dir: &Path) -> io::Result<Option<Arc<dyn Fs>>> {
        Ok(Some(Arc::new(Within::new(*self, dir)?)))
    }
}

/// Returns an error for a pipe: opening or reading it could wait without end.
fn refuse_pipe(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) { Err(pipe()) } else { Ok(()) }
}

fn pipe() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe instead of a file")
}

/// Enables direct I/O and returns its alignment; `None` if direct I/O is not available.
fn make_direct(file: &std::fs::File) -> io::Result<Option<usize>> {
    let alignment = match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        Ok(stat) if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) => {
            if stat.stx_dio_offset_align == 0 {
                return Ok(None); // the kernel refuses direct I/O for this file
            }
            stat.stx_dio_offset_align.max(stat.stx_dio_mem_align).next_power_of_two() as usize
        }
        _ => ASSUMED_ALIGNMENT,
    };
    let set = |flags: OFlags| rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT);
    match rustix::fs::fcntl_getfl(file).and_then(set) {
        Ok(()) => Ok(Some(alignment)),
        Err(errno) if errno == Errno::INVAL || is_unavailable(errno) => Ok(None),
        Err(errno) => Err(os(errno)),
    }
}

/// Repeats a call that a signal interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// A file of the operating system.
#[derive(Debug)]
struct OsFile {
    file: std::fs::File,
    /// Alignment of a direct file; `None` for a buffered file.
    alignment: Option<usize>,
    /// `true` if the file system has refused `RWF_DSYNC`. Set by any thread; an outdated `false` costs one
    /// more refused call.
    no_dsync: AtomicBool,
}

impl OsFile {
    /// Reports to the blocking hook and to the tracer that this thread waits for the device, until the guard
    /// is dropped.
    fn device(&self, site: &'static Site) -> WaitGuard {
        blocking::announce();
        wait(site, self.file.as_raw_fd() as usize, WaitKind::Device)
    }

    /// Calls `write` until all of `buf` is written; a direct file continues at a multiple of its alignment.
    fn write_all(
        &self,
        offset: u64,
        buf: &[u8],
        mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
    ) -> io::Result<()> {
        check_aligned(self.alignment(), offset, buf)?;
        check_end(offset, buf.len() as u64, MAX_LEN)?;
        let _waiting = self.device(&WRITE);
        let mut done = 0;
        while done < buf.len() {
            let written = match write(&buf[done..], offset + done as u64) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let next = (done + written) / self.alignment() * self.alignment();
            if next == done {
                return Err(io::ErrorKind::WriteZero.into());
            }
            done = next;
        }
        Ok(())
    }

    /// Makes one `pwritev2` with `RWF_DSYNC`. If that is not supported, makes a plain write and sets
    /// `unsynced`.
    fn write_dsync(&self, buf: &[u8], offset: u64, unsynced: &mut bool) -> io::Result<usize> {
        // Relaxed: a hint.
        if !self.no_dsync.load(Relaxed) {
            let slices = [io::IoSlice::new(buf)];
            match rustix::io::pwritev2(&self.file, &slices, offset, ReadWriteFlags::DSYNC) {
                Err(errno) if is_unavailable(errno) => self.no_dsync.store(true, Relaxed),
                done => return Ok(done?),
            }
        }
        *unsynced = true;
        self.file.write_at(buf, offset)
    }
}

impl File for OsFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        check_aligned(self.alignment(), offset, buf)?;
        let _waiting = self.device(&READ);
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !done.is_multiple_of(self.alignment()) {
                break; // a direct read ends within a block only at the end of the file
            }
        }
        Ok(done)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        for words in out {
            check_aligned_range(self.alignment(), offset, size_of_val(*words) as u64)?;
            if !words.as_ptr().addr().is_multiple_of(self.alignment()) {
                return Err(os(Errno::INVAL));
            }
        }
        let _waiting = self.device(&READ);
        scatter::read(&self.file, offset, out, self.alignment())
    }

    fn reads_are_random(&self) {
        // A hint, so errors do not matter: without it the system reads more than requested.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::Random);
    }

    fn is_cached(&self, offset: u64) -> bool {
        #[cfg(target_os = "linux")]
        {
            let mut byte = [0];
            let to = &mut [std::io::IoSliceMut::new(&mut byte)];
            // A file system without the flag, and a direct read of one byte, return an error.
            let read = rustix::io::preadv2(&self.file, to, offset, rustix::io::ReadWriteFlags::NOWAIT);
            read.is_ok_and(|bytes| bytes == 1)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = offset;
            false
        }
    }

    fn will_read(&self, offset: u64, len: u64) {
        #[cfg(target_os = "linux")]
        {
            let len = std::num::NonZeroU64::new(len);
            // A hint, so errors do not matter: without it the read itself waits for the device.
            let _ = rustix::fs::fadvise(&self.file, offset, len, rustix::fs::Advice::WillNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, len);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_all(offset, buf, |buf, offset| self.file.write_at(buf, offset))
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut unsynced = false;
        self.write_all(offset, buf, |buf, offset| self.write_dsync(buf, offset, &mut unsynced))?;
        if unsynced { self.sync() } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let _waiting = self.device(&SYNC);
        // Not retried after EINTR, which leaves the state of the pages undefined. (fdatasync does not return
        // EINTR on the file systems in use.) fdatasync includes the length, which is needed to read the data
        // back.
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    #[cfg(unix)]
    fn disk_bytes(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(self.file.metadata()?.blocks() * 512)
    }

    #[cfg(target_os = "linux")]
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => Ok(data),
            Err(Errno::NXIO) => Ok(self.len()?.max(offset)), // only a hole follows
            Err(Errno::INVAL | Errno::SPIPE) => Ok(offset),  // no file system with holes
            Err(errno) => Err(os(errno)),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        check_end(0, len, MAX_LEN)?;
        Ok(retry(|| rustix::fs::ftruncate(&self.file, len)).map_err(bad_handle)?)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        check_aligned_range(self.alignment(), offset, len)?;
        let end = check_end(offset, len, MAX_LEN)?;
        let block = ZERO_BLOCK_BYTES as u64;
        let mut at = offset;
        while at < end {
            let next = (at / block + 1).saturating_mul(block).min(end);
            self.write_at(at, &ZEROES[..(next - at) as usize])?;
            at = next;
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        check_aligned_range(self.alignment(), offset, len)?;
        check_end(offset, len, MAX_LEN)?;
        if len == 0 {
            return Ok(());
        }
        let allocated = {
            let _waiting = self.device(&WRITE);
            retry(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len))
        };
        match allocated {
            Err(errno) if is_unavailable(errno) => self.write_zeroes(offset, len),
            done => Ok(done?),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_aligned_range(self.alignment(), offset, len)?;
        check_end(offset, len, MAX_LEN)?;
        if len == 0 {
            return Ok(());
        }
        let _waiting = self.device(&DISCARD);
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry(|| rustix::fs::fallocate(&self.file, how, offset, len)) {
            Err(errno) if is_unavailable(errno) => Err(io::ErrorKind::Unsupported.into()),
            done => Ok(done?),
        }
    }

    fn alignment(&self) -> usize {
        self.alignment.unwrap_or(1)
    }

    fn is_direct(&self) -> bool {
        self.alignment.is_some()
    }
}

/// Maps the EINVAL that `ftruncate` returns for a read-only handle to EBADF, as `pwrite` returns.
fn bad_handle(errno: Errno) -> Errno {
    if errno == Errno::INVAL { Errno::BADF } else { errno }
}

/// A held `flock`. The lock belongs to the open file description, which a forked child shares. Only the
/// process that took the lock releases it.
#[derive(Debug)]
struct OsLock {
    file: std::fs::File,
    /// The process that took the lock.
    process: u32,
}

impl FileLock for OsLock {}

impl Drop for OsLock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Unlocks explicitly, because a child process may still hold a copy of the descriptor.
            let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch_file(no_dsync: bool) -> OsFile {
        OsFile { file: tempfile::tempfile().unwrap(), alignment: None, no_dsync: AtomicBool::new(no_dsync) }
    }

    #[test]
    fn where_rwf_dsync_was_refused_it_writes_and_syncs() {
        let file = scratch_file(true);
        file.write_at_sync(5, b"azekura").unwrap();
        let mut bytes = [0; 7];
        assert_eq!(file.read_at(5, &mut bytes).unwrap(), 7);
        assert_eq!(&bytes, b"azekura");
    }

    #[test]
    fn a_refusal_of_rwf_dsync_is_met_by_a_write_and_a_sync() {
        // A file of procfs that can be written but supports neither `pwritev2` flags nor `fsync`: the write
        // happens, and the sync's own error shows that it was tried. The written value is the current one.
        let path = "/proc/self/oom_score_adj";
        let value = std::fs::read(path).unwrap();
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let file = OsFile { file, alignment: None, no_dsync: AtomicBool::new(false) };
        let error = file.write_at_sync(0, &value).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        assert!(file.no_dsync.load(Relaxed));
        let mut unsynced = false;
        assert_eq!(file.write_dsync(&value, 0, &mut unsynced).unwrap(), value.len());
        assert!(unsynced, "the caller has to sync");
    }

    #[test]
    fn a_short_or_interrupted_write_continues() {
        let file = scratch_file(false);
        let mut calls = Vec::new();
        let mut short = |buf: &[u8], offset| {
            calls.push((offset, buf.len()));
            if calls.len() == 2 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(buf.len().min(3)) }
        };
        file.write_all(10, b"12345678", &mut short).unwrap();
        assert_eq!(calls, [(10, 8), (13, 5), (13, 5), (16, 2)]);
    }

    #[test]
    fn a_short_direct_write_continues_at_a_whole_block() {
        let file = OsFile { alignment: Some(512), ..scratch_file(false) };
        let mut calls = Vec::new();
        let mut short = |buf: &[u8], offset| {
            calls.push((offset, buf.len()));
            Ok(buf.len().min(700))
        };
        file.write_all(512, &PageBuf::zeroed(4096)[..1536], &mut short).unwrap();
        assert_eq!(calls, [(512, 1536), (1024, 1024), (1536, 512)]);
        let stuck = file.write_all(0, &PageBuf::zeroed(4096), |_, _| Ok(100));
        assert_eq!(stuck.unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
