//! Stacks in far memory. A thread that held a lock of ours, or of the C library's allocator, while its own
//! stack is paged out would wait for a page that may need that lock; and no signal handler can run on a stack
//! that is away. So stacks leave far memory (FAR-4).
//!
//! | a stack is given by | leaves far memory |
//! |---|---|
//! | `pthread_attr_setstack`, `pthread_attr_setstackaddr` | whole, when the thread is created |
//! | `swapcontext`, `setcontext` to a context of `makecontext` | whole, at the first switch |
//! | `sigaltstack` | whole |
//! | `clone` | the 1 MiB below its top |
//! | the program's own instructions | around the stack pointer, when the layer is first called on it |
//!
//! In the last case the calling thread can take no lock yet: another thread, the *helper*, does it, and the
//! caller waits for an atomic.

use super::birth::{Birth, Entry, copies};
use crate::next::Next;
use crate::session::{is_managed, unmanage, with_child};
use azekura_far::sys;
use libc::{stack_t, ucontext_t};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes below the stack pointer that the layer and the C library use at the most, with what is above of the
/// caller's frame.
const BELOW: usize = 64 << 10;
const ABOVE: usize = 4 << 10;
/// Of a stack of unknown length.
const CLONED: usize = 1 << 20;

static SETCONTEXT: Next<unsafe extern "C" fn(*const ucontext_t) -> c_int> = Next::new(c"setcontext");
static SWAPCONTEXT: Next<unsafe extern "C" fn(*mut ucontext_t, *const ucontext_t) -> c_int> =
    Next::new(c"swapcontext");
type Clone = unsafe extern "C" fn(Entry, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
static CLONE: Next<Clone> = Next::new(c"clone");

/// The helper's work: an address; 0 when it is done, or there is none.
static WANTED: AtomicUsize = AtomicUsize::new(0);
/// In the place of an address: the helper ends.
const END: usize = usize::MAX;
/// Counts requests and answers; the helper and its callers sleep on it.
static TURN: AtomicU32 = AtomicU32::new(0);
static HELPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Starts the helper; in a child process, too, which has no other threads.
pub(crate) fn start_helper() -> std::io::Result<()> {
    WANTED.store(0, Relaxed); // the thread that starts it orders the rest
    let helper = thread::Builder::new().name("far-stack".into()).spawn(help)?;
    *HELPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(helper);
    Ok(())
}

fn help() {
    loop {
        // Acquire: pairs with Release in `settle_here`, which changed `WANTED` before.
        let turn = TURN.load(Acquire);
        let wanted = WANTED.load(Acquire);
        if wanted == END {
            return;
        }
        if wanted == 0 {
            futex(libc::FUTEX_WAIT, turn);
            continue;
        }
        unmanage(wanted.saturating_sub(BELOW), BELOW + ABOVE);
        // Release: pairs with Acquire in `settle_here`: the stack is ordinary memory.
        WANTED.store(0, Release);
        turned();
    }
}

/// Ends the helper, once nothing is far any more.
pub(crate) fn end_helper() {
    // Acquire and release: as a request; a failed exchange is tried again.
    while WANTED.compare_exchange(0, END, AcqRel, Relaxed).is_err() {
        thread::yield_now();
    }
    turned();
    let helper = HELPER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(helper) = helper {
        let _ = helper.join();
    }
}

fn turned() {
    TURN.fetch_add(1, Release); // pairs with the loads before each wait
    futex(libc::FUTEX_WAKE, i32::MAX as u32);
}

fn futex(operation: c_int, value: u32) {
    let at = TURN.as_ptr() as usize;
    let arguments = [at, (operation | libc::FUTEX_PRIVATE_FLAG) as usize, value as usize, 0, 0, 0];
    // SAFETY: a word of ours. The caller checks the word again whatever the call returns.
    unsafe { sys::call(libc::SYS_futex, arguments) };
}

/// Has the stack that this thread runs on leave far memory, if it lies there.
#[inline]
pub(crate) fn settle_here(region: &std::ops::Range<usize>) {
    let here = 0_u8;
    let at = ptr::from_ref(std::hint::black_box(&here)) as usize;
    if region.contains(&at) {
        settle_at(at);
    }
}

#[cold]
fn settle_at(at: usize) {
    while is_managed(at.saturating_sub(BELOW)..at + ABOVE) {
        // Acquire, here and below: pairs with Release in `turned`, so that a wait starts from a word that was
        // read before what is waited for was looked at.
        let turn = TURN.load(Acquire);
        // One request at a time; others wait for their turn. Acquire and release: pairs with `help`.
        if WANTED.compare_exchange(0, at, AcqRel, Relaxed).is_ok() {
            turned();
        } else {
            futex(libc::FUTEX_WAIT, turn);
        }
        loop {
            let turn = TURN.load(Acquire); // as above
            // Acquire: pairs with Release in `help`.
            if WANTED.load(Acquire) != at {
                break;
            }
            futex(libc::FUTEX_WAIT, turn);
        }
    }
}

/// The stack of a thread that is to be created.
///
/// # Safety
///
/// Attributes of the program's, or null.
pub(super) unsafe fn of_thread(attributes: *const libc::pthread_attr_t) {
    let (mut at, mut bytes) = (ptr::null_mut(), 0);
    if attributes.is_null() {
        return;
    }
    // SAFETY: the caller's attributes.
    let known = unsafe { libc::pthread_attr_getstack(attributes, &raw mut at, &raw mut bytes) } == 0;
    if known && !at.is_null() {
        unmanage(at as usize, bytes);
    }
}

/// # Safety
///
/// The program's context, made by the C library.
unsafe fn of_context(context: *const ucontext_t) {
    // SAFETY: the caller's.
    if let Some(context) = unsafe { context.as_ref() } {
        unmanage(context.uc_stack.ss_sp as usize, context.uc_stack.ss_size);
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setcontext(context: *const ucontext_t) -> c_int {
    // SAFETY: passed on.
    unsafe {
        of_context(context);
        SETCONTEXT.get()(context)
    }
}

/// # Safety
///
/// As the C library's. The context that is left goes on in this frame, which is on its stack.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn swapcontext(old: *mut ucontext_t, new: *const ucontext_t) -> c_int {
    // SAFETY: passed on.
    unsafe {
        of_context(new);
        SWAPCONTEXT.get()(old, new)
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int {
    // SAFETY: passed on; the program's arguments may be far, so the kernel gets copies.
    unsafe {
        let given = new.as_ref().copied();
        if let Some(stack) = given.filter(|stack| stack.ss_flags & libc::SS_DISABLE == 0) {
            unmanage(stack.ss_sp as usize, stack.ss_size);
        }
        let mut before: stack_t = std::mem::zeroed();
        let given = given.as_ref().map_or(0, |stack| ptr::from_ref(stack) as usize);
        let arguments = [given, (&raw mut before) as usize, 0, 0, 0, 0];
        let done = sys::call(libc::SYS_sigaltstack, arguments) as c_int;
        if done == 0 && !old.is_null() {
            old.write(before);
        }
        done
    }
}

/// # Safety
///
/// As the C library's, which takes up to three arguments after the fourth.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn clone(
    entry: Entry,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    local: usize,
    child: usize,
) -> c_int {
    if !stack.is_null() {
        // Includes the part above the stack pointer: a child has no helper yet.
        unmanage((stack as usize).saturating_sub(CLONED), CLONED + ABOVE);
    }
    // SAFETY: passed on.
    let call = |entry, argument| unsafe { CLONE.get()(entry, stack, flags, argument, parent, local, child) };
    if !copies(flags as usize) {
        return call(entry, argument);
    }
    let mut birth = Birth { entry, argument, flags: flags as usize };
    with_child(flags as usize, || call(Birth::begin, (&raw mut birth).cast()).into()) as c_int
}

/// Finds the C library's functions.
pub(super) fn settle() {
    SETCONTEXT.settle();
    SWAPCONTEXT.settle();
    CLONE.settle();
}
