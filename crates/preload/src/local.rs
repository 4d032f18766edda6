//! This library's state of the calling thread: 64 bytes at a fixed distance from the thread pointer.
//!
//! Rust's `thread_local!` in a loaded library uses `__tls_get_addr`, which may call the program's `malloc`
//! after a `dlopen`. With a destructor it calls `__cxa_thread_atexit_impl`, which calls `calloc`. The
//! *initial-exec* model calls neither: the loader reserves the block for every thread at the program's start
//! (HOOK-2). The stable compiler has no switch for the model, so the block and the instruction that finds it
//! are written here.

use crate::recorder::Thread;
use std::cell::Cell;
use std::ptr;

/// The thread's block; all zero in a new thread.
#[repr(C)]
pub(crate) struct Local {
    /// The recorder of this thread, or null.
    pub(crate) thread: Cell<*mut Thread>,
    /// The function that the thread began with; 0 for the first thread of a process.
    pub(crate) start: Cell<usize>,
    /// The recording that `thread` belongs to, or in which no slot was free for this thread.
    pub(crate) command: Cell<u32>,
    /// Number of holds up to and including the next one that the recorder examines.
    pub(crate) holds_left: Cell<u32>,
    /// The value of `holds_left` before the thread's last wait. Not 0 if the recorder examines the very next
    /// hold because of that wait.
    pub(crate) holds_kept: Cell<u32>,
    /// Number of current holds that will be recorded.
    pub(crate) held: Cell<u32>,
    /// Number of waits so far.
    pub(crate) waits: Cell<u32>,
    /// Number of searches that found no free slot.
    pub(crate) looks: Cell<u32>,
    /// Number of slots that had memory at the last search that found no free one.
    pub(crate) ready: Cell<u32>,
    /// The thread runs code of this library.
    pub(crate) quiet: Cell<bool>,
    /// The thread is ending and records nothing more.
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

/// Returns the calling thread's block.
#[inline(always)]
pub(crate) fn local() -> &'static Local {
    let block: *const Local;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI's initial-exec access. The word at fs:0 is the thread pointer, and the loader has
    // stored the block's distance from it in the offset table.
    unsafe {
        std::arch::asm!(
            "mov {block}, qword ptr [rip + azekura_preload_local@GOTTPOFF]",
            "add {block}, qword ptr fs:[0]",
            block = out(reg) block,
            options(nostack, pure, readonly),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the initial-exec access of this ABI.
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
    // SAFETY: a block of this size and alignment, initially zero, that lives as long as the thread. Only its
    // thread has the address. The fields are cells, so an access by a signal handler that interrupts this
    // code is allowed.
    unsafe { &*block }
}

/// Returns `true` if this thread runs code of this library.
#[inline]
pub(crate) fn is_quiet() -> bool {
    local().quiet.get()
}

/// Runs `f`. Calls inside are passed on without being recorded (HOOK-3), and `errno` is the same afterward
/// (HOOK-1).
#[inline]
pub(crate) fn quietly<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the C library returns the address of this thread's errno, which is valid while the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the same address.
    let before = unsafe { errno.read() };
    let was = local().quiet.replace(true);
    let result = f();
    local().quiet.set(was);
    // SAFETY: the same address.
    unsafe { errno.write(before) };
    result
}

impl Local {
    /// Clears the reference to the recorder: after a fork, it belongs to the parent's thread.
    pub(crate) fn forget(&self) {
        self.thread.set(ptr::null_mut());
        self.command.set(0);
        self.held.set(0);
        self.holds_left.set(0);
        self.holds_kept.set(0);
    }
}
