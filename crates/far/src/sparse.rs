//! A sparse table with an entry for each page of a region. Most pages may never be touched, because a
//! program's region is as large as its blocks may ever be.
//!
//! Memory is allocated in parts, each at the first write to it. An unwritten entry reads as the table's
//! initial value.

use std::ops::{Index, IndexMut};

/// Number of values in a part.
const PART: usize = 256;

/// A vector of fixed length with unallocated parts; see the [module](self). Panics if an index is out of
/// bounds.
#[derive(Clone, Debug)]
pub(crate) struct Sparse<T> {
    parts: Vec<Option<Box<[T; PART]>>>,
    blank: T,
    len: usize,
}

impl<T: Copy> Sparse<T> {
    /// Returns a table of `len` equal values. An unwritten part takes eight bytes.
    pub(crate) fn new(blank: T, len: usize) -> Self {
        Self { parts: vec![None; len.div_ceil(PART)], blank, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        (at < self.len).then(|| &self[at])
    }

    /// Returns `true` if the part of this index was never written.
    pub(crate) fn is_blank(&self, at: usize) -> bool {
        self.parts[at / PART].is_none()
    }

    /// Returns the indices of all values in written parts. All other values are the initial value.
    pub(crate) fn written(&self) -> impl Iterator<Item = usize> + use<T> {
        let parts: Vec<usize> = (0..self.parts.len()).filter(|&part| self.parts[part].is_some()).collect();
        let len = self.len;
        parts.into_iter().flat_map(move |part| part * PART..((part + 1) * PART).min(len))
    }

    /// Returns the values in written parts.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.written().map(|at| &self[at])
    }
}

impl<T> Index<usize> for Sparse<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        assert!(at < self.len, "place {at} of {}", self.len);
        self.parts[at / PART].as_ref().map_or(&self.blank, |part| &part[at % PART])
    }
}

impl<T: Copy> IndexMut<usize> for Sparse<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        assert!(at < self.len, "place {at} of {}", self.len);
        let blank = self.blank;
        &mut self.parts[at / PART].get_or_insert_with(|| Box::new([blank; PART]))[at % PART]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn it_does_what_a_vector_does() {
        for len in [1, PART - 1, PART, 3 * PART + 7] {
            let mut rng = StdRng::seed_from_u64(len as u64);
            let (mut sparse, mut plain) = (Sparse::new(9_u64, len), vec![9; len]);
            for _ in 0..len {
                let (at, value) = (rng.random_range(0..len), rng.random());
                (sparse[at], plain[at]) = (value, value);
                let looked = rng.random_range(0..len + 3);
                assert_eq!(sparse.get(looked), plain.get(looked), "{len}");
            }
            assert_eq!(sparse.len(), len);
            assert!((0..len).all(|at| sparse[at] == plain[at]), "{len}");
        }
    }

    #[test]
    fn unwritten_entries_take_no_memory_and_are_not_visited() {
        let mut sparse = Sparse::new(0_u32, 100 * PART);
        assert_eq!((sparse[5], sparse.iter().count()), (0, 0));
        sparse[7 * PART + 3] = 1;
        assert_eq!(sparse.parts.iter().flatten().count(), 1);
        assert!(sparse.written().eq(7 * PART..8 * PART));
        assert_eq!(sparse.iter().sum::<u32>(), 1);
    }

    #[test]
    #[should_panic(expected = "place 3 of 3")]
    fn behind_its_end_there_is_nothing() {
        Sparse::new(0_u8, 3)[3] = 1;
    }
}
