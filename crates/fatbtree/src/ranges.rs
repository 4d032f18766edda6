//! A map from key ranges to values, each with its version: the content of an index page.
//!
//! - **RANGES-1** The pieces cover the whole range, without overlap, in key order.
//! - **RANGES-2** The version of a key never decreases: of two route entries about a key the newer one is
//!   kept, in whatever order they arrive. So route entries may arrive in any order, twice, or not at all.

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange, Target};

/// A value for every key of a range, stored as pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ranges<T> {
    range: KeyRange,
    /// Each piece ends where the next one begins. The last piece ends with the range.
    pieces: Vec<Piece<T>>,
}

/// A part of the range: neighboring keys with the same value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece<T> {
    /// The first key.
    pub low: Key,
    /// The version of the value.
    pub version: u64,
    /// The value.
    pub value: T,
}

impl<T: Clone + PartialEq> Ranges<T> {
    /// Returns a map with one value for the whole range.
    pub fn new(range: KeyRange, version: u64, value: T) -> Self {
        let pieces = vec![Piece { low: range.low.clone(), version, value }];
        Self { range, pieces }
    }

    /// Returns the range of the keys that have values.
    pub const fn range(&self) -> &KeyRange {
        &self.range
    }

    /// Returns the pieces in key order.
    pub fn pieces(&self) -> &[Piece<T>] {
        &self.pieces
    }

    /// Returns the pieces with their ranges, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (KeyRange, &Piece<T>)> {
        (0..self.pieces.len()).map(|place| (self.piece_range(place), &self.pieces[place]))
    }

    /// Returns the piece of a target, or the nearest piece if the target is outside of the range.
    pub fn find(&self, target: &Target) -> &Piece<T> {
        &self.pieces[self.place(target)]
    }

    /// Returns the position of the piece of a target.
    pub fn place(&self, target: &Target) -> usize {
        self.pieces.partition_point(|piece| !target.is_left_of(&piece.low)).saturating_sub(1)
    }

    /// Returns the range of a piece.
    pub fn piece_range(&self, place: usize) -> KeyRange {
        let high = match self.pieces.get(place + 1) {
            Some(next) => Some(next.low.clone()),
            None => self.range.high.clone(),
        };
        KeyRange { low: self.pieces[place].low.clone(), high }
    }

    /// Adds a value for the keys of `range`. Returns `true` if it was new for some key.
    pub fn learn(&mut self, range: &KeyRange, version: u64, value: &T) -> bool {
        self.change(range, |piece| {
            (piece.version < version).then(|| Piece { low: Key::new(), version, value: value.clone() })
        })
    }

    /// Replaces the values of the keys of `range`, regardless of their versions.
    pub fn replace(&mut self, range: &KeyRange, version: u64, value: &T) {
        self.change(range, |_| Some(Piece { low: Key::new(), version, value: value.clone() }));
    }

    /// Splits off the part from `at` on and returns it.
    pub fn split_off(&mut self, at: &[u8]) -> Self {
        let place = self.place(&Target::At(at.to_vec()));
        let range = KeyRange { low: at.to_vec(), high: self.range.high.replace(at.to_vec()) };
        let mut pieces = self.pieces.split_off(place);
        // A piece that is split is in both halves.
        if pieces[0].low.as_slice() < at {
            self.pieces.push(pieces[0].clone());
        }
        pieces[0].low = at.to_vec();
        Self { range, pieces }
    }

    /// Returns the part that lies in `range`, which must be inside this map's range.
    pub fn clip(&self, range: &KeyRange) -> Self {
        let mut part = self.clone();
        if part.range.low < range.low {
            part = part.split_off(&range.low);
        }
        if let Some(high) = &range.high
            && part.range.high.as_ref() != Some(high)
        {
            part.split_off(high);
        }
        part
    }

    /// Appends a map that begins where this one ends.
    pub fn append(&mut self, right: Self) {
        debug_assert_eq!(self.range.high.as_ref(), Some(&right.range.low));
        self.range.high = right.range.high;
        let seam = self.pieces.len();
        self.pieces.extend(right.pieces);
        self.join(seam, seam);
    }

    /// For each piece that overlaps `range`, replaces the overlap by the result of `decide`, if there is one.
    fn change(&mut self, range: &KeyRange, decide: impl Fn(&Piece<T>) -> Option<Piece<T>>) -> bool {
        let range = range.intersection(&self.range);
        if range.is_empty() {
            return false;
        }
        let first = self.place(&Target::At(range.low.clone()));
        let end = range
            .high
            .as_ref()
            .map_or(self.pieces.len(), |high| self.pieces.partition_point(|piece| piece.low < *high));
        let mut changed = Vec::with_capacity(end - first + 2);
        let mut is_new = false;
        for place in first..end {
            let (old, own) = (&self.pieces[place], self.piece_range(place));
            let Some(mut new) = decide(old) else {
                changed.push(old.clone());
                continue;
            };
            is_new = true;
            let cut = own.intersection(&range);
            if own.low < cut.low {
                changed.push(old.clone());
            }
            new.low.clone_from(&cut.low);
            changed.push(new);
            if let Some(high) = cut.high.filter(|high| Some(high) != own.high.as_ref()) {
                changed.push(Piece { low: high, ..old.clone() });
            }
        }
        let changed_end = first + changed.len();
        self.pieces.splice(first..end, changed);
        self.join(first, changed_end);
        is_new
    }

    /// Merges neighboring pieces with equal values, from the boundary before `first` to the boundary before
    /// `end`.
    fn join(&mut self, first: usize, end: usize) {
        for place in (first.max(1)..=end.min(self.pieces.len().saturating_sub(1))).rev() {
            let (left, right) = (&self.pieces[place - 1], &self.pieces[place]);
            if left.version == right.version && left.value == right.value {
                self.pieces.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn range(low: u8, high: u8) -> KeyRange {
        KeyRange::new([low], (high < 32).then_some(&[high][..]))
    }

    #[test]
    fn route_entries_in_any_order_give_the_newest_for_each_key() {
        for seed in 0..200 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut route_entries: Vec<_> = (1..20u64)
                .map(|version| {
                    let low = rng.random_range(0..31);
                    (range(low, rng.random_range(low + 1..=32)), version)
                })
                .collect();
            let newest = |key: u8| {
                route_entries
                    .iter()
                    .rev()
                    .find(|(range, _)| range.contains(&[key]))
                    .map_or(0, |(_, version)| *version)
            };
            let expected: Vec<_> = (0..32).map(newest).collect();
            route_entries.shuffle(&mut rng);
            let mut known = Ranges::new(KeyRange::all(), 0, 0);
            for (range, version) in route_entries.iter().chain(&route_entries) {
                known.learn(range, *version, version);
            }
            for key in 0..32 {
                let piece = known.find(&Target::At(vec![key]));
                assert_eq!(
                    (piece.version, piece.value),
                    (expected[usize::from(key)], piece.version),
                    "seed {seed}"
                );
            }
            let lows: Vec<_> = known.pieces().iter().map(|piece| &piece.low).collect();
            assert!(lows.is_sorted_by(|one, two| one < two), "seed {seed}: {lows:?}");
            let same = known.pieces().windows(2).any(|two| two[0].value == two[1].value);
            assert!(!same, "seed {seed}: neighbors that say the same are one");
        }
    }

    #[test]
    fn halves_append_to_the_whole() {
        let mut whole = Ranges::new(KeyRange::all(), 0, 'a');
        whole.learn(&range(3, 9), 2, &'b');
        whole.learn(&range(12, 20), 1, &'c');
        for at in [1, 3, 5, 9, 15, 31] {
            let mut left = whole.clone();
            let right = left.split_off(&[at]);
            assert_eq!(left.range().high.as_deref(), Some(&[at][..]));
            assert_eq!(right.range().low, [at]);
            assert_eq!(whole.clip(&range(at, 32)), right);
            left.append(right);
            assert_eq!(left, whole, "cut at {at}");
        }
    }

    #[test]
    fn an_outdated_route_entry_changes_nothing() {
        let mut known = Ranges::new(KeyRange::all(), 5, 'a');
        assert!(!known.learn(&range(1, 2), 5, &'b'));
        assert!(known.learn(&range(1, 2), 6, &'b'));
        assert_eq!(known.pieces().len(), 3);
        known.replace(&KeyRange::all(), 0, &'c');
        assert_eq!(known.pieces().len(), 1);
    }
}
