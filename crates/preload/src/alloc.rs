//! Memory from the C library's own heap, whatever allocator the program brought.
//!
//! A hook may run while the program's allocator holds its locks (jemalloc's are pthread mutexes): to ask that
//! allocator for memory could wait for ourselves (HOOK-2). The C library's own entry points stay reachable
//! under these names when a program replaces `malloc`, and their locks are not pthread mutexes, so no hook
//! ever runs under them.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::sync::OnceLock;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

/// Alignment that the C library always gives.
const ALIGNED: usize = 16;

/// Called with the number of bytes when the heap has none left.
static ON_EXHAUSTION: OnceLock<fn(usize)> = OnceLock::new();

/// Sets the function that is called when the heap has no memory left, before the call returns null.
#[allow(dead_code, reason = "only far memory ends the process itself")]
pub(crate) fn on_exhaustion(tell: fn(usize)) {
    let _ = ON_EXHAUSTION.set(tell);
}

fn told<T>(block: *mut T, size: usize) -> *mut u8 {
    if block.is_null()
        && let Some(tell) = ON_EXHAUSTION.get()
    {
        tell(size);
    }
    block.cast()
}

struct CHeap;

#[global_allocator]
static HEAP: CHeap = CHeap;

// SAFETY: blocks come from the C library's heap, which is thread-safe, gives what was asked for or null, and
// aligns to 16 bytes or as told; all of one block's calls go to the same heap.
unsafe impl GlobalAlloc for CHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the sizes are those of a layout; memalign takes powers of two.
        unsafe {
            if layout.align() <= ALIGNED {
                told(__libc_malloc(layout.size()), layout.size())
            } else {
                told(__libc_memalign(layout.align(), layout.size()), layout.size())
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: as above.
            return told(unsafe { __libc_calloc(1, layout.size()) }, layout.size());
        }
        // SAFETY: as above; the block is of this size.
        unsafe {
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller got the block from here.
        unsafe { __libc_free(block.cast()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: the caller got the block from here.
            return told(unsafe { __libc_realloc(block.cast(), size) }, size);
        }
        // SAFETY: both blocks are at least as long as the copy, and are not the same.
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
