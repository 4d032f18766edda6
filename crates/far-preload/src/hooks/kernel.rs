//! Memory calls that only the kernel can execute, and all memory calls made by `syscall`.
//!
//! The rule: far memory that such a call concerns leaves far memory permanently, with its bytes, and then the
//! kernel executes the call (*K*). The layer itself executes calls that do not need the kernel's own pages
//! (*L*). Calls that name no memory, or no memory that can be far, are not changed (*–*).
//!
//! | call | | treatment |
//! |---|---|---|
//! | `mmap` of private anonymous memory, readable and writable | L | far, from `--block` on |
//! | `mmap` of private anonymous memory without access | L | reserved (`heap::reserved`) |
//! | `mmap`, other | – | the kernel's memory |
//! | `mmap` of either kind with `MAP_FIXED` over mapped far memory | L | zeros, committed or reserved |
//! | `mmap` with `MAP_FIXED`, other | K | |
//! | `mmap` with `MAP_FIXED_NOREPLACE` | L, K | `EEXIST` if the program has memory there; else K |
//! | `munmap` | L | blocks of `malloc`: K |
//! | `mremap` that shortens in place, or lengthens with `MREMAP_MAYMOVE` alone | L | |
//! | `mremap`, other (`MREMAP_FIXED`, `MREMAP_DONTUNMAP`) | K | both ranges |
//! | `mprotect` to read and write | L | commits reserved pages |
//! | `mprotect` of reserved memory to no access | L | nothing to do |
//! | `mprotect`, other; `pkey_mprotect` | K | |
//! | `madvise`: `DONTNEED`, `DONTNEED_LOCKED`, `FREE` | L | zeros |
//! | `madvise`: hints (`map::HINTS`), `posix_madvise` | L | nothing to do |
//! | `madvise`: `DONTFORK`, `DOFORK` | L | blocks of `malloc`: K |
//! | `madvise`, other (`WIPEONFORK`, `REMOVE`, `GUARD_INSTALL`, …) | K | |
//! | `process_madvise` | K | |
//! | `mlock`, `mlock2` | K | |
//! | `mlockall` | K | all far memory; nothing is far afterward |
//! | `munlock`, `munlockall` | – | far memory is never locked |
//! | `msync`, `mincore`, `mseal`, `remap_file_pages` | K | |
//! | `mbind`, `move_pages`, `get_mempolicy` of an address, `set_mempolicy_home_node` | K | |
//! | `set_mempolicy`, `migrate_pages`, `get_mempolicy` of a thread | – | they concern future or all pages |
//! | `userfaultfd`: `UFFDIO_REGISTER`; the source of `UFFDIO_COPY`, `UFFDIO_MOVE` | K | |
//! | `shmat` with `SHM_REMAP` | K | |
//! | `shmat`, other; `shmdt`, `memfd_create`, `memfd_secret`, `map_shadow_stack` | – | the kernel's memory |
//! | `vmsplice`, `io_uring_register` of buffers | K | the kernel keeps the pages after the call |
//! | `/proc/self/mem`, `process_vm_readv`, `process_vm_writev` of this process | K | see `own` |
//! | `pthread_mutex_init` of a robust mutex | K | the kernel marks it when its owner ends |
//! | `set_tid_address`, `set_robust_list`, `rseq` | K | the kernel accesses the memory after the call |
//! | `prctl(PR_SET_VMA)` | L | nothing to do: a name |
//! | `prctl(PR_SET_SECCOMP)`, `seccomp` | K | all far memory: the layer makes calls that a filter forbids |
//! | `unshare`, `setns`, if only permitted to a process with one thread | K | as for `mlockall` |
//! | `unshare`, `setns`, `clone` with another network namespace | K | as for `mlockall` |
//! | `brk`, `sbrk`, `pkey_alloc`, `pkey_free`, `membarrier`, `cachestat`, `process_mrelease` | – | |
//! | `read`, `write` and all calls with buffers | L | see `transfer`, `message`, `again` |
//! | stacks that a program passes to threads, contexts and signal handlers | K | see `stack` |
//!
//! A library cannot intercept a call that the program makes by the processor's instruction. The layer ends
//! such a program with a message when a page cannot be mapped for it.

use super::given::{self, Given};
use super::map::{madvise, mmap, mprotect, mremap, munmap};
use crate::next::Next;
use crate::session::{at_end, count_unmanaged, end_far, heap, is_static, unmanage};
use azekura_far::sys;
use libc::{c_long, iovec, pthread_mutex_t, pthread_mutexattr_t};
use std::ffi::{c_int, c_uint, c_ulong, c_void};
use std::ptr;

/// Size of the kernel's pages in bytes, the granularity of memory calls.
pub(super) const PIECE: usize = 4096;
/// `UFFDIO_REGISTER`, `UFFDIO_COPY` and `UFFDIO_MOVE`.
const REGISTER: usize = 0xc020_aa00;
const COPIES: [usize; 2] = [0xc028_aa03, 0xc028_aa05];
const MPOL_F_ADDR: usize = 2;
const PR_SET_VMA: usize = 0x5356_4d41;
const SYS_MSEAL: c_long = 462;
const SYS_SET_MEMPOLICY_HOME_NODE: c_long = 450;
/// Operations of `io_uring_register`: buffers, and buffers with tags.
const IORING_REGISTER_BUFFERS: usize = 0;
const IORING_REGISTER_BUFFERS2: usize = 15;
/// Limit of the number of ranges in a list.
const MOST_PARTS: usize = 1 << 20;

pub(super) fn is_of_pieces(address: usize) -> bool {
    address.is_multiple_of(PIECE)
}

/// Executes a call on one range that only the kernel can execute.
fn on_range(number: c_long, arguments: [usize; 6]) -> c_int {
    let [at, bytes, ..] = arguments;
    // The kernel rounds to whole pages.
    let start = at / PIECE * PIECE;
    let has_left = unmanage(start, (at - start).saturating_add(bytes));
    let done = call(number, arguments) as c_int;
    if has_left {
        count_unmanaged();
    }
    done
}

/// Makes a system call. It is repeated if the kernel cannot access an argument in far memory: a list or a
/// result.
fn call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller keeps the contract of the system call.
    given::asked(&arguments.map(Given::Any), || unsafe { sys::call(number, arguments) })
}

macro_rules! on_range {
    ($($name:ident = $number:expr, ($at:ident, $bytes:ident $(, $more:ident: $kind:ty)*);)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                $at: *mut c_void,
                $bytes: usize
                $(, $more: $kind)*
            ) -> c_int {
                let mut arguments = [$at as usize, $bytes, 0, 0, 0, 0];
                let more: &[usize] = &[$($more as usize),*];
                arguments[2..2 + more.len()].copy_from_slice(more);
                on_range($number, arguments)
            }
        )+
    };
}

on_range! {
    mlock = libc::SYS_mlock, (at, bytes);
    mlock2 = libc::SYS_mlock2, (at, bytes, flags: c_uint);
    msync = libc::SYS_msync, (at, bytes, flags: c_int);
    remap_file_pages = libc::SYS_remap_file_pages, (at, bytes, protection: c_int, page: usize, flags: c_int);
    mseal = SYS_MSEAL, (at, bytes, flags: c_ulong);
    set_mempolicy_home_node = SYS_SET_MEMPOLICY_HOME_NODE, (at, bytes, node: c_ulong, flags: c_ulong);
}

/// # Safety
///
/// The contract of the C library's function, which stores a byte for each page.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mincore(at: *mut c_void, bytes: usize, there: *mut u8) -> c_int {
    let given = [given::writes(there, bytes.div_ceil(PIECE))];
    given::asked(&given, || on_range(libc::SYS_mincore, [at as usize, bytes, there as usize, 0, 0, 0]))
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    bytes: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    if key == -1 {
        // SAFETY: the caller keeps the contract of the C function.
        return unsafe { mprotect(at, bytes, protection) };
    }
    on_range(libc::SYS_pkey_mprotect, [at as usize, bytes, protection as usize, key as usize, 0, 0])
}

/// # Safety
///
/// The contract of libnuma's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mbind(
    at: *mut c_void,
    bytes: c_ulong,
    mode: c_int,
    nodes: *const c_ulong,
    most: c_ulong,
    flags: c_uint,
) -> c_long {
    let arguments =
        [at as usize, bytes as usize, mode as usize, nodes as usize, most as usize, flags as usize];
    on_range(libc::SYS_mbind, arguments).into()
}

/// # Safety
///
/// The contract of libnuma's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn get_mempolicy(
    mode: *mut c_int,
    nodes: *mut c_ulong,
    most: c_ulong,
    at: *mut c_void,
    flags: c_uint,
) -> c_long {
    if flags as usize & MPOL_F_ADDR != 0 {
        unmanage(at as usize, 1);
    }
    let arguments = [mode as usize, nodes as usize, most as usize, at as usize, flags as usize, 0];
    call(libc::SYS_get_mempolicy, arguments) as c_long
}

/// # Safety
///
/// The contract of libnuma's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn move_pages(
    process: c_int,
    count: c_ulong,
    pages: *const *mut c_void,
    nodes: *const c_int,
    status: *mut c_int,
    flags: c_int,
) -> c_long {
    if !pages.is_null() && (count as usize) < MOST_PARTS {
        for i in 0..count as usize {
            // SAFETY: the list of pages is that of the caller.
            unmanage(unsafe { *pages.add(i) } as usize, 1);
        }
    }
    let arguments =
        [process as usize, count as usize, pages as usize, nodes as usize, status as usize, flags as usize];
    call(libc::SYS_move_pages, arguments) as c_long
}

/// Passes the memory of those ranges of a list to the kernel for which `is_meant` returns `true`.
///
/// # Safety
///
/// `parts` points to `count` parts.
pub(super) unsafe fn each_part(parts: *const iovec, count: usize, is_meant: impl Fn(usize, usize) -> bool) {
    if !parts.is_null() && count < MOST_PARTS {
        for i in 0..count {
            // SAFETY: the parts are those of the caller.
            let part = unsafe { *parts.add(i) };
            if is_meant(part.iov_base as usize, part.iov_len) {
                unmanage(part.iov_base as usize, part.iov_len);
            }
        }
    }
}

pub(super) fn always(_at: usize, _bytes: usize) -> bool {
    true
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn process_madvise(
    process: c_int,
    parts: *const iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // SAFETY: the parts are those of the caller. If they belong to another process, far memory may leave
    // without need.
    unsafe { each_part(parts, count, always) };
    let arguments = [process as usize, parts as usize, count, advice as usize, flags as usize, 0];
    call(libc::SYS_process_madvise, arguments)
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn vmsplice(
    fd: c_int,
    parts: *const iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller keeps this function's contract.
    unsafe { each_part(parts, count, always) };
    call(libc::SYS_vmsplice, [fd as usize, parts as usize, count, flags as usize, 0, 0])
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn shmat(segment: c_int, at: *const c_void, flags: c_int) -> *mut c_void {
    if !at.is_null() && flags & libc::SHM_REMAP != 0 {
        // SAFETY: all zeros is a valid `shmid_ds`. The call fills it or fails.
        let bytes = unsafe {
            let mut known: libc::shmid_ds = std::mem::zeroed();
            let done = libc::shmctl(segment, libc::IPC_STAT, &raw mut known);
            if done < 0 { 0 } else { known.shm_segsz }
        };
        unmanage(at as usize, bytes);
    }
    let arguments = [segment as usize, at as usize, flags as usize, 0, 0, 0];
    call(libc::SYS_shmat, arguments) as *mut c_void
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    end_far("mlockall", "the program locks all of its memory on this machine");
    call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) as c_int
}

/// # Safety
///
/// The contract of the C library's function, which takes four arguments after the first.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn prctl(what: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if what == libc::PR_SET_SECCOMP {
        restricts("prctl(PR_SET_SECCOMP)");
    } else if what as usize == PR_SET_VMA
        && (heap().is_some_and(|heap| heap.overlaps(b, c)) || is_static(b, c))
    {
        return 0;
    }
    call(libc::SYS_prctl, [what as usize, a, b, c, d, 0]) as c_int
}

/// Ends the threads of this layer before a call that the kernel refuses to a process with several threads.
/// A thread that was waited for is a thread of the process for a moment longer, so the call is repeated.
fn alone(name: &str, call: impl Fn() -> isize) -> c_int {
    const TRIES: usize = 100;
    if heap().is_none() {
        return call() as c_int;
    }
    end_far(name, "the kernel permits this call only to a process with one thread");
    for _ in 0..TRIES {
        let done = call();
        if done == 0 || super::errno() != libc::EINVAL {
            return done as c_int;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    super::fail(libc::EINVAL);
    -1
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let one = libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    let unshares = || call(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]);
    leaves_network(flags, "unshare");
    if flags & one != 0 { alone("unshare", unshares) } else { unshares() as c_int }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    let one = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWTIME;
    let enters = || call(libc::SYS_setns, [fd as usize, kind as usize, 0, 0, 0, 0]);
    leaves_network(kind, "setns");
    if kind == 0 || kind & one != 0 { alone("setns", enters) } else { enters() as c_int }
}

/// Ends far memory before a call after which new connections to the servers may fail: those of child
/// processes, and those in place of broken ones.
pub(crate) fn leaves_network(flags: c_int, name: &str) {
    if flags & libc::CLONE_NEWNET != 0 {
        end_far(name, "the memory servers may be out of reach of the new network namespace");
    }
}

fn restricts(name: &str) {
    end_far(name, "the program restricts its system calls, which far memory needs");
    at_end();
}

/// Passes the memory that an `ioctl` on a userfaultfd names to the kernel.
pub(super) fn before_ioctl(request: usize, argument: usize) {
    let words = ptr::with_exposed_provenance::<[usize; 3]>(argument);
    if request == REGISTER && argument != 0 {
        // SAFETY: the argument of this request begins with a range.
        let [start, bytes, _] = unsafe { words.read() };
        unmanage(start, bytes);
    } else if COPIES.contains(&request) && argument != 0 {
        // SAFETY: the argument of this request begins with destination, source and length.
        let [_, source, bytes] = unsafe { words.read() };
        unmanage(source, bytes);
    }
}

type Initialize = unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int;

static MUTEX_INIT: Next<Initialize> = Next::new(c"pthread_mutex_init");

/// Makes a robust mutex leave far memory. The kernel marks the robust mutexes of a thread that ends, and
/// ignores one that it cannot access: the other threads would wait forever. No mechanism makes the kernel
/// wait for a page on behalf of a thread that ends.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut pthread_mutex_t,
    attributes: *const pthread_mutexattr_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut robust = libc::PTHREAD_MUTEX_STALLED;
        if !attributes.is_null() {
            libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
        }
        if robust == libc::PTHREAD_MUTEX_ROBUST {
            unmanage(mutex as usize, size_of::<pthread_mutex_t>());
        }
        MUTEX_INIT.get()(mutex, attributes)
    }
}

/// Finds the C library's function.
pub(super) fn resolve() {
    MUTEX_INIT.resolve();
}

/// Executes the memory calls by their system call numbers. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    let at = |address: usize| ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: the caller keeps the contract. Integers keep their low half, as in the kernel.
    let done: c_long = unsafe {
        match number {
            libc::SYS_mmap => {
                mmap(at(a), b, c as c_int, d as c_int, e as c_int, f.cast_signed() as i64) as c_long
            }
            libc::SYS_munmap => munmap(at(a), b).into(),
            libc::SYS_mremap => mremap(at(a), b, c, d as c_int, at(e)) as c_long,
            libc::SYS_madvise => madvise(at(a), b, c as c_int).into(),
            libc::SYS_mprotect => mprotect(at(a), b, c as c_int).into(),
            libc::SYS_pkey_mprotect => pkey_mprotect(at(a), b, c as c_int, d as c_int).into(),
            libc::SYS_mlock
            | libc::SYS_mlock2
            | libc::SYS_msync
            | libc::SYS_remap_file_pages
            | libc::SYS_mbind
            | SYS_MSEAL
            | SYS_SET_MEMPOLICY_HOME_NODE => on_range(number, arguments).into(),
            libc::SYS_mincore => mincore(at(a), b, at(c).cast()).into(),
            libc::SYS_mlockall => mlockall(a as c_int).into(),
            libc::SYS_get_mempolicy => {
                get_mempolicy(at(a).cast(), at(b).cast(), c as c_ulong, at(d), e as c_uint)
            }
            libc::SYS_move_pages => {
                move_pages(a as c_int, b as c_ulong, at(c).cast(), at(d).cast(), at(e).cast(), f as c_int)
            }
            libc::SYS_process_madvise => {
                process_madvise(a as c_int, at(b).cast(), c, d as c_int, e as c_uint) as c_long
            }
            libc::SYS_vmsplice => vmsplice(a as c_int, at(b).cast(), c, d as c_uint) as c_long,
            libc::SYS_shmat => shmat(a as c_int, at(b), c as c_int) as c_long,
            libc::SYS_unshare => unshare(a as c_int).into(),
            libc::SYS_setns => setns(a as c_int, b as c_int).into(),
            libc::SYS_prctl => prctl(a as c_int, b, c, d, e).into(),
            libc::SYS_seccomp => {
                if a <= 1 {
                    restricts("seccomp");
                }
                call(number, arguments) as c_long
            }
            libc::SYS_io_uring_register => {
                if [IORING_REGISTER_BUFFERS, IORING_REGISTER_BUFFERS2].contains(&b) {
                    // The second operation has a description of 32 bytes with the address of the list and its
                    // length.
                    let words = at(c).cast::<usize>();
                    let list = if b == 0 { (c, d) } else { (*words.add(1), *words as u32 as usize) };
                    each_part(at(list.0).cast(), list.1, always);
                }
                call(number, arguments) as c_long
            }
            libc::SYS_ioctl => {
                before_ioctl(b, c);
                return None;
            }
            // The kernel accesses this memory later: when the thread ends, and while it runs.
            libc::SYS_set_tid_address => {
                unmanage(a, size_of::<c_int>());
                return None;
            }
            libc::SYS_set_robust_list | libc::SYS_rseq => {
                unmanage(a, b);
                return None;
            }
            _ => return None,
        }
    };
    Some(done)
}
