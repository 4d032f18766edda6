//! Interactive transactions, which stay open over several requests. Each runs at one node, its *coordinator*:
//! the owner of its first key.
//!
//! | state | meaning | ends by |
//! |---|---|---|
//! | idle | waits for its client | next step, commit or abort, timeout, a blocked structure change |
//! | running | a step is running, under the locks of the leaves of its keys | end of the step |
//! | ending | commits, or is rolled back | end of that |
//!
//! Between requests a transaction holds the store's row locks and no leaf lock. So leaves may split and merge
//! while the client is idle.
//!
//! - **OPEN-1** Before a leaf moves, every transaction that has touched it has ended. So all that a
//!   transaction read and wrote stays at its coordinator, under the store's locks, until it ends. A commit
//!   at another node is ordered before or after the whole transaction.
//! - **OPEN-2** Structure changes do not wait for clients: after `end::PATIENCE` a blocked one ends all idle
//!   transactions in its way ([`Node::go_ahead`]).
//! - **OPEN-3** A transaction ends at its timeout (`open_timeout`), also if its client or the client's node
//!   is gone.
//! - **OPEN-4** Only the first step begins a transaction, and one step runs at a time. A late step finds no
//!   transaction and does nothing.
//!
//! A transaction that was ended is rolled back; its next step, or its commit, returns the reason. If a step
//! finds its keys at another node, the client's node asks the coordinator whether the transaction is still
//! open ([`Node::goes_on`]): if one of its leaves has moved there, it has ended.

mod end;
mod step;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::id::PageNo;
use crate::key::KeyRange;
use crate::message::TransactionId;
use crate::node::{Asked, Ran, RunError};
use crate::world::{Bell, Task};

/// Ended transactions that are remembered, so that their clients get the reason.
const MOST_REMEMBERED: usize = 1024;

/// A transaction of an application that goes on from request to request. Dropped, it is rolled back.
pub trait OpenTransaction {
    /// Runs what the client asks for next.
    fn step(&mut self, asked: Asked) -> Task<'_, Stepped>;

    /// Makes its changes last. After an error they are not there, or it is not known ([`RunError::Failed`]).
    fn commit(self: Box<Self>) -> Task<'static, Result<Ran, RunError>>;

    /// Takes its changes back. Must not wait for another transaction.
    fn abort(self: Box<Self>) -> Task<'static, ()>;
}

/// Result of a step.
#[derive(Debug)]
pub struct Stepped {
    /// The answer. A refused step has changed nothing.
    pub ran: Result<Ran, RunError>,
    /// The whole transaction was rolled back, to end a deadlock for instance.
    pub is_over: bool,
}

enum Phase {
    Idle(Box<dyn OpenTransaction>),
    Running,
    Ending,
}

struct Open {
    phase: Phase,
    /// The leaves of its keys, as they were when they were touched. Later ones lie in these, or have grown.
    touched: Vec<KeyRange>,
    /// Rows and bytes that its leaves will have more, about.
    grown: BTreeMap<PageNo, (isize, usize)>,
    deadline: Duration,
    /// Why it is rolled back after the step that runs.
    end_request: Option<String>,
}

impl Open {
    fn new(deadline: Duration) -> Self {
        Self {
            phase: Phase::Running,
            touched: Vec::new(),
            grown: BTreeMap::new(),
            deadline,
            end_request: None,
        }
    }

    fn touch(&mut self, range: KeyRange) {
        if !self.touched.contains(&range) {
            self.touched.push(range);
        }
    }

    fn touches(&self, range: &KeyRange) -> bool {
        self.touched.iter().any(|touched| touched.overlaps(range))
    }

    const fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle(_))
    }

    /// Takes it away from where it waits for its client.
    fn take(&mut self, next: Phase) -> Option<Box<dyn OpenTransaction>> {
        match std::mem::replace(&mut self.phase, next) {
            Phase::Idle(work) => Some(work),
            other => {
                self.phase = other;
                None
            }
        }
    }
}

/// Open transactions that this node coordinates.
#[derive(Default)]
pub(super) struct OpenTransactions {
    open: RefCell<BTreeMap<TransactionId, Open>>,
    /// Why the last ones were ended.
    ended: RefCell<VecDeque<(TransactionId, String)>>,
    began: Bell,
    gone: Bell,
    is_watched: Cell<bool>,
}

impl OpenTransactions {
    pub(super) fn len(&self) -> usize {
        self.open.borrow().len()
    }

    fn has(&self, id: TransactionId) -> bool {
        self.open.borrow().contains_key(&id)
    }

    /// Returns `true` if one has touched keys of this range.
    pub(super) fn touch(&self, range: &KeyRange) -> bool {
        self.open.borrow().values().any(|open| open.touches(range))
    }

    /// Why a transaction is over, or about to be; nothing if it goes on.
    fn why_over(&self, id: TransactionId) -> Option<String> {
        match self.open.borrow().get(&id) {
            Some(Open { phase: Phase::Idle(_) | Phase::Running, end_request, .. }) => end_request.clone(),
            Some(_) | None => Some(self.why_ended(id)),
        }
    }

    fn why_ended(&self, id: TransactionId) -> String {
        let ended = self.ended.borrow();
        let known = ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, why)| why.clone());
        known.unwrap_or_else(|| "its node knows nothing of it: it was started anew".to_owned())
    }

    /// The transaction is over, and its client will ask for the reason.
    fn remember(&self, id: TransactionId, why: String) {
        let mut ended = self.ended.borrow_mut();
        ended.push_back((id, why));
        if ended.len() > MOST_REMEMBERED {
            ended.pop_front();
        }
    }

    fn remove(&self, id: TransactionId) -> Option<Open> {
        let open = self.open.borrow_mut().remove(&id);
        self.gone.ring();
        open
    }

    /// Those that are at work in these keys will be rolled back when they have done with it; whether there
    /// are any.
    fn request_end(&self, why: &str, which: impl Fn(TransactionId, &Open) -> bool) -> bool {
        let mut is_any = false;
        for (_, open) in self.open.borrow_mut().iter_mut().filter(|(id, open)| which(**id, open)) {
            is_any = true;
            open.end_request.get_or_insert_with(|| why.to_owned());
        }
        is_any
    }

    /// Time of the next timeout.
    fn next_deadline(&self) -> Option<Duration> {
        let open = self.open.borrow();
        let waits = |open: &&Open| open.end_request.is_none() && !matches!(open.phase, Phase::Ending);
        open.values().filter(waits).map(|open| open.deadline).min()
    }
}
