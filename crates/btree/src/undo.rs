//! What undoes a change, logically: entries of a transaction's undo log.
//!
//! A record may have moved to another page by the time it is undone (W13), so an entry names a key, never a
//! page of a tree. Transactions undo strictly last-in first-out; an entry is therefore undone when the tree's
//! record is exactly as the change left it. [`UndoOp::Flip`] rests on that: the bits that it flips back are
//! those it flipped.

use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u8, take_u64};
use azekura_base::{PageId, TreeId};

use crate::change::{PageOp, put_cell, take_cell, take_u16};
use crate::error::RecordError;
use crate::node::{Cell, FLAG_OVERFLOW};
use crate::overflow::OverflowRef;
use crate::tree::Tree;
use crate::verify::Held;
use crate::version::WriterVersions;

/// The inverse of one change of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoOp<'a> {
    /// An insert: the key goes away again.
    RemoveKey {
        /// Where.
        tree: Tree,
        /// The key.
        key: &'a [u8],
    },
    /// A removal or a replacement: the key gets its old cell back.
    PutBack {
        /// Where.
        tree: Tree,
        /// The key.
        key: &'a [u8],
        /// The old value, or the reference to it.
        cell: Cell<'a>,
    },
    /// A replacement by a value of the same length: the bits that changed flip back.
    Flip {
        /// Where.
        tree: Tree,
        /// The key.
        key: &'a [u8],
        /// First byte of the value that changed.
        at: u16,
        /// Old bytes XOR new bytes.
        diff: &'a [u8],
    },
    /// Pages were taken for a large value: they are free again.
    FreePages {
        /// The first of a run.
        first: PageId,
        /// Pages in the run.
        count: u32,
    },
    /// A tree was created: all its pages are free again.
    DropTree {
        /// The tree.
        tree: Tree,
    },
    /// An empty tree was filled by [`Loader`](crate::Loader): it is empty again, and the pages of its nodes
    /// and large values are free.
    EmptyTree {
        /// The tree.
        tree: Tree,
        /// So many entries before this one, which said what to free while the tree did not yet refer to it,
        /// are done with.
        covers: u64,
        /// The number that the page store gave when the loaded pages were durable
        /// ([`PageStore::sync_for_checkpoint`](azekura_buffer::PageStore::sync_for_checkpoint)): a store that
        /// does not get as far lacks some of them.
        settled: u64,
    },
    /// A tree was dropped: it stays. Its pages are freed only after the commit.
    KeepTree {
        /// The tree.
        tree: Tree,
    },
}

/// What a committed transaction leaves to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deferred {
    /// The chain of a large value, from this page on.
    Chain(PageId),
    /// A tree with all that is in it.
    Tree(Tree),
}

const REMOVE_KEY: u8 = 1;
const PUT_BACK: u8 = 2;
const FLIP: u8 = 3;
/// As `FLIP`, in a record: offset and bits are those of the record's first page operation.
const FLIP_SHARED: u8 = 4;
const FREE_PAGES: u8 = 5;
const DROP_TREE: u8 = 6;
const KEEP_TREE: u8 = 7;
const EMPTY_TREE: u8 = 8;

impl<'a> UndoOp<'a> {
    /// What the change took out of use: to be freed once the transaction has committed
    /// ([`crate::free_step`]).
    ///
    /// Until then it stays as it is, so that undo can put the reference back.
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

    /// Appends the entry, complete in itself.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        self.encode_beside(out, None);
    }

    /// Appends the entry as part of a record whose first page operation is `op`: what both hold is written
    /// once.
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
            Self::EmptyTree { tree, covers, settled } => {
                out.push(EMPTY_TREE);
                put_tree(out, tree);
                put_u64(out, covers);
                put_u64(out, settled);
            }
        }
    }

    /// Takes an entry off the front of `input`. `first_op` finds the record's first page operation behind it.
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
                settled: take_u64(input)?,
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

/// The undo entries of one transaction, oldest first, packed into one buffer.
///
/// A savepoint is a length: rolling back to it undoes and pops entries until the log is that short again.
#[derive(Clone, Debug, Default)]
pub struct UndoLog {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    pub(crate) writer: WriterVersions,
    /// Number of times that entries were taken off the end since the log was cleared.
    shrink_count: u64,
    /// Of the times when that happened, those after which the log was never shorter: number and length, both
    /// ascending.
    shrinks: Vec<(u64, usize)>,
}

impl UndoLog {
    /// A log without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is nothing to undo.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Appends an entry, in the place of those that it covers.
    pub fn push(&mut self, op: &UndoOp<'_>) {
        if let UndoOp::EmptyTree { covers, .. } = *op {
            // Of a transaction that began before the log which is read, some may be missing.
            let covers = usize::try_from(covers).unwrap_or(usize::MAX);
            self.truncate(self.len().saturating_sub(covers));
        }
        self.starts.push(self.bytes.len());
        op.encode(&mut self.bytes);
    }

    /// Appends an entry that leaves this to be freed after the commit, and undoes nothing.
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

    /// The newest entry.
    #[must_use]
    pub fn last(&self) -> Option<UndoOp<'_>> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Entry `index`, 0 being the oldest.
    ///
    /// # Panics
    ///
    /// Never: the bytes are this log's own.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<UndoOp<'_>> {
        let mut bytes = self.bytes.get(*self.starts.get(index)?..)?;
        Some(UndoOp::decode(&mut bytes, |_| None).expect("this log encoded it"))
    }

    /// Forgets the newest entry, which has been undone.
    pub fn pop(&mut self) {
        self.truncate(self.len().saturating_sub(1));
    }

    fn truncate(&mut self, len: usize) {
        if let Some(&start) = self.starts.get(len) {
            self.bytes.truncate(start);
            self.starts.truncate(len);
            self.shrink_count += 1;
            while self.shrinks.pop_if(|shrink| shrink.1 >= len).is_some() {}
            self.shrinks.push((self.shrink_count, len));
        }
    }

    /// Number of times that entries were taken off the end; other entries may have replaced them since.
    #[must_use]
    pub const fn shrink_count(&self) -> u64 {
        self.shrink_count
    }

    /// The least number of entries since [`shrink_count`](Self::shrink_count) was `count`; `None` if none has
    /// been taken off since.
    #[must_use]
    pub fn shortest_since(&self, count: u64) -> Option<usize> {
        let later = self.shrinks.partition_point(|&(number, _)| number <= count);
        self.shrinks.get(later).map(|&(_, len)| len)
    }

    /// Forgets all entries and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
        self.writer.clear();
        self.shrinks.clear();
        self.shrink_count = 0;
    }

    /// The entries, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = UndoOp<'_>> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// The bytes of all entries, oldest first, in parts of about `part_bytes`, at least one; no part ends
    /// inside an entry.
    pub fn parts(&self, part_bytes: usize) -> impl Iterator<Item = &[u8]> {
        let mut rest = Some(0);
        std::iter::from_fn(move || {
            let from = rest?;
            let wanted = from + part_bytes.max(1);
            let next = self.starts.partition_point(|&start| start < wanted);
            rest = self.starts.get(next).copied();
            Some(&self.bytes[from..rest.unwrap_or(self.bytes.len())])
        })
    }

    /// Appends entries that [`parts`](Self::parts) gave. An entry that covers others covers none of those
    /// that precede it here: they have been taken out of the log that was copied.
    ///
    /// # Errors
    ///
    /// [`RecordError`] for bytes that are no entries; those before them have been appended.
    pub fn append_part(&mut self, mut part: &[u8]) -> Result<(), RecordError> {
        while !part.is_empty() {
            let before = part;
            UndoOp::decode(&mut part, |_| None)?;
            self.starts.push(self.bytes.len());
            self.bytes.extend_from_slice(&before[..before.len() - part.len()]);
        }
        Ok(())
    }

    /// What to free after commit, in the order in which the transaction took it out of use.
    #[must_use]
    pub fn deferred_frees(&self) -> Vec<Deferred> {
        self.deferred_entries().filter_map(|op| op.deferred_free()).collect()
    }

    /// The entries of [`deferred_frees`](Self::deferred_frees), in the same order.
    pub fn deferred_entries(&self) -> impl Iterator<Item = UndoOp<'_>> {
        // The kind of most entries says already that there is nothing.
        let may_defer = |start: usize| matches!(self.bytes.get(start), Some(&(PUT_BACK | KEEP_TREE)));
        let entries = (0..self.len()).filter(move |&i| may_defer(self.starts[i]));
        entries.filter_map(|i| self.get(i).filter(|op| op.deferred_free().is_some()))
    }

    /// Pages that the transaction keeps in use, although no tree may refer to them.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        // The kind of most entries says already that there is nothing.
        const KINDS: [u8; 5] = [PUT_BACK, KEEP_TREE, FREE_PAGES, DROP_TREE, EMPTY_TREE];
        let may_hold = |start: usize| self.bytes.get(start).is_some_and(|kind| KINDS.contains(kind));
        let entries = (0..self.len()).filter(move |&i| may_hold(self.starts[i]));
        entries.filter_map(|i| match self.get(i)? {
            UndoOp::FreePages { first, count } => Some(Held::Run { first, count }),
            UndoOp::DropTree { tree } | UndoOp::EmptyTree { tree, .. } => {
                Some(Held::Deferred(Deferred::Tree(tree)))
            }
            op => op.deferred_free().map(Held::Deferred),
        })
    }

    /// Bytes that the entries take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
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
        log.push(&UndoOp::EmptyTree { tree, covers: 2, settled: 1 << 40 });
        assert_eq!(
            log.iter().collect::<Vec<_>>(),
            [run(10), UndoOp::EmptyTree { tree, covers: 2, settled: 1 << 40 }]
        );
        log.push(&UndoOp::EmptyTree { tree, covers: u64::MAX, settled: 5 });
        assert_eq!(
            log.iter().collect::<Vec<_>>(),
            [UndoOp::EmptyTree { tree, covers: u64::MAX, settled: 5 }]
        );
        assert!(log.deferred_frees().is_empty());
    }

    #[test]
    fn the_log_knows_how_short_it_was_since_a_moment() {
        let tree = Tree { id: TreeId(7), root: PageId(300) };
        let (mut log, mut state) = (UndoLog::new(), 1_u64);
        // Length after each change, and the count of shrinks then.
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
        log.push(&UndoOp::EmptyTree { tree, covers: 3, settled: 9 });
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
    fn entries_come_back_as_they_went_in_newest_first() {
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
        let deferred = [Deferred::Tree(tree), Deferred::Chain(PageId(9))];
        deferred.iter().for_each(|&what| log.push_deferred(what));
        assert_eq!(log.deferred_frees(), deferred);
    }
}
