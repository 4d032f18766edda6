//! One node of a tree inside one page: layout, and reading while the page changes.
//!
//! All numbers are little-endian. Offsets inside the page count 8-byte *words*, so that they fit 16 bits at a
//! page size of 64 KiB.
//!
//! | bytes | field |
//! |---|---|
//! | 0..24 | common header; byte 5 = level (0 = leaf), bytes 6..8 = number of slots |
//! | 24..26 | heap start in words: cells lie from here up to the fences |
//! | 26..28 | garbage: words inside the heap that no cell uses |
//! | 28..30, 30..32 | lengths of the lower (inclusive) and upper (exclusive) fence; an upper one of 0: none |
//! | 32..34 | prefix length: every key of the node starts with that many bytes of the lower fence |
//! | 34..36 | zero |
//! | 36..40 | tree id |
//! | 40..48 | zero |
//! | 48.. | slots, 16 bytes each, ascending by key |
//! | .. | free |
//! | heap start .. | cells, each a whole number of words |
//! | .. end | upper fence, lower fence, each padded to words |
//!
//! A slot has two words. The first is `head`: the first 8 bytes of the suffix, big-endian, zero-padded. The
//! second is `cell offset: u16, suffix length: u16, value length: u16, flags: u16`. The *suffix* is the key
//! without the node's prefix. The cell holds only the suffix bytes beyond the head: `[suffix bytes 8..,
//! padded][value, padded]`. So a suffix of up to 8 bytes lies entirely in its slot, and most comparisons read
//! only slots.
//!
//! An inner node's slot is (lowest key of the child, child page id). The lowest key of the first child is the
//! node's lower fence, so slot 0 has the empty suffix, which sorts before the suffixes of the other slots.
//! (In nodes of release 0.2.0 that were not rebuilt since then, slot 0 has the suffix of the lower fence.)
//!
//! Readers may read a page while it changes. Every function here is total: counts are clamped to the page,
//! offsets beyond it read as zero bytes, and the clamped counts bound all loops. Results are reliable only
//! after the reader has validated the page version.

mod build;
mod edit;
mod search;
mod split;
mod verify;

use azekura_base::page::PageType;
use azekura_base::{PageId, PageWords, TreeId};

pub use build::{NodeSpec, Scratch, merged_fit};
pub(crate) use build::{build_truncated, build_with_lower, check_truncated};
pub use edit::{CorruptNode, check_insert, check_remove, check_replace};
pub(crate) use edit::{flip, insert, remove, replace};
pub use search::Position;
pub use split::{SplitPoint, choose_split, separator};
pub use verify::{Expected, verify_node};

/// Byte where the slots begin.
pub const SLOTS_AT: usize = 48;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16;
/// Bytes of a child's page id in an inner node.
pub(crate) const CHILD_BYTES: usize = 8;
/// Flag of a slot: the value is a reference to an overflow chain.
pub const FLAG_OVERFLOW: u16 = 1;

pub(crate) const LEVEL_AT: usize = 5;
pub(crate) const COUNT_AT: usize = 6;
pub(crate) const HEAP_AT: usize = 24;
pub(crate) const GARBAGE_AT: usize = 26;
pub(crate) const LOWER_LEN_AT: usize = 28;
pub(crate) const UPPER_LEN_AT: usize = 30;
pub(crate) const PREFIX_LEN_AT: usize = 32;
pub(crate) const TREE_AT: usize = 36;

/// Returns the longest key in bytes: a quarter of the page (2 KiB at 8 KiB pages). A page without the trailer
/// of a cipher has the keys of a whole page.
#[must_use]
pub const fn max_key(page_size: usize) -> usize {
    page_size.div_ceil(64) * 16
}

/// Returns the most bytes of an entry, in whole words: 5/16 of the page less 24 (2,536 at 8 KiB pages).
///
/// [`max_key`] bounds the fences. Together the two limits guarantee that splits make room for any entry
/// (proof in `node::split`).
#[must_use]
pub const fn max_entry(page_size: usize) -> usize {
    (5 * page_size / 16 - 24) / 8 * 8
}

/// Returns the length in bytes of the longest value that is stored in the leaf itself, under a key of
/// `key_len` bytes. Longer values are stored in an overflow chain. Key and value share [`max_entry`]: at 8
/// KiB pages 2,520 bytes under a key of up to 8 bytes, and 480 under the longest key.
#[must_use]
pub const fn max_inline_value(page_size: usize, key_len: usize) -> usize {
    max_entry(page_size) - entry_bytes(key_len, 0)
}

/// Returns the number of words for `len` bytes.
pub(crate) const fn words_for(len: usize) -> usize {
    len.div_ceil(8)
}

/// Returns the number of words of a cell with a suffix of `suffix_len` bytes and a value of `value_len`
/// bytes.
pub(crate) const fn cell_words(suffix_len: usize, value_len: usize) -> usize {
    words_for(suffix_len.saturating_sub(8)) + words_for(value_len)
}

/// Returns the number of bytes that an entry needs in a node: slot and cell.
#[must_use]
pub const fn entry_bytes(suffix_len: usize, value_len: usize) -> usize {
    SLOT_BYTES + 8 * cell_words(suffix_len, value_len)
}

/// Returns the first eight bytes of `suffix`, big-endian and zero-padded. Their order as numbers is the order
/// of the bytes.
#[inline]
pub(crate) fn head_of(suffix: &[u8]) -> u64 {
    if let Some(head) = suffix.first_chunk::<8>() {
        return u64::from_be_bytes(*head);
    }
    let mut padded = [0; 8];
    padded[..suffix.len()].copy_from_slice(suffix);
    u64::from_be_bytes(padded)
}

/// Returns the length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The content of a slot besides its key: a value, or a reference to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cell<'a> {
    /// [`FLAG_OVERFLOW`] or 0.
    pub flags: u16,
    /// The bytes in the cell.
    pub value: &'a [u8],
}

impl<'a> Cell<'a> {
    /// Returns the cell of a value that is stored in the leaf.
    #[must_use]
    pub const fn inline(value: &'a [u8]) -> Self {
        Self { flags: 0, value }
    }
}

/// A decoded slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First eight suffix bytes, big-endian.
    pub head: u64,
    /// Word offset at which the cell starts.
    pub offset: u16,
    /// Bytes of the key beyond the node's prefix.
    pub suffix_len: u16,
    /// Bytes of the value.
    pub value_len: u16,
    /// [`FLAG_OVERFLOW`] or 0.
    pub flags: u16,
}

impl Slot {
    pub(crate) const fn from_words(head: u64, meta: u64) -> Self {
        Self {
            head,
            offset: meta as u16,
            suffix_len: (meta >> 16) as u16,
            value_len: (meta >> 32) as u16,
            flags: (meta >> 48) as u16,
        }
    }

    pub(crate) const fn meta(self) -> u64 {
        self.offset as u64
            | (self.suffix_len as u64) << 16
            | (self.value_len as u64) << 32
            | (self.flags as u64) << 48
    }

    /// Returns the slot of the same entry in a node with a prefix that is `longer` bytes longer. `None` if
    /// the cell would have to change: the key extends beyond the slot, and some of its bytes are dropped.
    pub(crate) const fn with_longer_prefix(self, longer: usize) -> Option<Self> {
        let len = self.suffix_len as usize;
        if longer == 0 {
            return Some(self);
        }
        if len > 8 || len < longer {
            return None;
        }
        let head = if longer == 8 { 0 } else { self.head << (8 * longer) };
        Some(Self { head, suffix_len: (len - longer) as u16, ..self })
    }

    /// Returns the number of words of the cell.
    #[must_use]
    pub const fn cell_words(self) -> usize {
        cell_words(self.suffix_len as usize, self.value_len as usize)
    }

    /// Returns the byte offset at which the value starts.
    #[inline]
    #[must_use]
    pub const fn value_at(self) -> usize {
        8 * (self.offset as usize + words_for((self.suffix_len as usize).saturating_sub(8)))
    }
}

/// A page read as a node. Copying it copies a reference.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a>(PageWords<'a>);

impl<'a> Node<'a> {
    /// Returns `page` as a node, without any check.
    #[inline]
    #[must_use]
    pub const fn new(page: PageWords<'a>) -> Self {
        Self(page)
    }

    /// Returns the page.
    #[inline]
    #[must_use]
    pub const fn page(self) -> PageWords<'a> {
        self.0
    }

    /// Returns the height above the leaves, 0 for a leaf; `None` if the page is not a node.
    #[inline]
    #[must_use]
    pub fn level(self) -> Option<u8> {
        let word = self.0.word(0);
        let level = (word >> 40) as u8;
        let page_type = (word >> 32) as u8;
        let leaf = page_type == PageType::Leaf as u8 && level == 0;
        let inner = page_type == PageType::Inner as u8 && level > 0;
        (leaf || inner).then_some(level)
    }

    /// Returns the tree that the node belongs to.
    #[must_use]
    pub fn tree(self) -> TreeId {
        TreeId(self.0.u32(TREE_AT))
    }

    /// Returns the number of slots, at most the number that fits the page.
    #[inline]
    #[must_use]
    pub fn count(self) -> usize {
        let count = (self.0.word(0) >> 48) as usize;
        count.min((self.0.len() - SLOTS_AT) / SLOT_BYTES)
    }

    /// Returns slot `i`; zeroes beyond the page.
    #[inline]
    #[must_use]
    pub fn slot(self, i: usize) -> Slot {
        let at = (SLOTS_AT + SLOT_BYTES * i) / 8;
        let [head, meta] = self.0.two_words(at);
        Slot::from_words(head, meta)
    }

    #[inline]
    pub(crate) fn head(self, i: usize) -> u64 {
        self.0.word((SLOTS_AT + SLOT_BYTES * i) / 8)
    }

    /// Returns the length of the prefix that all keys share.
    #[inline]
    #[must_use]
    pub fn prefix_len(self) -> usize {
        self.0.word(PREFIX_LEN_AT / 8) as u16 as usize
    }

    pub(crate) fn heap_words(self) -> usize {
        self.0.u16(HEAP_AT).into()
    }

    pub(crate) fn garbage_words(self) -> usize {
        self.0.u16(GARBAGE_AT).into()
    }

    fn lower_len(self) -> usize {
        self.0.u16(LOWER_LEN_AT).into()
    }

    fn upper_len(self) -> usize {
        self.0.u16(UPPER_LEN_AT).into()
    }

    #[inline]
    fn lower_at(self) -> usize {
        self.0.len().saturating_sub(8 * words_for(self.lower_len()))
    }

    fn upper_at(self) -> usize {
        self.lower_at().saturating_sub(8 * words_for(self.upper_len()))
    }

    /// Appends the lower fence: no key of the node is below it.
    pub fn lower_into(self, out: &mut Vec<u8>) {
        self.0.read_into(self.lower_at(), self.lower_len(), out);
    }

    /// Returns `true` if the node has no upper bound.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.upper_len() == 0
    }

    /// Appends the upper fence, which is above all keys of the node; appends nothing if there is none.
    pub fn upper_into(self, out: &mut Vec<u8>) {
        self.0.read_into(self.upper_at(), self.upper_len(), out);
    }

    /// Returns `true` if `key` lies between the fences.
    #[must_use]
    pub fn covers(self, key: &[u8]) -> bool {
        self.0.compare(self.lower_at(), self.lower_len(), key).is_le() && self.is_below_upper(key)
    }

    /// Returns `true` if `key` is below the upper fence.
    #[must_use]
    pub fn is_below_upper(self, key: &[u8]) -> bool {
        self.is_last() || self.0.compare(self.upper_at(), self.upper_len(), key).is_gt()
    }

    /// Returns `true` if the keys just below `key` are not above the node: the upper fence is `key` or
    /// higher.
    #[must_use]
    pub fn reaches(self, key: &[u8]) -> bool {
        self.is_last() || self.0.compare(self.upper_at(), self.upper_len(), key).is_ge()
    }

    /// Appends the key of slot `i`.
    pub fn key_into(self, i: usize, out: &mut Vec<u8>) {
        let slot = self.slot(i);
        // At most a page: while the page changes, any length may be read here.
        out.reserve((self.prefix_len() + usize::from(slot.suffix_len)).min(self.0.len()));
        self.0.read_into(self.lower_at(), self.prefix_len(), out);
        self.suffix_into(slot, out);
    }

    pub(crate) fn suffix_into(self, slot: Slot, out: &mut Vec<u8>) {
        let len = usize::from(slot.suffix_len);
        out.extend_from_slice(&slot.head.to_be_bytes()[..len.min(8)]);
        if len > 8 {
            self.0.read_into(8 * usize::from(slot.offset), len - 8, out);
        }
    }

    pub(crate) fn prefix_into(self, out: &mut Vec<u8>) {
        self.0.read_into(self.lower_at(), self.prefix_len(), out);
    }

    /// Returns the key of slot `i`, freshly allocated.
    #[must_use]
    pub fn key(self, i: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.key_into(i, &mut out);
        out
    }

    /// Returns the lowest key of the child in slot `i` of an inner node.
    #[must_use]
    pub fn child_key(self, i: usize) -> Vec<u8> {
        if i > 0 {
            return self.key(i);
        }
        let mut lower = Vec::new();
        self.lower_into(&mut lower);
        lower
    }

    /// Appends the value of `slot`.
    #[inline]
    pub fn value_into(self, slot: Slot, out: &mut Vec<u8>) {
        self.0.read_into(slot.value_at(), slot.value_len.into(), out);
    }

    /// Returns the child in slot `i` of an inner node.
    #[inline]
    #[must_use]
    pub fn child(self, i: usize) -> PageId {
        PageId(self.0.word(self.slot(i).value_at() / 8))
    }

    /// Returns the number of bytes that entries may use: all except header and fences.
    #[must_use]
    pub fn capacity(self) -> usize {
        self.upper_at().saturating_sub(SLOTS_AT)
    }

    /// Returns the number of contiguous free bytes between slots and heap.
    #[must_use]
    pub fn contiguous_free(self) -> usize {
        (8 * self.heap_words()).saturating_sub(SLOTS_AT + SLOT_BYTES * self.count())
    }

    /// Returns the number of contiguous free bytes after a compaction.
    #[must_use]
    pub fn free(self) -> usize {
        self.contiguous_free() + 8 * self.garbage_words()
    }

    /// Returns the number of bytes that entries use.
    #[must_use]
    pub fn used(self) -> usize {
        self.capacity().saturating_sub(self.free())
    }
}
