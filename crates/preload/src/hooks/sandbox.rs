//! Hook of `prctl`, with which a program restricts its system calls (seccomp). [`super::futex`] hooks the
//! call by number.
//!
//! A program may permit only the system calls of its own code. The kernel then ends it at any other call, so
//! the recording of a process ends before the restriction begins.

use super::hook;
use crate::next::next;
use crate::session::sandboxes;
use libc::{c_int, c_long, c_ulong};

next!(PRCTL: unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int = new(c"prctl"));

hook!(prctl => prctl_hook, "r9", "x5");

unsafe extern "C" fn prctl_hook(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
    _from: usize,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        sandboxes();
    }
    // SAFETY: the caller's arguments. Arguments that the option does not have contain arbitrary values, as in
    // the C library's own function.
    unsafe { PRCTL.get()(option, a, b, c, d) }
}

/// Ends the recording if the system call `number` restricts system calls.
pub(super) fn is_called(number: c_long, first: c_long) {
    let is_filter = matches!(first as u32, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER);
    let is_option = first as c_int == libc::PR_SET_SECCOMP;
    if (number == libc::SYS_seccomp && is_filter) || (number == libc::SYS_prctl && is_option) {
        sandboxes();
    }
}
