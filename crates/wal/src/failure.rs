//! The first failure of a log write, after which the log refuses all work (hazard W10).
//!
//! After a failed write the content of the disk is unknown, and a second attempt may report success without
//! the data. So the first error of a log write poisons the log permanently: the log accepts no append, no
//! commit, and no further write. Data that was durable before stays durable, and reads of the store continue.

use std::sync::OnceLock;

use azekura_base::LogFailed;

/// The reason of the failure, if the log has failed.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    reason: OnceLock<LogFailed>,
}

impl Failure {
    /// Poisons the log; only the first reason is kept. Returns `true` if this reason was the first.
    pub(crate) fn set(&self, reason: &str) -> bool {
        self.reason.set(LogFailed { reason: reason.into() }).is_ok()
    }

    /// Returns the reason, if the log failed.
    pub(crate) fn get(&self) -> Option<&LogFailed> {
        self.reason.get()
    }

    /// Returns an error if the log has failed.
    ///
    /// # Errors
    ///
    /// [`LogFailed`] if the log failed.
    pub(crate) fn check(&self) -> Result<(), LogFailed> {
        self.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }
}
