//! The first failure, which is the last (hazard W10).
//!
//! After a failed write nobody knows what is on disk, and a second attempt may report success without the
//! data. So the first error of a log write poisons the log for ever: no append, no commit, no further write;
//! what was durable before stays so, and reads of the store go on.

use std::sync::OnceLock;

use azekura_base::LogFailed;

/// Whether, and why, the log failed.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    reason: OnceLock<LogFailed>,
}

impl Failure {
    /// Poisons the log; only the first reason counts. Returns whether this one was the first.
    pub(crate) fn set(&self, reason: &str) -> bool {
        self.reason.set(LogFailed { reason: reason.into() }).is_ok()
    }

    /// The reason, if the log failed.
    pub(crate) fn get(&self) -> Option<&LogFailed> {
        self.reason.get()
    }

    /// # Errors
    ///
    /// [`LogFailed`] if the log failed.
    pub(crate) fn check(&self) -> Result<(), LogFailed> {
        self.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }
}
