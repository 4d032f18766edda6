//! The background job that writes dirty pages before the clock hand reaches them, so that misses find clean
//! victims.
//!
//! | state of the notifier | the cleaner's job | left by |
//! |---|---|---|
//! | asleep | does not run | a call or a notification: starts the job |
//! | called | is started, or runs; a round must begin | the job, at the start of the round |
//! | running | runs a round that began after the last call | a call or a notification; the end of the round |
//! | stopped | does not run, or ends | the next cleaner |
//!
//! - **CLEANER-1** At most one job runs: the exchange that ends the state "asleep" starts it.

use std::sync::Arc;

use azekura_base::background::{Group, Kind, Starter};
use azekura_base::sync::atomic::AtomicU32;
use azekura_base::sync::atomic::Ordering::{AcqRel, Relaxed};
use azekura_trace::ThreadTag;

use crate::pool::BufferPool;
use crate::supply::FrameSupply;

const ASLEEP: u32 = 0;
const RUNNING: u32 = 1;
const CALLED: u32 = 2;
const STOPPED: u32 = 3;

/// The state of the cleaner, and the functions that start and wake it.
#[derive(Debug)]
pub(crate) struct CleanerNotifier {
    state: AtomicU32,
    starter: Starter,
    /// The thread that runs the cleaner's job, for the tracer.
    thread: AtomicU32,
}

impl Default for CleanerNotifier {
    fn default() -> Self {
        Self { state: AtomicU32::new(STOPPED), starter: Starter::default(), thread: AtomicU32::new(0) }
    }
}

impl CleanerNotifier {
    /// Calls the cleaner unless it has been called already. Usually costs one load.
    pub(crate) fn notify(&self) {
        self.notify_if(|| true);
    }

    pub(crate) fn notify_if(&self, is_needed: impl FnOnce() -> bool) {
        // Relaxed: the notification orders nothing. A lost notification is repeated when a miss finds the
        // next dirty page.
        if self.state.load(Relaxed) < CALLED && is_needed() {
            self.call();
        }
    }

    /// Requests a round that begins after this call (SUPPLY-2).
    pub(crate) fn call(&self) {
        // AcqRel: pairs with the exchange by which the cleaner accepts the call, so that the caller's earlier
        // work is visible to its round. A larger state means that the cleaner is stopped.
        if self.state.fetch_max(CALLED, AcqRel) == ASLEEP {
            self.starter.start(); // CLEANER-1
        }
    }

    /// Returns the thread that runs the cleaner's job, if any.
    pub(crate) fn cleaner(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and find nothing. Relaxed: a hint.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.thread.load(Relaxed)) }
    }

    /// Stores `start`, which later calls use to start the cleaner.
    pub(crate) fn begin(&self, start: impl Fn() + Send + Sync + 'static) {
        self.starter.set(start);
        // AcqRel: a read-modify-write, like all changes of the state.
        self.state.swap(ASLEEP, AcqRel);
    }

    /// Runs the cleaner's job: a round after each call, until no call came during a round.
    pub(crate) fn serve(&self, supply: &FrameSupply, round: impl Fn()) {
        let serving = Serving(supply);
        // The call is accepted before the round (SUPPLY-2). AcqRel: pairs with `call`.
        while self.state.compare_exchange(CALLED, RUNNING, AcqRel, Relaxed).is_ok() {
            round();
            // AcqRel: pairs with `call`, which then begins another job.
            if self.state.compare_exchange(RUNNING, ASLEEP, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        std::mem::forget(serving);
    }

    /// Stops the cleaner: later calls and jobs do nothing.
    pub(crate) fn stop(&self, supply: &FrameSupply) {
        // AcqRel: a read-modify-write, so that a concurrent call cannot overwrite the state.
        self.state.swap(STOPPED, AcqRel);
        supply.end();
    }
}

/// Number of batches in flight in one round: one is copied, one waits for the double-write area, and two are
/// written in place.
const IN_FLIGHT: usize = 4;

/// The cleaner of a pool. The drop ends its jobs.
#[derive(Debug)]
pub struct Cleaner {
    pool: Arc<BufferPool>,
    jobs: Arc<Group>,
}

impl Cleaner {
    /// Starts a cleaner for `pool`: [jobs](azekura_base::background) that run when pages must be written.
    /// Without a cleaner, misses and [`BufferPool::clean`] write pages.
    ///
    /// # Errors
    ///
    /// The error of the system if no thread can be created.
    pub fn spawn(pool: Arc<BufferPool>) -> std::io::Result<Self> {
        let jobs = Group::new(Kind::Pages)?;
        let start = |run: fn(&BufferPool, &Group)| {
            let (pool, jobs) = (Arc::downgrade(&pool), Arc::clone(&jobs));
            move || {
                pool.upgrade().is_some_and(|pool| {
                    let group = Arc::clone(&jobs);
                    jobs.start(move || run(&pool, &group))
                })
            }
        };
        let (clean, help) = (start(run), start(|pool, _| pool.help_writing()));
        let touch = start(|pool, _| pool.touch_ahead());
        pool.supply.begin();
        pool.notifier.begin(move || {
            clean(); // Refused only after `stop`.
        });
        pool.write_queue.begin(IN_FLIGHT - 1, help);
        pool.begin_touching(move || {
            touch(); // Refused only after the end.
        });
        Ok(Self { pool, jobs })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.jobs.close(|| {
            self.pool.notifier.stop(&self.pool.supply);
            self.pool.write_queue.end();
            self.pool.touch.end();
        });
    }
}

/// Guard of a running job. If a round panics, its drop wakes the misses that wait for the cleaner (SUPPLY-3).
struct Serving<'p>(&'p FrameSupply);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn run(pool: &BufferPool, jobs: &Group) {
    pool.notifier.thread.store(azekura_trace::thread_tag().0, Relaxed); // Relaxed: a hint for the tracer
    pool.notifier.serve(&pool.supply, || clean_round(pool, jobs));
}

/// Frees frames and writes batches. Ends when there is nothing to write, when few pages are dirty and no miss
/// waits, or when jobs of other stores wait for a thread. Then the next dirty page calls the cleaner again.
fn clean_round(pool: &BufferPool, jobs: &Group) {
    let most = pool.batch_pages() * pool.batches_in_flight();
    let is_stopped = || pool.notifier.state.load(Relaxed) == STOPPED; // Relaxed: a flag
    pool.supply_frames();
    // An error is returned to the miss that needs the frame, or to the checkpoint; here it only ends this
    // round.
    while let Ok(written) = pool.clean(None, most)
        && written > 0
        && !is_stopped()
        && !jobs.is_overdue()
    {
        if written < most && !pool.is_too_dirty() && !pool.supply.is_awaited() {
            break;
        }
    }
    pool.supply.end_round();
    pool.supply_frames_or_give_up();
}
