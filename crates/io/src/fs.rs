//! The traits: a file system with the few calls that a database makes.
//!
//! Durability of each call, that is, the effects that survive a power loss:
//!
//! | effect | survives once this returned |
//! |---|---|
//! | bytes of [`File::write_at`], [`File::write_zeroes`] | the next [`File::sync`] of that file |
//! | bytes of [`File::write_at_sync`], and the length they need | the call itself |
//! | a length set by [`File::set_len`] | the next `sync`, or `write_at_sync`, of that file |
//! | a name made, changed or removed by a method of [`Fs`] | [`Fs::sync_dir`] of its directory |
//!
//! All other effects may survive wholly, in part (in units of 512-byte sectors), or not at all, in any order.
//! A rename is kept or lost as a whole. A file with synced bytes and an unsynced name is lost with its name.
//!
//! **After a failed `sync` the file's earlier writes are not retried**: a later `sync` may succeed without
//! them. Treat the file's unsynced contents as unknown (W10).
//!
//! All calls block the calling thread; none needs `&mut`. Reads and writes of one file may run concurrently,
//! and are then atomic only as far as they do not overlap.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use azekura_base::PageBuf;
use azekura_base::page::PageWord;

/// Options to open a file; the default opens an existing file for reading and writing through the cache.
///
/// ```
/// use azekura_io::OpenOptions;
/// const SEGMENT: OpenOptions = OpenOptions::new().create(true).direct(true);
/// assert!(SEGMENT.create && SEGMENT.direct && !SEGMENT.read_only);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Create the file, empty, if it is missing.
    pub create: bool,
    /// Create the file, empty; it must be missing.
    pub create_new: bool,
    /// Request direct I/O. If it is not available, the file is opened buffered; see [`File::is_direct`].
    pub direct: bool,
    /// Refuse writes. Not together with `create` or `create_new`.
    pub read_only: bool,
}

impl OpenOptions {
    /// An existing file, for reading and writing, buffered.
    #[must_use]
    pub const fn new() -> Self {
        Self { create: false, create_new: false, direct: false, read_only: false }
    }

    /// Sets [`OpenOptions::create`].
    #[must_use]
    pub const fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Sets [`OpenOptions::create_new`].
    #[must_use]
    pub const fn create_new(mut self, yes: bool) -> Self {
        self.create_new = yes;
        self
    }

    /// Sets [`OpenOptions::direct`].
    #[must_use]
    pub const fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// Sets [`OpenOptions::read_only`].
    #[must_use]
    pub const fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Refuses contradicting options.
    pub(crate) fn check(self) -> io::Result<()> {
        if self.read_only && (self.create || self.create_new) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a file opened read-only is not created",
            ));
        }
        Ok(())
    }
}

/// A file system. Cheap to share; every method may be called from any thread.
///
/// Directories separate with `/`. Names are UTF-8.
pub trait Fs: Send + Sync + Debug {
    /// Opens a file. A file made by this call is durable only after its bytes ([`File::sync`]) *and* its name
    /// ([`Fs::sync_dir`] of its directory) are.
    ///
    /// # Errors
    ///
    /// - `NotFound`: the file, or its directory, is missing.
    /// - `AlreadyExists`: `create_new`, and it does.
    /// - `IsADirectory`, `InvalidInput` (contradicting options), or an error of the device.
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>>;

    /// Creates a directory and those above it that are missing; no error if it exists.
    ///
    /// Each new directory is a new name in its parent, durable after `sync_dir(parent)`: see
    /// [`create_dir_all_durable`].
    ///
    /// # Errors
    ///
    /// `NotADirectory` or `AlreadyExists` if a file has that name, or an error of the device.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Names of files and directories in a directory, sorted by bytes, without `.` and `..`.
    ///
    /// A name that is not UTF-8, and so not of this store, has U+FFFD in place of the invalid bytes.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or the device's own.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Returns `true` if a file or directory has this name; `false` also if that cannot be determined.
    fn exists(&self, path: &Path) -> bool;

    /// Gives the file (or directory) at `from` the name `to`; the former file of that name is removed. Both
    /// names change in one step that a crash cannot split. Open handles stay with their file.
    ///
    /// # Errors
    ///
    /// `NotFound`: `from`, or the directory of `to`, is missing; or the device's own.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name; its bytes go with the last open handle.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, or the device's own.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes durable the changes of names in this directory (not below it). Blocks for the device.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or an error of the device; then the state of the names is unknown from
    /// then on.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Locks the file at `path`, created if missing, exclusively; `None` if another holder, of this process
    /// or another, has it. Never waits. Dropping the lock, or the end of the process, releases it; a copy of
    /// the lock in a child that was forked does not release it, and holds it until the child ends.
    ///
    /// # Errors
    ///
    /// As [`Fs::open`] with `create`.
    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Locks the file at `path`, which must exist, together with other callers of this method; `None` if
    /// another holder has it exclusively. Writes nothing, so it works on a read-only file system. Never
    /// waits.
    ///
    /// # Errors
    ///
    /// As [`Fs::open`] with `read_only`.
    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Returns a path that leads to the same file or directory after any change of the process's working
    /// directory. On a file system without a working directory, the path itself.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an empty path; or the working directory cannot be determined.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }
}

/// A lock of a file, from [`Fs::lock_exclusive`] or [`Fs::lock_shared`]; dropping it unlocks.
pub trait FileLock: Send + Sync + Debug {}

/// An open file. Positions are bytes from the start; there is no cursor.
pub trait File: Send + Sync + Debug {
    /// Reads bytes at `offset` until `buf` is full or the file ends, and returns their number.
    ///
    /// Bytes of `buf` beyond that number are unspecified.
    ///
    /// # Errors
    ///
    /// EINVAL if not aligned as [`File::alignment`] says; or the device's own.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// As [`File::read_at`], into consecutive runs of words; other threads may read the words meanwhile. If
    /// the file supports it, one call reads all bytes without copying; each run must be aligned like memory
    /// for [`File::read_at`].
    ///
    /// # Errors
    ///
    /// As [`File::read_at`].
    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        let len = out.iter().map(|words| size_of_val(*words)).sum();
        let mut bytes = PageBuf::zeroed(len);
        let read = self.read_at(offset, &mut bytes[..len])?;
        for (word, eight) in out.iter().copied().flatten().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*eight), Relaxed); // the caller publishes the words
        }
        Ok(read)
    }

    /// A hint: these bytes will be read soon. A file system with a cache may start reading them; the call
    /// does not wait for the device. By default nothing happens.
    fn will_read(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// A hint: reads of this file come in random order, so the system need not read more than requested.
    /// [`File::will_read`] still reads ahead. By default nothing happens.
    fn reads_are_random(&self) {}

    /// Writes all of `buf` at `offset`, extending the file if necessary; a gap reads as zero. Durable after
    /// [`File::sync`].
    ///
    /// # Errors
    ///
    /// `StorageFull`, EINVAL if not aligned, EBADF if read-only, EFBIG, or an error of the device. Any part
    /// of `buf` may have been written.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes all of `buf` at `offset` and waits until exactly these bytes, and a length that includes them,
    /// are durable. Earlier unsynced writes elsewhere in the file stay unsynced.
    ///
    /// On the operating system this is one call (`RWF_DSYNC`), which a device with forced unit access
    /// completes without emptying its whole cache.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`]. Any part of `buf` may have been written, and may be durable.
    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Waits until every write, and every change of length, that returned before this call is durable.
    ///
    /// # Errors
    ///
    /// An error of the device. The state of these writes is then unknown for good: do not rely on another
    /// call (W10).
    fn sync(&self) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    ///
    /// The device's own.
    fn len(&self) -> io::Result<u64>;

    /// Returns `true` if the file has no bytes.
    ///
    /// # Errors
    ///
    /// As [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it by a hole that reads as zero (and may still run out of space when
    /// written).
    ///
    /// # Errors
    ///
    /// EBADF if read-only, EFBIG, or the device's own.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Writes `len` zero bytes at `offset`: not a hole, so that no later write there allocates or runs out of
    /// space. Durable after [`File::sync`].
    ///
    /// # Errors
    ///
    /// As [`File::write_at`].
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the file at least `offset + len` bytes long and allocates the range, which lies beyond its end,
    /// so that no later write there runs out of space. The range reads as zero. Unlike [`File::write_zeroes`]
    /// it need not write the range; then the first write of each place makes the file system change its
    /// metadata. A file that is synced after each small write should be filled with zeroes. Durable after
    /// [`File::sync`].
    ///
    /// # Errors
    ///
    /// As [`File::write_at`].
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    /// Tells the device that these bytes are not needed: they read as zero afterwards, their space may be
    /// freed, and a later write there may allocate and run out of space. A hint about space, not about
    /// contents: the file system decides when it is durable.
    ///
    /// # Errors
    ///
    /// `Unsupported` if it is not possible (the default), EINVAL if not aligned, EBADF if read-only, or an
    /// error of the device.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns 1 if any access is allowed. Otherwise offsets, lengths and memory addresses must be multiples
    /// of this power of two, and another access is refused with EINVAL.
    fn alignment(&self) -> usize;

    /// Returns `true` if accesses go past the operating system's page cache.
    fn is_direct(&self) -> bool {
        self.alignment() > 1
    }
}

/// Creates a directory and the missing ones above it, and makes their names durable.
///
/// Costs one [`Fs::sync_dir`] for each directory made, and one if the directory existed before (its creator
/// may have ended before the sync).
///
/// # Errors
///
/// As [`Fs::create_dir_all`] and [`Fs::sync_dir`].
pub fn create_dir_all_durable(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    let missing = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !fs.exists(dir)).count();
    fs.create_dir_all(path)?;
    for dir in path.ancestors().take(missing.max(1)) {
        match dir.parent() {
            Some(parent) if parent.as_os_str().is_empty() => fs.sync_dir(Path::new("."))?,
            Some(parent) => fs.sync_dir(parent)?,
            None => {}
        }
    }
    Ok(())
}
