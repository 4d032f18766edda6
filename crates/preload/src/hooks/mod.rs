//! The hooks: each has the name of a function of the C library, and that function behind it.
//!
//! A hook begins with two instructions that hand its return address, the call site, to its Rust part as one
//! more argument; the Rust part then returns to the caller by itself.

mod c11;
mod condvar;
mod device;
mod futex;
mod idle;
mod mutex;
mod process;
mod rwlock;
mod thread;
mod waiters;

use crate::callers;
use crate::local::local;
use crate::recorder::Thread;
use crate::session::{is_on, is_recording, passes_over_hold, recording};
use azekura_trace::area::Called;
use azekura_trace::{HoldMode, WaitKind};

/// `hook!(NAME => FUNCTION, x86-64 register, Arm register)`: the registers are those of the argument after
/// the last.
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

/// A wait under way: plain data (HOOK-4), ended by [`ended`].
#[derive(Clone, Copy)]
struct Waiting {
    site: u32,
    object: usize,
    /// The recording that it began in.
    command: u32,
}

/// A wait of this thread begins; `None`: it is not recorded.
fn begun(called: Called, from: usize, object: usize, kind: WaitKind) -> Option<Waiting> {
    recording(|thread| {
        callers::tell(thread, from, object);
        waiters::enter(object);
        let site = thread.begin_wait(called, from, object, kind);
        Waiting { site, object, command: local().command.get() }
    })
}

/// Records the end of a wait.
fn ended(waiting: Option<Waiting>) {
    ended_by(waiting, true);
}

/// The same, of a wait that may have ended without a wake-up.
fn ended_by(waiting: Option<Waiting>, is_woken: bool) {
    let Some(Waiting { site, object, command }) = waiting else { return };
    waiters::leave(object);
    if command == local().command.get() {
        recording(|thread| thread.end_wait(site, object, is_woken));
    }
}

/// Records that the calling thread is about to signal `object`, if a thread waits there.
#[inline]
fn signals(called: Called, from: usize, object: usize) {
    if waiters::are_at(object) && is_recording() {
        recording(|thread| thread.wakes(called, from, object));
    }
}

/// Records `call` if the thread left its processor in it; `kind` is then the kind of object.
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
            if thread.has_left() {
                thread.waited(begin, called, from, object, kind());
            }
        });
    }
    result
}

/// A lock was taken: a hold begins.
#[inline]
fn taken(called: Called, from: usize, object: usize, mode: HoldMode) {
    if !passes_over_hold() && is_recording() {
        recording(|thread| thread.begin_hold(called, from, object, mode));
    }
}

/// Records the release of a lock. Most holds are not recorded.
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

/// The value of a pointer, as the number of an object.
fn address<T>(object: *const T) -> usize {
    object.addr()
}
