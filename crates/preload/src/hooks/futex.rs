//! `syscall(SYS_futex, …)`, by which runtimes and programs with locks of their own sleep (InnoDB, Rust's std,
//! parking_lot), and `syscall(SYS_io_uring_enter, …)`.
//!
//! The call contains an address and a value, but not their meaning. A wait is guessed to be for a lock if the
//! expected value is one that usually means "locked, with waiters": 2, or the highest bit set (but not all
//! bits, which is a parked thread). All other waits count as idle. crates/record decides finally, by the
//! functions that wait, and by holds: the time between a wait and a wake-up of the same thread. Reports call
//! such a lock `futex`.

use super::{address, begun, ended_by, released, signals, taken, watched};
use crate::next::next;
use crate::session::{is_on, process_ends};
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};
use libc::{c_int, c_long};

type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

next!(NEXT: Syscall = new(c"syscall"));

// The futex calls keep their arguments in their order, with the call site in the place of the call number.
// All other calls are passed on unchanged. The seventh argument stays on the stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn syscall() {
    std::arch::naked_asm!(
        "cmp rdi, {number}",
        "jne 2f",
        "mov rdi, [rsp]",
        "jmp {futex}",
        "2:",
        "cmp rdi, {several}",
        "jne 3f",
        "mov rdi, [rsp]",
        "jmp {futex_of_several}",
        "3:",
        "cmp rdi, {ring}",
        "jne 4f",
        "mov rdi, [rsp]",
        "jmp {enter_ring}",
        "4:",
        "jmp {other}",
        number = const libc::SYS_futex,
        several = const libc::SYS_futex_waitv,
        ring = const libc::SYS_io_uring_enter,
        enter_ring = sym enter_ring,
        futex = sym futex,
        futex_of_several = sym futex_of_several,
        other = sym other,
    )
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn syscall() {
    std::arch::naked_asm!(
        "cmp x0, {number}",
        "b.ne 2f",
        "mov x0, x30",
        "b {futex}",
        "2:",
        "cmp x0, {several}",
        "b.ne 3f",
        "mov x0, x30",
        "b {futex_of_several}",
        "3:",
        "cmp x0, {ring}",
        "b.ne 4f",
        "mov x0, x30",
        "b {enter_ring}",
        "4:",
        "b {other}",
        number = const libc::SYS_futex,
        several = const libc::SYS_futex_waitv,
        ring = const libc::SYS_io_uring_enter,
        enter_ring = sym enter_ring,
        futex = sym futex,
        futex_of_several = sym futex_of_several,
        other = sym other,
    )
}

unsafe extern "C" fn other(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    super::sandbox::is_called(number, a);
    if number == libc::SYS_exit_group {
        process_ends();
    }
    // SAFETY: the caller's arguments.
    unsafe { super::limit::is_called(number, [a, b, c]) };
    // SAFETY: the caller's arguments. Arguments that the call does not have contain arbitrary values and are
    // ignored, as in the C library's own function.
    unsafe { NEXT.get()(number, a, b, c, d, e, f) }
}

unsafe extern "C" fn futex(
    from: usize,
    word: *const u32,
    operation: c_long,
    value: c_long,
    timeout: c_long,
    second: c_long,
    third: c_long,
) -> c_long {
    // SAFETY: as in `other`.
    let call = || unsafe {
        NEXT.get()(libc::SYS_futex, address(word) as c_long, operation, value, timeout, second, third)
    };
    if !is_on() {
        return call();
    }
    let Some(kind) = kind_of(operation as c_int, value as u32) else {
        let is_wake = is_wake(operation as c_int);
        if is_wake {
            signals(Called::Futex, from, address(word));
        }
        let result = call();
        if is_wake {
            released(address(word));
        }
        return result;
    };
    let waiting = begun(Called::Futex, from, address(word), kind);
    // The kernel's error is in errno, which `ended` does not change.
    let result = call();
    ended_by(waiting, result == 0);
    if result == 0 {
        taken(Called::Futex, from, address(word), HoldMode::Exclusive);
    }
    result
}

/// Records `futex_waitv`, a wait for one of several words, which are identified by their array. The first
/// argument is the call site, the others are those of the system call.
unsafe extern "C" fn futex_of_several(
    from: usize,
    words: c_long,
    count: c_long,
    flags: c_long,
    timeout: c_long,
    clock: c_long,
    unused: c_long,
) -> c_long {
    // SAFETY: as in `other`.
    let call = || unsafe { NEXT.get()(libc::SYS_futex_waitv, words, count, flags, timeout, clock, unused) };
    if !is_on() {
        return call();
    }
    let waiting = begun(Called::Futex, from, words as usize, WaitKind::Idle);
    let result = call();
    ended_by(waiting, result >= 0);
    result
}

/// Records `io_uring_enter` if the call waits for completions. These may be of devices, of the network or of
/// timers, so the wait counts as idle. The first argument is the call site, the others are those of the
/// system call.
unsafe extern "C" fn enter_ring(
    from: usize,
    ring: c_long,
    submitted: c_long,
    awaited: c_long,
    flags: c_long,
    argument: c_long,
    size: c_long,
) -> c_long {
    const GETEVENTS: c_long = 1;
    // SAFETY: as in `other`.
    let call =
        || unsafe { NEXT.get()(libc::SYS_io_uring_enter, ring, submitted, awaited, flags, argument, size) };
    if flags & GETEVENTS == 0 || awaited as u32 == 0 {
        return call();
    }
    watched(Called::IoUring, ring as usize, from, || WaitKind::Idle, call)
}

/// Returns `true` if the call wakes waiters. For a lock word, this is the last step of a release.
fn is_wake(operation: c_int) -> bool {
    let command = operation & libc::FUTEX_CMD_MASK;
    matches!(command, libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET | libc::FUTEX_UNLOCK_PI)
}

/// Returns the kind of the wait, guessed by the expected value; `None` if the call does not wait.
fn kind_of(operation: c_int, value: u32) -> Option<WaitKind> {
    match operation & libc::FUTEX_CMD_MASK {
        libc::FUTEX_LOCK_PI | libc::FUTEX_LOCK_PI2 => Some(WaitKind::Other),
        libc::FUTEX_WAIT_REQUEUE_PI => Some(WaitKind::Idle),
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            let is_locked = value == 2 || (value >> 31 == 1 && value != u32::MAX);
            Some(if is_locked { WaitKind::Other } else { WaitKind::Idle })
        }
        _ => None,
    }
}
