//! Splits, merges, growth and shrinking of the root: one log record each, outside of any transaction (W13).
//!
//! A structure change moves records and does not change them. So it is never undone, and the operation that
//! needed it starts over. All its pages are latched exclusively while its single record is appended and
//! applied. Latch order: parent, then children from left to right, then the space map. No other thread can
//! hold a latch of a new page.
//!
//! | change | pages in its record |
//! |---|---|
//! | split | node (truncated), new right sibling, parent (one slot more), space map |
//! | root growth | root (one slot), new child with the root's entries, space map |
//! | unlinking | neighbor (one fence moved), bare leaf (released), parent (one slot less), space map |
//! | merge | left node (with all entries), right node (released), parent (one slot less), space map |
//! | rebalance | both nodes (a part of the entries each), parent (another separator) |
//! | root shrinking | root (with the entries of its only child), child (released), space map |
//!
//! If the parent lacks room for one more separator, the parent is split first, with a separate record.
//!
//! A leaf is split if it lacks room, or if writers of different records contend for its latch
//! ([`crate::contention`]). Module `merge` has the rules of merges.

mod merge;
mod split;

pub(crate) use merge::tidy;
pub(crate) use split::{make_room, split_contended};

use crate::node::{Node, Position, cell_words, entry_bytes};

/// Returns `true` if the leaf `node` has room for a value of `value_len` bytes under `key`, which may be
/// present.
pub(crate) fn fits(node: Node<'_>, key: &[u8], value_len: usize) -> bool {
    match node.search(key) {
        Position::Found(i) => {
            let slot = node.slot(i);
            let words = cell_words(slot.suffix_len.into(), value_len);
            words <= slot.cell_words() || 8 * words <= node.free() + 8 * slot.cell_words()
        }
        Position::Absent(_) => {
            entry_bytes(key.len().saturating_sub(node.prefix_len()), value_len) <= node.free()
        }
    }
}

/// Returns `true` if a removal that leaves `leaf` in this state calls [`tidy`]. This holds for an underfull
/// leaf at two counts between one power of two and the next, and at 0. Calling [`tidy`] after each removal
/// would be expensive: the check costs the parent's latch, and the neighbors of an underfull leaf may be too
/// full for a merge.
pub(crate) fn is_tidy_due(leaf: Node<'_>) -> bool {
    let count = leaf.count();
    let below_second_bit = count.checked_ilog2().map_or(0, |bits| (1 << bits.saturating_sub(1)) - 1);
    is_underfull(leaf) && count & below_second_bit == 0
}

/// Returns `true` if a node has so few entries that a merge is worth trying: they use less than 3/8 of the
/// page. Two such neighbors fit one page with a quarter of it free.
fn is_underfull(node: Node<'_>) -> bool {
    node.used() * 8 < node.capacity() * 3
}
