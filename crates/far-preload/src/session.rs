//! Far memory of the process: reads settings and connects to servers before `main`, decides which calls use
//! far memory, and reports statistics at the end.

mod children;
mod end;
mod report;
mod statics;
mod surroundings;
mod thrash;

pub(crate) use children::{child_begins, prepare as prepare_forks, with_child};

use crate::heap::{Heap, Lack};
use azekura_far::launch::Launch;
use azekura_far::{AuthKey, FarMemory, Mechanism};
pub(crate) use end::exhausted;
use end::{CODE, lost, refuse};
pub(crate) use report::{at_end, excluded};
use std::error::Error;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;
use std::{fmt, ptr};
pub(crate) use surroundings::refuse_sanitizers;

/// The session; null before far memory is set up, and in child processes.
static HEAP: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
/// Smallest size of a far block in bytes. The largest value until far memory is set up, so that no block is
/// far.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Smallest size of a far mapping in bytes. Mappings always have their own pages.
static MAP_THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Largest number of ranges of far memory outside of the heap: static arrays.
const MOST_STATICS: usize = 8;

/// Far memory of this process or of its parent: the heap, followed by static arrays, each as base and length.
static PLACES: [[AtomicUsize; 2]; MOST_STATICS + 1] =
    [const { [const { AtomicUsize::new(0) }; 2] }; MOST_STATICS + 1];
/// Number of the ranges in `PLACES` for which the kernel does not wait: all of them, or none.
static UNSERVED_RANGES: AtomicUsize = AtomicUsize::new(0);

/// Far memory of this process. Never dropped, because threads may use it until the process ends.
pub(crate) struct Session {
    pub(crate) heap: Heap,
    launch: &'static Launch,
}

/// Set once far memory was set up, here or in the parent process.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Settings of the launcher.
static LAUNCH: OnceLock<Launch> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Returns the far heap, if there is one. If this thread runs on a stack in far memory, the stack leaves far
/// memory first (FAR-4).
pub(crate) fn heap() -> Option<&'static Heap> {
    // Acquire: pairs with Release in `install`. SAFETY: the pointer is null, or the session is never dropped.
    let heap = unsafe { HEAP.load(Acquire).as_ref() }.map(|session| &session.heap)?;
    crate::hooks::unmanage_stack(heap.range());
    Some(heap)
}

/// Returns `true` if a range overlaps managed memory. Acquires no lock and does not check the stack.
pub(crate) fn is_managed(range: Range<usize>) -> bool {
    // Acquire: pairs with Release in `install`. SAFETY: as in `heap`.
    unsafe { HEAP.load(Acquire).as_ref() }.is_some_and(|session| session.heap.memory().is_managed(range))
}

/// Returns the far heap for a new block of this size. No allocator has a block above half of the addresses:
/// the C library returns the error.
#[inline]
pub(crate) fn heap_for(bytes: usize) -> Option<&'static Heap> {
    // Relaxed: an independent number; `heap` provides the ordering.
    if bytes < THRESHOLD.load(Relaxed) || bytes > isize::MAX as usize {
        None
    } else {
        heap().or_else(children::heap)
    }
}

/// Returns the far heap for a new mapping of this size.
pub(crate) fn heap_to_map(bytes: usize) -> Option<&'static Heap> {
    // Relaxed: as in `heap_for`.
    if bytes < MAP_THRESHOLD.load(Relaxed) { None } else { heap_for(bytes) }
}

/// Returns the far heap that contains an address.
#[inline]
pub(crate) fn heap_of(address: usize) -> Option<&'static Heap> {
    heap().filter(|heap| heap.has(address))
}

/// Returns `true` if an address was far memory in this process's parent.
pub(crate) fn was_far(address: usize) -> bool {
    // Relaxed: written before `main`, and read in child processes.
    meets(&PLACES[0], address, 1)
}

/// Returns `true` if an address was far memory in this process's parent, including static arrays.
fn was_in_place(address: usize) -> bool {
    PLACES.iter().any(|place| meets(place, address, 1))
}

/// Returns `true` if the kernel could not access some byte of a range because it is far memory for which the
/// kernel does not wait (F1).
#[inline]
pub(crate) fn is_unserved(address: usize, bytes: usize) -> bool {
    // Relaxed: written before `main`, and in child processes with one thread.
    let ranges = UNSERVED_RANGES.load(Relaxed);
    ranges != 0
        && bytes != 0
        && PLACES[..ranges].iter().any(|range| meets(range, address, bytes))
        && heap().is_none_or(|heap| {
            let range = address..address.saturating_add(bytes);
            // An access to reserved memory is refused by the kernel.
            heap.memory().is_managed(range.clone()) && !heap.memory().is_reserved(range)
        })
}

fn meets([base, length]: &[AtomicUsize; 2], address: usize, bytes: usize) -> bool {
    let (base, length) = (base.load(Relaxed), length.load(Relaxed));
    address < base + length && address.saturating_add(bytes) > base
}

/// Longest buffer of which a far part leaves far memory if another part is not far memory.
const MOST_MIXED: usize = 16 << 20;

/// Returns `true` if a buffer is far memory for which the kernel does not wait. If only a part of it is, this
/// part leaves far memory: the kernel then reports a part of the buffer that cannot be accessed as it does
/// without far memory. A longer buffer counts as far memory: some programs pass a number of bytes that is
/// larger than their buffer.
pub(crate) fn is_bounced(address: usize, bytes: usize) -> bool {
    let is_whole = |heap: &Heap| heap.memory().manages_all(address..address.saturating_add(bytes));
    // A later part of the buffer may be reserved.
    if !is_unserved(address, bytes.min(1)) && !is_unserved(address, bytes) {
        return false;
    }
    let bounces = bytes > MOST_MIXED || heap().is_none_or(is_whole);
    if !bounces {
        unmanage(address, bytes);
    }
    bounces
}

/// Returns `true` if any byte of a range is a far static array.
pub(crate) fn is_static(address: usize, bytes: usize) -> bool {
    let end = address.saturating_add(bytes);
    let meets = |memory: &FarMemory, range: &Range<usize>| {
        let (start, end) = (address.max(range.start), end.min(range.end));
        start < end && memory.is_managed(start..end)
    };
    heap().is_some_and(|heap| heap.memory().adopted().iter().any(|range| meets(heap.memory(), range)))
}

/// Returns `true` if a range is whole pages of the kernel, all of them of a far static array.
pub(crate) fn is_all_static(address: usize, bytes: usize) -> bool {
    const PIECE: usize = 4096;
    let end = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PIECE));
    let Some(end) = end else { return false };
    let range = address..end;
    address.is_multiple_of(PIECE)
        && is_static(address, bytes)
        && heap().is_some_and(|heap| {
            let memory = heap.memory();
            memory.adopted().iter().any(|array| array.start <= range.start && range.end <= array.end)
                && range.step_by(PIECE).all(|at| memory.is_managed(at..at + 1))
        })
}

/// Returns `true` if the kernel waits for far memory, or there is none.
pub(crate) fn serves_system_calls() -> bool {
    UNSERVED_RANGES.load(Relaxed) == 0 // Relaxed: as in `is_unserved`
}

/// Returns `true` if no far page leaves while a device uses it, and the kernel waits for pages. Such memory
/// may be the destination of asynchronous transfers.
pub(crate) fn pins_pages() -> bool {
    heap().is_none_or(|heap| heap.memory().mechanism() == Mechanism::UserfaultMove)
}

/// Passes the far memory in a range to the kernel permanently, before a call on it that only the kernel can
/// execute. Returns `true` if there was far memory.
pub(crate) fn unmanage(address: usize, bytes: usize) -> bool {
    let range = address..address.saturating_add(bytes);
    let Some(heap) = heap().filter(|heap| bytes > 0 && heap.memory().is_managed(range.clone())) else {
        return false;
    };
    keeping_errno(|| {
        heap.unmanage(range);
        keeps_budget(heap);
    });
    true
}

/// Counts the unmanaged memory after a call that may have changed it, for example `mlock`.
pub(crate) fn count_unmanaged() {
    if let Some(heap) = heap() {
        keeping_errno(|| {
            heap.memory().count_unmanaged();
            keeps_budget(heap);
        });
    }
}

fn keeping_errno(run: impl FnOnce()) {
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    run();
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// Ends a program with `--strict` if its unmanaged memory exceeds the local budget.
fn keeps_budget(heap: &Heap) {
    let Some(launch) = LAUNCH.get().filter(|launch| launch.strict) else { return };
    let left = heap.memory().stats().unmanaged_bytes;
    if left > launch.local as u64 {
        lost(&format!(
            "azekura far: {} KiB of large blocks left far memory for calls that only the kernel can do, more \
             than --local {}; raise --local, or run without --strict\n",
            left >> 10,
            Size(launch.local)
        ));
    }
}

/// Bytes of large blocks for which `--max-far` was too small.
static OVERFLOW: AtomicUsize = AtomicUsize::new(0);
/// Bytes of large blocks for which servers refused to reserve memory.
static REFUSED: AtomicUsize = AtomicUsize::new(0);
/// The first reason that a server reported.
static REFUSAL: OnceLock<String> = OnceLock::new();

/// Counts a large block that becomes ordinary memory, because `--max-far` or the servers' memory is used up.
/// With `--strict` it ends the program.
#[cold]
pub(crate) fn overflowed(what: &str, bytes: usize, lack: &Lack) {
    let counter = match lack {
        Lack::Space => &OVERFLOW,
        Lack::Server(error) => {
            let _ = REFUSAL.set(error.to_string());
            &REFUSED
        }
    };
    counter.fetch_add(bytes, Relaxed); // Relaxed: a counter
    let Some(launch) = LAUNCH.get().filter(|launch| launch.strict) else { return };
    let why = match lack {
        Lack::Space => {
            format!(
                "does not fit the far memory that is left of --max-far {}; raise --max-far",
                Size(launch.space)
            )
        }
        Lack::Server(error) => format!("cannot be stored: {error}; use --spill FILE"),
    };
    lost(&format!(
        "azekura far: {what} of {} KiB {why}, or run without --strict to have it in ordinary memory\n",
        bytes >> 10
    ));
}

/// Makes all far memory ordinary memory, and disables far memory from now on. The program makes a call that
/// concerns all of its memory, or all system calls of this library.
pub(crate) fn end_far(call: &str, why: &str) {
    // Relaxed: other threads may still allocate far blocks for a moment. These blocks become ordinary memory
    // below.
    if THRESHOLD.swap(usize::MAX, Relaxed) == usize::MAX {
        return;
    }
    let Some(heap) = heap() else { return };
    let bytes = heap.given_bytes() + heap.memory().adopted().iter().map(Range::len).sum::<usize>();
    if let Some(launch) = LAUNCH.get().filter(|launch| launch.strict && bytes > launch.local) {
        lost(&format!(
            "azekura far: {call}: {why}; the {} KiB of far memory are more than --local {}; raise --local, \
             or run without --strict to have them all in ordinary memory\n",
            bytes >> 10,
            Size(launch.local)
        ));
    }
    if bytes > 0 && LAUNCH.get().is_some_and(|launch| !launch.quiet) {
        say(format_args!(
            "azekura far: {call}: {why}; all {} KiB of far memory are local from now on\n",
            bytes >> 10
        ));
    }
    heap.end();
    crate::hooks::end_stack_helper();
    ENDED.store(true, Relaxed); // Relaxed: read by the `fork` handlers, which only skip work if it is set
}

/// Returns the largest number of bytes of the spill file; 0 without one.
pub(crate) fn spilled_bytes() -> u64 {
    LAUNCH.get().filter(|launch| launch.spill.is_some()).map_or(0, |launch| launch.space as u64)
}

/// Environment variable that is set once the mechanism in use has been printed.
const SAID: &str = "AZEKURA_FAR_SAID";

/// Error: a limit of the process counts the memory of the far layer.
#[derive(Debug)]
struct RefusedByLimit {
    name: &'static str,
    bytes: u64,
}

impl fmt::Display for RefusedByLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, bytes } = self;
        write!(
            f,
            "the memory of this process is limited to {} KiB ({name}), and the kernel counts --max-far \
             for this limit: remove the limit, or run the program without far memory",
            bytes >> 10
        )
    }
}

impl Error for RefusedByLimit {}

/// Error: valgrind runs one thread at a time. A thread that waits for a page would stop the thread that
/// fetches it.
#[derive(Debug)]
struct RefusedUnderValgrind;

impl fmt::Display for RefusedUnderValgrind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this program runs under valgrind, which runs one thread at a time, and far memory needs its own \
             threads to run while the program waits for a page: run the program without one of the two",
        )
    }
}

impl Error for RefusedUnderValgrind {}

/// Error: the program creates an io_uring by its own instructions; the kernel then uses memory at any time.
#[derive(Debug)]
struct RefusedRings(Mechanism);

impl fmt::Display for RefusedRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this program creates io_urings by its own instructions (a statically linked liburing), and with \
             {} the kernel would use memory that is not local: run it with userfault-move (as root or with \
             CAP_SYS_PTRACE, from Linux 6.8 on), or without far memory",
            self.0
        )
    }
}

impl Error for RefusedRings {}

extern "C" fn begin() {
    refuse_sanitizers();
    let launch = match Launch::from_environment() {
        Ok(Some(launch)) => launch,
        Ok(None) => return,
        Err(error) => refuse(&error),
    };
    crate::hooks::resolve();
    if surroundings::is_under_valgrind() {
        refuse(&RefusedUnderValgrind);
    }
    azekura_far::descriptors::place_high();
    azekura_far::keep_standard_error();
    end::prepare();
    let launch = LAUNCH.get_or_init(|| launch);
    if let Some((name, bytes)) = crate::hooks::limit_in_force() {
        refuse(&RefusedByLimit { name, bytes });
    }
    let session = open(launch);
    if !pins_pages() && surroundings::makes_rings() {
        refuse(&RefusedRings(session.heap.memory().mechanism()));
    }
    if !launch.quiet && std::env::var_os(SAID).is_none() {
        // SAFETY: before `main` there is one thread. The variable keeps programs that this one starts from
        // printing it again.
        unsafe { std::env::set_var(SAID, "1") };
        let servers = launch.servers.join(", ");
        say(format_args!(
            "azekura far: pages of {} by {}, {} local, the rest at {servers}\n",
            Size(launch.page),
            session.heap.memory().mechanism(),
            Size(launch.local)
        ));
    }
    if let Err(error) = thrash::report_every(launch.progress_ms) {
        refuse(&error);
    }
    children::prepare();
    crate::hooks::watch_main_thread();
    // SAFETY: a function of this library, which is never unloaded.
    unsafe {
        libc::atexit(at_end);
    }
}

/// Sets up far memory and enables it.
fn open(launch: &'static Launch) -> &'static Session {
    // A child process that sets up far memory later already uses its static arrays, which stay ordinary
    // memory.
    let has_begun = BEGUN.swap(true, Relaxed);
    let statics = if has_begun { Vec::new() } else { statics::find(launch.block.max(launch.page)) };
    let memory = match set_up(launch, statics) {
        Ok(memory) => memory,
        Err(error) => refuse(&*error),
    };
    install(Heap::new(memory, launch.page), launch)
}

/// Enables far memory for large blocks.
fn install(heap: Heap, launch: &'static Launch) -> &'static Session {
    let base = heap.memory().as_ptr() as usize;
    let region = base..base + heap.memory().len();
    let ranges = [region].into_iter().chain(heap.memory().adopted().iter().cloned());
    for (range, place) in ranges.zip(&PLACES) {
        // Relaxed: there is one thread, or this is the thread that allocates the first block.
        place[0].store(range.start, Relaxed);
        place[1].store(range.len(), Relaxed);
    }
    // If the kernel waits for far memory, only streams on the memory of this process need these hooks.
    let streams = crate::hooks::take_streams_over();
    if !heap.memory().mechanism().serves_system_calls() {
        if let Err(error) = streams {
            refuse(&error);
        }
        UNSERVED_RANGES.store(heap.memory().adopted().len() + 1, Relaxed);
    }
    if let Err(error) = crate::hooks::start_stack_helper() {
        refuse(&error);
    }
    let session = Box::leak(Box::new(Session { heap, launch }));
    // Release: pairs with Acquire in `heap`.
    HEAP.store(session, Release);
    // Relaxed: independent numbers, as in `heap_for`.
    MAP_THRESHOLD.store(launch.block.max(launch.page), Relaxed);
    THRESHOLD.store(launch.block, Relaxed);
    session
}

fn set_up(launch: &Launch, statics: Vec<Range<usize>>) -> Result<FarMemory, Box<dyn Error>> {
    // Memory for static arrays is reserved at the start, and memory for blocks when they are allocated.
    let bytes: usize = statics.iter().take(MOST_STATICS).map(Range::len).sum();
    let share = if launch.spill.is_some() { 0 } else { bytes * launch.copies / launch.servers.len().max(1) };
    let mut setting = FarMemory::builder()
        .bytes(launch.space)
        .local(launch.local)
        .page(launch.page)
        .servers(launch.servers.iter().cloned())
        .copies(launch.copies)
        .stall(Duration::from_millis(launch.stall_ms))
        .policy(launch.policy)
        .mechanism(launch.mechanism)
        .traced(surroundings::traces_threads())
        .compression(launch.compression)
        .reserve(share as u64)
        .on_loss(lost);
    if let Some(path) = launch.spill_path() {
        setting = setting.spill(path);
    }
    if let Some(path) = &launch.auth_key {
        setting = setting.auth_key(AuthKey::read(path).map_err(|e| format!("key {}: {e}", path.display()))?);
    }
    for addresses in statics.into_iter().take(MOST_STATICS) {
        // SAFETY: before `main` no code uses the program's static arrays, and they exist until the process
        // ends.
        setting = unsafe { setting.adopt(addresses) };
    }
    Ok(setting.build()?)
}

fn say(what: fmt::Arguments<'_>) {
    azekura_far::say(&what.to_string());
}

/// Set once all far memory has become ordinary memory and no more will be allocated.
static ENDED: AtomicBool = AtomicBool::new(false);

/// A number of bytes for messages, displayed in GiB, MiB or KiB.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n % (1 << 30) == 0 => write!(f, "{} GiB", n >> 30),
            n if n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n => write!(f, "{} KiB", n >> 10),
        }
    }
}
