//! Calls in which a thread waits for work from others, for another process, or for time to pass.

use super::{hook, watched};
use crate::local::quietly;
use crate::next::next;
use crate::session::{begins, is_on, is_recording};
use azekura_trace::WaitKind;
use azekura_trace::area::Called;
use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, clockid_t, epoll_event, fd_set, id_t, idtype_t, mqd_t,
    nfds_t, off_t, pid_t, pollfd, rusage, sembuf, siginfo_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval, useconds_t,
};

next!(POLL: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int = new(c"poll"));
next!(PPOLL: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int =
    new(c"ppoll"));
next!(EPOLL: unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int =
    new(c"epoll_wait"));
next!(SELECT:
    unsafe extern "C-unwind" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int =
    new(c"select"));
next!(ACCEPT: unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int = new(c"accept"));
next!(ACCEPT4: unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int =
    new(c"accept4"));
next!(NANOSLEEP: unsafe extern "C-unwind" fn(*const timespec, *mut timespec) -> c_int = new(c"nanosleep"));
next!(CLOCK_NANOSLEEP:
    unsafe extern "C-unwind" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int =
    new(c"clock_nanosleep"));
next!(USLEEP: unsafe extern "C-unwind" fn(useconds_t) -> c_int = new(c"usleep"));

next!(POLL_CHK: unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int, size_t) -> c_int =
    new(c"__poll_chk"));
next!(EPOLL_PWAIT:
    unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int =
    new(c"epoll_pwait"));
next!(WAITPID: unsafe extern "C-unwind" fn(pid_t, *mut c_int, c_int) -> pid_t = new(c"waitpid"));
next!(WAIT4: unsafe extern "C-unwind" fn(pid_t, *mut c_int, c_int, *mut rusage) -> pid_t = new(c"wait4"));
next!(FLOCK: unsafe extern "C-unwind" fn(c_int, c_int) -> c_int = new(c"flock"));
next!(SEMOP: unsafe extern "C-unwind" fn(c_int, *mut sembuf, size_t) -> c_int = new(c"semop"));
next!(SEMTIMEDOP: unsafe extern "C-unwind" fn(c_int, *mut sembuf, size_t, *const timespec) -> c_int =
    new(c"semtimedop"));
next!(SIGWAIT: unsafe extern "C-unwind" fn(*const sigset_t, *mut c_int) -> c_int = new(c"sigwait"));
next!(SIGWAITINFO: unsafe extern "C-unwind" fn(*const sigset_t, *mut siginfo_t) -> c_int =
    new(c"sigwaitinfo"));
next!(SIGTIMEDWAIT: unsafe extern "C-unwind" fn(*const sigset_t, *mut siginfo_t, *const timespec) -> c_int =
    new(c"sigtimedwait"));

hook!(__poll_chk => poll_chk_hook, "r8", "x4");
hook!(epoll_pwait => epoll_pwait_hook, "r9", "x5");
hook!(waitpid => waitpid_hook, "rcx", "x3");
hook!(wait4 => wait4_hook, "r8", "x4");
hook!(flock => flock_hook, "rdx", "x2");
hook!(semop => semop_hook, "rcx", "x3");
hook!(semtimedop => semtimedop_hook, "r8", "x4");
hook!(sigwait => sigwait_hook, "rdx", "x2");
hook!(sigwaitinfo => sigwaitinfo_hook, "rdx", "x2");
hook!(sigtimedwait => sigtimedwait_hook, "rcx", "x3");
hook!(poll => poll_hook, "rcx", "x3");
hook!(ppoll => ppoll_hook, "r8", "x4");
hook!(epoll_wait => epoll_hook, "r8", "x4");
hook!(select => select_hook, "r9", "x5");
hook!(accept => accept_hook, "rcx", "x3");
hook!(accept4 => accept4_hook, "r8", "x4");
hook!(nanosleep => nanosleep_hook, "rdx", "x2");
hook!(clock_nanosleep => clock_nanosleep_hook, "r8", "x4");
hook!(usleep => usleep_hook, "rsi", "x1");

/// Records `call` if the thread left its processor during it.
fn idles<R>(called: Called, object: usize, from: usize, call: impl FnOnce() -> R) -> R {
    watched(called, object, from, || WaitKind::Idle, call)
}

unsafe extern "C-unwind" fn poll_hook(
    files: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    from: usize,
) -> c_int {
    // SAFETY: here and below, the caller's arguments are passed on to the function that the caller meant.
    idles(Called::Poll, 0, from, || unsafe { POLL.get()(files, count, timeout) })
}

unsafe extern "C-unwind" fn ppoll_hook(
    files: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Poll, 0, from, || unsafe { PPOLL.get()(files, count, timeout, signals) })
}

unsafe extern "C-unwind" fn epoll_hook(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    from: usize,
) -> c_int {
    // A server with a single thread waits only for events, so this call starts the recording.
    begins();
    // SAFETY: as in `poll_hook`.
    idles(Called::Epoll, epoll as usize, from, || unsafe { EPOLL.get()(epoll, events, most, timeout) })
}

unsafe extern "C-unwind" fn select_hook(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Select, 0, from, || unsafe { SELECT.get()(count, read, write, except, timeout) })
}

unsafe extern "C-unwind" fn accept_hook(
    socket: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Accept, socket as usize, from, || unsafe { ACCEPT.get()(socket, peer, len) })
}

unsafe extern "C-unwind" fn accept4_hook(
    socket: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Accept, socket as usize, from, || unsafe { ACCEPT4.get()(socket, peer, len, flags) })
}

unsafe extern "C-unwind" fn nanosleep_hook(time: *const timespec, rest: *mut timespec, from: usize) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sleep, 0, from, || unsafe { NANOSLEEP.get()(time, rest) })
}

unsafe extern "C-unwind" fn clock_nanosleep_hook(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sleep, 0, from, || unsafe { CLOCK_NANOSLEEP.get()(clock, flags, time, rest) })
}

unsafe extern "C-unwind" fn usleep_hook(time: useconds_t, from: usize) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sleep, 0, from, || unsafe { USLEEP.get()(time) })
}

unsafe extern "C-unwind" fn poll_chk_hook(
    files: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    size: size_t,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Poll, 0, from, || unsafe { POLL_CHK.get()(files, count, timeout, size) })
}

unsafe extern "C-unwind" fn epoll_pwait_hook(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    signals: *const sigset_t,
    from: usize,
) -> c_int {
    begins(); // as in `epoll_hook`
    // SAFETY: as in `poll_hook`.
    let call = || unsafe { EPOLL_PWAIT.get()(epoll, events, most, timeout, signals) };
    idles(Called::Epoll, epoll as usize, from, call)
}

unsafe extern "C-unwind" fn waitpid_hook(
    process: pid_t,
    status: *mut c_int,
    options: c_int,
    from: usize,
) -> pid_t {
    // SAFETY: as in `poll_hook`.
    idles(Called::Waitpid, 0, from, || unsafe { WAITPID.get()(process, status, options) })
}

unsafe extern "C-unwind" fn wait4_hook(
    process: pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut rusage,
    from: usize,
) -> pid_t {
    // SAFETY: as in `poll_hook`.
    idles(Called::Waitpid, 0, from, || unsafe { WAIT4.get()(process, status, options, usage) })
}

unsafe extern "C-unwind" fn flock_hook(file: c_int, operation: c_int, from: usize) -> c_int {
    // SAFETY: as in `poll_hook`.
    let call = |operation| unsafe { FLOCK.get()(file, operation) };
    if operation & (libc::LOCK_NB | libc::LOCK_UN) != 0 {
        return call(operation);
    }
    locks(Called::Flock, file, from, || call(operation | libc::LOCK_NB), || call(operation))
}

unsafe extern "C-unwind" fn semop_hook(set: c_int, steps: *mut sembuf, count: size_t, from: usize) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Semop, set as usize, from, || unsafe { SEMOP.get()(set, steps, count) })
}

unsafe extern "C-unwind" fn semtimedop_hook(
    set: c_int,
    steps: *mut sembuf,
    count: size_t,
    timeout: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Semop, set as usize, from, || unsafe { SEMTIMEDOP.get()(set, steps, count, timeout) })
}

unsafe extern "C-unwind" fn sigwait_hook(signals: *const sigset_t, signal: *mut c_int, from: usize) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sigwait, 0, from, || unsafe { SIGWAIT.get()(signals, signal) })
}

unsafe extern "C-unwind" fn sigwaitinfo_hook(
    signals: *const sigset_t,
    info: *mut siginfo_t,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sigwait, 0, from, || unsafe { SIGWAITINFO.get()(signals, info) })
}

unsafe extern "C-unwind" fn sigtimedwait_hook(
    signals: *const sigset_t,
    info: *mut siginfo_t,
    timeout: *const timespec,
    from: usize,
) -> c_int {
    // SAFETY: as in `poll_hook`.
    idles(Called::Sigwait, 0, from, || unsafe { SIGTIMEDWAIT.get()(signals, info, timeout) })
}

type Control = unsafe extern "C-unwind" fn(c_int, c_int, c_ulong) -> c_int;
type LockFile = unsafe extern "C-unwind" fn(c_int, c_int, off_t) -> c_int;

/// Takes a lock of a file by `lock`. In a process that has recorded nothing yet, `tried` is called first,
/// which does not wait: a lock that is not free starts the recording. (Processes with one thread wait for
/// locks of files that other processes hold.)
fn locks(
    called: Called,
    file: c_int,
    from: usize,
    tried: impl FnOnce() -> c_int,
    lock: impl FnOnce() -> c_int,
) -> c_int {
    if is_on() && !is_recording() {
        if quietly(tried) == 0 {
            return 0;
        }
        begins();
    }
    idles(called, file as usize, from, lock)
}

/// Hooks `fcntl` or `lockf`, of which only the commands that wait for a lock are recorded. With offsets of 64
/// bits, the functions with and without `64` in the name are equal.
macro_rules! file_lock {
    (
        $name:ident => $hook:ident, $next:ident: $type:ty = $symbol:literal as $called:ident, $tried:ident;
        $argument:ty
    ) => {
        next!($next: $type = new($symbol));

        hook!($name => $hook, "rcx", "x3");

        unsafe extern "C-unwind" fn $hook(
            file: c_int,
            command: c_int,
            argument: $argument,
            from: usize,
        ) -> c_int {
            // SAFETY: as in `poll_hook`. An argument that the command does not have contains an arbitrary
            // value, as in the C library's own function.
            let call = |command| unsafe { $next.get()(file, command, argument) };
            match $tried(command) {
                Some(tried) => locks(Called::$called, file, from, || call(tried), || call(command)),
                None => call(command),
            }
        }
    };
}

/// Returns the command of `fcntl` that tries to take a lock, for a command that waits for the lock.
fn tried_by_fcntl(command: c_int) -> Option<c_int> {
    match command {
        libc::F_SETLKW => Some(libc::F_SETLK),
        libc::F_OFD_SETLKW => Some(libc::F_OFD_SETLK),
        _ => None,
    }
}

/// Returns the command of `lockf` that tries to take a lock, for the command that waits for the lock.
fn tried_by_lockf(command: c_int) -> Option<c_int> {
    const F_LOCK: c_int = 1;
    const F_TLOCK: c_int = 2;
    (command == F_LOCK).then_some(F_TLOCK)
}

file_lock!(fcntl => fcntl_hook, FCNTL: Control = c"fcntl" as FcntlLock, tried_by_fcntl; c_ulong);
file_lock!(fcntl64 => fcntl64_hook, FCNTL64: Control = c"fcntl64" as FcntlLock, tried_by_fcntl; c_ulong);
file_lock!(lockf => lockf_hook, LOCKF: LockFile = c"lockf" as Lockf, tried_by_lockf; off_t);
file_lock!(lockf64 => lockf64_hook, LOCKF64: LockFile = c"lockf64" as Lockf, tried_by_lockf; off_t);

/// Hooks a function that may wait, recorded as `$called` for `$object`. The literals name the registers that
/// pass the call site.
macro_rules! idle {
    (
        $name:ident => $hook:ident, $next:ident = $symbol:literal as $called:ident for $object:expr,
        $intel:literal, $arm:literal;
        ($($argument:ident: $type:ty),*) -> $result:ty
    ) => {
        next!($next: unsafe extern "C-unwind" fn($($type),*) -> $result = new($symbol));

        hook!($name => $hook, $intel, $arm);

        unsafe extern "C-unwind" fn $hook($($argument: $type,)* from: usize) -> $result {
            // SAFETY: as in `poll_hook`.
            idles(Called::$called, $object, from, || unsafe { $next.get()($($argument),*) })
        }
    };
}

idle!(mq_receive => mq_receive_hook, MQ_RECEIVE = c"mq_receive" as MqReceive for queue as usize, "r8", "x4";
    (queue: mqd_t, into: *mut c_char, len: size_t, priority: *mut c_uint) -> ssize_t);
idle!(mq_timedreceive => mq_timedreceive_hook,
    MQ_TIMEDRECEIVE = c"mq_timedreceive" as MqReceive for queue as usize, "r9", "x5";
    (queue: mqd_t, into: *mut c_char, len: size_t, priority: *mut c_uint, until: *const timespec) -> ssize_t);
idle!(mq_send => mq_send_hook, MQ_SEND = c"mq_send" as MqSend for queue as usize, "r8", "x4";
    (queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint) -> c_int);
idle!(mq_timedsend => mq_timedsend_hook,
    MQ_TIMEDSEND = c"mq_timedsend" as MqSend for queue as usize, "r9", "x5";
    (queue: mqd_t, message: *const c_char, len: size_t, priority: c_uint, until: *const timespec) -> c_int);
idle!(msgrcv => msgrcv_hook, MSGRCV = c"msgrcv" as Msgrcv for queue as usize, "r9", "x5";
    (queue: c_int, into: *mut c_void, len: size_t, kind: c_long, flags: c_int) -> ssize_t);
idle!(msgsnd => msgsnd_hook, MSGSND = c"msgsnd" as Msgsnd for queue as usize, "r8", "x4";
    (queue: c_int, message: *const c_void, len: size_t, flags: c_int) -> c_int);
// The C library's own calls of `nanosleep` and `wait4` are not hooked.
idle!(sleep => sleep_hook, SLEEP = c"sleep" as Sleep for 0, "rsi", "x1"; (seconds: c_uint) -> c_uint);
idle!(pause => pause_hook, PAUSE = c"pause" as Sigwait for 0, "rdi", "x0"; () -> c_int);
idle!(sigsuspend => sigsuspend_hook, SIGSUSPEND = c"sigsuspend" as Sigwait for 0, "rsi", "x1";
    (signals: *const sigset_t) -> c_int);
idle!(wait => wait_hook, WAIT = c"wait" as Waitpid for 0, "rsi", "x1"; (status: *mut c_int) -> pid_t);
idle!(wait3 => wait3_hook, WAIT3 = c"wait3" as Waitpid for 0, "rcx", "x3";
    (status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t);
idle!(waitid => waitid_hook, WAITID = c"waitid" as Waitpid for 0, "r8", "x4";
    (kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int);
idle!(__ppoll_chk => ppoll_chk_hook, PPOLL_CHK = c"__ppoll_chk" as Poll for 0, "r9", "x5";
    (files: *mut pollfd, count: nfds_t, timeout: *const timespec, signals: *const sigset_t, size: size_t)
    -> c_int);

next!(EPOLL_PWAIT2:
    unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, *const timespec, *const sigset_t) -> c_int =
    new(c"epoll_pwait2"));

hook!(epoll_pwait2 => epoll_pwait2_hook, "r9", "x5");

unsafe extern "C-unwind" fn epoll_pwait2_hook(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    signals: *const sigset_t,
    from: usize,
) -> c_int {
    begins(); // as in `epoll_hook`
    // SAFETY: as in `poll_hook`.
    let call = || unsafe { EPOLL_PWAIT2.get()(epoll, events, most, timeout, signals) };
    idles(Called::Epoll, epoll as usize, from, call)
}
