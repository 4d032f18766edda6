//! Numbers of cache lines in the order of their first access, so that addresses have no influence.
//!
//! - **NUMBER-1** Whether two objects share a line must not depend on the history of the heap. So
//!   [`LineAllocator`] begins each block on a line of its own. An access to an empty slice touches no line,
//!   because the slice may begin where its block ends.
//! - **NUMBER-2** A freed block returns its numbers to the core that freed it. The lines that this core
//!   touches first afterward take these numbers, the last one first. So blocks are reused while they are
//!   cached, as with an allocator with caches per thread, and there are only as many numbers as lines in use
//!   at once. A thread's stack is also such a block, because the operating system may place the next stack at
//!   the same addresses or not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// A Fibonacci hash for addresses and numbers: fast, because the maps are used at each step.
#[derive(Debug, Default)]
pub struct Multiplier(u64);

impl Hasher for Multiplier {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}

/// A hash map with this hash function.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Multiplier>>;

/// Number of lines that are looked up together: 4 KiB of addresses. Accesses are often close to each other,
/// and 64 times fewer keys fit better in the cache of the simulating machine.
const LINES_OF_BLOCK: usize = 64;

/// The numbers of neighboring lines, each plus one; 0 for a line without a number.
#[derive(Debug)]
struct Block {
    numbers: [u32; LINES_OF_BLOCK],
    /// Number of elements that are not 0.
    numbered: u32,
}

impl Default for Block {
    fn default() -> Self {
        Self { numbers: [0; LINES_OF_BLOCK], numbered: 0 }
    }
}

/// The numbers of all lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// The blocks, by address divided by the bytes of a block.
    blocks: Map<usize, Box<Block>>,
    next: u32,
    /// Free numbers, by core.
    free: Vec<Vec<u32>>,
}

impl Lines {
    /// Returns the number of the line at `address`, which `core` touches.
    ///
    /// # Panics
    ///
    /// After 2^32 - 1 lines.
    pub fn number(&mut self, address: usize, core: usize) -> u32 {
        let line = address / LINE_BYTES;
        let block = self.blocks.entry(line / LINES_OF_BLOCK).or_default();
        let number = &mut block.numbers[line % LINES_OF_BLOCK];
        if *number == 0 {
            block.numbered += 1;
            *number = match self.free.get_mut(core).and_then(Vec::pop) {
                Some(again) => again + 1,
                None => {
                    self.next = self.next.checked_add(1).expect("fewer lines than 2^32");
                    self.next
                }
            };
        }
        *number - 1
    }

    /// Returns the largest number of lines in use at once.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.next
    }

    /// Frees the numbers of a block that `core` freed (NUMBER-2).
    pub fn forget(&mut self, address: usize, bytes: usize, core: usize) {
        let lines = address / LINE_BYTES..(address + bytes).div_ceil(LINE_BYTES);
        if self.free.len() <= core {
            self.free.resize_with(core + 1, Vec::new);
        }
        let blocks = lines.start / LINES_OF_BLOCK..lines.end.div_ceil(LINES_OF_BLOCK);
        if blocks.len() <= self.blocks.len() {
            blocks.for_each(|block| self.forget_in(block, &lines, core));
            return;
        }
        // Sorted, so that the order does not depend on the map.
        let mut there: Vec<usize> = self.blocks.keys().copied().filter(|at| blocks.contains(at)).collect();
        there.sort_unstable();
        there.into_iter().for_each(|block| self.forget_in(block, &lines, core));
    }

    /// Frees the numbers of those of `lines` that are in block `at`.
    fn forget_in(&mut self, at: usize, lines: &Range<usize>, core: usize) {
        let Some(block) = self.blocks.get_mut(&at) else { return };
        let first = at * LINES_OF_BLOCK;
        let (from, to) = (lines.start.max(first) - first, lines.end.min(first + LINES_OF_BLOCK) - first);
        for number in &mut block.numbers[from..to] {
            if let Some(freed) = std::mem::take(number).checked_sub(1) {
                block.numbered -= 1;
                self.free[core].push(freed);
            }
        }
        if block.numbered == 0 {
            self.blocks.remove(&at);
        }
    }
}

thread_local! {
    static FREED: Cell<Option<fn(usize, usize)>> = const { Cell::new(None) };
}

/// Sets the function that is called for each block that this thread frees.
pub(crate) fn watch_frees(freed: Option<fn(usize, usize)>) {
    FREED.set(freed);
}

/// The system's allocator, but no two blocks share a line (NUMBER-1).
///
/// Programs that simulate must install it. Otherwise, two runs with one seed may differ:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: azekura_sim::LineAllocator = azekura_sim::LineAllocator;
/// ```
#[derive(Debug)]
pub struct LineAllocator;

impl LineAllocator {
    fn widened(layout: Layout) -> Layout {
        layout.align_to(LINE_BYTES).unwrap_or(layout).pad_to_align()
    }

    fn freed(pointer: *mut u8, layout: Layout) {
        if let Ok(Some(freed)) = FREED.try_with(Cell::get) {
            freed(pointer.addr(), layout.size());
        }
    }
}

// SAFETY: every call goes to the system's allocator. The widened layout depends only on the caller's layout,
// which is the same in all calls for one block.
unsafe impl GlobalAlloc for LineAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size that is not 0, so the widened one has too.
        unsafe { System.alloc(Self::widened(layout)) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(Self::widened(layout)) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::freed(pointer, layout);
        // SAFETY: the block is from `alloc` with this layout.
        unsafe { System.dealloc(pointer, Self::widened(layout)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_as_they_come_and_a_freed_number_is_its_core_s_next() {
        let mut lines = Lines::default();
        assert_eq!([4096, 4160, 4100, 4223].map(|a| lines.number(a, 0)), [0, 1, 0, 1]);
        lines.forget(4096, 65, 7);
        assert_eq!(lines.number(8192, 3), 2, "freed by another core");
        assert_eq!([4160, 4096, 0].map(|a| lines.number(a, 7)), [1, 0, 3], "the last one freed first");
        lines.forget(0, 1 << 40, 7);
        assert_eq!([64, 128, 192, 256, 320].map(|a| lines.number(a, 7)), [2, 1, 0, 3, 4], "by address");
    }

    #[test]
    fn blocks_that_come_and_go_take_no_more_room_than_those_in_use_at_once() {
        let mut lines = Lines::default();
        for round in 0..10_000 {
            let at = round * 7 * 4096 + 64;
            let last = (0..100).map(|line| lines.number(at + line * LINE_BYTES, round % 3)).max();
            assert!(last < Some(300));
            lines.forget(at, 100 * LINE_BYTES, round % 3);
        }
        assert!(
            (lines.count(), lines.blocks.len()) == (300, 0),
            "{} and {}",
            lines.count(),
            lines.blocks.len()
        );
    }

    #[test]
    fn blocks_share_no_line() {
        let layout = Layout::from_size_align(24, 8).expect("a layout");
        // SAFETY: the layout's size is not 0, and each block is freed with the same layout.
        unsafe {
            let blocks = [(); 3].map(|()| LineAllocator.alloc(layout));
            assert!(blocks.iter().all(|block| block.addr().is_multiple_of(LINE_BYTES)));
            blocks.iter().for_each(|&block| LineAllocator.dealloc(block, layout));
        }
    }
}
