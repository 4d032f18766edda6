//! A node among the tasks of its thread, and a handle for other threads.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error::Error;
use crate::id::PeId;
use crate::membership::{Membership, Meta};
use crate::node::{Counts, LeaveError, ListError, Node};
use crate::tcp::links::{LinkState, LinkStatus, Links};
use crate::tcp::listen::{ListenerStatus, NodeListener};
use crate::world::Task;

/// Longest time for which a node that has left waits for acknowledgments, and the interval of its checks.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);
const TELL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the source is read again if it does not have the newer list yet.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// A node and its connections, as used by tasks of the node's thread.
pub struct NodeContext {
    /// The node.
    pub node: Rc<Node>,
    links: Rc<Links>,
    listener: Rc<NodeListener>,
    me: PeId,
}

impl fmt::Debug for NodeContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeContext").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Status of a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node.
    pub pe: PeId,
    /// The reason that the node refuses requests; `None` if it accepts them.
    pub failure: Option<String>,
    /// `true` if the store is settled (it has its keys).
    pub is_settled: bool,
    /// Version of the list of members that the node uses, and the newest version that any node uses.
    pub list: (u64, u64),
    /// Nodes that have left the cluster.
    pub left: Vec<PeId>,
    /// Number of leaves of the node.
    pub leaves: usize,
    /// Number of index pages of the node, and of their levels.
    pub index: (usize, u8),
    /// Counters of the node.
    pub counts: Counts,
    /// Number of transactions that are open at the node.
    pub open_transactions: usize,
    /// Links to the other nodes.
    pub links: Vec<LinkStatus>,
    /// Inbound connections.
    pub listener: ListenerStatus,
}

impl NodeContext {
    pub(super) const fn new(me: PeId, node: Rc<Node>, links: Rc<Links>, listener: Rc<NodeListener>) -> Self {
        Self { node, links, listener, me }
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            pe: self.me,
            failure: self.node.failure(),
            is_settled: self.node.is_settled(),
            list: self.node.list_versions(),
            left: self.node.left(),
            leaves: self.node.leaves().len(),
            index: self.node.index_size(),
            counts: self.node.counts(),
            open_transactions: self.node.open_transactions(),
            links: self.links(),
            listener: self.listener.status.borrow().clone(),
        }
    }

    /// Returns the status of the links. A link to a silent node counts as down, even if its connection is
    /// open.
    fn links(&self) -> Vec<LinkStatus> {
        let mut links = self.links.status();
        for link in links.iter_mut().filter(|link| link.state == LinkState::Up) {
            if let Some(reason) = self.node.trouble_with(link.pe) {
                link.state = LinkState::Down(reason);
            }
        }
        links
    }

    /// Starts a concurrent task on this thread. The returned future waits for the result; `None` if the task
    /// panicked.
    pub fn beside<T: 'static>(
        self: &Rc<Self>,
        job: impl FnOnce(Rc<Self>) -> Task<'static, T>,
    ) -> Task<'static, Option<T>> {
        let task = tokio::task::spawn_local(job(Rc::clone(self)));
        Box::pin(async move { task.await.ok() })
    }

    /// Uses this list of members: adds nodes that have joined, and updates addresses. Removes no node,
    /// because a node itself reports that it has left.
    ///
    /// # Errors
    ///
    /// [`ListError`]: the list is older than the one in use, or another list with its version is known.
    /// Nothing was changed.
    pub async fn learn_members(&self, members: &Membership) -> Result<(), ListError> {
        self.node.go_by_list(members.mark()).await?;
        let others =
            members.nodes().iter().filter(|member| member.pe != self.me && !self.node.has_left(member.pe));
        for member in others {
            self.links.add(member.pe, member.address, Rc::downgrade(&self.node));
            self.node.join(member.pe);
        }
        Ok(())
    }

    /// Makes the node leave the cluster. Returns when all other nodes have acknowledged this, or after a time
    /// limit. Then the node can be stopped.
    ///
    /// # Errors
    ///
    /// See [`Node::leave`].
    pub async fn leave(&self) -> Result<(), LeaveError> {
        self.node.leave().await?;
        let began = Instant::now();
        while !self.node.uninformed().is_empty() && began.elapsed() < TELL_TIMEOUT {
            tokio::time::sleep(TELL_INTERVAL).await;
        }
        Ok(())
    }

    /// Reads the list again whenever another node uses a newer one, and never returns. Ignores a list that
    /// cannot be read or is not newer.
    pub async fn follow(self: Rc<Self>, meta: Arc<dyn Meta + Send + Sync>) {
        loop {
            let news = self.node.newer_list();
            let (version, newest) = self.node.list_versions();
            if newest > version {
                let meta = Arc::clone(&meta);
                let read = tokio::task::spawn_blocking(move || meta.members()).await;
                if let Ok(Ok(members)) = read {
                    // `status` reports a list that is still older.
                    let _ = self.learn_members(&members).await;
                }
            }
            // This node may get the list later than other nodes.
            let _ = tokio::time::timeout(FOLLOW_INTERVAL, news).await;
        }
    }
}

/// A function that creates a task on the node's thread.
pub(super) type Job = Box<dyn FnOnce(Rc<NodeContext>) -> Task<'static, ()> + Send>;

/// Handle of a node for any thread. It is useless after the node has stopped.
#[derive(Clone)]
pub struct NodeHandle {
    jobs: UnboundedSender<Job>,
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle").finish_non_exhaustive()
    }
}

impl NodeHandle {
    /// Returns a handle, and the queue of its requests.
    pub(super) fn new() -> (Self, UnboundedReceiver<Job>) {
        let (jobs, queue) = unbounded_channel();
        (Self { jobs }, queue)
    }

    /// Runs `job` as a task on the node's thread, and waits for its result. Blocks; the caller announces that
    /// first (`azekura_base::blocking`).
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`]: the task was not begun. [`Error::Interrupted`]: the task was begun and did not
    /// complete.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(Rc<NodeContext>) -> Task<'static, T> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = sync_channel(1);
        let job: Job = Box::new(move |here| {
            let task = job(here);
            Box::pin(async move {
                // The requesting thread waits for the result.
                let _ = sender.send(task.await);
            })
        });
        self.jobs.send(job).map_err(|_| Error::Stopped)?;
        receiver.recv().map_err(|_| Error::Interrupted)
    }

    /// Runs `job` as a task on the node's thread, without waiting for it. Does nothing if the node has
    /// stopped.
    pub fn tell(&self, job: impl FnOnce(Rc<NodeContext>) -> Task<'static, ()> + Send + 'static) {
        // The jobs of a stopped node are dropped.
        let _ = self.jobs.send(Box::new(job));
    }
}
