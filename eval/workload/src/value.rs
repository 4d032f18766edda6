//! Values that are never the same twice, and that show when they are damaged.
//!
//! An engine may skip an update that changes nothing (SQLite does, and then commits in no time without
//! touching the disk), so every update of a benchmark must bring bytes that were not there. A [`Value`] is a
//! number that no other update of the same run has; its bytes follow from the number alone, so a reader can
//! tell a whole value from a mixture of two.

use crate::key::scatter;

/// One value, as the number that determines its bytes. Which bytes also depends on the length asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(pub u64);

impl Value {
    /// Fills `out`: first the number (its low bytes when `out` is shorter than eight), then bytes derived
    /// from it, which no compressor shortens. About 1 ns per eight bytes.
    pub fn fill(self, out: &mut [u8]) {
        let head = self.0.to_le_bytes();
        let (first, rest) = out.split_at_mut(out.len().min(8));
        first.copy_from_slice(&head[..first.len()]);
        let mut word = self.0;
        for chunk in rest.chunks_mut(8) {
            word = scatter(word);
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }

    /// Reads the value back from its bytes: `None` when they are not what [`Value::fill`] makes of any
    /// number.
    ///
    /// Bytes shorter than eight are always some value's, and give only the low part of its number.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Value> {
        let (first, rest) = bytes.split_at(bytes.len().min(8));
        let mut head = [0; 8];
        head[..first.len()].copy_from_slice(first);
        let value = Value(u64::from_le_bytes(head));
        let mut word = value.0;
        let whole = rest.chunks(8).all(|chunk| {
            word = scatter(word);
            chunk == &word.to_le_bytes()[..chunk.len()]
        });
        whole.then_some(value)
    }
}

/// The values of one lane: every `step`-th number from a start of its own, so that no two lanes of a run
/// meet.
#[derive(Debug, Clone)]
pub(crate) struct FreshValues {
    next: u64,
    step: u64,
}

impl FreshValues {
    /// Values of lane `index` of `of`. Runs with different seeds begin at different places, so that the first
    /// updates of one run differ from what the run before left behind.
    pub(crate) fn new(seed: u64, index: u64, of: u64) -> Self {
        Self { next: scatter(seed).wrapping_add(index), step: of.max(1) }
    }

    pub(crate) fn next(&mut self) -> Value {
        let value = Value(self.next);
        self.next = self.next.wrapping_add(self.step);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_value_is_read_back_from_its_bytes() {
        for len in [8, 9, 15, 16, 100, 1000] {
            let mut bytes = vec![0; len];
            Value(0xdead_beef_1234_5678).fill(&mut bytes);
            assert_eq!(Value::of(&bytes), Some(Value(0xdead_beef_1234_5678)), "{len} bytes");
        }
    }

    #[test]
    fn one_changed_byte_is_noticed() {
        let mut bytes = [0; 100];
        Value(77).fill(&mut bytes);
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_ne!(Value::of(&damaged), Some(Value(77)), "byte {at}");
        }
    }

    #[test]
    fn four_byte_values_of_all_lanes_differ() {
        let mut seen = HashSet::new();
        for lane in 0..8 {
            let mut values = FreshValues::new(9, lane, 8);
            for _ in 0..5_000 {
                let mut bytes = [0; 4];
                values.next().fill(&mut bytes);
                assert!(seen.insert(bytes), "lane {lane} repeats {bytes:?}");
            }
        }
    }

    #[test]
    fn long_values_do_not_compress_into_runs() {
        let mut bytes = [0; 1000];
        Value(1).fill(&mut bytes);
        let distinct = bytes[8..].iter().collect::<HashSet<_>>().len();
        assert!(distinct > 200, "{distinct} distinct bytes of 256");
    }
}
