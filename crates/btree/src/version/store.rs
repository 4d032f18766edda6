//! Before-images of rows: a snapshot reads them in place of rows that changed after it.
//!
//! Each version refers to the transaction that replaced the image. Versions are held in the order of rows, in
//! [groups](super::groups) of adjacent rows, so that scans find the versions of a range.

use std::borrow::Cow;

use azekura_base::sync::atomic::{AtomicI64, Ordering::Relaxed};
use azekura_base::{PageId, TreeId};

use super::groups::{Group, Groups, Rows};
use super::row::Version;
use super::sorted::{Entry, Key, Sorted, needed};
use super::status::{Status, Visibility};
use crate::node::Cell;

/// An earlier state of a row: `None` if the key was absent.
pub(crate) type Image<'a> = Option<(u16, Cow<'a, [u8]>)>;

/// Largest part of the totals that a group does not report, in bytes.
const MOST_UNREPORTED: i64 = 64 << 10;

/// All before-images of a store.
#[derive(Debug)]
pub(crate) struct VersionStore {
    groups: Groups,
    /// Memory of the versions in bytes, without the parts that groups have not reported.
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

impl VersionStore {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            groups: Groups::new(),
            bytes: AtomicI64::new(0),
            versions: AtomicI64::new(0),
            limit_bytes,
            pushes: true,
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Allocates what versions need, before they are turned on for the first time.
    pub(super) fn make(&self) {
        self.groups.make(self.limit_bytes);
    }

    /// Adds the image that a transaction is about to replace; returns `true` if it was added. `page` is the
    /// row's leaf. `writer` is a version with the transaction's status. Without one, the image gets the
    /// status from `status`, and `writer` becomes the image. Adds nothing if `is_current`, called under the
    /// mutex of the inbox, returns `false`. From time to time drops versions of the changed rows that no
    /// snapshot needs. Directly afterward, a row has at most one version more than snapshots are open.
    pub(crate) fn install<'b>(
        &self,
        (tree, key, page): (TreeId, &[u8], Option<PageId>),
        writer: &mut Option<Version>,
        status: impl FnOnce() -> Status,
        is_current: impl Fn() -> bool,
        before: impl FnOnce() -> Image<'b>,
        open: impl Fn() -> OpenSnapshots,
    ) -> bool {
        // Allocated before the mutex is locked, so that other writers of the group do not wait for the
        // allocation.
        let before = before();
        let owner = writer.as_ref().map_or_else(|| Ok(status()), Err);
        let version = Version::new(key, cell_of(&before), owner);
        let made = writer.is_none().then(|| version.clone());
        let (key, memory, mut version) = (Key::new(key), version.memory() as i64, Some(version));
        let (is_added, due) = self.groups.add(tree, key, page, &is_current, |new| {
            let Some(version) = version.take().filter(|_| is_current()) else { return false };
            new.push(key, version);
            self.count(&mut new.unreported, 1, memory);
            true
        });
        // If another thread has locked the group, the next writer tries it again.
        if let Some(mut rows) = due.and_then(Group::try_lock) {
            let dropped = self.order(&mut rows, &open);
            let is_large = rows.is_large;
            if is_large {
                // The largest part that is not reported decreases with each new group.
                self.report(&mut rows.unreported);
            }
            drop(rows);
            drop(dropped); // The mutex of the group has been released.
            if is_large {
                self.groups.divide(tree, key);
            }
        }
        if is_added && made.is_some() {
            *writer = made;
        }
        is_added
    }

    /// Drops the versions of a row that belong to `writer` (V6).
    #[cold]
    pub(crate) fn forget(&self, (tree, key): (TreeId, &[u8]), writer: &Version) {
        let key = Key::new(key);
        let _dropped = self.groups.with(tree, key, None, |rows| {
            let dropped = rows.sorted.remove(key, |version| version.writer() == writer.writer());
            self.uncount(rows, dropped)
        });
    }

    /// Orders the recent versions of a locked group; returns those that were dropped.
    fn order(&self, rows: &mut Rows, open: impl Fn() -> OpenSnapshots) -> Dropped {
        let dropped = rows.sorted.order_recent(open);
        rows.is_large = self.groups.is_large(rows);
        self.uncount(rows, dropped)
    }

    /// Adds to the versions and bytes of a group, or of its inbox, that are not in the totals.
    fn count(&self, unreported: &mut (i64, i64), versions: i64, bytes: i64) {
        *unreported = (unreported.0 + versions, unreported.1 + bytes);
        // The unreported parts of all groups and inboxes together are about 1/16 of the limit, at most.
        let most = (self.limit_bytes / 32) as i64 / self.groups.len().max(16) as i64;
        if unreported.1.abs() >= most.min(MOST_UNREPORTED) {
            self.report(unreported);
        }
    }

    fn report(&self, unreported: &mut (i64, i64)) {
        let (versions, bytes) = std::mem::take(unreported);
        // Relaxed: the totals are statistics, and the limit is checked again.
        self.versions.fetch_add(versions, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Subtracts dropped versions, and returns them: they are freed after the mutex of the group is released.
    fn uncount(&self, rows: &mut Rows, dropped: Dropped) -> Dropped {
        self.count(&mut rows.unreported, -(dropped.versions.len() as i64), -dropped.bytes);
        dropped
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
        let key = Key::new(key);
        let mut is_needed = needed(open);
        let has_value = |version: &Version| version.before().is_some_and(|before| before.value == value);
        let found = self.groups.with(tree, key, None, |rows| {
            let mut of_row = rows.sorted.of_row(key).map(Entry::version);
            of_row.any(|version| is_needed(version) & has_value(version))
        });
        found == Some(true)
    }

    /// Returns `true` if there are versions of rows of this tree.
    pub(crate) fn has_any_of(&self, tree: TreeId) -> bool {
        self.groups.has_any_of(tree)
    }

    /// Drops all versions that no open snapshot needs.
    pub(crate) fn prune(&self, open: &OpenSnapshots) {
        self.prune_groups(&self.group_numbers(), open);
        self.remove_unused();
    }

    /// Returns the numbers of all groups, for [`prune_groups`](Self::prune_groups).
    pub(super) fn group_numbers(&self) -> Vec<u32> {
        self.groups.numbers()
    }

    /// Returns the numbers of the groups of a tree.
    pub(super) fn group_numbers_of(&self, tree: TreeId) -> Vec<u32> {
        self.groups.numbers_of(tree)
    }

    /// Drops the versions of these groups that no open snapshot needs.
    pub(super) fn prune_groups(&self, numbers: &[u32], open: &OpenSnapshots) {
        self.groups.for_each_of(numbers, |rows| {
            let dropped = rows.sorted.prune(open);
            self.uncount(rows, dropped)
        });
    }

    /// Removes the groups that have no version at two calls.
    pub(super) fn remove_unused(&self) {
        self.groups.remove_unused(|rows| self.report(&mut rows.unreported));
    }

    /// Drops the versions that no snapshot needs of the rows that changed since the last time.
    pub(crate) fn order_recent(&self, open: impl Fn() -> OpenSnapshots) {
        self.order_groups(&self.group_numbers(), open);
    }

    /// Does the same as [`order_recent`](Self::order_recent) for the rows of these groups.
    pub(super) fn order_groups(&self, numbers: &[u32], open: impl Fn() -> OpenSnapshots) {
        self.groups.for_each_of(numbers, |rows| self.order(rows, &open));
    }

    /// Removes all versions, and returns them, so that the caller frees them after it has released its locks.
    /// Reads no version.
    pub(super) fn clear(&self) -> Vec<Sorted> {
        self.groups.clear(
            |rows| std::mem::take(&mut rows.sorted),
            || {
                // Relaxed, both: statistics. No group has versions or unreported changes now.
                self.versions.store(0, Relaxed);
                self.bytes.store(0, Relaxed);
            },
        )
    }

    /// Reads the row before a later change, if the row in the leaf is not visible to the snapshot. `page` is
    /// the leaf.
    pub(crate) fn resolve<R>(
        &self,
        (tree, key, page): (TreeId, &[u8], Option<PageId>),
        timestamp: u64,
        read: impl FnOnce(Option<Cell<'_>>) -> R,
    ) -> Option<R> {
        if self.groups.is_empty() {
            return None;
        }
        let key = Key::new(key);
        let found = self.groups.with(tree, key, page, |rows| {
            let of_row = rows.sorted.of_row(key);
            resolve(of_row, timestamp, self.pushes).map(|entry| read(entry.version().before()))
        });
        found.flatten()
    }

    /// Returns the rows of a range in which the snapshot differs from the leaf, in ascending order of keys.
    /// `page` is the leaf.
    pub(crate) fn resolve_range(
        &self,
        (tree, page): (TreeId, PageId),
        (from, to): (&[u8], Option<&[u8]>),
        timestamp: u64,
        open: impl Fn() -> OpenSnapshots,
    ) -> Vec<Entry> {
        let (mut found, from, to) = (Vec::new(), Key::new(from), to.map(Key::new));
        if self.groups.is_empty() {
            return found;
        }
        self.groups.for_range(tree, (from, to), page, |rows, (from, to)| {
            let dropped = self.order(rows, &open);
            let of_rows = rows.sorted.of_range(from, to).chunk_by(|a, b| a.order_of_rows(b).is_eq());
            found.extend(of_rows.filter_map(|row| resolve(row.iter(), timestamp, self.pushes)).cloned());
            dropped
        });
        found
    }

    /// Returns the number of versions and their memory in bytes. Changes that groups have not reported are
    /// missing: about 1/16 of the limit at most.
    pub(crate) fn size(&self) -> (u64, u64) {
        // Relaxed, both: statistics.
        (self.versions.load(Relaxed).max(0) as u64, self.bytes.load(Relaxed).max(0) as u64)
    }

    /// Returns the exact number of versions and their memory, including unreported changes. Locks each
    /// group.
    pub(crate) fn exact_size(&self) -> (u64, u64) {
        // Relaxed, both: as in `size`.
        let mut sum = (self.versions.load(Relaxed), self.bytes.load(Relaxed));
        self.groups.for_each(|rows| sum = (sum.0 + rows.unreported.0, sum.1 + rows.unreported.1));
        (sum.0.max(0) as u64, sum.1.max(0) as u64)
    }
}

/// Versions that are dropped together. The caller drops this after it has released the mutex of the group, so
/// that no other thread waits while they are freed.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    pub(super) versions: Vec<Entry>,
    bytes: i64,
}

impl Dropped {
    pub(super) fn add(&mut self, entry: Entry) {
        self.bytes += entry.version().memory() as i64;
        self.versions.push(entry);
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
