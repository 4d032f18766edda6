//! `Merge`: merges the rows of several runs into one order, by a binary heap of their readers.

use super::run::{Run, RunReader};
use crate::Error;

/// Several runs that are being merged. Among rows with equal keys, the row of the newest run is returned, and
/// the others are skipped.
#[derive(Debug)]
pub(super) struct Merge {
    /// Readers of the runs, oldest run first.
    readers: Vec<RunReader>,
    /// Indexes of the readers that have a row: a heap with the least row at the root.
    heap: Vec<usize>,
    /// Key of the row returned last.
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Merge {
    /// Begins a merge of `runs`, which are ordered by age, oldest first.
    pub(super) fn new(runs: Vec<Run>) -> Result<Self, Error> {
        let readers = runs.into_iter().map(RunReader::new).collect();
        let mut merge = Self { readers, heap: Vec::new(), key: Vec::new(), value: Vec::new() };
        for reader in 0..merge.readers.len() {
            if merge.readers[reader].advance()? {
                merge.heap.push(reader);
            }
        }
        for at in (0..merge.heap.len() / 2).rev() {
            merge.sift_down(at);
        }
        Ok(merge)
    }

    /// Moves to the next row; returns `false` at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        let Some(&least) = self.heap.first() else { return Ok(false) };
        self.key.clear();
        self.key.extend_from_slice(self.readers[least].key());
        self.value.clear();
        self.value.extend_from_slice(self.readers[least].value());
        while let Some(&least) = self.heap.first()
            && self.readers[least].key() == self.key
        {
            if !self.readers[least].advance()? {
                self.heap.swap_remove(0);
            }
            self.sift_down(0);
        }
        Ok(true)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.value
    }

    /// Restores the order of the heap below `at`.
    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(least) = children.reduce(|a, b| if self.is_before(b, a) { b } else { a }) else {
                return;
            };
            if !self.is_before(least, at) {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    /// Returns `true` if the row at index `a` of the heap comes before the row at `b`. Rows are ordered by
    /// key, then by age, newer run first.
    fn is_before(&self, a: usize, b: usize) -> bool {
        let [a, b] = [a, b].map(|at| self.heap[at]);
        (self.readers[a].key(), b) < (self.readers[b].key(), a)
    }
}
