//! The background job that writes dirty pages before the clock hand reaches them, so that misses find clean
//! victims.
//!
//! | state of the bell | the cleaner's job | left by |
//! |---|---|---|
//! | asleep | does not run | a call or a ring: starts the job |
//! | called | is started, or runs; a round must begin | the job, when it begins the round |
//! | running | runs a round that began after the last call | a call or a ring; the end of the round |
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

/// The functions that start and wake the cleaner.
#[derive(Debug)]
pub(crate) struct CleanerBell {
    state: AtomicU32,
    starter: Starter,
    /// The thread of the cleaner, for the tracer.
    thread: AtomicU32,
}

impl Default for CleanerBell {
    fn default() -> Self {
        Self { state: AtomicU32::new(STOPPED), starter: Starter::default(), thread: AtomicU32::new(0) }
    }
}

impl CleanerBell {
    /// Calls the cleaner unless it is called. A load, as a rule.
    pub(crate) fn ring(&self) {
        self.ring_if(|| true);
    }

    pub(crate) fn ring_if(&self, is_needed: impl FnOnce() -> bool) {
        // Relaxed: the bell orders nothing; a ring that is missed comes again with the next dirty page met.
        if self.state.load(Relaxed) < CALLED && is_needed() {
            self.call();
        }
    }

    /// Calls for a round that begins after this call (SUPPLY-2).
    pub(crate) fn call(&self) {
        // AcqRel: pairs with the exchange of the cleaner that takes the call back, which so sees what the
        // caller did before. A larger state says that the cleaner is stopped.
        if self.state.fetch_max(CALLED, AcqRel) == ASLEEP {
            self.starter.start(); // CLEANER-1
        }
    }

    /// The cleaner's thread, if there is one.
    pub(crate) fn cleaner(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and show nothing. Relaxed: a hint.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.thread.load(Relaxed)) }
    }

    /// Calls start the cleaner by `start` from now on.
    pub(crate) fn begin(&self, start: impl Fn() + Send + Sync + 'static) {
        self.starter.set(start);
        // AcqRel: a read-modify-write, as all changes of the state.
        self.state.swap(ASLEEP, AcqRel);
    }

    /// The cleaner's job: a round after each call, until no call came during a round.
    pub(crate) fn serve(&self, supply: &FrameSupply, round: impl Fn()) {
        let serving = Serving(supply);
        // The call is taken back before the round (SUPPLY-2). AcqRel: pairs with `call`.
        while self.state.compare_exchange(CALLED, RUNNING, AcqRel, Relaxed).is_ok() {
            round();
            // AcqRel: pairs with `call`, which then begins another job.
            if self.state.compare_exchange(RUNNING, ASLEEP, AcqRel, Relaxed).is_ok() {
                break;
            }
        }
        std::mem::forget(serving);
    }

    /// Ends the life of the cleaner: a job that is called from now on does nothing.
    pub(crate) fn stop(&self, supply: &FrameSupply) {
        // AcqRel: a read-modify-write, so that no call that races with it can end up later in the state.
        self.state.swap(STOPPED, AcqRel);
        supply.end();
    }
}

/// Batches that one cleaning has in flight: one is copied, one waits for the double-write area, and two for
/// their pages' places.
const IN_FLIGHT: usize = 4;

/// The cleaner of a pool; dropping it ends its jobs.
#[derive(Debug)]
pub struct Cleaner {
    pool: Arc<BufferPool>,
    jobs: Arc<Group>,
}

impl Cleaner {
    /// Gives `pool` a cleaner: [jobs](azekura_base::background) that are started when pages are to be
    /// written. Without one, pages are written by misses and by [`BufferPool::clean`].
    ///
    /// # Errors
    ///
    /// The system gives no thread.
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
        pool.supply.begin();
        pool.bell.begin(move || {
            clean(); // refused only after `stop`
        });
        pool.write_queue.begin(IN_FLIGHT - 1, help);
        Ok(Self { pool, jobs })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.jobs.close(|| {
            self.pool.bell.stop(&self.pool.supply);
            self.pool.write_queue.end();
        });
    }
}

/// Misses wait for the cleaner as long as no round panics (SUPPLY-3).
struct Serving<'p>(&'p FrameSupply);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn run(pool: &BufferPool, jobs: &Group) {
    pool.bell.thread.store(azekura_trace::thread_tag().0, Relaxed); // a hint for the tracer
    pool.bell.serve(&pool.supply, || clean_round(pool, jobs));
}

/// Frees frames and writes batches until there is nothing to write, or few pages are dirty and no miss waits,
/// or jobs of other stores wait for a thread: then the next dirty page calls the cleaner again.
fn clean_round(pool: &BufferPool, jobs: &Group) {
    let most = pool.batch_pages() * pool.batches_in_flight();
    let is_stopped = || pool.bell.state.load(Relaxed) == STOPPED; // a flag
    pool.supply_frames();
    // An error reaches the miss that needs the frame, or the checkpoint; here it only ends this round.
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
