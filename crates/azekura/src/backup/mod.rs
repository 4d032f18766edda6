//! Backup: the rows of one snapshot, written while transactions run; and restore into a new store.
//!
//! A backup has the state of a snapshot, which is a serializable prefix of the commits
//! ([decision 032](https://github.com/azekura/azekura/blob/main/docs/decisions/032-logical-backup.md)).
//!
//! - **BACKUP-1** A backup in a directory gets its final name only when it is complete and durable. A backup
//!   in a stream is complete if it has its end block. A restore refuses an incomplete backup.
//! - **BACKUP-2** A backup has durable commits only: it is not complete before the log is durable up to the
//!   last record that the snapshot can see.
//! - **BACKUP-3** If a leaf's page LSN is at or below the all-visible LSN of the base's snapshot, the leaf
//!   has the same rows and fences as in that snapshot. It has no change of a transaction that the base lacks,
//!   and no later change. An incremental backup keeps the base's rows between the fences of such leaves.
//! - **BACKUP-4** A restore finds a table of the base by its name. So a table that has another name in the
//!   base is copied whole.
//! - **BACKUP-5** A read-only opening of a store that was not closed recovers it in memory: the store does
//!   not get the records of the undo. The backup ends before these records, and lacks the changes that were
//!   undone. So an incremental backup copies the leaves of these changes, also if its store is the one of
//!   which the opened store is a copy, and the transactions have committed there.
//! - **BACKUP-6** The end of a backup is a durable position at or above all changes in the backup. So a store
//!   that has the end on its timeline (TIMELINE-1) has all these changes, also those that are later than the
//!   first change of an open transaction.
//! - **RESTORE-1** From the first durable file of a new store to the end of its restore, its directory has
//!   the file `RESTORING`. A store with this file does not open. The restore removes the file after it has
//!   closed the store. While the restore runs, it holds an exclusive lock of the file.

mod compact;
pub(crate) mod format;
mod pace;
mod restore;
mod rows;
mod source;
mod unfinished;

use std::collections::HashMap;
use std::fmt;
use std::io::{BufWriter, Read, Write};
use std::ops::ControlFlow::Continue;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use azekura_base::checksum::crc32c_append;
use azekura_base::sync::random;
use azekura_base::varint::{put_bytes, put_u64};
use azekura_base::{DurableLog, Lsn, TreeId};
use azekura_io::{Fs, OpenOptions, OsFs, file_exists};

pub use self::compact::{CompactReport, Compaction};
use self::format::{BLOCK_BYTES, Block, Header, Kept, Writer};
use self::pace::Pace;
pub use self::restore::{Restore, RestoreReport};
use self::rows::Rows;
pub(crate) use self::source::Sequential;
use self::source::Source;
pub(crate) use self::unfinished::{RESTORING_NAME, refuse_unfinished};
use crate::database::Shared;
use crate::encryption::KeySource;
use crate::location::{create_directory, refuse_empty, refuse_inside_store};
use crate::transaction::Next;
use crate::value_ref::ValueRef;
use crate::{CommitTime, Database, Error, Snapshot, TableInfo};

/// Name of the backup's file in its directory.
const BACKUP_NAME: &str = "backup.azk";
/// Name of the backup's file before it is complete.
const UNFINISHED_NAME: &str = "backup.azk.new";
/// Default name of a stream in errors.
const STREAM: &str = "backup stream";

/// Progress of a backup, restore, verification or compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// Name of the table that is being copied.
    pub table: String,
    /// Number of tables copied so far, without the present one.
    pub tables: u64,
    /// Number of rows copied so far.
    pub rows: u64,
    /// Bytes of the backup written or read so far; for a compaction, bytes of the rows copied.
    pub bytes: u64,
}

/// Contents of a complete backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BackupReport {
    /// Number of tables.
    pub tables: u64,
    /// Number of rows. An incremental backup does not count the rows that it keeps of its base.
    pub rows: u64,
    /// Size of the backup in bytes.
    pub bytes: u64,
    /// `true` if the rows that did not change are in an earlier backup ([`Backup::since`]).
    pub is_incremental: bool,
}

type Callback<'a> = Option<Box<dyn FnMut(&BackupProgress) + 'a>>;
/// A callback that stops the backup by an error.
type StoppingCallback<'a> = Option<Box<dyn FnMut(&BackupProgress) -> Result<(), Error> + 'a>>;

/// Settings of a backup, returned by [`Database::backup`].
pub struct Backup<'a> {
    db: &'a Database,
    snapshot: Option<&'a Snapshot>,
    fs: Option<Arc<dyn Fs>>,
    since: Option<Source<'a>>,
    stream_name: Option<PathBuf>,
    bytes_per_second: Option<u64>,
    progress: StoppingCallback<'a>,
}

impl fmt::Debug for Backup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup").field("bytes_per_second", &self.bytes_per_second).finish_non_exhaustive()
    }
}

impl Database {
    /// Makes a backup of all tables while transactions run: see [`Backup::to_directory`] and
    /// [`Backup::to_writer`]. A backup takes no lock and blocks no transaction.
    ///
    /// A backup has every commit that returned before it began, and no transaction that began its commit
    /// later. [`Restore`] creates a store from it.
    ///
    /// ```
    /// use azekura::{Database, Error, Restore, TableDefinition};
    ///
    /// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let dir = std::env::temp_dir().join(format!("azekura-backup-{}", std::process::id()));
    /// let db = Database::in_memory()?;
    /// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
    /// db.backup().to_directory(dir.join("monday"))?;
    ///
    /// Restore::new().from_directory(dir.join("monday"), dir.join("shop.azk"))?;
    /// let copy = Database::open(dir.join("shop.azk"))?;
    /// assert_eq!(copy.read(|s| s.table(&STOCK)?.get("rice"))?, Some(7));
    /// # drop(copy);
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn backup(&self) -> Backup<'_> {
        Backup {
            db: self,
            snapshot: None,
            fs: None,
            since: None,
            stream_name: None,
            bytes_per_second: None,
            progress: None,
        }
    }
}

impl<'a> Backup<'a> {
    /// Copies the state of this snapshot instead of the current state. A [durable
    /// snapshot](Database::durable_snapshot) may have no commit time, which [`Restore::archive`] needs.
    #[must_use]
    pub fn snapshot(mut self, snapshot: &'a Snapshot) -> Self {
        self.snapshot = Some(snapshot);
        self
    }

    /// Makes an incremental backup. It has the rows of the pages that were changed since the backup in this
    /// directory, the base. The base is needed for a restore ([`Restore::base`]) and may be incremental, too.
    /// An incremental backup reads all leaves of the store and writes only changed ones. It has all rows of a
    /// table that was renamed since the base. If a table was created, renamed or dropped since the base, the
    /// whole base is read. If the store was replaced by an older copy of its directory after the base was
    /// made, the result is [`Error::OtherHistory`]: make a full backup instead.
    #[must_use]
    pub fn since(mut self, base: impl Into<PathBuf>) -> Self {
        self.since = Some(Source::Directory(base.into()));
        self
    }

    /// Makes an incremental backup as [`since`](Self::since) does, but reads the base from a stream. Usually
    /// only its header is read. Errors name the base by `name`.
    #[must_use]
    pub fn since_reader(mut self, name: impl Into<PathBuf>, base: impl Read + 'a) -> Self {
        self.since = Some(Source::Stream(name.into(), Box::new(base)));
        self
    }

    /// Sets the name of the stream of [`to_writer`](Self::to_writer) in errors, such as the URL of an object;
    /// default: `backup stream`.
    #[must_use]
    pub fn stream_name(mut self, name: impl Into<PathBuf>) -> Self {
        self.stream_name = Some(name.into());
        self
    }

    /// Returns the size of all files of the store: a rough estimate of the size of a full backup. Returns 0
    /// if the size cannot be read.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        compact::file_bytes(&*self.db.shared().options.fs, self.db.path()).unwrap_or(0)
    }

    /// Limits the bytes that are written per second; `u64::MAX` is unlimited. By default, the backup uses at
    /// most a twentieth of the time of all processors while transactions change rows, and otherwise runs as
    /// fast as it can, also while row versions take more than half of their memory. A slow backup keeps its
    /// snapshot open for longer ([`Builder::version_bytes`](crate::Builder::version_bytes)).
    #[must_use]
    pub const fn rate_limit(mut self, bytes_per_second: u64) -> Self {
        self.bytes_per_second = Some(bytes_per_second);
        self
    }

    /// Calls `progress` after each block of about 256 KiB.
    #[must_use]
    pub fn progress(self, mut progress: impl FnMut(&BackupProgress) + 'a) -> Self {
        self.try_progress(move |seen| {
            progress(seen);
            Ok(())
        })
    }

    /// Calls `progress` as [`progress`](Self::progress) does. If `progress` returns an error, the backup
    /// stops and returns this error.
    #[must_use]
    pub fn try_progress(mut self, progress: impl FnMut(&BackupProgress) -> Result<(), Error> + 'a) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets the file system of [`to_directory`](Self::to_directory) and [`since`](Self::since); default: the
    /// operating system's.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn Fs>) -> Self {
        self.fs = Some(fs);
        self
    }

    /// Writes the backup to a directory, which is created if it is missing, and makes it durable. If the
    /// backup fails, an empty file remains, and if the process is killed, an incomplete one; [`Restore`]
    /// refuses it, and the next backup to this directory replaces it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the directory holds a backup, another backup writes to it, it is the directory of
    /// a store or inside one, or the rate is 0. [`Error::SnapshotTooOld`]: writers replaced more than
    /// [`Builder::version_bytes`](crate::Builder::version_bytes) while the backup ran. [`Error::Io`]: a file
    /// cannot be written. Errors of reading pages.
    pub fn to_directory(self, path: impl AsRef<Path>) -> Result<BackupReport, Error> {
        let path = path.as_ref();
        refuse_empty(path, "backup")?;
        let fs = self.fs.clone().unwrap_or_else(|| Arc::new(OsFs::with_file_mode(0o600)));
        let (unfinished, complete) = (path.join(UNFINISHED_NAME), path.join(BACKUP_NAME));
        let refuse = |reason: &str| Err(Error::Invalid(format!("{} {reason}", path.display())));
        let has_file = |file: &Path| file_exists(&*fs, file).map_err(|e| Error::io("open", file, e));
        let is_taken = "holds a backup already; name another directory, or remove that backup first";
        if has_file(&complete)? {
            return refuse(is_taken);
        }
        refuse_inside_store(&*fs, path, "backup")?;
        create_directory(&*fs, path, "backup")?;
        // Two backups that write the same file would both report success for a damaged backup.
        let held = fs.lock_exclusive(&unfinished).map_err(|e| Error::io("lock", &unfinished, e))?;
        let Some(_lock) = held else {
            return refuse("is the destination of a running backup; wait for it, or name another directory");
        };
        if has_file(&complete)? {
            // The backup that held the lock has finished since the first check.
            let _ = fs.remove_file(&unfinished); // best effort: the file is empty
            return refuse(is_taken);
        }
        let options = OpenOptions::new().create(true);
        let file = fs.open(&unfinished, options).map_err(|e| Error::io("create", &unfinished, e))?;
        file.set_len(0).map_err(|e| Error::io("truncate", &unfinished, e))?;
        let out = BufWriter::with_capacity(BLOCK_BYTES, Sequential { file: Arc::clone(&file), at: 0 });
        let written = self.write(out, &unfinished).and_then(|report| {
            file.sync().map_err(|e| Error::io("sync", &unfinished, e))?;
            Ok(report)
        });
        let report = written.inspect_err(|_| {
            // The store may have no space because of this file. Best effort.
            let _ = file.set_len(0);
        })?;
        fs.rename(&unfinished, &complete).map_err(|e| Error::io("rename", &unfinished, e))?;
        if let Err(error) = fs.sync_dir(path) {
            // BACKUP-1: after a failed sync, a later sync does not guarantee that the name is durable. Best
            // effort.
            let _ = fs.remove_file(&complete);
            return Err(Error::io("sync", path, error));
        }
        Ok(report)
    }

    /// Writes the backup to a stream, such as a pipe or a socket, and flushes it. [`Restore`] refuses a
    /// stream that ends early.
    ///
    /// # Errors
    ///
    /// The same as for [`to_directory`](Self::to_directory); [`Error::Io`] has the error of the stream.
    pub fn to_writer(mut self, out: impl Write) -> Result<BackupReport, Error> {
        let name = self.stream_name.take().unwrap_or_else(|| STREAM.into());
        self.write(out, &name)
    }

    fn write(mut self, out: impl Write, path: &Path) -> Result<BackupReport, Error> {
        if self.bytes_per_second == Some(0) {
            return Err(Error::Invalid("the rate limit of a backup must be greater than 0".into()));
        }
        let opened;
        let snapshot = match self.snapshot {
            Some(snapshot) => snapshot,
            None => {
                opened = self.db.snapshot()?;
                &opened
            }
        };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base = self.base(snapshot)?;
        let shared = self.db.shared();
        let mut last = Lsn(shared.wal.next_lsn().0 - 1);
        if shared.wal.has_begun() {
            // BACKUP-6. If the log has failed, BACKUP-2 decides.
            let _ = shared.wal.make_durable(last);
        }
        last = last.min(shared.wal.durable_lsn());
        let mut visible = snapshot.all_visible_lsn();
        if shared.options.read_only {
            // BACKUP-5
            last = last.min(shared.timeline.end_of_past());
            visible = visible.min(shared.recovery.first_undone.map_or(Lsn::MAX, |first| Lsn(first.0 - 1)));
        }
        let end = shared.timeline.position(last);
        // A transaction that this backup lacks has changed nothing up to the LSN of the base.
        let lsn = visible.min(end.lsn).max(Lsn(base.as_ref().map_or(0, |base| base.header.lsn)));
        let header = Header {
            page_size: u32::try_from(self.db.page_size()).unwrap_or(u32::MAX),
            id: random(),
            time_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            database_id: shared.control.current().database_id,
            commit_time: snapshot.commit_time().map_or(0, CommitTime::as_micros),
            lsn: lsn.0,
            end: Some(end),
            base_id: base.as_ref().map_or(0, |base| base.header.id),
        };
        let record = shared.control.current().key_record.clone();
        let mut copy = Copy {
            out: Writer::begin(out, path, header, shared.cipher().map(|cipher| (&record[..], cipher)))?,
            pace: Pace::new(shared, self.bytes_per_second),
            seen: BackupProgress::default(),
            base,
            progress: self.progress.take(),
        };
        for (table, tree) in snapshot.tables_and_trees()? {
            copy.table(snapshot, table, tree)?;
        }
        snapshot.wait_durable()?;
        let BackupProgress { tables, rows, .. } = copy.seen;
        copy.block(&Block::End { tables, rows })?;
        let bytes = copy.out.bytes;
        copy.out.finish()?;
        Ok(BackupReport { tables, rows, bytes, is_incremental: header.base_id != 0 })
    }

    /// Returns the base of an incremental backup.
    fn base(&mut self, snapshot: &Snapshot) -> Result<Option<Base>, Error> {
        let Some(since) = self.since.take() else { return Ok(None) };
        let fs = self.fs.clone().unwrap_or_else(|| Arc::new(OsFs::new()));
        let shared = self.db.shared();
        let (mut rows, path) = since.open(&fs)?; // reads only the header of the base
        let header = rows.header();
        let is_of_this = header.database_id == shared.control.current().database_id;
        if is_of_this {
            require_history(header, &path, shared)?;
        }
        if !is_of_this || header.lsn > snapshot.all_visible_lsn().0 {
            let what = if is_of_this { "a later state of this store" } else { "another store" };
            let path = path.display();
            return Err(Error::Invalid(format!(
                "{path} is a backup of {what}; name an earlier one of this store"
            )));
        }
        let names = if snapshot.has_catalog_changed_since(Lsn(header.lsn))? {
            rows.set_store_cipher(shared.cipher()); // the caller's key may have been another one
            Some(rows.names()?)
        } else {
            None
        };
        Ok(Some(Base { header, names }))
    }
}

/// The base of an incremental backup.
struct Base {
    header: Header,
    /// The names of the base's tables; `None` if they are those of the snapshot.
    names: Option<HashMap<TreeId, String>>,
}

impl Base {
    /// Returns the page LSN up to which the leaves of a table are unchanged since the base; `None` if the
    /// table has another name in the base (BACKUP-4).
    fn unchanged_lsn(&self, table: &TableInfo, tree: TreeId) -> Option<Lsn> {
        let has_name = |names: &HashMap<TreeId, String>| names.get(&tree) == Some(&table.name);
        self.names.as_ref().is_none_or(has_name).then_some(Lsn(self.header.lsn))
    }
}

/// Returns an error if the base of an incremental backup is not on the store's timeline (TIMELINE-1).
fn require_history(base: Header, path: &Path, shared: &Shared) -> Result<(), Error> {
    match base.end {
        Some(position) => {
            let store = (&*shared.options.fs, &*shared.path);
            shared.timeline.require(position, path, store, "make a full backup")
        }
        None => Err(Error::OtherHistory {
            path: path.into(),
            store: shared.path.clone(),
            reason: "it has an old format, which does not record the run of the store; make a full backup"
                .into(),
        }),
    }
}

/// A backup in progress.
struct Copy<'a, W> {
    out: Writer<W>,
    pace: Pace<'a>,
    base: Option<Base>,
    seen: BackupProgress,
    progress: StoppingCallback<'a>,
}

impl<W: Write> Copy<'_, W> {
    fn table(&mut self, snapshot: &Snapshot, table: TableInfo, tree: TreeId) -> Result<(), Error> {
        let mut leaves = snapshot.leaves(&table.name, tree)?;
        let since = self.base.as_ref().and_then(|base| base.unchanged_lsn(&table, tree));
        self.seen.table.clone_from(&table.name);
        self.block(&Block::Table(table, tree))?;
        let (mut block, mut digest, mut count) = (Vec::new(), 0, 0);
        let mut kept: Option<Kept> = None;
        loop {
            let from = leaves.position().map(<[u8]>::to_vec);
            let Some(newest) = leaves.advance()? else { break };
            let to = leaves.position().map(<[u8]>::to_vec);
            if since.is_some_and(|since| newest <= since) {
                // BACKUP-3: the leaf is unchanged, so its range of keys is kept.
                self.flush(&mut block)?;
                kept.get_or_insert(Kept { from: from.unwrap_or_default(), to: None }).to = to;
                continue;
            }
            if let Some(kept) = kept.take() {
                self.block(&Block::Kept(kept))?;
            }
            for i in 0..leaves.len() {
                let (key, value) = leaves.row(i)?;
                let at = block.len();
                put_bytes(&mut block, key);
                put_u64(&mut block, value.len());
                block.extend_from_slice(value.as_slice().unwrap_or_default());
                digest = crc32c_append(digest, &block[at..]);
                if value.as_slice().is_none() {
                    self.large(&value, &mut block, &mut digest)?;
                }
                if block.len() >= BLOCK_BYTES {
                    self.flush(&mut block)?;
                }
                count += 1;
                self.seen.rows += 1;
            }
        }
        self.flush(&mut block)?;
        if let Some(kept) = kept {
            self.block(&Block::Kept(kept))?;
        }
        self.block(&Block::TableEnd { rows: count, digest })?;
        self.seen.tables += 1;
        Ok(())
    }

    /// Writes a large value. `block` has the beginning of its row, and is empty at the end if the value did
    /// not fit into it.
    fn large(&mut self, value: &ValueRef<'_>, block: &mut Vec<u8>, digest: &mut u32) -> Result<(), Error> {
        let mut is_cut = false;
        value.for_each_piece(|piece| {
            *digest = crc32c_append(*digest, piece);
            block.extend_from_slice(piece);
            match block.len() >= BLOCK_BYTES {
                true if is_cut => self.block(&Block::Piece(std::mem::take(block)))?,
                true => self.flush(block)?,
                false => return Ok(Continue(())),
            }
            is_cut = true;
            Ok(Continue(()))
        })?;
        if is_cut && !block.is_empty() {
            self.block(&Block::Piece(std::mem::take(block)))?;
        }
        Ok(())
    }

    /// Writes rows as a block.
    fn flush(&mut self, rows: &mut Vec<u8>) -> Result<(), Error> {
        if rows.is_empty() { Ok(()) } else { self.block(&Block::Rows(std::mem::take(rows))) }
    }

    fn block(&mut self, block: &Block) -> Result<(), Error> {
        self.out.block(block)?;
        self.seen.bytes = self.out.bytes;
        if let Some(progress) = &mut self.progress {
            progress(&self.seen)?;
        }
        self.pace.pause(self.out.bytes)
    }
}

/// Reads a whole backup and checks it.
fn verify(
    input: impl Read,
    path: &Path,
    key: Option<&KeySource>,
    progress: &mut Callback<'_>,
) -> Result<BackupReport, Error> {
    let mut rows = Rows::open(input, path, key)?;
    let mut seen = BackupProgress::default();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    while let Some(table) = rows.next_table()? {
        seen.table = table.name;
        loop {
            match rows.next_row(&mut key, &mut value)? {
                Next::Row => seen.rows += 1,
                Next::Part => {}
                Next::End => break,
            }
            report(&mut seen, rows.bytes(), progress);
            key.clear();
            value.clear();
        }
        seen.tables += 1;
    }
    let is_incremental = rows.header().base_id != 0;
    Ok(BackupReport { tables: rows.tables, rows: rows.rows, bytes: rows.bytes(), is_incremental })
}

/// Reports progress if a block was read or written since the last report; returns `true` in that case.
fn report(seen: &mut BackupProgress, bytes: u64, progress: &mut Callback<'_>) -> bool {
    let is_new = seen.bytes != bytes;
    seen.bytes = bytes;
    if let Some(progress) = progress.as_mut().filter(|_| is_new) {
        progress(seen);
    }
    is_new
}
