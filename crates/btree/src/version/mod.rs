//! Versions of rows for snapshots: multiversion two-phase locking.
//!
//! Writers lock rows as without snapshots, and the row in the leaf is always the newest. While a snapshot can
//! be open, a writer also stores the image that it replaces. A snapshot has a timestamp. All transactions
//! that committed at or before it are visible to the snapshot. Snapshots take no locks, and no writer waits
//! for them.
//!
//! Log buffers draw ranges of LSNs. So commit LSNs do not order transactions that depend on each other only
//! by a read and a later write. Snapshots therefore use separate timestamps: the values of a clock that only
//! openers of snapshots advance. An opener advances the clock if a transaction has committed at its present
//! value. Otherwise the state is the same as at the last opening, and the opener uses the same timestamp.
//!
//! | mode | writers | left by |
//! |---|---|---|
//! | off | store nothing; one load for each change | the opening of a snapshot |
//! | on | store before-images, take timestamps | [`Versions::turn_off`], [`GRACE`] after the last opening |
//! | on, in a sparse period ([`sparse`]) | store the first image of a row only | the opening of a snapshot |
//!
//! - **VERSION-1** At each change, before it changes the page, a transaction reads the mode under the mutex
//!   of its undo log. The first opener turns the mode on, and then visits each active transaction under that
//!   mutex and stores the images of the changes made so far. So each change is either visited, or made with
//!   the mode on.
//! - **VERSION-2** An image is stored before the page contains the change, under the exclusive latch of the
//!   leaf. A reader copies the leaf, then looks up images, then validates the leaf: the three steps are
//!   atomic.
//! - **VERSION-3** A transaction counts the group of its image, executes a sequentially consistent fence, and
//!   then reads the clock. An opener reads or advances the clock, executes such a fence, and then reads
//!   whether there are groups. So if an opener finds no group, the transaction reads a clock value above the
//!   snapshot's timestamp, and commits later than the snapshot. If there are groups, the locks of the look-up
//!   have this effect ([`groups`], GROUP-2). The rule for counts applies to the count of loaded trees, too.
//! - **VERSION-4** If a transaction precedes another one by any dependency, its timestamp is not larger. Both
//!   read the clock while they hold their locks, one after the other, and a pushed timestamp ([`status`]) is
//!   not above the clock at the time of the push.
//! - **VERSION-5** Every record at or below the *all-visible LSN* of a snapshot belongs to a transaction that
//!   is visible to the snapshot, or to one that was undone completely. An opener reads a lower bound of later
//!   LSNs, then the first LSN of each active transaction. This opener or a later one then reads that no
//!   transaction has committed above its timestamp. So a transaction that is not visible to the snapshot was
//!   active, or began later, and has only larger LSNs. Images are not looked up for a leaf with a page LSN at
//!   or below the all-visible LSN.
//! - **VERSION-6** A version is dropped only if no snapshot needs it: neither a listed open snapshot nor one
//!   that was opened since the list was read. The last commit timestamp was read before the list, and
//!   snapshots that are not listed have at least this timestamp ([`registry`], SNAP-1).
//! - **VERSION-7** A transaction stores an image before each of its changes of a row, except for marked rows
//!   in a sparse period. Only the first one is used, and the others are dropped later. Turning versions off
//!   drops all images. So a transaction has no images of changes that it made while versions were off, or
//!   before they were turned off and on again, until the opener has visited the transaction. A writer that
//!   read the mode before versions were turned off stores no images afterward. It reads the mode again under
//!   the mutex of the inbox, and the count of mode changes shows every change.
//! - **VERSION-8** A transaction raises the last commit timestamp to its own before it commits, and an opener
//!   uses a timestamp that is not below the last commit timestamp. So each transaction that had committed is
//!   visible to the snapshot.
//!
//! Versions are only in memory, and a restart needs none.

mod backfill;
mod fault;
mod groups;
mod images;
#[doc(hidden)]
pub mod model;
mod opening;
mod registry;
mod row;
mod sorted;
mod sparse;
mod status;
mod store;
mod sweep;
mod view;

use std::time::Duration;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use azekura_base::{CachePadded, Lsn, StripedCounter, TreeId};

use crate::node::{Node, Position};
use crate::undo::UndoLog;

use self::backfill::Measured;
use self::registry::Registry;
use self::row::Version;
use self::sorted::Sorted;
use self::sparse::{LeftOut, Marks};
use self::status::{Status, Visibility};
use self::store::{Image, OpenSnapshots, VersionStore};
use self::sweep::Sweep;

pub use self::fault::VersionPart;
pub use self::registry::SnapshotId;
pub use self::sparse::SPARSE_AFTER;
pub use self::view::{SeenRow, View};

/// The part of a transaction's undo log that versions need.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterVersions {
    /// The version that has the transaction's status. It is made at the first change with versions on, or by
    /// the first opener of a snapshot.
    status: Option<Version>,
    /// Trees that the transaction created or loaded: their rows need no versions.
    hidden_trees: Vec<TreeId>,
    /// The count of mode changes for which images of all changes so far are stored (VERSION-7), except for
    /// those of a sparse period.
    kept_in: u64,
    /// The changes without an image (SPARSE-1).
    left_out: LeftOut,
    images: Measured,
}

impl WriterVersions {
    /// Returns the version that has the status; makes it if there is none.
    fn status(&mut self, versions: &Versions) -> &Version {
        self.status.get_or_insert_with(|| Version::without_row(versions.new_status()))
    }

    fn hides(&self, tree: TreeId) -> bool {
        self.hidden_trees.contains(&tree)
    }

    fn end(&mut self) -> Option<Version> {
        self.hidden_trees.clear();
        self.kept_in = 0;
        self.left_out = LeftOut::default();
        self.images = Measured::default();
        self.status.take()
    }

    /// Clears the state after the transaction's end, if no change of the transaction needs to be hidden.
    pub(crate) fn clear(&mut self) {
        drop(self.end());
    }
}

/// Returns the row of `key` in a leaf.
fn image_in(node: Node<'_>, key: &[u8]) -> Image<'static> {
    let Position::Found(slot) = node.search(key) else { return None };
    let slot = node.slot(slot);
    let mut value = Vec::new();
    node.value_into(slot, &mut value);
    Some((slot.flags, value.into()))
}

/// Time after the last opening of a snapshot after which writers stop storing images, if no snapshot is open.
/// If snapshots are opened more often, versions stay on, which avoids the cost of turning them on again.
pub const GRACE: Duration = Duration::from_millis(100);

/// Statistics of open snapshots and row versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VersionStats {
    /// Number of open snapshots.
    pub open: usize,
    /// Timestamp of the oldest open snapshot.
    pub oldest: Option<u64>,
    /// Age of the oldest open snapshot.
    pub oldest_age: Duration,
    /// Number of row versions in memory.
    pub versions: u64,
    /// Memory of the row versions, in bytes.
    pub bytes: u64,
    /// Number of snapshots that became too old since the store was opened.
    pub too_old: u64,
    /// Number of leaves for which a snapshot has looked up versions.
    pub lookups: u64,
    /// Number of bulk loads that must stay invisible to an open snapshot.
    pub hidden_loads: usize,
}

/// A transaction that has committed, for [`Versions::needs_value`] and [`Versions::needs_tree`].
#[derive(Clone, Debug, Default)]
pub struct Committed {
    /// The version with the transaction's status; `None`: the transaction is visible to every snapshot.
    status: Option<Version>,
}

/// The all-visible LSN that openers share.
#[derive(Debug)]
struct AllVisible {
    /// The LSN, which only ascends. Written under `computing`.
    lsn: AtomicU64,
    /// Time of the last computation, in nanoseconds of the registry; 0: never computed.
    computed: AtomicU64,
    computing: Mutex<()>,
}

/// The mode, and the admission of openers. Each change of a row and each opening reads this cache line, and a
/// change of the mode writes it.
#[derive(Debug)]
struct Mode {
    /// Number of mode changes: odd while versions are on.
    changes: AtomicU64,
    /// `true` if openers need not lock `switching` (SNAP-2).
    admits: AtomicBool,
    /// Number of begins and ends of sparse periods: odd during one. Written under `switching`.
    sparse: AtomicU64,
}

/// Versions, clock and open snapshots of one store.
#[derive(Debug)]
pub struct Versions {
    /// The clock. Only openers write it.
    clock: CachePadded<AtomicU64>,
    /// The largest timestamp of a transaction that has committed, or is about to commit. Written by the first
    /// transaction after each advance of the clock.
    last_commit: CachePadded<AtomicU64>,
    mode: CachePadded<Mode>,
    store: VersionStore,
    marks: Marks,
    /// Trees that a bulk load has filled while the mode was on, with the loading transaction.
    loads: Mutex<Vec<(TreeId, Version)>>,
    /// Length of `loads`: readers do not lock `loads` if it is 0.
    loads_len: AtomicUsize,
    registry: Registry,
    all_visible: CachePadded<AllVisible>,
    /// Held while the mode changes, and by openers that turn versions on or are not admitted.
    switching: Mutex<()>,
    /// Number of versions after the last sweep over all groups.
    swept_to: AtomicU64,
    /// The sweep that is unfinished or was the last.
    sweeping: Mutex<Sweep>,
    /// `true` if it is unfinished. Written under `sweeping`.
    is_sweeping: AtomicBool,
    limit_bytes: u64,
    too_old: AtomicU64,
    lookups: StripedCounter,
    /// A part that is left out; `None` except in tests of the tests.
    left_out: Option<VersionPart>,
}

impl Versions {
    /// Returns a store without snapshots and versions. Versions may use `limit_bytes` of memory; beyond this
    /// limit the oldest snapshot becomes too old.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            clock: CachePadded::new(AtomicU64::new(2)),
            last_commit: CachePadded::new(AtomicU64::new(0)),
            mode: CachePadded::new(Mode {
                changes: AtomicU64::new(0),
                admits: AtomicBool::new(false),
                sparse: AtomicU64::new(0),
            }),
            store: VersionStore::new(limit_bytes),
            marks: Marks::default(),
            loads: Mutex::default(),
            loads_len: AtomicUsize::new(0),
            registry: Registry::new(),
            all_visible: CachePadded::new(AllVisible {
                lsn: AtomicU64::new(0),
                computed: AtomicU64::new(0),
                computing: Mutex::default(),
            }),
            switching: Mutex::default(),
            swept_to: AtomicU64::new(0),
            sweeping: Mutex::default(),
            is_sweeping: AtomicBool::new(false),
            limit_bytes,
            too_old: AtomicU64::new(0),
            lookups: StripedCounter::new(),
            left_out: None,
        }
    }

    /// Leaves out a part of the protocol.
    #[doc(hidden)]
    #[must_use]
    pub fn leave_out(mut self, part: Option<VersionPart>) -> Self {
        self.left_out = part;
        self.store.pushes = part != Some(VersionPart::Push);
        self
    }

    /// Returns `true` if a test has left out this part.
    #[doc(hidden)]
    #[must_use]
    pub fn leaves_out(&self, part: VersionPart) -> bool {
        self.left_out == Some(part)
    }

    /// Returns the status of a transaction that begins to store images.
    fn new_status(&self) -> Status {
        let least = match self.leaves_out(VersionPart::LateTimestamp) {
            true => self.clock.load(Acquire), // Acquire: as in `commit_timestamp`
            false => 0,
        };
        Status::active(least)
    }

    fn mode(&self) -> u64 {
        // Acquire: pairs with the Release in `change_mode`. The mutex of the undo log orders the rest
        // (VERSION-1).
        self.mode.changes.load(Acquire)
    }

    fn is_on(&self) -> bool {
        !self.mode().is_multiple_of(2)
    }

    /// Turns versions on or off. The caller holds `switching`.
    fn change_mode(&self) {
        self.mode.changes.fetch_add(1, Release); // Release: pairs with the Acquire in `mode`
    }

    /// Returns the snapshots that are open now, for a decision about transactions that have ended.
    fn open_now(&self) -> OpenSnapshots {
        // Acquire: SNAP-1. Pairs with the Release in `note_commit`; the fence of `timestamps` extends it to
        // the reads of the slots.
        let last_commit = self.last_commit.load(Acquire);
        OpenSnapshots { timestamps: self.registry.timestamps(), last_commit }
    }

    fn end_sweep(&self) {
        self.prune_loads();
        self.swept_to.store(self.store.size().0, Relaxed); // Relaxed: a statistic
    }

    /// Drops loads that no open snapshot needs: the loading transaction is visible to each open snapshot, or
    /// the snapshot is older than the table.
    fn prune_loads(&self) {
        let last_commit = self.last_commit.load(Acquire); // Acquire: SNAP-1, as in `open_now`
        let mut open = Vec::new();
        self.registry.for_each(|slot, timestamp| open.push((timestamp, slot.next_tree())));
        // As in `OpenSnapshots::need`, a load that ended later is kept for snapshots that are not listed.
        let is_needed = |tree: TreeId, ended: u64| {
            let hides = |&(timestamp, next_tree)| timestamp < ended && tree < next_tree;
            ended > last_commit || open.iter().any(hides)
        };
        let mut loads = self.loads.lock();
        loads.retain(|(tree, writer)| writer.status().ended().is_none_or(|ended| is_needed(*tree, ended)));
        self.loads_len.store(loads.len(), Release); // Release: as in `note_hidden_tree`
    }

    /// Turns versions off. The caller holds `switching`, no snapshot is open, and no opener is admitted.
    /// Returns all versions: the caller drops them after it has released `switching`, for which openers
    /// wait.
    fn switch_off(&self) -> Vec<Sorted> {
        self.change_mode();
        if self.is_sparse() {
            self.mode.sparse.fetch_add(1, Release); // Release: as in `change_mode`
        }
        // Images of active transactions are dropped too: the next opener visits these transactions again
        // (VERSION-7).
        let versions = self.store.clear();
        let mut loads = self.loads.lock();
        loads.clear();
        self.loads_len.store(0, Release); // Release: as in `note_hidden_tree`
        drop(loads);
        self.swept_to.store(0, Relaxed); // Relaxed: a statistic
        versions
    }

    /// Returns `true` if an open snapshot can read a value that a committed transaction replaced or removed.
    /// A snapshot cannot if that transaction is visible to it, or if the transaction that wrote the value is
    /// not. `value` is the content of the cell.
    #[must_use]
    pub fn needs_value(&self, committed: &Committed, tree: TreeId, key: &[u8], value: &[u8]) -> bool {
        if committed.status.is_none() {
            return false;
        }
        // The transaction is visible to snapshots that are opened later.
        let open = self.open_now();
        !open.timestamps.is_empty() && self.store.is_value_needed((tree, key), value, &open)
    }

    /// Returns `true` if an open snapshot can read a tree that a committed transaction dropped.
    #[must_use]
    pub fn needs_tree(&self, committed: &Committed, tree: TreeId) -> bool {
        let Some(timestamp) = committed.status.as_ref().and_then(|writer| writer.status().ended()) else {
            return false;
        };
        // The transaction is visible to snapshots that are opened later.
        let mut is_needed = false;
        self.registry.for_each(|slot, opened| is_needed |= opened < timestamp && tree < slot.next_tree());
        is_needed
    }

    /// Returns statistics of the open snapshots and the row versions. First drops versions of recently
    /// changed rows that no snapshot needs.
    #[must_use]
    pub fn stats(&self) -> VersionStats {
        self.store.order_recent(|| self.open_now());
        let (open, oldest) = self.registry.oldest();
        let (versions, bytes) = self.store.exact_size();
        VersionStats {
            open,
            oldest: oldest.map(|(timestamp, _)| timestamp),
            oldest_age: oldest.map_or(Duration::ZERO, |(_, age)| age),
            versions,
            bytes,
            too_old: self.too_old.load(Relaxed), // Relaxed: a statistic
            lookups: self.lookups.sum(),
            hidden_loads: self.loads_len.load(Relaxed), // Relaxed: a statistic
        }
    }

    /// Returns `true` if versions take more than half of their memory, of which a sixteenth may be missing in
    /// the count.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        self.store.size().1 > self.limit_bytes / 2
    }

    /// Returns `true` if [`commit`](Self::commit) makes the commit of this transaction visible to readers of
    /// snapshots. If so, the caller first stores the commit LSN where such readers look it up.
    #[must_use]
    pub fn has_status(&self, undo: &UndoLog) -> bool {
        undo.writer.status.is_some()
    }

    /// Returns the commit timestamp of a transaction that holds all its locks: the clock's value, or `least`
    /// if that is larger. Raises the last commit timestamp to the result.
    fn commit_timestamp(&self, least: u64) -> u64 {
        // VERSION-3: pairs with the fence of an opener (`Slot::publish`).
        fence(SeqCst);
        // Acquire: pairs with the AcqRel in `draw_timestamp`. Transactions that wait for a lock of this one
        // read this value of the clock, or a later one (VERSION-4).
        let timestamp = self.clock.load(Acquire).max(least);
        self.note_commit(timestamp);
        timestamp
    }

    /// Raises the last commit timestamp to the timestamp of a transaction that is about to commit
    /// (VERSION-8).
    fn note_commit(&self, timestamp: u64) {
        // Relaxed: if the value is large enough, another transaction has raised it. Only that transaction's
        // thread, or a thread that has read its write, relies on it. Release: pairs with the Acquire in
        // `open_now`.
        if self.last_commit.load(Relaxed) < timestamp {
            self.last_commit.fetch_max(timestamp, Release);
        }
    }

    /// Ends a transaction that commits. Its commit record has been appended, its locks are held, and the
    /// caller holds the mutex of `undo`.
    pub fn commit(&self, undo: &mut UndoLog, commit_lsn: Lsn) -> Committed {
        let status = undo.writer.end();
        match (&status, self.left_out) {
            (None, _) => {}
            (Some(writer), Some(part)) => writer.status().commit_without(part, self, commit_lsn),
            (Some(writer), None) => writer.status().commit(self),
        }
        Committed { status }
    }

    /// Handles the undo of a row's change: drops the row's version, only if a test has left out V6.
    pub(crate) fn undone(&self, undo: &UndoLog, tree: TreeId, key: &[u8]) {
        if self.leaves_out(VersionPart::SavepointVersion)
            && let Some(writer) = &undo.writer.status
        {
            self.store.forget((tree, key), writer);
        }
    }

    /// Ends a transaction after all its changes are undone.
    pub fn roll_back(&self, undo: &mut UndoLog) {
        if let Some(writer) = undo.writer.end() {
            writer.status().roll_back();
        }
    }

    /// Returns `true` if `tree` is empty in the snapshot, because a transaction that is not visible to the
    /// snapshot has loaded the tree.
    fn is_empty_in(&self, tree: TreeId, timestamp: u64) -> bool {
        // Acquire: VERSION-3. Pairs with the Release stores, for a load that was dropped.
        if self.loads_len.load(Acquire) == 0 {
            return false;
        }
        let loads = self.loads.lock();
        loads
            .iter()
            .any(|(id, writer)| *id == tree && writer.status().visibility(timestamp) == Visibility::Hidden)
    }
}
