//! Compaction: the rows of one snapshot, loaded into a new store.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use azekura_buffer::PageFile;
use azekura_io::{Fs, OpenOptions};

use super::format::BLOCK_BYTES;
use super::unfinished::{begin, finish, free_space};
use super::{BackupProgress, Callback};
use crate::control::CONTROL_NAME;
use crate::encryption::{EncryptionKey, KeySource};
use crate::interrupt::check_interrupt;
use crate::restart::WAL_DIR;
use crate::transaction::Next;
use crate::{Builder, Database, Durability, Error, Snapshot};

/// Contents and sizes of a [compacted](Database::compact_into) store.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct CompactReport {
    /// Number of tables.
    pub tables: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows: keys and values as stored.
    pub row_bytes: u64,
    /// Size of all files of this store when the copy began.
    pub bytes_before: u64,
    /// Size of all files of the new store.
    pub bytes_after: u64,
    /// `true` if the files of an unfinished restore or compaction were removed from the directory.
    pub removed_unfinished: bool,
}

/// Settings of a compaction, returned by [`Database::compaction`].
pub struct Compaction<'a> {
    db: &'a Database,
    page_size: Option<usize>,
    key: Option<EncryptionKey>,
    progress: Callback<'a>,
    filter: Filter<'a>,
}

/// Returns `true` for the rows that are copied, from the table's name, key and value.
type Filter<'a> = Option<Box<dyn FnMut(&str, &[u8], &[u8]) -> bool + 'a>>;

impl fmt::Debug for Compaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compaction").field("page_size", &self.page_size).finish_non_exhaustive()
    }
}

impl Database {
    /// Copies all tables as they are now into a new store at `to`, a new or empty directory, while
    /// transactions continue. The new store has full pages and no free ones. [`compaction`](Self::compaction)
    /// returns settings for such a copy.
    ///
    /// ```
    /// use azekura::{Database, Error, TableDefinition};
    /// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let at = |name: &str| dir.path().join(name);
    /// let db = Database::open(at("shop.azk"))?;
    /// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
    /// assert_eq!(db.compact_into(at("small.azk"))?.rows, 1);
    /// let small = Database::open(at("small.azk"))?;
    /// assert_eq!(small.read(|s| s.table(&STOCK)?.get("rice"))?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`Compaction::into_directory`].
    pub fn compact_into(&self, to: impl AsRef<Path>) -> Result<CompactReport, Error> {
        self.compaction().into_directory(to)
    }

    /// Returns the settings of a compaction; [`Compaction::into_directory`] runs it.
    #[must_use]
    pub fn compaction(&self) -> Compaction<'_> {
        Compaction { db: self, page_size: None, key: None, progress: None, filter: None }
    }
}

impl<'a> Compaction<'a> {
    /// Sets the page size of the new store; default: that of this store. A row's value of more than five
    /// sixteenths of a page (2.5 KB of 8 KiB) is stored in overflow pages. So a store with many values of 3
    /// to 8 KiB is smaller with larger pages.
    #[must_use]
    pub const fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets the key of the new store; default: that of this store. A store that is not encrypted becomes an
    /// encrypted one. Each compaction draws a new data key, also without this call. Needs the feature
    /// `encryption`.
    ///
    /// ```
    /// # use azekura::{Database, EncryptionKey, Error};
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let at = |name: &str| dir.path().join(name);
    /// let plain = Database::open(at("plain.azk"))?;
    /// let key = EncryptionKey::with_id("shop/1", &[7; 32]);
    /// plain.compaction().encryption_key(key.clone()).into_directory(at("shop.azk"))?;
    /// assert!(Database::builder().encryption_key(key).open(at("shop.azk"))?.is_encrypted());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "encryption")]
    #[must_use]
    pub fn encryption_key(mut self, key: impl Into<EncryptionKey>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Calls `progress` after each 256 KiB of rows. `bytes` of the progress is the size of the rows that were
    /// copied.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(&BackupProgress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Copies only the rows for which `keep` returns `true`. Its arguments are the name of the table and the
    /// bytes of key and value as stored; [`Key::decode`](crate::Key::decode) decodes a key. A multimap table
    /// has a row for each value, with the value in the key.
    #[must_use]
    pub fn filter(mut self, keep: impl FnMut(&str, &[u8], &[u8]) -> bool + 'a) -> Self {
        self.filter = Some(Box::new(keep));
        self
    }

    /// Copies all tables as they are now into a new store at `to`, while transactions continue. `to` is a new
    /// or empty directory, or that of an unfinished restore or compaction: its files are then removed first.
    ///
    /// The new store has the settings of this one without its [archive](crate::Builder::archive), and is
    /// encrypted with the same key, and a new data key, if this one is encrypted. The new store is in the
    /// same file system; to save an in-memory store to disk, make a [backup](Database::backup). As after a
    /// [restore](crate::Restore), the new store opens only if the copy was completed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: `to` has other files, or the page size is invalid; [`Error::RestoreRunning`]:
    /// another caller copies to `to`; [`Error::RestoreUnfinished`]: an earlier version has left an unfinished
    /// copy there. [`Error::SnapshotTooOld`]: writers replaced more than
    /// [`Builder::version_bytes`](crate::Builder::version_bytes) meanwhile. Errors of reading this store and
    /// of writing the new one.
    pub fn into_directory(mut self, to: impl AsRef<Path>) -> Result<CompactReport, Error> {
        let (to, db) = (to.as_ref(), self.db);
        let snapshot = db.snapshot()?;
        let mut builder = self.settings();
        builder.validate()?; // before any file is created
        builder.check_cache(self.page_size.unwrap_or(db.page_size()))?;
        let source_fs = Arc::clone(&builder.fs); // finds the store also after a rename
        let fs = builder.mode_fs();
        let mut report =
            CompactReport { bytes_before: file_bytes(&*source_fs, db.path())?, ..CompactReport::default() };
        let begun = begin(&*fs, to)?;
        builder.restoring = Some(begun.database_id);
        report.removed_unfinished = begun.removed_unfinished;
        let seen = self.fill(&builder, &snapshot, to).inspect_err(|_| free_space(&*fs, to))?;
        finish(&*fs, to)?;
        (report.tables, report.rows, report.row_bytes) = (seen.tables, seen.rows, seen.bytes);
        report.bytes_after = file_bytes(&*fs, to)?;
        Ok(report)
    }

    /// Returns the settings of the new store.
    fn settings(&mut self) -> Builder {
        let shared = self.db.shared();
        let mut builder = shared.options.clone();
        if let Some(disk) = builder.disk.take() {
            builder.fs = disk;
        }
        (builder.archive, builder.transaction_timeout) = (None, None);
        let caller = || shared.keys.as_ref().map(|keys| keys.caller.lock().clone());
        builder.encryption_key = self.key.take().or_else(caller).map(KeySource::Key);
        let page_size = self.page_size.unwrap_or(self.db.page_size());
        builder.page_size(page_size).create(true).read_only(false).with_cache_of_copy()
    }

    /// Creates the store, copies all rows to it and closes it; returns the numbers of copied tables, rows and
    /// bytes.
    fn fill(&mut self, builder: &Builder, snapshot: &Snapshot, to: &Path) -> Result<BackupProgress, Error> {
        let (db, new) = (self.db, builder.clone().open(to)?);
        let mut seen = BackupProgress::default();
        for (table, tree) in snapshot.tables_and_trees()? {
            let mut leaves = snapshot.leaves(&table.name, tree)?;
            seen.table.clone_from(&table.name);
            let (mut next, mut shown, mut has_more) = (0, seen.bytes, false);
            let tx = new.begin()?;
            tx.set_durability(Durability::Relaxed); // all tables become durable at the end (RESTORE-1)
            tx.create_and_load(&table, &mut |key, value| {
                let copied = loop {
                    if has_more {
                        break leaves.copy_part(value)?;
                    }
                    while next == leaves.len() {
                        next = 0;
                        if leaves.advance()?.is_none() {
                            return Ok(Next::End);
                        }
                        check_interrupt(db.shared().options.interrupt)?;
                    }
                    let i = next;
                    next += 1;
                    if let Some(keep) = &mut self.filter {
                        let (key, value) = leaves.row(i)?;
                        if !keep(&table.name, key, &value.bytes()?) {
                            continue;
                        }
                    }
                    break leaves.copy_row(i, key, value)?;
                };
                has_more = copied == Next::Part;
                seen.rows += u64::from(!has_more);
                seen.bytes += (key.len() + value.len()) as u64;
                if seen.bytes - shown >= BLOCK_BYTES as u64 {
                    shown = seen.bytes;
                    self.progress.iter_mut().for_each(|progress| progress(&seen));
                }
                Ok(copied)
            })?;
            tx.commit()?;
            seen.tables += 1;
        }
        self.progress.iter_mut().for_each(|progress| progress(&seen));
        snapshot.wait_durable()?;
        new.close()?;
        Ok(seen)
    }
}

/// Files and directories that count for the size of a store. Its directory may have others, such as the
/// socket of a server.
const MEASURED: [&str; 5] =
    [CONTROL_NAME, PageFile::NAME, PageFile::DOUBLE_WRITE_NAME, PageFile::LSN_MAP_NAME, WAL_DIR];

/// Returns the size of the files of a store, without files that a running store removes meanwhile.
pub(super) fn file_bytes(fs: &dyn Fs, store: &Path) -> Result<u64, Error> {
    MEASURED.iter().map(|name| bytes_of(fs, &store.join(name))).sum()
}

/// Returns the size of a file, or of all files below a directory; 0 if it does not exist.
fn bytes_of(fs: &dyn Fs, path: &Path) -> Result<u64, Error> {
    if let Ok(names) = fs.list_dir(path) {
        return names.iter().map(|name| bytes_of(fs, &path.join(name))).sum();
    }
    match fs.open(path, OpenOptions::new().read_only(true)).and_then(|file| file.len()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        len => len.map_err(|e| Error::io("measure", path, e)),
    }
}

#[cfg(test)]
mod tests {
    use azekura_io::FaultFs;

    use super::*;

    #[test]
    fn a_copy_has_background_jobs_and_a_small_cache() {
        let fs = Arc::new(FaultFs::new());
        let builder = || Database::builder().file_system(Arc::clone(&fs) as _);
        builder().cache_bytes(8 << 20).open("db").unwrap().close().unwrap();
        let settings = |builder: Builder| builder.open("db").unwrap().compaction().settings();
        let read_only = settings(builder().cache_bytes(64 << 20).read_only(true));
        assert!(read_only.has_jobs(), "only the source is read-only");
        assert_eq!(read_only.cache.bytes(), 32 << 20);
        let small = settings(builder().cache_bytes(8 << 20).background(false));
        assert!(!small.has_jobs());
        assert_eq!(small.cache.bytes(), 8 << 20);
    }
}
