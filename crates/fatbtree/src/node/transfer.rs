//! Moves of leaves to other nodes, while searches and updates run (hazard B6).
//!
//! | step | source | receiver | source crashes | receiver crashes (asks after its restart) |
//! |---|---|---|---|---|
//! | 1 | X on the leaf; sends it | | aborted | aborted by timeout |
//! | 2 | | stages it (`staged`); sends `Kept` | receiver asks: aborted | aborted by timeout |
//! | 3 | removes leaf and rows, adds `forwarding`, `decided` | | decided: repeats `Install` | decided |
//! | 4 | | one transaction: owns the leaf; sends `Installed` | receiver serves it | decided |
//! | 5 | removes `decided`, keeps `forwarding` | | | |
//!
//! - **MOVE-1** Step 3 is the decision. Only the source makes it, and only for a move that it has not
//!   aborted. The source answers a question about an unknown move with `Abort` (presumed abort).
//! - **MOVE-2** While a leaf is staged, its receiver serves none of its keys, but waits for the decision.
//! - **MOVE-3** The source forwards later requests by `forwarding`, which has a higher version (I3).

use std::fmt;

use crate::clock_offset::ClockOffset;
use crate::error::StoreError;
use crate::frame;
use crate::id::{PageNo, PeId};
use crate::key::Target;
use crate::leaf::{LeafHead, MoveId, Staged};
use crate::lock_service::{Held, LockMode};
use crate::message::Message;
use crate::node::Node;
use crate::node::state::Load;
use crate::page_service::Access;
use crate::store::Change;
use crate::world::Slot;

/// The reason that a leaf was not moved. Its owner is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// This node does not have the leaf.
    #[error("{0} is not at this node; send the command to the node that has it (AZ.CLUSTER MAP)")]
    NotHere(PageNo),
    /// The receiver is not a member, or is this node.
    #[error("{0} is this node or not a member of the cluster")]
    NoSuchMember(PeId),
    /// The leaf begins with the key, so the left half would be empty.
    #[error("{0} begins with this key; split it at a later one")]
    CannotSplit(PageNo),
    /// The key is too long for the store, so that no move of a leaf that begins with it could be recorded.
    #[error("a key of {0} bytes is too long for the store; a leaf begins with at most {1} bytes")]
    KeyTooLong(usize, usize),
    /// The paper's protocols do not move leaves.
    #[error("leaves are moved, and split on demand, by the lazy protocol only")]
    #[cfg(feature = "baseline-protocols")]
    Protocol,
    /// The leaf does not fit into a frame between nodes. Its halves may.
    #[error("{page} has {bytes} bytes, more than the {MOST_BYTES} of one move")]
    TooLarge {
        /// The leaf.
        page: PageNo,
        /// Size of the leaf, in bytes.
        bytes: usize,
    },
    /// A running transaction uses the leaf, and did not end in time.
    #[error("a transaction uses {0}; try again")]
    InUse(PageNo),
    /// The receiver is leaving the cluster, has not received its keys yet, refuses all requests, or has
    /// smaller pages than a key of the leaf needs.
    #[error(
        "{0} does not accept the leaf: it leaves the cluster, still needs its keys, refuses all requests, or \
         its pages are too small for a key of the leaf"
    )]
    Declined(PeId),
    /// The receiver's clock differs too much, so the rows of the leaf could expire at a wrong time.
    #[error("{0}: {1}")]
    Clock(PeId, ClockOffset),
    /// The receiver did not answer in time.
    #[error("{0} did not take the leaf in time; try again when it is reachable")]
    NoAnswer(PeId),
    /// The store of this node rolled the change back, for example because its disk is full.
    #[error("the store rolled the change back: {0}")]
    RolledBack(String),
    /// A store failed.
    #[error("the store of a node failed: {0}")]
    Store(String),
}

/// Maximum size of the rows of one move, in bytes. Together with the neighbors' route entries, the rows fit
/// into a frame.
const MOST_BYTES: usize = frame::MAX_BYTES / 4 * 3;
/// Maximum size of the lengths of a row in a frame, in bytes.
const LENGTH_BYTES: usize = 2 * 5;

/// Lock name of the forwarding table. No leaf has this number.
pub(super) const DECISIONS: PageNo = PageNo(0);

impl From<StoreError> for MoveError {
    fn from(error: StoreError) -> Self {
        let (reason, is_rolled_back) = (error.to_string(), error.is_rolled_back());
        if is_rolled_back { Self::RolledBack(reason) } else { Self::Store(reason) }
    }
}

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "move {}.{} of {}", self.incarnation, self.number, self.source)
    }
}

fn check_size(page: PageNo, bytes: usize) -> Result<(), MoveError> {
    if bytes > MOST_BYTES { Err(MoveError::TooLarge { page, bytes }) } else { Ok(()) }
}

impl Node {
    /// Moves a leaf to another node. Returns when the move is decided.
    ///
    /// # Errors
    ///
    /// [`MoveError`]: the leaf has not moved. After [`MoveError::Store`] it may have moved, and the node
    /// refuses all requests.
    pub async fn move_leaf(&self, page: PageNo, to: PeId) -> Result<(), MoveError> {
        #[cfg(feature = "baseline-protocols")]
        if self.is_coupled() {
            return Err(MoveError::Protocol);
        }
        if to == self.me || !self.members().contains(&to) {
            return Err(MoveError::NoSuchMember(to));
        }
        if let Some(offset) = self.clock_offset(to) {
            return Err(MoveError::Clock(to, offset));
        }
        // A leaf may be too large for the memory. It is counted before its rows are locked and read.
        let range = self.leaf(page).ok_or(MoveError::NotHere(page))?.range;
        let weight = self.store.weigh(range).await?;
        check_size(page, weight.bytes + weight.rows * LENGTH_BYTES)?;
        let (_held, head) = self.lock_to_move(page).await?;
        let moved = self.move_locked(&head, to).await;
        if moved.is_err() {
            self.serve_locally(&head.range); // LOCAL-3
        }
        moved
    }

    /// Moves a leaf that is locked and that no other thread serves.
    async fn move_locked(&self, head: &LeafHead, to: PeId) -> Result<(), MoveError> {
        let page = head.page;
        let rows = self.go_ahead(self.store.rows(head.range.clone(), usize::MAX, false)).await?;
        check_size(page, rows.iter().map(|(key, value)| key.len() + value.len() + LENGTH_BYTES).sum())?;
        let (id, slot) = {
            let mut state = self.state.borrow_mut();
            let id = MoveId { source: self.me, incarnation: state.incarnation, number: state.next_number() };
            let slot = Slot::new();
            state.moving.insert(id, slot.clone());
            (id, slot)
        };
        let path = self.state.borrow().index.around(&Target::At(head.range.low.clone()));
        self.wait_for_room(to).await;
        self.send(to, &Message::Stage(Staged { id, head: head.clone(), rows, path }));
        let kept = self.world.timeout(self.options.move_timeout, slot.take()).await;
        if kept == Some(None) {
            self.state.borrow_mut().moving.remove(&id);
            return Err(MoveError::Declined(to));
        }
        let Some(page) = kept.flatten() else {
            self.undo_move(id, to);
            return Err(MoveError::NoAnswer(to));
        };
        self.decide(id, head, to, page).await
    }

    /// Aborts a move that is not decided (MOVE-1).
    fn undo_move(&self, id: MoveId, to: PeId) {
        self.state.borrow_mut().moving.remove(&id);
        self.count(|counts| counts.moves_undone += 1);
        self.send(to, &Message::Abort { id });
    }

    /// Locks a leaf (X). On return no open transaction uses the leaf (OPEN-1), and no other thread serves it
    /// (LOCAL-1). The threads leave before the transactions end (LOCAL-4).
    async fn lock_to_move(&self, page: PageNo) -> Result<(Held, LeafHead), MoveError> {
        let deadline = self.world.clock.now() + self.options.move_timeout;
        loop {
            let held = self.go_ahead(self.locks.lock(page, LockMode::X)).await;
            let head = self.leaf(page).ok_or(MoveError::NotHere(page))?;
            self.go_ahead(self.local_keys.close(&head.range)).await;
            let Some(next_end) = self.end_those_in(&head.range).await else { return Ok((held, head)) };
            self.serve_locally(&head.range); // LOCAL-3
            drop(held);
            let left = deadline.saturating_sub(self.world.clock.now());
            if self.world.timeout(left, next_end).await.is_none() {
                return Err(MoveError::InUse(page));
            }
        }
    }

    async fn decide(&self, id: MoveId, head: &LeafHead, to: PeId, page: PageNo) -> Result<(), MoveError> {
        let moved = LeafHead { page, right: None, version: head.version + 1, range: head.range.clone() };
        let route_entry = moved.route_entry(to);
        // Only one decision at a time, because each rewrites the neighboring entries too. Under this lock a
        // task waits only for the store.
        let _decisions = self.locks.lock(DECISIONS, LockMode::X).await;
        let forwarding = self.state.borrow().forwarding_with(std::slice::from_ref(&route_entry));
        let change = Change {
            remove: vec![head.page],
            clear: Some(head.range.clone()),
            forwarding: Some(forwarding),
            decide: Some((id, to)),
            ..Change::default()
        };
        self.pages.fix(head.page, Access::Change).await;
        if let Err(error) = self.go_ahead(self.store.change(change)).await {
            self.fail(&error);
            if error.is_rolled_back() {
                self.undo_move(id, to);
            }
            return Err(error.into());
        }
        {
            let mut state = self.state.borrow_mut();
            state.remove_leaf(head.page);
            state.give(self.me, &route_entry);
            state.moving.remove(&id);
            state.decided.insert(id, to);
        }
        self.count(|counts| counts.moved += 1);
        self.remind_of_decision(id, to);
        Ok(())
    }

    /// Records that the receiver has staged the leaf.
    pub(super) fn kept(&self, id: MoveId, page: PageNo) {
        if let Some(slot) = self.state.borrow().moving.get(&id) {
            slot.put(Some(page));
        }
    }

    /// Records that the receiver refuses the leaf.
    pub(super) fn declined(&self, id: MoveId) {
        if let Some(slot) = self.state.borrow().moving.get(&id) {
            slot.put(None);
        }
    }

    /// Sends `Install` repeatedly, until the receiver answers that it owns the leaf.
    pub(super) fn remind_of_decision(&self, id: MoveId, to: PeId) {
        self.spawn(|node| {
            Box::pin(async move {
                while node.state.borrow().decided.contains_key(&id) {
                    match node.has_left(to) {
                        true => node.forget_decision(id).await, // LEAVE-6
                        false => node.send(to, &Message::Install { id }),
                    }
                    node.world.clock.sleep(node.options.remind_interval).await;
                }
            })
        });
    }

    /// Requests the decision repeatedly, until it is known.
    fn ask_for_decision(&self, id: MoveId) {
        self.spawn(|node| {
            Box::pin(async move {
                loop {
                    node.world.clock.sleep(node.options.remind_interval).await;
                    if !node.state.borrow().staged.contains_key(&id) {
                        return;
                    }
                    match node.has_left(id.source) {
                        true => node.abandon(id).await, // LEAVE-6
                        false => node.send(id.source, &Message::Ask { id }),
                    }
                }
            })
        });
    }

    /// Resumes moves after a restart: sends decisions again, and requests the decisions about received
    /// leaves.
    pub(super) fn resume_moves(&self) {
        let (decided, staged) = {
            let state = self.state.borrow();
            (state.decided.clone(), state.staged.keys().copied().collect::<Vec<_>>())
        };
        for (id, to) in decided {
            self.remind_of_decision(id, to);
        }
        for id in staged {
            self.ask_for_decision(id);
        }
    }

    /// Stages a received leaf.
    pub(super) async fn stage(&self, from: PeId, mut staged: Staged) {
        let id = staged.id;
        if from != id.source {
            return; // only the source may send its leaf
        }
        // STORE-2, LEAVE-2. A node that refuses all requests would make the keys unavailable. Its store may
        // be an old copy that is replaced. A leaf that does not fit into the store could not be installed.
        let may_come = self.is_settled() && self.failure().is_none() && self.can_store(&staged);
        let Some(_arrival) = may_come.then(|| self.leaving.let_come()).flatten() else {
            return self.send(from, &Message::Declined { id });
        };
        staged.head.page = self.state.borrow_mut().next_page();
        let page = staged.head.page;
        self.pages.fix(page, Access::Create).await;
        let change = Change { stage: Some(staged.clone()), ..Change::default() };
        if self.store.change(change).await.is_err() {
            return; // the source aborts the move at its timeout
        }
        self.state.borrow_mut().staged.insert(id, staged);
        self.send(from, &Message::Kept { id, page });
        self.ask_for_decision(id);
    }

    /// Returns `true` if no key of a leaf is too long for the store. Stores may have different page sizes.
    fn can_store(&self, Staged { head, rows, .. }: &Staged) -> bool {
        let most = self.store.max_key_bytes();
        head.range.low.len() <= most && rows.iter().all(|(key, _)| key.len() <= most)
    }

    /// Answers a receiver that requests the decision.
    pub(super) fn asked(&self, from: PeId, id: MoveId) {
        if !self.is_settled() {
            return; // decisions of its lost store are known when it is settled
        }
        let state = self.state.borrow();
        if state.decided.contains_key(&id) {
            self.send(from, &Message::Install { id });
        } else if !state.moving.contains_key(&id) {
            self.send(from, &Message::Abort { id }); // MOVE-1
        }
    }

    /// Takes ownership of a staged leaf after the source's decision.
    pub(super) async fn install(&self, from: PeId, id: MoveId) {
        if from != id.source || !self.is_settled() {
            return;
        }
        // The leaf's lock keeps a second `Install` waiting while the store works. The leaf stays staged
        // meanwhile, so that searches wait.
        let page = self.state.borrow().staged.get(&id).map(|staged| staged.head.page);
        if let Some(page) = page {
            let _held = self.locks.lock(page, LockMode::X).await;
            let staged = self.state.borrow().staged.get(&id).cloned();
            if let Some(staged) = staged
                && let Err(error) = self.own(staged).await
            {
                return self.fail(&error); // the source repeats the decision
            }
        }
        self.send(from, &Message::Installed { id });
    }

    async fn own(&self, staged: Staged) -> Result<(), StoreError> {
        let Staged { id, head, rows, path } = staged;
        let head = LeafHead { right: None, version: head.version + 1, ..head };
        let bytes = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
        let load = Load { rows: rows.len(), bytes };
        let change = Change { put: vec![head.clone()], rows, unstage: Some(id), ..Change::default() };
        self.pages.fix(head.page, Access::Change).await;
        self.go_ahead(self.store.change(change)).await?;
        {
            let mut state = self.state.borrow_mut();
            // B6: the path is added first.
            for route_entry in path.iter().filter(|route_entry| route_entry.pe != self.me) {
                state.index.learn(route_entry);
            }
            state.loads.insert(head.page, load);
            state.put_leaf(self.me, head.clone());
            state.staged.remove(&id);
        }
        self.open.note_arrival(&head.range);
        self.serve_locally(&head.range);
        self.changed.notify_waiters();
        self.tell(&[head.route_entry(self.me)]);
        Ok(())
    }

    /// Forgets a decision after the receiver has taken ownership: it need not be sent again.
    pub(super) async fn forget_decision(&self, id: MoveId) {
        let is_open = self.state.borrow().decided.contains_key(&id);
        if is_open {
            match self.store.change(Change { forget: Some(id), ..Change::default() }).await {
                Ok(()) => {
                    self.state.borrow_mut().decided.remove(&id);
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Drops a staged leaf after the source has aborted the move.
    pub(super) async fn abandon(&self, id: MoveId) {
        let is_staged = self.state.borrow().staged.contains_key(&id);
        if is_staged {
            match self.store.change(Change { unstage: Some(id), ..Change::default() }).await {
                Ok(()) => {
                    self.state.borrow_mut().staged.remove(&id);
                    self.changed.notify_waiters();
                }
                Err(error) => self.fail(&error),
            }
        }
    }
}
