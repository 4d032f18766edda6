//! Child processes made by `fork`. (Those of `vfork` and `posix_spawn` use their parent's memory until they
//! execute a program, and need nothing.)
//!
//! | the parent | the child |
//! |---|---|
//! | has allocated far memory | has a copy of it, with its own pager and sessions |
//! | has not allocated far memory | has none, and sets it up when it allocates its first large block |
//! | has, and no copy can be made | ends with a message and code 71 when it touches far memory |
//!
//! The handlers of `fork` run in the thread that forks. Locks that the first handler acquires are released in
//! the second or third handler. Between them no handler of another library runs (`hooks::birth`).

use super::{CODE, ENDED, HEAP, LAUNCH, THRESHOLD, UNSERVED_RANGES, install, open, say, was_in_place};
use crate::heap::{FrozenHeap, Heap};
use crate::hooks::with_ordinary_memory;
use azekura_far::signals_blocked::SignalsBlocked;
use std::cell::UnsafeCell;
use std::error::Error;
use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, Release},
};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// One thread forks at a time.
static ORDER: Mutex<()> = Mutex::new(());

/// State that is locked between the handlers: the heap, if there is one, and the order of forks. Signals are
/// blocked meanwhile, because a handler of the program may fork.
struct Forking(UnsafeCell<Option<(Option<FrozenHeap<'static>>, MutexGuard<'static, ()>, SignalsBlocked)>>);

// SAFETY: only the thread that holds the lock, which is a field of this value, accesses the value.
unsafe impl Sync for Forking {}

static FORKING: Forking = Forking(UnsafeCell::new(None));
/// Set in a child process that has not set up far memory yet.
static PENDING: AtomicBool = AtomicBool::new(false);
/// Reason why this child process has no copy of the far memory.
static REASON: OnceLock<String> = OnceLock::new();

/// Installs the handlers of `fork`, at the first call.
pub(crate) fn prepare() {
    static DONE: AtomicBool = AtomicBool::new(false);
    // Relaxed: there is one thread while libraries are loaded.
    if DONE.swap(true, Relaxed) {
        return;
    }
    // SAFETY: functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    }
}

/// Makes a child process by a call that does not run the handlers of `fork`. In the child the call returns 0,
/// or the child begins in another function, which calls [`child_begins`]. The flags are those of `clone`.
pub(crate) fn with_child(flags: usize, call: impl FnOnce() -> c_long) -> c_long {
    let gets_copy = !shares_descriptors(flags);
    crate::hooks::leaves_network(flags as c_int, "clone");
    if gets_copy {
        before();
    }
    let child = call();
    if child == 0 {
        child_begins(flags);
    } else if gets_copy {
        in_parent();
    }
    child
}

/// Prepares a child process that was made by [`with_child`].
pub(crate) fn child_begins(flags: usize) {
    azekura_far::signals::child_begins();
    if !shares_descriptors(flags) {
        return in_child();
    }
    // The child can neither close inherited descriptors nor hide its own descriptors from its parent.
    crate::hooks::forget_ours();
    if super::heap().is_some() {
        // Release: pairs with Acquire in `session::heap`, as in `install`.
        HEAP.store(ptr::null_mut(), Release);
        go_without("it shares its parent's descriptors (CLONE_FILES)");
    }
}

/// Returns `true` if a child process of `clone` shares the descriptor table of its parent.
fn shares_descriptors(flags: usize) -> bool {
    flags & libc::CLONE_FILES as usize != 0
}

/// Sets up and returns the heap of a child process that allocates its first large block.
#[cold]
pub(super) fn heap() -> Option<&'static Heap> {
    // Relaxed: one thread sets the heap up; other threads get ordinary memory meanwhile.
    if !PENDING.swap(false, Relaxed) {
        return None;
    }
    LAUNCH.get().map(|launch| &open(launch).heap)
}

extern "C" fn before() {
    let blocked = SignalsBlocked::new();
    // Relaxed: if it is set, all memory is ordinary, and a copy of it needs nothing from this library.
    let far = if ENDED.load(Relaxed) { None } else { super::heap() };
    let frozen = far.and_then(|heap| heap.freeze().map_err(|error| REASON.set(error.to_string())).ok());
    let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: this thread holds the lock now.
    unsafe { *FORKING.0.get() = Some((frozen, order, blocked)) };
}

/// Takes the state that `before` stored, and releases the order of forks. The caller unblocks signals when it
/// does not use the heap's state any more.
fn frozen() -> (Option<FrozenHeap<'static>>, Option<SignalsBlocked>) {
    // SAFETY: `before` stored it in this thread, which holds the lock, or in the parent of this child with
    // one thread.
    match unsafe { (*FORKING.0.get()).take() } {
        Some((frozen, _order, blocked)) => (frozen, Some(blocked)),
        None => (None, None),
    }
}

extern "C" fn in_parent() {
    let (frozen, _blocked) = frozen();
    if let Some(frozen) = frozen {
        frozen.in_parent();
    }
}

extern "C" fn in_child() {
    if LAUNCH.get().is_none() {
        frozen(); // releases the lock; far memory is not set up
        return;
    }
    // Before the handlers of other libraries, which may touch far memory that this child does not have.
    azekura_far::signals::child_begins();
    crate::hooks::forget_ours();
    azekura_far::drop_standard_error();
    if ENDED.load(Relaxed) {
        frozen(); // releases the lock
        return;
    }
    let (frozen, _blocked) = frozen();
    if super::heap().is_none() {
        return;
    }
    // Release: pairs with Acquire in `session::heap`, as in `install`.
    HEAP.store(ptr::null_mut(), Release);
    // The program's allocator may be locked until its own handler runs.
    with_ordinary_memory(|| continue_with(frozen));
}

/// Sets up the copy of the far memory in the child.
fn continue_with(frozen: Option<FrozenHeap<'static>>) {
    // SAFETY: in the child. The parent's session is not used here any more, and is never dropped.
    match (frozen.map(|frozen| unsafe { frozen.in_child() }), LAUNCH.get()) {
        (Some(Ok(Some(heap))), Some(launch)) => {
            install(heap, launch);
        }
        (Some(Ok(None)), _) => {
            UNSERVED_RANGES.store(0, Relaxed);
            PENDING.store(true, Relaxed);
        }
        (Some(Err(error)), _) => {
            go_without(&format!("{error}: {}", error.source().map_or_else(String::new, |e| e.to_string())))
        }
        (None | Some(Ok(Some(_))), _) => go_without("it could not be copied"),
    }
}

/// Leaves this child process without far memory. An access to the parent's far memory ends the child.
fn go_without(why: &str) {
    THRESHOLD.store(usize::MAX, Relaxed);
    UNSERVED_RANGES.store(0, Relaxed);
    let _ = REASON.set(why.to_owned());
    // SAFETY: all zeros is a valid `sigaction`. The handler has the type that `SA_SIGINFO` requires.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_touch as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, &raw const ours, &raw mut before);
        let _ = BEFORE.set(before);
    }
}

/// Action of the signal before the handler of this module was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

extern "C" fn on_touch(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer for a fault.
    let address = unsafe { (*info).si_addr() } as usize;
    if was_in_place(address) {
        let why = REASON.get().map_or("", |why| why.as_str());
        say(format_args!(
            "azekura far: a child process touched memory of its parent that it does not have (address \
             {address:#x}): {why}\n"
        ));
        // SAFETY: ends the process.
        unsafe { libc::_exit(CODE) }
    }
    // The address is not far memory: the instruction is executed again with the previous action.
    if let Some(before) = BEFORE.get() {
        // SAFETY: restores the action of the program.
        unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    }
}
