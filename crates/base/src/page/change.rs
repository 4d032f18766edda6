//! Mutable view of a page.

use std::sync::atomic::Ordering::Relaxed;

use super::{HEADER_BYTES, PageType, PageWord, PageWords, REPORTED_BYTES, TYPE_AT, bulk};
use crate::sync::machine;
use crate::{Lsn, PageId};

/// A page's bytes, writable by the thread with exclusive use of the page (exclusive latch, or a private
/// page).
///
/// Two concurrent writers would not be undefined behavior, but would corrupt the page. The latch's guard
/// creates these values.
#[derive(Debug)]
pub struct PageMut<'a>(PageWords<'a>);

impl<'a> std::ops::Deref for PageMut<'a> {
    type Target = PageWords<'a>;
    fn deref(&self) -> &PageWords<'a> {
        &self.0
    }
}

impl<'a> PageMut<'a> {
    /// Returns a writable view of `page`. The caller has exclusive use of the page.
    #[must_use]
    pub const fn new(page: PageWords<'a>) -> Self {
        Self(page)
    }

    #[inline]
    #[track_caller]
    fn report_write(&self, at: usize, len: usize) {
        if cfg!(feature = "sim")
            && len <= REPORTED_BYTES
            && let Some(words) = self.0.atomics().get(at / 8..(at + len).div_ceil(8))
        {
            machine::writes(words);
        }
    }

    /// Returns the page for reading.
    #[must_use]
    pub const fn words(&self) -> PageWords<'a> {
        self.0
    }

    /// Stores word `index`.
    ///
    /// # Panics
    ///
    /// If `index` is beyond the page. A writer has validated its offsets, so this is a bug.
    #[inline]
    pub fn set_word(&mut self, index: usize, value: u64) {
        // Relaxed: published by the Release of the latch's unlock.
        self.0.atomics()[index].store(value.to_le(), Relaxed);
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
    /// If the range is beyond the page.
    #[track_caller]
    pub fn write(&mut self, mut at: usize, mut bytes: &[u8]) {
        self.report_write(at, bytes.len());
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
    /// If either range is beyond the page.
    #[track_caller]
    pub fn move_words(&mut self, from: usize, to: usize, count: usize) {
        self.report_write(8 * to, 8 * count);
        // Eight words at a time, because the compiler does not unroll a loop over atomics, and half of the
        // time of an insertion is this loop.
        const AT_ONCE: usize = 8;
        let words = self.0.atomics();
        // One bounds check for all words.
        let (source, target) = (&words[from..from + count], &words[to..to + count]);
        // Relaxed: published by the Release of the latch's unlock. The byte order stays.
        let one = |(target, source): (&PageWord, &PageWord)| target.store(source.load(Relaxed), Relaxed);
        let eight = |(target, source): (&[PageWord; AT_ONCE], &[PageWord; AT_ONCE])| {
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

    /// Stores words of another page, which no other thread changes, from word `index` on.
    ///
    /// # Panics
    ///
    /// If the range is beyond the page.
    #[track_caller]
    pub fn write_words(&mut self, index: usize, source: &[PageWord]) {
        self.report_write(8 * index, 8 * source.len());
        bulk::copy_words(&self.0.atomics()[index..][..source.len()], source);
    }

    /// Makes the page a copy of `other`, a private page of the same size, except for page id and LSN.
    ///
    /// # Panics
    ///
    /// If the sizes differ.
    pub fn copy_content(&mut self, other: PageWords<'_>) {
        assert_eq!(other.len(), self.0.len(), "a page is copied whole");
        self.set_word(0, other.word(0));
        let body = HEADER_BYTES / 8;
        self.write_words(body, &other.atomics()[body..]);
    }

    /// Stores the whole page from `bytes`, including the header.
    ///
    /// # Panics
    ///
    /// If `bytes` is not exactly one page.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.len(), "a page is copied whole");
        self.write(0, bytes);
    }

    /// Makes the page an empty page of this type. All other bytes become zero.
    pub fn format(&mut self, page_type: PageType, page_id: PageId) {
        bulk::zero_words(self.0.atomics());
        self.set_u8(TYPE_AT, page_type as u8);
        self.set_word(1, page_id.0);
    }

    /// Changes only the page type.
    pub fn set_page_type(&mut self, page_type: PageType) {
        self.set_u8(TYPE_AT, page_type as u8);
    }

    /// Sets the page LSN. The LSN of a page never decreases (W7).
    #[track_caller]
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.report_write(0, HEADER_BYTES);
        debug_assert!(self.0.lsn() <= lsn, "W7: page LSN {} would go back to {lsn}", self.0.lsn());
        self.set_word(2, lsn.0);
    }
}
