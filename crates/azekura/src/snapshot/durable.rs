//! The commits that must be durable before a caller acts on the rows of a snapshot.
//!
//! A snapshot includes commits that are not durable yet. A reader waits only for the commits of rows that it
//! has read:
//!
//! - **SEEN-1** A leaf with a page LSN at or below the *settled* LSN has changes of durable commits only, so
//!   a read of the leaf waits for no commit. Opening a snapshot reads an all-visible LSN and then the last
//!   LSN drawn. The commit records of all transactions that ended before have LSNs at or below that last LSN.
//!   Once the log is durable up to the last LSN, the all-visible LSN is settled.
//! - **SEEN-2** For another leaf the lock table has the commit LSN of the last change of a key, or of a
//!   table. If a reader can learn the end of a transaction from its status, the lock table has that LSN
//!   before the status changes. A transaction may have no status, because the first snapshot visited it only
//!   after its commit record was appended. Its commit LSN may not be in the lock table yet, so readers of
//!   later leaves wait for the whole log before that visit.

use std::time::Duration;

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::{DurableLog, Lsn};
use azekura_btree::{SnapshotId, Versions};
use azekura_wal::Wal;

use super::Snapshot;
use crate::database::Shared;
use crate::{Database, Error};

/// Returns the last LSN drawn.
fn last_lsn(wal: &Wal) -> Lsn {
    Lsn(wal.next_lsn().0 - 1)
}

/// The commits that are known to be durable when a snapshot is opened.
#[derive(Debug, Default)]
pub(crate) struct SnapshotDurability {
    /// The settled LSN of SEEN-1, which only increases.
    settled: AtomicU64,
    /// An all-visible LSN, and the LSN up to which the log must be durable before the first one is settled.
    candidate: Mutex<Option<(Lsn, Lsn)>>,
    /// The LSN of SEEN-2: the last LSN drawn when a snapshot last visited a transaction without a commit LSN
    /// in the lock table; 0 if the log is durable up to it.
    unreleased: AtomicU64,
}

impl SnapshotDurability {
    /// Records that a snapshot has visited a transaction with a commit record, but possibly without a commit
    /// LSN in the lock table.
    pub(super) fn note_unreleased(&self, wal: &Wal) {
        // Relaxed: a snapshot that is opened later reads the value after its admission, which orders the two.
        self.unreleased.fetch_max(last_lsn(wal).0, Relaxed);
    }

    /// Records an all-visible LSN that was just read (SEEN-1).
    pub(super) fn note_all_visible(&self, wal: &Wal, all_visible: Lsn) {
        let last = last_lsn(wal);
        let durable = wal.durable_lsn();
        let mut candidate = self.candidate.lock();
        let settled = candidate.take_if(|(_, needed)| *needed <= durable).map(|(lsn, _)| lsn);
        let settled = settled.max((last <= durable).then_some(all_visible));
        if last > durable {
            candidate.get_or_insert((all_visible, last));
        }
        // Relaxed: a settled LSN stays settled, and readers of the value depend on no other writes.
        self.settled.fetch_max(settled.map_or(0, |lsn| lsn.0), Relaxed);
    }

    /// Returns the state for a snapshot that was just opened.
    pub(super) fn of_opener(&self, wal: &Wal) -> Durability {
        // Relaxed: as in `note_unreleased`.
        let mut unreleased = self.unreleased.load(Relaxed);
        if unreleased > 0 && unreleased <= wal.durable_lsn().0 {
            // Relaxed: saves later openers this check. If the exchange fails, another opener has reset the
            // value, or has visited a transaction later than this snapshot.
            let _ = self.unreleased.compare_exchange(unreleased, 0, Relaxed, Relaxed);
            unreleased = 0;
        }
        Durability {
            last: last_lsn(wal),
            settled: Lsn(self.settled.load(Relaxed)), // Relaxed: as in `note_all_visible`
            unreleased: Lsn(unreleased),
            needed: AtomicU64::new(0),
        }
    }
}

/// The commits that one snapshot depends on.
#[derive(Debug)]
pub(super) struct Durability {
    /// LSN at or below which all changes that the snapshot can see were logged.
    last: Lsn,
    settled: Lsn,
    unreleased: Lsn,
    /// The largest commit LSN on which a read depends.
    needed: AtomicU64,
}

impl Durability {
    /// Returns the state of a snapshot that includes durable commits only.
    const fn durable() -> Self {
        Self { last: Lsn(0), settled: Lsn::MAX, unreleased: Lsn(0), needed: AtomicU64::new(0) }
    }

    /// Records that a leaf was read. `last_commit` looks up the commit LSN of SEEN-2; called after the read.
    pub(super) fn note(&self, page_lsn: Lsn, last_commit: impl FnOnce() -> Lsn) {
        if page_lsn <= self.settled {
            return;
        }
        let lsn = last_commit().max(self.unreleased).min(self.last);
        // Relaxed: a thread that loads the value has read the rows itself, or got them from a thread that
        // has.
        if self.needed.load(Relaxed) < lsn.0 {
            self.needed.fetch_max(lsn.0, Relaxed); // Relaxed: as above
        }
    }

    /// Returns the LSN up to which the log must be durable for all reads so far.
    pub(super) fn needed(&self) -> Lsn {
        Lsn(self.needed.load(Relaxed)) // Relaxed: as in `note`
    }
}

/// Time for which the store keeps a durable state for the next [`Database::durable_snapshot`]. While the
/// state is kept, writers store row versions for it. A program that opens durable snapshots at least once per
/// second never waits.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// States that are kept for [`Database::durable_snapshot`].
#[derive(Debug, Default)]
pub(crate) struct DurableSnapshots {
    /// The newest state that is known to be durable.
    durable: Option<SnapshotId>,
    /// A newer state, and the LSN up to which the log must be durable for that state.
    next: Option<(SnapshotId, Lsn)>,
    asked: Option<Instant>,
}

impl DurableSnapshots {
    /// Opens a snapshot of the newest state that is known to be durable. `newest` is the present state, which
    /// may not be durable.
    fn open(
        &mut self,
        versions: &Versions,
        newest: &SnapshotId,
        needed: Lsn,
        durable: Lsn,
    ) -> Option<SnapshotId> {
        self.asked = Some(Instant::now());
        if let Some((next, _)) = self.next.take_if(|(_, needed)| *needed <= durable) {
            self.durable.replace(next).iter().for_each(|old| versions.close(old));
        }
        if self.next.is_none() {
            self.next = versions.open_same(newest).map(|id| (id, needed));
        }
        self.durable.as_ref().and_then(|id| versions.open_same(id))
    }

    /// Returns `true` if states are kept.
    pub(crate) const fn are_kept(&self) -> bool {
        self.asked.is_some()
    }

    /// Closes the states. The next call of [`Database::durable_snapshot`] keeps others.
    pub(crate) fn close(&mut self, versions: &Versions) {
        let next = self.next.take().map(|(id, _)| id);
        self.durable.take().iter().chain(&next).for_each(|id| versions.close(id));
        self.asked = None;
    }
}

impl Database {
    /// Opens a snapshot that includes durable commits only, so [`wait_durable`](Snapshot::wait_durable)
    /// returns at once. The snapshot may lack commits that have returned. If the present state is not
    /// durable, it has the state of an earlier call. That state is at most two flushes old, if there is at
    /// least one call per flush.
    ///
    /// Waits only if there was no call during the last second and commits are in progress. The store then has
    /// no durable state, and this function waits for one flush of the log.
    ///
    /// # Errors
    ///
    /// The errors of [`snapshot`](Self::snapshot), and [`Error::Log`].
    pub fn durable_snapshot(&self) -> Result<Snapshot, Error> {
        let newest = self.snapshot()?;
        let db = &newest.inner.using;
        let (needed, durable) = (newest.inner.durability.last, db.wal.durable_lsn());
        if needed <= durable {
            return Ok(newest);
        }
        let versions = db.env.versions();
        let id = db.durable_snapshots.lock().open(versions, &newest.inner.id, needed, durable);
        if let Some(id) = id {
            let (using, durability) = (self.owners().enter()?, Durability::durable());
            return Ok(Snapshot::new(using, id, durability, None));
        }
        db.wal.make_durable(needed)?;
        Ok(newest)
    }
}

impl Shared {
    /// Closes the states kept for durable snapshots, if no durable snapshot was requested for a second.
    pub(crate) fn close_durable_snapshots(&self, now: Instant) {
        let mut kept = self.durable_snapshots.lock();
        if kept.asked.is_some_and(|asked| now.saturating_duration_since(asked) >= KEPT_FOR) {
            kept.close(self.env.versions());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Durability as Commit, TableDefinition};

    const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

    #[test]
    fn durable_states_are_kept_for_a_second() {
        let db = Database::builder().background(false).open_in_memory().expect("opens");
        for n in 0..3 {
            let tx = db.begin().expect("begins");
            // Relaxed is a durability here, not a memory ordering: the commit does not wait for the log.
            tx.set_durability(Commit::Relaxed);
            tx.table(&ROWS).and_then(|rows| rows.insert(&1, &n)).expect("inserts");
            tx.commit().expect("commits");
            drop(db.durable_snapshot().expect("opens"));
        }
        let shared = db.shared();
        assert_eq!(shared.env.versions().stats().open, 2);
        shared.close_durable_snapshots(Instant::now());
        assert_eq!(shared.env.versions().stats().open, 2);
        shared.close_durable_snapshots(Instant::now() + KEPT_FOR);
        assert_eq!(shared.env.versions().stats().open, 0);
    }
}
