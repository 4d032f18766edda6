//! Groups: one store transaction for the small requests of many clients, each of one key.
//!
//! Beginning a transaction, locking the table and logging a commit take about a tenth of the time of a small
//! write. Requests that a reactor runs in one turn share a flush anyway. So requests of a single key also
//! share the transaction, if all of them store, or all of them remove ([`GroupKind`]). Each request takes
//! effect as if it ran alone, and gets its reply when the transaction is durable. Reads are not members: a
//! transaction is only 2 % of the processor time of a pipelined `GET`.
//!
//! | a group is | meaning | left by |
//! |---|---|---|
//! | closed | no transaction | the next request that may join |
//! | open | its transaction holds all locks; no reply yet | [`Group::close`], after the turn or before |
//! | failed | the transaction is rolled back; no member is done | [`Group::close`], which returns the error |
//!
//! - **GROUP-1** A member never waits for a lock. A member that would wait is undone and leaves the group;
//!   the group is closed, and the request runs alone. So a group is in no deadlock, and no member waits for
//!   another client's interactive transaction. Only the commit may wait for another commit, for the row of
//!   the key count (COUNT-2).
//! - **GROUP-2** While a group is open, its thread runs nothing else on the store: other work could wait for
//!   the group's locks, which only this thread can release.
//! - **GROUP-3** A member that is refused or leaves keeps only its locks; earlier members are unaffected.
//!   Undo does not wait either: only the undo of an insertion may have to pass on a locked gap (`azekura`:
//!   `pass_on_gaps`), and a group that inserts has locked no gap, because its members do not remove.
//! - **GROUP-4** Connections with members in an open group stay with its thread. They receive the result
//!   before any other step. So no reply is sent before the commit is durable (REPLY-1), and none at all if
//!   the group fails.
//! - **GROUP-5** A transaction that waits for a lock of a group waits only for the running member and the
//!   commit: the group accepts no member while a transaction waits. The numbers of members and of bytes of
//!   requests and replies are bounded too.
//!
//! In a cluster the group holds the gate of this node's keys until it is committed (`cluster::local`): a
//! request for a key of another node does not join.
//!
//! Serializability: the locks of all members are held until the commit, as if the members had run one after
//! the other at that moment. Each request arrived before that moment and is answered after it. Each member
//! has its own time (KEY-2), as if it ran alone. The watchers of a key are notified while its lock is held
//! (WATCH-1). `EXEC` waits for that lock, unless the group's own thread runs it; that thread closes the group
//! first (GROUP-2).

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering::Relaxed;

use azekura::{CommitTicket, Durability, Error, Transaction};
use azekura_fatbtree::LocalEntry;

use crate::command::{CommandResult, GroupKind, Spec};
use crate::engine::Engine;
use crate::error::{CommandError, Failure};
use crate::keyspace::{self, KeyCounts, Keyspace};
use crate::resp::{Reply, Request};
use crate::server::Shared;

/// Largest number of members: the group holds the locks of all of them.
const MEMBERS: usize = 64;
/// Bytes of requests and replies after which a group accepts no more; a larger request joins no group.
const BYTES: usize = 16 << 10;

/// A command as a function over the keys of a transaction.
type Apply = fn(&Keyspace<'_>, Request<'_>) -> CommandResult;

/// A group; each worker thread owns one.
#[derive(Debug, Default)]
pub(crate) struct Group {
    open: Option<Open>,
    /// Requests with replies that depend on the result of the group.
    members: usize,
    bytes: usize,
    /// Error of a failed group.
    failure: Option<CommandError>,
}

#[derive(Debug)]
struct Open {
    tx: Transaction,
    /// In a cluster: prevents that a leaf with a key of the group moves. Dropped after the transaction.
    entry: Option<LocalEntry>,
    shared: Arc<Shared>,
    kind: GroupKind,
    /// Number of records that the members have added.
    added: KeyCounts,
    /// Bytes that the newest member has written.
    written: usize,
}

/// Result of an attempt to join a group.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Joined, with the reply.
    Done(Result<Reply, CommandError>),
    /// The request would wait, or is of another kind. It runs alone after the group is closed.
    WouldBlock,
    /// This thread may not serve the request's key now (`cluster::local`).
    Elsewhere,
}

/// Result of a group: the commit ticket of all members, or an error if no member was committed.
pub(crate) type Ended = Result<Option<CommitTicket>, CommandError>;

impl Group {
    /// Returns the kind of group that a request may join, from its command and its size.
    pub(crate) fn kind_of(spec: &Spec, request: Request<'_>) -> Option<GroupKind> {
        // DEL is the only member command with a variable number of keys.
        let has_one_key = spec.joins != Some(GroupKind::Remove) || request.len() == 2;
        spec.joins.filter(|_| has_one_key && request.bytes() <= BYTES)
    }

    /// Returns `true` if the group is closed, or open for requests of this kind.
    pub(crate) fn is_for(&self, kind: GroupKind) -> bool {
        self.open.as_ref().is_none_or(|open| open.kind == kind)
    }

    /// Returns `true` if the group must be closed before its thread runs anything else (GROUP-2).
    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some() || self.failure.is_some()
    }

    /// Returns `true` if the group accepts no more members (GROUP-5).
    pub(crate) fn is_full(&self) -> bool {
        self.failure.is_some()
            || self.members >= MEMBERS
            || self.bytes >= BYTES
            || self.open.as_ref().is_some_and(|open| open.tx.has_waiters())
    }

    /// Returns the number of members.
    pub(crate) const fn members(&self) -> usize {
        self.members
    }

    /// Runs a request as a member. May block for a device, but not for a lock.
    pub(crate) fn run(
        &mut self,
        shared: &Arc<Shared>,
        kind: GroupKind,
        apply: Apply,
        request: Request<'_>,
    ) -> Joined {
        let engine = &shared.engine;
        let key = request.arg(1);
        let open = match &mut self.open {
            Some(open) => {
                if open.entry.as_ref().is_some_and(|entry| !entry.serves(key)) {
                    return Joined::Elsewhere;
                }
                open
            }
            None => match Open::begin(shared, kind, key) {
                Ok(Some(open)) => self.open.insert(open),
                Ok(None) => return Joined::Elsewhere,
                Err(error) => return Joined::Done(Err(engine.client_error(error.into()))),
            },
        };
        let added = open.added;
        let before = match open.tx.savepoint() {
            Ok(before) => before,
            Err(error) => return Joined::Done(Err(engine.client_error(error.into()))),
        };
        let reply = match open.apply(apply, request) {
            Ok(reply) => {
                if let Some(cluster) = shared.cluster.get() {
                    cluster.note_growth(key, open.added.records - added.records, open.written);
                }
                Ok(reply)
            }
            Err(failure) => {
                let is_undone = open.tx.rollback_to(before).is_ok(); // GROUP-3
                if matches!(failure, Failure::Store(Error::WouldBlock { .. })) && is_undone {
                    if self.members == 0 {
                        self.open = None; // the group is empty
                    }
                    return Joined::WouldBlock; // GROUP-1
                }
                let error = engine.client_error(failure);
                if !is_undone {
                    // The transaction has ended, or its rollback is parked.
                    self.fail(error.clone());
                }
                Err(error)
            }
        };
        // A refused request counts too: it may have read writes of other members.
        self.members += 1;
        self.bytes += request.bytes() + reply.as_ref().map_or(0, Reply::value_bytes);
        Joined::Done(reply)
    }

    /// Fails the group: its transaction is rolled back, and no member is committed.
    pub(crate) fn fail(&mut self, why: CommandError) {
        self.failure.get_or_insert(why);
        self.open = None;
    }

    /// Commits the group and returns the result; `None` if it was not open.
    pub(crate) fn close(&mut self) -> Option<Ended> {
        let Self { open, members, failure, .. } = std::mem::take(self);
        if let Some(why) = failure {
            return Some(Err(why));
        }
        let Open { tx, entry, shared, added, .. } = open?;
        shared.counters.groups.add(1);
        shared.counters.grouped.add(members as u64);
        let is_waited_for = shared.engine.durability == Durability::Immediate;
        // Waits at most for other commits, because the row of the count is locked last (COUNT-2).
        let counted = tx.set_nowait(false).and_then(|()| keyspace::add_to_count(&tx, added));
        let ticket = counted.and_then(|()| tx.commit_deferred_flush());
        drop(entry);
        let ticket = ticket.map_err(|error| shared.engine.client_error(error.into()));
        Some(ticket.map(|ticket| is_waited_for.then_some(ticket)))
    }
}

impl Open {
    /// Begins a group with its first key; `None` if this thread may not serve the key.
    fn begin(shared: &Arc<Shared>, kind: GroupKind, key: &[u8]) -> Result<Option<Self>, Error> {
        let entry = match shared.cluster.get() {
            None => None,
            Some(cluster) => match cluster.enter(key) {
                None => return Ok(None),
                entry => entry,
            },
        };
        let tx = shared.engine.db.begin()?;
        tx.set_nowait(true)?; // GROUP-1
        let (shared, added) = (Arc::clone(shared), KeyCounts::default());
        Ok(Some(Self { tx, entry, shared, kind, added, written: 0 }))
    }

    fn apply(&mut self, apply: Apply, request: Request<'_>) -> CommandResult {
        let Engine { clock, context, .. } = &self.shared.engine;
        let keys = Keyspace::open(&self.tx, clock.now_ms(), context)?;
        let done = apply(&keys, request);
        if done.is_ok() {
            self.added += keys.added(); // the caller undoes a member that fails
            self.written = keys.written_bytes();
        }
        #[cfg(test)]
        assert!(!self.shared.engine.breaks_next_member.swap(false, Relaxed), "as a test wants it");
        done
    }
}
