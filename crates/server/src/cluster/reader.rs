//! Readers of several nodes: a reader opens a snapshot at each node that has keys of its range.
//!
//! Nodes have no common clock, so a reader does not read all nodes at one moment. It reads each node at one
//! moment after the reader began (`azekura_fatbtree`'s `node::open`, OPEN-5 and OPEN-6):
//!
//! - **READER-1** A transaction is visible completely or not at all, because it runs at one node.
//! - **READER-2** All transactions that were acknowledged before the reader began are visible.
//! - **READER-3** A reader ends with `RETRY` if a leaf of its range moves to another node meanwhile, because
//!   READER-1 and READER-2 would not hold. A walk that is a single command is tried [`MOST_TRIES`] times.
//!
//! If two transactions run one after the other at different nodes while the snapshots are opened, the second
//! may be visible to the reader without the first.
//!
//! A walk opens the snapshot of a node at its first leaf there, and replies after all snapshots were closed
//! without an error. `AZ.SNAPSHOT` opens all snapshots, and then checks once that all are still open; later
//! reads need no check.

use std::sync::Arc;

use azekura_base::blocking;
use azekura_base::sync::Mutex;
use azekura_fatbtree::tcp::{NodeContext, NodeHandle};
use azekura_fatbtree::{
    Answer, Error, Key, KeyRange as LeafRange, PeId, RouteEntry, Target, Task, TransactionId, Work,
};

use super::Cluster;
use super::gateway::{no_reply, one, refusal, sorted};
use super::interactive::{Said, StepError};
use super::scan::{self, Legs};
use super::wire::{self, Call, Step, Walk};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::keyspace::KeyRange;
use crate::resp::{Protocol, Reply, Request};
use crate::server::Shared;

/// Maximum of attempts to open the snapshots of a walk, or of `AZ.SNAPSHOT`, before the client gets `RETRY`.
pub(super) const MOST_TRIES: usize = 10;

/// Snapshots of several nodes. Dropping the reader closes them.
#[derive(Debug)]
pub(super) struct Reader {
    node: NodeHandle,
    id: Option<TransactionId>,
    /// All keys that the reader may read.
    within: LeafRange,
    /// The nodes with a snapshot, each with the target of the first request to it.
    opened: Vec<(PeId, Target)>,
    /// The error that has ended the reader.
    over: Option<CommandError>,
}

impl Reader {
    pub(super) fn new(cluster: &Cluster, within: LeafRange) -> Self {
        Self { node: cluster.node.clone(), id: None, within, opened: Vec::new(), over: None }
    }

    /// Runs a reading call at the leaf of `target`. Blocks.
    fn ask(
        &mut self,
        cluster: &Cluster,
        target: Target,
        others: Vec<Key>,
        call: &Call,
    ) -> Result<(Said, RouteEntry), StepError> {
        if let Some(error) = &self.over {
            return Err(StepError::Over(error.clone()));
        }
        let (within, bytes) = (self.within.clone(), wire::encode(call));
        let (opened, first) = (self.opened.iter().map(|(pe, _)| *pe).collect(), target.clone());
        let work = move |id| Work::Read { id, opened, within, others, bytes };
        let (id, done) = cluster.step_of(self.id, target, work)?;
        self.id = Some(id);
        match done {
            Ok((Answer::Ran(said), Some(route_entry))) => {
                if self.opened.iter().all(|(pe, _)| *pe != route_entry.pe) {
                    self.opened.push((route_entry.pe, first));
                }
                match wire::decode(&said)? {
                    said @ (Said::Replied(_) | Said::Walked(_)) => Ok((said, route_entry)),
                    Said::Retry(why) => Err(self.over(CommandError::Retry(why))),
                    Said::Unavailable(why) => Err(self.over(CommandError::Unavailable(why))),
                    Said::Storage(why) => Err(self.over(CommandError::Storage(why))),
                }
            }
            Ok(_) => Err(refusal(Error::Protocol).into()),
            Err(error @ Error::Ended { .. }) => Err(self.over(refusal(error))),
            Err(error) => {
                if matches!(error, Error::Unknown { .. }) {
                    self.close_at(id, first);
                }
                Err(failed_read(error).into())
            }
        }
    }

    /// Closes the snapshot at the owner of a target, after a request without an answer: the owner may have
    /// opened the snapshot. Does not wait.
    fn close_at(&self, id: TransactionId, target: Target) {
        self.node.tell(move |here| {
            Box::pin(async move {
                // The limit 0 reads no rows; the answer contains the leaf with its node.
                let within = LeafRange { low: Key::new(), high: Some(Key::new()) };
                let leaf = here.node.call(target.clone(), Work::Rows { within, limit: 0 }).await;
                if let Ok((_, Some(RouteEntry { pe, .. }))) = leaf {
                    let end = Work::End { id, coordinator: pe, is_commit: false };
                    drop(here.node.call(target, end).await);
                }
            })
        });
    }

    fn over(&mut self, error: CommandError) -> StepError {
        self.over = Some(error.clone());
        StepError::Over(error)
    }

    /// Runs a step of a walk.
    pub(super) fn walk_leg(
        &mut self,
        cluster: &Cluster,
        target: Target,
        walk: Walk,
    ) -> Result<(Step, LeafRange), StepError> {
        match self.ask(cluster, target, Vec::new(), &Call::Walk(walk))? {
            (Said::Walked(step), route_entry) => Ok((step, route_entry.range)),
            _ => Err(refusal(Error::Protocol).into()),
        }
    }

    /// Closes all snapshots. Returns an error if one of them was closed before (READER-3). Blocks.
    pub(super) fn finish(mut self, cluster: &Cluster) -> Result<(), CommandError> {
        self.at_all(cluster, |id, coordinator| Work::End { id, coordinator, is_commit: true })?;
        self.opened.clear();
        Ok(())
    }

    /// Returns an error if one of the snapshots was closed. Blocks.
    fn check(&self, cluster: &Cluster) -> Result<(), CommandError> {
        self.at_all(cluster, |id, coordinator| Work::Check { id, coordinator })
    }

    /// Sends a message to all nodes that have a snapshot, and waits for all answers.
    fn at_all(
        &self,
        cluster: &Cluster,
        work: impl Fn(TransactionId, PeId) -> Work,
    ) -> Result<(), CommandError> {
        let Some(id) = self.id else { return Ok(()) };
        let calls: Vec<_> = self.opened.iter().map(|(pe, target)| (target.clone(), work(id, *pe))).collect();
        cluster
            .at_node(move |here| Box::pin(async move { call_all(&here, calls).await }))?
            .map_err(failed_read)
    }
}

/// Returns the error for the client. A reader changes nothing, so an unknown result is only a failed read.
pub(super) fn failed_read(error: Error) -> CommandError {
    match error {
        Error::Unknown { reason } => CommandError::Unreachable(reason),
        error => match refusal(error) {
            CommandError::Unknown(why) => CommandError::Unavailable(why),
            other => other,
        },
    }
}

/// Sends calls concurrently, and waits for all answers.
async fn call_all(here: &std::rc::Rc<NodeContext>, calls: Vec<(Target, Work)>) -> Result<(), Error> {
    let call = |(target, work)| {
        here.beside(|here| -> Task<'static, _> {
            Box::pin(async move { here.node.call(target, work).await.map(drop) })
        })
    };
    let tasks: Vec<_> = calls.into_iter().map(call).collect();
    let mut all = Ok(());
    for task in tasks {
        let done = task.await.unwrap_or(Err(Error::Interrupted));
        all = all.and(done);
    }
    all
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(id) = self.id.filter(|_| !self.opened.is_empty()) else { return };
        let end = |(pe, target)| (target, Work::End { id, coordinator: pe, is_commit: false });
        let calls: Vec<_> = self.opened.drain(..).map(end).collect();
        self.node.tell(move |here| Box::pin(async move { drop(call_all(&here, calls).await) }));
    }
}

/// Converts a range of keys to a range of leaves.
pub(super) fn leaf_range(range: &KeyRange) -> LeafRange {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let low = match &range.lower {
        Unbounded => Key::new(),
        Included(key) => key.clone(),
        Excluded(key) => scan::successor(key),
    };
    let high = match &range.upper {
        Unbounded => None,
        Included(key) => Some(scan::successor(key)),
        Excluded(key) => Some(key.clone()),
    };
    LeafRange { low, high }
}

/// Snapshots of all nodes that have keys. Several connections of this node may read them, one request at a
/// time.
#[derive(Debug)]
pub(crate) struct ClusterSnapshot {
    reader: Mutex<Reader>,
    number: u64,
}

impl Cluster {
    /// Opens a snapshot at every node that has keys. Blocks.
    pub(crate) fn snapshot(&self) -> Result<ClusterSnapshot, CommandError> {
        let mut last = no_reply();
        for _ in 0..MOST_TRIES {
            let mut reader = Reader::new(self, LeafRange::all());
            let leg = |target, walk| reader.walk_leg(self, target, walk).map_err(CommandError::from);
            let opened = Legs::inside(self, leg).reach_all(KeyRange::ALL);
            match opened.and_then(|()| reader.check(self)) {
                Ok(()) => {
                    let number = reader.id.map_or(0, |TransactionId(id)| id.number);
                    return Ok(ClusterSnapshot { reader: Mutex::new(reader), number });
                }
                Err(error @ CommandError::Retry(_)) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }
}

impl ClusterSnapshot {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Runs a command that reads. Blocks for the answer, and while another connection reads.
    pub(crate) fn step(
        &self,
        shared: &Shared,
        cluster: &Cluster,
        (spec, request): (&Spec, Request<'_>),
        protocol: Protocol,
    ) -> Result<Reply, StepError> {
        if spec.is_write {
            return Err(CommandError::ReadOnly.into());
        }
        blocking::announce();
        let mut reader = self.reader.lock();
        let keys = command::keys_of(spec, request);
        let Some((first, others)) = sorted(&keys) else {
            let mut is_over = false;
            let leg = |target, walk| {
                reader.walk_leg(cluster, target, walk).map_err(|error| {
                    is_over |= matches!(error, StepError::Over(_));
                    error.into()
                })
            };
            let walked = Legs::inside(cluster, leg).walk(shared, spec, request);
            return walked.map_err(|error| match is_over {
                true => StepError::Over(error),
                false => StepError::Refused(error),
            });
        };
        match reader.ask(cluster, Target::At(first), others, &one(request.iter(), protocol))? {
            (Said::Replied(reply), _) => Ok(Reply::Encoded(reply.0)),
            _ => Err(refusal(Error::Protocol).into()),
        }
    }
}

/// A snapshot that several connections can read.
#[derive(Clone, Debug)]
pub(crate) enum SharedSnapshot {
    /// A snapshot of this server's store, and the time at which it was opened, in milliseconds since 1970.
    Own(azekura::Snapshot, u64),
    /// A snapshot of all nodes of the cluster.
    Cluster(Arc<ClusterSnapshot>),
}
