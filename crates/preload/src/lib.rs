//! The library that `azekura trace record` loads into a program (`LD_PRELOAD`). It intercepts the C library's
//! calls in which threads wait, and records the calls that really wait.
//!
//! The library is not for linking, because its symbols are those of the C library. Programs run unchanged. A
//! hook first tries to take the lock, as the C library itself would.
//!
//! | module | content |
//! |---|---|
//! | `hooks::mutex` | mutexes and spin locks: contended waits, and holds drawn at random |
//! | `hooks::rwlock` | reader-writer locks |
//! | `hooks::condvar` | condition variables, semaphores, joins: idle waits; holds of those used as locks |
//! | `hooks::waiters` | the number of waiting threads by object |
//! | `hooks::idle` | sleeps, polls, waits for processes, signals, locks of files and message queues |
//! | `hooks::device` | syncs of files, and reads and writes during which the thread left its processor |
//! | `hooks::futex` | `syscall(SYS_futex, …)`: locks that a program or its runtime built itself |
//! | `hooks::thread` | threads: each is an operation, named by the function it starts with |
//! | `hooks::c11` | the functions of ISO C for threads, mutexes and condition variables |
//! | `hooks::process` | ends of the process in which no destructor of a library runs |
//! | `hooks::jump` | jumps out of signal handlers |
//! | `hooks::limit` | limits of memory, which must not count the area |
//! | `hooks::sandbox` | restrictions of system calls, which end the recording of a process |
//! | `session` | the area shared with the recorder; forks; ends of threads and of the process |
//! | `recorder` | one thread's events, in its slot of the area |
//! | `sites` | a number for each call site, found without a lock |
//! | `callers` | callers of the function that waits, for a sample of the waits |
//! | `local` | state of the calling thread; detection of the library's own calls, which are not recorded |
//! | `next` | the C library's functions behind the hooks, found while the library is loaded |
//! | `alloc` | memory from the C library's own heap, for work while the library is loaded |
//!
//! # Limits
//!
//! Not recorded: locks that never enter the kernel (spinning with inlined instructions), futexes entered by
//! inlined system calls, programs without a dynamic C library, and set-user-id programs (the loader ignores
//! the library). A wait on a condition variable includes the wait for its mutex afterward.
//!
//! # Rules that every hook keeps
//!
//! - **HOOK-1** The program receives the results and the `errno` of the C library.
//! - **HOOK-2** A hook allocates nothing, registers no destructor, opens no file, starts no thread and takes
//!   no lock of the program, its allocator or the dynamic loader. Everything needed is reserved while the
//!   library is loaded. Call sites are stored as addresses, which get names after the program's end.
//! - **HOOK-3** Calls that a hook makes are not recorded (`local`). Neither are those of a signal handler
//!   that interrupts a hook, unless it leaves the hook by a jump.
//! - **HOOK-4** No value with a destructor is on the stack while the C library's function runs. A canceled
//!   thread, or one that ends by `pthread_exit`, unwinds only through frames without destructors.

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
