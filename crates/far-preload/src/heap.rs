//! The far memory of this process, and which of its pages are given out.
//!
//! Blocks are whole pages, found first-fit, and smaller ones lie in slabs (`small`); a block's length is kept
//! beside it, not in it, so that giving memory out touches none. Memory that was mapped (not allocated) can
//! be unmapped in pieces of 4 KiB: a page is free when none of it is mapped. Mapped memory may have blocks,
//! too: those of an allocator that the program brought, which alone knows their lengths and can take them
//! back.
//!
//! Memory that is mapped without access is *reserved*: its pages are empty, an access is refused, and servers
//! promise no room for it until a part of it is *committed* (`reserved`).
//!
//! Pages leave the heap for good when the program has a call done on them that only the kernel can do
//! ([`Heap::unmanage`]): then the kernel has mapped there what the program has, and nothing else, and the
//! heap knows no more than that they left.

mod reserved;
mod small;

use crate::ranges::Ranges;
use azekura_far::{FarMemory, ForkError, Frozen, ReserveError, sys};
use small::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The unit in which `munmap` counts.
const PIECE: usize = 4096;

/// See the [module](self).
pub(crate) struct Heap {
    memory: FarMemory,
    base: usize,
    bytes: usize,
    /// From `base` on.
    range: Range<usize>,
    page: usize,
    space: Mutex<Space>,
}

#[derive(Default)]
struct Space {
    /// First page and number of pages of each free range, by address.
    free: BTreeMap<usize, usize>,
    /// First page of each allocated block or slab → bytes that it may use.
    blocks: BTreeMap<usize, usize>,
    /// First page → slab.
    slabs: BTreeMap<usize, Slab>,
    /// Size of blocks → first pages of slabs that may have more of them.
    partial: BTreeMap<usize, BTreeSet<usize>>,
    /// Addresses that are mapped.
    mapped: Ranges,
    /// Addresses of pages that left.
    unmanaged: Ranges,
    /// Addresses of reserved pages; the program's parts of them are mapped.
    reserved: Ranges,
    /// Addresses of mapped pages that child processes are not to have.
    unforked: Ranges,
    /// Number of pages that are neither free nor reserved.
    taken: usize,
}

/// The reason that a block gets no far memory.
#[derive(Debug)]
pub(crate) enum Lack {
    /// `--max-far` is used up.
    Space,
    /// A server promises no room.
    Server(ReserveError),
}

/// The owner of a block in far memory.
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

/// A range of addresses, split by the treatment of each part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// Managed pages, whether they are given out or not.
    pub(crate) far: Vec<Range<usize>>,
    /// Memory of the kernel: before and behind the heap, and unmanaged pages.
    pub(crate) others: Vec<Range<usize>>,
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
        let heap = Heap { memory, base, bytes, range: base..base + bytes, page, space: Mutex::new(space) };
        heap.drop_unforked();
        Ok(Some(heap))
    }
}

impl Heap {
    pub(crate) fn new(memory: FarMemory, page: usize) -> Self {
        let (base, bytes) = (memory.as_ptr() as usize, memory.len() / page * page);
        let free = BTreeMap::from([(0, bytes / page)]);
        Self {
            memory,
            base,
            bytes,
            range: base..base + bytes,
            page,
            space: Mutex::new(Space { free, ..Space::default() }),
        }
    }

    pub(crate) fn memory(&self) -> &FarMemory {
        &self.memory
    }

    /// Returns `true` if an address is far memory.
    pub(crate) fn has(&self, address: usize) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// Returns whether any byte of a range is managed.
    pub(crate) fn overlaps(&self, address: usize, bytes: usize) -> bool {
        !self.parts(address, bytes).far.is_empty()
    }

    /// A range cut into what is far memory and what is not: an allocator joins maps that lie side by side,
    /// and some of them may be the kernel's.
    pub(crate) fn parts(&self, address: usize, bytes: usize) -> Parts {
        let range = address..address.saturating_add(bytes);
        let heap = self.base..self.base + self.bytes;
        let within = range.start.max(heap.start)..range.end.min(heap.end);
        if within.is_empty() {
            return Parts { far: Vec::new(), others: vec![range] };
        }
        let space = self.lock();
        let around = [range.start..within.start, within.end..range.end];
        let others = around.into_iter().filter(|part| !part.is_empty());
        Parts {
            far: space.unmanaged.without(&within),
            others: others.chain(space.unmanaged.within(&within)).collect(),
        }
    }

    /// Returns whether a range of managed memory overlaps reserved memory.
    pub(crate) fn meets_reserved(&self, range: &Range<usize>) -> bool {
        self.lock().reserved.meets(range)
    }

    /// Returns whether the program has mapped all of a range of managed memory.
    pub(crate) fn has_mapped(&self, range: &Range<usize>) -> bool {
        self.lock().mapped.covers(range)
    }

    /// Returns whether the program has all of a range of managed memory, mapped or as a block.
    pub(crate) fn has_given(&self, range: &Range<usize>) -> bool {
        let space = self.lock();
        let rest = space.mapped.without(range);
        rest.iter().all(|part| space.blocks_within(self, part).covers(part))
    }

    /// Returns whether the program has any of a range of managed memory.
    pub(crate) fn has_given_any(&self, range: &Range<usize>) -> bool {
        let space = self.lock();
        space.mapped.meets(range) || space.blocks_within(self, range).meets(range)
    }

    /// Returns whether a range of managed memory overlaps a block.
    pub(crate) fn meets_block(&self, range: &Range<usize>) -> bool {
        !self.lock().blocks_within(self, range).is_empty()
    }

    /// Hands the pages that meet a range to the kernel, for good, with their bytes. Those of them that the
    /// program does not have are unmapped.
    pub(crate) fn unmanage(&self, range: Range<usize>) {
        let of_page = |address: usize| self.base + (address - self.base) / self.page * self.page;
        for part in self.parts(range.start, range.len()).far {
            let pages = of_page(part.start)..of_page(part.end - 1) + self.page;
            self.lock().take_free_within(self, &pages);
            self.unmanage_reserved(&pages);
            // SAFETY: this thread has no lock of ours (FAR-1), and the memory is never dropped.
            unsafe { self.memory.unmanage(pages.clone()) };
            self.settle(pages);
        }
        // SAFETY: as above; the rest are static arrays.
        unsafe { self.memory.unmanage(range) };
    }

    /// Hands all pages to the kernel and ends far memory.
    pub(crate) fn end(&self) {
        let given: Vec<Range<usize>> = {
            let space = self.lock();
            space.mapped.iter().chain(space.blocks_within(self, &self.range).iter()).collect()
        };
        given.into_iter().for_each(|range| self.unmanage(range));
        for range in self.memory.adopted().to_vec() {
            // SAFETY: as in `unmanage`.
            unsafe { self.memory.unmanage(range) };
        }
        for part in self.parts(self.base, self.bytes).far {
            self.lock().take_free_within(self, &part);
            // SAFETY: as in `unmanage`; nothing of it is given out.
            unsafe { self.memory.unmanage_free(part.clone()) };
            self.settle(part);
        }
        // SAFETY: all pages left.
        unsafe { self.memory.retire() };
    }

    /// The addresses of the heap.
    pub(crate) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Handles pages that were unmanaged: the kernel unmaps the parts that the program does not have.
    fn settle(&self, pages: Range<usize>) {
        let mut space = self.lock();
        for part in space.unmanaged.without(&pages) {
            let blocks = space.blocks_within(self, &part);
            for free in space.mapped.without(&part).iter().flat_map(|free| blocks.without(free)) {
                unmap(&free);
            }
            space.close_reserved(&part);
            space.keep_unforked(&part);
            space.mapped.remove(part.clone());
            space.take_free_within(self, &part);
            space.unmanaged.insert(part);
        }
    }

    /// Bytes that the program has of managed memory.
    pub(crate) fn given_bytes(&self) -> usize {
        let space = self.lock();
        space.mapped.total() + space.blocks_within(self, &self.range).total() - space.reserved.total()
    }

    fn lock(&self) -> MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands still for `fork`.
    pub(crate) fn freeze(&self) -> io::Result<FrozenHeap<'_>> {
        let space = self.lock();
        Ok(FrozenHeap { heap: self, space, frozen: self.memory.freeze()? })
    }

    /// A block, and whether it is zeros.
    pub(crate) fn allocate(&self, bytes: usize, align: usize) -> Result<(*mut u8, bool), Lack> {
        if let Some(size) = self.small(bytes, align) {
            return self.allocate_small(size);
        }
        let pages = bytes.div_ceil(self.page).max(1);
        let first = self.lock().take(pages, align.div_ceil(self.page).max(1)).ok_or(Lack::Space)?;
        self.reserve(first, pages)?;
        self.lock().blocks.insert(first, pages * self.page);
        Ok(((self.base + first * self.page) as *mut u8, true))
    }

    /// Has the servers promise room for all that is taken; gives these pages, just taken, back if they do
    /// not. This thread has no lock of ours, as it waits for the servers.
    fn reserve(&self, first: usize, pages: usize) -> Result<(), Lack> {
        self.promise().inspect_err(|_| self.lock().give(first, pages))
    }

    /// Has the servers promise room for all that is taken.
    fn promise(&self) -> Result<(), Lack> {
        let adopted: usize = self.memory.adopted().iter().map(Range::len).sum();
        let taken = self.lock().taken * self.page;
        self.memory.reserve(taken + adopted).map_err(Lack::Server)
    }

    /// The owner of the block at this address.
    pub(crate) fn owner(&self, address: usize) -> Owner {
        self.lock().owner(self, address)
    }

    /// Frees a block if this heap owns it; returns its owner.
    pub(crate) fn release(&self, address: usize) -> Owner {
        let mut space = self.lock();
        let owner = space.owner(self, address);
        let first = match owner {
            Owner::Heap { .. } if space.is_small(self, address) => space.release_small(self, address),
            Owner::Heap { .. } => Some((address - self.base) / self.page),
            Owner::Allocator | Owner::Nobody => None,
        };
        if let Some((first, usable)) = first.and_then(|first| space.blocks.remove_entry(&first)) {
            let start = self.base + first * self.page;
            let block = start..start + usable;
            space.unmanaged.within(&block).for_each(|part| unmap(&part));
            let managed = space.unmanaged.without(&block);
            drop(space);
            managed.into_iter().for_each(|part| self.give_back(part));
        }
        owner
    }

    /// Makes a block of ours at least so long where it lies, if what lies behind it is free. Returns whether
    /// it did.
    pub(crate) fn lengthen(&self, address: usize, bytes: usize) -> bool {
        let first = (address - self.base) / self.page;
        let mut space = self.lock();
        let Owner::Heap { usable } = space.owner(self, address) else { return false };
        if space.is_small(self, address) {
            return false;
        }
        let (pages, wanted) = (usable / self.page, bytes.div_ceil(self.page));
        if wanted <= pages || !space.take_at(first + pages, wanted - pages) {
            return false;
        }
        drop(space);
        let lengthens = self.reserve(first + pages, wanted - pages).is_ok();
        if lengthens {
            self.lock().blocks.insert(first, wanted * self.page);
        }
        lengthens
    }

    /// Memory for `mmap`. The servers promise room for it, unless the program says that most of it may never
    /// be used (`MAP_NORESERVE`).
    pub(crate) fn map(&self, bytes: usize, is_sparse: bool) -> Result<*mut u8, Lack> {
        let pages = bytes.div_ceil(self.page);
        let first = self.lock().take(pages, 1).ok_or(Lack::Space)?;
        if !is_sparse {
            self.reserve(first, pages)?;
        }
        let at = self.base + first * self.page;
        self.lock().mapped.insert(at..at + bytes.next_multiple_of(PIECE));
        Ok(at as *mut u8)
    }

    /// Takes a range of managed memory back from what is mapped; pages of which nothing is mapped any more
    /// are free.
    pub(crate) fn unmap(&self, range: Range<usize>) {
        let of_page = |address: usize| self.base + (address - self.base) / self.page * self.page;
        let mut space = self.lock();
        let pages = of_page(range.start)..of_page(range.end - 1) + self.page;
        let mut before = Ranges::new();
        space
            .mapped
            .within(&pages)
            .for_each(|part| before.insert(of_page(part.start)..of_page(part.end - 1) + self.page));
        space.mapped.remove(range);
        space
            .mapped
            .within(&pages)
            .for_each(|part| before.remove(of_page(part.start)..of_page(part.end - 1) + self.page));
        drop(space);
        before.iter().for_each(|free| self.commit_free(&free));
        before.iter().for_each(|free| self.give_back(free));
    }

    /// A range is zeros from now on: what lies between whole pages is written, by the caller's own stores.
    /// Its reserved parts are so already.
    pub(crate) fn zero(&self, range: &Range<usize>) {
        let committed = self.lock().reserved.without(range);
        committed.iter().for_each(|part| self.zero_committed(part));
    }

    fn zero_committed(&self, range: &Range<usize>) {
        let (start, end) = (range.start - self.base, range.end - self.base);
        let (first, last) = (start.next_multiple_of(self.page), end / self.page * self.page);
        let clear = |from: usize, to: usize| {
            if from < to {
                // SAFETY: within far memory, and the caller owns the range.
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

    /// Whole pages are free again.
    fn give_back(&self, pages: Range<usize>) {
        // SAFETY: no longer given out, not yet free for others.
        unsafe { self.memory.discard_shared(pages.start - self.base..pages.end - self.base) };
        let mut space = self.lock();
        // A page that another thread has handed to the kernel meanwhile is not given out again.
        for part in space.unmanaged.without(&pages) {
            space.give((part.start - self.base) / self.page, part.len() / self.page);
        }
    }
}

/// Unmaps memory that far memory no longer manages.
fn unmap(range: &Range<usize>) {
    // SAFETY: nothing that the program has lies there, or it gives it up.
    unsafe { sys::call(libc::SYS_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
}

impl Space {
    fn is_unused(&self) -> bool {
        self.blocks.is_empty() && self.mapped.is_empty() && self.unmanaged.is_empty()
    }

    /// A page is either of a block or mapped, as both take it from what is free. Memory that left the heap
    /// may be the next allocator's.
    fn owner(&mut self, heap: &Heap, address: usize) -> Owner {
        if let Some(usable) = self.small_at(heap, address) {
            return if usable == 0 { Owner::Nobody } else { Owner::Heap { usable } };
        }
        let page = (address - heap.base) / heap.page;
        let addresses = heap.base + page * heap.page..heap.base + (page + 1) * heap.page;
        match self.blocks.get(&page) {
            Some(&usable) => Owner::Heap { usable },
            None if self.mapped.meets(&addresses) || self.unmanaged.meets(&addresses) => Owner::Allocator,
            None => Owner::Nobody,
        }
    }

    /// Returns the blocks that overlap a range, as addresses.
    fn blocks_within(&self, heap: &Heap, range: &Range<usize>) -> Ranges {
        let page = |address: usize| (address - heap.base) / heap.page;
        let first = page(range.start);
        let before = self.blocks.range(..first).next_back();
        let mut found = Ranges::new();
        for (&page, &usable) in before.into_iter().chain(self.blocks.range(first..page(range.end - 1) + 1)) {
            let start = heap.base + page * heap.page;
            let within = start.max(range.start)..(start + usable).min(range.end);
            found.insert(within);
        }
        found
    }

    /// Removes the free part of whole pages from the free list.
    fn take_free_within(&mut self, heap: &Heap, pages: &Range<usize>) {
        let (first, end) = ((pages.start - heap.base) / heap.page, (pages.end - heap.base) / heap.page);
        let before = self.free.range(..first).next_back();
        let meeting: Vec<(usize, usize)> = before
            .into_iter()
            .chain(self.free.range(first..end))
            .map(|(&start, &length)| (start, length))
            .collect();
        for (start, length) in meeting {
            let (from, to) = (start.max(first), (start + length).min(end));
            if from < to {
                self.take_at(from, to - from);
            }
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

    /// These pages, if they are free.
    fn take_at(&mut self, first: usize, pages: usize) -> bool {
        let Some((&start, &length)) = self.free.range(..=first).next_back() else { return false };
        let (end, free_end) = (first + pages, start + length);
        let is_free = end <= free_end;
        if is_free {
            self.taken += pages;
            self.free.remove(&start);
            let left = [(start, first - start), (end, free_end - end)];
            self.free.extend(left.into_iter().filter(|&(_, length)| length > 0));
        }
        is_free
    }

    fn give(&mut self, mut first: usize, mut pages: usize) {
        self.taken -= pages;
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
