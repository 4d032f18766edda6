//! Sweeps: visits to all groups, in steps, that drop the versions that no snapshot needs.
//!
//! Each step visits a few groups, so that no caller waits for the visit of all. Any thread continues an
//! unfinished sweep: a writer beyond the memory limit, the close of a snapshot, and
//! [`Versions::turn_off`].

use azekura_base::TreeId;
use azekura_base::sync::atomic::Ordering::{Relaxed, Release};

use super::Versions;

/// Number of groups that the close of a snapshot visits. A group has about a thousand versions.
const SWEPT_AT_ONCE: usize = 16;
/// Number of groups that a writer visits, with a latched leaf.
const SWEPT_BY_WRITER: usize = 2;

/// A visit to all groups.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The groups that it still has to visit.
    groups: Vec<u32>,
    /// `true`: it examines all versions. `false`: it orders the recent ones, and examines only the versions
    /// of their rows, because the versions have exceeded their memory.
    is_full: bool,
}

impl Versions {
    /// Drops versions that no snapshot needs, after the snapshot with timestamp `closed` was closed: begins a
    /// sweep if they have become many, and continues an unfinished one.
    pub(super) fn sweep_after(&self, closed: u64) {
        // A sweep visits all versions, so one begins only after their number has doubled. Relaxed: a
        // statistic.
        let is_due = self.store.size().0 > 2 * self.swept_to.load(Relaxed).max(512);
        if is_due || self.is_sweeping() {
            self.sweep_some(is_due.then_some(closed));
        }
    }

    /// Continues a sweep. If no full one is unfinished, begins one if the oldest snapshot, with the timestamp
    /// `closed`, was closed.
    #[cold]
    pub(super) fn sweep_some(&self, closed: Option<u64>) {
        let Some(mut sweep) = self.sweeping.try_lock() else { return };
        if sweep.groups.is_empty() || !sweep.is_full {
            let first = || self.registry.timestamps().first().copied();
            if closed.is_some_and(|closed| first().is_none_or(|oldest| oldest > closed)) {
                self.begin(&mut sweep, true);
            }
        }
        self.step(&mut sweep, SWEPT_AT_ONCE);
    }

    fn begin(&self, sweep: &mut Sweep, is_full: bool) {
        *sweep = Sweep { groups: self.store.group_numbers(), is_full };
        self.is_sweeping.store(true, Relaxed); // Relaxed: the mutex decides
    }

    /// Visits some of the groups that are left, of an unfinished sweep. At the end of a sweep beyond the
    /// limit, makes the oldest snapshots too old if the versions still need too much memory, and begins a
    /// full sweep that drops their versions.
    fn step(&self, sweep: &mut Sweep, groups: usize) {
        if !self.is_sweeping() {
            return;
        }
        let rest = sweep.groups.len().saturating_sub(groups);
        let visited = sweep.groups.split_off(rest);
        if sweep.is_full {
            self.store.prune_groups(&visited, &self.open_now());
        } else {
            self.store.order_groups(&visited, || self.open_now());
        }
        if rest > 0 {
            return;
        }
        self.is_sweeping.store(false, Relaxed); // Relaxed: as in `begin`
        if sweep.is_full {
            self.store.remove_unused();
            self.end_sweep();
        } else if self.is_over_limit() && self.make_oldest_too_old() {
            self.begin(sweep, true);
        }
    }

    /// Returns `true` if an order of the recent versions has dropped too few of them. It has to drop much
    /// more than one version, so that this pays for the visit of all groups.
    fn is_over_limit(&self) -> bool {
        self.store.size().1 >= self.limit_bytes / 16 * 15
    }

    /// Makes the oldest snapshots too old. Returns `false` if no snapshot is open.
    fn make_oldest_too_old(&self) -> bool {
        let bytes = self.store.size().1.max(1);
        let Some(&oldest) = self.registry.timestamps().first() else { return false };
        let mut too_old = 0;
        self.registry.for_each(|slot, timestamp| {
            too_old += u64::from(timestamp == oldest && slot.make_too_old(timestamp, bytes));
        });
        self.too_old.fetch_add(too_old, Release); // Release: pairs with the Acquire in `closed_snapshots`
        true
    }

    /// Returns `true` if a sweep is unfinished: [`turn_off`](Self::turn_off) continues it.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.is_sweeping.load(Relaxed) // Relaxed: as in `begin`
    }

    /// Drops some versions that no snapshot needs, for a writer that has found the versions above their
    /// limit: begins a sweep or continues it. Turns versions off if that is not enough and no snapshot is
    /// open.
    #[cold]
    pub(super) fn shrink(&self) {
        // Another writer continues the sweep.
        let Some(mut sweep) = self.sweeping.try_lock() else { return };
        if !self.is_sweeping() {
            self.begin(&mut sweep, false);
        }
        self.step(&mut sweep, SWEPT_BY_WRITER);
        let is_finished = !self.is_sweeping();
        drop(sweep);
        if is_finished && self.is_over_limit() {
            self.turn_off_now(); // unless a snapshot is open
        }
    }

    /// Returns `true` if an open snapshot may need images of rows of this tree. Drops images of this tree
    /// that no snapshot needs.
    #[must_use]
    pub fn has_images(&self, tree: TreeId) -> bool {
        self.store.has_any_of(tree) && {
            self.store.prune_groups(&self.store.group_numbers_of(tree), &self.open_now());
            self.store.has_any_of(tree)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::SnapshotId;
    use super::super::model::before_insert;
    use super::*;
    use crate::undo::UndoLog;
    use azekura_base::Lsn;

    const ROWS: u64 = 20_000;

    fn open(versions: &Versions) -> SnapshotId {
        versions.open(|_| Ok::<(), ()>(()), || Lsn(0), || TreeId(9)).expect("opens")
    }

    /// One close does not free the versions of all changes since the last sweep.
    #[test]
    fn the_versions_of_a_closed_snapshot_are_dropped_in_steps() {
        let versions = Versions::new(u64::MAX);
        let (oldest, mut undo) = (open(&versions), UndoLog::new());
        (0..ROWS).for_each(|key| before_insert(&versions, &mut undo, &key.to_be_bytes()));
        versions.commit(&mut undo, Lsn(1));
        let newest = open(&versions);
        assert_eq!(versions.stats().versions, ROWS);
        let groups = versions.store.group_numbers().len();
        versions.close(&oldest);
        let dropped = ROWS - versions.stats().versions;
        assert!(versions.is_sweeping() && dropped > 0 && dropped < ROWS / 10, "{dropped} of {groups} groups");
        let mut steps = 1;
        while versions.is_sweeping() {
            versions.turn_off();
            steps += 1;
        }
        assert_eq!((steps, versions.stats().versions), (groups.div_ceil(SWEPT_AT_ONCE), 0));
        versions.close(&newest);
        assert!(!versions.is_sweeping());
    }

    /// A writer beyond the limit visits a few groups only, and later calls the others. Versions that another
    /// snapshot needs stay.
    #[test]
    fn writers_beyond_the_limit_drop_versions_in_steps() {
        let versions = Versions::new(100 * ROWS);
        let (oldest, mut undo) = (open(&versions), UndoLog::new());
        let mut changes = 0_u64;
        // Returns the number of versions that the change of a row has dropped.
        let mut change = || {
            let before = versions.store.exact_size().0;
            before_insert(&versions, &mut undo, &changes.to_be_bytes());
            versions.commit(&mut undo, Lsn(1));
            undo.clear();
            changes += 1;
            before + 1 - versions.store.exact_size().0
        };
        let mut most = 0;
        while versions.too_old_at_bytes(&oldest).is_none() {
            most = most.max(change());
        }
        let newest = open(&versions);
        let mut later = 0;
        while versions.is_sweeping() {
            most = most.max(change());
            later += 1;
            versions.turn_off(); // Below the limit, writers do not continue the sweep.
        }
        assert!(later > 5 && most > 0 && most < ROWS / 50, "{later} calls, most {most}");
        // The change that found the snapshot too old was not committed when its group was visited.
        let stats = versions.stats();
        assert!(stats.too_old == 1 && (later..=later + 1).contains(&stats.versions), "{later}: {stats:?}");
        versions.close(&newest);
        versions.close(&oldest);
    }
}
