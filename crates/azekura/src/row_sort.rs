//! External merge sort of rows, for loads in any order.
//!
//! 1. Rows are collected in memory, up to a bound, then sorted and written to a file: a sorted *run* (`run`).
//! 2. [`FAN_IN`] runs of one level are merged into one run of the next level; this is the largest merge.
//! 3. At the end all runs are merged while the caller reads the rows. If all rows fit in memory, no file is
//!    written.
//!
//! If several rows have the same key, the last one pushed is kept. The files are in the store's directory and
//! are removed when the sorter is dropped. Files of a killed process are removed when the store is opened.

mod merge;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::sync::random;
use azekura_io::Fs;

use crate::Error;
use crate::database::Shared;
use crate::opener::Opener;
use crate::transaction::check_row;
use merge::Merge;
use run::{Run, RunWriter};

/// Name of the directory of runs, inside the store's directory.
const DIR: &str = "sort";
/// Number of runs merged at once.
const FAN_IN: usize = 64;
/// Smallest and largest size of a block, the unit in which runs are read and written.
const BLOCK_BYTES: (usize, usize) = (4 << 10, 256 << 10);

/// Sorts rows by their keys, with bounded memory; returned by
/// [`Database::row_sorter`](crate::Database::row_sorter).
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error};
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// let mut sorter = db.row_sorter(1 << 20);
/// for (key, value) in [("b", "1"), ("a", "2"), ("b", "3")] {
///     sorter.push(key.as_bytes(), value.as_bytes())?;
/// }
/// let rows: Vec<_> = sorter.into_sorted()?.collect::<Result<_, _>>()?;
/// assert_eq!(rows, [(b"a".to_vec(), b"2".to_vec()), (b"b".to_vec(), b"3".to_vec())]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RowSorter {
    page_size: usize,
    files: RunFiles,
    most_bytes: usize,
    rows: Collected,
    /// The runs of each level, oldest first. All runs of a level are newer than those of the next level.
    levels: Vec<Vec<Run>>,
    pushed: u64,
    /// `true` during a merge, and after a failed one: then the rows of the merged runs are lost.
    is_incomplete: bool,
}

/// Creator of run files with new names.
#[derive(Clone, Debug)]
struct RunFiles {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    block_bytes: usize,
    cipher: Option<Arc<dyn Cipher>>,
    opener: Opener,
}

impl RunFiles {
    fn create(&self) -> Result<RunWriter, Error> {
        self.fs.create_dir_all(&self.dir).map_err(|error| Error::io("create", &self.dir, error))?;
        // A random number, because the directory may be a link to that of another store.
        let path = self.dir.join(format!("run-{}", random()));
        RunWriter::create(self, path)
    }
}

/// Removes the runs that a killed process left in the directory of a store.
pub(crate) fn remove_leftovers(fs: &dyn Fs, store: &Path) -> Result<(), Error> {
    let dir = store.join(DIR);
    if !fs.exists(&dir) {
        return Ok(());
    }
    // The directory may be a link to one with other files, such as a place for temporary files.
    let is_run =
        |name: &String| name.strip_prefix("run-").is_some_and(|number| number.parse::<u64>().is_ok());
    let names = fs.list_dir(&dir).map_err(|error| Error::io("list", &dir, error))?;
    for name in names.into_iter().filter(is_run) {
        let path = dir.join(name);
        fs.remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
    }
    Ok(())
}

impl RowSorter {
    pub(crate) fn new(db: &Shared, memory_bytes: usize) -> Self {
        let block_bytes = (memory_bytes / (2 * FAN_IN)).clamp(BLOCK_BYTES.0, BLOCK_BYTES.1);
        let fs = Arc::clone(&db.options.fs);
        let opener = Opener::this_process();
        let files = RunFiles { fs, dir: db.path.join(DIR), block_bytes, cipher: db.cipher(), opener };
        let most_bytes = memory_bytes.max(FAN_IN * block_bytes);
        Self {
            page_size: db.env.page_size(),
            files,
            most_bytes,
            rows: Collected::default(),
            levels: Vec::new(),
            pushed: 0,
            is_incomplete: false,
        }
    }

    /// Adds a row. May write a run as large as the sorter's memory, and merge runs.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the key or value is longer than a table allows; the sorter is then unchanged.
    /// [`Error::Io`] if a file cannot be written or read; after a failed merge all later calls return
    /// [`Error::Invalid`]. [`Error::Forked`] in a forked child process.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.check()?;
        check_row(self.page_size, key, value)?;
        if !self.rows.is_empty() && self.rows.bytes() + Collected::bytes_of(key, value) > self.most_bytes {
            self.write_run()?;
        }
        self.rows.push(key, value);
        self.pushed += 1;
        Ok(())
    }

    /// Returns the number of rows pushed so far, including rows that later rows replace.
    #[must_use]
    pub const fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the number of runs in files that have not been merged yet.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    fn write_run(&mut self) -> Result<(), Error> {
        let mut writer = self.files.create()?;
        for (key, value) in self.rows.sort().iter() {
            writer.push(key, value)?;
        }
        self.rows.clear();
        self.add_run(0, writer.finish()?)
    }

    fn add_run(&mut self, level: usize, run: Run) -> Result<(), Error> {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.levels[level].push(run);
        if self.levels[level].len() < FAN_IN {
            return Ok(());
        }
        let mut writer = self.files.create()?;
        self.is_incomplete = true;
        let mut merge = Merge::new(std::mem::take(&mut self.levels[level]))?;
        while merge.advance()? {
            writer.push(merge.key(), merge.value())?;
        }
        drop(merge);
        let merged = writer.finish()?;
        self.is_incomplete = false;
        self.add_run(level + 1, merged)
    }

    fn check(&self) -> Result<(), Error> {
        self.files.opener.check()?;
        if self.is_incomplete {
            let reason = "the sorter has lost rows, because a merge of its files failed; use a new sorter";
            return Err(Error::Invalid(reason.into()));
        }
        Ok(())
    }

    /// Ends the input: returns the rows in ascending order of their keys, each key once.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be written or read. [`Error::Invalid`] after a failed merge.
    /// [`Error::Forked`] in a forked child process.
    pub fn into_sorted(mut self) -> Result<SortedRows, Error> {
        self.check()?;
        if self.levels.is_empty() {
            self.rows.sort();
            return Ok(SortedRows { rows: self.rows, next: 0, merge: None });
        }
        if !self.rows.is_empty() {
            self.write_run()?;
        }
        let oldest_first: Vec<Run> = self.levels.into_iter().rev().flatten().collect();
        Ok(SortedRows { rows: Collected::default(), next: 0, merge: Some(Merge::new(oldest_first)?) })
    }
}

/// Rows in ascending order of their keys; returned by [`RowSorter::into_sorted`].
#[derive(Debug)]
pub struct SortedRows {
    /// All rows, if they fit in memory.
    rows: Collected,
    /// The number of rows of `rows` returned so far.
    next: usize,
    merge: Option<Merge>,
}

impl Iterator for SortedRows {
    type Item = Result<(Vec<u8>, Vec<u8>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(merge) = &mut self.merge {
            return match merge.advance() {
                Ok(true) => Some(Ok((merge.key().to_vec(), merge.value().to_vec()))),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
        }
        let (key, value) = self.rows.row(*self.rows.order.get(self.next)?);
        self.next += 1;
        Some(Ok((key.to_vec(), value.to_vec())))
    }
}

/// Rows in memory.
#[derive(Debug, Default)]
struct Collected {
    /// Encoded keys and values of the rows, concatenated.
    bytes: Vec<u8>,
    order: Vec<RowPosition>,
}

/// The position of a row in memory.
#[derive(Clone, Copy, Debug)]
struct RowPosition {
    /// The first eight bytes of the key, padded with zeroes. Most comparisons need only these bytes.
    prefix: u64,
    key_at: usize,
    key_len: u32,
    value_len: u32,
}

impl Collected {
    const fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn bytes(&self) -> usize {
        self.bytes.len() + self.order.len() * size_of::<RowPosition>()
    }

    const fn bytes_of(key: &[u8], value: &[u8]) -> usize {
        key.len() + value.len() + size_of::<RowPosition>()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.order.clear();
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        let mut prefix = [0; 8];
        let in_prefix = key.len().min(prefix.len());
        prefix[..in_prefix].copy_from_slice(&key[..in_prefix]);
        self.order.push(RowPosition {
            prefix: u64::from_be_bytes(prefix),
            key_at: self.bytes.len(),
            key_len: key.len() as u32,
            value_len: value.len() as u32,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    fn key(&self, place: RowPosition) -> &[u8] {
        &self.bytes[place.key_at..][..place.key_len as usize]
    }

    fn row(&self, place: RowPosition) -> (&[u8], &[u8]) {
        let value_at = place.key_at + place.key_len as usize;
        (self.key(place), &self.bytes[value_at..][..place.value_len as usize])
    }

    /// Sorts by key, and drops each row that a later one replaces.
    fn sort(&mut self) -> &Self {
        let mut order = std::mem::take(&mut self.order);
        // Among equal keys the newest comes first, because `dedup_by` keeps the first.
        let newest_first = |a: &RowPosition, b: &RowPosition| {
            let by_key = a.prefix.cmp(&b.prefix).then_with(|| self.key(*a).cmp(self.key(*b)));
            by_key.then_with(|| b.key_at.cmp(&a.key_at))
        };
        order.sort_unstable_by(newest_first);
        order.dedup_by(|later, kept| later.prefix == kept.prefix && self.key(*later) == self.key(*kept));
        self.order = order;
        self
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.order.iter().map(|&place| self.row(place))
    }
}

#[cfg(test)]
mod tests;
