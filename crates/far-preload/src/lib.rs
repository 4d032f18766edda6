//! The library that `azekura far` preloads into a program (`LD_PRELOAD`). Blocks of memory from a certain
//! size on are far memory. Everything else comes from the C library as before.
//!
//! Not for linking: the symbols of this library are those of the C library.
//!
//! | module | noun |
//! |---|---|
//! | `heap` | the far memory of this process, and which of its pages are allocated |
//! | `heap::small`, `heap::reserved` | small blocks; memory that is committed later |
//! | `ranges` | sets of addresses |
//! | `session` | before `main`: settings, servers; at the end: statistics |
//! | `session::statics` | static arrays |
//! | `session::surroundings` | tracers, valgrind and sanitizers: far memory is restricted or refused |
//! | `session::report` | the report at the end |
//! | `session::thrash` | time spent in misses, and the memory that would avoid them |
//! | `session::end` | ends of the process, each with a message |
//! | `session::children` | child processes made by `fork` |
//! | `hooks::block` | `malloc`, `calloc`, `realloc`, `free` and similar functions |
//! | `hooks::caller` | blocks that the C library and the loader allocate |
//! | `hooks::map` | `mmap`, `munmap`, `mremap`, `madvise`, `mprotect` of private anonymous memory |
//! | `hooks::kernel` | memory calls that only the kernel can execute; the table of all memory calls |
//! | `hooks::transfer` | `read`, `write` and similar calls, if the kernel does not wait for far memory |
//! | `hooks::message` | socket messages, if the kernel does not wait for far memory |
//! | `hooks::stream` | streams (`FILE`), if the kernel does not wait for far memory, or on the own memory |
//! | `hooks::descriptor` | `close` and similar calls, which skip the layer's descriptors |
//! | `hooks::directory` | `opendir`, if the kernel does not wait for far memory |
//! | `hooks::given` | pointer arguments: which are far, and how a call with them is repeated |
//! | `hooks::again` | repeatable system calls, if the kernel does not wait for far memory |
//! | `hooks::once` | system calls with results that the kernel delivers once |
//! | `hooks::wait` | calls that wait for descriptors, if the kernel does not wait for far memory |
//! | `hooks::rare` | rarely used functions that call the kernel inside of the C library |
//! | `hooks::spawn` | `posix_spawn` and `execl` |
//! | `hooks::alias` | other names of hooked functions |
//! | `hooks::text` | `system`, `popen` and `freopen`, if the kernel does not wait for far memory |
//! | `hooks::own` | reads and writes of the own memory through `/proc` and `process_vm_readv` |
//! | `hooks::queued` | asynchronous transfers, for which the kernel uses memory after the call |
//! | `hooks::checked` | the names that programs with `_FORTIFY_SOURCE` call |
//! | `hooks::number` | the calls of these modules by the numbers of system calls |
//! | `hooks::signal` | SIGSEGV, shared with the program |
//! | `hooks::stack` | stacks in far memory |
//! | `hooks::limit` | limits that count far memory |
//! | `hooks::lock` | waits for locks and conditions, if the kernel does not wait for far memory |
//! | `hooks::birth` | child processes that are not made by `fork` |
//! | `hooks::thread` | the threads of this library, and their memory |
//! | `hooks::bounce` | bounce buffers: ordinary memory for transfers to and from far memory |
//! | `next` | the functions of the C library that the hooks replace |
//! | `alloc` | the memory of this library |
//! | `pool` | blocks of memory without a lock |
//!
//! # Rules
//!
//! - **FAR-1** No thread holds a lock of this library while it touches far memory, and no thread of this
//!   library ever touches far memory.
//! - **FAR-2** The memory of this library is never far memory.
//! - **FAR-3** A failure of the setup ends the process before `main`, with a message and code 71.
//! - **FAR-4** When a thread acquires a lock of this library, the stack that it runs on is not far memory.
//! - **FAR-5** This library, and the C library in this library's threads, allocate memory without a lock, and
//!   only from the system. A handler of the program may touch far memory while the thread that it interrupts
//!   holds a lock of the program's allocator, or of the C library's.
//!
//! # Limits
//!
//! - Stacks, files and shared memory stay ordinary memory, and so do blocks below `--block`. With the
//!   `sigsegv` mechanism static arrays stay ordinary memory, too.
//! - An access to memory that the program has unmapped is not refused.
//! - With the `sigsegv` mechanism, a program is ended if a signal handler blocks SIGSEGV in the context to
//!   which it returns, and the program then touches a page that is paged out.
//! - A child process made by `fork` has a copy of its parent's far memory, for which the servers need memory.
//!   If no copy is possible (with SIGSEGV, or without memory at the servers), the child is ended when it
//!   touches far memory.
//! - Without the privilege to use userfaultfd for system calls, only the calls in `hooks` work on far memory.
//!   Calls by the program's own instructions return `EFAULT`, and so do calls that the C library makes
//!   internally on memory of its own that an allocator of the program has made far (`scandir`).
//!   `tests/programs/inside.rs` lists the functions of the C library that need no hook.

#![cfg_attr(not(all(target_os = "linux", target_env = "gnu")), allow(unused))]
#![cfg(not(loom))]

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod alloc;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod heap;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod hooks;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(dead_code, reason = "some functions are used only by the hooks of the recorder")]
mod next;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod pool;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod ranges;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod session;
