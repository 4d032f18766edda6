//! The fleet: all reactors of a server, the threads that drive them, and how many are in use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use parking_lot::Mutex;

use super::commit_time::CommitTime;
use super::crew::{Bunk, Crew};
use super::place::{Arrival, Place, Posted};
use super::spread::Spread;
use super::{Parcel, Reactor, WAKE, drive};
use crate::connection::Connection;

/// Stack of a thread; only what is used of it takes memory.
const STACK_BYTES: usize = 1 << 20;

/// All reactors, and the threads that drive them.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(super) seats: Vec<Seat>,
    pub(super) crew: Crew<Box<Reactor>>,
    pub(super) is_stopping: AtomicBool,
    /// Reactors that the connections are spread over: a connection's home is one of these, by its number.
    in_use: AtomicUsize,
    /// Decides that; `None`: all of them are in use, always.
    spread: Option<Mutex<Spread>>,
    /// Requests served, counted by the [`COUNTED`](super::COUNTED).
    served: AtomicU64,
    /// Connections that went from one reactor to another.
    #[cfg(test)]
    pub(crate) moved: AtomicU64,
}

/// The part of a reactor that other threads see.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) place: Place<Box<Reactor>, Parcel, Box<Connection>>,
    waker: Waker,
    pub(super) commit_time: CommitTime,
}

impl Fleet {
    /// Starts so many reactors, each on a thread; `adapts`: uses as many of them as serve the most.
    pub(crate) fn start(reactors: usize, adapts: bool) -> io::Result<Arc<Self>> {
        let (fleet, reactors) = Self::idle(reactors, adapts)?;
        for reactor in reactors {
            if fleet.employ(reactor).is_err() {
                fleet.stop(Duration::ZERO);
                return Err(io::Error::other("the system gives no more threads"));
            }
        }
        Ok(fleet)
    }

    /// Creates reactors without threads.
    #[expect(clippy::vec_box, reason = "reactors move between places and threads as boxes")]
    pub(super) fn idle(reactors: usize, adapts: bool) -> io::Result<(Arc<Self>, Vec<Box<Reactor>>)> {
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
        let polls = polls.into_iter().enumerate();
        let reactors = polls.map(|(number, poll)| Box::new(Reactor::new(&fleet, number, poll))).collect();
        Ok((fleet, reactors))
    }

    /// Returns the number of reactors over which the connections are spread.
    pub(super) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed) // who sees the old number looks again soon
    }

    /// Returns the reactor of a connection.
    pub(super) fn home(&self, connection: &Connection) -> usize {
        (connection.id() % self.in_use() as u64) as usize
    }

    /// A reactor has served so many requests more.
    pub(super) fn count(&self, requests: u64) {
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

    /// Takes a new connection with a nonblocking socket that no reactor has registered.
    pub(crate) fn admit(self: &Arc<Self>, connection: Box<Connection>) {
        let number = self.home(&connection);
        let arrival = Arrival { token: None, item: Some(connection), is_ready: true };
        match self.seats[number].place.post(arrival) {
            Posted::Quiet => {}
            Posted::Wake => self.wake(number),
            Posted::Take(reactor) => {
                // No thread to be had: it lies where its own thread will find it, or the next one that comes
                // by.
                if let Err(reactor) = self.employ(reactor.taken_over()) {
                    self.seats[number].place.put(reactor);
                }
            }
            Posted::Closed(_) => {}
        }
    }

    /// Gives the reactor to a spare thread, or to a new one.
    pub(super) fn employ(self: &Arc<Self>, reactor: Box<Reactor>) -> Result<(), Box<Reactor>> {
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

    pub(super) fn wake(&self, number: usize) {
        // It fails if the counter is full, so awake already.
        let _ = self.seats[number].waker.wake();
    }

    /// Ends all threads that do not block, and drops what connections are left; whether none is left within
    /// `patience`.
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
