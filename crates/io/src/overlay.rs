//! `OverlayFs`: a layer that reads from the file system below it and keeps every change in memory.
//!
//! A store that is opened through this layer can be recovered and used without a write to the files below: on
//! a read-only mount, or beside other readers. The changes are lost when the layer is dropped. The files
//! below must not change meanwhile, so a lock of the layer takes a shared lock below.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::page::PageWord;
use azekura_base::sync::Mutex;

use crate::fs::{File, FileLock, Fs, OpenOptions};

/// Size in bytes of a block of changes.
const BLOCK_BYTES: usize = 4096;

/// A file system that keeps its changes in memory.
///
/// ```
/// use azekura_io::{Fs, MemFs, OpenOptions, OverlayFs};
/// use std::{path::Path, sync::Arc};
///
/// let below = MemFs::new();
/// let path = Path::new("file");
/// below.open(path, OpenOptions::new().create(true))?.write_at(0, b"before")?;
/// let fs = OverlayFs::new(Arc::new(below.clone()));
/// fs.open(path, OpenOptions::new())?.write_at(0, b"AFT")?;
/// let mut bytes = [0; 6];
/// fs.open(path, OpenOptions::new())?.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"AFTore");
/// below.open(path, OpenOptions::new())?.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"before");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OverlayFs {
    below: Arc<dyn Fs>,
    names: Arc<Mutex<Names>>,
}

/// Differences from the file system below.
#[derive(Debug, Default)]
struct Names {
    /// Files that were opened, created, or removed (`None`).
    files: BTreeMap<PathBuf, Option<Arc<OverlayFile>>>,
    dirs: BTreeSet<PathBuf>,
}

impl OverlayFs {
    /// Creates a layer above `below`.
    #[must_use]
    pub fn new(below: Arc<dyn Fs>) -> Self {
        Self { below, names: Arc::default() }
    }

    /// Returns the file of this name, if there is one.
    fn find(&self, names: &mut Names, path: &Path) -> io::Result<Arc<OverlayFile>> {
        match names.files.get(path) {
            Some(Some(file)) => Ok(Arc::clone(file)),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => {
                let below = self.below.open(path, OpenOptions::new().read_only(true))?;
                let file = Arc::new(OverlayFile::above(Some(below))?);
                names.files.insert(path.into(), Some(Arc::clone(&file)));
                Ok(file)
            }
        }
    }
}

impl Fs for OverlayFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        options.check()?;
        let mut names = self.names.lock();
        match self.find(&mut names, path) {
            Ok(_) if options.create_new => Err(io::ErrorKind::AlreadyExists.into()),
            Ok(file) => Ok(file),
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && (options.create || options.create_new) =>
            {
                let file = Arc::new(OverlayFile::above(None)?);
                names.files.insert(path.into(), Some(Arc::clone(&file)));
                Ok(file)
            }
            Err(error) => Err(error),
        }
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing = path.ancestors().filter(|dir| !self.below.exists(dir)).map(Path::to_path_buf);
        self.names.lock().dirs.extend(missing);
        Ok(())
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let mut found: BTreeSet<String> = match self.below.list_dir(path) {
            Ok(names) => names.into_iter().collect(),
            // Only a directory that the file system below does not have has no names there.
            Err(error) if error.kind() == io::ErrorKind::NotFound && names.dirs.contains(path) => {
                BTreeSet::new()
            }
            Err(error) => return Err(error),
        };
        let name_here = |at: &Path| {
            at.file_name()
                .filter(|_| at.parent() == Some(path))
                .map(|name| name.to_string_lossy().into_owned())
        };
        found.extend(names.dirs.iter().filter_map(|dir| name_here(dir)));
        for (at, file) in &names.files {
            match (name_here(at), file) {
                (Some(name), Some(_)) => drop(found.insert(name)),
                (Some(name), None) => drop(found.remove(&name)),
                (None, _) => {}
            }
        }
        Ok(found.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> bool {
        let names = self.names.lock();
        match names.files.get(path) {
            Some(file) => file.is_some(),
            None => names.dirs.contains(path) || self.below.exists(path),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = self.find(&mut names, from)?;
        names.files.insert(from.into(), None);
        names.files.insert(to.into(), Some(file));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        self.find(&mut names, path)?;
        names.files.insert(path.into(), None);
        Ok(())
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Takes a shared lock of the file below, because nothing is written there.
    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.below.lock_shared(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.below.lock_shared(path)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.below.absolute(path)
    }

    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        self.below.canonical(path)
    }
}

/// A file and its changes.
#[derive(Debug)]
struct OverlayFile {
    below: Option<Arc<dyn File>>,
    changes: Mutex<Changes>,
}

#[derive(Debug)]
struct Changes {
    len: u64,
    /// Length of the part of the file below that is still valid.
    below_len: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl OverlayFile {
    fn above(below: Option<Arc<dyn File>>) -> io::Result<Self> {
        let len = below.as_ref().map_or(Ok(0), |file| file.len())?;
        let changes = Changes { len, below_len: len, blocks: BTreeMap::new() };
        Ok(Self { below, changes: Mutex::new(changes) })
    }

    /// Returns the file below if it has all bytes of this range, and none of them was changed. The file below
    /// never changes, so a read of it needs no lock.
    fn unchanged(&self, offset: u64, len: u64) -> Option<&dyn File> {
        let end = offset.checked_add(len).filter(|&end| end > offset)?;
        let changes = self.changes.lock();
        let block = BLOCK_BYTES as u64;
        let is_whole = end <= changes.below_len.min(changes.len);
        let is_changed = || changes.blocks.range(offset / block..end.div_ceil(block)).next().is_some();
        self.below.as_deref().filter(|_| is_whole && !is_changed())
    }

    /// Reads bytes of the file below; bytes beyond its valid part are zero.
    fn read_below(&self, changes: &Changes, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(changes.below_len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, beyond) = out.split_at_mut(there.min(out.len()));
        beyond.fill(0);
        let read = match &self.below {
            Some(file) if !there.is_empty() => file.read_at(offset, there)?,
            _ => 0,
        };
        there[read..].fill(0);
        Ok(())
    }

    /// Returns the pieces of a range: block, offset in the block, and part of the range.
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let within = (at % BLOCK_BYTES as u64) as usize;
            let count = (BLOCK_BYTES - within).min(len - done);
            let piece = (at / BLOCK_BYTES as u64, within, done..done + count);
            done += count;
            (count > 0).then_some(piece)
        })
    }
}

impl File for OverlayFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(below) = self.unchanged(offset, buf.len() as u64) {
            return below.read_at(offset, buf);
        }
        let changes = self.changes.lock();
        let len = changes.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let out = &mut buf[..len];
        self.read_below(&changes, offset, out)?;
        for (block, within, range) in Self::pieces(offset, len) {
            if let Some(bytes) = changes.blocks.get(&block) {
                let count = range.len();
                out[range].copy_from_slice(&bytes[within..within + count]);
            }
        }
        Ok(len)
    }

    fn read_words_at(&self, offset: u64, out: &[&[PageWord]]) -> io::Result<usize> {
        match self.unchanged(offset, out.iter().map(|words| size_of_val(*words) as u64).sum()) {
            Some(below) => below.read_words_at(offset, out),
            None => crate::fs::read_words_by_copy(self, offset, out),
        }
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Some(below) = self.unchanged(offset, len) {
            below.will_read(offset, len);
        }
    }

    fn is_cached(&self, offset: u64) -> bool {
        self.unchanged(offset, 1).is_none_or(|below| below.is_cached(offset))
    }

    fn reads_are_random(&self) {
        if let Some(below) = &self.below {
            below.reads_are_random();
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let end = crate::error::check_end(offset, buf.len() as u64, i64::MAX as u64)?;
        let mut changes = self.changes.lock();
        for (block, within, range) in Self::pieces(offset, buf.len()) {
            if !changes.blocks.contains_key(&block) {
                let mut bytes = Box::new([0; BLOCK_BYTES]);
                self.read_below(&changes, block * BLOCK_BYTES as u64, &mut bytes[..])?;
                changes.blocks.insert(block, bytes);
            }
            if let Some(bytes) = changes.blocks.get_mut(&block) {
                bytes[within..within + range.len()].copy_from_slice(&buf[range]);
            }
        }
        changes.len = changes.len.max(end);
        Ok(())
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.changes.lock().len)
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        let changes = self.changes.lock();
        let mut next = changes.len.max(offset);
        if let Some((block, _)) = changes.blocks.range(offset / BLOCK_BYTES as u64..).next() {
            next = next.min(block * BLOCK_BYTES as u64).max(offset);
        }
        if let Some(below) = self.below.as_ref().filter(|_| offset < changes.below_len) {
            let data = below.next_data(offset)?;
            next = if data < changes.below_len { next.min(data) } else { next };
        }
        Ok(next)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes.lock();
        if len < changes.len {
            changes.below_len = changes.below_len.min(len);
            let last = len / BLOCK_BYTES as u64;
            drop(changes.blocks.split_off(&(last + 1)));
            if let Some(bytes) = changes.blocks.get_mut(&last) {
                bytes[(len % BLOCK_BYTES as u64) as usize..].fill(0);
            }
        }
        changes.len = len;
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeroes = [0; BLOCK_BYTES];
        let end = crate::error::check_end(offset, len, i64::MAX as u64)?;
        let mut at = offset;
        while at < end {
            let count = (end - at).min(BLOCK_BYTES as u64);
            self.write_at(at, &zeroes[..count as usize])?;
            at += count;
        }
        Ok(())
    }

    fn alignment(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::{CountingFs, FaultFs, MemFs};

    fn path(name: u64) -> PathBuf {
        PathBuf::from(format!("file {name}"))
    }

    fn contents(fs: &dyn Fs, name: u64) -> (Vec<u8>, u64) {
        let file = fs.open(&path(name), OpenOptions::new()).unwrap();
        let mut bytes = vec![1; 40_000];
        let read = file.read_at(0, &mut bytes).unwrap();
        // A short read may take another way than one of the whole file.
        for (at, part) in (0..).step_by(1024).zip(bytes[..read].chunks(1024)) {
            let (mut copy, words) = ([1; 1024], [const { PageWord::new(1) }; 128]);
            assert_eq!(file.read_at(at, &mut copy).unwrap(), part.len());
            assert_eq!(file.read_words_at(at, &[&words[..40], &words[40..]]).unwrap(), part.len());
            let words: Vec<u8> = words.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
            assert!(part == &copy[..part.len()] && part == &words[..part.len()]);
        }
        (bytes[..read].to_vec(), file.len().unwrap())
    }

    /// The layer has the same results as a plain file system, and changes nothing below.
    #[test]
    fn changes_are_seen_above_and_not_below() {
        for seed in 0..200_u64 {
            // A linear congruential generator, so the run of a seed is always the same.
            let mut state = seed;
            let mut below_n = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % n
            };
            let (below, model) = (MemFs::new(), MemFs::new());
            let first: Vec<u8> = (0..below_n(12_000)).map(|n| (n % 255) as u8 + 1).collect();
            for fs in [&below, &model] {
                fs.open(&path(0), OpenOptions::new().create(true)).unwrap().write_at(0, &first).unwrap();
            }
            let counting = CountingFs::new(Arc::new(below.clone()));
            let fs = OverlayFs::new(Arc::new(counting.clone()));
            let mut name = 0;
            for _ in 0..12 {
                let (step, at, len, byte) = (below_n(5), below_n(20_000), below_n(6_000), below_n(256) as u8);
                for fs in [&fs as &dyn Fs, &model] {
                    let file = fs.open(&path(name), OpenOptions::new()).unwrap();
                    match step {
                        0 | 1 => file.write_at(at, &vec![byte; len as usize]).unwrap(),
                        2 => file.write_zeroes(at, len).unwrap(),
                        3 => file.set_len(at).unwrap(),
                        _ => fs.rename(&path(name), &path(name + 1)).unwrap(),
                    }
                }
                name += u64::from(step == 4);
                assert!(contents(&fs, name) == contents(&model, name), "seed {seed}, step {step}");
            }
            assert_eq!((counting.counts().changes(), counting.counts().bytes_written), (0, 0));
            assert!(contents(&below, 0).0 == first, "seed {seed}");
        }
    }

    #[test]
    fn reads_of_unchanged_bytes_are_announced_below() {
        let below = CountingFs::new(Arc::new(MemFs::new()));
        let write = |fs: &dyn Fs| {
            fs.open(&path(0), OpenOptions::new().create(true)).unwrap().write_at(0, &[1; 20_000]).unwrap();
        };
        write(&below);
        let fs = OverlayFs::new(Arc::new(below.clone()));
        let file = fs.open(&path(0), OpenOptions::new()).unwrap();
        file.will_read(8000, 8000);
        assert_eq!(below.counts().announced, 1);
        file.will_read(16_000, 8000); // ends beyond the file
        file.write_at(9000, &[2]).unwrap();
        file.will_read(8000, 8000);
        assert_eq!(below.counts().announced, 1);
        assert!(file.is_cached(9000));
    }

    #[test]
    fn names_that_are_made_and_removed_show_in_the_list() {
        let below = MemFs::new();
        below.create_dir_all(Path::new("/db/old")).unwrap();
        below.open(Path::new("/db/a"), OpenOptions::new().create(true)).unwrap();
        let fs = OverlayFs::new(Arc::new(below.clone()));
        fs.create_dir_all(Path::new("/db/new/deep")).unwrap();
        fs.open(Path::new("/db/new/b"), OpenOptions::new().create_new(true)).unwrap();
        fs.remove_file(Path::new("/db/a")).unwrap();
        assert_eq!(fs.list_dir(Path::new("/db")).unwrap(), ["new", "old"]);
        assert_eq!(fs.list_dir(Path::new("/db/new")).unwrap(), ["b", "deep"]);
        assert!(fs.exists(Path::new("/db/new/deep")) && !fs.exists(Path::new("/db/a")));
        let gone = fs.open(Path::new("/db/a"), OpenOptions::new()).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert_eq!(below.list_dir(Path::new("/db")).unwrap(), ["a", "old"]);
    }

    /// The directory is created below after the layer has created it, and cannot be read there.
    #[test]
    fn a_directory_that_cannot_be_read_below_does_not_seem_empty() {
        let below = FaultFs::new();
        let (fs, dir) = (OverlayFs::new(Arc::new(below.clone())), Path::new("/db"));
        fs.create_dir_all(dir).unwrap();
        assert!(fs.list_dir(dir).unwrap().is_empty());
        below.create_dir_all(dir).unwrap();
        below.fail_lookup_at(1);
        let error = fs.list_dir(dir).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        assert!(fs.list_dir(dir).unwrap().is_empty());
    }
}
