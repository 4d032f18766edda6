//! Checks of the invariants inside one node.

use azekura_base::PageWords;

use super::{FLAG_OVERFLOW, Node, common_prefix, entry_bytes, head_of, max_entry, max_key};

/// Values that follow from a node's position in its tree.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    /// Height above the leaves.
    pub level: u8,
    /// The tree's id.
    pub tree: azekura_base::TreeId,
    /// The parent's separator on the left; empty at the left edge.
    pub lower: &'a [u8],
    /// The parent's separator on the right; empty at the right edge.
    pub upper: &'a [u8],
}

/// Checks the node on `page`; calls `found` for each contradiction.
pub fn verify_node(page: PageWords<'_>, expected: Expected<'_>, found: &mut dyn FnMut(String)) {
    let node = Node::new(page);
    if node.level() != Some(expected.level) {
        found(format!("level {:?} in the place of {}", node.level(), expected.level));
        return;
    }
    if node.tree() != expected.tree {
        found(format!("belongs to tree {}, not {}", node.tree(), expected.tree));
    }
    verify_fences(node, expected, found);
    verify_space(node, found);
    verify_keys(node, expected, found);
}

fn verify_fences(node: Node<'_>, expected: Expected<'_>, found: &mut dyn FnMut(String)) {
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    node.lower_into(&mut lower);
    node.upper_into(&mut upper);
    if lower != expected.lower {
        found(format!("lower fence {lower:02x?} is not the parent's {:02x?}", expected.lower));
    }
    if upper != expected.upper {
        found(format!("upper fence {upper:02x?} is not the parent's {:02x?}", expected.upper));
    }
    let shared = if upper.is_empty() { 0 } else { common_prefix(&lower, &upper) };
    if node.prefix_len() != shared {
        found(format!("prefix of {} bytes, but the fences share {shared}", node.prefix_len()));
    }
}

/// Checks that cells lie in the heap without overlap, and that the garbage count is the rest of the heap.
fn verify_space(node: Node<'_>, found: &mut dyn FnMut(String)) {
    let (heap, end) = (node.heap_words(), (super::SLOTS_AT + node.capacity()) / 8);
    let slots_end = super::SLOTS_AT + super::SLOT_BYTES * node.count();
    if 8 * heap < slots_end || heap > end {
        found(format!("heap from word {heap} to {end} behind slots that end at byte {slots_end}"));
        return;
    }
    let mut cells: Vec<(usize, usize)> = (0..node.count())
        .map(|i| node.slot(i))
        .filter(|slot| slot.cell_words() > 0)
        .map(|slot| (slot.offset.into(), usize::from(slot.offset) + slot.cell_words()))
        .collect();
    cells.sort_unstable();
    let live: usize = cells.iter().map(|(from, to)| to - from).sum();
    if cells.first().is_some_and(|&(from, _)| from < heap) || cells.last().is_some_and(|&(_, to)| to > end) {
        found("a cell lies outside the heap".into());
    }
    if cells.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        found("two cells overlap".into());
    }
    if live + node.garbage_words() != end - heap {
        found(format!("heap of {} words, but {live} live and {} garbage", end - heap, node.garbage_words()));
    }
}

fn verify_keys(node: Node<'_>, expected: Expected<'_>, found: &mut dyn FnMut(String)) {
    let page_size = node.page().len();
    let mut last: Option<Vec<u8>> = None;
    for i in 0..node.count() {
        let is_first_child = expected.level > 0 && i == 0;
        let (slot, key) = (node.slot(i), if is_first_child { node.child_key(i) } else { node.key(i) });
        let mut suffix = Vec::new();
        node.suffix_into(slot, &mut suffix);
        if slot.head != head_of(&suffix) {
            found(format!("slot {i}: head {:016x} is not that of its key", slot.head));
        }
        if last.as_ref().is_some_and(|last| *last >= key) {
            found(format!("slot {i}: keys do not ascend"));
        }
        if key.as_slice() < expected.lower || !expected.upper.is_empty() && key.as_slice() >= expected.upper {
            found(format!("slot {i}: key {key:02x?} outside the fences"));
        }
        let is_sound_value = match (expected.level, slot.flags) {
            (0, 0) => entry_bytes(key.len(), slot.value_len.into()) <= max_entry(page_size),
            (0, FLAG_OVERFLOW) => slot.value_len == 16,
            (0, _) => false,
            (_, flags) => flags == 0 && slot.value_len == 8,
        };
        if key.len() > max_key(page_size) || !is_sound_value {
            found(format!("slot {i}: impossible lengths or flags"));
        }
        last = Some(key);
    }
    // In nodes of release 0.2.0, the first child has the lower fence as its key.
    let starts_at_lower = || node.slot(0).suffix_len == 0 || node.key(0) == expected.lower;
    if expected.level > 0 && (node.count() == 0 || !starts_at_lower()) {
        found("no first child that starts at the lower fence".into());
    }
}
