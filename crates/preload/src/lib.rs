//! The library that `azekura trace record` puts before a program's own (`LD_PRELOAD`): it stands between the
//! program and the calls in which threads wait, and records those calls that really wait.
//!
//! It is not for linking: its symbols are those of the C library. Programs are not changed and not even
//! restarted under another loader; what a hook does when there is nothing to wait for is to try first, which
//! is what the C library would have done itself.
//!
//! | module | noun |
//! |---|---|
//! | `hooks::mutex` | mutexes and spin locks: contended waits, and holds drawn at random |
//! | `hooks::rwlock` | reader-writer locks |
//! | `hooks::condvar` | condition variables, semaphores, joins: waits for work, never contention |
//! | `hooks::device` | syncs of files, and reads and writes that left the processor |
//! | `hooks::futex` | `syscall(SYS_futex, …)`: locks that a program or its runtime built itself |
//! | `hooks::thread` | threads: each is an operation, named by the function it starts with |
//! | `session` | the area that the recorder shares with us; forks; ends of threads and of the process |
//! | `recorder` | one thread's events, in its slot of the area |
//! | `sites` | a number for each call site, found without a lock |
//! | `callers` | which function called the one that waits, now and then |
//! | `local` | state of the calling thread; calls that must not be recorded: our own |
//! | `next` | the C library's functions behind our own, found while the library is loaded |
//! | `alloc` | memory from the C library's own heap, for work while the library is loaded |
//!
//! # Limits
//!
//! Not recorded: locks that never leave user space (spinning with inlined instructions), futexes entered by
//! inlined system calls, programs without a dynamic C library, and set-user-id programs (their loader ignores
//! the library). A mutex taken again at the end of a wait on a condition variable counts as part of that
//! wait.
//!
//! # Rules that every hook keeps
//!
//! - **HOOK-1** The program sees the results and the `errno` that the C library gave.
//! - **HOOK-2** A hook allocates nothing, registers no destructor, opens no file, starts no thread and takes
//!   no lock: not the program's, its allocator's or the dynamic loader's. All that is needed is reserved
//!   while the library is loaded. Call sites are kept as addresses, which get their names after the
//!   program's end.
//! - **HOOK-3** Whatever a hook calls in turn is passed on unseen (`local`); so is all that a signal handler
//!   does while it interrupts a hook.
//! - **HOOK-4** No destructor stands on the stack while the C library's function runs: a canceled thread, or
//!   one that ends by `pthread_exit`, unwinds through plain frames only.

#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(unused))]

#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod alloc;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod callers;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod hooks;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod local;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod next;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod recorder;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod session;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod sites;
