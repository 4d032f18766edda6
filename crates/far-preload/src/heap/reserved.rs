//! Reserved memory: mapped without access (`PROT_NONE`), as heaps of garbage collectors begin, and committed
//! in parts.
//!
//! | the program | pages that are wholly in the range | pages that are partly in it |
//! |---|---|---|
//! | reserves | empty, an access is refused | – |
//! | commits (`mprotect`, `MAP_FIXED`) | far memory | leave far memory; the kernel commits the part |
//! | decommits (`MAP_FIXED` without access) | emptied and reserved | leave far memory |
//! | unmaps | free | reserved until the rest is unmapped |
//!
//! An access is refused exactly where the program has none, so a page is never committed in part. Only whole
//! pages are reserved; the end of a mapping may be within a page.

use super::{Heap, Lack, PIECE, Space};
use azekura_far::sys;
use std::ops::Range;

/// Largest part of the free pages that a reservation takes, so that blocks find room behind it.
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
        // SAFETY: just taken; no other thread has its address.
        unsafe { self.memory.decommit(all.clone()) };
        let mut space = self.lock();
        space.reserved.insert(all);
        space.mapped.insert(at..at + bytes.next_multiple_of(PIECE));
        Some(at as *mut u8)
    }

    /// The parts of a range of managed memory, and whether each is reserved.
    pub(crate) fn by_reservation(&self, range: Range<usize>) -> Vec<(Range<usize>, bool)> {
        let space = self.lock();
        let committed = space.reserved.without(&range).into_iter().map(|part| (part, false));
        let mut parts: Vec<(Range<usize>, bool)> =
            committed.chain(space.reserved.within(&range).map(|part| (part, true))).collect();
        parts.sort_unstable_by_key(|(part, _)| part.start);
        parts
    }

    /// Commits a reserved range. Returns the parts that the kernel has to commit: those of pages that are not
    /// wholly in it, or all if the servers promise no room; the caller has them leave far memory first.
    pub(crate) fn commit(&self, range: &Range<usize>) -> (Vec<Range<usize>>, Option<Lack>) {
        let (whole, mut rest) = self.whole_pages(range);
        let mut lack = None;
        if let Some(whole) = whole {
            let pages = whole.len() / self.page;
            self.lock().taken += pages;
            match self.promise() {
                Ok(()) => {
                    // SAFETY: reserved; two threads of the program do not commit one range at the same time.
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

    /// Empties a range of mapped memory and reserves it. Returns the parts that the kernel has to reserve.
    pub(crate) fn decommit(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut rest = Vec::new();
        for (part, is_reserved) in self.by_reservation(range.clone()) {
            if is_reserved {
                continue;
            }
            let (whole, partial) = self.whole_pages(&part);
            if let Some(whole) = whole {
                // SAFETY: managed and committed, and the program gives it up.
                unsafe { self.memory.decommit(whole.clone()) };
                let mut space = self.lock();
                space.taken -= whole.len() / self.page;
                space.reserved.insert(whole);
            }
            rest.extend(partial);
        }
        rest
    }

    /// The pages of which all that is mapped lies in a range, and the parts of the range in other pages.
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

    /// Before pages leave far memory: those of them that are reserved leave as memory that the program does
    /// not use. An access to them is refused again by [`Space::close_reserved`].
    pub(super) fn unmanage_reserved(&self, pages: &Range<usize>) {
        let reserved: Vec<Range<usize>> = self.lock().reserved.within(pages).collect();
        for part in reserved {
            // SAFETY: reserved, so the program does not use it; this thread has no lock of ours (FAR-1).
            unsafe {
                self.memory.commit(part.clone());
                self.memory.unmanage_free(part);
            }
        }
    }

    /// Child processes are not to have a range of mapped memory. Returns the parts that the kernel has to
    /// keep from them.
    pub(crate) fn keep_from_children(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let (whole, rest) = self.whole_pages(range);
        if let Some(whole) = whole {
            self.lock().unforked.insert(whole);
        }
        rest
    }

    /// Child processes are to have a range again.
    pub(crate) fn give_to_children(&self, range: Range<usize>) {
        self.lock().unforked.remove(range);
    }

    /// In a child process: memory that it is not to have is refused and no longer mapped.
    pub(super) fn drop_unforked(&self) {
        let unforked: Vec<Range<usize>> = std::mem::take(&mut self.lock().unforked).iter().collect();
        for range in unforked {
            self.decommit(&range);
            self.lock().mapped.remove(range);
        }
    }

    /// Before whole pages become free: those of them that are reserved are committed.
    pub(super) fn commit_free(&self, pages: &Range<usize>) {
        self.lock().unforked.remove(pages.clone());
        let reserved: Vec<Range<usize>> = self.lock().reserved.within(pages).collect();
        for part in reserved {
            // SAFETY: reserved, and no longer mapped.
            unsafe { self.memory.commit(part.clone()) };
            let mut space = self.lock();
            space.taken += part.len() / self.page;
            space.reserved.remove(part);
        }
    }
}

impl Space {
    /// Handles pages that were unmanaged: keeps the program's `MADV_DONTFORK` parts from child processes.
    pub(super) fn keep_unforked(&mut self, pages: &Range<usize>) {
        let unforked: Vec<Range<usize>> = self.unforked.within(pages).collect();
        for part in unforked {
            for mapped in self.mapped.within(&part) {
                let arguments = [mapped.start, mapped.len(), libc::MADV_DONTFORK as usize, 0, 0, 0];
                // SAFETY: ordinary memory of the program, at the program's request.
                unsafe { sys::call(libc::SYS_madvise, arguments) };
            }
            self.unforked.remove(part);
        }
    }

    /// Handles pages that were unmanaged: the kernel refuses access to their reserved parts.
    pub(super) fn close_reserved(&mut self, pages: &Range<usize>) {
        let reserved: Vec<Range<usize>> = self.reserved.within(pages).collect();
        for part in reserved {
            for mapped in self.mapped.within(&part) {
                let arguments = [mapped.start, mapped.len(), libc::PROT_NONE as usize, 0, 0, 0];
                // SAFETY: ordinary memory of the program, which has no access there.
                unsafe { sys::call(libc::SYS_mprotect, arguments) };
            }
            self.reserved.remove(part);
        }
    }
}
