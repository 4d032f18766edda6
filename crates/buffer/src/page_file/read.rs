//! Reads and verifies pages of the page file.

use std::sync::Arc;

use azekura_base::page::{PageWord, image};
use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::{Lsn, PageBuf, PageId, PageWords};

use super::PageFile;
use crate::store::{self, StoreError};

impl PageFile {
    /// Reads consecutive pages into `out`, by one call without a copy. Returns `false`, with an unspecified
    /// content of `out`, if the file ends before, or if `out` is not aligned for direct reads.
    pub(super) fn read_places(&self, first: PageId, out: &[PageWords<'_>]) -> Result<bool, StoreError> {
        // Acquire: see `read_unverified`.
        let (len, offset) = (self.len.load(Acquire), self.offset(first).unwrap_or(u64::MAX));
        let bytes = (out.len() * self.area.page_size) as u64;
        let is_there = offset.checked_add(bytes).is_some_and(|end| end <= len);
        let alignment = self.pages.file.alignment();
        let is_aligned = |words: &PageWords<'_>| words.atomics().as_ptr().addr().is_multiple_of(alignment);
        if !is_there || !out.iter().all(is_aligned) {
            return Ok(false);
        }
        let read = match out {
            [words] => self.pages.file.read_words_at(offset, &[words.atomics()]),
            _ => {
                let words: Vec<&[PageWord]> = out.iter().map(|words| words.atomics()).collect();
                self.pages.file.read_words_at(offset, &words)
            }
        };
        // If fewer bytes were read, the file was truncated.
        Ok(read.map_err(self.pages.error("read", Some(first), offset))? as u64 == bytes)
    }

    /// Verifies consecutive pages, except those that are `None`.
    pub(super) fn verify_words<'w>(
        &self,
        first: PageId,
        pages: impl Iterator<Item = Option<&'w PageWords<'w>>>,
    ) -> Result<(), StoreError> {
        for (id, words) in (first.0..).map(PageId).zip(pages) {
            let Some(words) = words else { continue };
            let offset = self.offset(id).unwrap_or(u64::MAX);
            if words.is_intact(id) {
                self.verify_lsn(id, words.lsn(), offset)?;
                continue;
            }
            let mut image = PageBuf::zeroed(words.len());
            words.copy_to(&mut image);
            self.verify(id, &image, offset)?;
        }
        Ok(())
    }

    /// Checks that `bytes`, read at `offset`, are the last image of page `id`.
    pub(super) fn verify(&self, id: PageId, bytes: &[u8], offset: u64) -> Result<(), StoreError> {
        store::verify(id, bytes, &self.pages.path, offset)?;
        self.verify_lsn(id, image::lsn(bytes), offset)
    }

    /// Decrypts page `id`, which was verified, if the file is encrypted.
    pub(super) fn decrypt(&self, id: PageId, page: &mut [u8], offset: u64) -> Result<(), StoreError> {
        let Some(cipher) = &self.cipher else { return Ok(()) };
        store::open_page(page, &**cipher).map_err(|_| StoreError::Unauthentic {
            page: id,
            path: Arc::clone(&self.pages.path),
            offset,
        })
    }

    fn verify_lsn(&self, page: PageId, found_lsn: Lsn, offset: u64) -> Result<(), StoreError> {
        self.lsn_map.check(page, found_lsn).map_err(|written_lsn| StoreError::Outdated {
            page,
            path: Arc::clone(&self.pages.path),
            offset,
            found_lsn,
            written_lsn,
        })
    }

    /// Reads a page without verification; returns its offset.
    pub(super) fn read_unverified(&self, id: PageId, out: &mut [u8]) -> Result<u64, StoreError> {
        assert_eq!(out.len(), self.area.page_size, "a page is read whole");
        match self.offset(id) {
            // Acquire: pairs with the Release in `grow`; the zeroes written before it are visible.
            Some(offset) if offset < self.len.load(Acquire) => {
                self.pages.read(offset, out, Some(id))?;
                Ok(offset)
            }
            beyond => {
                out.fill(0);
                Ok(beyond.unwrap_or(u64::MAX))
            }
        }
    }
}
