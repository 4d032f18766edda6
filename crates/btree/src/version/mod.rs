//! Versions of rows for snapshots: multiversion two-phase locking.
//!
//! Writers lock rows as without snapshots, and the row in the leaf is always the newest. While a snapshot can
//! be open, a writer also stores the image that it replaces. A snapshot has a timestamp and sees the
//! transactions that committed at or before it; it takes no locks, and no writer waits for it.
//!
//! Commit LSNs do not order transactions that depend on each other only by a read and a later write, because
//! log buffers draw ranges of LSNs. So snapshots use timestamps of their own: the value of a clock that only
//! openers of snapshots advance.
//!
//! | mode | writers | left by |
//! |---|---|---|
//! | off | store nothing; one load for each change | the opening of a snapshot |
//! | on | store before-images, take timestamps | [`Versions::turn_off`], [`GRACE`] after the last close |
//!
//! - **VERSION-1** A transaction reads the mode under the mutex of its undo log, at each change, before it
//!   changes the page. The first opener turns the mode on and then visits each active transaction under that
//!   mutex, where it keeps the images of the changes made so far. A change is therefore either visited, or
//!   made with the mode on.
//! - **VERSION-2** An image is stored before the page shows the change, under the exclusive latch of the
//!   leaf. A reader copies the leaf, then looks for images, then validates the leaf: the three count as one
//!   moment.
//! - **VERSION-3** The counts of keys in a stripe and of loaded trees, and the clock, are read and written
//!   sequentially consistently. A transaction stores its images before it reads the clock, and an opener
//!   advances the clock before it looks for images. So an opener that finds a stripe empty has drawn its
//!   timestamp before the transaction, which then commits later than the snapshot.
//! - **VERSION-4** If a transaction precedes another one by any dependency, its timestamp is not larger: both
//!   read the clock while they hold their locks, one after the other, and a pushed timestamp
//!   ([`status`]) is not above the clock at the time of the push.
//! - **VERSION-5** Every record at or below the *all-visible LSN* of a snapshot belongs to a transaction that
//!   the snapshot sees, or to one that was undone completely. The opener reads a lower bound of later LSNs,
//!   then the first LSN of each active transaction, and then advances the clock. So a transaction that the
//!   snapshot does not see has only larger LSNs. Images are not looked up for a leaf with a page LSN at or
//!   below the all-visible LSN.
//! - **VERSION-6** A version is dropped only if no snapshot needs it, neither one of the list of open ones
//!   nor one that was opened since the list was read. The clock was read with the list, and a version of a
//!   transaction with a larger timestamp stays.
//! - **VERSION-7** The image of a row that a transaction keeps is the one before its first change of the row.
//!   A transaction that has changed rows with versions off, or before versions were turned off and on again,
//!   keeps no images before the opener has visited it. Turning versions off drops all images. A writer that
//!   has read the mode before that stores none afterwards: it reads the mode again under the mutex of the
//!   stripe, and the count of the mode's changes tells it of every change.
//!
//! Versions are lost with the process, and a restart needs none.

mod backfill;
mod fault;
#[doc(hidden)]
pub mod model;
mod registry;
mod status;
mod store;
mod view;

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use azekura_base::sync::atomic::{AtomicU64, AtomicUsize};
use azekura_base::sync::time::Instant;
use azekura_base::{CachePadded, Lsn, StripedCounter, TreeId};

use crate::node::{Node, Position};
use crate::undo::{UndoLog, UndoOp};

use self::registry::{Registry, Slot};
use self::status::{Status, Visibility};
use self::store::{Image, OpenSnapshots, VersionStore, image_of};

pub use self::fault::VersionPart;
pub use self::registry::SnapshotId;
pub use self::view::{SeenRow, View};

/// The part of a transaction's undo log that versions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterVersions {
    /// Made at the first change with versions on, or by the first opener of a snapshot.
    status: Option<Arc<Status>>,
    /// Trees that the transaction created or loaded: their rows need no versions.
    hidden_trees: Vec<TreeId>,
    /// The count of the mode's changes for which images of all changes so far are kept (VERSION-7).
    kept_in: u64,
}

impl WriterVersions {
    fn status(&mut self, versions: &Versions) -> &Arc<Status> {
        self.status.get_or_insert_with(|| {
            let least = match versions.leaves_out(VersionPart::LateTimestamp) {
                true => versions.clock.load(SeqCst), // SeqCst: as in `Status::commit`
                false => 0,
            };
            Arc::new(Status::active(least))
        })
    }

    fn hides(&self, tree: TreeId) -> bool {
        self.hidden_trees.contains(&tree)
    }

    fn end(&mut self) -> Option<Arc<Status>> {
        self.hidden_trees.clear();
        self.kept_in = 0;
        self.status.take()
    }

    /// Clears the state after the transaction's end; no change of it needs to be hidden.
    pub(crate) fn clear(&mut self) {
        drop(self.end());
    }
}

/// Returns the row of `key` in a leaf.
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

/// Time for which openers use the same all-visible LSN. An older one is valid too (VERSION-5), and computing
/// it locks each stripe of the list of active transactions. Opening costs less than a microsecond, so the
/// cost is shared by some hundred openings.
const ALL_VISIBLE_FOR: Duration = Duration::from_micros(100);

/// The oldest open snapshot, and the totals of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionStats {
    /// Snapshots that are open.
    pub open: usize,
    /// Timestamp of the oldest.
    pub oldest: Option<u64>,
    /// Its age.
    pub oldest_age: Duration,
    /// Row versions in memory.
    pub versions: u64,
    /// Their memory, in bytes.
    pub bytes: u64,
    /// Snapshots that became too old since the store was opened.
    pub too_old: u64,
    /// Leaves for which a snapshot has looked for versions.
    pub lookups: u64,
    /// Bulk loads that an open snapshot must not see.
    pub hidden_loads: usize,
}

/// A transaction that has committed, for [`Versions::needs_value`] and [`Versions::needs_tree`].
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// `None`: every snapshot sees the transaction.
    status: Option<Arc<Status>>,
}

/// The all-visible LSN as an opener found it last.
#[derive(Clone, Copy, Debug)]
struct AllVisible {
    lsn: Lsn,
    found: Instant,
}

/// Versions, clock and open snapshots of one store.
#[derive(Debug)]
pub struct Versions {
    /// Written by openers only.
    clock: CachePadded<AtomicU64>,
    /// Counts changes of the mode: odd while versions are on. Read at each change of a row.
    mode: CachePadded<AtomicU64>,
    store: VersionStore,
    /// Trees that a bulk load has filled while the mode was on, with the loading transaction.
    loads: Mutex<Vec<(TreeId, Arc<Status>)>>,
    /// Length of `loads`: where there are none, readers do not lock it.
    loads_len: AtomicUsize,
    registry: Mutex<Registry>,
    /// Held while the mode changes, and by openers.
    switching: Mutex<Option<AllVisible>>,
    limit_bytes: u64,
    too_old: AtomicU64,
    lookups: StripedCounter,
    /// `None` except in tests of the tests.
    left_out: Option<VersionPart>,
}

impl Versions {
    /// Returns a store without snapshots and versions. Versions may take `limit_bytes` of memory; beyond that
    /// the oldest snapshot becomes too old.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            clock: CachePadded::new(AtomicU64::new(1)),
            mode: CachePadded::new(AtomicU64::new(0)),
            store: VersionStore::new(),
            loads: Mutex::default(),
            loads_len: AtomicUsize::new(0),
            registry: Mutex::default(),
            switching: Mutex::default(),
            limit_bytes,
            too_old: AtomicU64::new(0),
            lookups: StripedCounter::new(),
            left_out: None,
        }
    }

    /// Omits a part of the protocol.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out(mut self, part: Option<VersionPart>) -> Self {
        self.left_out = part;
        self.store.pushes = part != Some(VersionPart::Push);
        self
    }

    /// Returns whether a test has omitted this part.
    #[doc(hidden)]
    #[must_use]
    pub fn leaves_out(&self, part: VersionPart) -> bool {
        self.left_out == Some(part)
    }

    fn mode(&self) -> u64 {
        // Acquire: pairs with the Release in `change_mode`. The mutex of the undo log orders the rest
        // (VERSION-1).
        self.mode.load(Acquire)
    }

    fn is_on(&self) -> bool {
        !self.mode().is_multiple_of(2)
    }

    /// Turns versions on or off. The caller holds `switching`.
    fn change_mode(&self) {
        self.mode.fetch_add(1, Release); // pairs with the Acquire in `mode`
    }

    /// Opens a snapshot that sees every transaction which has committed. If versions are off, `visit` is
    /// called to hand each active transaction to [`backfill`](Self::backfill). `all_visible` gives an LSN
    /// below all changes of transactions that are active, or begin later (VERSION-5). `next_tree` gives an id
    /// above those of all trees; it is called last.
    ///
    /// # Errors
    ///
    /// Those of `visit`; no snapshot is open then.
    pub fn open<E>(
        &self,
        visit: impl FnOnce(&Self) -> Result<(), E>,
        all_visible: impl FnOnce() -> Lsn,
        next_tree: impl FnOnce() -> TreeId,
    ) -> Result<SnapshotId, E> {
        let slot = {
            let mut switching = self.switching.lock();
            if !self.is_on() {
                self.store.make(); // the Release in `change_mode` publishes them
                self.change_mode();
                if let Err(error) = visit(self) {
                    self.switch_off();
                    return Err(error);
                }
            }
            let opened = Instant::now();
            let is_recent = |last: &AllVisible| opened.duration_since(last.found) < ALL_VISIBLE_FOR;
            let all_visible = match switching.filter(is_recent) {
                Some(last) => last.lsn,
                None => {
                    let lsn = all_visible();
                    *switching = Some(AllVisible { lsn, found: opened });
                    lsn
                }
            };
            let mut registry = self.registry.lock();
            // Under the registry's mutex: a thread that prunes sees the snapshot, or has read a clock that is
            // not above the snapshot's timestamp (VERSION-6). SeqCst: VERSION-3.
            let timestamp = match self.leaves_out(VersionPart::Clock) {
                true => self.clock.load(SeqCst), // SeqCst: VERSION-3, which it breaks
                false => self.clock.fetch_add(1, SeqCst),
            };
            let next_tree = next_tree();
            let too_old_at_bytes = AtomicU64::new(0);
            let slot = Arc::new(Slot { timestamp, all_visible, next_tree, opened, too_old_at_bytes });
            registry.open.push(Arc::clone(&slot));
            registry.idle_since = None;
            drop(registry);
            drop(switching);
            slot
        };
        Ok(SnapshotId { slot })
    }

    /// Opens another snapshot with the timestamp of one that is open; `None` if that one is too old.
    #[must_use]
    pub fn open_same(&self, of: &SnapshotId) -> Option<SnapshotId> {
        let mut registry = self.registry.lock();
        let at = registry.open.iter().position(|slot| Arc::ptr_eq(slot, &of.slot))?;
        let slot = Arc::new(Slot {
            timestamp: of.slot.timestamp,
            all_visible: of.slot.all_visible,
            next_tree: of.slot.next_tree,
            opened: Instant::now(),
            too_old_at_bytes: AtomicU64::new(0),
        });
        registry.open.insert(at, Arc::clone(&slot));
        Some(SnapshotId { slot })
    }

    /// Closes a snapshot: versions that no other snapshot needs are dropped.
    pub fn close(&self, id: &SnapshotId) {
        let mut registry = self.registry.lock();
        let was_oldest = registry.open.first().is_some_and(|slot| Arc::ptr_eq(slot, &id.slot));
        registry.open.retain(|slot| !Arc::ptr_eq(slot, &id.slot));
        if registry.open.is_empty() {
            registry.idle_since = Some(Instant::now());
        }
        // A sweep visits all versions; a doubling of their number pays for it.
        let (versions, _) = self.store.size();
        let sweeps = was_oldest && versions > 2 * registry.swept_to.max(512);
        let open = self.open_in(&registry);
        drop(registry);
        if sweeps {
            self.sweep(&open);
        }
    }

    /// The snapshots that are open now. Openers draw their timestamps under the registry's mutex.
    fn open_in(&self, registry: &Registry) -> OpenSnapshots {
        let timestamps = registry.open.iter().map(|slot| slot.timestamp).collect();
        OpenSnapshots { timestamps, clock: self.clock.load(SeqCst) } // SeqCst: as in `open`
    }

    fn open_now(&self) -> OpenSnapshots {
        self.open_in(&self.registry.lock())
    }

    fn sweep(&self, open: &OpenSnapshots) {
        self.store.prune(open);
        self.prune_loads();
        self.registry.lock().swept_to = self.store.size().0;
    }

    /// Forgets loads that no open snapshot must know: each open snapshot sees the loading transaction, or is
    /// older than the table.
    fn prune_loads(&self) {
        // As in `OpenSnapshots::need`, a load that ended above the clock is kept for snapshots opened since.
        let (open, clock) = {
            let registry = self.registry.lock();
            (registry.open.clone(), self.clock.load(SeqCst)) // SeqCst: as in `open`
        };
        let is_needed = |tree: TreeId, ended: u64| {
            ended > clock || open.iter().any(|slot| slot.timestamp < ended && tree < slot.next_tree)
        };
        let mut loads = self.loads.lock();
        loads.retain(|(tree, writer)| writer.ended().is_none_or(|ended| is_needed(*tree, ended)));
        self.loads_len.store(loads.len(), SeqCst); // as in `note_hidden_tree`
    }

    /// Lets writers stop storing images, if no snapshot has been open for [`GRACE`]. Cheap if there is
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

    /// Turns versions off. The caller holds `switching`, and no snapshot is open.
    fn switch_off(&self) {
        self.change_mode();
        // Images of active transactions go too: the next opener visits them again (VERSION-7).
        self.store.clear();
        let mut loads = self.loads.lock();
        loads.clear();
        self.loads_len.store(0, SeqCst); // as in `note_hidden_tree`
        drop(loads);
        self.registry.lock().swept_to = 0;
    }

    /// Returns whether an open snapshot can read a value that a committed transaction replaced or removed. It
    /// cannot if it sees that transaction, or does not see the one that wrote the value. `value` is the cell.
    #[must_use]
    pub fn needs_value(&self, committed: &Committed, tree: TreeId, key: &[u8], value: &[u8]) -> bool {
        if committed.status.is_none() {
            return false;
        }
        // First: a snapshot that is opened later sees the transaction.
        let open = self.open_now();
        !open.timestamps.is_empty() && self.store.is_value_needed((tree, key), value, &open)
    }

    /// Returns whether an open snapshot can read a tree that a committed transaction dropped.
    #[must_use]
    pub fn needs_tree(&self, committed: &Committed, tree: TreeId) -> bool {
        let Some(timestamp) = committed.status.as_ref().and_then(|status| status.ended()) else {
            return false;
        };
        let registry = self.registry.lock();
        registry.open.iter().any(|slot| slot.timestamp < timestamp && tree < slot.next_tree)
    }

    /// The open snapshots and the memory of versions.
    #[must_use]
    pub fn stats(&self) -> VersionStats {
        let registry = self.registry.lock();
        let (versions, bytes) = self.store.size();
        VersionStats {
            open: registry.open.len(),
            oldest: registry.open.first().map(|slot| slot.timestamp),
            oldest_age: registry.open.first().map_or(Duration::ZERO, |slot| slot.opened.elapsed()),
            versions,
            bytes,
            too_old: self.too_old.load(Relaxed), // Relaxed: a statistic
            lookups: self.lookups.sum(),
            hidden_loads: self.loads_len.load(Relaxed), // Relaxed: a statistic
        }
    }

    /// Stores the image that a change is about to replace, if versions are on. `node` is the latched leaf
    /// before the change (VERSION-2); the caller holds the mutex of `undo` (VERSION-1).
    pub(crate) fn before_change(&self, undo: &mut UndoLog, op: &UndoOp<'_>, node: Option<Node<'_>>) {
        let mode = self.mode();
        if mode.is_multiple_of(2) {
            return;
        }
        if undo.is_empty() {
            undo.writer.kept_in = mode;
        }
        if undo.writer.kept_in != mode {
            return; // the opener that turned versions on will visit the transaction (VERSION-7)
        }
        let writer = &mut undo.writer;
        let status = Arc::clone(writer.status(self));
        match *op {
            UndoOp::RemoveKey { tree, key } if !writer.hides(tree.id) => {
                self.install(tree.id, key, (&status, mode), || None);
            }
            UndoOp::PutBack { tree, key, cell } if !writer.hides(tree.id) => {
                self.install(tree.id, key, (&status, mode), || image_of(cell));
            }
            UndoOp::Flip { tree, key, .. } if !writer.hides(tree.id) => {
                self.install(tree.id, key, (&status, mode), || node.and_then(|node| image_in(node, key)));
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
                self.prune_loads();
                let mut loads = self.loads.lock();
                loads.push((tree.id, Arc::clone(status)));
                // SeqCst: as the counts of keys (VERSION-3).
                self.loads_len.store(loads.len(), SeqCst);
            }
            _ => {}
        }
    }

    /// Stores an image, unless the mode has changed since the caller read it (VERSION-7).
    fn install(
        &self,
        tree: TreeId,
        key: &[u8],
        (status, mode): (&Arc<Status>, u64),
        before: impl FnOnce() -> Image,
    ) {
        let is_current = || self.mode() == mode;
        self.store.install((tree, key), status, is_current, before, || self.open_now());
        if self.store.size().1 > self.limit_bytes {
            self.shrink();
        }
    }

    /// Makes the oldest snapshot too old and drops its versions. Without an open snapshot versions are turned
    /// off.
    #[cold]
    fn shrink(&self) {
        let (_, bytes) = self.store.size();
        let open = {
            let mut registry = self.registry.lock();
            if !registry.open.is_empty() {
                let oldest = registry.open.remove(0);
                // Release: pairs with the Acquire in `SnapshotId::too_old_at_bytes`: a reader that misses the
                // mark has read before the versions are dropped.
                oldest.too_old_at_bytes.store(bytes.max(1), Release);
                self.too_old.fetch_add(1, Relaxed); // Relaxed: a statistic
            }
            self.open_in(&registry)
        };
        if !open.timestamps.is_empty() {
            return self.sweep(&open);
        }
        // Only tried: a thread that holds it may wait for the undo log of this thread's transaction.
        let Some(_switching) = self.switching.try_lock() else { return };
        if self.registry.lock().open.is_empty() {
            self.switch_off();
        }
    }

    /// Returns whether readers of snapshots can learn from [`commit`](Self::commit) that this transaction has
    /// committed. If so, the caller first notes the commit LSN where such readers look it up.
    #[must_use]
    pub fn has_status(&self, undo: &UndoLog) -> bool {
        undo.writer.status.is_some()
    }

    /// Ends a transaction that commits; its commit record has been appended, its locks are held, and the
    /// caller holds the mutex of `undo`.
    pub fn commit(&self, undo: &mut UndoLog, commit_lsn: Lsn) -> Committed {
        let status = undo.writer.end();
        match (&status, self.left_out) {
            (None, _) => {}
            (Some(status), Some(part)) => status.commit_without(part, &self.clock, commit_lsn),
            (Some(status), None) => status.commit(&self.clock),
        }
        Committed { status }
    }

    /// Notes that a change of a row was undone.
    pub(crate) fn undone(&self, undo: &UndoLog, tree: TreeId, key: &[u8]) {
        if self.leaves_out(VersionPart::SavepointVersion)
            && let Some(writer) = &undo.writer.status
        {
            self.store.forget((tree, key), writer);
        }
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
        // SeqCst: VERSION-3.
        if self.loads_len.load(SeqCst) == 0 {
            return false;
        }
        let loads = self.loads.lock();
        loads.iter().any(|(id, writer)| *id == tree && writer.visibility(timestamp) == Visibility::Hidden)
    }
}
