//! The interface of the log for the page cache, so that neither depends on the other (invariant 2, hazards
//! G4, W4).

use crate::{Lsn, PageId};

/// Error: the log cannot make records durable any more. A write or a sync failed, and the store has stopped
/// committing (W10).
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
    /// Returns an LSN above every LSN drawn so far. Once all records below the returned LSN are durable,
    /// everything drawn before the call is durable. If the log draws LSNs ahead, later records may have
    /// smaller LSNs; use [`lsn_bound`](Self::lsn_bound) as their lower bound.
    ///
    /// Costs a load of a counter that every appender writes.
    fn next_lsn(&self) -> Lsn;

    /// Returns a lower bound of the LSNs of all records that are appended after this call. The bound may be
    /// below [`next_lsn`](Self::next_lsn), because of records that are not durable yet. Costs a load of a
    /// cache line that only flushes write. The default is for logs that give each record the next LSN.
    ///
    /// A page that becomes dirty uses the bound as its recovery LSN, read *before* its record is appended.
    fn lsn_bound(&self) -> Lsn {
        self.next_lsn()
    }

    /// Returns the LSN up to which every record is durable, in every log stream.
    fn durable_lsn(&self) -> Lsn;

    /// Returns `true` if a page that is read from disk can have this LSN. Otherwise page and log are from
    /// different times, because files of different moments were combined. The default is for logs that cannot
    /// decide this.
    fn is_possible(&self, _page_id: PageId, _page_lsn: Lsn) -> bool {
        true
    }

    /// Blocks until `durable_lsn() >= lsn`, and flushes other log buffers as needed (W2). Never waits for the
    /// end of another transaction.
    ///
    /// # Errors
    ///
    /// [`LogFailed`], after an I/O error has stopped the log.
    fn make_durable(&self, lsn: Lsn) -> Result<(), LogFailed>;
}

/// A log without content, in which everything is durable at once. For caches without a log, and for tests.
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
