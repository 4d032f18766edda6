//! Transactions that stay open over several requests. Each takes place at one node, its *home*: who owns its first key.
//!
//! | state | means | left by |
//! |---|---|---|
//! | idle | waits for its client | its next step, its end, its time, whoever it holds up |
//! | running | a step of it is at work, under the locks of the leaves of its keys | the step |
//! | ending | it commits, or is rolled back | that |
//!
//! Between requests it holds the store's locks on rows, and no leaf's. So its client may think, and leaves split and merge; but:
//!
//! - **OPEN-1** Before a leaf moves, every transaction that has touched it is over. So what a transaction saw and changed is at its home, under the store's
//!   locks, until it ends; whoever commits elsewhere does so before or after all of it.
//! - **OPEN-2** Changes of structure wait for no client: who is held up for [`PATIENCE`] ends all transactions that are idle ([`Node::go_ahead`]).
//! - **OPEN-3** A transaction ends when its time is over, whatever becomes of its client and of the node that it asked (`open_timeout`).
//! - **OPEN-4** Only a transaction's first step begins it, and it has one step at a time. A step that comes late finds nothing, and does nothing.
//!
//! A transaction that was ended is rolled back; its next step, or its commit, says why. A step that finds its keys at another node asks the home whether the
//! transaction goes on ([`Node::goes_on`]): if one of its leaves has gone there, it does not.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use crate::id::{PageNo, PeId};
use crate::key::KeyRange;
use crate::leaf::LeafHead;
use crate::message::{Answer, Find, Refusal, TransactionId, Work};
use crate::node::work::Worked;
use crate::node::{Asked, Node, Ran, RunError};
use crate::world::{Bell, Task};

/// What a change of structure bears before it ends the transactions that may hold it up.
const PATIENCE: Duration = Duration::from_millis(50);
/// Transactions that are remembered after they were ended, for their clients.
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

/// What came of a step.
#[derive(Debug)]
pub struct Stepped {
    /// What it did. What was refused has changed nothing.
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
    doom: Option<String>,
}

impl Open {
    fn new(deadline: Duration) -> Self {
        Self { phase: Phase::Running, touched: Vec::new(), grown: BTreeMap::new(), deadline, doom: None }
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

/// The transactions whose home this node is.
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

    /// Whether one has touched keys of this range.
    pub(super) fn touch(&self, range: &KeyRange) -> bool {
        self.open.borrow().values().any(|open| open.touches(range))
    }

    /// Why a transaction is over, or about to be; nothing if it goes on.
    fn why_over(&self, id: TransactionId) -> Option<String> {
        match self.open.borrow().get(&id) {
            Some(Open { phase: Phase::Idle(_) | Phase::Running, doom, .. }) => doom.clone(),
            Some(_) | None => Some(self.why_ended(id)),
        }
    }

    fn why_ended(&self, id: TransactionId) -> String {
        let ended = self.ended.borrow();
        let known = ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, why)| why.clone());
        known.unwrap_or_else(|| "its node knows nothing of it: it was started anew".to_owned())
    }

    /// It is over, and its client will ask why.
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

    /// Those that are at work in these keys will be rolled back when they have done with it; whether there are any.
    fn doom(&self, why: &str, which: impl Fn(TransactionId, &Open) -> bool) -> bool {
        let mut is_any = false;
        for (_, open) in self.open.borrow_mut().iter_mut().filter(|(id, open)| which(**id, open)) {
            is_any = true;
            open.doom.get_or_insert_with(|| why.to_owned());
        }
        is_any
    }

    /// When the next one's time is over.
    fn next_deadline(&self) -> Option<Duration> {
        let open = self.open.borrow();
        let waits = |open: &&Open| open.doom.is_none() && !matches!(open.phase, Phase::Ending);
        open.values().filter(waits).map(|open| open.deadline).min()
    }
}

impl Node {
    /// How many transactions are open whose home this node is.
    #[must_use]
    pub fn open_transactions(&self) -> usize {
        self.open.len()
    }

    /// Runs a step of a transaction, at the leaves of all its keys.
    pub(super) async fn step(&self, find: &Find, leaf: &LeafHead) -> Worked {
        let Work::Step { id, home, is_write, others, bytes } = &find.work else {
            return Err(Refusal::Lost).into();
        };
        if home.is_some_and(|home| home != self.me) {
            return Err(Refusal::Elsewhere).into();
        }
        let locked = match self.lock_others(&find.target, leaf, others, true).await {
            Ok(locked) => locked,
            Err(refusal) => return Err(refusal).into(),
        };
        let pages: Vec<_> = locked.iter().map(|(page, _)| *page).collect();
        let mut work = match self.take_up(*id, home.is_none(), leaf, &pages) {
            Ok(work) => work,
            Err(refusal) => return Err(refusal).into(),
        };
        let asked = Asked::at(leaf, find, *is_write, others, bytes);
        let stepped = work.step(asked).await;
        let result = self.after_step(*id, leaf.page, work, stepped).await;
        drop(locked);
        result.into()
    }

    /// Takes a transaction out of its rest, or begins it (OPEN-4).
    fn take_up(
        &self,
        id: TransactionId,
        begins: bool,
        leaf: &LeafHead,
        others: &[PageNo],
    ) -> Result<Box<dyn OpenTransaction>, Refusal> {
        let refused = |reason: String| Refusal::Store { pe: self.me, reason };
        if begins && !self.open.has(id) {
            if self.open.len() >= self.options.most_open {
                return Err(refused(format!(
                    "{} transactions are open at this node, which is all that it takes; try again",
                    self.open.len()
                )));
            }
            let work = self.application.open().map_err(|error| refused(error.to_string()))?;
            let deadline = self.world.clock.now() + self.options.open_timeout;
            self.open.open.borrow_mut().insert(id, Open { phase: Phase::Idle(work), ..Open::new(deadline) });
            self.open.began.ring();
            self.watch_time();
        }
        let ranges: Vec<_> = others.iter().filter_map(|page| Some(self.leaf(*page)?.range)).collect();
        let mut open = self.open.open.borrow_mut();
        let Some(open) = open.get_mut(&id) else {
            return Err(Refusal::Ended { pe: self.me, reason: self.open.why_ended(id) });
        };
        let Some(work) = open.take(Phase::Running) else {
            return Err(match open.phase {
                // Whoever ends it has left word of why.
                Phase::Ending => Refusal::Ended { pe: self.me, reason: self.open.why_ended(id) },
                _ => refused("a step of this transaction is at work already".to_owned()),
            });
        };
        open.touch(leaf.range.clone());
        ranges.into_iter().for_each(|range| open.touch(range));
        Ok(work)
    }

    async fn after_step(
        &self,
        id: TransactionId,
        page: PageNo,
        work: Box<dyn OpenTransaction>,
        Stepped { ran, is_over }: Stepped,
    ) -> Result<Answer, Refusal> {
        if is_over {
            self.open.remove(id);
        } else if let Some(why) = self.put_back(id, page, work, ran.as_ref().ok()).await {
            return Err(Refusal::Ended { pe: self.me, reason: why });
        }
        match ran {
            Ok(ran) => Ok(Answer::Ran(ran.bytes)),
            Err(error) if is_over => Err(Refusal::Ended { pe: self.me, reason: error.to_string() }),
            Err(error) => Err(Refusal::Store { pe: self.me, reason: error.to_string() }),
        }
    }

    /// Lets a transaction rest until its next step; or rolls it back, if somebody wanted that meanwhile, and says why.
    async fn put_back(
        &self,
        id: TransactionId,
        page: PageNo,
        work: Box<dyn OpenTransaction>,
        ran: Option<&Ran>,
    ) -> Option<String> {
        let why = {
            let mut open = self.open.open.borrow_mut();
            // Nobody else ends it while its step runs.
            let Some(open) = open.get_mut(&id) else { return Some(self.open.why_ended(id)) };
            match open.doom.take() {
                None => {
                    let grown = open.grown.entry(page).or_default();
                    grown.0 = grown.0.saturating_add(ran.map_or(0, |ran| ran.rows));
                    grown.1 = grown.1.saturating_add(ran.map_or(0, |ran| ran.more_bytes));
                    open.phase = Phase::Idle(work);
                    return None;
                }
                Some(why) => {
                    open.phase = Phase::Ending;
                    why
                }
            }
        };
        work.abort().await;
        self.open.remove(id);
        Some(why)
    }

    /// Commits a transaction, or rolls it back.
    pub(super) async fn end(&self, id: TransactionId, home: PeId, is_commit: bool) -> Worked {
        let work = match home == self.me {
            true => self.open.open.borrow_mut().get_mut(&id).and_then(|open| open.take(Phase::Ending)),
            false => None,
        };
        let Some(work) = work else {
            // If a step of it is at work, its client has given it up.
            self.open.doom("its client gave it up", |other, _| other == id);
            let reason = match home == self.me {
                true => self.open.why_over(id).unwrap_or_else(|| self.open.why_ended(id)),
                false => self.why_left(home),
            };
            return match is_commit {
                true => Err(Refusal::Ended { pe: self.me, reason }).into(),
                false => Ok(Answer::Done { existed: false }).into(),
            };
        };
        if !is_commit {
            work.abort().await;
            self.open.remove(id);
            return Ok(Answer::Done { existed: true }).into();
        }
        let committed = work.commit().await;
        let grown = self.open.remove(id).map(|open| open.grown).unwrap_or_default();
        match committed {
            Ok(ran) => {
                self.balance_later(grown);
                Worked { durable: ran.durable, ..Worked::from(Ok(Answer::Ran(ran.bytes))) }
            }
            Err(RunError::Refused(reason)) => Err(Refusal::Ended { pe: self.me, reason }).into(),
            Err(RunError::Failed(reason)) => Err(Refusal::Failed { pe: self.me, reason }).into(),
        }
    }

    /// Tells whether a transaction goes on. Where its first key is at another node than its home, OPEN-1 says that it does not.
    pub(super) fn check(&self, id: TransactionId, home: PeId) -> Worked {
        let why = match home == self.me {
            true => self.open.why_over(id),
            false => Some(self.why_left(home)),
        };
        match why {
            Some(reason) => Err(Refusal::Ended { pe: self.me, reason }).into(),
            None => Ok(Answer::Done { existed: true }).into(),
        }
    }

    /// What is said of a transaction whose first key is here, and its home elsewhere.
    fn why_left(&self, home: PeId) -> String {
        format!("a leaf that it touched was moved to another node: from {home} to {}", self.me)
    }

    fn balance_later(&self, grown: BTreeMap<PageNo, (isize, usize)>) {
        self.spawn(|node| {
            Box::pin(async move {
                for (page, (rows, bytes)) in grown {
                    node.keep_balance(page, rows, bytes).await;
                }
            })
        });
    }

    /// Rolls back those that wait for their clients, of which `which` is true.
    async fn end_idle(&self, why: &str, which: impl Fn(TransactionId, &Open) -> bool) {
        loop {
            let next = {
                let mut open = self.open.open.borrow_mut();
                let next = open.iter_mut().find(|(id, open)| open.is_idle() && which(**id, open));
                next.and_then(|(id, open)| Some((*id, open.take(Phase::Ending)?)))
            };
            let Some((id, work)) = next else { return };
            self.open.remember(id, why.to_owned());
            work.abort().await;
            self.open.remove(id);
        }
    }

    /// Ends all transactions that have touched a range whose leaf is locked, as far as they wait for their clients. `None`: there are none any more
    /// (OPEN-1); else a task that waits for the next one that is over: not under the leaf's lock, since it may be waiting for one that wants it.
    pub(super) async fn end_those_in(&self, range: &KeyRange) -> Option<impl Future<Output = ()> + use<'_>> {
        const WHY: &str = "a leaf that it touched was moved to another node";
        self.end_idle(WHY, |_, open| open.touches(range)).await;
        self.open.doom(WHY, |_, open| open.touches(range)).then(|| self.open.gone.next())
    }

    /// Waits for `task`, which is part of a change of structure, and makes way for it (OPEN-2).
    pub(super) async fn go_ahead<T>(&self, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        loop {
            if self.open.len() == 0 {
                if let Some(done) = before(task.as_mut(), self.open.began.next()).await {
                    return done;
                }
            } else if let Some(done) = self.world.timeout(PATIENCE, task.as_mut()).await {
                return done;
            } else {
                self.end_idle("it held up a leaf that was split, merged or moved", |_, _| true).await;
            }
        }
    }

    /// Ends the transactions that came by a node that cannot be reached any more.
    pub(super) fn end_those_of(&self, door: PeId) {
        const WHY: &str = "the connection to the node of its client was lost";
        if self.open.len() == 0 {
            return;
        }
        self.spawn(|node| {
            Box::pin(async move {
                node.end_idle(WHY, |id, _| id.0.origin == door).await;
                node.open.doom(WHY, |id, _| id.0.origin == door);
            })
        });
    }

    /// OPEN-3: looks after the time of all of them, as long as there are any.
    fn watch_time(&self) {
        if self.open.is_watched.replace(true) {
            return;
        }
        self.spawn(|node| {
            Box::pin(async move {
                while let Some(deadline) = node.open.next_deadline() {
                    let now = node.world.clock.now();
                    if now < deadline {
                        node.world.clock.sleep(deadline - now).await;
                        continue;
                    }
                    let limit = node.options.open_timeout.as_millis();
                    let why = format!("it was open for more than {limit} ms");
                    node.end_idle(&why, |_, open| open.deadline <= now).await;
                    node.open.doom(&why, |_, open| open.deadline <= now);
                }
                node.open.is_watched.set(false);
            })
        });
    }
}

/// What comes of `task`, unless `other` ends before it.
async fn before<T>(
    mut task: Pin<&mut impl Future<Output = T>>,
    other: impl Future<Output = ()>,
) -> Option<T> {
    let mut other = pin!(other);
    std::future::poll_fn(|cx| match task.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => other.as_mut().poll(cx).map(|()| None),
    })
    .await
}
