//! The crew: threads that wait for a job each, the one that rested last is given the next.
//!
//! | a bunk's word | means | left by |
//! |---|---|---|
//! | `EMPTY` | its thread rests, or works | a thread that gives it a job, or ends the pool |
//! | `FULL` | a job lies in it | its thread |
//! | `END` | its thread is to end | – |
//!
//! - **CREW-1** A worker slot is among the idle ones exactly while its thread rests without a job: the thread
//!   that takes it from there gives it a job, or ends it, at once.
//! - **CREW-2** So a thread that is tired of resting looks, under the crew's mutex, whether its bunk is still
//!   there: if not, a job is on its way.
//!
//! Model: `tests/loom_handover.rs`.

use std::time::{Duration, Instant};

use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use azekura_base::sync::{Arc, Condvar, Mutex, WaitWord};

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const END: u32 = 2;

/// Slot of a worker thread: the thread rests here and finds its next job.
#[derive(Debug)]
pub(crate) struct Bunk<J> {
    word: WaitWord,
    job: Mutex<Option<J>>,
}

impl<J> Bunk<J> {
    /// A bunk in which a job lies already, for a new thread.
    pub(crate) fn with(job: J) -> Arc<Self> {
        Arc::new(Self { word: WaitWord::new(FULL), job: Mutex::new(Some(job)) })
    }

    fn fill(&self, job: J) {
        *self.job.lock() = Some(job);
        self.leave_word(FULL);
    }

    fn leave_word(&self, word: u32) {
        // Release: pairs with the Acquire in `look`.
        self.word.word().store(word, Release);
        self.word.wake_one();
    }

    /// The job that lies here, if any; `Err` if the thread is to end.
    fn look(&self) -> Result<Option<J>, ()> {
        // Acquire: pairs with the Release in `leave_word`.
        match self.word.word().load(Acquire) {
            END => Err(()),
            FULL => {
                // Relaxed: nobody looks at it before it is among the idle ones again.
                self.word.word().store(EMPTY, Relaxed);
                Ok(self.job.lock().take())
            }
            _ => Ok(None),
        }
    }

    /// Takes the job out again: its thread could not be started.
    pub(crate) fn take(&self) -> Option<J> {
        self.job.lock().take()
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Crew<J> {
    state: Mutex<State<J>>,
    /// Told when the last one has gone.
    gone: Condvar,
}

#[derive(Debug)]
struct State<J> {
    idle: Vec<Arc<Bunk<J>>>,
    threads: usize,
    is_ending: bool,
}

impl<J> Default for Crew<J> {
    fn default() -> Self {
        let state = State { idle: Vec::new(), threads: 0, is_ending: false };
        Self { state: Mutex::new(state), gone: Condvar::new() }
    }
}

impl<J> Crew<J> {
    /// Gives the job to a thread that rests.
    ///
    /// # Errors
    ///
    /// It comes back if none rests: start one, after [`enlist`](Self::enlist).
    pub(crate) fn give(&self, job: J) -> Result<(), J> {
        let Some(bunk) = self.state.lock().idle.pop() else { return Err(job) };
        bunk.fill(job); // CREW-1
        Ok(())
    }

    /// Counts a thread that is about to start, or not if the crew is ending.
    pub(crate) fn enlist(&self) -> bool {
        let mut state = self.state.lock();
        state.threads += usize::from(!state.is_ending);
        !state.is_ending
    }

    /// Counts a thread off that has ended, or did not start.
    pub(crate) fn discharge(&self) {
        let mut state = self.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.gone.notify_all();
        }
    }

    /// The next job of the thread with this bunk; `None`: end, since the crew does or nobody needed it for
    /// `patience`.
    pub(crate) fn rest(&self, bunk: &Arc<Bunk<J>>, patience: Option<Duration>) -> Option<J> {
        if let Some(job) = bunk.look().ok()? {
            return Some(job);
        }
        {
            let mut state = self.state.lock();
            if state.is_ending {
                return None;
            }
            state.idle.push(Arc::clone(bunk));
        }
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(job) = bunk.look().ok()? {
                return Some(job);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && self.leave(bunk) {
                return None;
            }
            bunk.word.wait(EMPTY, left.filter(|left| !left.is_zero()));
        }
    }

    /// Takes a bunk from the idle ones; `false`: a job is on its way to it (CREW-2).
    fn leave(&self, bunk: &Arc<Bunk<J>>) -> bool {
        let mut state = self.state.lock();
        let at = state.idle.iter().position(|idle| Arc::ptr_eq(idle, bunk));
        at.map(|at| state.idle.remove(at)).is_some()
    }

    /// Ends the threads that rest, and each of the others when it comes to rest.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ending = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        idle.iter().for_each(|bunk| bunk.leave_word(END));
    }

    /// Waits until no thread is left; `false` if `patience` ends before.
    #[cfg(not(loom))] // a model has no time
    pub(crate) fn wait_for_none(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.threads > 0 {
            if self.gone.wait_until(&mut state, until).timed_out() {
                return state.threads == 0;
            }
        }
        true
    }
}
