//! The far memory of this process, and which of its pages are allocated.
//!
//! Blocks are whole pages, allocated first-fit, and smaller blocks are in slabs (`small`). The length of a
//! block is stored outside of the block, so that allocation touches no far memory. Memory that was mapped
//! (not allocated) can be unmapped in pieces of 4 KiB. A page is free when no part of it is mapped. Mapped
//! memory may contain blocks, too: those of an allocator of the program. Only that allocator has their
//! lengths and can free them.
//!
//! Memory that is mapped without access is *reserved*: its pages are empty, an access is refused, and servers
//! reserve no memory for it until a part of it is *committed* (`reserved`).
//!
//! Pages leave the heap permanently when the program makes a call on them that only the kernel can execute
//! ([`Heap::unmanage`]). After that, exactly the program's memory is mapped there by the kernel, and the heap
//! only records that the pages left.

mod reserved;
mod small;

use crate::ranges::Ranges;
use azekura_far::signals_blocked::SignalsBlocked;
use azekura_far::{FarMemory, ForkError, Frozen, ReserveError, sys};
use small::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Granularity of `munmap` in bytes.
const PIECE: usize = 4096;

/// The far heap of this process; see the [module](self).
pub(crate) struct Heap {
    memory: FarMemory,
    base: usize,
    bytes: usize,
    /// Addresses of the heap, beginning at `base`.
    range: Range<usize>,
    page: usize,
    /// Set before the first slab is made.
    has_slabs: AtomicBool,
    space: Mutex<Space>,
}

/// The locked state of the heap. The signals of this thread are blocked as long as it exists (SIGNAL-1): a
/// handler of the program may fork, exit, or call `mmap` and `munmap`, for which it needs this lock.
struct Locked<'a> {
    // Dropped in this order.
    space: MutexGuard<'a, Space>,
    blocked: SignalsBlocked,
}

impl Deref for Locked<'_> {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

#[derive(Default)]
struct Space {
    /// First page and number of pages of each free range, by address.
    free: BTreeMap<usize, usize>,
    /// First page of each allocated block or slab → its usable bytes.
    blocks: BTreeMap<usize, usize>,
    /// First page of each slab → the slab.
    slabs: BTreeMap<usize, Slab>,
    /// Size of blocks → first pages of slabs that may have free blocks of this size.
    partial: BTreeMap<usize, BTreeSet<usize>>,
    /// Addresses that the program has mapped.
    mapped: Ranges,
    /// Addresses of pages that left far memory.
    unmanaged: Ranges,
    /// Addresses of reserved pages. The program's parts of these pages are in `mapped`, too.
    reserved: Ranges,
    /// Addresses of mapped pages that child processes do not inherit (`MADV_DONTFORK`).
    unforked: Ranges,
    /// Number of pages that are neither free nor reserved.
    taken: usize,
}

/// Reason why a block gets no far memory.
#[derive(Debug)]
pub(crate) enum Lack {
    /// `--max-far` is used up.
    Space,
    /// A server refused to reserve memory.
    Server(ReserveError),
}

/// The owner of a block in far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This heap.
    Heap {
        /// Usable size of the block in bytes.
        usable: usize,
    },
    /// An allocator of the program, which mapped far memory and allocates blocks of any size in it.
    Allocator,
    /// None: no block begins at the address. The block was freed, or never existed.
    Nobody,
}

/// A range of addresses, split by the treatment of each part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    /// Managed pages, whether they are allocated or not.
    pub(crate) far: Vec<Range<usize>>,
    /// Memory of the kernel: before and after the heap, and unmanaged pages.
    pub(crate) others: Vec<Range<usize>>,
}

/// A heap that is stopped while its process forks.
pub(crate) struct FrozenHeap<'a> {
    heap: &'a Heap,
    space: Locked<'a>,
    frozen: Frozen<'a>,
}

impl FrozenHeap<'_> {
    pub(crate) fn in_parent(self) {
        let Self { space, frozen, .. } = self;
        frozen.in_parent();
        drop(space);
    }

    /// Returns the heap of the child. Returns `None` if nothing was allocated from the heap, so that the
    /// child can set up its own far memory later.
    ///
    /// # Safety
    ///
    /// The contract of [`Frozen::in_child`]. The frozen heap is not used any more, either.
    pub(crate) unsafe fn in_child(self) -> Result<Option<Heap>, ForkError> {
        let Heap { base, bytes, page, .. } = *self.heap;
        let Locked { space: mut locked, blocked: _blocked } = self.space;
        let space = std::mem::take(&mut *locked);
        std::mem::forget(locked);
        if space.is_unused() && self.heap.memory.adopted().is_empty() {
            // SAFETY: the caller keeps this function's contract.
            unsafe { self.frozen.abandon_in_child() };
            return Ok(None);
        }
        // SAFETY: the caller keeps this function's contract.
        let memory = unsafe { self.frozen.in_child()? };
        let has_slabs = AtomicBool::new(!space.slabs.is_empty());
        let range = base..base + bytes;
        let heap = Heap { memory, base, bytes, range, page, has_slabs, space: Mutex::new(space) };
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
            has_slabs: AtomicBool::new(false),
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

    /// Returns `true` if any byte of a range is managed.
    pub(crate) fn overlaps(&self, address: usize, bytes: usize) -> bool {
        !self.parts(address, bytes).far.is_empty()
    }

    /// Splits a range into far memory and other memory. An allocator merges adjacent maps, and some of them
    /// may belong to the kernel.
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

    /// Returns `true` if a range of managed memory overlaps reserved memory.
    pub(crate) fn meets_reserved(&self, range: &Range<usize>) -> bool {
        self.lock().reserved.meets(range)
    }

    /// Returns `true` if the program has mapped all of a range of managed memory.
    pub(crate) fn has_mapped(&self, range: &Range<usize>) -> bool {
        self.lock().mapped.covers(range)
    }

    /// Returns `true` if the program owns all of a range of managed memory, mapped or as a block.
    pub(crate) fn has_given(&self, range: &Range<usize>) -> bool {
        let space = self.lock();
        let rest = space.mapped.without(range);
        rest.iter().all(|part| space.blocks_within(self, part).covers(part))
    }

    /// Returns `true` if the program owns any part of a range of managed memory.
    pub(crate) fn has_given_any(&self, range: &Range<usize>) -> bool {
        let space = self.lock();
        space.mapped.meets(range) || space.blocks_within(self, range).meets(range)
    }

    /// Returns `true` if a range of managed memory overlaps a block.
    pub(crate) fn meets_block(&self, range: &Range<usize>) -> bool {
        !self.lock().blocks_within(self, range).is_empty()
    }

    /// Passes the pages that overlap a range to the kernel permanently, with their bytes. Parts of them that
    /// the program does not own are unmapped.
    pub(crate) fn unmanage(&self, range: Range<usize>) {
        let of_page = |address: usize| self.base + (address - self.base) / self.page * self.page;
        for part in self.parts(range.start, range.len()).far {
            let pages = of_page(part.start)..of_page(part.end - 1) + self.page;
            self.lock().take_free_within(self, &pages);
            self.unmanage_reserved(&pages);
            // SAFETY: this thread holds no lock of this library (FAR-1), and the memory is never dropped.
            unsafe { self.memory.unmanage(pages.clone()) };
            self.unmap_unowned(pages);
        }
        // SAFETY: as above. The remaining pages of the range are those of static arrays.
        unsafe { self.memory.unmanage(range) };
    }

    /// Passes all pages to the kernel and ends far memory.
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
            // SAFETY: as in `unmanage`; no part of the range is allocated.
            unsafe { self.memory.unmanage(part.clone()) };
            self.unmap_unowned(part);
        }
        // SAFETY: all pages have left far memory.
        unsafe { self.memory.retire() };
    }

    /// Returns the addresses of the heap.
    pub(crate) fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Handles pages that were unmanaged: the kernel unmaps the parts that the program does not own.
    fn unmap_unowned(&self, pages: Range<usize>) {
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

    /// Returns the number of bytes of managed memory that the program owns.
    pub(crate) fn given_bytes(&self) -> usize {
        let space = self.lock();
        space.mapped.total() + space.blocks_within(self, &self.range).total() - space.reserved.total()
    }

    fn lock(&self) -> Locked<'_> {
        let blocked = SignalsBlocked::new();
        Locked { space: self.space.lock().unwrap_or_else(PoisonError::into_inner), blocked }
    }

    /// Returns `true` if no block of this heap can begin at this address, without the lock: only blocks of
    /// slabs begin inside a page.
    fn is_inside_page(&self, address: usize) -> bool {
        // Relaxed: a thread that frees a block of a slab has received its address from the thread that made
        // the slab.
        !(address - self.base).is_multiple_of(self.page) && !self.has_slabs.load(Relaxed)
    }

    /// Stops the heap for `fork`.
    pub(crate) fn freeze(&self) -> io::Result<FrozenHeap<'_>> {
        let space = self.lock();
        Ok(FrozenHeap { heap: self, space, frozen: self.memory.freeze()? })
    }

    /// Allocates a block. Also returns `true` if the block is zeroed.
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

    /// Reserves memory at the servers for all allocated pages. Frees the given pages, which were just
    /// allocated, if a server refuses. This thread holds no lock of this library, because it waits for the
    /// servers.
    fn reserve(&self, first: usize, pages: usize) -> Result<(), Lack> {
        self.promise().inspect_err(|_| self.lock().give(first, pages))
    }

    /// Reserves memory at the servers for all allocated pages.
    fn promise(&self) -> Result<(), Lack> {
        let adopted: usize = self.memory.adopted().iter().map(Range::len).sum();
        let taken = self.lock().taken * self.page;
        self.memory.reserve(taken + adopted).map_err(Lack::Server)
    }

    /// Returns the owner of the block at this address. An address inside a page that is no block is left to
    /// the next allocator, which refuses it as it does without far memory.
    pub(crate) fn owner(&self, address: usize) -> Owner {
        if self.is_inside_page(address) {
            return Owner::Allocator;
        }
        self.lock().owner(self, address)
    }

    /// Frees a block if this heap owns it. Returns the owner of the block.
    pub(crate) fn release(&self, address: usize) -> Owner {
        if self.is_inside_page(address) {
            return Owner::Allocator;
        }
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

    /// Extends a block of this heap in place to at least `bytes` bytes, if the memory after it is free.
    /// Returns `true` if the block was extended.
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

    /// Maps memory for `mmap`. The servers reserve memory for it, unless the program declares that most of it
    /// may never be used (`MAP_NORESERVE`).
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

    /// Unmaps a range of managed memory. Pages without any mapped part become free.
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

    /// Zeroes a range. Whole pages are discarded, and the rest is overwritten by stores of the calling
    /// thread. Reserved parts are zero already.
    pub(crate) fn zero(&self, range: &Range<usize>) {
        let committed = self.lock().reserved.without(range);
        committed.iter().for_each(|part| self.zero_committed(part));
    }

    fn zero_committed(&self, range: &Range<usize>) {
        let (start, end) = (range.start - self.base, range.end - self.base);
        let (first, last) = (start.next_multiple_of(self.page), end / self.page * self.page);
        let clear = |from: usize, to: usize| {
            if from < to {
                // SAFETY: inside far memory, and the caller owns the range.
                unsafe { ((self.base + from) as *mut u8).write_bytes(0, to - from) };
            }
        };
        if first >= last {
            return clear(start, end);
        }
        clear(start, first);
        // SAFETY: inside far memory, and the caller owns the range.
        unsafe { self.memory.discard_shared(first..last) };
        clear(last, end);
    }

    /// Frees whole pages.
    fn give_back(&self, pages: Range<usize>) {
        // SAFETY: the pages are no longer allocated, and not yet free for other allocations.
        unsafe { self.memory.discard_shared(pages.start - self.base..pages.end - self.base) };
        let mut space = self.lock();
        // Pages that another thread has passed to the kernel meanwhile are not allocated again.
        for part in space.unmanaged.without(&pages) {
            space.give((part.start - self.base) / self.page, part.len() / self.page);
        }
    }
}

/// Unmaps memory that is not far memory any more.
fn unmap(range: &Range<usize>) {
    // SAFETY: the program owns no memory in the range, or it unmaps the range.
    unsafe { sys::call(libc::SYS_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
}

impl Space {
    fn is_unused(&self) -> bool {
        self.blocks.is_empty() && self.mapped.is_empty() && self.unmanaged.is_empty()
    }

    /// Returns the owner of the block at an address. A page belongs to a block or is mapped, never both,
    /// because both are taken from the free pages. Memory that left the heap may belong to the next
    /// allocator.
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

    /// Takes these pages if they are free. Returns `true` if they were taken.
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
