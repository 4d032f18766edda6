//! Counters for `INFO` and `/metrics`. Counters that every request changes are striped over cache lines, so
//! that reactors on several processors do not contend for a line with each request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use azekura_base::striped::{StripedCounter, stripe_count, thread_stripe};

use crate::command::TABLE;

/// A count; Relaxed, because it orders nothing.
#[derive(Debug, Default)]
pub(crate) struct Count {
    total: AtomicU64,
    /// The total at the last `CONFIG RESETSTAT`.
    forgotten: AtomicU64,
}

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.total.fetch_add(more, Relaxed);
    }

    /// Returns the total since the start of the server, for `/metrics`.
    pub(crate) fn get(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Returns the total since the last reset of statistics, for `INFO`.
    pub(crate) fn recent(&self) -> u64 {
        self.get().saturating_sub(self.forgotten.load(Relaxed))
    }

    fn forget(&self) {
        self.forgotten.store(self.get(), Relaxed);
    }
}

/// A striped count, for events that occur in every request.
#[derive(Debug, Default)]
pub(crate) struct SpreadCount {
    total: StripedCounter,
    /// The total at the last `CONFIG RESETSTAT`.
    forgotten: AtomicU64,
}

impl SpreadCount {
    pub(crate) fn add(&self, more: u64) {
        self.total.add(more);
    }

    pub(crate) fn get(&self) -> u64 {
        self.total.sum()
    }

    pub(crate) fn recent(&self) -> u64 {
        self.get().saturating_sub(self.forgotten.load(Relaxed))
    }

    fn forget(&self) {
        self.forgotten.store(self.get(), Relaxed);
    }
}

/// A count for each command, by its index in the table of commands; one row per stripe of threads.
#[derive(Debug)]
pub(crate) struct Calls {
    rows: Box<[Box<[AtomicU64]>]>,
    /// Totals at the last `CONFIG RESETSTAT`, of all rows together.
    forgotten: Box<[AtomicU64]>,
}

impl Calls {
    fn new() -> Self {
        let row = || TABLE.iter().map(|_| AtomicU64::new(0)).collect();
        Self { rows: (0..stripe_count()).map(|_| row()).collect(), forgotten: row() }
    }

    pub(crate) fn inc(&self, at: usize) {
        self.add(at, 1);
    }

    /// Adds to the count of the command with this index; ignores an index that no command has.
    pub(crate) fn add(&self, at: usize, more: u64) {
        if let Some(count) = self.rows[thread_stripe() % self.rows.len()].get(at) {
            count.fetch_add(more, Relaxed);
        }
    }

    /// Returns the calls of the command with this index since the start of the server.
    pub(crate) fn get(&self, at: usize) -> u64 {
        self.rows.iter().map(|row| row[at].load(Relaxed)).sum()
    }

    /// Returns the calls of the command with this index since the last reset of statistics.
    pub(crate) fn recent(&self, at: usize) -> u64 {
        self.get(at).saturating_sub(self.forgotten[at].load(Relaxed))
    }

    /// Returns the calls of all commands since the last reset of statistics.
    pub(crate) fn recent_of_all(&self) -> u64 {
        (0..TABLE.len()).map(|at| self.recent(at)).sum()
    }

    fn forget(&self) {
        for (at, forgotten) in self.forgotten.iter().enumerate() {
            forgotten.store(self.get(at), Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) connections: Count,
    /// Connections refused because of [`max_clients`](crate::ServerOptions::max_clients).
    pub(crate) rejected: Count,
    /// Calls by index in the table of commands.
    pub(crate) calls: Calls,
    pub(crate) failed_calls: Calls,
    /// Requests of each command that were refused before they ran.
    pub(crate) rejected_calls: Calls,
    /// Time of the requests of each command, in nanoseconds.
    pub(crate) call_time_ns: Calls,
    /// Requests with an unknown command, a wrong number of arguments, or without a login.
    pub(crate) refused: Count,
    pub(crate) protocol_errors: Count,
    pub(crate) failed_logins: Count,
    pub(crate) transaction_timeouts: Count,
    pub(crate) bytes_in: SpreadCount,
    pub(crate) bytes_out: SpreadCount,
    pub(crate) expired: Count,
    /// Number of groups that were closed without a failure, and number of requests in them.
    pub(crate) groups: SpreadCount,
    pub(crate) grouped: SpreadCount,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            connections: Count::default(),
            rejected: Count::default(),
            calls: Calls::new(),
            failed_calls: Calls::new(),
            rejected_calls: Calls::new(),
            call_time_ns: Calls::new(),
            refused: Count::default(),
            protocol_errors: Count::default(),
            failed_logins: Count::default(),
            transaction_timeouts: Count::default(),
            bytes_in: SpreadCount::default(),
            bytes_out: SpreadCount::default(),
            expired: Count::default(),
            groups: SpreadCount::default(),
            grouped: SpreadCount::default(),
        }
    }

    /// Runs `CONFIG RESETSTAT`: the numbers of `INFO` count from now.
    pub(crate) fn forget(&self) {
        let Self {
            connections, rejected, calls, failed_calls, rejected_calls, call_time_ns, refused, ..
        } = self;
        let Self {
            protocol_errors,
            failed_logins,
            transaction_timeouts,
            bytes_in,
            bytes_out,
            expired,
            groups,
            grouped,
            ..
        } = self;
        let single = [connections, rejected, refused, protocol_errors, failed_logins, transaction_timeouts];
        single.into_iter().chain([expired]).for_each(Count::forget);
        [bytes_in, bytes_out, groups, grouped].into_iter().for_each(SpreadCount::forget);
        [calls, failed_calls, rejected_calls, call_time_ns].into_iter().for_each(Calls::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_counts_add_up_and_are_reset_once() {
        let counters = Counters::new();
        let count = |at: usize| {
            std::thread::scope(|s| {
                for _ in 0..3 {
                    s.spawn(|| {
                        for _ in 0..100 {
                            counters.calls.inc(at);
                            counters.bytes_in.add(7);
                        }
                    });
                }
            });
        };
        count(2);
        counters.forget();
        count(5);
        assert_eq!((counters.calls.get(2), counters.calls.recent(2)), (300, 0));
        assert_eq!((counters.calls.recent(5), counters.calls.recent_of_all()), (300, 300));
        assert_eq!((counters.bytes_in.get(), counters.bytes_in.recent()), (4200, 2100));
        assert_eq!(counters.failed_calls.recent_of_all(), 0);
    }
}
