//! The hooks. Each has the name of a function of the C library, and calls that function.
//!
//! A hook begins with two instructions that pass its return address, the call site, to its Rust part as an
//! additional argument. The Rust part then returns directly to the caller.

mod c11;
mod condvar;
mod device;
mod futex;
mod idle;
mod jump;
mod limit;
mod mutex;
mod process;
mod rwlock;
mod sandbox;
mod thread;
mod waiters;

use crate::callers;
use crate::local::local;
use crate::recorder::Thread;
use crate::session::{is_on, is_recording, misses_wait, passes_over_hold, recording};
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};

/// Defines a hook: `hook!(NAME => FUNCTION, x86-64 register, Arm register)`. The registers are those of the
/// first argument after the function's own.
macro_rules! hook {
    ($name:ident => $function:path, $intel:literal, $arm:literal) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                concat!("mov ", $intel, ", [rsp]"),
                "jmp {function}",
                function = sym $function
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {function}", function = sym $function)
        }
    };
}
pub(crate) use hook;

/// A wait in progress: plain data (HOOK-4), ended by [`ended`].
#[derive(Clone, Copy)]
struct Waiting {
    site: u32,
    object: usize,
    /// The recording in which the wait began.
    command: u32,
}

/// Records the begin of a wait of this thread; returns `None` if it is not recorded.
fn begun(called: Called, from: usize, object: usize, kind: WaitKind) -> Option<Waiting> {
    let waiting = recording(|thread| {
        callers::tell(thread, from, object);
        waiters::enter(object);
        let site = thread.begin_wait(called, from, object, kind);
        Waiting { site, object, command: local().command.get() }
    });
    if waiting.is_none() {
        misses_wait();
    }
    waiting
}

/// Records the end of a wait.
fn ended(waiting: Option<Waiting>) {
    ended_by(waiting, true);
}

/// Records the end of a wait; `is_woken` is `false` if it may have ended without a wake-up.
fn ended_by(waiting: Option<Waiting>, is_woken: bool) {
    let Some(Waiting { site, object, command }) = waiting else { return };
    waiters::leave(object);
    if command == local().command.get() {
        recording(|thread| thread.end_wait(site, object, is_woken));
    }
}

/// Records that the calling thread is about to signal `object`, if a thread waits for it.
#[inline]
fn signals(called: Called, from: usize, object: usize) {
    if waiters::are_at(object) && is_recording() {
        recording(|thread| thread.wakes(called, from, object));
    }
}

/// Records `call` as a wait of kind `kind()` if the thread left its processor during it.
#[inline]
fn watched<R>(
    called: Called,
    object: usize,
    from: usize,
    kind: impl FnOnce() -> WaitKind,
    call: impl FnOnce() -> R,
) -> R {
    if !is_recording() {
        return call();
    }
    let begin = recording(Thread::watch).flatten();
    let result = call();
    if let Some(begin) = begin {
        recording(|thread| {
            if thread.end_watch() {
                thread.waited(begin, called, from, object, kind());
            }
        });
    }
    result
}

/// Begins a hold of a lock that was just taken. Most holds are only counted.
#[inline]
fn taken(called: Called, from: usize, object: usize, mode: HoldMode) {
    if !passes_over_hold() && is_recording() {
        recording(|thread| thread.begin_hold(called, from, object, mode));
    }
}

/// Records the hold of a lock at its release. Most holds are not recorded.
#[inline]
fn released(object: usize) {
    if local().held.get() > 0 {
        end_hold(object);
    }
}

#[cold]
#[inline(never)]
fn end_hold(object: usize) {
    if is_on() {
        recording(|thread| thread.end_hold(object));
    }
}

/// Returns `true` if the C library accepts the clock and the time of a timed call. It rejects others before
/// it tries to take the object, so a hook passes these on at once (HOOK-1).
unsafe fn is_valid(clock: libc::clockid_t, until: *const libc::timespec) -> bool {
    // SAFETY: null or the caller's time.
    let Some(until) = (unsafe { until.as_ref() }) else { return false };
    matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
        && (0..1_000_000_000).contains(&until.tv_nsec)
}

/// Returns the address of an object, by which the object is identified.
fn address<T>(object: *const T) -> usize {
    object.addr()
}
