//! Thread pools: the threads of one kind of jobs.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::fork::Generation;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use crate::sync::thread::{self, Builder, JoinHandle};
use crate::sync::time::Instant;
use crate::sync::{Condvar, Mutex, MutexGuard, machine};

/// Number of idle threads of one kind that are kept: as many as one busy store needs most of the time.
pub const KEPT_IDLE: usize = 3;
/// Number of threads for pages in addition to one per processor. The cleaner of one store and its helpers
/// have four writes in flight, and a checkpoint runs beside them.
pub const PAGE_THREADS: usize = 4;

/// Kind of a job, which determines the events for which the job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Job of the log, which waits for no other job.
    Log,
    /// Job of the page cache, which waits for jobs of the log.
    Pages,
}

impl Kind {
    const fn thread_name(self) -> &'static str {
        match self {
            Self::Log => "azekura-log",
            Self::Pages => "azekura-pages",
        }
    }

    fn most_threads(self) -> usize {
        let most = match self {
            Self::Log => usize::MAX,
            Self::Pages => crate::processors() + PAGE_THREADS,
        };
        most.min(MOST_OF_SYSTEM.load(Relaxed)) // Relaxed: set before the first thread starts, if at all
    }
}

/// Largest number of threads of each kind, for tests. std's own atomic, because no protocol depends on it.
static MOST_OF_SYSTEM: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(usize::MAX);

/// Simulates a system that limits the number of this process's threads of each kind; for tests.
#[doc(hidden)]
pub fn limit_threads(most: usize) {
    MOST_OF_SYSTEM.store(most.max(1), Relaxed); // Relaxed: read by later calls of this thread or its jobs
}

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// State of a group in its pool.
#[derive(Debug)]
pub(super) struct Members {
    /// Number of running jobs. Changed under the pool's lock.
    running: AtomicUsize,
    /// Set when the group is closed, under the pool's lock.
    is_closed: AtomicBool,
    /// Notified when a job of the group has ended. Used with the pool's lock.
    ended: Condvar,
    pool: Arc<Inner>,
}

impl Members {
    pub(super) fn new(pool: &Pool) -> Self {
        Self {
            running: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            ended: Condvar::new(),
            pool: Arc::clone(&pool.inner),
        }
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.pool.is_overdue.load(Relaxed) // Relaxed: a hint; a job that misses it checks again
    }

    // Relaxed, here and below: accessed under the pool's lock.
    fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    fn begin(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    fn end(&self) {
        self.running.fetch_sub(1, Relaxed);
        self.ended.notify_all();
    }
}

/// A job that has not begun.
struct Waiting {
    members: Arc<Members>,
    job: Job,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Waiting>,
    /// Delayed jobs by due time and sequence number.
    delayed: BTreeMap<(Instant, u64), Waiting>,
    next_number: u64,
    threads: usize,
    /// Number of threads that were started and have not yet looked for a job.
    starting: usize,
    idle: usize,
    /// Set if one of the idle threads sleeps until the first delayed job is due.
    has_timekeeper: bool,
    is_ending: bool,
}

struct Inner {
    kind: Kind,
    /// Set on a simulated machine and in a model: each job gets its own thread.
    gives_each_its_own: bool,
    state: Mutex<State>,
    /// Signaled when a job arrives, and when the pool ends.
    changed: Condvar,
    /// Set if a job waits and no thread could be created for it.
    is_overdue: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Threads that run jobs. They end when the last group is dropped.
#[derive(Debug)]
pub(super) struct Pool {
    inner: Arc<Inner>,
}

/// The pools of a process, by kind.
#[derive(Debug)]
struct Pools {
    process: Generation,
    pools: Mutex<[Weak<Pool>; 2]>,
    /// The pools of a process that was forked from this one.
    forked: OnceLock<Box<Self>>,
}

impl Pools {
    fn new() -> Self {
        let pools = Mutex::new([Weak::new(), Weak::new()]);
        Self { process: Generation::current(), pools, forked: OnceLock::new() }
    }

    /// Returns the pools of this process (JOBS-3). The pools of a parent process are not used, because a
    /// thread that does not exist here may hold their lock.
    fn current() -> &'static Self {
        static FIRST: OnceLock<Pools> = OnceLock::new();
        let mut pools = FIRST.get_or_init(Self::new);
        while !pools.process.is_current() {
            pools = pools.forked.get_or_init(|| Box::new(Self::new()));
        }
        pools
    }
}

/// Returns the pool of this kind, which all groups of the process share. The pool has at least one thread.
pub(super) fn shared(kind: Kind) -> io::Result<Arc<Pool>> {
    if cfg!(loom) || machine::simulated().is_some() {
        return Ok(Arc::new(Pool::new(kind, true)));
    }
    let mut pools = Pools::current().pools.lock();
    let place = &mut pools[kind as usize];
    if let Some(pool) = place.upgrade() {
        return Ok(pool);
    }
    let pool = Arc::new(Pool::new(kind, false));
    {
        let mut state = pool.inner.state.lock();
        (state.threads, state.starting) = (1, 1);
    }
    pool.inner.spawn_thread()?;
    *place = Arc::downgrade(&pool);
    Ok(pool)
}

impl Pool {
    fn new(kind: Kind, gives_each_its_own: bool) -> Self {
        let inner = Inner {
            kind,
            gives_each_its_own,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            is_overdue: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Accepts a job of a group; returns `false` if the group is closed.
    pub(super) fn submit(&self, members: &Arc<Members>, delay: Duration, job: Job) -> bool {
        let members = Arc::clone(members);
        if self.inner.gives_each_its_own {
            return self.submit_alone(members, delay, job);
        }
        let mut state = self.inner.state.lock();
        if members.is_closed() {
            return false;
        }
        let waiting = Waiting { members, job };
        if delay.is_zero() {
            state.jobs.push_back(waiting);
        } else {
            let due = (Instant::now() + delay, state.next_number);
            state.next_number += 1;
            state.delayed.insert(due, waiting);
            if state.has_timekeeper {
                if state.delayed.first_key_value().is_some_and(|(first, _)| *first == due) {
                    self.inner.changed.notify_all(); // the timekeeper's timeout is too late for this job
                }
                return true;
            }
        }
        // Some of these threads may have been woken for earlier jobs.
        if state.idle + state.starting >= state.jobs.len().max(1) {
            self.inner.changed.notify_one();
            return true;
        }
        self.inner.add_thread(state);
        true
    }

    fn submit_alone(&self, members: Arc<Members>, delay: Duration, job: Job) -> bool {
        let state = self.inner.state.lock();
        if members.is_closed() {
            return false;
        }
        members.begin();
        drop(state);
        let (inner, counted) = (Arc::clone(&self.inner), Arc::clone(&members));
        let run = move || {
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            let is_closed = {
                let _state = inner.state.lock();
                members.is_closed()
            };
            if !is_closed {
                job();
            }
            let _state = inner.state.lock();
            members.end();
        };
        let has_started = Builder::new().name(self.inner.kind.thread_name().into()).spawn(run).is_ok();
        if !has_started {
            let _state = self.inner.state.lock();
            counted.end();
        }
        has_started
    }

    /// Closes a group: refuses later jobs, and returns the jobs that have not begun.
    pub(super) fn refuse(&self, members: &Arc<Members>) -> Vec<Job> {
        let mut state = self.inner.state.lock();
        members.is_closed.store(true, Relaxed);
        let is_of_group = |waiting: &Waiting| Arc::ptr_eq(&waiting.members, members);
        let (of_group, others): (Vec<_>, VecDeque<_>) = {
            let jobs = std::mem::take(&mut state.jobs);
            let (of_group, others): (VecDeque<_>, VecDeque<_>) = jobs.into_iter().partition(is_of_group);
            (of_group.into(), others)
        };
        state.jobs = others;
        let due: Vec<_> =
            state.delayed.iter().filter(|(_, waiting)| is_of_group(waiting)).map(|(&due, _)| due).collect();
        let delayed: Vec<_> = due.iter().filter_map(|due| state.delayed.remove(due)).collect();
        drop(state);
        of_group.into_iter().chain(delayed).map(|waiting| waiting.job).collect()
    }

    /// Waits until at most `running` jobs of the group run.
    pub(super) fn wait_until_running(&self, members: &Members, running: usize) {
        let mut state = self.inner.state.lock();
        while members.running.load(Relaxed) > running {
            members.ended.wait(&mut state);
        }
    }
}

impl Inner {
    /// Starts a thread that was already counted.
    fn spawn_thread(self: &Arc<Self>) -> io::Result<()> {
        let inner = Arc::clone(self);
        let thread = Builder::new().name(self.kind.thread_name().into()).spawn(move || inner.run_jobs())?;
        let mut threads = self.threads.lock();
        #[cfg(not(loom))]
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Starts a thread if one more is allowed. Otherwise a running thread takes the job later (JOBS-1).
    fn add_thread<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>) {
        if state.threads < self.kind.most_threads() {
            state.threads += 1;
            state.starting += 1;
            drop(state);
            if self.spawn_thread().is_ok() {
                return;
            }
            state = self.state.lock();
            state.threads -= 1;
            state.starting -= 1;
        }
        // Relaxed: changed under the lock.
        self.is_overdue.store(!state.jobs.is_empty() && state.idle == 0, Relaxed);
    }

    /// Runs jobs until the thread is not needed any more.
    fn run_jobs(self: &Arc<Self>) {
        self.state.lock().starting -= 1;
        while let Some(Waiting { members, job }) = self.next_job() {
            // The panic has been printed. State that the job protects has its own guard.
            let _ = catch_unwind(AssertUnwindSafe(job));
            let state = self.state.lock();
            members.end();
            drop(state);
            drop(members); // not under the lock
        }
    }

    /// Waits for a job. Returns `None` if the thread is not needed any more.
    fn next_job(self: &Arc<Self>) -> Option<Waiting> {
        let mut state = self.state.lock();
        loop {
            let now = if state.delayed.is_empty() { None } else { Some(Instant::now()) };
            while let Some(first) = state.delayed.first_entry()
                && Some(first.key().0) <= now
            {
                let due = first.remove();
                state.jobs.push_back(due);
            }
            if let Some(waiting) = state.jobs.pop_front() {
                waiting.members.begin();
                if state.jobs.is_empty() {
                    self.is_overdue.store(false, Relaxed); // Relaxed: changed under the lock
                }
                // Another thread waits for the delayed jobs, and takes jobs that became due together with
                // this one.
                let is_more = !(state.jobs.is_empty() && state.delayed.is_empty());
                match state.idle + state.starting {
                    0 if is_more => self.add_thread(state),
                    1.. if is_more => drop(self.changed.notify_one()),
                    _ => {}
                }
                return Some(waiting);
            }
            let next = state.delayed.first_key_value().map(|(&(due, _), _)| due);
            if state.is_ending || (state.idle >= KEPT_IDLE && (next.is_none() || state.has_timekeeper)) {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            match next.filter(|_| !state.has_timekeeper) {
                Some(due) => {
                    state.has_timekeeper = true;
                    self.changed.wait_for(&mut state, due.saturating_duration_since(Instant::now()));
                    state.has_timekeeper = false;
                }
                None => self.changed.wait(&mut state),
            }
            state.idle -= 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.inner.state.lock().is_ending = true;
        self.inner.changed.notify_all();
        let threads = std::mem::take(&mut *self.inner.threads.lock());
        for thread in threads {
            // The last group may be dropped by a job, on this thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
