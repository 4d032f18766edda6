//! The log as the page cache sees it, so that neither imports the other (invariant 2, hazards G4, W4).

use crate::{Lsn, PageId};

/// The log can no longer make anything durable: a write or a sync failed, and the store stopped committing
/// (W10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFailed {
    /// The first failure, in words: file, offset and the operating system's reason.
    pub reason: std::sync::Arc<str>,
}

impl std::fmt::Display for LogFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the log failed and takes no more commits; reopen the database: {}", self.reason)
    }
}

impl std::error::Error for LogFailed {}

/// The log as the page cache sees it.
pub trait DurableLog: Send + Sync {
    /// Above every LSN drawn so far. Records that come after this call may have smaller ones, if the log
    /// draws LSNs ahead: [`lsn_bound`](Self::lsn_bound) is below them. Once everything below what this gave
    /// is durable, that is too.
    ///
    /// Costs a look at a counter that every appender writes.
    fn next_lsn(&self) -> Lsn;

    /// An LSN that is not above that of any record that is appended after this call. It may lie further back
    /// than [`next_lsn`](Self::next_lsn), by what is not durable yet, and costs a look at a line that only
    /// flushes write. The default is for logs that give each record the next LSN.
    ///
    /// A page that turns dirty takes this as the lower bound of its recovery LSN *before* its record is
    /// appended.
    fn lsn_bound(&self) -> Lsn {
        self.next_lsn()
    }

    /// Every record with an LSN up to and including this one is on disk, in every worker's log.
    fn durable_lsn(&self) -> Lsn;

    /// Says if a page that is read from disk can have this LSN. If not, the page is of another time than the
    /// log: files of different moments were put together. The default is for logs that cannot tell.
    fn is_possible(&self, _page_id: PageId, _page_lsn: Lsn) -> bool {
        true
    }

    /// Blocks until `durable_lsn() >= lsn`, pushing out other workers' buffers as needed (W2). Never waits
    /// for another transaction's end.
    ///
    /// # Errors
    ///
    /// [`LogFailed`] once the log is poisoned by an I/O error.
    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed>;
}

/// A log that has nothing to say: everything is durable at once. For caches without a log, and for tests.
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
