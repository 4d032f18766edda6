//! The interface of the log for the page cache, so that neither imports the other (invariant 2, hazards G4,
//! W4).

use crate::{Lsn, PageId};

/// The log cannot make anything durable any more: a write or a sync failed, and the store stopped committing
/// (W10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFailed {
    /// The first failure, as text: file, offset and the operating system's reason.
    pub reason: std::sync::Arc<str>,
}

impl std::fmt::Display for LogFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the log failed and takes no more commits; reopen the database: {}", self.reason)
    }
}

impl std::error::Error for LogFailed {}

/// The interface of the log for the page cache.
pub trait DurableLog: Send + Sync {
    /// Returns an LSN above every LSN drawn so far. Later records may have smaller ones, if the log draws
    /// LSNs ahead: [`lsn_bound`](Self::lsn_bound) is below them. Once everything below the returned LSN is
    /// durable, it is durable too.
    ///
    /// Costs a load of a counter that every appender writes.
    fn next_lsn(&self) -> Lsn;

    /// Returns a lower bound of the LSNs of all records that are appended after this call. It may be lower
    /// than [`next_lsn`](Self::next_lsn), by the records that are not durable yet, and costs a load of a line
    /// that only flushes write. The default is for logs that give each record the next LSN.
    ///
    /// A page that turns dirty takes this as the lower bound of its recovery LSN *before* its record is
    /// appended.
    fn lsn_bound(&self) -> Lsn {
        self.next_lsn()
    }

    /// Returns the LSN up to which every record is on disk, in every stream.
    fn durable_lsn(&self) -> Lsn;

    /// Returns `true` if a page that is read from disk can have this LSN. If not, the page is from another
    /// time than the log: files of different moments were combined. The default is for logs that cannot
    /// decide.
    fn is_possible(&self, _page_id: PageId, _page_lsn: Lsn) -> bool {
        true
    }

    /// Blocks until `durable_lsn() >= lsn`, flushing other log buffers as needed (W2). Never waits for the
    /// end of another transaction.
    ///
    /// # Errors
    ///
    /// [`LogFailed`] once the log is poisoned by an I/O error.
    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed>;
}

/// A log without content: everything is durable at once. For caches without a log, and for tests.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoLog;

impl DurableLog for NoLog {
    fn next_lsn(&self) -> Lsn {
        Lsn(1)
    }
    fn durable_lsn(&self) -> Lsn {
        Lsn::MAX
    }
    fn make_durable(&self, _lsn: Lsn) -> Result<(), LogFailed> {
        Ok(())
    }
}
