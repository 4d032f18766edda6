//! Threads of this layer, and their memory.
//!
//! For a thread, the C library allocates memory (for instance its list of destructors) with the program's
//! allocator. The state of that allocator may be far memory (jemalloc maps its state by `mmap`), or a thread
//! that waits for a page may hold its locks, or those of the C library's heap. A thread of this layer would
//! then wait for itself (FAR-1). So the few blocks of the layer's threads come from a pool of this library
//! (FAR-5). Every thread frees them to that pool. Blocks of other allocators are not freed by the layer's
//! threads.

use crate::next::Next;
use crate::pool::{Class, Pool};
use azekura_far::{descriptors, signals_blocked::SignalsBlocked, sys};
use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::time::Duration;

unsafe extern "C" {
    /// First and last byte of this library, defined by the linker.
    static __ehdr_start: u8;
    static _end: u8;
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

static CREATE: Next<Create> = Next::new(c"pthread_create");
/// Blocks of the layer's threads, and of calls that need ordinary memory: at most 1 GiB.
static BLOCKS: Pool<256> = Pool::new();
/// Number of bytes before a block that store its size, and its distance from the start of the pool's block.
const HEADER: usize = 16;

/// Key of the value that is not null in the layer's threads, plus 1; 0 before the key is made. Not a
/// thread-local variable: the loader may call `realloc` and `free` while it makes the variables of a thread
/// current after `dlopen`, and these hooks would call the loader again.
static KEY: AtomicUsize = AtomicUsize::new(0);

fn key() -> Option<libc::pthread_key_t> {
    // Relaxed: an independent number.
    KEY.load(Relaxed).checked_sub(1).map(|key| key as libc::pthread_key_t)
}

/// Returns `true` if this thread belongs to the layer, or is treated as one.
#[inline]
pub(super) fn is_ours() -> bool {
    // SAFETY: the key was made, and is never deleted.
    key().is_some_and(|key| !unsafe { libc::pthread_getspecific(key) }.is_null())
}

/// Sets whether this thread is treated as one of the layer, and returns the value before.
fn set_ours(is_ours: bool) -> bool {
    let before = self::is_ours();
    let value: *const c_void = if is_ours { ptr::dangling() } else { ptr::null() };
    if let Some(key) = key().filter(|_| before != is_ours) {
        // SAFETY: as in `is_ours`; the value only has to differ from null. The key is one of the first, which
        // need no memory.
        unsafe { libc::pthread_setspecific(key, value) };
    }
    before
}

/// Makes the key, before `main` and before the first thread of the layer.
fn make_key() {
    let mut made = 0;
    // SAFETY: the address of a variable for the key.
    if key().is_none() && unsafe { libc::pthread_key_create(&raw mut made, None) } == 0 {
        KEY.store(made as usize + 1, Relaxed); // Relaxed: there is one thread
    }
}

/// Runs a call with allocations from a pool of this library, which is ordinary memory.
pub(crate) fn with_ordinary_memory<R>(call: impl FnOnce() -> R) -> R {
    let before = set_ours(true);
    let result = call();
    set_ours(before);
    result
}

/// Returns the class of a block with this number of bytes after this number, which is its alignment, too.
fn class_of(size: usize, before: usize) -> Option<Class> {
    Class::of(size.checked_add(before)?, before)
}

/// Allocates a zeroed block for a thread of the layer.
pub(super) fn allocate(size: usize) -> *mut c_void {
    allocate_aligned(size, HEADER)
}

/// Allocates a zeroed block for a thread of the layer. The alignment is a power of two.
pub(super) fn allocate_aligned(size: usize, alignment: usize) -> *mut c_void {
    let before = alignment.max(HEADER);
    let start = class_of(size, before).map_or(ptr::null_mut(), |class| BLOCKS.take(class));
    if start.is_null() {
        if OURS.iter().any(|ours| ours.load(Acquire) == own_id()) {
            // The C library would end the process without a message. Acquire: pairs with AcqRel in `begin`.
            crate::session::exhausted(size);
        }
        super::fail(libc::ENOMEM);
        return ptr::null_mut();
    }
    // SAFETY: the block has at least a header before it and this number of bytes, and both are aligned.
    unsafe {
        let block = start.add(before);
        block.sub(HEADER).cast::<[usize; 2]>().write([size, before]);
        block.write_bytes(0, size);
        block.cast()
    }
}

/// Returns the size of a block of the layer's threads; `None` for other blocks.
#[inline]
pub(super) fn size_of_block(block: *mut c_void) -> Option<usize> {
    header(block).map(|[size, _before]| size)
}

#[inline]
fn header(block: *mut c_void) -> Option<[usize; 2]> {
    // SAFETY: such a block has a header.
    BLOCKS.owns(block as usize).then(|| unsafe { block.cast::<u8>().sub(HEADER).cast::<[usize; 2]>().read() })
}

/// Frees a block of the layer's threads. Returns `true` if the block was one of these.
#[inline]
pub(super) fn release(block: *mut c_void) -> bool {
    let header = header(block);
    if let Some([size, before]) = header
        && let Some(class) = class_of(size, before)
    {
        // SAFETY: the block is from `allocate_aligned`, with this size and alignment.
        unsafe { BLOCKS.give(class, block.cast::<u8>().sub(before)) };
    }
    header.is_some()
}

struct Beginning {
    start: Start,
    argument: *mut c_void,
}

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    set_ours(true);
    let own = own_id();
    // AcqRel, here and below: pairs with the Acquire loads in `only_ours_left`. If the table is full, the
    // thread is missing in it; then a process without other threads does not end by itself.
    let replace = |old, new| OURS.iter().any(|id| id.compare_exchange(old, new, AcqRel, Relaxed).is_ok());
    replace(0, own);
    // SAFETY: from `pthread_create` below, for this thread.
    let Beginning { start, argument } = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    let result = start(argument);
    replace(own, 0);
    result
}

/// Thread numbers of the layer's threads; 0 in a free entry.
static OURS: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];

fn own_id() -> libc::pid_t {
    // SAFETY: the call accesses no memory of this process.
    unsafe { sys::call(libc::SYS_gettid, [0; 6]) as libc::pid_t }
}

/// Lowest bits of the clock of a thread's processor time; the bits above are the complement of its number.
const OF_THREAD: i32 = 6;

/// Returns the processor time of the layer's threads in nanoseconds. Opens no file (`PageTable`).
pub(crate) fn processor_ns() -> u64 {
    // Acquire: pairs with AcqRel in `begin`.
    let ours = OURS.iter().map(|id| id.load(Acquire)).filter(|&id| id != 0);
    let ran = |id: i32| {
        let clock = !id << 3 | OF_THREAD;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let arguments = [clock as usize, (&raw mut time) as usize, 0, 0, 0, 0];
        // SAFETY: the time is a local variable. The kernel refuses the number of a thread that has ended.
        let done = unsafe { sys::call(libc::SYS_clock_gettime, arguments) };
        (done == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    };
    ours.filter_map(ran).sum()
}

/// Clears the table in a child process, which has none of its parent's threads.
pub(crate) fn forget_ours() {
    OURS.iter().for_each(|id| id.store(0, Relaxed)); // Relaxed: there is one thread
    watch_main_thread();
}

/// Descriptor of the directory `/proc`; -1 if it is not there.
static PROC: AtomicI32 = AtomicI32::new(-1);

/// Makes the process end when its main thread, which calls this function, has ended by `pthread_exit` and the
/// program has no other thread. The C library ends a process with its last thread, but the layer's threads
/// never end.
pub(crate) fn watch_main_thread() {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        // The program may use all descriptors later, or change its root directory.
        if let Ok(files) = std::fs::File::open("/proc") {
            // Relaxed: there is one thread.
            PROC.store(descriptors::hide(files.into()).into_raw_fd(), Relaxed);
        }
        let mut key = 0;
        // SAFETY: the address of a variable for the key, and a function of this library, which is never
        // unloaded.
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(main_thread_ends)) };
        (made == 0).then_some(key)
    });
    if let Some(key) = key {
        // SAFETY: the key was made above; the value only has to differ from null.
        unsafe { libc::pthread_setspecific(*key, ptr::dangling()) };
    }
}

/// Runs when the main thread calls `pthread_exit`; a process that returns from `main` ends without it.
unsafe extern "C" fn main_thread_ends(_value: *mut c_void) {
    let mut thread = 0;
    let _blocked = SignalsBlocked::new(); // as in `pthread_create`
    // SAFETY: a function of this library. If the thread cannot be started, the process must be ended by a
    // signal.
    unsafe { CREATE.get()(&raw mut thread, ptr::null(), end_with_program, ptr::null_mut()) };
}

/// Ends the process as the C library does when its last thread ends. No other thread waits for this thread,
/// so it may touch far memory.
extern "C" fn end_with_program(_none: *mut c_void) -> *mut c_void {
    const GLANCE: Duration = Duration::from_millis(5);
    while !only_ours_left() {
        std::thread::sleep(GLANCE);
    }
    // SAFETY: the program has no other thread.
    unsafe { libc::exit(0) }
}

/// Returns `true` if this thread, the main thread, which has ended, and threads of the layer are the only
/// ones. Without `/proc` the number of threads is unknown, and the process does not end by itself.
fn only_ours_left() -> bool {
    // SAFETY: all zeros is a valid `stat`. The call fills it or fails.
    let links = unsafe {
        let mut known: libc::stat = std::mem::zeroed();
        let done = libc::fstatat(PROC.load(Relaxed), c"self/task".as_ptr(), &raw mut known, 0);
        if done == 0 { known.st_nlink as usize } else { usize::MAX }
    };
    // A thread of the layer leaves the table before it ends, so threads may be counted for a moment longer.
    // Acquire: pairs with AcqRel in `begin`.
    let ours = OURS.iter().filter(|id| id.load(Acquire) != 0).count();
    links <= NO_THREADS + 2 + ours
}

/// Number of links of a directory of threads without an entry.
const NO_THREADS: usize = 2;

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let library = (&raw const __ehdr_start) as usize..(&raw const _end) as usize;
    // SAFETY: the caller keeps the contract of the C function. If no thread is started, no other code has its
    // entry.
    unsafe {
        if !library.contains(&(start as usize)) {
            super::stack::of_thread(attributes);
            return CREATE.get()(thread, attributes, start, argument);
        }
        let beginning = Box::into_raw(Box::new(Beginning { start, argument }));
        // A thread of the layer inherits the mask, so a signal for the process is left to the threads of the
        // program. They may all block it and wait for it (`sigwait`, `signalfd`).
        let blocked = SignalsBlocked::new();
        let result = CREATE.get()(thread, attributes, begin, beginning.cast());
        drop(blocked);
        if result != 0 {
            drop(Box::from_raw(beginning));
        }
        result
    }
}

type Destroy = unsafe extern "C" fn(*mut c_void);
type AtExit = unsafe extern "C" fn(Destroy, *mut c_void, *mut c_void) -> c_int;

static AT_EXIT: Next<AtExit> = Next::new(c"__cxa_thread_atexit_impl");

/// Registers a destructor of a thread-local value. The standard library does this at the start of each
/// thread, and the C library acquires the loader's lock for it, which a thread that waits for a page may hold
/// (FAR-1). Threads of the layer register none: their few values are not destroyed.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __cxa_thread_atexit_impl(
    destroy: Destroy,
    value: *mut c_void,
    library: *mut c_void,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if is_ours() { 0 } else { unsafe { AT_EXIT.get()(destroy, value, library) } }
}

/// Reallocates a block of a thread of the layer, or copies a block of another allocator with `usable` bytes,
/// which stays allocated as in `free`.
pub(super) fn lengthen(old: *mut c_void, size: usize, usable: impl FnOnce() -> usize) -> *mut c_void {
    if old.is_null() {
        return allocate(size);
    }
    let before = size_of_block(old).unwrap_or_else(usable);
    let new = allocate(size);
    if !new.is_null() {
        // SAFETY: both blocks are at least as long as the copy, and do not overlap.
        unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), before.min(size)) };
        release(old);
    }
    new
}

/// Finds the functions of the C library.
pub(super) fn resolve() {
    make_key();
    CREATE.resolve();
    AT_EXIT.resolve();
}
