//! Ranges of keys as arguments, and their encoded bounds.

use std::ops::{Bound, RangeBounds};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::key::{AsKey, EncodeKey, put_bytes_part};

/// A range of the keys of a table, passed as an argument: `..`, `a..`, `a..b`, `a..=b`, `..b`, `..=b`, a pair
/// of [`Bound`]s, [`Prefix`], or [`Limit`] of one of these.
///
/// A bound has one of the types that [`EncodeKey`] lists, by value or by reference.
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error, Prefix, TableDefinition};
/// use std::ops::Bound;
/// const POPULATION: TableDefinition<(String, u16), u64> = TableDefinition::new("population");
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let population = tx.table(&POPULATION)?;
///     population.insert(&("Nara", 2010), &366_591)?;
///     population.insert(&("Nara", 2020), &354_630)?;
///     population.insert(&("Uji", 2020), &179_630)?;
///     assert_eq!(population.range(..).count(), 3);
///     assert_eq!(population.range(("Nara", 2015)..).count(), 2);
///     assert_eq!(population.range(Prefix(("Nara",))).count(), 2);
///     let (first, _) = population.first()?.expect("three rows");
///     assert_eq!(population.range((Bound::Excluded(&first), Bound::Unbounded)).count(), 2);
///     Ok(())
/// })
/// # }
/// ```
///
/// A function that is generic over [`RangeBounds`] passes `(range.start_bound(), range.end_bound())`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a range of keys of type `{K}`",
    note = "a range is `..`, `a..b`, `(Bound, Bound)`, … of keys of the table: see `azekura::KeyRange`"
)]
pub trait KeyRange<K: ?Sized> {
    /// Returns the encoded bounds.
    fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);

    /// Returns the encoded bounds of a leading part of a key, which other parts follow, as for the keys of a
    /// multimap table.
    fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>);

    /// Returns the largest number of rows that a call reads: see [`Limit`].
    fn row_limit(&self) -> usize {
        usize::MAX
    }
}

impl<K: ?Sized> KeyRange<K> for RangeFull {
    fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
    fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

fn encoded_part<K: ?Sized, Q: AsKey<K>>(key: &Q) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key_part(&mut bytes);
    bytes
}

fn encoded<K: ?Sized, Q: AsKey<K>>(key: &Q) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_key(&mut bytes);
    bytes
}

macro_rules! key_range {
    ($($ty:ty)*) => {$(
        impl<K: ?Sized, Q: AsKey<K>> KeyRange<K> for $ty {
            fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
                (
                    RangeBounds::<Q>::start_bound(self).map(encoded),
                    RangeBounds::<Q>::end_bound(self).map(encoded),
                )
            }
            fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
                (
                    RangeBounds::<Q>::start_bound(self).map(encoded_part),
                    RangeBounds::<Q>::end_bound(self).map(encoded_part),
                )
            }
        }
    )*};
}
key_range! { Range<Q> RangeFrom<Q> RangeTo<Q> RangeInclusive<Q> RangeToInclusive<Q> (Bound<Q>, Bound<Q>) }

/// The range of keys that begin with `P`. `P` is a string or bytes, for keys of that type, or the leading
/// parts of a tuple.
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error, Prefix, TableDefinition};
/// const EVENTS: TableDefinition<(String, u32, u64), str> = TableDefinition::new("events");
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let events = tx.table(&EVENTS)?;
///     events.insert(&("door", 2, 17), "opened")?;
///     events.insert(&("door", 2, 18), "closed")?;
///     events.insert(&("doorbell", 1, 19), "rang")?;
///     assert_eq!(events.prefix(("door",)).count(), 2); // the short form of `range(Prefix(…))`
///     assert_eq!(events.remove_range(Prefix(("door", 2)))?, 2);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Prefix<P>(pub P);

impl<K: ?Sized, P: KeyPrefix<K>> KeyRange<K> for Prefix<P> {
    fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let mut prefix = Vec::new();
        self.0.encode_prefix(&mut prefix);
        let ByteBounds { lower, upper, .. } = ByteBounds::prefix(&prefix);
        (lower, upper)
    }
    fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let mut prefix = Vec::new();
        self.0.encode_part_prefix(&mut prefix);
        let ByteBounds { lower, upper, .. } = ByteBounds::prefix(&prefix);
        (lower, upper)
    }
}

/// A range with a largest number of rows (`LIMIT` in SQL): a call reads the first rows in its direction.
///
/// A cursor without a limit reads rows ahead, and in a transaction locks them, even if the caller stops
/// early. With a limit it reads and locks no row beyond the limit, and reads the rows of a leaf at once.
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error, Limit, TableDefinition};
/// const STOCK: TableDefinition<str, u64> = TableDefinition::new("stock");
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let stock = tx.table(&STOCK)?;
///     for name in ["barley", "oats", "rice", "soy"] {
///         stock.insert(name, &7)?;
///     }
///     let page = stock.range(Limit("c".., 2)).map(|row| Ok(row?.0)).collect::<Result<Vec<_>, Error>>()?;
///     assert_eq!(page, ["oats", "rice"]);
///     assert_eq!(stock.range(Limit(.., 2)).rev().count(), 2); // the last two
///     assert_eq!(stock.remove_range(Limit(.., 3))?, 3); // the first three
///     Ok(())
/// })
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limit<R>(pub R, pub usize);

impl<K: ?Sized, R: KeyRange<K>> KeyRange<K> for Limit<R> {
    fn encoded_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        self.0.encoded_bounds()
    }
    fn encoded_part_bounds(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        self.0.encoded_part_bounds()
    }
    fn row_limit(&self) -> usize {
        self.1.min(self.0.row_limit())
    }
}

/// A prefix of keys of type `K`, passed as an argument: see [`Prefix`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a prefix of keys of type `{K}`",
    note = "text has prefixes of text, bytes have prefixes of bytes, tuples have their leading parts: `(a,)`"
)]
pub trait KeyPrefix<K: ?Sized> {
    /// Appends the bytes that every key with this prefix begins with.
    fn encode_prefix(&self, out: &mut Vec<u8>);

    /// Appends the bytes that every key with this prefix begins with, if the prefix is in a part that other
    /// parts follow.
    fn encode_part_prefix(&self, out: &mut Vec<u8>) {
        self.encode_prefix(out);
    }
}

macro_rules! bytes_prefix {
    ($([$($generics:tt)*] $key:ty, $plain:ty;)*) => {$(
        impl<$($generics)* Q: AsRef<$plain>> KeyPrefix<$key> for Q {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                let plain: &$plain = self.as_ref();
                out.extend_from_slice(plain.as_ref());
            }
            fn encode_part_prefix(&self, out: &mut Vec<u8>) {
                let plain: &$plain = self.as_ref();
                put_bytes_part(plain.as_ref(), out);
                out.truncate(out.len() - 2); // the terminator follows only the whole text
            }
        }
    )*};
}
bytes_prefix! {
    [] [u8], [u8];
    [] Vec<u8>, [u8];
    ['k,] &'k [u8], [u8];
    [] str, str;
    [] String, str;
    ['k,] &'k str, str;
}

impl<const N: usize, Q: AsRef<[u8]>> KeyPrefix<[u8; N]> for Q {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_ref());
    }
}

macro_rules! tuple_prefix {
    ($($part:ident $form:ident $at:tt),+ ; $($rest:ident),+) => {
        impl<$($part: EncodeKey<$form>, $form,)+ $($rest),+>
            KeyPrefix<($($part,)+ $($rest),+)> for ($($form,)+)
        {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                $($part::encode_part(&self.$at, out);)+
            }
        }
        impl<$($part: EncodeKey<$form>, $form,)+ $($rest),+>
            KeyPrefix<($($part,)+ $($rest),+)> for &($($form,)+)
        {
            fn encode_prefix(&self, out: &mut Vec<u8>) {
                $($part::encode_part(&self.$at, out);)+
            }
        }
    };
}
tuple_prefix!(A QA 0; B);
tuple_prefix!(A QA 0; B, C);
tuple_prefix!(A QA 0, B QB 1; C);
tuple_prefix!(A QA 0; B, C, D);
tuple_prefix!(A QA 0, B QB 1; C, D);
tuple_prefix!(A QA 0, B QB 1, C QC 2; D);
tuple_prefix!(A QA 0; B, C, D, E);
tuple_prefix!(A QA 0, B QB 1; C, D, E);
tuple_prefix!(A QA 0, B QB 1, C QC 2; D, E);
tuple_prefix!(A QA 0, B QB 1, C QC 2, D QD 3; E);

/// The two ends of a range of encoded keys, and the largest number of rows to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByteBounds {
    pub(crate) lower: Bound<Vec<u8>>,
    pub(crate) upper: Bound<Vec<u8>>,
    pub(crate) row_limit: usize,
}

/// The largest batch of rows that a cursor reads at once, even if a leaf has more.
pub(crate) const MAX_BATCH: usize = 256;

/// The number of rows that a cursor may still return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsLeft {
    left: usize,
    is_limited: bool,
}

impl RowsLeft {
    pub(crate) const fn of(bounds: &ByteBounds) -> Self {
        Self { left: bounds.row_limit, is_limited: bounds.row_limit != usize::MAX }
    }

    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.left == 0
    }

    /// Counts one row if it was returned. A range without a limit has fewer than `usize::MAX` rows.
    #[inline]
    pub(crate) fn count(&mut self, is_delivered: bool) {
        self.left -= usize::from(is_delivered);
    }

    /// Counts up to `rows` returned rows; returns the number that was counted.
    pub(crate) fn count_up_to(&mut self, rows: usize) -> usize {
        let counted = rows.min(self.left);
        self.left -= counted;
        counted
    }

    /// Returns the size of the next batch: all remaining rows of a range with a limit, `unlimited` rows
    /// otherwise; at most [`MAX_BATCH`].
    pub(crate) fn next_batch(self, unlimited: usize) -> usize {
        if self.is_limited { self.left.min(MAX_BATCH) } else { unlimited.min(MAX_BATCH) }
    }
}

impl ByteBounds {
    pub(crate) const ALL: Self = Self::new(Bound::Unbounded, Bound::Unbounded);

    /// Returns the bounds of all rows between two ends.
    const fn new(lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        Self { lower, upper, row_limit: usize::MAX }
    }

    pub(crate) fn of<K: ?Sized>(range: &impl KeyRange<K>) -> Self {
        let (lower, upper) = range.encoded_bounds();
        Self { lower, upper, row_limit: range.row_limit() }
    }

    /// Returns the bounds of the encoded tuples with first parts in `range`.
    pub(crate) fn of_first_parts<K: ?Sized>(range: &impl KeyRange<K>) -> Self {
        let (lower, upper) = range.encoded_part_bounds();
        let lower = match lower {
            Bound::Excluded(part) => match Self::prefix(&part).upper {
                Bound::Excluded(next) => Bound::Included(next),
                _ => return Self::new(Bound::Excluded(part.clone()), Bound::Excluded(part)),
            },
            other => other,
        };
        let upper = match upper {
            Bound::Included(part) => Self::prefix(&part).upper,
            other => other,
        };
        Self { lower, upper, row_limit: range.row_limit() }
    }

    /// Returns the range directly above `key`, which contains at most one key.
    pub(crate) fn right_above(key: Vec<u8>) -> Self {
        let mut next = key.clone();
        next.push(0);
        Self::new(Bound::Excluded(key), Bound::Included(next))
    }

    /// Returns the bounds of all keys that begin with `prefix`.
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
        Self::new(Bound::Included(prefix.to_vec()), upper)
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        <Self as RangeBounds<[u8]>>::contains(self, key)
    }

    /// Returns the part of the range up to and including `last`, in one direction.
    pub(crate) fn up_to(&self, last: &[u8], is_ascending: bool) -> Self {
        let (mut part, end) = (self.clone(), Bound::Included(last.to_vec()));
        *(if is_ascending { &mut part.upper } else { &mut part.lower }) = end;
        part
    }

    /// Returns `true` if no key can lie between the ends.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(a), Bound::Included(b)) => a > b,
            // No byte string lies between `a` and `a + 00`, but an empty scan there costs little.
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
    fn bounds_are_encoded_keys() {
        let bounds = ByteBounds::of::<str>(&("a".."b"));
        assert_eq!(bounds.lower, Bound::Included(b"a".to_vec()));
        assert_eq!(ByteBounds::of::<u64>(&(1..=2)).upper, Bound::Included(vec![0, 0, 0, 0, 0, 0, 0, 2]));
        assert!(ByteBounds::of::<u64>(&(5..5)).is_empty());
        assert!(!ByteBounds::of::<u64>(&(5..=5)).is_empty());
        assert_eq!(ByteBounds::of::<(String, u8)>(&Prefix(("a",))).lower, Bound::Included(b"a\0\0".to_vec()));
    }
}
