//! The farewell of a node that leaves, on both sides: what it knows for good of where keys are, kept by all
//! others (LEAVE-1, LEAVE-3).

use std::collections::BTreeSet;

use crate::error::StoreError;
use crate::id::PeId;
use crate::leaf::Fact;
use crate::lock_service::LockMode;
use crate::membership::ListMark;
use crate::message::{FarewellId, Message, Unkept};
use crate::node::Node;
use crate::node::leave::{LeaveError, Leaving};
use crate::node::state::facts;
use crate::node::transfer::DECISIONS;
use crate::store::Change;

/// Facts in one part of a farewell.
const FACTS_PER_PART: usize = 1024;
/// What has come of the farewell that is being said.
pub(super) struct Farewell {
    id: FarewellId,
    kept: BTreeSet<(PeId, u32)>,
    refused: Option<LeaveError>,
}

impl Leaving {
    fn has_kept(&self, pe: PeId, part: u32) -> bool {
        self.farewell.borrow().as_ref().is_some_and(|farewell| farewell.kept.contains(&(pe, part)))
    }
}

impl Node {
    /// Step 2.
    pub(super) async fn say_farewell(&self) -> Result<(), LeaveError> {
        let (id, facts) = {
            let mut state = self.state.borrow_mut();
            let id = FarewellId { incarnation: state.incarnation, number: state.next_number() };
            // Where keys were at first is known to everybody.
            let is_news = |fact: &Fact| fact.pe != self.me && fact.version > 1;
            (id, facts(&state.given).filter(is_news).collect::<Vec<_>>())
        };
        self.leaving.farewell.replace(Some(Farewell { id, kept: BTreeSet::new(), refused: None }));
        let mut parts: Vec<&[Fact]> = facts.chunks(FACTS_PER_PART).collect();
        if parts.is_empty() {
            parts.push(&[]); // all have to say that they are at the same list
        }
        // The others store it first, as the receiver of a leaf does.
        let time = self.options.request_timeout.max(self.options.move_timeout);
        let deadline = self.world.clock.now() + time;
        let list = self.list();
        loop {
            let open = self.say_what_is_not_kept(id, list, &parts);
            let Some(pe) = open else { return Ok(()) };
            let left = deadline.saturating_sub(self.world.clock.now());
            if left.is_zero() {
                return Err(LeaveError::NoAnswer(pe));
            }
            self.world
                .timeout(left.min(self.options.remind_interval), self.all_is_answered(parts.len() as u32))
                .await;
            let refused =
                self.leaving.farewell.borrow_mut().as_mut().and_then(|farewell| farewell.refused.take());
            if let Some(error) = refused {
                return Err(error);
            }
        }
    }

    /// Says the parts of a farewell that are not kept; one of those who have not.
    fn say_what_is_not_kept(&self, id: FarewellId, list: ListMark, parts: &[&[Fact]]) -> Option<PeId> {
        let mut open = None;
        // Who was admitted since is among them.
        for pe in self.witnesses() {
            for (part, facts) in (0..).zip(parts) {
                if !self.leaving.has_kept(pe, part) {
                    open = Some(pe);
                    self.send(pe, &Message::Farewell { id, list, part, facts: facts.to_vec() });
                }
            }
        }
        open
    }

    async fn all_is_answered(&self, parts: u32) {
        let is_open = || {
            let is_refused =
                self.leaving.farewell.borrow().as_ref().is_some_and(|farewell| farewell.refused.is_some());
            !is_refused
                && self.witnesses().iter().any(|pe| (0..parts).any(|part| !self.leaving.has_kept(*pe, part)))
        };
        while is_open() {
            self.leaving.bell.next().await;
        }
    }

    /// Another node is about to leave: what it tells is kept for good before it is answered (LEAVE-1).
    pub(in crate::node) async fn keep_farewell(
        &self,
        from: PeId,
        id: FarewellId,
        list: ListMark,
        part: u32,
        facts: &[Fact],
    ) {
        let own = self.list();
        let is_same = list.version == own.version && !list.contradicts(own);
        // LEAVE-5; at once, since it may be who leaves that is waited for.
        let not_ready = self.failure().or_else(|| self.unsettled()).map(Unkept::NotReady);
        if let Some(why) = not_ready.or_else(|| (!is_same).then_some(Unkept::List(own))) {
            self.heard_of_list(from, list);
            return self.send(from, &Message::FarewellRefused { id, why });
        }
        if let Err(error) = self.keep_facts(facts).await {
            return self.fail(&error);
        }
        self.send(from, &Message::FarewellKept { id, part });
    }

    async fn keep_facts(&self, facts: &[Fact]) -> Result<(), StoreError> {
        if facts.is_empty() {
            return Ok(());
        }
        // As for moves: whoever rewrites what is kept does so alone.
        let _decisions = self.locks.lock(DECISIONS, LockMode::X).await;
        let given = self.state.borrow().giving(facts);
        self.store.change(Change { given: Some(given), ..Change::default() }).await?;
        let mut state = self.state.borrow_mut();
        facts.iter().for_each(|fact| state.give(self.me, fact));
        Ok(())
    }

    /// LEAVE-3.
    pub(in crate::node) fn farewell_kept(&self, from: PeId, id: FarewellId, part: u32) {
        if let Some(farewell) =
            self.leaving.farewell.borrow_mut().as_mut().filter(|farewell| farewell.id == id)
        {
            farewell.kept.insert((from, part));
        }
        self.leaving.bell.ring();
    }

    pub(in crate::node) fn farewell_refused(&self, from: PeId, id: FarewellId, why: Unkept) {
        if let Unkept::List(theirs) = why {
            self.heard_of_list(from, theirs);
        }
        let (me, ours) = (self.me, self.list().version);
        if let Some(farewell) =
            self.leaving.farewell.borrow_mut().as_mut().filter(|farewell| farewell.id == id)
        {
            farewell.refused = Some(match why {
                Unkept::List(ListMark { version, .. }) if version == ours => {
                    LeaveError::OtherList { pe: from, version }
                }
                Unkept::List(ListMark { version: theirs, .. }) => {
                    LeaveError::Version { me, ours, pe: from, theirs }
                }
                Unkept::NotReady(reason) => {
                    LeaveError::NotReady(format!("{from} cannot keep the farewell: {reason}"))
                }
            });
        }
        self.leaving.bell.ring();
    }
}
