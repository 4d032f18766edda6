//! The ticket of an asynchronous commit: wait, poll, or await.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use azekura_base::sync::machine;
use azekura_wal::{CommitPoint, Ticket, Wal};

use crate::Error;
use crate::database::Door;

/// Tells when a commit is durable; made by [`Transaction::commit_async`](crate::Transaction::commit_async) and
/// [`commit_batched`](crate::Transaction::commit_batched).
///
/// The commit goes on whether or not the ticket is looked at; dropping it is fine. As a `Future` it needs no particular runtime.
///
/// ```
/// # use azekura::{Database, Error, Table};
/// # const T: Table<u64, u64> = Table::new("t");
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
#[must_use = "without looking at the ticket nobody knows when the commit is durable"]
pub struct CommitTicket(Ticket<LogDoor>);

/// The store's log, by the reference of the thread's own that its transaction had: a count of the log's would be written by all threads.
struct LogDoor(Arc<Door>);

impl Clone for LogDoor {
    fn clone(&self) -> Self {
        machine::adds(&*self.0); // the count
        Self(Arc::clone(&self.0))
    }
}

impl Deref for LogDoor {
    type Target = Wal;
    fn deref(&self) -> &Wal {
        &self.0.wal
    }
}

impl fmt::Debug for LogDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogDoor")
    }
}

impl CommitTicket {
    pub(crate) fn new(db: &Arc<Door>, commit: CommitPoint) -> Self {
        machine::adds(&**db); // the count
        Self(Wal::ticket_through(LogDoor(Arc::clone(db)), commit))
    }

    /// One whose flush nobody is asked for before it is waited for.
    pub(crate) fn quiet(db: &Arc<Door>, commit: CommitPoint) -> Self {
        machine::adds(&**db); // the count
        Self(Wal::quiet_ticket_through(LogDoor(Arc::clone(db)), commit))
    }

    /// Blocks until the commit survives power loss.
    ///
    /// # Errors
    ///
    /// [`Error::Log`] when the log failed first: whether the commit lasted is known only after reopening.
    pub fn wait(self) -> Result<(), Error> {
        let _ticket = crate::probe::ticket();
        self.0.wait().map_err(Error::from)
    }

    /// A ticket for both of two of the same store: when it is durable, both are.
    pub fn later(self, other: Self) -> Self {
        Self(self.0.later(other.0))
    }

    /// Whether the commit survives power loss by now. Costs a few loads.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait).
    pub fn is_durable(&self) -> Result<bool, Error> {
        self.0.is_durable().map_err(Error::from)
    }
}

impl Future for CommitTicket {
    type Output = Result<(), Error>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(Error::from)
    }
}
