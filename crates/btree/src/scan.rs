//! Cursors: runs of records in key order, one leaf at a time, in both directions.
//!
//! A batch is copied out of one leaf, locked, and then the leaf is validated; so a batch is what the leaf held at one
//! moment at which all of its locks were held. Nothing stays latched or pinned between batches: what has been
//! consumed narrows the range, and the next batch descends to what is left of it.
//!
//! Which gaps are locked, so that nobody can insert into what was scanned:
//!
//! - *Forward*: every record with the gap below it, and where the leaf or the range ends, the gap below the next key, even
//!   if that is in a later leaf. It is locked before this leaf is validated: later it would be too late for a key
//!   that is inserted at this leaf's end in between.
//! - *Backward*: first the gap below the first key above the range, then every record with the gap below it. The
//!   gap of a leaf's first key reaches into the leaf before, so nothing is left open between two batches.

use std::ops::Bound;

use crate::descent::{Descent, Leaf, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::locks::{GapWant, KeyLocks, Outcome};
use crate::next::{Gap, lock_gap};
use crate::node::{FLAG_OVERFLOW, Node};
use crate::overflow::{self, OverflowRef};
use crate::tree::Tree;

/// A value in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// Its bytes.
    Inline(&'a [u8]),
    /// Where its bytes are: [`LeafBatch::read_value`].
    Large(OverflowRef),
}

/// Where a record lies in a batch's buffer: key, then value.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key_at: usize,
    value_at: usize,
    end: usize,
    flags: u16,
}

/// Records copied out of one leaf, in the order of the scan. Reuse it: it keeps its memory.
#[derive(Debug, Default)]
pub struct LeafBatch {
    bytes: Vec<u8>,
    used: usize,
    prefix: Vec<u8>,
    entries: Vec<Entry>,
}

impl LeafBatch {
    /// A batch without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The key of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[must_use]
    pub fn key(&self, i: usize) -> &[u8] {
        let entry = self.entries[i];
        &self.bytes[entry.key_at..entry.value_at]
    }

    /// The value of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[must_use]
    pub fn value(&self, i: usize) -> ValueRef<'_> {
        let entry = self.entries[i];
        let bytes = &self.bytes[entry.value_at..entry.end];
        match OverflowRef::decode(bytes) {
            Some(reference) if entry.flags & FLAG_OVERFLOW != 0 => ValueRef::Large(reference),
            _ => ValueRef::Inline(bytes),
        }
    }

    /// Appends the value of record `i` to `out`, large or not.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`], for a large value.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    pub fn read_value(&self, env: &Env, i: usize, out: &mut Vec<u8>) -> Result<(), TreeError> {
        match self.value(i) {
            ValueRef::Inline(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            ValueRef::Large(reference) => overflow::read(env, reference, out),
        }
    }

    fn start(&mut self, node: Node<'_>) {
        self.clear();
        self.prefix.clear();
        node.prefix_into(&mut self.prefix);
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
    }

    /// Copies slot `i` of `node`, whole words at a time, into memory that is there already.
    #[inline]
    fn push(&mut self, node: Node<'_>, i: usize) {
        let slot = node.slot(i);
        let (suffix_len, value_len) = (usize::from(slot.suffix_len), usize::from(slot.value_len));
        let key_at = self.used;
        let value_at = key_at + self.prefix.len() + suffix_len;
        let end = value_at + value_len;
        // Room for the head as a whole word, too.
        if end + 8 > self.bytes.len() {
            self.bytes.resize((end + 8).next_power_of_two(), 0);
        }
        let suffix_at = key_at + self.prefix.len();
        self.bytes[key_at..suffix_at].copy_from_slice(&self.prefix);
        self.bytes[suffix_at..suffix_at + 8].copy_from_slice(&slot.head.to_be_bytes());
        if suffix_len > 8 {
            node.page().read(8 * usize::from(slot.offset), &mut self.bytes[suffix_at + 8..value_at]);
        }
        node.page().read(slot.value_at(), &mut self.bytes[value_at..end]);
        self.entries.push(Entry { key_at, value_at, end, flags: slot.flags });
        self.used = end;
    }
}

/// What is left of a range of one tree, to be consumed from both ends.
#[derive(Clone, Debug)]
pub struct Scan {
    tree: Tree,
    /// Inclusive.
    from: Vec<u8>,
    /// Exclusive; `None` is the end of the tree.
    to: Option<Vec<u8>>,
    /// Whether the gap that `to` lies in is locked.
    is_gap_locked: bool,
    is_done: bool,
}

/// The least key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// What one leaf had for a scan.
struct Part {
    /// What was copied does not reach the end of the leaf or range.
    is_cut: bool,
    /// The range has nothing more in this direction.
    is_last: bool,
    /// The leaf's fence on the far side.
    fence: Vec<u8>,
}

/// What one attempt at one leaf came to.
enum Attempt<'e> {
    Part(Part),
    Blocked,
    Stopped(crate::descent::Stop<'e>),
}

impl Scan {
    /// A scan of the keys of `tree` between two bounds.
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
        Self { tree, from, to, is_gap_locked: false, is_done }
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Fills `batch` with the next records in ascending order, at most `limit`; an empty batch means that there are no more.
    ///
    /// Each key is offered to [`KeyLocks::try_scan`], and the key after the last one of a leaf to
    /// [`KeyLocks::try_gap`]. On [`Outcome::Blocked`] nothing was consumed but leaves without records.
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
        batch.clear();
        let mut descent = Descent::new(env, self.tree);
        while batch.is_empty() && !self.is_done {
            let leaf = descent.leaf(Seek::Covering(&self.from))?;
            match self.forward(env, &leaf, limit.max(1), locks, batch) {
                Attempt::Part(part) => self.consume_front(part, batch),
                Attempt::Blocked => return Ok(Outcome::Blocked),
                Attempt::Stopped(stop) => {
                    drop(leaf);
                    batch.clear();
                    descent.stopped(stop)?;
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
        locks: &mut dyn KeyLocks,
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
        batch.start(node);
        (start..start + copied).for_each(|i| batch.push(node, i));
        let is_cut = copied < end - start;
        let mut fence = Vec::new();
        if !is_cut && !is_last {
            node.upper_into(&mut fence);
        }
        // Rubbish must not come to the locks.
        if !leaf.is_valid() {
            return Attempt::Stopped(crate::descent::Stop::Changed);
        }
        if locks.is_needed() {
            let gap = |locks: &mut dyn KeyLocks| lock_gap(env, self.tree, node, end, GapWant::Read, locks);
            let locked = lock_records(self.tree, batch, locks)
                .and_then(|()| if is_cut { Ok(()) } else { as_result(gap(locks)) });
            if let Some(stop) = after_locks(leaf, locked) {
                return stop;
            }
        }
        Attempt::Part(Part { is_cut, is_last, fence })
    }

    fn consume_front(&mut self, part: Part, batch: &LeafBatch) {
        if part.is_cut {
            self.from = successor(batch.key(batch.len() - 1));
        } else {
            self.from = part.fence;
            self.is_done = part.is_last;
        }
        self.is_done |= self.to.as_ref().is_some_and(|to| *to <= self.from);
    }

    /// Fills `batch` with the next records in descending order, at most `limit`; an empty batch means that there are no
    /// more.
    ///
    /// Before the first batch the key above the range is offered to [`KeyLocks::try_gap`]; each key then to
    /// [`KeyLocks::try_scan`].
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
        batch.clear();
        let mut descent = Descent::new(env, self.tree);
        while batch.is_empty() && !self.is_done {
            let leaf = descent.leaf(self.to.as_deref().map_or(Seek::Last, Seek::Before))?;
            match self.backward(env, &leaf, limit.max(1), locks, batch) {
                Attempt::Part(part) => self.consume_back(part, batch),
                Attempt::Blocked => return Ok(Outcome::Blocked),
                Attempt::Stopped(stop) => {
                    drop(leaf);
                    batch.clear();
                    descent.stopped(stop)?;
                }
            }
        }
        Ok(Outcome::Done(()))
    }

    fn backward<'e>(
        &self,
        env: &'e Env,
        leaf: &Leaf<'e>,
        limit: usize,
        locks: &mut dyn KeyLocks,
        batch: &mut LeafBatch,
    ) -> Attempt<'e> {
        let node = leaf.node();
        let end = self.to.as_ref().map_or(node.count(), |to| node.search(to).slot());
        let is_last = node.covers(&self.from);
        let start = if is_last { node.search(&self.from).slot().min(end) } else { 0 };
        let copied = (end - start).min(limit);
        batch.start(node);
        (end - copied..end).rev().for_each(|i| batch.push(node, i));
        let mut fence = Vec::new();
        node.lower_into(&mut fence);
        if !leaf.is_valid() {
            return Attempt::Stopped(crate::descent::Stop::Changed);
        }
        if locks.is_needed() {
            let gap = |locks: &mut dyn KeyLocks| lock_gap(env, self.tree, node, end, GapWant::Read, locks);
            let locked = if self.is_gap_locked { Ok(()) } else { as_result(gap(locks)) }
                .and_then(|()| lock_records(self.tree, batch, locks));
            if let Some(stop) = after_locks(leaf, locked) {
                return stop;
            }
        }
        Attempt::Part(Part { is_cut: copied < end - start, is_last, fence })
    }

    fn consume_back(&mut self, part: Part, batch: &LeafBatch) {
        self.is_gap_locked = true;
        if part.is_cut {
            self.to = Some(batch.key(batch.len() - 1).to_vec());
        } else {
            self.is_done = part.is_last;
            self.to = Some(part.fence);
        }
        self.is_done |= self.to.as_ref().is_some_and(|to| *to <= self.from);
    }
}

/// Why locking a batch did not succeed.
enum NotLocked<'e> {
    Blocked,
    Stopped(crate::descent::Stop<'e>),
}

fn lock_records<'e>(tree: Tree, batch: &LeafBatch, locks: &mut dyn KeyLocks) -> Result<(), NotLocked<'e>> {
    (0..batch.len()).try_for_each(|i| locks.try_scan(tree.id, batch.key(i))).map_err(|_| NotLocked::Blocked)
}

fn as_result(gap: Gap<'_>) -> Result<(), NotLocked<'_>> {
    match gap {
        Gap::Locked => Ok(()),
        Gap::Blocked => Err(NotLocked::Blocked),
        Gap::Stopped(stop) => Err(NotLocked::Stopped(stop)),
    }
}

/// How the attempt ends early, if it does: the locks count only if the leaf is still what it was.
fn after_locks<'e>(leaf: &Leaf<'e>, locked: Result<(), NotLocked<'e>>) -> Option<Attempt<'e>> {
    match locked {
        Err(NotLocked::Stopped(stop)) => Some(Attempt::Stopped(stop)),
        _ if !leaf.is_valid() => Some(Attempt::Stopped(crate::descent::Stop::Changed)),
        Err(NotLocked::Blocked) => Some(Attempt::Blocked),
        Ok(()) => None,
    }
}
