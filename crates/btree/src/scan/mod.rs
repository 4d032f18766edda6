//! Cursors: return records in key order, one leaf at a time, in both directions.
//!
//! A batch is copied out of one leaf and locked, and then the leaf is validated. So a batch is the content of
//! the leaf at a moment when all of its locks were held. Nothing stays latched or pinned between batches:
//! consumed keys narrow the range, and the next batch descends to the rest of it.
//!
//! - **SCAN-1** After a batch that ends inside its leaf, the scan stores the leaf's page id and validated
//!   version. While the page has this version, the leaf is in the tree (HOP-2), its fences are the same, and
//!   the rest of the range begins in it. So the next batch from that end reads the leaf without a descent. If
//!   the page has changed or is no longer in the pool, the batch descends.
//!
//! These gaps are locked, so that no transaction can insert into the scanned range:
//!
//! - *Forward*: every record with the gap below it. Where the leaf or the range ends, also the gap below the
//!   next key, even if that key is in a later leaf. That gap is locked before this leaf is validated.
//!   Otherwise a key could be inserted at this leaf's end in between.
//! - *Backward*: first the gap below the first key above the range, then every record with the gap below it.
//!   The gap of a leaf's first key reaches into the previous leaf, so no gap between two batches stays
//!   unlocked.

mod ahead;
mod batch;

use std::ops::Bound;

use azekura_base::{Lsn, PageId};
use azekura_buffer::PageVersion;

use crate::descent::{Descent, Leaf, Restart, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::locks::{Blocked, BlockedRecords, GapWant, KeyLocks, Outcome};
use crate::next::{Gap, lock_gap};
use crate::node::Node;
use crate::tree::Tree;
use crate::version::View;

use self::ahead::Ahead;
pub use batch::{LeafBatch, ValueRef};

/// The rest of a tree's range, consumed from both ends.
#[derive(Clone, Debug)]
pub struct Scan {
    tree: Tree,
    /// Inclusive lower bound.
    from: Vec<u8>,
    /// Exclusive upper bound; `None` is the end of the tree.
    to: Option<Vec<u8>>,
    /// `true` if the gap that contains `to` is locked.
    is_gap_locked: bool,
    is_done: bool,
    ahead: Ahead,
    /// The leaf in which the rest of the range begins at one end (SCAN-1).
    rest_in: Option<(End, PageVersion)>,
}

/// Returns the least key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// The source of a batch's isolation: locks, or a snapshot.
enum Reader<'a> {
    Locks(&'a mut dyn KeyLocks),
    /// A snapshot, and the largest page LSN of the leaves read so far.
    Snapshot(View<'a>, Lsn),
}

impl Reader<'_> {
    /// Adds the page LSN of a leaf to the largest one and returns it. The caller validates the leaf
    /// afterward.
    fn note(&mut self, leaf: Node<'_>) -> Lsn {
        let page_lsn = leaf.page().lsn();
        if let Self::Snapshot(_, newest) = self {
            *newest = page_lsn.max(*newest);
        }
        page_lsn
    }
}

/// The end of the range from which records are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

/// The records of one leaf for a scan.
struct Part {
    /// `true` if the copy does not reach the end of the leaf or range.
    is_cut: bool,
    /// `true` if the range has no more records in this direction.
    is_last: bool,
    /// The leaf's fence in the scan's direction; for a cut part, the key at which the scan continues.
    fence: Vec<u8>,
}

/// The result of one attempt at one leaf.
enum Attempt<'e> {
    Part(Part),
    Blocked,
    Restart(Restart<'e>),
}

impl Scan {
    /// Returns a scan of the keys of `tree` between two bounds.
    #[must_use]
    pub fn new(tree: Tree, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let from = match lower {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Vec::new(),
        };
        let to = match upper {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        let is_done = to.as_ref().is_some_and(|to| *to <= from);
        Self { tree, from, to, is_gap_locked: false, is_done, ahead: Ahead::default(), rest_in: None }
    }

    /// Returns the tree.
    #[must_use]
    pub const fn tree(&self) -> Tree {
        self.tree
    }

    /// Returns the key from which on no record has been consumed from the front.
    #[must_use]
    pub fn position(&self) -> &[u8] {
        &self.from
    }

    /// Returns `true` if no record of the range is left.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Fills `batch` with the next records in ascending order, at most `limit`. An empty batch means that
    /// there are no more records.
    ///
    /// Each key is passed to [`KeyLocks::try_scan`], and the key after the last one of a leaf to
    /// [`KeyLocks::try_gap`]. On [`Outcome::Blocked`] nothing was consumed except leaves without records.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn next_batch(
        &mut self,
        env: &Env,
        limit: usize,
        locks: &mut dyn KeyLocks,
        batch: &mut LeafBatch,
    ) -> Result<Outcome<()>, TreeError> {
        self.fill(env, End::Front, limit, &mut Reader::Locks(locks), batch)
    }

    /// Fills `batch` as [`next_batch`](Self::next_batch) does, with the rows that are visible to a snapshot,
    /// and without locks. A batch may have more than `limit` rows if rows were removed after the snapshot.
    /// Returns the largest page LSN of the leaves read.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn next_batch_in(
        &mut self,
        env: &Env,
        view: View<'_>,
        limit: usize,
        batch: &mut LeafBatch,
    ) -> Result<Lsn, TreeError> {
        self.fill_in(env, End::Front, limit, view, batch)
    }

    /// Fills `batch` as [`next_batch_in`](Self::next_batch_in) does, in descending order.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn next_batch_back_in(
        &mut self,
        env: &Env,
        view: View<'_>,
        limit: usize,
        batch: &mut LeafBatch,
    ) -> Result<Lsn, TreeError> {
        self.fill_in(env, End::Back, limit, view, batch)
    }

    fn fill_in(
        &mut self,
        env: &Env,
        end: End,
        limit: usize,
        view: View<'_>,
        batch: &mut LeafBatch,
    ) -> Result<Lsn, TreeError> {
        let mut reader = Reader::Snapshot(view, Lsn(0));
        let _done = self.fill(env, end, limit, &mut reader, batch)?; // A snapshot scan never blocks.
        match reader {
            Reader::Snapshot(_, newest) => Ok(newest),
            Reader::Locks(_) => Ok(Lsn(0)),
        }
    }

    fn fill(
        &mut self,
        env: &Env,
        end: End,
        limit: usize,
        reader: &mut Reader<'_>,
        batch: &mut LeafBatch,
    ) -> Result<Outcome<()>, TreeError> {
        batch.clear();
        let mut descent = Descent::new(env, self.tree);
        while batch.is_empty() && !self.is_done {
            let seek = match end {
                End::Front => Seek::Covering(&self.from),
                End::Back => self.to.as_deref().map_or(Seek::Last, Seek::Before),
            };
            let same = self.rest_in.take().filter(|(of, _)| *of == end);
            let same = same.and_then(|(_, seen)| env.pool().peek_again(seen));
            let (leaf, parent) = match same {
                Some(page) => (Leaf::Unlatched(page), None),
                None => descent.leaf_or(seek, &mut |parent| {
                    self.ahead.leaf_is_absent(
                        env.pool(),
                        parent,
                        seek,
                        (end == End::Front, &self.from, self.to.as_deref()),
                    );
                })?,
            };
            let attempt = match end {
                End::Front => self.forward(env, &leaf, limit.max(1), reader, batch),
                End::Back => self.backward(env, &leaf, limit.max(1), reader, batch),
            };
            match attempt {
                Attempt::Part(part) => {
                    let reads_on = !part.is_cut && !part.is_last && limit >= leaf.node().count() / 2;
                    if let Some(parent) = parent.filter(|_| reads_on) {
                        prefetch_next(env, Node::new(parent.words()), seek, end);
                    }
                    if same.is_none() {
                        env.leaf_scanned();
                    }
                    batch.prefetch_large(env);
                    self.rest_in = leaf.page_version().filter(|_| part.is_cut).map(|seen| (end, seen));
                    self.consume(end, part);
                }
                Attempt::Blocked => return Ok(Outcome::Blocked),
                Attempt::Restart(cause) => {
                    drop(leaf);
                    batch.clear();
                    descent.restart(cause)?;
                }
            }
        }
        Ok(Outcome::Done(()))
    }

    fn forward<'e>(
        &self,
        env: &'e Env,
        leaf: &Leaf<'e>,
        limit: usize,
        reader: &mut Reader<'_>,
        batch: &mut LeafBatch,
    ) -> Attempt<'e> {
        let node = leaf.node();
        let count = node.count();
        let start = node.search(&self.from).slot();
        let (end, is_last) = match &self.to {
            Some(to) if node.is_below_upper(to) => (node.search(to).slot().max(start), true),
            _ => (count, node.is_last()),
        };
        let copied = (end - start).min(limit);
        prefetch_cells(node, copied);
        batch.take(node, start..start + copied);
        let is_cut = copied < end - start;
        let mut fence = Vec::new();
        if is_cut {
            fence = successor(batch.key(batch.len() - 1));
        } else if !is_last {
            node.upper_into(&mut fence);
        }
        let is_right_leaf = node.covers(&self.from);
        let page_lsn = reader.note(node);
        // Unvalidated keys must not reach the lock manager.
        if let Some(cause) = self.distrust(leaf, is_right_leaf) {
            return Attempt::Restart(cause);
        }
        let part = Part { is_cut, is_last, fence };
        let locks = match reader {
            Reader::Locks(locks) => &mut **locks,
            Reader::Snapshot(view, _) => {
                return self.seen_in(*view, leaf, page_lsn, batch, (End::Front, part));
            }
        };
        if locks.is_needed() {
            let gap = |locks: &mut dyn KeyLocks| lock_gap(env, self.tree, node, end, GapWant::Read, locks);
            let range = self.range_of(&part, End::Front);
            let locked = self
                .lock_records(env, node, (start..start + copied, range), batch, locks)
                .and_then(|()| if is_cut { Ok(()) } else { as_result(gap(locks)) });
            if let Some(cause) = after_locks(leaf, locked) {
                return cause;
            }
        }
        Attempt::Part(part)
    }

    /// Returns the key range of a part of a leaf.
    fn range_of<'r>(&'r self, part: &'r Part, end: End) -> (&'r [u8], Option<&'r [u8]>) {
        let fence = (part.is_cut || !part.is_last).then_some(&*part.fence);
        match end {
            End::Front => (&self.from, fence.or(self.to.as_deref())),
            End::Back => (fence.unwrap_or(&self.from), self.to.as_deref()),
        }
    }

    /// Changes `batch` from all rows of a part of a leaf to the rows that are visible to the snapshot.
    fn seen_in<'e>(
        &self,
        view: View<'_>,
        leaf: &Leaf<'e>,
        page_lsn: Lsn,
        batch: &mut LeafBatch,
        (end, part): (End, Part),
    ) -> Attempt<'e> {
        if view.sees_as_is(page_lsn) {
            return Attempt::Part(part);
        }
        let was_valid = view.pause(leaf);
        let part = self.correct((view, leaf.node().page().page_id()), part, batch, end);
        match view.is_still_valid(leaf) && was_valid {
            true => Attempt::Part(part),
            false => Attempt::Restart(Restart::Changed),
        }
    }

    /// Changes `batch` from all rows of a part of a leaf to the rows that are visible to the snapshot.
    /// Returns the part that the batch then has: all of the rest if the whole tree is empty in the snapshot,
    /// or less than `part` if there are too many rows.
    fn correct(&self, (view, page): (View<'_>, PageId), part: Part, batch: &mut LeafBatch, end: End) -> Part {
        if view.is_empty(self.tree) {
            batch.clear();
            return Part { is_cut: false, is_last: true, ..part };
        }
        let (from, to) = self.range_of(&part, end);
        match view.correct((self.tree, page), from, to, batch, end == End::Front) {
            None => part,
            Some(last) => {
                let fence = if end == End::Front { successor(&last) } else { last };
                Part { is_cut: true, is_last: false, fence }
            }
        }
    }

    /// Returns the reason to discard the read of `leaf`, if there is one: the leaf has changed, or its fences
    /// are wrong. (With wrong fences a scan could omit records, or never end.)
    fn distrust<'e>(&self, leaf: &Leaf<'e>, is_right_leaf: bool) -> Option<Restart<'e>> {
        match (leaf.is_valid(), is_right_leaf) {
            (false, _) => Some(Restart::Changed),
            (true, false) => {
                let reason = "its fences do not enclose the key for which its parent leads to it";
                Some(Restart::Failed(TreeError::corrupt(leaf.node().page().page_id(), reason)))
            }
            (true, true) => None,
        }
    }

    /// Fills `batch` with the next records in descending order, at most `limit`. An empty batch means that
    /// there are no more records.
    ///
    /// Before the first batch the key above the range is passed to [`KeyLocks::try_gap`]. Then each key is
    /// passed to [`KeyLocks::try_scan`].
    ///
    /// # Errors
    ///
    /// As [`Self::next_batch`].
    pub fn next_batch_back(
        &mut self,
        env: &Env,
        limit: usize,
        locks: &mut dyn KeyLocks,
        batch: &mut LeafBatch,
    ) -> Result<Outcome<()>, TreeError> {
        self.fill(env, End::Back, limit, &mut Reader::Locks(locks), batch)
    }

    fn backward<'e>(
        &self,
        env: &'e Env,
        leaf: &Leaf<'e>,
        limit: usize,
        reader: &mut Reader<'_>,
        batch: &mut LeafBatch,
    ) -> Attempt<'e> {
        let node = leaf.node();
        let end = self.to.as_ref().map_or(node.count(), |to| node.search(to).slot());
        let is_last = node.covers(&self.from);
        let start = if is_last { node.search(&self.from).slot().min(end) } else { 0 };
        let copied = (end - start).min(limit);
        prefetch_cells(node, copied);
        batch.take(node, (end - copied..end).rev());
        let mut fence = Vec::new();
        node.lower_into(&mut fence);
        let is_cut = copied < end - start;
        let is_right_leaf = match &self.to {
            Some(to) => fence < *to && node.reaches(to),
            None => node.is_last(),
        };
        if is_cut {
            fence = batch.key(batch.len() - 1).to_vec();
        }
        let page_lsn = reader.note(node);
        if let Some(cause) = self.distrust(leaf, is_right_leaf) {
            return Attempt::Restart(cause);
        }
        let part = Part { is_cut, is_last, fence };
        let locks = match reader {
            Reader::Locks(locks) => &mut **locks,
            Reader::Snapshot(view, _) => {
                return self.seen_in(*view, leaf, page_lsn, batch, (End::Back, part));
            }
        };
        if locks.is_needed() {
            let gap = |locks: &mut dyn KeyLocks| lock_gap(env, self.tree, node, end, GapWant::Read, locks);
            let range = self.range_of(&part, End::Back);
            let locked = if self.is_gap_locked { Ok(()) } else { as_result(gap(locks)) }.and_then(|()| {
                self.lock_records(env, node, ((end - copied..end).rev(), range), batch, locks)
            });
            if let Some(cause) = after_locks(leaf, locked) {
                return cause;
            }
        }
        Attempt::Part(part)
    }

    /// Removes the records of a part of a leaf from the range.
    fn consume(&mut self, end: End, part: Part) {
        match end {
            End::Front => self.from = part.fence,
            End::Back => self.to = Some(part.fence),
        }
        self.is_gap_locked |= end == End::Back;
        self.is_done = !part.is_cut && part.is_last || self.to.as_ref().is_some_and(|to| *to <= self.from);
    }

    /// Locks the records of `batch`, which are the records of `slots` and all records of `range`. Removes the
    /// records that are passed over.
    fn lock_records<'e>(
        &self,
        env: &'e Env,
        node: Node<'_>,
        (slots, range): (impl Iterator<Item = usize>, (&[u8], Option<&[u8]>)),
        batch: &mut LeafBatch,
        locks: &mut dyn KeyLocks,
    ) -> Result<(), NotLocked<'e>> {
        let blocked_records = locks.blocked_records();
        if blocked_records == BlockedRecords::Stop {
            let locked =
                if batch.is_empty() { Ok(()) } else { locks.try_scan_run(self.tree.id, range, batch) };
            return locked.map_err(|Blocked| NotLocked::Blocked);
        }
        let mut i = 0;
        for slot in slots {
            if blocked_records == BlockedRecords::PassOverUnlessRemovable {
                match as_result(lock_gap(env, self.tree, node, slot + 1, GapWant::TestDelete, locks)) {
                    Ok(()) => {}
                    Err(NotLocked::Blocked) => {
                        batch.leave_out(i);
                        continue;
                    }
                    Err(cause) => return Err(cause),
                }
            }
            match locks.try_scan(self.tree.id, batch.key(i)) {
                Ok(()) => i += 1,
                Err(Blocked) => batch.leave_out(i),
            }
        }
        Ok(())
    }
}

/// Prefetches the cells of a node if most of its rows are about to be copied. Cells lie in the order in which
/// they were written, from the end of the page, which the processor's prefetcher does not detect. With this
/// prefetch, full scans of resident rows of 100 bytes take 0.62 to 0.66 of the time, and of 1,000 bytes 0.46
/// to 0.58.
fn prefetch_cells(node: Node<'_>, rows: usize) {
    if 2 * rows >= node.count() {
        node.page().prefetch(0, node.page().len());
    }
}

/// Prefetches the leaf that follows the leaf of `seek` in the scan's direction, so that it is loaded while
/// the caller reads the rows of this leaf. Its lines are requested in the order that continues the sequence
/// of addresses of a table loaded in key order. With this prefetch, scans of rows of 20, 100 and 1,000 bytes
/// take 0.76 to 0.81 of the processor time forward, and 0.81 to 0.97 backward.
fn prefetch_next(env: &Env, parent: Node<'_>, seek: Seek<'_>, end: End) {
    let at = seek.slot(parent);
    let next = if end == End::Front { at + 1 } else { at.wrapping_sub(1) };
    // A changed parent may lead to any page, which does no harm.
    if next < parent.count()
        && let Some(page) = env.pool().expected_words(parent.child(next))
    {
        match end {
            End::Front => page.prefetch(0, page.len()),
            End::Back => page.prefetch_backward(),
        }
    }
}

/// The reason that a batch was not locked.
enum NotLocked<'e> {
    Blocked,
    Restart(Restart<'e>),
}

fn as_result(gap: Gap<'_>) -> Result<(), NotLocked<'_>> {
    match gap {
        Gap::Locked => Ok(()),
        Gap::Blocked => Err(NotLocked::Blocked),
        Gap::Restart(cause) => Err(NotLocked::Restart(cause)),
    }
}

/// Returns the early end of an attempt, if it ends early. The locks are valid only if the leaf is unchanged.
fn after_locks<'e>(leaf: &Leaf<'e>, locked: Result<(), NotLocked<'e>>) -> Option<Attempt<'e>> {
    match locked {
        Err(NotLocked::Restart(cause)) => Some(Attempt::Restart(cause)),
        _ if !leaf.is_valid() => Some(Attempt::Restart(Restart::Changed)),
        Err(NotLocked::Blocked) => Some(Attempt::Blocked),
        Ok(()) => None,
    }
}
