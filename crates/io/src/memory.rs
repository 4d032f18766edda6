//! `MemFs`: files in memory; every write is durable at once. For examples, tests, and temporary stores.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::Mutex;
use rustix::io::Errno;

use crate::error::{check_end, os};
use crate::fs::{File, FileLock, Fs, OpenOptions};
use crate::image::{BLOCK_BYTES, Image, MAX_LEN};
use crate::locks::Locks;
use crate::tree::{Change, Entry, Opening, Tree};

type Node = Mutex<Image>;

/// A file system in memory. Clones share one file system, which is freed with the last clone and the last
/// open file.
///
/// ```
/// use azekura_io::{Fs, MemFs, OpenOptions};
/// let fs = MemFs::new();
/// fs.create_dir_all("db".as_ref())?;
/// fs.open("db/pages".as_ref(), OpenOptions::new().create(true))?.write_at(4096, b"page 1")?;
/// assert_eq!(fs.clone().list_dir("/db".as_ref())?, ["pages"]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// Direct I/O is never available here, and a file is at most 64 GiB. Accesses to one file are serialized.
#[derive(Clone, Debug, Default)]
pub struct MemFs {
    tree: Arc<Mutex<Tree<Node>>>,
    locks: Locks,
}

impl MemFs {
    /// Returns an empty file system with the directory `/`, from which relative paths start too.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a copy of the file system in its current state. Costs a few words per file: both file systems
    /// share each block until one of them writes the block.
    ///
    /// ```
    /// use azekura_io::{Fs, MemFs, OpenOptions};
    /// let (fs, name, new) = (MemFs::new(), "a".as_ref(), OpenOptions::new().create(true));
    /// fs.open(name, new)?.write_at(0, b"one")?;
    /// let copy = fs.copied();
    /// copy.open(name, new)?.write_at(0, b"two")?;
    /// let mut bytes = [0; 3];
    /// fs.open(name, new)?.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"one");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn copied(&self) -> Self {
        let tree = self.tree.lock().with_files(|node| Mutex::new(node.lock().clone()));
        Self { tree: Arc::new(Mutex::new(tree)), locks: Locks::default() }
    }

    /// Returns the names and bytes of all files in a directory and its subdirectories, in order of names. Not
    /// an atomic view if files are written meanwhile.
    ///
    /// # Errors
    ///
    /// `NotFound` or `NotADirectory`: there is no such directory.
    pub fn files(&self, dir: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut found = Vec::new();
        for path in self.list_dir(dir)?.into_iter().map(|name| dir.join(name)) {
            if self.list_dir(&path).is_ok() {
                found.extend(self.files(&path)?);
                continue;
            }
            let file = self.open(&path, OpenOptions::new())?;
            let mut bytes = vec![0; file.len()? as usize];
            file.read_at(0, &mut bytes)?;
            found.push((path, bytes));
        }
        Ok(found)
    }

    /// Returns a file system with these files, as returned by [`files`](Self::files). Blocks of zeroes take
    /// no memory.
    ///
    /// ```
    /// use azekura_io::{Fs, MemFs, OpenOptions};
    /// let fs = MemFs::with_files(&[("db/a".into(), b"one".to_vec())])?;
    /// fs.open("db/b/c".as_ref(), OpenOptions::new().create(true)).expect_err("no such directory");
    /// let files = fs.files("db".as_ref())?;
    /// assert_eq!(files, [("db/a".into(), b"one".to_vec())]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A name is that of a directory and of a file, or a file is too large.
    pub fn with_files(files: &[(PathBuf, Vec<u8>)]) -> io::Result<Self> {
        let fs = Self::new();
        for (path, bytes) in files {
            if let Some(dir) = path.parent() {
                fs.create_dir_all(dir)?;
            }
            let file = fs.open(path, OpenOptions::new().create(true))?;
            file.set_len(bytes.len() as u64)?;
            for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
                if block.iter().any(|&byte| byte != 0) {
                    file.write_at((number * BLOCK_BYTES) as u64, block)?;
                }
            }
        }
        Ok(fs)
    }
}

impl Fs for MemFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let mut tree = self.tree.lock();
        let node = match tree.plan_open(path, options)? {
            Opening::Existing(node) => node,
            Opening::Missing(name) => {
                let node = Arc::new(Mutex::new(Image::default()));
                tree.apply(&Change { name, entry: Some(Entry::File(Arc::clone(&node))) });
                node
            }
        };
        Ok(Arc::new(MemFile { node, read_only: options.read_only }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        while let Some(change) = tree.plan_create_dir(path)? {
            tree.apply(&change);
        }
        Ok(())
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        self.tree.lock().list(path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.tree.lock().exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        tree.plan_rename(from, to)?.iter().for_each(|change| tree.apply(change));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.tree.lock();
        let change = tree.plan_remove(path)?;
        tree.apply(&change);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.tree.lock().dir(path).map(drop)
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.open(path, OpenOptions::new().create(true))?;
        self.locks.try_lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.open(path, OpenOptions::new().read_only(true))?;
        self.locks.try_share(path)
    }
}

/// A file in memory.
#[derive(Debug)]
struct MemFile {
    node: Arc<Node>,
    read_only: bool,
}

impl MemFile {
    /// Checks a change of the range of `len` bytes at `offset`.
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.read_only {
            return Err(os(Errno::BADF));
        }
        check_end(offset, len, MAX_LEN).map(drop)
    }
}

impl File for MemFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.node.lock().read(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.node.lock().write(offset, buf);
        Ok(())
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.node.lock().len())
    }

    fn disk_bytes(&self) -> io::Result<u64> {
        Ok(self.node.lock().block_bytes())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check(0, len)?;
        self.node.lock().set_len(len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        self.node.lock().write_zeroes(offset, len);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        self.node.lock().discard(offset, len);
        Ok(())
    }

    fn alignment(&self) -> usize {
        1
    }
}
