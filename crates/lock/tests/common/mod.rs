//! Helpers shared by several test files.
#![allow(dead_code, reason = "each test file uses a part of it")]

use azekura_base::{TreeId, TxnId};
use azekura_lock::{KeyRef, LockOptions, LockTable};

pub(crate) const TREE: TreeId = TreeId(1);
pub(crate) const OTHER: TreeId = TreeId(2);

pub(crate) fn table() -> LockTable {
    LockTable::new(LockOptions { stripes: 8, dependency_slots: 1 << 14, seed: 5, ..LockOptions::default() })
}

pub(crate) fn key(bytes: &'static str) -> KeyRef<'static> {
    KeyRef::Key(bytes.as_bytes())
}

/// Waits until `txn` is among the waiters of some lock.
pub(crate) fn until_waiting(table: &LockTable, txn: TxnId) {
    let waits = || table.dump().iter().any(|d| d.waiters.iter().any(|w| w.0 == txn));
    while !waits() {
        std::thread::yield_now();
    }
}
