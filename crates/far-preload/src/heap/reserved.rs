//! Reserved memory: mapped without access (`PROT_NONE`) and committed in parts, as garbage collectors use it
//! for their heaps.
//!
//! | action of the program | pages inside the range | pages partly in the range |
//! |---|---|---|
//! | reserves | empty, an access is refused | – |
//! | commits (`mprotect`, `MAP_FIXED`) | far memory | leave far memory; the kernel commits the part |
//! | decommits (`MAP_FIXED` without access) | emptied and reserved | leave far memory |
//! | unmaps | free | reserved until the rest is unmapped |
//!
//! An access is refused exactly if the program has no access rights, so a page is never committed in part.
//! Only whole pages are reserved. The end of a mapping may be inside a page.

use super::{Heap, Lack, PIECE, Space};
use azekura_far::sys;
use std::ops::Range;

/// Divisor of the number of free pages: one reservation takes at most this part, so that blocks find free
/// pages.
const MOST_PART: usize = 2;

impl Heap {
    /// Reserves memory for `mmap`; `None` if it takes too much of `--max-far`.
    pub(crate) fn map_reserved(&self, bytes: usize) -> Option<*mut u8> {
        let pages = bytes.div_ceil(self.page);
        let mut space = self.lock();
        let free: usize = space.free.values().sum();
        let first = if pages > free / MOST_PART { None } else { space.take(pages, 1) }?;
        space.taken -= pages;
        drop(space);
        let at = self.base + first * self.page;
        let all = at..at + pages * self.page;
        // SAFETY: the pages were just taken, and no other thread has their addresses.
        unsafe { self.memory.decommit(all.clone()) };
        let mut space = self.lock();
        space.reserved.insert(all);
        space.mapped.insert(at..at + bytes.next_multiple_of(PIECE));
        Some(at as *mut u8)
    }

    /// Splits a range of managed memory into parts, each with whether it is reserved.
    pub(crate) fn by_reservation(&self, range: Range<usize>) -> Vec<(Range<usize>, bool)> {
        let space = self.lock();
        let committed = space.reserved.without(&range).into_iter().map(|part| (part, false));
        let mut parts: Vec<(Range<usize>, bool)> =
            committed.chain(space.reserved.within(&range).map(|part| (part, true))).collect();
        parts.sort_unstable_by_key(|(part, _)| part.start);
        parts
    }

    /// Commits a reserved range. Returns the parts that the kernel must commit: those in pages that are only
    /// partly in the range, or all parts if a server refuses to reserve memory. The caller first removes
    /// these parts from far memory.
    pub(crate) fn commit(&self, range: &Range<usize>) -> (Vec<Range<usize>>, Option<Lack>) {
        let (whole, mut rest) = self.whole_pages(range);
        let mut lack = None;
        if let Some(whole) = whole {
            let pages = whole.len() / self.page;
            self.lock().taken += pages;
            match self.promise() {
                Ok(()) => {
                    // SAFETY: the pages are reserved, and no two threads of the program commit the same range
                    // at the same time.
                    unsafe { self.memory.commit(whole.clone()) };
                    self.lock().reserved.remove(whole);
                }
                Err(error) => {
                    self.lock().taken -= pages;
                    lack = Some(error);
                    rest = vec![range.clone()];
                }
            }
        }
        (rest, lack)
    }

    /// Empties a range of mapped memory and reserves it. Returns the parts that the kernel must reserve.
    pub(crate) fn decommit(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut rest = Vec::new();
        for (part, is_reserved) in self.by_reservation(range.clone()) {
            if is_reserved {
                continue;
            }
            let (whole, partial) = self.whole_pages(&part);
            if let Some(whole) = whole {
                // SAFETY: the pages are managed and committed, and the program gives up their content.
                unsafe { self.memory.decommit(whole.clone()) };
                let mut space = self.lock();
                space.taken -= whole.len() / self.page;
                space.reserved.insert(whole);
            }
            rest.extend(partial);
        }
        rest
    }

    /// Returns the pages that have no mapped part outside of a range, and the parts of the range in other
    /// pages.
    fn whole_pages(&self, range: &Range<usize>) -> (Option<Range<usize>>, Vec<Range<usize>>) {
        let page_of = |address: usize| self.base + (address - self.base) / self.page * self.page;
        let space = self.lock();
        let is_whole = |page: usize| {
            space
                .mapped
                .within(&(page..page + self.page))
                .all(|part| range.start <= part.start && part.end <= range.end)
        };
        let (first, last) = (page_of(range.start), page_of(range.end - 1));
        let start = if is_whole(first) { first } else { first + self.page };
        let end = if is_whole(last) { last + self.page } else { last };
        if start >= end {
            return (None, vec![range.clone()]);
        }
        let around = [range.start..start, end..range.end];
        (Some(start..end), around.into_iter().filter(|part| !part.is_empty()).collect())
    }

    /// Removes the reserved ones of these pages from far memory before the other pages leave it: as memory
    /// that the program does not use. [`Space::close_reserved`] then removes the access rights again.
    pub(super) fn unmanage_reserved(&self, pages: &Range<usize>) {
        let reserved: Vec<Range<usize>> = self.lock().reserved.within(pages).collect();
        for part in reserved {
            // SAFETY: the pages are reserved, so the program does not use them. This thread holds no lock of
            // this library (FAR-1).
            unsafe {
                self.memory.commit(part.clone());
                self.memory.unmanage(part);
            }
        }
    }

    /// Excludes a range of mapped memory from child processes. Returns the parts that the kernel must
    /// exclude.
    pub(crate) fn keep_from_children(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let (whole, rest) = self.whole_pages(range);
        if let Some(whole) = whole {
            self.lock().unforked.insert(whole);
        }
        rest
    }

    /// Includes a range in child processes again.
    pub(crate) fn give_to_children(&self, range: Range<usize>) {
        self.lock().unforked.remove(range);
    }

    /// Removes, in a child process, the memory that the child does not inherit: it is reserved and no longer
    /// mapped.
    pub(super) fn drop_unforked(&self) {
        let unforked: Vec<Range<usize>> = std::mem::take(&mut self.lock().unforked).iter().collect();
        for range in unforked {
            self.decommit(&range);
            self.lock().mapped.remove(range);
        }
    }

    /// Commits the reserved ones of these pages before all of them become free.
    pub(super) fn commit_free(&self, pages: &Range<usize>) {
        self.lock().unforked.remove(pages.clone());
        let reserved: Vec<Range<usize>> = self.lock().reserved.within(pages).collect();
        for part in reserved {
            // SAFETY: the pages are reserved and no longer mapped.
            unsafe { self.memory.commit(part.clone()) };
            let mut space = self.lock();
            space.taken += part.len() / self.page;
            space.reserved.remove(part);
        }
    }
}

impl Space {
    /// Handles pages that were unmanaged: tells the kernel about the program's `MADV_DONTFORK` parts.
    pub(super) fn keep_unforked(&mut self, pages: &Range<usize>) {
        let unforked: Vec<Range<usize>> = self.unforked.within(pages).collect();
        for part in unforked {
            for mapped in self.mapped.within(&part) {
                let arguments = [mapped.start, mapped.len(), libc::MADV_DONTFORK as usize, 0, 0, 0];
                // SAFETY: ordinary memory of the program, and the program has requested this advice.
                unsafe { sys::call(libc::SYS_madvise, arguments) };
            }
            self.unforked.remove(part);
        }
    }

    /// Handles pages that were unmanaged: the kernel removes the access rights of their reserved parts.
    pub(super) fn close_reserved(&mut self, pages: &Range<usize>) {
        let reserved: Vec<Range<usize>> = self.reserved.within(pages).collect();
        for part in reserved {
            for mapped in self.mapped.within(&part) {
                let arguments = [mapped.start, mapped.len(), libc::PROT_NONE as usize, 0, 0, 0];
                // SAFETY: ordinary memory to which the program has no access.
                unsafe { sys::call(libc::SYS_mprotect, arguments) };
            }
            self.reserved.remove(part);
        }
    }
}
