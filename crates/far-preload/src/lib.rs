//! The library that `azekura far` puts before a program's own (`LD_PRELOAD`): blocks of memory from a certain
//! size on come from far memory, everything else from the C library as ever.
//!
//! It is not for linking: its symbols are those of the C library.
//!
//! | module | noun |
//! |---|---|
//! | `heap` | the far memory of this process, and which of its pages are given out |
//! | `heap::small`, `heap::reserved` | small blocks; memory that is committed later |
//! | `ranges` | sets of addresses |
//! | `session` | before `main`: settings, servers; at the end: statistics |
//! | `session::statics` | static arrays |
//! | `session::report` | the report at the end |
//! | `session::thrash` | time spent in misses, and the memory that would avoid them |
//! | `session::end` | ends of the process, each with a message |
//! | `session::children` | child processes made by `fork` |
//! | `hooks::block` | `malloc`, `calloc`, `realloc`, `free` and their like |
//! | `hooks::caller` | blocks that the C library and the loader allocate |
//! | `hooks::map` | `mmap`, `munmap`, `mremap`, `madvise`, `mprotect` of private anonymous memory |
//! | `hooks::kernel` | the other memory calls, which only the kernel can do; the table of all of them |
//! | `hooks::transfer` | `read`, `write` and their like, where the kernel does not wait for far memory |
//! | `hooks::message` | messages of sockets, likewise |
//! | `hooks::stream` | streams (`FILE`), likewise |
//! | `hooks::descriptor` | `close` and its like, which leave the layer's descriptors out |
//! | `hooks::directory` | `opendir`, likewise |
//! | `hooks::again` | system calls that can be repeated, likewise |
//! | `hooks::signal` | SIGSEGV, shared with the program |
//! | `hooks::stack` | stacks in far memory |
//! | `hooks::limit` | limits that count far memory |
//! | `hooks::birth` | child processes that `fork` does not make |
//! | `hooks::thread` | our own threads, and their memory |
//! | `hooks::bounce` | ordinary memory that such a transfer goes through |
//! | `next` | the C library's functions behind our own |
//! | `alloc` | our own memory: from the C library's heap, never far |
//!
//! # Rules
//!
//! - **FAR-1** No thread holds a lock of ours while it touches far memory, and none of our threads ever
//!   touches it.
//! - **FAR-2** Our own memory is never far memory.
//! - **FAR-3** A failure of the setup ends the process before `main`, with a message and code 71.
//! - **FAR-4** A stack that a thread runs on is not far memory when the thread takes a lock of ours.
//!
//! # Limits
//!
//! Stacks, files and shared memory stay ordinary memory, and so do blocks below `--block`; an access to
//! memory that the program has unmapped is not refused; with the `sigsegv` mechanism static arrays stay
//! ordinary memory, too. A child made by `fork` has a copy of its parent's far memory, for which the servers
//! need room; where it cannot have one (by SIGSEGV, or without room) it is ended when it touches it. Without
//! the right to use userfaultfd for the kernel, the calls in `hooks` work on far memory; others, and those
//! that the C library makes on its own (of `pthread_mutex_lock`, of `scandir` with an allocator that the
//! program brings), give `EFAULT`.

#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(unused))]
#![cfg(not(loom))]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod alloc;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod hooks;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(dead_code, reason = "what only the recorder's hooks need")]
mod next;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod ranges;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod session;
