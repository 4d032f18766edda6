//! Jumps out of signal handlers.
//!
//! A handler may interrupt this library's code and leave it by a jump. The thread then runs code of this
//! library no longer, and records again (HOOK-3). It has also left the calls that the handler interrupted.
//! This library itself does not jump.

use super::hook;
use crate::local::local;
use crate::next::next;
use libc::{c_int, c_void};

/// Hooks a function that jumps to a place stored by `setjmp` or `sigsetjmp`.
macro_rules! jump {
    ($name:ident => $hook:ident, $next:ident = $symbol:literal) => {
        next!($next: unsafe extern "C" fn(*mut c_void, c_int) -> ! = new($symbol));

        hook!($name => $hook, "rdx", "x2");

        unsafe extern "C" fn $hook(place: *mut c_void, value: c_int, _from: usize) -> ! {
            local().quiet.set(false);
            // SAFETY: null, or this thread's own recorder. The code with another reference is left.
            if let Some(thread) = unsafe { local().thread.get().as_ref() } {
                thread.leave_waits();
            }
            // SAFETY: the caller's arguments, passed on. The jump leaves this frame, which has no destructor.
            unsafe { $next.get()(place, value) }
        }
    };
}

jump!(longjmp => longjmp_hook, LONGJMP = c"longjmp");
jump!(_longjmp => underscore_longjmp_hook, UNDERSCORE_LONGJMP = c"_longjmp");
jump!(siglongjmp => siglongjmp_hook, SIGLONGJMP = c"siglongjmp");
jump!(__longjmp_chk => longjmp_chk_hook, LONGJMP_CHK = c"__longjmp_chk");
