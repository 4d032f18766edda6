//! Ends of the process in which no destructor of a library runs.

use super::hook;
use crate::next::next;
use crate::session::process_ends;
use libc::c_int;

next!(EXIT: unsafe extern "C" fn(c_int) -> ! = new(c"_exit"));
next!(EXIT_TOO: unsafe extern "C" fn(c_int) -> ! = new(c"_Exit"));

hook!(_exit => exit, "rsi", "x1");
hook!(_Exit => exit_too, "rsi", "x1");

unsafe extern "C-unwind" fn exit(status: c_int, _from: usize) -> ! {
    process_ends();
    // SAFETY: the caller's argument.
    unsafe { EXIT.get()(status) }
}

unsafe extern "C-unwind" fn exit_too(status: c_int, _from: usize) -> ! {
    process_ends();
    // SAFETY: the caller's argument.
    unsafe { EXIT_TOO.get()(status) }
}
