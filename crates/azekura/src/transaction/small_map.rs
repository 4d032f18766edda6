//! A map for a few entries, which is searched linearly. With many entries it gets a hash index.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Largest number of entries for which a linear search is cheaper than a hash.
const SEARCHED: usize = 8;

/// A map with entries that keep their positions while the map grows.
#[derive(Debug)]
pub(super) struct SmallMap<K, V> {
    entries: Vec<(K, V)>,
    /// Positions of all entries; empty while the map is searched linearly.
    index: HashMap<K, usize>,
}

impl<K: Clone + Eq + Hash, V> SmallMap<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), index: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.index = HashMap::new();
    }

    /// Returns the position of a key's entry.
    #[inline]
    pub(super) fn find<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        if self.index.is_empty() {
            return self.entries.iter().position(|(known, _)| known.borrow() == key);
        }
        self.index.get(key).copied()
    }

    #[inline]
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).map(|at| &self.entries[at].1)
    }

    /// Adds an entry for a key that has none; returns the entry's position.
    pub(super) fn push(&mut self, key: K, value: V) -> usize {
        let at = self.entries.len();
        self.entries.push((key, value));
        if self.entries.len() == SEARCHED + 1 {
            self.index = (0..).zip(&self.entries).map(|(at, (key, _))| (key.clone(), at)).collect();
        } else if self.entries.len() > SEARCHED {
            self.index.insert(self.entries[at].0.clone(), at);
        }
        at
    }

    pub(super) fn key(&self, place: usize) -> &K {
        &self.entries[place].0
    }

    pub(super) fn at(&self, place: usize) -> &V {
        &self.entries[place].1
    }

    pub(super) fn at_mut(&mut self, place: usize) -> &mut V {
        &mut self.entries[place].1
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// A key that counts its comparisons.
    #[derive(Clone, Debug)]
    struct Counted(u32, Rc<Cell<u64>>);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }
    impl Eq for Counted {}
    impl Hash for Counted {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn a_search_does_not_grow_with_the_map() {
        let (mut map, count) = (SmallMap::new(), Rc::new(Cell::new(0)));
        let key = |n| Counted(n, Rc::clone(&count));
        for round in 0..2 {
            for n in 0..4_000 {
                assert_eq!(map.find(&key(n)), None, "round {round}");
                assert_eq!(map.push(key(n), n), n as usize);
            }
            count.set(0);
            assert!((0..4_000).all(|n| map.get(&key(n)) == Some(&n)));
            assert!(count.get() < 3 * 4_000, "{} comparisons", count.get());
            *map.at_mut(7) += 1;
            assert_eq!((map.at(7), map.len()), (&8, 4_000));
            map.clear();
        }
    }
}
