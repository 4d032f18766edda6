//! The view of a cursor: the table as its transaction had it when the cursor was created. The view excludes
//! later writes of the same transaction.
//!
//! The later writes of a transaction are in its undo log, which has the earlier state of each row. So the
//! rows of the view are the rows of the tree, with the later entries of the undo log reverted. Other
//! transactions cannot change a row that the cursor has returned, or a row that this transaction has written.
//!
//! - **OWN-1** `originals` has the original state of each row in the cursor's remaining range that was
//!   changed by the entries `mark..seen` of the log.
//! - **OWN-2** Entries below `mark` existed when the cursor was created. A rollback that removes one of them
//!   ends the cursor.

use std::collections::BTreeMap;
use std::ops::RangeBounds;

use azekura_btree::node::Cell;
use azekura_btree::{LeafBatch, Tree, UndoLog, UndoOp};

use crate::bounds::ByteBounds;

/// The state of a row when the cursor was created.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Original {
    Absent,
    Cell {
        flags: u16,
        value: Vec<u8>,
    },
    /// The row in the tree after reverting these bit flips: offset and bits.
    Flipped(Vec<(usize, Vec<u8>)>),
}

/// The source of a row that a cursor returns.
#[derive(Debug)]
pub(crate) enum ShownRow {
    /// The record of the batch with this number.
    Found(usize),
    Original {
        key: Vec<u8>,
        flags: u16,
        value: Vec<u8>,
    },
}

/// The error of a cursor with undo entries below its mark removed by a rollback: see OWN-2.
#[derive(Debug)]
pub(crate) struct Undone;

/// A position in the undo log of a transaction. The number of removals distinguishes this position from a
/// later one with the same number of entries before it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UndoMark {
    len: usize,
    shrink_count: u64,
}

impl UndoMark {
    pub(crate) fn of(undo: &UndoLog) -> Self {
        Self { len: undo.len(), shrink_count: undo.shrink_count() }
    }

    /// Returns the number of entries before the mark.
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Returns `true` if entries were removed from the log since the mark. Fails if one of them was below the
    /// mark.
    pub(crate) fn is_shrunk(self, undo: &UndoLog) -> Result<bool, Undone> {
        match undo.shortest_since(self.shrink_count) {
            Some(len) if len < self.len => Err(Undone),
            shrunk => Ok(shrunk.is_some()),
        }
    }
}

/// The writes of a transaction since a cursor was created, for the rest of the cursor's range.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites {
    /// The position when the cursor was created, with the number of removals at the last call of `look`.
    mark: UndoMark,
    seen: usize,
    originals: BTreeMap<Vec<u8>, Original>,
    /// `true` if the table was bulk-loaded since. The table was empty before, so a row without an original
    /// was absent.
    was_loaded: bool,
}

impl OwnWrites {
    pub(crate) fn since(undo: &UndoLog) -> Self {
        let mark = UndoMark::of(undo);
        Self { mark, seen: mark.len, ..Self::default() }
    }

    /// Returns `true` if there are no later writes to revert.
    pub(crate) fn is_empty(&self) -> bool {
        self.originals.is_empty() && !self.was_loaded
    }

    /// Returns the position of the undo log when the cursor was created.
    pub(crate) const fn mark(&self) -> &UndoMark {
        &self.mark
    }

    /// Adds the new entries of `undo` to the originals.
    pub(crate) fn look(&mut self, undo: &UndoLog, tree: Tree, rest: &ByteBounds) -> Result<(), Undone> {
        if self.mark.is_shrunk(undo)? {
            *self = Self { mark: self.mark, seen: self.mark.len, ..Self::default() };
        }
        self.mark.shrink_count = undo.shrink_count();
        let (mut newer, mut is_loaded) = (BTreeMap::new(), false);
        for op in (self.seen..undo.len()).rev().filter_map(|i| undo.get(i)) {
            match op {
                UndoOp::RemoveKey { tree: of, key } if of == tree && rest.contains(key) => {
                    newer.insert(key.to_vec(), Original::Absent);
                }
                UndoOp::PutBack { tree: of, key, cell } if of == tree && rest.contains(key) => {
                    newer.insert(
                        key.to_vec(),
                        Original::Cell { flags: cell.flags, value: cell.value.to_vec() },
                    );
                }
                UndoOp::Flip { tree: of, key, at, diff } if of == tree && rest.contains(key) => {
                    let flipped = || Original::Flipped(Vec::new());
                    newer.entry(key.to_vec()).or_insert_with(flipped).flip(at.into(), diff);
                }
                UndoOp::EmptyTree { tree: of, .. } if of == tree => {
                    newer.clear();
                    is_loaded = true;
                }
                _ => {}
            }
        }
        self.seen = undo.len();
        for (key, original) in newer {
            match self.originals.get_mut(&key) {
                None if self.was_loaded => {} // absent, because the whole table was empty
                None => drop(self.originals.insert(key, original)),
                Some(older) => older.follow(original),
            }
        }
        self.was_loaded |= is_loaded;
        Ok(())
    }

    /// Removes the originals of rows that are outside of the remaining range.
    pub(crate) fn narrow(&mut self, rest: &ByteBounds) {
        while self.originals.first_entry().is_some_and(|row| !rest.contains(row.key())) {
            self.originals.pop_first();
        }
        while self.originals.last_entry().is_some_and(|row| !rest.contains(row.key())) {
            self.originals.pop_last();
        }
    }

    /// Returns the rows of `part` when the cursor was created; `found` has the present rows, in the same
    /// order.
    pub(crate) fn rows(&self, found: &LeafBatch, part: &ByteBounds, is_ascending: bool) -> Vec<ShownRow> {
        let mut rows = Vec::new();
        if part.is_empty() {
            return rows; // an empty range would make `range` panic
        }
        let mut originals = self.originals.range::<[u8], _>((part.start_bound(), part.end_bound()));
        let mut next = || if is_ascending { originals.next() } else { originals.next_back() };
        let mut original = next();
        for i in 0..found.len() {
            let key = found.key(i);
            // Rows that are not in the tree now.
            while let Some((at, was)) = original.filter(|(at, _)| at.as_slice() != key)
                && (at.as_slice() < key) == is_ascending
            {
                rows.extend(was.shown(at, None));
                original = next();
            }
            match original.filter(|(at, _)| at.as_slice() == key) {
                Some((at, was)) => {
                    rows.extend(was.shown(at, Some(found.cell(i))));
                    original = next();
                }
                None if self.was_loaded => {}
                None => rows.push(ShownRow::Found(i)),
            }
        }
        while let Some((at, was)) = original {
            rows.extend(was.shown(at, None));
            original = next();
        }
        rows
    }
}

impl Original {
    fn flip(&mut self, at: usize, diff: &[u8]) {
        match self {
            Self::Absent => {}
            Self::Cell { value, .. } => flip(value, at, diff),
            Self::Flipped(flips) => flips.push((at, diff.to_vec())),
        }
    }

    /// Combines this original, relative to the state at the last call of `look`, with `newer`, which leads
    /// back to that state.
    fn follow(&mut self, newer: Self) {
        if let Self::Flipped(flips) = self {
            let flips = std::mem::take(flips);
            *self = newer;
            flips.iter().for_each(|(at, diff)| self.flip(*at, diff));
        }
    }

    /// Returns the row to return, or `None` if it did not exist; `now` is its cell in the tree.
    fn shown(&self, key: &[u8], now: Option<Cell<'_>>) -> Option<ShownRow> {
        let (flags, value) = match (self, now) {
            (Self::Absent, _) | (Self::Flipped(_), None) => return None,
            (Self::Cell { flags, value }, _) => (*flags, value.clone()),
            (Self::Flipped(flips), Some(cell)) => {
                let mut value = cell.value.to_vec();
                flips.iter().for_each(|(at, diff)| flip(&mut value, *at, diff));
                (cell.flags, value)
            }
        };
        Some(ShownRow::Original { key: key.to_vec(), flags, value })
    }
}

fn flip(value: &mut [u8], at: usize, diff: &[u8]) {
    value.iter_mut().skip(at).zip(diff).for_each(|(byte, bits)| *byte ^= bits);
}
