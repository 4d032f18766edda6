//! `FaultFs`: files on a simulated disk that loses unsynced writes, fails, fills up and loses power,
//! controlled by a test.
//!
//! The disk guarantees exactly the table at the head of [`fs`](crate::fs). In detail:
//!
//! - A write is in the cache until its file is synced. A crash keeps any subset of its 512-byte sectors, in
//!   any order among writes; a sector itself is never torn.
//! - `write_at_sync` makes its own range and earlier changes of length durable, but no other bytes.
//! - A created, renamed or removed name is in the cache until its directory is synced. A crash keeps any
//!   subset of these changes. Changes that share a name keep their order, and a rename is never torn.
//! - After a failed `sync`, its writes are readable until the crash, but count as clean: no later sync writes
//!   them. A crash may keep them nevertheless.
//! - A failed write leaves any subset of its sectors; on a full disk, it leaves a prefix.
//!
//! | module | content |
//! |---|---|
//! | `inode` | content of a file: durable bytes, and later writes |
//! | `names` | names: durable ones, and later changes |
//! | `meter` | counts, planned failures, the last I/Os |
//! | `survival` | the part of the changes that a crash keeps, by seed |
//! | `sectors`, `choice` | subsets of a write's sectors; random decisions |
//!
//! One mutex protects names and meter. Each file has its own mutex, which is locked after the first one. So
//! all threads' I/Os have one order, and a crash is a moment in this order.

mod choice;
mod file;
mod inode;
mod meter;
mod names;
mod sectors;
mod survival;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::Mutex;

use self::choice::Choice;
use self::file::FaultFile;
use self::inode::Inode;
use self::meter::{Meter, Request, Verdict};
use self::names::{Names, Node};
use self::survival::Survival;
use crate::fs::{File, FileLock, Fs, OpenOptions};
use crate::image::Image;
use crate::locks::Locks;
use crate::tree::{Change, Entry, Opening};

pub use self::meter::{FailKind, IoKind, IoRecord};

/// A file system in memory that injects faults. Clones share one file system.
///
/// I/Os are counted from 1: the `n`-th I/O from now with `n = 1` is the next one. [`IoKind`] lists the calls
/// that count as an I/O. Reads are counted separately, and so are lookups: the opening or locking of an
/// existing file, the listing of a directory, and the reading of a length.
///
/// ```
/// use azekura_io::{FaultFs, Fs, OpenOptions, is_power_cut};
/// let fs = FaultFs::new();
/// fs.cut_power_at(3);
/// let work = || -> std::io::Result<()> {
///     let file = fs.open("a".as_ref(), OpenOptions::new().create(true))?; // 1
///     file.write_at(0, b"x")?; // 2
///     file.sync() // 3: does not happen
/// };
/// assert!(is_power_cut(&work().unwrap_err()));
/// assert_eq!(fs.last_ios().last().unwrap().to_string(), "#3 Sync a (power cut)");
///
/// let after = fs.crash(1); // the same disk, plugged in again
/// assert!(after.contents("a".as_ref()).is_none_or(|bytes| bytes.is_empty() || bytes == b"x" || bytes ==
/// [0]));
/// ```
#[derive(Clone, Debug)]
pub struct FaultFs {
    disk: Arc<Disk>,
    locks: Locks,
}

/// State that clones and open files share.
#[derive(Debug)]
struct Disk {
    alignment: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    names: Names,
    meter: Meter,
}

impl Default for FaultFs {
    fn default() -> Self {
        Self::new()
    }
}

/// Creation of a disk, and crashes.
impl FaultFs {
    /// Returns an empty disk without direct I/O: every file has alignment 1.
    #[must_use]
    pub fn new() -> Self {
        Self::with_alignment(1)
    }

    /// Returns an empty disk on which files opened with `direct` have this alignment (for example 512), and
    /// refuse other accesses.
    ///
    /// # Panics
    ///
    /// If `alignment` is not a power of two.
    #[must_use]
    pub fn with_alignment(alignment: usize) -> Self {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is not a power of two");
        Self::with_names(alignment, Names::default())
    }

    fn with_names(alignment: usize, names: Names) -> Self {
        let state = Mutex::new(State { names, meter: Meter::default() });
        Self { disk: Arc::new(Disk { alignment, state }), locks: Locks::default() }
    }

    /// Returns the disk after a power loss at this moment: a separate disk on which everything is durable and
    /// nothing is locked, without counts and planned failures. `self` is unchanged.
    ///
    /// The seed decides which unsynced changes survive: all, none, everything up to a moment, or a subset,
    /// whole or torn. The same history and the same seed give the same disk.
    ///
    /// The cost depends on the unsynced changes, not on the size of the disk, because both disks share
    /// contents until they are written.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        self.crash_by(|names| Survival::new(seed, names.unsynced_ios()))
    }

    /// Returns the disk after a power loss in the worst case: only synced changes survive. See
    /// [`FaultFs::crash`].
    #[must_use]
    pub fn crash_losing_all(&self) -> Self {
        self.crash_by(|_| Survival::uniform(false))
    }

    /// Returns the disk after a power loss in which all changes survive, including the interrupted I/O. See
    /// [`FaultFs::crash`].
    #[must_use]
    pub fn crash_keeping_all(&self) -> Self {
        self.crash_by(|_| Survival::uniform(true))
    }

    fn crash_by(&self, survival: impl FnOnce(&Names) -> Survival) -> Self {
        let state = self.disk.state.lock();
        let mut survival = survival(&state.names);
        Self::with_names(self.disk.alignment, state.names.after_crash(&mut survival))
    }

    /// Returns the disk and the cache after every process was killed at this moment: a copy without locks,
    /// counts and planned failures. Unsynced changes are readable in the copy, and still unsynced.
    ///
    /// After `kill -9` a restart reads data that a later power loss could still lose, so a test should also
    /// crash the copy.
    ///
    /// # Panics
    ///
    /// If the power is off, because the cache is lost then. Use [`FaultFs::crash`].
    #[must_use]
    pub fn kill(&self) -> Self {
        let state = self.disk.state.lock();
        assert!(!state.meter.power_is_off(), "the cache does not outlive the power");
        Self::with_names(self.disk.alignment, state.names.deep_copy())
    }
}

/// Planned failures.
impl FaultFs {
    /// Cuts the power during the `n`-th I/O from now; 0 cuts it now. That I/O and every later call fail,
    /// including reads ([`is_power_cut`](crate::is_power_cut)). [`FaultFs::crash`] decides how much of the
    /// interrupted I/O happened.
    pub fn cut_power_at(&self, n: u64) {
        self.disk.state.lock().meter.cut_at(n);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.cut_power_at(0);
    }

    /// Returns `true` if the power is off.
    #[must_use]
    pub fn power_is_off(&self) -> bool {
        self.disk.state.lock().meter.power_is_off()
    }

    /// Makes the `n`-th I/O from now fail, once. Several failures may be planned.
    pub fn fail_at(&self, n: u64, kind: FailKind) {
        self.disk.state.lock().meter.fail_at(n, kind);
    }

    /// Makes every I/O from the `n`-th on fail.
    pub fn fail_from(&self, n: u64, kind: FailKind) {
        self.disk.state.lock().meter.fail_from(n, kind);
    }

    /// Fills the disk up: from the `n`-th I/O from now on, I/Os that need space (a new name, a longer file, a
    /// write into a hole) fail with ENOSPC. Overwriting, syncing and removing still work. Removing frees no
    /// space.
    pub fn full_from(&self, n: u64) {
        self.disk.state.lock().meter.full_from(n);
    }

    /// Makes the `n`-th read from now fail with EIO, once.
    pub fn fail_read_at(&self, n: u64) {
        self.disk.state.lock().meter.fail_read_at(n);
    }

    /// Makes the `n`-th lookup from now fail with EIO, once.
    pub fn fail_lookup_at(&self, n: u64) {
        self.disk.state.lock().meter.fail_lookup_at(n);
    }

    /// Cancels every planned failure. Writes lost by a failed sync stay lost; power that is off stays off.
    pub fn heal(&self) {
        self.disk.state.lock().meter.heal();
    }

    /// Flips one bit (0..8) of the byte at `offset`, on the disk and in the cache. Not counted as an I/O.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `InvalidInput` if the file is not that long.
    pub fn flip_bit(&self, path: &Path, offset: u64, bit: u32) -> io::Result<()> {
        self.damage(path, offset, 1, |byte| byte ^ 1u8.rotate_left(bit))
    }

    /// Changes each of `len` bytes at `offset` to another value, random by `seed`, on the disk and in the
    /// cache. Not counted as an I/O.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `InvalidInput` if the file is not that long.
    pub fn corrupt(&self, path: &Path, offset: u64, len: u64, seed: u64) -> io::Result<()> {
        let mut choice = Choice::new(seed);
        self.damage(path, offset, len, |byte| byte ^ (1 + choice.below(255) as u8))
    }

    fn damage(&self, path: &Path, offset: u64, len: u64, mut each: impl FnMut(u8) -> u8) -> io::Result<()> {
        let state = self.disk.state.lock();
        let file = state.names.volatile.file(path)?;
        let mut inode = file.lock();
        let mut bytes = inode.volatile_image().to_vec();
        let end = offset.checked_add(len).filter(|&end| end <= bytes.len() as u64);
        let Some(end) = end else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "damage beyond the end of the file"));
        };
        let bytes = &mut bytes[offset as usize..end as usize];
        bytes.iter_mut().for_each(|byte| *byte = each(*byte));
        inode.overwrite(offset, bytes);
        Ok(())
    }
}

/// Inspection of the disk. These calls are not counted, and work without power.
impl FaultFs {
    /// Returns the number of I/Os so far, including failed ones.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.disk.state.lock().meter.ios()
    }

    /// Returns the number of I/Os of one kind so far.
    #[must_use]
    pub fn io_count_of(&self, kind: IoKind) -> u64 {
        self.disk.state.lock().meter.of_kind(kind)
    }

    /// Returns the number of reads so far.
    #[must_use]
    pub fn read_count(&self) -> u64 {
        self.disk.state.lock().meter.reads()
    }

    /// Returns the number of lookups so far.
    #[must_use]
    pub fn lookup_count(&self) -> u64 {
        self.disk.state.lock().meter.lookups()
    }

    /// Returns the last I/Os (256 at most), oldest first.
    #[must_use]
    pub fn last_ios(&self) -> Vec<IoRecord> {
        self.disk.state.lock().meter.last().cloned().collect()
    }

    /// Describes I/O number `number` for a message; as "unknown" if it is not among the last I/Os.
    #[must_use]
    pub fn describe_io(&self, number: u64) -> String {
        let state = self.disk.state.lock();
        let found = state.meter.last().find(|record| record.number == number);
        found.map_or_else(|| format!("#{number} unknown"), IoRecord::to_string)
    }

    /// Returns the paths of all files, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let files = self.disk.state.lock().names.volatile.files();
        files.into_iter().map(|(path, _)| path).collect()
    }

    /// Returns the bytes of the file as a read returns them; `None` if there is no such file.
    #[must_use]
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.look(path, Inode::volatile_image)
    }

    /// Returns the bytes of the file at `path` that are durable: the content after a crash that loses as much
    /// as possible. The crash may lose the name nevertheless.
    #[must_use]
    pub fn durable_contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.look(path, Inode::durable_image)
    }

    fn look(&self, path: &Path, image: impl Fn(&Inode) -> &Image) -> Option<Vec<u8>> {
        let file = self.disk.state.lock().names.volatile.file(path).ok()?;
        let bytes = image(&file.lock()).to_vec();
        Some(bytes)
    }
}

/// Returns a path for messages.
fn label(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}

impl State {
    /// Counts a call that changes names, and makes its changes unless it fails.
    fn change_names(&mut self, kind: IoKind, path: &Arc<str>, changes: Vec<Change<Node>>) -> io::Result<()> {
        let needs_space = matches!(kind, IoKind::Create | IoKind::CreateDir);
        let (io, verdict) = self.meter.begin(&Request { kind, path, offset: 0, len: 0, needs_space })?;
        if !matches!(verdict, Verdict::Fails(_)) {
            self.names.change(io, changes);
        }
        verdict.result()
    }

    /// Opens the file at `path`, created if the options allow it.
    fn open(&mut self, path: &Path, options: OpenOptions) -> io::Result<Arc<Node>> {
        self.meter.check_power()?;
        match self.names.volatile.plan_open(path, options)? {
            Opening::Existing(node) => {
                self.meter.begin_lookup()?;
                Ok(node)
            }
            Opening::Missing(name) => {
                let node = Arc::new(Mutex::new(Inode::default()));
                let change = Change { name, entry: Some(Entry::File(Arc::clone(&node))) };
                self.change_names(IoKind::Create, &label(path), vec![change])?;
                Ok(node)
            }
        }
    }
}

impl Fs for FaultFs {
    fn open(&self, path: &Path, options: OpenOptions) -> io::Result<Arc<dyn File>> {
        let node = self.disk.state.lock().open(path, options)?;
        Ok(Arc::new(FaultFile::new(Arc::clone(&self.disk), node, label(path), options)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.meter.check_power()?;
        while let Some(change) = state.names.volatile.plan_create_dir(path)? {
            state.change_names(IoKind::CreateDir, &label(path), vec![change])?;
        }
        Ok(())
    }

    fn list_dir(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.disk.state.lock();
        state.meter.check_power()?;
        let names = state.names.volatile.list(path)?;
        state.meter.begin_lookup()?;
        Ok(names)
    }

    fn exists(&self, path: &Path) -> bool {
        let state = self.disk.state.lock();
        !state.meter.power_is_off() && state.names.volatile.exists(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.meter.check_power()?;
        let changes = state.names.volatile.plan_rename(from, to)?;
        let label = format!("{} -> {}", from.display(), to.display()).into();
        state.change_names(IoKind::Rename, &label, changes)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.meter.check_power()?;
        let change = state.names.volatile.plan_remove(path)?;
        state.change_names(IoKind::Remove, &label(path), vec![change])
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.meter.check_power()?;
        let dir = state.names.volatile.dir(path)?;
        let request =
            Request { kind: IoKind::SyncDir, path: &label(path), offset: 0, len: 0, needs_space: false };
        let (_, verdict) = state.meter.begin(&request)?;
        match verdict {
            Verdict::Done => state.names.sync(dir),
            Verdict::Fails(_) => state.names.forget(dir),
            Verdict::Cut => {}
        }
        verdict.result()
    }

    fn lock_exclusive(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.disk.state.lock().open(path, OpenOptions::new().create(true))?;
        self.locks.try_lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.disk.state.lock().open(path, OpenOptions::new().read_only(true))?;
        self.locks.try_share(path)
    }
}
