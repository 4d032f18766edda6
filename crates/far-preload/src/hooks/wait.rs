//! Calls that wait for descriptors (F1). The kernel writes the results after it has waited. If it cannot
//! write them, the time may have passed, or a signal may have ended the wait, so the call must not be
//! repeated (`again`). The kernel gets ordinary memory, and the calling thread copies the results.

use super::bounce::{BOUNCE, Bounce};
use super::given::{asked, writes};
use super::once::Kept;
use super::signal::WaitMask;
use super::{errno, fail};
use crate::next::Next;
use crate::session::is_unserved;
use azekura_far::sys;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

const EVENT: usize = size_of::<epoll_event>();
/// Largest number of bytes of a copy on the stack.
const SHORT: usize = 4096;
/// Number of bits in a word of `fd_set`, and of words in an `fd_set`.
const BITS: usize = 64;
const WORDS: usize = libc::FD_SETSIZE / BITS;

type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type PollMask = unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
type Select = unsafe extern "C" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
type SelectMask = unsafe extern "C" fn(
    c_int,
    *mut fd_set,
    *mut fd_set,
    *mut fd_set,
    *const timespec,
    *const sigset_t,
) -> c_int;
type Epoll = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type EpollMask = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int;
type EpollTime =
    unsafe extern "C" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int;

static POLL: Next<Poll> = Next::new(c"poll");
static PPOLL: Next<PollMask> = Next::new(c"ppoll");
static SELECT: Next<Select> = Next::new(c"select");
static PSELECT: Next<SelectMask> = Next::new(c"pselect");
static EPOLL_WAIT: Next<Epoll> = Next::new(c"epoll_wait");
static EPOLL_PWAIT: Next<EpollMask> = Next::new(c"epoll_pwait");
static EPOLL_PWAIT2: Next<EpollTime> = Next::new(c"epoll_pwait2");

/// Calls `run` with the time limit and the mask of a wait in ordinary memory.
///
/// # Safety
///
/// Each pointer is null, or that of a time or a mask.
unsafe fn with_limits(
    time: *const timespec,
    mask: *const sigset_t,
    run: impl FnOnce(*const timespec, *const sigset_t) -> c_int,
) -> c_int {
    // SAFETY: the caller keeps this function's contract.
    let (mut time, mask) = unsafe { (Kept::new(time.cast_mut()), WaitMask::new(mask)) };
    run(time.pointer(), mask.pointer())
}

/// Calls `run` with ordinary memory of this length, at most [`BOUNCE`]. Short memory is on the stack, because
/// transfers of other threads need the bounce buffers while this thread waits.
fn with_buffer(bytes: usize, run: impl FnOnce(*mut u8) -> c_int) -> c_int {
    if bytes <= SHORT {
        let mut short = MaybeUninit::<[u64; SHORT / size_of::<u64>()]>::uninit();
        return run(short.as_mut_ptr().cast());
    }
    let Some(bounce) = Bounce::take() else {
        fail(libc::ENOMEM);
        return -1;
    };
    let result = run(bounce.at());
    let kept = errno();
    bounce.give_back();
    fail(kept);
    result
}

/// Makes a call of `poll` with the descriptors in ordinary memory. More descriptors than a bounce buffer has
/// room for stay in far memory: the call is repeated, and may wait longer than the program requests.
///
/// # Safety
///
/// The contract of `poll`.
unsafe fn polled(fds: *mut pollfd, count: usize, call: impl Fn(*mut pollfd) -> c_int) -> c_int {
    let bytes = count.saturating_mul(size_of::<pollfd>());
    if !is_unserved(fds as usize, bytes) {
        return call(fds);
    }
    if bytes > BOUNCE {
        return asked(&[writes(fds, bytes)], || call(fds));
    }
    with_buffer(bytes, |buffer| {
        let copy = buffer.cast::<pollfd>();
        // SAFETY: the caller's array and the buffer have this number of descriptors.
        unsafe { ptr::copy_nonoverlapping(fds, copy, count) };
        let found = call(copy);
        // The kernel writes only the events that it found, also after a failure.
        // SAFETY: as above.
        (0..count).for_each(|i| unsafe { (*fds.add(i)).revents = (*copy.add(i)).revents });
        found
    })
}

/// Makes a call of `epoll_wait` with the events in ordinary memory, which limits their number. The other
/// events are returned by later calls.
///
/// # Safety
///
/// The contract of `epoll_wait`.
unsafe fn awaited(
    to: *mut epoll_event,
    most: c_int,
    call: impl Fn(*mut epoll_event, c_int) -> c_int,
) -> c_int {
    let count = usize::try_from(most).unwrap_or(0);
    if !is_unserved(to as usize, count * EVENT) {
        return call(to, most);
    }
    let count = count.min(SHORT / EVENT);
    with_buffer(count * EVENT, |buffer| {
        let found = call(buffer.cast(), count as c_int);
        let bytes = usize::try_from(found).unwrap_or(0) * EVENT;
        // SAFETY: the kernel has stored this number of events, and the caller's array has room for them.
        unsafe { ptr::copy_nonoverlapping(buffer, to.cast::<u8>(), bytes) };
        found
    })
}

/// A set of descriptors, in ordinary memory if the kernel cannot access the program's set.
struct Set {
    of: *mut fd_set,
    is_far: bool,
    words: [u64; WORDS],
}

impl Set {
    /// # Safety
    ///
    /// The pointer is null, or that of a set with this number of words, at most [`WORDS`].
    unsafe fn new(of: *mut fd_set, count: usize) -> Self {
        let is_far = is_unserved(of as usize, count * size_of::<u64>());
        let mut words = [0; WORDS];
        if is_far {
            // SAFETY: a far pointer is not null, and both have this number of words.
            unsafe { ptr::copy_nonoverlapping(of.cast::<u64>(), words.as_mut_ptr(), count) };
        }
        Self { of, is_far, words }
    }

    fn pointer(&mut self) -> *mut fd_set {
        if self.is_far { self.words.as_mut_ptr().cast() } else { self.of }
    }

    /// Copies the words back.
    ///
    /// # Safety
    ///
    /// The contract of `new`, with the same number of words.
    unsafe fn give_back(&self, count: usize) {
        if self.is_far {
            // SAFETY: the caller keeps this function's contract.
            unsafe { ptr::copy_nonoverlapping(self.words.as_ptr(), self.of.cast::<u64>(), count) };
        }
    }
}

/// Makes a call of `select` with the sets in ordinary memory. Sets longer than an `fd_set` stay in far
/// memory: the call is repeated, and may wait longer than the program requests.
///
/// # Safety
///
/// The contract of `select`.
unsafe fn selected(most: c_int, sets: [*mut fd_set; 3], call: impl Fn([*mut fd_set; 3]) -> c_int) -> c_int {
    let count = usize::try_from(most).unwrap_or(0).div_ceil(BITS);
    if count > WORDS {
        let given = sets.map(|set| writes(set, count * size_of::<u64>()));
        return asked(&given, || call(sets));
    }
    // SAFETY: the caller's sets have this number of words. The kernel changes them only if the call succeeds.
    unsafe {
        let mut copies = sets.map(|set| Set::new(set, count));
        let found = call(copies.each_mut().map(Set::pointer));
        if found >= 0 {
            copies.iter().for_each(|copy| copy.give_back(count));
        }
        found
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, time: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { polled(fds, count as usize, |fds| POLL.get()(fds, count, time)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        with_limits(time, mask, |time, mask| {
            polled(fds, count as usize, |fds| PPOLL.get()(fds, count, time, mask))
        })
    }
}

/// # Safety
///
/// The contract of the C library's function, which stores the remaining time.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn select(
    most: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    time: *mut timeval,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(time);
        let time = kept.pointer();
        let sets = [readable, writable, exceptional];
        let found = selected(most, sets, |[r, w, e]| SELECT.get()(most, r, w, e, time));
        kept.give_back();
        found
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pselect(
    most: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let sets = [readable, writable, exceptional];
        with_limits(time, mask, |time, mask| {
            selected(most, sets, |[r, w, e]| PSELECT.get()(most, r, w, e, time, mask))
        })
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_wait(
    fd: c_int,
    to: *mut epoll_event,
    most: c_int,
    time: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { awaited(to, most, |to, most| EPOLL_WAIT.get()(fd, to, most, time)) }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    to: *mut epoll_event,
    most: c_int,
    time: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mask = WaitMask::new(mask);
        let mask = mask.pointer();
        awaited(to, most, |to, most| EPOLL_PWAIT.get()(fd, to, most, time, mask))
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn epoll_pwait2(
    fd: c_int,
    to: *mut epoll_event,
    most: c_int,
    time: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        with_limits(time, mask, |time, mask| {
            awaited(to, most, |to, most| EPOLL_PWAIT2.get()(fd, to, most, time, mask))
        })
    }
}

/// Executes these calls by their system call numbers. Returns `None` for other numbers. The C library may
/// have no `epoll_pwait2`, and only the system call `ppoll` stores the remaining time.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: libc::c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_int> {
    fn at<T>(address: usize) -> *mut T {
        ptr::with_exposed_provenance_mut(address)
    }
    // SAFETY: the caller keeps the contract. Integers keep their low half, as in the kernel.
    unsafe {
        let call = |arguments| sys::call(number, arguments) as c_int;
        Some(match number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll(at(a), b as nfds_t, c as c_int),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => select(a as c_int, at(b), at(c), at(d), at(e)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll_wait(a as c_int, at(b), c as c_int, d as c_int),
            libc::SYS_ppoll => {
                let (mut kept, mask) = (Kept::new(at::<timespec>(c)), WaitMask::new(at::<sigset_t>(d)));
                let (time, mask) = (kept.pointer() as usize, mask.pointer() as usize);
                let found = polled(at(a), b as u32 as usize, |fds| call([fds as usize, b, time, mask, e, 0]));
                kept.give_back();
                found
            }
            libc::SYS_epoll_pwait => {
                let mask = WaitMask::new(at::<sigset_t>(e));
                let mask = mask.pointer() as usize;
                awaited(at(b), c as c_int, |to, most| call([a, to as usize, most as usize, d, mask, f]))
            }
            libc::SYS_epoll_pwait2 => with_limits(at(d), at(e), |time, mask| {
                let (time, mask) = (time as usize, mask as usize);
                awaited(at(b), c as c_int, |to, most| call([a, to as usize, most as usize, time, mask, f]))
            }),
            _ => return None,
        })
    }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    POLL.resolve();
    PPOLL.resolve();
    SELECT.resolve();
    PSELECT.resolve();
    EPOLL_WAIT.resolve();
    EPOLL_PWAIT.resolve();
    EPOLL_PWAIT2.resolve();
}
