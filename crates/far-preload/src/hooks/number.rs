//! System calls by number (`syscall`) with a buffer or a name in far memory. Calls with the arguments of the
//! C library's functions go to the hooks of these functions: transfers with every mechanism, because of
//! direct I/O and of the memory of this process (`transfer`, `own`), the others if the kernel does not wait
//! for far memory (F1). Results that the kernel delivers once are in ordinary memory. All other calls are
//! repeated, as in `again`: an argument of unknown kind may be an address (`Given::Any`).

use super::given::{Given, asked};
use super::{fail, message, once, own, stack, transfer, wait};
use crate::session::{is_unserved, serves_system_calls, unmanage};
use azekura_far::sys;
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
        let once = || Some(kept(number, arguments, results(number)?));
        delivered(number, arguments).or_else(waited).or_else(once).or_else(|| {
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
            libc::SYS_mq_timedreceive => {
                transfer::mq_timedreceive(fd, at.cast(), c, pointer(d).cast(), pointer(e).cast())
            }
            libc::SYS_msgrcv => transfer::msgrcv(fd, at, c, d as c_long, e as c_int),
            libc::SYS_sigaltstack => stack::sigaltstack(pointer(a).cast(), at.cast()) as isize,
            libc::SYS_accept => once::accept(fd, at.cast(), pointer(c).cast()) as isize,
            libc::SYS_accept4 => once::accept4(fd, at.cast(), pointer(c).cast(), d as c_int) as isize,
            _ => return None,
        }
    };
    Some(done as c_long)
}

/// Returns the arguments of a call that can be repeated and has lists of known form.
fn given(number: c_long, [a, b, c, d, _, _]: [usize; 6]) -> Option<[Given; 3]> {
    use Given::{Reads, Text, Texts};
    Some(match number {
        libc::SYS_execve => [Text(a), Texts(b), Texts(c)],
        libc::SYS_execveat => [Text(b), Texts(c), Texts(d)],
        libc::SYS_futex_waitv => [Reads(a, b.min(128) * 24), Reads(d, 16), Reads(0, 0)],
        _ => return None,
    })
}

/// Returns the arguments with results that the kernel delivers once, or that it writes after the call has had
/// its effect: their indexes, and their sizes in bytes.
fn results(number: c_long) -> Option<&'static [(usize, usize)]> {
    const USAGE: usize = size_of::<libc::rusage>();
    const SIGNAL: usize = size_of::<libc::siginfo_t>();
    const CLOCK: usize = size_of::<libc::timex>();
    const QUEUE: usize = size_of::<libc::mq_attr>();
    Some(match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pipe => &[(0, 8)],
        libc::SYS_pipe2 => &[(0, 8)],
        libc::SYS_socketpair => &[(3, 8)],
        libc::SYS_wait4 => &[(1, 4), (3, USAGE)],
        libc::SYS_waitid => &[(2, SIGNAL), (4, USAGE)],
        libc::SYS_sendfile => &[(2, 8)],
        libc::SYS_splice | libc::SYS_copy_file_range => &[(1, 8), (3, 8)],
        libc::SYS_rt_sigaction | libc::SYS_setitimer => &[(1, 32), (2, 32)],
        libc::SYS_timer_settime | libc::SYS_timerfd_settime => &[(2, 32), (3, 32)],
        libc::SYS_rt_sigtimedwait => &[(0, 8), (1, SIGNAL), (2, 16)],
        libc::SYS_mq_getsetattr => &[(1, QUEUE), (2, QUEUE)],
        libc::SYS_adjtimex => &[(0, CLOCK)],
        libc::SYS_clock_adjtime => &[(1, CLOCK)],
        _ => return None,
    })
}

/// Makes a call with these arguments in ordinary memory, and copies them back if the call succeeds. The
/// kernel does not change arguments that it only reads.
///
/// # Safety
///
/// The contract of the system call with this number.
unsafe fn kept(number: c_long, mut arguments: [usize; 6], results: &[(usize, usize)]) -> c_long {
    const LARGEST: usize = 256;
    let mut copies = [[0_u64; LARGEST / size_of::<u64>()]; 3];
    let given = arguments;
    for (copy, &(index, bytes)) in copies.iter_mut().zip(results) {
        assert!(bytes <= LARGEST, "results of {bytes} bytes");
        if is_unserved(given[index], bytes) {
            let from = ptr::with_exposed_provenance::<u8>(given[index]);
            // SAFETY: the caller keeps the contract, and the copy has at least this number of bytes.
            unsafe { ptr::copy_nonoverlapping(from, copy.as_mut_ptr().cast::<u8>(), bytes) };
            arguments[index] = copy.as_mut_ptr() as usize;
        }
    }
    // SAFETY: the caller keeps the contract.
    let done = unsafe { sys::call(number, arguments) };
    for (copy, &(index, bytes)) in copies.iter().zip(results) {
        if done != -1 && arguments[index] != given[index] {
            let to = ptr::with_exposed_provenance_mut::<u8>(given[index]);
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(copy.as_ptr().cast::<u8>(), to, bytes) };
        }
    }
    done as c_long
}
