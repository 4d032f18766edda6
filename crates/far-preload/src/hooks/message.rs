//! Messages of sockets to and from far memory where the kernel does not wait for pages (F1).
//!
//! A message is one: it goes through one bounce, and what is longer than that is no message but a stream, of
//! which a part is as good.

use super::bounce::{BOUNCE, Bounce, Parts};
use super::transfer::{bounced_in, bounced_out, one, unserved_parts};
use super::{errno, fail};
use crate::next::Next;
use crate::session::is_unserved;
use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_uint, c_void};
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

/// Bytes of ancillary data that go through here; the kernel's own limit is about 20 KiB.
const CONTROL: usize = 32 << 10;

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recv(fd: c_int, at: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        if !is_unserved(at as usize, bytes) {
            return RECV.get()(fd, at, bytes, flags);
        }
        let all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        bounced_in(Parts(&one(at, bytes)), || all, |to, n, _| RECV.get()(fd, to.cast(), n, flags))
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn send(fd: c_int, at: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        if !is_unserved(at as usize, bytes) {
            return SEND.get()(fd, at, bytes, flags);
        }
        bounced_out(Parts(&one(at, bytes)), || true, |from, n, _| SEND.get()(fd, from.cast(), n, flags))
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvfrom(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: passed on; the sender's address is the C library's to write into what the caller gave, or ours
    // to copy.
    unsafe {
        let far_name = is_unserved(from as usize, 1) || is_unserved(length as usize, 1);
        if !far_name && !is_unserved(at as usize, bytes) {
            return RECVFROM.get()(fd, at, bytes, flags, from, length);
        }
        let parts = one(at, bytes);
        let mut message: msghdr = mem::zeroed();
        message.msg_name = from.cast();
        message.msg_namelen = if from.is_null() || length.is_null() { 0 } else { *length };
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
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendto(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    flags: c_int,
    to: *const sockaddr,
    length: socklen_t,
) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        if !is_unserved(to as usize, 1) && !is_unserved(at as usize, bytes) {
            return SENDTO.get()(fd, at, bytes, flags, to, length);
        }
        let Some((name, length)) = copied_name(to.cast(), length) else { return -1 };
        bounced_out(
            Parts(&one(at, bytes)),
            || true,
            |from, n, _| {
                let to = if length == 0 { ptr::null() } else { (&raw const name).cast() };
                SENDTO.get()(fd, from.cast(), n, flags, to, length)
            },
        )
    }
}

/// An address in ordinary memory.
unsafe fn copied_name(at: *const c_void, length: socklen_t) -> Option<(libc::sockaddr_storage, socklen_t)> {
    let bytes = length as usize;
    if bytes > size_of::<libc::sockaddr_storage>() {
        fail(libc::EINVAL);
        return None;
    }
    // SAFETY: all zeros is a valid address; the caller's is as long as it says, and fits.
    unsafe {
        let mut name: libc::sockaddr_storage = mem::zeroed();
        if !at.is_null() {
            ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut name).cast(), bytes);
        }
        Some((name, if at.is_null() { 0 } else { length }))
    }
}

/// Returns `true` if any part of a message lies where the kernel does not reach it.
unsafe fn is_far(message: *const msghdr) -> bool {
    if is_unserved(message as usize, size_of::<msghdr>()) {
        return true;
    }
    if message.is_null() {
        return false;
    }
    // SAFETY: the caller's message.
    unsafe {
        is_unserved((*message).msg_name as usize, (*message).msg_namelen as usize)
            || is_unserved((*message).msg_control as usize, (*message).msg_controllen)
            || unserved_parts((*message).msg_iov, (*message).msg_iovlen).is_some()
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        if is_far(message) { recvmsg_bounced(fd, message, flags) } else { RECVMSG.get()(fd, message, flags) }
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: passed on.
    unsafe {
        if is_far(message) { sendmsg_bounced(fd, message, flags) } else { SENDMSG.get()(fd, message, flags) }
    }
}

/// A message of ordinary memory in the place of the program's: name and control here, all parts in the
/// bounce.
struct Stand {
    message: msghdr,
    part: iovec,
    name: libc::sockaddr_storage,
    control: [u64; CONTROL / 8],
}

impl Stand {
    /// Lays it out like the program's; false if that has more than any message may have. The pointers in it
    /// are to itself, so it must not move afterwards.
    ///
    /// # Safety
    ///
    /// `like` is a message.
    unsafe fn lay_out(&mut self, like: *const msghdr, bounce: &Bounce, bytes: usize) -> bool {
        // SAFETY: the caller's message.
        let like = unsafe { &*like };
        if like.msg_controllen > CONTROL || like.msg_namelen as usize > size_of_val(&self.name) {
            fail(libc::EMSGSIZE);
            return false;
        }
        self.part = iovec { iov_base: bounce.at().cast(), iov_len: bytes };
        self.message = *like;
        self.message.msg_iov = &raw mut self.part;
        self.message.msg_iovlen = 1;
        if !like.msg_name.is_null() {
            self.message.msg_name = (&raw mut self.name).cast();
        }
        if !like.msg_control.is_null() {
            self.message.msg_control = self.control.as_mut_ptr().cast();
        }
        true
    }

    /// Takes the program's name and control.
    ///
    /// # Safety
    ///
    /// `like` is the message that this was laid out for.
    unsafe fn copy_from(&mut self, like: *const msghdr) {
        // SAFETY: both are no longer than our room for them, as `lay_out` has found.
        unsafe {
            let like = &*like;
            if !like.msg_name.is_null() {
                let to = (&raw mut self.name).cast::<u8>();
                ptr::copy_nonoverlapping(like.msg_name.cast(), to, like.msg_namelen as usize);
            }
            if !like.msg_control.is_null() {
                let to = self.control.as_mut_ptr().cast::<u8>();
                ptr::copy_nonoverlapping(like.msg_control.cast(), to, like.msg_controllen);
            }
        }
    }

    /// Gives the program name, control and flags as the kernel left them.
    ///
    /// # Safety
    ///
    /// `to` is the message that this was laid out for.
    unsafe fn copy_to(&self, to: *mut msghdr) {
        // SAFETY: neither is longer than the program's buffer.
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

/// Has a message's parts stood for by a bounce while `call` runs with the stand, the parts, and the bytes
/// that went to the stand.
///
/// # Safety
///
/// The message is the caller's, with all that it points to.
unsafe fn stood_for(
    message: *const msghdr,
    call: impl FnOnce(&mut Stand, Parts<'_>, &Bounce, usize) -> ssize_t,
) -> ssize_t {
    // SAFETY: all zeros is a valid value; the caller's message has this number of parts.
    let (mut stand, parts) = unsafe {
        let count = (*message).msg_iovlen;
        let parts = if count == 0 { &[][..] } else { std::slice::from_raw_parts((*message).msg_iov, count) };
        (mem::zeroed::<Stand>(), Parts(parts))
    };
    let Some(bytes) = parts.bytes() else {
        fail(libc::EINVAL);
        return -1;
    };
    let Some(bounce) = Bounce::take() else {
        fail(libc::ENOMEM);
        return -1;
    };
    let bytes = bytes.min(BOUNCE);
    // SAFETY: the caller's message.
    let is_laid_out = unsafe { stand.lay_out(message, &bounce, bytes) };
    let result = if is_laid_out { call(&mut stand, parts, &bounce, bytes) } else { -1 };
    let kept = errno();
    bounce.give_back();
    fail(kept);
    result
}

unsafe fn recvmsg_bounced(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the message is the caller's; with MSG_TRUNC the answer can be longer than the buffer.
    unsafe {
        stood_for(message, |stand, parts, bounce, bytes| {
            let got = RECVMSG.get()(fd, &raw mut stand.message, flags);
            if got >= 0 {
                parts.scatter(0, bounce.at(), (got as usize).min(bytes));
                stand.copy_to(message);
            }
            got
        })
    }
}

unsafe fn sendmsg_bounced(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        stood_for(message, |stand, parts, bounce, bytes| {
            parts.gather(0, bounce.at(), bytes);
            stand.copy_from(message);
            SENDMSG.get()(fd, &raw const stand.message, flags)
        })
    }
}

/// Returns `true` if any of several messages is far.
unsafe fn any_is_far(messages: *mut mmsghdr, count: c_uint) -> bool {
    // SAFETY: the caller's messages.
    unsafe {
        is_unserved(messages as usize, count as usize * size_of::<mmsghdr>())
            || (0..count as usize).any(|i| is_far(&raw const (*messages.add(i)).msg_hdr))
    }
}

/// Each message in turn, until one fails.
///
/// # Safety
///
/// There are `count` messages.
unsafe fn in_turn(
    messages: *mut mmsghdr,
    count: c_uint,
    one: impl Fn(*mut msghdr, c_uint) -> ssize_t,
) -> c_int {
    for index in 0..count {
        // SAFETY: within.
        unsafe {
            let message = messages.add(index as usize);
            let done = one(&raw mut (*message).msg_hdr, index);
            if done < 0 {
                return if index > 0 { index as c_int } else { -1 };
            }
            (*message).msg_len = done as c_uint;
        }
    }
    count as c_int
}

/// # Safety
///
/// As the C library's. The timeout, which the kernel looks at between messages only, is not looked at for
/// messages in far memory.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if !any_is_far(messages, count) {
            return RECVMMSG.get()(fd, messages, count, flags, timeout);
        }
        in_turn(messages, count, |message, index| {
            let waits = index == 0 || flags & libc::MSG_WAITFORONE == 0;
            let how = (flags & !libc::MSG_WAITFORONE) | if waits { 0 } else { libc::MSG_DONTWAIT };
            recvmsg_bounced(fd, message, how)
        })
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        if !any_is_far(messages, count) {
            return SENDMMSG.get()(fd, messages, count, flags);
        }
        in_turn(messages, count, |message, _| sendmsg_bounced(fd, message, flags))
    }
}

/// Finds the C library's functions.
pub(super) fn settle() {
    RECV.settle();
    SEND.settle();
    RECVFROM.settle();
    SENDTO.settle();
    RECVMSG.settle();
    SENDMSG.settle();
    RECVMMSG.settle();
    SENDMMSG.settle();
}
