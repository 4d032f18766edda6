//! System calls by number (`syscall`) with a buffer or a name in far memory. Calls with the arguments of the
//! C library's functions go to the hooks of these functions: transfers with every mechanism, because of
//! direct I/O and of the memory of this process (`transfer`, `own`), the others if the kernel does not wait
//! for far memory (F1). Calls without such a hook are repeated, as in `again`.

use super::again::{Given, SOME, asked};
use super::descriptor::LOCK;
use super::{fail, message, once, own, transfer, wait};
use crate::session::{is_unserved, serves_system_calls, unmanage};
use libc::{c_int, c_long, c_uint, c_ulong, off_t, socklen_t};
use std::ptr;

/// Executes these calls by their system call numbers. Returns `None` for other numbers.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(
    number: c_long,
    arguments: [usize; 6],
    call: impl Fn() -> c_long,
) -> Option<c_long> {
    // SAFETY: the caller keeps the contract.
    unsafe {
        if let Some(done) = transferred(number, arguments) {
            return Some(done);
        }
        if serves_system_calls() {
            return None;
        }
        let waited = || wait::by_number(number, arguments).map(c_long::from);
        delivered(number, arguments).or_else(waited).or_else(|| {
            let given = given(number, arguments)?;
            if number == libc::SYS_futex_waitv {
                unmanage_words(arguments[0], arguments[1]);
            }
            Some(asked(&given, call))
        })
    }
}

/// Makes the words of a wait for several futexes leave far memory, as those of locks do (`lock`).
///
/// # Safety
///
/// The contract of `futex_waitv`: `at` is the address of this number of descriptions of a word.
unsafe fn unmanage_words(at: usize, count: usize) {
    const MOST: usize = 128;
    let all = ptr::with_exposed_provenance::<[usize; 3]>(at);
    if at == 0 || count > MOST {
        return; // the kernel refuses the call
    }
    for i in 0..count {
        // SAFETY: the caller keeps this function's contract.
        let [_, word, _] = unsafe { all.add(i).read_unaligned() };
        if is_unserved(word, size_of::<u32>()) {
            unmanage(word, size_of::<u32>());
        }
    }
}

/// Executes calls that transfer bytes of files and of processes, or position a file. Integers keep their low
/// half, as in the kernel.
unsafe fn transferred(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let (fd, at) = (a as c_int, ptr::with_exposed_provenance_mut::<libc::c_void>(b));
    let (parts, count) = (at.cast_const().cast::<libc::iovec>(), c as c_int);
    let others = ptr::with_exposed_provenance::<libc::iovec>(d);
    // SAFETY: the caller keeps the contract of the system call.
    let done = unsafe {
        match number {
            libc::SYS_read => transfer::read(fd, at, c),
            libc::SYS_write => transfer::write(fd, at, c),
            libc::SYS_pread64 => transfer::pread64(fd, at, c, d as off_t),
            libc::SYS_pwrite64 => transfer::pwrite64(fd, at, c, d as off_t),
            libc::SYS_readv => transfer::readv(fd, parts, count),
            libc::SYS_writev => transfer::writev(fd, parts, count),
            libc::SYS_preadv => transfer::preadv64(fd, parts, count, d as off_t),
            libc::SYS_pwritev => transfer::pwritev64(fd, parts, count, d as off_t),
            libc::SYS_preadv2 => transfer::preadv64v2(fd, parts, count, d as off_t, f as c_int),
            libc::SYS_pwritev2 => transfer::pwritev64v2(fd, parts, count, d as off_t, f as c_int),
            libc::SYS_process_vm_readv => {
                own::process_vm_readv(fd, parts, c as c_ulong, others, e as c_ulong, f as c_ulong)
            }
            libc::SYS_process_vm_writev => {
                own::process_vm_writev(fd, parts, c as c_ulong, others, e as c_ulong, f as c_ulong)
            }
            libc::SYS_lseek => own::lseek64(fd, b as off_t, c as c_int) as isize,
            _ => return None,
        }
    };
    Some(done as c_long)
}

/// Executes the other calls that transfer bytes, or deliver a result once, as `transferred` does.
unsafe fn delivered(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let (fd, at) = (a as c_int, ptr::with_exposed_provenance_mut::<libc::c_void>(b));
    let pointer = ptr::with_exposed_provenance_mut::<libc::c_void>;
    // SAFETY: the caller keeps the contract of the system call.
    let done = unsafe {
        match number {
            libc::SYS_getrandom => transfer::getrandom(pointer(a), b, c as c_uint),
            libc::SYS_sendto => message::sendto(fd, at, c, d as c_int, pointer(e).cast(), f as socklen_t),
            libc::SYS_recvfrom => {
                message::recvfrom(fd, at, c, d as c_int, pointer(e).cast(), pointer(f).cast())
            }
            libc::SYS_sendmsg => message::sendmsg(fd, at.cast(), c as c_int),
            libc::SYS_recvmsg => message::recvmsg(fd, at.cast(), c as c_int),
            libc::SYS_sendmmsg => message::sendmmsg(fd, at.cast(), c as c_uint, d as c_int) as isize,
            libc::SYS_recvmmsg => {
                message::recvmmsg(fd, at.cast(), c as c_uint, d as c_int, pointer(e).cast()) as isize
            }
            libc::SYS_getsockopt => {
                once::getsockopt(fd, b as c_int, c as c_int, pointer(d), pointer(e).cast()) as isize
            }
            libc::SYS_nanosleep => once::nanosleep(pointer(a).cast(), at.cast()) as isize,
            libc::SYS_clock_nanosleep => {
                match once::clock_nanosleep(fd, b as c_int, pointer(c).cast(), pointer(d).cast()) {
                    0 => 0,
                    number => {
                        fail(number);
                        -1
                    }
                }
            }
            libc::SYS_wait4 => once::wait4(fd, at.cast(), c as c_int, pointer(d).cast()) as isize,
            libc::SYS_pipe2 => once::pipe2(pointer(a).cast(), b as c_int) as isize,
            libc::SYS_accept => once::accept(fd, at.cast(), pointer(c).cast()) as isize,
            libc::SYS_accept4 => once::accept4(fd, at.cast(), pointer(c).cast(), d as c_int) as isize,
            _ => return None,
        }
    };
    Some(done as c_long)
}

/// Returns the arguments in memory of a call that can be repeated. No memory is allocated, because signal
/// handlers may make these calls.
fn given(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<[Given; 3]> {
    use Given::{Reads, Text, Texts, Writes};
    const STAT: usize = size_of::<libc::stat>();
    const EVENT: usize = size_of::<libc::epoll_event>();
    const NAME: usize = size_of::<libc::sockaddr_storage>();
    const NONE: Given = Reads(0, 0);
    Some(match number {
        libc::SYS_openat | libc::SYS_faccessat | libc::SYS_mkdirat | libc::SYS_unlinkat => {
            [Text(b), NONE, NONE]
        }
        libc::SYS_openat2 => [Text(b), Reads(c, d), NONE],
        libc::SYS_renameat | libc::SYS_renameat2 => [Text(b), Text(d), NONE],
        libc::SYS_newfstatat => [Text(b), Writes(c, STAT), NONE],
        libc::SYS_fstat => [Writes(b, STAT), NONE, NONE],
        libc::SYS_statx => [Text(b), Writes(e, size_of::<libc::statx>()), NONE],
        libc::SYS_readlinkat => [Text(b), Writes(c, d), NONE],
        libc::SYS_getdents64 => [Writes(b, c.min(1 << 16)), NONE, NONE],
        libc::SYS_getcwd => [Writes(a, b.min(1 << 16)), NONE, NONE],
        libc::SYS_execve => [Text(a), Texts(b), Texts(c)],
        libc::SYS_execveat => [Text(b), Texts(c), Texts(d)],
        libc::SYS_memfd_create => [Text(a), NONE, NONE],
        libc::SYS_clock_gettime | libc::SYS_clock_getres => [Writes(b, 16), NONE, NONE],
        libc::SYS_fcntl => [Writes(c, LOCK), NONE, NONE],
        libc::SYS_epoll_ctl => [Reads(d, EVENT), NONE, NONE],
        libc::SYS_sched_getaffinity => [Writes(c, b), NONE, NONE],
        libc::SYS_sched_setaffinity => [Reads(c, b), NONE, NONE],
        libc::SYS_getrusage => [Writes(b, size_of::<libc::rusage>()), NONE, NONE],
        libc::SYS_uname => [Writes(a, size_of::<libc::utsname>()), NONE, NONE],
        libc::SYS_sysinfo => [Writes(a, size_of::<libc::sysinfo>()), NONE, NONE],
        libc::SYS_chdir => [Text(a), NONE, NONE],
        libc::SYS_statfs => [Text(a), Writes(b, size_of::<libc::statfs>()), NONE],
        libc::SYS_fstatfs => [Writes(b, size_of::<libc::statfs>()), NONE, NONE],
        libc::SYS_linkat => [Text(b), Text(d), NONE],
        libc::SYS_symlinkat => [Text(a), Text(c), NONE],
        libc::SYS_fchmodat | libc::SYS_fchownat | libc::SYS_inotify_add_watch => [Text(b), NONE, NONE],
        libc::SYS_utimensat => [Text(b), Reads(c, 32), NONE],
        libc::SYS_bind | libc::SYS_connect => [Reads(b, c.min(NAME)), NONE, NONE],
        libc::SYS_getsockname | libc::SYS_getpeername => [Writes(b, NAME), Writes(c, 4), NONE],
        libc::SYS_setsockopt => [Reads(d, e.min(SOME)), NONE, NONE],
        libc::SYS_capget | libc::SYS_capset => [Writes(a, 8), Writes(b, 24), NONE],
        // The C library has no functions for these calls, so programs make them by number.
        libc::SYS_sched_getattr => [Writes(b, c.min(SOME)), NONE, NONE],
        libc::SYS_sched_setattr => [Reads(b, 48), NONE, NONE],
        libc::SYS_perf_event_open => [Reads(a, 112), NONE, NONE],
        libc::SYS_bpf => [Writes(b, c.min(SOME)), NONE, NONE],
        libc::SYS_landlock_create_ruleset => [Reads(a, b.min(SOME)), NONE, NONE],
        libc::SYS_landlock_add_rule => [Reads(c, 16), NONE, NONE],
        libc::SYS_rt_sigqueueinfo => [Reads(c, size_of::<libc::siginfo_t>()), NONE, NONE],
        libc::SYS_pidfd_send_signal => [Reads(c, size_of::<libc::siginfo_t>()), NONE, NONE],
        libc::SYS_rt_tgsigqueueinfo => [Reads(d, size_of::<libc::siginfo_t>()), NONE, NONE],
        libc::SYS_futex_waitv => [Reads(a, b.min(128) * 24), Reads(d, 16), NONE],
        _ => return None,
    })
}
