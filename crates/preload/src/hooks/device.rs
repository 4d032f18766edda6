//! Files: syncs always, reads and writes when the thread left its processor in them.
//!
//! Most reads and writes find their bytes in the kernel's cache and return at once; what they cost is CPU time. Those that
//! waited are told by what they waited for: a file or device, or a socket or pipe.

use super::{begun, ended, hook};
use crate::next::Next;
use crate::session::{is_on, is_recording, recording};
use crate::sites::SITES;
use azekura_trace::{WaitKind, Watch};
use libc::{c_int, c_void, off_t, size_t, ssize_t};

type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t) -> ssize_t;
type ReadAt = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t) -> ssize_t;
type WriteAt = unsafe extern "C-unwind" fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
type Sync = unsafe extern "C-unwind" fn(c_int) -> c_int;
type Flags = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;

static FSYNC: Next<Sync> = Next::new(c"fsync");
static FDATASYNC: Next<Sync> = Next::new(c"fdatasync");
static MSYNC: Next<unsafe extern "C-unwind" fn(*mut c_void, size_t, c_int) -> c_int> = Next::new(c"msync");
static READ: Next<Read> = Next::new(c"read");
static PREAD: Next<ReadAt> = Next::new(c"pread");
static PREAD64: Next<ReadAt> = Next::new(c"pread64");
static WRITE: Next<Write> = Next::new(c"write");
static PWRITE: Next<WriteAt> = Next::new(c"pwrite");
static PWRITE64: Next<WriteAt> = Next::new(c"pwrite64");
static RECV: Next<Flags> = Next::new(c"recv");

hook!(fsync => fsync_hook, "rsi", "x1");
hook!(fdatasync => fdatasync_hook, "rsi", "x1");
hook!(msync => msync_hook, "rcx", "x3");
hook!(read => read_hook, "rcx", "x3");
hook!(pread => pread_hook, "r8", "x4");
hook!(pread64 => pread64_hook, "r8", "x4");
hook!(write => write_hook, "rcx", "x3");
hook!(pwrite => pwrite_hook, "r8", "x4");
hook!(pwrite64 => pwrite64_hook, "r8", "x4");
hook!(recv => recv_hook, "r8", "x4");

/// Records `call`, which goes to the device in any case.
fn syncs(what: &'static str, object: usize, from: usize, call: impl FnOnce() -> c_int) -> c_int {
    if !is_on() {
        return call();
    }
    let waiting = begun(what, from, object, WaitKind::Device);
    let result = call();
    ended(waiting);
    result
}

unsafe extern "C-unwind" fn fsync_hook(file: c_int, from: usize) -> c_int {
    // SAFETY: here and below, the caller's arguments, passed on to the function it meant to call.
    syncs("fsync", file as usize, from, || unsafe { FSYNC.get()(file) })
}

unsafe extern "C-unwind" fn fdatasync_hook(file: c_int, from: usize) -> c_int {
    // SAFETY: as above.
    syncs("fdatasync", file as usize, from, || unsafe { FDATASYNC.get()(file) })
}

unsafe extern "C-unwind" fn msync_hook(bytes: *mut c_void, len: size_t, flags: c_int, from: usize) -> c_int {
    // SAFETY: as above.
    syncs("msync", bytes.addr(), from, || unsafe { MSYNC.get()(bytes, len, flags) })
}

/// Records `call` if the thread left its processor in it.
fn transfers(what: &'static str, file: c_int, from: usize, call: impl FnOnce() -> ssize_t) -> ssize_t {
    if !is_recording() {
        return call();
    }
    let watch = recording(azekura_trace::watch);
    let result = call();
    if recording(|| watch.has_left()) {
        waited(what, file, from, watch);
    }
    result
}

#[cold]
fn waited(what: &'static str, file: c_int, from: usize, watch: Watch) {
    recording(|| watch.waited(SITES.of(what, from), file as usize, kind_of(file)));
}

/// What a descriptor leads to.
fn kind_of(file: c_int) -> WaitKind {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills `stat` or says that it did not.
    let mode = unsafe { (libc::fstat(file, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_mode) };
    match mode.map(|mode| mode & libc::S_IFMT) {
        Some(libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR) => WaitKind::Device,
        Some(libc::S_IFSOCK) => WaitKind::Network,
        _ => WaitKind::Idle, // a pipe, a terminal, a counter
    }
}

unsafe extern "C-unwind" fn read_hook(file: c_int, bytes: *mut c_void, len: size_t, from: usize) -> ssize_t {
    // SAFETY: as above.
    transfers("read", file, from, || unsafe { READ.get()(file, bytes, len) })
}

unsafe extern "C-unwind" fn pread_hook(
    file: c_int,
    bytes: *mut c_void,
    len: size_t,
    at: off_t,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("pread", file, from, || unsafe { PREAD.get()(file, bytes, len, at) })
}

unsafe extern "C-unwind" fn pread64_hook(
    file: c_int,
    bytes: *mut c_void,
    len: size_t,
    at: off_t,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("pread", file, from, || unsafe { PREAD64.get()(file, bytes, len, at) })
}

unsafe extern "C-unwind" fn write_hook(
    file: c_int,
    bytes: *const c_void,
    len: size_t,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("write", file, from, || unsafe { WRITE.get()(file, bytes, len) })
}

unsafe extern "C-unwind" fn pwrite_hook(
    file: c_int,
    bytes: *const c_void,
    len: size_t,
    at: off_t,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("pwrite", file, from, || unsafe { PWRITE.get()(file, bytes, len, at) })
}

unsafe extern "C-unwind" fn pwrite64_hook(
    file: c_int,
    bytes: *const c_void,
    len: size_t,
    at: off_t,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("pwrite", file, from, || unsafe { PWRITE64.get()(file, bytes, len, at) })
}

unsafe extern "C-unwind" fn recv_hook(
    socket: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    from: usize,
) -> ssize_t {
    // SAFETY: as above.
    transfers("recv", socket, from, || unsafe { RECV.get()(socket, bytes, len, flags) })
}
