//! The memory of this library: blocks of a [`Pool`], and mappings of their own for larger blocks. A program's
//! allocator and the C library's heap are never used (FAR-5): a thread that waits for a page may hold their
//! locks, and that page is fetched by threads of this library.

use crate::pool::{self, Class, PAGE, Pool};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::OnceLock;

/// Called with the requested number of bytes when the system has no memory left.
static ON_EXHAUSTION: OnceLock<fn(usize)> = OnceLock::new();

/// Sets the function that is called when the system has no memory left, before the call returns null.
pub(crate) fn on_exhaustion(tell: fn(usize)) {
    let _ = ON_EXHAUSTION.set(tell);
}

fn reported(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null()
        && let Some(tell) = ON_EXHAUSTION.get()
    {
        tell(size);
    }
    block
}

/// Blocks of at most 64 GiB in all; larger blocks are mapped.
static POOL: Pool<{ 16 << 10 }> = Pool::new();

struct OwnMemory;

#[global_allocator]
static MEMORY: OwnMemory = OwnMemory;

fn class_of(layout: Layout) -> Option<Class> {
    Class::of(layout.size(), layout.align())
}

// SAFETY: a block is in the pool if its layout has a class there, and a mapping of its own otherwise. Both
// have the requested size and alignment, or are null, and belong to the caller until it frees them.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = match class_of(layout) {
            Some(class) => POOL.take(class),
            None if layout.align() <= PAGE => pool::map(layout.size()),
            None => ptr::null_mut(),
        };
        reported(block, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of the trait. The block has this size, and a new mapping is
        // zeroed.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() && class_of(layout).is_some() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is from this allocator, with this layout, by the caller's contract.
        unsafe {
            match class_of(layout) {
                Some(class) => POOL.give(class, block),
                None => pool::unmap(block, layout.size()),
            }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size is valid for the alignment. The block is from this
        // allocator, with this layout; both blocks are at least as long as the copy, and they do not overlap.
        unsafe {
            let wanted = Layout::from_size_align_unchecked(size, layout.align());
            match (class_of(layout), class_of(wanted)) {
                (Some(old), Some(new)) if old == new => block,
                (None, None) => reported(pool::remap(block, layout.size(), size), size),
                _ => {
                    let new = self.alloc(wanted);
                    if !new.is_null() {
                        new.copy_from_nonoverlapping(block, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                    new
                }
            }
        }
    }
}
