//! The userfaultfd interface of `linux/userfaultfd.h`: constants, structures, and calls that return
//! `io::Result`.
//!
//! The crate `userfaultfd` is not used, because it lacks `UFFDIO_MOVE` and `UFFD_USER_MODE_ONLY` with write
//! protection.

use crate::descriptors::{self, Hidden};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xAA;
pub(crate) const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
pub(crate) const FEATURE_MOVE: u64 = 1 << 16;

pub(crate) const EVENT_PAGEFAULT: u8 = 0x12;
pub(crate) const PAGEFAULT_WRITE: u64 = 1;
pub(crate) const PAGEFAULT_WP: u64 = 2;

pub(crate) const REGISTER_MISSING: u64 = 1;
pub(crate) const REGISTER_WP: u64 = 2;

pub(crate) const COPY_DONTWAKE: u64 = 1;
pub(crate) const COPY_WP: u64 = 2;
pub(crate) const ZERO_DONTWAKE: u64 = 1;
pub(crate) const WP_PROTECT: u64 = 1;
pub(crate) const WP_DONTWAKE: u64 = 2;
pub(crate) const MOVE_DONTWAKE: u64 = 1;
pub(crate) const MOVE_ALLOW_HOLES: u64 = 2;

/// Returns `_IOWR(0xAA, number, size)` in the encoding of x86-64 and Arm.
const fn iowr(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | API << 8 | number
}

/// Returns `_IOR(0xAA, number, size)`.
const fn ior(number: u64, size: usize) -> u64 {
    2 << 30 | (size as u64) << 16 | API << 8 | number
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// Argument of `UFFDIO_COPY` and `UFFDIO_MOVE`, which have the same layout.
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct Zero {
    range: Range,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// A message that the kernel sends over a userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Message {
    pub(crate) event: u8,
    reserved: [u8; 7],
    pub(crate) flags: u64,
    pub(crate) address: u64,
    feature: u64,
}

/// A userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfault(Hidden<OwnedFd>);

impl Userfault {
    /// Opens a userfaultfd with these features. The error is the system's reason.
    pub(crate) fn open(user_mode_only: bool, features: u64) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | if user_mode_only { USER_MODE_ONLY } else { 0 };
        let fd = descriptors::with_room(|| {
            // SAFETY: the call accesses no memory of this process.
            let fd = unsafe { crate::sys::call(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) };
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
        })?;
        // SAFETY: the call has just made the descriptor, and no other value owns it.
        #[expect(clippy::cast_possible_truncation, reason = "descriptors fit into 31 bits")]
        let fd = Self(Hidden::new(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }));
        let mut api = ApiArg { api: API, features, ioctls: 0 };
        fd.call(iowr(0x3F, size_of::<ApiArg>()), &mut api)?;
        Ok(fd)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Closes the descriptor of the parent in a child process, which never uses it.
    pub(crate) fn abandon(&self) {
        descriptors::close(self.fd());
    }

    fn call<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        let arguments =
            [self.fd() as usize, request as usize, std::ptr::from_mut(argument) as usize, 0, 0, 0];
        // SAFETY: `argument` has the layout of `request`, and the kernel writes nothing beyond it. The caller
        // is responsible for the effect on the address space.
        let done = unsafe { crate::sys::call(libc::SYS_ioctl, arguments) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn register(&self, start: usize, len: usize, mode: u64) -> io::Result<()> {
        let mut register = Register { range: range(start, len), mode, ioctls: 0 };
        self.call(iowr(0x00, size_of::<Register>()), &mut register)
    }

    /// Ends the registration of a range and wakes the threads that wait for its pages.
    pub(crate) fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        self.call(ior(0x01, size_of::<Range>()), &mut range(start, len))
    }

    pub(crate) fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        self.call(ior(0x02, size_of::<Range>()), &mut range(start, len))
    }

    /// Copies pages. This and `move` return the number of bytes that were processed, and the error that
    /// stopped the call.
    pub(crate) fn copy(&self, dst: usize, src: usize, len: usize, mode: u64) -> (usize, Option<io::Error>) {
        self.transfer(iowr(0x03, size_of::<Transfer>()), dst, src, len, mode)
    }

    pub(crate) fn r#move(&self, dst: usize, src: usize, len: usize, mode: u64) -> (usize, Option<io::Error>) {
        self.transfer(iowr(0x05, size_of::<Transfer>()), dst, src, len, mode)
    }

    fn transfer(
        &self,
        request: u64,
        dst: usize,
        src: usize,
        len: usize,
        mode: u64,
    ) -> (usize, Option<io::Error>) {
        let mut transfer = Transfer { dst: dst as u64, src: src as u64, len: len as u64, mode, done: 0 };
        let error = self.call(request, &mut transfer).err();
        (usize::try_from(transfer.done).unwrap_or(0), error)
    }

    /// Maps zeros into absent pages. Wakes no thread.
    pub(crate) fn zero(&self, start: usize, len: usize) -> io::Result<()> {
        let mut zero = Zero { range: range(start, len), mode: ZERO_DONTWAKE, done: 0 };
        self.call(iowr(0x04, size_of::<Zero>()), &mut zero)
    }

    pub(crate) fn write_protect(&self, start: usize, len: usize, mode: u64) -> io::Result<()> {
        let mut protect = WriteProtect { range: range(start, len), mode };
        self.call(iowr(0x06, size_of::<WriteProtect>()), &mut protect)
    }

    /// Reads the next message; `None` if there is none.
    pub(crate) fn read(&self) -> io::Result<Option<Message>> {
        let mut message = Message::default();
        // SAFETY: the buffer has the length that is passed.
        let read =
            unsafe { libc::read(self.fd(), std::ptr::from_mut(&mut message).cast(), size_of::<Message>()) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        Ok((read as usize == size_of::<Message>()).then_some(message))
    }
}

fn range(start: usize, len: usize) -> Range {
    Range { start: start as u64, len: len as u64 }
}
