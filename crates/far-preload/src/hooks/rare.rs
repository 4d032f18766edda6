//! Rarely used functions that pass memory of the program to the kernel by calls inside the C library (F1).
//! The C library ignores some failures of these calls, or has done a part of its work, so the functions
//! cannot be repeated. The memory leaves far memory before the call.

use super::given::{Given, SOME, reads, writes};
use crate::next::Next;
use crate::session::{is_unserved, unmanage};
use libc::{c_char, pthread_mutex_t, size_t};
use std::ffi::{c_int, c_void};

type Any = *mut c_void;
type Path = *const c_char;

/// Size of `struct utmp`, `struct __res_state` and `ucontext_t`, at least.
const LOGIN: usize = 400;
const RESOLVER: usize = 568;
const CONTEXT: usize = if cfg!(target_arch = "aarch64") { 4560 } else { 968 };
/// Size of `sigjmp_buf`, at least.
const JUMP: usize = if cfg!(target_arch = "aarch64") { 312 } else { 200 };

fn buffer(at: Any, bytes: c_int) -> Given {
    writes(at, usize::try_from(bytes).unwrap_or(0))
}

macro_rules! rare {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = [$($given:expr),+];)+) => {
        next_functions! { $($name: unsafe extern "C" fn($($kind),*) -> $result;)+ }

        /// Finds all functions.
        pub(super) fn resolve() {
            $(next::$name.resolve();)+
            GETCONTEXT.resolve();
            SIGSETJMP.resolve();
        }

        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    $($given.leave();)+
                    next::$name.get()($($argument),*)
                }
            }
        )+
    };
}

rare! {
    openpty(of: Any, to: Any, name: Any, terminal: Any, size: Any) -> c_int = [reads(size, 8)];
    forkpty(of: Any, name: Any, terminal: Any, size: Any) -> c_int = [reads(size, 8)];
    ttyname_r(fd: c_int, to: Any, bytes: size_t) -> c_int = [writes(to, bytes.min(SOME))];
    pututline(entry: Any) -> Any = [reads(entry, LOGIN)];
    pututxline(entry: Any) -> Any = [reads(entry, LOGIN)];
    updwtmp(file: Path, entry: Any) -> () = [Given::Text(file as usize), reads(entry, LOGIN)];
    updwtmpx(file: Path, entry: Any) -> () = [Given::Text(file as usize), reads(entry, LOGIN)];
    klogctl(what: c_int, to: Any, bytes: c_int) -> c_int = [buffer(to, bytes)];
    pthread_mutex_setprioceiling(mutex: *mut pthread_mutex_t, new: c_int, old: *mut c_int) -> c_int =
        [writes(mutex, size_of::<pthread_mutex_t>())];
    // The resolver treats a failed system call as a server that does not answer.
    res_send(query: Any, length: c_int, to: Any, bytes: c_int) -> c_int =
        [buffer(query, length), buffer(to, bytes)];
    res_nsend(state: Any, query: Any, length: c_int, to: Any, bytes: c_int) -> c_int =
        [writes(state, RESOLVER), buffer(query, length), buffer(to, bytes)];
    res_query(name: Path, class: c_int, kind: c_int, to: Any, bytes: c_int) -> c_int = [buffer(to, bytes)];
    res_search(name: Path, class: c_int, kind: c_int, to: Any, bytes: c_int) -> c_int = [buffer(to, bytes)];
    res_nquery(state: Any, name: Path, class: c_int, kind: c_int, to: Any, bytes: c_int) -> c_int =
        [writes(state, RESOLVER), buffer(to, bytes)];
    res_nsearch(state: Any, name: Path, class: c_int, kind: c_int, to: Any, bytes: c_int) -> c_int =
        [writes(state, RESOLVER), buffer(to, bytes)];
    res_querydomain(name: Path, domain: Path, class: c_int, kind: c_int, to: Any, bytes: c_int) -> c_int =
        [buffer(to, bytes)];
    res_nquerydomain(
        state: Any, name: Path, domain: Path, class: c_int, kind: c_int, to: Any, bytes: c_int
    ) -> c_int = [writes(state, RESOLVER), buffer(to, bytes)];
}

static GETCONTEXT: Next<*const c_void> = Next::new(c"getcontext");
static SIGSETJMP: Next<*const c_void> = Next::new(c"__sigsetjmp");

/// Makes a value leave far memory before the C library stores the context of its caller there. Returns the
/// address of the C library's function.
extern "C" fn before_context(context: usize, _unused: usize) -> *const c_void {
    leave(context, CONTEXT);
    GETCONTEXT.get()
}

/// Does the same for a jump buffer, if the kernel stores the signal mask there.
extern "C" fn before_jump(buffer: usize, saves_mask: usize) -> *const c_void {
    if saves_mask as c_int != 0 {
        leave(buffer, JUMP);
    }
    SIGSETJMP.get()
}

fn leave(at: usize, bytes: usize) {
    if is_unserved(at, bytes) {
        unmanage(at, bytes);
    }
}

/// Defines functions that store the registers and the stack of their caller. The hook must not be between
/// them and the caller, so it jumps to the C library's function.
macro_rules! stores_caller {
    ($($name:ident, $before:path;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function, which has at most two arguments.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() -> c_int {
                std::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "sub rsp, 8",
                    "call {before}",
                    "add rsp, 8",
                    "pop rsi",
                    "pop rdi",
                    "jmp rax",
                    before = sym $before
                )
            }

            /// # Safety
            ///
            /// The contract of the C library's function, which has at most two arguments.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() -> c_int {
                std::arch::naked_asm!(
                    "stp x0, x1, [sp, #-32]!",
                    "str x30, [sp, #16]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldr x30, [sp, #16]",
                    "ldp x0, x1, [sp], #32",
                    "br x16",
                    before = sym $before
                )
            }
        )+
    };
}

stores_caller! {
    getcontext, before_context;
    __sigsetjmp, before_jump;
}
