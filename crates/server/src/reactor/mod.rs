//! Reactors: each waits for the events of its connections and serves them, on whichever thread has it.
//!
//! A thread that has a reactor takes the connections for which something arrived, one after another: it reads, runs every whole request, and answers.
//! Those whose replies have to wait for the log are put together; when nothing else is there to be done the thread waits for the newest commit
//! among them, which is one flush for all, and answers them. Most often it writes that flush itself, and no other thread is woken for it. Where the device is
//! quick (`commit_time`) it keeps its reactor meanwhile. Where it is slow the reactor goes to another thread, and what is run there is the next batch of
//! the same *committer*: so a reactor needs two threads for any number of commits, one that runs requests and one that waits for the log.
//!
//! A request may *block*: on the lock of a transaction that stays open between requests, on a page that is read from the device, on
//! the log. The store announces that ([`azekura_base::blocking`]), and the thread then hands its reactor to a spare thread, keeps the connections that it is
//! working on, and gives these back when it is done. So a request that waits for an interactive transaction's lock never keeps the request that
//! would let it go from running, reads of pages for many connections overlap on the device, and while one thread waits for a flush another
//! runs the next batch. Threads that do not block are one for each reactor.
//!
//! | a connection is | in its slot | who may use it |
//! |---|---|---|
//! | resting or queued | [`Slot::Here`] | the reactor's thread |
//! | being served, or waiting for its commit | [`Slot::Away`] | the thread that took it out |
//! | gone | [`Slot::Free`] | – |
//!
//! - **REACT-1** A reactor is a value that one thread has, or that lies in its [`Place`] (PLACE-1); a connection is a value too, in a slot or with one thread.
//! - **REACT-2** While a thread runs anything that may block, its reactor is *lent* to the hook of that thread: the hook gives it away, or leaves it
//!   in its place if it has no other connection, and afterwards the thread looks what is left of it. But for waits for commits that are expected
//!   to be short: those wait for the log alone, which no connection of this reactor can hold up.
//! - **REACT-3** Who gives a reactor away gives all of it but the connections it works on: those queued, and those that wait for their commits, go along.
//! - **REACT-4** An event for a connection that is away is noted (PLACE-4); the connection is looked at when it is back.
//! - **REACT-5** A connection belongs to one of the reactors in use, by its number (`spread` says how many are). One that is elsewhere, since another number was in use, goes there when
//!   its reactor next looks: out of the slot, out of the poll, into the other one's post. What has arrived for it is told again by the other's poll.
//!
//! Threads: one for each reactor and one for its commits where the device is slow, one for each connection that blocks otherwise, and spare ones that end after a while. Should the system give no more threads,
//! a reactor stays with its thread until that goes on.

mod commit_time;
mod crew;
mod drive;
mod place;
mod spread;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;

use crate::connection::Connection;
use commit_time::CommitTime;
use crew::{Bunk, Crew};
use place::{Arrival, Place, Posted};
use spread::Spread;

/// Events taken at once.
const EVENTS: usize = 1024;
/// Deadlines are looked at this often at most.
const TICK: Duration = Duration::from_millis(5);
/// A spare thread that nobody needs for so long ends.
const SPARE_PATIENCE: Duration = Duration::from_secs(10);
/// Stack of a thread; only what is used of it takes memory.
const STACK_BYTES: usize = 1 << 20;
/// Requests that a reactor counts by itself before it tells the others.
const COUNTED: u64 = 256;
/// The waker's token; those of connections are their slots.
const WAKE: Token = Token(usize::MAX);

/// A connection on its way; the place alone is left when it has ended.
type Parcel = Option<Box<Connection>>;

/// All reactors, and the threads that drive them.
#[derive(Debug)]
pub(crate) struct Fleet {
    seats: Vec<Seat>,
    crew: Crew<Box<Reactor>>,
    is_stopping: AtomicBool,
    /// Reactors that the connections are spread over: a connection's home is one of these, by its number.
    in_use: AtomicUsize,
    /// Decides that; `None`: all of them are in use, always.
    spread: Option<Mutex<Spread>>,
    /// Requests served, counted by the [`COUNTED`].
    served: AtomicU64,
    /// Connections that went from one reactor to another.
    #[cfg(test)]
    pub(crate) moved: AtomicU64,
}

/// What others see of a reactor.
#[derive(Debug)]
struct Seat {
    place: Place<Box<Reactor>, Parcel, Box<Connection>>,
    waker: Waker,
    commit_time: CommitTime,
}

impl Fleet {
    /// Starts so many reactors, each on a thread; `adapts`: uses as many of them as serve the most.
    pub(crate) fn start(reactors: usize, adapts: bool) -> io::Result<Arc<Self>> {
        let reactors = reactors.max(1);
        let polls: Vec<Poll> = (0..reactors).map(|_| Poll::new()).collect::<io::Result<_>>()?;
        let seat = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WAKE)?;
            Ok(Seat { place: Place::default(), waker, commit_time: CommitTime::default() })
        };
        let fleet = Arc::new(Self {
            seats: polls.iter().map(seat).collect::<io::Result<_>>()?,
            crew: Crew::default(),
            is_stopping: AtomicBool::new(false),
            in_use: AtomicUsize::new(if adapts { 1 } else { reactors }),
            spread: adapts.then(|| Mutex::new(Spread::new(reactors))),
            served: AtomicU64::new(0),
            #[cfg(test)]
            moved: AtomicU64::new(0),
        });
        for (number, poll) in polls.into_iter().enumerate() {
            if fleet.employ(Box::new(Reactor::new(&fleet, number, poll))).is_err() {
                fleet.stop(Duration::ZERO);
                return Err(io::Error::other("the system gives no more threads"));
            }
        }
        Ok(fleet)
    }

    /// Where a connection belongs.
    fn home(&self, connection: &Connection) -> usize {
        // Relaxed: who sees the old number moves it later.
        (connection.id() % self.in_use.load(Relaxed) as u64) as usize
    }

    /// A reactor has served so many requests more.
    fn count(&self, requests: u64) {
        let Some(spread) = &self.spread else { return };
        // Relaxed: a count; the number in use orders nothing.
        let served = self.served.fetch_add(requests, Relaxed) + requests;
        let Some(mut spread) = spread.try_lock() else { return };
        if let Some(count) = spread.look(served, Instant::now()) {
            self.in_use.store(count, Relaxed);
        }
    }

    /// Spreads the connections over so many reactors from now on.
    #[cfg(test)]
    pub(crate) fn use_reactors(&self, count: usize) {
        self.in_use.store(count, Relaxed);
    }

    /// Takes a connection in, whose socket does not block and which no reactor has registered.
    pub(crate) fn admit(self: &Arc<Self>, connection: Box<Connection>) {
        let number = self.home(&connection);
        let arrival = Arrival { token: None, item: Some(connection), is_ready: true };
        match self.seats[number].place.post(arrival) {
            Posted::Quiet => {}
            Posted::Wake => self.wake(number),
            Posted::Take(reactor) => {
                // No thread to be had: it lies where its own thread will find it, or the next one that comes by.
                if let Err(reactor) = self.employ(reactor.taken_over()) {
                    self.seats[number].place.put(reactor);
                }
            }
            Posted::Closed(_) => {}
        }
    }

    /// Gives the reactor to a spare thread, or to a new one.
    fn employ(self: &Arc<Self>, reactor: Box<Reactor>) -> Result<(), Box<Reactor>> {
        let Err(reactor) = self.crew.give(reactor) else { return Ok(()) };
        if !self.crew.enlist() {
            return Err(reactor);
        }
        let (fleet, bunk) = (Arc::clone(self), Bunk::with(reactor));
        let for_thread = Arc::clone(&bunk);
        let body = move || drive::work(&fleet, &for_thread);
        let builder = std::thread::Builder::new().name("azekura-door".into()).stack_size(STACK_BYTES);
        if builder.spawn(body).is_ok() {
            return Ok(());
        }
        self.crew.discharge();
        bunk.take().map_or(Ok(()), Err)
    }

    fn wake(&self, number: usize) {
        // It fails if the counter is full, so awake already.
        let _ = self.seats[number].waker.wake();
    }

    /// Ends all threads that do not block, and drops what connections are left; whether none is left within `patience`.
    pub(crate) fn stop(&self, patience: Duration) -> bool {
        self.is_stopping.store(true, Relaxed);
        for (number, seat) in self.seats.iter().enumerate() {
            drop(seat.place.close());
            self.wake(number);
        }
        self.crew.end();
        self.crew.wait_for_none(patience)
    }
}

/// Where a connection is.
#[derive(Debug)]
enum Slot {
    Free,
    Here {
        connection: Box<Connection>,
        is_queued: bool,
    },
    /// With a thread; whether an event came meanwhile.
    Away {
        is_missed: bool,
    },
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Reactor {
    fleet: Arc<Fleet>,
    number: usize,
    poll: Poll,
    events: Events,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots that are [`Slot::Here`].
    here: usize,
    queue: VecDeque<usize>,
    /// Served, but their commits are not known to be durable.
    #[expect(clippy::vec_box, reason = "connections move between slots, threads and here as boxes")]
    waiting: Vec<Box<Connection>>,
    /// When deadlines have to be looked at.
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
            slots: Vec::new(),
            free: Vec::new(),
            here: 0,
            queue: VecDeque::new(),
            waiting: Vec::new(),
            next_scan: None,
            gathers_since: None,
            found: Vec::new(),
            missed: Vec::new(),
            known_in_use: fleet.in_use.load(Relaxed),
            uncounted: 0,
        }
    }

    fn seat(&self) -> &Seat {
        &self.fleet.seats[self.number]
    }

    /// Whether there is anyone who would be kept waiting.
    fn has_company(&self) -> bool {
        self.here > 0 || !self.waiting.is_empty()
    }

    /// Waits for events: not at all if something is to be done already.
    fn poll(&mut self, at_once: bool) {
        let timeout = if at_once || !self.queue.is_empty() {
            Some(Duration::ZERO)
        } else {
            self.next_scan.map(|at| at.saturating_duration_since(Instant::now()))
        };
        // A signal: there will be another turn.
        let _ = self.poll.poll(&mut self.events, timeout);
        let mut is_called = false;
        for event in &self.events {
            let Token(at) = event.token();
            if event.token() == WAKE {
                is_called = true;
                continue;
            }
            match self.slots.get_mut(at) {
                Some(Slot::Here { connection, is_queued }) => {
                    let is_last = event.is_read_closed() || event.is_error();
                    if event.is_readable() || is_last {
                        connection.heard(is_last);
                    }
                    let is_wanted = connection.is_ready() || connection.has_unsent();
                    if is_wanted && !std::mem::replace(is_queued, true) {
                        self.queue.push_back(at);
                    }
                }
                Some(Slot::Away { is_missed }) => {
                    if !std::mem::replace(is_missed, true) {
                        self.missed.push(at);
                    }
                }
                // Of a socket that was closed since.
                Some(Slot::Free) | None => {}
            }
        }
        if is_called || !self.missed.is_empty() {
            self.collect();
        }
        if self.next_scan.is_some_and(|at| at <= Instant::now()) {
            self.scan();
        }
    }

    /// This reactor, taken out of its place by another thread than the one that left it: what was posted there comes along (PLACE-2).
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
        let token = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        let socket = connection.socket().as_raw_fd();
        if self.poll.registry().register(&mut SourceFd(&socket), Token(token), both).is_err() {
            self.free.push(token);
            return; // no memory for it in the kernel: the connection ends
        }
        connection.token = Some(token);
        self.settle(token, connection);
    }

    /// Counts what was served, and sends connections home that belong to another reactor by now.
    fn keep_spread(&mut self) {
        if self.uncounted >= COUNTED {
            self.fleet.count(std::mem::take(&mut self.uncounted));
        }
        // Relaxed: any time soon will do.
        let in_use = self.fleet.in_use.load(Relaxed);
        if std::mem::replace(&mut self.known_in_use, in_use) == in_use {
            return;
        }
        for token in 0..self.slots.len() {
            let Slot::Here { connection, is_queued: false } = &self.slots[token] else { continue };
            if self.fleet.home(connection) == self.number {
                continue;
            }
            if let Slot::Here { connection, .. } = std::mem::replace(&mut self.slots[token], Slot::Free) {
                self.here -= 1;
                self.send_home(token, connection);
            }
        }
    }

    /// Gives a connection to the reactor that it belongs to. What has arrived for it is told there as soon as it is registered.
    fn send_home(&mut self, token: usize, mut connection: Box<Connection>) {
        let socket = connection.socket().as_raw_fd();
        // Of a socket that is gone there are no more events either way.
        let _ = self.poll.registry().deregister(&mut SourceFd(&socket));
        self.slots[token] = Slot::Free;
        self.free.push(token);
        connection.token = None;
        #[cfg(test)]
        self.fleet.moved.fetch_add(1, Relaxed);
        self.fleet.admit(connection);
    }

    /// Looks for what may share the flush of those that wait, and tells whether there is some, to be run first: as long as clients send while others of theirs are run, but
    /// no longer than it pays. A connection comes once at most: then it waits too.
    fn gathers(&mut self) -> bool {
        let since = *self.gathers_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.seat().commit_time.worth_gathering() {
            self.poll(true);
            if !self.queue.is_empty() {
                return true;
            }
        }
        self.gathers_since = None;
        false
    }

    /// Leaves the connections that wait for their commits to the committer; `false`: there is none, so the caller is it.
    fn queue_commits(&mut self) -> bool {
        let mut waiting = std::mem::take(&mut self.waiting);
        let is_queued = self.seat().place.queue_commits(&mut waiting);
        self.waiting = waiting;
        is_queued
    }

    /// What became of a connection that this thread took out and served: it waits for its commit, or is answered.
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
        if matches!(self.slots.get(token), Some(Slot::Away { is_missed: true })) {
            self.seat().place.forget_missed(token);
        }
    }

    /// A connection is back in its slot, or has ended.
    fn put_back(&mut self, token: usize, connection: Parcel) {
        let is_missed = matches!(self.slots.get(token), Some(Slot::Away { is_missed: true }));
        let Some(mut connection) = connection else {
            self.slots[token] = Slot::Free;
            self.free.push(token);
            return;
        };
        if is_missed {
            connection.heard(true);
        }
        self.settle(token, connection);
    }

    fn settle(&mut self, token: usize, connection: Box<Connection>) {
        if self.fleet.home(&connection) != self.number {
            return self.send_home(token, connection);
        }
        let is_queued = connection.is_ready();
        if is_queued {
            self.queue.push_back(token);
        }
        if let Some(deadline) = connection.deadline() {
            let tick = self.next_scan.map_or(deadline, |at| at.min(deadline));
            self.next_scan = Some(tick);
        }
        self.slots[token] = Slot::Here { connection, is_queued };
        self.here += 1;
    }

    /// Takes the next connection that has something to do out of its slot.
    fn take_next(&mut self) -> Option<Box<Connection>> {
        let token = self.queue.pop_front()?;
        match std::mem::replace(&mut self.slots[token], Slot::Away { is_missed: false }) {
            Slot::Here { connection, .. } => {
                self.here -= 1;
                Some(connection)
            }
            other => unreachable!("a queued connection is here, not {other:?}"),
        }
    }

    /// Queues the connections whose deadline has come.
    fn scan(&mut self) {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (token, slot) in self.slots.iter_mut().enumerate() {
            let Slot::Here { connection, is_queued } = slot else { continue };
            let Some(deadline) = connection.deadline() else { continue };
            if deadline > now {
                next = Some(next.map_or(deadline, |at| at.min(deadline)));
            } else if !std::mem::replace(is_queued, true) {
                self.queue.push_back(token);
            }
        }
        self.next_scan = next.map(|at| at.max(now + TICK));
    }
}
