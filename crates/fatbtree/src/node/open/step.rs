//! Steps of open transactions, and their commits and rollbacks at the request of their clients.

use std::collections::BTreeMap;

use crate::id::{PageNo, PeId};
use crate::key::KeyRange;
use crate::leaf::LeafHead;
use crate::message::{Answer, Find, Refusal, TransactionId, Work};
use crate::node::open::{Beginning, Open, OpenTransaction, Phase, Stepped};
use crate::node::work::Worked;
use crate::node::{Asked, Node, Ran, RunError};

/// Maximum of readers with a snapshot at this node. Each snapshot keeps row versions in memory.
const MOST_READERS: usize = 1024;

impl Node {
    /// Returns the number of open transactions that this node coordinates.
    #[must_use]
    pub fn open_transactions(&self) -> usize {
        self.open.len()
    }

    /// Runs a step of a transaction, at the leaves of all its keys.
    pub(in crate::node) async fn step(&self, find: &Find, leaf: &LeafHead) -> Worked {
        let (id, beginning, is_write, others, bytes) = match &find.work {
            Work::Step { id, coordinator, is_write, others, bytes } => {
                if coordinator.is_some_and(|coordinator| coordinator != self.me) {
                    return Err(Refusal::Elsewhere).into();
                }
                let limit = self.options.open_timeout;
                let beginning = Beginning { is_reader: !is_write, within: None, limit };
                (*id, coordinator.is_none().then_some(beginning), *is_write, others, bytes)
            }
            Work::Read { id, opened, within, others, bytes } => {
                let (within, limit) = (Some(within.clone()), self.options.reader_timeout);
                let beginning = Beginning { is_reader: true, within, limit };
                (*id, (!opened.contains(&self.me)).then_some(beginning), false, others, bytes)
            }
            _ => return Err(Refusal::Lost).into(),
        };
        let locked = match self.lock_others(find, leaf, others, true).await {
            Ok(locked) => locked,
            Err(refusal) => return Err(refusal).into(),
        };
        let ranges: Vec<_> = std::iter::once(leaf.range.clone())
            .chain(locked.iter().filter_map(|(page, _)| Some(self.leaf(*page)?.range)))
            .collect();
        let mut work = match self.resume_or_begin(id, beginning, &ranges) {
            Ok(work) => work,
            Err(refusal) => return Err(refusal).into(),
        };
        if self.open.lacks_any(id, &ranges) {
            return Err(self.end_outdated(id, work).await).into();
        }
        let asked = Asked::at(self, leaf.range.clone(), find, is_write, others, bytes);
        let mut stepped = work.step(asked).await;
        let durable = stepped.ran.as_mut().ok().and_then(|ran| ran.durable.take());
        let result = self.after_step(id, leaf.page, work, stepped).await;
        drop(locked);
        // For a transaction of one node, only the commit has to be durable, not the answer to a step.
        let is_read = matches!(find.work, Work::Read { .. });
        Worked { durable: durable.filter(|_| is_read), ..result.into() }
    }

    /// Takes an idle transaction for its next step, or begins it (OPEN-4).
    fn resume_or_begin(
        &self,
        id: TransactionId,
        beginning: Option<Beginning>,
        ranges: &[KeyRange],
    ) -> Result<Box<dyn OpenTransaction>, Refusal> {
        let refused = |reason: String| Refusal::Store { pe: self.me, reason };
        let now = self.world.clock.now();
        if let Some(beginning) = beginning.filter(|_| !self.open.has(id)) {
            let most = if beginning.is_reader { MOST_READERS } else { self.options.most_open };
            let count = self.open.count(beginning.is_reader);
            if count >= most {
                return Err(refused(format!(
                    "{count} transactions are open at this node, the most that it allows; try again"
                )));
            }
            let work = self.application.open(beginning.is_reader);
            let work = work.map_err(|error| refused(error.to_string()))?;
            self.open.open.borrow_mut().insert(id, Open::new(work, beginning, now));
            self.open.began.notify_waiters();
            self.watch_time();
        }
        let mut open = self.open.open.borrow_mut();
        let Some(open) = open.get_mut(&id) else {
            return Err(Refusal::Ended { pe: self.me, reason: self.open.why_ended(id) });
        };
        let Some(work) = open.take(Phase::Running) else {
            return Err(match open.phase {
                // The reason of the end is recorded.
                Phase::Ending => Refusal::Ended { pe: self.me, reason: self.open.why_ended(id) },
                _ => refused("another step of this transaction is running".to_owned()),
            });
        };
        if open.is_of_several {
            open.deadline = now + self.options.reader_timeout; // it counts as using all its keys (OPEN-6)
        } else {
            ranges.iter().for_each(|range| open.touch(range.clone()));
        }
        Ok(work)
    }

    /// Ends a reader with a snapshot that lacks rows of a leaf (OPEN-5).
    async fn end_outdated(&self, id: TransactionId, work: Box<dyn OpenTransaction>) -> Refusal {
        let reason = "a leaf that it reads was moved to this node after its snapshot was opened".to_owned();
        self.open.remember(id, reason.clone());
        work.abort().await;
        self.open.remove(id);
        Refusal::Ended { pe: self.me, reason }
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

    /// Makes a transaction idle until its next step. If its rollback was requested meanwhile, rolls it back
    /// and returns the reason.
    async fn put_back(
        &self,
        id: TransactionId,
        page: PageNo,
        work: Box<dyn OpenTransaction>,
        ran: Option<&Ran>,
    ) -> Option<String> {
        let why = {
            let mut open = self.open.open.borrow_mut();
            // No other task ends a transaction while its step runs.
            let Some(open) = open.get_mut(&id) else { return Some(self.open.why_ended(id)) };
            match open.end_request.take() {
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
    pub(in crate::node) async fn end(&self, id: TransactionId, coordinator: PeId, is_commit: bool) -> Worked {
        let work = match coordinator == self.me {
            true => self.open.open.borrow_mut().get_mut(&id).and_then(|open| open.take(Phase::Ending)),
            false => None,
        };
        let Some(work) = work else {
            // If a step of the transaction is running, its client has abandoned it. A reader of several nodes
            // may have a snapshot here although this request is for another node; that snapshot is closed by
            // its own timeout.
            if coordinator == self.me {
                self.open.request_end("its client ended it", |other, _| other == id);
            }
            let reason = match coordinator == self.me {
                true => self.open.why_over(id).unwrap_or_else(|| self.open.why_ended(id)),
                false => self.why_left(coordinator),
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
            Err(RunError::Refused(reason) | RunError::Application(reason)) => {
                Err(Refusal::Ended { pe: self.me, reason }).into()
            }
            Err(RunError::Failed(reason)) => Err(Refusal::Failed { pe: self.me, reason }).into(),
        }
    }

    /// Checks that a transaction is still open. If its first key is not at its coordinator any more, it has
    /// ended by OPEN-1.
    pub(in crate::node) fn check(&self, id: TransactionId, coordinator: PeId) -> Worked {
        let why = match coordinator == self.me {
            true => self.open.why_over(id),
            false => Some(self.why_left(coordinator)),
        };
        match why {
            Some(reason) => Err(Refusal::Ended { pe: self.me, reason }).into(),
            None => Ok(Answer::Done { existed: true }).into(),
        }
    }

    /// Returns the reason for a transaction with its first key here and its coordinator at another node.
    fn why_left(&self, coordinator: PeId) -> String {
        format!("a leaf that it touched was moved to another node: from {coordinator} to {}", self.me)
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
}
