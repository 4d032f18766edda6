//! Framing of records inside a block, in as few bytes as possible.
//!
//! A block holds records of one log buffer in order of their LSNs. A record is
//!
//! | field | encoding |
//! |---|---|
//! | LSNs skipped since the record before (for the first one: since the block's first LSN) | varint |
//! | length of the body | varint |
//! | body | bytes |
//!
//! If only one log buffer appends, the frame of a small record has two bytes. (The paper's records carry 132
//! bytes, section 5.2.1.)

use azekura_base::varint;

/// Largest size of a record's frame, in bytes.
pub const MAX_OVERHEAD_BYTES: usize = 20;

/// Appends one record; `expected` is the LSN that it would have without a gap.
pub(crate) fn put(out: &mut Vec<u8>, expected: u64, lsn: u64, body: &[u8]) {
    debug_assert!(expected <= lsn);
    varint::put_u64(out, lsn - expected);
    varint::put_bytes(out, body);
}

/// The frame of a record that follows the previous one without a gap: the bytes before the body, on the
/// stack.
#[cfg(feature = "baseline-logs")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DenseFrame {
    bytes: [u8; MOST_DENSE_BYTES],
    len: usize,
}

/// Largest size of such a frame: one byte for no gap, and a length of at most ten bytes.
#[cfg(feature = "baseline-logs")]
const MOST_DENSE_BYTES: usize = 11;

#[cfg(feature = "baseline-logs")]
impl DenseFrame {
    pub(crate) fn of(body: &[u8]) -> Self {
        let mut frame = Self { bytes: [0; MOST_DENSE_BYTES], len: 1 };
        let mut rest = body.len() as u64;
        loop {
            let more = if rest > 0x7f { 0x80 } else { 0 };
            frame.bytes[frame.len] = (rest & 0x7f) as u8 | more;
            frame.len += 1;
            rest >>= 7;
            if rest == 0 {
                return frame;
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A position in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// LSN of the next record if no LSN is skipped.
    pub(crate) expected: u64,
}

impl Cursor {
    /// Takes the next record off the front of `input`; `None` when it is cut off or a number would overflow.
    pub(crate) fn take<'a>(&mut self, input: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
        let skipped = varint::take_u64(input)?;
        let lsn = self.expected.checked_add(skipped)?;
        self.expected = lsn.checked_add(1)?;
        Some((lsn, varint::take_bytes(input)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_small_record_costs_two_bytes_more_than_its_body() {
        let mut block = Vec::new();
        put(&mut block, 1_000_000_000, 1_000_000_000, b"hello");
        assert_eq!(block.len(), 7);
    }

    #[cfg(feature = "baseline-logs")]
    #[test]
    fn a_dense_frame_is_what_put_writes() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let body = vec![3; len];
            let mut block = Vec::new();
            put(&mut block, 9, 9, &body);
            assert_eq!([DenseFrame::of(&body).bytes(), &body].concat(), block);
        }
    }

    const fn at(expected: u64) -> Cursor {
        Cursor { expected }
    }

    #[test]
    fn records_are_read_back_with_their_gaps() {
        let (mut block, mut expected) = (Vec::new(), 10);
        for (lsn, body) in [(10, &b"a"[..]), (11, b""), (400, &[7; 300])] {
            put(&mut block, expected, lsn, body);
            expected = lsn + 1;
        }
        let (mut input, mut cursor) = (block.as_slice(), at(10));
        assert_eq!(cursor.take(&mut input), Some((10, &b"a"[..])));
        assert_eq!(cursor.take(&mut input), Some((11, &b""[..])));
        assert_eq!(cursor.take(&mut input), Some((400, &[7; 300][..])));
        assert!(input.is_empty());
        assert_eq!(at(12).take(&mut &block[..block.len() - 1][5..]), None, "cut off");
        let mut high = Vec::new();
        put(&mut high, 0, u64::MAX, b"");
        assert_eq!(at(1).take(&mut high.as_slice()), None, "beyond the last LSN");
    }
}
