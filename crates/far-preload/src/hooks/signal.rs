//! SIGSEGV under the mechanism that uses it. The program's action for SIGSEGV is stored separately from the
//! kernel's action, and its handler is called for faults outside of far memory. SIGSEGV is never blocked: an
//! access to far memory while it is blocked would end the program. If a call waits with a mask of its own
//! (`sigsuspend`, `ppoll`), handlers run with this mask, too.

use crate::next::Next;
use azekura_far::{signals, sys};
use libc::{c_long, pthread_attr_t, sigaction as Action, sigset_t};
use std::ffi::c_int;
use std::{mem, ptr};

type Set = unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int;
type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;
type Of = unsafe extern "C" fn(c_int) -> c_int;
type Signal = unsafe extern "C" fn(c_int, usize) -> usize;

static SIGACTION: Next<Set> = Next::new(c"sigaction");
static SIGPROCMASK: Next<Mask> = Next::new(c"sigprocmask");
static PTHREAD_SIGMASK: Next<Mask> = Next::new(c"pthread_sigmask");
static SIGNAL: Next<Signal> = Next::new(c"signal");
static SYSV_SIGNAL: Next<Signal> = Next::new(c"sysv_signal");
static SIGSET: Next<Signal> = Next::new(c"sigset");
static SIGHOLD: Next<Of> = Next::new(c"sighold");
static SIGIGNORE: Next<Of> = Next::new(c"sigignore");
static SIGBLOCK: Next<Of> = Next::new(c"sigblock");
static SIGSETMASK: Next<Of> = Next::new(c"sigsetmask");
static SIGPAUSE: Next<unsafe extern "C" fn(c_int, c_int) -> c_int> = Next::new(c"__sigpause");
static ATTRIBUTE_MASK: Next<unsafe extern "C" fn(*mut pthread_attr_t, *const sigset_t) -> c_int> =
    Next::new(c"pthread_attr_setsigmask_np");
static SIGSUSPEND: Next<unsafe extern "C" fn(*const sigset_t) -> c_int> = Next::new(c"sigsuspend");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller keeps the contract of the C function. The arguments may be far memory, and are
    // accessed here.
    unsafe {
        let new = new.as_ref().copied();
        if signal != libc::SIGSEGV || !signals::are_held() {
            let open = new.map(|mut action| {
                hold(&mut action.sa_mask);
                action
            });
            let mut before: Action = mem::zeroed();
            let done = SIGACTION.get()(signal, as_pointer(&open), &raw mut before);
            if done == 0 && !old.is_null() {
                old.write(before);
            }
            return done;
        }
        let before = signals::program_action();
        if let Some(action) = new {
            signals::set_program_action(action);
        }
        if let (Some(before), false) = (before, old.is_null()) {
            old.write(before);
        }
        0
    }
}

fn as_pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(ptr::null(), ptr::from_ref)
}

/// Implements `signal` with BSD or System V semantics, depending on `flags`.
fn set_handler(handler: usize, flags: c_int) -> usize {
    // SAFETY: all zeros is a valid `sigaction` with an empty mask.
    let mut action: Action = unsafe { mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    let before = signals::program_action();
    signals::set_program_action(action);
    before.map_or(libc::SIG_DFL, |action| action.sa_sigaction)
}

macro_rules! signal {
    ($($name:ident, $next:ident, $flags:expr;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(signal: c_int, handler: usize) -> usize {
                if signal == libc::SIGSEGV && signals::are_held() {
                    return set_handler(handler, $flags);
                }
                // SAFETY: the caller keeps the contract of the C function.
                unsafe { $next.get()(signal, handler) }
            }
        )+
    };
}

signal! {
    signal, SIGNAL, libc::SA_RESTART;
    bsd_signal, SIGNAL, libc::SA_RESTART;
    sysv_signal, SYSV_SIGNAL, libc::SA_RESETHAND | libc::SA_NODEFER;
    __sysv_signal, SYSV_SIGNAL, libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// Blocks a signal, or sets its handler.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigset(signal: c_int, handler: usize) -> usize {
    const SIG_HOLD: usize = 2;
    if signal != libc::SIGSEGV || !signals::are_held() {
        // SAFETY: the caller keeps the contract of the C function.
        return unsafe { SIGSET.get()(signal, handler) };
    }
    match handler {
        SIG_HOLD => signals::program_action().map_or(libc::SIG_DFL, |action| action.sa_sigaction),
        _ => set_handler(handler, 0),
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if signal == libc::SIGSEGV && signals::are_held() {
        set_handler(libc::SIG_IGN, 0);
        return 0;
    }
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { SIGIGNORE.get()(signal) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sighold(signal: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    if signal == libc::SIGSEGV && signals::are_held() { 0 } else { unsafe { SIGHOLD.get()(signal) } }
}

/// # Safety
///
/// The contract of the C library's function. The mask has the first signals only.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigblock(mask: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { SIGBLOCK.get()(without_held(mask as u64) as c_int) }
}

/// # Safety
///
/// The contract of the C library's function. The mask has the first signals only.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigsetmask(mask: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { SIGSETMASK.get()(without_held(mask as u64) as c_int) }
}

macro_rules! mask {
    ($($name:ident, $next:ident;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                how: c_int,
                new: *const sigset_t,
                old: *mut sigset_t,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function. The arguments may be far memory,
                // and are accessed here.
                unsafe {
                    let open = new.as_ref().copied().map(|mut set| {
                        if how != libc::SIG_UNBLOCK && signals::are_held() {
                            libc::sigdelset(&raw mut set, libc::SIGSEGV);
                        }
                        set
                    });
                    let mut before: sigset_t = mem::zeroed();
                    let done = $next.get()(how, as_pointer(&open), &raw mut before);
                    if done == 0 && !old.is_null() {
                        old.write(before);
                    }
                    done
                }
            }
        )+
    };
}

mask! {
    sigprocmask, SIGPROCMASK;
    pthread_sigmask, PTHREAD_SIGMASK;
}

/// Returns a mask, as the word that the kernel reads, without SIGSEGV under the mechanism that uses it.
fn without_held(mask: u64) -> u64 {
    if signals::are_held() { mask & !(1 << (libc::SIGSEGV - 1)) } else { mask }
}

/// Executes `rt_sigprocmask` by its number, as `sigprocmask` does. The kernel changes the mask before it
/// writes the previous one, so the call must not be repeated. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, [how, new, old, bytes, ..]: [usize; 6]) -> Option<c_long> {
    if number != libc::SYS_rt_sigprocmask || bytes != size_of::<u64>() {
        return None;
    }
    // SAFETY: the caller keeps the contract. The arguments may be far memory, and are accessed here.
    unsafe {
        let given = ptr::with_exposed_provenance::<u64>(new).as_ref().copied();
        let unblocks = how as c_int == libc::SIG_UNBLOCK;
        let given = given.map(|mask| if unblocks { mask } else { without_held(mask) });
        let given = given.as_ref().map_or(0, |mask| ptr::from_ref(mask) as usize);
        let mut before = 0_u64;
        let done = sys::call(number, [how, given, (&raw mut before) as usize, bytes, 0, 0]);
        if done == 0 && old != 0 {
            ptr::with_exposed_provenance_mut::<u64>(old).write(before);
        }
        Some(done as c_long)
    }
}

/// The mask of a call that waits, in ordinary memory: the word that the kernel reads, without SIGSEGV under
/// the mechanism that uses it.
pub(super) struct WaitMask {
    is_null: bool,
    word: u64,
}

impl WaitMask {
    /// # Safety
    ///
    /// The pointer is null, or that of a mask.
    pub(super) unsafe fn new(of: *const sigset_t) -> Self {
        // SAFETY: the caller keeps this function's contract.
        let word = unsafe { of.cast::<u64>().as_ref() }.copied().unwrap_or(0);
        Self { is_null: of.is_null(), word: without_held(word) }
    }

    /// Returns the address of the mask, as long as this value is not moved.
    pub(super) fn pointer(&self) -> *const sigset_t {
        if self.is_null { ptr::null() } else { ptr::from_ref(&self.word).cast() }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigsuspend(mask: *const sigset_t) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mask = WaitMask::new(mask);
        SIGSUSPEND.get()(mask.pointer())
    }
}

/// # Safety
///
/// The contract of the C library's function. The mask has the first signals only.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigpause(mask: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { __sigpause(mask, 0) }
}

/// # Safety
///
/// The contract of the C library's function, which gets a signal, or a mask of the first signals.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __sigpause(given: c_int, is_signal: c_int) -> c_int {
    let open = if is_signal == 0 { without_held(given as u64) as c_int } else { given };
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { SIGPAUSE.get()(open, is_signal) }
}

/// Sets the mask with which a thread begins.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_attr_setsigmask_np(
    attributes: *mut pthread_attr_t,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let open = mask.as_ref().copied().map(|mut set| {
            hold(&mut set);
            set
        });
        ATTRIBUTE_MASK.get()(attributes, as_pointer(&open))
    }
}

/// Removes SIGSEGV from a mask under the mechanism that uses it.
pub(super) fn hold(mask: &mut sigset_t) {
    if signals::are_held() {
        // SAFETY: the set is valid.
        unsafe { libc::sigdelset(mask, libc::SIGSEGV) };
    }
}

/// Finds the C library's functions, and passes them to the mechanism.
pub(super) fn resolve() {
    SIGACTION.resolve();
    SIGPROCMASK.resolve();
    PTHREAD_SIGMASK.resolve();
    SIGNAL.resolve();
    SYSV_SIGNAL.resolve();
    SIGPAUSE.resolve();
    ATTRIBUTE_MASK.resolve();
    SIGSUSPEND.resolve();
    SIGSET.resolve();
    SIGHOLD.resolve();
    SIGIGNORE.resolve();
    SIGBLOCK.resolve();
    SIGSETMASK.resolve();
    signals::set_function(SIGACTION.get());
}
