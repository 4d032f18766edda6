//! The checkpointer: the job that looks whether a restart would take too long.
//!
//! | state | next look | left by |
//! |---|---|---|
//! | asleep | none: idle, or the log failed | new log records, the end of the last snapshot, an error |
//! | active | after a [`TICK`] | a look that finds nothing new and nothing to try again |

use std::sync::Arc;
use std::time::Duration;

use azekura_base::background::{Group, Kind};
use azekura_base::{DurableLog, Lsn};

use crate::database::Shared;

/// Between two looks of an active checkpointer.
const TICK: Duration = Duration::from_millis(50);

/// The checkpointer of a store; dropping it ends its job.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    jobs: Arc<Group>,
}

impl Checkpointer {
    /// Begins to look, now if the opening has written something.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub(crate) fn begin(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let jobs = Group::new(Kind::Pages)?;
        let (weak, group) = (Arc::downgrade(shared), Arc::clone(&jobs));
        shared.checkpoint_calls.starts(move || {
            if let Some(shared) = weak.upgrade() {
                let next = Arc::clone(&group);
                group.start(move || look(&shared, &next, Lsn(0)));
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
        // A look is short: it is waited for.
        self.jobs.close(|| {});
    }
}

/// One look, and the next one after a tick if the store is active; `seen`: the log's counter at the look
/// before.
fn look(shared: &Arc<Shared>, jobs: &Arc<Group>, seen: Lsn) {
    let calls = &shared.checkpoint_calls;
    let now = shared.wal.next_lsn();
    let done = shared.keep_restart_short();
    shared.note_background(&done);
    // A checkpoint can succeed again, unless pages have failed; a rollback too, unless the log has.
    let is_moving = done.unwrap_or(true) && !shared.pool.has_failed();
    let may_write = shared.wal.failure().is_none();
    if may_write && (now != seen || is_moving || shared.has_undone()) {
        let (shared, group) = (Arc::clone(shared), Arc::clone(jobs));
        jobs.start_after(TICK, move || look(&shared, &group, now));
    } else if !calls.sleep(|| may_write && (shared.wal.next_lsn() != now || shared.has_undone())) {
        calls.restart();
    }
}

impl Shared {
    /// Returns `true` if earlier calls have left something that can be tried again now.
    fn has_undone(&self) -> bool {
        let versions = self.env.versions();
        let can_free = || {
            let unfreed = self.unfreed.lock();
            unfreed.iter().any(|unfreed| unfreed.leftovers.can_free(&self.env, &unfreed.committed))
        };
        let are_kept = || self.durable_snapshots.lock().are_kept();
        self.parked.len() > 0
            || versions.can_turn_off()
            || are_kept()
            || can_free()
            || self.is_archive_behind()
    }
}
