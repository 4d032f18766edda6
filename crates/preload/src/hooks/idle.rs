//! Calls in which a thread waits for others to bring it work, or for time to pass.

use super::hook;
use crate::next::Next;
use crate::session::{is_recording, recording};
use crate::sites::SITES;
use azekura_trace::WaitKind;
use libc::{
    c_int, clockid_t, epoll_event, fd_set, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, timespec, timeval,
    useconds_t,
};

static POLL: Next<unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, c_int) -> c_int> = Next::new(c"poll");
static PPOLL: Next<
    unsafe extern "C-unwind" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int,
> = Next::new(c"ppoll");
static EPOLL: Next<unsafe extern "C-unwind" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int> =
    Next::new(c"epoll_wait");
static SELECT: Next<
    unsafe extern "C-unwind" fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int,
> = Next::new(c"select");
static ACCEPT: Next<unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int> =
    Next::new(c"accept");
static ACCEPT4: Next<unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int> =
    Next::new(c"accept4");
static NANOSLEEP: Next<unsafe extern "C-unwind" fn(*const timespec, *mut timespec) -> c_int> =
    Next::new(c"nanosleep");
static CLOCK_NANOSLEEP: Next<
    unsafe extern "C-unwind" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int,
> = Next::new(c"clock_nanosleep");
static USLEEP: Next<unsafe extern "C-unwind" fn(useconds_t) -> c_int> = Next::new(c"usleep");

hook!(poll => poll_hook, "rcx", "x3");
hook!(ppoll => ppoll_hook, "r8", "x4");
hook!(epoll_wait => epoll_hook, "r8", "x4");
hook!(select => select_hook, "r9", "x5");
hook!(accept => accept_hook, "rcx", "x3");
hook!(accept4 => accept4_hook, "r8", "x4");
hook!(nanosleep => nanosleep_hook, "rdx", "x2");
hook!(clock_nanosleep => clock_nanosleep_hook, "r8", "x4");
hook!(usleep => usleep_hook, "rsi", "x1");

/// Records `call` if the thread left its processor in it.
fn idles(what: &'static str, object: usize, from: usize, call: impl FnOnce() -> c_int) -> c_int {
    if !is_recording() {
        return call();
    }
    let watch = recording(azekura_trace::watch);
    let result = call();
    if recording(|| watch.has_left()) {
        recording(|| watch.waited(SITES.of(what, from), object, WaitKind::Idle));
    }
    result
}

unsafe extern "C-unwind" fn poll_hook(
    files: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    from: usize,
) -> c_int {
    // SAFETY: here and below, the caller's arguments, passed on to the function it meant to call.
    idles("poll", 0, from, || unsafe { POLL.get()(files, count, timeout) })
}

unsafe extern "C-unwind" fn ppoll_hook(
    files: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("poll", 0, from, || unsafe { PPOLL.get()(files, count, timeout, signals) })
}

unsafe extern "C-unwind" fn epoll_hook(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("epoll", epoll as usize, from, || unsafe { EPOLL.get()(epoll, events, most, timeout) })
}

unsafe extern "C-unwind" fn select_hook(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("select", 0, from, || unsafe { SELECT.get()(count, read, write, except, timeout) })
}

unsafe extern "C-unwind" fn accept_hook(
    socket: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("accept", socket as usize, from, || unsafe { ACCEPT.get()(socket, peer, len) })
}

unsafe extern "C-unwind" fn accept4_hook(
    socket: c_int,
    peer: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("accept", socket as usize, from, || unsafe { ACCEPT4.get()(socket, peer, len, flags) })
}

unsafe extern "C-unwind" fn nanosleep_hook(time: *const timespec, rest: *mut timespec, from: usize) -> c_int {
    // SAFETY: as above.
    idles("sleep", 0, from, || unsafe { NANOSLEEP.get()(time, rest) })
}

unsafe extern "C-unwind" fn clock_nanosleep_hook(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    rest: *mut timespec,
    from: usize,
) -> c_int {
    // SAFETY: as above.
    idles("sleep", 0, from, || unsafe { CLOCK_NANOSLEEP.get()(clock, flags, time, rest) })
}

unsafe extern "C-unwind" fn usleep_hook(time: useconds_t, from: usize) -> c_int {
    // SAFETY: as above.
    idles("sleep", 0, from, || unsafe { USLEEP.get()(time) })
}
