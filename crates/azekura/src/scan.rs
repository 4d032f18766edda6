//! Scans: a cursor over the rows of a range, locked a leaf or less at a time.
//!
//! - **CURSOR-1** `rest` encloses every row that has not been delivered, and of the delivered ones only those
//!   of the buffer: they are taken out of it before it is read again.
//! - **CURSOR-2** What is buffered counts only while the transaction has written nothing since: after a write
//!   the rest is read anew.

use std::ops::Bound;

use azekura_btree::{Env, LeafBatch, NoLocks, Outcome, Scan, Tree, ValueRef};

use crate::Error;
use crate::locking::{Purpose, ScanLocks};
use crate::range::ByteBounds;
use crate::transaction::{Direction, OpenTree, State, Transaction};

/// The first step reads one row, so that `first()` locks one; later ones double up to this.
const MAX_BATCH: usize = 256;

/// Where a scan is; moves from either end, and knows the row it has come to.
#[derive(Debug)]
pub(crate) struct Cursor<'tx> {
    tx: &'tx Transaction,
    tree: OpenTree,
    locks: ScanLocks,
    rest: ByteBounds,
    direction: Direction,
    /// Goes on behind the buffer; `None` where the buffer counts no more, and at first.
    scan: Option<Scan>,
    found: LeafBatch,
    /// Rows of `found` that were delivered; the last of them is the one that the cursor is at.
    delivered: usize,
    is_exhausted: bool,
    limit: usize,
    /// The transaction's count of writes when `found` was read.
    writes: u64,
    is_over: bool,
    /// The value that the cursor is at, if it is a large one.
    large: Vec<u8>,
}

impl<'tx> Cursor<'tx> {
    pub(crate) fn new(tx: &'tx Transaction, tree: OpenTree, bounds: ByteBounds, locks: ScanLocks) -> Self {
        Self {
            tx,
            tree,
            locks,
            is_over: bounds.is_empty(),
            rest: bounds,
            direction: Direction::Forward,
            scan: None,
            found: LeafBatch::new(),
            delivered: 0,
            is_exhausted: false,
            limit: 1,
            writes: tx.write_count(),
            large: Vec::new(),
        }
    }

    pub(crate) fn table(&self) -> &str {
        self.tree.name()
    }

    /// Moves to the next row from one end; `false` when there is none left, and ever after.
    #[inline]
    pub(crate) fn advance(&mut self, direction: Direction) -> Result<bool, Error> {
        if self.delivered < self.found.len()
            && self.direction == direction
            && self.writes == self.tx.write_count()
        {
            self.delivered += 1;
            return Ok(true);
        }
        self.refill(direction).inspect_err(|_| self.end())
    }

    fn refill(&mut self, direction: Direction) -> Result<bool, Error> {
        let writes = self.tx.write_count();
        let counts = self.direction == direction && self.writes == writes;
        self.is_over |= counts && self.is_exhausted;
        if self.is_over {
            self.end();
            return Ok(false);
        }
        self.settle();
        if !counts {
            self.scan = None;
            self.writes = writes;
        }
        if self.direction != direction {
            (self.direction, self.limit) = (direction, 1);
        }
        if self.scan.is_none() && self.rest.is_empty() {
            self.end();
            return Ok(false);
        }
        let Self { tx, tree, locks, rest, scan, found, limit, .. } = self;
        self.is_exhausted = tx.scan((tree, *locks), rest, scan, direction, *limit, found)?;
        // What others could have is not locked ahead of the cursor.
        let is_locked_ahead = self.locks.purpose != Purpose::Remove && !self.locks.skips_locked;
        self.limit = if is_locked_ahead { (self.limit * 2).min(MAX_BATCH) } else { 1 };
        self.delivered = usize::from(!self.found.is_empty());
        self.is_over = self.found.is_empty();
        Ok(!self.is_over)
    }

    /// Takes what was delivered out of the rest (CURSOR-1).
    fn settle(&mut self) {
        if self.delivered > 0 {
            let key = self.found.key(self.delivered - 1);
            let bound = match self.direction {
                Direction::Forward => &mut self.rest.lower,
                Direction::Backward => &mut self.rest.upper,
            };
            *bound = Bound::Excluded(key.to_vec());
        }
        self.found.clear();
        self.delivered = 0;
    }

    /// There is nothing more to come.
    pub(crate) fn end(&mut self) {
        self.is_over = true;
        self.settle();
    }

    /// Key, encoded, and value of the row that the cursor is at; reads a large value.
    ///
    /// # Panics
    ///
    /// If it is at none.
    #[inline]
    pub(crate) fn row(&mut self) -> Result<(&[u8], &[u8]), Error> {
        let at = self.delivered - 1;
        if matches!(self.found.value(at), ValueRef::Large(_)) {
            self.large.clear();
            self.found.read_value(&self.tx.shared().env, at, &mut self.large)?;
        }
        let value = match self.found.value(at) {
            ValueRef::Inline(bytes) => bytes,
            ValueRef::Large(_) => &self.large,
        };
        Ok((self.found.key(at), value))
    }

    /// As [`row`](Self::row), with the first `max` bytes of the value: of a large one, one page is read.
    pub(crate) fn row_start(&mut self, max: usize) -> Result<(&[u8], &[u8]), Error> {
        let at = self.delivered - 1;
        if matches!(self.found.value(at), ValueRef::Large(_)) {
            self.large.clear();
            self.found.read_value_start(&self.tx.shared().env, at, max, &mut self.large)?;
        }
        let value = match self.found.value(at) {
            ValueRef::Inline(bytes) => &bytes[..bytes.len().min(max)],
            ValueRef::Large(_) => &self.large,
        };
        Ok((self.found.key(at), value))
    }
}

impl ByteBounds {
    pub(crate) fn scan(&self, tree: Tree) -> Scan {
        Scan::new(tree, self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }
}

/// The next rows of `scan`, `max` at most, from the end that `direction` says; locked.
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

/// What is done with each row: its key and value.
pub(crate) type EachRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), Error>;

/// Hands every row of a tree that nobody changes to `each`, in key order.
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
