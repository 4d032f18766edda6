//! Far memory: programs larger than the machine, on the memory of other machines.
//!
//! A region belongs to one process and ends with it; far memory is not shared memory.
//!
//! ```
//! use azekura_far::{FarMemory, Server};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().capacity(64 << 20).listen("127.0.0.1:0")?;
//! let mut memory = FarMemory::builder()
//!     .bytes(4 << 20)
//!     .local(1 << 20)
//!     .page(64 << 10)
//!     .servers([server.address().to_string()])
//!     .build()?;
//! memory.iter_mut().zip(0_u8..=255).for_each(|(byte, value)| *byte = value); // as any slice of bytes
//! memory[3 << 20] = 7;
//! assert_eq!((memory[5], memory[3 << 20]), (5, 7));
//! # Ok(())
//! # }
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `region` | [`FarMemory`]: the program's view |
//! | `adopt` | existing memory of the program: its content, kept while it becomes far memory |
//! | `fault` | [`Mechanism`] of paging: userfaultfd, or SIGSEGV and memory protection as in the paper |
//! | `pager` | handles page faults, pages out, prefetches |
//! | `descriptors` | the layer's descriptors, hidden from the program |
//! | `client` | storage of paged-out pages: connections to memory servers, a spill file |
//! | `compression` | [`Compression`]: names of the compression of the local tier |
//! | [`cache`] | [`FarCache`]: page images that may be lost, the second tier of a page cache |
//! | [`launch`] | unmodified programs: the settings that their launcher passes to the preloaded library |
//! | [`server`] | a memory server: holds pages for authenticated clients |
//! | [`wire`] | the protocol between clients and memory servers |
//! | [`replace`] | [`Replacement`]: choice of the victim page; the policies; trace replay without paging |
//! | `sys`, `poll` | system calls that bypass the C library; waiting for descriptors |
//! | [`signals_blocked`] | signals of the program, blocked while a thread holds a lock of this layer |
//! | [`digest`] | the digest that identifies a page's bytes |

mod adopt;
pub mod cache;
mod client;
mod compression;
#[doc(hidden)]
pub mod descriptors;
pub mod digest;
mod error;
mod fault;
pub mod launch;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod needed;
mod pager;
mod poll;
mod region;
pub mod replace;
pub mod server;
mod setters;
pub mod signals_blocked;
mod sparse;
mod stats;
#[doc(hidden)]
pub mod sys;
pub mod wire;

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

pub use cache::{FarCache, FarCacheBuilder, FarCacheError, FarCacheStats};
pub use client::ConnectError;
pub use compression::{Compression, ParseCompressionError};
pub use error::{FarError, ForkError, ReserveError};
#[doc(hidden)]
pub use fault::signals;
pub use fault::{Mechanism, ParseMechanismError};
pub use region::{FarMemory, FarMemoryBuilder, Frozen};
pub use replace::{Access, AccessBits, PageNo, Policy, Replacement, Shape};
pub use server::{ServeError, Server, ServerBuilder, ServerStats};
pub use stats::{FarStats, MoreMemory};
pub use wire::auth::AuthKey;

/// Descriptor of a copy of standard error, made before `main`; 2 if there is no copy.
static VOICE: AtomicI32 = AtomicI32::new(2);

/// Keeps a copy of standard error, hidden from the program, for messages after the program closed its own
/// descriptor.
#[doc(hidden)]
pub fn keep_standard_error() {
    // SAFETY: the call has just returned this descriptor, so nothing else owns it.
    let copy = unsafe {
        let copy = sys::call(libc::SYS_fcntl, [2, libc::F_DUPFD_CLOEXEC as usize, 3, 0, 0, 0]);
        RawFd::try_from(copy).ok().filter(|&copy| copy >= 0).map(|copy| OwnedFd::from_raw_fd(copy))
    };
    if let Some(copy) = copy {
        VOICE.store(descriptors::hide(copy).into_raw_fd(), Relaxed); // Relaxed: no other thread exists yet
    }
}

/// Closes the copy of standard error. For child processes: a reader of the parent's standard error may wait
/// until all copies are closed.
#[doc(hidden)]
pub fn drop_standard_error() {
    let copy = VOICE.swap(2, Relaxed); // Relaxed: a child has one thread
    if copy != 2 {
        descriptors::close(copy);
    }
}

/// Makes a call that writes to a file of the layer. A write may cause SIGPIPE or SIGXFSZ in the calling
/// thread, which would end the program. Such a signal is removed.
#[doc(hidden)]
pub fn without_signal<R>(write: impl FnOnce() -> R) -> R {
    const OWN: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);
    const BYTES: usize = size_of::<u64>();
    let change = |how: libc::c_int, new: u64| {
        let mut before = 0_u64;
        let sets = [(&raw const new) as usize, (&raw mut before) as usize];
        // SAFETY: both sets are local variables.
        unsafe { sys::call(libc::SYS_rt_sigprocmask, [how as usize, sets[0], sets[1], BYTES, 0, 0]) };
        before
    };
    let pending = || {
        let mut pending = 0_u64;
        // SAFETY: the set is a local variable.
        unsafe {
            sys::call(libc::SYS_rt_sigpending, [(&raw mut pending) as usize, BYTES, 0, 0, 0, 0]);
        }
        pending & OWN
    };
    let before = change(libc::SIG_BLOCK, OWN);
    let pending_before = pending();
    let result = write();
    // SAFETY: the address is that of this thread's `errno`.
    let errno = unsafe { *libc::__errno_location() };
    let caused = pending() & !pending_before;
    if caused != 0 {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let sets = [(&raw const caused) as usize, (&raw const now) as usize];
        // SAFETY: the set and the time are local variables.
        unsafe { sys::call(libc::SYS_rt_sigtimedwait, [sets[0], 0, sets[1], BYTES, 0, 0]) };
    }
    change(libc::SIG_SETMASK, before);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Writes to standard error in one call, without the lock of the standard library: a thread of the program
/// may hold that lock while it waits for a page. If the program closed the copy by a raw system call, writes
/// to descriptor 2 instead.
#[doc(hidden)]
pub fn say(message: &str) {
    let write = |fd: i32| {
        let arguments = [fd as usize, message.as_ptr() as usize, message.len(), 0, 0, 0];
        // SAFETY: the pointer and the length are those of `message`. Bytes that cannot be written are lost.
        without_signal(|| unsafe { sys::call(libc::SYS_write, arguments) })
    };
    let copy = VOICE.load(Relaxed); // Relaxed: stored before `main`
    if write(copy) < 0 && copy != 2 {
        write(2);
    }
}
