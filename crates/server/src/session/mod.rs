//! The session of a client: login, queued commands, watched keys, the open transaction, and the dispatch of
//! each request. A session has no socket. Its input is requests; its output is encoded replies and pending
//! commits.
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | plain | each data command is a transaction | – |
//! | queueing | `MULTI`: data commands are queued | `EXEC`, `DISCARD`, `RESET` |
//! | open | `AZ.BEGIN`: commands use the transaction | `AZ.COMMIT`, `AZ.ABORT`, `RESET`, timeout |
//! | failed | rolled back; commands are refused | `AZ.COMMIT` (an error), `AZ.ABORT`, `RESET` |

mod client;
mod connection;
mod describe;
mod info;
mod lookahead;
mod snapshot;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::clients::Client;
use crate::cluster::{KeyRequest, Pipeline, Watched};
use crate::command::{self, CommandResult, Run, SessionCommand, Spec};
use crate::engine::Pending;
use crate::error::CommandError;
use crate::events::Refusal;
use crate::group::{Group, Joined};
use crate::keyspace::Keyspace;
use crate::resp::{Output, Protocol, Reply, Request};
use crate::server::Shared;
use crate::watch::WatchSet;

pub(crate) use snapshot::{Exported, Snapshots};
pub(crate) use transaction::{Open, Queue};

/// Next action of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Close the connection after the replies are sent.
    Close,
    /// The request was not run: pass it again after the group is closed (GROUP-2).
    Retry,
}

#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
    client: Arc<Client>,
    protocol: Protocol,
    is_authenticated: bool,
    failed_logins: u32,
    queue: Option<Queue>,
    watched: WatchSet,
    open: Open,
    /// Snapshots that `AZ.SNAPSHOT` of this connection has opened.
    snapshots: Exported,
    /// Watched keys and their digests; only in a cluster.
    seen: Watched,
    /// Memory of the watched keys.
    watched_bytes: usize,
    /// Requests that are sent to the node together, and the replies after them; only in a cluster.
    pipeline: Pipeline,
    /// The next request left a group because it would have waited for a lock. It runs alone.
    would_block: bool,
    /// Number of reads of input before the next look-ahead.
    look_ahead_pause: u8,
    ends: bool,
}

/// Failed logins after which the connection is closed.
const MAX_FAILED_LOGINS: u32 = 10;

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, client: Arc<Client>) -> Self {
        let is_authenticated = shared.options.password.is_none();
        Self {
            shared,
            client,
            protocol: Protocol::default(),
            is_authenticated,
            failed_logins: 0,
            queue: None,
            watched: WatchSet::default(),
            open: Open::None,
            snapshots: Exported::default(),
            seen: Vec::new(),
            watched_bytes: 0,
            pipeline: Pipeline::default(),
            would_block: false,
            look_ahead_pause: 0,
            ends: false,
        }
    }

    pub(crate) const fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Returns the time at which the open transaction is rolled back.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match &self.open {
            Open::Live { deadline, .. }
            | Open::ReadOnly { deadline, .. }
            | Open::Remote { deadline, .. }
            | Open::OfCluster { deadline, .. } => Some(*deadline),
            Open::None | Open::Failed(_) => None,
        }
    }

    /// Rolls back the open transaction and unwatches all keys. May block in the store.
    pub(crate) fn close(&mut self) {
        self.open = Open::None;
        self.snapshots.clear();
        self.queue = None;
        self.pipeline = Pipeline::default();
        self.unwatch();
    }

    /// Rolls the open transaction back if its deadline has passed.
    pub(crate) fn check_deadlines(&mut self) {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            let limit = self.shared.options.transaction_timeout;
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            self.open = Open::Failed(CommandError::TransactionTimeout(limit_ms));
            self.shared.counters.transaction_timeouts.inc();
            self.shared.events.transaction_expired(&self.client, limit);
        }
    }

    /// Runs a request and appends its reply to `out`. The reply may be sent when `pending` is durable and,
    /// if the request joined the group, the group has ended. In a cluster the request may be delayed to run
    /// together with later ones: call [`flush_pipeline`](Self::flush_pipeline) before the replies are sent.
    pub(crate) fn execute(
        &mut self,
        request: Request<'_>,
        out: &mut Output,
        pending: &mut Pending,
        group: &mut Group,
    ) -> Flow {
        self.check_deadlines();
        if self.pipeline.is_full() {
            if group.is_open() {
                return Flow::Retry; // HERE-1
            }
            self.flush_pipeline(out);
        }
        let reply = match self.admit(request) {
            Ok((at, spec)) => {
                let begun = self.begin_request(spec, request, pending, group);
                if matches!(begun, Begun::Retry) {
                    return Flow::Retry;
                }
                self.client.last_command.store(at, Relaxed);
                self.shared.counters.calls.inc(at);
                let done = match begun {
                    Begun::Done(done) => done,
                    Begun::Through => {
                        self.pipeline.add(KeyRequest::new(at, spec, request));
                        return Flow::Continue;
                    }
                    Begun::Alone | Begun::Retry => {
                        self.flush_pipeline(out);
                        self.dispatch(spec, request, pending)
                    }
                };
                if done.is_err() {
                    self.shared.counters.failed_calls.inc(at);
                }
                done
            }
            Err(error) => {
                self.shared.counters.refused.inc();
                if let Some((at, _)) = command::find(request.arg(0)) {
                    self.shared.counters.rejected_calls.inc(at);
                }
                if matches!(error, CommandError::Http) {
                    self.shared.events.refused(&self.client.socket.peer, Refusal::Http);
                    self.ends = true;
                }
                Err(self.abort_queue(error))
            }
        };
        self.reply(reply, out);
        if self.ends { Flow::Close } else { Flow::Continue }
    }

    /// Appends a reply after the replies of the pipeline.
    pub(crate) fn reply(&mut self, reply: Result<Reply, CommandError>, out: &mut Output) {
        if self.pipeline.is_empty() {
            reply.unwrap_or_else(Reply::Error).encode(self.protocol, out);
        } else {
            self.pipeline.add_reply(reply);
        }
    }

    /// Runs a request in the group, or on this thread if its keys belong to this node of a cluster. Otherwise
    /// returns the way in which the request must run.
    fn begin_request(
        &mut self,
        spec: &'static Spec,
        request: Request<'_>,
        pending: &mut Pending,
        group: &mut Group,
    ) -> Begun {
        let shared = Arc::clone(&self.shared);
        let is_plain = self.queue.is_none() && matches!(self.open, Open::None);
        let of_cluster = shared.cluster.get().filter(|_| is_plain).zip(key_function(spec, request));
        if of_cluster.is_some() && self.uses_watched(spec, request) {
            return if group.is_open() { Begun::Retry } else { Begun::Alone }; // GROUP-2
        }
        if of_cluster.is_some() && self.pipeline.must_come_before(spec, request) {
            return Begun::Through; // PIPELINE-2
        }
        match self.join(spec, request, group) {
            Joined::Done(reply) => return Begun::Done(reply),
            Joined::Elsewhere => return Begun::Through,
            Joined::WouldBlock => {}
        }
        match of_cluster {
            Some((cluster, _)) if group.is_open() && !cluster.serves(spec, request) => Begun::Through,
            _ if group.is_open() => Begun::Retry, // GROUP-2
            Some((cluster, apply)) => {
                cluster.run_here(&shared, spec, apply, request, pending).map_or(Begun::Through, Begun::Done)
            }
            None => Begun::Alone,
        }
    }

    /// Marks the queue of `MULTI` as aborted, after one of its commands was refused. A refused `EXEC` ends
    /// the queue instead.
    fn abort_queue(&mut self, error: CommandError) -> CommandError {
        if matches!(&error, CommandError::Arity(name) if name == "exec") {
            self.queue = None;
            self.unwatch();
            return CommandError::ExecArity;
        }
        if let Some(queue) = &mut self.queue {
            queue.is_aborted = true;
        }
        error
    }

    /// Runs a request in the group, if the request may join.
    fn join(&mut self, spec: &Spec, request: Request<'_>, group: &mut Group) -> Joined {
        let kind = Group::kind_of(spec, request).filter(|kind| group.is_for(*kind));
        let (Run::Data(apply), Some(kind)) = (spec.run, kind) else { return Joined::WouldBlock };
        let may_join = self.queue.is_none() && matches!(self.open, Open::None);
        let may_join = may_join && self.shared.options.groups_writes;
        if !may_join || std::mem::take(&mut self.would_block) {
            return Joined::WouldBlock;
        }
        let joined = group.run(&self.shared, kind, apply, request);
        self.would_block = matches!(joined, Joined::WouldBlock) && group.is_open();
        joined
    }

    /// Returns `true` if requests wait for [`flush_pipeline`](Self::flush_pipeline).
    pub(crate) const fn has_pipelined(&self) -> bool {
        !self.pipeline.is_empty()
    }

    /// Runs the requests of the pipeline, and appends all its replies. May block, so this thread must have no
    /// open group (HERE-1).
    pub(crate) fn flush_pipeline(&mut self, out: &mut Output) {
        if self.pipeline.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let Some(cluster) = shared.cluster.get() else { return };
        for (at, reply) in cluster.run_pipeline(&mut self.pipeline, self.protocol) {
            if let (Some(at), Err(_)) = (at, &reply) {
                shared.counters.failed_calls.inc(at);
            }
            reply.unwrap_or_else(Reply::Error).encode(self.protocol, out);
        }
    }

    /// Finds the command of a request, and checks the login and the arguments.
    fn admit(&self, request: Request<'_>) -> Result<(usize, &'static Spec), CommandError> {
        let name = request.arg(0);
        // Relaxed: written by this thread. Clients often repeat a command.
        let found = command::find_near(name, self.client.last_command.load(Relaxed));
        let opens = |spec: &Spec| {
            use SessionCommand::{Auth, Hello, Quit, Reset};
            matches!(spec.run, Run::Session(Auth | Hello | Quit | Reset))
        };
        if found.is_none() && is_http(name) {
            return Err(CommandError::Http);
        }
        if !self.is_authenticated && !found.is_some_and(|(_, spec)| opens(spec)) {
            return Err(CommandError::NoAuth);
        }
        let (at, spec) = found.ok_or_else(|| unknown(request))?;
        if !spec.takes(request.len()) {
            return Err(CommandError::Arity(spec.name.into()));
        }
        Ok((at, command::resolve(spec, request)?))
    }

    fn dispatch(
        &mut self,
        spec: &'static Spec,
        request: Request<'_>,
        pending: &mut Pending,
    ) -> Result<Reply, CommandError> {
        if let Run::Session(command) = spec.run
            && !command.is_plain()
        {
            return self.control(command, spec, request, pending);
        }
        if self.queue.is_some() {
            return self.enqueue(spec, request);
        }
        if matches!(self.open, Open::None) && self.uses_watched(spec, request) {
            return self.run_with_watched(spec, request);
        }
        match (&self.open, spec.run) {
            (Open::Failed(error), _) => Err(error.clone()),
            (_, Run::Session(command)) => self.plain(command, request),
            (Open::Live { .. } | Open::ReadOnly { .. }, run) => self.run_in_open(run, request),
            (Open::Remote { .. } | Open::OfCluster { .. }, _) => self.run_remote(spec, request),
            (Open::None, Run::Data(apply)) => match self.shared.cluster.get() {
                Some(cluster) => cluster.run(&self.shared, spec, request),
                None => self.shared.engine.run_data(pending, apply, request),
            },
            (Open::None, _) => self.run_over_snapshot(spec, request, pending),
        }
    }

    /// Runs a command on ranges of keys, or on all keys, over a snapshot. In a cluster without all keys at
    /// this node, runs it leaf by leaf.
    fn run_over_snapshot(
        &self,
        spec: &'static Spec,
        request: Request<'_>,
        pending: &mut Pending,
    ) -> Result<Reply, CommandError> {
        let engine = &self.shared.engine;
        let run_once = || {
            let snapshot = match self.shared.cluster.get() {
                Some(cluster) => match cluster.snapshot_of_all(&self.shared) {
                    Some(snapshot) => snapshot,
                    None => return Ok(cluster.run(&self.shared, spec, request)?),
                },
                None => engine.snapshot(),
            };
            engine.run_over(&snapshot?, pending, spec.run, request)
        };
        engine.repeat(run_once)
    }

    /// Runs a command that may be queued and does not use the store.
    fn plain(&mut self, command: SessionCommand, request: Request<'_>) -> Result<Reply, CommandError> {
        match command {
            SessionCommand::Ping => connection::ping(request),
            SessionCommand::Echo => Ok(Reply::Bulk(request.arg(1).to_vec())),
            SessionCommand::Select => connection::select(request),
            SessionCommand::Client => self.client_command(request),
            SessionCommand::Time => Ok(info::time(self.shared.engine.clock.now_us())),
            SessionCommand::Wait => connection::wait(request),
            SessionCommand::Role => {
                Ok(Reply::Array(vec![Reply::text("master"), Reply::Integer(0), Reply::Array(Vec::new())]))
            }
            SessionCommand::Info => Ok(info::info(&self.shared, request)),
            SessionCommand::Config => info::config(&self.shared, request),
            SessionCommand::Command => describe::command(request, self.shared.options.max_reply_bytes),
            SessionCommand::Cluster => Err(CommandError::NoSlots),
            SessionCommand::Slowlog => info::slowlog(request),
            SessionCommand::Latency => info::latency(request),
            SessionCommand::Acl => Ok(info::acl(request)),
            SessionCommand::Module => Ok(info::module()),
            SessionCommand::Help => Ok(command::help(request)),
            SessionCommand::Auth => self.auth(request),
            SessionCommand::Unwatch => Ok(self.unwatch()),
            _ => Err(CommandError::Syntax),
        }
    }

    /// Runs a command that changes the session.
    fn control(
        &mut self,
        command: SessionCommand,
        spec: &Spec,
        request: Request<'_>,
        pending: &mut Pending,
    ) -> Result<Reply, CommandError> {
        use SessionCommand::*;
        let is_inside = match (&self.queue, &self.open) {
            (Some(_), _) => Some("MULTI"),
            (None, Open::None) => None,
            (None, _) => Some("an interactive transaction"),
        };
        let ends_it = matches!(command, Exec | Discard | Commit | Abort | Txn | Reset | Quit);
        match (command, &self.queue) {
            (Multi, Some(_)) => return Err(CommandError::NestedMulti),
            (Watch, Some(_)) => return Err(CommandError::WatchInMulti),
            _ => {}
        }
        if let (Some(inside), false) = (is_inside, ends_it) {
            if let Some(queue) = &mut self.queue {
                queue.is_aborted = true;
            }
            return Err(CommandError::NotInside(spec.name.to_ascii_uppercase(), inside));
        }
        match command {
            AzCluster => self.shared.cluster.get().ok_or(CommandError::Alone)?.administer(request),
            SessionCommand::Snapshot => self.snapshot(request),
            Hello => self.hello(request),
            Reset => Ok(self.reset()),
            Quit => {
                self.ends = true;
                Ok(Reply::OK)
            }
            Multi => Ok(self.multi()),
            Exec => self.exec(pending),
            Discard => self.discard(),
            Watch => self.watch(request, pending),
            Begin => self.begin(request, 1),
            Commit => self.commit(pending),
            Abort => self.abort(),
            Txn => self.txn(request, pending),
            _ => Err(CommandError::Syntax),
        }
    }
}

/// Result of the first attempt to run a request.
enum Begun {
    /// The request has run.
    Done(Result<Reply, CommandError>),
    /// The request has not run: it is sent through the node, with the pipeline.
    Through,
    /// The request has not run: it runs alone, after the pipeline.
    Alone,
    /// The request has not run: the group must be closed first (GROUP-2).
    Retry,
}

/// Returns the function of a command that has keys among its arguments.
fn key_function(
    spec: &Spec,
    request: Request<'_>,
) -> Option<fn(&Keyspace<'_>, Request<'_>) -> CommandResult> {
    let Run::Data(apply) = spec.run else { return None };
    command::key_places(spec, request.len()).next().map(|_| apply)
}

/// Returns `true` if the first word of a line occurs in every HTTP request with a body: `POST`, or the header
/// `Host:`. A web page can make a browser send such a request to a local port, with commands in the body. So
/// the connection ends before the body, as in Redis.
fn is_http(name: &[u8]) -> bool {
    command::is_word(name, "POST") || command::is_word(name, "Host:")
}

/// Returns the error for an unknown command, with the beginning of its arguments.
fn unknown(request: Request<'_>) -> CommandError {
    /// Maximum of bytes shown of the name, and approximate maximum for the arguments.
    const MAX_SHOWN: usize = 128;
    let mut arguments = Vec::new();
    for argument in request.from(1) {
        if arguments.len() >= MAX_SHOWN {
            break;
        }
        let shown = command::beginning(argument, MAX_SHOWN - arguments.len());
        arguments.extend([b"'", shown, b"' "].concat());
    }
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    CommandError::UnknownCommand { name: command::short_text(request.arg(0)), arguments }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.watched.clear(&self.shared.engine.context.watches);
    }
}
