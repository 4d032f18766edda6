//! The records that exist before the work begins.

use crate::{Key, KeyOrder, Value};

/// The initial contents of a table: items `0 .. records`, each with its own value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dataset {
    records: u64,
    value_bytes: usize,
    order: KeyOrder,
}

impl Dataset {
    pub(crate) const fn new(records: u64, value_bytes: usize, order: KeyOrder) -> Self {
        Self { records, value_bytes, order }
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Returns the bytes of each value.
    #[must_use]
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns the key of an item.
    #[must_use]
    pub const fn key(&self, item: u64) -> Key {
        self.order.key(item)
    }

    /// Returns the initial value of an item. Updates write other values (see [`Value`]).
    #[must_use]
    pub const fn value(&self, item: u64) -> Value {
        Value(!item)
    }

    /// Returns all items in the order of their keys: the fastest order for filling an ordered table.
    ///
    /// Scattered keys are sorted first, which needs eight bytes of memory per record.
    #[must_use]
    pub fn items_in_key_order(&self) -> ItemsInKeyOrder {
        match self.order {
            KeyOrder::Ordered => ItemsInKeyOrder::Range(0..self.records),
            KeyOrder::Hashed => {
                let mut items: Vec<u64> = (0..self.records).collect();
                items.sort_unstable_by_key(|&item| self.key(item));
                ItemsInKeyOrder::Sorted(items.into_iter())
            }
        }
    }
}

/// Iterator of [`Dataset::items_in_key_order`].
#[derive(Debug)]
pub enum ItemsInKeyOrder {
    /// Keys are in item order.
    Range(std::ops::Range<u64>),
    /// Items sorted by their scattered keys.
    Sorted(std::vec::IntoIter<u64>),
}

impl Iterator for ItemsInKeyOrder {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Range(items) => items.next(),
            Self::Sorted(items) => items.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn items_come_in_key_order_and_each_once() {
        for order in [KeyOrder::Ordered, KeyOrder::Hashed] {
            let dataset = Dataset::new(5_000, 100, order);
            let items: Vec<u64> = dataset.items_in_key_order().collect();
            assert!(items.is_sorted_by_key(|&i| dataset.key(i)), "{order:?}");
            assert_eq!(items.iter().collect::<HashSet<_>>().len(), 5_000, "{order:?}");
        }
    }
}
