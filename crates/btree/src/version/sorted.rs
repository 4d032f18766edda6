//! Versions in the order of their rows, each row's oldest version first.
//!
//! A sorted sequence of pointers in blocks of bounded length: a version takes 8 bytes of a block that is two
//! thirds full on average, and an insertion moves one block at most.

use azekura_base::TreeId;

use super::row::Version;

/// Most versions of a block.
const BLOCK: usize = 64;
/// Versions of a block that is made anew: room for insertions everywhere.
const FILLED: usize = 48;

/// A position between two versions: a block, and an index in it.
type At = (usize, usize);

/// A sorted sequence of versions.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// None is empty.
    blocks: Vec<Vec<Version>>,
}

impl Sorted {
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The position behind all versions for which `is_before` holds.
    fn partition(&self, is_before: impl Fn(&Version) -> bool) -> At {
        let is_all_before = |block: &Vec<Version>| block.last().is_some_and(&is_before);
        let block = self.blocks.partition_point(is_all_before);
        (block, self.blocks.get(block).map_or(0, |block| block.partition_point(is_before)))
    }

    fn iter_from(&self, (block, index): At) -> impl Iterator<Item = &Version> {
        let rest = self.blocks.get(block).map_or(&[][..], |first| &first[index..]);
        rest.iter().chain(self.blocks.iter().skip(block + 1).flatten())
    }

    /// The versions of the rows from this key of the tree on.
    pub(super) fn from(&self, tree: TreeId, key: &[u8]) -> impl Iterator<Item = &Version> {
        self.iter_from(self.partition(|version| version.order(tree, key).is_lt()))
    }

    /// The versions of a row, oldest first.
    pub(super) fn of_row<'a>(&'a self, tree: TreeId, key: &'a [u8]) -> impl Iterator<Item = &'a Version> {
        self.from(tree, key).take_while(move |version| version.order(tree, key).is_eq())
    }

    /// Adds the newest version of its row.
    pub(super) fn insert(&mut self, version: Version) {
        let (mut block, mut index) =
            self.partition(|other| other.order(version.tree(), version.key()).is_le());
        if block == self.blocks.len() {
            if block == 0 {
                self.blocks.push(Vec::with_capacity(BLOCK));
            } else {
                block -= 1;
                index = self.blocks[block].len();
            }
        }
        if self.blocks[block].len() == BLOCK {
            // Rows that are changed in ascending order fill the blocks.
            let at = if block + 1 == self.blocks.len() && index == BLOCK { FILLED } else { BLOCK / 2 };
            let mut upper = Vec::with_capacity(BLOCK);
            upper.extend(self.blocks[block].drain(at..));
            self.blocks.insert(block + 1, upper);
            if index > at {
                (block, index) = (block + 1, index - at);
            }
        }
        self.blocks[block].insert(index, version);
    }

    /// Removes the versions of a row for which `keep` returns `false`; they are passed oldest first.
    pub(super) fn retain_row(&mut self, tree: TreeId, key: &[u8], mut keep: impl FnMut(&Version) -> bool) {
        let (mut block, mut index) = self.partition(|version| version.order(tree, key).is_lt());
        while let Some(of_block) = self.blocks.get_mut(block) {
            match of_block.get(index) {
                None => (block, index) = (block + 1, 0),
                Some(version) if version.order(tree, key).is_ne() => return,
                Some(version) if keep(version) => index += 1,
                Some(_) => {
                    of_block.remove(index);
                    if of_block.is_empty() {
                        self.blocks.remove(block);
                        index = 0;
                    }
                }
            }
        }
    }

    /// Removes the newest version of a row if `is_it` returns `true` for it.
    pub(super) fn pop_newest(
        &mut self,
        tree: TreeId,
        key: &[u8],
        is_it: impl FnOnce(&Version) -> bool,
    ) -> Option<Version> {
        let (block, index) = self.partition(|version| version.order(tree, key).is_le());
        let (block, index) = match index.checked_sub(1) {
            Some(index) => (block, index),
            None => {
                let block = block.checked_sub(1)?;
                (block, self.blocks[block].len() - 1)
            }
        };
        let newest = &self.blocks[block][index];
        if newest.order(tree, key).is_ne() || !is_it(newest) {
            return None;
        }
        let newest = self.blocks[block].remove(index);
        if self.blocks[block].is_empty() {
            self.blocks.remove(block);
        }
        Some(newest)
    }

    /// Removes the versions for which `keep` returns `false`, in ascending order. Blocks are filled again.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Version) -> bool) {
        let mut kept: Vec<Vec<Version>> = Vec::new();
        for version in std::mem::take(&mut self.blocks).into_iter().flatten().filter(|version| keep(version))
        {
            match kept.last_mut().filter(|block| block.len() < FILLED) {
                Some(block) => block.push(version),
                None => {
                    let mut block = Vec::with_capacity(BLOCK);
                    block.push(version);
                    kept.push(block);
                }
            }
        }
        self.blocks = kept;
    }

    /// All versions.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = &Version> {
        self.blocks.iter().flatten()
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

    /// Beside a map of lists, with many versions of few rows, so that a row's versions cross blocks.
    #[test]
    fn it_does_what_a_map_of_lists_does() {
        let (mut sorted, mut model) = (Sorted::default(), BTreeMap::<(u32, u8), Vec<u64>>::new());
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..40_000_u64 {
            let (tree, key) = (1 + random(3) as u32, random(40) as u8);
            match random(60) {
                0..50 => {
                    let value = step.to_le_bytes();
                    let cell = Cell { flags: 0, value: &value };
                    sorted.insert(Version::new(TreeId(tree), &[key], Some(cell), Ok(Status::active(0))));
                    model.entry((tree, key)).or_default().push(step);
                }
                50..55 => {
                    let newest =
                        sorted.pop_newest(TreeId(tree), &[key], |newest| number(newest).is_multiple_of(2));
                    let of_row = model.entry((tree, key)).or_default();
                    assert_eq!(newest.as_ref().map(number), of_row.pop_if(|newest| newest.is_multiple_of(2)));
                }
                55..59 => {
                    let rest = random(4);
                    sorted.retain_row(TreeId(tree), &[key], |version| number(version) % 4 == rest);
                    model.entry((tree, key)).or_default().retain(|number| number % 4 == rest);
                }
                _ => {
                    let rest = random(3);
                    sorted.retain(|version| number(version) % 3 != rest);
                    model.values_mut().for_each(|of_row| of_row.retain(|number| number % 3 != rest));
                }
            }
            if step % 100 == 0 {
                let all: Vec<u64> = sorted.iter().map(number).collect();
                assert_eq!(all, model.values().flatten().copied().collect::<Vec<_>>());
                assert!(sorted.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
                assert_eq!(sorted.is_empty(), all.is_empty());
            }
            let of_row: Vec<u64> = sorted.of_row(TreeId(tree), &[key]).map(number).collect();
            assert_eq!(Some(&of_row), model.get(&(tree, key)).or(Some(&vec![])));
        }
    }
    /// On average over lengths: where keys come in a random order, most blocks are divided at similar
    /// lengths.
    #[test]
    fn the_index_takes_as_many_bytes_of_a_version_as_its_memory_counts() {
        let insert = |key: u64, sorted: &mut Sorted| {
            sorted.insert(Version::new(TreeId(1), &key.to_be_bytes(), None, Ok(Status::active(0))));
            let of_block = |block: &Vec<Version>| size_of::<Vec<Version>>() + 8 * block.capacity();
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
