//! What a thread does with a reactor: turn after turn, until it is given away or the server stops.
//!
//! | [`Hold`] of a thread | its reactor is |
//! |---|---|
//! | `Nothing` | in the thread's own hands, or it has none |
//! | `Lent` | with the hook: nothing has blocked yet |
//! | `Left` | in its place; it is the thread's again if nobody took it |
//! | `Gone` | another thread's |

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use azekura_base::blocking;

use super::company::Company;
use super::crew::Bunk;
use super::fleet::{Fleet, Seat};
use super::place::{Arrival, Posted};
use super::{Parcel, Reactor};
use crate::connection::Connection;
use crate::group::Group;

/// A spare thread that nobody needs for so long ends.
const SPARE_PATIENCE: Duration = Duration::from_secs(10);

enum Hold {
    Nothing,
    Lent(Box<Reactor>),
    Left(usize),
    Gone,
}

thread_local! {
    static HOLD: RefCell<Hold> = const { RefCell::new(Hold::Nothing) };
}

/// A thread of the crew.
pub(super) fn work(fleet: &Arc<Fleet>, bunk: &Arc<Bunk<Box<Reactor>>>) {
    let _discharged = Discharged(fleet);
    blocking::on_block(Some(hand_over));
    let mut company = Company::default();
    while let Some(reactor) = fleet.crew.rest(bunk, Some(SPARE_PATIENCE)) {
        let mut mine = Some(reactor);
        while let Some(reactor) = mine {
            // Relaxed: the stop wakes the reactor after it has set this.
            mine = if fleet.is_stopping.load(Relaxed) { None } else { turn(fleet, reactor, &mut company) };
        }
    }
}

struct Discharged<'a>(&'a Fleet);

impl Drop for Discharged<'_> {
    fn drop(&mut self) {
        self.0.crew.discharge();
    }
}

/// Serves those that are queued, waits for the commits of a batch, or for events. `None`: the reactor was
/// given away.
pub(super) fn turn(
    fleet: &Arc<Fleet>,
    mut reactor: Box<Reactor>,
    company: &mut Company,
) -> Option<Box<Reactor>> {
    let number = reactor.number;
    // Not those that come again meanwhile: others have waited for longer.
    for _ in 0..reactor.slots.queued() {
        let Some(connection) = reactor.slots.take_next() else { break };
        reactor = serve_in(fleet, reactor, company, connection)?;
    }
    if company.group.is_open() {
        lend(reactor);
        company.close();
        let Some(still_mine) = take_back(fleet) else { return finish(fleet, number, company, None) };
        reactor = still_mine;
        company.part(None, |connection| reactor.served(connection.token, Some(connection)));
    }
    reactor.keep_spread();
    if reactor.waiting.is_empty() {
        reactor.poll(false);
        return Some(reactor);
    }
    if reactor.gathers() {
        return Some(reactor);
    }
    if reactor.queue_commits() {
        reactor.poll(false);
        return Some(reactor);
    }
    let batch = std::mem::take(&mut reactor.waiting);
    commit(fleet, number, Some(reactor), batch)
}

/// Waits for commits and answers, batch after batch (PLACE-5), as the committer of a reactor, which it may
/// have itself. `None`: the reactor is another thread's.
#[expect(clippy::vec_box, reason = "connections move between slots, threads and here as boxes")]
fn commit(
    fleet: &Arc<Fleet>,
    number: usize,
    mut reactor: Option<Box<Reactor>>,
    mut batch: Vec<Box<Connection>>,
) -> Option<Box<Reactor>> {
    let seat = &fleet.seats[number];
    while !batch.is_empty() {
        reactor = wait_for(fleet, reactor, seat, &mut batch);
        for connection in batch.drain(..) {
            reactor = answer(fleet, number, reactor, connection);
        }
        seat.place.next_commits(&mut batch);
    }
    if let Some(reactor) = &mut reactor {
        reactor.waiting = batch; // its memory
    }
    reactor
}

/// Waits until all of a batch is durable: with the reactor in hand if that is expected to be quick, or else
/// with the reactor lent (REACT-2).
fn wait_for(
    fleet: &Fleet,
    reactor: Option<Box<Reactor>>,
    seat: &Seat,
    batch: &mut [Box<Connection>],
) -> Option<Box<Reactor>> {
    let kept = reactor.and_then(|reactor| {
        if seat.commit_time.is_short() {
            return Some(reactor);
        }
        lend(reactor);
        None
    });
    let begun = Instant::now();
    // The newest first: most often the others are durable with it.
    batch.iter_mut().rev().for_each(|connection| guarded(connection, Connection::wait));
    seat.commit_time.note(begun.elapsed());
    kept.or_else(|| take_back(fleet))
}

/// A step of a connection outside its requests. A panic in it ends the connection, and nothing else: a thread
/// that unwound from here would take the reactor, or the others' commits, with it.
pub(super) fn guarded(connection: &mut Connection, step: impl FnOnce(&mut Connection)) {
    if catch_unwind(AssertUnwindSafe(|| step(connection))).is_err() {
        connection.abandon();
    }
}

/// Drops a connection that is over, with what it has open; a panic ends there too.
pub(super) fn discard(connection: Box<Connection>) {
    // The panic has been reported.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(connection)));
}

/// Serves one connection, as often as the group has to be closed for it to go on. `None`: the reactor was
/// given away, and the connection is on its way to it.
fn serve_in(
    fleet: &Arc<Fleet>,
    mut reactor: Box<Reactor>,
    company: &mut Company,
    connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    let (number, token) = (reactor.number, connection.token);
    let mut step: Step = Connection::serve;
    let mut next = connection;
    loop {
        lend(reactor);
        let served = serve(next, step, company);
        let Some(still_mine) = take_back(fleet) else {
            return finish(fleet, number, company, Some((token, served)));
        };
        reactor = still_mine;
        match served {
            Some(connection) if connection.needs_the_end() => {
                let mut waiting = connection;
                company.part(Some(&mut waiting), |other| reactor.served(other.token, Some(other)));
                (next, step) = (waiting, Connection::serve_on);
            }
            Some(connection) if connection.is_member() => {
                company.keep(connection);
                return Some(reactor);
            }
            served => {
                reactor.served(token, served);
                return Some(reactor);
            }
        }
    }
}

/// A part of serving a connection.
type Step = fn(&mut Connection, &mut Group);

/// Serves one connection, and ends the group if it needs that; `None` if it has ended. A panic ends it too,
/// and those in its group.
fn serve(mut connection: Box<Connection>, step: Step, company: &mut Company) -> Parcel {
    let group = &mut company.group;
    let served = catch_unwind(AssertUnwindSafe(|| {
        step(&mut connection, group);
        (!connection.is_over()).then_some(connection)
    }));
    let Ok(served) = served else {
        company.lose();
        return None;
    };
    if served.as_ref().is_some_and(|connection| connection.needs_the_end()) {
        company.close();
    }
    served
}

/// Ends what was begun with connections whose reactor went to another thread meanwhile: the one that was
/// served last, and those in its group.
fn finish(
    fleet: &Arc<Fleet>,
    number: usize,
    company: &mut Company,
    last: Option<(Option<usize>, Parcel)>,
) -> Option<Box<Reactor>> {
    let (mut batch, mut reactor) = (Vec::new(), None);
    let (token, mut served) = last.unwrap_or_default();
    company.part(served.as_deref_mut(), |other| batch.push(other));
    match served {
        Some(connection) => batch.push(connection),
        None if token.is_some() => {
            reactor = give_back(fleet, number, Arrival { token, item: None, is_ready: false });
        }
        None => {}
    }
    for connection in batch.extract_if(.., |connection| !connection.must_wait()) {
        reactor = answer(fleet, number, reactor, connection);
    }
    if batch.is_empty() || fleet.seats[number].place.queue_commits(&mut batch) {
        return reactor;
    }
    commit(fleet, number, reactor, batch)
}

/// Answers a connection of a reactor that this thread has, or not; returns it if it has.
fn answer(
    fleet: &Arc<Fleet>,
    number: usize,
    reactor: Option<Box<Reactor>>,
    connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    match reactor {
        Some(mut reactor) => {
            reactor.answer(connection);
            Some(reactor)
        }
        None => answer_from_afar(fleet, number, connection),
    }
}

/// Answers, and gives the connection back to its reactor; returns that if it has no thread.
fn answer_from_afar(
    fleet: &Arc<Fleet>,
    number: usize,
    mut connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    guarded(&mut connection, Connection::send);
    let token = connection.token;
    // The reactor checks deadlines, so a connection with a deadline goes back to it.
    let is_ready = connection.is_ready() || connection.deadline().is_some();
    let item = if connection.is_over() {
        discard(connection);
        None
    } else {
        Some(connection)
    };
    give_back(fleet, number, Arrival { token, item, is_ready })
}

fn give_back(fleet: &Arc<Fleet>, number: usize, arrival: Arrival<Parcel>) -> Option<Box<Reactor>> {
    match fleet.seats[number].place.post(arrival) {
        Posted::Quiet | Posted::Closed(_) => None,
        Posted::Wake => {
            fleet.wake(number);
            None
        }
        Posted::Take(reactor) => Some(reactor.taken_over()),
    }
}

/// From now on the hook may give the reactor away.
fn lend(reactor: Box<Reactor>) {
    HOLD.set(Hold::Lent(reactor));
}

/// The reactor, unless it went to another thread.
fn take_back(fleet: &Fleet) -> Option<Box<Reactor>> {
    match HOLD.replace(Hold::Nothing) {
        Hold::Lent(reactor) => Some(reactor),
        Hold::Left(number) => fleet.seats[number].place.take_back().map(Reactor::taken_over),
        Hold::Gone | Hold::Nothing => None,
    }
}

/// The hook: this thread is about to block.
fn hand_over() {
    HOLD.with_borrow_mut(|hold| {
        *hold = match std::mem::replace(hold, Hold::Nothing) {
            Hold::Lent(reactor) => give_away(reactor),
            other => other,
        };
    });
}

fn give_away(reactor: Box<Reactor>) -> Hold {
    let (fleet, number) = (Arc::clone(&reactor.fleet), reactor.number);
    let reactor = if reactor.has_company() {
        reactor
    } else {
        match fleet.seats[number].place.leave(reactor) {
            Ok(()) => return Hold::Left(number),
            Err(reactor) => reactor,
        }
    };
    match fleet.employ(reactor) {
        Ok(()) => Hold::Gone,
        Err(reactor) => Hold::Lent(reactor), // no more threads: it waits with this one
    }
}
