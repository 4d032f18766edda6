//! `malloc` and related functions: large blocks are far memory. The next allocator, that of the program or of
//! the C library, serves the other blocks.
//!
//! The address alone does not determine a block's owner: the program's own allocator may map far memory and
//! place small blocks there. So each call looks up the owner in the heap ([`Owner`]). Calls for blocks of
//! other owners go unchanged to the next allocator.

use super::caller::{self, with_caller};
use super::{fail, thread};
use crate::heap::Owner;
use crate::next::Next;
use crate::session::{heap_for, heap_of, overflowed};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

// The program may have its own allocator (for example jemalloc). Blocks of one allocator must not reach the
// other one.
static MALLOC: Next<unsafe extern "C" fn(usize) -> *mut c_void> = Next::new(c"malloc");
static CALLOC: Next<unsafe extern "C" fn(usize, usize) -> *mut c_void> = Next::new(c"calloc");
static REALLOC: Next<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void> = Next::new(c"realloc");
static FREE: Next<unsafe extern "C" fn(*mut c_void)> = Next::new(c"free");
static MEMALIGN: Next<unsafe extern "C" fn(usize, usize) -> *mut c_void> = Next::new(c"memalign");
static ALIGNED_ALLOC: Next<unsafe extern "C" fn(usize, usize) -> *mut c_void> = Next::new(c"aligned_alloc");
static POSIX_MEMALIGN: Next<unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int> =
    Next::new(c"posix_memalign");
static USABLE: Next<unsafe extern "C" fn(*mut c_void) -> usize> = Next::new(c"malloc_usable_size");

/// State of the lookup of the four functions that the lookup itself may call: 0 not started, 1 in progress, 2
/// found.
static FOUND: AtomicU8 = AtomicU8::new(0);

/// Returns `true` if the next allocator is known. While it is being looked up, blocks that the lookup
/// allocates come from the C library.
#[inline]
fn has_next() -> bool {
    // Relaxed: every thread finds the same functions in `Next`.
    FOUND.load(Relaxed) == 2 || look()
}

#[cold]
fn look() -> bool {
    if FOUND.compare_exchange(0, 1, Relaxed, Relaxed).is_err() {
        return FOUND.load(Relaxed) == 2;
    }
    crate::session::refuse_sanitizers();
    MALLOC.resolve();
    CALLOC.resolve();
    REALLOC.resolve();
    FREE.resolve();
    FOUND.store(2, Relaxed);
    true
}

unsafe fn next_malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { if has_next() { MALLOC.get()(size) } else { __libc_malloc(size) } }
}

unsafe fn next_calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { if has_next() { CALLOC.get()(count, size) } else { __libc_calloc(count, size) } }
}

unsafe fn next_realloc(old: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { if has_next() { REALLOC.get()(old, size) } else { __libc_realloc(old, size) } }
}

unsafe fn next_free(old: *mut c_void) {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { if has_next() { FREE.get()(old) } else { __libc_free(old) } }
}

/// Allocates a far block if the size is large enough and far memory is available. Also returns `true` if the
/// block is zeroed.
fn far_block(size: usize, align: usize) -> Option<(*mut c_void, bool)> {
    let block = heap_for(size)?.allocate(size, align);
    let block = block.map_err(|lack| overflowed("a block", size, &lack)).ok()?;
    Some((block.0.cast(), block.1))
}

fn far(size: usize, align: usize) -> Option<*mut c_void> {
    Some(far_block(size, align)?.0)
}

/// Allocates a far block as [`far_block`] does, unless this caller keeps its blocks in ordinary memory.
fn far_for(size: usize, caller: usize) -> Option<(*mut c_void, bool)> {
    if heap_for(size).is_none() || caller::keeps(size, caller) { None } else { far_block(size, 1) }
}

/// Allocates an aligned far block. An invalid alignment, or one above that of a region, is left to the next
/// allocator.
fn far_aligned(size: usize, alignment: usize) -> Option<*mut c_void> {
    if alignment.is_power_of_two() && alignment <= 2 << 20 { far(size, alignment) } else { None }
}

/// Allocates an aligned block for a thread of the layer, from the pool of these threads (FAR-5); `None` in
/// other threads, and for an invalid alignment, which the next allocator refuses.
fn own_aligned(size: usize, alignment: usize) -> Option<*mut c_void> {
    (thread::is_ours() && alignment.is_power_of_two()).then(|| thread::allocate_aligned(size, alignment))
}

with_caller! {
    malloc(size: usize) = malloc_for, "rsi", "x1";
    calloc(count: usize, size: usize) = calloc_for, "rdx", "x2";
    realloc(old: *mut c_void, size: usize) = realloc_for, "rdx", "x2";
}

unsafe extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    if thread::is_ours() {
        return thread::allocate(size);
    }
    // SAFETY: the caller keeps the contract of the C function.
    far_for(size, caller).map_or_else(|| unsafe { next_malloc(size) }, |(block, _)| block)
}

unsafe extern "C" fn calloc_for(count: usize, size: usize, caller: usize) -> *mut c_void {
    if thread::is_ours() {
        return count.checked_mul(size).map_or(ptr::null_mut(), thread::allocate);
    }
    let block = count.checked_mul(size).and_then(|bytes| far_for(bytes, caller));
    // SAFETY: the caller keeps the contract of the C function. The block is new and has at least this length.
    unsafe {
        match block {
            None => next_calloc(count, size),
            Some((block, is_zeros)) => {
                if !is_zeros {
                    block.cast::<u8>().write_bytes(0, count * size);
                }
                block
            }
        }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn free(old: *mut c_void) {
    // A thread of the layer leaves other blocks allocated, because freeing them would call the program's
    // allocator.
    if thread::release(old) || thread::is_ours() {
        return;
    }
    let is_next_ones = match heap_of(old as usize) {
        Some(heap) => heap.release(old as usize) == Owner::Allocator,
        // In a child process without far memory, this may be a far block of the parent, which glibc would
        // treat as its own.
        None => !crate::session::was_far(old as usize),
    };
    if is_next_ones {
        // SAFETY: the caller keeps the contract of the C function.
        unsafe { next_free(old) }
    }
}

unsafe extern "C" fn realloc_for(old: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    if thread::is_ours() || thread::size_of_block(old).is_some() {
        // SAFETY: the caller keeps the contract of the C function, and `usable` is called for another block.
        return thread::lengthen(old, size, || unsafe { malloc_usable_size(old) });
    }
    if old.is_null() {
        // SAFETY: the caller keeps the contract of the C function.
        return unsafe { malloc_for(size, caller) };
    }
    let room = far_room(old);
    // SAFETY: the caller keeps the contract. Both blocks are at least as long as the copy, and do not
    // overlap.
    unsafe {
        let Some(room) = room else {
            if heap_for(size).is_none() || caller::keeps(size, caller) {
                return next_realloc(old, size);
            }
            return moved(old, USABLE.get()(old), size, caller);
        };
        if size == 0 {
            free(old);
            return ptr::null_mut();
        }
        let stays = size <= room && size > room / 2;
        if stays || size > room && heap_of(old as usize).is_some_and(|heap| heap.lengthen(old as usize, size))
        {
            return old;
        }
        moved(old, room, size, caller)
    }
}

/// Returns the usable size of a block of the far heap; `None` if the block belongs to the next allocator.
fn far_room(block: *mut c_void) -> Option<usize> {
    match heap_of(block as usize)?.owner(block as usize) {
        Owner::Heap { usable } => Some(usable),
        Owner::Allocator => None,
        Owner::Nobody => Some(0),
    }
}

/// Allocates a new block with the bytes of the old block, and frees the old block.
unsafe fn moved(old: *mut c_void, room: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: the caller keeps this function's contract.
    unsafe {
        let new = malloc_for(size, caller);
        if !new.is_null() {
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), room.min(size));
            free(old);
        }
        new
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller keeps the contract of the C function.
        Some(bytes) => unsafe { realloc(old, bytes) },
        None => {
            fail(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    if let Some(own) = own_aligned(size, alignment) {
        return own;
    }
    // SAFETY: the caller keeps the contract of the C function.
    far_aligned(size, alignment).unwrap_or_else(|| unsafe { MEMALIGN.get()(alignment, size) })
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if let Some(own) = own_aligned(size, alignment) {
        return own;
    }
    // SAFETY: the caller keeps the contract of the C function.
    far_aligned(size, alignment).unwrap_or_else(|| unsafe { ALIGNED_ALLOC.get()(alignment, size) })
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    // SAFETY: the caller keeps the contract; `block` points to the variable for the result.
    unsafe {
        let is_alignment = alignment.is_multiple_of(size_of::<*mut c_void>());
        if let Some(own) = own_aligned(size, alignment).filter(|_| is_alignment) {
            if own.is_null() {
                return libc::ENOMEM;
            }
            *block = own;
            return 0;
        }
        match if is_alignment { far_aligned(size, alignment) } else { None } {
            Some(new) => {
                *block = new;
                0
            }
            None => POSIX_MEMALIGN.get()(block, alignment, size),
        }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    let known = thread::size_of_block(block).or_else(|| far_room(block));
    // SAFETY: the caller keeps the contract of the C function.
    known.unwrap_or_else(|| unsafe { USABLE.get()(block) })
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    look();
    MEMALIGN.resolve();
    ALIGNED_ALLOC.resolve();
    POSIX_MEMALIGN.resolve();
    USABLE.resolve();
}
