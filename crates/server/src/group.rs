//! Groups: one transaction for the small writes of many clients, each of one key.
//!
//! What a transaction takes beside the row, to begin, to lock the table, to log its end, is a good tenth of a
//! small write. Requests that a reactor runs in one turn share a flush anyway, so those that only store one
//! key share the transaction too, each as if it were alone, and are answered when it is durable.
//!
//! | a group is | means | left by |
//! |---|---|---|
//! | closed | it has no transaction | the next request that may join |
//! | open | its transaction holds the locks of all its members; no member has a reply | [`Group::close`] |
//! | lost | its transaction is rolled back, and no member is done | [`Group::close`], which says so |
//!
//! - **GROUP-1** A member waits for no lock. One that would have to *falls out*: it is undone, the group is
//!   closed, and it runs alone. So a group is in no deadlock, and nobody in it waits for an interactive
//!   transaction of somebody else.
//! - **GROUP-2** While a group is open its thread runs nothing else on the store: that could wait for the
//!   group's locks, which no other thread lets go.
//! - **GROUP-3** A member that is refused, or falls out, leaves nothing but locks; those before it stay. To
//!   undo one waits for nothing either: members store keys and remove none, so the group has closed no gap
//!   among the keys that an undone insertion would have to pass on (`azekura`: `pass_on_gaps`).
//! - **GROUP-4** Connections with members in an open group stay with its thread. They are told of its end
//!   before anything is done with them, so no reply is sent before its commit is durable (REPLY-1), and none
//!   at all if the group is lost: whatever becomes of a group becomes of all of it, and nobody was told
//!   otherwise.
//! - **GROUP-5** A transaction that waits for a lock of a group waits for the running member and the commit:
//!   the group takes no more members when a transaction waits, and a bounded number of members and bytes.
//!
//! Why this is serializable: all locks of the members are held until the commit, as if they had been run at
//! that moment, one after the other. Each came before that and is answered after it. Each takes the time for
//! itself (KEY-2), as it would alone. The watchers of a key are told while its lock is held (WATCH-1), and
//! `EXEC` waits for that lock, if it is not the group's own thread's, which has closed the group before
//! (GROUP-2).

use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering::Relaxed;

use azekura::{CommitTicket, Durability, Error, Transaction};

use crate::command::{CommandResult, Spec};
use crate::engine::Engine;
use crate::error::{CommandError, Failure};
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};
use crate::server::Shared;

/// Members of a group, at most: it holds the locks of all of them.
const MEMBERS: usize = 64;
/// Bytes of their requests: with so many a group takes no more, and a larger request joins none.
const BYTES: usize = 16 << 10;

/// A command over the keys inside a transaction.
type Apply = fn(&Keyspace<'_>, Request<'_>) -> CommandResult;

/// See the module's head. Its thread's own.
#[derive(Debug, Default)]
pub(crate) struct Group {
    open: Option<Open>,
    /// Requests with replies that count once the group has ended.
    members: usize,
    bytes: usize,
    /// Why it is lost.
    lost: Option<CommandError>,
}

#[derive(Debug)]
struct Open {
    tx: Transaction,
    shared: Arc<Shared>,
}

/// Result of an attempt to join a group.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Joined, with the reply.
    Done(Result<Reply, CommandError>),
    /// Fell out: runs alone after the group is closed.
    FellOut,
}

/// End of a group: the ticket of its commit for all members, or an error if no member was committed.
pub(crate) type Ended = Result<Option<CommitTicket>, CommandError>;

impl Group {
    /// Returns `true` if a request may be a member, judged before it runs.
    pub(crate) fn takes(spec: &Spec, request: Request<'_>) -> bool {
        spec.stores_one && request.bytes() <= BYTES
    }

    /// Returns `true` if the group must be closed before its thread runs anything else (GROUP-2).
    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some() || self.lost.is_some()
    }

    /// Returns `true` if the group takes no more members (GROUP-5).
    pub(crate) fn is_full(&self) -> bool {
        self.lost.is_some()
            || self.members >= MEMBERS
            || self.bytes >= BYTES
            || self.open.as_ref().is_some_and(|open| open.tx.has_waiters())
    }

    /// Returns the number of members.
    pub(crate) const fn members(&self) -> usize {
        self.members
    }

    /// Runs a request as a member. May block for a device, not for a lock.
    pub(crate) fn run(&mut self, shared: &Arc<Shared>, apply: Apply, request: Request<'_>) -> Joined {
        let engine = &shared.engine;
        let open = match &mut self.open {
            Some(open) => open,
            None => match Open::begin(shared) {
                Ok(open) => self.open.insert(open),
                Err(error) => return Joined::Done(Err(engine.told(error.into()))),
            },
        };
        let before = match open.tx.savepoint() {
            Ok(before) => before,
            Err(error) => return Joined::Done(Err(engine.told(error.into()))),
        };
        let reply = match open.apply(apply, request) {
            Ok(reply) => Ok(reply),
            Err(failure) => {
                let is_undone = open.tx.rollback_to(before).is_ok(); // GROUP-3
                if matches!(failure, Failure::Store(Error::WouldBlock { .. })) && is_undone {
                    if self.members == 0 {
                        self.open = None; // nothing is left of it
                    }
                    return Joined::FellOut; // GROUP-1
                }
                let error = engine.told(failure);
                if !is_undone {
                    // The transaction is over, or its rollback waits for better times.
                    self.lose(error.clone());
                }
                Err(error)
            }
        };
        // A refused one too: it may have seen what others in the group wrote.
        self.members += 1;
        self.bytes += request.bytes();
        Joined::Done(reply)
    }

    /// None of it is done; its transaction is rolled back.
    pub(crate) fn lose(&mut self, why: CommandError) {
        self.lost.get_or_insert(why);
        self.open = None;
    }

    /// Commits it, and tells how it ended; `None` if it was not open.
    pub(crate) fn close(&mut self) -> Option<Ended> {
        let Self { open, members, lost, .. } = std::mem::take(self);
        if let Some(why) = lost {
            return Some(Err(why));
        }
        let Open { tx, shared } = open?;
        shared.counters.groups.add(1);
        shared.counters.grouped.add(members as u64);
        let is_waited_for = shared.engine.durability == Durability::Immediate;
        let ticket = tx.commit_deferred_flush().map_err(|error| shared.engine.told(error.into()));
        Some(ticket.map(|ticket| is_waited_for.then_some(ticket)))
    }
}

impl Open {
    fn begin(shared: &Arc<Shared>) -> Result<Self, Error> {
        let tx = shared.engine.db.begin()?;
        tx.set_nowait(true)?; // GROUP-1
        Ok(Self { tx, shared: Arc::clone(shared) })
    }

    fn apply(&self, apply: Apply, request: Request<'_>) -> CommandResult {
        let Engine { clock, around, .. } = &self.shared.engine;
        let done = apply(&Keyspace::open(&self.tx, clock.now_ms(), around)?, request);
        #[cfg(test)]
        assert!(!self.shared.engine.breaks_next_member.swap(false, Relaxed), "as a test wants it");
        done
    }
}
