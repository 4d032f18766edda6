//! Threads. Each is one operation, named by the function that it starts with.

use super::hook;
use crate::local::is_quiet;
use crate::next::next;
use crate::session::{if_recording, is_on, recording, thread_begins};
use libc::{c_char, c_int, c_void, pthread_attr_t, pthread_t};
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;

next!(CREATE: Create = new(c"pthread_create"));

type IsoStart = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
type IsoCreate = unsafe extern "C" fn(*mut pthread_t, IsoStart, *mut c_void) -> c_int;
next!(ISO_CREATE: IsoCreate = new(c"thrd_create"));

next!(SET_NAME: unsafe extern "C" fn(pthread_t, *const c_char) -> c_int = new(c"pthread_setname_np"));

hook!(pthread_create => create, "r8", "x4");
hook!(thrd_create => iso_create, "rcx", "x3");
hook!(pthread_setname_np => set_name, "rdx", "x2");

/// Number of threads that can be between `create` and `begin` at a time. A further thread starts without
/// `begin`, as an operation without a name.
const PLACES: usize = 1024;

/// The start function of a new thread. The table of these entries needs no allocation (HOOK-2).
struct Place {
    /// Null if the entry is free; the entry's own address while it is claimed; otherwise the thread's
    /// function.
    start: AtomicPtr<c_void>,
    argument: AtomicPtr<c_void>,
}

static TABLE: [Place; PLACES] =
    [const { Place { start: AtomicPtr::new(ptr::null_mut()), argument: AtomicPtr::new(ptr::null_mut()) } };
        PLACES];

impl Place {
    /// Claims a free entry and stores the function and its argument in it.
    fn take(start: *mut c_void, argument: *mut c_void) -> Option<&'static Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: a hint where the search begins.
        let first = NEXT.fetch_add(1, Relaxed);
        let place = (0..PLACES).map(|i| &TABLE[first.wrapping_add(i) % PLACES]).find(|place| {
            let claimed = ptr::from_ref(*place).cast_mut().cast();
            // AcqRel: pairs with the Release in `leave`.
            place.start.compare_exchange(ptr::null_mut(), claimed, AcqRel, Relaxed).is_ok()
        })?;
        place.argument.store(argument, Relaxed);
        // Release: pairs with the Acquire in `leave`.
        place.start.store(start, Release);
        Some(place)
    }

    /// Frees the entry and returns its content.
    fn leave(&self) -> (*mut c_void, *mut c_void) {
        // Acquire: pairs with the Release in `take`.
        let start = self.start.load(Acquire);
        let argument = self.argument.load(Relaxed);
        // Release: pairs with the CAS in `take`.
        self.start.store(ptr::null_mut(), Release);
        (start, argument)
    }
}

unsafe extern "C-unwind" fn create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
    _from: usize,
) -> c_int {
    if is_quiet() || !is_on() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { CREATE.get()(thread, attributes, start, argument) };
    }
    recording(|_| ()); // a program with several threads is recorded
    let Some(place) = Place::take(start as *mut c_void, argument) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { CREATE.get()(thread, attributes, start, argument) };
    };
    // SAFETY: the caller's attributes, passed on; `begin` frees the entry exactly once.
    let result = unsafe { CREATE.get()(thread, attributes, begin, ptr::from_ref(place).cast_mut().cast()) };
    if result != 0 {
        place.leave(); // the thread was not created
    }
    result
}

/// Runs the new thread's function. The thread may end by unwinding: this frame has no destructor (HOOK-4).
unsafe extern "C-unwind" fn begin(place: *mut c_void) -> *mut c_void {
    // SAFETY: an entry of the table, passed by `create` to this thread only.
    let (start, argument) = unsafe { &*place.cast::<Place>() }.leave();
    thread_begins(start.addr());
    // SAFETY: `create` has stored a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, Start>(start)(argument) }
}

/// Records a thread's new name at once: the process may end before the thread does.
unsafe extern "C-unwind" fn set_name(thread: pthread_t, name: *const c_char, _from: usize) -> c_int {
    // SAFETY: the caller's arguments, passed on; `pthread_self` has no precondition.
    let (result, is_own) = unsafe { (SET_NAME.get()(thread, name), thread == libc::pthread_self()) };
    if is_own {
        if_recording(crate::recorder::Thread::renamed);
    }
    result
}

unsafe extern "C-unwind" fn iso_create(
    thread: *mut pthread_t,
    start: IsoStart,
    argument: *mut c_void,
    _from: usize,
) -> c_int {
    if is_quiet() || !is_on() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { ISO_CREATE.get()(thread, start, argument) };
    }
    recording(|_| ());
    let Some(place) = Place::take(start as *mut c_void, argument) else {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { ISO_CREATE.get()(thread, start, argument) };
    };
    // SAFETY: the caller's thread handle, passed on; `iso_begin` frees the entry exactly once.
    let result = unsafe { ISO_CREATE.get()(thread, iso_begin, ptr::from_ref(place).cast_mut().cast()) };
    if result != 0 {
        place.leave(); // the thread was not created
    }
    result
}

/// Runs the new thread's function, as [`begin`] does.
unsafe extern "C-unwind" fn iso_begin(place: *mut c_void) -> c_int {
    // SAFETY: an entry of the table, passed by `iso_create` to this thread only.
    let (start, argument) = unsafe { &*place.cast::<Place>() }.leave();
    thread_begins(start.addr());
    // SAFETY: `iso_create` has stored a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, IsoStart>(start)(argument) }
}
