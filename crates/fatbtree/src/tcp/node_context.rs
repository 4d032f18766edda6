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

/// Longest wait of a node that has left for the confirmations of others, and the interval of its checks.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);
const TELL_INTERVAL: Duration = Duration::from_millis(10);
/// A newer list that is not there yet is looked for so often.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// A node and its connections, on its own thread.
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
    /// The reason that it takes no requests; `None` if it takes them.
    pub failure: Option<String>,
    /// `true` if the store is settled (it has its keys).
    pub is_settled: bool,
    /// The version of the list of members that it uses, and the newest that another node uses.
    pub list: (u64, u64),
    /// Nodes that have left the cluster.
    pub left: Vec<PeId>,
    /// Leaves here.
    pub leaves: usize,
    /// Index pages here, and their levels.
    pub index: (usize, u8),
    /// Its counters.
    pub counts: Counts,
    /// Transactions that are open here.
    pub open_transactions: usize,
    /// The ways to the others.
    pub links: Vec<LinkStatus>,
    /// Incoming connections.
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

    /// The links; one to a silent node is down, though its connection stands.
    fn links(&self) -> Vec<LinkStatus> {
        let mut links = self.links.status();
        for link in links.iter_mut().filter(|link| link.state == LinkState::Up) {
            if let Some(reason) = self.node.trouble_with(link.pe) {
                link.state = LinkState::Down(reason);
            }
        }
        links
    }

    /// Runs a task beside the others, from now on; the future waits for what comes of it, `None` if it
    /// panicked.
    pub fn beside<T: 'static>(
        self: &Rc<Self>,
        job: impl FnOnce(Rc<Self>) -> Task<'static, T>,
    ) -> Task<'static, Option<T>> {
        let task = tokio::task::spawn_local(job(Rc::clone(self)));
        Box::pin(async move { task.await.ok() })
    }

    /// Goes by this list: learns of nodes that have come, and where nodes are now. Nobody is forgotten: that
    /// a node has left is said by that node.
    ///
    /// # Errors
    ///
    /// [`ListError`]: it is older than one that this node has gone by, or there is another one of its
    /// version. Nothing was changed.
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

    /// Has the node leave the cluster; ends when all others know that it has, or have not said so for a time:
    /// then it can be stopped.
    ///
    /// # Errors
    ///
    /// As for [`Node::leave`].
    pub async fn leave(&self) -> Result<(), LeaveError> {
        self.node.leave().await?;
        let began = Instant::now();
        while !self.node.untold().is_empty() && began.elapsed() < TELL_TIMEOUT {
            tokio::time::sleep(TELL_INTERVAL).await;
        }
        Ok(())
    }

    /// Reads the list anew whenever another node goes by a newer one, for ever. A list that cannot be read,
    /// or is no newer, is left.
    pub async fn follow(self: Rc<Self>, meta: Arc<dyn Meta + Send + Sync>) {
        loop {
            let news = self.node.newer_list();
            let (version, newest) = self.node.list_versions();
            if newest > version {
                let meta = Arc::clone(&meta);
                let read = tokio::task::spawn_blocking(move || meta.members()).await;
                if let Ok(Ok(members)) = read {
                    // A list that is still older is reported by `status`.
                    let _ = self.learn_members(&members).await;
                }
            }
            // It may be given to this node later than to others.
            let _ = tokio::time::timeout(FOLLOW_INTERVAL, news).await;
        }
    }
}

/// A job for the node's thread.
pub(super) type Job = Box<dyn FnOnce(Rc<NodeContext>) -> Task<'static, ()> + Send>;

/// Reaches a node from any thread. It is of no more use when the node has stopped.
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

    /// Runs `job` beside the others of the node, and waits for what comes of it. Blocks the calling thread;
    /// says so first (`azekura_base::blocking` at the caller).
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`]: it was not begun. [`Error::Interrupted`]: it was, and did not come to its end.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(Rc<NodeContext>) -> Task<'static, T> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = sync_channel(1);
        let job: Job = Box::new(move |here| {
            let task = job(here);
            Box::pin(async move {
                // The asking thread waits for it.
                let _ = tell.send(task.await);
            })
        });
        self.jobs.send(job).map_err(|_| Error::Stopped)?;
        told.recv().map_err(|_| Error::Interrupted)
    }

    /// Runs `job` beside the others of the node, without waiting for it. Not at all if the node has stopped.
    pub fn tell(&self, job: impl FnOnce(Rc<NodeContext>) -> Task<'static, ()> + Send + 'static) {
        // The jobs of a stopped node are dropped.
        let _ = self.jobs.send(Box::new(job));
    }
}
