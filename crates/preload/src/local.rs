//! This library's state of the calling thread: 64 bytes at a fixed distance from the thread pointer.
//!
//! Rust's `thread_local!` in a library that is loaded goes through `__tls_get_addr`, which may call the
//! program's `malloc` after a `dlopen`; with a destructor it calls `__cxa_thread_atexit_impl`, which calls
//! `calloc`. The *initial-exec* model does neither: the loader reserves the block for every thread at the
//! program's start (HOOK-2). The compiler has no stable switch for the model, so the block and the
//! instruction that finds it are written here.

use crate::recorder::Thread;
use std::cell::Cell;
use std::ptr;

/// All zero in a new thread.
#[repr(C)]
pub(crate) struct Local {
    /// The recorder of this thread, or null.
    pub(crate) thread: Cell<*mut Thread>,
    /// The function that the thread began with; 0 for a process's first one.
    pub(crate) start: Cell<usize>,
    /// The recording that `thread` belongs to, or that found no slot for this thread.
    pub(crate) command: Cell<u32>,
    /// Holds up to and with the next one that the recorder looks at.
    pub(crate) holds_left: Cell<u32>,
    /// Not 0: the thread waited, so the recorder looks at the very next hold, and so many would have been
    /// left.
    pub(crate) holds_kept: Cell<u32>,
    /// Holds under way that will be recorded.
    pub(crate) held: Cell<u32>,
    /// Waits so far.
    pub(crate) waits: Cell<u32>,
    /// Looks for a slot that found none.
    pub(crate) looks: Cell<u32>,
    /// The thread is inside of ours.
    pub(crate) quiet: Cell<bool>,
    /// The thread is ending: it records no more.
    pub(crate) ended: Cell<bool>,
}

const _: () = assert!(size_of::<Local>() <= 64);

std::arch::global_asm!(
    ".pushsection .tbss.azekura_preload_local,\"awT\",@nobits",
    ".p2align 6",
    ".globl azekura_preload_local",
    ".hidden azekura_preload_local",
    ".type azekura_preload_local, @object",
    ".size azekura_preload_local, 64",
    "azekura_preload_local:",
    ".zero 64",
    ".popsection",
);

/// The calling thread's block.
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    let block: *const Local;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI's initial-exec access: the word at fs:0 is the thread pointer, and the loader has put
    // the block's distance from it into the table of offsets.
    unsafe {
        std::arch::asm!(
            "mov {block}, qword ptr [rip + azekura_preload_local@GOTTPOFF]",
            "add {block}, qword ptr fs:[0]",
            block = out(reg) block,
            options(nostack, pure, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, in the words of this ABI.
    unsafe {
        std::arch::asm!(
            "mrs {pointer}, tpidr_el0",
            "adrp {block}, :gottprel:azekura_preload_local",
            "ldr {block}, [{block}, :gottprel_lo12:azekura_preload_local]",
            "add {block}, {block}, {pointer}",
            pointer = out(reg) _,
            block = out(reg) block,
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: a block of this size and alignment, zero at first, that lives as long as the thread; only its
    // thread gets the address. Fields are cells, so a signal handler in the middle of ours is no second
    // reference that matters.
    unsafe { &*block }
}

/// Answers whether this thread is inside of ours.
#[inline]
pub(crate) fn is_quiet() -> bool {
    local().quiet.get()
}

/// Runs `f`; all calls inside are passed on unrecorded (HOOK-3), and `errno` is unchanged afterwards
/// (HOOK-1).
#[inline]
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the C library returns the address of this thread's errno, which is valid while the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let was = local().quiet.replace(true);
    let result = f();
    local().quiet.set(was);
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

impl Local {
    /// Forgets the recorder: the thread is another one since a fork.
    pub(crate) fn forget(&self) {
        self.thread.set(ptr::null_mut());
        self.command.set(0);
        self.held.set(0);
        self.holds_left.set(0);
        self.holds_kept.set(0);
    }
}
