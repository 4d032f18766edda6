//! Ranges of keys, and the target of a descent.

use serde::{Deserialize, Serialize};

/// A key: any bytes, ordered as bytes.
pub type Key = Vec<u8>;

/// The keys from `low` (inclusive) to `high` (exclusive).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyRange {
    /// The first key. The empty key is the least of all keys.
    pub low: Key,
    /// The first key beyond the range; `None` if the range has no end.
    pub high: Option<Key>,
}

impl KeyRange {
    /// Returns the range of all keys.
    #[must_use]
    pub const fn all() -> Self {
        Self { low: Vec::new(), high: None }
    }

    /// Returns the range from `low` (inclusive) to `high` (exclusive).
    #[must_use]
    pub fn new(low: impl Into<Key>, high: Option<&[u8]>) -> Self {
        Self { low: low.into(), high: high.map(<[u8]>::to_vec) }
    }

    /// Returns `true` if the range contains no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.high.as_ref().is_some_and(|high| *high <= self.low)
    }

    /// Returns `true` if the range contains `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && !self.ends_before(key)
    }

    /// Returns `true` if `key` lies at or above the end of the range.
    #[must_use]
    pub fn ends_before(&self, key: &[u8]) -> bool {
        self.high.as_ref().is_some_and(|high| high.as_slice() <= key)
    }

    /// Returns the range of the keys that are in both ranges.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let high = match (&self.high, &other.high) {
            (Some(one), Some(two)) => Some(one.min(two).clone()),
            (one, two) => one.as_ref().or(two.as_ref()).cloned(),
        };
        Self { low: self.low.as_slice().max(&other.low).to_vec(), high }
    }

    /// Returns `true` if some key is in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.ends_before(&other.low) && !other.ends_before(&self.low)
    }

    /// Returns `true` if every key of `other` is in this range.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        self.low <= other.low
            && match (&self.high, &other.high) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(mine), Some(others)) => others <= mine,
            }
    }
}

/// The target of a descent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// The leaf that contains this key, or would contain it.
    At(Key),
    /// The leaf of the greatest key below this key, or of the greatest key of all with `None`. For backward
    /// scans.
    Before(Option<Key>),
}

impl Target {
    /// Returns `true` if the target is in a page with these fences.
    #[must_use]
    pub fn is_in(&self, range: &KeyRange) -> bool {
        !self.is_left_of(&range.low) && !self.is_right_of(range.high.as_deref())
    }

    /// Returns `true` if the target is left of a page that begins with `low`.
    #[must_use]
    pub fn is_left_of(&self, low: &[u8]) -> bool {
        match self {
            Self::At(key) => key.as_slice() < low,
            // No key lies before the empty key. That target is in the first leaf.
            Self::Before(Some(key)) => key.as_slice() <= low && !low.is_empty(),
            Self::Before(None) => false,
        }
    }

    /// Returns `true` if the target is right of a page that ends with `high`.
    #[must_use]
    pub fn is_right_of(&self, high: Option<&[u8]>) -> bool {
        let Some(high) = high else { return false };
        match self {
            Self::At(key) => high <= key.as_slice(),
            Self::Before(Some(key)) => high < key.as_slice(),
            Self::Before(None) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_in_exactly_one_of_the_pages_that_share_the_keys() {
        let pages =
            [KeyRange::new(*b"", Some(b"d")), KeyRange::new(*b"d", Some(b"m")), KeyRange::new(*b"m", None)];
        let keys: [&[u8]; 7] = [b"", b"a", b"d", b"e", b"m", b"n", b"\xff\xff"];
        let targets = keys
            .iter()
            .flat_map(|key| [Target::At(key.to_vec()), Target::Before(Some(key.to_vec()))])
            .chain([Target::Before(None)]);
        for target in targets {
            let at: Vec<_> = (0..3).filter(|&page| target.is_in(&pages[page])).collect();
            assert_eq!(at.len(), 1, "{target:?} is in {at:?}");
        }
        assert!(Target::Before(Some(b"d".to_vec())).is_in(&pages[0]));
        assert!(Target::At(b"d".to_vec()).is_in(&pages[1]));
    }

    #[test]
    fn intersections_are_what_both_contain() {
        let one = KeyRange::new(*b"b", Some(b"k"));
        let two = KeyRange::new(*b"g", None);
        assert_eq!(one.intersection(&two), KeyRange::new(*b"g", Some(b"k")));
        assert!(one.overlaps(&two) && two.overlaps(&one) && !one.includes(&two));
        assert!(!one.overlaps(&KeyRange::new(*b"k", None)));
        assert!(KeyRange::all().includes(&one));
    }
}
