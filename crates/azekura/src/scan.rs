//! Scans: a cursor over the rows of a range, which locks the rows of at most one leaf at a time.
//!
//! - **CURSOR-1** `rest` contains every row that the cursor has not returned yet. Returned rows are in `rest`
//!   only while they are in the buffer; they are removed from `rest` before it is read again.
//! - **CURSOR-2** The buffer has rows as of the creation of the cursor ([`crate::own_writes`]), so it stays
//!   valid when the transaction writes. Other transactions cannot change these rows, because they are locked.

use std::ops::{Bound, ControlFlow};

use azekura_btree::node::Cell;
use azekura_btree::{Env, LeafBatch, NoLocks, Outcome, Scan, Tree};

use crate::Error;
use crate::bounds::{ByteBounds, MAX_BATCH, RowsLeft};
use crate::locking::{Purpose, ScanLocks};
use crate::own_writes::{OwnWrites, ShownRow};
use crate::thread_memory::ScanRows;
use crate::transaction::{Direction, OpenTree, State, Transaction};
use crate::value_ref::ValueRef;

/// A cursor over the rows of a range: moves from either end, and has a current row.
#[derive(Debug)]
pub(crate) struct Cursor<'tx> {
    tx: &'tx Transaction,
    table: OpenTree,
    /// The table's tree; `None` if it was not looked up yet, or the table does not exist.
    tree: Option<Tree>,
    /// `true` if the transaction knew the tree when the cursor was created.
    is_tree_old: bool,
    locks: ScanLocks,
    rest: ByteBounds,
    direction: Direction,
    /// The scan that continues after the buffer; `None` at first, and after the buffer became invalid.
    scan: Option<Scan>,
    found: ScanRows,
    /// The rows that the cursor returns instead of those in `found`; set if own writes have to be excluded.
    shown: Option<Vec<ShownRow>>,
    /// Number of buffered rows that were returned; the last of them is the current row.
    delivered: usize,
    is_exhausted: bool,
    /// Number of rows of the next step in a range without a limit. The first step reads one row, so that
    /// `first()` locks only one row. Later steps double the number up to [`MAX_BATCH`].
    limit: usize,
    left: RowsLeft,
    own: OwnWrites,
    /// The transaction's count of writes when `own` was last updated from its undo log.
    writes: u64,
    is_over: bool,
}

impl<'tx> Cursor<'tx> {
    pub(crate) fn new(tx: &'tx Transaction, table: OpenTree, bounds: ByteBounds, locks: ScanLocks) -> Self {
        let (tree, own, writes) = tx.for_cursor(&table);
        Self {
            tx,
            table,
            tree,
            is_tree_old: tree.is_some(),
            locks,
            is_over: bounds.is_empty(),
            left: RowsLeft::of(&bounds),
            rest: bounds,
            direction: Direction::Forward,
            scan: None,
            found: ScanRows::new(),
            shown: None,
            delivered: 0,
            is_exhausted: false,
            limit: 1,
            own,
            writes,
        }
    }

    pub(crate) fn table(&self) -> &str {
        self.table.name()
    }

    /// Moves to the next row from one end; returns `false` if no row is left, and in each later call.
    #[inline]
    pub(crate) fn advance(&mut self, direction: Direction) -> Result<bool, Error> {
        if self.left.is_none() {
            return Ok(false);
        }
        let is_moved = self.step(direction)?;
        self.left.count(is_moved);
        Ok(is_moved)
    }

    #[inline]
    fn step(&mut self, direction: Direction) -> Result<bool, Error> {
        if self.delivered < self.rows() && self.direction == direction {
            if self.writes != self.tx.write_count() {
                self.look_at_writes().inspect_err(|_| self.end())?;
            }
            self.delivered += 1;
            return Ok(true);
        }
        self.refill(direction).inspect_err(|_| self.end())
    }

    /// Returns the number of rows in the buffer.
    fn rows(&self) -> usize {
        self.shown.as_ref().map_or(self.found.len(), Vec::len)
    }

    /// Checks the undo log after a write or a rollback of this transaction.
    fn look_at_writes(&mut self) -> Result<(), Error> {
        self.writes = self.tx.write_count();
        if self.tx.is_rolled_back_since(&self.own)? {
            // The rollback may have restored rows before the position of the scan, which it would not find.
            self.scan = None;
            if !self.is_tree_old {
                self.tree = None; // the rollback may have removed the table
            }
        }
        Ok(())
    }

    fn refill(&mut self, direction: Direction) -> Result<bool, Error> {
        self.is_over |= self.direction == direction && self.is_exhausted;
        if self.is_over {
            self.end();
            return Ok(false);
        }
        if self.writes != self.tx.write_count() {
            self.look_at_writes()?;
        }
        self.exclude_returned();
        if self.direction != direction {
            (self.direction, self.limit, self.scan, self.is_exhausted) = (direction, 1, None, false);
        }
        while !self.is_exhausted {
            if self.scan.is_none() && self.rest.is_empty() {
                break;
            }
            self.read()?;
            if self.rows() > 0 {
                self.delivered = 1;
                return Ok(true);
            }
            self.exclude_returned();
        }
        self.end();
        Ok(false)
    }

    /// Fills the buffer with the rows after the last row read.
    fn read(&mut self) -> Result<(), Error> {
        let Self { tx, table, tree, locks, rest, scan, found, limit, left, direction, .. } = self;
        if tree.is_none() && tx.had_table(table, &self.own)? {
            *tree = tx.resolve_to_scan(table, *locks)?;
        }
        let Some(tree) = *tree else {
            found.clear();
            (self.is_exhausted, self.shown) = (true, None);
            return Ok(());
        };
        // Rows that other consumers could process are not locked ahead of the cursor.
        let is_locked_ahead = locks.purpose != Purpose::Remove && !locks.skips_locked;
        let rows = if is_locked_ahead { left.next_batch(*limit) } else { 1 };
        self.is_exhausted = tx.scan((tree, *locks), rest, scan, *direction, rows, found)?;
        *limit = if is_locked_ahead { (*limit * 2).min(MAX_BATCH) } else { 1 };
        tx.look_at_own(&mut self.own, tree, rest)?;
        self.own.narrow(rest);
        self.shown = (!self.own.is_empty()).then(|| {
            let is_ascending = *direction == Direction::Forward;
            let last = found.len().checked_sub(1).filter(|_| !self.is_exhausted);
            let part = last.map_or_else(|| rest.clone(), |last| rest.up_to(found.key(last), is_ascending));
            self.own.rows(found, &part, is_ascending)
        });
        Ok(())
    }

    /// Removes the returned rows from `rest` (CURSOR-1).
    fn exclude_returned(&mut self) {
        let last_found = self.found.len().checked_sub(1);
        let key = match (&self.shown, last_found) {
            (None, _) => self.delivered.checked_sub(1).map(|i| self.found.key(i)),
            // The whole buffer was returned: `rest` excludes its last row, in the tree or in the view.
            (Some(shown), Some(last)) if self.delivered == shown.len() => {
                let found = self.found.key(last);
                let shown = shown.last().map_or(found, |row| row.key(&self.found));
                Some(if self.direction == Direction::Forward { found.max(shown) } else { found.min(shown) })
            }
            (Some(shown), _) => self.delivered.checked_sub(1).map(|i| shown[i].key(&self.found)),
        };
        if let Some(key) = key {
            let bound = match self.direction {
                Direction::Forward => &mut self.rest.lower,
                Direction::Backward => &mut self.rest.upper,
            };
            *bound = Bound::Excluded(key.to_vec());
        }
        self.found.clear();
        self.shown = None;
        self.delivered = 0;
    }

    /// Ends the scan.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.exclude_returned();
    }

    /// Passes the encoded key and the value of each row from one end to `each`, until it breaks.
    #[inline]
    pub(crate) fn for_each(
        mut self,
        direction: Direction,
        mut each: impl FnMut(&[u8], ValueRef<'_>) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        while self.advance(direction)? {
            loop {
                let (key, cell) = self.at();
                ValueRef::check(cell)?;
                if each(key, ValueRef::locked(cell, self.tx, self.own.mark()))?.is_break() {
                    return Ok(());
                }
                // Moves to the next row in the buffer without a call, if the transaction has not written
                // since.
                let is_next = self.delivered < self.found.len() && self.shown.is_none();
                if !is_next || self.left.is_none() || self.writes != self.tx.write_count() {
                    break;
                }
                self.delivered += 1;
                self.left.count(true);
            }
        }
        Ok(())
    }

    /// Returns key and cell of the current row.
    #[inline(always)]
    fn at(&self) -> (&[u8], Cell<'_>) {
        let at = self.delivered - 1;
        match &self.shown {
            None => self.found.row(at),
            Some(shown) => shown[at].row(&self.found),
        }
    }

    /// Returns the encoded key and the value of the current row.
    ///
    /// # Panics
    ///
    /// If there is no current row.
    #[inline]
    pub(crate) fn row(&self) -> Result<(&[u8], ValueRef<'_>), Error> {
        let (key, cell) = self.at();
        ValueRef::check(cell)?;
        Ok((key, ValueRef::locked(cell, self.tx, self.own.mark())))
    }
}

impl ShownRow {
    #[cold]
    fn row<'r>(&'r self, found: &'r LeafBatch) -> (&'r [u8], Cell<'r>) {
        match self {
            Self::Found(i) => found.row(*i),
            Self::Original { key, flags, value } => (key, Cell { flags: *flags, value }),
        }
    }

    fn key<'r>(&'r self, found: &'r LeafBatch) -> &'r [u8] {
        match self {
            Self::Found(i) => found.key(*i),
            Self::Original { key, .. } => key,
        }
    }
}

impl ByteBounds {
    pub(crate) fn scan(&self, tree: Tree) -> Scan {
        Scan::new(tree, self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }
}

/// Returns the next rows of `scan` in `direction`, at most `max`, and locks them.
pub(crate) fn batch(
    tx: &Transaction,
    (tree, scan_locks): (Tree, ScanLocks),
    scan: &mut Scan,
    direction: Direction,
    max: usize,
    state: &mut State,
    found: &mut LeafBatch,
) -> Result<(), Error> {
    let env = &tx.shared().env;
    loop {
        let (outcome, wanted) = tx.with_locks(state, tree, None, |locks, _| {
            locks.scan = scan_locks;
            match direction {
                Direction::Forward => scan.next_batch(env, max, locks, found),
                Direction::Backward => scan.next_batch_back(env, max, locks, found),
            }
        });
        match outcome? {
            Outcome::Done(()) => return Ok(()),
            Outcome::Blocked => tx.wait_for(state, wanted)?,
        }
    }
}

/// A function that is called with the key and value of each row.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), Error>;

/// Passes every row of a tree without concurrent writers to `each`, in key order.
pub(crate) fn unlocked(env: &Env, tree: Tree, each: EachRow<'_>) -> Result<(), Error> {
    let mut scan = ByteBounds::ALL.scan(tree);
    let (mut found, mut value) = (LeafBatch::new(), Vec::new());
    while !scan.is_done() {
        let Outcome::Done(()) = scan.next_batch(env, usize::MAX, &mut NoLocks, &mut found)? else {
            unreachable!("no locks, so none that block")
        };
        for i in 0..found.len() {
            value.clear();
            found.read_value(env, i, &mut value)?;
            each(found.key(i), &value)?;
        }
    }
    Ok(())
}
