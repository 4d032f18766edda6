//! Chooses the split point of a full node.
//!
//! The choice counts the entry to be inserted as present. Let P be the page's size, K the longest key
//! ([`max_key`](super::max_key)), M the largest entry ([`max_entry`](super::max_entry)), f and g the node's
//! fences, and C its capacity, `P - 48 - f - g`. The entries and the new one take at most `C + M`. With a cut
//! at the entry boundary nearest to the middle, a half has at most `(C + 2M) / 2` bytes: the boundaries on
//! both sides of the new entry count, and a new first or last entry, which stays with its neighbor, fits a
//! node with it. The half keeps one fence, say f, and gets the separator s. Both are at most K long, so the
//! half fits a page: `(P - 48 - f - g)/2 + M + f + s <= P - 48`, because `M <= (P - 48)/2 - 3K/2`. Prefixes
//! only get longer, so nothing grows by the split itself.
//!
//! Of the cuts around the middle, the one with the shortest separator is chosen (suffix truncation). If the
//! new entry is the last one of a node without an upper bound, the cut is at the end of the node. So keys
//! that arrive in ascending order leave full nodes.

use super::{Node, Position, common_prefix, entry_bytes, words_for};

/// The cut between a node's entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPoint {
    /// The first slot of the new right node; the count, if the right node starts empty.
    pub at: usize,
    /// Upper fence of the left node and lower fence of the right one.
    pub separator: Vec<u8>,
}

/// Returns the shortest byte string that is above `left` and not above `right` (Bayer and Unterauer, "Prefix
/// B-trees").
#[must_use]
pub fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..(common_prefix(left, right) + 1).min(right.len())]
}

/// Chooses the cut of `node` for the insertion of `new_key` with a value of `new_value_len` bytes.
///
/// Returns `None` if the node has too few entries for a cut, which does not occur in a valid node that lacks
/// room.
#[must_use]
pub fn choose_split(node: Node<'_>, new_key: &[u8], new_value_len: usize) -> Option<SplitPoint> {
    let count = node.count();
    let is_leaf = node.level()? == 0;
    let position = node.search(new_key);
    let at_new = position.slot();
    let cutter =
        Cutter { node, is_leaf, new: matches!(position, Position::Absent(_)).then_some((at_new, new_key)) };
    if node.is_last() && position == Position::Absent(count) && count > 1 {
        let at = if is_leaf { count } else { count - 1 };
        let separator = cutter.separator_at(at, Side::Right);
        // A leaf that keeps all entries must have room for its new fence. An inner node loses the entry with
        // the key that becomes the fence.
        if !is_leaf || 8 * words_for(separator.len()) <= node.free() {
            return Some(SplitPoint { at, separator });
        }
    }
    let new_bytes = entry_bytes(new_key.len().saturating_sub(node.prefix_len()), new_value_len);
    let sizes: Vec<usize> = (0..count)
        .map(|i| {
            let slot = node.slot(i);
            entry_bytes(slot.suffix_len.into(), slot.value_len.into())
        })
        .collect();
    let total = sizes.iter().sum::<usize>() + new_bytes;
    // A cut at the new entry's slot may leave that entry on either side. In an inner node the separator is
    // the key of the slot after the new entry.
    let sides = |at| match cutter.new {
        Some((slot, _)) if slot == at && is_leaf => &[Side::Left, Side::Right][..],
        Some((slot, _)) if slot == at => &[Side::Left],
        _ => &[Side::Right],
    };
    let cuts = (1..count).flat_map(|at| sides(at).iter().map(move |&side| (at, side)));
    // Largest imbalance that is accepted for a shorter separator, in bytes.
    let slack = total / 16;
    let (mut left, mut counted) = (0, 0);
    // (separator length near the middle, imbalance, cut); the least tuple is chosen.
    let mut best: Option<(usize, usize, (usize, Side))> = None;
    for (at, side) in cuts {
        left += sizes[counted..at].iter().sum::<usize>();
        counted = at;
        let is_new_left = at_new < at || side == Side::Left;
        let with_new = left + if is_new_left { new_bytes } else { 0 };
        let imbalance = with_new.abs_diff(total - with_new);
        let class = if imbalance <= slack { cutter.separator_len(at, side) } else { usize::MAX };
        if best.is_none_or(|(c, i, _)| (class, imbalance) < (c, i)) {
            best = Some((class, imbalance, (at, side)));
        }
    }
    let (_, _, (at, side)) = best?;
    Some(SplitPoint { at, separator: cutter.separator_at(at, side) })
}

/// The half that receives a new key at the slot of the cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// The inputs from which the separator of a cut is computed.
struct Cutter<'a> {
    node: Node<'a>,
    is_leaf: bool,
    /// The new key and its slot, unless it is already in the node.
    new: Option<(usize, &'a [u8])>,
}

impl Cutter<'_> {
    /// Returns the separator for a cut before slot `at`. A new key for that slot goes to the half on `side`.
    fn separator_at(&self, at: usize, side: Side) -> Vec<u8> {
        if !self.is_leaf {
            return self.node.key(at);
        }
        let left = self.node.key(at - 1);
        match self.new {
            Some((slot, key)) if slot == at && side == Side::Right => separator(&left, key).to_vec(),
            Some((slot, key)) if slot == at => separator(key, &self.node.key(at)).to_vec(),
            _ => separator(&left, &self.node.key(at)).to_vec(),
        }
    }

    /// Returns the length of [`separator_at`](Self::separator_at), computed from the slots alone if they
    /// suffice.
    fn separator_len(&self, at: usize, side: Side) -> usize {
        let (left, right) = (self.node.slot(at - 1), self.node.slot(at));
        let is_new = self.new.is_some_and(|(slot, _)| slot == at);
        if !self.is_leaf || is_new || left.head == right.head {
            return self.separator_at(at, side).len();
        }
        let right_len = usize::from(right.suffix_len);
        let differ_at = (left.head ^ right.head).leading_zeros() as usize / 8;
        let common = differ_at.min(left.suffix_len.into()).min(right_len);
        self.node.prefix_len() + (common + 1).min(right_len)
    }
}
