//! Groups: the jobs of one store, which are closed together.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::pool::{self, Job, Kind, Members, Pool};
use crate::sync::Mutex;

crate::per_thread! {
    // Address of the group of the job that this thread runs; 0 if the thread runs no job.
    static RUNS: Cell<usize> = const { Cell::new(0) };
}

/// Guard that marks this thread as running a job of a group.
struct Runs;

impl Runs {
    fn job_of(group: usize) -> Self {
        RUNS.set(group);
        Self
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        RUNS.set(0);
    }
}

/// Jobs of one kind that are closed together.
#[derive(Debug)]
pub struct Group {
    /// Pool of the group; `None` after the group was closed.
    pool: Mutex<Option<Arc<Pool>>>,
    members: Arc<Members>,
}

impl Group {
    /// Creates a group without jobs.
    ///
    /// # Errors
    ///
    /// The error of the system, if it cannot create a thread for this kind of jobs (JOBS-1).
    pub fn new(kind: Kind) -> io::Result<Arc<Self>> {
        let pool = pool::shared(kind)?;
        let members = Arc::new(Members::new(&pool));
        Ok(Arc::new(Self { pool: Mutex::new(Some(pool)), members }))
    }

    /// Starts a job. Returns `false` if the group is closed. If the system cannot create a thread, the job
    /// waits for a running thread.
    pub fn start(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.start_after(Duration::ZERO, job)
    }

    /// Starts a job as [`start`](Self::start) does, after a delay. [`close`](Self::close) drops the job if it
    /// has not begun.
    pub fn start_after(&self, delay: Duration, job: impl FnOnce() + Send + 'static) -> bool {
        // The lock is held until the job is accepted. With a clone, this thread could become the pool's last
        // owner if the job closes the group, and would then wait for the end of the job.
        let pool = self.pool.lock();
        let Some(pool) = &*pool else { return false };
        let group = Arc::as_ptr(&self.members).addr();
        let job: Job = Box::new(move || {
            let _runs = Runs::job_of(group);
            job();
        });
        pool.submit(&self.members, delay, job)
    }

    /// Returns `true` if jobs wait for a thread because the system or the limit allows no more threads.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        self.members.is_overdue()
    }

    /// Closes the group (JOBS-2): drops the jobs that have not begun, calls `wake`, which must make running
    /// jobs return, and waits for them. If a job of the group calls this, the calling job is not waited for.
    pub fn close(&self, wake: impl FnOnce()) {
        let Some(pool) = self.pool.lock().take() else { return };
        drop(pool.refuse(&self.members)); // not under a lock, because a job may own any object
        wake();
        let own = usize::from(RUNS.get() == Arc::as_ptr(&self.members).addr());
        pool.wait_until_running(&self.members, own);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get_mut().take() {
            drop(pool.refuse(&self.members));
        }
    }
}

type Start = Arc<dyn Fn() + Send + Sync>;

/// Starts the job of an object that has no reference to its group.
#[derive(Default)]
pub struct Starter(Mutex<Option<Start>>);

impl Starter {
    /// Sets the function that [`start`](Self::start) calls.
    pub fn set(&self, start: impl Fn() + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(start));
    }

    /// Calls the function, if it is set.
    pub fn start(&self) {
        let start = self.0.lock().clone();
        start.into_iter().for_each(|start| start());
    }
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Starter")
    }
}
