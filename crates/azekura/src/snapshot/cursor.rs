//! Cursors over the rows of a range in a snapshot.

use std::ops::ControlFlow;

use azekura_btree::{Scan, Tree};

use super::Snapshot;
use crate::Error;
use crate::bounds::{ByteBounds, RowsLeft};
use crate::thread_memory::ScanRows;
use crate::transaction::Direction;
use crate::value_ref::ValueRef;

/// Number of rows of the first step in a range without a limit. A step needs a descent in the tree, which
/// takes as long as copying about 30 rows.
const FIRST_BATCH: usize = 8;

/// The rows read in one direction.
#[derive(Debug, Default)]
struct Buffer {
    rows: ScanRows,
    /// Index of the first row that was not returned yet.
    next: usize,
    /// End of the rows that were not returned yet; rows after it were returned from the other end.
    end: usize,
    limit: usize,
}

impl Buffer {
    fn clear(&mut self) {
        self.rows.clear();
        (self.next, self.end) = (0, 0);
    }
}

/// A cursor over a range of a snapshot, which moves from both ends.
#[derive(Debug)]
pub(super) struct Cursor<'s> {
    snapshot: &'s Snapshot,
    /// The scan of the rows that are in no buffer; `None` if there are no such rows.
    scan: Option<Scan>,
    front: Buffer,
    /// The rows read from the upper end, in descending order.
    back: Buffer,
    /// The current row: the direction of its buffer, and its index there.
    at: (Direction, usize),
    left: RowsLeft,
}

impl<'s> Cursor<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, tree: Option<Tree>, bounds: &ByteBounds) -> Self {
        Self {
            snapshot,
            scan: tree.filter(|_| !bounds.is_empty()).map(|tree| bounds.scan(tree)),
            front: Buffer::default(),
            back: Buffer::default(),
            at: (Direction::Forward, 0),
            left: RowsLeft::of(bounds),
        }
    }

    /// Moves to the next row from one end; returns `false` if no row is left. After an error no row is left.
    #[inline]
    pub(super) fn advance(&mut self, direction: Direction) -> Result<bool, Error> {
        if self.left.is_none() {
            return Ok(false);
        }
        let is_moved = self.step(direction)?;
        self.left.count(is_moved);
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
            mine.limit = self.left.next_batch((mine.limit * 8).max(FIRST_BATCH));
            let snapshot = self.snapshot;
            let (env, view) = (&snapshot.db().env, snapshot.view());
            let read = snapshot.db().lifetime.check_process().and_then(|()| {
                let found = match direction {
                    Direction::Forward => scan.next_batch_in(env, view, mine.limit, &mut mine.rows),
                    Direction::Backward => scan.next_batch_back_in(env, view, mine.limit, &mut mine.rows),
                };
                // Checked first, because a snapshot that is too old may read freed pages, which are not
                // damage.
                snapshot.checked(())?;
                let last_commit = || snapshot.db().locks.table_dependency(scan.tree().id);
                snapshot.inner.durability.note(found.map_err(|error| snapshot.failed(error))?, last_commit);
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
        // The remaining rows were read from the other end; their last row is the next one from this end.
        if other.next < other.end {
            other.end -= 1;
            self.at = (direction.reversed(), other.end);
            return Ok(true);
        }
        Ok(false)
    }

    /// Passes the encoded key and the value of each row from one end to `each`, until it breaks.
    #[inline]
    pub(super) fn for_each(
        mut self,
        direction: Direction,
        mut each: impl FnMut(&[u8], ValueRef<'_>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        while self.advance(direction)? {
            let (_, first) = self.at;
            let run = self.take_run(direction);
            let Self { snapshot, front, back, .. } = &self;
            let rows = if direction == Direction::Forward { &front.rows } else { &back.rows };
            for at in first..first + 1 + run {
                let (key, cell) = rows.row(at);
                ValueRef::check(cell)?;
                if each(key, ValueRef::seen(cell, snapshot))?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Marks all remaining rows of one buffer, up to the limit, as returned; returns their number.
    fn take_run(&mut self, direction: Direction) -> usize {
        let mine = match direction {
            Direction::Forward => &mut self.front,
            Direction::Backward => &mut self.back,
        };
        let run = self.left.count_up_to(mine.end - mine.next);
        mine.next += run;
        run
    }

    /// Returns the encoded key and the value of the current row.
    #[inline]
    pub(super) fn row(&self) -> Result<(&[u8], ValueRef<'_>), Error> {
        let (direction, at) = self.at;
        let rows = match direction {
            Direction::Forward => &self.front.rows,
            Direction::Backward => &self.back.rows,
        };
        let (key, cell) = rows.row(at);
        ValueRef::check(cell)?;
        Ok((key, ValueRef::seen(cell, self.snapshot)))
    }
}
