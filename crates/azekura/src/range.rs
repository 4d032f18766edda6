//! Rows of a range, from both ends.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::Error;
use crate::key::{DecodeError, Key};
use crate::locking::ScanLocks;
use crate::scan::Cursor;
use crate::table::{RowOf, Types};
use crate::transaction::{Direction, OpenTree, Transaction};
use crate::value::Value;

/// The two ends of a range of encoded keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByteBounds {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
}

impl ByteBounds {
    pub(crate) const ALL: Self = Self { lower: Bound::Unbounded, upper: Bound::Unbounded };

    pub(crate) fn of<K: Key + ?Sized, Q: Borrow<K>>(range: &impl RangeBounds<Q>) -> Self {
        let encode = |bound: Bound<&Q>| {
            bound.map(|key| {
                let mut bytes = Vec::new();
                key.borrow().encode(&mut bytes);
                bytes
            })
        };
        Self { lower: encode(range.start_bound()), upper: encode(range.end_bound()) }
    }

    /// The place right above `key`, where at most one key can be.
    pub(crate) fn right_above(key: Vec<u8>) -> Self {
        let mut next = key.clone();
        next.push(0);
        Self { lower: Bound::Excluded(key), upper: Bound::Included(next) }
    }

    /// The keys that begin with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        let upper = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Self { lower: Bound::Included(prefix.to_vec()), upper }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        <Self as RangeBounds<[u8]>>::contains(self, key)
    }

    /// The part up to `last`, included, seen in one direction.
    pub(crate) fn up_to(&self, last: &[u8], is_ascending: bool) -> Self {
        let (mut part, end) = (self.clone(), Bound::Included(last.to_vec()));
        *(if is_ascending { &mut part.upper } else { &mut part.lower }) = end;
        part
    }

    /// Whether no key can lie between the ends.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(a), Bound::Included(b)) => a > b,
            // No byte string lies between `a` and `a + 00`, but an empty look there costs little.
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => a >= b,
        }
    }
}

impl RangeBounds<[u8]> for ByteBounds {
    fn start_bound(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(Vec::as_slice)
    }

    fn end_bound(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(Vec::as_slice)
    }
}

/// Iterator over the rows of a range; made by [`Table::range`](crate::Table::range).
///
/// Shows the table as its transaction had it when the iterator was made: own writes of before are included,
/// later ones are not. After an error it ends. Each row costs
/// an allocation for a key and for a value that need one; [`Table::for_each`](crate::Table::for_each) lends
/// them instead.
pub struct Range<'tx, K: ?Sized, V: ?Sized> {
    cursor: Cursor<'tx>,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Range<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("cursor", &self.cursor).finish()
    }
}

type Decoded<K, V> = Result<RowOf<K, V>, Error>;

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Range<'tx, K, V> {
    pub(crate) fn new(tx: &'tx Transaction, tree: OpenTree, bounds: ByteBounds, locks: ScanLocks) -> Self {
        Self { cursor: Cursor::new(tx, tree, bounds, locks), types: PhantomData }
    }

    fn step(&mut self, direction: Direction) -> Option<Decoded<K, V>> {
        match self.cursor.advance(direction) {
            Ok(false) => None,
            Err(error) => Some(Err(error)),
            Ok(true) => Some(self.row().inspect_err(|_| self.cursor.end())),
        }
    }

    fn row(&mut self) -> Decoded<K, V> {
        let (key, value) = self.cursor.row()?;
        match (K::decode(key), V::decode(value)) {
            (Ok(key), Ok(value)) => Ok((key, value)),
            (Err(source), _) | (_, Err(source)) => {
                Err(Error::Decode { table: self.cursor.table().to_owned(), source })
            }
        }
    }
}

/// A row lent by [`Table::for_each`](crate::Table::for_each): decoded where it is asked for.
pub struct RowRef<'r, K: ?Sized, V: ?Sized> {
    pub(crate) table: &'r str,
    pub(crate) key: &'r [u8],
    pub(crate) value: &'r [u8],
    pub(crate) types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for RowRef<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowRef").field("key", &self.key).field("value", &self.value).finish()
    }
}

impl<'r, K: Key + ?Sized, V: Value + ?Sized> RowRef<'r, K, V> {
    /// The key.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the row was written with another type.
    pub fn key(&self) -> Result<K::Owned, Error> {
        K::decode(self.key).map_err(|source| self.undecodable(source))
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    pub fn value(&self) -> Result<V::Owned, Error> {
        V::decode(self.value).map_err(|source| self.undecodable(source))
    }

    /// The key as stored; for byte and text keys their bytes.
    #[must_use]
    pub const fn key_bytes(&self) -> &'r [u8] {
        self.key
    }

    /// The value as stored; for byte and text values their bytes.
    #[must_use]
    pub const fn value_bytes(&self) -> &'r [u8] {
        self.value
    }

    fn undecodable(&self, source: DecodeError) -> Error {
        Error::Decode { table: self.table.to_owned(), source }
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> Iterator for Range<'_, K, V> {
    type Item = Decoded<K, V>;
    fn next(&mut self) -> Option<Self::Item> {
        self.step(Direction::Forward)
    }
}

impl<K: Key + ?Sized, V: Value + ?Sized> DoubleEndedIterator for Range<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(Direction::Backward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(ByteBounds::prefix(b"ab").upper, Bound::Excluded(b"ac".to_vec()));
        assert_eq!(ByteBounds::prefix(b"a\xff").upper, Bound::Excluded(b"b".to_vec()));
        assert_eq!(ByteBounds::prefix(b"\xff\xff").upper, Bound::Unbounded);
        assert_eq!(ByteBounds::prefix(b""), ByteBounds { lower: Bound::Included(vec![]), ..ByteBounds::ALL });
    }

    #[test]
    fn text_bounds_are_written_as_slices() {
        let bounds = ByteBounds::of::<str, &str>(&("a".."b"));
        assert_eq!(bounds.lower, Bound::Included(b"a".to_vec()));
        assert_eq!(ByteBounds::of::<u64, u64>(&(1..=2)).upper, Bound::Included(vec![0, 0, 0, 0, 0, 0, 0, 2]));
        assert!(ByteBounds::of::<u64, u64>(&(5..5)).is_empty());
        assert!(!ByteBounds::of::<u64, u64>(&(5..=5)).is_empty());
    }
}
