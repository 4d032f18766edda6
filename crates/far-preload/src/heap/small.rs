//! Small blocks: a *slab* of some pages is cut into blocks of one size, and which of them are given
//! out is a bitmap beside the slab, so that giving out and taking back touches no far memory (FAR-1).

use super::{Heap, Lack, Space};

/// Alignment of blocks in bytes.
const ALIGN: usize = 16;
/// Smallest size of a slab in bytes, and smallest number of its blocks.
const LEAST_BYTES: usize = 64 << 10;
const LEAST_BLOCKS: usize = 8;
/// Blocks below so many bytes share pages, also if a page is smaller: a block of its own pages takes up to
/// twice its bytes.
const SHARED: usize = 16 << 10;

/// A run of pages with blocks of one size.
#[derive(Debug)]
pub(super) struct Slab {
    size: usize,
    blocks: usize,
    /// A bit for each block that is given out.
    given: Vec<u64>,
    count: usize,
    /// Blocks from this one on were never given out: they are zeros.
    fresh: usize,
}

impl Slab {
    fn new(size: usize, bytes: usize) -> Self {
        let blocks = bytes / size;
        Self { size, blocks, given: vec![0; blocks.div_ceil(64)], count: 0, fresh: 0 }
    }

    /// A block, and whether it is zeros.
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

    /// The block that begins at an offset, if one does and it is given out.
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

/// Bytes of the blocks that so small a block is one of: four sizes for each power of two.
fn size_of_class(bytes: usize) -> usize {
    let step = if bytes <= 8 * ALIGN { ALIGN } else { 1 << ((bytes - 1).ilog2() - 2) };
    bytes.max(1).next_multiple_of(step)
}

impl Heap {
    /// The size of a block in a slab; `None` if it has pages of its own.
    pub(super) fn small(&self, bytes: usize, align: usize) -> Option<usize> {
        let (size, most) = if align <= ALIGN {
            (size_of_class(bytes), self.page.max(SHARED))
        } else {
            // A slab begins at a multiple of a page.
            (bytes.max(align).checked_next_power_of_two()?, self.page)
        };
        (size < most).then_some(size)
    }

    /// A block of this size, and whether it is zeros.
    pub(super) fn allocate_small(&self, size: usize) -> Result<(*mut u8, bool), Lack> {
        if let Some(block) = self.lock().take_small(self, size) {
            return Ok(block);
        }
        let pages = LEAST_BYTES.max(LEAST_BLOCKS * size).div_ceil(self.page);
        let first = self.lock().take(pages, 1).ok_or(Lack::Space)?;
        self.reserve(first, pages)?;
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
            partial.remove(&first); // all of it is given out
        }
        None
    }

    /// The slab that an address lies in, and its first page.
    fn slab_at(&mut self, heap: &Heap, address: usize) -> Option<(usize, &mut Slab)> {
        let page = (address - heap.base) / heap.page;
        let (&first, slab) = self.slabs.range_mut(..=page).next_back()?;
        let pages = (slab.size * slab.blocks).div_ceil(heap.page);
        (page < first + pages).then_some((first, slab))
    }

    /// Returns `true` if the address lies in a slab.
    pub(super) fn is_small(&mut self, heap: &Heap, address: usize) -> bool {
        self.slab_at(heap, address).is_some()
    }

    /// Bytes of a block in a slab, 0 if none begins there; `None` if the address lies in no slab.
    pub(super) fn small_at(&mut self, heap: &Heap, address: usize) -> Option<usize> {
        let (first, slab) = self.slab_at(heap, address)?;
        Some(slab.block_at(address - heap.base - first * heap.page).map_or(0, |_| slab.size))
    }

    /// Takes a block of a slab back. Returns the first page of the slab if it is to be given back, too: one
    /// empty slab of each size stays.
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
