//! Reactors: each waits for the events of its connections and serves them, on whichever thread has it.
//!
//! A thread that has a reactor takes the connections for which something arrived, one after another: it
//! reads, runs every whole request, and answers. Those whose replies have to wait for the log are put
//! together; when nothing else is there to be done the thread waits for the newest commit among them, which
//! is one flush for all, and answers them. Most often it writes that flush itself, and no other thread is
//! woken for it. Where the device is quick (`commit_time`) it keeps its reactor meanwhile. Where it is slow
//! the reactor goes to another thread, and what is run there is the next batch of the same *committer*: so a
//! reactor needs two threads for any number of commits, one that runs requests and one that waits for the
//! log.
//!
//! A request may *block*: on the lock of a transaction that stays open between requests, on a page that is
//! read from the device, on the log. The store announces that ([`azekura_base::blocking`]), and the thread
//! then hands its reactor to a spare thread, keeps the connections that it is working on, and gives these
//! back when it is done. So a request that waits for an interactive transaction's lock never keeps the
//! request that would let it go from running, reads of pages for many connections overlap on the device, and
//! while one thread waits for a flush another runs the next batch. Threads that do not block are one for each
//! reactor.
//!
//! | a connection is | in its slot | used by |
//! |---|---|---|
//! | resting or queued | `Slot::Here` | the reactor's thread |
//! | being served, or waiting for its commit | `Slot::Away` | the thread that took it out |
//! | gone | `Slot::Free` | – |
//!
//! - **REACT-1** A reactor is a value that one thread has, or that lies in its [`Place`](place::Place)
//!   (PLACE-1); a connection is a value too, in a slot or with one thread.
//! - **REACT-2** While a thread runs anything that may block, its reactor is *lent* to the hook of that
//!   thread: the hook gives it away, or leaves it in its place if it has no other connection, and afterwards
//!   the thread looks what is left of it. But for waits for commits that are expected to be short: those wait
//!   for the log alone, which no connection of this reactor can hold up.
//! - **REACT-3** A thread that gives a reactor away gives all of it but the connections that it works on:
//!   queued connections, and those that wait for their commits, go along. Connections with requests in the
//!   open group of the thread (`group`) are among those it works on: they wait with it for the group's end.
//! - **REACT-4** An event for a connection that is away is noted (PLACE-4); the connection is looked at when
//!   it is back.
//! - **REACT-5** A connection belongs to one of the reactors in use, by its number (`spread` says how many
//!   are). One that is elsewhere, since another number was in use, goes there when its reactor next looks:
//!   out of the slot, out of the poll, into the other one's post. What has arrived for it is told again by
//!   the other's poll.
//!
//! Threads: one for each reactor and one for its commits where the device is slow, one for each connection
//! that blocks otherwise, and spare ones that end after a while. Should the system give no more threads, a
//! reactor stays with its thread until that goes on.

mod commit_time;
mod company;
mod crew;
mod drive;
mod fleet;
mod place;
mod slots;
mod spread;
#[cfg(test)]
mod tests;

use std::os::fd::AsRawFd;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::connection::Connection;
use fleet::Seat;
use place::Arrival;
use slots::{Missed, Slots};

pub(crate) use fleet::Fleet;

/// Events taken at once.
const EVENTS: usize = 1024;
/// Deadlines are looked at this often at most.
const TICK: Duration = Duration::from_millis(5);
/// Requests that a reactor counts by itself before it tells the others.
const COUNTED: u64 = 256;
/// The waker's token; those of connections are their slots.
const WAKE: Token = Token(usize::MAX);

/// A connection on its way; the place alone is left when it has ended.
type Parcel = Option<Box<Connection>>;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Reactor {
    fleet: Arc<Fleet>,
    number: usize,
    poll: Poll,
    events: Events,
    slots: Slots,
    /// Served, but their commits are not known to be durable.
    #[expect(clippy::vec_box, reason = "connections move between slots, threads and here as boxes")]
    waiting: Vec<Box<Connection>>,
    /// Time of the next check of deadlines.
    next_scan: Option<Instant>,
    /// Since when events were looked for that may share the flush of `waiting`.
    gathers_since: Option<Instant>,
    found: Vec<Arrival<Parcel>>,
    missed: Vec<usize>,
    /// Reactors in use when connections were last looked through for those that belong elsewhere.
    known_in_use: usize,
    /// Requests that the others do not know of.
    uncounted: u64,
}

impl Reactor {
    fn new(fleet: &Arc<Fleet>, number: usize, poll: Poll) -> Self {
        Self {
            fleet: Arc::clone(fleet),
            number,
            poll,
            events: Events::with_capacity(EVENTS),
            slots: Slots::default(),
            waiting: Vec::new(),
            next_scan: None,
            gathers_since: None,
            found: Vec::new(),
            missed: Vec::new(),
            known_in_use: fleet.in_use(),
            uncounted: 0,
        }
    }

    fn seat(&self) -> &Seat {
        &self.fleet.seats[self.number]
    }

    /// Returns `true` if other connections of this reactor would wait.
    fn has_company(&self) -> bool {
        self.slots.here() > 0 || !self.waiting.is_empty()
    }

    /// Waits for events: not at all if something is to be done already.
    fn poll(&mut self, at_once: bool) {
        let timeout = if at_once || self.slots.queued() > 0 {
            Some(Duration::ZERO)
        } else {
            self.next_scan.map(|at| at.saturating_duration_since(Instant::now()))
        };
        // A signal: there will be another turn.
        let _ = self.poll.poll(&mut self.events, timeout);
        let mut is_called = false;
        for event in &self.events {
            let Token(token) = event.token();
            if event.token() == WAKE {
                is_called = true;
                continue;
            }
            let is_last = event.is_read_closed() || event.is_error();
            if self.slots.hear(token, event.is_readable(), is_last) {
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

    /// This reactor, taken out of its place by another thread than the one that left it: what was posted
    /// there comes along (PLACE-2).
    fn taken_over(mut self: Box<Self>) -> Box<Self> {
        self.collect();
        self
    }

    /// Takes in what was posted.
    fn collect(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        self.seat().place.collect(&self.missed, &mut found);
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

    /// Gives a new connection a slot.
    fn register(&mut self, mut connection: Box<Connection>) {
        let token = self.slots.reserve();
        let both = Interest::READABLE | Interest::WRITABLE;
        let socket = connection.socket().as_raw_fd();
        if self.poll.registry().register(&mut SourceFd(&socket), Token(token), both).is_err() {
            self.slots.release(token);
            return; // no memory for it in the kernel: the connection ends
        }
        connection.token = Some(token);
        self.settle(token, connection, Missed::None);
    }

    /// Counts what was served, and sends connections home that belong to another reactor by now.
    fn keep_spread(&mut self) {
        if self.uncounted >= COUNTED {
            self.fleet.count(std::mem::take(&mut self.uncounted));
        }
        let in_use = self.fleet.in_use();
        if std::mem::replace(&mut self.known_in_use, in_use) == in_use {
            return;
        }
        for token in 0..self.slots.len() {
            let is_home = |connection: &Connection| self.fleet.home(connection) == self.number;
            if let Some(connection) = self.slots.take_unwanted(token, is_home) {
                self.send_home(token, connection);
            }
        }
    }

    /// Gives a connection to the reactor that it belongs to. What has arrived for it is told there as soon as
    /// it is registered.
    fn send_home(&mut self, token: usize, mut connection: Box<Connection>) {
        let socket = connection.socket().as_raw_fd();
        // Of a socket that is gone there are no more events either way.
        let _ = self.poll.registry().deregister(&mut SourceFd(&socket));
        self.slots.release(token);
        connection.token = None;
        #[cfg(test)]
        self.fleet.moved.fetch_add(1, Relaxed);
        self.fleet.admit(connection);
    }

    /// Looks for what may share the flush of those that wait, and tells whether there is some, to be run
    /// first: as long as clients send while others of theirs are run, but no longer than it pays. A
    /// connection comes once at most: then it waits too.
    fn gathers(&mut self) -> bool {
        let since = *self.gathers_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.seat().commit_time.worth_gathering() {
            self.poll(true);
            if self.slots.queued() > 0 {
                return true;
            }
        }
        self.gathers_since = None;
        false
    }

    /// Leaves the connections that wait for their commits to the committer; `false`: there is none, so the
    /// caller is it.
    fn queue_commits(&mut self) -> bool {
        let mut waiting = std::mem::take(&mut self.waiting);
        let is_queued = self.seat().place.queue_commits(&mut waiting);
        self.waiting = waiting;
        is_queued
    }

    /// Continues with a connection that this thread has served: it waits for its commit, or is answered.
    fn served(&mut self, token: Option<usize>, mut served: Parcel) {
        self.uncounted += served.as_mut().map_or(0, |connection| connection.take_ran());
        match served {
            Some(connection) if connection.must_wait() => self.waiting.push(connection),
            Some(connection) => self.answer(connection),
            None => self.end(token),
        }
    }

    /// Answers a connection that this thread took out.
    fn answer(&mut self, mut connection: Box<Connection>) {
        drive::guarded(&mut connection, Connection::send);
        let token = connection.token;
        if connection.is_over() {
            drive::discard(connection);
            return self.end(token);
        }
        if let Some(token) = token {
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

    /// Events that came for a connection of our own need no note: its slot knows (REACT-4).
    fn forget_missed(&self, token: usize) {
        if self.slots.missed(token) != Missed::None {
            self.seat().place.forget_missed(token);
        }
    }

    /// A connection is back in its slot, or has ended.
    fn put_back(&mut self, token: usize, connection: Parcel) {
        let Some(mut connection) = connection else { return self.slots.release(token) };
        let missed = self.slots.missed(token);
        if missed >= Missed::Input {
            connection.heard(missed == Missed::End);
        }
        self.settle(token, connection, missed);
    }

    fn settle(&mut self, token: usize, connection: Box<Connection>, missed: Missed) {
        if self.fleet.home(&connection) != self.number {
            return self.send_home(token, connection);
        }
        if let Some(deadline) = connection.deadline() {
            let tick = self.next_scan.map_or(deadline, |at| at.min(deadline));
            self.next_scan = Some(tick);
        }
        // Replies that wait for room are tried again: the event that there is some does not come twice.
        let is_wanted = connection.is_ready() || (missed != Missed::None && connection.has_unsent());
        self.slots.put(token, connection, is_wanted);
    }

    /// Queues the connections with a deadline that has passed.
    fn scan(&mut self) {
        let now = Instant::now();
        let next = self.slots.queue_due(now);
        self.next_scan = next.map(|at| at.max(now + TICK));
    }
}
