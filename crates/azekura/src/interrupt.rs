//! Long calls and waits can be stopped by a function of the program.

use crate::{Builder, Error};

/// Returns an error if the function of [`Builder::interrupt`] returns `true`.
pub(crate) fn check_interrupt(interrupt: Option<fn() -> bool>) -> Result<(), Error> {
    if interrupt.is_some_and(|is_interrupted| is_interrupted()) { Err(Error::Interrupted) } else { Ok(()) }
}

impl Builder {
    /// Sets a function that stops long calls, for example after a signal. Each thread calls it about every
    /// 100 ms while it waits for a lock, and regularly during a check, a backup, a restore, a compaction and
    /// the removal of a range.
    ///
    /// If it returns `true`, the call of the store fails with [`Error::Interrupted`]; a wait succeeds if the
    /// lock was granted meanwhile. The function may use other transactions, but not the waiting one.
    #[must_use]
    pub fn interrupt(mut self, is_interrupted: fn() -> bool) -> Self {
        self.interrupt = Some(is_interrupted);
        self
    }
}
