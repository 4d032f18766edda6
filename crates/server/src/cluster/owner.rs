//! Commands at the owner of their keys: each call is one transaction of the owner's store, while the leaves
//! of its keys are locked.
//!
//! A call runs on a thread of the node's pool, because it may wait for the device or for another transaction.
//! Only the committer waits for the flush of the log.
//!
//! - **OWNER-1** A thread waits at most [`LOCK_WAIT`] for the lock of another transaction. Then the call is
//!   rolled back, and is retried after a pause that uses no thread. So open transactions of clients cannot
//!   occupy all threads (hazard B5). After the time of the request it is refused (FIND-1).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use azekura::CommitTicket;
use azekura_fatbtree::store::Attachments;
use azekura_fatbtree::tcp::Tools;
use azekura_fatbtree::{Application, Asked, Growth, OpenTransaction, Ran, Row, RunError, Target, Task};

use super::interactive::{CoordinatorTransaction, NodeSnapshot};
use super::watched::{self, Fingerprint};
use super::wire::{self, Bytes, Call, Replies, Step, Walk, With};
use crate::command::{self, Run, Spec};
use crate::engine::{Pending, run_inside};
use crate::error::{CommandError, Failure};
use crate::glob;
use crate::keyspace::{self, Keyspace, RecordRef};
use crate::resp::{OwnedRequest, Protocol, Reply};
use crate::server::Shared;

/// Longest wait of a pool thread for a lock (OWNER-1).
pub(super) const LOCK_WAIT: Duration = Duration::from_millis(50);
/// The error of a request that did not get its locks in time.
const WAITED_TOO_LONG: &str = "the request was not executed: it waited for a lock until its time was over";
/// The error of a request that cannot be decoded.
const OTHER_FORM: &str = "another node speaks another version; upgrade the older one";
/// Shortest and longest pause before a call is retried. Each pause is twice the previous one.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const MOST_PAUSE: Duration = Duration::from_millis(8);

/// Runs the requests of other nodes and of this node's own clients.
pub(super) struct Owner {
    shared: Arc<Shared>,
    tools: Tools,
}

impl Owner {
    pub(super) const fn new(shared: Arc<Shared>, tools: Tools) -> Self {
        Self { shared, tools }
    }
}

impl Application for Owner {
    fn run(&self, asked: Asked) -> Task<'_, Result<Ran, RunError>> {
        let asked = Arc::new(asked);
        Box::pin(async move {
            let (mut pause, begun) = (FIRST_PAUSE, Instant::now());
            loop {
                let (shared, asked) = (Arc::clone(&self.shared), Arc::clone(&asked));
                let attempt = move || match asked.time_left.saturating_sub(begun.elapsed()) {
                    Duration::ZERO => Err(refused(CommandError::Unavailable(WAITED_TOO_LONG.to_owned()))),
                    left => work(&shared, &asked, left.min(LOCK_WAIT)),
                };
                let done = self.tools.run(attempt).await;
                let panicked = || RunError::Failed("the command ended by a panic".to_owned());
                if let Some(Done { answer, growth, ticket }) = done.ok_or_else(panicked)?? {
                    let durable = ticket.map(|ticket| self.tools.committer.lasting(ticket));
                    let rows = isize::try_from(growth.rows).unwrap_or(isize::MAX);
                    return Ok(Ran { bytes: answer, rows, more_bytes: growth.bytes, durable });
                }
                self.tools.pause(pause).await;
                pause = (pause * 2).min(MOST_PAUSE);
            }
        })
    }

    fn clock_ms(&self) -> Option<u64> {
        Some(self.shared.engine.clock.now_ms())
    }

    fn open(&self, reader: bool) -> Result<Box<dyn OpenTransaction>, RunError> {
        let (shared, tools) = (Arc::clone(&self.shared), self.tools.clone());
        Ok(match reader {
            true => Box::new(NodeSnapshot::new(shared, tools)),
            false => Box::new(CoordinatorTransaction::new(shared, tools)),
        })
    }
}

struct Done {
    answer: Vec<u8>,
    growth: Growth,
    ticket: Option<CommitTicket>,
}

/// Returns an error that the client receives with its code.
fn refused(error: CommandError) -> RunError {
    RunError::Application(error.to_string())
}

/// Runs a call, with a bound on each lock wait. Returns `None` if the call must be retried (OWNER-1).
fn work(shared: &Shared, asked: &Asked, lock_wait: Duration) -> Result<Option<Done>, RunError> {
    let mut pending = Pending::default();
    let call =
        wire::decode(&asked.bytes).map_err(|_| refused(CommandError::Unavailable(OTHER_FORM.into())))?;
    let (answer, growth) = match &call {
        Call::Commands { is_resp3, is_queue, commands, watched } => {
            let protocol = wire::protocol(*is_resp3);
            let parsed = parse(commands, asked).map_err(refused)?;
            check_watched(watched, asked).map_err(refused)?;
            let todo = Todo { commands: &parsed, watched, asked, is_queue: *is_queue, lock_wait };
            match run_commands(shared, &todo, protocol, &mut pending) {
                Attempted::Answered(answer, growth) => (answer, growth),
                Attempted::Outdated => (wire::encode(&None::<Replies>), Growth::default()),
                Attempted::Met => return Ok(None),
            }
        }
        Call::Look => {
            let Target::At(key) = &asked.target else { return Err(refused(CommandError::Syntax)) };
            let seen = shared.engine.attempt(lock_wait, &mut pending, |keys| watched::look(keys, key));
            let Some(seen) = seen.map_err(refused)? else { return Ok(None) };
            (wire::encode(&seen), Growth::default())
        }
        Call::Walk(walk) => {
            if walk.with == With::Remove && !asked.is_write {
                return Err(refused(CommandError::Syntax));
            }
            let step = walk_leaf(shared, walk, asked, lock_wait, &mut pending).map_err(refused)?;
            let Some(step) = step else { return Ok(None) };
            let removed = if walk.with == With::Remove { step.count } else { 0 };
            (wire::encode(&step), Growth { rows: -i64::try_from(removed).unwrap_or(i64::MAX), bytes: 0 })
        }
        Call::CursorPrefix(number) => {
            let prefix = shared.engine.context.cursors.own_prefix(*number);
            let prefix = prefix.map_err(|error| refused(shared.engine.client_error(error.into())))?;
            (wire::encode(&prefix.map(Bytes)), Growth::default())
        }
        Call::Watching { is_resp3, command, watched } => {
            let parsed = parse(std::slice::from_ref(command), asked).map_err(refused)?;
            check_watched(watched, asked).map_err(refused)?;
            let protocol = wire::protocol(*is_resp3);
            let todo = Todo { commands: &parsed, watched, asked, is_queue: false, lock_wait };
            let Some((reply, is_unchanged, growth)) = run_watching(shared, &todo, &mut pending) else {
                return Ok(None);
            };
            (wire::encode(&(encoded(reply, protocol), is_unchanged)), growth)
        }
    };
    Ok(Some(Done { answer, growth, ticket: pending.into_ticket() }))
}

pub(super) type Parsed = (&'static Spec, OwnedRequest);

/// Commands of one transaction.
#[derive(Clone, Copy)]
struct Todo<'a> {
    commands: &'a [Parsed],
    watched: &'a [(Bytes, Fingerprint)],
    asked: &'a Asked,
    is_queue: bool,
    lock_wait: Duration,
}

/// Returns `true` if the leaf of a key is locked for a request. The other keys of the request are in order.
fn is_locked(asked: &Asked, key: &[u8]) -> bool {
    let is_other = || asked.others.binary_search_by(|other| other.as_slice().cmp(key)).is_ok();
    asked.range.contains(key) || is_other()
}

/// Refuses watched keys of leaves that are not locked.
fn check_watched(watched: &[(Bytes, Fingerprint)], asked: &Asked) -> Result<(), CommandError> {
    match watched.iter().all(|(key, _)| is_locked(asked, &key.0)) {
        true => Ok(()),
        false => Err(CommandError::NotInside("WATCH".into(), "a transaction of a cluster")),
    }
}

/// Parses the commands. Refuses commands that are not allowed here, and commands with keys of leaves that are
/// not locked.
pub(super) fn parse(commands: &[Vec<Bytes>], asked: &Asked) -> Result<Vec<Parsed>, CommandError> {
    let parse_one = |arguments: &Vec<Bytes>| {
        let request = OwnedRequest::from_arguments(arguments.iter().map(|bytes| bytes.0.as_slice()));
        let name = || String::from_utf8_lossy(request.as_request().arg(0)).into_owned();
        let found = command::find(request.as_request().arg(0));
        let (_, spec) =
            found.ok_or_else(|| CommandError::UnknownCommand { name: name(), arguments: String::new() })?;
        if !spec.takes(request.as_request().len()) {
            return Err(CommandError::Arity(name()));
        }
        let keys = command::keys_of(spec, request.as_request());
        let may_run = matches!(spec.run, Run::Data(_)) && (asked.is_write || !spec.is_write);
        if !may_run || keys.is_empty() || !keys.iter().all(|key| is_locked(asked, key)) {
            return Err(CommandError::NotInside(name(), "a transaction of a cluster"));
        }
        Ok((spec, request))
    };
    commands.iter().map(parse_one).collect()
}

/// Result of the commands of a transaction.
enum Attempted {
    /// The encoded replies, one for each command, and the growth of the leaf. A single error if the whole
    /// transaction was rolled back.
    Answered(Vec<u8>, Growth),
    /// A watched key has changed, so no command was run.
    Outdated,
    /// The transaction conflicted with another one, and must be retried (OWNER-1).
    Met,
}

fn run_commands(shared: &Shared, todo: &Todo<'_>, protocol: Protocol, pending: &mut Pending) -> Attempted {
    let Todo { commands, watched, asked, is_queue, lock_wait } = *todo;
    let encoded = |reply: Reply| encoded(reply, protocol);
    let done = shared.engine.attempt(lock_wait, pending, |keys| {
        if !watched::are_unchanged(keys, watched, asked.is_write)? {
            return Ok(None);
        }
        let mut replies = Vec::with_capacity(commands.len());
        for (spec, request) in commands {
            keys.charge(size_of::<Reply>())?;
            let done = run_inside(keys, spec.run, request.as_request());
            replies.push(match done {
                Err(Failure::Command(error)) if is_queue => Reply::Error(error),
                done => done?,
            });
        }
        let replies: Replies = replies.into_iter().map(encoded).collect();
        let answer = wire::encode(&Some(replies));
        // An answer that cannot be sent must not hide that the commands have run.
        if answer.len() > asked.most_bytes {
            return Err(CommandError::AnswerTooLong(asked.most_bytes).into());
        }
        Ok(Some((answer, Growth { rows: keys.added().records, bytes: keys.written_bytes() })))
    });
    match done {
        Ok(Some(Some((answer, growth)))) => Attempted::Answered(answer, growth),
        Ok(Some(None)) => Attempted::Outdated,
        Ok(None) => Attempted::Met,
        Err(error) => {
            let error: Replies = vec![encoded(Reply::Error(error))];
            Attempted::Answered(wire::encode(&Some(error)), Growth::default())
        }
    }
}

/// Runs a command of a client that watches keys of the command (WATCHED-1). Returns the reply, `true` if the
/// watched keys are unchanged, and the growth of the leaf. Returns `None` if the command must be retried.
fn run_watching(shared: &Shared, todo: &Todo<'_>, pending: &mut Pending) -> Option<(Reply, bool, Growth)> {
    let (Todo { commands, watched, .. }, is_write) = (*todo, todo.asked.is_write);
    let done = shared.engine.attempt(todo.lock_wait, pending, |keys| {
        let was_unchanged = watched::are_unchanged(keys, watched, is_write)?;
        let (spec, request) = commands.first().ok_or(CommandError::Syntax)?;
        let reply = match run_inside(keys, spec.run, request.as_request()) {
            Err(Failure::Command(error)) => Reply::Error(error),
            done => done?,
        };
        let is_unchanged = was_unchanged && watched::are_unchanged(keys, watched, is_write)?;
        let growth = Growth { rows: keys.added().records, bytes: keys.written_bytes() };
        Ok((reply, is_unchanged, growth))
    });
    match done {
        Ok(done) => done,
        Err(error) => Some((Reply::Error(error), false, Growth::default())),
    }
}

fn encoded(reply: Reply, protocol: Protocol) -> Bytes {
    let mut bytes = Vec::new();
    reply.encode(protocol, &mut bytes);
    Bytes(bytes)
}

/// Runs a step of a walk inside the leaf. Returns `None` if the step must be retried.
///
/// A step that only reads uses a snapshot, so it waits for no transaction, and no writer waits for it. Each
/// step opens its own snapshot. The leaf was locked against moves before, so all its rows are in the
/// snapshot.
fn walk_leaf(
    shared: &Shared,
    walk: &Walk,
    asked: &Asked,
    lock_wait: Duration,
    pending: &mut Pending,
) -> Result<Option<Step>, CommandError> {
    if walk.with == With::Remove {
        return shared.engine.attempt(lock_wait, pending, |keys| walk_in(keys, walk, asked));
    }
    shared.engine.read(pending, |keys| walk_in(keys, walk, asked)).map(Some)
}

/// Runs a step of a walk inside the leaf and inside a transaction.
pub(super) fn walk_in(keys: &Keyspace<'_>, walk: &Walk, asked: &Asked) -> Result<Step, Failure> {
    let Some(range) = wire::clip(walk.range(), &asked.range) else { return Ok(Step::default()) };
    let mode = match (walk.is_backward, walk.with) {
        (true, _) => keyspace::Walk::Backward,
        (false, With::Rows) => keyspace::Walk::Forward,
        (false, _) => keyspace::Walk::KeysForward,
    };
    let most_looked = usize::try_from(walk.most_looked).unwrap_or(usize::MAX).max(1);
    let mut step = Step::default();
    let mut bytes = 0;
    let walked = keys.walk(&range, mode, most_looked, |key, record| {
        step.looked += 1;
        if walk.pattern.as_ref().is_none_or(|pattern| glob::matches(&pattern.0, key)) {
            bytes += take(&mut step, walk.with, key, record);
        }
        let is_enough = step.count >= walk.most_found || bytes >= walk.most_bytes;
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    step.stopped_at = walked.stopped_at.map(Bytes);
    remove_found(keys, walk, &mut step)?;
    Ok(step)
}

/// Adds a key to the result of a step. Returns the number of bytes added.
fn take(step: &mut Step, with: With, key: &[u8], record: RecordRef<'_>) -> u64 {
    step.count += 1;
    if with == With::Count {
        return 0;
    }
    step.found.push(Bytes(key.to_vec()));
    let mut bytes = key.len();
    if with == With::Rows {
        step.found.push(Bytes(record.value.to_vec()));
        bytes += record.value.len();
    }
    bytes as u64
}

fn remove_found(keys: &Keyspace<'_>, walk: &Walk, step: &mut Step) -> Result<(), Failure> {
    if walk.with == With::Remove {
        for key in std::mem::take(&mut step.found) {
            keys.remove(&key.0)?;
        }
    }
    Ok(())
}

/// The rows of the expiry table, which move to another node with their records, and the numbers of records.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedRows;

impl Attachments for AttachedRows {
    fn attach(&self, tx: &azekura::Transaction, left: &[Row], arrived: &[Row]) -> Result<(), azekura::Error> {
        keyspace::attach(tx, left, arrived)
    }

    fn longer_by(&self) -> usize {
        keyspace::EXPIRY_BYTES
    }
}
