//! `mmap` and similar calls. Large private anonymous memory is far; files, shared memory, stacks and fixed
//! addresses are the kernel's. See `kernel` for the treatment of each memory call.

use super::fail;
use super::kernel::{PIECE, is_of_pieces};
use crate::heap::{Heap, Parts};
use crate::next::Next;
use crate::session::{excluded, heap, heap_to_map, is_all_static, is_static, overflowed, unmanage};
use std::ffi::{c_int, c_void};
use std::ops::Range as Addresses;
use std::ptr;

type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
type Range = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type RangeHow = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

static MMAP: Next<Mmap> = Next::new(c"mmap");
static MUNMAP: Next<Range> = Next::new(c"munmap");
static MREMAP: Next<Mremap> = Next::new(c"mremap");
static MADVISE: Next<RangeHow> = Next::new(c"madvise");
static POSIX_MADVISE: Next<RangeHow> = Next::new(c"posix_madvise");
static MPROTECT: Next<RangeHow> = Next::new(c"mprotect");

/// Bits of the flags of `mmap` with the type of a mapping.
const TYPE: c_int = 0xf;
const USABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// `MAP_32BIT`: memory in the lowest 2 GiB of addresses, where far memory is not.
const LOW: c_int = if cfg!(target_arch = "x86_64") { 0x40 } else { 0 };
const KERNELS: c_int =
    libc::MAP_SHARED | libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | LOW;
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
/// Advice that concerns only the kernel's pages: far memory ignores it, because it does not change what the
/// program reads, or which accesses are allowed.
const HINTS: [c_int; 16] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_DOFORK,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    25, // MADV_COLLAPSE
];

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let is_private = is_private(flags);
    let plain = is_private && flags & KERNELS == 0 && protection == USABLE;
    // The kernel refuses an offset that is no multiple of a page.
    if !super::thread::is_ours() && is_of_pieces(offset as usize) {
        if flags & FIXED != 0 {
            // SAFETY: the caller keeps the contract of the C function.
            let kernel =
                |at: *mut c_void, bytes| unsafe { MMAP.get()(at, bytes, protection, flags, fd, offset) };
            let becomes = match is_reservation(flags, protection) {
                true => Some(Kind::Reserved),
                false => plain.then_some(Kind::Plain),
            };
            if let Some(done) = map_over(at, bytes, flags, becomes, kernel) {
                return done;
            }
        } else if is_reservation(flags, protection)
            && let Some(heap) = heap_to_map(bytes)
            && let Some(reserved) = heap.map_reserved(bytes)
        {
            return reserved.cast();
        } else if plain && let Some(heap) = heap_to_map(bytes) {
            match heap.map(bytes, flags & libc::MAP_NORESERVE != 0) {
                Ok(far) => return far.cast(),
                Err(lack) => overflowed("a mapping", bytes, &lack),
            }
        } else if is_private && !plain && heap_to_map(bytes).is_some() {
            excluded(bytes);
        }
    }
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { MMAP.get()(at, bytes, protection, flags, fd, offset) }
}

/// Memory that the layer can provide at a fixed address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Readable and writable.
    Plain,
    /// Without access.
    Reserved,
}

/// Returns `true` if a mapping is private anonymous memory. The kernel refuses mappings without a type.
fn is_private(flags: c_int) -> bool {
    flags & libc::MAP_ANONYMOUS != 0 && flags & TYPE == libc::MAP_PRIVATE
}

/// Returns `true` if a mapping is private anonymous memory without access, to be committed later.
fn is_reservation(flags: c_int, protection: c_int) -> bool {
    is_private(flags) && flags & KERNELS == 0 && protection == libc::PROT_NONE
}

/// Maps memory at a fixed address. Managed memory there is zeroed or reserved. Otherwise the far pages there
/// leave far memory, and the kernel executes the call.
fn map_over(
    at: *mut c_void,
    bytes: usize,
    flags: c_int,
    becomes: Option<Kind>,
    kernel: impl Fn(*mut c_void, usize) -> *mut c_void,
) -> Option<*mut c_void> {
    let (start, heap) = (at as usize, heap()?);
    if bytes == 0 || !is_of_pieces(start) {
        return None; // the kernel refuses the call
    }
    let Parts { far, others } = heap.parts(start, bytes);
    let keeps = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    if keeps && (far.iter().any(|part| heap.has_given_any(part)) || is_static(start, bytes)) {
        fail(libc::EEXIST);
        return Some(libc::MAP_FAILED);
    }
    if let Some(kind) = becomes.filter(|_| !keeps && others.is_empty())
        && far.iter().all(|part| heap.has_mapped(part))
    {
        let parts = far.into_iter().flat_map(|part| heap.by_reservation(part));
        let rest: Vec<Addresses<usize>> = parts
            .flat_map(|(part, is_reserved)| match kind {
                Kind::Reserved => heap.decommit(&part),
                Kind::Plain if is_reserved => commit(heap, &part),
                Kind::Plain => {
                    heap.zero(&part);
                    Vec::new()
                }
            })
            .collect();
        let failed = rest.into_iter().any(|part| {
            unmanage(part.start, part.len());
            kernel(ptr::with_exposed_provenance_mut(part.start), part.len()) == libc::MAP_FAILED
        });
        return Some(if failed { libc::MAP_FAILED } else { at });
    }
    unmanage(start, bytes);
    None
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mmap64(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { mmap(at, bytes, protection, flags, fd, offset) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: the caller keeps the contract of the C function, and owns the memory to unmap.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MUNMAP.get()(at, bytes) };
    let layer = |heap: &Heap, part: Addresses<usize>, _is_reserved| {
        let is_maps = !heap.meets_block(&part);
        if is_maps {
            heap.unmap(part.clone());
        }
        all_if(is_maps, part)
    };
    by_parts(at, bytes, layer, kernel)
}

/// Commits a reserved range. Returns the parts that the kernel must commit.
fn commit(heap: &Heap, range: &Addresses<usize>) -> Vec<Addresses<usize>> {
    let (rest, lack) = heap.commit(range);
    if let Some(lack) = lack {
        overflowed("a commit", range.len(), &lack);
    }
    rest
}

/// The parts of a range for which the layer did not execute a call.
type Rest = Vec<Addresses<usize>>;

fn all_if(is_done: bool, part: Addresses<usize>) -> Rest {
    if is_done { Vec::new() } else { vec![part] }
}

/// Executes a call for the far parts of a range by `layer`, and for the rest by the kernel. Parts that
/// `layer` does not execute leave far memory. `layer` gets whether a part is reserved.
fn by_parts(
    at: *mut c_void,
    bytes: usize,
    layer: impl Fn(&Heap, Addresses<usize>, bool) -> Rest,
    kernel: impl Fn(*mut c_void, usize) -> c_int,
) -> c_int {
    let start = at as usize;
    let bytes = bytes.checked_next_multiple_of(PIECE).unwrap_or(bytes);
    // The kernel refuses a range beyond the addresses of programs, and changes no part of it.
    let is_range = start.checked_add(bytes).is_some_and(|end| end <= isize::MAX as usize);
    let is_valid = is_range && bytes > 0 && is_of_pieces(start);
    let Some(heap) = heap().filter(|_| is_valid && !super::thread::is_ours()) else {
        return kernel(at, bytes);
    };
    let Parts { far, mut others } = heap.parts(start, bytes);
    if is_static(start, bytes) {
        unmanage(start, bytes);
        return kernel(at, bytes);
    }
    if far.is_empty() {
        return kernel(at, bytes);
    }
    let mut has_done_any = false;
    for (part, is_reserved) in far.into_iter().flat_map(|part| heap.by_reservation(part)) {
        let rest = layer(heap, part.clone(), is_reserved);
        has_done_any |= rest != [part];
        for rest in rest {
            unmanage(rest.start, rest.len());
            others.push(rest);
        }
    }
    if !has_done_any {
        return kernel(at, bytes);
    }
    // In the kernel's order, and up to the first error, except that `madvise` continues after a part that is
    // not mapped.
    others.sort_unstable_by_key(|other| other.start);
    let mut first = 0;
    for other in others {
        let done = kernel(ptr::with_exposed_provenance_mut(other.start), other.len());
        if done != 0 {
            first = done;
            if ![done, super::errno()].contains(&libc::ENOMEM) {
                break;
            }
        }
    }
    first
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mremap(
    old: *mut c_void,
    before: usize,
    after: usize,
    flags: c_int,
    fixed: *mut c_void,
) -> *mut c_void {
    if let Some(done) = remap(old, before, after, flags) {
        return done;
    }
    unmanage(old as usize, before.max(1));
    if flags & libc::MREMAP_FIXED != 0 {
        unmanage(fixed as usize, after);
    }
    // SAFETY: the caller keeps the contract of the C function. Without `MREMAP_FIXED` the kernel ignores the
    // last argument.
    unsafe { MREMAP.get()(old, before, after, flags, fixed) }
}

/// Executes `mremap` without the kernel: shortens mapped memory in place, or lengthens it at another address.
fn remap(old: *mut c_void, before: usize, after: usize, flags: c_int) -> Option<*mut c_void> {
    let start = old as usize;
    let heap = heap().filter(|_| is_of_pieces(start) && flags & !libc::MREMAP_MAYMOVE == 0)?;
    let before = before.checked_next_multiple_of(PIECE).filter(|&before| before > 0)?;
    let after = after.checked_next_multiple_of(PIECE).filter(|&after| after > 0)?;
    let Parts { far, others } = heap.parts(start, before);
    let is_plain = |part: &Addresses<usize>| heap.has_mapped(part) && !heap.meets_reserved(part);
    if !others.is_empty() || !far.iter().all(is_plain) {
        return None;
    }
    if after < before {
        heap.unmap(start + after..start + before);
    }
    if after <= before {
        return Some(old);
    }
    let new = if flags == libc::MREMAP_MAYMOVE { heap.map(after, false).ok() } else { None }?;
    // SAFETY: both ranges have at least this length, and do not overlap.
    unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new, before) };
    heap.unmap(start..start + before);
    Some(new.cast())
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MADVISE.get()(at, bytes, advice) };
    advised(at, bytes, advice, kernel)
}

fn advised(
    at: *mut c_void,
    bytes: usize,
    advice: c_int,
    kernel: impl Fn(*mut c_void, usize) -> c_int,
) -> c_int {
    // Discarded memory reads as zeros; for `MADV_FREE` that is earlier than required.
    let gives_back = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | 24); // MADV_DONTNEED_LOCKED
    if is_all_static(at as usize, bytes) && (gives_back || HINTS.contains(&advice)) {
        if gives_back {
            // SAFETY: the program owns these bytes and discards them.
            unsafe { at.cast::<u8>().write_bytes(0, bytes.next_multiple_of(PIECE)) };
        }
        return 0;
    }
    let populates = matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE);
    let layer = |heap: &Heap, part: Addresses<usize>, is_reserved: bool| {
        if advice == libc::MADV_DONTFORK && heap.has_mapped(&part) {
            return heap.keep_from_children(&part);
        }
        if advice == libc::MADV_DOFORK {
            heap.give_to_children(part.clone());
        }
        let is_refused = is_reserved && populates;
        let is_done = (gives_back || HINTS.contains(&advice)) && heap.has_given(&part) && !is_refused;
        if is_done && gives_back {
            heap.zero(&part);
        }
        all_if(is_done, part)
    };
    by_parts(at, bytes, layer, kernel)
}

/// # Safety
///
/// The contract of the C library's function, which passes all advice except "not needed" to the kernel.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { POSIX_MADVISE.get()(at, bytes, advice) };
    if advice == libc::POSIX_MADV_DONTNEED { kernel(at, bytes) } else { advised(at, bytes, advice, kernel) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    let kernel = |at: *mut c_void, bytes: usize| unsafe { MPROTECT.get()(at, bytes, protection) };
    if protection == USABLE && is_all_static(at as usize, bytes) {
        return 0;
    }
    // Far memory is readable and writable, or reserved. Any other protection requires the kernel.
    let layer = |heap: &Heap, part: Addresses<usize>, is_reserved: bool| match protection {
        _ if !heap.has_given(&part) => vec![part],
        USABLE if is_reserved => commit(heap, &part),
        USABLE => Vec::new(),
        _ => all_if(is_reserved && protection == libc::PROT_NONE, part),
    };
    by_parts(at, bytes, layer, kernel)
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    MMAP.resolve();
    MUNMAP.resolve();
    MREMAP.resolve();
    MADVISE.resolve();
    POSIX_MADVISE.resolve();
    MPROTECT.resolve();
}
