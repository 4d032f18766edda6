//! Requests of this node's clients, in flight to the owners of their keys.
//!
//! | keys of a request | execution |
//! |---|---|
//! | one | one transaction at its owner |
//! | several, at one node | one transaction there, all their leaves locked |
//! | at several nodes | `MGET`, `EXISTS`, `TOUCH`, `DEL`, `UNLINK`: key by key; others: `CROSSNODE` |
//! | all of a range | leaf by leaf (`scan`) |
//!
//! - **GATEWAY-4** A request that removes keys of several nodes first contacts all owners. If an owner cannot
//!   be reached, nothing is changed (`UNAVAIL`). If an owner fails later, the error has the number of removed
//!   keys (`PARTIAL`).
//!
//! Pipelined requests run concurrently as far as their order allows (`pipeline`).
//!
//! The thread of the connection blocks until the answer arrives, at most for the node's request timeout; its
//! reactor continues with another thread (`reactor`).

use std::rc::Rc;
use std::sync::Arc;

use azekura_base::blocking;
use azekura_fatbtree::tcp::NodeContext;
use azekura_fatbtree::{Answer, Error, Key, KeyRange, RouteEntry, Target, Task, TransactionId, Work};

use super::Cluster;
use super::pipeline::KeyRequest;
use super::scan::Legs;
use super::watched::Watched;
use super::wire::{self, Bytes, Call, Replies};
use crate::command::{self, Spec};
use crate::error::CommandError;
use crate::resp::{OwnedRequest, Protocol, Reply, Request};
use crate::server::Shared;

/// Result of a step: the answer, and the route entry of its leaf.
type StepResult = Result<(Answer, Option<RouteEntry>), Error>;

/// Maximum of concurrent messages of one request that is executed key by key.
const KEYS_AT_ONCE: usize = 64;

impl Cluster {
    /// Runs a command on ranges of keys, or refuses it.
    pub(crate) fn run(
        &self,
        shared: &Arc<Shared>,
        spec: &'static Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        Legs::alone(self).walk(shared, spec, request)
    }

    /// Runs the queue of `MULTI` as one transaction at the node that has all keys, including the watched
    /// keys. Returns `None` if a watched key has changed.
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
                let why = "it walks over all nodes, but a transaction runs at one node";
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
        let count = commands.len();
        let call =
            Call::Commands { is_resp3: protocol == Protocol::Resp3, is_queue: true, commands, watched };
        let (target, work) = transaction(&keys, is_write, &call)?;
        let (answer, _) = self.ask(target, work)?;
        let replies = replies(&answer)?;
        match replies.as_deref() {
            // The transaction as a whole was rolled back.
            Some([Reply::Encoded(reply)]) if count > 1 => Err(error_in(reply).unwrap_or_else(no_reply)),
            _ => Ok(replies),
        }
    }

    /// Runs a command of a client that watches keys of the command. Returns the reply, and `true` if the
    /// watched keys are unchanged (WATCHED-1).
    pub(crate) fn run_watching(
        &self,
        (spec, request): (&Spec, Request<'_>),
        watched: Watched,
        protocol: Protocol,
    ) -> Result<(Reply, bool), CommandError> {
        let command = wire::arguments(request.iter());
        let call = Call::Watching { is_resp3: protocol == Protocol::Resp3, command, watched };
        let (target, work) = transaction(&command::keys_of(spec, request), spec.is_write, &call)?;
        let (answer, _) = self.ask(target, work)?;
        let (Bytes(reply), is_unchanged) = wire::decode::<(Bytes, bool)>(&answer)?;
        Ok((Reply::Encoded(reply), is_unchanged))
    }

    /// Runs work at the leaf of `target`; returns the application's answer and the leaf.
    pub(super) fn ask(
        &self,
        target: Target,
        work: Work,
    ) -> Result<(Vec<u8>, Option<RouteEntry>), CommandError> {
        match self.call(target, work)? {
            (Answer::Ran(answer), route_entry) => Ok((answer, route_entry)),
            _ => Err(refusal(Error::Protocol)),
        }
    }

    pub(super) fn call(
        &self,
        target: Target,
        work: Work,
    ) -> Result<(Answer, Option<RouteEntry>), CommandError> {
        self.at_node(move |here| Box::pin(async move { here.node.call(target, work).await }))?
            .map_err(refusal)
    }

    /// Runs a task on the node's thread, and blocks until it ends.
    pub(super) fn at_node<T: Send + 'static>(
        &self,
        job: impl FnOnce(Rc<NodeContext>) -> Task<'static, T> + Send + 'static,
    ) -> Result<T, CommandError> {
        blocking::announce();
        self.node.ask(job).map_err(refusal)
    }

    /// Runs `work` at the leaf of `target` for an interactive transaction or a reader. Without an `id` a new
    /// transaction id is assigned. Returns the id and the result. Blocks.
    pub(super) fn step_of(
        &self,
        id: Option<TransactionId>,
        target: Target,
        work: impl FnOnce(TransactionId) -> Work + Send + 'static,
    ) -> Result<(TransactionId, StepResult), CommandError> {
        self.at_node(move |here| {
            Box::pin(async move {
                let id = id.unwrap_or_else(|| here.node.new_transaction());
                (id, here.node.call(target, work(id)).await)
            })
        })
    }
}

/// Runs a request at the owner of its keys. Called on the node's thread.
pub(super) async fn perform(
    here: &Rc<NodeContext>,
    request: &KeyRequest,
    protocol: Protocol,
    max_reply_bytes: usize,
) -> Result<Reply, CommandError> {
    let (spec, keys) = (request.spec, request.keys());
    let (target, work) =
        transaction(&keys, spec.is_write, &one(request.request.as_request().iter(), protocol))?;
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

/// Returns the call of a single command.
pub(super) fn one<'a>(arguments: impl Iterator<Item = &'a [u8]>, protocol: Protocol) -> Call {
    Call::Commands {
        is_resp3: protocol == Protocol::Resp3,
        is_queue: false,
        commands: vec![wire::arguments(arguments)],
        watched: Vec::new(),
    }
}

/// Returns the target and the work for commands that form one transaction at the node of their keys.
fn transaction(keys: &[&[u8]], is_write: bool, call: &Call) -> Result<(Target, Work), CommandError> {
    let (first, others) = sorted(keys).ok_or_else(no_reply)?;
    Ok((Target::At(first), Work::Run { is_write, others, bytes: wire::encode(call) }))
}

/// Returns the least of some keys, and the other keys in order.
pub(super) fn sorted(keys: &[&[u8]]) -> Option<(Key, Vec<Key>)> {
    let mut keys: Vec<Key> = keys.iter().map(|key| key.to_vec()).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut others = keys.into_iter();
    Some((others.next()?, others.collect()))
}

/// Runs a command separately for each of its keys, with up to [`KEYS_AT_ONCE`] messages in flight, and
/// combines the replies.
async fn each_key(
    here: &Rc<NodeContext>,
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
    if spec.is_write {
        reach_all(here, keys).await?;
    }
    let (mut found, mut bytes, mut sum) = (Vec::new(), 0, 0);
    for some in keys.chunks(KEYS_AT_ONCE) {
        let work = |key: &[u8]| transaction(&[key], spec.is_write, &one([single, key].into_iter(), protocol));
        let replies = at_each(here, some, work).await?;
        if is_sum {
            sum = add_up(sum, replies.into_iter().map(|reply| integer_in(&reply?)), spec.is_write)?;
            continue;
        }
        for reply in replies {
            let reply = reply?;
            bytes += reply.len();
            if bytes > max_reply_bytes {
                return Err(CommandError::ReplyTooLong(max_reply_bytes));
            }
            found.push(Reply::Encoded(reply));
        }
    }
    Ok(if is_sum { Reply::count(sum) } else { Reply::Array(found) })
}

/// Runs work for several keys concurrently. Returns the encoded reply for each key.
async fn at_each(
    here: &Rc<NodeContext>,
    keys: &[&[u8]],
    work: impl Fn(&[u8]) -> Result<(Target, Work), CommandError>,
) -> Result<Vec<Result<Vec<u8>, CommandError>>, CommandError> {
    let calls = keys.iter().map(|key| {
        let (target, work) = work(key)?;
        Ok(here.beside(|here| Box::pin(async move { here.node.call(target, work).await })))
    });
    let mut done = Vec::with_capacity(keys.len());
    for call in calls.collect::<Result<Vec<_>, CommandError>>()? {
        done.push(match call.await {
            Some(Ok((answer, _))) => encoded_reply(answer),
            Some(Err(error)) => Err(refusal(error)),
            None => Err(refusal(Error::Interrupted)),
        });
    }
    Ok(done)
}

fn encoded_reply(answer: Answer) -> Result<Vec<u8>, CommandError> {
    let Answer::Ran(answer) = answer else { return Err(refusal(Error::Protocol)) };
    let reply = replies(&answer)?.and_then(|mut replies| replies.pop());
    let Some(Reply::Encoded(reply)) = reply else { return Err(no_reply()) };
    error_in(&reply).map_or(Ok(reply), Err)
}

/// Returns the error that the owner has replied, if the reply is one.
fn error_in(reply: &[u8]) -> Option<CommandError> {
    let error = reply.strip_prefix(b"-")?.strip_suffix(b"\r\n")?;
    Some(CommandError::OfOwner(String::from_utf8_lossy(error).into_owned()))
}

/// Adds the replies for some keys to the sum of the earlier replies. The error of a write contains the number
/// of removed keys (GATEWAY-4). If the outcome is unknown for a key, the error says so (GATEWAY-3).
fn add_up(
    before: usize,
    replies: impl Iterator<Item = Result<usize, CommandError>>,
    is_write: bool,
) -> Result<usize, CommandError> {
    let (mut sum, mut failure) = (before, None);
    for reply in replies {
        match reply {
            Ok(count) => sum += count,
            Err(error @ CommandError::Unknown(_)) => failure = Some(error),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        None => Ok(sum),
        Some(error) if is_write => Err(error.after_removing(sum)),
        Some(error) => Err(error),
    }
}

/// Contacts the owner of each key, without reading the key (GATEWAY-4).
async fn reach_all(here: &Rc<NodeContext>, keys: &[&[u8]]) -> Result<(), CommandError> {
    for some in keys.chunks(KEYS_AT_ONCE) {
        let calls: Vec<_> = some
            .iter()
            .map(|key| {
                let within = KeyRange { low: key.to_vec(), high: Some(key.to_vec()) };
                let target = Target::At(key.to_vec());
                here.beside(|here| {
                    Box::pin(async move { here.node.call(target, Work::Rows { within, limit: 0 }).await })
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap_or(Err(Error::Interrupted)).map_err(refusal)?;
        }
    }
    Ok(())
}

/// Returns the error that the client receives for a failure of a node (GATEWAY-3).
pub(super) fn refusal(error: Error) -> CommandError {
    match error {
        Error::Elsewhere => CommandError::CrossNode,
        // The owner has answered in another form, after it may have executed the request.
        Error::Unknown { .. } | Error::Interrupted | Error::Protocol => {
            CommandError::Unknown(error.to_string())
        }
        Error::Application { reason } => CommandError::OfOwner(reason),
        Error::Ended { reason } => CommandError::Retry(reason),
        Error::Unavailable { .. } | Error::Unreachable { .. } => CommandError::Unreachable(error.to_string()),
        Error::Stopped => CommandError::Unavailable(error.to_string()),
        Error::TooLong { .. } | Error::NotMoved { .. } | Error::Left { .. } => {
            CommandError::Protocol(error.to_string())
        }
        _ => CommandError::Storage(error.to_string()),
    }
}

pub(crate) fn no_reply() -> CommandError {
    CommandError::Unknown("the owner's reply has fewer results than requested".into())
}

fn replies(answer: &[u8]) -> Result<Option<Vec<Reply>>, CommandError> {
    let replies: Option<Replies> = wire::decode(answer)?;
    Ok(replies.map(|replies| replies.into_iter().map(|Bytes(bytes)| Reply::Encoded(bytes)).collect()))
}

fn integer_in(reply: &[u8]) -> Result<usize, CommandError> {
    let digits = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n"));
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.ok_or_else(no_reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_failed_for_some_keys_tells_how_many_were_removed() {
        let away = || Err(CommandError::Unreachable("node 2 cannot be reached: refused".into()));
        let replies = |all: Vec<Result<usize, CommandError>>| all.into_iter();
        assert_eq!(add_up(3, replies(vec![Ok(1), Ok(0)]), true), Ok(4));
        // Removals after the failure count too.
        let partly = add_up(3, replies(vec![Ok(1), away(), Ok(1)]), true).expect_err("one failed");
        assert_eq!(
            partly.to_string(),
            "PARTIAL 5 keys were removed, then: UNAVAIL node 2 cannot be reached: refused"
        );
        let nothing = add_up(0, replies(vec![away(), Ok(0)]), true).expect_err("one failed");
        assert!(nothing.to_string().ends_with("; nothing was changed"), "{nothing}");
        let unknown = || Err(CommandError::Unknown("no answer".into()));
        for all in [vec![away(), unknown()], vec![unknown(), away()]] {
            let perhaps = add_up(0, replies(all), true).expect_err("two failed");
            assert_eq!(perhaps.to_string(), "UNKNOWN no answer");
        }
        let read = add_up(3, replies(vec![away()]), false).expect_err("it failed");
        assert!(read.to_string().starts_with("UNAVAIL"), "{read}");
    }
}
