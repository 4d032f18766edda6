//! Gives the disk space of free pages back to the file system.
//!
//! An explicit checkpoint releases all free pages. The background job and the close release them if they are
//! worth it ([`is_worth_it`]). The background job runs while pages are freed:
//!
//! 1. The *look*, a [`PERIOD`] after the first free of a page since the last look, compares the disk space
//!    with the pages in use. If the release is worth it, the look begins to record the pages that change.
//! 2. The *release*, a [`PERIOD`] later, compares the pages that stayed free. If they are still worth it, it
//!    takes a checkpoint past the look and releases them.
//!
//! So a store that fills and empties in turns, each within a period, keeps its space. Each step does a
//! bounded part of the work and continues after a pause.

use std::sync::Arc;
use std::time::Duration;

use azekura_base::background::Group;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::{DurableLog, Lsn};
use azekura_btree::{DiskSpace, FreeSpace, Released};

use super::STEP_PAGES;
use crate::Error;
use crate::database::Shared;

/// Time for which pages must stay free before the background job releases them.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause between two parts of a release.
const PAUSE: Duration = Duration::from_millis(50);
/// Most calls of the file system in one part of a release. A call was measured at 0.25 ms.
const STEP_CALLS: usize = 256;
/// Most calls of the file system while a store is closed.
const CLOSING_CALLS: usize = 4096;
/// Least free space that the background job releases, in bytes: twice the space allocated for the growth of
/// the page file, which the job leaves.
const LEAST_FREE: u64 = 16 << 20;
/// Least free space that the close releases, in bytes.
const LEAST_FREE_AT_CLOSE: u64 = 1 << 20;

/// Returns `true` if the free space is at least `least` bytes, and at least a quarter of the other space.
const fn is_worth_it(space: DiskSpace, least: u64) -> bool {
    space.free >= least && space.free >= space.kept / 4
}

/// The state of the background job.
#[derive(Debug, Default)]
pub(crate) struct SpaceRelease {
    /// `true` while a step is scheduled or runs, or if the file system has no holes.
    is_scheduled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// LSN of the newest record that had freed a page at the last look.
    seen: u64,
    waiting: Option<Waiting>,
}

/// A release that waits for the end of its period, or for its next part.
#[derive(Debug)]
struct Waiting {
    free: FreeSpace,
    /// The next LSN at the look.
    begin: Lsn,
    /// `true` after the first check that the pages that stayed free are worth the release.
    is_confirmed: bool,
}

impl Shared {
    /// Takes a checkpoint, and then releases the pages that were free before it and still are
    /// (`azekura_btree::space`, RELEASE-1). Fails only if the checkpoint fails.
    pub(crate) fn checkpoint_and_release(&self) -> Result<(), Error> {
        if !self.wal.has_begun() {
            return Ok(());
        }
        let free = if self.env.is_released() { None } else { self.env.free_space().ok() };
        let Some(mut free) = free else { return self.checkpoint_fully() };
        let next_lsn = self.wal.next_lsn();
        // Pages that become dirty from now on get recovery LSNs that are not below `next_lsn`.
        self.wal.make_durable(Lsn(next_lsn.0 - 1))?;
        self.checkpoint_fully()?;
        if self.control.current().redo_lsn >= next_lsn
            && let Err(error) = free.release(&self.env, usize::MAX)
        {
            self.report_unreleased(&error.into());
        }
        Ok(())
    }

    /// Releases free pages after the last checkpoint of a store that is being closed, and truncates the page
    /// file behind the last page in use. No transaction is open, and the log has no record that a restart
    /// needs.
    pub(super) fn release_to_close(&self) {
        let release = || {
            let mut free = self.env.free_space()?;
            let Some(space) = free.disk_space(&self.env)? else { return Ok(()) };
            if is_worth_it(space, LEAST_FREE_AT_CLOSE) {
                free.release_end(&self.env)?;
                if !self.env.is_released() {
                    free.release(&self.env, CLOSING_CALLS)?;
                }
            }
            Ok(())
        };
        let released: Result<(), Error> = release();
        released.unwrap_or_else(|error| self.report_unreleased(&error));
    }

    /// Does the next step of the background job. Returns the time after which it continues, `None` if there
    /// is nothing to release, and [`Duration::MAX`] if the file system has no holes.
    pub(crate) fn release_step(&self) -> Result<Option<Duration>, Error> {
        let mut state = self.space_release.state.lock();
        let Some(mut waiting) = state.waiting.take() else {
            state.seen = self.env.last_freed();
            let free = self.env.free_space()?;
            if !free.disk_space(&self.env)?.is_some_and(|space| is_worth_it(space, LEAST_FREE)) {
                return Ok(None);
            }
            let begin = self.wal.next_lsn();
            state.waiting = Some(Waiting { free, begin, is_confirmed: false });
            return Ok(Some(PERIOD));
        };
        if !waiting.is_confirmed {
            let space = waiting.free.disk_space(&self.env)?;
            if !space.is_some_and(|space| is_worth_it(space, LEAST_FREE)) {
                return Ok(None);
            }
            waiting.is_confirmed = true;
        }
        if !self.is_checkpoint_past(waiting.begin)? {
            state.waiting = Some(waiting);
            return Ok(Some(PAUSE));
        }
        match waiting.free.release(&self.env, STEP_CALLS)? {
            Released::Part => {
                state.waiting = Some(waiting);
                Ok(Some(PAUSE))
            }
            Released::All => Ok(None),
            // The job does not run again.
            Released::Unsupported => Ok(Some(Duration::MAX)),
        }
    }

    /// Moves the redo LSN toward `begin`, by a bounded number of page writes. Returns `true` if it is there.
    fn is_checkpoint_past(&self, begin: Lsn) -> Result<bool, Error> {
        let is_past = || self.control.current().redo_lsn >= begin;
        if !is_past() {
            let _checkpoint = crate::probe::checkpoint();
            self.wal.make_durable(Lsn(begin.0 - 1))?;
            self.pool.clean(Some(begin), STEP_PAGES)?;
            self.advance_checkpoint()?;
        }
        Ok(is_past())
    }

    fn report_unreleased(&self, error: &Error) {
        // The space stays in use, and a later release tries again.
        tracing::debug!(path = %self.path.display(), %error, "cannot release the space of free pages");
    }
}

/// Schedules the first step of the job, if pages were freed since the last look.
pub(super) fn schedule(shared: &Arc<Shared>, jobs: &Arc<Group>) {
    let job = &shared.space_release;
    // Relaxed: only the checkpointer schedules a first step; if it reads an old value, its next check does.
    if !job.is_scheduled.load(Relaxed) && job.state.lock().seen != shared.env.last_freed() {
        job.is_scheduled.store(true, Relaxed);
        run_after(PERIOD, shared, jobs);
    }
}

fn run_after(delay: Duration, shared: &Arc<Shared>, jobs: &Arc<Group>) {
    let (weak, group) = (Arc::downgrade(shared), Arc::clone(jobs));
    jobs.start_after(delay, move || {
        let Some(shared) = weak.upgrade() else { return };
        let step = shared.release_step();
        if let Err(error) = &step {
            shared.report_unreleased(error);
        }
        match step {
            Ok(Some(Duration::MAX)) => {}
            Ok(Some(delay)) => run_after(delay, &shared, &group),
            _ => shared.space_release.is_scheduled.store(false, Relaxed), // Relaxed: see `schedule`
        }
    });
}
