//! The hooks: each has the name of a function of the C library, and that function behind it.
//!
//! A hook begins with two instructions that hand its return address, the call site, to its Rust part as one
//! more argument; the Rust part then returns to the caller by itself.

mod condvar;
mod device;
mod futex;
mod idle;
mod mutex;
mod process;
mod rwlock;
mod thread;

use crate::callers;
use crate::session::recording;
use crate::sites::SITES;
use azekura_trace::{WaitGuard, WaitKind};
use std::mem::ManuallyDrop;

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

/// A wait under way: ended by [`ended`], and never by a destructor (HOOK-4).
type Waiting = ManuallyDrop<WaitGuard>;

/// A wait of this thread begins.
fn begun(what: &'static str, from: usize, object: usize, kind: WaitKind) -> Waiting {
    recording(|| {
        callers::tell(from, object);
        ManuallyDrop::new(azekura_trace::wait(SITES.of(what, from), object, kind))
    })
}

/// It is over.
fn ended(waiting: Waiting) {
    recording(|| drop(ManuallyDrop::into_inner(waiting)));
}

/// The value of a pointer, to know an object by.
fn address<T>(object: *const T) -> usize {
    object.addr()
}
