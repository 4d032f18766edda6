//! A client's session: login, queued commands, watched keys, the open transaction, and the path of each
//! request.
//!
//! | state | means | left by |
//! |---|---|---|
//! | plain | each data command is a transaction | – |
//! | queueing | `MULTI`: data commands are kept | `EXEC`, `DISCARD`, `RESET` |
//! | open | `AZ.BEGIN`: data commands use the transaction or its snapshot | commit, abort, `RESET`, time-out |
//! | failed | the open transaction was rolled back; nothing runs | `AZ.COMMIT` (says so), `AZ.ABORT`, `RESET` |
//!
//! A session knows no socket: requests in, encoded replies and pending commits out.

mod client;
mod connection;
mod describe;
mod info;
mod snapshot;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::clients::Client;
use crate::cluster::{Errand, Flight, Watched};
use crate::command::{self, Run, SessionCommand, Spec};
use crate::engine::Pending;
use crate::error::CommandError;
use crate::group::{Group, Joined};
use crate::resp::{Protocol, Reply, Request};
use crate::server::Shared;
use crate::watch::WatchSet;

pub(crate) use snapshot::{Exported, Snapshots};
pub(crate) use transaction::{Open, Queue};

/// The connection's state after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Goes,
    /// Close it once the replies are sent.
    Ends,
    /// Nothing was done: give the same request again when the group is closed (GROUP-2).
    Again,
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
    /// Watched keys, in a cluster.
    seen: Watched,
    /// Requests without replies yet; in a cluster only.
    flight: Flight,
    /// The next request fell out of a group.
    fell_out: bool,
    ends: bool,
}

/// Logins that may fail on one connection.
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
            flight: Flight::default(),
            fell_out: false,
            ends: false,
        }
    }

    pub(crate) const fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Time at which the open transaction is rolled back.
    pub(crate) const fn deadline(&self) -> Option<Instant> {
        match &self.open {
            Open::Live { deadline, .. } | Open::Reads { deadline, .. } | Open::Away { deadline, .. } => {
                Some(*deadline)
            }
            _ => None,
        }
    }

    /// Rolls back what is open, and watches nothing any more: nobody will ask. Blocks where the store does.
    pub(crate) fn close(&mut self) {
        self.open = Open::None;
        self.snapshots.clear();
        self.queue = None;
        self.unwatch();
    }

    /// Rolls the open transaction back if its time is over.
    pub(crate) fn look_at_the_clock(&mut self) {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            let limit = self.shared.options.transaction_timeout;
            let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            self.open = Open::Failed(CommandError::TransactionTimeout(limit_ms));
            self.shared.counters.transaction_timeouts.inc();
            self.shared.events.transaction_expired(&self.client, limit);
        }
    }

    /// Does what a request asks and appends the reply to `out`. It may be sent once `pending` is durable, and
    /// the group closed if it joined that. In a cluster a request may be kept back to go with those after it:
    /// [`land`](Self::land) comes before the replies are sent, or anything else is appended to them.
    pub(crate) fn execute(
        &mut self,
        request: Request<'_>,
        out: &mut Vec<u8>,
        pending: &mut Pending,
        group: &mut Group,
    ) -> Flow {
        self.look_at_the_clock();
        let reply = match self.admit(request) {
            Ok((at, spec)) => {
                let joined = self.join(spec, request, group);
                if joined.is_none() && group.is_open() {
                    return Flow::Again;
                }
                self.client.count_request();
                self.client.last_command.store(at, Relaxed);
                self.shared.counters.calls.inc(at);
                if self.takes_off(at, spec, request, out) {
                    return Flow::Goes;
                }
                let done = joined.unwrap_or_else(|| self.dispatch(spec, request, pending));
                if done.is_err() {
                    self.shared.counters.failed_calls.inc(at);
                }
                done
            }
            Err(error) => {
                self.client.count_request();
                self.land(out);
                self.shared.counters.refused.inc();
                Err(self.spoil(error))
            }
        };
        reply.unwrap_or_else(Reply::Error).encode(self.protocol, out);
        if self.ends { Flow::Ends } else { Flow::Goes }
    }

    /// A request was refused before it ran: `EXEC` will do nothing. A refused `EXEC` ends the queue itself.
    fn spoil(&mut self, error: CommandError) -> CommandError {
        if matches!(&error, CommandError::Arity(name) if name == "exec") {
            self.queue = None;
            self.unwatch();
            return CommandError::ExecArity;
        }
        if let Some(queue) = &mut self.queue {
            queue.is_spoilt = true;
        }
        error
    }

    /// Runs a request in the group, if it may and can.
    fn join(
        &mut self,
        spec: &Spec,
        request: Request<'_>,
        group: &mut Group,
    ) -> Option<Result<Reply, CommandError>> {
        let Run::Data(apply) = spec.run else { return None };
        let is_plain = || self.queue.is_none() && matches!(self.open, Open::None);
        let may_join = Group::takes(spec, request) && is_plain() && self.shared.cluster.get().is_none();
        if !may_join || !self.shared.options.groups_writes || std::mem::take(&mut self.fell_out) {
            return None;
        }
        match group.run(&self.shared, apply, request) {
            Joined::Done(reply) => Some(reply),
            Joined::FellOut => {
                self.fell_out = group.is_open();
                None
            }
        }
    }

    /// Returns `true` if a request goes to the nodes together with others; if not, all before it are
    /// answered.
    fn takes_off(&mut self, at: usize, spec: &'static Spec, request: Request<'_>, out: &mut Vec<u8>) -> bool {
        if self.shared.cluster.get().is_none() {
            return false;
        }
        let errand =
            Errand::of(at, spec, request).filter(|_| self.queue.is_none() && matches!(self.open, Open::None));
        let takes_off = errand.is_some();
        if let Some(errand) = errand {
            self.flight.add(errand);
        }
        if !takes_off || self.flight.is_full() {
            self.land(out);
        }
        takes_off
    }

    /// Waits for the requests that were kept back, and appends their replies. Blocks.
    pub(crate) fn land(&mut self, out: &mut Vec<u8>) {
        if self.flight.is_empty() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let Some(cluster) = shared.cluster.get() else { return };
        for (at, reply) in cluster.fly(&mut self.flight, self.protocol) {
            if reply.is_err() {
                shared.counters.failed_calls.inc(at);
            }
            reply.unwrap_or_else(Reply::Error).encode(self.protocol, out);
        }
    }

    /// The command that is asked for, if it may run at all.
    fn admit(&self, request: Request<'_>) -> Result<(usize, &'static Spec), CommandError> {
        let name = request.arg(0);
        // Relaxed: our own note. Clients say the same command again and again.
        let found = command::find_near(name, self.client.last_command.load(Relaxed));
        let opens = |spec: &Spec| {
            use SessionCommand::{Auth, Hello, Quit, Reset};
            matches!(spec.run, Run::Session(Auth | Hello | Quit | Reset))
        };
        if !self.is_authenticated && !found.is_some_and(|(_, spec)| opens(spec)) {
            return Err(CommandError::NoAuth);
        }
        let (at, spec) = found.ok_or_else(|| unknown(request))?;
        if !spec.takes(request.len()) {
            return Err(CommandError::Arity(spec.name.into()));
        }
        command::check_subcommand(spec, request)?;
        Ok((at, spec))
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
        if let (Some(cluster), Open::None, Run::Data(_) | Run::Range(_) | Run::Walk(_)) =
            (self.shared.cluster.get(), &self.open, spec.run)
        {
            return cluster.run(&self.shared, spec, request);
        }
        match (&self.open, spec.run) {
            (Open::Failed(error), _) => Err(error.clone()),
            (_, Run::Session(command)) => self.plain(command, request),
            (Open::Live { .. } | Open::Reads { .. }, run) => self.run_in_open(run, request),
            (Open::Away { .. }, _) => self.run_away(spec, request),
            (Open::None, Run::Data(apply)) => self.shared.engine.run_data(pending, apply, request),
            (Open::None, Run::Range(apply)) => self.shared.engine.read(pending, |keys| apply(keys, request)),
            (Open::None, Run::Walk(walk)) => self.shared.engine.walk(pending, walk, request),
        }
    }

    /// Commands that may be queued, and have nothing to do with the store.
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
            SessionCommand::Command => describe::command(request),
            SessionCommand::Cluster => info::cluster_command(request),
            SessionCommand::Auth => self.auth(request),
            SessionCommand::Unwatch => Ok(self.unwatch()),
            _ => Err(CommandError::Syntax),
        }
    }

    /// Commands that change the session.
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
            (None, Open::Live { .. } | Open::Reads { .. } | Open::Away { .. } | Open::Failed(_)) => {
                Some("an interactive transaction")
            }
            (None, Open::None) => None,
        };
        let ends_it = matches!(command, Exec | Discard | Commit | Abort | Txn | Reset | Quit);
        match (command, &self.queue) {
            (Multi, Some(_)) => return Err(CommandError::NestedMulti),
            (Watch, Some(_)) => return Err(CommandError::WatchInMulti),
            _ => {}
        }
        if let (Some(inside), false) = (is_inside, ends_it) {
            if let Some(queue) = &mut self.queue {
                queue.is_spoilt = true;
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

/// The refusal of a command that does not exist, with the beginning of its arguments.
fn unknown(request: Request<'_>) -> CommandError {
    /// Bytes of the name that are shown, and about so many of the arguments.
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
        self.watched.clear(&self.shared.engine.around.watches);
    }
}
