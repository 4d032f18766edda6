//! Search of a key among the slots of one node.
//!
//! Two steps. First a binary search over the heads alone, which reads only the slot array and has no branch
//! that depends on a comparison. Then, only among slots with the key's head, a binary search that compares
//! lengths and the bytes in the cells. On a changing page both end after as many steps as the clamped slot
//! count allows.

use std::cmp::Ordering as Cmp;

use azekura_base::PageId;

use super::{Node, SLOT_BYTES, SLOTS_AT, head_of};

/// The position of a key in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The key is in this slot.
    Found(usize),
    /// The key is absent; the first slot with a larger key is this one (the count, if there is none).
    Absent(usize),
}

impl Position {
    /// Returns the slot of the key, or the first with a larger one.
    #[must_use]
    pub const fn slot(self) -> usize {
        match self {
            Self::Found(i) | Self::Absent(i) => i,
        }
    }
}

impl Node<'_> {
    /// Finds `key`, which has the node's prefix if the node covers it. Otherwise (a torn read, or a fence
    /// instead of a key) the result is still a slot number of the node.
    #[inline]
    #[must_use]
    pub fn search(self, key: &[u8]) -> Position {
        self.page().told(0, SLOTS_AT);
        let count = self.count();
        // A key shorter than the prefix: the node does not cover it. Any result is allowed.
        let Some(suffix) = key.get(self.prefix_len()..) else { return Position::Absent(0) };
        let head = head_of(suffix);
        // A root has no bounds, so no prefix, and its long keys often have equal heads. In other nodes this
        // test would cost two more cache lines.
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

    /// Returns the first slot in `lo..hi` with a head that does not satisfy `before`; `before` holds for a
    /// leading run only.
    #[inline]
    fn first_head(self, lo: usize, hi: usize, before: impl Fn(u64) -> bool) -> usize {
        let (mut base, mut len) = (lo, hi - lo);
        while len > 1 {
            let half = len / 2;
            self.page().told(SLOTS_AT + SLOT_BYTES * (base + half - 1), SLOT_BYTES);
            base = if before(self.head(base + half - 1)) { base + half } else { base };
            len -= half;
        }
        base + usize::from(len == 1 && before(self.head(base)))
    }

    fn search_equal_heads(self, mut lo: usize, mut hi: usize, suffix: &[u8]) -> Position {
        // The next eight bytes, which a cell has in its first word.
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

    /// Compares slot `i` with `suffix`; their heads are equal, and `second` is the suffix's bytes from the
    /// eighth on.
    #[inline]
    fn compare_beyond_head(self, i: usize, suffix: &[u8], second: u64) -> Cmp {
        let slot = self.slot(i);
        let len = usize::from(slot.suffix_len);
        if len <= 8 || suffix.len() <= 8 {
            // Equal heads, and one of the two ends within them: the shorter is a prefix of the other.
            return len.cmp(&suffix.len());
        }
        let at = 8 * usize::from(slot.offset);
        self.page().told(at, 8);
        // Like heads, also zero-padded in the page, and so in the order of the bytes.
        let ours = self.page().word(slot.offset.into()).swap_bytes();
        if ours != second {
            return ours.cmp(&second);
        }
        if len <= 16 || suffix.len() <= 16 {
            return len.cmp(&suffix.len());
        }
        self.page().compare(at + 8, len - 16, &suffix[16..])
    }

    /// Returns the slot of an inner node with the child that covers `key`: the last one with a key not above
    /// it.
    #[inline]
    #[must_use]
    pub fn slot_covering(self, key: &[u8]) -> usize {
        match self.search(key) {
            Position::Found(i) => i,
            Position::Absent(i) => i.saturating_sub(1),
        }
    }

    /// Returns the slot of an inner node with the child that holds the keys just below `key`: the last one
    /// with a smaller key.
    #[must_use]
    pub fn slot_before(self, key: &[u8]) -> usize {
        self.search(key).slot().saturating_sub(1)
    }

    /// Returns the child that covers `key`.
    #[inline]
    #[must_use]
    pub fn child_covering(self, key: &[u8]) -> PageId {
        self.child(self.slot_covering(key))
    }
}
