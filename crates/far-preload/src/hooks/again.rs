//! System calls that can be repeated (F1). A system call on far memory that the kernel cannot access returns
//! `EFAULT`. The hook then touches the far pages and repeats the call. A call is in this module only if it
//! has had no effect when it returns that error. Other calls are in `transfer`, `message`, `once` and `wait`.

use super::{errno, fail};
use crate::next::Next;
use crate::session::is_unserved;
use libc::{c_char, mode_t, size_t, ssize_t};
use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Number of repetitions after which the error is returned, because it has another cause.
pub(super) const TRIES: usize = 1000;
/// Number of bytes to touch in a buffer with a length that only the kernel determines.
pub(super) const SOME: usize = 4096;
const STEP: usize = 4096;
/// Largest number of strings in the arguments or the environment of a new program.
const MOST_STRINGS: usize = 1 << 16;

/// A pointer argument of a system call.
#[derive(Clone, Copy)]
pub(super) enum Given {
    /// Memory of this address and length that the kernel reads.
    Reads(usize, usize),
    /// Memory of this address and length that the kernel writes.
    Writes(usize, usize),
    /// Address of a string that the kernel reads.
    Text(usize),
    /// Address of an array of strings, ending with a null pointer, that the kernel reads.
    Texts(usize),
}

impl Given {
    /// Returns `true` if a part of the argument's memory is far.
    fn is_far(self) -> bool {
        match self {
            Self::Reads(at, bytes) | Self::Writes(at, bytes) => is_unserved(at, bytes),
            Self::Text(at) => is_unserved(at, 1),
            Self::Texts(at) => {
                // SAFETY: the program's array of strings, which ends with a null pointer.
                at != 0 && (is_unserved(at, 1) || unsafe { texts(at) }.any(|text| is_unserved(text, 1)))
            }
        }
    }

    /// Touches the far pages of the argument, so that they are paged in.
    ///
    /// # Safety
    ///
    /// The value is the caller's argument for this call.
    unsafe fn touch(self) {
        match self {
            // SAFETY: the program's buffer for this call. The range may extend beyond it, so a byte is
            // replaced by itself in one step, and no change by another thread is lost.
            // Relaxed: the value is unchanged.
            Self::Writes(at, bytes) => steps(at, bytes).for_each(|at| unsafe {
                let byte = AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(at));
                let value = byte.load(Relaxed);
                let _ = byte.compare_exchange(value, value, Relaxed, Relaxed);
            }),
            // SAFETY: the program's buffer for this call.
            Self::Reads(at, bytes) => steps(at, bytes).for_each(|at| unsafe {
                ptr::with_exposed_provenance::<u8>(at).read_volatile();
            }),
            // SAFETY: the program's string for this call.
            Self::Text(at) => unsafe {
                std::hint::black_box(libc::strnlen(
                    ptr::with_exposed_provenance(at),
                    libc::PATH_MAX as usize,
                ));
            },
            // SAFETY: the program's strings for this call.
            Self::Texts(at) => unsafe { texts(at) }.for_each(|text| unsafe { Self::Text(text).touch() }),
        }
    }
}

/// Returns the addresses to touch in a range: one per 4 KiB, and the last byte; none if the range is not far.
fn steps(at: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let is_far = bytes > 0 && is_unserved(at, bytes);
    (at..at + bytes).step_by(STEP).chain([at + bytes.max(1) - 1]).filter(move |_| is_far)
}

/// Returns the addresses of the strings of an array, up to the null pointer.
unsafe fn texts(at: usize) -> impl Iterator<Item = usize> {
    let at = ptr::with_exposed_provenance::<usize>(at);
    // SAFETY: the program's array, which ends with a null pointer.
    (0..MOST_STRINGS).map(move |i| unsafe { at.add(i).read_unaligned() }).take_while(|&text| text != 0)
}

/// Touches the pages of a string if they are far. Returns `true` if they were.
///
/// # Safety
///
/// The address is that of a string, or null.
pub(super) unsafe fn touch_text(at: Path) -> bool {
    let is_far = text(at).is_far();
    if is_far {
        // SAFETY: a string of the program; a far address is not null.
        unsafe { text(at).touch() };
    }
    is_far
}

/// Result of a function of the C library; `FAILED` (-1) after an error.
pub(super) trait Answer: Copy + PartialEq {
    const FAILED: Self;

    fn failed(self) -> bool {
        self == Self::FAILED
    }
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for ssize_t {
    const FAILED: Self = -1;
}

impl Answer for c_long {
    const FAILED: Self = -1;
}

impl<T> Answer for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// Makes a call. As long as the call fails and an argument is far, touches the far parts and repeats the
/// call.
pub(super) fn asked<R: Answer>(given: &[Given], call: impl Fn() -> R) -> R {
    let mut result = call();
    if !result.failed() || errno() != libc::EFAULT || !given.iter().any(|given| given.is_far()) {
        return result;
    }
    for _ in 0..TRIES {
        // SAFETY: the arguments are those of the program for this call.
        given.iter().for_each(|given| unsafe { given.touch() });
        result = call();
        if !result.failed() || errno() != libc::EFAULT {
            return result;
        }
    }
    fail(libc::EFAULT);
    result
}

/// Makes a call that returns the number of an error, as [`asked`] does.
pub(super) fn numbered(given: &[Given], call: impl Fn() -> c_int) -> c_int {
    let call = || {
        let number = call();
        fail(number);
        if number == 0 { 0 } else { -1 }
    };
    let kept = errno();
    let number = if asked(given, call) == 0 { 0 } else { errno() };
    fail(kept);
    number
}

macro_rules! again {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = [$($given:expr),+];)+) => {
        next_functions! { $($name: unsafe extern "C" fn($($kind),*) -> $result;)+ }

        /// Finds all functions.
        pub(super) fn resolve() {
            $(next::$name.resolve();)+
            resolve_affinity();
            GETNAME.resolve();
            SETNAME.resolve();
            POSIX_SPAWN.resolve();
            POSIX_SPAWNP.resolve();
            SIGWAIT.resolve();
            SYSCALL.resolve();
            IOCTL.resolve();
        }

        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the caller keeps the contract of the C function.
                asked(&[$($given),+], || unsafe { next::$name.get()($($argument),*) })
            }
        )+
    };
}

type Path = *const c_char;
type Any = *mut c_void;

pub(super) fn text(at: Path) -> Given {
    Given::Text(at.expose_provenance())
}

pub(super) fn reads<T>(at: *const T, bytes: usize) -> Given {
    Given::Reads(at.expose_provenance(), bytes)
}

pub(super) fn writes<T>(at: *mut T, bytes: usize) -> Given {
    Given::Writes(at.expose_provenance(), bytes)
}

pub(super) fn filled<T>(at: *mut T) -> Given {
    writes(at, size_of::<T>())
}

again! {
    // Calls with file names.
    open(path: Path, flags: c_int, mode: mode_t) -> c_int = [text(path)];
    open64(path: Path, flags: c_int, mode: mode_t) -> c_int = [text(path)];
    openat(at: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int = [text(path)];
    openat64(at: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int = [text(path)];
    creat(path: Path, mode: mode_t) -> c_int = [text(path)];
    access(path: Path, mode: c_int) -> c_int = [text(path)];
    faccessat(at: c_int, path: Path, mode: c_int, flags: c_int) -> c_int = [text(path)];
    unlink(path: Path) -> c_int = [text(path)];
    unlinkat(at: c_int, path: Path, flags: c_int) -> c_int = [text(path)];
    rmdir(path: Path) -> c_int = [text(path)];
    mkdir(path: Path, mode: mode_t) -> c_int = [text(path)];
    mkdirat(at: c_int, path: Path, mode: mode_t) -> c_int = [text(path)];
    rename(old: Path, new: Path) -> c_int = [text(old), text(new)];
    renameat(from: c_int, old: Path, to: c_int, new: Path) -> c_int = [text(old), text(new)];
    link(old: Path, new: Path) -> c_int = [text(old), text(new)];
    symlink(old: Path, new: Path) -> c_int = [text(old), text(new)];
    chdir(path: Path) -> c_int = [text(path)];
    chmod(path: Path, mode: mode_t) -> c_int = [text(path)];
    truncate(path: Path, length: i64) -> c_int = [text(path)];
    truncate64(path: Path, length: i64) -> c_int = [text(path)];
    creat64(path: Path, mode: mode_t) -> c_int = [text(path)];
    remove(path: Path) -> c_int = [text(path)];
    linkat(from: c_int, old: Path, to: c_int, new: Path, flags: c_int) -> c_int = [text(old), text(new)];
    symlinkat(old: Path, to: c_int, new: Path) -> c_int = [text(old), text(new)];
    renameat2(from: c_int, old: Path, to: c_int, new: Path, flags: libc::c_uint) -> c_int =
        [text(old), text(new)];
    mkfifo(path: Path, mode: mode_t) -> c_int = [text(path)];
    mkfifoat(at: c_int, path: Path, mode: mode_t) -> c_int = [text(path)];
    mknod(path: Path, mode: mode_t, device: libc::dev_t) -> c_int = [text(path)];
    mknodat(at: c_int, path: Path, mode: mode_t, device: libc::dev_t) -> c_int = [text(path)];
    chroot(path: Path) -> c_int = [text(path)];
    chown(path: Path, user: libc::uid_t, group: libc::gid_t) -> c_int = [text(path)];
    lchown(path: Path, user: libc::uid_t, group: libc::gid_t) -> c_int = [text(path)];
    fchownat(at: c_int, path: Path, user: libc::uid_t, group: libc::gid_t, flags: c_int) -> c_int =
        [text(path)];
    fchmodat(at: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int = [text(path)];
    euidaccess(path: Path, mode: c_int) -> c_int = [text(path)];
    eaccess(path: Path, mode: c_int) -> c_int = [text(path)];
    utime(path: Path, times: *const libc::utimbuf) -> c_int = [text(path), reads(times, 16)];
    utimes(path: Path, times: *const libc::timeval) -> c_int = [text(path), reads(times, 32)];
    lutimes(path: Path, times: *const libc::timeval) -> c_int = [text(path), reads(times, 32)];
    futimes(fd: c_int, times: *const libc::timeval) -> c_int = [reads(times, 32)];
    futimens(fd: c_int, times: *const libc::timespec) -> c_int = [reads(times, 32)];
    utimensat(at: c_int, path: Path, times: *const libc::timespec, flags: c_int) -> c_int =
        [text(path), reads(times, 32)];
    inotify_add_watch(fd: c_int, path: Path, mask: u32) -> c_int = [text(path)];
    memfd_create(name: Path, flags: libc::c_uint) -> c_int = [text(name)];
    shm_open(name: Path, flags: c_int, mode: mode_t) -> c_int = [text(name)];
    shm_unlink(name: Path) -> c_int = [text(name)];
    pathconf(path: Path, name: c_int) -> c_long = [text(path)];
    fopen(path: Path, how: Path) -> *mut libc::FILE = [text(path), text(how)];
    fopen64(path: Path, how: Path) -> *mut libc::FILE = [text(path), text(how)];
    getcwd(to: *mut c_char, bytes: size_t) -> *mut c_char = [writes(to, bytes.min(1 << 16))];
    // Calls on extended attributes.
    setxattr(path: Path, name: Path, value: Any, bytes: size_t, flags: c_int) -> c_int =
        [text(path), text(name), reads(value, bytes)];
    lsetxattr(path: Path, name: Path, value: Any, bytes: size_t, flags: c_int) -> c_int =
        [text(path), text(name), reads(value, bytes)];
    fsetxattr(fd: c_int, name: Path, value: Any, bytes: size_t, flags: c_int) -> c_int =
        [text(name), reads(value, bytes)];
    getxattr(path: Path, name: Path, to: Any, bytes: size_t) -> ssize_t =
        [text(path), text(name), writes(to, bytes.min(1 << 16))];
    lgetxattr(path: Path, name: Path, to: Any, bytes: size_t) -> ssize_t =
        [text(path), text(name), writes(to, bytes.min(1 << 16))];
    fgetxattr(fd: c_int, name: Path, to: Any, bytes: size_t) -> ssize_t =
        [text(name), writes(to, bytes.min(1 << 16))];
    listxattr(path: Path, to: Any, bytes: size_t) -> ssize_t = [text(path), writes(to, bytes.min(1 << 16))];
    llistxattr(path: Path, to: Any, bytes: size_t) -> ssize_t = [text(path), writes(to, bytes.min(1 << 16))];
    flistxattr(fd: c_int, to: Any, bytes: size_t) -> ssize_t = [writes(to, bytes.min(1 << 16))];
    removexattr(path: Path, name: Path) -> c_int = [text(path), text(name)];
    lremovexattr(path: Path, name: Path) -> c_int = [text(path), text(name)];
    fremovexattr(fd: c_int, name: Path) -> c_int = [text(name)];
    // Calls that return the attributes of files.
    stat(path: Path, to: *mut libc::stat) -> c_int = [text(path), filled(to)];
    stat64(path: Path, to: *mut libc::stat64) -> c_int = [text(path), filled(to)];
    lstat(path: Path, to: *mut libc::stat) -> c_int = [text(path), filled(to)];
    lstat64(path: Path, to: *mut libc::stat64) -> c_int = [text(path), filled(to)];
    fstat(fd: c_int, to: *mut libc::stat) -> c_int = [filled(to)];
    fstat64(fd: c_int, to: *mut libc::stat64) -> c_int = [filled(to)];
    fstatat(at: c_int, path: Path, to: *mut libc::stat, flags: c_int) -> c_int = [text(path), filled(to)];
    fstatat64(at: c_int, path: Path, to: *mut libc::stat64, flags: c_int) -> c_int = [text(path), filled(to)];
    statx(at: c_int, path: Path, flags: c_int, mask: libc::c_uint, to: *mut libc::statx) -> c_int =
        [text(path), filled(to)];
    // The names of these calls in programs that were linked with a C library before version 2.33.
    __xstat(version: c_int, path: Path, to: *mut libc::stat) -> c_int = [text(path), filled(to)];
    __xstat64(version: c_int, path: Path, to: *mut libc::stat64) -> c_int = [text(path), filled(to)];
    __lxstat(version: c_int, path: Path, to: *mut libc::stat) -> c_int = [text(path), filled(to)];
    __lxstat64(version: c_int, path: Path, to: *mut libc::stat64) -> c_int = [text(path), filled(to)];
    __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int = [filled(to)];
    __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat64) -> c_int = [filled(to)];
    __fxstatat(version: c_int, at: c_int, path: Path, to: *mut libc::stat, flags: c_int) -> c_int =
        [text(path), filled(to)];
    __fxstatat64(version: c_int, at: c_int, path: Path, to: *mut libc::stat64, flags: c_int) -> c_int =
        [text(path), filled(to)];
    // Calls on file systems, links and directories.
    statfs(path: Path, to: *mut libc::statfs) -> c_int = [text(path), filled(to)];
    fstatfs(fd: c_int, to: *mut libc::statfs) -> c_int = [filled(to)];
    statfs64(path: Path, to: *mut libc::statfs64) -> c_int = [text(path), filled(to)];
    fstatfs64(fd: c_int, to: *mut libc::statfs64) -> c_int = [filled(to)];
    statvfs(path: Path, to: *mut libc::statvfs) -> c_int = [text(path), filled(to)];
    statvfs64(path: Path, to: *mut libc::statvfs64) -> c_int = [text(path), filled(to)];
    fstatvfs(fd: c_int, to: *mut libc::statvfs) -> c_int = [filled(to)];
    fstatvfs64(fd: c_int, to: *mut libc::statvfs64) -> c_int = [filled(to)];
    readlink(path: Path, to: *mut c_char, bytes: size_t) -> ssize_t = [text(path), writes(to, bytes)];
    readlinkat(at: c_int, path: Path, to: *mut c_char, bytes: size_t) -> ssize_t =
        [text(path), writes(to, bytes)];
    getdents64(fd: c_int, to: Any, bytes: size_t) -> ssize_t = [writes(to, bytes.min(1 << 16))];
    epoll_ctl(fd: c_int, what: c_int, about: c_int, event: *mut libc::epoll_event) -> c_int =
        [reads(event, size_of::<libc::epoll_event>())];
    // Calls that wait only after the kernel has read their arguments.
    semop(set: c_int, operations: Any, count: size_t) -> c_int = [reads(operations, count * 6)];
    semtimedop(set: c_int, operations: Any, count: size_t, timeout: *const libc::timespec) -> c_int =
        [reads(operations, count * 6), reads(timeout, 16)];
    msgsnd(queue: c_int, message: Any, bytes: size_t, flags: c_int) -> c_int = [reads(message, bytes + 8)];
    // Calls on sockets.
    bind(fd: c_int, name: *const libc::sockaddr, bytes: libc::socklen_t) -> c_int =
        [reads(name, bytes as usize)];
    connect(fd: c_int, name: *const libc::sockaddr, bytes: libc::socklen_t) -> c_int =
        [reads(name, bytes as usize)];
    getsockname(fd: c_int, name: *mut libc::sockaddr, bytes: *mut libc::socklen_t) -> c_int =
        [writes(name, 128), filled(bytes)];
    getpeername(fd: c_int, name: *mut libc::sockaddr, bytes: *mut libc::socklen_t) -> c_int =
        [writes(name, 128), filled(bytes)];
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: libc::socklen_t) -> c_int =
        [reads(value, bytes as usize)];
    // Calls on clocks, limits and signals.
    clock_gettime(clock: c_int, to: *mut libc::timespec) -> c_int = [filled(to)];
    clock_getres(clock: c_int, to: *mut libc::timespec) -> c_int = [filled(to)];
    gettimeofday(to: *mut libc::timeval, zone: Any) -> c_int = [filled(to), writes(zone, 8)];
    getrlimit(which: libc::c_uint, to: *mut libc::rlimit) -> c_int = [filled(to)];
    getrusage(who: c_int, to: *mut libc::rusage) -> c_int = [filled(to)];
    getrlimit64(which: libc::c_uint, to: *mut libc::rlimit64) -> c_int = [filled(to)];
    getitimer(which: c_int, to: *mut libc::itimerval) -> c_int = [filled(to)];
    timerfd_gettime(fd: c_int, to: *mut libc::itimerspec) -> c_int = [filled(to)];
    timer_gettime(timer: libc::timer_t, to: *mut libc::itimerspec) -> c_int = [filled(to)];
    times(to: *mut libc::tms) -> libc::clock_t = [filled(to)];
    signalfd(fd: c_int, mask: *const libc::sigset_t, flags: c_int) -> c_int = [reads(mask, 8)];
    sigpending(to: *mut libc::sigset_t) -> c_int = [filled(to)];
    getentropy(to: Any, bytes: size_t) -> c_int = [writes(to, bytes.min(256))];
    sched_setaffinity(process: libc::pid_t, bytes: size_t, set: *const libc::cpu_set_t) -> c_int =
        [reads(set, bytes)];
    sched_getparam(process: libc::pid_t, to: *mut libc::sched_param) -> c_int = [filled(to)];
    sched_setparam(process: libc::pid_t, value: *const libc::sched_param) -> c_int = [reads(value, 4)];
    sched_setscheduler(process: libc::pid_t, policy: c_int, value: *const libc::sched_param) -> c_int =
        [reads(value, 4)];
    sched_rr_get_interval(process: libc::pid_t, to: *mut libc::timespec) -> c_int = [filled(to)];
    sysinfo(to: *mut libc::sysinfo) -> c_int = [filled(to)];
    uname(to: *mut libc::utsname) -> c_int = [filled(to)];
    sched_getaffinity(process: libc::pid_t, bytes: size_t, to: *mut libc::cpu_set_t) -> c_int =
        [writes(to, bytes)];
    // Calls on message queues, groups, and mounts.
    mq_send(queue: c_int, message: Path, bytes: size_t, priority: libc::c_uint) -> c_int =
        [reads(message, bytes)];
    mq_timedsend(
        queue: c_int, message: Path, bytes: size_t, priority: libc::c_uint, until: *const libc::timespec
    ) -> c_int =
        [reads(message, bytes), reads(until, 16)];
    mq_getattr(queue: c_int, to: *mut libc::mq_attr) -> c_int = [filled(to)];
    mq_unlink(name: Path) -> c_int = [text(name)];
    // Without `O_CREAT` the last two arguments are not read.
    mq_open(name: Path, flags: c_int, mode: mode_t, attributes: *const libc::mq_attr) -> c_int =
        [text(name), reads(attributes, size_of::<libc::mq_attr>())];
    mq_notify(queue: c_int, event: *const libc::sigevent) -> c_int =
        [reads(event, size_of::<libc::sigevent>())];
    msgctl(queue: c_int, command: c_int, argument: *mut libc::msqid_ds) -> c_int = [filled(argument)];
    shmctl(segment: c_int, command: c_int, argument: *mut libc::shmid_ds) -> c_int = [filled(argument)];
    semctl(set: c_int, index: c_int, command: c_int, argument: Any) -> c_int = [writes(argument, SOME)];
    getgroups(most: c_int, to: *mut libc::gid_t) -> c_int =
        [writes(to, usize::try_from(most).unwrap_or(0).min(1 << 16) * size_of::<libc::gid_t>())];
    setgroups(count: size_t, groups: *const libc::gid_t) -> c_int =
        [reads(groups, count.min(1 << 16) * size_of::<libc::gid_t>())];
    getresuid(a: *mut libc::uid_t, b: *mut libc::uid_t, c: *mut libc::uid_t) -> c_int =
        [filled(a), filled(b), filled(c)];
    getresgid(a: *mut libc::gid_t, b: *mut libc::gid_t, c: *mut libc::gid_t) -> c_int =
        [filled(a), filled(b), filled(c)];
    mount(source: Path, target: Path, kind: Path, flags: libc::c_ulong, data: Path) -> c_int =
        [text(source), text(target), text(kind), text(data)];
    umount2(target: Path, flags: c_int) -> c_int = [text(target)];
    clock_settime(clock: c_int, time: *const libc::timespec) -> c_int = [reads(time, 16)];
    timer_create(clock: c_int, event: *mut libc::sigevent, to: *mut libc::timer_t) -> c_int =
        [filled(event), filled(to)];
    ptrace(request: libc::c_uint, process: libc::pid_t, at: Any, data: Any) -> c_long = [writes(data, 512)];
    // Calls that execute programs.
    execve(path: Path, arguments: *const Path, environment: *const Path) -> c_int =
        [text(path), texts_at(arguments), texts_at(environment)];
    execv(path: Path, arguments: *const Path) -> c_int = [text(path), texts_at(arguments)];
    execvp(path: Path, arguments: *const Path) -> c_int = [text(path), texts_at(arguments)];
    execvpe(path: Path, arguments: *const Path, environment: *const Path) -> c_int =
        [text(path), texts_at(arguments), texts_at(environment)];
    execveat(
        at: c_int, path: Path, arguments: *const Path, environment: *const Path, flags: c_int
    ) -> c_int =
        [text(path), texts_at(arguments), texts_at(environment)];
    fexecve(fd: c_int, arguments: *const Path, environment: *const Path) -> c_int =
        [texts_at(arguments), texts_at(environment)];
}

fn texts_at(at: *const Path) -> Given {
    Given::Texts(at.expose_provenance())
}

type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    Path,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    *const Path,
    *const Path,
) -> c_int;

static POSIX_SPAWN: Next<Spawn> = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next<Spawn> = Next::new(c"posix_spawnp");
static SIGWAIT: Next<unsafe extern "C" fn(*const libc::sigset_t, *mut c_int) -> c_int> =
    Next::new(c"sigwait");

static GETNAME: Next<unsafe extern "C" fn(libc::pthread_t, *mut c_char, size_t) -> c_int> =
    Next::new(c"pthread_getname_np");
static SETNAME: Next<unsafe extern "C" fn(libc::pthread_t, Path) -> c_int> = Next::new(c"pthread_setname_np");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_getname_np(
    thread: libc::pthread_t,
    to: *mut c_char,
    bytes: size_t,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    numbered(&[writes(to, bytes.min(SOME))], || unsafe { GETNAME.get()(thread, to, bytes) })
}

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_setname_np(thread: libc::pthread_t, name: Path) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    numbered(&[text(name)], || unsafe { SETNAME.get()(thread, name) })
}

macro_rules! affinity {
    ($($name:ident, $next:ident, $symbol:literal, $set:ty, $given:ident;)+) => {
        $(
            static $next: Next<unsafe extern "C" fn(libc::pthread_t, size_t, $set) -> c_int> =
                Next::new($symbol);

            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                thread: libc::pthread_t, bytes: size_t, set: $set
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                numbered(&[$given(set, bytes)], || unsafe { $next.get()(thread, bytes, set) })
            }
        )+

        fn resolve_affinity() {
            $($next.resolve();)+
        }
    };
}

affinity! {
    pthread_getaffinity_np, GET_AFFINITY, c"pthread_getaffinity_np", *mut libc::cpu_set_t, writes;
    pthread_setaffinity_np, SET_AFFINITY, c"pthread_setaffinity_np", *const libc::cpu_set_t, reads;
}

macro_rules! spawn {
    ($($name:ident, $next:ident;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                process: *mut libc::pid_t,
                path: Path,
                actions: *const libc::posix_spawn_file_actions_t,
                attributes: *const libc::posix_spawnattr_t,
                arguments: *const Path,
                environment: *const Path,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function.
                numbered(&[text(path), texts_at(arguments), texts_at(environment)], || unsafe {
                    $next.get()(process, path, actions, attributes, arguments, environment)
                })
            }
        )+
    };
}

spawn! {
    posix_spawn, POSIX_SPAWN;
    posix_spawnp, POSIX_SPAWNP;
}

/// # Safety
///
/// The contract of the C library's function, which writes the signal by itself.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sigwait(set: *const libc::sigset_t, signal: *mut c_int) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    numbered(&[reads(set, 8)], || unsafe { SIGWAIT.get()(set, signal) })
}

static SYSCALL: Next<unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long> =
    Next::new(c"syscall");

static IOCTL: Next<unsafe extern "C" fn(c_int, libc::c_ulong, Any) -> c_int> = Next::new(c"ioctl");

/// Hook of `ioctl`. Nearly all arguments are short, so only the first [`SOME`] bytes are touched.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: Any) -> c_int {
    super::kernel::before_ioctl(request as usize, argument as usize);
    // SAFETY: the caller keeps the contract of the C function.
    asked(&[writes(argument, SOME)], || unsafe { IOCTL.get()(fd, request, argument) })
}

/// Hook of `syscall`: system calls by number. Memory calls go to `kernel`. For a futex the kernel reads one
/// word; if that fails, the call has had no effect.
///
/// # Safety
///
/// The contract of the C library's function. Reads six arguments, as the C library does.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller keeps the contract of the C function.
    let call = || unsafe { SYSCALL.get()(number, a, b, c, d, e, f) };
    if number != libc::SYS_futex {
        // SAFETY: the caller keeps the contract of the C function.
        let by_number = || unsafe {
            let arguments = [a, b, c, d, e, f];
            super::kernel::by_number(number, arguments)
                .or_else(|| super::descriptor::by_number(number, arguments))
                .or_else(|| super::limit::by_number(number, arguments))
                .or_else(|| super::birth::by_number(number, arguments))
                .or_else(|| super::queued::by_number(number, arguments))
                .or_else(|| super::signal::by_number(number, arguments))
                .or_else(|| super::number::by_number(number, arguments, call))
        };
        let done = if super::thread::is_ours() { None } else { by_number() };
        return done.unwrap_or_else(call);
    }
    asked(
        &[
            Given::Writes(a, 4),
            Given::Reads(d, if d < SOME { 0 } else { 16 }),
            Given::Writes(e, if e < SOME { 0 } else { 4 }),
        ],
        call,
    )
}
