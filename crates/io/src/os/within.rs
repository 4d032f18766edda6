//! `Within`: the operating system's files, with one directory found by an open handle.
//!
//! **WITHIN-1** Each path below the directory is resolved from the handle. So the files of a store stay in
//! its directory if that is renamed, unmounted lazily, or replaced by another directory with the same name.

use std::fs::File as StdFile;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{OsFs, pipe, retry};
use crate::fs::{File, FileLock, Fs, OpenOptions};

/// The operating system's file system, with one directory found by an open handle.
#[derive(Debug)]
pub(super) struct Within {
    os: OsFs,
    path: PathBuf,
    dir: OwnedFd,
}

impl Within {
    pub(super) fn new(os: OsFs, path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = retry(|| rustix::fs::open(path, flags, Mode::empty()))?;
        Ok(Self { os, path: path.to_path_buf(), dir })
    }

    /// Returns the directory and the path for a system call. Paths outside of the directory are unchanged.
    fn at<'a>(&'a self, path: &'a Path) -> (BorrowedFd<'a>, &'a Path) {
        match path.strip_prefix(&self.path) {
            Ok(rest) if rest.as_os_str().is_empty() => (self.dir.as_fd(), Path::new(".")),
            Ok(rest) => (self.dir.as_fd(), rest),
            Err(_) => (CWD, path),
        }
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> io::Result<StdFile> {
        if self.stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_fifo()) {
            return Err(pipe());
        }
        let (dir, path) = self.at(path);
        let mode = Mode::from_raw_mode(self.os.file_mode);
        Ok(retry(|| rustix::fs::openat(dir, path, flags | OFlags::CLOEXEC, mode))?.into())
    }

    fn stat(&self, path: &Path) -> io::Result<rustix::fs::Stat> {
        let (dir, path) = self.at(path);
        Ok(rustix::fs::statat(dir, path, AtFlags::empty())?)
    }
}

impl Fs for Within {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        options.check()?;
        let mut flags = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        flags.set(OFlags::CREATE, options.create || options.create_new);
        flags.set(OFlags::EXCL, options.create_new);
        Ok(Arc::new(OsFs::opened(self.open_at(path, flags)?, options)?))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let Ok(rest) = path.strip_prefix(&self.path) else { return self.os.create_dir_all(path) };
        let mode = Mode::from_raw_mode(self.os.dir_mode());
        let mut made = self.path.clone();
        for name in rest {
            made.push(name);
            let (dir, at) = self.at(&made);
            match rustix::fs::mkdirat(dir, at, mode) {
                Err(Errno::EXIST) if FileType::from_raw_mode(self.stat(&made)?.st_mode).is_dir() => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != "." && name != "..");
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> bool {
        self.stat(path).is_ok()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (self.at(from), self.at(to));
        Ok(rustix::fs::renameat(from_dir, from, to_dir, to)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let (dir, path) = self.at(path);
        Ok(rustix::fs::unlinkat(dir, path, AtFlags::empty())?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)?.sync_all()
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let file = self.open_at(path, OFlags::RDWR | OFlags::CREATE)?;
        OsFs::lock(file, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        OsFs::lock(self.open_at(path, OFlags::RDONLY)?, FlockOperation::NonBlockingLockShared)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.os.absolute(path)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.os.canonical(path)
    }

    fn within(&self, dir: &Path) -> io::Result<Option<Arc<dyn Fs>>> {
        self.os.within(dir)
    }
}
