//! Our own threads, and their memory.
//!
//! What the C library does for a thread (its destructors' list, say) asks the program's allocator for memory.
//! That may be one whose state is far memory (jemalloc maps its state by `mmap`), or whose locks a thread
//! holds that waits for a page: one of ours would wait for itself (FAR-1). So the few blocks of our threads
//! come from the C library's own heap, whatever allocator the program brought; what others gave them they
//! leave alone.

use crate::next::Next;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

unsafe extern "C" {
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
    /// First and last byte of this library, as the linker knows them.
    static __ehdr_start: u8;
    static _end: u8;
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

static CREATE: Next<Create> = Next::new(c"pthread_create");
/// Blocks of our threads, and of calls that are to have ordinary memory. Nobody touches far memory under this
/// lock.
static BLOCKS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// The lock on these blocks: who forks has it, so that the child finds it free.
pub(crate) type Blocks = MutexGuard<'static, BTreeSet<usize>>;

thread_local! {
    static IS_OURS: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if this thread is one of ours, or to be treated like one.
#[inline]
pub(super) fn is_ours() -> bool {
    IS_OURS.get()
}

/// Calls with what is allocated meanwhile ordinary memory, from the C library's own heap; to be given back
/// likewise.
pub(super) fn with_ordinary_memory<R>(call: impl FnOnce() -> R) -> R {
    let before = IS_OURS.replace(true);
    let result = call();
    IS_OURS.set(before);
    result
}

pub(crate) fn blocks() -> Blocks {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A block of zeros for one of our threads.
pub(super) fn allocate(size: usize) -> *mut c_void {
    // SAFETY: the C library's own.
    let block = unsafe { __libc_calloc(1, size.max(1)) };
    if !block.is_null() {
        blocks().insert(block as usize);
    }
    block
}

/// Gives a block of our threads back; whether it was one.
pub(super) fn release(block: *mut c_void) -> bool {
    let was_ours = blocks().remove(&(block as usize));
    if was_ours {
        // SAFETY: from `allocate`, and forgotten.
        unsafe { __libc_free(block) };
    }
    was_ours
}

struct Beginning {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    IS_OURS.set(true);
    // SAFETY: from `pthread_create` below, for this thread.
    let Beginning { start, argument } = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    start(argument)
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let library = (&raw const __ehdr_start) as usize..(&raw const _end) as usize;
    // SAFETY: passed on; if there is no thread, nobody else has its beginning.
    unsafe {
        if !library.contains(&(start as usize)) {
            super::stack::of_thread(attributes);
            return CREATE.get()(thread, attributes, start, argument);
        }
        let beginning = Box::into_raw(Box::new(Beginning { start, argument }));
        let result = CREATE.get()(thread, attributes, begin, beginning.cast());
        if result != 0 {
            drop(Box::from_raw(beginning));
        }
        result
    }
}

/// A block of another length for one of our threads; `None` if the old one is not ours.
pub(super) fn lengthen(old: *mut c_void, size: usize) -> Option<*mut c_void> {
    if old.is_null() {
        return Some(allocate(size));
    }
    if !blocks().remove(&(old as usize)) {
        return None;
    }
    // SAFETY: from `allocate`.
    let new = unsafe { __libc_realloc(old, size.max(1)) };
    blocks().insert(if new.is_null() { old } else { new } as usize);
    Some(new)
}

/// Finds the C library's function.
pub(super) fn settle() {
    CREATE.settle();
}
