//! Requests of this node's clients: each is answered within its timeout.

use std::rc::Rc;
use std::time::Duration;

use crate::error::Error;
use crate::frame;
use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{RouteEntry, Row};
use crate::message::{Answer, Find, Refusal, RequestId, TransactionId, Work};
use crate::node::Node;
use crate::node::state::Waiting;
use crate::options::Options;
use crate::world::Slot;

/// The answer to a request of a client of this node.
pub(super) struct Reply {
    result: Result<Answer, Refusal>,
    route_entry: Option<RouteEntry>,
    hops: u8,
}

/// Rows of a scan, and the range that remains to be scanned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The rows, in the order of the request.
    pub rows: Vec<Row>,
    /// The remaining range; `None` if the scan is complete.
    pub rest: Option<KeyRange>,
}

/// Maximum size of a request to another node in bytes: half a frame, which leaves space for the other fields
/// of the message.
pub(super) const MOST_REQUEST_BYTES: usize = frame::MAX_BYTES / 2;

/// Part of the time limit of a write that an attempt needs.
const LEAST_PART: u32 = 16;
/// Longest and shortest pause before a lost request is sent again. Each pause is twice the previous one.
const MOST_PAUSE: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(1);

impl Node {
    /// Returns the value of a key.
    ///
    /// # Errors
    ///
    /// See [`call`](Self::call).
    pub async fn get(&self, key: impl Into<Key>) -> Result<Option<Vec<u8>>, Error> {
        match self.call(Target::At(key.into()), Work::Get).await?.0 {
            Answer::Value(value) => Ok(value),
            _ => Err(Error::Protocol),
        }
    }

    /// Changes a key by [`Work::Put`], [`Work::Insert`] or [`Work::Delete`]. Returns `true` if the key had a
    /// value.
    ///
    /// # Errors
    ///
    /// See [`call`](Self::call).
    pub async fn write(&self, key: impl Into<Key>, work: Work) -> Result<bool, Error> {
        match self.call(Target::At(key.into()), work).await?.0 {
            Answer::Done { existed } => Ok(existed),
            _ => Err(Error::Protocol),
        }
    }

    /// Returns up to `limit` rows of a range, from the end backward if `reverse`. Each leaf is read at one
    /// moment, different leaves at different moments. A key that exists during the whole scan is returned
    /// once, and in order.
    ///
    /// # Errors
    ///
    /// See [`call`](Self::call).
    pub async fn scan(&self, range: KeyRange, reverse: bool, limit: usize) -> Result<Rows, Error> {
        let mut all = Rows { rows: Vec::new(), rest: Some(range) };
        while let Some(rest) = all.rest.take() {
            if rest.is_empty() {
                break;
            }
            if all.rows.len() >= limit {
                all.rest = Some(rest);
                break;
            }
            let target = match reverse {
                false => Target::At(rest.low.clone()),
                true => Target::Before(rest.high.clone()),
            };
            let limit = u32::try_from(limit - all.rows.len()).unwrap_or(u32::MAX);
            let (answer, route_entry) = self.call(target, Work::Rows { within: rest.clone(), limit }).await?;
            let (Answer::Rows { rows, is_more }, Some(route_entry)) = (answer, route_entry) else {
                return Err(Error::Protocol);
            };
            all.rest = rest_of(rest, reverse, rows.last().filter(|_| is_more), &route_entry.range);
            all.rows.extend(rows);
        }
        Ok(all)
    }

    /// Executes work at the leaf of `target`, at any node.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Unreachable`]: nothing was changed. [`Error::Unknown`]: a write may
    /// have been executed. [`Error::Store`], [`Error::Application`]: the owner's store or application refused
    /// the request. [`Error::Ended`]: the transaction was rolled back. [`Error::Elsewhere`], [`Error::Left`],
    /// [`Error::NotMoved`], [`Error::TooLong`]: the request is refused.
    pub async fn call(&self, target: Target, work: Work) -> Result<(Answer, Option<RouteEntry>), Error> {
        let timeout = self.timeout_of(&work);
        let begun = self.world.clock.now();
        let deadline = begun + timeout;
        let timeout_ms = timeout.as_millis() as u64;
        let (mut pause, mut trouble) = (FIRST_PAUSE, None);
        loop {
            let left = deadline.saturating_sub(self.world.clock.now());
            // A write that is sent again with little time left would end with an unknown outcome.
            let least = if work.is_write() { timeout / LEAST_PART } else { Duration::ZERO };
            if left <= least {
                return Err(Error::Unavailable { timeout_ms, reason: trouble });
            }
            let time = if work.is_write() { left } else { left.min(self.options.read_timeout) };
            match self.attempt(target.clone(), work.clone(), time).await {
                Some(Reply { result: Ok(answer), route_entry, hops }) => {
                    if let Some(route_entry) = route_entry.as_ref().filter(|_| hops > 0) {
                        self.learn(route_entry);
                    }
                    return Ok((answer, route_entry));
                }
                Some(Reply {
                    result: Err(refusal @ (Refusal::Lost | Refusal::Away { .. })),
                    route_entry,
                    ..
                }) => {
                    if let Some(route_entry) = route_entry {
                        self.learn(&route_entry);
                    }
                    trouble = match refusal {
                        // Another node may not reach a node that this node can reach.
                        Refusal::Away { pe, reason } if self.is_down(pe) => {
                            return Err(Error::Unreachable { pe, reason });
                        }
                        Refusal::Away { reason, .. } => Some(reason),
                        _ => None,
                    };
                    let jitter = self.world.rng.below(1000) as f64 / 1000.0 + 0.5;
                    self.world.clock.sleep(pause.mul_f64(jitter)).await;
                    pause = (pause * 2).min(MOST_PAUSE);
                }
                Some(Reply { result: Err(Refusal::Store { pe, .. }), .. })
                    if pe == self.me && self.has_left(pe) =>
                {
                    return Err(Error::Left { pe });
                }
                Some(Reply { result: Err(Refusal::Store { pe, reason }), .. }) => {
                    return Err(Error::Store { pe, reason });
                }
                Some(Reply { result: Err(Refusal::Application { reason }), .. }) => {
                    return Err(Error::Application { reason });
                }
                Some(Reply { result: Err(Refusal::Elsewhere), .. }) => return Err(Error::Elsewhere),
                Some(Reply { result: Err(Refusal::TooLong { bytes }), .. }) => {
                    return Err(Error::TooLong { bytes, most: MOST_REQUEST_BYTES });
                }
                Some(Reply { result: Err(Refusal::Ended { reason, .. }), .. }) => {
                    return Err(Error::Ended { reason });
                }
                Some(Reply { result: Err(Refusal::NotMoved { pe, reason }), .. }) => {
                    return Err(Error::NotMoved { pe, reason });
                }
                Some(Reply { result: Err(Refusal::Failed { pe, reason }), .. }) if !work.is_write() => {
                    return Err(Error::Store { pe, reason });
                }
                Some(Reply { result: Err(Refusal::Failed { pe, reason }), .. }) => {
                    return Err(Error::Unknown { reason: format!("the store of {pe}: {reason}") });
                }
                None if work.is_write() => {
                    // The wait ends before the timeout if the connection to the owner ends.
                    let waited_ms = (self.world.clock.now() - begun).as_millis();
                    return Err(Error::Unknown { reason: format!("no answer within {waited_ms} ms") });
                }
                None => {}
            }
        }
    }

    /// Returns the timeout of a request. A step of an open transaction may wait for a lock as long as the
    /// transaction may be open. A move waits for the leaf's lock, and for the receiver.
    pub(super) fn timeout_of(&self, work: &Work) -> Duration {
        let Options { request_timeout, open_timeout, move_timeout, .. } = self.options;
        match work {
            Work::Step { .. } | Work::End { .. } => request_timeout.max(open_timeout),
            Work::Split | Work::Move { .. } => request_timeout + 2 * move_timeout,
            _ => request_timeout,
        }
    }

    /// Checks that a transaction is still open, after a step was refused because its keys are not at the
    /// coordinator. A transaction ends when one of its leaves moves. `first` is a key that the transaction
    /// has used.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`]: the transaction has ended, for the given reason. After other errors (see
    /// [`call`](Self::call)) its state is unknown.
    pub async fn goes_on(&self, id: TransactionId, coordinator: PeId, first: Key) -> Result<(), Error> {
        self.call(Target::At(first), Work::Check { id, coordinator }).await.map(drop)
    }

    /// Returns a new number for a transaction of a client of this node.
    #[must_use]
    pub fn new_transaction(&self) -> TransactionId {
        let mut state = self.state.borrow_mut();
        let number = state.next_number();
        TransactionId(RequestId { origin: self.me, incarnation: state.incarnation, number })
    }

    async fn attempt(&self, target: Target, work: Work, time: Duration) -> Option<Reply> {
        let slot = Slot::new();
        let id = {
            let mut state = self.state.borrow_mut();
            let number = state.next_number();
            state.waiting.insert(number, Waiting { slot: Rc::clone(&slot), sent_to: None });
            RequestId { origin: self.me, incarnation: state.incarnation, number }
        };
        // A read may take longer than an attempt: the next one finds more pages in memory.
        let until = work.is_write().then(|| self.begin_until(&work, time));
        let find = Find { id, target, work, page: PageNo::ROOT, floor: 0, hops: 0, time_ms: 0, until };
        self.spawn(|node| {
            Box::pin(async move {
                #[cfg(feature = "baseline-protocols")]
                if node.is_coupled() {
                    return node.couple_begin(find).await;
                }
                node.find(node.me, find).await;
            })
        });
        let reply = self.world.timeout(time, slot.take()).await;
        self.state.borrow_mut().waiting.remove(&id.number);
        reply.flatten()
    }

    /// Records that the connection to a node has ended: ends the waits for answers from that node at once.
    pub fn lost_touch(&self, pe: PeId) {
        for waiting in self.state.borrow().waiting.values().filter(|waiting| waiting.sent_to == Some(pe)) {
            waiting.slot.put(None);
        }
        self.end_those_of(pe);
    }

    /// Records the node to which a request of a client of this node was sent.
    pub(super) fn note_sent(&self, id: RequestId, to: PeId) {
        let mut state = self.state.borrow_mut();
        let is_ours = id.origin == self.me && id.incarnation == state.incarnation;
        if let Some(waiting) = state.waiting.get_mut(&id.number).filter(|_| is_ours) {
            waiting.sent_to = Some(to);
        }
    }

    /// Passes an answer to the waiting task. That task may have ended, or the answer may belong to an earlier
    /// start of this node.
    pub(super) fn answered(
        &self,
        id: RequestId,
        result: Result<Answer, Refusal>,
        route_entry: Option<RouteEntry>,
        hops: u8,
    ) {
        let state = self.state.borrow();
        if id.incarnation == state.incarnation
            && let Some(waiting) = state.waiting.get(&id.number)
        {
            waiting.slot.put(Some(Reply { result, route_entry, hops }));
        }
    }

    /// Sends an answer to the origin of the request.
    pub(super) fn answer(
        &self,
        to: PeId,
        id: RequestId,
        result: Result<Answer, Refusal>,
        route_entry: Option<RouteEntry>,
        hops: u8,
    ) {
        if to == self.me {
            self.answered(id, result, route_entry, hops);
        } else {
            self.send(to, &crate::message::Message::Answered { id, result, route_entry, hops });
        }
    }
}

/// Returns the range that a scan has to read after a leaf: the keys beyond the last row if the leaf has more
/// rows, otherwise the keys beyond the leaf.
fn rest_of(rest: KeyRange, reverse: bool, last: Option<&Row>, leaf: &KeyRange) -> Option<KeyRange> {
    match (reverse, last) {
        (false, Some((key, _))) => {
            let mut low = key.clone();
            low.push(0);
            Some(KeyRange { low, ..rest })
        }
        (false, None) => leaf.high.clone().map(|low| KeyRange { low, ..rest }),
        (true, Some((key, _))) => Some(KeyRange { high: Some(key.clone()), ..rest }),
        (true, None) => (!leaf.low.is_empty()).then(|| KeyRange { high: Some(leaf.low.clone()), ..rest }),
    }
}
