//! Rows of a range, from both ends.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::Error;
use crate::key::Key;
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

/// One row as stored.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// What one step of a scan brought.
#[derive(Debug)]
pub(crate) struct Batch {
    /// In the direction of the scan.
    pub(crate) rows: Vec<Row>,
    /// Whether nothing is left beyond them.
    pub(crate) exhausted: bool,
}

/// The first step reads one row, so that `first()` locks one; later ones double up to this.
const MAX_BATCH: usize = 256;

/// Iterator over the rows of a range; made by [`OpenTable::range`](crate::OpenTable::range).
///
/// Sees the transaction's own writes, also those made while it runs. After an error it ends.
pub struct Range<'tx, K: ?Sized, V: ?Sized> {
    tx: &'tx Transaction,
    tree: OpenTree,
    /// What has not been delivered yet.
    rest: ByteBounds,
    front: VecDeque<Row>,
    back: VecDeque<Row>,
    batch: usize,
    /// The transaction's count of writes when `front` and `back` were read; they are stale when it has moved.
    writes: u64,
    done: bool,
    types: Types<K, V>,
}

impl<K: ?Sized, V: ?Sized> fmt::Debug for Range<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("rest", &self.rest).field("done", &self.done).finish_non_exhaustive()
    }
}

type Decoded<K, V> = Result<RowOf<K, V>, Error>;

impl<'tx, K: Key + ?Sized, V: Value + ?Sized> Range<'tx, K, V> {
    pub(crate) fn new(tx: &'tx Transaction, tree: OpenTree, bounds: ByteBounds) -> Self {
        let done = bounds.is_empty();
        Self {
            tx,
            tree,
            rest: bounds,
            front: VecDeque::new(),
            back: VecDeque::new(),
            batch: 1,
            writes: tx.write_count(),
            done,
            types: PhantomData,
        }
    }

    fn step(&mut self, direction: Direction) -> Option<Decoded<K, V>> {
        if self.writes != self.tx.write_count() {
            self.writes = self.tx.write_count();
            self.front.clear();
            self.back.clear();
        }
        if let Some(row) = self.buffered(direction) {
            return Some(self.deliver(row, direction));
        }
        if self.done {
            return None;
        }
        // What the other end has buffered lies inside `rest` still: drop it, or it would be delivered twice.
        self.front.clear();
        self.back.clear();
        let batch = match self.tx.scan(&self.tree, &self.rest, direction, self.batch) {
            Ok(batch) => batch,
            Err(error) => {
                self.done = true;
                return Some(Err(error));
            }
        };
        self.batch = (self.batch * 2).min(MAX_BATCH);
        // Rows that both ends may still want keep the range open; the buffer holds all of what is left.
        self.done = batch.exhausted && batch.rows.is_empty();
        match direction {
            Direction::Forward => self.front = batch.rows.into(),
            Direction::Backward => self.back = batch.rows.into(),
        }
        self.buffered(direction).map(|row| self.deliver(row, direction))
    }

    fn buffered(&mut self, direction: Direction) -> Option<Row> {
        match direction {
            Direction::Forward => self.front.pop_front(),
            Direction::Backward => self.back.pop_front(),
        }
    }

    fn deliver(&mut self, row: Row, direction: Direction) -> Decoded<K, V> {
        let decode = |source| Error::Decode { table: self.tree.name().to_owned(), source };
        let key = K::decode(&row.key).map_err(decode);
        let value = V::decode(row.value).map_err(decode);
        match direction {
            Direction::Forward => self.rest.lower = Bound::Excluded(row.key),
            Direction::Backward => self.rest.upper = Bound::Excluded(row.key),
        }
        if self.rest.is_empty() {
            self.done = true;
        }
        match (key, value) {
            (Ok(key), Ok(value)) => Ok((key, value)),
            (Err(error), _) | (_, Err(error)) => {
                self.done = true;
                self.front.clear();
                self.back.clear();
                Err(error)
            }
        }
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
