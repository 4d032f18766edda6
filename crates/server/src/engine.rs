//! Runs commands in transactions of this server's store. In a cluster, `cluster` sends requests to the owners
//! of their keys.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use azekura::{CommitTicket, Database, Durability, ErrorKind, Snapshot, Transaction};

use crate::command::{self, CommandResult, Run};
use crate::error::{CommandError, Failure};
use crate::events::Events;
use crate::keyspace::{self, KeyCounts, Keyspace, KeyspaceContext};
use crate::options::ServerOptions;
use crate::resp::{Reply, Request};

/// A clock: milliseconds since 1970.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Clock {
    /// The system clock.
    #[default]
    System,
    /// A clock that the program sets, for tests.
    Manual(Arc<AtomicU64>),
}

impl Clock {
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// Returns the time in microseconds since 1970.
    pub(crate) fn now_us(&self) -> u64 {
        match self {
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
            }
            // Relaxed: the time orders nothing.
            Self::Manual(now_ms) => now_ms.load(Relaxed).saturating_mul(1000),
        }
    }
}

/// Largest number of snapshots over which a single command is run. Each but the last became too old: writers
/// filled the memory for row versions before the command had read its rows.
pub(crate) const MOST_SNAPSHOTS: u32 = 3;

/// The store and the shared state of commands.
pub(crate) struct Engine {
    pub(crate) db: Database,
    pub(crate) context: KeyspaceContext,
    pub(crate) clock: Clock,
    pub(crate) durability: Durability,
    events: Arc<Events>,
    /// The error since which the store accepts no commits.
    failure: OnceLock<String>,
    /// A change was refused for a full disk, and no attempt has succeeded since.
    is_disk_full: AtomicBool,
    #[cfg(test)]
    pub(crate) breaks_next_wait: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    pub(crate) breaks_next_member: std::sync::atomic::AtomicBool,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("db", &self.db).finish_non_exhaustive()
    }
}

/// The commits that must be durable before replies are sent.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The ticket of these commits that is durable last.
    newest: Option<CommitTicket>,
}

impl Pending {
    /// Adds a ticket, unless it is durable already.
    pub(crate) fn add(&mut self, ticket: CommitTicket) {
        // An error is ignored here, because `wait` returns it.
        if !ticket.is_durable().is_ok_and(|is| is) {
            self.newest = Some(match self.newest.take() {
                None => ticket,
                Some(other) => ticket.max(other),
            });
        }
    }

    /// Returns `true` if there is a commit to wait for.
    pub(crate) const fn is_some(&self) -> bool {
        self.newest.is_some()
    }

    /// Returns the ticket, for a caller that waits elsewhere.
    pub(crate) fn into_ticket(self) -> Option<CommitTicket> {
        self.newest
    }

    /// Blocks until all commits are durable.
    fn wait(&mut self) -> Result<(), azekura::Error> {
        self.newest.take().map_or(Ok(()), CommitTicket::wait)
    }
}

impl Engine {
    pub(crate) fn new(
        db: Database,
        context: KeyspaceContext,
        options: &ServerOptions,
        events: Arc<Events>,
    ) -> Self {
        Self {
            db,
            context,
            clock: options.clock.clone(),
            durability: options.durability,
            events,
            failure: OnceLock::new(),
            is_disk_full: AtomicBool::new(false),
            #[cfg(test)]
            breaks_next_wait: std::sync::atomic::AtomicBool::new(false),
            #[cfg(test)]
            breaks_next_member: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Blocks until all pending commits are durable.
    pub(crate) fn wait(&self, pending: &mut Pending) -> Result<(), CommandError> {
        #[cfg(test)]
        assert!(!self.breaks_next_wait.swap(false, Relaxed), "as a test wants it");
        pending.wait().map_err(|error| {
            let error = self.note(error);
            CommandError::Unknown(format!("{error}; the last writes may or may not be durable"))
        })
    }

    /// Returns the error since which the store accepts no commits, or the failure of its background work.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned().or_else(|| {
            let stats = self.db.stats();
            stats.degraded.or(stats.background_error)
        })
    }

    /// Returns the reason that changes are refused, if the disk is full. After a refused change, each call
    /// attempts a change without an effect, because nothing else announces that the disk has space again.
    pub(crate) fn disk_full(&self) -> Option<String> {
        // Relaxed, also below: a state that orders nothing.
        if !self.is_disk_full.load(Relaxed) {
            return None;
        }
        match self.db.transact_deferred_flush(keyspace::change_nothing) {
            Err(error @ azekura::Error::LogFull { .. }) => return Some(error.full_message()),
            Ok(_) => self.is_disk_full.store(false, Relaxed),
            Err(_) => {} // a lock, or a failure that `failure` reports
        }
        None
    }

    /// Returns the error that the client receives for `failure`. Records an error since which the store
    /// accepts no commits.
    pub(crate) fn client_error(&self, failure: Failure) -> CommandError {
        match failure {
            Failure::Store(error) => Failure::from(self.note(error)).into(),
            refusal => refusal.into(),
        }
    }

    /// Reports an error of the store. Records it if the store accepts no more commits.
    fn note(&self, error: azekura::Error) -> azekura::Error {
        self.events.failed(&error);
        if error.kind() == ErrorKind::Closed {
            self.failure.get_or_init(|| error.to_string());
        }
        if matches!(error, azekura::Error::LogFull { .. }) {
            self.is_disk_full.store(true, Relaxed);
        }
        error
    }

    /// Runs `body` in a transaction, with retries after conflicts. A refusal rolls the transaction back.
    pub(crate) fn run<T>(
        &self,
        pending: &mut Pending,
        mut body: impl FnMut(&Keyspace<'_>) -> Result<T, Failure>,
    ) -> Result<T, CommandError> {
        let done = self.db.transact_deferred_flush(|tx| {
            let keys = Keyspace::open(tx, self.clock.now_ms(), &self.context)?;
            let value = body(&keys)?;
            keys.store_count()?;
            Ok(value)
        });
        let (value, ticket) = done.map_err(|error| self.client_error(error.into()))?;
        if self.durability == Durability::Immediate {
            pending.add(ticket);
        }
        Ok(value)
    }

    /// Like [`run`](Self::run), but without retries, and with a bound on each lock wait. Returns `None` if
    /// the transaction conflicted with another one and was rolled back: the caller must run it again.
    pub(crate) fn attempt<T>(
        &self,
        lock_wait: Duration,
        pending: &mut Pending,
        body: impl FnOnce(&Keyspace<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, CommandError> {
        let done = self.db.begin().map_err(Failure::from).and_then(|tx| {
            tx.set_lock_timeout(Some(lock_wait))?;
            let keys = Keyspace::open(&tx, self.clock.now_ms(), &self.context)?;
            let value = body(&keys)?;
            keys.store_count()?;
            drop(keys);
            Ok((value, tx.commit_deferred_flush()?))
        });
        match done {
            Ok((value, ticket)) => {
                if self.durability == Durability::Immediate {
                    pending.add(ticket);
                }
                Ok(Some(value))
            }
            Err(Failure::Store(azekura::Error::WouldBlock { .. })) => Ok(None),
            Err(Failure::Store(error)) if error.kind() == ErrorKind::Conflict => Ok(None),
            Err(failure) => Err(self.client_error(failure)),
        }
    }

    /// Returns the numbers of keys that have not expired.
    pub(crate) fn key_counts(&self) -> Result<KeyCounts, CommandError> {
        self.repeat(|| Ok(keyspace::live_counts(&self.snapshot()?, self.clock.now_ms())?))
    }

    /// Runs a single command.
    pub(crate) fn run_data(
        &self,
        pending: &mut Pending,
        apply: fn(&Keyspace<'_>, Request<'_>) -> CommandResult,
        request: Request<'_>,
    ) -> Result<Reply, CommandError> {
        self.run(pending, |keys| apply(keys, request))
    }

    /// Runs `body` over a snapshot of the present state. The snapshot waits for no lock, and no writer waits
    /// for it. If it becomes too old meanwhile, runs `body` again over a new one ([`MOST_SNAPSHOTS`]).
    pub(crate) fn read<T>(
        &self,
        pending: &mut Pending,
        body: impl Fn(&Keyspace<'_>) -> Result<T, Failure>,
    ) -> Result<T, CommandError> {
        self.repeat(|| self.read_in(&self.snapshot()?, pending, &body))
    }

    /// Runs `read`, which opens a snapshot. If the snapshot becomes too old, because writers fill the memory
    /// for row versions, runs it again, at most [`MOST_SNAPSHOTS`] times in all.
    pub(crate) fn repeat<T>(&self, mut read: impl FnMut() -> Result<T, Failure>) -> Result<T, CommandError> {
        let mut tries = 1;
        loop {
            match read() {
                Err(failure) if failure.is_old_snapshot() && tries < MOST_SNAPSHOTS => tries += 1,
                done => return done.map_err(|failure| self.client_error(failure)),
            }
        }
    }

    /// Opens a snapshot of the present state.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        Ok(self.db.snapshot()?)
    }

    /// Returns `true` if the thread has read pages in lately, so that announced keys could help.
    pub(crate) fn should_prefetch(&self) -> bool {
        self.db.should_prefetch()
    }

    /// Runs `body` over a snapshot.
    fn read_in<T>(
        &self,
        snapshot: &Snapshot,
        pending: &mut Pending,
        body: impl FnOnce(&Keyspace<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let value = body(&Keyspace::of_snapshot(snapshot, self.clock.now_ms(), &self.context)?)?;
        self.read_from(snapshot, pending);
        Ok(value)
    }

    /// Runs a command on ranges of keys, or on all keys, over a snapshot.
    pub(crate) fn run_over(
        &self,
        snapshot: &Snapshot,
        pending: &mut Pending,
        run: Run,
        request: Request<'_>,
    ) -> CommandResult {
        match run {
            Run::Range(apply) => self.read_in(snapshot, pending, |keys| apply(keys, request)),
            Run::Walk(walk) => self.read_in(snapshot, pending, |keys| command::walk_all(keys, walk, request)),
            Run::Data(_) | Run::Session(_) => Err(CommandError::Syntax.into()),
        }
    }

    /// Makes the reply wait for the commits that are visible in the snapshot.
    pub(crate) fn read_from(&self, snapshot: &Snapshot, pending: &mut Pending) {
        if self.durability == Durability::Immediate {
            pending.add(snapshot.durable_ticket());
        }
    }

    /// Returns the keys in an open transaction.
    pub(crate) fn keyspace<'tx>(
        &'tx self,
        tx: &'tx Transaction,
        now_ms: u64,
        is_read_only: bool,
    ) -> Result<Keyspace<'tx>, Failure> {
        Ok(Keyspace::open(tx, now_ms, &self.context)?.read_only(is_read_only))
    }
}

/// Runs a command in an open transaction, or over its snapshot. A refused command changes nothing.
pub(crate) fn run_inside(keys: &Keyspace<'_>, run: Run, request: Request<'_>) -> CommandResult {
    let before = keys.savepoint()?;
    let done = match run {
        Run::Data(apply) | Run::Range(apply) => apply(keys, request),
        Run::Walk(walk) => command::walk_all(keys, walk, request),
        Run::Session(_) => Err(CommandError::Syntax.into()),
    };
    if let Err(Failure::Command(_)) = &done {
        keys.rollback_to(before)?;
    }
    done
}
