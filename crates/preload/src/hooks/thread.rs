//! Threads: each is one operation, named by the function it starts with.

use super::hook;
use crate::next::Next;
use crate::quiet::{is_quiet, quietly};
use crate::session::{is_on, recording, thread_begins};
use libc::{c_int, c_void, pthread_attr_t, pthread_t};

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;

static CREATE: Next<Create> = Next::new(c"pthread_create");

hook!(pthread_create => create, "r8", "x4");

/// What a new thread is to do.
struct Work {
    start: Start,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
    _from: usize,
) -> c_int {
    if is_quiet() {
        // SAFETY: the caller's arguments, passed on. A thread of our own.
        return unsafe { CREATE.get()(thread, attributes, start, argument) };
    }
    if is_on() {
        recording(|| ()); // with threads there is something to record
    }
    let work = quietly(|| Box::into_raw(Box::new(Work { start, argument })));
    // SAFETY: as above; `begin` takes the box, once.
    let result = unsafe { CREATE.get()(thread, attributes, begin, work.cast()) };
    if result != 0 {
        // SAFETY: no thread took it.
        quietly(|| drop(unsafe { Box::from_raw(work) }));
    }
    result
}

/// The new thread. Ends by return or by unwinding; nothing here needs to be destroyed (HOOK-4).
unsafe extern "C-unwind" fn begin(work: *mut c_void) -> *mut c_void {
    // SAFETY: made in `create` for this thread alone.
    let Work { start, argument } = quietly(|| *unsafe { Box::from_raw(work.cast::<Work>()) });
    thread_begins(start as usize);
    // SAFETY: what the program asked for.
    unsafe { start(argument) }
}
