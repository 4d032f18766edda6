//! Memory from the C library's own heap, regardless of the program's allocator.
//!
//! A hook may run while the program's allocator holds its locks (jemalloc's are pthread mutexes). A request
//! to that allocator could then wait for its own thread (HOOK-2). The C library's entry points below stay
//! reachable when a program replaces `malloc`. Their locks are not pthread mutexes, so no hook runs while
//! they are held.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

/// Alignment of every block of the C library's heap.
const ALIGNED: usize = 16;

struct CHeap;

#[global_allocator]
static HEAP: CHeap = CHeap;

// SAFETY: blocks come from the C library's heap, which is thread-safe, returns the requested size or null,
// and aligns to 16 bytes or as requested. All calls for one block go to the same heap.
unsafe impl GlobalAlloc for CHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the sizes are those of a valid layout; memalign accepts powers of two.
        unsafe {
            if layout.align() <= ALIGNED {
                __libc_malloc(layout.size()).cast()
            } else {
                __libc_memalign(layout.align(), layout.size()).cast()
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: as in `alloc`.
            return unsafe { __libc_calloc(1, layout.size()) }.cast();
        }
        // SAFETY: as in `alloc`; the block has this size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the block is from this allocator, by the caller's contract.
        unsafe { __libc_free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: the block is from this allocator, by the caller's contract.
            return unsafe { __libc_realloc(block.cast(), size) }.cast();
        }
        // SAFETY: both blocks are at least as long as the copy, and they do not overlap.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}
