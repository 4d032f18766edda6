//! Settings of a store, chosen at open; the defaults need no tuning.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use azekura_base::page;
use azekura_btree::VersionPart;
use azekura_buffer::page_file::PageAccess;
#[cfg(feature = "far")]
use azekura_far::{AuthKey, FarCache};
use azekura_io::{Fs, MemFs, OsFs, OverlayFs};
use azekura_wal::lsn_range::MAX_RANGE;
use azekura_wal::{LogProtocol, MAX_LOG_BUFFERS, WalOptions, default_stream_count};

use crate::left_out::LeftOut;
use crate::location::absolute;
use crate::memory_limit::{CacheCapacity, default_log_buffers, memory_limit};
use crate::restart::FIRST_SEGMENT_BYTES;
use crate::{Database, Error};

/// The condition on which a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// `commit` returns once the transaction survives power loss.
    #[default]
    Immediate,
    /// `commit` returns at once; the next flush makes it durable, within milliseconds. A crash may lose the
    /// newest transactions, but never a part of one, or one on which a durable transaction depends.
    Relaxed,
}

/// Settings for opening a store; returned by [`Database::builder`]. Most programs need no settings.
///
/// | setting | default | change it when |
/// |---|---|---|
/// | **opening** | | |
/// | [`create`](Self::create) | yes | a missing store is a mistake |
/// | [`read_only`](Self::read_only) | no | several processes read, or the disk is read-only |
/// | [`file_mode`](Self::file_mode) | 0600 | other users read the files |
/// | [`page_size`](Self::page_size) | 8 KiB | keys are longer than 2 KiB (a quarter of a page) |
/// | [`file_system`](Self::file_system) | the system's | tests inject faults |
/// | `encryption_key`, `encryption_key_source` | none | others can read the files; feature `encryption` |
/// | [`archive`](Self::archive) | none | a restore must reach any point in time |
/// | **memory** | | |
/// | [`memory_bytes`](Self::memory_bytes) | none | the store must use no more memory than this |
/// | [`cache_bytes`](Self::cache_bytes) | an eighth of the memory | rows in use do not fit |
/// | [`version_bytes`](Self::version_bytes) | a quarter of the cache | a snapshot becomes too old |
/// | [`undo_bytes`](Self::undo_bytes) | a quarter of the process's memory | long transactions fail |
/// | [`direct_pages`](Self::direct_pages) | no | the cache should be the only copy in memory |
/// | **durability** | | |
/// | [`durability`](Self::durability) | `Immediate` | a crash may lose the last milliseconds |
/// | [`log_sync_interval`](Self::log_sync_interval) | none | only a power loss may lose commits |
/// | [`recovery_time`](Self::recovery_time) | 2 s | a restart may take longer: fewer page writes |
/// | [`close_time`](Self::close_time) | none | a close must not take longer; the next opening does |
/// | **transactions** | | |
/// | [`lock_timeout`](Self::lock_timeout) | none | a waiting call should fail instead |
/// | [`interrupt`](Self::interrupt) | none | a signal should end waits and long calls |
/// | [`transaction_timeout`](Self::transaction_timeout) | none | clients leave transactions open |
/// | [`retry_limit`](Self::retry_limit) | 10,000 runs, 30 s | `transact` should give up earlier |
/// | **threads and log** | | |
/// | [`background`](Self::background) | yes | a run has to be deterministic |
/// | [`redo_threads`](Self::redo_threads) | cores, at least 8 | recovery should leave cores to others |
/// | [`log_buffers`](Self::log_buffers), [`wal_streams`](Self::wal_streams) | automatic | you measured it |
/// | [`wal_segment_bytes`](Self::wal_segment_bytes) | 16 MiB | log files should be smaller |
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error};
/// # fn main() -> Result<(), Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Database::builder()
///     .cache_bytes(64 << 20)
///     .lock_timeout(std::time::Duration::from_secs(5))
///     .open(dir.path().join("shop.azk"))?;
/// # db.close()
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) page_size: usize,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cache: CacheCapacity,
    pub(crate) undo_bytes: Option<u64>,
    pub(crate) version_bytes: Option<u64>,
    pub(crate) page_access: PageAccess,
    pub(crate) protocol: LogProtocol,
    pub(crate) log_buffers: Option<usize>,
    streams: Option<usize>,
    pub(crate) lsn_range: u32,
    pub(crate) logged_value_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) first_segment_bytes: u64,
    pub(crate) durability: Durability,
    pub(crate) log_sync_interval: Option<Duration>,
    pub(crate) create: bool,
    pub(crate) read_only: bool,
    pub(crate) restoring: Option<u64>, // the id of a new store that is opened by a restore
    background: bool,
    pub(crate) recovery_time: Duration,
    pub(crate) close_time: Option<Duration>,
    redo_threads: Option<usize>,
    pub(crate) lock_timeout: Option<Duration>,
    pub(crate) interrupt: Option<fn() -> bool>,
    pub(crate) transaction_timeout: Option<Duration>,
    pub(crate) retry_attempts: u32,
    pub(crate) retry_time: Duration,
    pub(crate) escalation: usize,
    pub(crate) fs: Arc<dyn Fs>,
    /// The file system under the overlay of a read-only store.
    pub(crate) disk: Option<Arc<dyn Fs>>,
    pub(crate) archive: Option<PathBuf>,
    pub(crate) encryption_key: Option<crate::encryption::KeySource>,
    file_mode: Option<u32>,
    has_own_fs: bool,
    #[cfg(feature = "far")]
    pub(crate) far: Option<FarOptions>,
    pub(crate) left_out: LeftOut,
    pub(crate) left_out_of_snapshots: Option<VersionPart>,
}

/// Memory servers for pages that are evicted from the cache.
#[cfg(feature = "far")]
#[derive(Clone, Debug)]
pub(crate) struct FarOptions {
    servers: Vec<String>,
    bytes: u64,
    key: Option<AuthKey>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            page_size: 8192,
            memory_bytes: None,
            cache: CacheCapacity::Default,
            undo_bytes: None,
            version_bytes: None,
            page_access: PageAccess::default(),
            protocol: LogProtocol::PWal,
            log_buffers: None,
            streams: None,
            lsn_range: WalOptions::default().lsn_range,
            logged_value_bytes: 256 << 10,
            segment_bytes: 16 << 20,
            first_segment_bytes: FIRST_SEGMENT_BYTES,
            durability: Durability::Immediate,
            log_sync_interval: None,
            create: true,
            read_only: false,
            restoring: None,
            background: true,
            recovery_time: Duration::from_secs(2),
            close_time: None,
            redo_threads: None,
            lock_timeout: None,
            interrupt: None,
            transaction_timeout: None,
            retry_attempts: 10_000,
            retry_time: Duration::from_secs(30),
            escalation: 1024,
            fs: Arc::new(OsFs::new()),
            disk: None,
            archive: None,
            encryption_key: None,
            file_mode: None,
            has_own_fs: false,
            #[cfg(feature = "far")]
            far: None,
            left_out: LeftOut::default(),
            left_out_of_snapshots: None,
        }
    }
}

impl Builder {
    /// Sets the size of a page in bytes, 4096 to 65536 and a power of two; default 8192. Used when a store is
    /// created; an existing store keeps its page size.
    #[must_use]
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = bytes;
        self
    }

    /// Reads and writes pages without the system's page cache (`O_DIRECT`). Default: with it, so that pages
    /// that do not fit into [`Builder::cache_bytes`] are cached in free memory of the machine. With direct
    /// pages the store uses no memory except its own cache. Durability is the same in both cases.
    #[must_use]
    pub fn direct_pages(mut self, direct: bool) -> Self {
        self.page_access = if direct { PageAccess::Direct } else { PageAccess::Buffered };
        self
    }

    /// Sets the log protocol, for measurements. Default: P-WAL. Each opening may use another protocol.
    #[cfg(feature = "baseline-logs")]
    #[doc(hidden)]
    #[must_use]
    pub fn log_protocol(mut self, protocol: LogProtocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Sets the number of log buffers. Default: two per core, at least sixteen; fewer if they would take more
    /// than a sixteenth of the memory; eight with a cache of 1.5 MiB. Threads may share a buffer.
    #[must_use]
    pub fn log_buffers(mut self, count: usize) -> Self {
        self.log_buffers = Some(count);
        self
    }

    /// Sets the number of log files written at the same time, at most one per log buffer. Default: that of
    /// the last opening; for a new store one per 16 processors, at least one. A commit waits for all of them.
    #[must_use]
    pub fn wal_streams(mut self, streams: usize) -> Self {
        self.streams = Some(streams);
        self
    }

    /// Sets the size of the first log segments in bytes; later segments grow to the full size.
    #[doc(hidden)]
    #[must_use]
    pub fn wal_first_segment_bytes(mut self, bytes: u64) -> Self {
        self.first_segment_bytes = bytes;
        self
    }

    /// Sets the largest number of log sequence numbers that a thread draws at once from the shared counter;
    /// the default is 64. With 1, each record draws its own number, as in the P-WAL paper.
    #[doc(hidden)]
    #[must_use]
    pub fn wal_lsn_range(mut self, most: u32) -> Self {
        self.lsn_range = most;
        self
    }

    /// Sets the number of bytes of large values that a transaction writes to the log; the default is 256 KiB.
    /// The pages of further values are written to the page file before the commit, and not to the log. For
    /// tests with small transactions.
    #[doc(hidden)]
    #[must_use]
    pub fn logged_value_bytes(mut self, bytes: u64) -> Self {
        self.logged_value_bytes = bytes;
        self
    }

    /// Sets the largest size of a log file in bytes, 2 MiB to 1 TiB; default 16 MiB. The first files of a run
    /// are small, and each filled file doubles the size of the next one.
    #[must_use]
    pub fn wal_segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Sets the durability that a commit waits for, unless a transaction sets its own.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Writes the log to the operating system before a commit is acknowledged, and syncs it once per
    /// interval. Default: `None`, which syncs the log before each acknowledgment. With an interval, a process
    /// crash loses no acknowledged commit. A power loss may lose the commits of the last interval, always
    /// whole transactions.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use azekura::{Database, Error, TableDefinition};
    /// # const T: TableDefinition<u64, u64> = TableDefinition::new("t");
    /// # fn main() -> Result<(), Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = Database::builder().log_sync_interval(Some(Duration::from_secs(1))).open(dir.path())?;
    /// db.transact(|tx| tx.table(&T)?.insert(&1, &1))?; // survives `kill -9`
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn log_sync_interval(mut self, interval: Option<Duration>) -> Self {
        self.log_sync_interval = interval;
        self
    }

    /// Creates the store if it does not exist; default yes.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Opens the store for reading only; default no. Nothing is written to its files, so they may be on a
    /// read-only mount. Several processes may read them at once; no process can write meanwhile. Each call
    /// that would change a row fails with [`Error::ReadOnly`]. A store that was not closed is recovered in
    /// memory at each opening. The store must exist.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the largest time of a restart after a crash; default 2 seconds. The checkpointer writes dirty
    /// pages early enough for this. It assumes 64 MiB of log per second, then 20,000 pages (read and written
    /// back) per second, then 100,000 undone changes per second. The last rate is replaced by a measured one
    /// ([`Stats::undo_per_second`](crate::Stats::undo_per_second)). Pages count even if they are in the
    /// cache. The undo of open transactions counts, too; up to half of the bound is reserved for it.
    #[must_use]
    pub fn recovery_time(mut self, time: Duration) -> Self {
        self.recovery_time = time;
        self
    }

    /// Sets the time for which a close writes changed pages, oldest changes first. A batch of 2,048 pages
    /// that has begun is completed. The log has the changes of the other pages. The next opening recovers
    /// them as after a crash, in at most about [`recovery_time`](Self::recovery_time); no commit is lost.
    /// With [`Duration::ZERO`] a close makes the log durable and writes no page. Default: no limit.
    #[must_use]
    pub fn close_time(mut self, time: Duration) -> Self {
        self.close_time = Some(time);
        self
    }

    /// Sets the number of threads that redo the log after a crash, 1 to 64, each with its share of the pages.
    /// Default: the number of cores, but at least 8, because they mostly wait for page reads; without
    /// [background threads](Self::background) only the caller's thread.
    #[must_use]
    pub fn redo_threads(mut self, threads: usize) -> Self {
        self.redo_threads = Some(threads);
        self
    }

    /// Sets the longest wait for one lock; default unlimited (deadlocks are detected without it).
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// Sets the longest time from the beginning of a transaction to its commit; default unlimited. The first
    /// call of a transaction after that time rolls it back and fails with [`Error::TransactionTimeout`]. A
    /// transaction that makes no call keeps its locks, but does not keep the log from being trimmed.
    #[must_use]
    pub fn transaction_timeout(mut self, limit: Duration) -> Self {
        self.transaction_timeout = Some(limit);
        self
    }

    /// Bounds the retries of [`Database::transact`] after conflicts: the number of runs of the body, and the
    /// time after which no run begins. Default: 10,000 runs and 30 seconds. Beyond these bounds it fails with
    /// [`Error::RetriesExhausted`]. The body runs at least once.
    #[must_use]
    pub fn retry_limit(mut self, attempts: u32, time: Duration) -> Self {
        (self.retry_attempts, self.retry_time) = (attempts, time);
        self
    }

    /// Sets the number of record locks of a transaction in a table after which it tries to lock the whole
    /// table. Without success, it waits for the table after 1024 times as many locks. Default: 1024.
    #[doc(hidden)]
    #[must_use]
    pub fn lock_escalation(mut self, records: usize) -> Self {
        self.escalation = records.max(1);
        self
    }

    /// Turns background jobs (log flusher, page cleaner, checkpointer) on or off; default on. All stores of
    /// the process share a few threads for these jobs. If they are off, the caller's threads do that work,
    /// which makes a run deterministic.
    #[must_use]
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets the file system: the operating system's, or one that injects faults.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn Fs>) -> Self {
        self.fs = fs;
        self.has_own_fs = true;
        self
    }

    /// Sets the permission bits of new files of the store, without the bits of the process's umask; default:
    /// 0600. Directories also get the search bit for each class of users that may read (0640 gives 0750).
    /// Existing files keep their mode.
    #[must_use]
    pub fn file_mode(mut self, mode: u32) -> Self {
        self.file_mode = Some(mode);
        self
    }

    /// Addresses (`host:port`) of memory servers (`azekura memory-server`), which together provide `bytes`
    /// for pages that are evicted from the page cache; default none. Servers are read before the disk, which
    /// is faster if a network round trip is shorter than a disk read. Needs the feature `far`.
    ///
    /// If a server cannot be reached, is lost, is full or returns wrong bytes, the read is a miss, never an
    /// error. The store retries the server every half second. The servers' copies are not used after the
    /// store is closed. [`Stats::far`](crate::Stats::far) has the counts.
    #[cfg(feature = "far")]
    #[must_use]
    pub fn far_cache<S: Into<String>>(mut self, servers: impl IntoIterator<Item = S>, bytes: u64) -> Self {
        let key = self.far.take().and_then(|far| far.key);
        self.far = Some(FarOptions { servers: servers.into_iter().map(Into::into).collect(), bytes, key });
        self
    }

    /// Sets the key that the servers of [`far_cache`](Self::far_cache) require. Needs the feature `far`.
    #[cfg(feature = "far")]
    #[must_use]
    pub fn far_cache_key(mut self, key: AuthKey) -> Self {
        let far = self.far.take().unwrap_or(FarOptions { servers: Vec::new(), bytes: 0, key: None });
        self.far = Some(FarOptions { key: Some(key), ..far });
        self
    }

    /// Opens the store in directory `path`, and recovers it if it was not closed.
    ///
    /// Blocks for the recovery; its time is bounded by [`recovery_time`](Self::recovery_time).
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if the store is open elsewhere ([read only](Self::read_only): open elsewhere for
    /// writing); [`Error::UnsupportedFormat`], [`Error::Corrupt`] and [`Error::CorruptPage`] name the damaged
    /// file or page; [`Error::Invalid`] for settings out of bounds, or an empty path.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database, Error> {
        self.validate()?;
        let mut options = self;
        options.fs = options.mode_fs();
        options.cache = options.cache_of_memory().reserved();
        if options.read_only {
            (options.disk, options.fs) =
                (Some(Arc::clone(&options.fs)), Arc::new(OverlayFs::new(options.fs)));
        }
        let path = absolute(&*options.fs, path.as_ref(), "store")?;
        let archive = options.archive.take().map(|dir| absolute(&*options.fs, &dir, "archive"));
        options.archive = archive.transpose()?;
        Database::open_with(&path, options)
    }

    /// Opens a new store in memory; its content is lost with the process.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for settings out of bounds.
    pub fn open_in_memory(mut self) -> Result<Database, Error> {
        if self.archive.is_some() {
            let reason =
                "a store in memory has no log archive; open it in a directory, or leave out `archive`";
            return Err(Error::Invalid(reason.into()));
        }
        self.fs = Arc::new(MemFs::new());
        (self.file_mode, self.encryption_key) = (None, None);
        self.streams = self.streams.or(Some(1));
        self.segment_bytes = self.segment_bytes.min(MIN_SEGMENT_BYTES);
        self.close_time = Some(Duration::ZERO); // the files cannot be opened again
        self.open("memory")
    }

    /// Returns the file system, which creates files with the permission bits that were set.
    pub(crate) fn mode_fs(&self) -> Arc<dyn Fs> {
        self.file_mode.map_or_else(|| Arc::clone(&self.fs), |mode| Arc::new(OsFs::with_file_mode(mode)))
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Invalid(what));
        let (size, segment) = (self.page_size, self.segment_bytes);
        if !page::is_page_size(size) {
            let (least, most) = (page::MIN_PAGE_SIZE, page::MAX_PAGE_SIZE);
            return refuse(format!("page size {size} is not a power of two from {least} to {most}"));
        }
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment) {
            return refuse(format!("log segments of {segment} bytes; use 2 MiB to 1 TiB"));
        }
        if let Some(mode) = self.file_mode {
            if self.has_own_fs {
                return refuse("file_mode needs the system's own files, but file_system is set".into());
            }
            if mode & !0o666 != 0 || mode & 0o600 != 0o600 {
                return refuse(format!("the file mode is {mode:o}; use 0600 with any bits of 0066"));
            }
        }
        if let Some(buffers) = self.log_buffers
            && (buffers == 0 || buffers > MAX_LOG_BUFFERS)
        {
            return refuse(format!("{buffers} log buffers; use 1 to {MAX_LOG_BUFFERS}"));
        }
        if !(1..=MAX_RANGE).contains(&self.lsn_range) {
            return refuse(format!(
                "{} log sequence numbers drawn at once; use 1 to {MAX_RANGE}",
                self.lsn_range
            ));
        }
        if let Some(threads) = self.redo_threads
            && (threads == 0 || threads > MAX_REDO_THREADS)
        {
            return refuse(format!("{threads} threads to redo the log; use 1 to {MAX_REDO_THREADS}"));
        }
        if self.protocol.epoch_interval() == Some(Duration::ZERO) {
            return refuse("the epoch interval must be greater than 0".into());
        }
        crate::encryption::check_settings(self)?;
        self.check_memory()?;
        let buffers = self.log_buffer_count();
        if let Some(streams) = self.streams
            && (streams == 0 || streams > buffers)
        {
            return refuse(format!("{streams} log streams; use 1 to {buffers}, the number of log buffers"));
        }
        Ok(())
    }
}

/// Number of frames that the deepest structure change, with its neighbors and space maps, may pin at once.
pub(crate) const MIN_FRAMES: usize = 24;
const MAX_REDO_THREADS: usize = 64;
/// Number of concurrent page reads that saturate a flash device. Measured: more reads do not speed up redo.
const READS_AT_ONCE: usize = 8;
/// Smallest segment: four buffers, each for at least two of the largest records (128 KiB of a large value).
const MIN_SEGMENT_BYTES: u64 = 2 << 20;
const MAX_SEGMENT_BYTES: u64 = 1 << 40; // larger ones exceed file systems, and overflow sums of sizes

impl Builder {
    /// Returns `true` if the store has background jobs. A read-only store has nothing to write.
    pub(crate) const fn has_jobs(&self) -> bool {
        self.background && !self.read_only
    }

    /// Returns the number of threads that redo the log in a restart.
    pub(crate) fn threads_to_redo(&self) -> usize {
        let unset = || {
            if self.background {
                azekura_base::processors().clamp(READS_AT_ONCE, MAX_REDO_THREADS)
            } else {
                1
            }
        };
        self.redo_threads.unwrap_or_else(unset)
    }

    /// Returns the second tier of the page cache, if the settings have one.
    #[cfg(feature = "far")]
    pub(crate) fn make_far_cache(&self, page_size: usize) -> Result<Option<FarCache>, Error> {
        let Some(far) = &self.far else { return Ok(None) };
        let mut setting =
            FarCache::builder().servers(far.servers.iter().cloned()).bytes(far.bytes).page(page_size);
        if let Some(key) = &far.key {
            setting = setting.auth_key(key.clone());
        }
        setting.build().map(Some).map_err(|error| Error::Invalid(format!("far cache: {error}")))
    }

    /// Returns the number of log streams; `stored` is the number in the store's files (0: none).
    pub(crate) fn stream_count(&self, stored: usize) -> usize {
        let chosen = self.streams.or(Some(stored).filter(|stored| *stored > 0));
        chosen.unwrap_or_else(default_stream_count).min(self.log_buffer_count())
    }

    /// Returns the number of log buffers.
    pub(crate) fn log_buffer_count(&self) -> usize {
        let memory = || self.memory_bytes.map(|memory| memory / 2).or_else(memory_limit);
        self.log_buffers.unwrap_or_else(|| default_log_buffers(memory(), self.cache.bytes()))
    }

    /// Returns the size of one log buffer. With many buffers each may be small: sixteen full buffers fit in
    /// half of a segment of the default size. A serial log has only one buffer.
    pub(crate) fn log_buffer_bytes(&self) -> usize {
        let most = if self.protocol.is_serial() { 1 << 20 } else { 512 << 10 };
        usize::try_from(self.segment_bytes / 4).map_or(most, |bytes| bytes.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_streams_is_the_set_one_then_the_stored_one_then_the_default() {
        let builder = Builder::default().log_buffers(8);
        assert_eq!(builder.stream_count(0), default_stream_count().min(8));
        assert_eq!(builder.stream_count(3), 3);
        assert_eq!(builder.clone().log_buffers(2).stream_count(3), 2, "at most one per buffer");
        assert_eq!(builder.wal_streams(5).stream_count(3), 5);
    }
}
