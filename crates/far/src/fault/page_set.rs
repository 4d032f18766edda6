//! Sets of pages. *Unmanaged* pages left far memory permanently, and only the kernel manages them. *Reserved*
//! pages are empty, and an access to them is refused until they are committed.
//!
//! A set has one bit per page in memory that the kernel allocates on demand, so a set for a mostly unused
//! region costs little. Signal handlers and hooks read a set without a lock.
//!
//! - **UNMANAGED-1** The bit of an unmanaged page is set once, under the pager's lock, after the page's bytes
//!   are ordinary memory at the page's address. The bit is never cleared. So a thread that reads a set bit
//!   may leave the page to the kernel.

use super::arena::Mapping;
use std::io;
use std::ops::Range;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

/// A set of pages that is read without a lock; see the [module](self).
#[derive(Debug)]
pub(crate) struct PageSet {
    words: Mapping,
    pages: u32,
    set: AtomicUsize,
}

impl PageSet {
    /// Returns an empty set for `pages` pages.
    pub(crate) fn none(pages: u32) -> io::Result<Self> {
        let words = Mapping::anonymous((pages as usize).div_ceil(64).next_multiple_of(512) * 8)?;
        Ok(Self { words, pages, set: AtomicUsize::new(0) })
    }

    fn word(&self, page: u32) -> &AtomicU64 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        // SAFETY: the address is inside the mapping and aligned, and the word is only used as an atomic.
        unsafe { AtomicU64::from_ptr(self.words.at().cast::<u64>().add(page as usize / 64)) }
    }

    pub(crate) fn has(&self, page: u32) -> bool {
        // Acquire: pairs with Release in `add`, so the page is ordinary memory (UNMANAGED-1).
        self.len() > 0 && self.word(page).load(Acquire) >> (page % 64) & 1 == 1
    }

    /// Returns the number of pages in the set.
    pub(crate) fn len(&self) -> usize {
        self.set.load(Relaxed) // Relaxed: a counter; the bits carry the ordering
    }

    /// Removes pages that are in the set.
    pub(crate) fn remove(&self, pages: Range<u32>) {
        self.set.fetch_sub(pages.len(), Relaxed); // Relaxed: a counter, as in `add`
        for page in pages {
            // Release: pairs with Acquire in `has`.
            self.word(page).fetch_and(!(1 << (page % 64)), Release);
        }
    }

    /// Adds pages that are not in the set. Only one thread at a time adds or removes a page.
    pub(crate) fn add(&self, pages: Range<u32>) {
        // Relaxed: a reader that does not see the new count treats the page as managed, as it was just
        // before.
        self.set.fetch_add(pages.len(), Relaxed);
        for page in pages {
            // Release: pairs with Acquire in `has`.
            self.word(page).fetch_or(1 << (page % 64), Release);
        }
    }

    /// Adds pages that are not in the set, or removes pages that are in the set.
    pub(crate) fn set(&self, pages: Range<u32>, is_member: bool) {
        if is_member { self.add(pages) } else { self.remove(pages) }
    }

    /// Returns the ranges of pages in the set.
    pub(crate) fn members(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < self.pages && !self.has(at) {
                // Relaxed: as for the count; whole words without a page are skipped.
                let is_empty = at.is_multiple_of(64) && self.word(at).load(Relaxed) == 0;
                at += if is_empty { 64 } else { 1 };
            }
            let start = at.min(self.pages);
            at = (start..self.pages).find(|&page| !self.has(page)).unwrap_or(self.pages);
            (start < at).then_some(start..at)
        })
    }

    /// Returns the parts of a range that are not in the set.
    pub(crate) fn others(&self, pages: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let Range { start: mut at, end } = pages;
        std::iter::from_fn(move || {
            if self.len() == 0 {
                let all = at..end;
                at = end;
                return (!all.is_empty()).then_some(all);
            }
            let start = (at..end).find(|&page| !self.has(page))?;
            at = (start..end).find(|&page| self.has(page)).unwrap_or(end);
            Some(start..at)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_range_is_what_was_not_added() {
        let unmanaged = PageSet::none(200).unwrap();
        assert!(unmanaged.others(0..200).eq(std::iter::once(0..200)));
        unmanaged.add(60..70);
        unmanaged.add(199..200);
        assert!(unmanaged.others(0..200).eq([0..60, 70..199]));
        assert!(unmanaged.others(62..200).eq(std::iter::once(70..199)));
        assert_eq!(unmanaged.others(60..70).count(), 0);
        assert_eq!(((0..200).filter(|&page| unmanaged.has(page)).count(), unmanaged.len()), (11, 11));
        unmanaged.remove(62..70);
        assert!(unmanaged.others(0..200).eq([0..60, 62..199]));
        assert_eq!(unmanaged.len(), 3);
        assert!(unmanaged.members().eq([60..62, 199..200]));
        unmanaged.add(62..192);
        assert!(unmanaged.members().eq([60..192, 199..200]));
        assert_eq!(PageSet::none(64).unwrap().members().count(), 0);
    }
}
