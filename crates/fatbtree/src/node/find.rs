//! Routing of a request to its leaf.
//!
//! 1. A request that was sent to a leaf follows right links inside this PE until a leaf covers the target.
//!    That leaf executes the work.
//! 2. Otherwise it descends from the index page to which it was sent, or from the root.
//! 3. If no leaf here covers the target, but a staged leaf does, it waits for the decision of the move.
//! 4. Otherwise it searches the leaves in key order: the index can be outdated, and in SIB only PE 0 has an
//!    index.
//! 5. Otherwise it is forwarded by the newest known route entry, to the owner or to a copy of an index page.
//!    If no route entry is newer than the one by which it arrived (NODE-3), the origin is notified.
//!
//! A sender with a stale route entry receives the current entry with the reply.
//!
//! - **FIND-1** After the origin has stopped waiting for an answer, a node does not execute the request. The
//!   message contains the time that is left, and the node counts from its arrival. So requests that wait for
//!   a leaf do not accumulate, and a write with an unknown outcome does not overwrite later writes of its
//!   client. (A process that was suspended does not execute the requests that arrived meanwhile: BEAT-5.) A
//!   node does not begin a write in the last part of this time either ([`ANSWER_TIME`]): a write that has
//!   only waited, for a lock or for a connection, is refused while the origin still waits, and its outcome
//!   is known.

use std::time::Duration;

use crate::id::{PageNo, PeId};
use crate::index::{Choice, Route};
use crate::key::{KeyRange, Target};
use crate::leaf::RouteEntry;
use crate::lock_service::{Held, LockMode};
use crate::message::{Answer, Find, Message, Refusal, Work};
use crate::node::client_request::MOST_REQUEST_BYTES;
use crate::node::{Asked, Node};
use crate::page_service::Access;

/// Maximum number of hops of one attempt.
pub(super) const MOST_HOPS: u8 = 32;
/// Longest part of the time of a write that is left for its answer. It is at most a quarter of the time.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// Maximum number of descents at one node.
const MOST_DESCENTS: usize = 16;

impl Node {
    /// Searches the leaf of a request, and executes the work there or forwards the request.
    pub(super) async fn find(&self, from: PeId, mut find: Find) {
        self.open_finds.set(self.open_finds.get() + 1);
        if find.until.is_none() {
            let time = self.timeout_of(&find.work);
            find.until = Some(if from == self.me {
                self.begin_until(&find.work, time)
            } else {
                self.world.clock.now() + time.min(Duration::from_millis(find.time_ms.into()))
            });
        }
        self.look_for(from, find).await;
        self.open_finds.set(self.open_finds.get() - 1);
    }

    async fn look_for(&self, from: PeId, mut find: Find) {
        if let Some(reason) = self.failure() {
            let refusal = Refusal::Store { pe: self.me, reason };
            return self.answer(find.id.origin, find.id, Err(refusal), None, find.hops);
        }
        if let Work::AtNode { pe, .. } = &find.work {
            let pe = *pe;
            return self.at_node(pe, find).await;
        }
        if self.withholds(&find.target)
            && let Some(reason) = self.unsettled()
        {
            return self.away(&find, self.me, reason); // STORE-6
        }
        let mut start = find.page;
        self.wait_for_others(&find).await;
        for _ in 0..MOST_DESCENTS {
            if self.is_late(&find) {
                break;
            }
            if !start.is_index() {
                if let Some(leaf) = self.reach_leaf(&find, start).await
                    && self.work_at(&find, leaf).await
                {
                    if from != self.me && !find.page.is_index() && leaf != find.page {
                        self.correct(from, &find.target);
                    }
                    return;
                }
                self.count(|counts| counts.restarts += 1);
                start = PageNo::ROOT;
            }
            let route = self.route(&find.target, start);
            for page in &route.trail {
                self.pages.fix(*page, Access::Read).await;
            }
            let staged_from = self.state.borrow().source_of_staged(&find.target);
            if route.to.pe == self.me && self.leaf(route.to.page).is_some() {
                start = route.to.page;
            } else if let Some(source) = staged_from {
                if let Some(reason) = self.trouble_with(source) {
                    return self.away(&find, source, reason);
                }
                self.wait_for_decision(&find, &find.target).await;
                start = PageNo::ROOT;
            } else {
                let own = self.state.borrow().own_leaf(&find.target).map(|leaf| leaf.page);
                match own {
                    Some(leaf) => start = leaf,
                    None => return self.send_on(from, &mut find, &route).await,
                }
            }
        }
        self.lost(&find);
    }

    /// Returns the time from which on a request is not executed, if its origin waits for `time` from now on
    /// (FIND-1).
    pub(super) fn begin_until(&self, work: &Work, time: Duration) -> Duration {
        let for_answer = if work.is_write() { (time / 4).min(ANSWER_TIME) } else { Duration::ZERO };
        self.world.clock.now() + time - for_answer
    }

    /// Locks a leaf for a request. Returns `None` if the time of the request ends before that.
    pub(super) async fn lock_in_time(&self, find: &Find, page: PageNo, mode: LockMode) -> Option<Held> {
        match self.locks.try_lock(page, mode) {
            Some(held) => Some(held),
            None => self.world.timeout(self.time_left(find), self.locks.lock(page, mode)).await,
        }
    }

    /// Returns the time in which a request may still be executed.
    pub(super) fn time_left(&self, find: &Find) -> Duration {
        find.until.map_or(Duration::MAX, |until| until.saturating_sub(self.world.clock.now()))
    }

    /// Returns `true` if a request must not be executed any more (FIND-1).
    pub(super) fn is_late(&self, find: &Find) -> bool {
        self.time_left(find).is_zero()
    }

    fn route(&self, target: &Target, start: PageNo) -> Route {
        #[cfg(feature = "baseline-protocols")]
        let choice = match self.options.is_choice_by_range {
            true => Choice::ByRange,
            false => Choice::Any(self.world.rng.next()),
        };
        #[cfg(not(feature = "baseline-protocols"))]
        let choice = Choice::ByRange;
        let state = self.state.borrow();
        let mut route = state.index.route(target, start, choice);
        // Leaves that were moved away are never forgotten, even if the index has lost their entries.
        let forwarding = state.forwarding.find(target);
        // A node that has left has no copies of index pages any more (LEAVE-1).
        let is_behind =
            route.owner_at.is_some_and(|version| version < forwarding.version) || self.has_left(route.to.pe);
        if is_behind && forwarding.value.pe != self.me {
            route.to = forwarding.value;
            route.owner_at = Some(forwarding.version);
        }
        route
    }

    /// Returns the leaf of the target, reached from a leaf by right links. Returns `None` if the target is
    /// not at this PE or not on this path.
    async fn reach_leaf(&self, find: &Find, page: PageNo) -> Option<PageNo> {
        let target = &find.target;
        let access = if find.work.is_write() { Access::Change } else { Access::Read };
        let mut leaf = self.leaf(page)?;
        self.pages.fix(page, access).await;
        while !target.is_left_of(&leaf.range.low) {
            if !target.is_right_of(leaf.range.high.as_deref()) {
                return Some(leaf.page);
            }
            leaf = self.leaf(leaf.right?)?;
            self.count(|counts| counts.right_moves += 1);
            self.pages.fix(leaf.page, access).await;
        }
        None
    }

    /// Waits while a further key of a transaction is in a staged leaf, before any lock is acquired (NODE-2).
    /// So a client that has learned of a move finds the keys at the receiver.
    async fn wait_for_others(&self, find: &Find) {
        let (Work::Run { others, .. } | Work::Step { others, .. } | Work::Read { others, .. }) = &find.work
        else {
            return;
        };
        for key in others {
            self.wait_for_decision(find, &Target::At(key.clone())).await;
        }
    }

    async fn wait_for_decision(&self, find: &Find, target: &Target) {
        while self.state.borrow().source_of_staged(target).is_some() && !self.is_late(find) {
            self.world.timeout(self.time_left(find), self.changed.notified()).await;
        }
    }

    async fn send_on(&self, from: PeId, find: &mut Find, route: &Route) {
        let is_newer = route.owner_at.is_none_or(|version| version > find.floor);
        // An unsettled store has only the initial key ranges, which may belong to a node that has left since.
        if let Some(reason) =
            self.unsettled().filter(|_| route.to.pe == self.me || self.has_left(route.to.pe))
        {
            return self.away(find, self.me, reason);
        }
        if route.to.pe == self.me || !is_newer || find.hops >= MOST_HOPS {
            return self.lost(find);
        }
        if let Some(reason) = self.trouble_or_no_room(find, route.to.pe).await {
            return self.away(find, route.to.pe, reason);
        }
        if self.refuse_too_long(find) {
            return;
        }
        self.count(|counts| counts.sent_on += 1);
        if from != self.me && find.floor > 0 {
            self.correct(from, &find.target);
        }
        find.page = route.to.page;
        find.floor = route.owner_at.unwrap_or(find.floor);
        self.send_find(route.to.pe, find);
    }

    fn send_find(&self, to: PeId, find: &mut Find) {
        find.hops += 1;
        find.time_ms = u32::try_from(self.time_left(find).as_millis()).unwrap_or(u32::MAX);
        self.note_sent(find.id, to);
        self.send(to, &Message::Find(find.clone()));
    }

    /// Returns the reason that a request cannot be sent to a node now, after waiting for room.
    async fn trouble_or_no_room(&self, find: &Find, pe: PeId) -> Option<String> {
        if let Some(room) = self.world.net.room(pe)
            && self.world.timeout(self.time_left(find), room).await.is_none()
        {
            return Some(format!("{pe}: too many bytes wait for its connection"));
        }
        self.trouble_with(pe)
    }

    /// Refuses a request that does not fit into a frame between nodes. Returns `true` if the request was
    /// refused.
    fn refuse_too_long(&self, find: &Find) -> bool {
        let bytes = find.work.bytes();
        let is_too_long = bytes > MOST_REQUEST_BYTES;
        if is_too_long {
            self.answer(find.id.origin, find.id, Err(Refusal::TooLong { bytes }), None, find.hops);
        }
        is_too_long
    }

    /// Executes [`Work::AtNode`] if this is its node, otherwise sends it to that node.
    async fn at_node(&self, pe: PeId, mut find: Find) {
        if pe != self.me {
            if let Some(reason) = self.trouble_or_no_room(&find, pe).await {
                return self.away(&find, pe, reason);
            }
            if self.refuse_too_long(&find) {
                return;
            }
            return self.send_find(pe, &mut find);
        }
        let Work::AtNode { bytes, .. } = &find.work else { return self.lost(&find) };
        // No leaf is locked, so the application may use no keys.
        let range = KeyRange { low: Vec::new(), high: Some(Vec::new()) };
        let asked = Asked::at(self, range, &find, false, &[], bytes);
        let result = match self.application.run(asked).await {
            Ok(ran) => self.lasting(Ok(Answer::Ran(ran.bytes)), ran.durable).await,
            Err(error) => Err(error.into_refusal(self.me)),
        };
        self.wait_for_room(find.id.origin).await;
        self.answer(find.id.origin, find.id, result, None, find.hops);
    }

    /// Sends the current route entry to a node that has used an outdated one.
    fn correct(&self, from: PeId, target: &Target) {
        if let Some(route_entry) = self.known(target) {
            self.send(from, &Message::RouteEntries(vec![route_entry]));
        }
    }

    pub(super) fn lost(&self, find: &Find) {
        self.count(|counts| counts.lost += 1);
        let route_entry = self.known(&find.target);
        self.answer(find.id.origin, find.id, Err(Refusal::Lost), route_entry, find.hops);
    }

    /// Refuses a request because its owner cannot be reached; the origin retries.
    fn away(&self, find: &Find, pe: PeId, reason: String) {
        self.count(|counts| counts.lost += 1);
        let refusal = Refusal::Away { pe, reason };
        self.answer(find.id.origin, find.id, Err(refusal), self.known(&find.target), find.hops);
    }

    /// Returns the durable route entry of the target: this PE, or the node that received the leaf.
    fn known(&self, target: &Target) -> Option<RouteEntry> {
        let state = self.state.borrow();
        if let Some(leaf) = state.own_leaf(target) {
            return Some(leaf.route_entry(self.me));
        }
        let place = state.forwarding.place(target);
        let piece = &state.forwarding.pieces()[place];
        let route_entry = RouteEntry {
            range: state.forwarding.piece_range(place),
            pe: piece.value.pe,
            page: piece.value.page,
            version: piece.version,
        };
        (route_entry.pe != self.me).then_some(route_entry)
    }
}
