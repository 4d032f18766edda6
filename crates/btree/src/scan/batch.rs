//! Records copied out of a leaf: the output of a scan.

use azekura_base::{PageId, PageWords};

use crate::env::Env;
use crate::error::TreeError;
use crate::node::{Cell, FLAG_OVERFLOW, Node};
use crate::overflow::{self, OverflowRef};

/// A value in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// The bytes of the value.
    Inline(&'a [u8]),
    /// A reference to a large value: see [`read`](Self::read) and [`ChainReader`](crate::ChainReader).
    Large(OverflowRef),
}

impl<'a> ValueRef<'a> {
    /// Returns the value in a leaf's cell, or the reference in it.
    ///
    /// # Errors
    ///
    /// [`TreeError::Corrupt`] for a reference with a wrong length.
    #[inline]
    pub fn of_cell(cell: Cell<'a>) -> Result<Self, TreeError> {
        Self::check(cell)?;
        Ok(Self::of_checked(cell))
    }

    /// Checks that a leaf's cell is not a reference with a wrong length.
    ///
    /// # Errors
    ///
    /// As for [`of_cell`](Self::of_cell).
    #[inline]
    pub fn check(cell: Cell<'_>) -> Result<(), TreeError> {
        if cell.flags & FLAG_OVERFLOW == 0 || OverflowRef::decode(cell.value).is_some() {
            return Ok(());
        }
        Err(wrong_reference())
    }

    /// Returns the value as [`of_cell`](Self::of_cell) does, for a cell that was [checked](Self::check). In
    /// an unchecked cell the bytes of a wrong reference would be returned as a value.
    #[inline]
    #[must_use]
    pub fn of_checked(cell: Cell<'a>) -> Self {
        if cell.flags & FLAG_OVERFLOW == 0 {
            return Self::Inline(cell.value);
        }
        OverflowRef::decode(cell.value).map_or(Self::Inline(cell.value), Self::Large)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Large(reference) => reference.len,
        }
    }

    /// Returns `true` if there are no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Appends the value to `out`.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`], for a large value.
    pub fn read(self, env: &Env, out: &mut Vec<u8>) -> Result<(), TreeError> {
        match self {
            Self::Inline(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            Self::Large(reference) => overflow::read(env, reference, out),
        }
    }

    /// Copies the bytes from `offset` on to `out`, as many as exist and fit; returns their number. For a
    /// large value, reads only the pages with these bytes and the first page of each run before them.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn read_at(self, env: &Env, offset: u64, out: &mut [u8]) -> Result<usize, TreeError> {
        match self {
            Self::Inline(bytes) => {
                let rest = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
                let len = rest.len().min(out.len());
                out[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
            Self::Large(reference) => overflow::read_at(env, reference, offset, out),
        }
    }
}

#[cold]
fn wrong_reference() -> TreeError {
    TreeError::corrupt(PageId(0), "a reference to a large value has a wrong length")
}

/// The position of a record in a batch's buffer: key, then value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    key_at: u32,
    value_at: u32,
    end: u32,
    flags: u16,
}

/// Number of bytes that one copy of a prefix or of a short value moves.
const BLOCK: usize = 32;
/// Space after the last record, so that blocks can be copied whole.
const SLACK: usize = BLOCK;

/// Records copied out of one leaf, in the order of the scan. Reuse a batch: its memory is kept.
#[derive(Debug, Default)]
pub struct LeafBatch {
    bytes: Vec<u8>,
    used: usize,
    /// The prefix of all keys, padded to a multiple of [`BLOCK`].
    prefix: Vec<u8>,
    prefix_len: usize,
    entries: Vec<Entry>,
    /// `true` if a record of the last leaf has a large value.
    has_large: bool,
}

impl LeafBatch {
    /// Returns a batch without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of records.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the key of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[inline]
    #[must_use]
    pub fn key(&self, i: usize) -> &[u8] {
        self.key_of(&self.entries[i])
    }

    /// Returns the cell of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[inline]
    #[must_use]
    pub fn cell(&self, i: usize) -> Cell<'_> {
        let entry = self.entries[i];
        Cell { flags: entry.flags, value: &self.bytes[entry.value_at as usize..entry.end as usize] }
    }

    /// Returns the key and cell of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[inline]
    #[must_use]
    pub fn row(&self, i: usize) -> (&[u8], Cell<'_>) {
        let entry = self.entries[i];
        let row = &self.bytes[entry.key_at as usize..entry.end as usize];
        let (key, value) = row.split_at((entry.value_at - entry.key_at) as usize);
        (key, Cell { flags: entry.flags, value })
    }

    /// Appends the value of record `i` to `out`, inline or large.
    ///
    /// # Errors
    ///
    /// As for [`ValueRef::of_cell`] and [`ValueRef::read`].
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    pub fn read_value(&self, env: &Env, i: usize, out: &mut Vec<u8>) -> Result<(), TreeError> {
        ValueRef::of_cell(self.cell(i))?.read(env, out)
    }

    /// Appends a record from another source than a leaf.
    pub(crate) fn push_copy(&mut self, key: &[u8], flags: u16, value: &[u8]) {
        let key_at = self.used;
        let value_at = key_at + key.len();
        let end = value_at + value.len();
        if end + SLACK > self.bytes.len() {
            self.bytes.resize((end + SLACK).next_power_of_two(), 0);
        }
        self.bytes[key_at..value_at].copy_from_slice(key);
        self.bytes[value_at..end].copy_from_slice(value);
        self.entries.push(Entry { key_at: key_at as u32, value_at: value_at as u32, end: end as u32, flags });
        self.used = end;
    }

    /// Removes all records, but not their bytes, and returns their positions in the buffer. Reserves memory
    /// for these records and `more` others.
    pub(crate) fn take_entries(&mut self, more: usize) -> Vec<Entry> {
        let len = self.entries.len() + more;
        std::mem::replace(&mut self.entries, Vec::with_capacity(len))
    }

    /// Returns the key of a record from [`take_entries`](Self::take_entries).
    #[inline]
    pub(crate) fn key_of(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.key_at as usize..entry.value_at as usize]
    }

    /// Appends records from [`take_entries`](Self::take_entries).
    pub(crate) fn keep(&mut self, entries: &[Entry]) {
        self.entries.extend_from_slice(entries);
    }

    /// Replaces the records of the batch by slots of `node`. Copies whole words and blocks at a time. Rare
    /// cases are separate functions, so that the variables of the loop stay in registers.
    pub(super) fn take(&mut self, node: Node<'_>, slots: impl ExactSizeIterator<Item = usize>) {
        self.prefix.clear();
        node.prefix_into(&mut self.prefix);
        self.prefix_len = self.prefix.len();
        self.prefix.resize(self.prefix_len.next_multiple_of(BLOCK), 0);
        let (prefix, prefix_len, page) = (self.prefix.as_chunks::<BLOCK>().0, self.prefix_len, node.page());
        let (bytes, mut at, mut flags) = (&mut self.bytes, 0, 0);
        self.entries.resize(slots.len(), Entry::default());
        for (entry, i) in self.entries.iter_mut().zip(slots) {
            let slot = node.slot(i);
            let (suffix_len, value_len) = (usize::from(slot.suffix_len), usize::from(slot.value_len));
            let (key_at, value_at) = (at, at + prefix_len + suffix_len);
            at = value_at + value_len;
            flags |= slot.flags;
            if at + SLACK > bytes.len() {
                grow(bytes, at + SLACK);
            }
            *entry =
                Entry { key_at: key_at as u32, value_at: value_at as u32, end: at as u32, flags: slot.flags };
            // Each copy overwrites the excess bytes of the previous copy.
            match prefix {
                [] => {}
                [block] => bytes[key_at..key_at + BLOCK].copy_from_slice(block),
                blocks => copy_long(blocks.as_flattened(), &mut bytes[key_at..]),
            }
            let suffix_at = key_at + prefix_len;
            bytes[suffix_at..suffix_at + 8].copy_from_slice(&slot.head.to_be_bytes());
            if suffix_len > 8 {
                page.read(8 * usize::from(slot.offset), &mut bytes[suffix_at + 8..value_at]);
            }
            let value = &mut bytes[value_at..at + SLACK];
            match value.first_chunk_mut::<BLOCK>() {
                Some(block) if value_len <= BLOCK => page.read_block(slot.value_at() / 8, block),
                _ => read_long(page, slot.value_at() / 8, &mut value[..value_len.next_multiple_of(8)]),
            }
        }
        self.used = at;
        self.has_large = flags & FLAG_OVERFLOW != 0;
    }

    /// Prefetches the starts of the large values, which the caller probably reads next.
    pub(super) fn prefetch_large(&self, env: &Env) {
        if !self.has_large {
            return;
        }
        for i in 0..self.len() {
            if let Ok(ValueRef::Large(reference)) = ValueRef::of_cell(self.cell(i)) {
                overflow::prefetch(env, reference);
            }
        }
    }

    /// Returns the size of the keys and cells in the buffer, in bytes.
    pub(crate) const fn used_bytes(&self) -> usize {
        self.used
    }

    /// Returns the memory of the batch, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.prefix.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Removes all records and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
    }

    /// Removes record `i`.
    pub(super) fn leave_out(&mut self, i: usize) {
        self.entries.remove(i);
    }
}

#[cold]
fn grow(bytes: &mut Vec<u8>, len: usize) {
    bytes.resize(len.next_power_of_two(), 0);
}

#[inline(never)]
fn copy_long(prefix: &[u8], out: &mut [u8]) {
    out[..prefix.len()].copy_from_slice(prefix);
}

#[inline(never)]
fn read_long(page: PageWords<'_>, index: usize, out: &mut [u8]) {
    page.read_words(index, out);
}
