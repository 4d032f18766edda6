//! What is counted, for `INFO` and `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::command::TABLE;

/// A count; Relaxed, since nothing follows from it.
#[derive(Debug, Default)]
pub(crate) struct Count {
    total: AtomicU64,
    /// What the total was when `CONFIG RESETSTAT` was last said.
    forgotten: AtomicU64,
}

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.total.fetch_add(more, Relaxed);
    }

    /// Since the server began, as `/metrics` tells.
    pub(crate) fn get(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Since statistics were reset, as `INFO` tells.
    pub(crate) fn recent(&self) -> u64 {
        self.get().saturating_sub(self.forgotten.load(Relaxed))
    }

    fn forget(&self) {
        self.forgotten.store(self.get(), Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) connections: Count,
    /// For want of room.
    pub(crate) rejected: Count,
    /// By place in the table of commands.
    pub(crate) calls: Vec<Count>,
    pub(crate) failed_calls: Vec<Count>,
    /// Requests that named no command, had the wrong number of arguments, or came before a password.
    pub(crate) refused: Count,
    pub(crate) protocol_errors: Count,
    pub(crate) failed_logins: Count,
    pub(crate) transaction_timeouts: Count,
    pub(crate) bytes_in: Count,
    pub(crate) bytes_out: Count,
    pub(crate) expired: Count,
}

impl Counters {
    pub(crate) fn new() -> Self {
        let per_command = || TABLE.iter().map(|_| Count::default()).collect();
        Self {
            connections: Count::default(),
            rejected: Count::default(),
            calls: per_command(),
            failed_calls: per_command(),
            refused: Count::default(),
            protocol_errors: Count::default(),
            failed_logins: Count::default(),
            transaction_timeouts: Count::default(),
            bytes_in: Count::default(),
            bytes_out: Count::default(),
            expired: Count::default(),
        }
    }

    /// `CONFIG RESETSTAT`: what `INFO` tells counts from now.
    pub(crate) fn forget(&self) {
        let Self { connections, rejected, calls, failed_calls, refused, .. } = self;
        let Self {
            protocol_errors, failed_logins, transaction_timeouts, bytes_in, bytes_out, expired, ..
        } = self;
        let single = [connections, rejected, refused, protocol_errors, failed_logins, transaction_timeouts];
        single.into_iter().chain([bytes_in, bytes_out, expired]).for_each(Count::forget);
        calls.iter().chain(failed_calls).for_each(Count::forget);
    }
}
