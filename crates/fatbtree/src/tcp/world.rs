//! Clock, random numbers, tasks and threads of a real machine.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use crate::store::Offload;
use crate::world::{Clock, Rng, Spawn, Task};

/// The machine's monotonic clock, with tokio's timers.
#[derive(Debug)]
pub(super) struct RealClock(Instant);

impl RealClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) -> Task<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
}

/// Random numbers for pauses and choices between copies; not for secrets.
#[derive(Debug)]
pub(super) struct RealRng(RefCell<SmallRng>);

impl RealRng {
    pub(super) fn new() -> Self {
        Self(RefCell::new(SmallRng::from_rng(&mut rand::rng())))
    }
}

impl Rng for RealRng {
    fn next(&self) -> u64 {
        self.0.borrow_mut().next_u64()
    }
}

/// Spawner of tasks on the node's own thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalTasks;

impl Spawn for LocalTasks {
    fn spawn(&self, task: Task<'static, ()>) {
        tokio::task::spawn_local(task);
    }
}

/// Pool threads for jobs that may wait for the device or for another transaction (hazard B5). A job that has
/// a thread completes without any queued job. So a bounded number of threads is enough: a job waits only for
/// jobs that have a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads;

impl Offload for Threads {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> Task<'static, ()> {
        let done = tokio::task::spawn_blocking(job);
        Box::pin(async move {
            // The panic hook has reported a panic of the job. The task that waits for its result gets none.
            let _ = done.await;
        })
    }
}
