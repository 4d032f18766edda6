//! The traits: a file system with the few calls that a database makes.
//!
//! Durability of each call: the effects that survive a power loss, and since when.
//!
//! | effect | survives once this call has returned |
//! |---|---|
//! | bytes of [`File::write_at`], [`File::write_zeroes`] | the next [`File::sync`] of that file |
//! | bytes of [`File::write_at_sync`], and the length they need | the call itself |
//! | a length set by [`File::set_len`] | the next `sync`, or `write_at_sync`, of that file |
//! | a name made, changed or removed by a method of [`Fs`] | [`Fs::sync_dir`] of its directory |
//!
//! All other effects may survive entirely, in part (in units of 512-byte sectors), or not at all, in any
//! order. A rename is kept or lost as a whole. A file with synced bytes and an unsynced name may be lost with
//! its name.
//!
//! **After a failed `sync` the file's earlier writes are not retried**: a later `sync` may succeed without
//! them. Treat the file's unsynced contents as unknown (W10).
//!
//! All calls block the calling thread; none needs `&mut`. Reads and writes of one file may run concurrently.
//! Overlapping ones are not atomic.

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
    /// Creates the file, empty, if it is missing.
    pub create: bool,
    /// Creates the file, empty. Fails if the file exists.
    pub create_new: bool,
    /// Requests direct I/O. If it is not available, the file is opened buffered; see [`File::is_direct`].
    pub direct: bool,
    /// Refuses writes. Cannot be combined with `create` or `create_new`.
    pub read_only: bool,
}

impl OpenOptions {
    /// Returns the options to open an existing file for reading and writing, buffered.
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
                "a file cannot be created by opening it for reading only",
            ));
        }
        Ok(())
    }
}

/// A file system. Every method may be called from any thread.
///
/// The separator of path components is `/`. Names are UTF-8.
pub trait Fs: Send + Sync + Debug {
    /// Opens a file. A file created by this call is durable only after both its bytes ([`File::sync`]) *and*
    /// its name ([`Fs::sync_dir`] of its directory) are durable.
    ///
    /// # Errors
    ///
    /// - `NotFound`: the file, or its directory, is missing.
    /// - `AlreadyExists`: `create_new` is set, and the file exists.
    /// - `IsADirectory`, `InvalidInput` (contradicting options), or an error of the device.
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>>;

    /// Creates a directory and its missing ancestors. Succeeds if the directory exists.
    ///
    /// Each new directory is a new name in its parent, which is durable after `sync_dir(parent)`: see
    /// [`create_dir_all_durable`].
    ///
    /// # Errors
    ///
    /// `NotADirectory` or `AlreadyExists` if a file has that name, or an error of the device.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Returns the names of files and directories in a directory, sorted by bytes, without `.` and `..`.
    ///
    /// In a name that is not UTF-8, U+FFFD replaces the invalid bytes. (The store creates no such names.)
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or an error of the device.
    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Returns `true` if a file or directory has this name; `false` also if that cannot be determined.
    fn exists(&self, path: &Path) -> bool;

    /// Renames the file or directory at `from` to `to`. A file that has the name `to` is removed. Both names
    /// change atomically, also in a crash. Open handles still refer to their files.
    ///
    /// # Errors
    ///
    /// `NotFound`: `from`, or the directory of `to`, is missing. Or an error of the device.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name. The bytes are freed when the last handle is closed.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, or an error of the device.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the changes of names in this directory durable, but not those in its subdirectories. Blocks for
    /// the device.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or an error of the device. After an error of the device the state of the
    /// names is unknown.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Locks the file at `path` exclusively, and creates it if it is missing. Returns `None` if another
    /// holder, in any process, has a lock of the file. Never waits. Dropping the lock, or the end of the
    /// process, releases it. In a forked child, dropping the copied lock does not release the lock.
    ///
    /// # Errors
    ///
    /// The errors of [`Fs::open`] with `create`.
    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Takes a shared lock of the file at `path`, which must exist. Returns `None` if another holder has an
    /// exclusive lock. Writes nothing, so the call works on a read-only file system. Never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`Fs::open`] with `read_only`.
    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>>;

    /// Returns a path that leads to the same file or directory after any change of the process's working
    /// directory. On a file system without a working directory, returns the path itself.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an empty path, or an error if the working directory cannot be determined.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    /// Returns the absolute path, without symbolic links, of a file or directory. On a file system without
    /// symbolic links, returns the path itself, also if nothing has this name.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or an error of the lookup.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    /// Returns a file system that keeps `dir` open, and finds it and all paths below it by this handle: also
    /// after `dir` was renamed, or another directory has its name. Returns `None` (the default) if this
    /// file system finds directories by their names only.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, or an error of the device.
    fn within(&self, dir: &Path) -> io::Result<Option<Arc<dyn Fs>>> {
        let _ = dir;
        Ok(None)
    }
}

/// A lock of a file, from [`Fs::lock_exclusive`] or [`Fs::lock_shared`]; dropping it unlocks.
pub trait FileLock: Send + Sync + Debug {}

/// Reads into words as [`File::read_words_at`] does, by [`File::read_at`] and a copy.
pub(crate) fn read_words_by_copy(
    file: &(impl File + ?Sized),
    offset: u64,
    out: &[&[PageWord]],
) -> io::Result<usize> {
    let len = out.iter().map(|words| size_of_val(*words)).sum();
    let mut bytes = PageBuf::zeroed(len);
    let read = file.read_at(offset, &mut bytes[..len])?;
    for (word, eight) in out.iter().copied().flatten().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_ne_bytes(*eight), Relaxed); // the caller publishes the words
    }
    Ok(read)
}

/// An open file. Positions are bytes from the start; there is no cursor.
pub trait File: Send + Sync + Debug {
    /// Reads bytes at `offset` until `buf` is full or the file ends, and returns their number.
    ///
    /// Bytes of `buf` beyond that number are unspecified.
    ///
    /// # Errors
    ///
    /// EINVAL if the access is not aligned ([`File::alignment`]), or an error of the device.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads as [`File::read_at`] does, into consecutive runs of words; other threads may read the words
    /// meanwhile. If the file supports it, one call reads all bytes without copying. Each run must have the
    /// alignment of a buffer of [`File::read_at`].
    ///
    /// # Errors
    ///
    /// The errors of [`File::read_at`].
    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        read_words_by_copy(self, offset, out)
    }

    /// Hints that these bytes will be read soon. A file system with a cache may start to read them; the call
    /// does not wait for the device. Does nothing by default.
    fn will_read(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Returns `true` if the system's page cache has the byte at `offset`, so that a read of it does not wait
    /// for a device. May return `false` without a reason, as by default.
    fn is_cached(&self, offset: u64) -> bool {
        let _ = offset;
        false
    }

    /// Hints that reads of this file have a random order, so the system need not read more than requested.
    /// [`File::will_read`] still reads ahead. Does nothing by default.
    fn reads_are_random(&self) {}

    /// Writes all of `buf` at `offset`, extending the file if necessary; a hole reads as zero. Durable after
    /// [`File::sync`].
    ///
    /// # Errors
    ///
    /// `StorageFull`, EINVAL if not aligned, EBADF if read-only, EFBIG, or an error of the device. Any part
    /// of `buf` may have been written.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes all of `buf` at `offset` and waits until these bytes, and a length that includes them, are
    /// durable. Earlier unsynced writes elsewhere in the file stay unsynced.
    ///
    /// The operating system does this in one call (`RWF_DSYNC`). A device with forced unit access completes
    /// the call without flushing its whole cache.
    ///
    /// # Errors
    ///
    /// The errors of [`File::write_at`]. Any part of `buf` may have been written, and may be durable.
    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Waits until every write, and every change of length, that returned before this call is durable.
    ///
    /// # Errors
    ///
    /// An error of the device. The state of these writes is then unknown, and a later successful call does
    /// not make them durable (W10).
    fn sync(&self) -> io::Result<()>;

    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// An error of the device.
    fn len(&self) -> io::Result<u64>;

    /// Returns the first offset at or after `offset` that may have a byte other than zero, at most the length
    /// of the file. Skips the holes that the file system reports; by default, returns `offset`.
    ///
    /// # Errors
    ///
    /// An error of the device.
    fn next_data(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Returns the bytes of disk space that the file takes, which is less than its length if it has holes. By
    /// default, returns the length.
    ///
    /// # Errors
    ///
    /// An error of the device.
    fn disk_bytes(&self) -> io::Result<u64> {
        self.len()
    }

    /// Returns `true` if the file has no bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it by a hole. A hole reads as zero, and a write into it may run out of
    /// space.
    ///
    /// # Errors
    ///
    /// EBADF if read-only, EFBIG, or an error of the device.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Writes `len` zero bytes at `offset`: not a hole, so that no later write there allocates or runs out of
    /// space. Durable after [`File::sync`].
    ///
    /// # Errors
    ///
    /// The errors of [`File::write_at`].
    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the file at least `offset + len` bytes long and allocates the range, which is beyond its end, so
    /// that no later write there runs out of space. The range reads as zero. Unlike [`File::write_zeroes`],
    /// this call may leave the range unwritten. Then the first write to each block makes the file system
    /// change its metadata, so a file that is synced after each small write should be filled with zeroes.
    /// Durable after [`File::sync`].
    ///
    /// # Errors
    ///
    /// The errors of [`File::write_at`].
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(offset, len)
    }

    /// Discards these bytes: they read as zero afterward, and their space may be freed. A later write there
    /// may allocate and run out of space. The file system decides when the change is durable.
    ///
    /// # Errors
    ///
    /// `Unsupported` (the default), EINVAL if not aligned, EBADF if read-only, or an error of the device.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns 1 if any access is allowed, otherwise a power of two. Offsets, lengths and memory addresses
    /// must be multiples of that number; any other access fails with EINVAL.
    fn alignment(&self) -> usize;

    /// Returns `true` if accesses bypass the operating system's page cache.
    fn is_direct(&self) -> bool {
        self.alignment() > 1
    }
}

/// Replaces a file of `dir` by one with these bytes. After a crash, the file is the old one or the new one,
/// complete and durable. The bytes are written to the file `NAME.new` first, which a crash may leave.
///
/// Costs one sync of a file and one [`Fs::sync_dir`].
///
/// # Errors
///
/// The errors of the file system; the old file is unchanged, unless only the sync of the directory failed.
pub fn replace_file(fs: &dyn Fs, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let new = dir.join(format!("{name}.new"));
    let file = fs.open(&new, OpenOptions::new().create(true))?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync()?;
    fs.rename(&new, &dir.join(name))?;
    fs.sync_dir(dir)
}

/// Returns `true` if there is a file at `path`. A failed lookup is an error, unlike with [`Fs::exists`].
///
/// # Errors
///
/// `IsADirectory`, or an error of the lookup: there may be a file.
pub fn file_exists(fs: &dyn Fs, path: &Path) -> io::Result<bool> {
    use io::ErrorKind::{NotADirectory, NotFound};
    match fs.open(path, OpenOptions::new().read_only(true)) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a directory unless it exists, and makes its name durable: with one [`Fs::sync_dir`], also if it
/// existed, because its creator may have crashed before the sync. The names above it must be durable.
///
/// # Errors
///
/// The errors of [`Fs::create_dir_all`] and [`Fs::sync_dir`].
pub fn create_dir_durable(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    fs.create_dir_all(dir)?;
    match dir.parent() {
        Some(parent) if parent.as_os_str().is_empty() => fs.sync_dir(Path::new(".")),
        Some(parent) => fs.sync_dir(parent),
        None => Ok(()),
    }
}

/// Creates a directory and its missing ancestors, and makes their names durable, from the outermost on. So if
/// a call ended by a crash had created a directory, only the name of the innermost one may not be durable.
///
/// Costs one [`Fs::sync_dir`] per created directory, and one for the innermost directory that existed before,
/// because its creator may have crashed before the sync. The latter is omitted if this process may not open
/// the parent, or if the parent's file system has no sync, as for a mount point.
///
/// # Errors
///
/// The errors of [`Fs::create_dir_all`] and [`Fs::sync_dir`].
pub fn create_dir_all_durable(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied};
    let named = || path.ancestors().filter(|dir| !dir.as_os_str().is_empty());
    let missing = named().take_while(|dir| !fs.exists(dir)).count();
    let dirs: Vec<&Path> = named().take(missing + 1).collect();
    for (nth, dir) in dirs.into_iter().enumerate().rev() {
        let is_tolerated = |kind| nth == missing && matches!(kind, PermissionDenied | InvalidInput);
        create_dir_durable(fs, dir)
            .or_else(|error| if is_tolerated(error.kind()) { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}
