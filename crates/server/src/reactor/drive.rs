//! The loop of a worker thread: it runs turns of its reactor until the reactor goes to another thread or the
//! server stops. One turn serves the queued connections, commits, replies and polls.
//!
//! | [`Hold`] of a thread | its reactor |
//! |---|---|
//! | `None` | is owned by the thread's own stack, or the thread has none |
//! | `Offered` | is offered to the hook: the thread has not blocked yet |
//! | `Parked` | is in its mailbox; the thread may reclaim it until another thread takes it |
//! | `Transferred` | belongs to another thread |

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use azekura_base::blocking;

use super::group_members::GroupMembers;
use super::mailbox::{Arrival, Posted};
use super::reactor_pool::{ReactorPool, ReactorSlot};
use super::worker_pool::WorkerSlot;
use super::{Reactor, Returned};
use crate::connection::Connection;
use crate::group::Group;

/// Idle time after which a spare thread ends.
const SPARE_TIMEOUT: Duration = Duration::from_secs(10);

enum Hold {
    None,
    Offered(Box<Reactor>),
    Parked(usize),
    Transferred,
}

thread_local! {
    static HOLD: RefCell<Hold> = const { RefCell::new(Hold::None) };
}

/// Runs a worker thread.
pub(super) fn work(pool: &Arc<ReactorPool>, worker: &Arc<WorkerSlot<Box<Reactor>>>) {
    let _deregister = Deregister(pool);
    blocking::on_block(Some(hand_over));
    let mut members = GroupMembers::default();
    while let Some(reactor) = pool.workers.next_job(worker, Some(SPARE_TIMEOUT)) {
        let mut mine = Some(reactor);
        while let Some(reactor) = mine {
            // Relaxed: the stopping thread wakes the reactor after it has set this flag.
            mine = if pool.is_stopping.load(Relaxed) { None } else { turn(pool, reactor, &mut members) };
        }
    }
}

struct Deregister<'a>(&'a ReactorPool);

impl Drop for Deregister<'_> {
    fn drop(&mut self) {
        self.0.workers.deregister_thread();
    }
}

/// Runs one turn: serves the queued connections, then waits for the commits of a batch, or for events.
/// Returns `None` if the reactor went to another thread.
pub(super) fn turn(
    pool: &Arc<ReactorPool>,
    mut reactor: Box<Reactor>,
    members: &mut GroupMembers,
) -> Option<Box<Reactor>> {
    let number = reactor.number;
    // Connections that are queued again during the turn wait for the next turn.
    for _ in 0..reactor.connections.queued() {
        let Some(connection) = reactor.connections.take_next() else { break };
        reactor = serve_in(pool, reactor, members, connection)?;
    }
    if members.group.is_open() {
        offer(reactor);
        members.close();
        let Some(still_mine) = reclaim(pool) else { return finish(pool, number, members, None) };
        reactor = still_mine;
        members.part(None, |connection| reactor.served(connection.token, Some(connection)));
    }
    reactor.rebalance();
    if reactor.waiting.is_empty() {
        reactor.poll(false);
        return Some(reactor);
    }
    if reactor.delays_commit() {
        return Some(reactor);
    }
    if reactor.queue_commits() {
        reactor.poll(false);
        return Some(reactor);
    }
    let batch = std::mem::take(&mut reactor.waiting);
    commit(pool, number, Some(reactor), batch)
}

/// Acts as the committer of a reactor: waits for the commits of batch after batch and replies (MAILBOX-5).
/// The caller may own the reactor. Returns `None` if another thread has it.
#[expect(clippy::vec_box, reason = "connections move as boxes between slots, threads and lists")]
fn commit(
    pool: &Arc<ReactorPool>,
    number: usize,
    mut reactor: Option<Box<Reactor>>,
    mut batch: Vec<Box<Connection>>,
) -> Option<Box<Reactor>> {
    let slot = &pool.slots[number];
    while !batch.is_empty() {
        reactor = wait_for(pool, reactor, slot, &mut batch);
        for connection in batch.drain(..) {
            reactor = answer(pool, number, reactor, connection);
        }
        slot.mailbox.next_commits(&mut batch);
    }
    if let Some(reactor) = &mut reactor {
        reactor.waiting = batch; // keeps the allocation
    }
    reactor
}

/// Waits until every commit of a batch is durable. Keeps the reactor if the wait is expected to be short;
/// otherwise offers it to the hook (REACT-2).
fn wait_for(
    pool: &ReactorPool,
    reactor: Option<Box<Reactor>>,
    slot: &ReactorSlot,
    batch: &mut [Box<Connection>],
) -> Option<Box<Reactor>> {
    let kept = reactor.and_then(|reactor| {
        if slot.commit_time.is_short() {
            return Some(reactor);
        }
        offer(reactor);
        None
    });
    let begun = Instant::now();
    // The newest commit first: usually the same flush covers the others.
    batch.iter_mut().rev().for_each(|connection| guarded(connection, Connection::wait));
    slot.commit_time.note(begun.elapsed());
    kept.or_else(|| reclaim(pool))
}

/// Runs a step of a connection outside its requests. A panic in the step ends this connection only; an
/// unwinding thread would lose the reactor or the commits of other connections.
pub(super) fn guarded(connection: &mut Connection, step: impl FnOnce(&mut Connection)) {
    if catch_unwind(AssertUnwindSafe(|| step(connection))).is_err() {
        connection.abandon();
    }
}

/// Drops a connection that has ended, with its open transaction; catches a panic of the drop.
pub(super) fn discard(connection: Box<Connection>) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(connection)));
}

/// Serves one connection; repeats after closing the group whenever the connection requires that. Returns
/// `None` if the reactor went to another thread; the connection then returns to it through the mailbox.
fn serve_in(
    pool: &Arc<ReactorPool>,
    mut reactor: Box<Reactor>,
    members: &mut GroupMembers,
    connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    let (number, token) = (reactor.number, connection.token);
    let mut step: Step = Connection::serve;
    let mut next = connection;
    loop {
        offer(reactor);
        let served = serve(next, step, members);
        let Some(still_mine) = reclaim(pool) else {
            return finish(pool, number, members, Some((token, served)));
        };
        reactor = still_mine;
        match served {
            Some(connection) if connection.needs_group_end() => {
                let mut waiting = connection;
                members.part(Some(&mut waiting), |other| reactor.served(other.token, Some(other)));
                (next, step) = (waiting, Connection::serve_on);
            }
            Some(connection) if connection.is_member() => {
                members.keep(connection);
                return Some(reactor);
            }
            served => {
                reactor.served(token, served);
                return Some(reactor);
            }
        }
    }
}

/// One step of serving a connection.
type Step = fn(&mut Connection, &mut Group);

/// Serves one connection, and closes the group if the connection requires that. Returns `None` if the
/// connection has ended. A panic ends the connection and all members of its group.
fn serve(mut connection: Box<Connection>, step: Step, members: &mut GroupMembers) -> Returned {
    let group = &mut members.group;
    let served = catch_unwind(AssertUnwindSafe(|| {
        step(&mut connection, group);
        (!connection.is_over()).then_some(connection)
    }));
    let Ok(served) = served else {
        members.fail_group();
        return None;
    };
    if served.as_ref().is_some_and(|connection| connection.needs_group_end()) {
        members.close();
    }
    served
}

/// Completes the work on connections after their reactor went to another thread: on the connection that was
/// served last, and on the members of its group.
fn finish(
    pool: &Arc<ReactorPool>,
    number: usize,
    members: &mut GroupMembers,
    last: Option<(Option<usize>, Returned)>,
) -> Option<Box<Reactor>> {
    let (mut batch, mut reactor) = (Vec::new(), None);
    let (token, mut served) = last.unwrap_or_default();
    members.part(served.as_deref_mut(), |other| batch.push(other));
    match served {
        Some(connection) => batch.push(connection),
        None if token.is_some() => {
            reactor = return_connection(pool, number, Arrival { token, item: None, is_ready: false });
        }
        None => {}
    }
    for connection in batch.extract_if(.., |connection| !connection.must_wait()) {
        reactor = answer(pool, number, reactor, connection);
    }
    if batch.is_empty() || pool.slots[number].mailbox.queue_commits(&mut batch) {
        return reactor;
    }
    commit(pool, number, reactor, batch)
}

/// Sends the replies of a connection, with the reactor if the caller has it. Returns the reactor if the
/// caller now has it.
fn answer(
    pool: &Arc<ReactorPool>,
    number: usize,
    reactor: Option<Box<Reactor>>,
    connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    match reactor {
        Some(mut reactor) => {
            reactor.answer(connection);
            Some(reactor)
        }
        None => answer_without_reactor(pool, number, connection),
    }
}

/// Sends the replies and returns the connection to its reactor. Returns the reactor if it was parked.
fn answer_without_reactor(
    pool: &Arc<ReactorPool>,
    number: usize,
    mut connection: Box<Connection>,
) -> Option<Box<Reactor>> {
    guarded(&mut connection, Connection::send);
    let token = connection.token;
    // The reactor checks deadlines, so a connection with a deadline is reported as ready.
    let is_ready = connection.is_ready() || connection.deadline().is_some();
    let item = if connection.is_over() {
        discard(connection);
        None
    } else {
        Some(connection)
    };
    return_connection(pool, number, Arrival { token, item, is_ready })
}

fn return_connection(
    pool: &Arc<ReactorPool>,
    number: usize,
    arrival: Arrival<Returned>,
) -> Option<Box<Reactor>> {
    match pool.slots[number].mailbox.post(arrival) {
        Posted::Quiet | Posted::Closed(_) => None,
        Posted::Wake => {
            pool.wake(number);
            None
        }
        Posted::Take(reactor) => Some(reactor.taken_over()),
    }
}

/// Allows the hook to give the reactor to another thread from now on.
fn offer(reactor: Box<Reactor>) {
    HOLD.set(Hold::Offered(reactor));
}

/// Reclaims the reactor; `None` if it went to another thread.
fn reclaim(pool: &ReactorPool) -> Option<Box<Reactor>> {
    match HOLD.replace(Hold::None) {
        Hold::Offered(reactor) => Some(reactor),
        Hold::Parked(number) => pool.slots[number].mailbox.reclaim().map(Reactor::taken_over),
        Hold::Transferred | Hold::None => None,
    }
}

/// Gives the thread's reactor away. The store calls this hook before it blocks the thread. Returns `false` if
/// the reactor, with other connections, stays because no thread can be created: one of these connections may
/// hold the lock that this thread is about to wait for, so the store ends the wait (BLOCK-3).
pub(super) fn hand_over() -> bool {
    HOLD.with_borrow_mut(|hold| {
        *hold = match std::mem::replace(hold, Hold::None) {
            Hold::Offered(reactor) => give_away(reactor),
            other => other,
        };
        !matches!(hold, Hold::Offered(_))
    })
}

fn give_away(reactor: Box<Reactor>) -> Hold {
    let (pool, number) = (Arc::clone(&reactor.pool), reactor.number);
    let reactor = if reactor.has_other_connections() {
        reactor
    } else {
        match pool.slots[number].mailbox.park(reactor) {
            Ok(()) => return Hold::Parked(number),
            Err(reactor) => reactor,
        }
    };
    match pool.assign_thread(reactor) {
        Ok(()) => Hold::Transferred,
        Err(reactor) => Hold::Offered(reactor), // no thread available: the reactor waits with this one
    }
}
