//! The callers of the function that waits, recorded for a sample of the waits.
//!
//! Programs lock through functions of their own and of their language's library, so all locks can have the
//! same call site. Before one wait of sixteen, and the first of each thread, marks record the return
//! addresses of the outer frames, the innermost first. The waits are drawn at random, so that a thread that
//! waits on two paths in turn shows both. A walk costs some microseconds, but only threads that are about to
//! wait pay for it.
//!
//! With glibc 2.35 or later, the unwinder finds a program's tables without a lock (`_dl_find_object`). With
//! an older one, no stack is walked (HOOK-2).

use crate::local::local;
use crate::next::exists;
use crate::recorder::Thread;
use azekura_trace::area::Called;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const ONE_OF: u32 = 16;
/// Largest number of frames recorded for a wait: usually enough to reach the thread's first function.
const LEVELS: usize = 32;
/// Set if the unwinder finds tables without a lock. Relaxed: stored while the process has one thread.
static IS_FREE_OF_LOCKS: AtomicBool = AtomicBool::new(false);

/// Checks once whether the unwinder needs a lock. Call while the library is loaded.
pub(crate) fn check_unwinder() {
    IS_FREE_OF_LOCKS.store(exists(c"_dl_find_object"), Relaxed);
}

/// Number of frames searched for `from`: more than this library has between the unwinder and the program.
const MOST_FRAMES: u32 = 24;

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> c_int, state: *mut c_void)
    -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// A walk up the stack that collects the frames above `from`.
struct Walk {
    from: usize,
    left: u32,
    /// Number of frames found above `from`; `None` until the walk reaches `from`.
    found: Option<usize>,
    callers: [usize; LEVELS],
}

/// Records, for a sample of the waits, the callers of the function that called the hook from `from`. Call
/// inside `recording`.
pub(crate) fn tell(thread: &mut Thread, from: usize, object: usize) {
    let waits = local().waits.get();
    local().waits.set(waits.wrapping_add(1));
    if (waits == 0 || is_drawn(waits)) && IS_FREE_OF_LOCKS.load(Relaxed) {
        tell_now(thread, from, object);
    }
}

/// Draws one of [`ONE_OF`] waits. The number of the wait is scrambled (MurmurHash3's finalizer), so that the
/// distances between drawn waits have no period.
fn is_drawn(wait: u32) -> bool {
    let mut bits = wait ^ wait >> 16;
    bits = bits.wrapping_mul(0x85eb_ca6b);
    bits ^= bits >> 13;
    bits = bits.wrapping_mul(0xc2b2_ae35);
    (bits ^ bits >> 16).is_multiple_of(ONE_OF)
}

#[cold]
fn tell_now(thread: &mut Thread, from: usize, object: usize) {
    let mut walk = Walk { from, left: MOST_FRAMES, found: None, callers: [0; LEVELS] };
    // SAFETY: `step` receives the pointer that is passed here, and does not unwind.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    for caller in walk.callers.into_iter().take_while(|caller| *caller != 0) {
        thread.mark(Called::Caller, caller, object);
    }
}

extern "C" fn step(context: *mut c_void, walk: *mut c_void) -> c_int {
    const GO_ON: c_int = 0;
    const ENOUGH: c_int = 4;
    // SAFETY: the pointer is from `tell_now`, which waits for the end of the walk.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: `context` is the unwinder's own.
    let address = unsafe { _Unwind_GetIP(context) };
    if let Some(found) = &mut walk.found {
        walk.callers[*found] = address;
        *found += 1;
        return if *found == LEVELS { ENOUGH } else { GO_ON };
    }
    if address == walk.from {
        walk.found = Some(0);
    }
    walk.left -= 1;
    if walk.left == 0 { ENOUGH } else { GO_ON }
}
