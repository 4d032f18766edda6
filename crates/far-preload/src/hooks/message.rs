//! Socket messages to and from far memory if the kernel does not wait for pages (F1).
//!
//! A message is indivisible, so it is transferred through one bounce buffer. A longer transfer can only be on
//! a stream, and is continued by further calls if it must be complete (sending; `MSG_WAITALL`).

use super::bounce::{BOUNCE, Bounce, MOST_PARTS, Parts};
use super::once::Kept;
use super::transfer::{one, one_in, one_out, unserved_parts};
use super::{errno, fail, queued};
use crate::next::Next;
use crate::session::{is_bounced, is_unserved, serves_system_calls};
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_uint, c_void};
use std::time::{Duration, Instant};
use std::{mem, ptr};

type Receive = unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type Send = unsafe extern "C" fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
type ReceiveFrom =
    unsafe extern "C" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
type SendTo =
    unsafe extern "C" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
type ReceiveMessage = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> ssize_t;
type SendMessage = unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t;
type ReceiveMessages = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
type SendMessages = unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;

static RECV: Next<Receive> = Next::new(c"recv");
static SEND: Next<Send> = Next::new(c"send");
static RECVFROM: Next<ReceiveFrom> = Next::new(c"recvfrom");
static SENDTO: Next<SendTo> = Next::new(c"sendto");
static RECVMSG: Next<ReceiveMessage> = Next::new(c"recvmsg");
static SENDMSG: Next<SendMessage> = Next::new(c"sendmsg");
static RECVMMSG: Next<ReceiveMessages> = Next::new(c"recvmmsg");
static SENDMMSG: Next<SendMessages> = Next::new(c"sendmmsg");

/// Largest size of ancillary data in bytes. The kernel's own limit is about 20 KiB.
const CONTROL: usize = 32 << 10;

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recv(fd: c_int, at: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if !is_bounced(at as usize, bytes) {
            return RECV.get()(fd, at, bytes, flags);
        }
        let all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        one_in(at, bytes, || all, |to, n, _| RECV.get()(fd, to, n, flags))
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn send(fd: c_int, at: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        queued::before_bytes(at, bytes, flags);
        if !is_bounced(at as usize, bytes) {
            return SEND.get()(fd, at, bytes, flags);
        }
        one_out(at, bytes, || true, |from, n, _| SEND.get()(fd, from, n, flags))
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvfrom(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function. The sender's address is written by the C
    // library into the caller's memory, or copied there by this function.
    unsafe {
        if from.is_null() {
            return recv(fd, at, bytes, flags); // the length is not accessed
        }
        let far_name = is_unserved(from as usize, 1) || is_unserved(length as usize, 1);
        if !far_name && !is_bounced(at as usize, bytes) {
            return RECVFROM.get()(fd, at, bytes, flags, from, length);
        }
        let parts = one(at, bytes);
        let mut message: msghdr = mem::zeroed();
        message.msg_name = from.cast();
        message.msg_namelen = if length.is_null() { 0 } else { *length };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = 1;
        let got = recvmsg_bounced(fd, &raw mut message, flags);
        if got >= 0 && !length.is_null() {
            *length = message.msg_namelen;
        }
        got
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendto(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        queued::before_bytes(at, bytes, flags);
        if !is_unserved(to as usize, 1) && !is_bounced(at as usize, bytes) {
            return SENDTO.get()(fd, at, bytes, flags, to, length);
        }
        let Some((name, length)) = copied_name(to.cast(), length) else { return -1 };
        let to = if length == 0 { ptr::null() } else { (&raw const name).cast() };
        one_out(at, bytes, || true, |from, n, _| SENDTO.get()(fd, from, n, flags, to, length))
    }
}

/// Returns a copy of a socket address in ordinary memory.
unsafe fn copied_name(at: *const c_void, length: socklen_t) -> Option<(libc::sockaddr_storage, socklen_t)> {
    let bytes = length as usize;
    if bytes > size_of::<libc::sockaddr_storage>() {
        fail(libc::EINVAL);
        return None;
    }
    // SAFETY: all zeros is a valid address. The caller's address has the given length, which fits.
    unsafe {
        let mut name: libc::sockaddr_storage = mem::zeroed();
        if !at.is_null() {
            ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut name).cast(), bytes);
        }
        Some((name, if at.is_null() { 0 } else { length }))
    }
}

/// Returns `true` if the kernel could not access some part of a message.
unsafe fn is_far(message: *const msghdr) -> bool {
    // If the kernel waits for far memory, it also reports a message that cannot be read.
    if message.is_null() || serves_system_calls() {
        return false;
    }
    if is_unserved(message as usize, size_of::<msghdr>()) {
        return true;
    }
    // SAFETY: the message is that of the caller.
    unsafe {
        is_unserved((*message).msg_name as usize, (*message).msg_namelen as usize)
            || is_unserved((*message).msg_control as usize, (*message).msg_controllen)
            || unserved_parts((*message).msg_iov, (*message).msg_iovlen).is_some()
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if is_far(message) { recvmsg_bounced(fd, message, flags) } else { RECVMSG.get()(fd, message, flags) }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        queued::before_message(message, flags);
        if is_far(message) { sendmsg_bounced(fd, message, flags) } else { SENDMSG.get()(fd, message, flags) }
    }
}

/// A message in ordinary memory that replaces the program's message. Name and control data are in this value,
/// and the far parts are in the bounce buffer.
struct Stand {
    message: msghdr,
    name: libc::sockaddr_storage,
    control: [u64; CONTROL / 8],
}

impl Stand {
    /// Initializes the message from the program's message. Name and control data are cut to their buffers
    /// here; the kernel cuts a name, too. The message contains pointers to itself, so it must not be moved
    /// afterward.
    ///
    /// # Safety
    ///
    /// `like` points to a message.
    unsafe fn lay_out(&mut self, like: *const msghdr, list: &[iovec]) {
        // SAFETY: the message is that of the caller.
        let like = unsafe { &*like };
        self.message = *like;
        self.message.msg_iov = list.as_ptr().cast_mut();
        self.message.msg_iovlen = list.len();
        if !like.msg_name.is_null() {
            self.message.msg_name = (&raw mut self.name).cast();
            self.message.msg_namelen = like.msg_namelen.min(size_of_val(&self.name) as socklen_t);
        }
        if !like.msg_control.is_null() {
            self.message.msg_control = self.control.as_mut_ptr().cast();
            self.message.msg_controllen = like.msg_controllen.min(CONTROL);
        }
    }

    /// Copies the program's name and control data.
    ///
    /// # Safety
    ///
    /// `like` is the message from which this one was initialized.
    unsafe fn copy_from(&mut self, like: *const msghdr) {
        // SAFETY: neither is longer than the buffer here, because `lay_out` has cut both.
        unsafe {
            let like = &*like;
            if !like.msg_name.is_null() {
                let to = (&raw mut self.name).cast::<u8>();
                ptr::copy_nonoverlapping(like.msg_name.cast(), to, self.message.msg_namelen as usize);
            }
            if !like.msg_control.is_null() {
                let to = self.control.as_mut_ptr().cast::<u8>();
                ptr::copy_nonoverlapping(like.msg_control.cast(), to, self.message.msg_controllen);
            }
        }
    }

    /// Copies name, control data and flags back to the program, as the kernel left them.
    ///
    /// # Safety
    ///
    /// `to` is the message from which this one was initialized.
    unsafe fn copy_to(&self, to: *mut msghdr) {
        // SAFETY: neither copy is longer than the program's buffer.
        unsafe {
            let (to, from) = (&mut *to, &self.message);
            if !to.msg_name.is_null() {
                let bytes = from.msg_namelen.min(to.msg_namelen) as usize;
                ptr::copy_nonoverlapping((&raw const self.name).cast::<u8>(), to.msg_name.cast(), bytes);
                to.msg_namelen = from.msg_namelen;
            }
            if !to.msg_control.is_null() {
                let bytes = from.msg_controllen.min(to.msg_controllen);
                ptr::copy_nonoverlapping(self.control.as_ptr().cast::<u8>(), to.msg_control.cast(), bytes);
            }
            to.msg_controllen = from.msg_controllen;
            to.msg_flags = from.msg_flags;
        }
    }
}

/// Replaces a message by one with a bounce buffer while `call` runs. `call` gets the replacement, the parts,
/// the bounce buffer, and the list of the first bytes.
///
/// # Safety
///
/// The caller owns the message and all memory to which it points.
unsafe fn stood_for(
    message: *const msghdr,
    call: impl FnOnce(&mut Stand, Parts<'_>, &Bounce, &[iovec]) -> ssize_t,
) -> ssize_t {
    // SAFETY: all zeros is a valid value. The caller's message has this number of parts.
    let (mut stand, parts) = unsafe {
        let count = (*message).msg_iovlen;
        let parts = if count == 0 { &[][..] } else { std::slice::from_raw_parts((*message).msg_iov, count) };
        (mem::zeroed::<Stand>(), Parts(parts))
    };
    if parts.0.len() > MOST_PARTS {
        fail(libc::EMSGSIZE);
        return -1;
    }
    let Some(bytes) = parts.bytes() else {
        fail(libc::EINVAL);
        return -1;
    };
    let Some(bounce) = Bounce::take() else {
        fail(libc::ENOMEM);
        return -1;
    };
    // SAFETY: this thread owns the bounce buffer, and the message is that of the caller.
    let list = unsafe { parts.laid_out(0, bytes.min(BOUNCE), &bounce) };
    // SAFETY: as above.
    unsafe { stand.lay_out(message, list) };
    let result = call(&mut stand, parts, &bounce, list);
    let kept = errno();
    bounce.give_back();
    fail(kept);
    result
}

unsafe fn recvmsg_bounced(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the message is that of the caller. With `MSG_TRUNC` the result can be longer than the buffer,
    // so it is limited.
    unsafe {
        stood_for(message, |stand, parts, bounce, list| {
            let got = RECVMSG.get()(fd, &raw mut stand.message, flags);
            if got < 0 {
                return got;
            }
            parts.scatter(0, list, (got as usize).min(bytes_in(list)));
            stand.copy_to(message);
            if flags & libc::MSG_WAITALL == 0 || flags & libc::MSG_PEEK != 0 {
                return got;
            }
            continued(parts, got, bounce, |done, list| {
                let mut more = with_parts(list);
                let got = RECVMSG.get()(fd, &raw mut more, flags);
                parts.scatter(done, list, usize::try_from(got).unwrap_or(0).min(bytes_in(list)));
                got
            })
        })
    }
}

unsafe fn sendmsg_bounced(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the message is that of the caller.
    unsafe {
        if !(*message).msg_control.is_null() && (*message).msg_controllen > CONTROL {
            fail(libc::ENOBUFS); // longer than the kernel accepts
            return -1;
        }
        stood_for(message, |stand, parts, bounce, list| {
            parts.gather(0, list);
            stand.copy_from(message);
            let sent = SENDMSG.get()(fd, &raw const stand.message, flags);
            continued(parts, sent, bounce, |done, list| {
                parts.gather(done, list);
                let more = with_parts(list);
                SENDMSG.get()(fd, &raw const more, flags)
            })
        })
    }
}

/// Returns a message with these parts only.
fn with_parts(list: &[iovec]) -> msghdr {
    // SAFETY: all zeros is a valid value.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = list.as_ptr().cast_mut();
    message.msg_iovlen = list.len();
    message
}

fn bytes_in(list: &[iovec]) -> usize {
    list.iter().map(|part| part.iov_len).sum()
}

/// Continues a transfer after a call with this result. If the call has transferred a full bounce buffer, the
/// rest is transferred by `one` until a call is short. `one` gets the number of bytes that are done, and the
/// list for the kernel. Returns the number of transferred bytes, or the result of the first call.
fn continued(
    parts: Parts<'_>,
    first: ssize_t,
    bounce: &Bounce,
    one: impl Fn(usize, &[iovec]) -> ssize_t,
) -> ssize_t {
    let bytes = parts.bytes().unwrap_or(0);
    let mut done = first;
    let mut is_full = first == BOUNCE as ssize_t;
    while is_full && (done as usize) < bytes {
        let asked = (bytes - done as usize).min(BOUNCE);
        // SAFETY: this thread owns the bounce buffer, and the previous list is not used any more.
        let list = unsafe { parts.laid_out(done as usize, asked, bounce) };
        let here = one(done as usize, list);
        done += here.max(0);
        is_full = here == asked as ssize_t;
    }
    done
}

/// Returns `true` if any of the messages is far.
unsafe fn any_is_far(messages: *mut mmsghdr, count: c_uint) -> bool {
    // SAFETY: the messages are those of the caller.
    unsafe {
        is_unserved(messages as usize, count as usize * size_of::<mmsghdr>())
            || (0..count as usize).any(|i| is_far(&raw const (*messages.add(i)).msg_hdr))
    }
}

/// Calls `one` for each message until a call fails, or `goes_on` returns `false` after a message.
///
/// # Safety
///
/// `messages` points to `count` messages.
unsafe fn in_turn(
    messages: *mut mmsghdr,
    count: c_uint,
    one: impl Fn(*mut msghdr, c_uint) -> ssize_t,
    goes_on: impl Fn() -> bool,
) -> c_int {
    for index in 0..count {
        // SAFETY: inside the array.
        unsafe {
            let message = messages.add(index as usize);
            let done = one(&raw mut (*message).msg_hdr, index);
            if done < 0 {
                return if index > 0 { index as c_int } else { -1 };
            }
            (*message).msg_len = done as c_uint;
        }
        if !goes_on() {
            return index as c_int + 1;
        }
    }
    count as c_int
}

/// # Safety
///
/// The contract of the C library's function, which stores the remaining time.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let mut kept = Kept::new(timeout);
        let time = kept.pointer();
        let got = if any_is_far(messages, count) {
            recvmmsg_bounced(fd, messages, count, flags, time)
        } else {
            RECVMMSG.get()(fd, messages, count, flags, time)
        };
        if got >= 0 {
            kept.give_back();
        }
        got
    }
}

/// Receives messages one by one. As in the kernel, the time limit is checked only after each message.
///
/// # Safety
///
/// The contract of `recvmmsg`.
unsafe fn recvmmsg_bounced(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    time: *mut timespec,
) -> c_int {
    let start = Instant::now();
    // SAFETY: the pointer is null, or that of the caller's time limit.
    let limit = unsafe { time.as_ref() }.map(duration);
    if limit == Some(None) {
        fail(libc::EINVAL);
        return -1;
    }
    let one = |message: *mut msghdr, index: c_uint| {
        let waits = index == 0 || flags & libc::MSG_WAITFORONE == 0;
        let how = (flags & !libc::MSG_WAITFORONE) | if waits { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the message is one of the caller.
        unsafe { recvmsg_bounced(fd, message, how) }
    };
    let is_in_time = || {
        let Some(limit) = limit.flatten() else { return true };
        let left = limit.saturating_sub(start.elapsed());
        // SAFETY: there is a limit, so the pointer is that of the caller.
        unsafe {
            (*time).tv_sec = left.as_secs().cast_signed();
            (*time).tv_nsec = left.subsec_nanos().into();
        }
        !left.is_zero()
    };
    // SAFETY: the caller keeps this function's contract.
    unsafe { in_turn(messages, count, one, is_in_time) }
}

/// Returns a time limit; `None` if the kernel would refuse it.
fn duration(time: &timespec) -> Option<Duration> {
    let nanoseconds = u32::try_from(time.tv_nsec).ok().filter(|&nanoseconds| nanoseconds < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanoseconds))
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if !messages.is_null() && flags & libc::MSG_ZEROCOPY != 0 {
            let each = (0..count as usize).map(|i| &raw const (*messages.add(i)).msg_hdr);
            each.for_each(|message| queued::before_message(message, flags));
        }
        if !any_is_far(messages, count) {
            return SENDMMSG.get()(fd, messages, count, flags);
        }
        in_turn(messages, count, |message, _| sendmsg_bounced(fd, message, flags), || true)
    }
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    RECV.resolve();
    SEND.resolve();
    RECVFROM.resolve();
    SENDTO.resolve();
    RECVMSG.resolve();
    SENDMSG.resolve();
    RECVMMSG.resolve();
    SENDMMSG.resolve();
}
