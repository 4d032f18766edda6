//! The ticket of an asynchronous commit: wait, poll, or await.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use azekura_base::Lsn;
use azekura_base::sync::machine;
use azekura_wal::{Ticket, Wal};

use crate::Error;
use crate::lifetime::Use;
use crate::opener::Opener;

/// A handle that reports when a commit is durable; returned by
/// [`Transaction::commit_async`](crate::Transaction::commit_async) and
/// [`commit_deferred_flush`](crate::Transaction::commit_deferred_flush).
///
/// A ticket may be dropped: the commit proceeds without it. As a `Future`, a ticket needs no particular
/// runtime. A ticket does not keep the store open; closing the store makes the commit durable.
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error, TableDefinition};
/// # const T: TableDefinition<u64, u64> = TableDefinition::new("t");
/// # fn main() -> Result<(), Error> {
/// let db = Database::in_memory()?;
/// let mut tickets = Vec::new();
/// for i in 0..100 {
///     let ((), ticket) = db.transact_async(|tx| tx.table(&T)?.insert(&i, &i))?;
///     tickets.push(ticket); // 100 transactions in flight, one flush for many
/// }
/// for ticket in tickets {
///     ticket.wait()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the commit may not be durable until `wait` returns, or the ticket is awaited"]
pub struct CommitTicket(Ticket<LogRef>);

/// A handle of the store's log for the tickets of some threads. The alignment gives each reference count a
/// cache line of its own.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct TicketLog {
    wal: Arc<Wal>,
    opener: Opener,
}

impl TicketLog {
    pub(crate) fn new(wal: Arc<Wal>) -> Self {
        Self { wal, opener: Opener::this_process() }
    }
}

/// A reference to the store's log, with a count that only some threads share. With one count for all threads,
/// every ticket would write the same cache line.
#[derive(Debug)]
struct LogRef(Arc<TicketLog>);

impl LogRef {
    fn of(db: &Use) -> Self {
        machine::adds(&**db.tickets()); // increments the reference count
        Self(Arc::clone(db.tickets()))
    }
}

impl Clone for LogRef {
    fn clone(&self) -> Self {
        machine::adds(&*self.0); // increments the reference count
        Self(Arc::clone(&self.0))
    }
}

impl Deref for LogRef {
    type Target = Wal;
    fn deref(&self) -> &Wal {
        &self.0.wal
    }
}

impl CommitTicket {
    pub(crate) fn new(db: &Use, commit: Lsn) -> Self {
        Self(Wal::ticket_through(LogRef::of(db), commit))
    }

    /// Returns a ticket that requests a flush only when a caller waits for it.
    pub(crate) fn quiet(db: &Use, commit: Lsn) -> Self {
        Self(Wal::quiet_ticket_through(LogRef::of(db), commit))
    }

    /// Returns an error in a forked process, because the log's threads and mutexes belong to the process that
    /// opened the store.
    fn check_process(&self) -> Result<(), Error> {
        self.0.log_ref().0.opener.check()
    }

    /// Blocks until the commit survives power loss.
    ///
    /// # Errors
    ///
    /// [`Error::Log`]: the log failed before; only reopening the store shows whether the commit is durable.
    /// [`Error::Forked`] in a forked child process.
    pub fn wait(self) -> Result<(), Error> {
        let _ticket = crate::probe::ticket();
        self.check_process()?;
        self.0.wait().map_err(Error::from)
    }

    /// Returns a ticket that is durable once both tickets are. Both must be of the same store.
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Returns `true` if the commit is durable already. Costs a few loads.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn is_durable(&self) -> Result<bool, Error> {
        self.check_process()?;
        self.0.is_durable().map_err(Error::from)
    }
}

impl Future for CommitTicket {
    type Output = Result<(), Error>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(forked) = self.check_process() {
            return Poll::Ready(Err(forked));
        }
        Pin::new(&mut self.0).poll(context).map_err(Error::from)
    }
}
