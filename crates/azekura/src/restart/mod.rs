//! Opening: creates a new store, or recovers an existing one.
//!
//! 1. CONTROL states the LSN from which the log must be read, and the incarnations of the log that a restart
//!    reads. If there are no incarnations, the store was closed, and opening it reads and writes nothing
//!    else.
//! 2. Pages torn by the crash are repaired from the double-write area.
//! 3. One pass over the merged log, from `scan_lsn` to the cut, does *analysis* and *redo* together. Analysis
//!    finds active transactions and their undo entries. Redo repeats every page operation from `redo_lsn` on
//!    that the page does not contain yet, by several threads (`redo`). Analysis collects undo entries from
//!    update records, and compensation records remove them again, newest first. So no second pass over the
//!    log is needed.
//! 4. The cut is written to CONTROL: records above the cut are never read (W5). LSNs continue above the
//!    largest LSN of any record. Before the first record of the new incarnation is written, CONTROL lists
//!    that incarnation. If the store has an archive, the records below the cut that the archive lacks are
//!    copied to it.
//! 5. *Undo* rolls back the losers through the trees, and deferred frees of committed transactions are
//!    completed. All of this is logged in the new incarnation, so after another crash a restart repeats only
//!    the rest.
//! 6. A full checkpoint: the old incarnations are dropped and their log files are removed.
//!
//! After a crash at any point CONTROL has everything that the next restart needs.
//!
//! - **RESTART-1** The scanned log has the end record of each ended transaction that began below `scan_lsn`.
//!   A checkpoint moves `scan_lsn` past the first LSN of ended transactions only, and first makes the log
//!   durable beyond their end records. The scan may start in the middle of such a transaction, and may read
//!   compensations of records before its start. The records that it reads are redone, and never undone. For a
//!   transaction that has not ended, the scan reads either all its records, or a copy of its undo log that
//!   replaces the missing ones (CARRY-2).

mod analysis;
mod create;
mod log;
mod redo;

pub(crate) use create::LOCK_NAME;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use azekura_base::cipher::TRAILER_BYTES;
use azekura_base::sync::random;
use azekura_base::{Cipher, DurableLog, Lsn, TreeId};
use azekura_btree::{Committed, Env, Record, Writer, roll_back_to};
use azekura_buffer::page_file::Identity;
use azekura_buffer::{BufferPool, Cleaner, PageFile, PageStore, PoolOptions};
use azekura_io::FileLock;
use azekura_wal::notifier::Notifier;
use azekura_wal::recovery::{self, LogFiles, LogRange, Replayed};
use azekura_wal::{Begin, Grown, LogIdentity, NoteDurable, Wal, WalOptions, remove_segments};

use crate::Error;
use crate::archive::{Archive, ArchiveKey, ArchivedStore};
use crate::backup::refuse_unfinished;
use crate::catalog::{self, CATALOG, Catalog};
use crate::checkpoint::Work;
use crate::control::{CONTROL_NAME, Control, ControlFile, LsnGap};
use crate::database::Parts;
use crate::deferred::{self, Leftovers};
use crate::encryption::{StoreKeys, unlock_store};
use crate::error::full_message;
use crate::events::millis;
#[cfg(feature = "far")]
use crate::far_tier::FarTier;
use crate::options::Builder;
use crate::row_sort;
use crate::timeline::{Timeline, move_old_gaps};

use analysis::Analysis;
use log::RestartLog;
use redo::Redo;

pub(crate) const WAL_DIR: &str = "wal";
/// Size of the first log files; a log that is written often gets larger files.
pub(crate) const FIRST_SEGMENT_BYTES: u64 = 256 << 10;
/// Smallest number of LSNs that a restart skips ([`LsnGap`]): more than any store draws in one run. A random
/// number of at most this size is added, which identifies the run (TIMELINE-1).
const LSN_GAP: u64 = 1 << 32;

/// Report of an opening: the work of the recovery.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Number of log records read.
    pub records: u64,
    /// Number of bytes of log read.
    pub log_bytes: u64,
    /// Number of pages read by all parts of the opening.
    pub pages_read: u64,
    /// Number of transactions that had not committed and were undone.
    pub losers: u64,
    /// Number of undone changes of these transactions.
    pub undone: u64,
    /// LSN of the first change of these transactions, or a lower one.
    #[serde(skip)]
    pub(crate) first_undone: Option<Lsn>,
    /// Number of torn pages repaired from the double-write area.
    pub repaired_pages: u64,
    /// Number of threads that redid changes.
    pub redo_threads: usize,
    /// Time to read and redo the log; in JSON in milliseconds.
    #[serde(rename = "replay_ms", serialize_with = "as_millis")]
    pub replay_time: Duration,
    /// Time to undo uncommitted transactions, and to complete the deferred frees of committed ones; in JSON
    /// in milliseconds.
    #[serde(rename = "undo_ms", serialize_with = "as_millis")]
    pub undo_time: Duration,
    /// Time of the whole opening; in JSON in milliseconds.
    #[serde(rename = "time_ms", serialize_with = "as_millis")]
    pub time: Duration,
}

impl RecoveryReport {
    /// Returns the estimated time of this work at the fixed rates of
    /// [`recovery_time`](Builder::recovery_time). The checkpointer compares such estimates with the bound on
    /// restarts.
    #[must_use]
    pub fn counted_time(&self) -> Duration {
        let work = Work { log_bytes: self.log_bytes, pages: self.pages_read, undo_entries: self.undone };
        Duration::try_from_secs_f64(work.seconds()).unwrap_or(Duration::MAX)
    }
}

fn as_millis<S: serde::Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(time.as_secs_f64() * 1e3)
}

/// Opens the store in `path`, or creates one there. Excludes other openings. From then on the file system of
/// the options finds the store's files by a handle of the directory, so that a store which is renamed while
/// it is open never writes to another store with its former name.
pub(crate) fn open(path: &Path, options: &mut Builder) -> Result<Parts, Error> {
    let began = Instant::now();
    refuse_unfinished(options, path)?;
    let has_control = create::has_control(&*options.fs, path)?;
    let creating = if has_control { None } else { Some(create::take(path, options)?) };
    if let Some(fs) = options.fs.within(path).map_err(|e| Error::io("open", path, e))? {
        options.fs = fs;
    }
    let fs = &*options.fs;
    let control_lock = lock(options, path)?;
    let is_made = creating.is_some_and(|taken| taken.is_made); // from now on the lock on CONTROL is enough
    if !options.read_only {
        row_sort::remove_leftovers(fs, path)?;
    }
    let control = ControlFile::open(fs, path, options.read_only)?;
    options.check_cache(control.current().page_size)?;
    let keys = unlock_store(path, &control.current().key_record, options.encryption_key.as_ref())?;
    if control.current().is_new() && !is_made {
        create::complete(&options.fs, path, &control.current(), keys.as_ref())?;
    }
    let mut parts = Restart::begin(path, options, control, keys)?.run(control_lock)?;
    parts.recovery.time = began.elapsed();
    Ok(parts)
}

/// Locks the store: exclusively, or shared with other readers.
fn lock(options: &Builder, path: &Path) -> Result<Box<dyn FileLock>, Error> {
    let file = path.join(CONTROL_NAME);
    let held =
        if options.read_only { options.fs.lock_shared(&file) } else { options.fs.lock_exclusive(&file) };
    match held {
        Ok(Some(held)) => Ok(held),
        Ok(None) => Err(Error::InUse { path: path.to_path_buf() }),
        Err(source) => Err(Error::io("lock", &file, source)),
    }
}

/// A restart in progress.
struct Restart<'a> {
    path: &'a Path,
    options: &'a Builder,
    control: Arc<ControlFile>,
    checkpoint_calls: Arc<Notifier>,
    store: Arc<dyn PageStore>,
    pool: Arc<BufferPool>,
    #[cfg(feature = "far")]
    far: Option<Arc<FarTier>>,
    log: Arc<RestartLog>,
    env: Env,
    keys: Option<StoreKeys>,
    analysis: Analysis,
    /// Number of the last batch of page writes in the page file at the beginning of the restart.
    last_finished: u64,
    report: RecoveryReport,
}

impl<'a> Restart<'a> {
    fn begin(
        path: &'a Path,
        options: &'a Builder,
        control: ControlFile,
        keys: Option<StoreKeys>,
    ) -> Result<Self, Error> {
        let Control { page_size, database_id, covered, redo_lsn, ref gaps, .. } = *control.current();
        let identity = Identity { database_id, covered };
        let file =
            PageFile::open_as(Arc::clone(&options.fs), path, page_size, identity, options.page_access)?;
        let file = if options.restoring.is_some() { file.filled_once() } else { file };
        let file = file.encrypted(keys.as_ref().map(|keys| Arc::clone(&keys.cipher)));
        let last_finished = file.last_finished();
        // All pages of a closed store are synced, so none can be torn.
        let repaired = if control.current().is_closed() { Vec::new() } else { file.repair()? };
        let log = Arc::new(RestartLog::new(redo_lsn, Timeline::new(gaps)));
        let pool_options =
            PoolOptions { page_size, capacity_bytes: options.cache.bytes(), ..PoolOptions::default() };
        #[cfg(feature = "far")]
        let (store, far) = crate::far_tier::page_store(file, options.make_far_cache(page_size)?);
        #[cfg(not(feature = "far"))]
        let store: Arc<dyn PageStore> = Arc::new(file);
        let pool = BufferPool::new(pool_options, Arc::clone(&store), Arc::clone(&log) as _)?;
        let pool = Arc::new(pool.reserving(reserved_bytes(keys.as_ref())));
        let env_options = azekura_btree::EnvOptions {
            version_bytes: options.version_bytes_limit(),
            left_out: options.left_out_of_snapshots,
            ..azekura_btree::EnvOptions::default()
        };
        let env = Env::new(Arc::clone(&pool), Arc::clone(&log) as _, env_options);
        let analysis = Analysis::new(control.current().next_txn);
        let report = RecoveryReport { repaired_pages: repaired.len() as u64, ..RecoveryReport::default() };
        let control = Arc::new(control);
        Ok(Self {
            path,
            options,
            control,
            checkpoint_calls: Arc::new(Notifier::awake()),
            store,
            pool,
            #[cfg(feature = "far")]
            far,
            log,
            env,
            keys,
            analysis,
            last_finished,
            report,
        })
    }

    fn control(&self) -> Control {
        (*self.control.current()).clone()
    }

    fn cipher(&self) -> Option<Arc<dyn Cipher>> {
        self.keys.as_ref().map(|keys| Arc::clone(&keys.cipher))
    }

    fn run(mut self, control_lock: Box<dyn FileLock>) -> Result<Parts, Error> {
        let control = self.control();
        let (wal, timeline) = if control.is_closed() {
            self.refuse_newer_log(&control)?;
            let newest = control.largest_lsn();
            let gap = gap_after(control.durable_lsn, newest);
            let first_lsn = gap.map_or(newest.next(), |gap| gap.before);
            self.new_log(control.incarnation + 1, first_lsn, gap)?
        } else {
            tracing::info!(path = %self.path.display(), "store was not closed: recovery begins");
            let replayed = self.replay()?;
            self.log.check_pages_read(replayed.last_lsn.max(Lsn(control.scan_lsn.0 - 1)))?;
            self.new_incarnation(&replayed)?
        };
        let mut locks = vec![control_lock];
        let archive = self.open_archive(&timeline)?.map(|(archive, lock)| {
            locks.extend(lock);
            archive
        });
        self.undo_and_free(&wal)?;
        let catalog = self.load_catalog(&control)?;
        if !control.is_closed() {
            self.checkpoint(&wal, &catalog, archive.as_ref())?;
        }
        self.report.pages_read = self.pool.stats().misses;
        if !control.is_closed() {
            self.report_recovery();
        }
        Ok(Parts {
            env: self.env,
            pool: self.pool,
            #[cfg(feature = "far")]
            far: self.far,
            wal,
            timeline,
            checkpoint_calls: self.checkpoint_calls,
            catalog,
            archive,
            keys: self.keys,
            control: self.control,
            recovery: self.report,
            next_txn: self.analysis.next_txn,
            locks,
        })
    }

    fn report_recovery(&self) {
        let RecoveryReport { records, log_bytes, pages_read, losers, undone, repaired_pages, .. } =
            self.report;
        tracing::info!(
            path = %self.path.display(),
            records,
            log_bytes,
            pages_read,
            losers,
            undone,
            repaired_pages,
            replay_ms = millis(self.report.replay_time),
            undo_ms = millis(self.report.undo_time),
            "recovery ended"
        );
    }

    /// Opens and locks the archive, and copies the records that it lacks from the existing log.
    fn open_archive(
        &self,
        timeline: &Timeline,
    ) -> Result<Option<(Archive, Option<Box<dyn FileLock>>)>, Error> {
        let options = self.options;
        let Some(dir) = options.archive.as_deref().filter(|_| !options.read_only) else { return Ok(None) };
        let control = self.control();
        let cut = control.ranges.iter().filter_map(|range| range.last_lsn).max();
        let end = cut.unwrap_or(Lsn(0)).max(control.durable_lsn);
        let fs = Arc::clone(&options.fs);
        let key = self.cipher().map(|cipher| ArchiveKey::new(cipher, &control.key_record));
        let of = ArchivedStore {
            path: self.path,
            database_id: control.database_id,
            keep_lsn: control.keep_lsn,
            first_lsn: end.next(),
            timeline,
        };
        let (archive, lock) = Archive::open(fs, dir, &of, key)?;
        // Nothing is logged inside a gap.
        let end = timeline.position(end).lsn;
        archive.append(&self.path.join(WAL_DIR), &control.ranges, end, None, false)?;
        Ok(Some((archive, lock)))
    }

    /// Returns an error if there is a log with a newer incarnation than those in CONTROL. CONTROL is then
    /// from an earlier time than the other files. A closed store needs no log, and all its log files except
    /// one are removed.
    fn refuse_newer_log(&self, control: &Control) -> Result<(), Error> {
        let dir = self.path.join(WAL_DIR);
        match azekura_wal::newest_incarnation(&*self.options.fs, &dir, control.database_id)? {
            Some((found, file)) if found > control.incarnation => {
                let (newest, path) = (control.incarnation, file.clone());
                let error = azekura_wal::ReplayError::<Error>::StaleRanges { file, found, newest };
                Err(Error::Corrupt { path, offset: 0, reason: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Runs analysis and redo, in one pass over the log.
    fn replay(&mut self) -> Result<Replayed, Error> {
        let began = Instant::now();
        let mut analysis = Analysis::new(self.control().next_txn);
        let (replayed, redo_threads) = std::thread::scope(|scope| {
            let mut redo = Redo::start(scope, &self.env, self.options.threads_to_redo());
            let threads = redo.threads();
            let replayed = self.replay_into(&mut analysis, &mut redo)?;
            redo.finish()?;
            Ok::<_, Error>((replayed, threads))
        })?;
        self.analysis = analysis;
        self.report.redo_threads = redo_threads;
        self.report.records = replayed.records;
        self.report.log_bytes = replayed.bytes;
        self.report.replay_time = began.elapsed();
        Ok(replayed)
    }

    fn replay_into(&self, analysis: &mut Analysis, redo: &mut Redo<'_, '_>) -> Result<Replayed, Error> {
        let (dir, last_finished) = (self.path.join(WAL_DIR), self.last_finished);
        let control = self.control();
        let Control { database_id, ref ranges, scan_lsn, redo_lsn, .. } = control;
        let mut each = |lsn, body: &[u8]| -> Result<(), Error> {
            let record = Record::decode(body).map_err(|e| bad_record(&dir, lsn, &e))?;
            if record.last_finished() > last_finished {
                let reason = format!(
                    "older than the log: log record {lsn} relies on page writes up to batch {}, and the file \
                     holds them up to batch {last_finished}; restore all files from one moment",
                    record.last_finished()
                );
                return Err(Error::Corrupt { path: self.path.join(PageFile::NAME), offset: 0, reason });
            }
            analysis.see(lsn, &record).map_err(|e| bad_record(&dir, lsn, &e))?;
            if lsn >= redo_lsn { redo.record(lsn, &record) } else { Ok(()) }
        };
        let (fs, durable) = (&*self.options.fs, Some(self.control.log_was_durable_to()));
        let cipher = self.keys.as_ref().map(|keys| &*keys.cipher);
        let files = LogFiles { fs, dir: &dir, database_id, cipher };
        Ok(recovery::replay_durable(files, ranges, scan_lsn, durable, &mut each)?)
    }

    /// Ends the log at the cut and begins a new one above the LSNs of all records (W5), with a gap between
    /// them. A page with an LSN in the gap was written after the files that the restart reads.
    fn new_incarnation(&mut self, replayed: &Replayed) -> Result<(Arc<Wal>, Timeline), Error> {
        let mut control = self.control();
        let end = replayed.last_lsn.max(Lsn(control.scan_lsn.0 - 1));
        let newest = end.max(replayed.max_lsn_seen).max(control.largest_lsn());
        let gap = gap_after(end, newest);
        move_old_gaps(&*self.options.fs, self.path, &mut control.gaps);
        gap.into_iter().for_each(|gap| control.add_gap(gap));
        let first_lsn = gap.map_or(newest.next(), |gap| gap.before);
        let last = control.ranges.last_mut().filter(|last| last.last_lsn.is_none());
        let incarnation = control.incarnation + 1;
        if let Some(last) = last {
            last.last_lsn = Some(replayed.last_lsn.max(Lsn(last.first_lsn.0 - 1)));
        }
        // A range that ends before its first record is empty and is removed, so recoveries that crash early
        // leave no ranges. One range always stays, because the store is not closed yet.
        let last = control.ranges.last().cloned();
        control.ranges.retain(|r| r.last_lsn.is_none_or(|end| end >= r.first_lsn && end >= control.keep_lsn));
        if control.ranges.is_empty() {
            control.ranges.extend(last);
        }
        control.durable_lsn = replayed.last_lsn.max(control.durable_lsn);
        self.control.write(control)?;
        self.new_log(incarnation, first_lsn, None)
    }

    /// Creates the log of this run. Its first record begins the new incarnation: CONTROL then lists the
    /// incarnation (W5), and the disk space of records is reserved, so that they can be written even to a
    /// full disk. CONTROL gets the `gap` at the same time. Returns the log, and the store's timeline with it.
    fn new_log(
        &self,
        incarnation: u32,
        first_lsn: Lsn,
        gap: Option<LsnGap>,
    ) -> Result<(Arc<Wal>, Timeline), Error> {
        let mut control = self.control();
        gap.into_iter().for_each(|gap| control.add_gap(gap));
        let streams = self.options.stream_count(control.streams as usize);
        let begin = {
            let (control, store) = (Arc::clone(&self.control), Arc::clone(&self.store));
            let (fs, path) = (Arc::clone(&self.options.fs), self.path.to_path_buf());
            move || {
                store.make_room(CATALOG.root, 1).map_err(|error| io_error(&error))?;
                let mut control = control.change();
                let mut next = (*control.current()).clone();
                next.incarnation = incarnation;
                next.streams = streams as u64;
                move_old_gaps(&*fs, &path, &mut next.gaps);
                gap.into_iter().for_each(|gap| next.add_gap(gap));
                next.ranges.push(LogRange::open(incarnation, first_lsn));
                control.write(next).map_err(|error| io_error(&error))
            }
        };
        let calls = Arc::clone(&self.checkpoint_calls);
        let log_end = self.control.new_log_end(incarnation);
        let wal = Wal::create(
            Arc::clone(&self.options.fs),
            &self.path.join(WAL_DIR),
            LogIdentity { database_id: control.database_id, incarnation, first_lsn },
            WalOptions {
                protocol: self.options.protocol,
                log_buffers: self.options.log_buffer_count(),
                streams,
                segment_bytes: self.options.segment_bytes,
                buffer_bytes: self.options.log_buffer_bytes(),
                background: self.options.has_jobs(),
                lsn_range: self.options.lsn_range,
                first_segment_bytes: Some(self.options.first_segment_bytes),
                nothing_counts: control.is_closed(),
                begin: Some(Begin::new(begin)),
                grown: Some(Grown::new(move || calls.wake_from_sleep())),
                durable: Some(NoteDurable::new(move |lsn| log_end.note(lsn))),
                sync_interval: self.options.log_sync_interval,
                cipher: self.cipher(),
                ..WalOptions::default()
            },
        )?;
        let timeline = Timeline::new(&control.gaps);
        self.log.switch_to(Arc::clone(&wal), timeline.clone());
        Ok((wal, timeline))
    }

    fn undo_and_free(&mut self, wal: &Wal) -> Result<(), Error> {
        let began = Instant::now();
        // Rolls back the youngest transaction first. Any order is correct, because losers held exclusive
        // locks on all their changes.
        let mut unended: Vec<_> = std::mem::take(&mut self.analysis.unended).into_iter().collect();
        unended.sort_unstable_by_key(|(txn, _)| std::cmp::Reverse(*txn));
        for (txn, mut known) in unended {
            let writer = Writer { txn, log_buffer: wal.log_buffer() };
            if known.is_committed {
                // No snapshot is open yet, so all pages can be freed.
                Leftovers::after(&known.undo, &known.freed).free(&self.env, writer, &Committed::default())?;
                continue;
            }
            if let Some(lsn) = known.began_before {
                let reason = "it undoes a change that the log lacks, and its transaction has no end record";
                return Err(bad_record(&self.path.join(WAL_DIR), lsn, &reason));
            }
            self.report.losers += 1;
            let first = known.began.unwrap_or(Lsn(1));
            self.report.first_undone = Some(self.report.first_undone.map_or(first, |other| other.min(first)));
            self.report.undone += known.undo.len() as u64;
            roll_back_to(&self.env, writer, &mut known.undo, 0)?;
            deferred::append_end(&self.env, writer)?;
        }
        self.report.undo_time = began.elapsed();
        Ok(())
    }

    /// Returns the catalog without its tables, which are read on first use.
    fn load_catalog(&self, control: &Control) -> Result<Catalog, Error> {
        let catalog = Catalog::default();
        catalog.reserve(CATALOG.id);
        if control.is_closed() {
            catalog.reserve(TreeId(control.next_tree.saturating_sub(1)));
            return Ok(catalog);
        }
        crate::scan::unlocked(&self.env, CATALOG, &mut |name, value| {
            let entry = catalog::decode(value).ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                let reason = format!("the catalog's row {name:?} does not describe a table");
                Error::damaged(CATALOG.root, reason)
            })?;
            catalog.reserve(entry.tree.id);
            Ok(())
        })?;
        Ok(catalog)
    }

    /// Writes the pages that redo and undo have changed; several batches at once if the store has background
    /// jobs.
    fn write_pages(&self) -> Result<(), Error> {
        let spawn = || Cleaner::spawn(Arc::clone(&self.pool));
        let cleaner = self.options.has_jobs().then(spawn).transpose();
        let _cleaner = cleaner.map_err(|e| Error::io("start a thread for", self.path, e))?;
        Ok(self.pool.write_all()?)
    }

    /// Writes everything to disk, so that the old incarnations are no longer needed. If nothing was logged
    /// since the replay, the store is closed by this checkpoint.
    fn checkpoint(&mut self, wal: &Wal, catalog: &Catalog, archive: Option<&Archive>) -> Result<(), Error> {
        let next_lsn = wal.next_lsn();
        wal.make_durable(Lsn(next_lsn.0 - 1))?; // advances the LSN bound (RANGE-5)
        self.write_pages()?;
        let covered = self.pool.sync_for_checkpoint()?;
        let mut control = self.control();
        control.redo_lsn = next_lsn;
        control.scan_lsn = next_lsn;
        control.keep_lsn = archive.map_or(next_lsn, |archive| archive.next_lsn().min(next_lsn));
        control.durable_lsn = Lsn(next_lsn.0 - 1);
        control.covered = covered;
        control.next_txn = self.analysis.next_txn;
        if wal.has_begun() {
            control.ranges.retain(|r| r.last_lsn.is_none());
            self.control.write(control)?;
            let keep_lsn = self.control().keep_lsn;
            wal.trim(keep_lsn)?;
            return Ok(());
        }
        control.ranges.clear();
        control.next_tree = catalog.next_id();
        let database_id = control.database_id;
        self.control.write(control)?;
        remove_segments(&*self.options.fs, &self.path.join(WAL_DIR), database_id, FIRST_SEGMENT_BYTES)?;
        Ok(())
    }
}

/// Returns the number of bytes at the end of each page that the cipher uses.
fn reserved_bytes(keys: Option<&StoreKeys>) -> usize {
    keys.map_or(0, |_| TRAILER_BYTES)
}

/// Returns the LSN gap between the log that ends with `end` and the next log; `newest` is the largest LSN of
/// any record, or in CONTROL (CONTROL-9).
fn gap_after(end: Lsn, newest: Lsn) -> Option<LsnGap> {
    let before = || Lsn(newest.0 + LSN_GAP + random() % LSN_GAP);
    (newest.0 <= LSN_GAP << 29).then(|| LsnGap { after: end, before: before() })
}

/// Returns an error of the same kind with a message that names the failed action.
fn io_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut next = Some(error);
    let mut kind = io::ErrorKind::Other;
    while let Some(error) = next {
        let shared = || error.downcast_ref::<Arc<io::Error>>().map(|error| &**error);
        kind = error.downcast_ref::<io::Error>().or_else(shared).map_or(kind, io::Error::kind);
        next = error.source();
    }
    io::Error::new(kind, full_message(error))
}

fn bad_record(dir: &Path, lsn: Lsn, reason: &dyn std::fmt::Display) -> Error {
    Error::Corrupt { path: dir.to_path_buf(), offset: 0, reason: format!("log record {lsn}: {reason}") }
}
