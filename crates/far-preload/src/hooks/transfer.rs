//! `read`, `write` and similar calls on far memory if the kernel does not wait for pages (F1): through a
//! bounce buffer.
//!
//! A transfer longer than a bounce buffer is split into several calls if it must be complete (writing;
//! reading files and devices). Data of a pipe or a socket come from one call, because a further call could
//! wait for data that the program did not request. The result may then be short, as always for pipes and
//! sockets.
//!
//! Direct I/O (`O_DIRECT`) reads through a bounce buffer with every mechanism: the device writes into the
//! pages of the buffer without a fault, and a page could be paged out meanwhile.

use super::bounce::{BOUNCE, Bounce, MOST_PARTS, Parts};
use super::once::Kept;
use super::{errno, fail, own};
use crate::next::Next;
use crate::session::{is_bounced, is_managed, is_unserved, serves_system_calls};
use azekura_far::sys;
use libc::{iovec, off_t, size_t, ssize_t, timespec};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::{ptr, slice};

type Read = unsafe extern "C" fn(c_int, *mut c_void, size_t) -> ssize_t;
type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type ReadAt = unsafe extern "C" fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
type Vector = unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
type VectorAt = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
type VectorAtHow = unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
type Random = unsafe extern "C" fn(*mut c_void, size_t, libc::c_uint) -> ssize_t;

static READ: Next<Read> = Next::new(c"read");
static WRITE: Next<Write> = Next::new(c"write");
static PREAD: Next<ReadAt> = Next::new(c"pread64");
static PWRITE: Next<WriteAt> = Next::new(c"pwrite64");
static READV: Next<Vector> = Next::new(c"readv");
static WRITEV: Next<Vector> = Next::new(c"writev");
static PREADV: Next<VectorAt> = Next::new(c"preadv64");
static PWRITEV: Next<VectorAt> = Next::new(c"pwritev64");
static PREADV2: Next<VectorAtHow> = Next::new(c"preadv64v2");
static PWRITEV2: Next<VectorAtHow> = Next::new(c"pwritev64v2");
static GETRANDOM: Next<Random> = Next::new(c"getrandom");

/// Fills the parts through a bounce buffer. `call` gets the list for the kernel, and the number of bytes that
/// were read before.
///
/// # Safety
///
/// The caller may write the far parts.
pub(super) unsafe fn bounced_in(
    parts: Parts<'_>,
    goes_on: impl Fn() -> bool,
    call: impl Fn(&[iovec], usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: the list is that of the range, and the call returns at most its number of bytes, unless it
    // returns the length of a longer message.
    carried(parts, goes_on, |list, asked, done| unsafe {
        let got = call(list, done);
        if got > 0 {
            parts.scatter(done, list, (got as usize).min(asked));
        }
        got
    })
}

/// Writes the parts through a bounce buffer. `call` gets the list for the kernel, and the number of bytes
/// that were written before.
///
/// # Safety
///
/// The caller may read the far parts.
pub(super) unsafe fn bounced_out(
    parts: Parts<'_>,
    goes_on: impl Fn() -> bool,
    call: impl Fn(&[iovec], usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: the list is that of the range.
    carried(parts, goes_on, |list, _, done| unsafe {
        parts.gather(done, list);
        call(list, done)
    })
}

/// Fills one buffer through a bounce buffer. `call` gets the memory for the kernel, its length, and the
/// number of bytes that were read before.
///
/// # Safety
///
/// The caller may write the buffer.
pub(super) unsafe fn one_in(
    at: *mut c_void,
    bytes: size_t,
    goes_on: impl Fn() -> bool,
    call: impl Fn(*mut c_void, usize, usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller keeps this function's contract. The list of one buffer has one part.
    unsafe {
        bounced_in(Parts(&one(at, bytes)), goes_on, |list, done| {
            let (to, bytes) = list.first().map_or((at, 0), |part| (part.iov_base, part.iov_len));
            call(to, bytes, done)
        })
    }
}

/// Writes one buffer through a bounce buffer; otherwise as [`one_in`].
///
/// # Safety
///
/// The caller may read the buffer.
pub(super) unsafe fn one_out(
    at: *const c_void,
    bytes: size_t,
    goes_on: impl Fn() -> bool,
    call: impl Fn(*const c_void, usize, usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: as in `one_in`.
    unsafe {
        bounced_out(Parts(&one(at, bytes)), goes_on, |list, done| {
            let (from, bytes) =
                list.first().map_or((at, 0), |part| (part.iov_base.cast_const(), part.iov_len));
            call(from, bytes, done)
        })
    }
}

/// Transfers until all bytes are transferred or a call was short. `one` gets the list for the kernel, its
/// number of bytes, and the number of bytes before it. Returns the number of bytes, or -1 for an error.
fn carried(
    parts: Parts<'_>,
    goes_on: impl Fn() -> bool,
    one: impl Fn(&[iovec], usize, usize) -> ssize_t,
) -> ssize_t {
    let Some(bytes) = parts.bytes() else {
        fail(libc::EINVAL);
        return -1;
    };
    let Some(bounce) = Bounce::take() else {
        fail(libc::ENOMEM);
        return -1;
    };
    let mut done = 0;
    let result = loop {
        let asked = (bytes - done).min(BOUNCE);
        // SAFETY: this thread owns the bounce buffer, and the previous list is not used any more.
        let list = unsafe { parts.laid_out(done, asked, &bounce) };
        let here = one(list, asked, done);
        if here <= 0 {
            break if done > 0 { done as ssize_t } else { here };
        }
        done += here as usize;
        if (here as usize) < asked || done >= bytes || !goes_on() {
            break done as ssize_t;
        }
    };
    let kept = errno();
    bounce.give_back();
    fail(kept);
    result
}

/// Returns `true` if several reads of a descriptor return the same bytes as one: of a file, and of a device
/// with more bytes (`/dev/zero`).
fn has_more(fd: c_int) -> bool {
    // SAFETY: all zeros is a valid `stat`. The call fills it or fails.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &raw mut stat) == 0
            && match stat.st_mode & libc::S_IFMT {
                libc::S_IFREG | libc::S_IFBLK => true,
                libc::S_IFCHR => is_ready(fd),
                _ => false,
            }
    }
}

/// Returns `true` if a read of a descriptor does not wait.
fn is_ready(fd: c_int) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    let arguments = [(&raw mut polled) as usize, 1, (&raw const now) as usize, 0, 0, 0];
    // SAFETY: both are local variables.
    unsafe { sys::call(libc::SYS_ppoll, arguments) == 1 && polled.revents & libc::POLLIN != 0 }
}

/// Returns `true` if a read into a range must go through a bounce buffer.
fn reads_by_bounce(fd: c_int, at: usize, bytes: usize) -> bool {
    is_bounced(at, bytes) || is_far(at, bytes) && is_direct(fd)
}

fn is_far(at: usize, bytes: usize) -> bool {
    bytes > 0 && is_managed(at..at.saturating_add(bytes))
}

/// Returns `true` if a descriptor reads by direct I/O.
fn is_direct(fd: c_int) -> bool {
    let kept = errno();
    // SAFETY: the call accesses no memory of this process.
    let flags = unsafe { sys::call(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    fail(kept);
    flags >= 0 && flags as c_int & libc::O_DIRECT != 0
}

/// Returns a buffer with one part.
pub(super) fn one(at: *const c_void, bytes: size_t) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: bytes }]
}

/// Prepares a transfer at an offset, or at the file's position, for the case that the file is the memory of
/// this process.
macro_rules! before {
    ($fd:expr, $bytes:expr) => {
        own::before_transfer($fd, $bytes)
    };
    ($fd:expr, $bytes:expr, $offset:expr) => {
        own::before_transfer_at($fd, $offset, $bytes)
    };
}

macro_rules! read {
    ($name:ident, $next:ident $(, $offset:ident)?) => {
        /// # Safety
        ///
        /// The contract of the C library's function.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            fd: c_int, at: *mut c_void, bytes: size_t $(, $offset: off_t)?
        ) -> ssize_t {
            // SAFETY: the caller keeps the contract of the C function.
            unsafe {
                before!(fd, || bytes $(, $offset)?);
                if !reads_by_bounce(fd, at as usize, bytes) {
                    return $next.get()(fd, at, bytes $(, $offset)?);
                }
                one_in(at, bytes, || has_more(fd), |to, n, _done| {
                    $next.get()(fd, to, n $(, $offset.wrapping_add(_done as off_t))?)
                })
            }
        }
    };
}

macro_rules! write {
    ($name:ident, $next:ident $(, $offset:ident)?) => {
        /// # Safety
        ///
        /// The contract of the C library's function.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            fd: c_int, at: *const c_void, bytes: size_t $(, $offset: off_t)?
        ) -> ssize_t {
            // SAFETY: the caller keeps the contract of the C function.
            unsafe {
                before!(fd, || bytes $(, $offset)?);
                if !is_bounced(at as usize, bytes) {
                    return $next.get()(fd, at, bytes $(, $offset)?);
                }
                one_out(at, bytes, || true, |from, n, _done| {
                    $next.get()(fd, from, n $(, $offset.wrapping_add(_done as off_t))?)
                })
            }
        }
    };
}

read!(read, READ);
read!(pread, PREAD, offset);
read!(pread64, PREAD, offset);
write!(write, WRITE);
write!(pwrite, PWRITE, offset);
write!(pwrite64, PWRITE, offset);

/// Returns the parts of a call if the kernel cannot access them; `None` if it can, or if the kernel must
/// report an error.
///
/// # Safety
///
/// The contract of `readv`: `at` points to `count` parts.
pub(super) unsafe fn unserved_parts<'a>(at: *const iovec, count: usize) -> Option<Parts<'a>> {
    // If the kernel waits for far memory, it also reports a list that cannot be read.
    if serves_system_calls() || at.is_null() || count == 0 || count > MOST_PARTS {
        return None;
    }
    // SAFETY: the caller keeps this function's contract.
    let parts = Parts(unsafe { slice::from_raw_parts(at, count) });
    (is_unserved(at as usize, size_of_val(parts.0)) || parts.are_unserved()).then_some(parts)
}

/// Returns the parts of a read that must go through a bounce buffer; otherwise as [`unserved_parts`].
///
/// # Safety
///
/// The contract of `readv`: `at` points to `count` parts.
unsafe fn parts_to_read<'a>(fd: c_int, at: *const iovec, count: usize) -> Option<Parts<'a>> {
    // SAFETY: the caller keeps this function's contract.
    if let Some(parts) = unsafe { unserved_parts(at, count) } {
        return Some(parts);
    }
    if at.is_null() || count > MOST_PARTS {
        return None;
    }
    // SAFETY: the caller keeps this function's contract.
    let parts = Parts(unsafe { slice::from_raw_parts(at, count) });
    let is_far = parts.0.iter().any(|part| is_far(part.iov_base as usize, part.iov_len));
    (is_far && is_direct(fd)).then_some(parts)
}

/// Returns the parts of a write that must go through a bounce buffer.
///
/// # Safety
///
/// The contract of `writev`: `at` points to `count` parts.
unsafe fn parts_to_write<'a>(_fd: c_int, at: *const iovec, count: usize) -> Option<Parts<'a>> {
    // SAFETY: the caller keeps this function's contract.
    unsafe { unserved_parts(at, count) }
}

/// Returns the number of bytes of a list of parts.
///
/// # Safety
///
/// The contract of `readv`: `at` points to `count` parts.
unsafe fn bytes_of(at: *const iovec, count: c_int) -> usize {
    if at.is_null() || !(0..=MOST_PARTS as c_int).contains(&count) {
        return 0;
    }
    // SAFETY: the caller keeps this function's contract.
    Parts(unsafe { slice::from_raw_parts(at, count as usize) }).bytes().unwrap_or(0)
}

macro_rules! vector {
    (
        $name:ident, $next:ident, $parts:ident, $bounced:ident, $goes_on:expr
        $(, $offset:ident $(, $how:ident)?)?
    ) => {
        /// # Safety
        ///
        /// The contract of the C library's function.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(
            fd: c_int, parts: *const iovec, count: c_int $(, $offset: off_t $(, $how: c_int)?)?
        ) -> ssize_t {
            // SAFETY: the caller keeps the contract of the C function.
            unsafe {
                before!(fd, || bytes_of(parts, count) $(, $offset)?);
                match usize::try_from(count).ok().and_then(|count| $parts(fd, parts, count)) {
                    None => $next.get()(fd, parts, count $(, $offset $(, $how)?)?),
                    Some(parts) => $bounced(parts, || $goes_on(fd), |list, _done| {
                        let count = list.len() as c_int;
                        $next.get()(fd, list.as_ptr(), count $(, further($offset, _done) $(, $how)?)?)
                    }),
                }
            }
        }
    };
}

/// Returns the offset of the next piece; -1 means the file's own position and stays -1.
fn further(offset: off_t, done: usize) -> off_t {
    if offset == -1 { -1 } else { offset.wrapping_add(done as off_t) }
}

fn always(_fd: c_int) -> bool {
    true
}

vector!(readv, READV, parts_to_read, bounced_in, has_more);
vector!(writev, WRITEV, parts_to_write, bounced_out, always);
vector!(preadv, PREADV, parts_to_read, bounced_in, has_more, offset);
vector!(preadv64, PREADV, parts_to_read, bounced_in, has_more, offset);
vector!(pwritev, PWRITEV, parts_to_write, bounced_out, always, offset);
vector!(pwritev64, PWRITEV, parts_to_write, bounced_out, always, offset);
vector!(preadv2, PREADV2, parts_to_read, bounced_in, has_more, offset, how);
vector!(preadv64v2, PREADV2, parts_to_read, bounced_in, has_more, offset, how);
vector!(pwritev2, PWRITEV2, parts_to_write, bounced_out, always, offset, how);
vector!(pwritev64v2, PWRITEV2, parts_to_write, bounced_out, always, offset, how);

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getrandom(at: *mut c_void, bytes: size_t, flags: libc::c_uint) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if !is_unserved(at as usize, bytes) {
            return GETRANDOM.get()(at, bytes, flags);
        }
        one_in(at, bytes, || true, |to, n, _| GETRANDOM.get()(to, n, flags))
    }
}

static ARC4RANDOM: Next<unsafe extern "C" fn(*mut c_void, size_t)> = Next::new(c"arc4random_buf");

/// # Safety
///
/// The contract of the C library's function, which ends the program if the kernel cannot fill the buffer.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn arc4random_buf(at: *mut c_void, bytes: size_t) {
    // SAFETY: the caller keeps the contract of the C function. The C library fills the bounce buffer.
    unsafe {
        if !is_unserved(at as usize, bytes) {
            return ARC4RANDOM.get()(at, bytes);
        }
        let filled = one_in(
            at,
            bytes,
            || true,
            |to, n, _| {
                ARC4RANDOM.get()(to, n);
                n.cast_signed()
            },
        );
        if filled.cast_unsigned() != bytes {
            crate::session::exhausted(bytes);
        }
    }
}

type ReceiveSysV = unsafe extern "C" fn(c_int, *mut c_void, size_t, libc::c_long, c_int) -> ssize_t;
type ReceivePosix = unsafe extern "C" fn(c_int, *mut c_char, size_t, *mut c_uint, *const timespec) -> ssize_t;

static MSGRCV: Next<ReceiveSysV> = Next::new(c"msgrcv");
static MQ_TIMEDRECEIVE: Next<ReceivePosix> = Next::new(c"mq_timedreceive");

/// # Safety
///
/// The contract of the C library's function. The message begins with its type.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn msgrcv(
    queue: c_int,
    at: *mut c_void,
    bytes: size_t,
    kind: libc::c_long,
    flags: c_int,
) -> ssize_t {
    const KIND: usize = size_of::<libc::c_long>();
    let whole = bytes.saturating_add(KIND);
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if whole > BOUNCE || !is_unserved(at as usize, whole) {
            return MSGRCV.get()(queue, at, bytes, kind, flags);
        }
        let got = one_in(
            at,
            whole,
            || false,
            |to, _, _| {
                let got = MSGRCV.get()(queue, to, bytes, kind, flags);
                if got < 0 { got } else { got + KIND as ssize_t }
            },
        );
        if got < 0 { got } else { got - KIND as ssize_t }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mq_timedreceive(
    queue: c_int,
    at: *mut c_char,
    bytes: size_t,
    priority: *mut c_uint,
    until: *const timespec,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let (mut given, mut kept) = (Kept::new(priority), Kept::new(until.cast_mut()));
        let (priority, until) = (given.pointer(), kept.pointer().cast_const());
        let got = if bytes > BOUNCE || !is_unserved(at as usize, bytes) {
            MQ_TIMEDRECEIVE.get()(queue, at, bytes, priority, until)
        } else {
            one_in(
                at.cast(),
                bytes,
                || false,
                |to, n, _| MQ_TIMEDRECEIVE.get()(queue, to.cast(), n, priority, until),
            )
        };
        if got >= 0 {
            given.give_back();
        }
        got
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn mq_receive(
    queue: c_int,
    at: *mut c_char,
    bytes: size_t,
    priority: *mut c_uint,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { mq_timedreceive(queue, at, bytes, priority, ptr::null()) }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    MSGRCV.resolve();
    MQ_TIMEDRECEIVE.resolve();
    READ.resolve();
    WRITE.resolve();
    PREAD.resolve();
    PWRITE.resolve();
    READV.resolve();
    WRITEV.resolve();
    PREADV.resolve();
    PWRITEV.resolve();
    PREADV2.resolve();
    PWRITEV2.resolve();
    GETRANDOM.resolve();
    ARC4RANDOM.resolve();
}
