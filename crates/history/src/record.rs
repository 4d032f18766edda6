//! Recorder: collects a history from many threads.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::history::{History, Op, Status, Transaction};

/// A recorder of transactions while they run, which threads share by reference.
///
/// The clock is one counter. An instant taken on one thread before an event began, and one taken on another
/// thread after an event ended, are in the right order (SeqCst; a test library can afford the cost). The
/// atomics are those of std, because this crate is not a part of the store or of a simulated machine.
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    values: AtomicU64,
    done: Mutex<Vec<Transaction>>,
}

/// A running transaction. If it is dropped before its end was recorded, it counts as [`Status::Unknown`], for
/// a client that panicked or lost the store.
#[derive(Debug)]
pub struct Running<'a> {
    recorder: &'a Recorder,
    began: u64,
    ops: Vec<Op>,
}

impl Recorder {
    /// Returns a recorder without transactions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a transaction. Call this function before the store's `begin`.
    pub fn begin(&self) -> Running<'_> {
        Running { recorder: self, began: self.now(), ops: Vec::new() }
    }

    /// Returns a value that was not returned before.
    pub fn value(&self) -> u64 {
        self.values.fetch_add(1, SeqCst) + 1
    }

    /// Returns the recorded transactions and removes them from the recorder.
    pub fn finish(&self) -> History {
        History { transactions: std::mem::take(&mut self.lock()) }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Transaction>> {
        // If a client panicked while it recorded, the list is still valid.
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running<'_> {
    /// Records that `value` was appended to the list of `key`.
    pub fn append(&mut self, key: u64, value: u64) {
        self.ops.push(Op::Append { key, value });
    }

    /// Records that `key` was removed, and that the tombstone `value` was appended to its list.
    pub fn remove(&mut self, key: u64, value: u64) {
        self.ops.push(Op::Remove { key, value });
    }

    /// Records that the list of `key` was read.
    pub fn read(&mut self, key: u64, list: impl Into<Vec<u64>>) {
        self.ops.push(Op::Read { key, list: list.into() });
    }

    /// Records that the keys `from..to` were read.
    pub fn scan(&mut self, from: u64, to: u64, rows: impl Into<Vec<(u64, Vec<u64>)>>) {
        self.ops.push(Op::Scan { from, to, rows: rows.into() });
    }

    /// Records that the transaction committed, after its client got the acknowledgment. Call this function
    /// after the store's `commit` has returned.
    pub fn committed(mut self) {
        self.end(Status::Committed);
    }

    /// Records that the transaction was aborted, or that its commit failed for certain.
    pub fn aborted(mut self) {
        self.end(Status::Aborted);
    }

    fn end(&mut self, status: Status) {
        let ended = (status != Status::Unknown).then(|| self.recorder.now());
        let ops = std::mem::take(&mut self.ops);
        self.recorder.lock().push(Transaction { began: self.began, ended, status, ops });
        self.began = u64::MAX;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.began != u64::MAX {
            self.end(Status::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_recorded_with_their_times_and_ends() {
        let recorder = Recorder::new();
        let mut a = recorder.begin();
        a.append(1, recorder.value());
        a.committed();
        recorder.begin().aborted();
        drop(recorder.begin());
        assert_ne!(recorder.value(), recorder.value());
        let history = recorder.finish();
        let ends: Vec<_> = history.transactions.iter().map(|t| (t.status, t.began, t.ended)).collect();
        assert_eq!(
            ends,
            [(Status::Committed, 0, Some(1)), (Status::Aborted, 2, Some(3)), (Status::Unknown, 4, None)]
        );
        assert!(recorder.finish().transactions.is_empty());
    }
}
