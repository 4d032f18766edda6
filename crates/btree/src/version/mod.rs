//! Versions of rows for snapshots: multiversion two-phase locking.
//!
//! Writers lock rows as ever, and the row in the leaf is always the newest. While a snapshot can be open, a
//! writer also keeps the image that it replaces. A snapshot has a timestamp and sees the transactions that
//! committed at or before it; it takes no locks, and no writer waits for it.
//!
//! Commit LSNs do not order transactions that depend on each other only by a read and a later write, because
//! log buffers draw ranges of LSNs. So snapshots use timestamps of their own: the value of a clock that only
//! openers of snapshots advance.
//!
//! | mode | writers | leaves it |
//! |---|---|---|
//! | off | keep nothing; one load for each change | the opening of a snapshot |
//! | on | keep before-images, take timestamps | [`Versions::turn_off`], [`GRACE`] after the last close |
//!
//! - **VERSION-1** A transaction reads the mode under the mutex of its undo log, at each change, before it
//!   changes the page. The first opener turns the mode on and then visits each active transaction under that
//!   mutex, where it keeps the images of the changes made so far. A change is therefore either visited, or
//!   made with the mode on.
//! - **VERSION-2** An image is stored before the page shows the change, under the exclusive latch of the
//!   leaf. A reader copies the leaf, then looks for images, then validates the leaf: the three count as one
//!   moment.
//! - **VERSION-3** The counts of keys in a stripe and the clock are read and written sequentially
//!   consistently. A transaction stores its images before it reads the clock, and an opener advances the
//!   clock before it looks for images. So an opener that finds a stripe empty has drawn its timestamp before
//!   the transaction, which then commits later than the snapshot.
//! - **VERSION-4** If a transaction precedes another one by any dependency, its timestamp is not larger: both
//!   read the clock while they hold their locks, one after the other, and a pushed timestamp
//!   ([`status`]) is not above the clock at the time of the push.
//!
//! Versions are lost with the process, and a restart needs none.

mod backfill;
#[doc(hidden)]
pub mod model;
mod status;
mod store;
mod view;

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use azekura_base::sync::atomic::{AtomicBool, AtomicU64};
use azekura_base::sync::time::Instant;
use azekura_base::{CachePadded, TreeId, striped::stripe_count};

use crate::node::{Node, Position};
use crate::undo::{UndoLog, UndoOp};

use self::status::{Status, Visibility};
use self::store::{Image, VersionStore, image_of};

pub use self::view::View;

/// The part of a transaction's undo log that versions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterVersions {
    /// Made at the first change with versions on, or by the first opener of a snapshot.
    status: Option<Arc<Status>>,
    /// Trees that the transaction created or loaded: their rows need no versions.
    hidden_trees: Vec<TreeId>,
}

impl WriterVersions {
    fn status(&mut self) -> &Arc<Status> {
        self.status.get_or_insert_with(|| Arc::new(Status::active()))
    }

    fn hides(&self, tree: TreeId) -> bool {
        self.hidden_trees.contains(&tree)
    }

    fn end(&mut self) -> Option<Arc<Status>> {
        self.hidden_trees.clear();
        self.status.take()
    }

    /// Forgets the transaction; nothing of it is left to be hidden.
    pub(crate) fn clear(&mut self) {
        drop(self.end());
    }
}

/// The row of `key` in a leaf.
fn image_in(node: Node<'_>, key: &[u8]) -> Image {
    let Position::Found(slot) = node.search(key) else { return None };
    let slot = node.slot(slot);
    let mut value = Vec::new();
    node.value_into(slot, &mut value);
    Some((slot.flags, value.into()))
}

/// Time without an open snapshot after which writers stop keeping images. Snapshots that are opened more
/// often do not pay for turning versions on again.
pub const GRACE: Duration = Duration::from_millis(100);

/// A snapshot that is open.
#[derive(Debug)]
struct Slot {
    timestamp: u64,
    opened: Instant,
    /// Set when its images had to be dropped.
    is_too_old: AtomicBool,
}

/// The snapshots that are open, by timestamp.
#[derive(Debug, Default)]
struct Registry {
    open: Vec<Arc<Slot>>,
    /// The time at which the last one was closed.
    idle_since: Option<Instant>,
    /// Versions that were left by the last sweep over all stripes.
    swept_to: u64,
}

impl Registry {
    fn timestamps(&self) -> Vec<u64> {
        self.open.iter().map(|slot| slot.timestamp).collect()
    }
}

/// The oldest snapshot that is open, and what all of them hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionStats {
    /// Snapshots that are open.
    pub open: usize,
    /// Age of the oldest.
    pub oldest_age: Duration,
    /// Row versions in memory.
    pub versions: u64,
    /// Their memory, in bytes.
    pub bytes: u64,
    /// Snapshots that became too old since the store was opened.
    pub too_old: u64,
}

/// Versions, clock and open snapshots of one store.
#[derive(Debug)]
pub struct Versions {
    /// Written by openers only.
    clock: CachePadded<AtomicU64>,
    /// Written when the mode changes; read at each change of a row.
    is_on: CachePadded<AtomicBool>,
    store: VersionStore,
    /// Trees that a bulk load has filled while the mode was on, with the loading transaction.
    loads: Mutex<Vec<(TreeId, Arc<Status>)>>,
    registry: Mutex<Registry>,
    /// Held while the mode changes.
    switching: Mutex<()>,
    limit_bytes: u64,
    too_old: AtomicU64,
}

impl Versions {
    /// No snapshot, no version. Versions may take `limit_bytes` of memory; beyond that the oldest snapshot
    /// becomes too old.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            clock: CachePadded::new(AtomicU64::new(1)),
            is_on: CachePadded::new(AtomicBool::new(false)),
            store: VersionStore::new(stripe_count()),
            loads: Mutex::default(),
            registry: Mutex::default(),
            switching: Mutex::default(),
            limit_bytes,
            too_old: AtomicU64::new(0),
        }
    }

    fn is_on(&self) -> bool {
        // Acquire: pairs with the Release in `open`. The mutex of the undo log orders the rest (VERSION-1).
        self.is_on.load(Acquire)
    }

    /// Opens a snapshot that sees every transaction which has committed. If versions are off, `visit` is
    /// called to hand each active transaction to [`backfill`](Self::backfill).
    ///
    /// # Errors
    ///
    /// Those of `visit`; no snapshot is open then.
    pub fn open<E>(&self, visit: impl FnOnce(&Self) -> Result<(), E>) -> Result<SnapshotId, E> {
        let slot = {
            let switching = self.switching.lock();
            if !self.is_on() {
                self.is_on.store(true, Release); // pairs with the Acquire in `is_on`
                if let Err(error) = visit(self) {
                    self.switch_off();
                    return Err(error);
                }
            }
            let mut registry = self.registry.lock();
            // Under the registry's mutex: a thread that prunes sees the snapshot, or the snapshot is younger
            // than all commits that the pruning looked at. SeqCst: VERSION-3.
            let timestamp = self.clock.fetch_add(1, SeqCst);
            let slot =
                Arc::new(Slot { timestamp, opened: Instant::now(), is_too_old: AtomicBool::new(false) });
            registry.open.push(Arc::clone(&slot));
            registry.idle_since = None;
            drop(registry);
            drop(switching);
            slot
        };
        Ok(SnapshotId { slot })
    }

    /// Closes a snapshot: its versions go when no other needs them.
    pub fn close(&self, id: &SnapshotId) {
        let mut registry = self.registry.lock();
        let was_oldest = registry.open.first().is_some_and(|slot| Arc::ptr_eq(slot, &id.slot));
        registry.open.retain(|slot| !Arc::ptr_eq(slot, &id.slot));
        if registry.open.is_empty() {
            registry.idle_since = Some(Instant::now());
        }
        // A sweep looks at all versions; after twice as many came it has been paid for.
        let (versions, _) = self.store.size();
        let sweeps = was_oldest && versions > 2 * registry.swept_to.max(512);
        let open = registry.timestamps();
        drop(registry);
        if sweeps {
            self.sweep(&open);
        }
    }

    fn sweep(&self, open: &[u64]) {
        self.store.prune(open);
        self.loads.lock().retain(|(_, writer)| {
            writer.ended().is_none_or(|ended| open.first().is_some_and(|&oldest| oldest < ended))
        });
        self.registry.lock().swept_to = self.store.size().0;
    }

    /// Lets writers stop keeping images, if no snapshot has been open for [`GRACE`]. Cheap if there is
    /// nothing to do; call it from time to time.
    pub fn turn_off(&self) {
        if !self.is_on() {
            return;
        }
        let Some(_switching) = self.switching.try_lock() else { return };
        let registry = self.registry.lock();
        if registry.open.is_empty() && registry.idle_since.is_some_and(|since| since.elapsed() >= GRACE) {
            drop(registry);
            self.switch_off();
        }
    }

    /// Returns `true` if writers keep images and no snapshot is open: [`turn_off`](Self::turn_off) will have
    /// something to do.
    #[must_use]
    pub fn can_turn_off(&self) -> bool {
        self.is_on() && self.registry.lock().open.is_empty()
    }

    /// The caller holds `switching`, and no snapshot is open.
    fn switch_off(&self) {
        self.is_on.store(false, Release); // pairs with the Acquire in `is_on`
        // A writer that read the mode before may still store an image; it does no harm and goes with the
        // next sweep. Images of active transactions go too: the next opener visits them again.
        self.store.clear();
        self.loads.lock().clear();
        self.registry.lock().swept_to = 0;
    }

    /// Returns whether a snapshot is open that does not see a transaction which committed at `timestamp`.
    #[must_use]
    pub fn is_hidden_from_any(&self, timestamp: u64) -> bool {
        self.registry.lock().open.first().is_some_and(|slot| slot.timestamp < timestamp)
    }

    /// The open snapshots and the memory of versions.
    #[must_use]
    pub fn stats(&self) -> VersionStats {
        let registry = self.registry.lock();
        let (versions, bytes) = self.store.size();
        VersionStats {
            open: registry.open.len(),
            oldest_age: registry.open.first().map_or(Duration::ZERO, |slot| slot.opened.elapsed()),
            versions,
            bytes,
            too_old: self.too_old.load(Relaxed), // Relaxed: a statistic
        }
    }

    /// Keeps what a change is about to replace, if versions are on. `node` is the latched leaf before the
    /// change (VERSION-2); the caller holds the mutex of `undo` (VERSION-1).
    pub(crate) fn before_change(&self, undo: &mut UndoLog, op: &UndoOp<'_>, node: Option<Node<'_>>) {
        if !self.is_on() {
            return;
        }
        let writer = &mut undo.writer;
        let status = Arc::clone(writer.status());
        match *op {
            UndoOp::RemoveKey { tree, key } if !writer.hides(tree.id) => {
                self.install(tree.id, key, &status, || None);
            }
            UndoOp::PutBack { tree, key, cell } if !writer.hides(tree.id) => {
                self.install(tree.id, key, &status, || image_of(cell));
            }
            UndoOp::Flip { tree, key, .. } if !writer.hides(tree.id) => {
                self.install(tree.id, key, &status, || node.and_then(|node| image_in(node, key)));
            }
            _ => self.note_hidden_tree(writer, &status, op),
        }
    }

    /// Notes a tree with rows that need no versions, if the change makes one: only snapshots that see the
    /// writer can find a tree that it created, and all others see a tree that it loaded empty.
    fn note_hidden_tree(&self, writer: &mut WriterVersions, status: &Arc<Status>, op: &UndoOp<'_>) {
        match *op {
            UndoOp::DropTree { tree } => writer.hidden_trees.push(tree.id),
            UndoOp::EmptyTree { tree, .. } if !writer.hides(tree.id) => {
                writer.hidden_trees.push(tree.id);
                self.loads.lock().push((tree.id, Arc::clone(status)));
            }
            _ => {}
        }
    }

    fn install(&self, tree: TreeId, key: &[u8], status: &Arc<Status>, before: impl FnOnce() -> Image) {
        self.store.install((tree, key), status, before, || self.registry.lock().timestamps());
        if self.store.size().1 > self.limit_bytes {
            self.shrink();
        }
    }

    /// Makes the oldest snapshot too old and drops its versions. Without an open snapshot versions are turned
    /// off.
    #[cold]
    fn shrink(&self) {
        let open = {
            let mut registry = self.registry.lock();
            if !registry.open.is_empty() {
                let oldest = registry.open.remove(0);
                // Release: pairs with the Acquire in `SnapshotId::is_too_old`: a reader that misses the mark
                // has read before the versions are dropped.
                oldest.is_too_old.store(true, Release);
                self.too_old.fetch_add(1, Relaxed); // Relaxed: a statistic
            }
            registry.timestamps()
        };
        if !open.is_empty() {
            return self.sweep(&open);
        }
        // Only tried: an opener that holds it may wait for the undo log of this thread's transaction.
        let Some(_switching) = self.switching.try_lock() else { return };
        if self.registry.lock().open.is_empty() {
            self.switch_off();
        }
    }

    /// Ends a transaction that commits; its commit record has been appended, its locks are held, and the
    /// caller holds the mutex of `undo`. Returns its timestamp, 0 if it needs none: every snapshot sees it.
    pub fn commit(&self, undo: &mut UndoLog) -> u64 {
        undo.writer.end().map_or(0, |status| status.commit(&self.clock))
    }

    /// Ends a transaction after all its changes are undone.
    pub fn roll_back(&self, undo: &mut UndoLog) {
        if let Some(status) = undo.writer.end() {
            status.roll_back();
        }
    }

    /// Returns whether the snapshot sees `tree` empty, because a transaction that it does not see has loaded
    /// it.
    fn is_empty_in(&self, tree: TreeId, timestamp: u64) -> bool {
        let loads = self.loads.lock();
        loads.iter().any(|(id, writer)| *id == tree && writer.visibility(timestamp) == Visibility::Hidden)
    }
}

/// An open snapshot, to be given back to [`Versions::close`].
#[derive(Clone, Debug)]
pub struct SnapshotId {
    slot: Arc<Slot>,
}

impl SnapshotId {
    /// Its place in the order of transactions.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.slot.timestamp
    }

    /// Time since it was opened.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.slot.opened.elapsed()
    }

    /// Returns whether versions that it needs were dropped. Ask after each read, before the result is used.
    #[must_use]
    pub fn is_too_old(&self) -> bool {
        self.slot.is_too_old.load(Acquire) // pairs with the Release in `shrink`
    }
}
