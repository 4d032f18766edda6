//! All reactors of a server, the threads that drive them, and the number of reactors in use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use parking_lot::Mutex;

use super::commit_time::CommitTime;
use super::mailbox::{Arrival, Mailbox, Posted};
use super::scaling::Scaling;
use super::worker_pool::{WorkerPool, WorkerSlot};
use super::{Reactor, Returned, WAKE, drive};
use crate::connection::Connection;

/// Stack size of a thread; only touched pages take memory.
const STACK_BYTES: usize = 1 << 20;

/// All reactors, and the threads that drive them.
#[derive(Debug)]
pub(crate) struct ReactorPool {
    pub(super) slots: Vec<ReactorSlot>,
    pub(super) workers: WorkerPool<Box<Reactor>>,
    pub(super) is_stopping: AtomicBool,
    /// Number of reactors with connections: a connection is assigned by its number modulo this.
    in_use: AtomicUsize,
    /// Chooses the number of reactors in use; `None` if all reactors are always in use.
    scaling: Option<Mutex<Scaling>>,
    /// Requests served, in multiples of about [`COUNTED`](super::COUNTED).
    served: AtomicU64,
    /// Connections that moved from one reactor to another.
    #[cfg(test)]
    pub(crate) moved: AtomicU64,
}

/// The part of a reactor that other threads use.
#[derive(Debug)]
pub(super) struct ReactorSlot {
    pub(super) mailbox: Mailbox<Box<Reactor>, Returned, Box<Connection>>,
    waker: Waker,
    pub(super) commit_time: CommitTime,
}

impl ReactorPool {
    /// Starts `reactors` reactors with a thread each. With `adapts`, the connections use the smallest number
    /// of reactors that serves the most requests.
    pub(crate) fn start(reactors: usize, adapts: bool) -> io::Result<Arc<Self>> {
        let (pool, reactors) = Self::idle(reactors, adapts)?;
        for reactor in reactors {
            if pool.assign_thread(reactor).is_err() {
                pool.stop(Duration::ZERO);
                return Err(io::Error::other("the system cannot create more threads"));
            }
        }
        Ok(pool)
    }

    /// Creates reactors without threads.
    #[expect(clippy::vec_box, reason = "reactors move as boxes between mailboxes and threads")]
    pub(super) fn idle(reactors: usize, adapts: bool) -> io::Result<(Arc<Self>, Vec<Box<Reactor>>)> {
        let reactors = reactors.max(1);
        let polls: Vec<Poll> = (0..reactors).map(|_| Poll::new()).collect::<io::Result<_>>()?;
        let slot = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WAKE)?;
            Ok(ReactorSlot { mailbox: Mailbox::default(), waker, commit_time: CommitTime::default() })
        };
        let pool = Arc::new(Self {
            slots: polls.iter().map(slot).collect::<io::Result<_>>()?,
            workers: WorkerPool::default(),
            is_stopping: AtomicBool::new(false),
            in_use: AtomicUsize::new(if adapts { 1 } else { reactors }),
            scaling: adapts.then(|| Mutex::new(Scaling::new(reactors))),
            served: AtomicU64::new(0),
            #[cfg(test)]
            moved: AtomicU64::new(0),
        });
        let polls = polls.into_iter().enumerate();
        let reactors = polls.map(|(number, poll)| Box::new(Reactor::new(&pool, number, poll))).collect();
        Ok((pool, reactors))
    }

    /// Returns the number of reactors in use.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed) // Relaxed: a reader of the old number reads it again in its next turn
    }

    /// Returns the number of the reactor that a connection is assigned to.
    pub(super) fn reactor_of(&self, connection: &Connection) -> usize {
        (connection.id() % self.in_use() as u64) as usize
    }

    /// Adds `requests` to the requests served.
    pub(super) fn count(&self, requests: u64) {
        let Some(scaling) = &self.scaling else { return };
        // Relaxed: a count; the number in use orders nothing.
        let served = self.served.fetch_add(requests, Relaxed) + requests;
        let Some(mut scaling) = scaling.try_lock() else { return };
        if let Some(count) = scaling.update(served, Instant::now()) {
            self.in_use.store(count, Relaxed);
        }
    }

    /// Sets the number of reactors in use.
    #[cfg(test)]
    pub(crate) fn use_reactors(&self, count: usize) {
        self.in_use.store(count, Relaxed);
    }

    /// Accepts a new connection with a nonblocking, unregistered socket.
    pub(crate) fn admit(self: &Arc<Self>, connection: Box<Connection>) {
        let number = self.reactor_of(&connection);
        let arrival = Arrival { token: None, item: Some(connection), is_ready: true };
        match self.slots[number].mailbox.post(arrival) {
            Posted::Quiet => {}
            Posted::Wake => self.wake(number),
            Posted::Take(reactor) => {
                // No thread is available: the reactor stays parked until its own thread, or the next one
                // that posts, takes it.
                if let Err(reactor) = self.assign_thread(reactor.taken_over()) {
                    self.slots[number].mailbox.park_always(reactor);
                }
            }
            Posted::Closed(_) => {}
        }
    }

    /// Gives the reactor to a spare thread, or to a new one.
    pub(super) fn assign_thread(self: &Arc<Self>, reactor: Box<Reactor>) -> Result<(), Box<Reactor>> {
        let Err(reactor) = self.workers.submit(reactor) else { return Ok(()) };
        if !self.workers.register_thread() {
            return Err(reactor);
        }
        let (pool, worker) = (Arc::clone(self), WorkerSlot::with_job(reactor));
        let for_thread = Arc::clone(&worker);
        let body = move || drive::work(&pool, &for_thread);
        let builder = std::thread::Builder::new().name("azekura-reactor".into()).stack_size(STACK_BYTES);
        if builder.spawn(body).is_ok() {
            return Ok(());
        }
        self.workers.deregister_thread();
        worker.withdraw().map_or(Ok(()), Err)
    }

    pub(super) fn wake(&self, number: usize) {
        // The call fails if the waker's counter is full; the driver is awake then.
        let _ = self.slots[number].waker.wake();
    }

    /// Ends all threads that do not block, and drops the remaining connections. Returns `true` if all
    /// threads have ended within `limit`.
    pub(crate) fn stop(&self, limit: Duration) -> bool {
        self.is_stopping.store(true, Relaxed);
        for (number, slot) in self.slots.iter().enumerate() {
            drop(slot.mailbox.close());
            self.wake(number);
        }
        self.workers.end();
        self.workers.wait_for_none(limit)
    }
}
