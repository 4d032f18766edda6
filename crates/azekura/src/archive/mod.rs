//! The log archive: the committed changes of a store, copied out of its log, for restores to a point in time.
//!
//! An archive is a directory of files ([`format`]). It has the log records of row changes (updates,
//! compensations, commits) and of pages with large values. In a store with an archive, each commit record has
//! a [`CommitTime`].
//!
//! - **ARCHIVE-1** A transaction draws its commit time while it holds all its locks, and times ascend. If a
//!   transaction precedes another one by any dependency, its time is smaller. The transactions up to a time
//!   are therefore a serializable prefix.
//! - **ARCHIVE-2** A commit holds the gate in shared mode from the draw of its time to its end. A snapshot is
//!   opened, and a *horizon* is drawn, with the gate in exclusive mode. So a snapshot has exactly the
//!   transactions up to its time, and the records of all commits up to a horizon are below the LSN that was
//!   read with it.
//! - **ARCHIVE-3** The archive gets only durable records, in LSN order. A block is part of the archive once
//!   the file is synced. Until then the store keeps the log from [`Archive::next_lsn`] on (`keep_lsn` of
//!   CONTROL).
//! - **ARCHIVE-4** In a store with an archive, bulk loads are logged row by row, because the pages of
//!   unlogged loads are not in the log.
//! - **ARCHIVE-5** The archive has the log of one timeline (TIMELINE-1): the end of the archive is on the
//!   timeline of the store that continues it, and the end of a backup is on the timeline of the archive that
//!   is replayed after it.
//! - **ARCHIVE-6** The archive has all records below the end in `end.azk`. A restore to the end of the
//!   archive fails if they are missing.
//! - **ARCHIVE-7** Before the first change of a store with an archive, the store's file `ARCHIVED-TO` gets
//!   the path of the archive. An archive at this path is not created again.
//! - **ARCHIVE-8** One store at a time writes to an archive: an open store holds an exclusive lock of the
//!   empty file `archive.lock`. Two copies of a store that are open at the same time are on the same timeline
//!   at first, so ARCHIVE-5 does not exclude the second.

mod end;
pub(crate) mod format;
mod open;
mod replay;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use azekura_base::page::PageType;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::sync::{Mutex, RwLock, random};
use azekura_base::varint::{put_bytes, put_u64};
use azekura_base::{Cipher, DurableLog, Lsn};
use azekura_btree::{Head, PageOp, Record};
use azekura_io::{File, Fs, OpenOptions};
use azekura_wal::ReplayError;
use azekura_wal::recovery::{self, LogFiles, LogRange};

use self::end::End;
use self::format::{Block, FileHeader, file_name};
pub(crate) use self::open::ArchivedStore;
pub(crate) use self::replay::{Replay, replay};
use crate::control::Control;
use crate::database::Shared;
use crate::encryption::WRAPPED_BYTES;
use crate::restart::WAL_DIR;
use crate::timeline::{Position, Timeline};
use crate::{Builder, Database, Error};

/// Size at which a block of records is written.
const BLOCK_BYTES: usize = 256 << 10;
/// Size at which the archive begins a new file. Files are small, so that they can be copied elsewhere often.
const FILE_BYTES: u64 = 16 << 20;
/// Longest time between a commit and its copy into the archive.
const INTERVAL: Duration = Duration::from_secs(1);
/// Largest number of attempts to read the log while its segments are being renamed.
const MOST_READS: usize = 16;

/// The time of a commit: microseconds since 1970 by the clock of the machine. Each commit of a store with an
/// archive has its own time, and later commits have larger times, even if the clock is set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct CommitTime(u64);

impl CommitTime {
    /// Returns the time of this many microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns this time as microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl From<SystemTime> for CommitTime {
    fn from(time: SystemTime) -> Self {
        let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<CommitTime> for SystemTime {
    fn from(time: CommitTime) -> Self {
        UNIX_EPOCH + Duration::from_micros(time.0)
    }
}

/// The first microsecond of the year 10,000: RFC 3339 has four digits for the year.
const YEAR_10_000: u64 = 253_402_300_800_000_000;

/// Writes the time in RFC 3339, UTC: `2026-11-26T09:30:00.250000Z`.
impl fmt::Display for CommitTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ..YEAR_10_000 => humantime::format_rfc3339_micros(SystemTime::from(*self)).fmt(f),
            late => write!(f, "{late} µs since 1970"),
        }
    }
}

/// The archive file to which blocks are appended.
#[derive(Clone, Debug)]
struct LogFile {
    file: Arc<dyn File>,
    path: PathBuf,
    id: u64,
    sequence: u64,
    end: u64,
    cipher: Option<Arc<dyn Cipher>>,
}

/// The state of the archive on disk.
#[derive(Clone, Debug)]
struct State {
    /// The file to which blocks are appended; `None` if the next block begins a new file.
    file: Option<LogFile>,
    /// LSN below which the archive has all records to be archived.
    next_lsn: Lsn,
    /// Time up to which the archive has all commits.
    horizon: u64,
    /// The position of the last archived LSN; `None` in a new archive.
    position: Option<Position>,
}

/// The keys of an encrypted archive.
#[derive(Debug)]
pub(crate) struct ArchiveKey {
    cipher: Arc<dyn Cipher>,
    /// The wrapped data key, for the headers of new files.
    wrapped: Mutex<Vec<u8>>,
}

impl ArchiveKey {
    /// Returns the keys of a store with this key record.
    pub(crate) fn new(cipher: Arc<dyn Cipher>, record: &[u8]) -> Self {
        Self { cipher, wrapped: Mutex::new(record[..WRAPPED_BYTES].to_vec()) }
    }
}

/// The archive of an open store.
#[derive(Debug)]
pub(crate) struct Archive {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    database_id: u64,
    key: Option<ArchiveKey>,
    timeline: Timeline,
    /// The file `end.azk`.
    end: Arc<dyn File>,
    /// The gate of ARCHIVE-2: shared for commits, exclusive for snapshots and horizons.
    gate: RwLock<()>,
    /// The last commit time that was drawn.
    clock: AtomicU64,
    state: Mutex<State>,
    last_append: Mutex<Instant>,
}

impl Archive {
    /// Returns the first LSN that the archive does not have (ARCHIVE-3).
    pub(crate) fn next_lsn(&self) -> Lsn {
        self.state.lock().next_lsn
    }

    /// Sets the wrapped data key of a key record for the headers of new files, and begins a new file with the
    /// next block, unless the present file has no records.
    #[cfg(feature = "encryption")]
    pub(crate) fn set_key_record(&self, record: &[u8]) {
        if let Some(key) = &self.key {
            let mut state = self.state.lock();
            *key.wrapped.lock() = record[..WRAPPED_BYTES].to_vec();
            // A file without records would be replaced by a new one of the same name, and a crash meanwhile
            // would leave an archive that does not begin at its first LSN.
            let name = self.dir.join(file_name(state.next_lsn));
            state.file.take_if(|file| file.path != name);
        }
    }

    /// Returns a time above all times drawn before.
    fn draw(&self) -> u64 {
        let now = CommitTime::from(SystemTime::now()).0;
        // Relaxed: drawings of dependent transactions are ordered by their locks, and drawings of horizons by
        // the gate.
        let mut last = self.clock.load(Relaxed);
        loop {
            let drawn = now.max(last + 1);
            match self.clock.compare_exchange_weak(last, drawn, Relaxed, Relaxed) {
                Ok(_) => return drawn,
                Err(found) => last = found,
            }
        }
    }

    /// Enters the gate in shared mode for the rest of a commit; returns the guard and the commit's time
    /// (ARCHIVE-2).
    pub(crate) fn commit_gate(&self) -> (impl Drop + '_, u64) {
        let gate = self.gate.read();
        (gate, self.draw())
    }

    /// Runs `moment` while no commit is in progress; returns its result, and a time that separates all
    /// commits so far from all later ones.
    pub(crate) fn between_commits<T>(&self, moment: impl FnOnce() -> T) -> (T, u64) {
        let _gate = self.gate.write();
        (moment(), self.draw())
    }

    /// Copies the log records up to `end` to the archive; those records are durable. They include all commits
    /// up to `horizon`; if it is `None`, the horizon is the last commit found. If there is nothing to copy, a
    /// horizon is written only if `is_forced`.
    pub(crate) fn append(
        &self,
        wal_dir: &Path,
        ranges: &[LogRange],
        end: Lsn,
        horizon: Option<u64>,
        is_forced: bool,
    ) -> Result<(), Error> {
        let mut state = self.state.lock();
        *self.last_append.lock() = Instant::now();
        if end < state.next_lsn && !is_forced {
            return Ok(());
        }
        let mut ranges = ranges.to_vec();
        if let Some(last) = ranges.last_mut().filter(|last| last.last_lsn.is_none()) {
            last.last_lsn = Some(end);
        }
        for read in 1.. {
            let mut next = state.clone();
            match self.copy(&mut next, wal_dir, &ranges, end, horizon) {
                Ok(()) => {
                    *state = next;
                    break;
                }
                // A prepared segment got its final name between the listing and the opening.
                Err(ReplayError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && read < MOST_READS => {}
                Err(error) => return Err(error.into()),
            }
        }
        // Relaxed: as in `draw`.
        self.clock.fetch_max(state.horizon, Relaxed);
        self.write_end(&state)
    }

    fn copy(
        &self,
        state: &mut State,
        wal_dir: &Path,
        ranges: &[LogRange],
        end: Lsn,
        horizon: Option<u64>,
    ) -> Result<(), ReplayError<Error>> {
        let at_end = |source| ReplayError::Apply { lsn: end, source };
        let file = match state.file.take().filter(|file| file.end < FILE_BYTES) {
            Some(file) => file,
            None => self.create_file(state).map_err(at_end)?,
        };
        let file = state.file.insert(file);
        let (old_horizon, mut newest) = (state.horizon, state.horizon);
        let mut records = Vec::new();
        // The LSN up to which blocks are written, and the position of the record before.
        let mut done = Lsn(state.next_lsn.0 - 1);
        let mut at = self.timeline.position(done);
        let mut each = |lsn: Lsn, body: &[u8]| {
            let here = self.timeline.position(lsn);
            if here.run != at.run {
                // A block ends with its run.
                let position = self.timeline.position(Lsn(here.run.0 - 1));
                if position.lsn > done {
                    done = position.lsn;
                    let records = std::mem::take(&mut records);
                    file.write(&Block { to: done, horizon: old_horizon, position, records })?;
                }
            }
            at = here;
            let record = Record::decode(body).map_err(|error| bad_record(wal_dir, lsn, &error))?;
            if let Head::Commit { time, .. } = record.head {
                newest = newest.max(time);
            }
            if is_wanted(&record) {
                put_u64(&mut records, lsn.0);
                put_bytes(&mut records, body);
            }
            if records.len() >= BLOCK_BYTES {
                let records = std::mem::take(&mut records);
                file.write(&Block { to: lsn, horizon: old_horizon, position: here, records })?;
                done = lsn;
            }
            Ok(())
        };
        if end >= state.next_lsn {
            let (fs, database_id) = (&*self.fs, self.database_id);
            let cipher = self.key.as_ref().map(|key| &*key.cipher);
            let files = LogFiles { fs, dir: wal_dir, database_id, cipher };
            recovery::replay_durable(files, ranges, state.next_lsn, None, &mut each)?;
        }
        state.horizon = horizon.unwrap_or(newest).max(old_horizon);
        let to = end.max(Lsn(state.next_lsn.0 - 1));
        let position = self.timeline.position(to);
        file.write(&Block { to, horizon: state.horizon, position, records }).map_err(at_end)?;
        file.file.sync().map_err(|e| at_end(Error::io("sync", &file.path, e)))?;
        (state.next_lsn, state.position) = (to.next(), Some(position));
        Ok(())
    }

    /// Writes the end of the archive into `end.azk`. The records below it are durable.
    fn write_end(&self, state: &State) -> Result<(), Error> {
        let end = End { database_id: self.database_id, next_lsn: state.next_lsn, horizon: state.horizon };
        end.write(&*self.end).map_err(|e| Error::io("write", &End::path(&self.dir), e))
    }

    fn create_file(&self, state: &State) -> Result<LogFile, Error> {
        let path = self.dir.join(file_name(state.next_lsn));
        let header = FileHeader {
            id: random(),
            database_id: self.database_id,
            first_lsn: state.next_lsn,
            horizon: state.horizon,
            position: self.timeline.position(Lsn(state.next_lsn.0 - 1)),
            wrapped_key: self.key.as_ref().map_or_else(Vec::new, |key| key.wrapped.lock().clone()),
        };
        let file = self.fs.open(&path, OpenOptions::new().create(true));
        let file = file.map_err(|e| Error::io("create", &path, e))?;
        file.set_len(0).map_err(|e| Error::io("truncate", &path, e))?;
        let bytes = header.encode();
        file.write_at(0, &bytes).map_err(|e| Error::io("write", &path, e))?;
        file.sync().map_err(|e| Error::io("sync", &path, e))?;
        self.fs.sync_dir(&self.dir).map_err(|e| Error::io("sync", &self.dir, e))?;
        let cipher = self.key.as_ref().map(|key| Arc::clone(&key.cipher));
        Ok(LogFile { file, path, id: header.id, sequence: 0, end: bytes.len() as u64, cipher })
    }
}

impl LogFile {
    fn write(&mut self, block: &Block) -> Result<(), Error> {
        let bytes = block.encode(self.id, self.sequence, self.cipher.as_deref());
        let bytes = bytes.map_err(|e| Error::io("encrypt a block of", &self.path, e))?;
        self.file.write_at(self.end, &bytes).map_err(|e| Error::io("write", &self.path, e))?;
        self.sequence += 1;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Returns whether a restore needs the record.
fn is_wanted(record: &Record<'_>) -> bool {
    match record.head {
        Head::Update { .. } | Head::Compensate { .. } | Head::Commit { .. } => true,
        Head::System => record.ops().any(|op| op.is_ok_and(|(_, op)| is_large_value(&op))),
        Head::End { .. } | Head::FreeStep { .. } | Head::Carry { .. } => false,
    }
}

/// Returns whether the operation writes a page of a large value.
fn is_large_value(op: &PageOp<'_>) -> bool {
    matches!(op, PageOp::Image { kind, .. } if kind[0] == PageType::Overflow as u8)
}

fn bad_record(path: &Path, lsn: Lsn, reason: &dyn fmt::Display) -> Error {
    Error::Corrupt { path: path.into(), offset: 0, reason: format!("log record {lsn}: {reason}") }
}

impl Builder {
    /// Sets the directory of the log archive; default none. The store copies its committed changes there,
    /// about once per second, so that [`Restore::archive`](crate::Restore::archive) can continue from a
    /// backup to any later point in time. Set it in each opening: a run without it leaves a gap, and restores
    /// beyond the gap need a later backup. With an archive, bulk loads are logged row by row. Put the archive
    /// on another device than the store. If it cannot be written, the store keeps its log and continues.
    ///
    /// ```
    /// use azekura::{Database, Error, Restore, TableDefinition};
    /// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let at = |name: &str| dir.path().join(name);
    /// let db = Database::builder().archive(at("archive")).open(at("shop.azk"))?;
    /// db.backup().to_directory(at("monday"))?;
    /// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &7))?;
    /// let before = db.archive_log()?;
    /// db.transact(|tx| tx.table(&STOCK)?.remove("rice"))?; // a mistake
    /// db.archive_log()?;
    ///
    /// Restore::new().archive(at("archive")).to_time(before).from_directory(at("monday"), at("new.azk"))?;
    /// let copy = Database::open(at("new.azk"))?;
    /// assert_eq!(copy.read(|s| s.table(&STOCK)?.get("rice"))?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn archive(mut self, directory: impl Into<PathBuf>) -> Self {
        self.archive = Some(directory.into());
        self
    }
}

impl Database {
    /// Copies all commits that have returned to the [archive](crate::Builder::archive), and returns a time
    /// that separates them from later commits. A restore [to this time](crate::Restore::to_time) has exactly
    /// those commits. The store archives commits automatically about once per second. Call this function
    /// before a step that may have to be reverted.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the store has no archive. [`Error::Io`]: the archive cannot be written; the error
    /// names the file. [`Error::Log`]: the log cannot be written.
    pub fn archive_log(&self) -> Result<CommitTime, Error> {
        let shared = self.owners().enter()?;
        let none = "the store has no archive; open it with `archive` (`--archive`)";
        shared.archive_now(true)?.ok_or_else(|| Error::Invalid(none.into()))
    }
}

impl Shared {
    /// Archives all commits; returns a time as [`Database::archive_log`] does.
    pub(crate) fn archive_now(&self, is_forced: bool) -> Result<Option<CommitTime>, Error> {
        let control = self.control.change();
        self.archive_with(&control.current(), is_forced)
    }

    /// Archives all commits as [`archive_now`](Self::archive_now) does, for a caller that has locked CONTROL,
    /// so that the log is not trimmed meanwhile.
    pub(crate) fn archive_with(
        &self,
        control: &Control,
        is_forced: bool,
    ) -> Result<Option<CommitTime>, Error> {
        let Some(archive) = &self.archive else { return Ok(None) };
        let (mut end, time) = archive.between_commits(|| Lsn(self.wal.next_lsn().0 - 1));
        if self.wal.has_begun() {
            self.wal.make_durable(end)?;
        } else {
            end = Lsn(archive.next_lsn().0 - 1); // nothing was logged since the store was opened
        }
        archive.append(&self.path.join(WAL_DIR), &control.ranges, end, Some(time), is_forced)?;
        Ok(Some(CommitTime(time)))
    }

    /// Archives new commits if the last copy is at least [`INTERVAL`] old.
    pub(crate) fn archive_if_due(&self) -> Result<(), Error> {
        let is_due = |archive: &Archive| archive.last_append.lock().elapsed() >= INTERVAL;
        if self.archive.as_ref().is_some_and(is_due) { self.archive_now(false).map(drop) } else { Ok(()) }
    }

    /// Returns whether there is something to archive.
    pub(crate) fn is_archive_behind(&self) -> bool {
        let is_behind = |archive: &Archive| archive.next_lsn() < self.wal.next_lsn();
        self.wal.has_begun() && self.archive.as_ref().is_some_and(is_behind)
    }

    /// Returns the lowest LSN that a restart or the archive needs; the log is kept from there on (ARCHIVE-3).
    pub(crate) fn keep_lsn(&self, scan_lsn: Lsn) -> Lsn {
        self.archive.as_ref().map_or(scan_lsn, |archive| archive.next_lsn().min(scan_lsn))
    }
}
