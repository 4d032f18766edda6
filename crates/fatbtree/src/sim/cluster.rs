//! Simulated nodes that start, crash, and restart from their disks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use crate::error::Error;
use crate::id::PeId;
use crate::index::Built;
use crate::key::Key;
use crate::leaf::LeafHead;
use crate::node::{Application, NoApplication, Node, Parts};
use crate::options::Options;
use crate::page_service::{PageService, StorePages};
use crate::sim::executor::{Executor, Group};
use crate::sim::network::{Faults, Network};
use crate::store::{Disk, Founding, LeafStore, MemoryStore};
use crate::world::World;

/// Options of a simulated cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// Settings of each node.
    pub node: Options,
    /// Initial distribution of the keys.
    pub shares: Vec<(Key, PeId)>,
    /// Number of PEs that may [join](Cluster::join) later. They have the next numbers.
    pub spares: u16,
    /// Faults of the network.
    pub faults: Faults,
    /// Maximum delay of a store operation, before and after its effect.
    pub store_delay: Duration,
}

impl ClusterOptions {
    /// Returns options in which `pes` PEs share the keys evenly by the first byte.
    #[must_use]
    pub fn evenly(pes: u16) -> Self {
        let low =
            |pe: u16| if pe == 0 { Key::new() } else { vec![(u32::from(pe) * 256 / u32::from(pes)) as u8] };
        Self {
            // With heartbeats there would always be a next event, so a task that waits forever would not be
            // detected.
            node: Options { heartbeat_interval: None, ..Options::default() },
            shares: (0..pes).map(|pe| (low(pe), PeId(pe))).collect(),
            spares: 0,
            faults: Faults::default(),
            store_delay: Duration::ZERO,
        }
    }
}

/// A function that creates the store of a node at its start.
pub type MakeStore = dyn Fn(PeId, &World) -> Rc<dyn LeafStore>;
/// A function that creates the page service of a node at its start.
pub type MakePages = dyn Fn(PeId, &World) -> Rc<dyn PageService>;

/// A function that creates the application of a node at its start.
pub type MakeApplication = dyn Fn(&World, &Rc<dyn LeafStore>) -> Rc<dyn Application>;

/// A simulated cluster. Clones share the same state.
#[derive(Clone)]
pub struct Cluster(Rc<Inner>);

struct Inner {
    executor: Executor,
    network: Network,
    options: ClusterOptions,
    disks: BTreeMap<PeId, Disk>,
    make_store: Box<MakeStore>,
    make_pages: Box<MakePages>,
    make_application: RefCell<Box<MakeApplication>>,
    built: RefCell<BTreeMap<PeId, Built>>,
    running: RefCell<BTreeMap<PeId, (Rc<Node>, Group)>>,
    /// PEs in the list of members.
    members: RefCell<BTreeSet<PeId>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.0.running.borrow();
        f.debug_struct("Cluster")
            .field("running", &running.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

const CLUSTER: u64 = 0xfa7;

impl Cluster {
    /// Creates a cluster with stores in memory. No node runs yet.
    #[must_use]
    pub fn new(seed: u64, options: ClusterOptions) -> Self {
        Self::with(Executor::new(seed), options, None, None)
    }

    /// Creates a cluster with stores and page services of the caller.
    #[must_use]
    pub fn with(
        executor: Executor,
        options: ClusterOptions,
        make_store: Option<Box<MakeStore>>,
        make_pages: Option<Box<MakePages>>,
    ) -> Self {
        let founders: BTreeSet<_> = options.shares.iter().map(|(_, pe)| *pe).collect();
        let next = founders.last().map_or(0, |last| last.0 + 1);
        let all = founders.iter().copied().chain((next..next + options.spares).map(PeId));
        let disks: BTreeMap<_, _> = all.map(|pe| (pe, Disk::default())).collect();
        let network = Network::new(executor.clone(), options.faults);
        let (for_stores, delay) = (disks.clone(), options.store_delay);
        let in_memory = move |pe, world: &World| -> Rc<dyn LeafStore> {
            let disk: &Disk = &for_stores[&pe];
            Rc::new(if delay.is_zero() {
                MemoryStore::new(disk.clone())
            } else {
                MemoryStore::slow(disk.clone(), world.clone(), delay)
            })
        };
        Self(Rc::new(Inner {
            executor,
            network,
            options,
            disks,
            make_store: make_store.unwrap_or_else(|| Box::new(in_memory)),
            make_pages: make_pages.unwrap_or_else(|| Box::new(|_, _| Rc::new(StorePages))),
            make_application: RefCell::new(Box::new(|_, _| Rc::new(NoApplication))),
            built: RefCell::default(),
            running: RefCell::default(),
            members: RefCell::new(founders),
        }))
    }

    /// Sets the application of nodes that are started from now on.
    pub fn set_application(&self, make: Box<MakeApplication>) {
        *self.0.make_application.borrow_mut() = make;
    }

    /// Sets the built indexes of the PEs. Call this before the first start, and after the rows were written
    /// to the disks.
    pub fn give(&self, parts: Vec<Built>) {
        for (pe, part) in (0..).map(PeId).zip(parts) {
            self.disk(pe).build([], part.heads.clone());
            self.0.built.borrow_mut().insert(pe, part);
        }
    }

    /// Returns the executor: virtual time and random numbers.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.0.executor
    }

    /// Returns the network.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    /// Returns all PEs in the list of members, running or not.
    #[must_use]
    pub fn members(&self) -> Vec<PeId> {
        self.0.members.borrow().iter().copied().collect()
    }

    /// Returns a PE that has never been a member, if there is one.
    #[must_use]
    pub fn spare(&self) -> Option<PeId> {
        let members = self.0.members.borrow();
        let was_never = |pe: &PeId| {
            !members.contains(pe) && self.disk(*pe).structure().0.is_empty() && !self.disk(*pe).has_left(*pe)
        };
        self.0.disks.keys().copied().find(was_never)
    }

    /// Adds a PE to the list, starts it, and gives the new list to all running nodes. The new node is
    /// settled, without keys, when all other nodes have sent their entries.
    ///
    /// # Errors
    ///
    /// See [`Node::start`].
    pub async fn join(&self, pe: PeId) -> Result<Rc<Node>, Error> {
        self.0.members.borrow_mut().insert(pe);
        let nodes: Vec<_> = self.0.running.borrow().values().map(|(node, _)| Rc::clone(node)).collect();
        nodes.iter().for_each(|node| node.join(pe));
        self.start(pe).await
    }

    /// Stops a node that has left, and removes it from the list.
    pub fn dismiss(&self, pe: PeId) {
        self.crash(pe);
        self.0.members.borrow_mut().remove(&pe);
    }

    /// Returns the disk of a PE with a store in memory.
    ///
    /// # Panics
    ///
    /// If there is no such PE.
    #[must_use]
    pub fn disk(&self, pe: PeId) -> &Disk {
        &self.0.disks[&pe]
    }

    /// Returns a node, if it runs.
    #[must_use]
    pub fn node(&self, pe: PeId) -> Option<Rc<Node>> {
        self.0.running.borrow().get(&pe).map(|(node, _)| Rc::clone(node))
    }

    /// Returns a running node.
    ///
    /// # Panics
    ///
    /// If the node does not run.
    #[must_use]
    pub fn running(&self, pe: PeId) -> Rc<Node> {
        self.node(pe).unwrap_or_else(|| panic!("{pe} does not run"))
    }

    /// Runs the simulation until `task` ends, and returns its result.
    ///
    /// # Panics
    ///
    /// If the task would wait forever.
    pub fn wait<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        self.0.executor.block_on(task).expect("nobody waits for ever")
    }

    /// Returns the task group of a running node. A task that is spawned in it ends with the node.
    #[must_use]
    pub fn group(&self, pe: PeId) -> Option<Group> {
        self.0.running.borrow().get(&pe).map(|(_, group)| *group)
    }

    /// Starts a node, on a new disk or on the disk of its last run.
    ///
    /// # Errors
    ///
    /// See [`Node::start`].
    pub async fn start(&self, pe: PeId) -> Result<Rc<Node>, Error> {
        self.start_with(pe, self.0.options.node.clone(), self.members()).await
    }

    /// Starts a node with another list of members than the other nodes use.
    ///
    /// # Errors
    ///
    /// See [`Node::start`].
    pub async fn start_with_list(&self, pe: PeId, members: Vec<PeId>) -> Result<Rc<Node>, Error> {
        self.start_with(pe, self.0.options.node.clone(), members).await
    }

    /// Starts a node with a [lost](Disk::lose) disk and accepts the loss.
    ///
    /// # Errors
    ///
    /// See [`Node::start`].
    pub async fn start_after_loss(&self, pe: PeId) -> Result<Rc<Node>, Error> {
        let options = Options { is_loss_accepted: true, ..self.0.options.node.clone() };
        self.start_with(pe, options, self.members()).await
    }

    /// Starts a node and accepts its store, even if it is a [restored](Disk::restore) one.
    ///
    /// # Errors
    ///
    /// See [`Node::start`].
    pub async fn start_with_copy(&self, pe: PeId) -> Result<Rc<Node>, Error> {
        let options = Options { is_copy_accepted: true, ..self.0.options.node.clone() };
        self.start_with(pe, options, self.members()).await
    }

    async fn start_with(&self, pe: PeId, options: Options, members: Vec<PeId>) -> Result<Rc<Node>, Error> {
        let inner = &*self.0;
        let group = inner.executor.group();
        let world = World {
            net: inner.network.port(pe),
            clock: Rc::new(inner.executor.clone()),
            rng: Rc::new(inner.executor.clone()),
            tasks: inner.executor.spawner(group),
        };
        let founding = Founding { cluster: CLUSTER, pe, shares: inner.options.shares.clone() };
        let (store, pages) = ((inner.make_store)(pe, &world), (inner.make_pages)(pe, &world));
        let application = (inner.make_application.borrow())(&world, &store);
        let built = inner.built.borrow_mut().remove(&pe);
        let parts = Parts { world, store, pages, application, founding, members, options, built };
        let node = Node::start(parts).await?;
        inner.network.connect(pe, Some(&node));
        inner.running.borrow_mut().insert(pe, (Rc::clone(&node), group));
        Ok(node)
    }

    /// Starts every node, and waits until all of them are settled.
    ///
    /// # Panics
    ///
    /// If a node cannot be started.
    pub fn start_all(&self) {
        for pe in self.members() {
            let cluster = self.clone();
            self.wait(async move { cluster.start(pe).await.map(drop) }).expect("a node starts");
        }
        let is_settled = |pe| self.node(pe).is_some_and(|node| node.is_settled());
        let all = || self.members().into_iter().all(is_settled);
        assert!(self.0.executor.run_until(all), "every node comes to its keys");
    }

    /// Crashes a node at any point of its work.
    pub fn crash(&self, pe: PeId) {
        let running = self.0.running.borrow_mut().remove(&pe);
        if let Some((node, group)) = running {
            self.0.network.connect(pe, None);
            self.0.executor.end(group);
            drop(node);
        }
    }

    /// Checks I1 on the disks: returns the violations of the partition of keys by live leaves, and of the
    /// indexes of running nodes. A received leaf is live if its source has decided the move.
    #[must_use]
    pub fn verify(&self) -> Vec<String> {
        let (mut live, mut staged, mut decided): (Vec<LeafHead>, Vec<_>, Vec<_>) = Default::default();
        for disk in self.0.disks.values() {
            let (heads, came, gone) = disk.structure();
            live.extend(heads);
            staged.extend(came);
            decided.extend(gone);
        }
        let is_decided = |id| decided.iter().any(|(decided, _)| *decided == id);
        live.extend(staged.into_iter().filter(|staged| is_decided(staged.id)).map(|staged| staged.head));
        live.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        let mut wrong = Vec::new();
        let mut end = Some(Key::new());
        for leaf in &live {
            if end.as_ref() != Some(&leaf.range.low) {
                wrong.push(format!("I1: the keys before {:?} end at {end:?}", leaf.range));
            }
            end.clone_from(&leaf.range.high);
        }
        if let Some(end) = end {
            wrong.push(format!("I1: no node has the keys from {end:?} on"));
        }
        for (node, _) in self.0.running.borrow().values() {
            wrong.extend(node.verify().into_iter().map(|what| format!("{}: {what}", node.pe())));
        }
        wrong
    }
}
