//! Small blocks. A *slab* of some pages is divided into blocks of one size. A bitmap outside of the slab
//! records which blocks are allocated, so that allocating and freeing touches no far memory (FAR-1).

use super::{Heap, Lack, Space};
use std::sync::atomic::Ordering::Relaxed;

/// Alignment of blocks in bytes.
const ALIGN: usize = 16;
/// Smallest size of a slab in bytes; `LEAST_BLOCKS`: smallest number of its blocks.
const LEAST_BYTES: usize = 64 << 10;
const LEAST_BLOCKS: usize = 8;
/// Size in bytes below which blocks are in slabs, also if a page is smaller. A block with its own pages would
/// take up to twice its size.
const SHARED: usize = 16 << 10;

/// A run of pages with blocks of one size.
#[derive(Debug)]
pub(super) struct Slab {
    size: usize,
    blocks: usize,
    /// One bit per block, set if the block is allocated.
    given: Vec<u64>,
    count: usize,
    /// Index of the first block that was never allocated. This block and all after it are zeros.
    fresh: usize,
}

impl Slab {
    fn new(size: usize, bytes: usize) -> Self {
        let blocks = bytes / size;
        Self { size, blocks, given: vec![0; blocks.div_ceil(64)], count: 0, fresh: 0 }
    }

    /// Allocates a block. Also returns `true` if the block is zeroed.
    fn take(&mut self) -> Option<(usize, bool)> {
        let word = self.given.iter().position(|&word| word != u64::MAX)?;
        let block = word * 64 + self.given[word].trailing_ones() as usize;
        if block >= self.blocks {
            return None;
        }
        self.given[word] |= 1 << (block % 64);
        self.count += 1;
        let is_fresh = block >= self.fresh;
        self.fresh = self.fresh.max(block + 1);
        Some((block, is_fresh))
    }

    /// Returns the allocated block that begins at an offset, if there is one.
    fn block_at(&self, offset: usize) -> Option<usize> {
        let block = offset / self.size;
        let is_given = offset.is_multiple_of(self.size)
            && block < self.blocks
            && self.given[block / 64] >> (block % 64) & 1 == 1;
        is_given.then_some(block)
    }

    fn give(&mut self, block: usize) {
        self.given[block / 64] &= !(1 << (block % 64));
        self.count -= 1;
    }
}

/// Returns the size of the blocks for a small allocation: there are four sizes for each power of two.
fn size_of_class(bytes: usize) -> usize {
    let step = if bytes <= 8 * ALIGN { ALIGN } else { 1 << ((bytes - 1).ilog2() - 2) };
    bytes.max(1).next_multiple_of(step)
}

impl Heap {
    /// Returns the size of the blocks of the slab for an allocation; `None` if the block gets its own pages.
    pub(super) fn small(&self, bytes: usize, align: usize) -> Option<usize> {
        let (size, most) = if align <= ALIGN {
            (size_of_class(bytes), self.page.max(SHARED))
        } else {
            // A slab begins at a page boundary.
            (bytes.max(align).checked_next_power_of_two()?, self.page)
        };
        (size < most).then_some(size)
    }

    /// Allocates a block of this size. Also returns `true` if the block is zeroed.
    pub(super) fn allocate_small(&self, size: usize) -> Result<(*mut u8, bool), Lack> {
        if let Some(block) = self.lock().take_small(self, size) {
            return Ok(block);
        }
        let pages = LEAST_BYTES.max(LEAST_BLOCKS * size).div_ceil(self.page);
        let first = self.lock().take(pages, 1).ok_or(Lack::Space)?;
        self.reserve(first, pages)?;
        self.has_slabs.store(true, Relaxed); // Relaxed: as in `is_inside_page`
        let mut space = self.lock();
        space.blocks.insert(first, pages * self.page);
        space.slabs.insert(first, Slab::new(size, pages * self.page));
        space.partial.entry(size).or_default().insert(first);
        space.take_small(self, size).ok_or(Lack::Space)
    }
}

impl Space {
    fn take_small(&mut self, heap: &Heap, size: usize) -> Option<(*mut u8, bool)> {
        let partial = self.partial.get_mut(&size)?;
        while let Some(&first) = partial.first() {
            if let Some((block, is_fresh)) = self.slabs.get_mut(&first).and_then(Slab::take) {
                return Some(((heap.base + first * heap.page + block * size) as *mut u8, is_fresh));
            }
            partial.remove(&first); // all blocks of the slab are allocated
        }
        None
    }

    /// Returns the slab that contains an address, and its first page.
    fn slab_at(&mut self, heap: &Heap, address: usize) -> Option<(usize, &mut Slab)> {
        let page = (address - heap.base) / heap.page;
        let (&first, slab) = self.slabs.range_mut(..=page).next_back()?;
        let pages = (slab.size * slab.blocks).div_ceil(heap.page);
        (page < first + pages).then_some((first, slab))
    }

    /// Returns `true` if the address is in a slab.
    pub(super) fn is_small(&mut self, heap: &Heap, address: usize) -> bool {
        self.slab_at(heap, address).is_some()
    }

    /// Returns the size of the block in a slab at an address; 0 if no block begins there, and `None` if the
    /// address is in no slab.
    pub(super) fn small_at(&mut self, heap: &Heap, address: usize) -> Option<usize> {
        let (first, slab) = self.slab_at(heap, address)?;
        Some(slab.block_at(address - heap.base - first * heap.page).map_or(0, |_| slab.size))
    }

    /// Frees a block of a slab. Returns the first page of the slab if the slab is to be freed, too. One empty
    /// slab of each size is kept.
    pub(super) fn release_small(&mut self, heap: &Heap, address: usize) -> Option<usize> {
        let (first, slab) = self.slab_at(heap, address)?;
        let block = slab.block_at(address - heap.base - first * heap.page)?;
        slab.give(block);
        let (size, is_empty) = (slab.size, slab.count == 0);
        let partial = self.partial.entry(size).or_default();
        partial.insert(first);
        let goes = is_empty && partial.len() > 1;
        if goes {
            partial.remove(&first);
            self.slabs.remove(&first);
        }
        goes.then_some(first)
    }
}
