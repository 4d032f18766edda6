//! The snapshots that are open.

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire};
use azekura_base::sync::time::Instant;
use azekura_base::{Lsn, TreeId};

/// A snapshot that is open.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) timestamp: u64,
    /// VERSION-5.
    pub(super) all_visible: Lsn,
    /// No tree that the snapshot sees has this id or a larger one.
    pub(super) next_tree: TreeId,
    pub(super) opened: Instant,
    /// Memory of all versions when those of this snapshot had to be dropped; 0 before.
    pub(super) too_old_at_bytes: AtomicU64,
}

/// The snapshots that are open, by timestamp.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) open: Vec<Arc<Slot>>,
    /// The time at which the last one was closed.
    pub(super) idle_since: Option<Instant>,
    /// Number of versions after the last sweep over all stripes.
    pub(super) swept_to: u64,
}

/// An open snapshot; pass it to [`Versions::close`](super::Versions::close).
#[derive(Clone, Debug)]
pub struct SnapshotId {
    pub(super) slot: Arc<Slot>,
}

impl SnapshotId {
    /// Its place in the order of transactions.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.slot.timestamp
    }

    /// Every record up to here belongs to a transaction that the snapshot sees, or to one that was undone
    /// (VERSION-5).
    #[must_use]
    pub fn all_visible_lsn(&self) -> Lsn {
        self.slot.all_visible
    }

    /// Time since it was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.slot.opened.elapsed()
    }

    /// Returns the memory of all versions at the moment when the versions that the snapshot needs were
    /// dropped, if they were. Call it after each read, before the result is used.
    #[must_use]
    pub fn too_old_at_bytes(&self) -> Option<u64> {
        let bytes = self.slot.too_old_at_bytes.load(Acquire); // pairs with the Release in `shrink`
        (bytes > 0).then_some(bytes)
    }
}
