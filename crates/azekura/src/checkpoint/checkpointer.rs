//! The checkpointer: the background job that bounds the time of a restart. A *check* compares the work of a
//! restart with the bound. If the work is above the bound, the check writes pages and CONTROL.
//!
//! | state | next check | left by |
//! |---|---|---|
//! | asleep | none: idle, or the log failed | new log records, the end of the last snapshot, an error |
//! | active | after a [`TICK`] | a check that finds no new log records and nothing to try again |

use std::sync::Arc;
use std::time::Duration;

use azekura_base::background::{Group, Kind};
use azekura_base::sync::atomic::Ordering::Relaxed;
use azekura_base::{DurableLog, Lsn};

use super::release;
use crate::database::Shared;
use crate::events::LONG_OPEN;

/// Time between two checks of an active checkpointer.
const TICK: Duration = Duration::from_millis(50);

/// The checkpointer of a store; dropping it ends its job.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    jobs: Arc<Group>,
}

impl Checkpointer {
    /// Starts the checkpointer. The first check starts at once if opening the store has written to the log.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub(crate) fn begin(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let jobs = Group::new(Kind::Pages)?;
        let (weak, group) = (Arc::downgrade(shared), Arc::clone(&jobs));
        shared.checkpoint_calls.starts(move || {
            if let Some(shared) = weak.upgrade() {
                let next = Arc::clone(&group);
                group.start(move || check(&shared, &next, Lsn(0)));
            }
        });
        let has_begun = || shared.wal.has_begun();
        if has_begun() || !shared.checkpoint_calls.sleep(has_begun) {
            shared.checkpoint_calls.restart();
        }
        Ok(Self { jobs })
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        // Waits for a running check. A check is short.
        self.jobs.close(|| {});
    }
}

/// Runs one check, and schedules the next one after a [`TICK`] if the store is active. `seen` is the next LSN
/// of the log at the previous check.
fn check(shared: &Arc<Shared>, jobs: &Arc<Group>, seen: Lsn) {
    let calls = &shared.checkpoint_calls;
    let now = shared.wal.next_lsn();
    let done = shared.note_background(shared.keep_restart_short());
    release::schedule(shared, jobs);
    // A failed checkpoint can succeed later unless page writes have failed, and a failed rollback unless the
    // log has failed.
    let is_moving = done.unwrap_or(true) && !shared.pool.has_failed();
    let may_write = shared.wal.failure().is_none();
    if may_write && (now != seen || is_moving || shared.has_undone()) {
        let (shared, group) = (Arc::clone(shared), Arc::clone(jobs));
        jobs.start_after(TICK, move || check(&shared, &group, now));
    } else {
        watch_open(shared, jobs, LONG_OPEN);
        if !calls.sleep(|| may_write && (shared.wal.next_lsn() != now || shared.has_undone())) {
            calls.restart();
        }
    }
}

/// Schedules a report of transactions and snapshots that are open for long. An idle store has no checks, but
/// may have an open transaction.
fn watch_open(shared: &Arc<Shared>, jobs: &Arc<Group>, limit: Duration) {
    let is_open = shared.active.len() > 0 || shared.env.versions().stats().open > 0;
    // Relaxed, also below: selects the call that schedules the report, and orders nothing.
    if !is_open || shared.reported.is_watched.swap(true, Relaxed) {
        return;
    }
    let (weak, group) = (Arc::downgrade(shared), Arc::clone(jobs));
    jobs.start_after(limit, move || {
        if let Some(shared) = weak.upgrade() {
            shared.reported.is_watched.store(false, Relaxed); // Relaxed: as above
            shared.report_open(limit);
            watch_open(&shared, &group, limit);
        }
    });
}

impl Shared {
    /// Returns `true` if earlier calls have left unfinished work that can be retried now.
    fn has_undone(&self) -> bool {
        let versions = self.env.versions();
        let are_kept = || self.durable_snapshots.lock().are_kept();
        self.parked.len() > 0
            || versions.can_turn_off()
            || versions.is_sweeping()
            || are_kept()
            || self.is_free_due()
            || self.is_archive_behind()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

    #[test]
    fn an_open_transaction_of_an_idle_store_is_reported() {
        // Without the store's own checkpointer, which could schedule the report first, for a later time.
        let db = Database::builder().background(false).open_in_memory().expect("opens");
        let (shared, jobs) = (db.shared(), Group::new(Kind::Pages).expect("a thread"));
        watch_open(shared, &jobs, Duration::ZERO);
        let is_watched = shared.reported.is_watched.load(Relaxed); // set by this thread
        assert!(!is_watched, "nothing is open, so no job is scheduled");
        let tx = db.begin().expect("begins");
        tx.table(&ROWS).and_then(|rows| rows.insert(&1, &1)).expect("writes");
        // A check begins the age of the transaction.
        shared.active.holders(Instant::now(), shared.wal.log_bytes_since_start(), 0);
        watch_open(shared, &jobs, Duration::from_millis(1));
        while !shared.reported.has_long_open() {
            std::thread::yield_now();
        }
        tx.commit().expect("commits");
        jobs.close(|| {});
    }
}
