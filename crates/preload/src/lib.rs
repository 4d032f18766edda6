//! The library that `azekura trace record` puts before a program's own (`LD_PRELOAD`): it stands between the
//! program and the calls in which threads wait, and records those calls that really wait.
//!
//! It is not for linking: its symbols are those of the C library. Programs are not changed and not even
//! restarted under another loader; what a hook does when there is nothing to wait for is to try first, which
//! is what the C library would have done itself.
//!
//! | module | noun |
//! |---|---|
//! | `hooks::mutex` | mutexes and spin locks: contended waits, and holds drawn by lot |
//! | `hooks::rwlock` | reader-writer locks |
//! | `hooks::condvar` | condition variables, semaphores, joins: waits for work, never contention |
//! | `hooks::device` | syncs of files, and reads and writes that left the processor |
//! | `hooks::futex` | `syscall(SYS_futex, …)`: locks that a program or its runtime built itself |
//! | `hooks::thread` | threads: each is an operation, named by the function it starts with |
//! | `session` | when recording begins and ends in this process; forks; the page that the recorder shares with us |
//! | `sites` | a name for each call site, found without a lock |
//! | `callers` | who called the function that waits, now and then |
//! | `held` | the holds of this thread that will be recorded |
//! | `quiet` | what must not be recorded: our own calls, and those of signal handlers in the middle of ours |
//! | `next` | the C library's functions behind our own |
//! | `alloc` | memory from the C library's own heap, whatever allocator the program brought |
//!
//! # What it cannot see
//!
//! Locks that never leave user space (spinning with inlined instructions), futexes entered by inlined system
//! calls, programs without a dynamic C library, and set-user-id programs, whose loader ignores it. A mutex
//! taken again at the end of a wait on a condition variable counts as part of that wait.
//!
//! # Rules that every hook keeps
//!
//! - **HOOK-1** The program sees the results and the `errno` that the C library gave.
//! - **HOOK-2** Nothing of ours takes a lock of the program, of its allocator or of the dynamic loader: call
//!   sites are kept as addresses, which are given names after the program's end.
//! - **HOOK-3** Whatever a hook calls in turn is passed on unseen (`quiet`); so is all that a signal handler
//!   does while it interrupts a hook.
//! - **HOOK-4** No destructor stands on the stack while the C library's function runs: a cancelled thread, or
//!   one that ends by `pthread_exit`, unwinds through plain frames only.

#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(unused))]

#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod alloc;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod callers;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod held;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod hooks;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod next;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod quiet;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod session;
#[cfg(all(target_os = "linux", target_env = "gnu", not(loom)))]
mod sites;
