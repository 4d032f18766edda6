//! Files and sockets: all syncs, and transfers of bytes during which the thread left its processor.
//!
//! Most reads and writes find their bytes in the kernel's cache and return at once; their cost is CPU time.
//! Calls that waited are recorded by the kind of object: a file or device, or a socket or pipe.

use super::{begun, ended, hook, watched};
use crate::next::next;
use crate::session::is_on;
use azekura_trace::WaitKind;
use azekura_trace::area::Called;
use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

type Sync = unsafe extern "C-unwind" fn(c_int) -> c_int;

next!(FSYNC: Sync = new(c"fsync"));
next!(FDATASYNC: Sync = new(c"fdatasync"));
next!(MSYNC: unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int) -> c_int = new(c"msync"));

hook!(fsync => fsync_hook, "rsi", "x1");
hook!(fdatasync => fdatasync_hook, "rsi", "x1");
hook!(msync => msync_hook, "rcx", "x3");

/// Records `call` as a wait in any case, because it accesses the device.
fn syncs(called: Called, object: usize, from: usize, call: impl FnOnce() -> c_int) -> c_int {
    if !is_on() {
        return call();
    }
    let waiting = begun(called, from, object, WaitKind::Device);
    let result = call();
    ended(waiting);
    result
}

unsafe extern "C-unwind" fn fsync_hook(file: c_int, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant.
    syncs(Called::Fsync, file as usize, from, || unsafe { FSYNC.get()(file) })
}

unsafe extern "C-unwind" fn fdatasync_hook(file: c_int, from: usize) -> c_int {
    // SAFETY: as in `fsync_hook`.
    syncs(Called::Fdatasync, file as usize, from, || unsafe { FDATASYNC.get()(file) })
}

unsafe extern "C-unwind" fn msync_hook(bytes: *mut c_void, len: size_t, flags: c_int, from: usize) -> c_int {
    // SAFETY: as in `fsync_hook`.
    syncs(Called::Msync, bytes.addr(), from, || unsafe { MSYNC.get()(bytes, len, flags) })
}

/// Records `call` if the thread left its processor during it.
fn transfers(called: Called, file: c_int, from: usize, call: impl FnOnce() -> ssize_t) -> ssize_t {
    watched(called, file as usize, from, || kind_of(file), call)
}

/// Returns the kind of the waits for a descriptor.
fn kind_of(file: c_int) -> WaitKind {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills `stat` or returns an error.
    let mode = unsafe { (libc::fstat(file, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_mode) };
    match mode.map(|mode| mode & libc::S_IFMT) {
        Some(libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR) => WaitKind::Device,
        Some(libc::S_IFSOCK) => WaitKind::Network,
        _ => WaitKind::Idle, // a pipe, a terminal, an event counter
    }
}

/// Hooks a function that transfers bytes through a descriptor, its first argument. It is recorded as `$what`.
/// The literals name the registers that pass the call site.
macro_rules! transfer {
    (
        $name:ident => $hook:ident, $next:ident = $symbol:literal as $what:ident,
        $intel:literal, $arm:literal;
        $($argument:ident: $type:ty),*
    ) => {
        next!($next: unsafe extern "C-unwind" fn(c_int, $($type),*) -> ssize_t = new($symbol));

        hook!($name => $hook, $intel, $arm);

        unsafe extern "C-unwind" fn $hook(file: c_int, $($argument: $type,)* from: usize) -> ssize_t {
            // SAFETY: as in `fsync_hook`.
            transfers(Called::$what, file, from, || unsafe { $next.get()(file, $($argument),*) })
        }
    };
}

transfer!(read => read_hook, READ = c"read" as Read, "rcx", "x3"; into: *mut c_void, len: size_t);
transfer!(pread => pread_hook, PREAD = c"pread" as Pread, "r8", "x4";
    into: *mut c_void, len: size_t, at: off_t);
transfer!(pread64 => pread64_hook, PREAD64 = c"pread64" as Pread, "r8", "x4";
    into: *mut c_void, len: size_t, at: off_t);
transfer!(write => write_hook, WRITE = c"write" as Write, "rcx", "x3"; bytes: *const c_void, len: size_t);
transfer!(pwrite => pwrite_hook, PWRITE = c"pwrite" as Pwrite, "r8", "x4";
    bytes: *const c_void, len: size_t, at: off_t);
transfer!(pwrite64 => pwrite64_hook, PWRITE64 = c"pwrite64" as Pwrite, "r8", "x4";
    bytes: *const c_void, len: size_t, at: off_t);
transfer!(recv => recv_hook, RECV = c"recv" as Recv, "r8", "x4";
    into: *mut c_void, len: size_t, flags: c_int);
transfer!(send => send_hook, SEND = c"send" as Send, "r8", "x4";
    bytes: *const c_void, len: size_t, flags: c_int);
transfer!(sendmsg => sendmsg_hook, SENDMSG = c"sendmsg" as Send, "rcx", "x3";
    message: *const msghdr, flags: c_int);
transfer!(sendfile => sendfile_hook, SENDFILE = c"sendfile" as Send, "r8", "x4";
    file_sent: c_int, at: *mut off_t, len: size_t);
transfer!(sendfile64 => sendfile64_hook, SENDFILE64 = c"sendfile64" as Send, "r8", "x4";
    file_sent: c_int, at: *mut off_t, len: size_t);

// The functions that programs compiled with `_FORTIFY_SOURCE` call. They have the size of the buffer as an
// additional argument.
transfer!(__read_chk => read_chk_hook, READ_CHK = c"__read_chk" as Read, "r8", "x4";
    into: *mut c_void, len: size_t, size: size_t);
transfer!(__pread_chk => pread_chk_hook, PREAD_CHK = c"__pread_chk" as Pread, "r9", "x5";
    into: *mut c_void, len: size_t, at: off_t, size: size_t);
transfer!(__pread64_chk => pread64_chk_hook, PREAD64_CHK = c"__pread64_chk" as Pread, "r9", "x5";
    into: *mut c_void, len: size_t, at: off_t, size: size_t);
transfer!(__recv_chk => recv_chk_hook, RECV_CHK = c"__recv_chk" as Recv, "r9", "x5";
    into: *mut c_void, len: size_t, size: size_t, flags: c_int);

type SendTo =
    unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;

next!(SENDTO: SendTo = new(c"sendto"));
next!(RECVFROM:
    unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t =
    new(c"recvfrom"));

/// Hooks a function with six arguments, which use all argument registers. So the flags, the fourth argument,
/// move into the upper half of the descriptor's register, and the call site takes the place of the flags.
macro_rules! hook_of_six {
    ($name:ident => $function:path) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "mov edi, edi",
                "shl rcx, 32",
                "or rdi, rcx",
                "mov rcx, [rsp]",
                "jmp {function}",
                function = sym $function,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            std::arch::naked_asm!(
                "mov w0, w0",
                "orr x0, x0, x3, lsl #32",
                "mov x3, x30",
                "b {function}",
                function = sym $function,
            )
        }
    };
}

hook_of_six!(recvfrom => recvfrom_hook);
hook_of_six!(sendto => sendto_hook);

unsafe extern "C-unwind" fn sendto_hook(
    file_and_flags: u64,
    bytes: *const c_void,
    len: size_t,
    from: usize,
    receiver: *const sockaddr,
    receiver_len: socklen_t,
) -> ssize_t {
    let (file, flags) = (file_and_flags as c_int, (file_and_flags >> 32) as c_int);
    // SAFETY: as in `fsync_hook`.
    transfers(Called::Send, file, from, || unsafe {
        SENDTO.get()(file, bytes, len, flags, receiver, receiver_len)
    })
}

unsafe extern "C-unwind" fn recvfrom_hook(
    file_and_flags: u64,
    into: *mut c_void,
    len: size_t,
    from: usize,
    sender: *mut sockaddr,
    sender_len: *mut socklen_t,
) -> ssize_t {
    let (file, flags) = (file_and_flags as c_int, (file_and_flags >> 32) as c_int);
    // SAFETY: as in `fsync_hook`.
    transfers(Called::Recv, file, from, || unsafe {
        RECVFROM.get()(file, into, len, flags, sender, sender_len)
    })
}

transfer!(recvmsg => recvmsg_hook, RECVMSG = c"recvmsg" as Recv, "rcx", "x3";
    message: *mut msghdr, flags: c_int);
transfer!(readv => readv_hook, READV = c"readv" as Read, "rcx", "x3"; into: *const iovec, count: c_int);
transfer!(writev => writev_hook, WRITEV = c"writev" as Write, "rcx", "x3";
    from_all: *const iovec, count: c_int);
transfer!(preadv => preadv_hook, PREADV = c"preadv" as Pread, "r8", "x4";
    into: *const iovec, count: c_int, at: off_t);
transfer!(preadv64 => preadv64_hook, PREADV64 = c"preadv64" as Pread, "r8", "x4";
    into: *const iovec, count: c_int, at: off_t);
transfer!(pwritev => pwritev_hook, PWRITEV = c"pwritev" as Pwrite, "r8", "x4";
    bytes: *const iovec, count: c_int, at: off_t);
transfer!(pwritev64 => pwritev64_hook, PWRITEV64 = c"pwritev64" as Pwrite, "r8", "x4";
    bytes: *const iovec, count: c_int, at: off_t);

next!(CONNECT: unsafe extern "C-unwind" fn(c_int, *const sockaddr, socklen_t) -> c_int = new(c"connect"));

hook!(connect => connect_hook, "rcx", "x3");

unsafe extern "C-unwind" fn connect_hook(
    socket: c_int,
    peer: *const sockaddr,
    len: socklen_t,
    from: usize,
) -> c_int {
    // SAFETY: as in `fsync_hook`.
    let call = || unsafe { CONNECT.get()(socket, peer, len) };
    watched(Called::Connect, socket as usize, from, || kind_of(socket), call)
}

transfer!(preadv2 => preadv2_hook, PREADV2 = c"preadv2" as Pread, "r9", "x5";
    into: *const iovec, count: c_int, at: off_t, flags: c_int);
transfer!(preadv64v2 => preadv64v2_hook, PREADV64V2 = c"preadv64v2" as Pread, "r9", "x5";
    into: *const iovec, count: c_int, at: off_t, flags: c_int);
transfer!(pwritev2 => pwritev2_hook, PWRITEV2 = c"pwritev2" as Pwrite, "r9", "x5";
    bytes: *const iovec, count: c_int, at: off_t, flags: c_int);
transfer!(pwritev64v2 => pwritev64v2_hook, PWRITEV64V2 = c"pwritev64v2" as Pwrite, "r9", "x5";
    bytes: *const iovec, count: c_int, at: off_t, flags: c_int);

next!(RECVMMSG: unsafe extern "C-unwind" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int =
    new(c"recvmmsg"));
next!(SENDMMSG: unsafe extern "C-unwind" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int = new(c"sendmmsg"));
next!(SYNC_FILE_RANGE: unsafe extern "C-unwind" fn(c_int, off64_t, off64_t, c_uint) -> c_int =
    new(c"sync_file_range"));

hook!(recvmmsg => recvmmsg_hook, "r9", "x5");
hook!(sendmmsg => sendmmsg_hook, "r8", "x4");
hook!(sync_file_range => sync_file_range_hook, "r8", "x4");

unsafe extern "C-unwind" fn recvmmsg_hook(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `fsync_hook`.
    let call = || unsafe { RECVMMSG.get()(socket, messages, count, flags, timeout) };
    watched(Called::Recv, socket as usize, from, || kind_of(socket), call)
}

unsafe extern "C-unwind" fn sendmmsg_hook(
    socket: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    from: usize,
) -> c_int {
    // SAFETY: as in `fsync_hook`.
    let call = || unsafe { SENDMMSG.get()(socket, messages, count, flags) };
    watched(Called::Send, socket as usize, from, || kind_of(socket), call)
}

/// A call that need not wait for the device, unlike the other syncs.
unsafe extern "C-unwind" fn sync_file_range_hook(
    file: c_int,
    at: off64_t,
    len: off64_t,
    flags: c_uint,
    from: usize,
) -> c_int {
    // SAFETY: as in `fsync_hook`.
    let call = || unsafe { SYNC_FILE_RANGE.get()(file, at, len, flags) };
    watched(Called::SyncFileRange, file as usize, from, || WaitKind::Device, call)
}
