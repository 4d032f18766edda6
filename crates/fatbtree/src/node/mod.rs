//! A node: one PE with its leaves, its index, its locks, and the gateway for its clients.
//!
//! | module | noun |
//! |---|---|
//! | `gateway` | requests of clients of this node, until they are answered |
//! | `find` | a request that is looking for its leaf |
//! | `work` | what is done at the leaf |
//! | `open` | transactions that stay open over several requests |
//! | `structure` | splits and merges |
//! | `transfer` | moves of leaves to other nodes |
//! | `members` | who belongs to the cluster |
//! | `leave` | how this node leaves it |
//! | `standing` | whether the store is the one that the others know, and how a new one comes to its keys |
//! | `coupled` | the paper's protocols, for the figures |
//! | `state` | what the node holds in memory |
//!
//! ## Locks on leaves, all of them local
//!
//! | who | mode |
//! |---|---|
//! | reads rows | IS: the store's own locks keep the rows |
//! | writes a row | IX |
//! | splits, merges, moves | X |
//!
//! - **NODE-1** A leaf answers only under a lock, after its fences were compared with the target *under that lock*. That is the
//!   linearization point; index pages decide about the number of hops only.
//! - **NODE-2** Nobody who holds a lock waits for a lock of another node. A merge locks two leaves, and a transaction of several keys all of theirs,
//!   from left to right (a leaf's first key never changes while it has its number); all else locks one. A
//!   move waits for another node under a lock, but not for a lock of that node, and not longer than `move_timeout`. So there is no circle (B3).
//! - **NODE-3** A request that is sent on because its receiver owns the leaf carries the version of that fact. A receiver that does not own
//!   it knows a newer fact (I3) or says so; so versions grow along the way, and it ends.
//! - **NODE-4** The store is changed first, then memory, both under the leaf's lock.

mod coupled;
mod find;
mod gateway;
mod leave;
mod members;
mod open;
mod standing;
mod state;
mod structure;
mod transfer;
mod work;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use crate::error::{Error, FrameError, StoreError};
use crate::frame::{self, Address};
use crate::id::{PageNo, PeId};
use crate::index::Built;
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{Fact, LeafHead};
use crate::lock_service::LockService;
use crate::message::{Find, Message, Refusal};
use crate::options::Options;
use crate::page_service::{Access, PageService};
use crate::placement::Placement;
use crate::store::{Founding, LeafStore};
use crate::world::{Bell, Task, World};

pub use gateway::Rows;
pub use leave::LeaveError;
pub use members::StaleList;
pub use open::{OpenTransaction, Stepped};
pub use standing::Credentials;
pub use transfer::MoveError;

use leave::Leaving;
use members::Members;
use open::OpenTransactions;
use standing::{Page, Standing};
use state::{State, facts};

/// What an application is asked to do at the owner of some keys, while their leaves are locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Where: a key, or the end of a walk backwards.
    pub target: Target,
    /// The leaf of the target. Other keys may be touched if they are among `others`.
    pub range: KeyRange,
    /// Further keys, in order.
    pub others: Vec<Key>,
    /// Whether it may change something.
    pub is_write: bool,
    /// What only the application understands.
    pub bytes: Vec<u8>,
}

impl Asked {
    /// By a request that has found its leaf.
    fn at(leaf: &LeafHead, find: &Find, is_write: bool, others: &[Key], bytes: &[u8]) -> Self {
        let (target, range) = (find.target.clone(), leaf.range.clone());
        Self { target, range, others: others.to_vec(), is_write, bytes: bytes.to_vec() }
    }
}

/// What an application did.
#[derive(Default)]
pub struct Ran {
    /// What only the application understands.
    pub bytes: Vec<u8>,
    /// Rows that the leaf has more now, about.
    pub rows: isize,
    /// Bytes that the leaf has more now, about.
    pub more_bytes: usize,
    /// Ends when it will not be lost, if it is not durable yet. Waited for without the leaf's lock.
    pub durable: Option<Task<'static, Result<(), String>>>,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// Why an application did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// Whether something was changed is not known.
    #[error("{0}")]
    Failed(String),
}

/// Runs what an application sends to the owner of a key ([`Work::Run`](crate::Work::Run)).
pub trait Application {
    /// Runs it on the rows of this node, in a transaction of its own.
    fn run(&self, asked: Asked) -> Task<'_, Result<Ran, RunError>>;

    /// Makes ready for a transaction that stays open over several requests ([`Work::Step`](crate::Work::Step)). Nothing happens before its first step.
    ///
    /// # Errors
    ///
    /// [`RunError::Refused`]: it has no such transactions.
    fn open(&self) -> Result<Box<dyn OpenTransaction>, RunError> {
        Err(RunError::Refused("transactions over several requests are not offered at this node".to_owned()))
    }
}

/// No application: refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApplication;

impl Application for NoApplication {
    fn run(&self, _: Asked) -> Task<'_, Result<Ran, RunError>> {
        let error = RunError::Refused("no application runs at this node".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }
}

/// What a node is made of.
pub struct Parts {
    /// Net, clock, chance, tasks.
    pub world: World,
    /// Its store.
    pub store: Rc<dyn LeafStore>,
    /// What stands between it and its pages.
    pub pages: Rc<dyn PageService>,
    /// What runs at the owner of a key.
    pub application: Rc<dyn Application>,
    /// How the cluster began.
    pub founding: Founding,
    /// Who belongs to it now, as the list of members says: without those that have left, with those that came later and had no keys when it began.
    pub members: Vec<PeId>,
    /// Settings.
    pub options: Options,
    /// The index, if the leaves were built with one; else it is made from the leaves.
    pub built: Option<Built>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("founding", &self.founding).field("options", &self.options).finish()
    }
}

/// What a node has done since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Work done at leaves of this node.
    pub worked: u64,
    /// Requests sent on to another node.
    pub sent_on: u64,
    /// Right links followed between leaves.
    pub right_moves: u64,
    /// Requests that came to a leaf that was not theirs, and went down from the root again.
    pub restarts: u64,
    /// Requests sent back because nothing newer was known.
    pub lost: u64,
    /// Leaves split.
    pub splits: u64,
    /// Leaves merged.
    pub merges: u64,
    /// Leaves given to other nodes.
    pub moved: u64,
    /// Moves that were given up.
    pub moves_undone: u64,
    /// Locks taken at other nodes, in the paper's protocols.
    pub remote_locks: u64,
    /// Frames that were refused.
    pub refused_frames: u64,
}

/// Requests that one node works on at once; who sends more is told to ask again.
const MOST_OPEN_FINDS: usize = 1 << 16;

/// A running node. It ends when the last handle and the last of its tasks go.
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
    /// A leaf that came was installed, or dropped.
    changed: Bell,
    standing: Standing,
    open: OpenTransactions,
    counts: Cell<Counts>,
    /// Requests that are looking for their leaf here, or are worked on.
    open_finds: Cell<usize>,
    /// Why the store cannot be trusted with changes of structure any more.
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
    /// Starts a node on its store: makes the index from its leaves, finishes what moves were under way, tells the others
    /// what it has and asks what they have.
    ///
    /// # Errors
    ///
    /// The store's; and [`Error::Settings`] if the settings do not fit together.
    pub async fn start(parts: Parts) -> Result<Rc<Self>, Error> {
        let Parts { world, store, pages, application, founding, members, options, built } = parts;
        options.validate()?;
        let me = founding.pe;
        let failed = |error: StoreError| Error::Store { pe: me, reason: error.to_string() };
        let recovered = store.recover(founding.clone()).await.map_err(failed)?;
        // What was built together knows everything already.
        let is_built = built.is_some();
        let standing = Standing::new(recovered.birth, recovered.is_settled, &founding);
        let members = Members::new(members.into_iter().chain([me]), &recovered);
        let state = State::recover(&founding, &options, recovered, built.map(|built| built.index));
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
            changed: Bell::default(),
            standing,
            open: OpenTransactions::default(),
            counts: Cell::default(),
            open_finds: Cell::new(0),
            failure: RefCell::default(),
            itself: itself.clone(),
        });
        if node.has_left(me) {
            // The others do not answer it any more, so it begins nothing for a client.
            node.refuse_since_it_has_left();
            node.tell_that_it_has_left();
            return Ok(node);
        }
        node.begin_to_settle().await;
        node.resume_moves();
        for pe in node.others().into_iter().filter(|_| !is_built) {
            node.greet(pe);
        }
        Ok(node)
    }

    /// Tells another node what is here, and asks what is there: it was started, or can be reached again.
    pub fn greet(&self, pe: PeId) {
        self.send(pe, &Message::Hello);
        self.tell_members(pe);
        self.tell_own(pe);
    }

    /// Takes a frame from the net, without its length. A frame that is refused changes nothing.
    ///
    /// # Errors
    ///
    /// [`FrameError`]: what is wrong with it; over a stream, close the connection.
    pub fn receive(&self, bytes: &[u8]) -> Result<(), FrameError> {
        self.receive_by(bytes, |_| Ok(()))
    }

    /// Takes a frame that came over a connection whose other end has shown that it is `peer`.
    ///
    /// # Errors
    ///
    /// [`FrameError`], also if the frame says that it is from another node: close the connection.
    pub fn receive_from(&self, peer: PeId, bytes: &[u8]) -> Result<(), FrameError> {
        self.receive_by(bytes, |from| match from == peer {
            true => Ok(()),
            false => Err(FrameError::Sender { found: from, expected: peer }),
        })
    }

    fn receive_by(
        &self,
        bytes: &[u8],
        judge: impl FnOnce(PeId) -> Result<(), FrameError>,
    ) -> Result<(), FrameError> {
        let decoded = frame::decode(bytes, self.cluster, self.options.epoch)
            .and_then(|(from, message)| judge(from).map(|()| (from, message)));
        let (from, message) = decoded.inspect_err(|_| self.count(|counts| counts.refused_frames += 1))?;
        self.take(from, message);
        Ok(())
    }

    /// Which PE it is.
    #[must_use]
    pub const fn pe(&self) -> PeId {
        self.me
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Its leaves, in key order.
    #[must_use]
    pub fn leaves(&self) -> Vec<LeafHead> {
        let mut leaves: Vec<_> = self.state.borrow().leaves.values().cloned().collect();
        leaves.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        leaves
    }

    /// How many index pages it keeps, and in how many levels.
    #[must_use]
    pub fn index_size(&self) -> (usize, u8) {
        let state = self.state.borrow();
        (state.index.len(), state.index.height())
    }

    /// What must hold of this node by itself and does not; nothing unless there is a mistake in the program.
    #[must_use]
    pub fn verify(&self) -> Vec<String> {
        let mut wrong = self.state.borrow().index.verify(&self.leaves());
        // LEAVE-1.
        let state = self.state.borrow();
        // A store without its keys keeps nothing but the founding shares; it is told the rest before it settles (LEAVE-5).
        let is_kept = |fact: &Fact| self.is_settled() || fact.version > 1;
        let leads_astray = facts(&state.given)
            .filter(|fact| is_kept(fact) && !self.has_left(self.me) && self.has_left(fact.pe));
        wrong
            .extend(leads_astray.map(|fact| {
                format!("what is kept of {:?} leads to {}, which has left", fact.range, fact.pe)
            }));
        if self.has_left(self.me) && !(state.leaves.is_empty() && state.staged.is_empty()) {
            wrong.push("it has left, and owns something".to_owned());
        }
        wrong
    }

    /// Why it refuses all requests, if it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    fn send(&self, to: PeId, message: &Message) {
        let address = Address { cluster: self.cluster, from: self.me, epoch: self.options.epoch };
        let frame = frame::encode(address, message);
        if frame.len() <= frame::MAX_BYTES {
            self.world.net.send(to, frame);
        } else if let Message::Answered { id, fact, hops, .. } = message {
            let reason = format!(
                "the answer of {} bytes does not fit between nodes; ask for less at once",
                frame.len()
            );
            let (result, fact, hops) = (Err(Refusal::Store { pe: self.me, reason }), fact.clone(), *hops);
            self.send(to, &Message::Answered { id: *id, result, fact, hops });
        }
    }

    fn spawn(&self, task: impl FnOnce(Rc<Self>) -> Task<'static, ()>) {
        if let Some(node) = self.itself.upgrade() {
            self.world.tasks.spawn(task(node));
        }
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    fn take(&self, from: PeId, message: Message) {
        match message {
            Message::Find(find) if self.open_finds.get() >= MOST_OPEN_FINDS => self.lost(&find),
            Message::Find(find) => self.spawn(|node| Box::pin(async move { node.find(from, find).await })),
            Message::Answered { id, result, fact, hops } => self.answered(id, result, fact, hops),
            Message::Facts(facts) => self.spawn(|node| Box::pin(async move { node.patch(&facts).await })),
            Message::Stage(staged) => {
                self.spawn(|node| Box::pin(async move { node.stage(from, staged).await }))
            }
            Message::Kept { id, page } => self.kept(id, page),
            Message::Install { id } => {
                self.spawn(|node| Box::pin(async move { node.install(from, id).await }))
            }
            Message::Installed { id } => self.spawn(|node| Box::pin(async move { node.settle(id).await })),
            Message::Ask { id } => self.asked(from, id),
            Message::Abort { id } => self.spawn(|node| Box::pin(async move { node.abandon(id).await })),
            Message::Hello => {
                self.tell_members(from);
                self.tell_own(from);
            }
            Message::Account { hearing, from: key } => self.account(from, hearing, key),
            Message::Accounted { hearing, from: key, facts, staged, newest, rest } => {
                self.accounted(from, hearing, key, Page { facts, staged, newest, rest });
            }
            Message::Admit { birth, is_loss_accepted } => {
                self.spawn(|node| Box::pin(async move { node.admit(from, birth, is_loss_accepted).await }));
            }
            Message::Admitted { birth, is_admitted } => self.admitted(from, birth, is_admitted),
            Message::Declined { id } => self.declined(id),
            Message::Farewell { id, list, part, facts } => {
                self.spawn(|node| {
                    Box::pin(async move { node.keep_farewell(from, id, list, part, &facts).await })
                });
            }
            Message::FarewellKept { id, part } => self.farewell_kept(from, id, part),
            Message::FarewellRefused { id, why } => self.farewell_refused(from, id, why),
            Message::Left { pe } => {
                self.spawn(|node| Box::pin(async move { node.learn_left(from, pe).await }))
            }
            Message::LeftNoted { pe } => self.left_noted(from, pe),
            Message::List { version } => self.heard_of_list(from, version),
            Message::Couple { find, way } => {
                self.spawn(|node| Box::pin(async move { node.couple(find, way).await }));
            }
            Message::Lock { call, id, page, mode } => {
                self.spawn(|node| Box::pin(async move { node.serve_lock(from, call, id, page, mode).await }));
            }
            Message::Locked { call, is_full } => self.called(call, is_full),
            Message::Release { id, page } => self.serve_release(id, page),
            Message::Apply { call, id, page, facts } => {
                self.spawn(|node| {
                    Box::pin(async move { node.serve_apply(from, call, id, page, facts).await })
                });
            }
        }
    }

    /// Keeps a fact in the index, where the placement has a place for it. One about this node is old: it has its leaves there.
    fn learn(&self, fact: &Fact) {
        if fact.pe == self.me {
            return;
        }
        self.state.borrow_mut().index.learn(fact);
    }

    /// Changes this PE's copy of the index page above some leaves.
    async fn patch(&self, facts: &[Fact]) {
        let Some(first) = facts.first() else { return };
        let page = self.state.borrow().index.level_one(&Target::At(first.range.low.clone()));
        if let Some(page) = page {
            self.pages.fix(page, Access::Change).await;
        }
        facts.iter().for_each(|fact| self.learn(fact));
    }

    /// Tells the holders of the index page above these leaves, once: a message that is lost costs hops, nothing else.
    fn tell(&self, facts: &[Fact]) {
        let Some(first) = facts.first() else { return };
        let target = Target::At(first.range.low.clone());
        let sharers = match self.options.placement {
            Placement::FatBtree => self.state.borrow().index.sharers(&target),
            Placement::SingleIndex => [Placement::INDEX_PE].into(),
            Placement::CopyWhole => self.others().into_iter().collect(),
        };
        for pe in sharers.into_iter().filter(|pe| *pe != self.me) {
            self.send(pe, &Message::Facts(facts.to_vec()));
        }
    }

    /// Tells a node that was started which leaves are here.
    fn tell_own(&self, to: PeId) {
        const FACTS_PER_MESSAGE: usize = 256;
        let facts: Vec<_> = self.leaves().iter().map(|leaf| leaf.fact(self.me)).collect();
        for some in facts.chunks(FACTS_PER_MESSAGE) {
            self.send(to, &Message::Facts(some.to_vec()));
        }
    }

    /// The head of a leaf, if it is still here.
    fn leaf(&self, page: PageNo) -> Option<LeafHead> {
        self.state.borrow().leaves.get(&page).cloned()
    }

    /// The store failed in a change of structure: memory and store may differ now, so nothing is answered any more.
    fn fail(&self, error: &StoreError) {
        self.refuse(error.to_string());
    }

    /// Nothing is answered from here on, for this reason.
    fn refuse(&self, reason: String) {
        self.failure.borrow_mut().get_or_insert(reason);
    }
}
