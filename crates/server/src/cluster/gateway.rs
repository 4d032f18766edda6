//! Requests of this node's clients, on their way to the owners of their keys.
//!
//! | keys of a request | how it is done |
//! |---|---|
//! | one | one transaction at its owner |
//! | several, at one node | one transaction there, all their leaves locked |
//! | several, at several nodes | `MGET`, `EXISTS`, `TOUCH`, `DEL`, `UNLINK`: key by key, so not at one moment; others: `CROSSNODE` |
//! | all of a range | leaf by leaf (`scan`) |
//!
//! The thread of the connection blocks until the answer is there, within the node's request timeout; its reactor goes on with another (`reactor`).

use std::rc::Rc;
use std::sync::Arc;

use azekura_base::blocking;
use azekura_fatbtree::tcp::Here;
use azekura_fatbtree::{Answer, Error, Fact, Key, Target, Task, Work};

use super::Cluster;
use super::wire::{self, Bytes, Call, Replies};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::resp::{OwnedRequest, Protocol, Reply, Request};
use crate::server::Shared;

/// Keys of one request that are under way at once when each goes its own way.
const KEYS_AT_ONCE: usize = 64;

impl Cluster {
    /// Runs a command on keys.
    pub(crate) fn run(
        &self,
        shared: &Arc<Shared>,
        spec: &'static Spec,
        request: Request<'_>,
        protocol: Protocol,
    ) -> Result<Reply, CommandError> {
        let keys = command::keys_of(spec, request);
        if keys.is_empty() {
            return self.walk(shared, spec, request);
        }
        let commands = vec![wire::arguments(request.iter())];
        match self.transaction(&keys, spec.is_write, false, commands, protocol) {
            Ok(mut replies) => replies.pop().ok_or_else(no_reply),
            Err(CommandError::CrossNode) => self.each_key(spec, &keys, protocol),
            Err(error) => Err(error),
        }
    }

    /// Runs what `MULTI` has queued, as one transaction at the node that has all keys.
    pub(crate) fn run_queue<'a>(
        &self,
        queue: impl Iterator<Item = &'a (&'static Spec, OwnedRequest)>,
        protocol: Protocol,
    ) -> Result<Vec<Reply>, CommandError> {
        let (mut keys, mut commands, mut is_write) = (Vec::new(), Vec::new(), false);
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
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        self.transaction(&keys, is_write, true, commands, protocol)
    }

    /// Commands as one transaction at the node that has their keys; one reply for each.
    fn transaction(
        &self,
        keys: &[&[u8]],
        is_write: bool,
        is_queue: bool,
        commands: Vec<Vec<Bytes>>,
        protocol: Protocol,
    ) -> Result<Vec<Reply>, CommandError> {
        let mut keys: Vec<Key> = keys.iter().map(|key| key.to_vec()).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut others = keys.into_iter();
        let target = Target::At(others.next().ok_or_else(no_reply)?);
        let call = Call::Commands { is_resp3: protocol == Protocol::Resp3, is_queue, commands };
        let work = Work::Run { is_write, others: others.collect(), bytes: wire::encode(&call) };
        let (answer, _) = self.ask(target, work)?;
        replies(&answer)
    }

    /// Runs a command for each of its keys by itself, and puts the replies together.
    fn each_key(&self, spec: &Spec, keys: &[&[u8]], protocol: Protocol) -> Result<Reply, CommandError> {
        let (single, is_sum) = match spec.name {
            "mget" => (&b"GET"[..], false),
            "exists" | "touch" | "del" | "unlink" => (spec.name.as_bytes(), true),
            _ => return Err(CommandError::CrossNode),
        };
        let is_resp3 = protocol == Protocol::Resp3;
        let calls = keys.iter().map(|key| {
            let commands = vec![wire::arguments([single, key].into_iter())];
            let call = Call::Commands { is_resp3, is_queue: false, commands };
            let bytes = wire::encode(&call);
            (Target::At(key.to_vec()), Work::Run { is_write: spec.is_write, others: Vec::new(), bytes })
        });
        let (mut found, mut bytes, mut sum) = (Vec::new(), 0, 0);
        for reply in self.ask_each(calls.collect())? {
            let Some(Reply::Encoded(reply)) = replies(&reply?)?.pop() else { return Err(no_reply()) };
            if reply.first() == Some(&b'-') {
                return Ok(Reply::Encoded(reply));
            }
            if is_sum {
                sum += integer_in(&reply)?;
                continue;
            }
            bytes += reply.len();
            if bytes > self.max_reply_bytes {
                return Err(CommandError::ReplyTooLong(self.max_reply_bytes));
            }
            found.push(Reply::Encoded(reply));
        }
        Ok(if is_sum { Reply::Integer(sum) } else { Reply::Array(found) })
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

    /// The same for several targets, some of them at once; the answers in order.
    fn ask_each(
        &self,
        calls: Vec<(Target, Work)>,
    ) -> Result<Vec<Result<Vec<u8>, CommandError>>, CommandError> {
        let all = self.at_node(move |here| {
            Box::pin(async move {
                let mut answers = Vec::with_capacity(calls.len());
                let mut calls = calls.into_iter();
                loop {
                    let some = calls.by_ref().take(KEYS_AT_ONCE).map(|(target, work)| {
                        here.beside(|here| Box::pin(async move { here.node.call(target, work).await }))
                    });
                    let some: Vec<_> = some.collect();
                    if some.is_empty() {
                        return answers;
                    }
                    for answer in some {
                        answers.push(answer.await);
                    }
                }
            })
        })?;
        let ran = |answer| match answer {
            Some(Ok((Answer::Ran(answer), _))) => Ok(answer),
            Some(Ok(_)) => Err(refusal(Error::Protocol)),
            Some(Err(error)) => Err(refusal(error)),
            None => Err(refusal(Error::Stopped)),
        };
        Ok(all.into_iter().map(ran).collect())
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

/// What a client is told when a node could not do it (DOOR-3).
fn refusal(error: Error) -> CommandError {
    match error {
        Error::Elsewhere => CommandError::CrossNode,
        Error::Unknown { .. } => CommandError::Unknown(error.to_string()),
        Error::Unavailable { .. } | Error::Stopped | Error::Protocol => {
            CommandError::Unavailable(error.to_string())
        }
        Error::TooLong { .. } | Error::NotMoved { .. } => CommandError::Protocol(error.to_string()),
        _ => CommandError::Storage(error.to_string()),
    }
}

fn no_reply() -> CommandError {
    CommandError::Unavailable("the owner answered less than it was asked".into())
}

fn replies(answer: &[u8]) -> Result<Vec<Reply>, CommandError> {
    let replies: Replies = wire::decode(answer)?;
    Ok(replies.into_iter().map(|Bytes(bytes)| Reply::Encoded(bytes)).collect())
}

fn integer_in(reply: &[u8]) -> Result<i64, CommandError> {
    let digits = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.ok_or_else(no_reply)
}
