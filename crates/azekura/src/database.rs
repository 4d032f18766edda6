//! The open store: its handle, the state that its transactions share, and its opening and closing.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::{Mutex, RwLock};
use azekura_base::{CachePadded, Cipher, Lsn, TxnId};
use azekura_btree::Env;
use azekura_buffer::BufferPool;
use azekura_io::FileLock;
use azekura_lock::LockTable;
use azekura_wal::notifier::Notifier;
use azekura_wal::{LogBufferId, Wal};

use crate::active::ActiveList;
use crate::archive::Archive;
use crate::catalog::Catalog;
use crate::check::Leaks;
use crate::checkpoint::{Past, SpaceRelease, UndoPace};
use crate::control::ControlFile;
use crate::deferred::UnfreedQueue;
use crate::encryption::StoreKeys;
use crate::events::{Reported, millis};
#[cfg(feature = "far")]
use crate::far_tier::FarTier;
use crate::lifetime::{Lifetime, Owners};
use crate::options::Builder;
use crate::restart::{self, RecoveryReport};
use crate::snapshot::{DurableSnapshots, SnapshotDurability};
use crate::ticket::CommitTicket;
use crate::timeline::Timeline;
use crate::transaction::{Parked, StatePool, Transaction};
use crate::{CheckReport, Error, RowSorter, Stats, TableInfo};

/// The state that all transactions of an open store share.
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) options: Builder,
    pub(crate) env: Env,
    pub(crate) pool: Arc<BufferPool>,
    #[cfg(feature = "far")]
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) timeline: Timeline,
    pub(crate) locks: LockTable,
    pub(crate) catalog: Catalog,
    pub(crate) active: ActiveList,
    pub(crate) states: StatePool,
    pub(crate) parked: Parked,
    pub(crate) archive: Option<Archive>,
    /// The keys of an encrypted store; otherwise `None`.
    pub(crate) keys: Option<StoreKeys>,
    pub(crate) control: Arc<ControlFile>,
    /// The work done at earlier times, for the bound on the time of a restart.
    pub(crate) restart_past: Mutex<Past>,
    pub(crate) undo_pace: UndoPace,
    pub(crate) space_release: SpaceRelease,
    /// A gate that a transaction holds in shared mode until it has freed its unreferenced pages; `check`
    /// holds it exclusively.
    pub(crate) leftovers_gate: RwLock<()>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) snapshot_durability: SnapshotDurability,
    pub(crate) durable_snapshots: Mutex<DurableSnapshots>,
    /// Deferred frees of committed transactions that failed.
    pub(crate) unfreed: Mutex<UnfreedQueue>,
    /// The first error of a background activity that was not resolved since.
    pub(crate) background_error: Mutex<Option<String>>,
    pub(crate) reported: Reported,
    /// Starts the checkpointer, if the store has one.
    pub(crate) checkpoint_calls: Arc<Notifier>,
    /// The next transaction id; on its own cache line, because every sixteenth transaction writes it.
    next_txn: CachePadded<AtomicU64>,
    pub(crate) lifetime: Lifetime,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The parts of a store, which opening assembles.
pub(crate) struct Parts {
    pub(crate) env: Env,
    pub(crate) pool: Arc<BufferPool>,
    #[cfg(feature = "far")]
    pub(crate) far: Option<Arc<FarTier>>,
    pub(crate) wal: Arc<Wal>,
    pub(crate) timeline: Timeline,
    pub(crate) checkpoint_calls: Arc<Notifier>,
    pub(crate) catalog: Catalog,
    pub(crate) archive: Option<Archive>,
    pub(crate) keys: Option<StoreKeys>,
    pub(crate) control: Arc<ControlFile>,
    pub(crate) recovery: RecoveryReport,
    pub(crate) next_txn: TxnId,
    /// The locks on the store and its archive that exclude a second writer.
    pub(crate) locks: Vec<Box<dyn FileLock>>,
}

impl Shared {
    /// Draws `count` transaction numbers that no other transaction has.
    pub(crate) fn draw_txn_ids(&self, count: u64) -> Range<u64> {
        // Relaxed: ids must be distinct and only roughly in order of age.
        let first = self.next_txn.fetch_add(count, Relaxed);
        first..first + count
    }

    /// Returns an id above those of all transactions begun so far.
    pub(crate) fn txn_bound(&self) -> TxnId {
        TxnId(self.next_txn.load(Relaxed))
    }

    pub(crate) fn page_size(&self) -> usize {
        self.pool.page_size()
    }

    /// Returns the length of the longest possible key in bytes.
    pub(crate) fn max_key(&self) -> usize {
        azekura_btree::max_key(self.pool.body_bytes())
    }

    /// Returns the cipher of the store's files, or `None` if the store is not encrypted.
    pub(crate) fn cipher(&self) -> Option<Arc<dyn Cipher>> {
        self.keys.as_ref().map(|keys| Arc::clone(&keys.cipher))
    }

    pub(crate) fn wait_durable(&self, commit: Lsn) -> Result<(), Error> {
        self.wal.wait_acknowledged(commit).map_err(|failed| {
            self.report_state();
            failed.into()
        })
    }
}

/// An open store; opened by [`open`](Self::open), or by [`builder`](Self::builder) with other settings.
/// Clones are handles of the same store, for any thread.
///
/// [`transact`](Self::transact) reads and writes rows in a transaction. [`read`](Self::read) reads rows
/// without locks. [`backup`](Self::backup) copies the store.
///
/// The store is open until [`close`](Self::close), or until its last handle and its last transaction are
/// dropped. Closing writes the changed pages and a checkpoint ([`Builder::close_time`] limits the time), and
/// unlocks the directory. Tickets do not keep it open.
///
/// A process that was forked cannot use a store that its parent opened: each call fails with
/// [`Error::Forked`], and dropping the copies does nothing. Open stores after the fork.
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, TableDefinition};
/// const STOCK: TableDefinition<str, u32> = TableDefinition::new("stock");
///
/// fn main() -> Result<(), Error> {
///     # let dir = std::env::temp_dir().join(format!("azekura-doc-{}", std::process::id()));
///     # let path = &dir;
///     let db = Database::open(path)?;
///     db.transact(|tx| tx.table(&STOCK)?.insert("rice", &120))?; // durable when it returns
///     let rice = db.transact(|tx| tx.table(&STOCK)?.get("rice"))?;
///     assert_eq!(rice, Some(120));
///     # drop(db);
///     # std::fs::remove_dir_all(dir).ok();
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Database {
    // Dropped before `shared`, because the last owner closes the store.
    owners: Arc<Owners>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Database {
    /// Returns the settings for opening a store.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens the store in directory `path`, and creates the store if there is none.
    ///
    /// # Errors
    ///
    /// As for [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().open(path)
    }

    /// Opens the store in directory `path` for reading: see [`Builder::read_only`].
    ///
    /// ```
    /// use azekura::{Database, Error, TableDefinition};
    /// const STOCK: TableDefinition<str, u32> = TableDefinition::new("stock");
    ///
    /// # fn main() -> Result<(), Error> {
    /// # let dir = std::env::temp_dir().join(format!("azekura-doc-read-{}", std::process::id()));
    /// # let path = &dir;
    /// Database::open(path)?.transact(|tx| tx.table(&STOCK)?.insert("rice", &120))?;
    /// let (one, other) = (Database::open_read_only(path)?, Database::open_read_only(path)?);
    /// for db in [one, other] {
    ///     assert_eq!(db.transact(|tx| tx.table(&STOCK)?.get("rice"))?, Some(120));
    ///     let refused = db.transact(|tx| tx.table(&STOCK)?.insert("rice", &0));
    ///     assert!(matches!(refused, Err(Error::ReadOnly)));
    /// }
    /// # std::fs::remove_dir_all(dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Builder::open`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder().read_only(true).open(path)
    }

    /// Creates a new store in memory.
    ///
    /// # Errors
    ///
    /// None with these settings, unless memory is exhausted.
    pub fn in_memory() -> Result<Self, Error> {
        Self::builder().cache_bytes(32 << 20).open_in_memory()
    }

    pub(crate) fn open_with(path: &Path, mut options: Builder) -> Result<Self, Error> {
        let parts = restart::open(path, &mut options).map_err(|error| error.in_store(path))?;
        let undo_pace = UndoPace::default();
        undo_pace.restarted(parts.recovery.undone, parts.recovery.undo_time);
        let locks = azekura_lock::LockOptions::default();
        // A store with a small cache rarely has many locks, or many keys with commits that are not durable.
        let most = parts.pool.capacity_frames() / 2;
        let shared = Arc::new(Shared {
            path: path.to_path_buf(),
            env: parts.env,
            pool: parts.pool,
            #[cfg(feature = "far")]
            far: parts.far,
            wal: parts.wal,
            timeline: parts.timeline,
            locks: LockTable::new(azekura_lock::LockOptions {
                timeout: options.lock_timeout,
                interrupt: options.interrupt,
                stripes: locks.stripes.min(most),
                dependency_slots: locks.dependency_slots.min(most),
                ..locks
            }),
            catalog: parts.catalog,
            active: ActiveList::new(),
            archive: parts.archive,
            keys: parts.keys,
            control: parts.control,
            restart_past: Mutex::default(),
            space_release: SpaceRelease::default(),
            undo_pace,
            leftovers_gate: RwLock::new(()),
            recovery: parts.recovery,
            snapshot_durability: SnapshotDurability::default(),
            durable_snapshots: Mutex::default(),
            unfreed: Mutex::default(),
            background_error: Mutex::new(None),
            reported: Reported::default(),
            checkpoint_calls: parts.checkpoint_calls,
            next_txn: CachePadded::new(AtomicU64::new(parts.next_txn.0)),
            states: StatePool::new(),
            parked: Parked::default(),
            options,
            lifetime: Lifetime::new(path.to_path_buf(), parts.locks),
        });
        shared.count_from_here();
        let redo_lsn = shared.control.current().redo_lsn;
        shared.note_redo_lsn(redo_lsn);
        tracing::info!(
            path = %path.display(),
            version = env!("CARGO_PKG_VERSION"),
            page_size = shared.page_size(),
            cache_bytes = shared.options.cache.bytes(),
            read_only = shared.options.read_only,
            time_ms = millis(shared.recovery.time),
            "store opened"
        );
        let owners = Arc::new(Owners::start(&shared)?);
        Ok(Self { owners, shared })
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`] after [`close`](Self::close); [`Error::Forked`] in a forked child process. In a
    /// store without background threads, also an error of a checkpoint that this call ran.
    pub fn begin(&self) -> Result<Transaction, Error> {
        Transaction::begin(self.owners.enter()?)
    }

    /// Runs `body` in a transaction and commits it. If the transaction is rolled back because of a conflict,
    /// runs it again after growing pauses, within [`Builder::retry_limit`], also if `body` hides the conflict
    /// and returns a value or another error. Otherwise an error of `body` rolls the transaction back and is
    /// returned.
    ///
    /// `body` may run several times, so it should change only the store. Inside `body`, use only its
    /// transaction: another transaction of the same thread that would wait for it fails with
    /// [`Error::SelfDeadlock`].
    ///
    /// # Errors
    ///
    /// The error of `body`, or of the commit; [`Error::RetriesExhausted`].
    pub fn transact<T>(&self, body: impl FnMut(&Transaction) -> Result<T, Error>) -> Result<T, Error> {
        self.try_transact(body)
    }

    /// Runs a transaction as [`transact`](Self::transact) does, with a body that has its own error type.
    ///
    /// ```
    /// # use azekura::{Database, Error, TableDefinition};
    /// #[derive(Debug)]
    /// enum Refusal {
    ///     Overdrawn,
    ///     Store(Error),
    /// }
    /// impl From<Error> for Refusal {
    ///     fn from(error: Error) -> Self {
    ///         Self::Store(error)
    ///     }
    /// }
    /// const BALANCES: TableDefinition<str, i64> = TableDefinition::new("balances");
    ///
    /// # fn main() -> Result<(), Error> {
    /// let db = Database::in_memory()?;
    /// let drawn = db.try_transact(|tx| {
    ///     let balances = tx.table(&BALANCES)?;
    ///     match balances.get_for_update("ann")?.unwrap_or(0) {
    ///         balance if balance < 30 => Err(Refusal::Overdrawn),
    ///         balance => Ok(balances.insert("ann", &(balance - 30))?),
    ///     }
    /// });
    /// assert!(matches!(drawn, Err(Refusal::Overdrawn)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`transact`](Self::transact).
    pub fn try_transact<T, E: From<Error>>(
        &self,
        body: impl FnMut(&Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let _transaction = crate::probe::transaction();
        let (value, tx) = self.retry(body)?;
        tx.commit()?;
        Ok(value)
    }

    /// Runs a transaction as [`transact`](Self::transact) does, but does not wait for the log. The returned
    /// ticket reports when the commit is durable.
    ///
    /// # Errors
    ///
    /// As for [`transact`](Self::transact).
    pub fn transact_async<T>(
        &self,
        body: impl FnMut(&Transaction) -> Result<T, Error>,
    ) -> Result<(T, CommitTicket), Error> {
        let _transaction = crate::probe::transaction();
        let (value, tx) = self.retry(body)?;
        Ok((value, tx.commit_async()?))
    }

    /// Runs a transaction as [`transact_async`](Self::transact_async) does, but requests no flush of the log.
    /// Use it for one of several commits that the caller waits for together: see
    /// [`Transaction::commit_deferred_flush`].
    ///
    /// # Errors
    ///
    /// As for [`transact`](Self::transact).
    pub fn transact_deferred_flush<T>(
        &self,
        body: impl FnMut(&Transaction) -> Result<T, Error>,
    ) -> Result<(T, CommitTicket), Error> {
        let _transaction = crate::probe::transaction();
        let (value, tx) = self.retry(body)?;
        Ok((value, tx.commit_deferred_flush()?))
    }

    /// Returns the names of all tables, in byte order.
    ///
    /// # Errors
    ///
    /// The errors of reading rows.
    pub fn table_names(&self) -> Result<Vec<String>, Error> {
        Ok(self.tables()?.into_iter().map(|table| table.name).collect())
    }

    /// Returns all tables with the types of their rows, in byte order of their names.
    ///
    /// # Errors
    ///
    /// The errors of reading rows.
    pub fn tables(&self) -> Result<Vec<TableInfo>, Error> {
        self.retry(Transaction::tables).map(|(tables, _)| tables)
    }

    /// Writes all changed pages, so that a restart has nothing to redo, and recycles the log. Gives the disk
    /// space of all free pages back to the file system, in runs of at least 64 KiB: so the store takes less
    /// space after many rows were removed. (The length of the page file stays the same. A file system without
    /// holes frees no space. [`compact_into`](Self::compact_into) also moves rows together.)
    ///
    /// A store with background threads does this by itself about a minute after rows were removed, if free
    /// pages take at least 16 MiB and a quarter of the space of the other pages.
    ///
    /// # Errors
    ///
    /// An error of a file. The store then continues with its previous checkpoint.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.shared.lifetime.while_open(|| self.shared.checkpoint_and_release())
    }

    /// Does a part of a checkpoint: writes at most `max_pages` of the pages that were changed longest ago,
    /// and recycles the log as far as that allows. A store without background threads needs such calls; other
    /// stores take checkpoints automatically.
    ///
    /// # Errors
    ///
    /// As for [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_step(&self, max_pages: usize) -> Result<(), Error> {
        self.shared.lifetime.while_open(|| self.shared.checkpoint_step(max_pages))
    }

    /// Does the next step of the background release of free pages (`checkpoint::release`) at once, for tests.
    /// Returns `false` after the last step.
    #[doc(hidden)]
    pub fn release_step(&self) -> Result<bool, Error> {
        self.shared.lifetime.while_open(|| Ok(self.shared.release_step()?.is_some()))
    }

    /// Writes only the buffers of one log stream, for crash tests that need missing LSNs in the middle of the
    /// log.
    #[doc(hidden)]
    pub fn write_one_log_stream(&self, stream: usize) {
        // An error is stored in the log, and returned to a thread that waits for the log.
        let _ = self.shared.wal.flush(LogBufferId::from_index(stream));
    }

    /// Begins a transaction that writes its records to this log buffer, for crash tests that must be exactly
    /// repeatable.
    #[doc(hidden)]
    pub fn begin_on_log_buffer(&self, log_buffer: usize) -> Result<Transaction, Error> {
        let tx = self.begin()?;
        tx.use_log_buffer(LogBufferId::from_index(log_buffer));
        Ok(tx)
    }

    /// Returns `true` if a [prefetch](crate::Table::prefetch) of this thread could help: its latest reads met
    /// absent pages. For the server, which opens a snapshot for a prefetch.
    #[doc(hidden)]
    #[must_use]
    pub fn should_prefetch(&self) -> bool {
        self.shared.env.pool().should_prefetch()
    }

    /// Returns counters and sizes of the store. Does not wait for a checkpoint that other threads run.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared)
    }

    /// Checks every page: order and bounds of keys, checksums, reachability, pages lost or used twice.
    /// Reports `(pages done, pages in all)` to `progress`.
    ///
    /// Takes no locks: transactions read and write meanwhile, and each leaf is counted in its state at the
    /// time of the visit. Only if two passes seem to find damage, and pages were changed meanwhile, a last
    /// pass decides with shared locks on all tables. Writers wait for that pass.
    ///
    /// # Errors
    ///
    /// An error of reading the store. Damage is reported in the result, not as an error.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
        crate::check::check(self, Leaks::Report, progress).map_err(|error| error.in_store(self.path()))
    }

    /// Checks every page as [`check`](Self::check) does, and frees leaked pages: those that are marked as
    /// used but unreferenced. Frees no page if there is other damage. If there are leaked pages, writers wait
    /// for the last pass. [`CheckReport::freed_pages`] counts the freed pages.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check), [`Error::ReadOnly`], and errors of the log. After an error of
    /// the log, some of the pages have been freed.
    pub fn repair(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, Error> {
        if self.shared.options.read_only {
            return Err(Error::ReadOnly);
        }
        crate::check::check(self, Leaks::Free, progress).map_err(|error| error.in_store(self.path()))
    }

    /// Closes the store for all its handles: ends its background jobs, writes all changed pages, takes a
    /// checkpoint, gives the disk space of free pages back to the file system if that is at least 1 MiB and a
    /// quarter of the space of the other pages, and unlocks the directory. Later calls of any handle fail
    /// with [`Error::Closed`]; closing again returns `Ok`. Dropping the last handle closes the store without
    /// reporting errors.
    ///
    /// Blocks during the page writes: for seconds, if a cache of several GiB has many changed pages. With
    /// [`Builder::close_time`] the writes end after that time. The log has the changes of the other pages,
    /// and the next opening recovers them; no commit is lost.
    ///
    /// ```
    /// # use azekura::{Database, Error};
    /// # fn main() -> Result<(), Error> {
    /// let db = Database::in_memory()?;
    /// let tx = db.begin()?;
    /// assert!(matches!(db.close(), Err(Error::StillInUse { transactions: 1 })));
    /// tx.commit()?;
    /// db.close()?;
    /// assert!(matches!(db.begin(), Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StillInUse`]: transactions or snapshots are open, in any thread; nothing was changed, the
    /// store stays open. A transaction that was leaked (`std::mem::forget`) is open until the process ends.
    /// [`Error::Io`] and other errors of a file: the store is closed, and acknowledged commits are safe.
    pub fn close(&self) -> Result<(), Error> {
        self.owners.close()
    }

    /// Returns the store's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Returns the random number of the store. A restored or compacted store gets a new one.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.control.current().database_id
    }

    /// Returns the size of the store's pages in bytes.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.shared.page_size()
    }

    /// Returns the length of the longest possible key in bytes, as encoded. The limit follows from the page
    /// size.
    #[must_use]
    pub fn max_key_bytes(&self) -> usize {
        self.shared.max_key()
    }

    /// Returns a sorter of rows for loads in any order. The sorter uses `memory_bytes` for rows, and half of
    /// that, at most 16 MiB, to merge files. Rows that do not fit are stored in files in the store's
    /// directory.
    ///
    /// [`Table::bulk_load_unsorted`](crate::Table::bulk_load_unsorted) sorts and loads in one call.
    #[must_use]
    pub fn row_sorter(&self, memory_bytes: usize) -> RowSorter {
        RowSorter::new(&self.shared, memory_bytes)
    }

    /// Returns a transaction without a time limit that holds shared locks on all tables, so nothing is
    /// written while it is open.
    pub(crate) fn lock_all_tables(&self) -> Result<Transaction, Error> {
        self.retry(Transaction::lock_all_tables).map(|((), tx)| tx.without_time_limit())
    }

    pub(crate) const fn owners(&self) -> &Arc<Owners> {
        &self.owners
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
