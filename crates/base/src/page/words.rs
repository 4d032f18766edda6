//! Read-only view of a page.

use std::cmp::Ordering as Cmp;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{PageType, PageWord, REPORTED_BYTES, TYPE_AT};
use crate::prefetch;
use crate::sync::machine;
use crate::{Lsn, PageId, checksum};

/// A page's bytes for a reader, which may change during the read. Results are reliable only after the latch
/// has validated them.
#[derive(Clone, Copy, Debug)]
pub struct PageWords<'a>(&'a [AtomicU64]);

#[cfg(all(target_arch = "x86_64", not(miri)))]
const WORDS_PER_LINE: usize = 8;

impl<'a> PageWords<'a> {
    /// Returns a page with these words as its bytes, little-endian.
    #[must_use]
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self(words)
    }

    /// Returns the words, for code that fills them.
    #[must_use]
    pub const fn atomics(self) -> &'a [PageWord] {
        self.0
    }

    /// Checks a page as [`image::is_intact`](super::image::is_intact) does, for words without a concurrent
    /// writer. With a writer the result is meaningless.
    #[must_use]
    pub fn is_intact(self, page_id: PageId) -> bool {
        // The checksum of 768 adjacent bytes is computed in three parts at once, so short pieces take longer.
        const WORDS: usize = 2 * 768 / 8;
        let (mut bytes, mut crc) = ([0; 8 * WORDS], 0);
        for first in (0..self.0.len()).step_by(WORDS) {
            let piece = &mut bytes[..8 * WORDS.min(self.0.len() - first)];
            self.read_words(first, piece);
            // The first four bytes are the checksum.
            crc = checksum::crc32c_append(crc, &piece[if first == 0 { 4 } else { 0 }..]);
        }
        self.u32(0) == crc && self.page_id() == page_id
    }

    /// Returns the page size in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.len() * 8
    }

    /// Returns `true` if the page has no bytes; pages in a pool always have some.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Reports a read of `len` bytes at `at` to a simulated machine, if there is one. (Single words are not
    /// reported, because many words of one cache line are read.)
    #[inline]
    #[track_caller]
    pub fn report_read(self, at: usize, len: usize) {
        if cfg!(feature = "sim")
            && len <= REPORTED_BYTES
            && let Some(words) = self.0.get(at / 8..(at + len).div_ceil(8))
        {
            machine::reads(words);
        }
    }

    /// Prefetches the cache lines of `len` bytes at `at`. A hint; does not wait.
    #[inline]
    pub fn prefetch(self, at: usize, len: usize) {
        if let Some(words) = self.0.get(at / 8..(at + len).div_ceil(8).min(self.0.len())) {
            prefetch(words);
        }
    }

    /// Prefetches the whole page as [`prefetch`](Self::prefetch) does, the last line first.
    pub fn prefetch_backward(self) {
        const LINE: usize = 64;
        for line in (0..self.len() / LINE).rev() {
            self.prefetch(LINE * line, LINE);
        }
    }

    /// Returns word `index` (bytes `8 * index ..`); 0 beyond the page.
    #[inline]
    #[must_use]
    pub fn word(self, index: usize) -> u64 {
        // Relaxed: the latch's version loads and the fences around the read provide the ordering.
        self.0.get(index).map_or(0, |w| u64::from_le(w.load(Relaxed)))
    }

    /// Returns words `index` and `index + 1`; zeros if one of them is beyond the page.
    #[inline]
    #[must_use]
    pub fn two_words(self, index: usize) -> [u64; 2] {
        // Relaxed: the latch's version loads and the fences around the read provide the ordering.
        let words = self.0.get(index..).and_then(<[_]>::first_chunk::<2>);
        words.map_or([0; 2], |words| words.each_ref().map(|word| u64::from_le(word.load(Relaxed))))
    }

    /// Returns the byte at `at`.
    #[inline]
    #[must_use]
    pub fn u8(self, at: usize) -> u8 {
        (self.word(at / 8) >> (8 * (at % 8))) as u8
    }

    /// Returns the two bytes at `at`.
    #[inline]
    #[must_use]
    pub fn u16(self, at: usize) -> u16 {
        self.u64(at) as u16
    }

    /// Returns the four bytes at `at`.
    #[inline]
    #[must_use]
    pub fn u32(self, at: usize) -> u32 {
        self.u64(at) as u32
    }

    /// Returns the eight bytes at `at`, aligned or not.
    #[inline]
    #[must_use]
    pub fn u64(self, at: usize) -> u64 {
        let (index, shift) = (at / 8, 8 * (at % 8));
        let low = self.word(index) >> shift;
        if shift == 0 { low } else { low | self.word(index + 1) << (64 - shift) }
    }

    /// Copies `out.len()` bytes from `at`. Bytes beyond the page are zero.
    #[track_caller]
    pub fn read(self, mut at: usize, mut out: &mut [u8]) {
        self.report_read(at, out.len());
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

    /// Copies four words, beginning at `index`. Words beyond the page are zero. Takes half of the
    /// instructions of [`read_words`](Self::read_words).
    #[inline]
    pub fn read_block(self, index: usize, out: &mut [u8; 32]) {
        match self.0.get(index..).and_then(<[_]>::first_chunk::<4>) {
            Some(words) => {
                for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    // Relaxed: the latch's version loads and the fences around the read provide the ordering.
                    *chunk = word.load(Relaxed).to_ne_bytes();
                }
            }
            None => self.read_end(index, out),
        }
    }

    #[cold]
    fn read_end(self, index: usize, out: &mut [u8; 32]) {
        self.read_words(index, out);
    }

    /// Copies words to `out`, beginning at `index`. The length of `out` is a multiple of 8. Words beyond the
    /// page are zero.
    #[inline]
    pub fn read_words(self, index: usize, out: &mut [u8]) {
        let (chunks, _) = out.as_chunks_mut::<8>();
        // One bounds check for all words, if all of them are inside the page.
        if let Some(words) = self.0.get(index..index + chunks.len()) {
            // SAFETY: `chunks` has eight bytes for each of the words.
            unsafe { load_words(words, chunks.as_mut_ptr().cast()) };
        } else {
            for (chunk, index) in chunks.iter_mut().zip(index..) {
                *chunk = self.word(index).to_le_bytes();
            }
        }
    }

    /// Appends `len` bytes from `at` to `out`.
    #[track_caller]
    pub fn read_into(self, at: usize, len: usize, out: &mut Vec<u8>) {
        let (start, len) = (out.len(), len.min(self.len()));
        let words = self.0.get(at / 8..at / 8 + len.div_ceil(8));
        if let Some(words) = words.filter(|_| at.is_multiple_of(8)) {
            self.report_read(at, len);
            let bytes = 8 * words.len();
            out.reserve(bytes);
            // SAFETY: `out` has reserved the bytes after its end, and `load_words` writes all of them.
            unsafe {
                load_words(words, out.as_mut_ptr().add(start));
                out.set_len(start + bytes);
            }
            out.truncate(start + len);
            return;
        }
        out.resize(start + len, 0);
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
        // The rest of both, less than a word each, padded with leading zeros. One load each, if there is a
        // whole word to load.
        let tail = common - done;
        if tail == 0 {
            return len.cmp(&key.len());
        }
        self.report_read(at + done, tail);
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

    /// Returns the number of the page type.
    #[must_use]
    pub fn type_number(self) -> u8 {
        self.u8(TYPE_AT)
    }

    /// Returns the page type; `None` if no type has this number.
    #[must_use]
    pub fn page_type(self) -> Option<PageType> {
        PageType::from_u8(self.type_number())
    }

    /// Returns the page id in the header.
    #[must_use]
    pub fn page_id(self) -> PageId {
        PageId(self.word(1))
    }

    /// Returns the page LSN in the header.
    #[must_use]
    pub fn lsn(self) -> Lsn {
        Lsn(self.word(2))
    }
}

/// Copies words to `out`, each with one atomic load.
///
/// # Safety
///
/// `out` is valid for writes of eight bytes for each word.
#[inline]
unsafe fn load_words(words: &[AtomicU64], out: *mut u8) {
    // Models and Miri must see each load. Other processors do not have such instructions in all models.
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    let done = {
        let (blocks, _) = words.as_chunks::<WORDS_PER_LINE>();
        if !blocks.is_empty() {
            // SAFETY: the caller guarantees space for each word.
            unsafe { load_blocks(blocks, out) };
        }
        blocks.as_flattened().len()
    };
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let done = 0;
    for (i, word) in words.iter().enumerate().skip(done) {
        // Relaxed: the latch's version loads and the fences around the read provide the ordering.
        let bytes = word.load(Relaxed).to_ne_bytes();
        // SAFETY: the caller guarantees space for each word.
        unsafe { out.add(8 * i).cast::<[u8; 8]>().write(bytes) };
    }
}

/// Copies blocks of eight words, at least one block. The compiler may not merge atomic loads, so a loop of
/// them takes a cycle per word. Compared with such a loop, 1,000 bytes in the processor's cache take 0.44 of
/// the time, and 128 bytes 0.53.
///
/// # Safety
///
/// `out` is valid for writes of 64 bytes for each block.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
#[inline]
unsafe fn load_blocks(blocks: &[[AtomicU64; WORDS_PER_LINE]], out: *mut u8) {
    // SAFETY: each instruction loads two aligned quadwords, and x86-64 loads each of them as a relaxed load
    // of an `AtomicU64` does. A copy with words of different times is discarded by the caller, as after
    // single loads. The code reads the borrowed blocks, and stores as many bytes as the caller guarantees.
    // SSE2 is part of x86-64.
    unsafe {
        std::arch::asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {left}",
            "jnz 2b",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) blocks.as_ptr() => _,
            to = inout(reg) out => _,
            left = inout(reg) blocks.len() => _,
            options(nostack)
        );
    }
}
