//! LSN gaps: LSNs that a log buffer drew and used for no record, and their encoding in its blocks.
//!
//! A buffer that does not use up [a range](crate::lsn_range) of LSNs writes the rest as a gap beside its
//! records. So LSNs stay dense: a missing LSN still proves that a record is lost (W5). A block's gaps are in
//! order of their LSNs, each as two varints:
//!
//! | field | counted from |
//! |---|---|
//! | LSNs skipped since the previous gap | for the first gap: the LSN after the block's first |
//! | LSNs in the gap, less one | |

use azekura_base::varint;

/// Largest size of an encoded gap, in bytes.
pub(crate) const MAX_BYTES: usize = 20;

/// A run of consecutive LSNs without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LsnGap {
    /// The first LSN.
    pub first: u64,
    /// The last LSN.
    pub last: u64,
}

impl LsnGap {
    /// Returns the number of LSNs in the gap.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.last - self.first + 1
    }
}

/// The gaps of a batch, encoded.
#[derive(Debug, Default)]
pub struct LsnGaps {
    bytes: Vec<u8>,
    /// The last LSN of the last gap; 0 without gaps.
    last: u64,
}

impl LsnGaps {
    /// Adds a gap above all earlier ones; `first_lsn` is the first LSN of the block.
    pub(crate) fn push(&mut self, first_lsn: u64, gap: LsnGap) {
        let expected = self.last.max(first_lsn) + 1;
        debug_assert!(expected <= gap.first && gap.first <= gap.last);
        varint::put_u64(&mut self.bytes, gap.first - expected);
        varint::put_u64(&mut self.bytes, gap.last - gap.first);
        self.last = gap.last;
    }

    /// Removes all gaps and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.last = 0;
    }

    /// Returns the last LSN of the last gap; 0 without gaps.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Returns the size of the encoded gaps, in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns `true` if there is no gap.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the encoded gaps.
    #[must_use]
    pub const fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

/// An iterator over a block's gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LsnGapCursor<'a> {
    input: &'a [u8],
    /// The LSN after the previous gap.
    expected: u64,
}

impl<'a> LsnGapCursor<'a> {
    /// Returns an iterator over the encoded gaps of a block that begins with `first_lsn`.
    #[must_use]
    pub const fn new(first_lsn: u64, bytes: &'a [u8]) -> Self {
        Self { input: bytes, expected: first_lsn.saturating_add(1) }
    }

    /// Returns `true` if no byte is left.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.input.is_empty()
    }
}

impl Iterator for LsnGapCursor<'_> {
    type Item = LsnGap;

    /// Returns the next gap. Returns `None` at the end, and from the first bytes on that encode no gap or a
    /// gap beyond the largest LSN.
    fn next(&mut self) -> Option<LsnGap> {
        let mut input = self.input;
        let first = self.expected.checked_add(varint::take_u64(&mut input)?)?;
        let last = first.checked_add(varint::take_u64(&mut input)?)?;
        self.expected = last.checked_add(1)?;
        self.input = input;
        Some(LsnGap { first, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_read_as_they_were_written() {
        let gaps_in = [
            LsnGap { first: 11, last: 11 },
            LsnGap { first: 12, last: 40 },
            LsnGap { first: 900, last: 1000 },
        ];
        let mut gaps = LsnGaps::default();
        gaps_in.into_iter().for_each(|gap| gaps.push(10, gap));
        assert_eq!((gaps.last(), gaps.is_empty()), (1000, false));
        assert_eq!(LsnGapCursor::new(10, gaps.bytes()).collect::<Vec<_>>(), gaps_in);
        assert_eq!(gaps_in.map(LsnGap::count), [1, 29, 101]);
        gaps.clear();
        assert_eq!((gaps.last(), gaps.bytes()), (0, &[][..]));
    }

    #[test]
    fn bytes_that_are_no_gaps_end_the_iteration_early() {
        let walk = |bytes: &[u8]| {
            let mut cursor = LsnGapCursor::new(10, bytes);
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
