//! Splits, merges, growth and shrinking of the root: one log record each, outside of any transaction (W13).
//!
//! A structure change moves records and does not change them. So it is never undone, and the operation that
//! needed it starts over. All its pages are latched exclusively while its one record is appended and applied.
//! Order of latches: parent, then children from left to right, then the space map. No other thread can hold a
//! latch of a new page.
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
//! If the parent lacks room for one more separator, it is split first, by a change of its own.
//!
//! A leaf is split when it lacks room, or when writers of different records contend for its latch
//! ([`crate::contention`]). The rules of merges are in `merge`.

mod merge;
mod split;

pub(crate) use merge::tidy;
pub(crate) use split::{make_room, split_contended};

use crate::node::{Node, Position, cell_words, entry_bytes};

/// Returns `true` if `node`, a leaf, has room for a value of `value_len` bytes under `key`, which may be
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

/// Returns whether a removal after which `leaf` has this count calls [`tidy`]: at two of the counts between
/// one power of two and the next, and at 0. Not after each removal, because the neighbors of an underfull
/// leaf may be too full for a merge, and the check costs the parent's latch.
pub(crate) fn is_tidy_due(leaf: Node<'_>) -> bool {
    let count = leaf.count();
    let below_second_bit = count.checked_ilog2().map_or(0, |bits| (1 << bits.saturating_sub(1)) - 1);
    is_underfull(leaf) && count & below_second_bit == 0
}

/// Returns whether a node has so few entries that a merge is worth trying: less than 3/8, so that two such
/// neighbors fit one page with a quarter of it free.
fn is_underfull(node: Node<'_>) -> bool {
    node.used() * 8 < node.capacity() * 3
}
