//! Sets of keys, as ranges.

use crate::key::KeyRange;

/// A set of keys.
///
/// - **KEYS-1** The ranges are in key order; no two of them overlap or touch, and none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet {
    ranges: Vec<KeyRange>,
}

impl KeySet {
    /// Returns `true` if the key is in the set.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let end = self.ranges.partition_point(|range| range.low.as_slice() <= key);
        end > 0 && !self.ranges[end - 1].ends_before(key)
    }

    /// Returns `true` if no key is in the set.
    pub(crate) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns `true` if every key is in the set.
    pub(crate) fn has_all(&self) -> bool {
        self.ranges.first().is_some_and(|range| range.low.is_empty() && range.high.is_none())
    }

    /// Adds the keys of a range.
    pub(crate) fn add(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let touches = |own: &KeyRange| {
            own.overlaps(range)
                || own.high.as_ref() == Some(&range.low)
                || range.high.as_ref() == Some(&own.low)
        };
        let mut whole = range.clone();
        for own in self.ranges.extract_if(.., |own| touches(own)) {
            whole.low = whole.low.min(own.low);
            whole.high = match (whole.high, own.high) {
                (Some(one), Some(two)) => Some(one.max(two)),
                _ => None,
            };
        }
        let place = self.ranges.partition_point(|own| own.low < whole.low);
        self.ranges.insert(place, whole);
    }

    /// Removes the keys of a range.
    pub(crate) fn remove(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        for own in std::mem::take(&mut self.ranges) {
            if !own.overlaps(range) {
                self.ranges.push(own);
                continue;
            }
            if own.low < range.low {
                self.ranges.push(KeyRange { low: own.low.clone(), high: Some(range.low.clone()) });
            }
            if let Some(high) = range.high.as_ref().filter(|high| !own.ends_before(high)) {
                self.ranges.push(KeyRange { low: high.clone(), high: own.high });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const KEYS: u8 = 24;

    fn keys_of(set: &KeySet) -> BTreeSet<u8> {
        (0..KEYS).filter(|key| set.contains(&[*key])).collect()
    }

    #[test]
    fn a_set_of_ranges_has_the_keys_of_a_set_of_keys() {
        for seed in 0..300 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let (mut set, mut expected) = (KeySet::default(), BTreeSet::new());
            for _ in 0..30 {
                let low = rng.random_range(0..KEYS);
                let high = rng.random_range(low..=KEYS);
                let range = KeyRange::new([low], (high < KEYS).then_some(&[high][..]));
                if rng.random_range(0..2) == 0 {
                    set.add(&range);
                    expected.extend(low..high);
                } else {
                    set.remove(&range);
                    expected.retain(|key| !(low..high).contains(key));
                }
                assert_eq!(keys_of(&set), expected, "seed {seed}: {set:?}");
                assert_eq!(set.is_empty(), expected.is_empty(), "seed {seed}: {set:?}");
                let is_apart = |two: &[KeyRange]| two[0].high.as_ref().is_some_and(|high| *high < two[1].low);
                assert!(set.ranges.windows(2).all(is_apart), "KEYS-1, seed {seed}: {set:?}");
                assert!(!set.ranges.iter().any(KeyRange::is_empty), "KEYS-1, seed {seed}: {set:?}");
            }
        }
    }

    #[test]
    fn all_keys_are_one_range() {
        let mut set = KeySet::default();
        set.add(&KeyRange::new(*b"m", None));
        set.add(&KeyRange::new(*b"", Some(b"m")));
        assert_eq!(set.ranges, [KeyRange::all()]);
        assert!(set.contains(b"") && set.contains(b"\xff\xff") && set.has_all());
        set.remove(&KeyRange::new(*b"m", Some(b"n")));
        assert!(!set.has_all());
        set.remove(&KeyRange::all());
        assert!(set.is_empty() && !set.contains(b""));
    }
}
