//! Requests of this node's clients, on their way to the owners of their keys.
//!
//! | keys of a request | how it is done |
//! |---|---|
//! | one | one transaction at its owner |
//! | several, at one node | one transaction there, all their leaves locked |
//! | several, at several nodes | `MGET`, `EXISTS`, `TOUCH`, `DEL`, `UNLINK`: key by key, so not at one moment; others: `CROSSNODE` |
//! | all of a range | leaf by leaf (`scan`) |
//!
//! Requests that a client has sent without waiting go together as far as they may (`flight`).
//!
//! The thread of the connection blocks until the answer is there, within the node's request timeout; its
//! reactor goes on with another (`reactor`).

use std::rc::Rc;
use std::sync::Arc;

use azekura_base::blocking;
use azekura_fatbtree::tcp::Here;
use azekura_fatbtree::{Answer, Error, Fact, Key, Target, Task, Work};

use super::Cluster;
use super::flight::Errand;
use super::scan::Legs;
use super::watched::Watched;
use super::wire::{self, Bytes, Call, Replies};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::resp::{OwnedRequest, Protocol, Reply, Request};
use crate::server::Shared;

/// Keys of one request that are under way at once when each goes its own way.
const KEYS_AT_ONCE: usize = 64;

impl Cluster {
    /// Runs a command that has no keys but ranges of them, or is refused.
    pub(crate) fn run(
        &self,
        shared: &Arc<Shared>,
        spec: &'static Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        Legs::alone(self).walk(shared, spec, request)
    }

    /// Runs what `MULTI` has queued, as one transaction at the node that has all keys, the watched ones too.
    /// `None`: one of those has changed.
    pub(crate) fn run_queue<'a>(
        &self,
        queue: impl Iterator<Item = &'a (&'static Spec, OwnedRequest)>,
        watched: Watched,
        protocol: Protocol,
    ) -> Result<Option<Vec<Reply>>, CommandError> {
        let (mut keys, mut commands, mut is_write) = (Vec::new(), Vec::new(), false);
        let watched_keys: Vec<_> = watched.iter().map(|(key, _)| key.0.clone()).collect();
        for (spec, request) in queue {
            let own = command::keys_of(spec, request.as_request());
            if own.is_empty() {
                let why = "it walks over all nodes, and a transaction takes place at one";
                return Err(CommandError::NotInCluster(
                    format!("{} in MULTI", spec.name.to_ascii_uppercase()),
                    why,
                ));
            }
            keys.extend(own);
            commands.push(wire::arguments(request.as_request().iter()));
            is_write |= spec.is_write;
        }
        keys.extend(watched_keys.iter().map(Vec::as_slice));
        if keys.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let call =
            Call::Commands { is_resp3: protocol == Protocol::Resp3, is_queue: true, commands, watched };
        let (target, work) = transaction(&keys, is_write, &call)?;
        let (answer, _) = self.ask(target, work)?;
        replies(&answer)
    }

    /// Has work done at the leaf of `target`; what the application there says, and which leaf it was.
    pub(super) fn ask(&self, target: Target, work: Work) -> Result<(Vec<u8>, Option<Fact>), CommandError> {
        match self.call(target, work)? {
            (Answer::Ran(answer), fact) => Ok((answer, fact)),
            _ => Err(refusal(Error::Protocol)),
        }
    }

    pub(super) fn call(&self, target: Target, work: Work) -> Result<(Answer, Option<Fact>), CommandError> {
        self.at_node(move |here| Box::pin(async move { here.node.call(target, work).await }))?
            .map_err(refusal)
    }

    /// Runs something on the node's thread. Blocks this one.
    pub(super) fn at_node<T: Send + 'static>(
        &self,
        job: impl FnOnce(Rc<Here>) -> Task<'static, T> + Send + 'static,
    ) -> Result<T, CommandError> {
        blocking::announce();
        self.node.ask(job).map_err(refusal)
    }
}

/// Has a request done at the owner of its keys, on the node's thread.
pub(super) async fn perform(
    here: &Rc<Here>,
    errand: &Errand,
    protocol: Protocol,
    max_reply_bytes: usize,
) -> Result<Reply, CommandError> {
    let (spec, keys) = (errand.spec, errand.keys());
    let (target, work) =
        transaction(&keys, spec.is_write, &one(errand.request.as_request().iter(), protocol))?;
    let done = match here.node.call(target, work).await {
        Ok((Answer::Ran(answer), _)) => replies(&answer),
        Ok(_) => Err(refusal(Error::Protocol)),
        Err(error) => Err(refusal(error)),
    };
    match done {
        Ok(replies) => replies.and_then(|mut replies| replies.pop()).ok_or_else(no_reply),
        Err(CommandError::CrossNode) => each_key(here, spec, &keys, protocol, max_reply_bytes).await,
        Err(error) => Err(error),
    }
}

/// A command by itself.
pub(super) fn one<'a>(arguments: impl Iterator<Item = &'a [u8]>, protocol: Protocol) -> Call {
    Call::Commands {
        is_resp3: protocol == Protocol::Resp3,
        is_queue: false,
        commands: vec![wire::arguments(arguments)],
        watched: Vec::new(),
    }
}

/// Commands as one transaction at the node that has their keys: where, and what.
fn transaction(keys: &[&[u8]], is_write: bool, call: &Call) -> Result<(Target, Work), CommandError> {
    let (first, others) = sorted(keys).ok_or_else(no_reply)?;
    Ok((Target::At(first), Work::Run { is_write, others, bytes: wire::encode(call) }))
}

/// The first of some keys, and the others in order.
pub(super) fn sorted(keys: &[&[u8]]) -> Option<(Key, Vec<Key>)> {
    let mut keys: Vec<Key> = keys.iter().map(|key| key.to_vec()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut others = keys.into_iter();
    Some((others.next()?, others.collect()))
}

/// Runs a command for each of its keys by itself, some of them at once, and puts the replies together.
async fn each_key(
    here: &Rc<Here>,
    spec: &Spec,
    keys: &[&[u8]],
    protocol: Protocol,
    max_reply_bytes: usize,
) -> Result<Reply, CommandError> {
    let (single, is_sum) = match spec.name {
        "mget" => (&b"GET"[..], false),
        "exists" | "touch" | "del" | "unlink" => (spec.name.as_bytes(), true),
        _ => return Err(CommandError::CrossNode),
    };
    let (mut found, mut bytes, mut sum) = (Vec::new(), 0, 0);
    for some in keys.chunks(KEYS_AT_ONCE) {
        let calls = some.iter().map(|key| {
            let call = one([single, *key].into_iter(), protocol);
            let (target, work) = transaction(&[*key], spec.is_write, &call)?;
            Ok(here.beside(|here| Box::pin(async move { here.node.call(target, work).await })))
        });
        for call in calls.collect::<Result<Vec<_>, CommandError>>()? {
            let answer = match call.await {
                Some(Ok((Answer::Ran(answer), _))) => answer,
                Some(Ok(_)) => return Err(refusal(Error::Protocol)),
                Some(Err(error)) => return Err(refusal(error)),
                None => return Err(refusal(Error::Interrupted)),
            };
            let reply = replies(&answer)?.and_then(|mut replies| replies.pop());
            let Some(Reply::Encoded(reply)) = reply else { return Err(no_reply()) };
            if reply.first() == Some(&b'-') {
                return Ok(Reply::Encoded(reply));
            }
            if is_sum {
                sum += integer_in(&reply)?;
                continue;
            }
            bytes += reply.len();
            if bytes > max_reply_bytes {
                return Err(CommandError::ReplyTooLong(max_reply_bytes));
            }
            found.push(Reply::Encoded(reply));
        }
    }
    Ok(if is_sum { Reply::Integer(sum) } else { Reply::Array(found) })
}

/// What a client is told when a node could not do it (DOOR-3).
pub(super) fn refusal(error: Error) -> CommandError {
    match error {
        Error::Elsewhere => CommandError::CrossNode,
        Error::Unknown { .. } | Error::Interrupted => CommandError::Unknown(error.to_string()),
        Error::Ended { reason } => CommandError::Retry(reason),
        Error::Unavailable { .. } | Error::Unreachable { .. } | Error::Stopped | Error::Protocol => {
            CommandError::Unavailable(error.to_string())
        }
        Error::TooLong { .. } | Error::NotMoved { .. } => CommandError::Protocol(error.to_string()),
        _ => CommandError::Storage(error.to_string()),
    }
}

pub(super) fn no_reply() -> CommandError {
    CommandError::Unavailable("the owner answered less than it was asked".into())
}

fn replies(answer: &[u8]) -> Result<Option<Vec<Reply>>, CommandError> {
    let replies: Option<Replies> = wire::decode(answer)?;
    Ok(replies.map(|replies| replies.into_iter().map(|Bytes(bytes)| Reply::Encoded(bytes)).collect()))
}

fn integer_in(reply: &[u8]) -> Result<i64, CommandError> {
    let digits = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.ok_or_else(no_reply)
}
