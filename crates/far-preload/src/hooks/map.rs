//! `mmap` and its like: large private anonymous memory is far; files, shared memory, stacks and fixed places
//! are the kernel's.

use super::fail;
use crate::heap::{Cut, Heap};
use crate::next::Next;
use crate::session::{heap, heap_for, heap_of, is_static};
use std::ffi::{c_int, c_void};
use std::ptr;

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type Range = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type RangeHow = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

static MMAP: Next<Mmap> = Next::new(c"mmap");
static MUNMAP: Next<Range> = Next::new(c"munmap");
static MREMAP: Next<Mremap> = Next::new(c"mremap");
static MADVISE: Next<RangeHow> = Next::new(c"madvise");
static MPROTECT: Next<RangeHow> = Next::new(c"mprotect");

const USABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const KERNELS: c_int =
    libc::MAP_SHARED | libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED;
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let plain = flags & libc::MAP_ANONYMOUS != 0 && flags & KERNELS == 0 && protection == USABLE;
    if super::thread::is_ours() {
        // SAFETY: passed on.
        return unsafe { MMAP.get()(at, bytes, protection, flags, fd, offset) };
    }
    if flags & FIXED != 0 {
        if heap().is_some_and(|heap| heap.overlaps(at as usize, bytes)) {
            return map_over(at, bytes, plain);
        }
    } else if plain && let Some(far) = heap_for(bytes).and_then(|heap| heap.map(bytes)) {
        return far.cast();
    }
    // SAFETY: passed on.
    unsafe { MMAP.get()(at, bytes, protection, flags, fd, offset) }
}

/// New memory in the place of far memory: zeros if it is of the same kind; else nothing that we can do.
fn map_over(at: *mut c_void, bytes: usize, plain: bool) -> *mut c_void {
    match heap_of(at as usize) {
        Some(heap) if plain => {
            heap.zero(at as usize, bytes);
            at
        }
        _ => {
            fail(libc::ENOMEM);
            libc::MAP_FAILED
        }
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap64(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: passed on.
    unsafe { mmap(at, bytes, protection, flags, fd, offset) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: passed on; it is the caller's to unmap.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MUNMAP.get()(at, bytes) };
    by_parts(at, bytes, Heap::unmap, kernel).unwrap_or_else(|| kernel(at, bytes))
}

/// Has the far part of a range done by the heap, and what lies before and behind it by the kernel; `None` if
/// there is no far part.
fn by_parts(
    at: *mut c_void,
    bytes: usize,
    far: impl FnOnce(&Heap, usize, usize),
    kernel: impl Fn(*mut c_void, usize) -> c_int,
) -> Option<c_int> {
    let heap = heap()?;
    let Cut { far: part, others } = heap.cut(at as usize, bytes);
    let part = part?;
    far(heap, part.start, part.len());
    let others = others.into_iter().flatten();
    let done = others.map(|other| kernel(ptr::with_exposed_provenance_mut(other.start), other.len()));
    Some(done.fold(0, |all, one| if all == 0 { one } else { all }))
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mremap(
    old: *mut c_void,
    before: usize,
    after: usize,
    flags: c_int,
    fixed: *mut c_void,
) -> *mut c_void {
    let Some(heap) = heap_of(old as usize) else {
        // SAFETY: passed on; without MREMAP_FIXED the last argument is not looked at.
        return unsafe { MREMAP.get()(old, before, after, flags, fixed) };
    };
    if after <= before {
        heap.unmap(old as usize + after, before - after);
        return old;
    }
    let new = if flags == libc::MREMAP_MAYMOVE { heap.map(after) } else { None };
    let Some(new) = new else {
        fail(libc::ENOMEM);
        return libc::MAP_FAILED;
    };
    // SAFETY: both are at least as long, and not the same.
    unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new, before) };
    heap.unmap(old as usize, before);
    new.cast()
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: passed on.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MADVISE.get()(at, bytes, advice) };
    // What is given back reads as zeros; other advice is for the kernel's pages, which these are not.
    let gives_back = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE);
    let far = |heap: &Heap, at: usize, bytes: usize| {
        if gives_back {
            heap.zero(at, bytes);
        }
    };
    if let Some(done) = by_parts(at, bytes, far, kernel) {
        return done;
    }
    if is_static(at as usize, bytes) {
        if gives_back {
            // SAFETY: the program gives up these bytes, which are its own.
            unsafe { at.cast::<u8>().write_bytes(0, bytes) };
        }
        return 0;
    }
    kernel(at, bytes)
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    // SAFETY: passed on.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MPROTECT.get()(at, bytes, protection) };
    if heap().is_some_and(|heap| heap.overlaps(at as usize, bytes)) {
        // Code cannot lie here.
        if protection & libc::PROT_EXEC != 0 {
            fail(libc::EACCES);
            return -1;
        }
        // Far memory stays readable and writable: a guard that only catches errors is none.
        return by_parts(at, bytes, |_, _, _| {}, kernel).unwrap_or(0);
    }
    if is_static(at as usize, bytes) && protection & libc::PROT_EXEC == 0 {
        return 0;
    }
    kernel(at, bytes)
}

/// Finds the C library's functions.
pub(super) fn settle() {
    MMAP.settle();
    MUNMAP.settle();
    MREMAP.settle();
    MADVISE.settle();
    MPROTECT.settle();
}
