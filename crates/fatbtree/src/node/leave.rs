//! A node leaves the cluster: it gives its leaves away, tells all others what it knows for good of where keys are, and has left.
//!
//! | step | who leaves | each of the others | if who leaves crashes now, it is |
//! |---|---|---|---|
//! | 1 | gives its leaves away, one by one, and takes none: `Declined` | takes them | a member with the leaves that it still has |
//! | 2 | has none, and no move is open: `Farewell`, all that it keeps of whom it gave leaves | keeps that for good: `FarewellKept` | a member without leaves |
//! | 3 | one transaction, after all have kept it: *left* | | not a member any more |
//! | 4 | says `Left` until all know, and may be stopped then | remembers that for good, forgets the node: `LeftNoted` | not a member; says so again |
//!
//! After a crash in steps 1 and 2 it does not go on leaving by itself: it is a member like any other, and has to be told again.
//!
//! - **LEAVE-1** Nothing that a node keeps for good leads to one that has left: who leaves owns nothing, so of each key it knows a newer fact than any that leads
//!   to it (I3), and all others keep these facts before step 3. Older facts that are still on their way, or in index pages, are corrected by what is kept
//!   (`find`). So what leads on, still leads on: I3 without the node that has gone.
//! - **LEAVE-2** Between the first word of a farewell and step 3 the node owns nothing, and nothing can become its own: no leaf came that is not decided (`staged`),
//!   none is being kept just now (`arriving`), and it takes none.
//! - **LEAVE-3** An answer to a farewell counts for that farewell: its name has the number of the node's start, and its own. Before another one the node
//!   may have taken leaves, and given them to whom who answered knows nothing of.
//! - **LEAVE-4** Step 3 is the decision: only the node itself makes it, once, for good. Nobody believes that it has left before that.
//! - **LEAVE-5** Who has not its own keys yet keeps no farewell, and says so at once, who leaves admits no new store, and who is hearing what the others know
//!   hears all of it again when one of them has left: what it heard first may be older than the farewell.
//! - **LEAVE-6** A node leaves when nothing is open that it has decided. So a leaf of a node that has left which still waits for the decision was given up; and
//!   what was decided *for* a node that has left was installed there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::leaf::{Fact, MoveId};
use crate::lock_service::LockMode;
use crate::message::{FarewellId, Message, Unkept};
use crate::node::state::facts;
use crate::node::transfer::DECISIONS;
use crate::node::{MoveError, Node};
use crate::options::Protocol;
use crate::placement::Placement;
use crate::store::Change;
use crate::world::Bell;

/// Why a node has not left. It is a member, with the leaves that it still has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// The paper's protocols do not move leaves, and the single index does not move at all.
    #[error(
        "{0} cannot leave: leaves are moved by the lazy protocol only, and an index that is at one node stays there"
    )]
    Protocol(PeId),
    /// There is nobody else.
    #[error("{0} is the last node; stop it instead")]
    Last(PeId),
    /// It, or one that has to keep its farewell, has not its own keys yet, or answers nothing.
    #[error("{0}")]
    NotReady(String),
    /// It is leaving already.
    #[error("{0} is leaving already")]
    Busy(PeId),
    /// Not all nodes go by the same list of members.
    #[error(
        "wrong version: {pe} goes by version {theirs} of the list of members, and {me} by version {ours}; give both the same list, and have it read"
    )]
    Version {
        /// Who would leave.
        me: PeId,
        /// Its version.
        ours: u64,
        /// Who goes by another.
        pe: PeId,
        /// And by which.
        theirs: u64,
    },
    /// A leaf is left that nobody takes.
    #[error("{page} is left: {reason}")]
    NotTaken {
        /// Which leaf.
        page: PageNo,
        /// Why the last one did not take it.
        reason: String,
    },
    /// A move is not decided in time, since its other node is away.
    #[error("{0} is not over; its other node has to be reached")]
    OpenMove(MoveId),
    /// All others have to be reached.
    #[error("{0} has not kept the farewell in time; all nodes have to be reached")]
    NoAnswer(PeId),
    /// A store failed.
    #[error("a store failed: {0}")]
    Store(String),
}

impl From<StoreError> for LeaveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

/// Facts in one part of a farewell.
const FACTS_PER_PART: usize = 1024;
/// A leaf that nobody took is offered again after this.
const PAUSE: Duration = Duration::from_millis(10);
/// Nothing has come off for so many times of what a move may take: then leaving is given up.
const PATIENCE: u32 = 5;

/// How far this node is with leaving.
#[derive(Default)]
pub(super) struct Leaving {
    is_begun: Cell<bool>,
    /// Leaves and stores that are being kept just now: nobody sees them yet.
    arriving: Cell<usize>,
    farewell: RefCell<Option<Farewell>>,
    /// Something was answered.
    bell: Bell,
    /// Who knows that this node has left.
    told: RefCell<BTreeSet<PeId>>,
}

struct Farewell {
    id: FarewellId,
    kept: BTreeSet<(PeId, u32)>,
    refused: Option<LeaveError>,
}

/// While it is there, something arrives that leaving has to wait for.
pub(super) struct Arrival<'a>(&'a Leaving);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.arriving.set(self.0.arriving.get() - 1);
    }
}

impl Leaving {
    /// Lets something come, unless the node is leaving or has left (LEAVE-2, LEAVE-5).
    pub(super) fn let_come(&self) -> Option<Arrival<'_>> {
        (!self.is_begun.get()).then(|| {
            self.arriving.set(self.arriving.get() + 1);
            Arrival(self)
        })
    }

    pub(super) fn is_begun(&self) -> bool {
        self.is_begun.get()
    }

    fn has_kept(&self, pe: PeId, part: u32) -> bool {
        self.farewell.borrow().as_ref().is_some_and(|farewell| farewell.kept.contains(&(pe, part)))
    }
}

impl Node {
    /// Leaves the cluster, while clients go on. Returns when that is decided; the others are told then ([`untold`](Self::untold)), and after that the node
    /// can be stopped. All nodes have to be reached, and to go by the same version of the list of members.
    ///
    /// # Errors
    ///
    /// [`LeaveError`]: it is a member as before, perhaps with fewer leaves; except after [`LeaveError::Store`], after which it takes no requests.
    pub async fn leave(&self) -> Result<(), LeaveError> {
        if self.has_left(self.me) {
            return Ok(());
        }
        self.may_leave()?;
        self.leaving.is_begun.set(true);
        let done = self.go_away().await;
        self.leaving.farewell.replace(None);
        // LEAVE-2: who has left never takes a leaf again; nor does one whose store failed, which may have kept that it has left.
        self.leaving.is_begun.set(self.has_left(self.me) || self.failure().is_some());
        done
    }

    /// Who is not known yet to know that this node has left.
    #[must_use]
    pub fn untold(&self) -> Vec<PeId> {
        let told = self.leaving.told.borrow();
        self.others().into_iter().filter(|pe| !told.contains(pe)).collect()
    }

    fn may_leave(&self) -> Result<(), LeaveError> {
        let is_index = self.options.placement == Placement::SingleIndex && self.me == Placement::INDEX_PE;
        if self.options.protocol != Protocol::Lazy || is_index {
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
        self.say_farewell().await?;
        // Step 3. Nothing has come since the farewell's first word (LEAVE-2).
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

    /// Step 1.
    async fn give_all_away(&self) -> Result<(), LeaveError> {
        let patience = self.options.move_timeout * PATIENCE;
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
            if self.world.clock.now() - last_success > patience {
                return Err(trouble);
            }
            if self.leaves().is_empty() {
                self.world.timeout(PAUSE, self.changed.next()).await;
            }
        }
        Ok(())
    }

    async fn give_away(&self, page: PageNo, to: PeId) -> Result<(), MoveError> {
        match self.move_leaf(page, to).await {
            Err(MoveError::TooLarge { .. }) => self.halve(page).await,
            // It was merged, or somebody else has moved it.
            Err(MoveError::NotHere(_)) => Ok(()),
            done => done,
        }
    }

    /// What has to be waited for before a farewell: leaves, and moves that are not over (LEAVE-2).
    fn unclear(&self) -> Option<LeaveError> {
        let state = self.state.borrow();
        let open = state.staged.keys().chain(state.moving.keys()).chain(state.decided.keys()).next();
        if let Some(leaf) = state.leaves.values().next() {
            return Some(LeaveError::NotTaken { page: leaf.page, reason: "nobody has taken it".to_owned() });
        }
        match open {
            Some(id) => Some(LeaveError::OpenMove(*id)),
            None => (self.leaving.arriving.get() > 0)
                .then(|| LeaveError::NotReady("a leaf is arriving".to_owned())),
        }
    }

    /// Step 2.
    async fn say_farewell(&self) -> Result<(), LeaveError> {
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
        let deadline = self.world.clock.now() + self.options.request_timeout;
        let list = self.list_versions().0;
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
    fn say_what_is_not_kept(&self, id: FarewellId, list: u64, parts: &[&[Fact]]) -> Option<PeId> {
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
    pub(super) async fn keep_farewell(
        &self,
        from: PeId,
        id: FarewellId,
        list: u64,
        part: u32,
        facts: &[Fact],
    ) {
        let own = self.list_versions().0;
        // LEAVE-5; at once, since it may be who leaves that is waited for.
        let not_ready = self.failure().or_else(|| self.unsettled()).map(Unkept::NotReady);
        if let Some(why) = not_ready.or_else(|| (list != own).then_some(Unkept::List(own))) {
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
    pub(super) fn farewell_kept(&self, from: PeId, id: FarewellId, part: u32) {
        if let Some(farewell) =
            self.leaving.farewell.borrow_mut().as_mut().filter(|farewell| farewell.id == id)
        {
            farewell.kept.insert((from, part));
        }
        self.leaving.bell.ring();
    }

    pub(super) fn farewell_refused(&self, from: PeId, id: FarewellId, why: Unkept) {
        if let Unkept::List(theirs) = why {
            self.heard_of_list(from, theirs);
        }
        let (me, ours) = (self.me, self.list_versions().0);
        if let Some(farewell) =
            self.leaving.farewell.borrow_mut().as_mut().filter(|farewell| farewell.id == id)
        {
            farewell.refused = Some(match why {
                Unkept::List(theirs) => LeaveError::Version { me, ours, pe: from, theirs },
                Unkept::NotReady(reason) => {
                    LeaveError::NotReady(format!("{from} cannot keep the farewell: {reason}"))
                }
            });
        }
        self.leaving.bell.ring();
    }

    /// Step 4. When all know it, nobody asks here any more, but for clients that are still connected: they are told.
    pub(super) fn tell_that_it_has_left(&self) {
        self.leaving.is_begun.set(true);
        self.spawn(|node| {
            Box::pin(async move {
                loop {
                    let open = node.untold();
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
        self.refuse(format!("{} has left the cluster; ask another node", self.me));
    }

    async fn all_are_told(&self) {
        while !self.untold().is_empty() {
            self.leaving.bell.next().await;
        }
    }

    pub(super) fn left_noted(&self, from: PeId, pe: PeId) {
        if pe == self.me {
            self.leaving.told.borrow_mut().insert(from);
            self.leaving.bell.ring();
        }
    }
}
