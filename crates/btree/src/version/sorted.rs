//! Holds versions in the order of their rows, the oldest version of each row first.
//!
//! The structure is a sorted sequence of pointers to versions, in blocks of bounded length. The first eight
//! bytes of each key are stored beside its pointer, and those of the last key in the block. A search reads a
//! version only if these bytes equal those of the searched key. All versions of a block belong to one tree. A
//! block is two thirds full on average. An insertion moves the entries of at most one block.

use std::cmp::Ordering as Order;

use azekura_base::{TreeId, prefetch};

use super::row::Version;

/// Largest number of versions in a block.
const BLOCK: usize = 64;
/// Number of versions in a rebuilt block, which leaves room for insertions.
const FILLED: usize = 48;

/// A position between two versions: a block, and an index in it.
type At = (usize, usize);

/// The key of a row, with its first bytes as a number in the same order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    prefix: u64,
    key: &'a [u8],
}

impl<'a> Key<'a> {
    pub(super) fn new(key: &'a [u8]) -> Self {
        let prefix = key.first_chunk().copied().unwrap_or_else(|| {
            let mut padded = [0; 8];
            padded[..key.len()].copy_from_slice(key);
            padded
        });
        Self { prefix: u64::from_be_bytes(prefix), key }
    }
}

/// A version, with the prefix of its key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    prefix: u64,
    version: Version,
}

impl Entry {
    /// Compares the entry's row with another row of the same tree.
    pub(super) fn order(&self, key: Key<'_>) -> Order {
        self.prefix.cmp(&key.prefix).then_with(|| self.version.key().cmp(key.key))
    }

    /// Returns the key of the entry's row.
    pub(super) fn key(&self) -> Key<'_> {
        Key { prefix: self.prefix, key: self.version.key() }
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }
}

/// A block of adjacent versions of one tree.
#[derive(Debug)]
struct Block {
    tree: TreeId,
    /// The prefix of the last entry.
    last: u64,
    /// The entries; never empty.
    entries: Vec<Entry>,
}

impl Block {
    fn of(tree: TreeId, entries: Vec<Entry>) -> Self {
        let mut block = Self { tree, last: 0, entries };
        block.note_last();
        block
    }

    fn note_last(&mut self) {
        self.last = self.entries.last().map_or(0, |entry| entry.prefix);
    }

    /// Returns `true` if all versions of the block come before the row.
    fn is_before(&self, tree: TreeId, key: Key<'_>) -> bool {
        let order = self.tree.0.cmp(&tree.0).then_with(|| self.last.cmp(&key.prefix));
        order.then_with(|| self.entries.last().map_or(Order::Less, |last| last.order(key))).is_lt()
    }
}

/// A sorted sequence of versions.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    blocks: Vec<Block>,
}

impl Sorted {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the position of the first version of a row, or the position at which to insert it.
    pub(super) fn find(&self, tree: TreeId, key: Key<'_>) -> At {
        let block = self.blocks.partition_point(|block| block.is_before(tree, key));
        let index = self.blocks.get(block).filter(|block| block.tree == tree).map_or(0, |block| {
            // The lines of the block are loaded at the same time, not one after the other.
            prefetch(&block.entries);
            block.entries.partition_point(|entry| entry.order(key).is_lt())
        });
        (block, index)
    }

    /// Returns the versions of a tree from a position on.
    fn iter_from(&self, tree: TreeId, (block, index): At) -> impl Iterator<Item = &Entry> {
        let blocks =
            self.blocks.get(block..).unwrap_or(&[]).iter().take_while(move |block| block.tree == tree);
        blocks.flat_map(|block| &block.entries).skip(index)
    }

    /// Returns the versions of the rows of the tree from this key on.
    pub(super) fn from(&self, tree: TreeId, key: Key<'_>) -> impl Iterator<Item = &Entry> {
        self.iter_from(tree, self.find(tree, key))
    }

    /// Returns the versions of a row, oldest first; `at` is the position from [`find`](Self::find).
    pub(super) fn of_row_at<'a>(
        &'a self,
        at: At,
        tree: TreeId,
        key: Key<'a>,
    ) -> impl Iterator<Item = &'a Entry> {
        self.iter_from(tree, at).take_while(move |entry| entry.order(key).is_eq())
    }

    /// Returns the versions of a row, oldest first.
    pub(super) fn of_row<'a>(&'a self, tree: TreeId, key: Key<'a>) -> impl Iterator<Item = &'a Entry> {
        self.of_row_at(self.find(tree, key), tree, key)
    }

    /// Adds the newest version of its row. `at` is the position after the row's other versions.
    pub(super) fn insert(&mut self, (mut block, mut index): At, tree: TreeId, version: Version) {
        let entry = Entry { prefix: Key::new(version.key()).prefix, version };
        let is_of_tree = |block: Option<&Block>| block.is_some_and(|block| block.tree == tree);
        if !is_of_tree(self.blocks.get(block)) {
            let Some(before) = block.checked_sub(1).filter(|&before| is_of_tree(self.blocks.get(before)))
            else {
                return self.blocks.insert(block, Block::of(tree, vec![entry]));
            };
            (block, index) = (before, self.blocks[before].entries.len());
        }
        if self.blocks[block].entries.len() == BLOCK {
            // Rows that are changed in ascending order fill the blocks.
            let is_last = index == BLOCK && !is_of_tree(self.blocks.get(block + 1));
            let at = if is_last { FILLED } else { BLOCK / 2 };
            let mut upper = Vec::with_capacity(BLOCK);
            upper.extend(self.blocks[block].entries.drain(at..));
            self.blocks[block].note_last();
            self.blocks.insert(block + 1, Block::of(tree, upper));
            if index > at {
                (block, index) = (block + 1, index - at);
            }
        }
        let block = &mut self.blocks[block];
        block.entries.insert(index, entry);
        block.note_last();
    }

    /// Removes the versions of a row for which `keep` returns `false`. Versions are passed to `keep` oldest
    /// first. `at` is the row's position from [`find`](Self::find). Returns the position after the row.
    pub(super) fn retain_row(
        &mut self,
        (mut block, mut index): At,
        tree: TreeId,
        key: Key<'_>,
        mut keep: impl FnMut(&Version) -> bool,
    ) -> At {
        while let Some(of_block) = self.blocks.get_mut(block).filter(|block| block.tree == tree) {
            match of_block.entries.get(index) {
                None => (block, index) = (block + 1, 0),
                Some(entry) if entry.order(key).is_ne() => break,
                Some(entry) if keep(&entry.version) => index += 1,
                Some(_) => {
                    of_block.entries.remove(index);
                    of_block.note_last();
                    if of_block.entries.is_empty() {
                        self.blocks.remove(block);
                        index = 0;
                    }
                }
            }
        }
        (block, index)
    }

    /// Removes the newest version of a row if `is_it` returns `true` for it.
    pub(super) fn pop_newest(
        &mut self,
        tree: TreeId,
        key: Key<'_>,
        is_it: impl FnOnce(&Version) -> bool,
    ) -> Option<Version> {
        let at = self.find(tree, key);
        let (mut older, newest) = self.of_row_at(at, tree, key).enumerate().last()?;
        let newest = Some(&newest.version).filter(|newest| is_it(newest))?.clone();
        self.retain_row(at, tree, key, |_| {
            let is_older = older > 0;
            older = older.saturating_sub(1);
            is_older
        });
        Some(newest)
    }

    /// Removes the versions for which `keep` returns `false`, in ascending order. Rebuilds the blocks.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(TreeId, &Version) -> bool) {
        let mut kept: Vec<Block> = Vec::new();
        for Block { tree, entries, .. } in std::mem::take(&mut self.blocks) {
            for entry in entries.into_iter().filter(|entry| keep(tree, &entry.version)) {
                match kept.last_mut().filter(|block| block.tree == tree && block.entries.len() < FILLED) {
                    Some(block) => {
                        block.entries.push(entry);
                        block.note_last();
                    }
                    None => kept.push(Block::of(tree, vec![entry])),
                }
            }
        }
        self.blocks = kept;
    }

    /// Returns all versions.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &Version> {
        self.blocks.iter().flat_map(|block| &block.entries).map(Entry::version)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::super::row::INDEX_BYTES;
    use super::super::status::Status;
    use super::*;
    use crate::node::Cell;

    fn number(version: &Version) -> u64 {
        let value = version.before().expect("has a value").value;
        u64::from_le_bytes(value.try_into().expect("8 bytes"))
    }

    fn add(sorted: &mut Sorted, tree: u32, version: Version) {
        let row = version.clone();
        let (tree, key) = (TreeId(tree), Key::new(row.key()));
        let behind = sorted.retain_row(sorted.find(tree, key), tree, key, |_| true);
        sorted.insert(behind, tree, version);
    }

    /// The sequence holds the same versions as a map of lists. There are many versions of few rows, so that a
    /// row's versions cross blocks.
    #[test]
    fn it_does_what_a_map_of_lists_does() {
        let (mut sorted, mut model) = (Sorted::default(), BTreeMap::<(u32, u8), Vec<u64>>::new());
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        // Many keys differ only after the prefix, and some keys are shorter than the prefix.
        let mut keys: Vec<_> = (0..40).map(|key| [&[7; 9][..5 + key / 10], &[key as u8]].concat()).collect();
        keys.sort_unstable();
        for step in 0..40_000_u64 {
            let (tree, key) = (1 + random(3) as u32, random(40) as u8);
            let (id, row) = (TreeId(tree), Key::new(&keys[key as usize]));
            match random(60) {
                0..50 => {
                    let value = step.to_le_bytes();
                    let cell = Cell { flags: 0, value: &value };
                    add(&mut sorted, tree, Version::new(row.key, Some(cell), Ok(Status::active(0))));
                    model.entry((tree, key)).or_default().push(step);
                }
                50..55 => {
                    let is_even = |newest: &Version| number(newest).is_multiple_of(2);
                    let newest = sorted.pop_newest(id, row, is_even);
                    let of_row = model.entry((tree, key)).or_default();
                    assert_eq!(newest.as_ref().map(number), of_row.pop_if(|newest| newest.is_multiple_of(2)));
                }
                55..59 => {
                    let rest = random(4);
                    sorted.retain_row(sorted.find(id, row), id, row, |version| number(version) % 4 == rest);
                    model.entry((tree, key)).or_default().retain(|number| number % 4 == rest);
                }
                _ => {
                    let rest = random(3);
                    sorted.retain(|_, version| number(version) % 3 != rest);
                    model.values_mut().for_each(|of_row| of_row.retain(|number| number % 3 != rest));
                }
            }
            if step % 100 == 0 {
                let all: Vec<u64> = sorted.iter().map(number).collect();
                assert_eq!(all, model.values().flatten().copied().collect::<Vec<_>>());
                assert!(sorted.blocks.iter().all(|block| (1..=BLOCK).contains(&block.entries.len())));
                assert_eq!(sorted.is_empty(), all.is_empty());
            }
            let of_row: Vec<u64> = sorted.of_row(id, row).map(|entry| number(entry.version())).collect();
            assert_eq!(Some(&of_row), model.get(&(tree, key)).or(Some(&vec![])));
        }
    }

    /// The memory count of a version equals its bytes in the index, on average over different numbers of
    /// rows. With keys in random order, most blocks are divided at similar numbers of rows.
    #[test]
    fn the_index_takes_as_many_bytes_of_a_version_as_its_memory_counts() {
        let insert = |key: u64, sorted: &mut Sorted| {
            add(sorted, 1, Version::new(&key.to_be_bytes(), None, Ok(Status::active(0))));
            let of_block = |block: &Block| size_of::<Block>() + size_of::<Entry>() * block.entries.capacity();
            sorted.blocks.iter().map(of_block).sum::<usize>()
        };
        let (mut ascending, mut scattered) = (Sorted::default(), Sorted::default());
        let mut bytes = (0, 0, 0);
        for key in 1..5_000 {
            bytes.0 += insert(key, &mut ascending);
            let random = key.wrapping_mul(6_364_136_223_846_793_005).rotate_left(29).wrapping_mul(key | 1);
            bytes.1 += insert(random, &mut scattered);
            bytes.2 += INDEX_BYTES * key as usize;
        }
        assert!(bytes.0 <= bytes.2 && bytes.1 <= bytes.2, "{bytes:?}");
    }
}
