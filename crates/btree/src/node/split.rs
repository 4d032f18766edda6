//! Chooses the split point of a full node.
//!
//! The choice counts the entry to be inserted as present, and takes the entry boundary nearest to the middle
//! at which both halves fit their pages, if possible with the new entry. Of the cuts around the middle, the
//! one with the shortest separator is chosen (suffix truncation). If the new entry is the last one of a node
//! without an upper bound, the cut is at the end of the node. So keys that arrive in ascending order leave
//! full nodes.
//!
//! With long fences, the new entry may not fit its half. The caller then splits that half again, until there
//! is room. Let P be the page's size, f and g the node's fences, s the separator, and K the longest key
//! ([`max_key`](super::max_key)), a quarter of a page.
//!
//! - **CUT-1** A leaf with two or more entries has a cut at each boundary between two entries: both halves
//!   fit, without the new entry. The half beside g loses the entry left of the cut, and gets s in place of f.
//!   It fits, because s has at most one byte more than the key of that entry, and their common prefix with f
//!   is in f, too. The other half loses the entry right of the cut, and s is not longer than the key of that
//!   entry. If the cut is at the new entry, s is computed with the new key on one of the two sides. One of
//!   the two separators is short enough.
//! - **CUT-2** A leaf with one entry gets a new neighbor without entries, on the side of the new key. Each of
//!   the two leaves has two fences and one entry in the end, which takes at most `2 K + 5/16 P`.
//! - **CUT-3** An inner node with two or more children has a cut before its last child: the right half has
//!   two fences and one child. An inner node with one child has room for a second one: two fences and one
//!   suffix take at most `3 K`, because the first child has no suffix.
//!
//! Each split leaves fewer entries in a node, so a few splits suffice. Prefixes only get longer, so nothing
//! grows by the split itself.

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

/// Chooses the cut of `node` for the insertion of `new_key` with a value of `new_value_len` bytes. Both
/// halves fit their pages. The new entry may need another split.
///
/// Returns `None` if the node has no cut, which does not occur in a valid node that lacks room.
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
    let present = sizes.iter().sum::<usize>();
    let total = present + new_bytes;
    // A cut at the new entry's slot may leave that entry on either side. In an inner node the separator is
    // the key of the slot after the new entry.
    let sides = |at| match cutter.new {
        Some((slot, _)) if slot == at && is_leaf => match at {
            0 => &[Side::Left][..],
            _ if at == count => &[Side::Right],
            _ => &[Side::Left, Side::Right],
        },
        Some((slot, _)) if slot == at => &[Side::Left],
        _ => &[Side::Right],
    };
    // A leaf with one entry keeps it, and the new entry goes to the other leaf (CUT-2).
    let at_ends = (is_leaf && count == 1 && cutter.new.is_some()).then_some(at_new);
    let cuts = (1..count).chain(at_ends).flat_map(|at| sides(at).iter().map(move |&side| (at, side)));
    // Largest imbalance that is accepted for a shorter separator, in bytes.
    let slack = total / 16;
    let (mut left, mut counted) = (0, 0);
    // (no room for the new entry, separator length near the middle, imbalance, cut); the least tuple is
    // chosen.
    let mut best: Option<(bool, usize, usize, (usize, Side))> = None;
    for (at, side) in cuts {
        left += sizes[counted..at].iter().sum::<usize>();
        counted = at;
        let halves = (left, present - left);
        let is_new_left = at_new < at || side == Side::Left;
        let with_new = if is_new_left { (left + new_bytes, halves.1) } else { (left, halves.1 + new_bytes) };
        // Most cuts fit with the longest separator that they may have, so its length need not be computed.
        let longest = cutter.longest_separator(at, side);
        let mut exact = None;
        let mut fits = |halves| {
            cutter.fits(at, halves, longest)
                || cutter.fits(at, halves, *exact.get_or_insert_with(|| cutter.separator_len(at, side)))
        };
        let lacks_room = !fits(with_new);
        if lacks_room && !fits(halves) {
            continue;
        }
        let imbalance = with_new.0.abs_diff(with_new.1);
        let class = if imbalance <= slack { cutter.separator_len(at, side) } else { usize::MAX };
        if best.is_none_or(|(l, c, i, _)| (lacks_room, class, imbalance) < (l, c, i)) {
            best = Some((lacks_room, class, imbalance, (at, side)));
        }
    }
    let (_, _, _, (at, side)) = best?;
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
        match self.new {
            Some((slot, key)) if slot == at && side == Side::Right => {
                separator(&self.node.key(at - 1), key).to_vec()
            }
            Some((slot, key)) if slot == at => separator(key, &self.node.key(at)).to_vec(),
            _ => separator(&self.node.key(at - 1), &self.node.key(at)).to_vec(),
        }
    }

    /// Returns `true` if the two halves fit their pages, with entries of `left` and `right` bytes and a
    /// separator of `separator_len` bytes before slot `at`.
    fn fits(&self, at: usize, (left, right): (usize, usize), separator_len: usize) -> bool {
        let (lower, upper) = (8 * words_for(self.node.lower_len()), 8 * words_for(self.node.upper_len()));
        let (body, separator) = (self.node.capacity() + lower + upper, 8 * words_for(separator_len));
        // In an inner node, the entry at the cut becomes the first child, which has no suffix.
        let suffix_len = if self.is_leaf { 0 } else { self.node.slot(at).suffix_len.into() };
        let right = right.saturating_sub(entry_bytes(suffix_len, 0) - entry_bytes(0, 0));
        lower + left + separator <= body && separator + right + upper <= body
    }

    /// Returns an upper bound of [`separator_len`](Self::separator_len).
    fn longest_separator(&self, at: usize, side: Side) -> usize {
        match self.new {
            Some((slot, key)) if slot == at && side == Side::Right => key.len(),
            _ => self.node.prefix_len() + usize::from(self.node.slot(at).suffix_len),
        }
    }

    /// Returns the length of [`separator_at`](Self::separator_at), computed from the slots alone if they
    /// suffice.
    fn separator_len(&self, at: usize, side: Side) -> usize {
        let is_new = self.new.is_some_and(|(slot, _)| slot == at);
        if !self.is_leaf || is_new {
            return self.separator_at(at, side).len();
        }
        let (left, right) = (self.node.slot(at - 1), self.node.slot(at));
        if left.head == right.head {
            return self.separator_at(at, side).len();
        }
        let right_len = usize::from(right.suffix_len);
        let differ_at = (left.head ^ right.head).leading_zeros() as usize / 8;
        let common = differ_at.min(left.suffix_len.into()).min(right_len);
        self.node.prefix_len() + (common + 1).min(right_len)
    }
}
