//! A node leaves the cluster: it gives its leaves away, tells all others what it knows for good of where keys
//! are, and has left.
//!
//! | step | who leaves | each of the others | if who leaves crashes now, it is |
//! |---|---|---|---|
//! | 1 | gives its leaves away, one by one, and takes none: `Declined` | takes them | a member with the leaves that it still has |
//! | 2 | has none, and no move is open: `Farewell`, all that it keeps of whom it gave leaves | keeps that for good: `FarewellKept` | a member without leaves |
//! | 3 | one transaction, after all have kept it: *left* | | not a member any more |
//! | 4 | says `Left` until all know, and may be stopped then | remembers that for good, forgets the node: `LeftNoted` | not a member; says so again |
//!
//! After a crash in steps 1 and 2 it does not go on leaving by itself: it is a member like any other, and has
//! to be told again.
//!
//! - **LEAVE-1** Nothing that a node keeps for good leads to one that has left: who leaves owns nothing, so
//!   of each key it knows a newer fact than any that leads to it (I3), and all others keep these facts before
//!   step 3. Older facts that are still on their way, or in index pages, are corrected by what is kept
//!   (`find`). So what leads on, still leads on: I3 without the node that has gone.
//! - **LEAVE-2** Between the first word of a farewell and step 3 the node owns nothing, and nothing can
//!   become its own: no leaf came that is not decided (`staged`), none is being kept just now (`arriving`),
//!   and it takes none.
//! - **LEAVE-3** An answer to a farewell counts for that farewell: its name has the number of the node's
//!   start, and its own. Before another one the node may have taken leaves, and given them to whom who
//!   answered knows nothing of.
//! - **LEAVE-4** Step 3 is the decision: only the node itself makes it, once, for good. Nobody believes that
//!   it has left before that.
//! - **LEAVE-5** Who has not its own keys yet keeps no farewell, and says so at once, who leaves admits no
//!   new store, and who is hearing what the others know hears all of it again when one of them has left: what
//!   it heard first may be older than the farewell.
//! - **LEAVE-6** A node leaves when nothing is open that it has decided. So a leaf of a node that has left
//!   which still waits for the decision was given up; and what was decided *for* a node that has left was
//!   installed there.

mod error;
mod farewell;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use crate::id::{PageNo, PeId};
use crate::message::Message;
use crate::node::{MoveError, Node};
use crate::options::Protocol;
use crate::placement::Placement;
use crate::store::Change;
use crate::world::Bell;

pub use error::LeaveError;
use farewell::Farewell;

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
}

impl Node {
    /// Leaves the cluster, while clients go on. Returns when that is decided; the others are told then
    /// ([`untold`](Self::untold)), and after that the node can be stopped. All nodes have to be reached, and
    /// to go by the same version of the list of members.
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
        // LEAVE-2: who has left never takes a leaf again; nor does one whose store failed, which may have
        // kept that it has left.
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

    /// Step 4. When all know it, nobody asks here any more, but for clients that are still connected: they
    /// are told.
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
