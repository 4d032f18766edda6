//! Hooks: replacements of functions of the C library that the program calls.

/// Defines the module `next` with the C library's functions of these names.
macro_rules! next_functions {
    ($($name:ident: $type:ty;)+) => {
        #[allow(non_upper_case_globals, reason = "named after the functions")]
        mod next {
            use super::*;
            $(
                pub(super) static $name: Next<$type> =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => Next::new(name),
                        Err(_) => panic!("the name contains a NUL byte"),
                    };
            )+
        }
    };
}

mod again;
mod alias;
mod birth;
mod block;
mod bounce;
mod caller;
mod checked;
mod descriptor;
mod directory;
mod given;
mod kernel;
mod limit;
mod lock;
mod map;
mod message;
mod number;
mod once;
mod own;
mod queued;
mod rare;
mod signal;
mod spawn;
mod stack;
mod stream;
mod text;
mod thread;
mod transfer;
mod wait;

pub(crate) use kernel::leaves_network;
pub(crate) use limit::in_force as limit_in_force;
pub(crate) use stack::{
    end_helper as end_stack_helper, start_helper as start_stack_helper, unmanage_here as unmanage_stack,
};
pub(crate) use stream::take_over as take_streams_over;
pub(crate) use thread::{forget_ours, processor_ns, watch_main_thread, with_ordinary_memory};

use std::ffi::c_int;

/// Finds the functions of the C library that the hooks replace, before `main`. Threads of this library call
/// some of them later, and the search takes the loader's lock, which a thread that waits for a page may hold
/// (FAR-1).
pub(crate) fn resolve() {
    again::resolve();
    birth::resolve();
    block::resolve();
    caller::resolve();
    checked::resolve();
    descriptor::resolve();
    directory::resolve();
    kernel::resolve();
    lock::resolve();
    map::resolve();
    message::resolve();
    once::resolve();
    own::resolve();
    queued::resolve();
    rare::resolve();
    signal::resolve();
    spawn::resolve();
    stack::resolve();
    stream::resolve();
    text::resolve();
    thread::resolve();
    transfer::resolve();
    wait::resolve();
}

/// Returns the address of this library's `malloc`.
pub(crate) fn malloc_address() -> usize {
    block::malloc as *const () as usize
}

/// Sets `errno`.
fn fail(code: c_int) {
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = code };
}

fn errno() -> c_int {
    // SAFETY: the address of this thread's `errno`.
    unsafe { *libc::__errno_location() }
}
