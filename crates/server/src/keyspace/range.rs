//! Ranges of keys.

use std::borrow::Cow;
use std::ops::Bound;

pub(super) type Bounds<'a> = (Bound<Cow<'a, [u8]>>, Bound<Cow<'a, [u8]>>);

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
}

impl KeyRange {
    pub(crate) const ALL: Self = Self { lower: Bound::Unbounded, upper: Bound::Unbounded };

    /// Returns the range of the keys that begin with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        let upper = match end.last_mut() {
            None => Bound::Unbounded,
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
        };
        Self { lower: Bound::Included(prefix.to_vec()), upper }
    }

    /// Returns the part of the range from `key` on.
    pub(crate) fn from(mut self, key: Vec<u8>) -> Self {
        let is_below = match &self.lower {
            Bound::Unbounded => true,
            Bound::Included(lower) | Bound::Excluded(lower) => *lower < key,
        };
        if is_below {
            self.lower = Bound::Included(key);
        }
        self
    }

    /// Returns the part of the range above `key`.
    pub(crate) fn after(mut self, key: Vec<u8>) -> Self {
        let is_below = match &self.lower {
            Bound::Unbounded => true,
            Bound::Included(lower) | Bound::Excluded(lower) => *lower <= key,
        };
        if is_below {
            self.lower = Bound::Excluded(key);
        }
        self
    }

    pub(super) fn bounds(&self) -> Bounds<'_> {
        let borrow = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(key) => Bound::Included(key.clone()),
            Bound::Excluded(key) => Bound::Excluded(key.clone()),
        };
        (borrow(&self.lower).map(Cow::Owned), borrow(&self.upper).map(Cow::Owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_after_a_key_is_never_below_the_range() {
        let range = KeyRange::prefix(b"b");
        assert_eq!(range.upper, Bound::Excluded(b"c".to_vec()));
        assert_eq!(range.clone().after(b"a".to_vec()), range);
        assert_eq!(range.clone().after(b"bb".to_vec()).lower, Bound::Excluded(b"bb".to_vec()));
        assert_eq!(KeyRange::prefix(b"\xff").upper, Bound::Unbounded);
    }
}
