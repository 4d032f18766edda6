//! Callers of the function that waits: the frames further up, for now and then a wait.
//!
//! Programs lock through functions of their own and of their language's library, and every call site is then
//! the same. One wait of sixteen (and the first of each thread) is preceded by marks that tell, for the
//! object, the return addresses of the frames further up, the nearest first. The first walk of a thread goes
//! on to the function that the thread began with. Walking up costs some microseconds, and only a thread that
//! is about to wait pays for it.
//!
//! The unwinder finds a program's tables without a lock where the C library can (`_dl_find_object`, glibc
//! 2.35); where it cannot, nothing is walked (HOOK-2).

use crate::local::local;
use crate::next::exists;
use crate::recorder::Thread;
use azekura_trace::area::Called;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const ONE_OF: u32 = 16;
/// Frames recorded for a wait: enough for the layers of a language's library.
const LEVELS: usize = 8;
/// Frames recorded for a thread's first wait: as a rule up to the beginning of the thread.
const FIRST_LEVELS: usize = 32;
/// Set if the unwinder finds tables without a lock. Relaxed: stored while the process has one thread.
static IS_FREE_OF_LOCKS: AtomicBool = AtomicBool::new(false);

/// Looks up the unwinder once; call while the library is loaded.
pub(crate) fn settle() {
    IS_FREE_OF_LOCKS.store(exists(c"_dl_find_object"), Relaxed);
}

/// Frames of ours between the unwinder and the program, and then some.
const MOST_FRAMES: u32 = 24;

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, state: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// A walk up the stack, to the frames behind `from`.
struct Walk {
    from: usize,
    left: u32,
    /// Frames found behind `from`; `None` before it.
    found: Option<usize>,
    levels: usize,
    callers: [usize; FIRST_LEVELS],
}

/// Records, for a sample of the calls, the caller of the function that called us from `from`; inside
/// `recording`.
pub(crate) fn tell(thread: &mut Thread, from: usize, object: usize) {
    let waits = local().waits.get();
    local().waits.set(waits.wrapping_add(1));
    if waits.is_multiple_of(ONE_OF) && IS_FREE_OF_LOCKS.load(Relaxed) {
        tell_now(thread, from, object, if waits == 0 { FIRST_LEVELS } else { LEVELS });
    }
}

#[cold]
fn tell_now(thread: &mut Thread, from: usize, object: usize, levels: usize) {
    let mut walk = Walk { from, left: MOST_FRAMES, found: None, levels, callers: [0; FIRST_LEVELS] };
    // SAFETY: `step` gets back the pointer that is passed here, and does not unwind.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    for caller in walk.callers.into_iter().take_while(|caller| *caller != 0) {
        thread.mark(Called::Caller, caller, object);
    }
}

extern "C" fn step(context: *mut c_void, walk: *mut c_void) -> c_int {
    const GO_ON: c_int = 0;
    const ENOUGH: c_int = 4;
    // SAFETY: from `tell_now`, which waits for the walk's end.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: the unwinder's own context.
    let address = unsafe { _Unwind_GetIP(context) };
    if let Some(found) = &mut walk.found {
        walk.callers[*found] = address;
        *found += 1;
        return if *found == walk.levels { ENOUGH } else { GO_ON };
    }
    if address == walk.from {
        walk.found = Some(0);
    }
    walk.left -= 1;
    if walk.left == 0 { ENOUGH } else { GO_ON }
}
