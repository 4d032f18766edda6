//! Other names of hooked functions. A program that is compiled with `_FORTIFY_SOURCE` calls functions that
//! check the length of a buffer first. Inside the C library they make the system call by themselves, so each
//! is replaced by the hook of the plain function. A length that is too large goes to the C library, which
//! ends the program.

use super::{again, message, rare, transfer, wait};
use crate::next::Next;
use libc::{c_char, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::{c_int, c_void};

macro_rules! checked {
    ($(
        $name:ident($($argument:ident: $kind:ty),+; $($more:ident: $other:ty),*) -> $result:ty
            = $hook:path, $length:expr;
    )+) => {
        next_functions! { $($name: unsafe extern "C" fn($($kind,)+ $($other),*) -> $result;)+ }

        /// Finds all functions.
        pub(super) fn resolve() {
            $(next::$name.resolve();)+
            RECV.resolve();
            RECVFROM.resolve();
        }

        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind,)+ $($more: $other),*) -> $result {
                // SAFETY: the caller keeps the contract of the C function.
                unsafe {
                    if !$length {
                        return next::$name.get()($($argument,)+ $($more),*);
                    }
                    $hook($($argument),+)
                }
            }
        )+
    };
}

type Any = *mut c_void;
type Text = *mut c_char;
type Path = *const c_char;

// The arguments of the plain function, and the known size of the buffer.
checked! {
    __read_chk(fd: c_int, at: Any, bytes: size_t; known: size_t) -> ssize_t = transfer::read, bytes <= known;
    __pread_chk(fd: c_int, at: Any, bytes: size_t, offset: off_t; known: size_t) -> ssize_t =
        transfer::pread, bytes <= known;
    __pread64_chk(fd: c_int, at: Any, bytes: size_t, offset: off_t; known: size_t) -> ssize_t =
        transfer::pread64, bytes <= known;
    __readlink_chk(path: Path, to: Text, bytes: size_t; known: size_t) -> ssize_t =
        again::readlink, bytes <= known;
    __readlinkat_chk(at: c_int, path: Path, to: Text, bytes: size_t; known: size_t) -> ssize_t =
        again::readlinkat, bytes <= known;
    __getcwd_chk(to: Text, bytes: size_t; known: size_t) -> Text = again::getcwd, bytes <= known;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int; known: size_t) -> c_int =
        wait::poll, count as usize <= known / size_of::<pollfd>();
    __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t; known: size_t
    ) -> c_int = wait::ppoll, count as usize <= known / size_of::<pollfd>();
    __getgroups_chk(most: c_int, to: *mut libc::gid_t; known: size_t) -> c_int =
        again::getgroups, usize::try_from(most).is_ok_and(|most| most <= known / size_of::<libc::gid_t>());
    __ttyname_r_chk(fd: c_int, to: Any, bytes: size_t; known: size_t) -> c_int =
        rare::ttyname_r, bytes <= known;
    __mq_open_2(path: Path, flags: c_int;) -> c_int = queue_opened, flags & libc::O_CREAT == 0;
    __open_2(path: Path, flags: c_int;) -> c_int = opened, has_no_mode(flags);
    __open64_2(path: Path, flags: c_int;) -> c_int = opened, has_no_mode(flags);
    __openat_2(at: c_int, path: Path, flags: c_int;) -> c_int = opened_at, has_no_mode(flags);
    __openat64_2(at: c_int, path: Path, flags: c_int;) -> c_int = opened_at, has_no_mode(flags);
}

/// Returns `true` if a call of `open` with these flags needs no mode, which the checked function has not.
fn has_no_mode(flags: c_int) -> bool {
    flags & libc::O_CREAT == 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE
}

unsafe fn opened(path: Path, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { again::open(path, flags, 0) }
}

unsafe fn opened_at(at: c_int, path: Path, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { again::openat(at, path, flags, 0) }
}

unsafe fn queue_opened(name: Path, flags: c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { again::mq_open(name, flags, 0, std::ptr::null()) }
}

type Receive = unsafe extern "C" fn(c_int, Any, size_t, size_t, c_int) -> ssize_t;
type ReceiveFrom =
    unsafe extern "C" fn(c_int, Any, size_t, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;

static RECV: Next<Receive> = Next::new(c"__recv_chk");
static RECVFROM: Next<ReceiveFrom> = Next::new(c"__recvfrom_chk");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __recv_chk(
    fd: c_int,
    at: Any,
    bytes: size_t,
    known: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if bytes > known {
            RECV.get()(fd, at, bytes, known, flags)
        } else {
            message::recv(fd, at, bytes, flags)
        }
    }
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    at: Any,
    bytes: size_t,
    known: size_t,
    flags: c_int,
    from: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        if bytes > known {
            return RECVFROM.get()(fd, at, bytes, known, flags, from, length);
        }
        message::recvfrom(fd, at, bytes, flags, from, length)
    }
}
