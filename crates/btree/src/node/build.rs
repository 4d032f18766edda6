//! Builds nodes on a private page; the result is logged as one image.

// Atomics of `std` even under loom, as in `azekura_base::page`: a private page is not shared.
use std::sync::atomic::AtomicU64;

use azekura_base::page::{PageMut, PageType};
use azekura_base::{PageId, PageWords, TreeId};

use super::{
    CHILD_BYTES, COUNT_AT, Cell, CorruptNode, HEAP_AT, LEVEL_AT, LOWER_LEN_AT, Node, PREFIX_LEN_AT,
    SLOT_BYTES, SLOTS_AT, Slot, TREE_AT, UPPER_LEN_AT, cell_words, common_prefix, edit, entry_bytes, max_key,
    words_for,
};

/// The fields of a node without entries.
#[derive(Clone, Copy, Debug)]
pub struct NodeSpec<'a> {
    /// Height above the leaves; 0 for a leaf.
    pub level: u8,
    /// The tree that the node belongs to.
    pub tree: TreeId,
    /// Inclusive lower fence.
    pub lower: &'a [u8],
    /// Exclusive upper fence; empty if there is no upper bound.
    pub upper: &'a [u8],
}

impl NodeSpec<'_> {
    /// Returns the length of the common prefix of all keys between the fences.
    #[must_use]
    pub fn prefix_len(&self) -> usize {
        if self.upper.is_empty() { 0 } else { common_prefix(self.lower, self.upper) }
    }

    /// Returns the number of bytes that entries may use in a page of `page_size` bytes.
    #[must_use]
    pub fn capacity(&self, page_size: usize) -> usize {
        page_size.saturating_sub(SLOTS_AT + 8 * (words_for(self.lower.len()) + words_for(self.upper.len())))
    }
}

/// Formats `page` as an empty node.
fn format_node(page: &mut PageMut<'_>, page_id: PageId, spec: NodeSpec<'_>) {
    page.format(if spec.level == 0 { PageType::Leaf } else { PageType::Inner }, page_id);
    page.set_u8(LEVEL_AT, spec.level);
    page.set_u32(TREE_AT, spec.tree.0);
    page.set_u16(LOWER_LEN_AT, spec.lower.len() as u16);
    page.set_u16(UPPER_LEN_AT, spec.upper.len() as u16);
    page.set_u16(PREFIX_LEN_AT, spec.prefix_len() as u16);
    let lower_at = page.len() - 8 * words_for(spec.lower.len());
    let upper_at = lower_at - 8 * words_for(spec.upper.len());
    page.write(lower_at, spec.lower);
    page.write(upper_at, spec.upper);
    page.set_u16(HEAP_AT, (upper_at / 8) as u16);
}

/// A private page on which a node is built.
#[derive(Debug)]
pub struct Scratch {
    words: Box<[AtomicU64]>,
}

impl Scratch {
    /// Returns a private page of zeroes.
    #[must_use]
    pub fn new(page_size: usize) -> Self {
        Self { words: (0..page_size / 8).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Returns the page for reading.
    #[must_use]
    pub fn page(&self) -> PageWords<'_> {
        PageWords::new(&self.words)
    }

    /// Returns the page for writing.
    #[must_use]
    pub fn page_mut(&mut self) -> PageMut<'_> {
        PageMut::new(PageWords::new(&self.words))
    }

    /// Returns the node on the page.
    #[must_use]
    pub fn node(&self) -> Node<'_> {
        Node::new(self.page())
    }

    /// Formats the page as an empty node. Its page id is 0: an image takes the id of its target page.
    ///
    /// # Errors
    ///
    /// [`CorruptNode`] for fences longer than any key, which come from a corrupt node.
    pub fn format(&mut self, spec: NodeSpec<'_>) -> Result<(), CorruptNode> {
        check_fences(self.page().len(), spec)?;
        format_node(&mut self.page_mut(), PageId(0), spec);
        Ok(())
    }

    /// Appends an entry with this whole key, which is between the fences and above the present keys. The
    /// first entry of an inner node has the lower fence as its key.
    pub(crate) fn push(&mut self, key: &[u8], cell: Cell<'_>) -> Result<(), CorruptNode> {
        self.push_all(std::iter::once((key, cell)))
    }

    /// Appends entries as [`push`](Self::push) does for each of them.
    pub(crate) fn push_all<'a>(
        &mut self,
        entries: impl Iterator<Item = (&'a [u8], Cell<'a>)>,
    ) -> Result<(), CorruptNode> {
        let mut page = self.page_mut();
        let node = Node::new(page.words());
        edit::check_header(node)?;
        let (prefix_len, mut count, mut heap) = (node.prefix_len(), node.count(), node.heap_words());
        for (key, cell) in entries {
            let suffix = if is_first_child(node, count) { Some(&[][..]) } else { key.get(prefix_len..) };
            let suffix = suffix.ok_or(CorruptNode("a key without its node's prefix"))?;
            edit::check_lengths(node, suffix.len(), cell.value.len())?;
            let room = (8 * heap).checked_sub(SLOTS_AT + SLOT_BYTES * count);
            if room.is_none_or(|room| room < entry_bytes(suffix.len(), cell.value.len())) {
                return Err(CorruptNode("the entry does not fit the node"));
            }
            heap -= cell_words(suffix.len(), cell.value.len());
            edit::set_entry(&mut page, count, heap, suffix, cell);
            count += 1;
        }
        page.set_u16(HEAP_AT, heap as u16);
        page.set_u16(COUNT_AT, count as u16);
        Ok(())
    }

    /// Appends the slots `range` of `from`. Their keys must be between this node's fences.
    pub(crate) fn push_slots(
        &mut self,
        from: Node<'_>,
        range: std::ops::Range<usize>,
    ) -> Result<(), CorruptNode> {
        edit::check_header(self.node())?;
        let longer = self.node().prefix_len().checked_sub(from.prefix_len());
        if longer.is_some_and(|longer| self.push_block(from, range.clone(), longer)) {
            return Ok(());
        }
        for i in range {
            let slot = from.slot(i);
            // A first child has no suffix, but as another child it has one.
            let is_same = !is_first_child(from, i) && !is_first_child(self.node(), self.node().count());
            let moved = longer.filter(|_| is_same).and_then(|longer| slot.with_longer_prefix(longer));
            match moved {
                Some(moved) => self.push_cell(from.page(), slot, moved)?,
                None => self.push_as_key(from, i)?,
            }
        }
        Ok(())
    }

    /// Appends the slots `range` of the leaf `from` to this leaf by one copy, if their cells are one block in
    /// the order of the slots, as inserts in key order make them. The result is that of
    /// [`push_cell`](Self::push_cell) for each slot. Returns `false`, with nothing changed, if the cells are
    /// not such a block or a cell cannot be moved. This node's prefix is `longer` bytes longer.
    fn push_block(&mut self, from: Node<'_>, range: std::ops::Range<usize>, longer: usize) -> bool {
        let node = self.node();
        if node.level() != Some(0) || from.level() != Some(0) {
            return false;
        }
        let first = from.slot(range.start);
        let end = usize::from(first.offset) + first.cell_words();
        let mut start = end;
        for i in range.clone() {
            let slot = from.slot(i);
            let Some(moved) = slot.with_longer_prefix(longer) else { return false };
            let fits = edit::check_lengths(node, moved.suffix_len.into(), moved.value_len.into()).is_ok();
            if !fits || usize::from(slot.offset) + slot.cell_words() != start {
                return false;
            }
            start = slot.offset.into();
        }
        let (count, words) = (node.count(), end - start);
        let Some(cells) = from.page().atomics().get(start..end) else { return false };
        if node.contiguous_free() < SLOT_BYTES * range.len() + 8 * words {
            return false;
        }
        let to = node.heap_words() - words;
        let mut page = self.page_mut();
        page.write_words(to, cells);
        for (at, i) in (count..).zip(range.clone()) {
            let slot = from.slot(i);
            let moved = slot.with_longer_prefix(longer).unwrap_or(slot);
            let offset = to + usize::from(slot.offset) - start;
            edit::set_slot(&mut page, at, Slot { offset: offset as u16, ..moved });
        }
        page.set_u16(HEAP_AT, to as u16);
        page.set_u16(COUNT_AT, (count + range.len()) as u16);
        true
    }

    /// Appends the entry of slot `old` of page `from`, copying its cell word by word. `new` is `old` without
    /// the key bytes that become part of the new node's prefix.
    fn push_cell(&mut self, from: PageWords<'_>, old: Slot, new: Slot) -> Result<(), CorruptNode> {
        let node = self.node();
        let (count, words) = (node.count(), old.cell_words());
        edit::check_lengths(node, new.suffix_len.into(), new.value_len.into())?;
        edit::check_room(node, SLOT_BYTES + 8 * words, None)?;
        let to = node.heap_words() - words;
        let mut page = self.page_mut();
        for (to, at) in (to..to + words).zip(usize::from(old.offset)..) {
            page.set_word(to, from.word(at));
        }
        edit::set_slot(&mut page, count, Slot { offset: to as u16, ..new });
        page.set_u16(HEAP_AT, to as u16);
        page.set_u16(COUNT_AT, (count + 1) as u16);
        Ok(())
    }

    /// Appends the entry of slot `i` of `from`, by its whole key.
    fn push_as_key(&mut self, from: Node<'_>, i: usize) -> Result<(), CorruptNode> {
        let key = if is_first_child(from, i) { from.child_key(i) } else { from.key(i) };
        let (slot, mut value) = (from.slot(i), Vec::new());
        from.value_into(slot, &mut value);
        self.push(&key, Cell { flags: slot.flags, value: &value })
    }
}

/// Returns `node` with only its first `keep` slots and another upper fence, on a new private page.
pub(crate) fn build_truncated(node: Node<'_>, keep: usize, upper: &[u8]) -> Result<Scratch, CorruptNode> {
    let level = node.level().ok_or(CorruptNode("not a node of a tree"))?;
    if keep > node.count() {
        return Err(CorruptNode("what is to be kept is not there"));
    }
    let mut lower = Vec::new();
    node.lower_into(&mut lower);
    let mut scratch = Scratch::new(node.page().len());
    scratch.format(NodeSpec { level, tree: node.tree(), lower: &lower, upper })?;
    scratch.push_slots(node, 0..keep)?;
    Ok(scratch)
}

/// Returns the leaf `node` with another lower fence, on a new private page.
pub(crate) fn build_with_lower(node: Node<'_>, lower: &[u8]) -> Result<Scratch, CorruptNode> {
    if node.level() != Some(0) {
        return Err(CorruptNode("not a leaf"));
    }
    let mut upper = Vec::new();
    node.upper_into(&mut upper);
    let mut scratch = Scratch::new(node.page().len());
    scratch.format(NodeSpec { level: 0, tree: node.tree(), lower, upper: &upper })?;
    scratch.push_slots(node, 0..node.count())?;
    Ok(scratch)
}

/// Checks that [`build_truncated`] will succeed, at a small part of its cost.
pub(crate) fn check_truncated(node: Node<'_>, keep: usize, upper: &[u8]) -> Result<(), CorruptNode> {
    let level = node.level().ok_or(CorruptNode("not a node of a tree"))?;
    let mut lower = Vec::new();
    node.lower_into(&mut lower);
    let spec = NodeSpec { level, tree: node.tree(), lower: &lower, upper };
    let Some(longer) = spec.prefix_len().checked_sub(node.prefix_len()) else {
        // The new upper fence is above the old one, or the node is corrupt.
        return build_truncated(node, keep, upper).map(drop);
    };
    if keep > node.count() {
        return Err(CorruptNode("what is to be kept is not there"));
    }
    check_fences(node.page().len(), spec)?;
    let mut used = 0;
    for i in 0..keep {
        let slot = node.slot(i);
        let suffix_len = match is_first_child(node, i) {
            true => Some(0),
            false => usize::from(slot.suffix_len).checked_sub(longer),
        };
        let suffix_len = suffix_len.ok_or(CorruptNode("a key without its node's prefix"))?;
        edit::check_lengths(node, suffix_len, slot.value_len.into())?;
        used += entry_bytes(suffix_len, slot.value_len.into());
    }
    if used <= spec.capacity(node.page().len()) {
        Ok(())
    } else {
        Err(CorruptNode("the entry does not fit the node"))
    }
}

fn check_fences(page_size: usize, spec: NodeSpec<'_>) -> Result<(), CorruptNode> {
    let longest = max_key(page_size);
    if spec.lower.len() > longest || spec.upper.len() > longest {
        return Err(CorruptNode("a fence is longer than any key"));
    }
    Ok(())
}

/// Returns `true` if entry `i` of `node` is the first child of an inner node.
fn is_first_child(node: Node<'_>, i: usize) -> bool {
    i == 0 && node.level() != Some(0)
}

/// Returns the bytes that the entries of `slots` need, with each suffix length changed by `resized`.
fn bytes_of(
    node: Node<'_>,
    mut slots: std::ops::Range<usize>,
    resized: impl Fn(usize) -> Option<usize>,
) -> Option<usize> {
    slots.try_fold(0, |sum, i| {
        let slot = node.slot(i);
        Some(sum + entry_bytes(resized(slot.suffix_len.into())?, slot.value_len.into()))
    })
}

/// Returns the bytes that entries use and the bytes that they may use, in one node merged from the neighbors
/// `left` and `right`.
#[must_use]
pub fn merged_fit(left: Node<'_>, right: Node<'_>) -> Option<(usize, usize)> {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    left.lower_into(&mut lower);
    right.upper_into(&mut upper);
    let spec = NodeSpec { level: left.level()?, tree: left.tree(), lower: &lower, upper: &upper };
    let longer = |node: Node<'_>| node.prefix_len().checked_sub(spec.prefix_len());
    let (left_longer, right_longer) = (longer(left)?, longer(right)?);
    // The first child of the right node gets a suffix, and that of the left node still has none.
    let children = usize::from(spec.level > 0);
    let first_bytes = match children {
        0 => 0,
        _ => {
            let suffix_len = right.child_key(0).len().checked_sub(spec.prefix_len())?;
            entry_bytes(0, CHILD_BYTES) + entry_bytes(suffix_len, CHILD_BYTES)
        }
    };
    let used = bytes_of(left, children..left.count(), |len| Some(len + left_longer))?
        + bytes_of(right, children..right.count(), |len| Some(len + right_longer))?;
    Some((first_bytes + used, spec.capacity(left.page().len())))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::node::{Slot, choose_split, separator};

    /// Returns a leaf of 4 KiB with keys of the lengths `lens` behind `prefix`, and its upper fence.
    fn leaf(prefix: &[u8], lens: std::ops::Range<usize>) -> Scratch {
        let mut leaf = Scratch::new(4096);
        let mut upper = prefix.to_vec();
        upper.push(0xff);
        leaf.format(NodeSpec { level: 0, tree: TreeId(1), lower: prefix, upper: &upper })
            .expect("short fences");
        let mut seed = lens.end as u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let mut keys: Vec<Vec<u8>> = (0..80)
            .map(|_| {
                let len = lens.start + next() % lens.len();
                // Few distinct bytes, with zeros among them, so that keys share prefixes and end in bytes
                // like the padding.
                prefix.iter().copied().chain((0..len).map(|_| [0, 0, b'a', b'b'][next() % 4])).collect()
            })
            .collect();
        keys.sort();
        keys.dedup();
        for key in &keys {
            let value: Vec<u8> = (0..next() % 20).map(|_| 7).collect();
            leaf.push(key, Cell::inline(&value)).expect("80 short entries fit");
        }
        leaf
    }

    #[test]
    fn entries_moved_as_they_are_make_the_page_that_their_keys_make() {
        let prefixes: [&[u8]; 4] = [b"", b"a", b"key:0", b"longer than a slot's head"];
        for (prefix, lens) in prefixes.iter().flat_map(|p| [0..1, 0..9, 0..20, 9..30].map(|lens| (p, lens))) {
            let from = leaf(prefix, lens.clone());
            let count = from.node().count();
            for at in 0..count {
                // Common prefixes of the halves of a split, including a prefix that is shorter than before.
                for shared in
                    [prefix.len(), prefix.len().saturating_sub(1), prefix.len() + 1, prefix.len() + 8]
                {
                    let keys: Vec<Vec<u8>> = (at..count).map(|i| from.node().key(i)).collect();
                    let common = keys.first().zip(keys.last()).map_or(0, |(a, b)| common_prefix(a, b));
                    if shared > common {
                        continue;
                    }
                    let lower = &keys[0][..shared];
                    let mut upper = lower.to_vec();
                    upper.push(0xff);
                    let spec = NodeSpec { level: 0, tree: TreeId(1), lower, upper: &upper };
                    let [mut moved, mut pushed] = [(); 2].map(|()| Scratch::new(4096));
                    moved.format(spec).expect("short fences");
                    pushed.format(spec).expect("short fences");
                    // The cells of `from` are one block: copied at once, in one piece or in two.
                    let middle = at + (count - at) / 3;
                    for range in [at..middle, middle..count] {
                        moved.push_slots(from.node(), range).expect("they were on one page");
                    }
                    (at..count).for_each(|i| pushed.push_as_key(from.node(), i).expect("likewise"));
                    let words = |page: &Scratch| (0..512).map(|i| page.page().word(i)).collect::<Vec<_>>();
                    assert_eq!(
                        words(&moved),
                        words(&pushed),
                        "{prefix:?} {lens:?} from {at}, {shared} shared"
                    );
                }
            }
        }
    }

    #[test]
    fn slots_are_moved_by_one_copy_exactly_if_their_cells_are_a_block() {
        let mut from = leaf(b"p", 0..9);
        let count = from.node().count();
        let copy = |from: &Scratch| {
            let mut to = Scratch::new(4096);
            to.format(NodeSpec { level: 0, tree: TreeId(1), lower: b"p", upper: b"q" })
                .expect("short fences");
            let is_block = to.push_block(from.node(), 0..from.node().count(), 0);
            assert_eq!(to.node().count(), if is_block { from.node().count() } else { 0 });
            is_block
        };
        assert!(copy(&from), "{count} entries in key order");
        let in_the_middle = (1..count - 1).find(|&i| from.node().slot(i).cell_words() > 0).expect("a value");
        edit::remove(&mut from.page_mut(), in_the_middle);
        assert!(!copy(&from), "a hole between the cells");
    }

    #[test]
    fn an_entry_that_cannot_be_is_not_moved() {
        let mut from = leaf(b"p", 0..9);
        let mut to = Scratch::new(4096);
        to.format(NodeSpec { level: 0, tree: TreeId(1), lower: b"p", upper: b"q" }).expect("short fences");
        let slot = from.node().slot(3);
        for broken in [Slot { suffix_len: 4000, ..slot }, Slot { value_len: 4000, ..slot }] {
            edit::set_slot(&mut from.page_mut(), 3, broken);
            assert!(to.push_slots(from.node(), 3..4).is_err(), "{broken:?}");
        }
        edit::set_slot(&mut from.page_mut(), 3, Slot { value_len: 500, suffix_len: 8, ..slot });
        let fitting = (0..100).take_while(|_| to.push_slots(from.node(), 3..4).is_ok()).count();
        assert!(fitting < 8, "{fitting} entries of 500 bytes in a page of 4096");
        let mut longer = Scratch::new(4096);
        longer
            .format(NodeSpec { level: 0, tree: TreeId(1), lower: b"ppa", upper: b"ppb" })
            .expect("short fences");
        edit::set_slot(&mut from.page_mut(), 3, Slot { suffix_len: 0, ..slot });
        assert!(longer.push_slots(from.node(), 3..4).is_err(), "a key that is shorter than the prefix");
    }

    /// A change that passes the check and then cannot be built would panic, on a page that a disk has
    /// damaged.
    #[test]
    fn a_truncation_is_let_in_exactly_where_it_can_be_built() {
        let (mut seed, mut outcomes) = (17_u64, [0; 2]);
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let sound = [leaf(b"", 0..20), leaf(b"key:0", 0..9), leaf(b"longer than a slot's head", 0..30)];
        for _ in 0..3000 {
            let base = &sound[next() % 3];
            let mut page = Scratch::new(4096);
            (0..512).for_each(|i| page.page_mut().set_word(i, base.page().word(i)));
            for _ in 0..next() % 3 {
                // A word of the header, the slots or the fences.
                let word = [next() % 6, 6 + next() % 160, 500 + next() % 12][next() % 3];
                let bits = (next() as u64) << (8 * (next() % 8));
                let old = page.page().word(word);
                page.page_mut().set_word(word, old ^ bits);
            }
            let upper = page.node().key(next() % 40);
            let keep = next() % 90;
            let is_built = build_truncated(page.node(), keep, &upper).is_ok();
            assert_eq!(
                check_truncated(page.node(), keep, &upper).is_ok(),
                is_built,
                "keep {keep}, {upper:?}"
            );
            outcomes[usize::from(is_built)] += 1;
        }
        assert!(outcomes.iter().all(|&count| count > 300), "{outcomes:?}");
    }

    #[test]
    fn a_cut_has_the_shortest_separator_near_the_middle() {
        for (prefix, lens) in [(&b"key:"[..], 0..9), (b"", 0..20), (b"p", 9..30)] {
            let from = leaf(prefix, lens);
            let node = from.node();
            let new_key = [prefix, b"b"].concat();
            let cut = choose_split(node, &new_key, 3).expect("it has entries");
            let sizes: Vec<usize> = (0..node.count())
                .map(|i| entry_bytes(node.slot(i).suffix_len.into(), node.slot(i).value_len.into()))
                .collect();
            let total = sizes.iter().sum::<usize>() + entry_bytes(1, 3);
            let at_new = node.search(&new_key).slot();
            let imbalance = |at: usize| {
                let left =
                    sizes[..at].iter().sum::<usize>() + if at_new < at { entry_bytes(1, 3) } else { 0 };
                left.abs_diff(total - left)
            };
            let near = (1..node.count()).filter(|&at| imbalance(at) <= total / 16 && at != at_new);
            let shortest = near.map(|at| separator(&node.key(at - 1), &node.key(at)).len()).min();
            if cut.at != at_new {
                assert_eq!(Some(cut.separator.len()), shortest);
            }
            assert!(imbalance(cut.at) <= total / 16);
        }
    }
}
