//! Before-images of rows: a snapshot reads them in place of rows that changed after it.
//!
//! Each version refers to the transaction that replaced the image. A hash of its key assigns a row to one
//! stripe. A stripe holds its versions in the order of rows, so that scans find the versions of a range.

use std::borrow::Cow;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::OnceLock;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{
    AtomicI64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use azekura_base::{CachePadded, TreeId, striped::stripe_count};

use super::row::Version;
use super::sorted::{Entry, Key, Sorted};
use super::status::{Status, Visibility};
use crate::node::Cell;

/// An earlier state of a row: `None` if the key was absent.
pub(crate) type Image<'a> = Option<(u16, Cow<'a, [u8]>)>;

/// Largest part of the totals that a stripe does not report, in bytes.
const MOST_UNREPORTED: i64 = 64 << 10;

#[derive(Debug, Default)]
struct Stripe {
    /// Number of versions of the stripe; with 0 the stripe is skipped. Read without the mutex (VERSION-3).
    len: AtomicUsize,
    rows: Mutex<Rows>,
}

#[derive(Debug, Default)]
struct Rows {
    sorted: Sorted,
    /// Changes of the number and the memory of versions that are not in the totals yet.
    unreported: (i64, i64),
    /// Number of open snapshots when they were last compared with versions of this stripe.
    open: usize,
}

/// All before-images of a store.
#[derive(Debug)]
pub(crate) struct VersionStore {
    /// The stripes, allocated before versions are turned on for the first time; until then no image exists.
    stripes: OnceLock<Box<[CachePadded<Stripe>]>>,
    /// Memory of the versions in bytes, without the parts that stripes have not reported.
    bytes: AtomicI64,
    versions: AtomicI64,
    limit_bytes: u64,
    /// `true` if readers push timestamps; `false` only in tests of the tests.
    pub(super) pushes: bool,
}

/// Returns the version with the row as it is visible to snapshot `timestamp`; `None` for the row in the leaf.
/// `of_row` has the row's versions, oldest first.
fn resolve<'a>(of_row: impl Iterator<Item = &'a Entry>, timestamp: u64, pushes: bool) -> Option<&'a Entry> {
    let mut resolved = None;
    for entry in of_row {
        let status = entry.version().status();
        let visibility = match pushes {
            true => status.visibility(timestamp),
            false => status.visibility_without_push(timestamp),
        };
        match visibility {
            Visibility::Visible => resolved = None,
            Visibility::Hidden => resolved = resolved.or(Some(entry)),
            Visibility::RolledBack => {}
        }
    }
    resolved
}

/// The snapshots that were open at one moment.
#[derive(Debug)]
pub(crate) struct OpenSnapshots {
    /// Their timestamps, in ascending order.
    pub(crate) timestamps: Vec<u64>,
    /// The last commit timestamp, read before the list: snapshots that are not listed have this timestamp or
    /// a larger one (SNAP-1).
    pub(crate) last_commit: u64,
}

impl OpenSnapshots {
    /// Returns `true` if a listed or an unlisted snapshot may need the image that was written at `from` and
    /// replaced at `until`.
    pub(crate) fn need(&self, from: u64, until: u64) -> bool {
        let first = self.timestamps.partition_point(|&timestamp| timestamp < from);
        from.max(self.last_commit) < until
            || self.timestamps.get(first).is_some_and(|&timestamp| timestamp < until)
    }
}

/// Returns a filter for the versions of one row, oldest first, which passes the versions that a snapshot
/// needs. An image is needed by snapshots from the timestamp of the change that wrote it up to the timestamp
/// of the change that replaced it.
fn needed(need: impl Fn(u64, u64) -> bool) -> impl FnMut(&Version) -> bool {
    let mut from = 0;
    move |version| {
        let Some(until) = version.status().ended() else { return true };
        let is_needed = from < until && need(from, until);
        from = until.max(from);
        is_needed
    }
}

impl VersionStore {
    #[cfg_attr(not(loom), expect(clippy::missing_const_for_fn, reason = "a model's atomics are not const"))]
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            stripes: OnceLock::new(),
            bytes: AtomicI64::new(0),
            versions: AtomicI64::new(0),
            limit_bytes,
            pushes: true,
        }
    }

    fn stripe(&self, tree: TreeId, key: &[u8]) -> &Stripe {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((tree.0, key));
        let stripes = self.made();
        &stripes[hash as usize % stripes.len()]
    }

    /// Returns the stripes; allocates them if necessary.
    fn made(&self) -> &[CachePadded<Stripe>] {
        self.stripes.get_or_init(|| (0..stripe_count()).map(|_| CachePadded::default()).collect())
    }

    /// Allocates the stripes if necessary.
    pub(super) fn make(&self) {
        self.made();
    }

    fn all(&self) -> &[CachePadded<Stripe>] {
        self.stripes.get().map_or(&[], |stripes| stripes)
    }

    /// Adds the image that a transaction is about to replace, unless the row's newest version is of the same
    /// transaction. `writer` is a version with the transaction's status. Without one, the image gets the
    /// status from `status`, and is returned. Adds nothing if `is_current`, called under the mutex of the
    /// stripe, returns `false`. Drops versions of this row that no snapshot needs: a row has at most one
    /// version more than snapshots are open.
    pub(crate) fn install<'b>(
        &self,
        (tree, key): (TreeId, &[u8]),
        writer: Option<&Version>,
        status: impl FnOnce() -> Status,
        is_current: impl FnOnce() -> bool,
        before: impl FnOnce() -> Image<'b>,
        open: impl FnOnce() -> OpenSnapshots,
    ) -> Option<Version> {
        // Allocated before the mutex is locked, so that other writers of the stripe do not wait for the
        // allocation.
        let before = before();
        let owner = writer.map_or_else(|| Ok(status()), Err);
        let version = Version::new(key, cell_of(&before), owner);
        let made = writer.is_none().then(|| version.clone());
        let stripe = self.stripe(tree, key);
        let key = Key::new(key);
        let mut rows = stripe.rows.lock();
        let rows = &mut *rows;
        if !is_current() {
            return None;
        }
        let at = rows.sorted.find(tree, key);
        let newest = rows.sorted.of_row_at(at, tree, key).last();
        if newest.zip(writer).is_some_and(|(newest, writer)| newest.version().is_of_writer(writer)) {
            return None;
        }
        let behind = if newest.is_some() { self.prune_row(stripe, rows, (at, tree, key), open) } else { at };
        // Relaxed: ordered before the change of the page, and before the fence of the commit (VERSION-3).
        if stripe.len.fetch_add(1, Relaxed) == 0 {
            rows.open = 0; // Snapshots may have been closed since the stripe had versions.
        }
        self.count(rows, 1, version.memory() as i64);
        rows.sorted.insert(behind, tree, version);
        made
    }

    /// Drops versions of a row before another one is added, and returns the position after the row's
    /// remaining versions. Versions between two changes with one timestamp are never needed. The open
    /// snapshots are read only if more versions remain than snapshots were open at the last reading, because
    /// that reads the cache lines of all openers.
    fn prune_row(
        &self,
        stripe: &Stripe,
        rows: &mut Rows,
        (at, tree, key): ((usize, usize), TreeId, Key<'_>),
        open: impl FnOnce() -> OpenSnapshots,
    ) -> (usize, usize) {
        let (left, behind) = self.retain_row(stripe, rows, (at, tree, key), |_, _| true);
        if left <= rows.open {
            return behind;
        }
        let open = open();
        rows.open = open.timestamps.len();
        // Searched again: the first step may have removed a block.
        let at = rows.sorted.find(tree, key);
        self.retain_row(stripe, rows, (at, tree, key), |from, until| open.need(from, until)).1
    }

    /// Drops the versions of a row that are not needed. Returns the number of remaining versions, and the
    /// position after them.
    fn retain_row(
        &self,
        stripe: &Stripe,
        rows: &mut Rows,
        (at, tree, key): ((usize, usize), TreeId, Key<'_>),
        need: impl Fn(u64, u64) -> bool,
    ) -> (usize, (usize, usize)) {
        let (mut is_needed, mut left, mut dropped) = (needed(need), 0, Dropped::default());
        let behind = rows.sorted.retain_row(at, tree, key, |version| match is_needed(version) {
            true => {
                left += 1;
                true
            }
            false => dropped.note(version),
        });
        self.uncount(stripe, rows, dropped);
        (left, behind)
    }

    /// Drops the newest version of a row if it belongs to `writer` (V6).
    #[cold]
    pub(crate) fn forget(&self, (tree, key): (TreeId, &[u8]), writer: &Version) {
        let stripe = self.stripe(tree, key);
        let mut rows = stripe.rows.lock();
        let newest = rows.sorted.pop_newest(tree, Key::new(key), |newest| newest.is_of_writer(writer));
        if let Some(newest) = newest {
            let mut dropped = Dropped::default();
            dropped.note(&newest);
            self.uncount(stripe, &mut rows, dropped);
        }
    }

    fn count(&self, rows: &mut Rows, versions: i64, bytes: i64) {
        rows.unreported.0 += versions;
        rows.unreported.1 += bytes;
        // The unreported parts of all stripes together are at most 1/16 of the limit.
        let most = (self.limit_bytes / 16) as i64 / self.all().len().max(1) as i64;
        if rows.unreported.1.abs() >= most.min(MOST_UNREPORTED) {
            let (versions, bytes) = std::mem::take(&mut rows.unreported);
            // Relaxed: the totals are statistics, and the limit is checked again.
            self.versions.fetch_add(versions, Relaxed);
            self.bytes.fetch_add(bytes, Relaxed);
        }
    }

    fn uncount(&self, stripe: &Stripe, rows: &mut Rows, dropped: Dropped) {
        if dropped.versions > 0 {
            // Release: pairs with the Acquire of a reader that skips the stripe. If its snapshot needed one
            // of these versions, the reader then finds that the snapshot is too old.
            stripe.len.fetch_sub(dropped.versions, Release);
            self.count(rows, -(dropped.versions as i64), -dropped.bytes);
        }
    }

    /// Returns `true` if a snapshot of `open` needs a value that has been replaced. Several versions can have
    /// this value: a transaction that changed the row and rolled back to a savepoint stored one too. Versions
    /// that were dropped were not needed.
    pub(crate) fn is_value_needed(
        &self,
        (tree, key): (TreeId, &[u8]),
        value: &[u8],
        open: &OpenSnapshots,
    ) -> bool {
        let rows = self.stripe(tree, key).rows.lock();
        let mut is_needed = needed(|from, until| open.need(from, until));
        let has_value = |version: &Version| version.before().is_some_and(|before| before.value == value);
        let mut of_row = rows.sorted.of_row(tree, Key::new(key)).map(Entry::version);
        of_row.any(|version| is_needed(version) & has_value(version))
    }

    /// Returns `true` if there are versions of rows of this tree.
    pub(crate) fn has_any_of(&self, tree: TreeId) -> bool {
        self.all().iter().any(|stripe| stripe.rows.lock().sorted.from(tree, Key::new(b"")).next().is_some())
    }

    /// Drops all versions that no open snapshot needs.
    pub(crate) fn prune(&self, open: &OpenSnapshots) {
        for stripe in self.all() {
            // Relaxed: a stripe that is filled concurrently is pruned the next time.
            if stripe.len.load(Relaxed) == 0 {
                continue;
            }
            let mut rows = stripe.rows.lock();
            rows.open = open.timestamps.len();
            let need = |from, until| open.need(from, until);
            let (mut is_needed, mut dropped) = (needed(need), Dropped::default());
            let mut row = None::<(TreeId, Version)>;
            rows.sorted.retain(|tree, version| {
                let is_next = |row: &(TreeId, Version)| row.0 != tree || row.1.key() != version.key();
                if row.as_ref().is_none_or(is_next) {
                    (is_needed, row) = (needed(need), Some((tree, version.clone())));
                }
                is_needed(version) || dropped.note(version)
            });
            self.uncount(stripe, &mut rows, dropped);
        }
    }

    /// Drops all versions.
    pub(crate) fn clear(&self) {
        // Every stripe, even an empty one: a later writer reads the mode that the caller has set.
        for stripe in self.all() {
            let mut rows = stripe.rows.lock();
            let mut dropped = Dropped::default();
            rows.sorted.retain(|_, version| dropped.note(version));
            self.uncount(stripe, &mut rows, dropped);
        }
    }

    /// Reads the row before a later change, if the row in the leaf is not visible to the snapshot.
    pub(crate) fn resolve<R>(
        &self,
        tree: TreeId,
        key: &[u8],
        timestamp: u64,
        read: impl FnOnce(Option<Cell<'_>>) -> R,
    ) -> Option<R> {
        let stripe = self.stripe(tree, key);
        // Acquire: pairs with the Release in `uncount`; the fence of the opener orders the rest (VERSION-3).
        if stripe.len.load(Acquire) == 0 {
            return None;
        }
        let rows = stripe.rows.lock();
        let of_row = rows.sorted.of_row(tree, Key::new(key));
        resolve(of_row, timestamp, self.pushes).map(|entry| read(entry.version().before()))
    }

    /// Returns the rows of a range in which the snapshot differs from the leaf, in ascending order of keys.
    pub(crate) fn resolve_range(
        &self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        timestamp: u64,
    ) -> Vec<Entry> {
        let (mut found, from, to) = (Vec::new(), Key::new(from), to.map(Key::new));
        for stripe in self.all() {
            // Acquire: as in `resolve`.
            if stripe.len.load(Acquire) == 0 {
                continue;
            }
            let rows = stripe.rows.lock();
            let is_inside = |entry: &&Entry| to.is_none_or(|to| entry.order(to).is_lt());
            let mut of_range = rows.sorted.from(tree, from).take_while(is_inside).peekable();
            while let Some(&first) = of_range.peek() {
                let of_row =
                    std::iter::from_fn(|| of_range.next_if(|entry| entry.order(first.key()).is_eq()));
                found.extend(resolve(of_row, timestamp, self.pushes).cloned());
            }
        }
        found.sort_unstable_by(|a, b| a.order(b.key()));
        found
    }

    /// Returns the number of versions and their memory in bytes. Changes that stripes have not reported are
    /// missing: at most 1/16 of the limit.
    pub(crate) fn size(&self) -> (u64, u64) {
        // Relaxed, both: statistics.
        (self.versions.load(Relaxed).max(0) as u64, self.bytes.load(Relaxed).max(0) as u64)
    }

    /// Returns the exact number of versions and their memory, including unreported changes. Locks each
    /// stripe.
    pub(crate) fn exact_size(&self) -> (u64, u64) {
        // Relaxed, both: as in `size`.
        let mut sum = (self.versions.load(Relaxed), self.bytes.load(Relaxed));
        for stripe in self.all() {
            let (versions, bytes) = stripe.rows.lock().unreported;
            sum = (sum.0 + versions, sum.1 + bytes);
        }
        (sum.0.max(0) as u64, sum.1.max(0) as u64)
    }
}

/// Number and memory of versions that are dropped together.
#[derive(Debug, Default)]
struct Dropped {
    versions: usize,
    bytes: i64,
}

impl Dropped {
    /// Counts a dropped version. Returns `false`, so that a filter of remaining versions can call it.
    fn note(&mut self, version: &Version) -> bool {
        self.versions += 1;
        self.bytes += version.memory() as i64;
        false
    }
}

/// Returns the cell of an image.
pub(crate) fn cell_of<'a>(image: &'a Image<'_>) -> Option<Cell<'a>> {
    image.as_ref().map(|(flags, value)| Cell { flags: *flags, value })
}

/// Returns the cell as an image.
pub(crate) fn image_of(cell: Cell<'_>) -> Image<'_> {
    Some((cell.flags, cell.value.into()))
}
