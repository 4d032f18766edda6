//! Restore: creates a new store from a backup, by bulk loads.

use std::fmt;
use std::io::{BufReader, Read};
use std::ops::ControlFlow::Continue;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::checksum::crc32c_append;
use azekura_base::varint::{put_bytes, put_u64};
use azekura_base::{Lsn, TreeId};
use azekura_io::{Fs, OsFs};

use super::format::{BLOCK_BYTES, Header};
use super::rows::Rows;
use super::source::{Source, open_directory};
use super::unfinished::{begin, finish, free_space};
use super::{BackupProgress, BackupReport, Callback, STREAM, report, verify};
use crate::archive::{self, Replay};
use crate::encryption::KeySource;
use crate::interrupt::check_interrupt;
use crate::location::refuse_empty;
use crate::transaction::Next;
use crate::{Builder, CommitTime, Database, Durability, Error, TableDefinition, TableInfo};

/// Contents of a restored store.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Contents of the backup that was read.
    #[serde(flatten)]
    pub backup: BackupReport,
    /// Time at which the backup began, in milliseconds since 1970.
    pub backup_time_ms: u64,
    /// The store has exactly the commits up to this time; `None` if neither the backup nor the restore had an
    /// archive.
    #[serde(rename = "commit_time_us")]
    pub commit_time: Option<CommitTime>,
    /// Number of transactions replayed from the archive.
    pub replayed_transactions: u64,
    /// `true` if the new store was checked and compared with the backup.
    pub is_verified: bool,
    /// `true` if the files of an unfinished restore or compaction were removed from the directory.
    pub removed_unfinished: bool,
}

/// A restore of a [`Backup`](super::Backup) into a new store.
///
/// A restore is atomic: the new store opens only after the restore has finished. If a restore fails or is
/// killed, the directory holds the file `RESTORING` and every opening is refused with
/// [`Error::RestoreUnfinished`]. Run it again into the same directory: the new restore removes the files of
/// the unfinished one. Until the restore ends, every opening is refused with [`Error::RestoreRunning`].
#[derive(Default)]
pub struct Restore<'a> {
    builder: Option<Builder>,
    page_size: Option<usize>,
    fs: Option<Arc<dyn Fs>>,
    bases: Vec<Source<'a>>,
    stream_name: Option<PathBuf>,
    archive: Option<PathBuf>,
    to_time: Option<CommitTime>,
    verify: bool,
    progress: Callback<'a>,
}

impl fmt::Debug for Restore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore").field("verify", &self.verify).finish_non_exhaustive()
    }
}

impl<'a> Restore<'a> {
    /// Returns a restore with the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Settings of the new store, such as its cache and its file system. Its encryption key also decrypts the
    /// backup and the archive; a key without an id gets that of the backup. Its log archive
    /// ([`Builder::archive`]) is not used: the new store has none.
    #[must_use]
    pub fn builder(mut self, builder: Builder) -> Self {
        self.builder = Some(builder);
        self
    }

    /// Sets the page size of the new store; default: that of the source store.
    #[must_use]
    pub const fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets the file system of the backup's directory; default: the operating system's.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn Fs>) -> Self {
        self.fs = Some(fs);
        self
    }

    /// Names the backup from which an [incremental](super::Backup::since) one was made. Call this function
    /// once for each backup of a chain, in any order.
    #[must_use]
    pub fn base(mut self, directory: impl Into<PathBuf>) -> Self {
        self.bases.push(Source::Directory(directory.into()));
        self
    }

    /// Sets a base as [`base`](Self::base) does, but reads it from a stream. Errors use `name` for the
    /// stream.
    #[must_use]
    pub fn base_reader(mut self, name: impl Into<PathBuf>, base: impl Read + 'a) -> Self {
        self.bases.push(Source::Stream(name.into(), Box::new(base)));
        self
    }

    /// Sets the name of the stream of [`from_reader`](Self::from_reader) and
    /// [`verify_reader`](Self::verify_reader) in errors, such as the URL of an object; default: `backup
    /// stream`.
    #[must_use]
    pub fn stream_name(mut self, name: impl Into<PathBuf>) -> Self {
        self.stream_name = Some(name.into());
        self
    }

    /// Replays the transactions of this archive after the backup. The store must have had this archive when
    /// the backup was made ([`Builder::archive`]). The replay ends at the archive's end, unless
    /// [`to_time`](Self::to_time) is set. If the newest part of the archive is missing, a restore to its end
    /// fails with [`Error::Corrupt`]; the error has the latest time to which the archive can be restored.
    #[must_use]
    pub fn archive(mut self, directory: impl Into<PathBuf>) -> Self {
        self.archive = Some(directory.into());
        self
    }

    /// Restores exactly the commits up to this time, a [`CommitTime`] or a `SystemTime`.
    #[must_use]
    pub fn to_time(mut self, time: impl Into<CommitTime>) -> Self {
        self.to_time = Some(time.into());
        self
    }

    /// Opens the new store again before the restore ends, runs [`Database::check`] on it, and compares the
    /// row count and a digest of each table with the backup.
    #[must_use]
    pub const fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Calls `progress` after each block of about 256 KiB.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(&BackupProgress) + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Restores the backup in directory `from` into a new store at `to`. `to` is a new or empty directory, or
    /// that of an unfinished restore or compaction: its files are then removed first, and the report says so.
    ///
    /// # Errors
    ///
    /// [`Error::NotABackup`], [`Error::UnsupportedFormat`], [`Error::Corrupt`]: the backup cannot be read, or
    /// is truncated; the error names the backup. [`Error::Invalid`]: `to` has other files.
    /// [`Error::RestoreRunning`]: another caller restores into `to`. [`Error::RestoreUnfinished`]: an
    /// earlier version has left an unfinished restore in `to`. Errors of writing the store.
    pub fn from_directory(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<RestoreReport, Error> {
        let (file, path) = open_directory(&*self.source_fs(), from.as_ref())?;
        self.run(BufReader::with_capacity(BLOCK_BYTES, file), &path, to.as_ref())
    }

    /// Restores a backup from a stream into a new store at `to`.
    ///
    /// # Errors
    ///
    /// The same as for [`from_directory`](Self::from_directory).
    pub fn from_reader(mut self, input: impl Read, to: impl AsRef<Path>) -> Result<RestoreReport, Error> {
        let name = self.take_stream_name();
        self.run(input, &name, to.as_ref())
    }

    /// Reads the backup in directory `from` and checks each byte of it; creates no store.
    ///
    /// # Errors
    ///
    /// The errors of [`from_directory`](Self::from_directory) that concern the backup.
    pub fn verify_directory(mut self, from: impl AsRef<Path>) -> Result<BackupReport, Error> {
        let (file, path) = open_directory(&*self.source_fs(), from.as_ref())?;
        let input = BufReader::with_capacity(BLOCK_BYTES, file);
        verify(input, &path, self.key().as_ref(), &mut self.progress)
    }

    /// Reads a backup from a stream and checks each byte of it; creates no store.
    ///
    /// # Errors
    ///
    /// The errors of [`from_directory`](Self::from_directory) that concern the backup.
    pub fn verify_reader(mut self, input: impl Read) -> Result<BackupReport, Error> {
        let name = self.take_stream_name();
        verify(input, &name, self.key().as_ref(), &mut self.progress)
    }

    /// Returns the caller's key, which an encrypted backup needs.
    fn key(&self) -> Option<KeySource> {
        self.builder.as_ref().and_then(|builder| builder.encryption_key.clone())
    }

    fn take_stream_name(&mut self) -> PathBuf {
        self.stream_name.take().unwrap_or_else(|| STREAM.into())
    }

    fn source_fs(&self) -> Arc<dyn Fs> {
        self.fs.clone().unwrap_or_else(|| Arc::new(OsFs::new()))
    }

    fn run(mut self, input: impl Read, source: &Path, to: &Path) -> Result<RestoreReport, Error> {
        let key = self.key();
        let mut rows = Rows::open(input, source, key.as_ref())?; // before any file is created
        rows.unlock()?;
        let header = rows.header();
        self.check_time(header, source)?;
        add_bases(&mut rows, source, self.open_bases()?)?;
        let page_size = self.page_size.unwrap_or(header.page_size as usize);
        let mut builder = self.builder.take().unwrap_or_default().page_size(page_size).create(true);
        (builder.archive, builder.transaction_timeout) = (None, None);
        if self.archive.is_none() {
            builder = builder.with_cache_of_copy(); // a replay of an archive writes rows in any order
        }
        builder.encryption_key.iter_mut().for_each(|source| source.set_new_id_if_empty(rows.key_id()));
        builder.validate()?; // before any file is created
        builder.check_cache(page_size)?;
        let fs = builder.mode_fs();
        let begun = begin(&*fs, to)?;
        builder.restoring = Some(begun.database_id);
        let filled = self.fill(&builder, &mut rows, header, to);
        let (commit_time, replayed_transactions) = filled.inspect_err(|_| free_space(&*fs, to))?;
        finish(&*fs, to)?;
        let backup = BackupReport {
            tables: rows.tables,
            rows: rows.rows,
            bytes: rows.bytes(),
            is_incremental: header.base_id != 0,
        };
        Ok(RestoreReport {
            backup,
            backup_time_ms: header.time_ms,
            commit_time,
            replayed_transactions,
            is_verified: self.verify,
            removed_unfinished: begun.removed_unfinished,
        })
    }

    /// Creates the store, stores all rows in it and closes it. Returns the time of its last commit, if known,
    /// and the number of transactions replayed from the archive.
    fn fill(
        &mut self,
        builder: &Builder,
        rows: &mut Rows<'_>,
        header: Header,
        to: &Path,
    ) -> Result<(Option<CommitTime>, u64), Error> {
        let db = builder.clone().read_only(false).open(to)?;
        let sums = load(&db, rows, &mut self.progress)?;
        if self.verify {
            compare(&db, &sums)?;
        }
        let mut replayed_transactions = 0;
        let mut commit_time = Some(header.commit_time).filter(|&time| time > 0).map(CommitTime::from_micros);
        if let (Some(dir), Some(after)) = (&self.archive, commit_time) {
            let replay = Replay {
                fs: &*self.source_fs(),
                dir,
                database_id: header.database_id,
                from: Lsn(header.lsn + 1),
                position: header.end,
                after,
                to: self.to_time,
                cipher: rows.store_cipher(),
            };
            let tables = sums.iter().map(|sum| (sum.tree, sum.table.name.clone())).collect();
            let (to, transactions) = archive::replay(&db, &replay, tables)?;
            (commit_time, replayed_transactions) = (Some(to), transactions);
        }
        db.close()?;
        drop(db);
        if self.verify {
            check(&builder.clone().read_only(true).open(to)?)?;
        }
        Ok((commit_time, replayed_transactions))
    }

    /// Opens the bases that were set by the caller.
    fn open_bases(&mut self) -> Result<Vec<(Rows<'a>, PathBuf)>, Error> {
        let fs = self.source_fs();
        std::mem::take(&mut self.bases).into_iter().map(|base| base.open(&fs)).collect()
    }

    /// Returns an error if the backup and the archive cannot reach the target time. Runs before any file is
    /// created.
    fn check_time(&self, header: Header, source: &Path) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Invalid(reason));
        self.archive.as_deref().map_or(Ok(()), |dir| refuse_empty(dir, "archive"))?;
        if self.archive.is_none() {
            let is_there = self.to_time.is_none_or(|to| to.as_micros() == header.commit_time);
            let advice = "name it (`archive`, `--archive`)";
            let reason = || format!("a restore to a time needs the log archive of the store; {advice}");
            return if is_there { Ok(()) } else { refuse(reason()) };
        }
        let source = source.display();
        match header.commit_time {
            0 => refuse(format!(
                "{source} has no commit time: it was made of a store that was opened without an archive \
                 (`archive`, `--archive`), or of a durable snapshot; restore it without the archive, or \
                 restore from another backup"
            )),
            time if self.to_time.is_some_and(|to| to.as_micros() < time) => refuse(format!(
                "{source} has commits up to {}: restore to a later time, or from an earlier backup",
                CommitTime::from_micros(time)
            )),
            _ => Ok(()),
        }
    }
}

/// Adds to a backup its base, and the bases of that base, if the caller has set them.
fn add_bases<'r>(rows: &mut Rows<'r>, path: &Path, mut bases: Vec<(Rows<'r>, PathBuf)>) -> Result<(), Error> {
    let (mut oldest, mut path) = (rows.header(), path.to_path_buf());
    while oldest.base_id != 0 {
        let Some(at) = bases.iter().position(|(base, _)| base.header().id == oldest.base_id) else {
            let reason = "is incremental; name the backup that it was made from, too, as its base (`--base`)";
            return Err(Error::NotABackup { path, reason: reason.into() });
        };
        let (mut base, base_path) = bases.swap_remove(at);
        let header = base.header();
        if header.lsn > oldest.lsn {
            let reason = "it is later than the backup that names it as its base".into();
            return Err(Error::Corrupt { path: base_path, offset: 0, reason });
        }
        base.set_store_cipher(rows.store_cipher());
        rows.add_base(base);
        (oldest, path) = (header, base_path);
    }
    Ok(())
}

/// Digest and row count of a table that was loaded.
struct Sum {
    table: TableInfo,
    /// Tree of the table in the source store.
    tree: TreeId,
    rows: u64,
    digest: u32,
}

fn load(db: &Database, rows: &mut Rows<'_>, progress: &mut Callback<'_>) -> Result<Vec<Sum>, Error> {
    let (mut seen, mut sums) = (BackupProgress::default(), Vec::new());
    while let Some(table) = rows.next_table()? {
        seen.table.clone_from(&table.name);
        let tx = db.begin()?;
        tx.set_durability(Durability::Relaxed); // all tables become durable at the end (RESTORE-1)
        tx.create_and_load(&table, &mut |key, value| {
            let next = rows.next_row(key, value)?;
            seen.rows += u64::from(next == Next::Row);
            if report(&mut seen, rows.bytes(), progress) {
                check_interrupt(db.shared().options.interrupt)?;
            }
            Ok(next)
        })?;
        tx.commit()?;
        let (count, digest) = rows.table_sum();
        sums.push(Sum { table, tree: rows.tree, rows: count, digest });
        seen.tables += 1;
    }
    Ok(sums)
}

/// Checks a restored store; returns an error if a page is damaged.
fn check(db: &Database) -> Result<(), Error> {
    let corrupt = |reason| Error::Corrupt { path: db.path().to_path_buf(), offset: 0, reason };
    let report = db.check(&mut |_, _| {})?;
    if let Some(finding) = report.findings.first() {
        let reason = format!("the restored store is damaged at page {}: {}", finding.page, finding.what);
        return Err(corrupt(reason));
    }
    Ok(())
}

/// Compares a store with the tables that were loaded. Large values are read page by page.
fn compare(db: &Database, sums: &[Sum]) -> Result<(), Error> {
    let corrupt = |reason| Error::Corrupt { path: db.path().to_path_buf(), offset: 0, reason };
    let snapshot = db.snapshot()?;
    if !snapshot.tables()?.iter().eq(sums.iter().map(|sum| &sum.table)) {
        return Err(corrupt("the restored store has other tables than the backup".into()));
    }
    for Sum { table, rows: count, digest, .. } in sums {
        let (mut rows, mut crc, mut head) = (0, 0, Vec::new());
        snapshot.table(&TableDefinition::raw(&table.name))?.for_each(.., |row| {
            let value = row.value_ref();
            head.clear();
            put_bytes(&mut head, row.key_bytes());
            put_u64(&mut head, value.len());
            crc = crc32c_append(crc, &head);
            rows += 1;
            value.for_each_piece(|piece| {
                crc = crc32c_append(crc, piece);
                Ok(Continue(()))
            })?;
            Ok(Continue(()))
        })?;
        if (rows, crc) != (*count, *digest) {
            let reason = format!("table {:?} of the restored store differs from the backup", table.name);
            return Err(corrupt(reason));
        }
    }
    Ok(())
}
