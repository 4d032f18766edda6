//! `malloc` and its like: large blocks are far memory, the rest is the C library's.

use super::fail;
use crate::next::Next;
use crate::session::{heap_for, heap_of};
use std::ffi::{c_int, c_void};
use std::ptr;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

static USABLE: Next<unsafe extern "C" fn(*mut c_void) -> usize> = Next::new(c"malloc_usable_size");

/// Far memory for a block, if it is large and there is room; its bytes are zeros.
fn far(size: usize, align: usize) -> Option<*mut c_void> {
    heap_for(size)?.allocate(size, align).map(|block| block.cast())
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: passed on.
    far(size, 1).unwrap_or_else(|| unsafe { __libc_malloc(size) })
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let block = count.checked_mul(size).and_then(|bytes| far(bytes, 1));
    // SAFETY: passed on.
    block.unwrap_or_else(|| unsafe { __libc_calloc(count, size) })
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn free(old: *mut c_void) {
    match heap_of(old as usize) {
        Some(heap) => heap.release(old as usize),
        // SAFETY: passed on. In a child process a far block of its parent gets here; glibc would take it for its own.
        None => unsafe {
            if !crate::session::was_far(old as usize) {
                __libc_free(old);
            }
        },
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if old.is_null() {
        // SAFETY: passed on.
        return unsafe { malloc(size) };
    }
    let room = heap_of(old as usize).map(|heap| heap.usable(old as usize).unwrap_or(0));
    // SAFETY: passed on; both blocks are at least as long as what is copied, and are not the same.
    unsafe {
        let Some(room) = room else {
            if heap_for(size).is_none() {
                return __libc_realloc(old, size);
            }
            return moved(old, USABLE.get()(old), size);
        };
        if size == 0 {
            free(old);
            return ptr::null_mut();
        }
        if size <= room && size > room / 2 {
            return old;
        }
        moved(old, room, size)
    }
}

/// A new block with the old one's bytes; the old one is freed.
unsafe fn moved(old: *mut c_void, room: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe {
        let new = malloc(size);
        if !new.is_null() {
            ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), room.min(size));
            free(old);
        }
        new
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: passed on.
        Some(bytes) => unsafe { realloc(old, bytes) },
        None => {
            fail(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: passed on. Far blocks begin at pages of a region that is aligned to 2 MiB.
    if alignment > 2 << 20 { None } else { far(size, alignment) }
        .unwrap_or_else(|| unsafe { __libc_memalign(alignment, size) })
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { memalign(alignment, size) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: passed on; the caller gave a place for the answer.
    unsafe {
        let new = memalign(alignment, size);
        if new.is_null() {
            return libc::ENOMEM;
        }
        *block = new;
    }
    0
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    match heap_of(block as usize) {
        Some(heap) => heap.usable(block as usize).unwrap_or(0),
        // SAFETY: passed on.
        None => unsafe { USABLE.get()(block) },
    }
}

/// Finds the C library's functions.
pub(super) fn settle() {
    USABLE.settle();
}
