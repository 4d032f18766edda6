//! Logical inverses of changes: entries of a transaction's undo log.
//!
//! A record may have moved to another page before it is undone (W13), so an entry names a key, never a page
//! of a tree. Transactions undo strictly last-in first-out, so the tree's record is as the change left it
//! when the entry is undone. [`UndoOp::Flip`] relies on this: it flips back exactly the bits that the change
//! flipped.

mod entries;

use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u8, take_u64};
use azekura_base::{PageId, TreeId};

use self::entries::Entries;
use crate::change::{PageOp, put_cell, take_cell, take_u16};
use crate::error::RecordError;
use crate::node::{Cell, FLAG_OVERFLOW};
use crate::overflow::{OverflowRef, UnloggedValues};
use crate::tree::{LeafVersion, Tree};
use crate::verify::Held;
use crate::version::WriterVersions;

/// The inverse of one change of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOp<'a> {
    /// Inverse of an insert: removes the key.
    RemoveKey {
        /// The tree.
        tree: Tree,
        /// The key.
        key: &'a [u8],
    },
    /// Inverse of a removal or a replacement: restores the key's old cell.
    PutBack {
        /// The tree.
        tree: Tree,
        /// The key.
        key: &'a [u8],
        /// The old value, or the reference to the old large value.
        cell: Cell<'a>,
    },
    /// Inverse of a replacement by a value of the same length: flips the changed bits back.
    Flip {
        /// The tree.
        tree: Tree,
        /// The key.
        key: &'a [u8],
        /// Offset of the first changed byte of the value.
        at: u16,
        /// Old bytes XOR new bytes.
        diff: &'a [u8],
    },
    /// Inverse of allocating pages for a large value: frees the pages.
    FreePages {
        /// The first page of the run.
        first: PageId,
        /// Number of pages in the run.
        count: u32,
    },
    /// Inverse of creating a tree: frees all pages of the tree.
    DropTree {
        /// The tree.
        tree: Tree,
    },
    /// Inverse of filling an empty tree by [`Loader`](crate::Loader): empties the tree, and frees the pages
    /// of its nodes and large values.
    EmptyTree {
        /// The tree.
        tree: Tree,
        /// Number of earlier [`Self::FreePages`] entries that this entry replaces. They are needed only while
        /// the tree does not refer to the loaded pages.
        covers: u64,
        /// The number of the page store when the loaded pages were durable
        /// ([`PageStore::sync_for_checkpoint`](azekura_buffer::PageStore::sync_for_checkpoint)). A store with
        /// a smaller number lacks some of these pages.
        last_finished: u64,
    },
    /// Inverse of dropping a tree: keeps the tree. Its pages are freed only after the commit.
    KeepTree {
        /// The tree.
        tree: Tree,
    },
}

/// A deferred free: space that is freed after its transaction has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferred {
    /// The chain of a large value, from this page on.
    Chain(PageId),
    /// A tree with all its pages.
    Tree(Tree),
}

const REMOVE_KEY: u8 = 1;
const PUT_BACK: u8 = 2;
const FLIP: u8 = 3;
/// Tag of a [`UndoOp::Flip`] in a record, with the offset and bits of the record's first page operation.
const FLIP_SHARED: u8 = 4;
const FREE_PAGES: u8 = 5;
const DROP_TREE: u8 = 6;
const KEEP_TREE: u8 = 7;
const EMPTY_TREE: u8 = 8;

impl<'a> UndoOp<'a> {
    /// Returns the space that the change took out of use, to be freed after the transaction has committed
    /// ([`crate::free_step`]). The space stays unchanged until the commit, so that undo can restore the
    /// reference.
    #[must_use]
    pub fn deferred_free(&self) -> Option<Deferred> {
        match self {
            Self::PutBack { cell, .. } if cell.flags & FLAG_OVERFLOW != 0 => {
                OverflowRef::decode(cell.value).map(|reference| Deferred::Chain(reference.head))
            }
            Self::KeepTree { tree } => Some(Deferred::Tree(*tree)),
            _ => None,
        }
    }

    /// Appends the entry without reference to a page operation.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.encode_beside(out, None);
    }

    /// Appends the entry as part of a record with the first page operation `op`. Bytes that both contain are
    /// written once.
    pub(crate) fn encode_beside(&self, out: &mut Vec<u8>, op: Option<&PageOp<'_>>) {
        match *self {
            Self::RemoveKey { tree, key } => {
                put_key(out, REMOVE_KEY, tree, key);
            }
            Self::PutBack { tree, key, cell } => {
                put_key(out, PUT_BACK, tree, key);
                put_cell(out, cell);
            }
            Self::Flip { tree, key, at, diff } => match op {
                Some(&PageOp::Flip { at: op_at, diff: op_diff, .. }) if op_at == at && op_diff == diff => {
                    put_key(out, FLIP_SHARED, tree, key);
                }
                _ => {
                    put_key(out, FLIP, tree, key);
                    put_u64(out, at.into());
                    put_bytes(out, diff);
                }
            },
            Self::FreePages { first, count } => {
                out.push(FREE_PAGES);
                put_u64(out, first.0);
                put_u64(out, count.into());
            }
            Self::DropTree { tree } => {
                out.push(DROP_TREE);
                put_tree(out, tree);
            }
            Self::KeepTree { tree } => {
                out.push(KEEP_TREE);
                put_tree(out, tree);
            }
            Self::EmptyTree { tree, covers, last_finished } => {
                out.push(EMPTY_TREE);
                put_tree(out, tree);
                put_u64(out, covers);
                put_u64(out, last_finished);
            }
        }
    }

    /// Takes an entry off the front of `input`. `first_op` returns the first page operation of the record,
    /// from the bytes after the entry.
    pub(crate) fn decode(
        input: &mut &'a [u8],
        first_op: impl FnOnce(&'a [u8]) -> Option<PageOp<'a>>,
    ) -> Result<Self, RecordError> {
        let tag = input.first().copied().unwrap_or(0);
        Self::take(input, first_op).ok_or(RecordError::BadUndo { tag })
    }

    fn take(input: &mut &'a [u8], first_op: impl FnOnce(&'a [u8]) -> Option<PageOp<'a>>) -> Option<Self> {
        Some(match take_u8(input)? {
            REMOVE_KEY => Self::RemoveKey { tree: take_tree(input)?, key: take_bytes(input)? },
            PUT_BACK => {
                Self::PutBack { tree: take_tree(input)?, key: take_bytes(input)?, cell: take_cell(input)? }
            }
            FLIP => {
                let (tree, key) = (take_tree(input)?, take_bytes(input)?);
                Self::Flip { tree, key, at: take_u16(input)?, diff: take_bytes(input)? }
            }
            FLIP_SHARED => {
                let (tree, key) = (take_tree(input)?, take_bytes(input)?);
                let PageOp::Flip { at, diff, .. } = first_op(input)? else { return None };
                Self::Flip { tree, key, at, diff }
            }
            FREE_PAGES => {
                Self::FreePages { first: PageId(take_u64(input)?), count: take_u64(input)?.try_into().ok()? }
            }
            DROP_TREE => Self::DropTree { tree: take_tree(input)? },
            KEEP_TREE => Self::KeepTree { tree: take_tree(input)? },
            EMPTY_TREE => Self::EmptyTree {
                tree: take_tree(input)?,
                covers: take_u64(input)?,
                last_finished: take_u64(input)?,
            },
            _ => return None,
        })
    }
}

fn put_tree(out: &mut Vec<u8>, tree: Tree) {
    put_u64(out, tree.id.0.into());
    put_u64(out, tree.root.0);
}

fn put_key(out: &mut Vec<u8>, tag: u8, tree: Tree, key: &[u8]) {
    out.push(tag);
    put_tree(out, tree);
    put_bytes(out, key);
}

fn take_tree(input: &mut &[u8]) -> Option<Tree> {
    let id = TreeId(take_u64(input)?.try_into().ok()?);
    Some(Tree { id, root: PageId(take_u64(input)?) })
}

/// The undo entries of one transaction, oldest first.
///
/// A savepoint is a length: rolling back to it undoes and pops entries until the log is that short again.
#[derive(Clone, Debug, Default)]
pub struct UndoLog {
    entries: Entries,
    /// The position of each entry.
    starts: Vec<usize>,
    /// Largest size of `starts` before the removals since the log was made. This memory is still in use.
    most_starts: usize,
    pub(crate) writer: WriterVersions,
    /// Number of calls since the log was cleared that removed entries from the end.
    shrink_count: u64,
    /// The removals after which the log was never shorter: their number and the length after each, both
    /// ascending.
    shrinks: Vec<(u64, usize)>,
    /// The leaf of the last change of the transaction (LAST-1 in `write`).
    pub(crate) last_leaf: Option<LeafVersion>,
    /// The leaf of the transaction's last read since that change (LAST-1).
    read_leaf: Option<LeafVersion>,
    /// Number of descents to leaves in order to put or remove rows.
    pub(crate) descents: u64,
    /// The large values of the transaction that are not in the log.
    pub values: UnloggedValues,
}

impl UndoLog {
    /// Returns a log without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns `true` if there is nothing to undo.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Appends an entry, and removes the entries that it covers.
    pub fn push(&mut self, op: &UndoOp<'_>) {
        if let UndoOp::EmptyTree { covers, .. } = *op {
            // Entries may be missing if the transaction began before the oldest log record that is read.
            let covers = usize::try_from(covers).unwrap_or(usize::MAX);
            self.truncate(self.len().saturating_sub(covers));
        }
        self.starts.push(self.entries.len());
        self.entries.append(|out| op.encode(out));
    }

    /// Appends an entry that only holds a deferred free: it undoes nothing.
    pub fn push_deferred(&mut self, what: Deferred) {
        match what {
            Deferred::Tree(tree) => self.push(&UndoOp::KeepTree { tree }),
            Deferred::Chain(head) => {
                let value = OverflowRef { len: 0, head }.encode();
                let tree = Tree { id: TreeId(0), root: PageId(0) };
                let cell = Cell { flags: FLAG_OVERFLOW, value: &value };
                self.push(&UndoOp::PutBack { tree, key: b"", cell });
            }
        }
    }

    /// Returns the newest entry.
    #[must_use]
    pub fn last(&self) -> Option<UndoOp<'_>> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Returns entry `index`, counted from the oldest.
    ///
    /// # Panics
    ///
    /// Never: the bytes are this log's own.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<UndoOp<'_>> {
        let mut bytes = self.entries.from(*self.starts.get(index)?);
        Some(UndoOp::decode(&mut bytes, |_| None).expect("this log encoded it"))
    }

    /// Removes the newest entry, which has been undone.
    pub fn pop(&mut self) {
        self.truncate(self.len().saturating_sub(1));
    }

    fn truncate(&mut self, len: usize) {
        if let Some(&start) = self.starts.get(len) {
            self.most_starts = self.most_starts_now();
            self.entries.truncate(start);
            self.starts.truncate(len);
            self.shrink_count += 1;
            while self.shrinks.pop_if(|shrink| shrink.1 >= len).is_some() {}
            self.shrinks.push((self.shrink_count, len));
        }
    }

    /// Returns the number of removals from the end. Other entries may have been appended since.
    #[must_use]
    pub const fn shrink_count(&self) -> u64 {
        self.shrink_count
    }

    /// Returns the least number of entries since [`shrink_count`](Self::shrink_count) was `count`; `None` if
    /// no entry was removed since then.
    #[must_use]
    pub fn shortest_since(&self, count: u64) -> Option<usize> {
        let later = self.shrinks.partition_point(|&(number, _)| number <= count);
        self.shrinks.get(later).map(|&(_, len)| len)
    }

    /// Returns the number of descents to put or remove rows since the log was made: at least one for each
    /// leaf.
    #[must_use]
    pub const fn descents(&self) -> u64 {
        self.descents
    }

    fn most_starts_now(&self) -> usize {
        self.most_starts.max(self.starts.len())
    }

    /// Returns the number of bytes of memory that the log uses.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.entries.memory() + self.most_starts_now() * size_of::<usize>()
    }

    /// Removes all entries, and keeps the memory of a short log.
    pub fn clear(&mut self) {
        self.most_starts = self.most_starts_now();
        self.entries.clear();
        self.starts.clear();
        self.writer.clear();
        self.shrinks.clear();
        self.shrink_count = 0;
        (self.last_leaf, self.read_leaf) = (None, None);
        self.values = UnloggedValues::default();
    }

    /// Remembers the leaf of a read, so that the next change needs no descent if it is in this leaf (LAST-1).
    /// The next change forgets the leaf.
    pub const fn note_read(&mut self, leaf: LeafVersion) {
        self.read_leaf = Some(leaf);
    }

    /// Removes and returns the remembered leaves: that of the last read, and that of the last change.
    #[inline]
    pub(crate) const fn take_leaves(&mut self) -> [Option<LeafVersion>; 2] {
        [self.read_leaf.take(), self.last_leaf.take()]
    }

    /// Returns the entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = UndoOp<'_>> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Returns the bytes of all entries, oldest first, in parts of at most about `part_bytes`. There is at
    /// least one part, and no part ends inside an entry.
    pub fn parts(&self, part_bytes: usize) -> impl Iterator<Item = &[u8]> {
        let mut rest = Some(0);
        std::iter::from_fn(move || {
            let from = rest?;
            let segment = self.entries.from(from);
            let wanted = from + segment.len().min(part_bytes.max(1));
            let next = self.starts.partition_point(|&start| start < wanted);
            rest = self.starts.get(next).copied();
            Some(&segment[..rest.unwrap_or(self.entries.len()) - from])
        })
    }

    /// Appends the entries of a part from [`parts`](Self::parts). Here no entry replaces earlier ones: the
    /// covered entries were removed from the log that was copied.
    ///
    /// # Errors
    ///
    /// [`RecordError`] for invalid bytes; the valid entries in front of them have been appended.
    pub fn append_part(&mut self, mut part: &[u8]) -> Result<(), RecordError> {
        while !part.is_empty() {
            let before = part;
            UndoOp::decode(&mut part, |_| None)?;
            self.starts.push(self.entries.len());
            self.entries.append(|out| out.extend_from_slice(&before[..before.len() - part.len()]));
        }
        Ok(())
    }

    /// Returns the deferred frees, in the order in which the transaction took the space out of use.
    #[must_use]
    pub fn deferred_frees(&self) -> Vec<Deferred> {
        self.deferred_entries().filter_map(|op| op.deferred_free()).collect()
    }

    /// Returns the entries of [`deferred_frees`](Self::deferred_frees), in the same order.
    pub fn deferred_entries(&self) -> impl Iterator<Item = UndoOp<'_>> {
        // Entries of all other kinds have no deferred free.
        let may_defer =
            |start: usize| matches!(self.entries.from(start).first(), Some(&(PUT_BACK | KEEP_TREE)));
        let entries = (0..self.len()).filter(move |&i| may_defer(self.starts[i]));
        entries.filter_map(|i| self.get(i).filter(|op| op.deferred_free().is_some()))
    }

    /// Returns the pages that the transaction keeps in use, although no tree may refer to them.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        // Entries of all other kinds hold no pages.
        const KINDS: [u8; 5] = [PUT_BACK, KEEP_TREE, FREE_PAGES, DROP_TREE, EMPTY_TREE];
        let may_hold =
            |start: usize| self.entries.from(start).first().is_some_and(|kind| KINDS.contains(kind));
        let entries = (0..self.len()).filter(move |&i| may_hold(self.starts[i]));
        entries.filter_map(|i| match self.get(i)? {
            UndoOp::FreePages { first, count } => Some(Held::Run { first, count }),
            UndoOp::DropTree { tree } | UndoOp::EmptyTree { tree, .. } => {
                Some(Held::Deferred(Deferred::Tree(tree)))
            }
            op => op.deferred_free().map(Held::Deferred),
        })
    }

    /// Returns the total size of all entries, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_of_a_loaded_tree_takes_the_place_of_those_that_it_covers() {
        let tree = Tree { id: TreeId(7), root: PageId(300) };
        let run = |first| UndoOp::FreePages { first: PageId(first), count: 16 };
        let mut log = UndoLog::new();
        [run(10), run(30), run(50)].iter().for_each(|e| log.push(e));
        log.push(&UndoOp::EmptyTree { tree, covers: 2, last_finished: 1 << 40 });
        assert_eq!(
            log.iter().collect::<Vec<_>>(),
            [run(10), UndoOp::EmptyTree { tree, covers: 2, last_finished: 1 << 40 }]
        );
        log.push(&UndoOp::EmptyTree { tree, covers: u64::MAX, last_finished: 5 });
        assert_eq!(
            log.iter().collect::<Vec<_>>(),
            [UndoOp::EmptyTree { tree, covers: u64::MAX, last_finished: 5 }]
        );
        assert!(log.deferred_frees().is_empty());
    }

    #[test]
    fn the_shrink_count_gives_the_least_length_since_a_mark() {
        let tree = Tree { id: TreeId(7), root: PageId(300) };
        let (mut log, mut state) = (UndoLog::new(), 1_u64);
        // The log's length after each change, and the shrink count at that moment.
        let mut history = vec![(0, 0)];
        for _ in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match (state >> 33) % 5 {
                0 | 1 => (0..(state >> 40) % 4).for_each(|_| log.pop()),
                _ => log.push(&UndoOp::KeepTree { tree }),
            }
            history.push((log.len(), log.shrink_count()));
            for (i, &(_, count)) in history.iter().enumerate() {
                let is_later = |&&(_, later): &&(usize, u64)| later > count;
                if history[i..].iter().any(|later| is_later(&later)) {
                    let least = history.iter().filter(is_later).map(|&(len, _)| len).min();
                    assert_eq!(log.shortest_since(count), least, "since {count}");
                } else {
                    assert_eq!(log.shortest_since(count), None);
                }
            }
        }
        log.clear();
        assert_eq!((log.shrink_count(), log.shortest_since(0)), (0, None));
    }

    #[test]
    fn a_copy_in_parts_is_the_log() {
        let tree = Tree { id: TreeId(7), root: PageId(300) };
        let mut log = UndoLog::new();
        for n in 0..50_u64 {
            log.push(&UndoOp::FreePages { first: PageId(n * 1_000), count: n as u32 });
            log.push(&UndoOp::RemoveKey { tree, key: &vec![n as u8; n as usize] });
        }
        log.push(&UndoOp::EmptyTree { tree, covers: 3, last_finished: 9 });
        for part_bytes in [0, 1, 7, 64, 1_000, usize::MAX / 2] {
            let mut copy = UndoLog::new();
            let mut parts = 0;
            for part in log.parts(part_bytes) {
                assert!(part.len() <= part_bytes.max(1) + 64, "{} of {part_bytes}", part.len());
                copy.append_part(part).expect("its own bytes");
                parts += 1;
            }
            assert_eq!(copy.iter().collect::<Vec<_>>(), log.iter().collect::<Vec<_>>());
            assert_eq!(parts == 1, part_bytes > log.bytes(), "{parts} of {part_bytes}");
        }
        assert_eq!(UndoLog::new().parts(8).collect::<Vec<_>>(), [&[] as &[u8]], "an empty log is one part");
        assert!(UndoLog::new().append_part(&[99, 1]).is_err());
    }

    #[test]
    fn entries_are_returned_unchanged_newest_first() {
        let tree = Tree { id: TreeId(7), root: PageId(300) };
        let reference = OverflowRef { len: 70_000, head: PageId(9) }.encode();
        let entries = [
            UndoOp::RemoveKey { tree, key: b"k" },
            UndoOp::PutBack { tree, key: b"", cell: Cell { flags: FLAG_OVERFLOW, value: &reference } },
            UndoOp::PutBack { tree, key: b"x", cell: Cell::inline(b"old") },
            UndoOp::Flip { tree, key: b"abc", at: 5, diff: b"\x01\x00\xff" },
            UndoOp::FreePages { first: PageId(70), count: 16 },
            UndoOp::DropTree { tree },
            UndoOp::KeepTree { tree },
        ];
        let mut log = UndoLog::new();
        entries.iter().for_each(|e| log.push(e));
        assert_eq!(log.iter().collect::<Vec<_>>(), entries);
        assert_eq!(log.deferred_frees(), [Deferred::Chain(PageId(9)), Deferred::Tree(tree)]);
        for entry in entries.iter().rev() {
            assert_eq!(log.last().as_ref(), Some(entry));
            log.pop();
        }
        assert!(log.is_empty() && log.bytes() == 0);
        let used = entries.len() * size_of::<usize>() + 2 * entries.len();
        assert!(log.memory() > used, "removed entries keep their memory: {}", log.memory());
        let deferred = [Deferred::Tree(tree), Deferred::Chain(PageId(9))];
        deferred.iter().for_each(|&what| log.push_deferred(what));
        assert_eq!(log.deferred_frees(), deferred);
    }
}
