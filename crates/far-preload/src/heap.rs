//! The far memory of this process, and which of its pages are given out.
//!
//! Blocks are whole pages, found first-fit; a block's length is kept beside it, not in it, so that giving
//! memory out touches none. Memory that was mapped (not allocated) can be unmapped in pieces of 4 KiB: each
//! page counts its pieces and is free when none is left. What lies in mapped memory may be blocks, too: those
//! of an allocator that the program brought, which alone knows their lengths and can take them back.

use azekura_far::{FarMemory, ForkError, Frozen};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What `munmap` counts in.
const PIECE: usize = 4096;

/// See the [module](self).
pub(crate) struct Heap {
    memory: FarMemory,
    base: usize,
    bytes: usize,
    page: usize,
    space: Mutex<Space>,
}

#[derive(Default)]
struct Space {
    /// First page and number of pages of what is free, by address.
    free: BTreeMap<usize, usize>,
    /// First page of each allocated block → bytes that it may use.
    blocks: BTreeMap<usize, usize>,
    /// Page → pieces that are still mapped, for memory that was mapped.
    pieces: BTreeMap<usize, usize>,
}

/// Whose a block in far memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This heap's.
    Heap {
        /// Bytes that it may use.
        usable: usize,
    },
    /// That of the allocator that the program brought, which mapped far memory and gives it out in blocks of
    /// its own, of any size.
    Allocator,
    /// No block begins there: it was freed, or never was one.
    Nobody,
}

/// A range of addresses, cut at the bounds of far memory; no part is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) far: Option<Range<usize>>,
    /// What is not far: before and behind.
    pub(crate) others: [Option<Range<usize>>; 2],
}

impl Cut {
    fn new(range: Range<usize>, far: Range<usize>) -> Self {
        let part = |from: usize, to: usize| {
            let (from, to) = (from.max(range.start), to.min(range.end));
            (from < to).then_some(from..to)
        };
        Self { far: part(far.start, far.end), others: [part(0, far.start), part(far.end, usize::MAX)] }
    }
}

/// A heap that stands still while its process forks.
pub(crate) struct FrozenHeap<'a> {
    heap: &'a Heap,
    space: MutexGuard<'a, Space>,
    frozen: Frozen<'a>,
}

impl FrozenHeap<'_> {
    pub(crate) fn in_parent(self) {
        let Self { space, frozen, .. } = self;
        frozen.in_parent();
        drop(space);
    }

    /// The heap of the child; `None` if nothing was given out of it, so that the child may as well begin
    /// anew.
    ///
    /// # Safety
    ///
    /// As [`Frozen::in_child`]; the heap that was frozen is not used any more, either.
    pub(crate) unsafe fn in_child(mut self) -> Result<Option<Heap>, ForkError> {
        let Heap { base, bytes, page, .. } = *self.heap;
        let space = std::mem::take(&mut *self.space);
        std::mem::forget(self.space);
        if space.is_unused() && self.heap.memory.adopted().is_empty() {
            // SAFETY: the caller's.
            unsafe { self.frozen.abandon_in_child() };
            return Ok(None);
        }
        // SAFETY: the caller's.
        let memory = unsafe { self.frozen.in_child()? };
        Ok(Some(Heap { memory, base, bytes, page, space: Mutex::new(space) }))
    }
}

impl Heap {
    pub(crate) fn new(memory: FarMemory, page: usize) -> Self {
        let (base, bytes) = (memory.as_ptr() as usize, memory.len() / page * page);
        let free = BTreeMap::from([(0, bytes / page)]);
        Self { memory, base, bytes, page, space: Mutex::new(Space { free, ..Space::default() }) }
    }

    pub(crate) fn memory(&self) -> &FarMemory {
        &self.memory
    }

    /// Whether an address is far memory.
    pub(crate) fn has(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// Whether any byte of a range is.
    pub(crate) fn overlaps(&self, address: usize, bytes: usize) -> bool {
        self.cut(address, bytes).far.is_some()
    }

    /// What of a range is far memory, and what lies before and behind it: an allocator joins maps that lie
    /// side by side, whoever gave it them.
    pub(crate) fn cut(&self, address: usize, bytes: usize) -> Cut {
        Cut::new(address..address.saturating_add(bytes), self.base..self.base + self.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands still for `fork`.
    pub(crate) fn freeze(&self) -> io::Result<FrozenHeap<'_>> {
        let space = self.lock();
        Ok(FrozenHeap { heap: self, space, frozen: self.memory.freeze()? })
    }

    /// A block of zeros, or `None` if there is no room for it.
    pub(crate) fn allocate(&self, bytes: usize, align: usize) -> Option<*mut u8> {
        let pages = bytes.div_ceil(self.page).max(1);
        let mut space = self.lock();
        let first = space.take(pages, align.div_ceil(self.page).max(1))?;
        space.blocks.insert(first, pages * self.page);
        Some((self.base + first * self.page) as *mut u8)
    }

    /// Whose block lies at this address.
    pub(crate) fn owner(&self, address: usize) -> Owner {
        self.lock().owner((address - self.base) / self.page)
    }

    /// Gives a block back, if it is ours; says whose it was.
    pub(crate) fn release(&self, address: usize) -> Owner {
        let first = (address - self.base) / self.page;
        let mut space = self.lock();
        let owner = space.owner(first);
        if let Owner::Heap { usable } = owner {
            space.blocks.remove(&first);
            drop(space);
            self.give_back(first, usable / self.page);
        }
        owner
    }

    /// Makes a block of ours at least so long where it lies, if what lies behind it is free. Returns whether
    /// it did.
    pub(crate) fn lengthen(&self, address: usize, bytes: usize) -> bool {
        let first = (address - self.base) / self.page;
        let mut space = self.lock();
        let Owner::Heap { usable } = space.owner(first) else { return false };
        let (pages, wanted) = (usable / self.page, bytes.div_ceil(self.page));
        let lengthens = wanted > pages && space.take_at(first + pages, wanted - pages);
        if lengthens {
            space.blocks.insert(first, wanted * self.page);
        }
        lengthens
    }

    /// Memory for `mmap`.
    pub(crate) fn map(&self, bytes: usize) -> Option<*mut u8> {
        let pages = bytes.div_ceil(self.page);
        let mut space = self.lock();
        let first = space.take(pages, 1)?;
        let mut left = bytes.div_ceil(PIECE);
        for page in first..first + pages {
            let here = left.min(self.page / PIECE);
            space.pieces.insert(page, here);
            left -= here;
        }
        Some((self.base + first * self.page) as *mut u8)
    }

    /// Gives a mapped range of far memory back, whole pages when their last piece goes; those that follow one
    /// another in one go.
    pub(crate) fn unmap(&self, address: usize, bytes: usize) {
        let (start, end) = (address - self.base, (address - self.base + bytes).min(self.bytes));
        let (mut page, mut at) = (start / self.page, start);
        let mut free = page..page;
        let mut space = self.lock();
        let mut frees: Vec<Range<usize>> = Vec::new();
        while at < end {
            let next = ((page + 1) * self.page).min(end);
            if space.unmap(page, (next - at).div_ceil(PIECE)) {
                if free.end != page {
                    frees.push(std::mem::replace(&mut free, page..page));
                }
                free.end = page + 1;
            }
            (page, at) = (page + 1, next);
        }
        drop(space);
        frees.push(free);
        frees
            .into_iter()
            .filter(|free| !free.is_empty())
            .for_each(|free| self.give_back(free.start, free.len()));
    }

    /// A range is zeros from now on: what lies between whole pages is written, by the caller's own stores.
    pub(crate) fn zero(&self, address: usize, bytes: usize) {
        let (start, end) = (address - self.base, (address - self.base + bytes).min(self.bytes));
        let (first, last) = (start.next_multiple_of(self.page), end / self.page * self.page);
        let clear = |from: usize, to: usize| {
            if from < to {
                // SAFETY: within far memory, and the caller owns the range that it wants zeroed.
                unsafe { ((self.base + from) as *mut u8).write_bytes(0, to - from) };
            }
        };
        if first >= last {
            return clear(start, end);
        }
        clear(start, first);
        // SAFETY: within, and the caller owns the range.
        unsafe { self.memory.discard_shared(first..last) };
        clear(last, end);
    }

    fn give_back(&self, first: usize, pages: usize) {
        // SAFETY: no longer given out, not yet free for others.
        unsafe { self.memory.discard_shared(first * self.page..(first + pages) * self.page) };
        self.lock().give(first, pages);
    }
}

impl Space {
    fn is_unused(&self) -> bool {
        self.blocks.is_empty() && self.pieces.is_empty()
    }

    /// A page is either of a block or mapped, as both take it from what is free.
    fn owner(&self, page: usize) -> Owner {
        match self.blocks.get(&page) {
            Some(&usable) => Owner::Heap { usable },
            None if self.pieces.contains_key(&page) => Owner::Allocator,
            None => Owner::Nobody,
        }
    }

    fn take(&mut self, pages: usize, align: usize) -> Option<usize> {
        let fits = |(&start, &length): (&usize, &usize)| {
            let first = start.next_multiple_of(align);
            (first + pages <= start + length).then_some(first)
        };
        let first = self.free.iter().find_map(fits)?;
        self.take_at(first, pages).then_some(first)
    }

    /// So many pieces of a page are no longer mapped. Returns whether none is.
    fn unmap(&mut self, page: usize, gone: usize) -> bool {
        let Some(pieces) = self.pieces.get_mut(&page) else { return false };
        *pieces = pieces.saturating_sub(gone);
        let is_free = *pieces == 0;
        if is_free {
            self.pieces.remove(&page);
        }
        is_free
    }

    /// These pages, if they are free.
    fn take_at(&mut self, first: usize, pages: usize) -> bool {
        let Some((&start, &length)) = self.free.range(..=first).next_back() else { return false };
        let (end, free_end) = (first + pages, start + length);
        let is_free = end <= free_end;
        if is_free {
            self.free.remove(&start);
            let left = [(start, first - start), (end, free_end - end)];
            self.free.extend(left.into_iter().filter(|&(_, length)| length > 0));
        }
        is_free
    }

    fn give(&mut self, mut first: usize, mut pages: usize) {
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            self.free.remove(&before);
            (first, pages) = (before, pages + length);
        }
        if let Some(length) = self.free.remove(&(first + pages)) {
            pages += length;
        }
        self.free.insert(first, pages);
    }
}
