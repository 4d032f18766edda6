//! A node: one PE with its leaves, its index, its locks, and the requests of its clients.
//!
//! | module | noun |
//! |---|---|
//! | `application` | the application's requests at the owner of a key |
//! | `messages` | messages between nodes, received and sent |
//! | `client_request` | requests of clients of this node, until they are answered |
//! | `find` | a request that searches its leaf |
//! | `heartbeat` | detects nodes that do not answer |
//! | `work` | work at the leaf |
//! | `local_keys` | keys that other threads serve without a task of the node |
//! | `open` | transactions that stay open over several requests |
//! | `structure` | splits and merges |
//! | `transfer` | moves of leaves to other nodes |
//! | `members` | members of the cluster |
//! | `leave` | decommission of this node |
//! | `store_identity` | name of the store, by which other nodes notice a replaced one; keys of a new store |
//! | `coupled` | the paper's protocols, for the evaluation |
//! | `state` | state in memory |
//!
//! ## Locks on leaves (all local)
//!
//! | operation | mode |
//! |---|---|
//! | reads rows | IS: the store's own locks protect the rows |
//! | writes a row | IX |
//! | splits, merges, moves | X |
//!
//! - **NODE-1** A leaf answers only under its lock, after its fences were compared with the target *under
//!   that lock*, or to a thread inside the gate of `local_keys` (LOCAL-1). That comparison is the
//!   linearization point. Index pages affect only the number of hops.
//! - **NODE-2** A task that holds a lock never waits for a lock of another node. A merge locks two leaves,
//!   and a transaction of several keys locks all of their leaves, from left to right (a leaf's first key
//!   never changes while it has its number). Every other operation locks one leaf. A move waits for another
//!   node under a lock, but not for a lock of that node, and not longer than `move_timeout`. So no cycle
//!   exists (B3).
//! - **NODE-3** A forwarded request contains the version of the route entry that named its receiver as owner.
//!   A receiver that does not own the leaf has a newer route entry (I3) or reports that it has none. So
//!   versions grow with each hop, and forwarding ends.
//! - **NODE-4** The store is changed first, then memory, both under the leaf's lock.

mod application;
mod client_request;
#[cfg(feature = "baseline-protocols")]
mod coupled;
mod find;
mod heartbeat;
mod leave;
mod local_keys;
mod members;
mod messages;
mod open;
mod state;
mod store_identity;
mod structure;
mod transfer;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::error::{Error, StoreError};
use crate::id::{PageNo, PeId};
#[cfg(feature = "baseline-protocols")]
use crate::index::Built;
use crate::key::Target;
use crate::leaf::{LeafHead, RouteEntry};
use crate::lock_service::LockService;
use crate::message::Message;
use crate::options::Options;
use crate::page_service::{Access, PageService};
use crate::placement::Placement;
use crate::store::{Founding, LeafStore};
use crate::world::{Notify, Task, World};

pub use application::{Application, Asked, NoApplication, Ran, RunError};
pub use client_request::Rows;
pub use heartbeat::MISSED_HEARTBEATS;
pub use leave::LeaveError;
pub use local_keys::{Growth, LocalEntry, LocalKeys};
pub use members::ListError;
pub use open::{OpenTransaction, Stepped};
pub use store_identity::Credentials;
pub use transfer::MoveError;

use heartbeat::Heartbeats;
use leave::Leaving;
use members::Members;
use open::OpenTransactions;
use state::{State, route_entries};
use store_identity::StoreIdentity;

/// Parts of a node.
pub struct Parts {
    /// Network, clock, random numbers, and tasks.
    pub world: World,
    /// Store of the node.
    pub store: Rc<dyn LeafStore>,
    /// Cost model of page accesses.
    pub pages: Rc<dyn PageService>,
    /// The application that runs at the owner of a key.
    pub application: Rc<dyn Application>,
    /// Initial distribution of the keys.
    pub founding: Founding,
    /// Present members according to the list: without nodes that have left, with nodes that joined later.
    pub members: Vec<PeId>,
    /// Settings.
    pub options: Options,
    /// The index, if the leaves were built with one. Otherwise the index is built from the leaves.
    #[cfg(feature = "baseline-protocols")]
    pub built: Option<Built>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("founding", &self.founding).field("options", &self.options).finish()
    }
}

/// Counters since the node was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Work done at leaves of this node.
    pub worked: u64,
    /// Requests forwarded to another node.
    pub sent_on: u64,
    /// Right links followed between leaves.
    pub right_moves: u64,
    /// Requests that arrived at a wrong leaf and descended from the root again.
    pub restarts: u64,
    /// Requests returned to the origin because no newer entry was known.
    pub lost: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves merged.
    pub merges: u64,
    /// Leaves moved to other nodes.
    pub moved: u64,
    /// Moves that were aborted.
    pub moves_undone: u64,
    /// Locks acquired at other nodes, in the paper's protocols.
    #[cfg(feature = "baseline-protocols")]
    pub remote_locks: u64,
    /// Frames that were refused.
    pub refused_frames: u64,
}

/// A running node. It ends when its last handle and the last of its tasks are dropped.
pub struct Node {
    me: PeId,
    members: Members,
    leaving: Leaving,
    cluster: u64,
    options: Options,
    world: World,
    store: Rc<dyn LeafStore>,
    pages: Rc<dyn PageService>,
    application: Rc<dyn Application>,
    locks: LockService,
    state: RefCell<State>,
    /// Leaves that a task counts, with the rows and bytes added since the count began.
    counted: RefCell<BTreeMap<PageNo, (isize, usize)>>,
    /// Notified when a received leaf was installed or dropped.
    changed: Notify,
    store_identity: StoreIdentity,
    local_keys: Arc<LocalKeys>,
    open: OpenTransactions,
    heartbeats: Heartbeats,
    counts: Cell<Counts>,
    /// Number of requests that search their leaf here, or are being executed.
    open_finds: Cell<usize>,
    /// The reason that the node refuses all requests.
    failure: RefCell<Option<String>>,
    itself: Weak<Node>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("me", &self.me)
            .field("counts", &self.counts.get())
            .finish_non_exhaustive()
    }
}

impl Node {
    /// Starts a node on its store: builds the index from its leaves, resumes interrupted moves, and exchanges
    /// route entries with the other nodes.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the store fails, and [`Error::Settings`] if the settings contradict each other.
    pub async fn start(parts: Parts) -> Result<Rc<Self>, Error> {
        let Parts { world, store, pages, application, founding, members, options, .. } = parts;
        options.validate()?;
        let me = founding.pe;
        let failed = |error: StoreError| Error::Store { pe: me, reason: error.to_string() };
        let mut recovered = store.recover(founding.clone()).await.map_err(failed)?;
        // Nodes that were built together already have all entries.
        #[cfg(feature = "baseline-protocols")]
        let built = parts.built.map(|built| built.index);
        #[cfg(not(feature = "baseline-protocols"))]
        let built = None;
        let is_built = built.is_some();
        let store_identity = StoreIdentity::new(&mut recovered, &founding);
        let members = Members::new(members.into_iter().chain([me]), &recovered);
        let local_keys = Arc::new(LocalKeys::new(&options));
        let state = State::recover(&founding, &options, recovered, built);
        let node = Rc::new_cyclic(|itself| Self {
            me,
            members,
            leaving: Leaving::default(),
            cluster: founding.cluster,
            options,
            world,
            store,
            pages,
            application,
            locks: LockService::default(),
            state: RefCell::new(state),
            counted: RefCell::default(),
            changed: Notify::default(),
            store_identity,
            local_keys,
            open: OpenTransactions::default(),
            heartbeats: Heartbeats::default(),
            counts: Cell::default(),
            open_finds: Cell::new(0),
            failure: RefCell::default(),
            itself: itself.clone(),
        });
        if node.has_left(me) {
            // The other nodes do not answer a node that has left, so it accepts no requests of clients.
            node.refuse_since_it_has_left();
            node.tell_that_it_has_left();
            return Ok(node);
        }
        if node.is_settled() {
            node.leaves().iter().for_each(|leaf| node.serve_locally(&leaf.range));
        }
        node.begin_collecting().await;
        node.resume_moves();
        for pe in node.others().into_iter().filter(|_| !is_built) {
            node.greet(pe);
        }
        node.send_heartbeats();
        Ok(node)
    }

    /// Requests the route entries of another node, which was started or is reachable again.
    pub fn greet(&self, pe: PeId) {
        self.send(pe, &Message::Hello);
        self.tell_members(pe);
        self.tell_own(pe);
    }

    /// Returns the PE of this node.
    #[must_use]
    pub const fn pe(&self) -> PeId {
        self.me
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Returns the leaves of this node, in key order.
    #[must_use]
    pub fn leaves(&self) -> Vec<LeafHead> {
        let mut leaves: Vec<_> = self.state.borrow().leaves.values().cloned().collect();
        leaves.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        leaves
    }

    /// Returns the number of index pages, and the number of their levels.
    #[must_use]
    pub fn index_size(&self) -> (usize, u8) {
        let state = self.state.borrow();
        (state.index.len(), state.index.height())
    }

    /// Returns the violated invariants of this node; empty unless the program has a defect.
    #[must_use]
    pub fn verify(&self) -> Vec<String> {
        let leaves = self.leaves();
        let mut wrong = self.state.borrow().index.verify(&leaves);
        wrong.extend(self.local_keys.beyond(leaves.iter().map(|leaf| &leaf.range)));
        // Checks LEAVE-1.
        let state = self.state.borrow();
        // An unsettled store contains only the initial key ranges. It receives all other entries before it is
        // settled (LEAVE-5).
        let is_kept = |route_entry: &RouteEntry| self.is_settled() || route_entry.version > 1;
        let leads_astray = route_entries(&state.forwarding).filter(|route_entry| {
            is_kept(route_entry) && !self.has_left(self.me) && self.has_left(route_entry.pe)
        });
        wrong.extend(leads_astray.map(|route_entry| {
            format!(
                "the routing entry of {:?} leads to {}, which has left",
                route_entry.range, route_entry.pe
            )
        }));
        if self.has_left(self.me) && !(state.leaves.is_empty() && state.staged.is_empty()) {
            wrong.push("it has left the cluster and still owns pages".to_owned());
        }
        wrong
    }

    /// Returns the reason that the node refuses all requests; `None` if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    pub(crate) fn spawn(&self, task: impl FnOnce(Rc<Self>) -> Task<'static, ()>) {
        if let Some(node) = self.itself.upgrade() {
            self.world.tasks.spawn(task(node));
        }
    }

    /// Returns parts of the node to simulations, which replace the threads of an application.
    #[cfg(feature = "sim")]
    pub(crate) fn parts(&self) -> (&World, &Options, &Rc<dyn Application>) {
        (&self.world, &self.options, &self.application)
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Adds a route entry to the index, if the placement keeps it here. An entry about this node is ignored,
    /// because the node has its own leaves.
    fn learn(&self, route_entry: &RouteEntry) {
        if route_entry.pe == self.me {
            return;
        }
        if let Some(old) = self.state.borrow().outdated_by(route_entry) {
            self.refuse_as_old_copy(&old, route_entry);
        }
        self.state.borrow_mut().index.learn(route_entry);
    }

    /// Changes this PE's copy of the index page above some leaves.
    async fn patch(&self, route_entries: &[RouteEntry]) {
        let Some(first) = route_entries.first() else { return };
        let page = self.state.borrow().index.level_one(&Target::At(first.range.low.clone()));
        if let Some(page) = page {
            self.pages.fix(page, Access::Change).await;
        }
        route_entries.iter().for_each(|route_entry| self.learn(route_entry));
    }

    /// Notifies the holders of the index page above these leaves, once. A lost message only costs hops.
    fn tell(&self, route_entries: &[RouteEntry]) {
        let Some(first) = route_entries.first() else { return };
        let target = Target::At(first.range.low.clone());
        let sharers = match self.options.placement() {
            Placement::FatBtree => self.state.borrow().index.sharers(&target),
            #[cfg(feature = "baseline-protocols")]
            Placement::SingleIndex => [Placement::INDEX_PE].into(),
            #[cfg(feature = "baseline-protocols")]
            Placement::CopyWhole => self.others().into_iter().collect(),
        };
        for pe in sharers.into_iter().filter(|pe| *pe != self.me) {
            self.send(pe, &Message::RouteEntries(route_entries.to_vec()));
        }
    }

    /// Sends the leaves of this node to a node that was started, and the leaves that have moved from here to
    /// that node (STORE-7).
    fn tell_own(&self, to: PeId) {
        const ENTRIES_PER_MESSAGE: usize = 256;
        let mut own: Vec<_> = self.leaves().iter().map(|leaf| leaf.route_entry(self.me)).collect();
        let is_moved = |entry: &RouteEntry| entry.pe == to && entry.version > 1;
        own.extend(route_entries(&self.state.borrow().forwarding).filter(is_moved));
        for some in own.chunks(ENTRIES_PER_MESSAGE) {
            self.send(to, &Message::RouteEntries(some.to_vec()));
        }
    }

    /// Returns the head of a leaf, if the leaf is still here.
    fn leaf(&self, page: PageNo) -> Option<LeafHead> {
        self.state.borrow().leaves.get(&page).cloned()
    }

    /// Handles an error of the store in a structure change. If the change was rolled back, memory and store
    /// agree, and the node continues without the change. Otherwise they may differ, and the node refuses all
    /// requests from now on.
    fn fail(&self, error: &StoreError) {
        match error.is_rolled_back() {
            true => tracing::warn!(node = self.me.0, reason = %error, "a structure change was rolled back"),
            false => self.refuse(error.to_string()),
        }
    }

    /// Refuses all requests from now on, for this reason.
    fn refuse(&self, reason: String) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            tracing::error!(node = self.me.0, reason, "this node refuses all requests from now on");
            *failure = Some(reason);
            self.local_keys.shut();
        }
    }
}
