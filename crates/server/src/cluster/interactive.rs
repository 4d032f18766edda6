//! Interactive transactions (`AZ.BEGIN`) in a cluster: each runs at one node, its coordinator, which owns
//! the first key that the transaction uses.
//!
//! Each request is a step at the coordinator, under the leaf locks of its keys; a scan is one step per leaf.
//! A key of another node is refused with `CROSSNODE`, and the transaction stays open. If the key's leaf was
//! moved to the other node after the transaction had used it, the transaction has ended: `RETRY`. The module
//! `node::open` of `azekura_fatbtree` describes lock waits and the end of a transaction at the coordinator.
//! The gateway keeps only the transaction's id. So after a crash of the gateway the coordinator rolls the
//! transaction back at its timeout.
//!
//! `AZ.BEGIN RO` reads a snapshot of its coordinator instead of locking, so it waits for no transaction.

use azekura::{CommitTicket, Durability, ErrorKind, Snapshot, Transaction};
use azekura_fatbtree::tcp::{NodeHandle, Tools};
use azekura_fatbtree::{
    Answer, Asked, Error, Growth, Key, OpenTransaction, PeId, Ran, RouteEntry, RunError, Stepped, Target,
    Task, TransactionId, Work,
};
use serde::{Deserialize, Serialize};

use super::Cluster;
use super::gateway::{no_reply, one, refusal, sorted};
use super::owner::{self, Parsed};
use super::scan::{self, Legs};
use super::wire::{self, Bytes, Call, Step as WalkStep, Walk, With};
use crate::command::{self, Spec};
use crate::engine::run_inside;
use crate::error::{CommandError, Failure};
use crate::keyspace::{self, KeyCounts, Keyspace};
use crate::resp::{Protocol, Reply, Request};
use crate::server::Shared;

/// Result of a step, sent by the coordinator to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// The reply, which may be a refusal. The transaction continues.
    Replied(Bytes),
    /// Rolled back after a conflict such as a deadlock, with the reason; the client can begin again.
    Retry(String),
    /// Rolled back because the store accepts no changes now, with the reason.
    Unavailable(String),
    /// Rolled back after an error of the store.
    Storage(String),
    /// The result of a step of a walk. The transaction continues.
    Walked(WalkStep),
}

/// Reason that a step was not executed.
#[derive(Debug)]
pub(crate) enum StepError {
    /// The transaction continues unchanged.
    Refused(CommandError),
    /// The transaction was rolled back.
    Over(CommandError),
}

impl From<StepError> for CommandError {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Refused(error) | StepError::Over(error) => error,
        }
    }
}

impl From<CommandError> for StepError {
    fn from(error: CommandError) -> Self {
        Self::Refused(error)
    }
}

/// A transaction of a client of this node. Dropping it rolls it back.
#[derive(Debug)]
pub(crate) struct Interactive {
    node: NodeHandle,
    is_read_only: bool,
    /// Transaction id; `None` before the first step.
    id: Option<TransactionId>,
    /// The coordinating node, and the first key of the transaction.
    coordinator: Option<(PeId, Key)>,
}

impl Cluster {
    /// Begins a transaction that will run at the owner of its first key.
    pub(crate) fn begin(&self, is_read_only: bool) -> Interactive {
        Interactive { node: self.node.clone(), is_read_only, id: None, coordinator: None }
    }
}

impl Interactive {
    /// Runs a command in the transaction. Blocks.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        cluster: &Cluster,
        (spec, request): (&Spec, Request<'_>),
        protocol: Protocol,
    ) -> Result<Reply, StepError> {
        if self.is_read_only && spec.is_write {
            return Err(CommandError::ReadOnly.into());
        }
        let keys = command::keys_of(spec, request);
        if keys.is_empty() {
            return self.walk(shared, cluster, spec, request);
        }
        let (first, others) = sorted(&keys).ok_or_else(no_reply)?;
        let call = one(request.iter(), protocol);
        let (said, _) = self.ask(cluster, Target::At(first), others, &call)?;
        match said {
            Said::Replied(reply) => Ok(Reply::Encoded(reply.0)),
            _ => Err(self.over(refusal(Error::Protocol))),
        }
    }

    /// Runs a command on ranges of keys, if all of the range is at the coordinator. Blocks.
    fn walk(
        &mut self,
        shared: &Shared,
        cluster: &Cluster,
        spec: &Spec,
        request: Request<'_>,
    ) -> Result<Reply, StepError> {
        let (mut is_over, mut has_removed) = (false, false);
        let leg = |target, walk: Walk| {
            let removes = walk.with == With::Remove;
            match self.ask(cluster, target, Vec::new(), &Call::Walk(walk)) {
                Ok((Said::Walked(step), route_entry)) => {
                    has_removed |= removes;
                    Ok((step, route_entry.ok_or_else(scan::no_leaf)?.range))
                }
                Ok(_) => Err(refusal(Error::Protocol)),
                Err(StepError::Refused(CommandError::CrossNode)) => Err(CommandError::WalkCrossesNodes),
                Err(StepError::Refused(error)) => Err(error),
                Err(StepError::Over(error)) => {
                    is_over = true;
                    Err(error)
                }
            }
        };
        let done = Legs::inside(cluster, leg).walk(shared, spec, request);
        done.map_err(|error| match error {
            error if is_over => StepError::Over(error),
            // After a refusal the transaction is unchanged, or has not begun.
            error if has_removed => self.over(CommandError::Retry(error.to_string())),
            error => StepError::Refused(error),
        })
    }

    /// Runs a step at the leaf of `target`.
    fn ask(
        &mut self,
        cluster: &Cluster,
        target: Target,
        others: Vec<Key>,
        call: &Call,
    ) -> Result<(Said, Option<RouteEntry>), StepError> {
        let bytes = wire::encode(call);
        let (coordinator, is_write) = (self.coordinator.as_ref().map(|(pe, _)| *pe), !self.is_read_only);
        let first = match &target {
            Target::At(key) => Some(key.clone()),
            Target::Before(_) => None,
        };
        let work = move |id| Work::Step { id, coordinator, is_write, others, bytes };
        let (id, done) = cluster.step_of(self.id, target, work)?;
        self.id = Some(id);
        match done {
            Ok((Answer::Ran(said), route_entry)) => {
                self.note_coordinator(route_entry.as_ref(), first);
                Ok((self.hear(&said)?, route_entry))
            }
            Ok(_) => Err(self.over(refusal(Error::Protocol))),
            Err(Error::Elsewhere) => Err(self.elsewhere(cluster)),
            // The step was not executed, so the client can repeat it.
            Err(error @ (Error::TooLong { .. } | Error::Unavailable { .. } | Error::Unreachable { .. })) => {
                Err(refusal(error).into())
            }
            // The step leaves no effect, because no commit was requested.
            Err(Error::Unknown { reason }) => Err(self.over(CommandError::Retry(reason))),
            Err(error) => Err(self.over(refusal(error))),
        }
    }

    /// Returns the result for keys that are not at the coordinator. Either the transaction has never used
    /// their leaf, or the leaf has moved and the transaction has ended. Blocks.
    fn elsewhere(&mut self, cluster: &Cluster) -> StepError {
        let (Some(id), Some((coordinator, first))) = (self.id, self.coordinator.clone()) else {
            return StepError::Refused(CommandError::CrossNode);
        };
        let checked = cluster
            .at_node(move |here| Box::pin(async move { here.node.goes_on(id, coordinator, first).await }));
        match checked {
            Ok(Ok(())) => StepError::Refused(CommandError::CrossNode),
            Ok(Err(error @ Error::Ended { .. })) => self.over(refusal(error)),
            Ok(Err(error)) => StepError::Refused(refusal(error)),
            Err(error) => StepError::Refused(error),
        }
    }

    /// Records the coordinator. `first` is the requested key; without it the first key of the leaf is used,
    /// which leads to the same leaf.
    fn note_coordinator(&mut self, route_entry: Option<&RouteEntry>, first: Option<Key>) {
        if let (None, Some(route_entry)) = (&self.coordinator, route_entry) {
            self.coordinator = Some((route_entry.pe, first.unwrap_or_else(|| route_entry.range.low.clone())));
        }
    }

    fn hear(&mut self, said: &[u8]) -> Result<Said, StepError> {
        let error = match wire::decode(said) {
            Ok(said @ (Said::Replied(_) | Said::Walked(_))) => return Ok(said),
            Ok(Said::Retry(why)) => CommandError::Retry(why),
            Ok(Said::Unavailable(why)) => CommandError::Unavailable(why),
            Ok(Said::Storage(why)) => CommandError::Storage(why),
            Err(error) => return Err(self.over(error)),
        };
        self.coordinator = None; // the coordinator has already rolled back
        Err(StepError::Over(error))
    }

    fn over(&mut self, error: CommandError) -> StepError {
        self.leave();
        StepError::Over(error)
    }

    /// Commits the transaction; returns when the commit is durable. Blocks. After an error, the transaction
    /// may still be open: its rollback is requested.
    pub(crate) fn commit(mut self, cluster: &Cluster) -> Result<(), CommandError> {
        let coordinator = self.coordinator.clone();
        let Some((target, work)) = self.end(true) else { return Ok(()) };
        let committed = cluster.call(target, work);
        // Dropping the transaction requests the rollback, which does nothing after a commit.
        self.coordinator = coordinator.filter(|_| committed.is_err());
        committed.map(drop)
    }

    /// Rolls the transaction back. Blocks until the rollback is done. If the rollback cannot be requested,
    /// the coordinator rolls back after the timeout.
    pub(crate) fn abort(mut self, cluster: &Cluster) {
        if let Some((target, work)) = self.end(false) {
            let _ = cluster.call(target, work);
        }
    }

    fn end(&mut self, is_commit: bool) -> Option<(Target, Work)> {
        let (id, (coordinator, first)) = (self.id?, self.coordinator.take()?);
        Some((Target::At(first), Work::End { id, coordinator, is_commit }))
    }

    /// Requests the rollback without waiting for it.
    fn leave(&mut self) {
        if let Some((target, work)) = self.end(false) {
            self.node.tell(move |here| Box::pin(async move { drop(here.node.call(target, work).await) }));
        }
    }
}

impl Drop for Interactive {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A transaction at its coordinator node.
pub(super) struct CoordinatorTransaction {
    shared: std::sync::Arc<Shared>,
    tools: Tools,
    /// The transaction of the store with the records that it has added; `None` before the first step.
    tx: Option<(Transaction, KeyCounts)>,
    /// Time at which the transaction began (KEY-2), in milliseconds since 1970.
    now_ms: u64,
}

impl CoordinatorTransaction {
    pub(super) fn new(shared: std::sync::Arc<Shared>, tools: Tools) -> Self {
        let now_ms = shared.engine.clock.now_ms();
        Self { shared, tools, tx: None, now_ms }
    }
}

impl OpenTransaction for CoordinatorTransaction {
    fn has_waiters(&self) -> bool {
        self.tx.as_ref().is_some_and(|(tx, _)| tx.has_waiters())
    }

    fn step(&mut self, asked: Asked) -> Task<'_, Stepped> {
        let (shared, tx, now_ms) = (std::sync::Arc::clone(&self.shared), self.tx.take(), self.now_ms);
        Box::pin(async move {
            let ran = self.tools.run_apart(move || step(&shared, tx, now_ms, &asked)).await;
            let Some(Left { tx, said, rows, more_bytes }) = ran else {
                let ran = Err(RunError::Refused("the command ended by a panic".to_owned()));
                return Stepped { ran, is_over: true };
            };
            self.tx = tx;
            let ran = Ran { bytes: wire::encode(&said), rows, more_bytes, durable: None };
            Stepped { ran: Ok(ran), is_over: self.tx.is_none() }
        })
    }

    fn commit(self: Box<Self>) -> Task<'static, Result<Ran, RunError>> {
        Box::pin(async move {
            let Self { shared, tools, tx, .. } = *self;
            let Some((tx, added)) = tx else { return Ok(Ran::default()) };
            let commit = move || keyspace::add_to_count(&tx, added).and_then(|()| tx.commit_deferred_flush());
            let committed = tools.run_apart(commit).await;
            let ticket =
                committed.ok_or_else(|| RunError::Failed("the commit ended by a panic".to_owned()))?;
            let ticket: CommitTicket = ticket.map_err(|error| match error.kind() {
                ErrorKind::Closed | ErrorKind::Io => RunError::Failed(error.to_string()),
                _ => RunError::Refused(error.to_string()),
            })?;
            let is_waited_for = shared.engine.durability == Durability::Immediate;
            let durable = is_waited_for.then(|| tools.committer.lasting(ticket));
            Ok(Ran { durable, ..Ran::default() })
        })
    }

    fn abort(self: Box<Self>) -> Task<'static, ()> {
        Box::pin(async move {
            let Self { tools, tx, .. } = *self;
            // Dropping the transaction rolls it back.
            let _ = tools.run_apart(move || drop(tx)).await;
        })
    }
}

/// A reader at one node, with a snapshot from the first step on. For a reader of several nodes, the reply to
/// each step waits until everything that the snapshot has read is durable. For a reader of one node, the
/// commit waits.
pub(super) struct NodeSnapshot {
    shared: std::sync::Arc<Shared>,
    tools: Tools,
    snapshot: Option<Snapshot>,
    /// Time at which the reader was opened, in milliseconds since 1970.
    now_ms: u64,
}

impl NodeSnapshot {
    pub(super) fn new(shared: std::sync::Arc<Shared>, tools: Tools) -> Self {
        let now_ms = shared.engine.clock.now_ms();
        Self { shared, tools, snapshot: None, now_ms }
    }

    /// Returns a task that ends when everything visible in the snapshot is durable; `None` if there is
    /// nothing to wait for.
    fn durable(&self) -> Option<Task<'static, Result<(), String>>> {
        let is_waited_for = self.shared.engine.durability == Durability::Immediate;
        let ticket = self.snapshot.as_ref().filter(|_| is_waited_for)?.durable_ticket();
        let committer = self.tools.committer.clone();
        (!ticket.is_durable().is_ok_and(|is| is))
            .then(|| -> Task<'static, _> { Box::pin(async move { committer.lasting(ticket).await }) })
    }
}

impl OpenTransaction for NodeSnapshot {
    fn step(&mut self, asked: Asked) -> Task<'_, Stepped> {
        let (shared, snapshot, now_ms) =
            (std::sync::Arc::clone(&self.shared), self.snapshot.take(), self.now_ms);
        Box::pin(async move {
            let ran = self.tools.run(move || read_step(&shared, snapshot, now_ms, &asked)).await;
            let Some((snapshot, said)) = ran else {
                let ran = Err(RunError::Refused("the command ended by a panic".to_owned()));
                return Stepped { ran, is_over: true };
            };
            self.snapshot = snapshot;
            let is_over = self.snapshot.is_none();
            let ran = Ran { bytes: wire::encode(&said), durable: self.durable(), ..Ran::default() };
            Stepped { ran: Ok(ran), is_over }
        })
    }

    fn commit(self: Box<Self>) -> Task<'static, Result<Ran, RunError>> {
        let durable = self.durable();
        Box::pin(std::future::ready(Ok(Ran { durable, ..Ran::default() })))
    }

    fn abort(self: Box<Self>) -> Task<'static, ()> {
        drop(self);
        Box::pin(std::future::ready(()))
    }
}

/// Runs a step of a reader. Returns no snapshot if the snapshot cannot be read any more.
fn read_step(
    shared: &Shared,
    snapshot: Option<Snapshot>,
    now_ms: u64,
    asked: &Asked,
) -> (Option<Snapshot>, Said) {
    let todo = match parse(asked) {
        Ok(todo) => todo,
        Err(error) => return (None, Said::Storage(error.to_string())),
    };
    let opened = snapshot.map_or_else(|| shared.engine.db.snapshot().map_err(Failure::from), Ok);
    let done = opened.and_then(|snapshot| {
        let keys = Keyspace::of_snapshot(&snapshot, now_ms, &shared.engine.context)?;
        let (said, _) = run(&keys, &todo, asked)?;
        drop(keys);
        Ok((snapshot, said))
    });
    match done {
        Ok((snapshot, said)) => (Some(snapshot), said),
        Err(failure) => (None, over(failure)),
    }
}

/// Result of a step of a transaction.
struct Left {
    /// The transaction with the records that it has added; `None` if it has ended.
    tx: Option<(Transaction, KeyCounts)>,
    said: Said,
    /// Estimated growth of the leaf, in rows.
    rows: isize,
    more_bytes: usize,
}

fn step(shared: &Shared, tx: Option<(Transaction, KeyCounts)>, now_ms: u64, asked: &Asked) -> Left {
    let todo = match parse(asked) {
        Ok(todo) => todo,
        Err(error) => {
            return Left { tx: None, said: Said::Storage(error.to_string()), rows: 0, more_bytes: 0 };
        }
    };
    let begin = || {
        let tx = shared.engine.db.begin()?;
        tx.detach_from_thread()?; // any thread may run the next command
        Ok::<_, Failure>((tx, KeyCounts::default()))
    };
    let begun = tx.map_or_else(begin, Ok);
    let done = begun.and_then(|(tx, added)| {
        let keys = shared.engine.keyspace(&tx, now_ms, !asked.is_write)?;
        let keys = keys.continued(added, shared.engine.clock.now_ms());
        // After an error, dropping `tx` rolls the transaction back, unless a deadlock has done so.
        let done = run(&keys, &todo, asked)?;
        let added = keys.added();
        drop(keys);
        Ok(((tx, added), done))
    });
    match done {
        Ok((tx, (said, Growth { rows, bytes }))) => {
            let rows = isize::try_from(rows).unwrap_or(isize::MAX);
            Left { tx: Some(tx), said, rows, more_bytes: bytes }
        }
        Err(failure) => Left { tx: None, said: over(failure), rows: 0, more_bytes: 0 },
    }
}

/// Decoded work of a step.
enum Todo {
    Command(Protocol, Parsed),
    Walk(Walk),
}

/// Runs the work. Returns the answer and the growth of the leaf. An error of the store ends
/// the transaction.
fn run(keys: &Keyspace<'_>, todo: &Todo, asked: &Asked) -> Result<(Said, Growth), Failure> {
    match todo {
        Todo::Command(protocol, (spec, request)) => {
            let before = keys.added().records;
            let reply = match run_inside(keys, spec.run, request.as_request()) {
                Ok(reply) => reply,
                Err(Failure::Command(error)) => Reply::Error(error),
                Err(error) => return Err(error),
            };
            let mut bytes = Vec::new();
            reply.encode(*protocol, &mut bytes);
            let growth = Growth { rows: keys.added().records - before, bytes: keys.written_bytes() };
            Ok((Said::Replied(Bytes(bytes)), growth))
        }
        Todo::Walk(walk) => {
            let step = owner::walk_in(keys, walk, asked)?;
            let removed = if walk.with == With::Remove { step.count } else { 0 };
            let rows = -i64::try_from(removed).unwrap_or(i64::MAX);
            Ok((Said::Walked(step), Growth { rows, bytes: 0 }))
        }
    }
}

fn over(failure: Failure) -> Said {
    let kind = match &failure {
        // The client can begin again, as after a conflict.
        Failure::Store(azekura::Error::SnapshotTooOld { .. }) => Some(ErrorKind::Conflict),
        Failure::Store(error) => Some(error.kind()),
        Failure::Command(_) => None,
    };
    let text = match failure {
        Failure::Store(error) => error.to_string(),
        Failure::Command(error) => error.to_string(),
    };
    match kind {
        Some(ErrorKind::Conflict) => Said::Retry(text),
        Some(ErrorKind::Busy | ErrorKind::Closed) => Said::Unavailable(text),
        _ => Said::Storage(text),
    }
}

fn parse(asked: &Asked) -> Result<Todo, CommandError> {
    match wire::decode(&asked.bytes)? {
        Call::Commands { is_resp3, commands, .. } => {
            let parsed = owner::parse(&commands, asked)?.pop().ok_or(CommandError::Syntax)?;
            Ok(Todo::Command(wire::protocol(is_resp3), parsed))
        }
        Call::Walk(walk) if walk.with == With::Remove && !asked.is_write => Err(CommandError::ReadOnly),
        Call::Walk(walk) => Ok(Todo::Walk(walk)),
        Call::Look | Call::CursorPrefix(_) | Call::Watching { .. } => Err(CommandError::Syntax),
    }
}
