//! The decommission message of a leaving node, at both sides. It contains the node's durable route entries,
//! which all other nodes store (LEAVE-1, LEAVE-3).

use std::collections::BTreeSet;

use crate::error::StoreError;
use crate::id::PeId;
use crate::leaf::RouteEntry;
use crate::lock_service::LockMode;
use crate::membership::ListMark;
use crate::message::{DecommissionId, DecommissionRefusal, Message};
use crate::node::Node;
use crate::node::leave::{LeaveError, Leaving};
use crate::node::state::route_entries;
use crate::node::transfer::DECISIONS;
use crate::store::Change;

/// Maximum of route entries in one part of a decommission message.
const ENTRIES_PER_PART: usize = 1024;

/// Progress of sending the decommission message.
pub(super) struct Decommission {
    id: DecommissionId,
    kept: BTreeSet<(PeId, u32)>,
    refused: Option<LeaveError>,
}

impl Leaving {
    fn has_kept(&self, pe: PeId, part: u32) -> bool {
        self.decommission
            .borrow()
            .as_ref()
            .is_some_and(|decommission| decommission.kept.contains(&(pe, part)))
    }
}

impl Node {
    /// Step 2: sends the decommission message until all nodes have acknowledged all its parts.
    pub(super) async fn send_decommission(&self) -> Result<(), LeaveError> {
        let (id, route_entries) = {
            let mut state = self.state.borrow_mut();
            let id = DecommissionId { incarnation: state.incarnation, number: state.next_number() };
            // Every node has the initial distribution (version 1).
            let is_news = |route_entry: &RouteEntry| route_entry.pe != self.me && route_entry.version > 1;
            (id, route_entries(&state.forwarding).filter(is_news).collect::<Vec<_>>())
        };
        self.leaving.decommission.replace(Some(Decommission { id, kept: BTreeSet::new(), refused: None }));
        let mut parts: Vec<&[RouteEntry]> = route_entries.chunks(ENTRIES_PER_PART).collect();
        if parts.is_empty() {
            parts.push(&[]); // all nodes have to confirm that they use the same list
        }
        // The other nodes first store a part durably, as the receiver of a leaf does.
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
            let refused = self
                .leaving
                .decommission
                .borrow_mut()
                .as_mut()
                .and_then(|decommission| decommission.refused.take());
            if let Some(error) = refused {
                return Err(error);
            }
        }
    }

    /// Sends the parts that are not acknowledged. Returns a node that has not acknowledged all parts.
    fn say_what_is_not_kept(
        &self,
        id: DecommissionId,
        list: ListMark,
        parts: &[&[RouteEntry]],
    ) -> Option<PeId> {
        let mut open = None;
        // The nodes are determined anew, because further nodes may have been admitted.
        for pe in self.witnesses() {
            for (part, route_entries) in (0..).zip(parts) {
                if !self.leaving.has_kept(pe, part) {
                    open = Some(pe);
                    self.send(
                        pe,
                        &Message::Decommission { id, list, part, route_entries: route_entries.to_vec() },
                    );
                }
            }
        }
        open
    }

    async fn all_is_answered(&self, parts: u32) {
        let is_open = || {
            let is_refused = self
                .leaving
                .decommission
                .borrow()
                .as_ref()
                .is_some_and(|decommission| decommission.refused.is_some());
            !is_refused
                && self.witnesses().iter().any(|pe| (0..parts).any(|part| !self.leaving.has_kept(*pe, part)))
        };
        while is_open() {
            self.leaving.notify.notified().await;
        }
    }

    /// Stores the route entries of a leaving node durably, then acknowledges (LEAVE-1).
    pub(in crate::node) async fn keep_decommission(
        &self,
        from: PeId,
        id: DecommissionId,
        list: ListMark,
        part: u32,
        route_entries: &[RouteEntry],
    ) {
        let own = self.list();
        let is_same = list.version == own.version && !list.contradicts(own);
        // LEAVE-5: refuses at once, because this node may itself be waiting for the leaving node.
        let not_ready = self.failure().or_else(|| self.unsettled()).map(DecommissionRefusal::NotReady);
        if let Some(why) = not_ready.or_else(|| (!is_same).then_some(DecommissionRefusal::List(own))) {
            self.heard_of_list(from, list);
            return self.send(from, &Message::DecommissionRefused { id, why });
        }
        if let Err(error) = self.keep_entries(route_entries).await {
            self.fail(&error);
            let why = DecommissionRefusal::NotReady(error.to_string());
            return self.send(from, &Message::DecommissionRefused { id, why });
        }
        self.send(from, &Message::DecommissionAcknowledged { id, part });
    }

    async fn keep_entries(&self, route_entries: &[RouteEntry]) -> Result<(), StoreError> {
        if route_entries.is_empty() {
            return Ok(());
        }
        // As for moves: one task at a time rewrites the durable route entries.
        let _decisions = self.locks.lock(DECISIONS, LockMode::X).await;
        let forwarding = self.state.borrow().forwarding_with(route_entries);
        self.store.change(Change { forwarding: Some(forwarding), ..Change::default() }).await?;
        let mut state = self.state.borrow_mut();
        route_entries.iter().for_each(|route_entry| state.give(self.me, route_entry));
        Ok(())
    }

    /// Records an acknowledgment, if it is for the present decommission (LEAVE-3).
    pub(in crate::node) fn decommission_acknowledged(&self, from: PeId, id: DecommissionId, part: u32) {
        if let Some(decommission) =
            self.leaving.decommission.borrow_mut().as_mut().filter(|decommission| decommission.id == id)
        {
            decommission.kept.insert((from, part));
        }
        self.leaving.notify.notify_waiters();
    }

    pub(in crate::node) fn decommission_refused(
        &self,
        from: PeId,
        id: DecommissionId,
        why: DecommissionRefusal,
    ) {
        if let DecommissionRefusal::List(theirs) = why {
            self.heard_of_list(from, theirs);
        }
        let (me, ours) = (self.me, self.list().version);
        if let Some(decommission) =
            self.leaving.decommission.borrow_mut().as_mut().filter(|decommission| decommission.id == id)
        {
            decommission.refused = Some(match why {
                DecommissionRefusal::List(ListMark { version, .. }) if version == ours => {
                    LeaveError::OtherList { pe: from, version }
                }
                DecommissionRefusal::List(ListMark { version: theirs, .. }) => {
                    LeaveError::Version { me, ours, pe: from, theirs }
                }
                DecommissionRefusal::NotReady(reason) => {
                    LeaveError::NotReady(format!("{from} cannot keep the decommission: {reason}"))
                }
            });
        }
        self.leaving.notify.notify_waiters();
    }
}
