//! Void LSNs: those that a worker drew and gave to no record, as its blocks tell them.
//!
//! Whoever draws [a range](crate::lsn_range) and does not use it up says so where the records are, so that
//! LSNs stay dense: a missing number is still proof of a lost record (W5). A block's voids are rows of LSNs,
//! in order, each as two varints:
//!
//! | field | counted from |
//! |---|---|
//! | LSNs skipped since the void before | for the first one: the LSN after the block's first |
//! | LSNs in it, less one | |

use azekura_base::varint;

/// Most bytes that one of them takes.
pub(crate) const MAX_BYTES: usize = 20;

/// LSNs in a row without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Void {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
}

impl Void {
    /// How many they are.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.last - self.first + 1
    }
}

/// The voids of a batch, encoded as they come.
#[derive(Debug, Default)]
pub struct Voids {
    bytes: Vec<u8>,
    /// The last LSN in them; 0: there are none.
    last: u64,
}

impl Voids {
    /// Adds one that lies above all before, to a block that begins with this LSN.
    pub(crate) fn push(&mut self, first_lsn: u64, void: Void) {
        let expected = self.last.max(first_lsn) + 1;
        debug_assert!(expected <= void.first && void.first <= void.last);
        varint::put_u64(&mut self.bytes, void.first - expected);
        varint::put_u64(&mut self.bytes, void.last - void.first);
        self.last = void.last;
    }

    /// Forgets them and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.last = 0;
    }

    /// The last LSN in them; 0 if there are none.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Bytes that they take in a block.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// As a block has them.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// Walks a block's voids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoidCursor<'a> {
    input: &'a [u8],
    /// LSN that one without a gap would begin with.
    expected: u64,
}

impl<'a> VoidCursor<'a> {
    /// Before the first void of a block that begins with this LSN.
    #[must_use]
    pub const fn new(first_lsn: u64, bytes: &'a [u8]) -> Self {
        Self { input: bytes, expected: first_lsn.saturating_add(1) }
    }

    /// Whether there is nothing more.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.input.is_empty()
    }
}

impl Iterator for VoidCursor<'_> {
    type Item = Void;

    /// `None` at the end, and for ever where the bytes are no void, or one beyond the last LSN.
    fn next(&mut self) -> Option<Void> {
        let mut input = self.input;
        let first = self.expected.checked_add(varint::take_u64(&mut input)?)?;
        let last = first.checked_add(varint::take_u64(&mut input)?)?;
        self.expected = last.checked_add(1)?;
        self.input = input;
        Some(Void { first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voids_come_back_as_they_were_told() {
        let told =
            [Void { first: 11, last: 11 }, Void { first: 12, last: 40 }, Void { first: 900, last: 1000 }];
        let mut voids = Voids::default();
        told.into_iter().for_each(|void| voids.push(10, void));
        assert_eq!((voids.last(), voids.is_empty()), (1000, false));
        assert_eq!(VoidCursor::new(10, voids.bytes()).collect::<Vec<_>>(), told);
        assert_eq!(told.map(Void::count), [1, 29, 101]);
        voids.clear();
        assert_eq!((voids.last(), voids.bytes()), (0, &[][..]));
    }

    #[test]
    fn bytes_that_are_no_voids_end_the_walk_before_their_end() {
        let walk = |bytes: &[u8]| {
            let mut cursor = VoidCursor::new(10, bytes);
            let count = cursor.by_ref().count();
            (count, cursor.is_at_end())
        };
        assert_eq!(walk(&[]), (0, true));
        assert_eq!(walk(&[5, 3]), (1, true));
        for cut in [&[5][..], &[5, 0x80], &[0x80]] {
            assert_eq!(walk(cut), (0, false), "cut off");
        }
        let (mut high, mut long) = (Vec::new(), vec![0]);
        varint::put_u64(&mut high, u64::MAX);
        high.push(0);
        varint::put_u64(&mut long, u64::MAX);
        assert_eq!([walk(&high), walk(&long)], [(0, false); 2], "beyond the last LSN");
    }
}
