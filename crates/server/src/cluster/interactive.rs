//! Interactive transactions (`AZ.BEGIN`) in a cluster: each takes place at one node, its home, which owns the first key that it asks for.
//!
//! Each request is a step of it there, under the leaf locks of its keys. A key of another node is refused with `CROSSNODE`, and the transaction goes on.
//! How it waits and ends at home: `azekura_fatbtree`'s `node::open`. Nothing of it is kept here but its name, so a door that dies leaves a transaction
//! that ends when its time is over.

use azekura::{CommitTicket, Durability, ErrorKind, Transaction};
use azekura_fatbtree::tcp::{NodeHandle, Tools};
use azekura_fatbtree::{
    Answer, Asked, Error, Fact, Key, OpenTransaction, PeId, Ran, RunError, Stepped, Target, Task,
    TransactionId, Work,
};
use serde::{Deserialize, Serialize};

use super::Cluster;
use super::gateway::{no_reply, one, refusal, sorted};
use super::owner::{self, Parsed};
use super::wire::{self, Bytes, Call};
use crate::command::{self, Spec};
use crate::engine::run_inside;
use crate::error::{CommandError, Failure};
use crate::resp::{Protocol, Reply, Request};
use crate::server::Shared;

/// What came of a step, from the home to the door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Said {
    /// The reply, which may be a refusal; the transaction goes on.
    Replied(Bytes),
    /// It was rolled back and can be begun again, as after a deadlock; and why.
    Retry(String),
    /// It was rolled back, since the store takes nothing now; and why.
    Unavailable(String),
    /// It was rolled back after an error of the store.
    Storage(String),
}

/// Why a step was not done.
#[derive(Debug)]
pub(crate) enum StepError {
    /// The transaction goes on, as it was before.
    Refused(CommandError),
    /// It was rolled back.
    Over(CommandError),
}

impl From<CommandError> for StepError {
    fn from(error: CommandError) -> Self {
        Self::Refused(error)
    }
}

/// A transaction of a client of this node. Dropped, it is rolled back.
#[derive(Debug)]
pub(crate) struct Interactive {
    node: NodeHandle,
    is_read_only: bool,
    /// Its name, once it has one.
    id: Option<TransactionId>,
    /// Where it takes place, and the key that it began with.
    home: Option<(PeId, Key)>,
}

impl Cluster {
    /// A transaction that will take place at the owner of the first key that it asks for.
    pub(crate) fn begin(&self, is_read_only: bool) -> Interactive {
        Interactive { node: self.node.clone(), is_read_only, id: None, home: None }
    }
}

impl Interactive {
    /// Runs a command in it. Blocks.
    pub(crate) fn step(
        &mut self,
        cluster: &Cluster,
        spec: &Spec,
        request: Request<'_>,
        protocol: Protocol,
    ) -> Result<Reply, StepError> {
        let keys = command::keys_of(spec, request);
        if keys.is_empty() {
            let why = "it walks over all nodes, and a transaction takes place at one";
            let what = format!("{} in an interactive transaction", spec.name.to_ascii_uppercase());
            return Err(CommandError::NotInCluster(what, why).into());
        }
        if self.is_read_only && spec.is_write {
            return Err(CommandError::ReadOnly.into());
        }
        let (first, others) = sorted(&keys).ok_or_else(no_reply)?;
        let bytes = wire::encode(&one(request.iter(), protocol));
        let (id, home, is_write) = (self.id, self.home.as_ref().map(|(pe, _)| *pe), !self.is_read_only);
        let target = Target::At(first.clone());
        let (id, done) = cluster.at_node(move |here| {
            Box::pin(async move {
                let id = id.unwrap_or_else(|| here.node.new_transaction());
                let work = Work::Step { id, home, is_write, others, bytes };
                (id, here.node.call(target, work).await)
            })
        })?;
        self.id = Some(id);
        match done {
            Ok((Answer::Ran(said), fact)) => {
                self.note_home(fact, first);
                self.hear(&said)
            }
            Ok(_) => Err(self.over(refusal(Error::Protocol))),
            // What was not done yet can still be done.
            Err(error @ (Error::Elsewhere | Error::TooLong { .. } | Error::Unavailable { .. })) => {
                Err(refusal(error).into())
            }
            // Nothing of it will be there: it was not asked to commit.
            Err(error @ Error::Unknown { .. }) => Err(self.over(CommandError::Retry(error.to_string()))),
            Err(error) => Err(self.over(refusal(error))),
        }
    }

    fn note_home(&mut self, fact: Option<Fact>, first: Key) {
        if let (None, Some(fact)) = (&self.home, fact) {
            self.home = Some((fact.pe, first));
        }
    }

    fn hear(&mut self, said: &[u8]) -> Result<Reply, StepError> {
        let error = match wire::decode(said) {
            Ok(Said::Replied(reply)) => return Ok(Reply::Encoded(reply.0)),
            Ok(Said::Retry(why)) => CommandError::Retry(why),
            Ok(Said::Unavailable(why)) => CommandError::Unavailable(why),
            Ok(Said::Storage(why)) => CommandError::Storage(why),
            Err(error) => return Err(self.over(error)),
        };
        self.home = None; // nothing is left to be rolled back
        Err(StepError::Over(error))
    }

    fn over(&mut self, error: CommandError) -> StepError {
        self.leave();
        StepError::Over(error)
    }

    /// Commits it; returns when that is durable. Blocks.
    pub(crate) fn commit(mut self, cluster: &Cluster) -> Result<(), CommandError> {
        let Some((target, work)) = self.end(true) else { return Ok(()) };
        match cluster.call(target, work) {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Rolls it back. Blocks, until that is done or cannot be done by us: then its home does it when its time is over.
    pub(crate) fn abort(mut self, cluster: &Cluster) {
        if let Some((target, work)) = self.end(false) {
            let _ = cluster.call(target, work);
        }
    }

    fn end(&mut self, is_commit: bool) -> Option<(Target, Work)> {
        let (id, (home, first)) = (self.id?, self.home.take()?);
        Some((Target::At(first), Work::End { id, home, is_commit }))
    }

    /// Has it rolled back, without waiting for that.
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

/// A transaction at its home.
pub(super) struct AtHome {
    shared: std::sync::Arc<Shared>,
    tools: Tools,
    /// From the first step on.
    tx: Option<Transaction>,
    /// The time in it.
    now_ms: u64,
}

impl AtHome {
    pub(super) fn new(shared: std::sync::Arc<Shared>, tools: Tools) -> Self {
        let now_ms = shared.engine.clock.now_ms();
        Self { shared, tools, tx: None, now_ms }
    }
}

impl OpenTransaction for AtHome {
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
            let Some(tx) = tx else { return Ok(Ran::default()) };
            let committed = tools.run_apart(move || tx.commit_batched()).await;
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
            // Dropped, it is rolled back.
            let _ = tools.run_apart(move || drop(tx)).await;
        })
    }
}

/// What a step left.
struct Left {
    /// Nothing if it is over.
    tx: Option<Transaction>,
    said: Said,
    /// What its leaf has more now, about.
    rows: isize,
    more_bytes: usize,
}

fn step(shared: &Shared, tx: Option<Transaction>, now_ms: u64, asked: &Asked) -> Left {
    let parsed = match parse(asked) {
        Ok(parsed) => parsed,
        Err(error) => {
            return Left { tx: None, said: Said::Storage(error.to_string()), rows: 0, more_bytes: 0 };
        }
    };
    let (protocol, (spec, request)) = parsed;
    let begun = tx.map_or_else(|| shared.engine.db.begin().map_err(Failure::from), Ok);
    let done = begun.and_then(|tx| {
        let done = shared
            .engine
            .keyspace(&tx, now_ms, !asked.is_write)
            .and_then(|keys| run_inside(&keys, spec.run, request.as_request()));
        match done {
            Ok(reply) => Ok((tx, reply)),
            Err(Failure::Command(error)) => Ok((tx, Reply::Error(error))),
            // Dropping it rolls back what a deadlock has not rolled back already.
            Err(error) => Err(error),
        }
    });
    let (tx, said) = match done {
        Ok((tx, reply)) => {
            let mut bytes = Vec::new();
            reply.encode(protocol, &mut bytes);
            (Some(tx), Said::Replied(Bytes(bytes)))
        }
        Err(failure) => (None, over(failure)),
    };
    let rows = owner::more_rows(spec);
    let more_bytes = if rows > 0 { asked.bytes.len() } else { 0 };
    Left { tx, said, rows, more_bytes }
}

fn over(failure: Failure) -> Said {
    let kind = match &failure {
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

fn parse(asked: &Asked) -> Result<(Protocol, Parsed), CommandError> {
    match wire::decode(&asked.bytes)? {
        Call::Commands { is_resp3, commands, .. } => {
            let parsed = owner::parse(&commands, asked)?.pop().ok_or(CommandError::Syntax)?;
            Ok((wire::protocol(is_resp3), parsed))
        }
        Call::Look | Call::Walk(_) => Err(CommandError::Syntax),
    }
}
