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
//! - **OPEN-1** Before a leaf moves, every transaction that has used the leaf has ended. So all data that a
//!   transaction has read or written stays at its coordinator, under the store's locks, until the transaction
//!   ends. A commit at another node is ordered before or after the whole transaction.
//! - **OPEN-2** Structure changes do not wait for clients. After `end::BLOCKED_LIMIT` a blocked change ends
//!   the idle transactions for which others wait ([`Node::go_ahead`]): one of these may be in its way.
//! - **OPEN-3** A transaction ends at its timeout (`open_timeout`), even if its client or the client's node
//!   has failed.
//! - **OPEN-4** Only the first step begins a transaction, and one step runs at a time. A late step finds no
//!   transaction and does nothing.
//!
//! **Readers.** A transaction that changes nothing reads a snapshot of its node and holds no locks. A reader
//! of several nodes ([`Work::Read`](crate::Work::Read)) has a snapshot at each of them. A structure change
//! waits for no reader, so OPEN-2 does not concern readers. A reader of several nodes has no time limit, but
//! its snapshot is closed after `reader_timeout` without a step.
//!
//! - **OPEN-5** A step of a reader reads a leaf only if this node has owned all keys of the leaf since the
//!   snapshot was opened. Each move to this node is recorded at every open reader (`arrived`), because the
//!   snapshot may lack the rows. A reader that requests such rows ends.
//! - **OPEN-6** A reader of several nodes counts as having used all keys that it may read (`within`). So by
//!   OPEN-1 it ends at a node when one of these keys moves away. A reader that has ended at none of its nodes
//!   has seen each transaction completely or not at all. All keys that the transaction had changed were read
//!   in the snapshot of its node, or had moved away before that snapshot was opened.
//!
//! Without OPEN-6 this could happen: the reader opens its snapshot at A; T changes k and m at A and commits;
//! the leaf of m moves from A to B; the reader opens its snapshot at B. It reads m with T's change, but k
//! without.

mod end;
mod step;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::id::PageNo;
use crate::key::KeyRange;
use crate::message::TransactionId;
use crate::node::{Asked, Ran, RunError};
use crate::world::{Notify, Task};

/// Number of ended transactions that are remembered, so that their clients get the reason.
const MOST_REMEMBERED: usize = 1024;

/// A transaction of an application that stays open over several requests. Dropping it rolls it back.
pub trait OpenTransaction {
    /// Runs the client's next request.
    fn step(&mut self, asked: Asked) -> Task<'_, Stepped>;

    /// Commits the transaction. After an error its changes are rolled back, or the outcome is unknown
    /// ([`RunError::Failed`]).
    fn commit(self: Box<Self>) -> Task<'static, Result<Ran, RunError>>;

    /// Returns `true` if another transaction waits, or has waited, for a lock of this transaction. A
    /// structure change that is blocked ends the idle transactions for which this is `true` (OPEN-2), so
    /// `false` must be certain.
    fn has_waiters(&self) -> bool {
        true
    }

    /// Rolls the transaction back. Must not wait for another transaction.
    fn abort(self: Box<Self>) -> Task<'static, ()>;
}

/// Result of a step.
#[derive(Debug)]
pub struct Stepped {
    /// The answer. A refused step has changed nothing.
    pub ran: Result<Ran, RunError>,
    /// `true` if the whole transaction was rolled back, for instance to end a deadlock.
    pub is_over: bool,
}

enum Phase {
    Idle(Box<dyn OpenTransaction>),
    Running,
    Ending,
}

struct Open {
    phase: Phase,
    /// Keys that have arrived at this node since the reader began (OPEN-5); `None` if it is not a reader.
    arrived: Option<Vec<KeyRange>>,
    /// `true` for a reader of several nodes: its timeout restarts with each step.
    is_of_several: bool,
    /// Ranges of the used leaves at the time of access. A later leaf with these keys overlaps one of these
    /// ranges.
    touched: Vec<KeyRange>,
    /// Estimated growth of its leaves in rows and bytes, if it commits.
    grown: BTreeMap<PageNo, (isize, usize)>,
    deadline: Duration,
    /// The reason that the transaction is rolled back after the running step.
    end_request: Option<String>,
}

impl Open {
    fn new(work: Box<dyn OpenTransaction>, beginning: Beginning, now: Duration) -> Self {
        let Beginning { is_reader, within, limit } = beginning;
        Self {
            phase: Phase::Idle(work),
            arrived: is_reader.then(Vec::new),
            is_of_several: within.is_some(),
            touched: within.into_iter().collect(),
            grown: BTreeMap::new(),
            deadline: now + limit,
            end_request: None,
        }
    }

    const fn is_reader(&self) -> bool {
        self.arrived.is_some()
    }

    /// Returns `true` if a snapshot may lack rows of this range (OPEN-5).
    fn lacks(&self, range: &KeyRange) -> bool {
        self.arrived.iter().flatten().any(|arrived| arrived.overlaps(range))
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

    /// Returns `true` if the transaction is idle and another one waits, or has waited, for its locks.
    fn has_waiters(&self) -> bool {
        matches!(&self.phase, Phase::Idle(work) if work.has_waiters())
    }

    /// Takes an idle transaction, and sets its next phase. Returns `None` if the transaction is not idle.
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

/// Properties of a transaction that begins.
struct Beginning {
    is_reader: bool,
    /// All keys that a reader of several nodes may read.
    within: Option<KeyRange>,
    /// Time after which the transaction ends.
    limit: Duration,
}

/// Open transactions that this node coordinates.
#[derive(Default)]
pub(super) struct OpenTransactions {
    open: RefCell<BTreeMap<TransactionId, Open>>,
    /// The reasons of the latest ends.
    ended: RefCell<VecDeque<(TransactionId, String)>>,
    began: Notify,
    gone: Notify,
    is_watched: Cell<bool>,
}

impl OpenTransactions {
    pub(super) fn len(&self) -> usize {
        self.open.borrow().len()
    }

    /// Returns the number of readers, or of the other transactions.
    fn count(&self, of_readers: bool) -> usize {
        self.open.borrow().values().filter(|open| open.is_reader() == of_readers).count()
    }

    /// OPEN-5: records that the leaf of a range has arrived at this node.
    pub(super) fn note_arrival(&self, range: &KeyRange) {
        for open in self.open.borrow_mut().values_mut() {
            if let Some(arrived) = &mut open.arrived {
                arrived.push(range.clone());
            }
        }
    }

    /// Returns `true` if the snapshot of a reader may lack rows of one of these ranges (OPEN-5).
    fn lacks_any(&self, id: TransactionId, ranges: &[KeyRange]) -> bool {
        let open = self.open.borrow();
        open.get(&id).is_some_and(|open| ranges.iter().any(|range| open.lacks(range)))
    }

    fn has(&self, id: TransactionId) -> bool {
        self.open.borrow().contains_key(&id)
    }

    /// Returns the reason that a transaction has ended or will end after its step; `None` if it stays open.
    fn why_over(&self, id: TransactionId) -> Option<String> {
        match self.open.borrow().get(&id) {
            Some(Open { phase: Phase::Idle(_) | Phase::Running, end_request, .. }) => end_request.clone(),
            Some(_) | None => Some(self.why_ended(id)),
        }
    }

    fn why_ended(&self, id: TransactionId) -> String {
        let ended = self.ended.borrow();
        let known = ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, why)| why.clone());
        known.unwrap_or_else(|| "its coordinator was restarted and does not know it".to_owned())
    }

    /// Records the reason of an ended transaction for its client's next request.
    fn remember(&self, id: TransactionId, why: String) {
        let mut ended = self.ended.borrow_mut();
        ended.push_back((id, why));
        if ended.len() > MOST_REMEMBERED {
            ended.pop_front();
        }
    }

    fn remove(&self, id: TransactionId) -> Option<Open> {
        let open = self.open.borrow_mut().remove(&id);
        self.gone.notify_waiters();
        open
    }

    /// Requests the rollback of the selected transactions after their running steps. Returns `true` if any
    /// was selected.
    fn request_end(&self, why: &str, which: impl Fn(TransactionId, &Open) -> bool) -> bool {
        let mut is_any = false;
        for (_, open) in self.open.borrow_mut().iter_mut().filter(|(id, open)| which(**id, open)) {
            is_any = true;
            open.end_request.get_or_insert_with(|| why.to_owned());
        }
        is_any
    }

    /// Returns the time of the next timeout.
    fn next_deadline(&self) -> Option<Duration> {
        let open = self.open.borrow();
        let waits = |open: &&Open| open.end_request.is_none() && !matches!(open.phase, Phase::Ending);
        open.values().filter(waits).map(|open| open.deadline).min()
    }
}
