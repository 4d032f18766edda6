//! Decommission of a node: it moves its leaves away, sends its durable route entries to all other nodes, and
//! leaves the cluster.
//!
//! | step | leaving node | each other node | after a crash of the leaving node |
//! |---|---|---|---|
//! | 1 | moves its leaves away, accepts none (`Declined`) | accepts them | member with its remaining leaves |
//! | 2 | no leaf, no open move; sends `Decommission` | stores it, acknowledges | member without leaves |
//! | 3 | all acknowledged: one transaction, state *left* | | no member |
//! | 4 | sends `Left` until all know; may stop | stores it, sends `LeftNoted` | no member; repeats `Left` |
//!
//! After a crash in step 1 or 2 the node is an ordinary member. The operator repeats the command.
//!
//! - **LEAVE-1** No durable route entry leads to a node that has left. The leaving node owns no keys, so for
//!   each key it has a newer entry than each one that leads to it (I3). All other nodes store these entries
//!   before step 3. Older entries in messages or index pages are corrected by the durable ones (`find`). So
//!   I3 holds without the node that has left.
//! - **LEAVE-2** Between the first part of the decommission message and step 3 the node owns no keys and
//!   cannot become an owner: no staged leaf is undecided (`staged`), no leaf is being stored (`arriving`),
//!   and the node accepts no leaf.
//! - **LEAVE-3** An acknowledgment counts for one decommission only. The decommission's id contains the
//!   node's incarnation and a number. Before a second decommission the node may have received leaves and
//!   moved them away, which the acknowledgments of the first one do not cover.
//! - **LEAVE-4** Step 3 is the decision. Only the leaving node makes it, once and durably. No other node
//!   treats this node as departed before.
//! - **LEAVE-5** A node without its own keys refuses a decommission message at once. A leaving node admits
//!   no new store. A node that is collecting route entries starts over when a node has left, because
//!   entries that it has collected may be older than the decommission message.
//! - **LEAVE-6** A node leaves only when none of its decided moves is open. So an undecided staged leaf
//!   from a node that has left was aborted, and a leaf decided *for* such a node was installed there.

mod decommission;
mod error;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::error::Error;
use crate::id::{PageNo, PeId};
use crate::message::Message;
use crate::node::{MoveError, Node};
use crate::store::Change;
use crate::world::Notify;

use decommission::Decommission;
pub use error::LeaveError;

/// Pause before a refused leaf is offered to another node.
const PAUSE: Duration = Duration::from_millis(10);
/// Number of move timeouts without progress after which the decommission is abandoned.
const MAX_IDLE_TIMEOUTS: u32 = 5;

/// Progress of this node's decommission.
#[derive(Default)]
pub(super) struct Leaving {
    is_begun: Cell<bool>,
    /// Leaves and stores that are being stored and are not visible yet.
    arriving: Cell<usize>,
    decommission: RefCell<Option<Decommission>>,
    /// Signals an answer.
    notify: Notify,
    /// Nodes that have acknowledged that this node has left.
    informed: RefCell<BTreeSet<PeId>>,
}

/// Guard of an arriving leaf or store; a decommission waits until it is dropped.
pub(super) struct Arrival<'a>(&'a Leaving);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.arriving.set(self.0.arriving.get() - 1);
    }
}

impl Leaving {
    /// Admits a leaf or store that arrives, unless the node is leaving or has left (LEAVE-2, LEAVE-5).
    pub(super) fn let_come(&self) -> Option<Arrival<'_>> {
        (!self.is_begun.get()).then(|| {
            self.arriving.set(self.arriving.get() + 1);
            Arrival(self)
        })
    }

    pub(super) fn is_begun(&self) -> bool {
        self.is_begun.get()
    }
}

impl Node {
    /// Leaves the cluster, while clients continue. Returns when the departure is decided. The other nodes are
    /// notified afterward ([`uninformed`](Self::uninformed)), and then the node can be stopped. All nodes
    /// must be reachable and must use the same version of the list of members.
    ///
    /// # Errors
    ///
    /// [`LeaveError`]: the node is still a member, perhaps with fewer leaves. After [`LeaveError::Store`] it
    /// refuses all requests.
    pub async fn leave(&self) -> Result<(), LeaveError> {
        if self.has_left(self.me) {
            return Ok(());
        }
        self.may_leave()?;
        self.leaving.is_begun.set(true);
        let done = self.go_away().await;
        self.leaving.decommission.replace(None);
        // LEAVE-2: a node that has left never accepts a leaf again. Nor does a node with a failed store,
        // because the store may have recorded the departure.
        self.leaving.is_begun.set(self.has_left(self.me) || self.failure().is_some());
        done
    }

    /// Returns the nodes that have not confirmed that this node has left.
    #[must_use]
    pub fn uninformed(&self) -> Vec<PeId> {
        let informed = self.leaving.informed.borrow();
        self.others().into_iter().filter(|pe| !informed.contains(pe)).collect()
    }

    fn may_leave(&self) -> Result<(), LeaveError> {
        #[cfg(feature = "baseline-protocols")]
        if self.is_coupled() || self.is_only_index() {
            return Err(LeaveError::Protocol(self.me));
        }
        if let Some(reason) = self.failure().or_else(|| self.unsettled()) {
            return Err(LeaveError::NotReady(reason));
        }
        if self.leaving.is_begun() {
            return Err(LeaveError::Busy(self.me));
        }
        if self.others().is_empty() {
            return Err(LeaveError::Last(self.me));
        }
        Ok(())
    }

    async fn go_away(&self) -> Result<(), LeaveError> {
        self.give_all_away().await?;
        self.send_decommission().await?;
        // Step 3. The node has received nothing since the first part of the decommission message (LEAVE-2).
        assert!(self.unclear().is_none(), "who is leaving takes nothing");
        let change = Change { left: Some(self.me), ..Change::default() };
        if let Err(error) = self.store.change(change).await {
            self.fail(&error);
            return Err(error.into());
        }
        self.note_own_leaving();
        self.tell_that_it_has_left();
        Ok(())
    }

    /// Step 1: moves all leaves away.
    async fn give_all_away(&self) -> Result<(), LeaveError> {
        let limit = self.options.move_timeout * MAX_IDLE_TIMEOUTS;
        let (mut last_success, mut turn) = (self.world.clock.now(), 0);
        while let Some(unclear) = self.unclear() {
            let takers = self.others();
            let mut trouble = unclear;
            for leaf in self.leaves() {
                let to = *takers.get(turn % takers.len().max(1)).ok_or(LeaveError::Last(self.me))?;
                turn += 1;
                match self.give_away(leaf.page, to).await {
                    Ok(()) => last_success = self.world.clock.now(),
                    Err(MoveError::Store(reason)) => return Err(LeaveError::Store(reason)),
                    Err(error) => {
                        trouble = LeaveError::NotTaken { page: leaf.page, reason: error.to_string() };
                        self.world.clock.sleep(PAUSE).await;
                    }
                }
            }
            if self.world.clock.now() - last_success > limit {
                return Err(trouble);
            }
            if self.leaves().is_empty() {
                self.world.timeout(PAUSE, self.changed.notified()).await;
            }
        }
        Ok(())
    }

    async fn give_away(&self, page: PageNo, to: PeId) -> Result<(), MoveError> {
        match self.move_leaf(page, to).await {
            Err(error @ MoveError::TooLarge { .. }) => self.halve(page, error).await,
            // The leaf was merged, or another request has moved it.
            Err(MoveError::NotHere(_)) => Ok(()),
            done => done,
        }
    }

    /// Returns the reason to wait before the decommission message: a remaining leaf, or an open move
    /// (LEAVE-2).
    fn unclear(&self) -> Option<LeaveError> {
        let state = self.state.borrow();
        let open = state.staged.keys().chain(state.moving.keys()).chain(state.decided.keys()).next();
        if let Some(leaf) = state.leaves.values().next() {
            return Some(LeaveError::NotTaken {
                page: leaf.page,
                reason: "no node has accepted it".to_owned(),
            });
        }
        match open {
            Some(id) => Some(LeaveError::OpenMove(*id)),
            None => (self.leaving.arriving.get() > 0)
                .then(|| LeaveError::NotReady("a leaf is arriving".to_owned())),
        }
    }

    /// Step 4: notifies the other nodes until all have acknowledged. Then only clients that are still
    /// connected send requests, and these are refused.
    pub(super) fn tell_that_it_has_left(&self) {
        self.leaving.is_begun.set(true);
        self.spawn(|node| {
            Box::pin(async move {
                loop {
                    let open = node.uninformed();
                    if open.is_empty() {
                        return node.refuse_since_it_has_left();
                    }
                    open.into_iter().for_each(|pe| node.send(pe, &Message::Left { pe: node.me }));
                    node.world.timeout(node.options.remind_interval, node.all_are_told()).await;
                }
            })
        });
    }

    pub(super) fn refuse_since_it_has_left(&self) {
        self.refuse(Error::Left { pe: self.me }.to_string());
    }

    async fn all_are_told(&self) {
        while !self.uninformed().is_empty() {
            self.leaving.notify.notified().await;
        }
    }

    pub(super) fn left_noted(&self, from: PeId, pe: PeId) {
        if pe == self.me {
            self.leaving.informed.borrow_mut().insert(from);
            self.leaving.notify.notify_waiters();
        }
    }
}
