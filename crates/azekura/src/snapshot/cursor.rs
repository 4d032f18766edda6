//! A position in a range of a snapshot, which moves from both ends.

use azekura_btree::{Scan, Tree};

use super::Snapshot;
use crate::Error;
use crate::bounds::ByteBounds;
use crate::scan_memory::ScanRows;
use crate::transaction::Direction;
use crate::value_ref::ValueRef;

/// The largest batch of rows that an iterator copies at once.
const MAX_BATCH: usize = 256;
/// Rows of the first step of a range without a limit: it costs a descent, which takes as long as copying some
/// 30 rows.
const FIRST_BATCH: usize = 8;

/// Rows of one direction that were read and not delivered.
#[derive(Debug, Default)]
struct Buffer {
    rows: ScanRows,
    /// Rows before this one were delivered.
    next: usize,
    /// Rows from this one on were delivered from the other end.
    end: usize,
    limit: usize,
}

impl Buffer {
    fn clear(&mut self) {
        self.rows.clear();
        (self.next, self.end) = (0, 0);
    }
}

/// A position in a range of a snapshot; moves from both ends.
#[derive(Debug)]
pub(super) struct Cursor<'s> {
    snapshot: &'s Snapshot,
    /// The rows that are in no buffer; `None`: there are none.
    scan: Option<Scan>,
    front: Buffer,
    /// In descending order.
    back: Buffer,
    /// The current row: the buffer, and the position in it.
    at: (Direction, usize),
    /// Rows that may still be delivered; `usize::MAX`: all.
    left: usize,
}

impl<'s> Cursor<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, tree: Option<Tree>, bounds: &ByteBounds) -> Self {
        Self {
            snapshot,
            scan: tree.filter(|_| !bounds.is_empty()).map(|tree| bounds.scan(tree)),
            front: Buffer::default(),
            back: Buffer::default(),
            at: (Direction::Forward, 0),
            left: bounds.row_limit,
        }
    }

    /// Moves to the next row from one end; `false` if none is left. After an error there is none left.
    #[inline]
    pub(super) fn advance(&mut self, direction: Direction) -> Result<bool, Error> {
        if self.left == 0 {
            return Ok(false);
        }
        let is_moved = self.step(direction)?;
        if is_moved && self.left != usize::MAX {
            self.left -= 1;
        }
        Ok(is_moved)
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Result<bool, Error> {
        let mine = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        if mine.next < mine.end {
            self.at = (direction, mine.next);
            mine.next += 1;
            return Ok(true);
        }
        self.refill(direction)
    }

    /// Reads the next rows and moves to the first of them.
    fn refill(&mut self, direction: Direction) -> Result<bool, Error> {
        let (mine, other) = match direction {
            Direction::Forward => (&mut self.front, &mut self.back),
            Direction::Backward => (&mut self.back, &mut self.front),
        };
        if mine.next == mine.end
            && let Some(scan) = &mut self.scan
        {
            mine.clear();
            mine.limit = match self.left {
                usize::MAX => (mine.limit * 8).clamp(FIRST_BATCH, MAX_BATCH),
                left => left.min(MAX_BATCH),
            };
            let snapshot = self.snapshot;
            let (env, view) = (&snapshot.db().env, snapshot.view());
            let read = snapshot.db().lifetime.check_process().and_then(|()| {
                let found = match direction {
                    Direction::Forward => scan.next_batch_in(env, view, mine.limit, &mut mine.rows),
                    Direction::Backward => scan.next_batch_back_in(env, view, mine.limit, &mut mine.rows),
                };
                // First: a snapshot that is too old may meet freed pages, which are not damage.
                snapshot.checked(())?;
                let last_commit = || snapshot.db().locks.table_dependency(scan.tree().id);
                snapshot.inner.durability.note(found?, last_commit);
                Ok(())
            });
            mine.end = mine.rows.len();
            if read.is_err() || scan.is_done() {
                self.scan = None;
            }
            if let Err(error) = read {
                mine.clear();
                other.clear();
                return Err(error);
            }
        }
        if mine.next < mine.end {
            self.at = (direction, mine.next);
            mine.next += 1;
            return Ok(true);
        }
        // The rest was read from the other end; its last row is the next one from this end.
        if other.next < other.end {
            other.end -= 1;
            self.at = (direction.reversed(), other.end);
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the encoded key and the value of the current row.
    #[inline]
    pub(super) fn row(&self) -> Result<(&[u8], ValueRef<'_>), Error> {
        let (direction, at) = self.at;
        let rows = match direction {
            Direction::Forward => &self.front.rows,
            Direction::Backward => &self.back.rows,
        };
        Ok((rows.key(at), ValueRef::seen(rows.cell(at), self.snapshot)?))
    }
}
