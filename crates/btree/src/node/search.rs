//! Searches for a key among the slots of one node.
//!
//! The search has two steps. First comes a binary search over the heads alone, which reads only the slot
//! array and has no branch that depends on a comparison. The second step looks only at slots with the key's
//! head: a binary search that compares lengths and the bytes in the cells. On a changing page the clamped
//! slot count bounds the steps of both searches.

use std::cmp::Ordering as Cmp;

use super::{Node, SLOT_BYTES, SLOTS_AT, head_of};

/// The position of a key in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The key is in this slot.
    Found(usize),
    /// The key is absent; this is the first slot with a larger key, or the slot count if there is none.
    Absent(usize),
}

impl Position {
    /// Returns the slot of the key, or the first slot with a larger key.
    #[must_use]
    pub const fn slot(self) -> usize {
        match self {
            Self::Found(i) | Self::Absent(i) => i,
        }
    }
}

impl Node<'_> {
    /// Finds `key`. A key that the node covers starts with the node's prefix. For other keys (after a torn
    /// read, or for a fence instead of a key) the result is an arbitrary slot number of the node.
    #[inline]
    #[must_use]
    pub fn search(self, key: &[u8]) -> Position {
        self.page().report_read(0, SLOTS_AT);
        let count = self.count();
        // The key is shorter than the prefix, so the node does not cover it. Any result is allowed.
        let Some(suffix) = key.get(self.prefix_len()..) else { return Position::Absent(0) };
        let head = head_of(suffix);
        // A root has no bounds and so no prefix, and its long keys often have equal heads. In other nodes
        // this test would read two more cache lines.
        let may_begin_alike = suffix.len() > 8 && suffix.len() == key.len() && count > 2;
        if may_begin_alike && self.head(1) == head && self.head(count - 1) == head {
            let first = usize::from(self.head(0) != head);
            return self.search_equal_heads(first, count, suffix);
        }
        let first = self.first_head(0, count, |h| h < head);
        if first == count || self.head(first) != head {
            return Position::Absent(first);
        }
        let end = if first + 1 == count || self.head(first + 1) != head {
            first + 1
        } else {
            self.first_head(first + 1, count, |h| h == head)
        };
        self.search_equal_heads(first, end, suffix)
    }

    /// Returns the first slot in `lo..hi` with a head for which `before` is false. `before` must be true for
    /// a leading run only.
    #[inline]
    fn first_head(self, lo: usize, hi: usize, before: impl Fn(u64) -> bool) -> usize {
        let (mut base, mut len) = (lo, hi - lo);
        while len > 1 {
            let half = len / 2;
            self.page().report_read(SLOTS_AT + SLOT_BYTES * (base + half - 1), SLOT_BYTES);
            base = if before(self.head(base + half - 1)) { base + half } else { base };
            len -= half;
        }
        base + usize::from(len == 1 && before(self.head(base)))
    }

    fn search_equal_heads(self, mut lo: usize, mut hi: usize, suffix: &[u8]) -> Position {
        // The next eight bytes, which are the first word of a cell.
        let second = head_of(suffix.get(8..).unwrap_or_default());
        while lo < hi {
            let mid = lo.midpoint(hi);
            match self.compare_beyond_head(mid, suffix, second) {
                Cmp::Less => lo = mid + 1,
                Cmp::Equal => return Position::Found(mid),
                Cmp::Greater => hi = mid,
            }
        }
        Position::Absent(lo)
    }

    /// Compares slot `i` with `suffix`. The two heads are equal, and `second` holds the suffix's bytes from
    /// offset 8 on.
    #[inline]
    fn compare_beyond_head(self, i: usize, suffix: &[u8], second: u64) -> Cmp {
        let slot = self.slot(i);
        let len = usize::from(slot.suffix_len);
        if len <= 8 || suffix.len() <= 8 {
            // The heads are equal, and one of the two suffixes ends within its head: the shorter is a prefix
            // of the other.
            return len.cmp(&suffix.len());
        }
        let at = 8 * usize::from(slot.offset);
        self.page().report_read(at, 8);
        // Cell words are zero-padded too, so the order of the swapped words is the order of the bytes.
        let ours = self.page().word(slot.offset.into()).swap_bytes();
        if ours != second {
            return ours.cmp(&second);
        }
        if len <= 16 || suffix.len() <= 16 {
            return len.cmp(&suffix.len());
        }
        self.page().compare(at + 8, len - 16, &suffix[16..])
    }

    /// Returns the slot of the child that covers `key`, in an inner node: the last slot with a key not above
    /// `key`.
    #[inline]
    #[must_use]
    pub fn slot_covering(self, key: &[u8]) -> usize {
        match self.search(key) {
            Position::Found(i) => i,
            Position::Absent(i) => i.saturating_sub(1),
        }
    }

    /// Returns the slot of the child with the keys just below `key`, in an inner node: the last slot with a
    /// smaller key.
    #[must_use]
    pub fn slot_before(self, key: &[u8]) -> usize {
        self.search(key).slot().saturating_sub(1)
    }
}
