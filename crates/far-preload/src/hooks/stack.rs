//! Stacks in far memory. Suppose that a thread holds a lock of this library, or of the C library's allocator,
//! and that its own stack is paged out. It would wait for a page, and paging it in may need that lock. Also,
//! no signal handler can run on a stack that is paged out. So stacks leave far memory (FAR-4).
//!
//! | stack, given by | part that leaves far memory |
//! |---|---|
//! | `pthread_attr_setstack`, `pthread_attr_setstackaddr` | all, when the thread is created |
//! | `swapcontext`, `setcontext` to a context of `makecontext` | all, at the first switch |
//! | `sigaltstack` | all |
//! | `clone` | the 1 MiB below its top |
//! | the program's own instructions | around the stack pointer, at the first call of the layer on the stack |
//!
//! In the last case the calling thread cannot acquire a lock yet. Another thread, the *helper*, unmanages the
//! stack, and the caller waits on an atomic.

use super::birth::{Birth, Entry, before_number, copies};
use crate::next::Next;
use crate::session::{is_managed, is_unserved, unmanage, with_child};
use azekura_far::sys;
use libc::{stack_t, ucontext_t};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Largest number of bytes below the stack pointer that the layer and the C library use. `ABOVE`: bytes above
/// the stack pointer that belong to the caller's frame.
const BELOW: usize = 64 << 10;
const ABOVE: usize = 4 << 10;
/// Number of bytes that leave far memory for a stack of unknown length.
const CLONED: usize = 1 << 20;

static SETCONTEXT: Next<unsafe extern "C" fn(*const ucontext_t) -> c_int> = Next::new(c"setcontext");
static SWAPCONTEXT: Next<unsafe extern "C" fn(*mut ucontext_t, *const ucontext_t) -> c_int> =
    Next::new(c"swapcontext");
type Clone = unsafe extern "C" fn(Entry, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
static CLONE: Next<Clone> = Next::new(c"clone");

/// Request to the helper: an address on a stack; 0 if there is no request.
static WANTED: AtomicUsize = AtomicUsize::new(0);
/// Value of `WANTED` that ends the helper.
const END: usize = usize::MAX;
/// Counts requests and completions. The helper and its callers wait on it.
static TURN: AtomicU32 = AtomicU32::new(0);
static HELPER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Starts the helper thread. Also called in a child process, which has no other threads.
pub(crate) fn start_helper() -> std::io::Result<()> {
    WANTED.store(0, Relaxed); // Relaxed: starting the thread provides the ordering
    let helper = thread::Builder::new().name("far-stack".into()).spawn(help)?;
    let before = HELPER.lock().unwrap_or_else(PoisonError::into_inner).replace(helper);
    // In a child process this is the handle of a thread of the parent. Another thread of the child may have
    // the memory of that thread, and dropping the handle would detach this other thread.
    std::mem::forget(before);
    Ok(())
}

fn help() {
    loop {
        // Acquire: pairs with Release in `turned`; `unmanage_at` changed `WANTED` before.
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
        // Release: pairs with Acquire in `unmanage_at`, after which the stack is ordinary memory.
        WANTED.store(0, Release);
        turned();
    }
}

/// Ends the helper thread after all far memory has become ordinary memory.
pub(crate) fn end_helper() {
    // AcqRel: as for a request; Relaxed on failure, because the exchange is retried.
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
    TURN.fetch_add(1, Release); // Release: pairs with the Acquire loads before each wait
    futex(libc::FUTEX_WAKE, i32::MAX as u32);
}

fn futex(operation: c_int, value: u32) {
    let at = TURN.as_ptr() as usize;
    let arguments = [at, (operation | libc::FUTEX_PRIVATE_FLAG) as usize, value as usize, 0, 0, 0];
    // SAFETY: the word is a static. The caller checks it again, whatever the call returns.
    unsafe { sys::call(libc::SYS_futex, arguments) };
}

/// Unmanages the stack of this thread if it is in far memory.
#[inline]
pub(crate) fn unmanage_here(region: &std::ops::Range<usize>) {
    let here = 0_u8;
    let at = ptr::from_ref(std::hint::black_box(&here)) as usize;
    if region.contains(&at) {
        unmanage_at(at);
    }
}

#[cold]
fn unmanage_at(at: usize) {
    while is_managed(at.saturating_sub(BELOW)..at + ABOVE) {
        // Acquire, here and below: pairs with Release in `turned`. The value for the wait is read before the
        // condition is checked, so no wake-up is lost.
        let turn = TURN.load(Acquire);
        // There is one request at a time, and other threads wait. AcqRel: pairs with Acquire and Release in
        // `help`.
        if WANTED.compare_exchange(0, at, AcqRel, Relaxed).is_ok() {
            turned();
        } else {
            futex(libc::FUTEX_WAIT, turn);
        }
        loop {
            let turn = TURN.load(Acquire); // Acquire: as above
            // Acquire: pairs with Release in `help`.
            if WANTED.load(Acquire) != at {
                break;
            }
            futex(libc::FUTEX_WAIT, turn);
        }
    }
}

/// Unmanages the stack of a thread that is about to be created.
///
/// # Safety
///
/// The attributes are those of the program, or null.
pub(super) unsafe fn of_thread(attributes: *const libc::pthread_attr_t) {
    let (mut at, mut bytes) = (ptr::null_mut(), 0);
    if attributes.is_null() {
        return;
    }
    // SAFETY: the attributes are those of the caller.
    let known = unsafe { libc::pthread_attr_getstack(attributes, &raw mut at, &raw mut bytes) } == 0;
    if known && !at.is_null() {
        unmanage(at as usize, bytes);
    }
}

/// Makes a context leave far memory if the kernel does not wait for it: the C library passes its signal mask
/// to the kernel after it has changed a part of the thread's state.
fn unmanage_context(context: *const ucontext_t) {
    if is_unserved(context as usize, size_of::<ucontext_t>()) {
        unmanage(context as usize, size_of::<ucontext_t>());
    }
}

/// # Safety
///
/// The context is one of the program, made by the C library.
unsafe fn of_context(context: *const ucontext_t) {
    // SAFETY: the caller keeps this function's contract. The context is not constant: `getcontext` stored it.
    if let Some(context) = unsafe { context.cast_mut().as_mut() } {
        unmanage_context(context);
        super::signal::hold(&mut context.uc_sigmask);
        unmanage(context.uc_stack.ss_sp as usize, context.uc_stack.ss_size);
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setcontext(context: *const ucontext_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        of_context(context);
        SETCONTEXT.get()(context)
    }
}

/// # Safety
///
/// The contract of the C library's function. The old context continues in this frame, which is on its stack.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn swapcontext(old: *mut ucontext_t, new: *const ucontext_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        unmanage_context(old);
        of_context(new);
        SWAPCONTEXT.get()(old, new)
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaltstack(new: *const stack_t, old: *mut stack_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function. The arguments may be far memory, so the kernel
    // gets copies.
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
/// The contract of the C library's function, which takes up to three arguments after the fourth.
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
        // Includes the part above the stack pointer, because the child has no helper yet.
        unmanage((stack as usize).saturating_sub(CLONED), CLONED + ABOVE);
    }
    const STORES: c_int =
        libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::CLONE_PIDFD;
    if flags & STORES != 0 {
        // A register of an argument that the program does not pass has any value.
        before_number(parent);
        before_number(child);
    }
    // SAFETY: the caller keeps the contract of the C function.
    let call = |entry, argument| unsafe { CLONE.get()(entry, stack, flags, argument, parent, local, child) };
    if !copies(flags as usize) {
        return call(entry, argument);
    }
    let mut birth = Birth { entry, argument, flags: flags as usize };
    with_child(flags as usize, || call(Birth::begin, (&raw mut birth).cast()).into()) as c_int
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    SETCONTEXT.resolve();
    SWAPCONTEXT.resolve();
    CLONE.resolve();
}
