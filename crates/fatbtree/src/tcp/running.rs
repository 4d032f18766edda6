//! A running node: its thread, and the construction of its parts there.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use azekura::Database;
use azekura_auth::AuthKey;
use azekura_base::rate_limit::RateLimit;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

use crate::error::Error;
use crate::id::PeId;
use crate::membership::Membership;
use crate::node::{Application, Credentials, ListError, LocalKeys, Node, Parts};
use crate::options::Options;
use crate::page_service::StorePages;
use crate::store::{Attachments, DatabaseStore, Offload};
use crate::tcp::committer::Committer;
use crate::tcp::handshake::Identity;
use crate::tcp::inbound::InboundConnections;
use crate::tcp::links::Links;
use crate::tcp::listen::NodeListener;
use crate::tcp::node_context::{Job, NodeContext, NodeHandle};
use crate::tcp::world::{LocalTasks, RealClock, RealRng, Threads};
use crate::world::World;

/// Maximum of threads for work that may block in the store.
const STORE_THREADS: usize = 64;
/// Time limit for running jobs of the store when the node stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of a node on this machine.
#[derive(Debug)]
pub struct NodeConfig {
    /// PE of the node.
    pub pe: PeId,
    /// List of members.
    pub members: Membership,
    /// Key that the nodes share.
    pub key: AuthKey,
    /// Listener for connections of other nodes.
    pub listener: TcpListener,
    /// Settings of the node.
    pub options: Options,
    /// Name of the table with the rows.
    pub rows: String,
}

/// The reason that a node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The node is not in the list of members.
    #[error("node {} is not on the list of members; add it, or start it with another number (--node)", .0.0)]
    NoMember(PeId),
    /// A thread or a socket could not be created.
    #[error("cannot start the node: no thread or no socket")]
    Io(#[from] io::Error),
    /// The store failed, or the settings contradict each other.
    #[error(transparent)]
    Node(#[from] Error),
    /// The list of members is outdated.
    #[error(transparent)]
    List(#[from] ListError),
}

/// Resources of a node for its application.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Committer, which waits for commits.
    pub committer: Committer,
    /// Threads for open transactions.
    apart: tokio::runtime::Handle,
}

impl Tools {
    /// Runs a job that may block on a pool thread. Returns its result, or `None` if it panicked.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        tokio::task::spawn_blocking(job).await.ok()
    }

    /// Like [`run`](Self::run), for steps and ends of open transactions. These have their own threads: a job
    /// that waits for an open transaction never occupies the thread that would end it (hazard B5).
    pub async fn run_apart<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.apart.spawn_blocking(job).await.ok()
    }

    /// Waits without blocking a thread.
    pub async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A node on its own thread. Dropping it stops the node.
#[derive(Debug)]
pub struct NodeThread {
    handle: Option<NodeHandle>,
    local_keys: Arc<LocalKeys>,
    address: SocketAddr,
    stop: UnboundedSender<()>,
    thread: Option<JoinHandle<()>>,
}

impl NodeThread {
    /// Starts a node. The node accepts requests when this function returns, whether or not other nodes run.
    ///
    /// # Errors
    ///
    /// [`StartError`]; its text names the remedy.
    pub fn start(
        db: Database,
        attachments: Arc<dyn Attachments>,
        application: impl FnOnce(Tools) -> Rc<dyn Application> + Send + 'static,
        config: NodeConfig,
    ) -> Result<Self, StartError> {
        if config.members.node(config.pe).is_none() {
            return Err(StartError::NoMember(config.pe));
        }
        config.listener.set_nonblocking(true)?;
        let address = config.listener.local_addr()?;
        let committer = Committer::start()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(STORE_THREADS)
            .thread_name("azekura-store")
            .build()?;
        let apart = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(config.options.most_open.max(1))
            .thread_name("azekura-open")
            .build()?;
        let tools = Tools { committer, apart: apart.handle().clone() };
        let (handle, queue) = NodeHandle::new();
        let (stop, stopped) = unbounded_channel();
        let (sender, receiver) = sync_channel(1);
        let thread = thread::Builder::new().name(format!("azekura-pe-{}", config.pe.0)).spawn(move || {
            let local = LocalSet::new();
            let body = async {
                let begun = begin(db, attachments, application(tools), config).await;
                match begun {
                    Ok(here) => {
                        let local_keys = Shut(Arc::clone(here.node.local_keys()));
                        // The starting thread waits for this.
                        let _ = sender.send(Ok(Arc::clone(&local_keys.0)));
                        work(here, queue, stopped).await;
                    }
                    Err(error) => drop(sender.send(Err(error))),
                }
            };
            runtime.block_on(local.run_until(body));
            // Tasks hold the store, so they are dropped before the thread ends.
            drop(local);
            runtime.shutdown_timeout(STOP_TIMEOUT);
            apart.shutdown_timeout(STOP_TIMEOUT);
        })?;
        let begun =
            receiver.recv().unwrap_or_else(|_| Err(io::Error::other("the node's thread ended").into()));
        match begun {
            Ok(local_keys) => {
                Ok(Self { handle: Some(handle), local_keys, address, stop, thread: Some(thread) })
            }
            Err(error) => {
                // The panic hook has reported a panic of the thread.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// Returns the keys that other threads may serve; none after the node has ended.
    #[must_use]
    pub const fn local_keys(&self) -> &Arc<LocalKeys> {
        &self.local_keys
    }

    /// Returns the address for connections of other nodes.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle of the node for other threads.
    ///
    /// # Panics
    ///
    /// Never: the handle exists until the node is dropped.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone().expect("until it is dropped")
    }

    /// Stops the node at any point, like a crash, and waits for its thread. Acknowledged changes are durable.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.handle = None;
        // The thread may have ended already.
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// Guard that ends the service by other threads when the node's thread ends, also by a panic.
struct Shut(Arc<LocalKeys>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut();
    }
}

async fn begin(
    db: Database,
    attachments: Arc<dyn Attachments>,
    application: Rc<dyn Application>,
    config: NodeConfig,
) -> Result<Rc<NodeContext>, StartError> {
    let NodeConfig { pe, members, key, listener, options, rows } = config;
    let (store, list) = (Credentials::default(), members.mark());
    let me = Identity { cluster: members.cluster(), pe, epoch: options.epoch, store, list, clock_ms: 0 };
    let rng = Rc::new(RealRng::new());
    let inbound = Rc::new(InboundConnections::default());
    let links = Rc::new(Links::new(me, key.clone(), Rc::clone(&rng) as _, Rc::clone(&inbound)));
    let world = World {
        net: Rc::clone(&links) as _,
        clock: Rc::new(RealClock::start()),
        rng,
        tasks: Rc::new(LocalTasks),
    };
    let offload: Rc<dyn Offload> = Rc::new(Threads);
    let store = Rc::new(DatabaseStore::new(db, &rows, offload, attachments));
    let founding = members.founding(pe);
    let parts = Parts {
        world,
        store,
        pages: Rc::new(StorePages),
        application,
        founding,
        members: members.nodes().iter().map(|member| member.pe).collect(),
        options,
        #[cfg(feature = "baseline-protocols")]
        built: None,
    };
    let node = Node::start(parts).await?;
    let acceptor = Rc::new(NodeListener {
        me,
        key,
        links: Rc::clone(&links),
        node: Rc::clone(&node),
        status: RefCell::default(),
        inbound,
        refusals: RateLimit::default(),
    });
    let here = Rc::new(NodeContext::new(pe, node, links, Rc::clone(&acceptor)));
    here.learn_members(&members).await?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tokio::task::spawn_local(acceptor.listen(listener));
    Ok(here)
}

async fn work(here: Rc<NodeContext>, mut queue: UnboundedReceiver<Job>, mut stopped: UnboundedReceiver<()>) {
    loop {
        tokio::select! {
            job = queue.recv() => match job {
                Some(job) => drop(tokio::task::spawn_local(job(Rc::clone(&here)))),
                None => return,
            },
            _ = stopped.recv() => return,
        }
    }
}
