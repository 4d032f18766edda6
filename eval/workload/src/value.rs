//! Unique values that reveal damage.
//!
//! An engine may skip an update that changes nothing. SQLite does so, and then commits at once without
//! writing to the disk. Every update of a benchmark must therefore write new bytes. A [`Value`] is a number
//! that no other update of the same run has. The number determines the bytes, so a reader can distinguish a
//! whole value from a mixture of two.

use crate::key::scatter;

/// A value, represented by the number that determines its bytes for each length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value(pub u64);

impl Value {
    /// Fills `out` with the number (its low bytes if `out` is shorter than eight), followed by incompressible
    /// bytes derived from it. Takes about 1 ns per eight bytes.
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

    /// Returns the value with these bytes; `None` if [`Value::fill`] does not produce them for any number.
    ///
    /// Fewer than eight bytes always belong to some value, and determine only the low part of its number.
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

/// The values of one lane: every `step`-th number from the lane's own start, so that all lanes of a run have
/// different values.
#[derive(Debug, Clone)]
pub(crate) struct FreshValues {
    next: u64,
    step: u64,
}

impl FreshValues {
    /// Returns the values of lane `index` of `of`. Runs with different seeds have different starts, so that
    /// the first updates of a run differ from the values that the previous run left.
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
