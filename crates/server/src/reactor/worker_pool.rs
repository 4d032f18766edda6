//! The worker pool: threads that wait for one job each. An idle thread has a slot in the list of idle
//! workers; the thread that became idle last receives the next job.
//!
//! | state word of a slot | meaning | set by |
//! |---|---|---|
//! | `EMPTY` | its thread is idle or works | its thread |
//! | `FULL` | the slot contains a job | the thread that submits a job |
//! | `END` | its thread must end | the thread that ends the pool |
//!
//! - **POOL-1** A slot is in the idle list exactly while its thread waits without a job. The thread that
//!   removes it from the list assigns a job to it, or ends it, at once.
//! - **POOL-2** A thread that stops waiting first checks, under the pool's mutex, whether its slot is still
//!   in the list. If it is not, a job is in flight to it.
//!
//! Model: `tests/loom_handover.rs`.

use std::time::{Duration, Instant};

use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use azekura_base::sync::{Arc, Condvar, Mutex, WaitWord};

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const END: u32 = 2;

/// Slot of a worker thread: the thread waits here for its next job.
#[derive(Debug)]
pub(crate) struct WorkerSlot<J> {
    word: WaitWord,
    job: Mutex<Option<J>>,
}

impl<J> WorkerSlot<J> {
    /// Creates a slot that already contains a job, for a new thread.
    pub(crate) fn with_job(job: J) -> Arc<Self> {
        Arc::new(Self { word: WaitWord::new(FULL), job: Mutex::new(Some(job)) })
    }

    fn put_job(&self, job: J) {
        *self.job.lock() = Some(job);
        self.set_word(FULL);
    }

    fn set_word(&self, word: u32) {
        // Release: pairs with the Acquire in `take_job`.
        self.word.word().store(word, Release);
        self.word.wake_one();
    }

    /// Takes the job of this slot, if there is one; `Err` if the thread must end.
    fn take_job(&self) -> Result<Option<J>, ()> {
        // Acquire: pairs with the Release in `set_word`.
        match self.word.word().load(Acquire) {
            END => Err(()),
            FULL => {
                // Relaxed: no other thread reads the word before the slot is in the idle list again, under
                // the mutex.
                self.word.word().store(EMPTY, Relaxed);
                Ok(self.job.lock().take())
            }
            _ => Ok(None),
        }
    }

    /// Removes the job after its thread could not be started.
    pub(crate) fn withdraw(&self) -> Option<J> {
        self.job.lock().take()
    }
}

/// Pool of worker threads; see the module's head.
#[derive(Debug)]
pub(crate) struct WorkerPool<J> {
    state: Mutex<State<J>>,
    /// Notified when the last thread has ended.
    all_ended: Condvar,
}

#[derive(Debug)]
struct State<J> {
    idle: Vec<Arc<WorkerSlot<J>>>,
    threads: usize,
    is_ending: bool,
}

impl<J> Default for WorkerPool<J> {
    fn default() -> Self {
        let state = State { idle: Vec::new(), threads: 0, is_ending: false };
        Self { state: Mutex::new(state), all_ended: Condvar::new() }
    }
}

impl<J> WorkerPool<J> {
    /// Submits a job to an idle thread.
    ///
    /// # Errors
    ///
    /// Returns the job if no thread is idle. The caller then starts one, after
    /// [`register_thread`](Self::register_thread).
    pub(crate) fn submit(&self, job: J) -> Result<(), J> {
        let Some(worker) = self.state.lock().idle.pop() else { return Err(job) };
        worker.put_job(job); // POOL-1
        Ok(())
    }

    /// Counts a thread that is about to start. Returns `false` if the pool is ending.
    pub(crate) fn register_thread(&self) -> bool {
        let mut state = self.state.lock();
        state.threads += usize::from(!state.is_ending);
        !state.is_ending
    }

    /// Removes a thread that has ended, or did not start, from the count.
    pub(crate) fn deregister_thread(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.all_ended.notify_all();
        }
    }

    /// Waits for the next job of the thread with this slot. Returns `None` if the thread must end: the pool
    /// is ending, or no job arrived within `limit`.
    pub(crate) fn next_job(&self, worker: &Arc<WorkerSlot<J>>, limit: Option<Duration>) -> Option<J> {
        if let Some(job) = worker.take_job().ok()? {
            return Some(job);
        }
        {
            let mut state = self.state.lock();
            if state.is_ending {
                return None;
            }
            state.idle.push(Arc::clone(worker));
        }
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            if let Some(job) = worker.take_job().ok()? {
                return Some(job);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && self.remove_idle(worker) {
                return None;
            }
            worker.word.wait(EMPTY, left.filter(|left| !left.is_zero()));
        }
    }

    /// Removes a slot from the idle list. Returns `false` if a job is in flight to it (POOL-2).
    fn remove_idle(&self, worker: &Arc<WorkerSlot<J>>) -> bool {
        let mut state = self.state.lock();
        let at = state.idle.iter().position(|idle| Arc::ptr_eq(idle, worker));
        at.map(|at| state.idle.remove(at)).is_some()
    }

    /// Ends the idle threads now, and each other thread when it becomes idle.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ending = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        idle.iter().for_each(|worker| worker.set_word(END));
    }

    /// Waits until no thread is left. Returns `false` if `limit` ends first.
    #[cfg(not(loom))] // a model has no time
    pub(crate) fn wait_for_none(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.threads > 0 {
            if self.all_ended.wait_until(&mut state, until).timed_out() {
                return state.threads == 0;
            }
        }
        true
    }
}
