//! Sparse periods: images are stored only at the first change of a row in place.
//!
//! A row needs an image at its first change after the newest snapshot was opened. Its later changes need
//! none, unless a snapshot is opened while the changing transaction is active. So if no snapshot has been
//! opened for [`SPARSE_AFTER`], a *sparse period* begins: changes in place of rows that have an image since
//! the period began store none. The next opener ends the period. It visits each active transaction, as the
//! opener that turns versions on does, and stores the images that the transaction has left out.
//!
//! The rows that have an image are *marked* in a table by leaf, so that a change without an image locks no
//! group, and its transaction needs no status and no timestamp.
//!
//! - **SPARSE-1** During a period no opener is admitted. An opener that is not admitted ends the period and
//!   visits all active transactions, before its own admission. So a transaction that leaves out an image
//!   either ends before the next snapshot is opened, or the visit stores its image (VERSION-1).
//! - **SPARSE-2** A transaction that reads the number of a period commits later than each snapshot that was
//!   opened before. The thread that begins a period stops the admission, then advances the clock, then
//!   stores the number. An admitted opener has drawn its timestamp from an earlier value of the clock: if it
//!   had read the advanced clock, it would also have read that it is not admitted.
//! - **SPARSE-3** A row is marked by the transaction that stores its image, in the period. The marks of a
//!   leaf are valid for one page LSN, which is that of the last marked change. A change in place moves them
//!   to its own LSN. Each other change of the leaf invalidates them, in particular the undo of a change. So
//!   the transaction that marked a row has committed before another transaction finds the mark.
//! - **SPARSE-4** Each place of the table is used by the leaves of several pages, under different latches. A
//!   thread claims the place until its change is logged. No two pages have the same LSN of a change in place,
//!   so the LSN also identifies the page.
//! - **SPARSE-5** A transaction that has left out the image of a row stores no image before its later changes
//!   of the row. So the image that a visit stores is the oldest one of the transaction for this row
//!   (VERSION-7).

use std::sync::OnceLock;
use std::time::Duration;

use azekura_base::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use azekura_base::{Lsn, PageId, TreeId};

use super::Versions;
use crate::change::PageOp;
use crate::node::Node;
use crate::undo::{UndoLog, UndoOp};

/// Time after the last opening of a snapshot after which a sparse period begins. The next opener visits each
/// active transaction, which takes about a microsecond for each of its first changes.
pub const SPARSE_AFTER: Duration = Duration::from_millis(20);
/// Number of the first changes of a transaction that may have no image. It bounds the visit of an opener, and
/// the search of [`UndoLog::leaves_out`].
pub(super) const MOST_LEFT_OUT: usize = 16;
/// Memory for versions per place of the table, in bytes: as for the hints of groups, about one place for a
/// page of 16 KiB.
const BYTES_PER_PLACE: u64 = 4 << 10;
/// Smallest and largest number of places. A model has few.
const PLACES: (u64, u64) = if cfg!(loom) { (2, 2) } else { (64, 1 << 16) };
/// Number of words with marks of a place. Rows in higher slots are never marked.
const WORDS: usize = if cfg!(loom) { 1 } else { 6 };
/// The LSN of a place that a thread has claimed.
const CLAIMED: u64 = u64::MAX;

/// A row that is about to change in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InPlace {
    pub(crate) page: PageId,
    pub(crate) page_lsn: Lsn,
    pub(crate) slot: u16,
}

impl InPlace {
    /// Returns the row if the change with inverse `op` replaces a value that is in a leaf already.
    pub(super) fn of(op: &UndoOp<'_>, page_op: Option<(Node<'_>, &PageOp<'_>)>) -> Option<Self> {
        let (UndoOp::PutBack { .. } | UndoOp::Flip { .. }) = op else { return None };
        let (node, &(PageOp::Flip { slot, .. } | PageOp::Replace { slot, .. })) = page_op? else {
            return None;
        };
        Some(Self { page: node.page().page_id(), page_lsn: node.page().lsn(), slot })
    }
}

/// The marks of one leaf: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    /// The LSN of the last marked change, or [`CLAIMED`].
    lsn: AtomicU64,
    /// The period of the marks; 0: there are none.
    period: AtomicU64,
    rows: [AtomicU64; WORDS],
}

/// The changes of a transaction without an image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut {
    /// They are among this number of first changes.
    pub(super) first: usize,
    /// The bits of their keys.
    keys: u64,
}

impl LeftOut {
    /// Adds the change with inverse `op` after `len` changes.
    pub(super) fn add(&mut self, len: usize, op: &UndoOp<'_>) {
        let keys = self.keys | row_of(op).map_or(0, |(_, key)| bit_of(key));
        *self = Self { first: len + 1, keys };
    }
}

/// Returns one of 64 bits for a key.
fn bit_of(key: &[u8]) -> u64 {
    let last = key.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    1 << (last.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58)
}

fn row_of<'a>(op: &UndoOp<'a>) -> Option<(TreeId, &'a [u8])> {
    match *op {
        UndoOp::RemoveKey { tree, key }
        | UndoOp::PutBack { tree, key, .. }
        | UndoOp::Flip { tree, key, .. } => Some((tree.id, key)),
        _ => None,
    }
}

impl UndoLog {
    /// Returns the rows of the first `count` changes.
    pub(super) fn rows_of_first(&self, count: usize) -> impl Iterator<Item = (TreeId, &[u8])> {
        (0..count.min(self.len())).filter_map(|i| row_of(&self.get(i)?))
    }

    /// Returns `true` if the transaction may have left out the image of the row of `op`. If it has not, it
    /// has stored the image before its first change of the row.
    pub(super) fn leaves_out(&self, op: &UndoOp<'_>) -> bool {
        let LeftOut { first, keys } = self.writer.left_out;
        first > 0
            && row_of(op).is_some_and(|(tree, key)| {
                keys & bit_of(key) != 0 && self.rows_of_first(first).any(|row| row == (tree, key))
            })
    }
}

/// The table of marks.
#[derive(Debug, Default)]
pub(super) struct Marks {
    places: OnceLock<Box<[Place]>>,
}

/// The claimed marks of the leaf of a change. Dropped without [`done`](Self::done), it forgets the marks.
#[derive(Debug)]
pub(crate) struct MarkedChange<'a> {
    place: &'a Place,
    word: &'a AtomicU64,
    bit: u64,
}

impl Marks {
    /// Allocates the table for a store that may use `limit_bytes` for versions.
    fn make(&self, limit_bytes: u64) {
        let count = (limit_bytes / BYTES_PER_PLACE).clamp(PLACES.0, PLACES.1).next_power_of_two();
        self.places.get_or_init(|| (0..count).map(|_| Place::default()).collect());
    }

    /// Claims the marks of a leaf for a change; returns `None` if another thread has claimed them, or if the
    /// row cannot be marked.
    fn claim(&self, period: u64, row: InPlace) -> Option<MarkedChange<'_>> {
        let places = self.places.get()?;
        let place = places.get(row.page.0 as usize & (places.len() - 1))?;
        let slot = usize::from(row.slot);
        let word = place.rows.get(slot / 64)?;
        // Acquire: pairs with the Release at the end of the last claim.
        let lsn = place.lsn.swap(CLAIMED, Acquire);
        if lsn == CLAIMED {
            return None;
        }
        // Relaxed, here and below: the claim orders all accesses (SPARSE-4).
        if lsn != row.page_lsn.0 || place.period.load(Relaxed) != period {
            place.rows.iter().for_each(|word| word.store(0, Relaxed));
            place.period.store(period, Relaxed);
        }
        Some(MarkedChange { place, word, bit: 1 << (slot % 64) })
    }
}

impl MarkedChange<'_> {
    /// Returns `true` if the row has an image since the period began.
    pub(super) fn has_image(&self) -> bool {
        self.word.load(Relaxed) & self.bit != 0 // Relaxed: claimed
    }

    /// Marks the row after its change was logged with `lsn`. The row has an image.
    pub(crate) fn done(self, lsn: Lsn) {
        self.word.store(self.word.load(Relaxed) | self.bit, Relaxed); // Relaxed, both: claimed
        self.place.lsn.store(lsn.0, Release); // Release: pairs with the Acquire of the next claim
        std::mem::forget(self);
    }
}

impl Drop for MarkedChange<'_> {
    fn drop(&mut self) {
        self.place.period.store(0, Relaxed); // Relaxed: claimed
        self.place.lsn.store(0, Release); // Release: as in `done`
    }
}

impl Versions {
    /// Claims the marks of the row's leaf during a sparse period.
    pub(super) fn claim_marks(&self, row: Option<InPlace>) -> Option<MarkedChange<'_>> {
        // Acquire: pairs with the Release in `begin_sparse`. The transaction then reads the advanced clock
        // (SPARSE-2).
        let period = self.mode.sparse.load(Acquire);
        if period.is_multiple_of(2) { None } else { self.marks.claim(period, row?) }
    }

    /// Returns `true` during a sparse period.
    pub(super) fn is_sparse(&self) -> bool {
        // Relaxed: decided under `switching`, or only selects a call.
        !self.mode.sparse.load(Relaxed).is_multiple_of(2)
    }

    /// Begins a sparse period, unless versions are off or another thread changes the mode.
    pub(super) fn begin_sparse(&self) {
        // Only tried, as in `turn_off_now`.
        let Some(_switching) = self.switching.try_lock() else { return };
        if !self.is_on() || self.is_sparse() {
            return;
        }
        self.marks.make(self.limit_bytes);
        // Relaxed: the advance of the clock orders it (SPARSE-2).
        self.mode.admits.store(false, Relaxed);
        // AcqRel: pairs with the accesses of openers in `draw_timestamp`, in both directions (SPARSE-2).
        self.clock.fetch_add(1, AcqRel);
        self.mode.sparse.fetch_add(1, Release); // Release: pairs with the Acquire in `claim_marks`
    }

    /// Ends a sparse period: `visit` stores the images that active transactions have left out. If it fails,
    /// another period begins. The caller holds `switching`.
    pub(super) fn end_sparse<E>(&self, visit: impl FnOnce(&Self) -> Result<(), E>) -> Result<(), E> {
        // Release, both: a transaction reads the number under the mutex of its undo log, which the visit
        // locks later, or begins after the visit (VERSION-1).
        self.mode.sparse.fetch_add(1, Release);
        visit(self).inspect_err(|_| {
            // The transactions that were not visited may lack images.
            self.mode.sparse.fetch_add(1, Release);
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::SnapshotId;
    use super::super::model::{RowAt, backfill_changes, change_in_place, value_before};
    use super::*;

    fn open(versions: &Versions) -> SnapshotId {
        versions.open(|_| Ok::<(), ()>(()), || Lsn(0), || TreeId(9)).expect("opens")
    }

    /// A row in a leaf without other rows.
    struct Row<'v> {
        versions: &'v Versions,
        page: PageId,
        lsn: u64,
    }

    impl Row<'_> {
        fn at(&self) -> RowAt<'static> {
            RowAt { key: b"row", page: self.page, page_lsn: Lsn(self.lsn) }
        }

        /// Changes the row; returns `true` if the transaction has left out the image.
        fn change(&mut self, undo: &mut UndoLog) -> bool {
            let (at, before) = (self.at(), undo.writer.left_out.first);
            self.lsn += 1;
            change_in_place(self.versions, undo, at, &at.page_lsn.0.to_le_bytes(), || Lsn(self.lsn));
            undo.writer.left_out.first > before
        }

        fn change_and_commit(&mut self) -> bool {
            let mut undo = UndoLog::new();
            let is_left_out = self.change(&mut undo);
            let status = self.versions.commit(&mut undo, Lsn(1)).status;
            assert_eq!(status.is_none(), is_left_out, "a transaction with an image has a status");
            is_left_out
        }
    }

    #[test]
    fn only_the_first_change_in_a_period_stores_an_image() {
        let versions = Versions::new(64 << 20);
        let snapshot = open(&versions);
        let mut row = Row { versions: &versions, page: PageId(7), lsn: 1 };
        assert_eq!([row.change_and_commit(), row.change_and_commit()], [false; 2], "no period");
        versions.begin_sparse();
        assert_eq!([(); 3].map(|()| row.change_and_commit()), [false, true, true]);
        row.lsn += 1; // an undo, or a change that moves rows
        assert_eq!([(); 2].map(|()| row.change_and_commit()), [false, true]);
        assert_eq!(value_before(&versions, &snapshot, row.at()), Some(1_u64.to_le_bytes().to_vec()));
        let later = open(&versions);
        assert!(!versions.is_sparse() && !row.change_and_commit());
        versions.begin_sparse();
        assert!(!row.change_and_commit(), "the marks of an earlier period");
        versions.close(&later);
        versions.close(&snapshot);
        versions.turn_off_now();
        assert!(!versions.is_sparse() && !versions.is_on());
    }

    /// An opener visits few rows of each transaction.
    #[test]
    fn a_transaction_leaves_out_the_images_of_its_first_changes_only() {
        let versions = Versions::new(64 << 20);
        let _snapshot = open(&versions);
        let mut row = Row { versions: &versions, page: PageId(7), lsn: 1 };
        versions.begin_sparse();
        row.change_and_commit();
        let mut undo = UndoLog::new();
        let count = (0..2 * MOST_LEFT_OUT).filter(|_| row.change(&mut undo)).count();
        assert_eq!((count, undo.writer.left_out.first), (MOST_LEFT_OUT, MOST_LEFT_OUT));
        assert_eq!(versions.stats().versions, 1, "the later changes store none either");
        assert!(undo.rows_of_first(count).all(|row| row == (TreeId(1), b"row")));
    }

    /// SPARSE-5: the period ends between two changes of a row, before the visit.
    #[test]
    fn a_visit_stores_the_oldest_image_of_a_transaction() {
        let versions = Versions::new(64 << 20);
        let first = open(&versions);
        let mut row = Row { versions: &versions, page: PageId(7), lsn: 1 };
        versions.begin_sparse();
        row.change_and_commit();
        let mut undo = UndoLog::new();
        assert!(row.change(&mut undo));
        let visit = |versions: &Versions| {
            assert!(!row.change(&mut undo), "the period is over");
            backfill_changes(versions, &mut undo);
            assert!(!row.change(&mut undo));
            Ok::<(), ()>(())
        };
        let second = versions.open(visit, || Lsn(0), || TreeId(9)).expect("opens");
        let seen = |snapshot| value_before(&versions, snapshot, row.at()).map(|value| value[0]);
        assert_eq!((seen(&first), seen(&second)), (Some(1), Some(2)));
        assert_eq!(versions.stats().versions, 2, "the images of two transactions");
        assert_eq!((seen(&first), seen(&second)), (Some(1), Some(2)));
    }

    /// Pages share places of the table, under different latches.
    #[test]
    fn a_claimed_place_is_not_used_for_another_page() {
        let versions = Versions::new(64 << 20);
        let _snapshot = open(&versions);
        versions.begin_sparse();
        let count = versions.marks.places.get().expect("made").len() as u64;
        let mut row = Row { versions: &versions, page: PageId(7), lsn: 1 };
        let mut other = Row { versions: &versions, page: PageId(7 + count), lsn: 1_000 };
        assert_eq!([(); 2].map(|()| row.change_and_commit()), [false, true]);
        assert_eq!([(); 2].map(|()| other.change_and_commit()), [false, true]);
        assert!(!row.change_and_commit(), "the marks of the other page");
        let of = |row: &Row<'_>| InPlace { page: row.page, page_lsn: Lsn(row.lsn), slot: 0 };
        let claimed = versions.claim_marks(Some(of(&row))).expect("free");
        assert!(claimed.has_image() && versions.claim_marks(Some(of(&other))).is_none());
        drop(claimed);
        let claimed = versions.claim_marks(Some(of(&row))).expect("free");
        assert!(!claimed.has_image(), "a change that failed forgets the marks");
    }

    /// A visit that fails leaves images out, so the next opener visits again.
    #[test]
    fn a_failed_visit_begins_another_period() {
        let versions = Versions::new(64 << 20);
        let _snapshot = open(&versions);
        versions.begin_sparse();
        let failed = versions.open(|_| Err(()), || Lsn(0), || TreeId(9));
        assert!(failed.is_err() && versions.is_sparse());
        let mut is_visited = false;
        let visit = |_: &Versions| {
            is_visited = true;
            Ok::<(), ()>(())
        };
        let later = versions.open(visit, || Lsn(0), || TreeId(9)).expect("opens");
        assert!(is_visited && !versions.is_sparse());
        versions.close(&later);
    }
}
