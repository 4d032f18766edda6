//! Fuzzy checkpoints: move the LSN at which a restart begins, while transactions run.
//!
//! - **CKPT-1** A checkpoint first reads a lower bound of later LSNs (`begin`). Then it reads the recovery
//!   LSNs of the dirty pages, and the active transactions. Last, it reads the LSN counter, which is above all
//!   drawn LSNs (`end`). A page that becomes dirty after it was read has only records from `begin` on; its
//!   recovery LSN is a lower bound and may be lower. A transaction that is not in the list either gets LSNs
//!   from `begin` on, or has ended with records below `end`.
//! - **CKPT-2** Before CONTROL moves, the log is durable below `end` and the page file is synced. So a page
//!   that the checkpoint found clean is on disk, and the end of a transaction that was no longer listed
//!   cannot be lost.
//!
//! The checkpointer keeps the work of a restart below a bound (`bound`): it writes the pages with the oldest
//! recovery LSNs and then moves CONTROL, in small steps. The undo log of a transaction that stays open is
//! carried forward (`carry`). The checkpointer is a background job (`checkpointer`): it checks the bound
//! while the log grows, and does not run in an idle store.

mod bound;
mod carry;
mod checkpointer;
mod release;
mod undo_pace;

use std::time::Duration;

use azekura_base::sync::time::Instant;
use azekura_base::{DurableLog, Lsn};
use azekura_buffer::PageFile;
use azekura_wal::remove_segments;

use crate::Error;
use crate::control::Control;
use crate::database::Shared;
use crate::deferred::{RETRIED_BY_BEGIN, RETRIED_BY_CHECK};
use crate::error::full_message;
use crate::restart::{FIRST_SEGMENT_BYTES, WAL_DIR};

pub(crate) use bound::{Past, Work};
pub(crate) use checkpointer::Checkpointer;
pub(crate) use release::SpaceRelease;
pub(crate) use undo_pace::UndoPace;

use bound::Present;

impl Shared {
    /// Moves CONTROL as far as dirty pages and active transactions allow; writes no pages.
    pub(crate) fn advance_checkpoint(&self) -> Result<(), Error> {
        if !self.wal.has_begun() {
            return Ok(()); // nothing was logged since the store was opened
        }
        let mut control = self.control.change();
        if !self.options.has_jobs() {
            self.note_archived(self.archive_with(&control.current(), false));
        }
        // Advances the LSN bound: it is one above the durable horizon (RANGE-5).
        self.wal.make_durable(Lsn(self.wal.next_lsn().0 - 1))?;
        let begin = self.wal.lsn_bound();
        let oldest_page = self.pool.min_recovery_lsn();
        let oldest_txn = self.active.min_first_lsn();
        let end = self.wal.next_lsn();
        let next_txn = self.txn_bound();

        self.wal.make_durable(Lsn(end.0 - 1))?; // CKPT-2
        let covered = self.pool.sync_for_checkpoint()?; // CONTROL-4: after the recovery LSNs were read
        let redo_lsn = oldest_page.map_or(begin, |lsn| lsn.min(begin));
        let scan_lsn = oldest_txn.map_or(redo_lsn, |lsn| lsn.min(redo_lsn));
        let mut next = (*control.current()).clone();
        let keep_lsn = self.keep_lsn(scan_lsn.max(next.scan_lsn));
        if scan_lsn > next.scan_lsn || redo_lsn > next.redo_lsn || keep_lsn > next.keep_lsn {
            next.keep_lsn = next.keep_lsn.max(keep_lsn);
            next.redo_lsn = next.redo_lsn.max(redo_lsn);
            next.scan_lsn = next.scan_lsn.max(scan_lsn);
            next.next_txn = next_txn;
            next.durable_lsn = Lsn(end.0 - 1);
            next.covered = covered;
            next.ranges.retain(|r| r.last_lsn.is_none_or(|end| end >= next.keep_lsn));
            control.write(next)?;
            self.note_redo_lsn(control.current().redo_lsn);
        }
        self.wal.trim(control.current().keep_lsn)?;
        Ok(())
    }

    /// Announces the redo LSN of a durable checkpoint. Not in a store with an archive, because its log must
    /// describe all rows.
    pub(crate) fn note_redo_lsn(&self, lsn: Lsn) {
        if self.archive.is_none() {
            self.env.note_redo_lsn(lsn);
        }
    }

    /// Writes every page that is dirty now, then moves CONTROL.
    pub(crate) fn checkpoint_fully(&self) -> Result<(), Error> {
        if !self.wal.has_begun() {
            return Ok(());
        }
        let _checkpoint = crate::probe::checkpoint();
        self.write_all_pages()?;
        self.advance_checkpoint()
    }

    fn write_all_pages(&self) -> Result<(), Error> {
        self.retry_undone(usize::MAX);
        self.carry_open(0);
        Ok(self.pool.write_all()?)
    }

    /// Writes the `max_pages` pages with the oldest changes, then moves CONTROL as far as these writes allow.
    pub(crate) fn checkpoint_step(&self, max_pages: usize) -> Result<(), Error> {
        let _checkpoint = crate::probe::checkpoint();
        self.retry_undone(usize::MAX);
        self.carry_open(self.carry_bytes());
        self.pool.clean(Some(self.wal.next_lsn()), max_pages)?;
        self.advance_checkpoint()
    }

    /// Writes pages before the store is closed: all dirty pages, or, with a time limit, the pages with the
    /// oldest changes until the limit is reached.
    pub(crate) fn write_pages_to_close(&self) -> Result<(), Error> {
        let Some(time) = self.options.close_time else { return Ok(self.pool.write_all()?) };
        let began = Instant::now();
        while began.elapsed() < time && self.pool.clean(Some(self.wal.next_lsn()), CLOSING_PAGES)? > 0 {}
        Ok(())
    }

    /// Does all deferred frees before the store is closed. No snapshot of a caller is open, so only an error
    /// leaves some of them for the next opening.
    pub(crate) fn free_to_close(&self) {
        self.durable_snapshots.lock().close(self.env.versions());
        self.retry_unfreed(usize::MAX);
    }

    /// Closes the store: takes the last checkpoint, closes the log, and removes the log if no restart needs
    /// it. With a time limit, some pages may stay dirty; the log is durable, and the next opening recovers
    /// those pages.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.free_to_close();
        let checkpointed = match self.options.close_time {
            Some(_) if self.options.has_jobs() => self.advance_checkpoint(),
            Some(_) => self.write_pages_to_close().and_then(|()| self.advance_checkpoint()),
            // The last CONTROL below is a checkpoint. A crash before it recovers from the previous one.
            None if self.wal.has_begun() && self.has_no_unfinished() => self.write_all_pages(),
            None => self.checkpoint_fully(),
        };
        let archived = self.archive_now(false);
        let closed = self.wal.close().map_err(Error::from);
        checkpointed.and(archived).and(closed)?;
        if !self.wal.has_begun() || !self.has_no_unfinished() || self.pool.stats().dirty_pages > 0 {
            return Ok(());
        }
        let covered = self.pool.sync_for_checkpoint()?; // usually, nothing is left to sync
        let mut control = self.control.change();
        let mut last = Control { covered, ..(*control.current()).clone() };
        let next_lsn = self.wal.next_lsn();
        (last.redo_lsn, last.scan_lsn, last.durable_lsn) = (next_lsn, next_lsn, Lsn(next_lsn.0 - 1));
        // Nothing was logged after the last records were archived.
        last.keep_lsn = self.keep_lsn(next_lsn);
        last.next_txn = self.txn_bound();
        last.next_tree = self.catalog.next_id();
        last.ranges.clear();
        let database_id = last.database_id;
        control.write(last)?;
        drop(control);
        remove_segments(&*self.options.fs, &self.path.join(WAL_DIR), database_id, FIRST_SEGMENT_BYTES)?;
        self.release_to_close();
        Ok(())
    }

    /// Returns `true` if no transaction, and no part of one, remains for the next opening.
    fn has_no_unfinished(&self) -> bool {
        self.active.len() == 0 && self.parked.len() == 0 && self.unfreed.lock().is_empty()
    }

    /// Runs the checkpointer's check in the calling thread, for a store without background threads. An error
    /// is recorded like an error of a background job, not returned: reads do not need the checkpoint, and
    /// changes that cannot be made return an error themselves.
    pub(crate) fn checkpoint_if_due(&self) {
        if self.options.has_jobs() {
            return;
        }
        self.retry_undone(RETRIED_BY_BEGIN);
        if self.restart_target(self.options.recovery_time).is_some() {
            self.note_background(self.checkpoint_fully());
        } else if self.carry_open(self.carry_bytes()) {
            self.note_background(self.advance_checkpoint());
        }
    }

    /// Starts counting the work of a restart at the present LSN.
    pub(crate) fn count_from_here(&self) {
        let _ = self.restart_target(Duration::MAX);
    }

    /// Returns the LSN at which a restart may begin, so that it takes at most `time`; `None` if a restart
    /// begins there already, or if only open transactions hold it back.
    fn restart_target(&self, time: Duration) -> Option<Lsn> {
        let next_lsn = self.wal.next_lsn();
        let cache = self.pool.stats();
        let now = Present {
            next_lsn,
            log_bytes: self.wal.log_bytes_since_start(),
            pages_written: cache.pages_written,
            dirty_pages: cache.dirty_pages,
            undo_time: self.undo_pace.time_for(self.active.undo_entries()),
        };
        let target = self.restart_past.lock().target(now, time);
        let open = self.active.min_first_lsn().unwrap_or(Lsn::MAX);
        let control = self.control.current();
        let is_there = control.redo_lsn >= target && control.scan_lsn >= target.min(open);
        (!is_there).then_some(target)
    }

    /// Moves the LSN at which a restart begins if the restart would take too long. Half of the time is
    /// reserved for changes made meanwhile. On a full disk moves it as far as possible, because log files
    /// that no restart needs give their space to changes. Returns `true` if there was work to do.
    fn keep_restart_short(&self) -> Result<bool, Error> {
        self.note_archived(self.archive_if_due());
        self.retry_undone(RETRIED_BY_CHECK);
        let has_carried = self.carry_open(self.carry_bytes());
        let time = if self.is_disk_full() { Duration::ZERO } else { self.options.recovery_time / 2 };
        let target = self.restart_target(time);
        if target.is_none() && !has_carried {
            return Ok(false);
        }
        let _checkpoint = crate::probe::checkpoint();
        if let Some(target) = target {
            self.pool.clean(Some(target), STEP_PAGES)?;
        }
        self.advance_checkpoint()?;
        Ok(true)
    }

    /// Returns the bytes of log that open transactions may hold back before they are carried forward.
    const fn carry_bytes(&self) -> u64 {
        2 * self.options.segment_bytes
    }

    /// Retries work that earlier calls could not finish; deferred frees of at most `most_unfreed`
    /// transactions.
    fn retry_undone(&self, most_unfreed: usize) {
        self.retry_parked();
        self.close_durable_snapshots(Instant::now());
        self.env.versions().turn_off();
        self.retry_unfreed(most_unfreed);
    }
}

/// Largest number of pages that one check of the checkpointer writes. One check selects many pages, because
/// the selection reads the state of every frame.
const STEP_PAGES: usize = 8192;
/// Number of pages that a close with a time limit writes between two checks of the time: 16 MiB of 8-KiB
/// pages.
const CLOSING_PAGES: usize = 2048;

impl Shared {
    /// Records a failure of a background activity for [`Stats`](crate::Stats), because no caller waits for
    /// the activity. Calls that depend on the activity return the error of the log or of the page cache.
    pub(crate) fn note_background_error(&self, error: Error, activity: &str) {
        let error = error.in_store(&self.path);
        // The error of a degraded store names another remedy.
        let is_repeated = self.degraded().is_none();
        let mut noted = self.background_error.lock();
        if noted.is_none() {
            let (path, message) = (self.path.display(), full_message(&error));
            tracing::warn!(%path, activity, error = %message, "background activity failed");
            let remedy = if is_repeated { "; remove the cause: it is repeated" } else { "" };
            *noted = Some(format!("the {activity} of {path} failed: {message}{remedy}"));
        }
        drop(noted);
        self.report_failed_change(&error);
        self.checkpoint_calls.wake_from_sleep();
    }

    /// Records the result of a checkpoint. Returns its value if it succeeded.
    pub(crate) fn note_background<T>(&self, done: Result<T, Error>) -> Option<T> {
        let done = done.map_err(|error| self.note_background_error(error, "checkpoint")).ok();
        if done.is_some() && self.unfreed.lock().is_empty() {
            // The activity succeeded, so the cause of the error is gone.
            if self.background_error.lock().take().is_some() {
                tracing::info!(path = %self.path.display(), "background activities succeed again");
            }
        }
        self.report_now();
        done
    }

    /// Records a failure of the archive. The store continues, but does not trim its log.
    fn note_archived<T>(&self, archived: Result<T, Error>) {
        if let Err(error) = archived {
            self.note_background_error(error, "archive");
        }
    }

    /// Returns the error of a change after the page file has failed.
    pub(crate) fn pages_failed(&self) -> Error {
        Error::PagesFailed { path: self.path.join(PageFile::NAME) }
    }

    /// Returns the reason that the store refuses all or some changes, or `None`.
    pub(crate) fn degraded(&self) -> Option<Error> {
        if self.pool.has_failed() {
            return Some(self.pages_failed());
        }
        let failed = self.wal.failure().filter(|_| !self.wal.is_closed()).map(Error::from);
        failed.or_else(|| (self.parked.len() > 0).then(|| self.parked.pending()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use azekura_io::FaultFs;

    use super::*;
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<u64, [u8]> = TableDefinition::new("rows");
    const KEYS: u64 = 8_000;

    fn open(fs: &FaultFs, recovery_time: Duration) -> Database {
        let builder = Database::builder().page_size(4096).cache_bytes(16 << 20).wal_segment_bytes(2 << 20);
        let builder = builder.background(false).recovery_time(recovery_time);
        builder.file_system(Arc::new(fs.clone())).open("db").expect("opens")
    }

    /// Runs the checkpointer's step after each transaction instead of at each tick.
    #[test]
    fn steps_keep_a_restart_short_and_write_no_more_than_that_takes() {
        const BOUND: Duration = Duration::from_millis(20);
        let fs = FaultFs::new();
        let db = open(&fs, BOUND);
        let (mut longest, mut written) = (Duration::ZERO, 0);
        for n in 0..1_000_u64 {
            let put = |tx: &crate::Transaction| {
                (0..12).try_for_each(|i| {
                    let key = (n * 12 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS;
                    tx.table(&ROWS)?.insert(&key, &[n as u8; 400][..])
                })
            };
            db.transact(put).expect("commits");
            let before = db.stats().cache;
            db.shared().keep_restart_short().expect("writes");
            let step = db.stats().cache.pages_written - before.pages_written;
            assert!(step < 200.max(before.dirty_pages), "{step} of {before:?} at {n}");
            written += step;
            if n % 50 == 0 {
                let restarted = open(&fs.kill(), Duration::MAX);
                longest = longest.max(restarted.stats().recovery.counted_time());
            }
        }
        assert!(longest <= BOUND && longest > BOUND / 4, "{longest:?} of {BOUND:?}");
        assert!(written > 1_000, "only {written} pages were written: nothing was bounded");
    }
}
