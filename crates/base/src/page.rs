//! Bytes of a page as relaxed atomic words, and the header that every page carries.
//!
//! Optimistic readers look at a page while its latch holder changes it, and throw away what they saw when the
//! latch's version moved. A plain read there would be a data race; a relaxed atomic load is not, and is a plain
//! move on every machine that matters. So *all* access to a page in the pool goes through this module: readers
//! by [`PageWords`], the exclusive holder by [`PageMut`], both without `unsafe`.
//!
//! Header of every page, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C over bytes 4.. of the page, set when the page is written to disk |
//! | 4 | page type ([`PageType`]) |
//! | 5..8 | owned by the page type |
//! | 8..16 | page id |
//! | 16..24 | page LSN: the last log record applied to this page |
//! | 24.. | owned by the page type |
//!
//! A torn optimistic read can yield any garbage: every offset is bounds-checked here (a bad one reads as zero
//! bytes), so that garbage costs a retry and never a panic.

// std's atomics even under loom: a page is thousands of words, and the protocol around them (version, read,
// validate) is modelled in `azekura-latch` with two words.
use std::cmp::Ordering as Cmp;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sync::machine;
use crate::{Lsn, PageId, checksum};

/// Bytes of the common page header; the page type owns what follows.
pub const HEADER_BYTES: usize = 24;
/// Smallest page.
pub const MIN_PAGE_SIZE: usize = 4096;
/// Largest page: offsets inside a page fit 16 bits.
pub const MAX_PAGE_SIZE: usize = 65536;

const TYPE_AT: usize = 4;
/// Longer stretches are told to a simulated machine by who copies them, as work.
const TOLD_BYTES: usize = 1024;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageType {
    /// Never written, or freed.
    Free = 0,
    /// One bit for each page of its group.
    SpaceMap = 1,
    /// B+tree node above the leaves.
    Inner = 2,
    /// B+tree leaf.
    Leaf = 3,
    /// Part of a value too large for a leaf.
    Overflow = 4,
}

impl PageType {
    /// The type with this number on disk.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Free,
            1 => Self::SpaceMap,
            2 => Self::Inner,
            3 => Self::Leaf,
            4 => Self::Overflow,
            _ => return None,
        })
    }
}

/// Whether `size` can be a page size: a power of two from 4 KiB to 64 KiB.
#[must_use]
pub const fn is_page_size(size: usize) -> bool {
    size.is_power_of_two() && size >= MIN_PAGE_SIZE && size <= MAX_PAGE_SIZE
}

/// A word of a page. std's own, in models too; see above.
pub type PageWord = AtomicU64;

/// A page's bytes as seen by a reader, perhaps while they change: trust nothing before the latch validates.
#[derive(Clone, Copy, Debug)]
pub struct PageWords<'a>(&'a [AtomicU64]);

impl<'a> PageWords<'a> {
    /// The page whose bytes are these words, little-endian.
    #[must_use]
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// The words themselves, for who fills them.
    #[must_use]
    pub const fn atomics(self) -> &'a [PageWord] {
        self.0
    }

    /// As [`image::is_intact`], for words that nobody changes meanwhile; if somebody does, the answer means nothing.
    #[must_use]
    pub fn is_intact(self, page_id: PageId) -> bool {
        const WORDS: usize = 64;
        let (mut bytes, mut crc, mut all) = ([0; 8 * WORDS], 0, 0);
        for (nth, words) in self.0.chunks(WORDS).enumerate() {
            for (word, eight) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
                let word = word.load(Relaxed); // see above
                all |= word;
                *eight = word.to_ne_bytes();
            }
            // The first four bytes are the checksum.
            let covered = &bytes[if nth == 0 { 4 } else { 0 }..8 * words.len()];
            crc = checksum::crc32c_append(crc, covered);
        }
        if self.u32(0) == crc { self.page_id() == page_id } else { all == 0 }
    }

    /// Page size in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len() * 8
    }

    /// Whether the page has no bytes at all; pages in a pool never are.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Tells a simulated machine, if there is one, that `len` bytes at `at` are looked at. (Words say nothing by themselves: too many are
    /// looked at one after the other in one line.)
    #[inline]
    #[track_caller]
    pub fn told(self, at: usize, len: usize) {
        if cfg!(feature = "sim")
            && len <= TOLD_BYTES
            && let Some(words) = self.0.get(at / 8..(at + len).div_ceil(8))
        {
            machine::reads(words);
        }
    }

    /// Word `index` (bytes `8 * index ..`); 0 beyond the page.
    #[inline]
    #[must_use]
    pub fn word(self, index: usize) -> u64 {
        // Relaxed: the latch's version loads and fences around the read order it.
        self.0.get(index).map_or(0, |w| u64::from_le(w.load(Relaxed)))
    }

    /// The byte at `at`.
    #[inline]
    #[must_use]
    pub fn u8(self, at: usize) -> u8 {
        (self.word(at / 8) >> (8 * (at % 8))) as u8
    }

    /// Two bytes at `at`.
    #[inline]
    #[must_use]
    pub fn u16(self, at: usize) -> u16 {
        self.u64(at) as u16
    }

    /// Four bytes at `at`.
    #[inline]
    #[must_use]
    pub fn u32(self, at: usize) -> u32 {
        self.u64(at) as u32
    }

    /// Eight bytes at `at`, aligned or not.
    #[inline]
    #[must_use]
    pub fn u64(self, at: usize) -> u64 {
        let (index, shift) = (at / 8, 8 * (at % 8));
        let low = self.word(index) >> shift;
        if shift == 0 { low } else { low | self.word(index + 1) << (64 - shift) }
    }

    /// Copies `out.len()` bytes from `at`; bytes beyond the page are zero.
    #[track_caller]
    pub fn read(self, mut at: usize, mut out: &mut [u8]) {
        self.told(at, out.len());
        while !at.is_multiple_of(8) && !out.is_empty() {
            out[0] = self.u8(at);
            at += 1;
            out = &mut out[1..];
        }
        let index = at / 8;
        let (whole, rest) = out.split_at_mut(out.len() & !7);
        self.read_words(index, whole);
        if !rest.is_empty() {
            let last = self.word(index + whole.len() / 8).to_le_bytes();
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }

    /// Copies the words from `index` on over `out`, whose length is a multiple of 8; words beyond the page are zero.
    #[inline]
    pub fn read_words(self, index: usize, out: &mut [u8]) {
        let (chunks, _) = out.as_chunks_mut::<8>();
        // One check of bounds for all words, where they all lie in the page.
        if let Some(words) = self.0.get(index..index + chunks.len()) {
            for (chunk, word) in chunks.iter_mut().zip(words) {
                *chunk = word.load(Relaxed).to_ne_bytes();
            }
        } else {
            for (chunk, index) in chunks.iter_mut().zip(index..) {
                *chunk = self.word(index).to_le_bytes();
            }
        }
    }

    /// Appends `len` bytes from `at` to `out`.
    #[track_caller]
    pub fn read_into(self, at: usize, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + len.min(self.len()), 0);
        self.read(at, &mut out[start..]);
    }

    /// Compares the `len` bytes at `at` with `key`, as byte strings.
    #[must_use]
    pub fn compare(self, at: usize, len: usize, key: &[u8]) -> Cmp {
        let len = len.min(self.len());
        let common = len.min(key.len());
        let mut done = 0;
        while done + 8 <= common {
            let ours = self.u64(at + done).swap_bytes();
            let theirs = key[done..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if ours != theirs {
                return ours.cmp(&theirs);
            }
            done += 8;
        }
        // What is left of both, less than a word, in front of zeros; one load each, where there is a word to load.
        let tail = common - done;
        if tail == 0 {
            return len.cmp(&key.len());
        }
        self.told(at + done, tail);
        let ours = self.u64(at + done).swap_bytes() & !(u64::MAX >> (8 * tail));
        let theirs = match key[..common].last_chunk() {
            Some(bytes) => u64::from_be_bytes(*bytes) << (64 - 8 * tail),
            None => {
                key[..common].iter().fold(0, |word, &byte| word << 8 | u64::from(byte)) << (64 - 8 * tail)
            }
        };
        ours.cmp(&theirs).then(len.cmp(&key.len()))
    }

    /// Copies the whole page; `out` must be exactly one page.
    ///
    /// # Panics
    ///
    /// If `out` has another length than the page.
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.len(), "a page is copied whole");
        self.read(0, out);
    }

    /// The page type's number.
    #[must_use]
    pub fn type_number(self) -> u8 {
        self.u8(TYPE_AT)
    }

    /// The page type, or `None` for a number that no type has.
    #[must_use]
    pub fn page_type(self) -> Option<PageType> {
        PageType::from_u8(self.type_number())
    }

    /// The page id in the header.
    #[must_use]
    pub fn page_id(self) -> PageId {
        PageId(self.word(1))
    }

    /// The page LSN in the header.
    #[must_use]
    pub fn lsn(self) -> Lsn {
        Lsn(self.word(2))
    }
}

/// A page's bytes as changed by the one thread that has the page to itself (exclusive latch, or a private page).
///
/// Two writers would not be undefined behaviour, only nonsense; the latch's guard is what hands these out.
#[derive(Debug)]
pub struct PageMut<'a>(PageWords<'a>);

impl<'a> std::ops::Deref for PageMut<'a> {
    type Target = PageWords<'a>;
    fn deref(&self) -> &PageWords<'a> {
        &self.0
    }
}

impl<'a> PageMut<'a> {
    /// The right to change `page`; the caller has it to itself.
    #[must_use]
    pub const fn new(page: PageWords<'a>) -> Self {
        Self(page)
    }

    #[inline]
    #[track_caller]
    fn told(&self, at: usize, len: usize) {
        if cfg!(feature = "sim")
            && len <= TOLD_BYTES
            && let Some(words) = self.0.0.get(at / 8..(at + len).div_ceil(8))
        {
            machine::writes(words);
        }
    }

    /// The page for readers.
    #[must_use]
    pub const fn words(&self) -> PageWords<'a> {
        self.0
    }

    /// Stores word `index`.
    ///
    /// # Panics
    ///
    /// Beyond the page: a writer has validated what it writes, so this is our own bug.
    #[inline]
    pub fn set_word(&mut self, index: usize, value: u64) {
        // Relaxed: published by the Release of the latch's unlock.
        self.0.0[index].store(value.to_le(), Relaxed);
    }

    /// Stores one byte.
    pub fn set_u8(&mut self, at: usize, value: u8) {
        self.write(at, &[value]);
    }

    /// Stores two bytes.
    pub fn set_u16(&mut self, at: usize, value: u16) {
        self.write(at, &value.to_le_bytes());
    }

    /// Stores four bytes.
    pub fn set_u32(&mut self, at: usize, value: u32) {
        self.write(at, &value.to_le_bytes());
    }

    /// Stores eight bytes.
    pub fn set_u64(&mut self, at: usize, value: u64) {
        if at.is_multiple_of(8) { self.set_word(at / 8, value) } else { self.write(at, &value.to_le_bytes()) }
    }

    /// Stores `bytes` at `at`.
    ///
    /// # Panics
    ///
    /// Beyond the page.
    #[track_caller]
    pub fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        self.told(at, bytes.len());
        if !at.is_multiple_of(8) {
            let head = bytes.len().min(8 - at % 8);
            self.merge(at / 8, at % 8, &bytes[..head]);
            at += head;
            bytes = &bytes[head..];
        }
        let (whole, rest) = bytes.as_chunks::<8>();
        for chunk in whole {
            self.set_word(at / 8, u64::from_le_bytes(*chunk));
            at += 8;
        }
        if !rest.is_empty() {
            self.merge(at / 8, 0, rest);
        }
    }

    fn merge(&mut self, index: usize, skip: usize, bytes: &[u8]) {
        let mut word = self.0.word(index).to_le_bytes();
        word[skip..skip + bytes.len()].copy_from_slice(bytes);
        self.set_word(index, u64::from_le_bytes(word));
    }

    /// Moves `count` words from word `from` to word `to`; the ranges may overlap.
    ///
    /// # Panics
    ///
    /// If either reaches beyond the page.
    #[track_caller]
    pub fn move_words(&mut self, from: usize, to: usize, count: usize) {
        self.told(8 * to, 8 * count);
        // Eight at a time: a loop over atomics is not unrolled by itself, and half of an insertion is this one.
        const AT_ONCE: usize = 8;
        let words = self.0.0;
        // One check of bounds for all words.
        let (source, target) = (&words[from..from + count], &words[to..to + count]);
        // Relaxed: published by the Release of the latch's unlock; the order of bytes stays.
        let one = |(target, source): (&AtomicU64, &AtomicU64)| target.store(source.load(Relaxed), Relaxed);
        let eight = |(target, source): (&[AtomicU64; AT_ONCE], &[AtomicU64; AT_ONCE])| {
            let values = source.each_ref().map(|word| word.load(Relaxed));
            target.iter().zip(values).for_each(|(word, value)| word.store(value, Relaxed));
        };
        if to <= from {
            let ((sources, source), (targets, target)) = (source.as_chunks(), target.as_chunks());
            targets.iter().zip(sources).for_each(eight);
            target.iter().zip(source).for_each(one);
        } else {
            let ((source, sources), (target, targets)) = (source.as_rchunks(), target.as_rchunks());
            targets.iter().zip(sources).rev().for_each(eight);
            target.iter().zip(source).rev().for_each(one);
        }
    }

    /// Stores the whole page from `bytes`, header and all.
    ///
    /// # Panics
    ///
    /// If `bytes` is not exactly one page.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.len(), "a page is copied whole");
        self.write(0, bytes);
    }

    /// Makes the page an empty one of this type, all else zero.
    pub fn format(&mut self, page_type: PageType, page_id: PageId) {
        (0..self.0.0.len()).for_each(|i| self.set_word(i, 0));
        self.set_u8(TYPE_AT, page_type as u8);
        self.set_word(1, page_id.0);
    }

    /// Changes the type alone.
    pub fn set_page_type(&mut self, page_type: PageType) {
        self.set_u8(TYPE_AT, page_type as u8);
    }

    /// Sets the page LSN; LSNs of a page never go backwards (W7).
    #[track_caller]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.told(0, HEADER_BYTES);
        debug_assert!(self.0.lsn() <= lsn, "W7: page LSN {} would go back to {lsn}", self.0.lsn());
        self.set_word(2, lsn.0);
    }
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; MIN_PAGE_SIZE]);

/// Bytes owned by one thread, aligned for direct I/O; length a multiple of 4 KiB.
#[derive(Clone)]
pub struct PageBuf(Vec<Block>);

impl std::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageBuf({} bytes)", self.len())
    }
}

impl PageBuf {
    /// `bytes` zero bytes, rounded up to a multiple of 4 KiB.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![Block([0; MIN_PAGE_SIZE]); bytes.div_ceil(MIN_PAGE_SIZE)])
    }
}

impl std::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `Block` is `repr(C)` around a byte array with no padding (its size equals its alignment), so
        // the vector's blocks are one run of initialised bytes, borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * MIN_PAGE_SIZE) }
    }
}

impl std::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * MIN_PAGE_SIZE) }
    }
}

/// Fields of the header in a page image outside the pool (on its way to or from disk).
pub mod image {
    use super::{Lsn, PageId, checksum};

    /// Writes the checksum into the first four bytes.
    pub fn seal(page: &mut [u8]) {
        let crc = checksum::crc32c(&page[4..]);
        page[..4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Whether the checksum fits and the page says it is `page_id`, or the page is all zero (never written).
    #[must_use]
    pub fn is_intact(page: &[u8], page_id: PageId) -> bool {
        let crc = page.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if crc == checksum::crc32c(&page[4..]) {
            return id(page) == page_id;
        }
        is_zero(page)
    }

    /// Whether the page was never written.
    #[must_use]
    pub fn is_zero(page: &[u8]) -> bool {
        page.iter().all(|&b| b == 0)
    }

    /// The page id in the header.
    #[must_use]
    pub fn id(page: &[u8]) -> PageId {
        PageId(word(page, 8))
    }

    /// The page LSN in the header.
    #[must_use]
    pub fn lsn(page: &[u8]) -> Lsn {
        Lsn(word(page, 16))
    }

    fn word(page: &[u8], at: usize) -> u64 {
        page[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn unaligned_writes_touch_only_their_bytes() {
        let words = words(4);
        let mut page = PageMut::new(PageWords::new(&words));
        for at in 0..20 {
            for len in 0..=12 {
                page.copy_from(&[0xAA; 32]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                page.write(at, &bytes);
                let mut out = [0; 32];
                page.copy_to(&mut out);
                let mut expected = [0xAA; 32];
                expected[at..at + len].copy_from_slice(&bytes);
                assert_eq!(out, expected);
                assert_eq!(page.compare(at, len, &bytes), Cmp::Equal);
            }
        }
    }

    #[test]
    fn words_are_intact_exactly_where_their_bytes_are() {
        for bytes in [MIN_PAGE_SIZE, 8192, MAX_PAGE_SIZE] {
            let all = words(bytes / 8);
            let as_words = PageWords::new(&all);
            let mut page = PageMut::new(as_words);
            let mut image = vec![0; bytes];
            let mut agrees = |image: &[u8], expected: bool| {
                page.copy_from(image);
                assert_eq!(
                    (image::is_intact(image, PageId(7)), as_words.is_intact(PageId(7))),
                    (expected, expected)
                );
            };
            agrees(&image, true); // never written
            image[bytes - 1] = 1;
            agrees(&image, false);
            image[8] = 7;
            image[100] = 9;
            image::seal(&mut image);
            agrees(&image, true);
            for at in [0, 4, 511, 512, bytes - 1] {
                image[at] ^= 4;
                agrees(&image, false);
                image[at] ^= 4;
            }
            image[8] = 8; // another page, whole
            image::seal(&mut image);
            agrees(&image, false);
        }
    }

    #[test]
    fn moves_words_as_a_slice_moves_within_itself() {
        for (from, to) in [(0, 2), (2, 0), (5, 5), (0, 40), (40, 0), (3, 14), (20, 11)] {
            for count in 0..=40 {
                let words = words(80);
                let mut plain: Vec<u64> = (100..180).collect();
                let mut page = PageMut::new(PageWords::new(&words));
                plain.iter().enumerate().for_each(|(i, &word)| page.set_word(i, word));
                page.move_words(from, to, count);
                plain.copy_within(from..from + count, to);
                let moved: Vec<u64> = (0..80).map(|i| page.word(i)).collect();
                assert_eq!(moved, plain, "{count} words from {from} to {to}");
            }
        }
    }

    #[test]
    fn compares_every_pair_of_short_strings_as_byte_strings_do() {
        let words = words(8);
        let strings = |len: usize| {
            (0..3_usize.pow(3)).map(move |n| {
                let mut bytes = vec![b'm'; len];
                // Three places, each below, at or above the middle, also beyond what a byte of text has.
                for (at, digit) in [n % 3, n / 3 % 3, n / 9].into_iter().enumerate() {
                    let place = (len * at / 3).min(len.saturating_sub(1));
                    if let Some(byte) = bytes.get_mut(place) {
                        *byte = [0, b'm', 255][digit];
                    }
                }
                bytes
            })
        };
        for (a, b) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
            let at = 5 + a % 8;
            for ours in strings(a) {
                let mut page = PageMut::new(PageWords::new(&words));
                page.write(at, &ours);
                for theirs in strings(b) {
                    assert_eq!(page.compare(at, a, &theirs), ours.cmp(&theirs), "{ours:?} {theirs:?}");
                }
            }
        }
    }

    #[test]
    fn compares_as_byte_strings() {
        let words = words(4);
        let mut page = PageMut::new(PageWords::new(&words));
        page.write(3, b"abcdefghijk");
        for (key, expected) in [
            (&b"abcdefghijk"[..], Cmp::Equal),
            (b"abcdefghij", Cmp::Greater),
            (b"abcdefghijkl", Cmp::Less),
            (b"abcdefgz", Cmp::Less),
            (b"", Cmp::Greater),
            (b"\xff", Cmp::Less),
        ] {
            assert_eq!(page.compare(3, 11, key), expected, "{key:?}");
        }
    }

    #[test]
    fn garbage_offsets_read_as_zero() {
        let words = words(2);
        let page = PageWords::new(&words);
        assert_eq!(page.u64(1 << 40), 0);
        let mut out = [7; 5];
        page.read(14, &mut out);
        assert_eq!(out, [0; 5]);
        assert_eq!(page.compare(60_000, 60_000, b"x"), Cmp::Less);
    }

    #[test]
    fn a_changed_bit_breaks_the_seal() {
        let mut page = PageBuf::zeroed(4096);
        page[8] = 9;
        image::seal(&mut page);
        assert!(image::is_intact(&page, PageId(9)));
        assert!(!image::is_intact(&page, PageId(8)), "a page of another place");
        page[4000] ^= 1;
        assert!(!image::is_intact(&page, PageId(9)));
        assert!(image::is_intact(&PageBuf::zeroed(4096), PageId(77)), "never written");
    }
}
