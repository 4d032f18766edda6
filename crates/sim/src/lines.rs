//! Cache lines, numbered as they are first touched: where memory happens to lie says nothing then.
//!
//! - **NUMBER-1** What shares a line must not depend on the heap's history: [`LineAllocator`] begins each block with a line of its own.
//! - **NUMBER-2** A block that is freed takes its numbers with it: whatever comes to lie there is new to the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Fibonacci hashing of addresses and numbers: the maps are asked at each step.
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

/// A map with that hash.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Multiplier>>;

/// The numbers.
#[derive(Debug, Default)]
pub struct Lines {
    numbers: Map<usize, u32>,
    next: u32,
}

impl Lines {
    /// The number of the line at `address`.
    ///
    /// # Panics
    ///
    /// After 2^32 lines.
    pub fn number(&mut self, address: usize) -> u32 {
        *self.numbers.entry(address / LINE_BYTES).or_insert_with(|| {
            let number = self.next;
            self.next = number.checked_add(1).expect("fewer lines than 2^32");
            number
        })
    }

    /// Lines numbered so far.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.next
    }

    /// The block is gone (NUMBER-2).
    pub fn forget(&mut self, address: usize, bytes: usize) {
        let lines = address / LINE_BYTES..(address + bytes).div_ceil(LINE_BYTES);
        if lines.len() > self.numbers.len() {
            self.numbers.retain(|line, _| !lines.contains(line));
        } else {
            for line in lines {
                self.numbers.remove(&line);
            }
        }
    }
}

thread_local! {
    static FREED: Cell<Option<fn(usize, usize)>> = const { Cell::new(None) };
}

/// Tells `freed` of each block that this thread frees from now on.
pub(crate) fn watch_frees(freed: Option<fn(usize, usize)>) {
    FREED.set(freed);
}

/// The system's allocator, with lines that blocks do not share (NUMBER-1).
///
/// Programs that simulate install it, or else two runs of one seed may differ:
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

// SAFETY: every call goes to the system's allocator, with the same widened layout for one block each time: it depends on nothing but
// the layout that the caller gave, and callers give the same one for a block.
unsafe impl GlobalAlloc for LineAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size; so has the widened one.
        unsafe { System.alloc(Self::widened(layout)) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(Self::widened(layout)) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::freed(pointer, layout);
        // SAFETY: the block came from `alloc` with this layout.
        unsafe { System.dealloc(pointer, Self::widened(layout)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_as_they_come_and_anew_after_their_block_is_freed() {
        let mut lines = Lines::default();
        assert_eq!([4096, 4160, 4100, 4223].map(|a| lines.number(a)), [0, 1, 0, 1]);
        lines.forget(4096, 65);
        assert_eq!([4160, 4096].map(|a| lines.number(a)), [2, 3]);
        lines.forget(0, 1 << 40);
        assert_eq!(lines.number(4096), 4);
    }

    #[test]
    fn blocks_share_no_line() {
        let layout = Layout::from_size_align(24, 8).expect("a layout");
        // SAFETY: the layout has a size; what is allocated is freed with it.
        unsafe {
            let blocks = [(); 3].map(|()| LineAllocator.alloc(layout));
            assert!(blocks.iter().all(|block| block.addr().is_multiple_of(LINE_BYTES)));
            blocks.iter().for_each(|&block| LineAllocator.dealloc(block, layout));
        }
    }
}
