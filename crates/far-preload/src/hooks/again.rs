//! System calls that can be repeated (F1). A system call on far memory that the kernel cannot access returns
//! `EFAULT`. The hook then touches the far pages and repeats the call. A call is in this module only if it
//! has had no effect when it returns that error. Other calls are in `transfer`, `message`, `once` and `wait`.

use super::given::{Given, SOME, any, asked, filled, numbered, reads, text, texts_at, writes};
use crate::next::Next;
use libc::{c_char, mode_t, size_t, ssize_t};
use std::ffi::{c_int, c_long, c_void};

macro_rules! again {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = [$($given:expr),+];)+) => {
        next_functions! { $($name: unsafe extern "C" fn($($kind),*) -> $result;)+ }

        /// Finds all functions.
        pub(super) fn resolve() {
            $(next::$name.resolve();)+
            resolve_affinity();
            GETNAME.resolve();
            SETNAME.resolve();
            SET_SCHEDULE.resolve();
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

/// Largest size of a file handle in bytes.
const HANDLE: usize = 8 + 128;

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
    umount(target: Path) -> c_int = [text(target)];
    umount2(target: Path, flags: c_int) -> c_int = [text(target)];
    clock_settime(clock: c_int, time: *const libc::timespec) -> c_int = [reads(time, 16)];
    timer_create(clock: c_int, event: *mut libc::sigevent, to: *mut libc::timer_t) -> c_int =
        [filled(event), filled(to)];
    ptrace(request: libc::c_uint, process: libc::pid_t, at: Any, data: Any) -> c_long = [any(at), any(data)];
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
    // Functions of the C library that pass a name to the kernel by calls inside the library.
    scandir(path: Path, list: Any, filter: usize, order: usize) -> c_int = [text(path)];
    scandir64(path: Path, list: Any, filter: usize, order: usize) -> c_int = [text(path)];
    scandirat(at: c_int, path: Path, list: Any, filter: usize, order: usize) -> c_int = [text(path)];
    scandirat64(at: c_int, path: Path, list: Any, filter: usize, order: usize) -> c_int = [text(path)];
    setmntent(path: Path, how: Path) -> *mut libc::FILE = [text(path), text(how)];
    catopen(name: Path, flag: c_int) -> ssize_t = [text(name)];
    ftok(path: Path, project: c_int) -> libc::key_t = [text(path)];
    lchmod(path: Path, mode: mode_t) -> c_int = [text(path)];
    futimesat(at: c_int, path: Path, times: *const libc::timeval) -> c_int = [text(path), reads(times, 32)];
    __xmknod(version: c_int, path: Path, mode: mode_t, device: Any) -> c_int = [text(path)];
    __xmknodat(version: c_int, at: c_int, path: Path, mode: mode_t, device: Any) -> c_int = [text(path)];
    getdirentries(fd: c_int, to: Any, bytes: size_t, base: *mut libc::off_t) -> ssize_t =
        [writes(to, bytes.min(1 << 16))];
    getdirentries64(fd: c_int, to: Any, bytes: size_t, base: *mut libc::off_t) -> ssize_t =
        [writes(to, bytes.min(1 << 16))];
    // Calls of administrators.
    capget(header: Any, data: Any) -> c_int = [writes(header, 8), writes(data, 24)];
    capset(header: Any, data: Any) -> c_int = [writes(header, 8), reads(data, 24)];
    quotactl(command: c_int, device: Path, id: c_int, argument: Any) -> c_int =
        [text(device), writes(argument, SOME)];
    fanotify_mark(fd: c_int, flags: libc::c_uint, mask: u64, at: c_int, path: Path) -> c_int = [text(path)];
    name_to_handle_at(at: c_int, path: Path, handle: Any, mount: *mut c_int, flags: c_int) -> c_int =
        [text(path), writes(handle, HANDLE), filled(mount)];
    open_by_handle_at(mount: c_int, handle: Any, flags: c_int) -> c_int = [reads(handle, HANDLE)];
    acct(path: Path) -> c_int = [text(path)];
    settimeofday(time: Any, zone: Any) -> c_int = [reads(time, 16), reads(zone, 8)];
    modify_ldt(what: c_int, at: Any, bytes: libc::c_ulong) -> c_int = [writes(at, bytes as usize)];
    swapon(path: Path, flags: c_int) -> c_int = [text(path)];
    swapoff(path: Path) -> c_int = [text(path)];
    pivot_root(new: Path, old: Path) -> c_int = [text(new), text(old)];
    sethostname(name: Path, bytes: size_t) -> c_int = [reads(name, bytes)];
    setdomainname(name: Path, bytes: size_t) -> c_int = [reads(name, bytes)];
    init_module(image: Any, bytes: libc::c_ulong, parameters: Path) -> c_int =
        [reads(image, bytes as usize), text(parameters)];
    delete_module(name: Path, flags: libc::c_uint) -> c_int = [text(name)];
    fsopen(name: Path, flags: libc::c_uint) -> c_int = [text(name)];
    fspick(at: c_int, path: Path, flags: libc::c_uint) -> c_int = [text(path)];
    fsconfig(fd: c_int, command: libc::c_uint, key: Path, value: Any, more: c_int) -> c_int =
        [text(key), any(value)];
    open_tree(at: c_int, path: Path, flags: libc::c_uint) -> c_int = [text(path)];
    move_mount(from: c_int, old: Path, to: c_int, new: Path, flags: libc::c_uint) -> c_int =
        [text(old), text(new)];
    mount_setattr(at: c_int, path: Path, flags: libc::c_uint, value: Any, bytes: size_t) -> c_int =
        [text(path), reads(value, bytes)];
    pidfd_send_signal(fd: c_int, signal: c_int, information: Any, flags: libc::c_uint) -> c_int =
        [reads(information, size_of::<libc::siginfo_t>())];
    arch_prctl(what: c_int, value: usize) -> c_int = [Given::Any(value)];
    getcpu(number: *mut libc::c_uint, node: *mut libc::c_uint) -> c_int = [filled(number), filled(node)];
    sched_getattr(process: libc::pid_t, to: Any, bytes: libc::c_uint, flags: libc::c_uint) -> c_int =
        [writes(to, bytes as usize)];
    sched_setattr(process: libc::pid_t, value: Any, flags: libc::c_uint) -> c_int = [reads(value, 56)];
}

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

static SET_SCHEDULE: Next<unsafe extern "C" fn(libc::pthread_t, c_int, *const libc::sched_param) -> c_int> =
    Next::new(c"pthread_setschedparam");

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pthread_setschedparam(
    thread: libc::pthread_t,
    policy: c_int,
    value: *const libc::sched_param,
) -> c_int {
    // SAFETY: the caller keeps the contract of the C function.
    numbered(&[reads(value, 4)], || unsafe { SET_SCHEDULE.get()(thread, policy, value) })
}

affinity! {
    pthread_getaffinity_np, GET_AFFINITY, c"pthread_getaffinity_np", *mut libc::cpu_set_t, writes;
    pthread_setaffinity_np, SET_AFFINITY, c"pthread_setaffinity_np", *const libc::cpu_set_t, reads;
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

/// Hook of `ioctl`, with an argument of any kind.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: Any) -> c_int {
    super::kernel::before_ioctl(request as usize, argument as usize);
    // SAFETY: the caller keeps the contract of the C function.
    asked(&[any(argument)], || unsafe { IOCTL.get()(fd, request, argument) })
}

/// Hook of `syscall`: system calls by number. Memory calls go to `kernel`. For a futex the kernel reads one
/// word; if that fails, the call has had no effect. A call that no module executes is repeated if the kernel
/// cannot access an argument.
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
        if super::thread::is_ours() {
            return call();
        }
        return by_number().unwrap_or_else(|| asked(&[a, b, c, d, e, f].map(Given::Any), call));
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
