//! Reactors: event loops, each with a share of the connections. A reactor is a value that any worker thread
//! can drive; the thread hands it over before it blocks. One thread owns a reactor at a time (REACT-1).
//!
//! The thread that drives a reactor serves the connections with input one after another: it reads, runs
//! every complete request, and replies. Connections with replies that wait for the log form a batch. When no
//! other work is left, the thread waits for the newest commit of the batch, which is one flush for all, and
//! sends the replies. Usually it writes that flush itself, so no other thread is woken. If flushes are short
//! (`commit_time`), the thread keeps its reactor meanwhile. If they are long, another thread drives the
//! reactor, and the requests that it runs form the next batch of the same *committer*. So a reactor needs
//! two threads for any number of commits: one runs requests, the other waits for the log.
//!
//! A request may *block*: on a lock of an interactive transaction, on a page read, or on the log. The store
//! announces that ([`azekura_base::blocking`]). The thread then hands its reactor to a spare thread, keeps
//! the connections that it is serving, and returns them when it is done. So a request that waits for a lock
//! never prevents the request that would release the lock. Page reads of many connections overlap, and one
//! thread runs the next batch while another waits for a flush. The number of threads that do not block is one
//! per reactor.
//!
//! | a connection is | in its slot | used by |
//! |---|---|---|
//! | idle or queued | `Slot::Present` | the reactor's thread |
//! | being served, or waiting for its commit | `Slot::Taken` | the thread that took it |
//! | closed | `Slot::Free` | – |
//!
//! - **REACT-1** A reactor is a value that one thread owns, or that its [`Mailbox`](mailbox::Mailbox) holds
//!   (MAILBOX-1). A connection is a value too: a slot or one thread owns it.
//! - **REACT-2** While a thread runs code that may block, its reactor is *offered* to the hook of that
//!   thread. The hook gives the reactor to another thread, or parks it in its mailbox if it has no other
//!   connection. Afterward the thread tries to reclaim it. The exception is a commit wait that is expected
//!   to be short: it waits for the log alone, which no connection of this reactor can delay.
//! - **REACT-3** A thread that gives a reactor away keeps only the connections that it is serving. Queued
//!   connections, and connections that wait for their commits, go with the reactor. Connections with requests
//!   in
//!   the thread's open group (`group`) stay with the thread until the group has ended.
//! - **REACT-4** An event for a taken connection is recorded (MAILBOX-4). The reactor serves the connection
//!   after its return.
//! - **REACT-5** Each connection is assigned to one of the reactors in use, by its number; `scaling` decides
//!   how many are in use. After a change of that number a reactor moves a connection that is assigned to
//!   another one: it frees the slot, deregisters the socket, and posts the connection. Registration at the
//!   new reactor reports pending input again.
//!
//! Threads: one per reactor, one per reactor for its commits if the device is slow, one per request that
//! blocks otherwise, and spare ones that end when idle. If the system refuses a new thread, the reactor
//! stays with the blocked thread until that thread continues. A wait for a lock then ends after 50 ms with an
//! error, because a connection of this reactor may hold the lock.

mod commit_time;
mod connection_table;
mod drive;
mod group_members;
mod known_rate;
mod mailbox;
mod reactor_pool;
mod scaling;
#[cfg(test)]
mod tests;
mod worker_pool;

use std::os::fd::AsRawFd;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::connection::Connection;
use connection_table::{ConnectionTable, MissedEvent};
use mailbox::Arrival;
use reactor_pool::ReactorSlot;

pub(crate) use reactor_pool::ReactorPool;

/// Largest number of events of one poll.
const EVENTS: usize = 1024;
/// Shortest interval between two checks of deadlines.
const TICK: Duration = Duration::from_millis(5);
/// Requests that a reactor counts locally before it updates the shared count.
const COUNTED: u64 = 256;
/// Token of the waker; tokens of connections are slot numbers.
const WAKE: Token = Token(usize::MAX);

/// A connection that returns to its slot; `None` if it has ended and only the slot is to be freed.
type Returned = Option<Box<Connection>>;

/// Event loop with its connections; see the module's head.
#[derive(Debug)]
pub(crate) struct Reactor {
    pool: Arc<ReactorPool>,
    number: usize,
    poll: Poll,
    events: Events,
    connections: ConnectionTable,
    /// Served connections that wait for their commits.
    #[expect(clippy::vec_box, reason = "connections move as boxes between slots, threads and lists")]
    waiting: Vec<Box<Connection>>,
    /// Time of the next check of deadlines.
    next_scan: Option<Instant>,
    /// Start of the commit delay of `waiting`.
    commit_delay_since: Option<Instant>,
    found: Vec<Arrival<Returned>>,
    missed: Vec<usize>,
    /// Number of reactors in use at the last check of assignments.
    known_in_use: usize,
    /// Requests not yet added to the shared count.
    uncounted: u64,
}

impl Reactor {
    fn new(pool: &Arc<ReactorPool>, number: usize, poll: Poll) -> Self {
        Self {
            pool: Arc::clone(pool),
            number,
            poll,
            events: Events::with_capacity(EVENTS),
            connections: ConnectionTable::default(),
            waiting: Vec::new(),
            next_scan: None,
            commit_delay_since: None,
            found: Vec::new(),
            missed: Vec::new(),
            known_in_use: pool.in_use(),
            uncounted: 0,
        }
    }

    fn slot(&self) -> &ReactorSlot {
        &self.pool.slots[self.number]
    }

    /// Returns `true` if this reactor has connections besides those that its thread is serving.
    fn has_other_connections(&self) -> bool {
        self.connections.present() > 0 || !self.waiting.is_empty()
    }

    /// Waits for events; returns at once if connections are queued.
    fn poll(&mut self, at_once: bool) {
        let timeout = if at_once || self.connections.queued() > 0 {
            Some(Duration::ZERO)
        } else {
            self.next_scan.map(|at| at.saturating_duration_since(Instant::now()))
        };
        // An interrupted poll is repeated in the next turn.
        let _ = self.poll.poll(&mut self.events, timeout);
        let mut is_called = false;
        for event in &self.events {
            let Token(token) = event.token();
            if event.token() == WAKE {
                is_called = true;
                continue;
            }
            let is_last = event.is_read_closed() || event.is_error();
            if self.connections.on_event(token, event.is_readable(), is_last) {
                self.missed.push(token);
            }
        }
        if is_called || !self.missed.is_empty() {
            self.collect();
        }
        if self.next_scan.is_some_and(|at| at <= Instant::now()) {
            self.scan();
        }
    }

    /// Collects the posted connections, after a thread other than the parking one has taken this reactor
    /// (MAILBOX-2).
    fn taken_over(mut self: Box<Self>) -> Box<Self> {
        self.collect();
        self
    }

    /// Collects the posted connections.
    fn collect(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        self.slot().mailbox.collect(&self.missed, &mut found);
        self.missed.clear();
        for Arrival { token, item, .. } in found.drain(..) {
            match (token, item) {
                (Some(token), item) => self.put_back(token, item),
                (None, Some(connection)) => self.register(connection),
                (None, None) => {}
            }
        }
        self.found = found;
    }

    /// Registers a new connection and gives it a slot.
    fn register(&mut self, mut connection: Box<Connection>) {
        let token = self.connections.reserve();
        let both = Interest::READABLE | Interest::WRITABLE;
        let socket = connection.socket().as_raw_fd();
        if self.poll.registry().register(&mut SourceFd(&socket), Token(token), both).is_err() {
            self.connections.release(token);
            return; // the kernel has no memory for the registration: the connection ends
        }
        connection.token = Some(token);
        self.put_connection(token, connection, MissedEvent::None);
    }

    /// Updates the shared request count, and moves the connections that are now assigned to another reactor.
    fn rebalance(&mut self) {
        if self.uncounted >= COUNTED {
            self.pool.count(std::mem::take(&mut self.uncounted));
        }
        let in_use = self.pool.in_use();
        if std::mem::replace(&mut self.known_in_use, in_use) == in_use {
            return;
        }
        for token in 0..self.connections.len() {
            let is_assigned = |connection: &Connection| self.pool.reactor_of(connection) == self.number;
            if let Some(connection) = self.connections.take_unwanted(token, is_assigned) {
                self.move_connection(token, connection);
            }
        }
    }

    /// Moves a connection to the reactor that it is assigned to. Registration there reports pending input.
    fn move_connection(&mut self, token: usize, mut connection: Box<Connection>) {
        let socket = connection.socket().as_raw_fd();
        // Failure means that the socket is closed and has no more events.
        let _ = self.poll.registry().deregister(&mut SourceFd(&socket));
        self.connections.release(token);
        connection.token = None;
        #[cfg(test)]
        self.pool.moved.fetch_add(1, Relaxed);
        self.pool.admit(connection);
    }

    /// Polls for requests that can share the flush of `waiting`. Returns `true` if some have arrived; they
    /// run first. Ends with the commit delay. Each connection joins at most once, because then it waits too.
    fn delays_commit(&mut self) -> bool {
        let since = *self.commit_delay_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.slot().commit_time.max_commit_delay() {
            self.poll(true);
            if self.connections.queued() > 0 {
                return true;
            }
        }
        self.commit_delay_since = None;
        false
    }

    /// Queues the waiting connections for the committer. Returns `false` if there is no committer; the caller
    /// then becomes the committer.
    fn queue_commits(&mut self) -> bool {
        let mut waiting = std::mem::take(&mut self.waiting);
        let is_queued = self.slot().mailbox.queue_commits(&mut waiting);
        self.waiting = waiting;
        is_queued
    }

    /// Handles a served connection: keeps it until its commits are durable, or sends its replies.
    fn served(&mut self, token: Option<usize>, mut served: Returned) {
        self.uncounted += served.as_mut().map_or(0, |connection| connection.take_request_count());
        match served {
            Some(connection) if connection.must_wait() => self.waiting.push(connection),
            Some(connection) => self.answer(connection),
            None => self.end(token),
        }
    }

    /// Sends the replies of a connection that this thread has taken. A connection that has ended is dropped
    /// in the next turn, while the reactor is offered (REACT-2): the rollback of its transaction may take
    /// long.
    fn answer(&mut self, mut connection: Box<Connection>) {
        drive::guarded(&mut connection, Connection::send);
        if let Some(token) = connection.token {
            self.forget_missed(token);
            self.put_back(token, Some(connection));
        }
    }

    fn end(&mut self, token: Option<usize>) {
        if let Some(token) = token {
            self.forget_missed(token);
            self.put_back(token, None);
        }
    }

    /// Removes the mailbox's record of a missed event for a connection of this thread: its slot records the
    /// event too (REACT-4).
    fn forget_missed(&self, token: usize) {
        if self.connections.missed(token) != MissedEvent::None {
            self.slot().mailbox.forget_missed(token);
        }
    }

    /// Returns a connection to its slot, or frees the slot if the connection has ended.
    fn put_back(&mut self, token: usize, connection: Returned) {
        let Some(mut connection) = connection else { return self.connections.release(token) };
        let missed = self.connections.missed(token);
        if missed >= MissedEvent::Input {
            connection.note_input(missed == MissedEvent::End);
        }
        self.put_connection(token, connection, missed);
    }

    /// Moves a connection to its reactor; if that is this one, stores it and queues it if it has work.
    fn put_connection(&mut self, token: usize, connection: Box<Connection>, missed: MissedEvent) {
        if self.pool.reactor_of(&connection) != self.number {
            return self.move_connection(token, connection);
        }
        if let Some(deadline) = connection.deadline() {
            let tick = self.next_scan.map_or(deadline, |at| at.min(deadline));
            self.next_scan = Some(tick);
        }
        // Unsent replies are tried again, because the event for space in the socket does not repeat.
        let is_wanted = connection.is_ready() || (missed != MissedEvent::None && connection.has_unsent());
        self.connections.put(token, connection, is_wanted);
    }

    /// Queues the connections with an expired deadline.
    fn scan(&mut self) {
        let now = Instant::now();
        let next = self.connections.queue_due(now);
        self.next_scan = next.map(|at| at.max(now + TICK));
    }
}
