//! Transactions of several commands: queued (`MULTI`) or interactive (`AZ.BEGIN`).
//!
//! `EXEC` runs the queue as one serializable transaction, and retries it after a deadlock. A refused command
//! does not undo the other commands, as in Redis. Interactive transactions hold their locks between requests,
//! so they have a time limit. After a conflict the client must begin again.

use std::sync::Arc;
use std::time::Instant;

use azekura::{Durability, Snapshot, Transaction};

use super::Session;
use crate::cluster::{
    Bytes, CHANGED, Cluster, ClusterSnapshot, Interactive, SharedSnapshot, StepError, Watched, no_reply,
};
use crate::command::{self, Run, Spec, is_word};
use crate::engine::{Pending, run_inside};
use crate::error::{CommandError, Failure};
use crate::keyspace::{self, KeyCounts, Keyspace};
use crate::resp::{OwnedRequest, Reply, Request};
use crate::watch::WatchSet;

/// The queue of `MULTI`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    commands: Vec<(&'static Spec, OwnedRequest)>,
    bytes: usize,
    /// `true` after a command was refused instead of queued: `EXEC` then does nothing.
    pub(super) is_aborted: bool,
}

/// State of the interactive transaction.
#[derive(Debug)]
pub(crate) enum Open {
    None,
    Live {
        tx: Box<Transaction>,
        deadline: Instant,
        /// Time at which the transaction began (KEY-2).
        now_ms: u64,
        /// Number of records that the transaction has added.
        added: KeyCounts,
    },
    /// A read-only transaction: it locks nothing.
    ReadOnly {
        snapshot: Snapshot,
        deadline: Instant,
        /// Time at which the snapshot was opened (KEY-2).
        now_ms: u64,
    },
    /// A transaction that runs at a node of the cluster.
    Remote {
        transaction: Box<Interactive>,
        deadline: Instant,
    },
    /// A read-only transaction over snapshots of several nodes of the cluster.
    OfCluster {
        snapshot: Arc<ClusterSnapshot>,
        deadline: Instant,
    },
    /// Rolled back, for this reason.
    Failed(CommandError),
}

/// Maximum of keys that a connection watches at once.
const MAX_WATCHED: usize = 10_000;
/// Memory of a watched key besides the key itself, in each of the two tables that list it.
const WATCHED_BYTES: usize = 64;

impl Session {
    pub(super) fn multi(&mut self) -> Reply {
        self.queue = Some(Queue::default());
        Reply::OK
    }

    /// Returns the memory of the queued commands and the watched keys, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes) + self.watched_bytes
    }

    pub(super) fn enqueue(
        &mut self,
        spec: &'static Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        let max = self.shared.options.wire.max_request_bytes;
        let Some(queue) = &mut self.queue else { return Err(CommandError::Without("EXEC", "MULTI")) };
        let bytes = request.kept_bytes();
        if queue.bytes + bytes > max {
            queue.is_aborted = true;
            return Err(CommandError::QueueTooLong(max));
        }
        queue.bytes += bytes;
        queue.commands.push((spec, request.to_owned()));
        Ok(Reply::Simple("QUEUED"))
    }

    pub(super) fn discard(&mut self) -> Result<Reply, CommandError> {
        self.queue.take().ok_or(CommandError::Without("DISCARD", "MULTI"))?;
        Ok(self.unwatch())
    }

    pub(super) fn exec(&mut self, pending: &mut Pending) -> Result<Reply, CommandError> {
        let queue = self.queue.take().ok_or(CommandError::Without("EXEC", "MULTI"))?;
        let mut watched = std::mem::take(&mut self.watched);
        let seen = std::mem::take(&mut self.seen);
        self.watched_bytes = 0;
        let done = if queue.is_aborted {
            Err(CommandError::ExecAbort)
        } else {
            self.run_queue(&queue, &watched, seen, pending)
        };
        watched.clear(&self.shared.engine.context.watches);
        done
    }

    fn run_queue(
        &mut self,
        queue: &Queue,
        watched: &WatchSet,
        seen: Watched,
        pending: &mut Pending,
    ) -> Result<Reply, CommandError> {
        let shared = std::sync::Arc::clone(&self.shared);
        if let Some(cluster) = shared.cluster.get() {
            return self.run_queue_in(cluster, queue, seen);
        }
        let writes = queue.commands.iter().any(|(spec, _)| spec.is_write);
        let mut replies: Vec<Reply> = Vec::new();
        let ran = shared.engine.run(pending, |keys| {
            // A session command cannot be rolled back, so a later attempt uses its reply (`CLIENT KILL`).
            let mut earlier = std::mem::take(&mut replies).into_iter();
            if !still_as_watched(keys, watched, writes)? {
                return Ok(false);
            }
            keys.leave_unmarked(watched.changed());
            // At once, so that a long reply makes only the commands after it fail.
            keys.charge(queue.commands.len() * size_of::<Reply>())?;
            replies.reserve(queue.commands.len());
            // A request with several keys announces them itself.
            let all = queue.commands.iter();
            keys.prefetch(all.filter_map(|(spec, request)| command::only_key(spec, request.as_request())))?;
            for (spec, request) in &queue.commands {
                let (request, earlier) = (request.as_request(), earlier.next());
                let done = match spec.run {
                    Run::Session(command) => earlier
                        .map_or_else(|| self.plain(command, request), Ok)
                        .and_then(|reply| keys.charge(reply.held_bytes()).map(|()| reply))
                        .map_err(Failure::Command),
                    run => run_inside(keys, run, request),
                };
                replies.push(match done {
                    Ok(reply) => reply,
                    Err(Failure::Command(error)) => Reply::Error(error),
                    Err(error) => return Err(error),
                });
            }
            Ok(true)
        })?;
        Ok(if ran { Reply::Array(replies) } else { Reply::NullArray })
    }

    /// Runs the queue at the node that has all of its keys.
    fn run_queue_in(
        &mut self,
        cluster: &Cluster,
        queue: &Queue,
        seen: Watched,
    ) -> Result<Reply, CommandError> {
        let is_data = |spec: &Spec| !matches!(spec.run, Run::Session(_));
        let commands = queue.commands.iter().filter(|(spec, _)| is_data(spec));
        let Some(replies) = cluster.run_queue(commands, seen, self.protocol)? else {
            return Ok(Reply::NullArray);
        };
        let mut replies = replies.into_iter();
        // The owner bounds the replies to the commands on keys.
        let most = self.shared.options.max_reply_bytes;
        let mut left = most;
        let mut charge = |reply: Reply| {
            left = left.checked_sub(reply.held_bytes()).ok_or(CommandError::ReplyTooLong(most))?;
            Ok(reply)
        };
        let all = queue.commands.iter().map(|(spec, request)| match spec.run {
            Run::Session(command) => Ok(self
                .plain(command, request.as_request())
                .and_then(&mut charge)
                .unwrap_or_else(Reply::Error)),
            _ => replies.next().ok_or_else(no_reply),
        });
        Ok(Reply::Array(all.collect::<Result<_, _>>()?))
    }

    /// Runs `WATCH key…`.
    pub(super) fn watch(
        &mut self,
        request: Request<'_>,
        pending: &mut Pending,
    ) -> Result<Reply, CommandError> {
        let shared = &self.shared;
        for key in request.from(1) {
            if self.watched.contains(key) || self.seen.iter().any(|(seen, _)| seen.0 == key) {
                continue;
            }
            if self.watched.len().max(self.seen.len()) >= MAX_WATCHED {
                return Err(CommandError::Protocol(format!(
                    "a connection watches {MAX_WATCHED} keys at most"
                )));
            }
            self.watched_bytes += 2 * (key.len() + WATCHED_BYTES);
            if let Some(cluster) = shared.cluster.get() {
                self.seen.push((Bytes(key.to_vec()), cluster.fingerprint(key)?));
                continue;
            }
            // The key is registered before its lock is acquired (WATCH-2).
            shared.engine.context.watches.register(key, self.watched.changed());
            self.watched.add(key, false);
            let is_there = shared.engine.run(pending, |keys| keys.exists(key))?;
            self.watched.note(key, is_there);
        }
        Ok(Reply::OK)
    }

    /// Returns `true` if a request has a key that this client watches in a cluster.
    pub(super) fn uses_watched(&self, spec: &Spec, request: Request<'_>) -> bool {
        let is_watched = |key: &[u8]| self.seen.iter().any(|(seen, _)| seen.0 == key);
        !self.seen.is_empty()
            && command::key_places(spec, request.len()).any(|at| is_watched(request.arg(at)))
    }

    /// Records that the watched keys of a request have changed.
    fn note_changed(&mut self, spec: &Spec, request: Request<'_>) {
        let keys = command::keys_of(spec, request);
        for (_, digest) in self.seen.iter_mut().filter(|(seen, _)| keys.contains(&seen.0.as_slice())) {
            *digest = CHANGED;
        }
    }

    /// Runs a command with keys which this client watches in a cluster.
    pub(super) fn run_with_watched(
        &mut self,
        spec: &'static Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        let shared = Arc::clone(&self.shared);
        let cluster = shared.cluster.get().ok_or(CommandError::Alone)?;
        let keys = command::keys_of(spec, request);
        let watched =
            self.seen.iter().filter(|(seen, _)| keys.contains(&seen.0.as_slice())).cloned().collect();
        let done = cluster.run_watching((spec, request), watched, self.protocol);
        // WATCHED-1, WATCHED-2
        if matches!(&done, Ok((_, false)) | Err(CommandError::Unknown(_))) {
            self.note_changed(spec, request);
        }
        done.map(|(reply, _)| reply)
    }

    pub(super) fn unwatch(&mut self) -> Reply {
        self.watched.clear(&self.shared.engine.context.watches);
        self.seen.clear();
        self.watched_bytes = 0;
        Reply::OK
    }

    /// Runs `AZ.BEGIN [RO [AT snapshot]]`.
    pub(super) fn begin(&mut self, request: Request<'_>, options_at: usize) -> Result<Reply, CommandError> {
        if self.watched.len() > 0 || !self.seen.is_empty() {
            return Err(CommandError::Watching);
        }
        let (mut is_read_only, mut at) = (false, None);
        let mut options = request.from(options_at);
        while let Some(option) = options.next() {
            match option {
                _ if is_word(option, "RO") => is_read_only = true,
                _ if is_word(option, "AT") => at = Some(options.next().ok_or(CommandError::Syntax)?),
                _ => return Err(CommandError::Syntax),
            }
        }
        if at.is_some() && !is_read_only {
            return Err(CommandError::NotOffered("AT", "a snapshot is read with AZ.BEGIN RO AT"));
        }
        let at = at.map(|number| self.snapshot_at(number)).transpose()?;
        let engine = &self.shared.engine;
        let deadline = Instant::now() + self.shared.options.transaction_timeout;
        self.open = if let Some(SharedSnapshot::Cluster(snapshot)) = at {
            Open::OfCluster { snapshot, deadline }
        } else if let Some(cluster) = self.shared.cluster.get() {
            Open::Remote { transaction: Box::new(cluster.begin(is_read_only)), deadline }
        } else if is_read_only {
            let (snapshot, now_ms) = match at {
                Some(SharedSnapshot::Own(snapshot, now_ms)) => (snapshot, now_ms),
                _ => (engine.db.snapshot().map_err(Failure::from)?, engine.clock.now_ms()),
            };
            Open::ReadOnly { snapshot, deadline, now_ms }
        } else {
            let tx = engine.db.begin().map_err(Failure::from)?;
            tx.detach_from_thread().map_err(Failure::from)?; // any thread may run the next command
            let (now_ms, added) = (engine.clock.now_ms(), KeyCounts::default());
            Open::Live { tx: Box::new(tx), deadline, now_ms, added }
        };
        Ok(Reply::OK)
    }

    /// Runs `AZ.TXN BEGIN [RO] | COMMIT | ABORT`.
    pub(super) fn txn(&mut self, request: Request<'_>, pending: &mut Pending) -> Result<Reply, CommandError> {
        let word = request.arg(1);
        if is_word(word, "COMMIT") && request.len() == 2 {
            self.commit(pending)
        } else if is_word(word, "ABORT") && request.len() == 2 {
            self.abort()
        } else if !is_word(word, "BEGIN") {
            Err(CommandError::UnknownWord("az.txn", command::short_text(word)))
        } else if self.queue.is_some() {
            Err(CommandError::NotInside("AZ.TXN BEGIN".into(), "MULTI"))
        } else if matches!(self.open, Open::None) {
            self.begin(request, 2)
        } else {
            Err(CommandError::NotInside("AZ.TXN BEGIN".into(), "an interactive transaction"))
        }
    }

    pub(super) fn commit(&mut self, pending: &mut Pending) -> Result<Reply, CommandError> {
        match std::mem::replace(&mut self.open, Open::None) {
            Open::None => Err(CommandError::Without("AZ.COMMIT", "AZ.BEGIN")),
            Open::Failed(error) => Err(error),
            Open::Remote { transaction, .. } => {
                let cluster = self.shared.cluster.get().ok_or(CommandError::Alone)?;
                transaction.commit(cluster).map(|()| Reply::OK)
            }
            Open::ReadOnly { snapshot, .. } => {
                self.shared.engine.read_from(&snapshot, pending);
                Ok(Reply::OK)
            }
            // All replies were sent only when the data in them was durable.
            Open::OfCluster { .. } => Ok(Reply::OK),
            Open::Live { tx, added, .. } => {
                keyspace::add_to_count(&tx, added).map_err(Failure::from)?;
                let ticket = tx.commit_deferred_flush().map_err(Failure::from)?;
                if self.shared.engine.durability == Durability::Immediate {
                    pending.add(ticket);
                }
                Ok(Reply::OK)
            }
        }
    }

    pub(super) fn abort(&mut self) -> Result<Reply, CommandError> {
        match std::mem::replace(&mut self.open, Open::None) {
            Open::None => Err(CommandError::Without("AZ.ABORT", "AZ.BEGIN")),
            Open::Failed(_) | Open::ReadOnly { .. } | Open::OfCluster { .. } => Ok(Reply::OK),
            Open::Remote { transaction, .. } => {
                transaction.abort(self.shared.cluster.get().ok_or(CommandError::Alone)?);
                Ok(Reply::OK)
            }
            Open::Live { tx, .. } => {
                tx.abort().map_err(Failure::from)?;
                Ok(Reply::OK)
            }
        }
    }

    /// Runs a data command in an interactive transaction of the cluster.
    pub(super) fn run_remote(
        &mut self,
        spec: &'static Spec,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        let (shared, command) = (&self.shared, (spec, request));
        let stepped = match (&mut self.open, shared.cluster.get()) {
            (Open::Remote { transaction, .. }, Some(cluster)) => {
                transaction.step(shared, cluster, command, self.protocol)
            }
            (Open::OfCluster { snapshot, .. }, Some(cluster)) => {
                snapshot.step(shared, cluster, command, self.protocol)
            }
            _ => return Err(CommandError::Without("AZ.COMMIT", "AZ.BEGIN")),
        };
        match stepped {
            Ok(reply) => Ok(reply),
            Err(StepError::Refused(error)) => Err(error),
            Err(StepError::Over(error)) => {
                self.open = Open::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Runs a data command in an interactive transaction of this server.
    pub(super) fn run_in_open(&mut self, run: Run, request: Request<'_>) -> Result<Reply, CommandError> {
        let (context, clock) = (&self.shared.engine.context, &self.shared.engine.clock);
        let keys = match &self.open {
            Open::Live { tx, now_ms, added, .. } => {
                Keyspace::open(tx, *now_ms, context).map(|keys| keys.continued(*added, clock.now_ms()))
            }
            Open::ReadOnly { snapshot, now_ms, .. } => Keyspace::of_snapshot(snapshot, *now_ms, context),
            _ => return Err(CommandError::Without("AZ.COMMIT", "AZ.BEGIN")),
        };
        let ran = keys.map(|keys| (run_inside(&keys, run, request), keys.added()));
        let done = ran.map_err(Failure::from).and_then(|(done, all_added)| {
            if let Open::Live { added, .. } = &mut self.open {
                *added = all_added;
            }
            done
        });
        done.map_err(|failure| {
            let is_over = matches!(failure, Failure::Store(_));
            let error = CommandError::from(failure);
            if is_over {
                // Replacing the state drops the transaction, which rolls it back if a deadlock has not done
                // so.
                self.open = Open::Failed(error.clone());
            }
            error
        })
    }

    /// Runs `RESET`.
    pub(super) fn reset(&mut self) -> Reply {
        self.queue = None;
        self.open = Open::None;
        self.snapshots.clear();
        self.unwatch();
        self.protocol = crate::resp::Protocol::default();
        self.is_authenticated = self.shared.options.password.is_none();
        let mut about = self.client.about.lock();
        about.name.clear();
        about.protocol = self.protocol.number();
        drop(about);
        Reply::Simple("RESET")
    }
}

/// Returns `true` if no watched key has changed. First locks the watched keys (WATCH-3), with write locks if
/// writes follow: two transactions that both read and then write would deadlock.
fn still_as_watched(keys: &Keyspace<'_>, watched: &WatchSet, writes: bool) -> Result<bool, Failure> {
    for (key, was_there) in watched.keys() {
        let is_there = if writes { keys.lock(key)? } else { keys.exists(key)? };
        // An expired key has changed too, although no client wrote it.
        if was_there && !is_there {
            return Ok(false);
        }
    }
    Ok(!watched.changed().is_set())
}
