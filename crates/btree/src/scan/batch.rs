//! Records copied out of a leaf: what a scan hands out.

use crate::env::Env;
use crate::error::TreeError;
use crate::node::{FLAG_OVERFLOW, Node};
use crate::overflow::{self, OverflowRef};

/// A value in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// Its bytes.
    Inline(&'a [u8]),
    /// Where its bytes are: [`LeafBatch::read_value`].
    Large(OverflowRef),
}

/// Where a record lies in a batch's buffer: key, then value.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key_at: usize,
    value_at: usize,
    end: usize,
    flags: u16,
}

/// Records copied out of one leaf, in the order of the scan. Reuse it: it keeps its memory.
#[derive(Debug, Default)]
pub struct LeafBatch {
    bytes: Vec<u8>,
    used: usize,
    prefix: Vec<u8>,
    entries: Vec<Entry>,
}

impl LeafBatch {
    /// A batch without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The key of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[must_use]
    pub fn key(&self, i: usize) -> &[u8] {
        let entry = self.entries[i];
        &self.bytes[entry.key_at..entry.value_at]
    }

    /// The value of record `i`.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    #[must_use]
    pub fn value(&self, i: usize) -> ValueRef<'_> {
        let entry = self.entries[i];
        let bytes = &self.bytes[entry.value_at..entry.end];
        match OverflowRef::decode(bytes) {
            Some(reference) if entry.flags & FLAG_OVERFLOW != 0 => ValueRef::Large(reference),
            _ => ValueRef::Inline(bytes),
        }
    }

    /// Appends the value of record `i` to `out`, large or not.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`], for a large value.
    ///
    /// # Panics
    ///
    /// If there is no record `i`.
    pub fn read_value(&self, env: &Env, i: usize, out: &mut Vec<u8>) -> Result<(), TreeError> {
        match self.value(i) {
            ValueRef::Inline(bytes) => {
                out.extend_from_slice(bytes);
                Ok(())
            }
            ValueRef::Large(reference) => overflow::read(env, reference, out),
        }
    }

    pub(super) fn start(&mut self, node: Node<'_>) {
        self.clear();
        self.prefix.clear();
        node.prefix_into(&mut self.prefix);
    }

    /// Forgets all records and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.used = 0;
    }

    /// Copies slot `i` of `node`, whole words at a time, into memory that is there already.
    #[inline]
    pub(super) fn push(&mut self, node: Node<'_>, i: usize) {
        let slot = node.slot(i);
        let (suffix_len, value_len) = (usize::from(slot.suffix_len), usize::from(slot.value_len));
        let key_at = self.used;
        let value_at = key_at + self.prefix.len() + suffix_len;
        let end = value_at + value_len;
        // Room for the head as a whole word, too.
        if end + 8 > self.bytes.len() {
            self.bytes.resize((end + 8).next_power_of_two(), 0);
        }
        let suffix_at = key_at + self.prefix.len();
        self.bytes[key_at..suffix_at].copy_from_slice(&self.prefix);
        self.bytes[suffix_at..suffix_at + 8].copy_from_slice(&slot.head.to_be_bytes());
        if suffix_len > 8 {
            node.page().read(8 * usize::from(slot.offset), &mut self.bytes[suffix_at + 8..value_at]);
        }
        node.page().read(slot.value_at(), &mut self.bytes[value_at..end]);
        self.entries.push(Entry { key_at, value_at, end, flags: slot.flags });
        self.used = end;
    }
}
